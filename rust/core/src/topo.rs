//! Topological orders that the literature places ops by.
//!
//! * [`m_topo`]: Kahn's algorithm, first in first out (Baechi's m-TOPO).
//! * [`dfs_topo`]: last in first out (Celeritas, section 4.2.2): an op is followed by its children.
//! * [`cpd_topo`]: as [`dfs_topo`], children on the longest path first (Celeritas, section 5.1.3).
//!
//! All are O(V + E) but for sorting the ops that become ready together, and all break ties by the
//! user's smaller index.

use std::cmp::Reverse;

use crate::clock::Ticks;
use crate::graph::Graph;
use crate::ids::OpId;
use crate::kahn::{Queue, sources};
use crate::levels::Levels;

/// Kahn's order, first in first out; sources by index.
pub fn m_topo(graph: &Graph) -> Vec<OpId> {
    let mut queue = Queue::new(in_degrees(graph));
    while let Some(u) = queue.pop() {
        graph.successors(u).iter().for_each(|&v| queue.arrive(v));
    }
    debug_assert!(queue.is_complete(), "a graph has no cycle");
    queue.into_order()
}

/// Depth first: the ops that an op makes ready come right after it, smallest index first.
pub fn dfs_topo(graph: &Graph) -> Vec<OpId> {
    stack_order(graph, |ready| ready.sort_unstable_by_key(|&op| Reverse(graph.index(op))))
}

/// Depth first along the longest paths: of the ops that become ready together, the one with the
/// largest t-level + b-level comes first.
pub fn cpd_topo(graph: &Graph, levels: &Levels) -> Vec<OpId> {
    let path = |u: OpId| -> Ticks { levels.top[u.ix()] + levels.bottom[u.ix()] };
    stack_order(graph, |ready| ready.sort_unstable_by_key(|&op| (path(op), Reverse(graph.index(op)))))
}

/// The order in which ops are popped from a stack. Of the ops that are pushed together, `sort` puts
/// the one to be popped first at the end.
fn stack_order(graph: &Graph, mut sort: impl FnMut(&mut [OpId])) -> Vec<OpId> {
    let n = graph.n_ops();
    let mut missing = in_degrees(graph);
    let mut order = Vec::with_capacity(n);
    let mut stack = sources(&missing);
    let mut top = stack.len();
    stack.resize(n, OpId::NONE);
    sort(&mut stack[..top]);
    while top > 0 {
        top -= 1;
        let u = stack[top];
        order.push(u);
        let from = top;
        for &v in graph.successors(u) {
            // Without a branch, as in [`Queue::arrive`]. There is room: the stack never holds all
            // ops while an edge is left.
            let m = &mut missing[v.ix()];
            *m -= 1;
            stack[top] = v;
            top += usize::from(*m == 0);
        }
        if top > from + 1 {
            sort(&mut stack[from..top]);
        }
    }
    order
}

/// Whether `order` lists every op once, producers before consumers.
pub fn is_topological(graph: &Graph, order: &[OpId]) -> bool {
    let mut seen = vec![false; graph.n_ops()];
    let comes_next = |op: &OpId| {
        op.ix() < seen.len()
            && graph.input_ops(*op).iter().all(|producer| seen[producer.ix()])
            && !std::mem::replace(&mut seen[op.ix()], true)
    };
    order.len() == graph.n_ops() && order.iter().all(comes_next)
}

fn in_degrees(graph: &Graph) -> Vec<u32> {
    graph.ops().map(|u| graph.in_degree(u)).collect()
}
