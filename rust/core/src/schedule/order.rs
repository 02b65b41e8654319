//! A topological order that always takes the ready op of highest priority: the list of a list scheduler.
//!
//! With upward ranks it is their descending order, ops of no time told apart topologically.
//! Ties go to the smaller index. O(E + V log V).

use std::collections::BinaryHeap;

use crate::graph::Graph;
use crate::ids::OpId;

/// Ready ops by priority, largest first; ties: smaller index first.
pub fn by_priority(graph: &Graph, priority: &[u64]) -> Vec<OpId> {
    let mut missing: Vec<u32> = graph.ops().map(|u| graph.in_degree(u)).collect();
    // One word, which compares without a branch: the priority, and below it how far the index is from the last.
    let entry = |u: OpId| u128::from(priority[u.ix()]) << 32 | u128::from(!graph.index(u));
    let mut ready: BinaryHeap<_> = graph.ops().filter(|u| missing[u.ix()] == 0).map(entry).collect();
    let mut order = Vec::with_capacity(graph.n_ops());
    while let Some(word) = ready.pop() {
        let u = graph.numbering().op(!(word as u32));
        order.push(u);
        for &v in graph.successors(u) {
            let m = &mut missing[v.ix()];
            *m -= 1;
            if *m == 0 {
                ready.push(entry(v));
            }
        }
    }
    order
}
