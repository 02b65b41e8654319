//! Linear clustering (LC, Kim and Browne 1988): the critical path becomes a group, then the
//! critical path of the ops left over, and so on.
//!
//! Levels of the ops left over are kept up to date: taking a path out lowers only the b-levels of ops above
//! it. O((V + E) log V) where few levels change per path; O(V (V + E)) at worst.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::clock::Ticks;
use crate::graph::Graph;
use crate::ids::OpId;

/// Group per op, numbered in the order in which paths are taken out.
pub fn linear(graph: &Graph, op_time: &[Ticks], tensor_time: &[Ticks]) -> Vec<u32> {
    let mut left = Left::new(graph, op_time, tensor_time);
    let entry = |left: &Left<'_>, u: OpId| (left.bottom[u.ix()], Reverse((graph.index(u), u)));
    let mut heads: BinaryHeap<_> = graph.ops().map(|u| entry(&left, u)).collect();
    let mut count = 0;
    let mut path = Vec::new();
    while let Some((level, Reverse((_, head)))) = heads.pop() {
        if left.is_taken(head) {
            continue;
        }
        if left.bottom[head.ix()] < level {
            heads.push(entry(&left, head));
            continue;
        }
        path.clear();
        let mut at = Some(head);
        while let Some(u) = at {
            path.push(u);
            at = left.follower(u).map(|(_, v)| v);
        }
        path.iter().for_each(|u| left.group[u.ix()] = count);
        left.lower_above(&path);
        count += 1;
    }
    left.group
}

/// The graph of the ops that are in no group yet.
struct Left<'a> {
    graph: &'a Graph,
    op_time: &'a [Ticks],
    tensor_time: &'a [Ticks],
    group: Vec<u32>,
    bottom: Vec<Ticks>,
    /// Position of each op in the topological order.
    position: Vec<u32>,
    is_queued: Vec<bool>,
}

impl<'a> Left<'a> {
    fn new(graph: &'a Graph, op_time: &'a [Ticks], tensor_time: &'a [Ticks]) -> Self {
        let n = graph.n_ops();
        let mut position = vec![0; n];
        graph.topo().iter().enumerate().for_each(|(p, u)| position[u.ix()] = p as u32);
        let (group, is_queued) = (vec![u32::MAX; n], vec![false; n]);
        let mut left = Self { graph, op_time, tensor_time, group, bottom: vec![0; n], position, is_queued };
        for &u in graph.topo().iter().rev() {
            left.bottom[u.ix()] = left.level(u);
        }
        left
    }

    fn is_taken(&self, op: OpId) -> bool {
        self.group[op.ix()] != u32::MAX
    }

    /// The length of the longest path from an op, without the op itself, and the consumer on it; of
    /// several consumers the smallest.
    fn follower(&self, op: OpId) -> Option<(Ticks, OpId)> {
        let mut best: Option<(Ticks, OpId)> = None;
        for t in self.graph.outputs(op) {
            for &v in self.graph.consumers(t).iter().filter(|v| !self.is_taken(**v)) {
                let length = self.tensor_time[t.ix()] + self.bottom[v.ix()];
                if best.is_none_or(|(longest, b)| {
                    length > longest || (length == longest && self.graph.index(v) < self.graph.index(b))
                }) {
                    best = Some((length, v));
                }
            }
        }
        best
    }

    fn level(&self, op: OpId) -> Ticks {
        self.op_time[op.ix()] + self.follower(op).map_or(0, |(length, _)| length)
    }

    /// Updates the b-levels above ops that have just been taken out, consumers before producers.
    fn lower_above(&mut self, taken: &[OpId]) {
        let mut queue: BinaryHeap<u32> = BinaryHeap::new();
        for &u in taken {
            self.queue_producers(u, &mut queue);
        }
        while let Some(position) = queue.pop() {
            let u = self.graph.topo()[position as usize];
            self.is_queued[u.ix()] = false;
            let level = self.level(u);
            if level < self.bottom[u.ix()] {
                self.bottom[u.ix()] = level;
                self.queue_producers(u, &mut queue);
            }
        }
    }

    fn queue_producers(&mut self, op: OpId, queue: &mut BinaryHeap<u32>) {
        for (_, u) in self.graph.inputs_with_ops(op) {
            if !self.is_taken(u) && !std::mem::replace(&mut self.is_queued[u.ix()], true) {
                queue.push(self.position[u.ix()]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_taken_out_longest_first() {
        // 0 -> 1 -> 4 is longest; then 2 -> 3; 2 -> 4 crosses.
        let graph = Graph::new(5, &[0, 1, 2, 2], &[1, 4, 3, 4], None).unwrap();
        assert_eq!(linear(&graph, &[5, 5, 3, 3, 5], &[1; 5]), [0, 0, 1, 1, 0]);
    }
}
