//! The schedule of a given placement and order: every op at the end of its device, every tensor sent the
//! moment it is produced, each transfer at the end of its channels' queues.
//!
//! The simulator does the same with a fixed sequence. Where each channel serves one pair of devices
//! the two agree exactly, since a channel's queue then follows the order of its sender's ops. On
//! shared channels transfers queue here in the order of ops, in the simulator in the order of time.
//! O(V + E + T) for T transfers.

use crate::clock::{Clock, Ticks};
use crate::cluster::Cluster;
use crate::ids::{DeviceId, OpId, TensorId};
use crate::schedule::Scheduled;
use crate::schedule::push::Push;
use crate::workload::Workload;

/// Schedules ops in `order`, which is topological, each on its device. `time` is ticks per op and device
/// type, row-major. Without `contention` channels are unlimited.
pub fn append(
    work: &Workload,
    cluster: &Cluster,
    clock: Clock,
    time: &[Ticks],
    device: &[DeviceId],
    order: &[OpId],
    contention: bool,
) -> Scheduled {
    let n = work.n_ops();
    let mut push = Push::new(work, cluster, clock, contention);
    let graph = &work.graph;
    let mut homes: Vec<TensorId> = graph.tensors().filter(|&t| graph.is_home(t)).collect();
    homes.sort_unstable_by_key(|&t| graph.key(t));
    for t in homes {
        push.send(t, 0, device);
    }
    let n_types = cluster.types().len();
    let mut free = vec![0; cluster.n_devices()];
    let (mut start, mut finish) = (vec![0; n], vec![0; n]);
    for &u in order {
        let d = device[u.ix()];
        let begin = push.ready[u.ix()].max(free[d.ix()]);
        let end = begin + time[u.ix() * n_types + cluster.type_of(d)];
        (start[u.ix()], finish[u.ix()], free[d.ix()]) = (begin, end, end);
        for t in graph.outputs(u) {
            push.send(t, end, device);
        }
    }
    Scheduled { device: device.to_vec(), start, finish }
}
