//! Local search on the boundary of groups that stand in a row.
//!
//! Fiduccia and Mattheyses (1982), from one node at a time. The node whose move gains most moves, even at a
//! loss; then its neighbours may. After a few moves without a new best, all moves past the best are undone. A
//! search that gained nothing is repeated only after its node or one of its neighbours has moved. A node may
//! move to any group from the last group that sends to it up to the first group that it sends to. So no edge
//! ever points backwards, and no cycle check is needed.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::clock::Ticks;
use crate::coarsen::{Limits, Quotient};
use crate::csr::Csr;

/// Neighbours of a moved node that are looked at.
const NEIGHBOURS: usize = 256;

/// A tensor with more readers than this is a hub: it is read in so many groups that one move changes little.
/// Gains leave it out.
const HUB: usize = 512;

/// Moves past the best that a local search makes before it gives up.
const TRIES: usize = 24;

/// What each group holds.
pub struct Groups {
    /// Compute time.
    pub time: Vec<Ticks>,
    /// Bytes, 128 bits wide: a sum that saturated could not be taken apart again.
    pub bytes: Vec<u128>,
    /// Class of the group's members.
    pub class: Vec<u64>,
}

impl Groups {
    /// The groups of a partition.
    pub fn new(base: &Quotient, group: &[u32], n_groups: usize) -> Self {
        let mut groups = Self { time: vec![0; n_groups], bytes: vec![0; n_groups], class: vec![0; n_groups] };
        for (u, &g) in group.iter().enumerate() {
            let g = g as usize;
            groups.time[g] += base.time[u];
            groups.bytes[g] += u128::from(base.bytes[u]);
            groups.class[g] = base.class[u];
        }
        groups
    }
}

/// Local searches from every node on the boundary, until a sweep gains nothing.
pub fn search(
    nodes: &Quotient,
    group: &mut Vec<u32>,
    groups: &mut Groups,
    limits: &Limits,
    budget: &mut usize,
) {
    let mut search = Search::new(nodes, std::mem::take(group), groups, limits);
    while *budget > 0 && search.sweep(budget) > 0 {}
    *group = search.group;
}

/// A move: what it gains, the node's index, the node, the group it moves to. The heap takes the largest gain
/// first, then the smallest index.
type Move = (i64, Reverse<u32>, u32, u32);

/// The state of a local search.
///
/// Invariants: no arc leads to a smaller group; the slots of a tensor that is no hub, the first
/// `used[t]` of its row of readers, are the groups of its readers, each with their number.
struct Search<'a> {
    nodes: &'a Quotient,
    limits: &'a Limits,
    groups: &'a mut Groups,
    group: Vec<u32>,
    /// Nodes per group.
    members: Vec<u32>,
    /// Tensors that each node reads, hubs left out.
    reads: Csr<u32>,
    /// Source per tensor.
    source: Vec<u32>,
    slots: Vec<(u32, u32)>,
    used: Vec<u32>,
    /// The last local search that each node moved in; [`KEPT`] once it has moved for good.
    moved: Vec<u32>,
    /// Nodes that moved for good, or a neighbour of which did, since a search last began from them.
    stale: Vec<bool>,
    heap: BinaryHeap<Move>,
}

/// Marks a node that stays where it is for the rest of a sweep.
const KEPT: u32 = u32::MAX;

impl<'a> Search<'a> {
    fn new(nodes: &'a Quotient, group: Vec<u32>, groups: &'a mut Groups, limits: &'a Limits) -> Self {
        let n = nodes.len();
        let readers = nodes.readers();
        let few = || (0..nodes.n_tensors()).filter(|&t| readers.row(t).len() <= HUB);
        let pairs = few().flat_map(|t| readers.row(t).iter().map(move |&r| (r as usize, t as u32)));
        let mut search = Self {
            reads: Csr::from_pairs(n, pairs),
            source: (0..n).flat_map(|u| nodes.tensors_of(u).map(move |_| u as u32)).collect(),
            slots: vec![(0, 0); readers.items().len()],
            used: vec![0; nodes.n_tensors()],
            moved: vec![0; n],
            stale: vec![true; n],
            members: vec![0; groups.time.len()],
            heap: BinaryHeap::new(),
            nodes,
            limits,
            groups,
            group,
        };
        for u in 0..n {
            search.members[search.group[u] as usize] += 1;
        }
        for t in few() {
            for &r in readers.row(t) {
                search.add_reader(t, search.group[r as usize]);
            }
        }
        search
    }

    /// Number of readers of a tensor in a group.
    fn readers_in(&self, t: usize, g: u32) -> u32 {
        let from = self.nodes.readers().range(t).start;
        let slots = &self.slots[from..from + self.used[t] as usize];
        slots.iter().find(|s| s.0 == g).map_or(0, |s| s.1)
    }

    fn add_reader(&mut self, t: usize, g: u32) {
        let from = self.nodes.readers().range(t).start;
        let used = self.used[t] as usize;
        match self.slots[from..from + used].iter_mut().find(|s| s.0 == g) {
            Some(slot) => slot.1 += 1,
            None => {
                self.slots[from + used] = (g, 1);
                self.used[t] += 1;
            }
        }
    }

    fn drop_reader(&mut self, t: usize, g: u32) {
        let from = self.nodes.readers().range(t).start;
        let used = self.used[t] as usize;
        if let Some(i) = self.slots[from..from + used].iter().position(|s| s.0 == g) {
            self.slots[from + i].1 -= 1;
            if self.slots[from + i].1 == 0 {
                self.slots.swap(from + i, from + used - 1);
                self.used[t] -= 1;
            }
        }
    }

    /// The transfer time by which the cut gets cheaper if a node moves to another group.
    fn gain(&self, u: usize, to: u32) -> i64 {
        let from = self.group[u];
        let mut gain = 0;
        for &t in self.reads.row(u) {
            let t = t as usize;
            let made_in = self.group[self.source[t] as usize];
            let cost = self.nodes.cost(t) as i64;
            if made_in != from && self.readers_in(t, from) == 1 {
                gain += cost;
            }
            if made_in != to && self.readers_in(t, to) == 0 {
                gain -= cost;
            }
        }
        for t in self.nodes.tensors_of(u) {
            let cost = self.nodes.cost(t) as i64;
            if self.readers_in(t, from) > 0 {
                gain -= cost;
            }
            if self.readers_in(t, to) > 0 {
                gain += cost;
            }
        }
        gain
    }

    fn has_room(&self, u: usize, to: u32) -> bool {
        let g = to as usize;
        self.groups.class[g] == self.groups.class[self.group[u] as usize]
            && self.groups.time[g] + self.nodes.time[u] <= self.limits.max_time
            && self.groups.bytes[g] + u128::from(self.nodes.bytes[u]) <= u128::from(self.limits.max_bytes)
    }

    /// The best move of a node, to the nearest groups that it reads from or that read from it.
    fn best_move(&self, u: usize) -> Option<Move> {
        let from = self.group[u];
        if self.members[from as usize] == 1 {
            return None;
        }
        let of = |node: u32| self.group[node as usize];
        let before = self.nodes.pred.row(u).iter().map(|&p| of(p)).max();
        let after = self.nodes.succ.row(u).iter().map(|arc| of(arc.node)).min();
        let targets = [before, after].into_iter().flatten().filter(|&to| to != from && self.has_room(u, to));
        targets.map(|to| (self.gain(u, to), Reverse(self.nodes.index[u]), u as u32, to)).max()
    }

    fn apply(&mut self, u: usize, to: u32) {
        let from = self.group[u];
        for i in self.reads.range(u) {
            let t = self.reads.items()[i] as usize;
            self.drop_reader(t, from);
            self.add_reader(t, to);
        }
        let (a, b) = (from as usize, to as usize);
        self.group[u] = to;
        self.members[a] -= 1;
        self.members[b] += 1;
        self.groups.time[a] -= self.nodes.time[u];
        self.groups.time[b] += self.nodes.time[u];
        self.groups.bytes[a] -= u128::from(self.nodes.bytes[u]);
        self.groups.bytes[b] += u128::from(self.nodes.bytes[u]);
    }

    /// One local search from every node on the boundary. Returns what they gain together.
    fn sweep(&mut self, budget: &mut usize) -> i64 {
        self.moved.fill(0);
        let mut gained = 0;
        let mut number = 0;
        for u in 0..self.nodes.len() {
            if self.moved[u] == KEPT || *budget == 0 || !std::mem::take(&mut self.stale[u]) {
                continue;
            }
            if let Some(first) = self.best_move(u) {
                number += 1;
                gained += self.from(first, number, budget);
            }
        }
        gained
    }

    /// A local search from one move.
    fn from(&mut self, first: Move, number: u32, budget: &mut usize) -> i64 {
        self.heap.clear();
        self.heap.push(first);
        let mut moves: Vec<(u32, u32)> = Vec::new();
        let (mut sum, mut best, mut best_at) = (0, 0, 0);
        while let Some(next) = self.heap.pop() {
            let (gain, _, u, to) = next;
            let node = u as usize;
            if self.moved[node] == KEPT || self.moved[node] == number {
                continue;
            }
            *budget = budget.saturating_sub(self.degree(node));
            let now = self.best_move(node);
            if now != Some(next) {
                self.heap.extend(now.filter(|now| now.0 < gain));
                continue;
            }
            moves.push((u, self.group[node]));
            self.moved[node] = number;
            self.apply(node, to);
            sum += gain;
            if sum > best {
                (best, best_at) = (sum, moves.len());
            } else if moves.len() - best_at >= TRIES {
                break;
            }
            let work = self.push_neighbours(node, number);
            *budget = budget.saturating_sub(work);
            if *budget == 0 {
                break;
            }
        }
        for &(u, from) in moves[best_at..].iter().rev() {
            self.apply(u as usize, from);
        }
        for &(u, _) in &moves[..best_at] {
            self.moved[u as usize] = KEPT;
            self.stale[u as usize] = true;
            self.nodes.neighbours(u as usize).for_each(|v| self.stale[v as usize] = true);
        }
        best
    }

    fn degree(&self, u: usize) -> usize {
        self.nodes.pred.row(u).len() + self.nodes.succ.row(u).len()
    }

    /// Puts the best moves of a node's neighbours on the heap. Returns how many steps that took.
    fn push_neighbours(&mut self, u: usize, number: u32) -> usize {
        let mut steps = 1;
        for v in self.nodes.neighbours(u).take(NEIGHBOURS) {
            let v = v as usize;
            if self.moved[v] != KEPT && self.moved[v] != number {
                self.heap.extend(self.best_move(v));
                steps += self.degree(v);
            }
        }
        steps
    }
}
