//! A topological order that always takes the ready op of highest priority: the list of a list scheduler.
//!
//! With upward ranks as priorities it is the order of descending ranks, in which ops that take no
//! time keep a topological order. Ties go to the smaller index. O(E + V log V).

use std::collections::BinaryHeap;

use crate::graph::Graph;
use crate::ids::OpId;
use crate::topo::is_topological;

/// Ready ops by priority, largest first; ties: smaller index first.
pub fn by_priority(graph: &Graph, priority: &[u64]) -> Vec<OpId> {
    // The priority, and below it how far the index is from the last: one word, which compares
    // without a branch.
    let entry = |u: OpId| u128::from(priority[u.ix()]) << 32 | u128::from(!graph.index(u));
    let op = |word: u128| graph.numbering().op(!(word as u32));
    let mut words: Vec<u128> = graph.ops().map(entry).collect();
    words.sort_unstable();
    // If priorities fall along every edge, as ranks do, the next op is always ready.
    let order: Vec<OpId> = words.into_iter().rev().map(op).collect();
    if is_topological(graph, &order) {
        return order;
    }
    let mut missing: Vec<u32> = graph.ops().map(|u| graph.in_degree(u)).collect();
    let mut ready: BinaryHeap<_> = graph.ops().filter(|u| missing[u.ix()] == 0).map(entry).collect();
    let mut order = Vec::with_capacity(graph.n_ops());
    while let Some(u) = ready.pop().map(op) {
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
