//! Adjusting Placement (Celeritas, Algorithm 2): stay on the previous op's device unless another one
//! lets the op start earlier by more than it costs to send its output back.
//!
//! Ops come in a topological order, usually CPD-TOPO of a coarse graph. The earliest start (EST) on a
//! device is the first idle slot after all inputs are there (eq. (7)), in the classic model without
//! contention. Settled where the paper leaves it open (its lines 10, 13, 18): the EST is that of the
//! coarse graph; devices are compared by when the op would *finish*, which on equal devices is the
//! paper's comparison of starts and on unequal ones keeps ops off slow idle devices; the first op goes
//! to the device of least EST, then most memory; infinities are never subtracted; best effort takes
//! the device with the *most* free memory; all tensors that come from one op are sent one after
//! another, each once per device. O(D (E + V log V)) with few idle slots.

use crate::clock::{Clock, Ticks};
use crate::cluster::Cluster;
use crate::error::Error;
use crate::ids::{DeviceId, OpId, TensorId};
use crate::place::{Memory, OnOom, charge_to_leads};
use crate::schedule::Scheduled;
use crate::schedule::sent::Sent;
use crate::schedule::timeline::Timeline;
use crate::workload::Workload;

/// Places ops in `order`. `time` is ticks per op and device type, row-major; `bytes` per op. An op that
/// another decides for goes where that one went, or decides for it if it comes first.
///
/// # Errors
/// An op that fits nowhere, unless `on_oom` is best effort.
#[expect(clippy::too_many_arguments, reason = "a strategy's whole input")]
pub fn adjusting(
    work: &Workload,
    cluster: &Cluster,
    clock: Clock,
    order: &[OpId],
    time: &[Ticks],
    bytes: &[u64],
    capacity: &[u64],
    on_oom: OnOom,
) -> Result<Scheduled, Error> {
    let mut state = State::new(work, cluster, clock, time);
    let charge = charge_to_leads(&work.lead, bytes);
    let mut memory = Memory::new(work, cluster, &work.lead, &charge, capacity, on_oom);
    let mut previous: Option<DeviceId> = None;
    // Where the op that decides for others, or the first of them to come up, went.
    let mut bound = vec![DeviceId::NONE; work.n_ops()];
    for &op in order {
        let lead = work.lead[op.ix()];
        if !bound[lead.ix()].is_none() {
            let device = bound[lead.ix()];
            state.book(op, device, state.earliest_start(op, device));
            continue;
        }
        let mut best: Option<(Ticks, DeviceId)> = None;
        let mut stay: Option<Ticks> = None;
        for d in cluster.device_ids().filter(|&d| memory.fits(lead, d)) {
            let finish = state.earliest_finish(op, d);
            if previous == Some(d) {
                stay = Some(finish);
            }
            let earlier = best.is_none_or(|(f, b)| {
                finish < f || (finish == f && previous.is_none() && memory.free(d) > memory.free(b))
            });
            if earlier {
                best = Some((finish, d));
            }
        }
        let device = match (best, stay, previous) {
            (Some((finish, d)), Some(here), Some(p)) => {
                if here - finish > state.back_cost(op, d, p) {
                    d
                } else {
                    p
                }
            }
            (Some((_, first)), _, _) => first,
            (None, _, _) => memory.nowhere(lead)?,
        };
        let start = state.earliest_start(op, device);
        memory.take(lead, device);
        bound[lead.ix()] = device;
        state.book(op, device, start);
        previous = Some(device);
    }
    Ok(Scheduled { device: state.device, start: state.start, finish: state.finish })
}

struct State<'a> {
    work: &'a Workload,
    cluster: &'a Cluster,
    clock: Clock,
    time: &'a [Ticks],
    timelines: Vec<Timeline>,
    device: Vec<DeviceId>,
    start: Vec<Ticks>,
    finish: Vec<Ticks>,
    /// When each tensor reaches the devices it is sent to.
    sent: Sent<Ticks>,
}

impl<'a> State<'a> {
    fn new(work: &'a Workload, cluster: &'a Cluster, clock: Clock, time: &'a [Ticks]) -> Self {
        let n = work.n_ops();
        Self {
            work,
            cluster,
            clock,
            time,
            timelines: vec![Timeline::default(); cluster.n_devices()],
            device: vec![DeviceId::NONE; n],
            start: vec![0; n],
            finish: vec![0; n],
            sent: Sent::new(&work.graph),
        }
    }

    fn length(&self, op: OpId, d: DeviceId) -> Ticks {
        self.time[op.ix() * self.cluster.types().len() + self.cluster.type_of(d)]
    }

    fn transfer(&self, t: TensorId, from: DeviceId, to: DeviceId) -> Ticks {
        self.clock.ticks(self.cluster.transfer_seconds(from, to, self.work.tensor_bytes[t.ix()]))
    }

    /// When the tensors that `op` reads reach `d`, told one by one.
    ///
    /// Tensors from one op queue behind each other. A home tensor whose home is not placed yet is
    /// taken to be at hand.
    fn arrivals(&self, op: OpId, d: DeviceId, mut tell: impl FnMut(TensorId, Ticks)) {
        let mut sender = (OpId::NONE, 0);
        for (t, from) in self.work.graph.inputs_with_ops(op) {
            if sender.0 != from {
                sender = (from, self.finish[from.ix()]);
            }
            let at = self.device[from.ix()];
            if at == d {
                tell(t, self.finish[from.ix()]);
            } else if let Some(known) = self.sent.to(t, d) {
                tell(t, known);
            } else {
                sender.1 += self.transfer(t, at, d);
                tell(t, sender.1);
            }
        }
        for &t in self.work.graph.pulls(op) {
            let at = self.device[self.work.graph.source(t).ix()];
            if !at.is_none() && at != d {
                tell(t, self.transfer(t, at, d));
            }
        }
    }

    fn earliest_start(&self, op: OpId, d: DeviceId) -> Ticks {
        let mut ready = 0;
        self.arrivals(op, d, |_, arrival| ready = ready.max(arrival));
        self.timelines[d.ix()].earliest(ready, self.length(op, d))
    }

    fn earliest_finish(&self, op: OpId, d: DeviceId) -> Ticks {
        self.earliest_start(op, d) + self.length(op, d)
    }

    /// Most time that sending the op's output back to `to` takes for any one consumer (eq. (8)).
    fn back_cost(&self, op: OpId, from: DeviceId, to: DeviceId) -> Ticks {
        let mut costs: Vec<(OpId, Ticks)> = Vec::new();
        for t in self.work.graph.outputs(op) {
            let cost = self.transfer(t, from, to);
            costs.extend(self.work.graph.consumers(t).iter().map(|&c| (c, cost)));
        }
        costs.sort_unstable();
        costs.chunk_by(|a, b| a.0 == b.0).map(|same| same.iter().map(|c| c.1).sum()).max().unwrap_or(0)
    }

    fn book(&mut self, op: OpId, d: DeviceId, start: Ticks) {
        let length = self.length(op, d);
        let mut arrived = Vec::new();
        self.arrivals(op, d, |t, at| arrived.push((t, at)));
        for (t, at) in arrived {
            self.sent.note(t, d, at);
        }
        self.timelines[d.ix()].book(start, length);
        self.device[op.ix()] = d;
        self.start[op.ix()] = start;
        self.finish[op.ix()] = start + length;
    }
}
