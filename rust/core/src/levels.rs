//! t-level, b-level and the critical path (Celeritas eq. (2), (3); b-level is HEFT's upward rank).
//!
//! The t-level of an op is the longest path that ends where it begins, its own time excluded; the
//! b-level is the longest path from its beginning to the end of the graph. Paths count op times and
//! the transfer time of each tensor they follow. O(V + E), in integer ticks, so that all ops of one
//! critical path have exactly the same sum.

use crate::clock::Ticks;
use crate::graph::Graph;

/// Levels of every op.
#[derive(Clone, Debug, PartialEq)]
pub struct Levels {
    /// t-level per op.
    pub top: Vec<Ticks>,
    /// b-level per op.
    pub bottom: Vec<Ticks>,
}

impl Levels {
    /// Computes both levels from the time of each op and the transfer time of each tensor.
    pub fn new(graph: &Graph, op_time: &[Ticks], tensor_time: &[Ticks]) -> Self {
        Self { top: top(graph, op_time, tensor_time), bottom: bottom(graph, op_time, tensor_time) }
    }

    /// Length of the critical path.
    pub fn critical_path(&self) -> Ticks {
        self.bottom.iter().copied().max().unwrap_or(0)
    }
}

fn top(graph: &Graph, op_time: &[Ticks], tensor_time: &[Ticks]) -> Vec<Ticks> {
    let mut level = vec![0; graph.n_ops()];
    for &u in graph.topo() {
        let finish = level[u.ix()] + op_time[u.ix()];
        for t in graph.outputs(u) {
            let arrival = finish + tensor_time[t.ix()];
            for &v in graph.consumers(t) {
                let l = &mut level[v.ix()];
                *l = (*l).max(arrival);
            }
        }
    }
    level
}

fn bottom(graph: &Graph, op_time: &[Ticks], tensor_time: &[Ticks]) -> Vec<Ticks> {
    let mut level = vec![0; graph.n_ops()];
    for &u in graph.topo().iter().rev() {
        let mut longest = 0;
        for t in graph.outputs(u) {
            let after = graph.consumers(t).iter().map(|v| level[v.ix()]).max().unwrap_or(0);
            longest = longest.max(after + tensor_time[t.ix()]);
        }
        level[u.ix()] = longest + op_time[u.ix()];
    }
    level
}
