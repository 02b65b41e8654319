//! Topological orders that the literature places ops by.
//!
//! * [`m_topo`]: Kahn's algorithm, first in first out (Baechi's m-TOPO).
//! * [`dfs_topo`]: last in first out (Celeritas, section 4.2.2): an op is followed by its children.
//! * [`cpd_topo`]: the same, children on the longest path first (Celeritas, section 5.1.3).
//!
//! All are O(V + E) but for sorting the ops that become ready together, and all break ties by the
//! user's smaller index.

use std::cmp::Reverse;

use crate::clock::Ticks;
use crate::csr::Csr;
use crate::graph::Graph;
use crate::ids::OpId;
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

/// The same over bare rows of successors, which may have a cycle.
///
/// # Errors
/// The ops of a cycle, in order, if there is one.
pub(crate) fn kahn<T>(rows: &Csr<T>, successor: impl Fn(&T) -> OpId) -> Result<Vec<OpId>, Vec<OpId>> {
    let mut missing = vec![0u32; rows.n_rows()];
    rows.items().iter().for_each(|item| missing[successor(item).ix()] += 1);
    let mut queue = Queue::new(missing);
    while let Some(u) = queue.pop() {
        rows.row(u.ix()).iter().for_each(|item| queue.arrive(successor(item)));
    }
    queue.into_complete(rows, successor)
}

/// Ops in Kahn's order, first in first out: who pops one calls [`Queue::arrive`] for each edge that leaves it.
pub(crate) struct Queue {
    /// Edges that each op still waits for.
    missing: Vec<u32>,
    /// The ops popped, up to `head`, those ready, up to `tail`, and room for the rest.
    order: Vec<OpId>,
    head: usize,
    tail: usize,
}

impl Queue {
    /// `missing` counts each op's predecessors.
    pub fn new(missing: Vec<u32>) -> Self {
        let mut order = sources(&missing);
        let tail = order.len();
        order.resize(missing.len(), OpId::NONE);
        Self { missing, order, head: 0, tail }
    }

    /// The next op that waits for nothing.
    #[inline(always)]
    pub fn pop(&mut self) -> Option<OpId> {
        let next = self.order[..self.tail].get(self.head).copied();
        self.head += 1;
        next
    }

    /// Follows one edge to `v`.
    #[inline(always)]
    pub fn arrive(&mut self, v: OpId) {
        // Written whether ready or not, kept if ready: which it is cannot be predicted. While an edge is
        // left to follow, some op is not in the order, so there is room.
        let m = &mut self.missing[v.ix()];
        *m -= 1;
        self.order[self.tail] = v;
        self.tail += usize::from(*m == 0);
    }

    fn is_complete(&self) -> bool {
        self.tail == self.order.len()
    }

    fn into_order(mut self) -> Vec<OpId> {
        self.order.truncate(self.tail);
        self.order
    }

    /// The order of all ops, once none is left to pop.
    ///
    /// # Errors
    /// The ops of a cycle, in order, if there is one.
    pub fn into_complete<T>(
        self,
        rows: &Csr<T>,
        successor: impl Fn(&T) -> OpId,
    ) -> Result<Vec<OpId>, Vec<OpId>> {
        let is_complete = self.is_complete();
        let order = self.into_order();
        if is_complete { Ok(order) } else { Err(find_cycle(rows, successor, &order)) }
    }
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

/// Pops from a stack; `sort` puts the op to be popped first at the end of those pushed together.
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
            // As in `m_topo`: the stack never holds all ops while an edge is left.
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

/// Ops that wait for nothing, in their own order, which is that of the user's indices.
fn sources(missing: &[u32]) -> Vec<OpId> {
    missing.iter().enumerate().filter(|(_, m)| **m == 0).map(|(u, _)| OpId::new(u)).collect()
}

fn in_degrees(graph: &Graph) -> Vec<u32> {
    graph.ops().map(|u| graph.in_degree(u)).collect()
}

/// A cycle among the ops that Kahn's algorithm left over: each has a predecessor among them, so
/// walking backwards must come round.
fn find_cycle<T>(rows: &Csr<T>, successor: impl Fn(&T) -> OpId, order: &[OpId]) -> Vec<OpId> {
    let n = rows.n_rows();
    let mut left = vec![true; n];
    order.iter().for_each(|u| left[u.ix()] = false);
    // The smallest predecessor that is left, per op.
    let mut before = vec![OpId::NONE; n];
    for u in (0..n).rev().filter(|&u| left[u]) {
        rows.row(u).iter().for_each(|item| before[successor(item).ix()] = OpId::new(u));
    }
    let Some(start) = (0..n).find(|&u| left[u]) else { return Vec::new() };
    let mut seen = vec![u32::MAX; n];
    let mut walk = Vec::new();
    let mut op = OpId::new(start);
    while !op.is_none() && seen[op.ix()] == u32::MAX {
        seen[op.ix()] = walk.len() as u32;
        walk.push(op);
        op = before[op.ix()];
    }
    if op.is_none() {
        return walk;
    }
    let mut cycle = walk.split_off(seen[op.ix()] as usize);
    cycle.push(op);
    cycle.reverse();
    cycle
}
