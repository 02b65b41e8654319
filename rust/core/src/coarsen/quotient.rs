//! The graph of groups while merging goes on: lighter than a [`crate::workload::Workload`].

use crate::clock::Ticks;
use crate::coarsen::{Coarsening, Obstacles, Weights};
use crate::csr::Csr;
use crate::graph::Graph;
use crate::ids::OpId;
use crate::kahn::kahn;

/// What one node sends another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arc {
    /// The node at the other end.
    pub node: u32,
    /// Transfer time of the tensors between the two, each once.
    pub cost: Ticks,
}

/// Nodes that stand for groups of ops, numbered by first member in topological order, and the tensors
/// that cross between them.
///
/// Invariants: a tensor's readers are distinct and none is its source; arcs are sums over
/// tensors, one per pair of nodes. Home tensors count for the cut but order nothing.
#[derive(Clone, Debug)]
pub struct Quotient {
    /// Compute time per node.
    pub time: Vec<Ticks>,
    /// Bytes per node.
    pub bytes: Vec<u64>,
    /// Class per node.
    pub class: Vec<u64>,
    /// The smallest user's index of a member. Ties between nodes break by it.
    pub index: Vec<u32>,
    /// Tensors by source: those of node `u` are `tensors_of[u]..tensors_of[u + 1]`.
    tensors_of: Vec<u32>,
    cost: Vec<Ticks>,
    is_home: Vec<bool>,
    readers: Csr<u32>,
    /// What each node sends, and to which nodes.
    pub succ: Csr<Arc>,
    /// The nodes that send to each node.
    pub pred: Csr<u32>,
    /// Node of every op, by position in the topological order.
    node_of: Vec<u32>,
}

impl Quotient {
    /// Every op a node of its own. The weights have been checked. O(V + E).
    pub fn new(graph: &Graph, weights: &Weights<'_>) -> Self {
        let n = graph.n_ops();
        let mut position = vec![0u32; n];
        for (i, u) in graph.topo().iter().enumerate() {
            position[u.ix()] = i as u32;
        }
        let read = || graph.tensors().filter(|&t| graph.consumers(t).iter().any(|&c| c != graph.source(t)));
        let mut count = vec![0u32; n + 1];
        read().for_each(|t| count[position[graph.source(t).ix()] as usize + 1] += 1);
        (0..n).for_each(|u| count[u + 1] += count[u]);
        let mut tensors = vec![0u32; count[n] as usize];
        let mut next = count.clone();
        for t in read() {
            let at = &mut next[position[graph.source(t).ix()] as usize];
            tensors[*at as usize] = t.0;
            *at += 1;
        }
        let ids = || tensors.iter().map(|&t| crate::ids::TensorId(t));
        let mut starts = Vec::with_capacity(tensors.len() + 1);
        starts.push(0);
        let mut readers = Vec::with_capacity(graph.n_edges());
        for t in ids() {
            let of = position[graph.source(t).ix()];
            readers.extend(graph.consumers(t).iter().map(|c| position[c.ix()]).filter(|&c| c != of));
            starts.push(readers.len() as u32);
        }
        let column = |values: &[u64]| graph.topo().iter().map(|u| values[u.ix()]).collect::<Vec<_>>();
        Self {
            time: column(weights.op_time),
            bytes: column(weights.op_bytes),
            class: column(weights.class),
            index: graph.topo().iter().map(|&u| graph.index(u)).collect(),
            cost: ids().map(|t| weights.tensor_time[t.ix()]).collect(),
            is_home: ids().map(|t| graph.is_home(t)).collect(),
            readers: Csr::from_parts(starts, readers),
            tensors_of: count,
            succ: Csr::from_parts(vec![0], Vec::new()),
            pred: Csr::from_parts(vec![0], Vec::new()),
            node_of: (0..n as u32).collect(),
        }
        .joined()
    }

    /// Number of nodes.
    pub fn len(&self) -> usize {
        self.time.len()
    }

    /// Whether there are no nodes; a graph has at least one.
    pub fn is_empty(&self) -> bool {
        self.time.is_empty()
    }

    /// Number of tensors that cross, and of their readers.
    pub fn size(&self) -> usize {
        self.len() + self.readers.items().len()
    }

    /// Tensors that cross as (source, transfer time, readers).
    pub fn tensors(&self) -> impl Iterator<Item = (usize, Ticks, &[u32])> + Clone {
        (0..self.len())
            .flat_map(move |u| self.tensors_of(u).map(move |t| (u, self.cost[t], self.readers.row(t))))
    }

    /// The tensors of a node that others read.
    pub fn tensors_of(&self, u: usize) -> std::ops::Range<usize> {
        self.tensors_of[u] as usize..self.tensors_of[u + 1] as usize
    }

    /// Number of tensors that cross.
    pub fn n_tensors(&self) -> usize {
        self.cost.len()
    }

    /// Transfer time of a tensor.
    pub fn cost(&self, tensor: usize) -> Ticks {
        self.cost[tensor]
    }

    /// Whether a tensor is there at time 0, and orders nothing.
    pub fn is_home(&self, tensor: usize) -> bool {
        self.is_home[tensor]
    }

    /// The nodes that read each tensor.
    pub fn readers(&self) -> &Csr<u32> {
        &self.readers
    }

    /// Merges nodes: node `u` becomes part of node `map[u]` of `n`. O(V + E).
    ///
    /// `map` numbers the new nodes without gaps.
    #[must_use]
    pub fn merged(&self, map: &[u32], n: usize) -> Self {
        let mut time = vec![0; n];
        let mut bytes = vec![0u64; n];
        let mut class = vec![0; n];
        let mut index = vec![u32::MAX; n];
        for (u, &m) in map.iter().enumerate() {
            let m = m as usize;
            time[m] += self.time[u];
            bytes[m] = bytes[m].saturating_add(self.bytes[u]);
            class[m] = self.class[u];
            index[m] = index[m].min(self.index[u]);
        }
        // Tensors by new source: members of a node, then their tensors.
        let members = Csr::from_pairs(n, map.iter().enumerate().map(|(u, &m)| (m as usize, u as u32)));
        let mut tensors_of = Vec::with_capacity(n + 1);
        tensors_of.push(0);
        let mut cost = Vec::with_capacity(self.cost.len());
        let mut is_home = Vec::with_capacity(self.cost.len());
        let mut starts = Vec::with_capacity(self.cost.len() + 1);
        starts.push(0);
        let mut readers: Vec<u32> = Vec::with_capacity(self.readers.items().len());
        // The last tensor that each node was seen to read.
        let mut seen = vec![u32::MAX; n];
        for m in 0..n {
            for &u in members.row(m) {
                for t in self.tensors_of(u as usize) {
                    let from = readers.len();
                    for &r in self.readers.row(t) {
                        let r = map[r as usize];
                        if r as usize != m && std::mem::replace(&mut seen[r as usize], t as u32) != t as u32 {
                            readers.push(r);
                        }
                    }
                    if readers.len() > from {
                        cost.push(self.cost[t]);
                        is_home.push(self.is_home[t]);
                        starts.push(readers.len() as u32);
                    }
                }
            }
            tensors_of.push(cost.len() as u32);
        }
        let readers = Csr::from_parts(starts, readers);
        let node_of = self.node_of.iter().map(|&u| map[u as usize]).collect();
        let (succ, pred) = (Csr::from_parts(vec![0], Vec::new()), Csr::from_parts(vec![0], Vec::new()));
        Self { time, bytes, class, index, tensors_of, cost, is_home, readers, succ, pred, node_of }.joined()
    }

    /// Fills in the arcs.
    fn joined(mut self) -> Self {
        let n = self.len();
        let mut starts = Vec::with_capacity(n + 1);
        starts.push(0u32);
        let mut arcs: Vec<Arc> = Vec::with_capacity(self.readers.items().len());
        // Where the arc to each node stands, if past the first of the current source.
        let mut at = vec![u32::MAX; n];
        let mut degree = vec![0u32; n + 1];
        for u in 0..n {
            let from = arcs.len() as u32;
            for t in self.tensors_of(u) {
                if self.is_home[t] {
                    continue;
                }
                let cost = self.cost[t];
                for &node in self.readers.row(t) {
                    let known = at[node as usize];
                    if known >= from && known < arcs.len() as u32 {
                        arcs[known as usize].cost += cost;
                    } else {
                        at[node as usize] = arcs.len() as u32;
                        degree[node as usize + 1] += 1;
                        arcs.push(Arc { node, cost });
                    }
                }
            }
            starts.push(arcs.len() as u32);
        }
        (0..n).for_each(|u| degree[u + 1] += degree[u]);
        let mut next = degree.clone();
        let mut back = vec![0; arcs.len()];
        for u in 0..n {
            for arc in &arcs[starts[u] as usize..starts[u + 1] as usize] {
                let at = &mut next[arc.node as usize];
                back[*at as usize] = u as u32;
                *at += 1;
            }
        }
        self.succ = Csr::from_parts(starts, arcs);
        self.pred = Csr::from_parts(degree, back);
        self
    }

    /// The nodes that send to a node, and those that it sends to.
    pub fn neighbours(&self, u: usize) -> impl Iterator<Item = u32> {
        self.pred.row(u).iter().copied().chain(self.succ.row(u).iter().map(|arc| arc.node))
    }

    /// Nodes in Kahn's order.
    pub fn topo(&self) -> Vec<u32> {
        let order = kahn(&self.succ, |arc| OpId(arc.node));
        debug_assert!(order.is_ok(), "merging closed a cycle: {order:?}");
        order.unwrap_or_default().into_iter().map(|u| u.0).collect()
    }

    /// Nodes as groups, numbered in Kahn's order, per op of the graph this began with.
    pub fn groups(&self, graph: &Graph, obstacles: Obstacles) -> Coarsening {
        let mut number = vec![0u32; self.len()];
        for (i, &u) in self.topo().iter().enumerate() {
            number[u as usize] = i as u32;
        }
        let mut group = vec![0u32; graph.n_ops()];
        for (u, &node) in graph.topo().iter().zip(&self.node_of) {
            group[u.ix()] = number[node as usize];
        }
        Coarsening { group, n_groups: self.len(), obstacles }
    }
}
