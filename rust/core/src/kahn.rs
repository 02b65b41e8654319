//! Kahn's algorithm over bare rows of successors, which may have a cycle.
//!
//! [`crate::graph`] finds with it whether the edges that a user gives have a cycle, and
//! [`topo::m_topo`](crate::topo::m_topo) is this order of a graph. O(V + E).

use crate::csr::Csr;
use crate::ids::OpId;

/// Kahn's order of the rows of a table, each of which lists the successors of an op.
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

/// Ops in Kahn's order, first in first out. The caller that pops an op calls [`Queue::arrive`] for
/// each edge that leaves it.
pub(crate) struct Queue {
    /// Edges that each op still waits for.
    missing: Vec<u32>,
    /// Ops that were popped, up to `head`; ops that are ready, from there to `tail`; room for the
    /// rest.
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
        // The op is written always and kept if it is ready: a branch on that would be mispredicted.
        // While an edge is left to follow, some op is not in the order, so there is room.
        let m = &mut self.missing[v.ix()];
        *m -= 1;
        self.order[self.tail] = v;
        self.tail += usize::from(*m == 0);
    }

    /// Whether every op has been made ready.
    pub fn is_complete(&self) -> bool {
        self.tail == self.order.len()
    }

    /// The ops that were made ready, in order.
    pub fn into_order(mut self) -> Vec<OpId> {
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

/// Ops that wait for nothing, in their own order, which is that of the user's indices.
pub(crate) fn sources(missing: &[u32]) -> Vec<OpId> {
    missing.iter().enumerate().filter(|(_, m)| **m == 0).map(|(u, _)| OpId::new(u)).collect()
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
