//! Tensors of a placed graph, sent the moment they are made: once per device, each transfer at the end of
//! its channels' queues.

use crate::clock::{Clock, Ticks};
use crate::cluster::Cluster;
use crate::ids::{DeviceId, TensorId};
use crate::workload::Workload;

/// When inputs reach the ops of a graph whose placement is known, as tensors are made.
#[derive(Debug)]
pub(crate) struct Push<'a> {
    work: &'a Workload,
    cluster: &'a Cluster,
    clock: Clock,
    /// When the latest input so far reaches each op.
    pub ready: Vec<Ticks>,
    /// When each channel has served its queue; empty where channels are unlimited.
    channel_free: Vec<Ticks>,
    /// Per device, the tensor sent there last and when it arrives.
    arrival: Vec<(TensorId, Ticks)>,
}

impl<'a> Push<'a> {
    /// The state before any tensor is sent.
    pub fn new(work: &'a Workload, cluster: &'a Cluster, clock: Clock, contention: bool) -> Self {
        Self {
            work,
            cluster,
            clock,
            ready: vec![0; work.n_ops()],
            channel_free: vec![0; if contention { cluster.n_channels() } else { 0 }],
            arrival: vec![(TensorId::NONE, 0); cluster.n_devices()],
        }
    }

    /// Hands a tensor that is there at `made` to its readers, by transfer to those on other
    /// devices. Returns the time that the transfers take.
    pub fn send(&mut self, t: TensorId, made: Ticks, placement: &[DeviceId]) -> Ticks {
        let work = self.work;
        let from = placement[work.graph.source(t).ix()];
        let mut sent = 0;
        for c in work.graph.consumers(t) {
            let to = placement[c.ix()];
            let at = if to == from {
                made
            } else if self.arrival[to.ix()].0 == t {
                self.arrival[to.ix()].1
            } else {
                let seconds = self.cluster.transfer_seconds(from, to, work.tensor_bytes[t.ix()]);
                let length = self.clock.ticks(seconds);
                let at = self.queue(from, to, made) + length;
                self.hold(from, to, at);
                self.arrival[to.ix()] = (t, at);
                sent += length;
                at
            };
            let ready = &mut self.ready[c.ix()];
            *ready = (*ready).max(at);
        }
        sent
    }

    /// When every channel of a route has served its queue, `made` at the earliest.
    #[inline(always)]
    fn queue(&self, from: DeviceId, to: DeviceId, made: Ticks) -> Ticks {
        if self.channel_free.is_empty() {
            return made;
        }
        let route = self.cluster.route_channels(from, to);
        route.iter().map(|c| self.channel_free[c.ix()]).fold(made, Ticks::max)
    }

    /// Keeps the channels of a route until a transfer is there.
    #[inline(always)]
    fn hold(&mut self, from: DeviceId, to: DeviceId, until: Ticks) {
        if !self.channel_free.is_empty() {
            for c in self.cluster.route_channels(from, to) {
                self.channel_free[c.ix()] = until;
            }
        }
    }
}
