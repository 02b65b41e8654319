//! The list-scheduling engine: where and when an op could start, given all that is already scheduled.
//!
//! Every list scheduler works on it: [`list`] (HEFT, CPoP, PEFT, DPOS, m-TOPO orders), [`earliest`] (ETF,
//! m-ETF, m-SCT, GETF), [`adjusting`](crate::place::adjusting) (Celeritas). Devices are timelines with idle slots; with contention so are channels, and a
//! transfer takes the earliest time at which its whole route is idle. A tensor is sent to a device once,
//! when the first op that reads it there is scheduled.
//!
//! Without contention the makespan is exact: the simulator finds the same when it runs the engine's own
//! sequence. With contention it is an estimate, since the simulator serves a channel first come, first
//! served, while the engine fills idle time in the order in which it meets the consumers. Of a given
//! placement and order, [`append`] tells exactly what the simulator will do.

pub mod admission;
pub mod append;
pub mod dominant;
pub mod earliest;
pub mod linear;
pub mod list;
pub mod optimistic;
pub mod order;
pub mod placed;
pub(crate) mod push;
pub mod rank_set;
pub mod sent;
pub mod timeline;

use crate::clock::{Clock, Ticks};
use crate::cluster::Cluster;
use crate::error::Error;
use crate::ids::{ChannelId, DeviceId, OpId, TensorId};
use crate::workload::Workload;
use admission::Admission;
use sent::Sent;
use timeline::Timeline;

/// A placement with the schedule that the strategy expects.
#[derive(Clone, Debug, PartialEq)]
pub struct Scheduled {
    /// Device per op.
    pub device: Vec<DeviceId>,
    /// Start per op.
    pub start: Vec<Ticks>,
    /// Finish per op.
    pub finish: Vec<Ticks>,
}

/// Where and when an op was scheduled.
#[derive(Clone, Copy, Debug)]
struct Slot {
    device: DeviceId,
    start: Ticks,
    finish: Ticks,
}

/// An input of the op under consideration.
#[derive(Clone, Copy, Debug)]
struct Input {
    tensor: TensorId,
    /// The device it was produced on, and when it was there.
    at: DeviceId,
    from: Ticks,
    bytes: u64,
    /// The kind of route last asked for, and the ticks that sending it there takes: most devices are reached
    /// by routes of one kind.
    route: Option<u32>,
    length: Ticks,
}

impl Input {
    fn new(tensor: TensorId, at: DeviceId, from: Ticks, bytes: u64) -> Self {
        Self { tensor, at, from, bytes, route: None, length: 0 }
    }
}

/// A transfer that the op under consideration would need.
#[derive(Clone, Copy, Debug)]
struct Leg {
    tensor: TensorId,
    bytes: u64,
    at: DeviceId,
    start: Ticks,
    length: Ticks,
}

/// Everything scheduled so far. One step per op: [`Engine::consider`] it, ask for its start on any device,
/// then [`Engine::schedule`] it on one.
#[derive(Debug)]
pub struct Engine<'a> {
    work: &'a Workload,
    cluster: &'a Cluster,
    clock: Clock,
    /// Ticks per op and device type, row-major.
    time: &'a [Ticks],
    /// The op that decides for each.
    lead: &'a [OpId],
    devices: Vec<Timeline>,
    /// A timeline per channel; none in the classic model, where channels are unlimited.
    channels: Vec<Timeline>,
    /// When each tensor reaches the devices it is sent to.
    sent: Sent<Ticks>,
    slots: Vec<Slot>,
    admission: Admission<'a>,
    /// Device of each deciding op, once the first op it decides for is scheduled.
    bound: Vec<DeviceId>,
    /// The op under consideration and its inputs, those that are there first coming first.
    op: OpId,
    inputs: Vec<Input>,
    input_bytes: u64,
    /// Bytes it takes beside copies of its inputs.
    needed: u64,
    /// Transfers of those inputs, as last worked out; with contention only.
    legs: Vec<Leg>,
    /// When the last of them ends.
    legs_end: Ticks,
}

impl<'a> Engine<'a> {
    /// Nothing scheduled yet. `time` is ticks per op and device type, row-major; `lead` the op that decides
    /// where each op goes (itself where none does).
    pub fn new(
        work: &'a Workload,
        cluster: &'a Cluster,
        clock: Clock,
        time: &'a [Ticks],
        lead: &'a [OpId],
        contention: bool,
        admission: Admission<'a>,
    ) -> Self {
        let channels = if contention { cluster.channels().len() } else { 0 };
        let n = work.n_ops();
        Self {
            work,
            cluster,
            clock,
            time,
            lead,
            devices: vec![Timeline::default(); cluster.n_devices()],
            channels: vec![Timeline::default(); channels],
            sent: Sent::new(&work.graph),
            slots: vec![Slot { device: DeviceId::NONE, start: 0, finish: 0 }; n],
            admission,
            bound: vec![DeviceId::NONE; n],
            op: OpId::NONE,
            inputs: Vec::new(),
            input_bytes: 0,
            needed: 0,
            legs: Vec::new(),
            legs_end: 0,
        }
    }

    /// The workload being scheduled.
    pub fn work(&self) -> &'a Workload {
        self.work
    }

    /// The cluster it is scheduled on.
    pub fn cluster(&self) -> &'a Cluster {
        self.cluster
    }

    /// Ticks an op takes on a device.
    #[inline(always)]
    pub fn length(&self, op: OpId, device: DeviceId) -> Ticks {
        self.time[op.ix() * self.cluster.types().len() + self.cluster.type_of(device)]
    }

    /// The device that an op must take since an op it goes with is there.
    pub fn bound(&self, op: OpId) -> Option<DeviceId> {
        let device = self.bound[self.lead[op.ix()].ix()];
        (!device.is_none()).then_some(device)
    }

    /// Bytes still free on a device.
    pub fn free(&self, device: DeviceId) -> u64 {
        self.admission.free(device)
    }

    /// The time after which nothing runs on a device.
    #[inline(always)]
    pub fn open(&self, device: DeviceId) -> Ticks {
        self.devices[device.ix()].open()
    }

    /// Turns to an op all of whose producers are scheduled. O(inputs).
    ///
    /// A home tensor whose home is not placed yet is taken to be at hand.
    pub fn consider(&mut self, op: OpId) {
        if self.op == op {
            return;
        }
        self.op = op;
        self.needed = self.admission.needed(op, self.lead[op.ix()]);
        self.inputs.clear();
        let graph = &self.work.graph;
        for (tensor, source) in graph.inputs_with_ops(op) {
            let slot = self.slots[source.ix()];
            let bytes = self.work.tensor_bytes[tensor.ix()];
            self.inputs.push(Input::new(tensor, slot.device, slot.finish, bytes));
        }
        for &tensor in graph.pulls(op) {
            let at = self.slots[graph.source(tensor).ix()].device;
            if !at.is_none() {
                self.inputs.push(Input::new(tensor, at, 0, self.work.tensor_bytes[tensor.ix()]));
            }
        }
        self.input_bytes = self.inputs.iter().fold(0, |sum, i| i.bytes.saturating_add(sum));
        // Channels serve what is there first; without them the order makes no difference.
        if !self.channels.is_empty() && self.inputs.len() > 1 {
            self.inputs.sort_unstable_by_key(|i| (i.from, i.tensor));
        }
    }

    /// The device that made the latest input of the considered op.
    pub fn nearest(&self) -> Option<DeviceId> {
        self.inputs.iter().max_by_key(|i| i.from).map(|i| i.at)
    }

    /// When all inputs of the considered op are on a device.
    pub fn ready(&mut self, device: DeviceId) -> Ticks {
        if self.channels.is_empty() {
            return self.undelayed(device);
        }
        self.legs.clear();
        self.legs_end = 0;
        let mut ready = 0;
        for i in 0..self.inputs.len() {
            ready = ready.max(self.arrival(i, device));
        }
        ready
    }

    /// When all inputs of the considered op are on a device if every channel is idle.
    #[inline(always)]
    fn undelayed(&mut self, device: DeviceId) -> Ticks {
        let mut ready = 0;
        for i in 0..self.inputs.len() {
            let Input { at, from, .. } = self.inputs[i];
            let sent = if at == device { 0 } else { self.transfer(i, device) };
            ready = ready.max(from + sent);
        }
        ready
    }

    /// When input `i` is on a device; if it must be sent for it, notes the leg.
    #[inline(always)]
    fn arrival(&mut self, i: usize, device: DeviceId) -> Ticks {
        let Input { tensor, at, from, bytes, .. } = self.inputs[i];
        if at == device {
            return from;
        }
        if let Some(known) = self.sent.to(tensor, device) {
            return known;
        }
        let length = self.transfer(i, device);
        let start = self.idle_route(at, device, from, length);
        self.legs.push(Leg { tensor, bytes, at, start, length });
        self.legs_end = self.legs_end.max(start + length);
        start + length
    }

    /// Ticks that sending input `i` to a device takes.
    #[inline(always)]
    fn transfer(&mut self, i: usize, device: DeviceId) -> Ticks {
        let input = &mut self.inputs[i];
        let route = Some(self.cluster.route_kind(input.at, device));
        if route != input.route {
            input.route = route;
            input.length = self.clock.ticks(self.cluster.transfer_seconds(input.at, device, input.bytes));
        }
        input.length
    }

    /// The earliest time from `ready` on at which every channel of a route is idle for `length` ticks, the
    /// legs noted for this op included.
    fn idle_route(&self, from: DeviceId, to: DeviceId, ready: Ticks, length: Ticks) -> Ticks {
        let route = self.cluster.route_channels(from, to);
        let mut start = ready;
        loop {
            let idle = route.iter().fold(start, |at, c| self.channels[c.ix()].earliest(at, length));
            let mut at = idle;
            // Most often no leg lasts so long.
            let legs = if at < self.legs_end { &self.legs[..] } else { &[] };
            for leg in legs {
                let crosses = at < leg.start + leg.length && leg.start < at + length;
                if crosses && self.shares(route, leg.at, to) {
                    at = leg.start + leg.length;
                }
            }
            // The channel asked last is idle, and nothing has moved the start since: of several, any may not be.
            if at == start || (at == idle && route.len() == 1) {
                return at;
            }
            start = at;
        }
    }

    /// Whether a route has a channel in common with that of a leg.
    fn shares(&self, route: &[ChannelId], from: DeviceId, to: DeviceId) -> bool {
        let other = self.cluster.route_channels(from, to);
        std::ptr::eq(route, other) || route.iter().any(|c| other.contains(c))
    }

    /// The earliest finish of the considered op on a device, in an idle slot or at the end, if it is before
    /// `limit`: where the inputs alone arrive too late no slot is looked for, on the device or on channels.
    pub fn finish_before(&mut self, limit: Ticks, device: DeviceId) -> Option<Ticks> {
        let length = self.length(self.op, device);
        if self.undelayed(device) + length >= limit {
            return None;
        }
        let ready = self.ready(device);
        if ready + length >= limit {
            return None;
        }
        let finish = self.devices[device.ix()].earliest(ready, length) + length;
        (finish < limit).then_some(finish)
    }

    /// Whether the considered op may run on a device and has room there.
    pub fn fits(&self, device: DeviceId) -> bool {
        let op = self.op;
        self.work.allows(op, self.cluster, device)
            && self
                .admission
                .fits(self.lead[op.ix()], device, self.needed, self.input_bytes, || self.copies(device))
    }

    /// Bytes of the considered op's inputs that are not on a device yet.
    fn copies(&self, device: DeviceId) -> u64 {
        let is_there = |i: &Input| i.at == device || self.sent.to(i.tensor, device).is_some();
        self.inputs.iter().filter(|i| !is_there(i)).fold(0, |sum, i| i.bytes.saturating_add(sum))
    }

    /// Where to put the considered op when it fits nowhere.
    ///
    /// # Errors
    /// It fits nowhere, unless best effort will do.
    pub fn nowhere(&self) -> Result<DeviceId, Error> {
        self.admission.nowhere(self.op, self.lead[self.op.ix()], |d| self.copies(d))
    }

    /// Schedules the considered op on a device, with its transfers. `at_end`: after all that is there.
    pub fn schedule(&mut self, device: DeviceId, at_end: bool) {
        let op = self.op;
        let ready = self.ready(device);
        let length = self.length(op, device);
        let timeline = &mut self.devices[device.ix()];
        let start = if at_end { ready.max(timeline.open()) } else { timeline.earliest(ready, length) };
        timeline.book(start, length);
        let copies = self.send(device);
        let lead = self.lead[op.ix()];
        let first = self.bound[lead.ix()].is_none();
        self.admission.take(op, lead, device, copies, first);
        self.admission.read(op, &self.sent, |u| self.slots[u.ix()].device);
        self.slots[op.ix()] = Slot { device, start, finish: start + length };
        self.bound[lead.ix()] = device;
        self.op = OpId::NONE;
    }

    /// Books the transfers of the considered op's inputs to a device, as last worked out; the bytes that they
    /// bring there.
    fn send(&mut self, device: DeviceId) -> u64 {
        let mut copies = 0u64;
        for leg in &self.legs {
            for &channel in self.cluster.route_channels(leg.at, device) {
                self.channels[channel.ix()].book(leg.start, leg.length);
            }
            self.sent.note(leg.tensor, device, leg.start + leg.length);
            copies = copies.saturating_add(leg.bytes);
        }
        if self.channels.is_empty() && self.admission.counts_copies() {
            for input in self.inputs.iter().filter(|i| i.at != device) {
                if self.sent.note(input.tensor, device, input.from) {
                    copies = copies.saturating_add(input.bytes);
                }
            }
        }
        copies
    }

    /// What came of it.
    pub fn into_scheduled(self) -> Scheduled {
        Scheduled {
            device: self.slots.iter().map(|s| s.device).collect(),
            start: self.slots.iter().map(|s| s.start).collect(),
            finish: self.slots.iter().map(|s| s.finish).collect(),
        }
    }
}
