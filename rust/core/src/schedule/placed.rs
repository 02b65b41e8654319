//! Levels and the critical path where transfer times depend on the op that reads the tensor, as in a placed
//! graph.
//!
//! O(V + E).

use crate::clock::{Clock, Ticks};
use crate::cluster::Cluster;
use crate::graph::Graph;
use crate::ids::{DeviceId, OpId, TensorId};
use crate::workload::Workload;

/// b-levels and a critical path.
#[derive(Clone, Debug, PartialEq)]
pub struct Paths {
    /// The longest path from each op's start to the end.
    pub bottom: Vec<Ticks>,
    /// The ops of one longest path, in order; of several the one of the smallest indices.
    pub critical: Vec<OpId>,
}

impl Paths {
    /// Paths from the time of each op, and the time of each tensor on its way to a consumer.
    pub fn new(graph: &Graph, op_time: &[Ticks], transfer: impl Fn(TensorId, OpId) -> Ticks) -> Self {
        let mut bottom = vec![0; graph.n_ops()];
        let mut next = vec![OpId::NONE; graph.n_ops()];
        for &u in graph.topo().iter().rev() {
            let (mut longest, mut follower) = (0, OpId::NONE);
            for t in graph.outputs(u) {
                for &v in graph.consumers(t) {
                    let length = transfer(t, v) + bottom[v.ix()];
                    if follower.is_none()
                        || length > longest
                        || (length == longest && graph.index(v) < graph.index(follower))
                    {
                        (longest, follower) = (length, v);
                    }
                }
            }
            bottom[u.ix()] = longest + op_time[u.ix()];
            next[u.ix()] = follower;
        }
        let sources = graph.ops().filter(|&u| graph.in_degree(u) == 0);
        let mut at = sources
            .max_by_key(|u| (bottom[u.ix()], std::cmp::Reverse(graph.index(*u))))
            .unwrap_or(OpId::NONE);
        let mut critical = Vec::new();
        while !at.is_none() {
            critical.push(at);
            at = next[at.ix()];
        }
        Self { bottom, critical }
    }

    /// Paths of a placed graph, in which only tensors that change devices take time. `time` is
    /// ticks per op and device type.
    pub fn placed(
        work: &Workload,
        cluster: &Cluster,
        clock: Clock,
        time: &[Ticks],
        placement: &[DeviceId],
    ) -> Self {
        let n_types = cluster.types().len();
        let op_time: Vec<Ticks> =
            placement.iter().enumerate().map(|(u, &d)| time[u * n_types + cluster.type_of(d)]).collect();
        Self::new(&work.graph, &op_time, |t, v| {
            let (from, to) = (placement[work.graph.source(t).ix()], placement[v.ix()]);
            if from == to {
                0
            } else {
                clock.ticks(cluster.transfer_seconds(from, to, work.tensor_bytes[t.ix()]))
            }
        })
    }
}
