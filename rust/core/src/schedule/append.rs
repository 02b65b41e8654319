//! The schedule of a given placement and order: every op at the end of its device, every tensor sent the
//! moment it is produced, each transfer at the end of its channels' queues.
//!
//! That is what the simulator does with a fixed sequence. Where each channel serves one pair of devices the
//! two agree exactly, since a channel's queue then follows the order of its sender's ops; on shared channels
//! transfers are queued here in the order of ops, there in the order of time. O(V + E + T) for T transfers.

use crate::clock::{Clock, Ticks};
use crate::cluster::Cluster;
use crate::ids::{DeviceId, OpId, TensorId};
use crate::schedule::Scheduled;
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
    let mut state = State {
        work,
        cluster,
        clock,
        device,
        ready: vec![0; n],
        channel_free: vec![0; if contention { cluster.channels().len() } else { 0 }],
        sent: vec![(TensorId::NONE, 0); cluster.n_devices()],
    };
    let graph = &work.graph;
    let mut homes: Vec<TensorId> = graph.tensors().filter(|&t| graph.is_home(t)).collect();
    homes.sort_unstable_by_key(|&t| graph.key(t));
    for t in homes {
        state.send(t, 0);
    }
    let n_types = cluster.types().len();
    let mut free = vec![0; cluster.n_devices()];
    let (mut start, mut finish) = (vec![0; n], vec![0; n]);
    for &u in order {
        let d = device[u.ix()];
        let begin = state.ready[u.ix()].max(free[d.ix()]);
        let end = begin + time[u.ix() * n_types + cluster.type_of(d)];
        (start[u.ix()], finish[u.ix()], free[d.ix()]) = (begin, end, end);
        for t in graph.outputs(u) {
            state.send(t, end);
        }
    }
    Scheduled { device: device.to_vec(), start, finish }
}

struct State<'a> {
    work: &'a Workload,
    cluster: &'a Cluster,
    clock: Clock,
    device: &'a [DeviceId],
    /// When the latest input so far reaches each op.
    ready: Vec<Ticks>,
    /// When each channel has served its queue; empty without contention.
    channel_free: Vec<Ticks>,
    /// Per device, the tensor sent there last and when it arrives.
    sent: Vec<(TensorId, Ticks)>,
}

impl State<'_> {
    /// Sends a tensor that is there at `now` to every device where an op reads it.
    fn send(&mut self, t: TensorId, now: Ticks) {
        let graph = &self.work.graph;
        let from = self.device[graph.source(t).ix()];
        for &v in graph.consumers(t) {
            let to = self.device[v.ix()];
            let arrival = if to == from {
                now
            } else if self.sent[to.ix()].0 == t {
                self.sent[to.ix()].1
            } else {
                let arrival = self.transfer(t, from, to, now);
                self.sent[to.ix()] = (t, arrival);
                arrival
            };
            let ready = &mut self.ready[v.ix()];
            *ready = (*ready).max(arrival);
        }
    }

    fn transfer(&mut self, t: TensorId, from: DeviceId, to: DeviceId, now: Ticks) -> Ticks {
        let bytes = self.work.tensor_bytes[t.ix()];
        let length = self.clock.ticks(self.cluster.transfer_seconds(from, to, bytes));
        if self.channel_free.is_empty() {
            return now + length;
        }
        let route = self.cluster.route_channels(from, to);
        let start = route.iter().map(|c| self.channel_free[c.ix()]).fold(now, Ticks::max);
        for c in route {
            self.channel_free[c.ix()] = start + length;
        }
        start + length
    }
}
