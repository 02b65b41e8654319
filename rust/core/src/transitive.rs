//! The control edges that a graph needs: transitive reduction of control edges (Aho, Garey, Ullman
//! 1972), where edges that carry data stay whatever they imply.
//!
//! A control edge from `u` to `v` is *implied* if a path of other edges leads from `u` to `v`, or
//! an edge between the two carries data. In a graph without cycles all implied edges can go at
//! once: of the paths from `u` to `v`, the longest has no implied control edge, so whatever reached
//! `v` still does. The edges that are left are the only smallest set with which every op still
//! reaches the same ops.
//!
//! Destinations of control edges are taken in blocks of [`BLOCK`], in topological order. One sweep
//! backwards over the ops between a block's first control source and its last destination finds
//! which destinations of the block each op reaches, as bits. An edge is implied if a successor of
//! its source reaches its destination. O((V + E) D / 512) for D destinations at worst, and linear
//! where control edges are short; 64 bytes per op. (Bits for all pairs would take V^2 / 8 bytes:
//! 1.2 GB for 100,000 ops.)

use crate::graph::Graph;
use crate::ids::OpId;

/// Destinations whose reachability is worked out at a time.
pub const BLOCK: usize = 64 * WORDS;

const WORDS: usize = 8;

/// Which destinations of a block.
#[derive(Clone, Copy, Default)]
struct Bits([u64; WORDS]);

impl Bits {
    fn set(&mut self, bit: u32) {
        self.0[bit as usize / 64] |= 1 << (bit % 64);
    }

    fn has(&self, bit: u32) -> bool {
        self.0[bit as usize / 64] >> (bit % 64) & 1 == 1
    }

    fn join(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(word, more)| *word |= more);
    }
}

/// The control edges that no other path implies, block by block of their destinations.
pub struct NeededControl<'g> {
    graph: &'g Graph,
    /// Place of each op in the topological order.
    position: Vec<u32>,
    /// Destinations of control edges, in topological order, and how many are done.
    destinations: Vec<OpId>,
    done: usize,
    /// The bit of each op of the block, or [`Self::NO_BIT`].
    bit: Vec<u32>,
    /// The destinations of the block that each op reaches, for ops between its first source and its
    /// last destination.
    reach: Vec<Bits>,
}

impl<'g> NeededControl<'g> {
    const NO_BIT: u32 = u32::MAX;

    /// Works nothing out before the first block is asked for. O(V + E).
    pub fn of(graph: &'g Graph) -> Self {
        let mut position = vec![0; graph.n_ops()];
        graph.topo().iter().enumerate().for_each(|(at, op)| position[op.ix()] = at as u32);
        let is_destination = |v: &OpId| graph.inputs(*v).iter().any(|&t| graph.is_control(t));
        let destinations = graph.topo().iter().copied().filter(is_destination).collect();
        let bit = vec![Self::NO_BIT; graph.n_ops()];
        Self { graph, position, destinations, done: 0, bit, reach: Vec::new() }
    }

    fn at(&self, op: OpId) -> usize {
        self.position[op.ix()] as usize
    }

    /// Places of the first op with a control edge into the block, and of the block's last op.
    fn window(&self, block: &[OpId]) -> (usize, usize) {
        let control = |&v: &OpId| self.graph.inputs_with_ops(v).filter(|&(t, _)| self.graph.is_control(t));
        let first = block.iter().flat_map(control).map(|(_, u)| self.at(u)).min();
        let last = block.last().map_or(0, |&v| self.at(v));
        (first.unwrap_or(last), last)
    }

    /// The needed control edges into a block. The ops of the block have their bits.
    fn sweep(&mut self, first: usize, last: usize) -> Vec<(OpId, OpId)> {
        let graph = self.graph;
        let mut needed = Vec::new();
        self.reach.clear();
        self.reach.resize(last + 1 - first, Bits::default());
        for at in (first..=last).rev() {
            let u = graph.topo()[at];
            let (mut implied, mut ordered) = (Bits::default(), Bits::default());
            for t in graph.outputs(u) {
                for &v in graph.consumers(t).iter().filter(|&&v| self.at(v) <= last) {
                    implied.join(&self.reach[self.at(v) - first]);
                    let bit = self.bit[v.ix()];
                    if bit != Self::NO_BIT {
                        if graph.is_control(t) { ordered.set(bit) } else { implied.set(bit) }
                    }
                }
            }
            for t in graph.outputs(u).filter(|&t| graph.is_control(t)) {
                let into_block = graph.consumers(t).iter().filter(|v| self.bit[v.ix()] != Self::NO_BIT);
                needed.extend(into_block.filter(|v| !implied.has(self.bit[v.ix()])).map(|&v| (u, v)));
            }
            implied.join(&ordered);
            self.reach[at - first] = implied;
        }
        needed
    }
}

impl Iterator for NeededControl<'_> {
    type Item = Vec<(OpId, OpId)>;

    /// Sources and destinations of the needed control edges into the next block.
    fn next(&mut self) -> Option<Self::Item> {
        if self.done == self.destinations.len() {
            return None;
        }
        let end = (self.done + BLOCK).min(self.destinations.len());
        let block = self.destinations[self.done..end].to_vec();
        self.done = end;
        let (first, last) = self.window(&block);
        block.iter().zip(0..).for_each(|(v, bit)| self.bit[v.ix()] = bit);
        let needed = self.sweep(first, last);
        block.iter().for_each(|v| self.bit[v.ix()] = Self::NO_BIT);
        Some(needed)
    }
}
