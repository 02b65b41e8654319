//! The list-scheduling engine: where and when an op could start, given all that is already scheduled.
//!
//! Every list scheduler works on it: [`list`] (HEFT, CPoP, PEFT, DPOS, m-TOPO orders), [`earliest`]
//! (ETF, m-ETF, m-SCT, GETF), [`adjusting`](crate::place::adjusting) (Celeritas). Devices are
//! timelines with idle slots. With contention channels are [`queues`], in which a transfer stands
//! where the simulator will put it. An op goes to the device where its own finish plus the delay
//! that it causes other ops is least. A tensor is sent to a device once, when the first op that
//! reads it there is scheduled.
//!
//! Without contention the makespan is exact: the simulator finds the same when it runs ops in the engine's
//! own sequence. With contention it is exact as long as no later transfer delayed a scheduled op. After that
//! it is an estimate, since ops stay where they were scheduled. For a given placement and order, [`append`]
//! finds exactly what the simulator will do.
//!
//! Where a runtime has costs, an op starts once its host has launched all that were scheduled before it. A
//! tensor is queued once its sender has copied it out. The sender's next ops wait as long, which is a part of
//! the delay that counts against a device; in the engine's schedule they do not wait. The simulator is exact.

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
pub mod queues;
pub mod rank_set;
pub mod sent;
pub mod timeline;

use crate::clock::{Clock, Ticks};
use crate::cluster::Cluster;
use crate::error::Error;
use crate::ids::{DeviceId, OpId, TensorId};
use crate::workload::Workload;
use admission::Admission;
use queues::{Arrival, Queues, TransferId, Turn};
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
    /// The device that it comes from, and the time from which it is there.
    at: DeviceId,
    from: Ticks,
    /// Ticks for which sending it keeps that device busy; only then is it queued.
    copy: Ticks,
    bytes: u64,
    /// The kind of route last asked for, and the ticks that a transfer over it takes. Most devices
    /// are reached by routes of one kind.
    route: Option<u32>,
    length: Ticks,
}

impl Input {
    fn new(tensor: TensorId, at: DeviceId, from: Ticks, bytes: u64, engine: &Engine<'_>) -> Self {
        let seconds = engine.cluster.send_seconds(at, bytes);
        let copy = seconds.map_or(0, |seconds| engine.clock.ticks(seconds));
        Self { tensor, at, from, copy, bytes, route: None, length: 0 }
    }

    /// Ticks that sending the tensor to a device takes, once it is copied out.
    #[inline(always)]
    fn transfer(&mut self, device: DeviceId, cluster: &Cluster, clock: Clock) -> Ticks {
        let route = Some(cluster.route_kind(self.at, device));
        if route != self.route {
            self.route = route;
            self.length = clock.ticks(cluster.transfer_seconds(self.at, device, self.bytes));
        }
        self.length
    }

    /// When it can be queued for other devices.
    #[inline(always)]
    fn queued(&self) -> Ticks {
        self.from + self.copy
    }

    /// When the tensor would be on any device but its own, and its own device. The routes of the
    /// cluster must all be of one kind.
    #[inline(always)]
    fn elsewhere(&mut self, cluster: &Cluster, clock: Clock) -> (Ticks, DeviceId) {
        let other = DeviceId(u32::from(self.at.0 == 0));
        (self.queued() + self.transfer(other, cluster, clock), self.at)
    }
}

/// What was worked out of an op on one device.
#[derive(Clone, Debug, Default)]
struct Answer {
    /// The device, and when all inputs are there. None if that was too late.
    arrived: Option<(DeviceId, Arrival)>,
    /// Where an idle slot that holds the op starts, if one was looked for.
    slot: Option<Ticks>,
    /// With contention: the inputs that must be sent there, and the booked transfers that bring the others.
    legs: Vec<usize>,
    known: Vec<TransferId>,
}

impl Answer {
    fn is_of(&self, device: DeviceId) -> bool {
        self.arrived.is_some_and(|(of, _)| of == device)
    }

    fn forget(&mut self) {
        (self.arrived, self.slot) = (None, None);
        self.legs.clear();
        self.known.clear();
    }
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
    /// Per op, the op that decides where it goes.
    lead: &'a [OpId],
    /// Ticks that the launch of each op takes, empty: none, and when each host is free.
    launch: &'a [Ticks],
    hosts: Vec<Ticks>,
    devices: Vec<Timeline>,
    /// The queues of the channels; none in the classic model, where channels are unlimited.
    queues: Option<Queues<'a>>,
    /// The transfer that takes each tensor to the devices it is sent to.
    sent: Sent<TransferId>,
    slots: Vec<Slot>,
    admission: Admission<'a>,
    /// Device of each deciding op, once the first op it decides for is scheduled.
    bound: Vec<DeviceId>,
    /// The op under consideration and its inputs.
    op: OpId,
    inputs: Vec<Input>,
    input_bytes: u64,
    /// If all routes are of one kind: when the last input would reach any device but its own over
    /// idle channels, and its own device.
    far: Option<(Ticks, DeviceId)>,
    /// Bytes that the op under consideration takes beside copies of its inputs.
    needed: u64,
    /// The answer for the device last asked about, and the answer that was put aside.
    answer: Answer,
    aside: Answer,
}

impl<'a> Engine<'a> {
    /// An engine that has scheduled nothing. `time` is ticks per op and device type, row-major.
    /// `lead` is the op that decides where each op goes: often the op itself.
    pub fn new(
        work: &'a Workload,
        cluster: &'a Cluster,
        clock: Clock,
        time: &'a [Ticks],
        lead: &'a [OpId],
        contention: bool,
        admission: Admission<'a>,
    ) -> Self {
        let n = work.n_ops();
        Self {
            work,
            cluster,
            clock,
            time,
            lead,
            launch: &[],
            hosts: Vec::new(),
            devices: vec![Timeline::default(); cluster.n_devices()],
            queues: contention.then(|| Queues::new(cluster)),
            sent: Sent::new(&work.graph),
            slots: vec![Slot { device: DeviceId::NONE, start: 0, finish: 0 }; n],
            admission,
            bound: vec![DeviceId::NONE; n],
            op: OpId::NONE,
            inputs: Vec::new(),
            input_bytes: 0,
            far: None,
            needed: 0,
            answer: Answer::default(),
            aside: Answer::default(),
        }
    }

    /// The same, where hosts launch ops. `launch` is ticks per op; empty: none.
    #[must_use]
    pub fn launching(self, launch: &'a [Ticks]) -> Self {
        let n_hosts = if launch.is_empty() { 0 } else { self.cluster.n_hosts() };
        Self { launch, hosts: vec![0; n_hosts], ..self }
    }

    /// When an op is launched, if it is the next one and goes to this device.
    #[inline(always)]
    fn launched(&self, op: OpId, device: DeviceId) -> Ticks {
        if self.launch.is_empty() {
            return 0;
        }
        self.hosts[self.cluster.host_of(device)] + self.launch[op.ix()]
    }

    /// From now on a tick of delay of other ops weighs as much as `weight` ticks of the op's own.
    /// Before this call the weight is `DELAY_WEIGHT`.
    pub fn weigh_delays(&mut self, weight: Ticks) {
        self.queues.iter_mut().for_each(|queues| queues.delay_weight = weight);
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

    /// The device that an op must take, because an op that it goes with is there.
    pub fn bound(&self, op: OpId) -> Option<DeviceId> {
        let device = self.bound[self.lead[op.ix()].ix()];
        (!device.is_none()).then_some(device)
    }

    /// Whether a channel carries any number of transfers at once, so that none delays another.
    pub fn is_free_of_contention(&self) -> bool {
        self.queues.is_none()
    }

    /// Bytes still free on a device.
    pub fn free(&self, device: DeviceId) -> u64 {
        self.admission.free(device)
    }

    /// The time after which nothing runs on a device, and its host can launch an op for it.
    #[inline(always)]
    pub fn open(&self, device: DeviceId) -> Ticks {
        let host = if self.launch.is_empty() { 0 } else { self.hosts[self.cluster.host_of(device)] };
        self.devices[device.ix()].open().max(host)
    }

    /// Makes `op` the op under consideration. All its producers must be scheduled. O(inputs).
    ///
    /// A home tensor whose home is not placed yet counts as there.
    pub fn consider(&mut self, op: OpId) {
        if self.op == op {
            return;
        }
        self.op = op;
        self.answer.forget();
        self.aside.forget();
        self.needed = self.admission.needed(op, self.lead[op.ix()]);
        self.inputs.clear();
        let graph = &self.work.graph;
        for (tensor, source) in graph.inputs_with_ops(op) {
            let slot = self.slots[source.ix()];
            let bytes = self.work.tensor_bytes[tensor.ix()];
            let input = Input::new(tensor, slot.device, slot.finish, bytes, self);
            self.inputs.push(input);
        }
        for &tensor in graph.pulls(op) {
            let at = self.slots[graph.source(tensor).ix()].device;
            if !at.is_none() {
                let input = Input::new(tensor, at, 0, self.work.tensor_bytes[tensor.ix()], self);
                self.inputs.push(input);
            }
        }
        self.input_bytes = self.inputs.iter().fold(0, |sum, i| i.bytes.saturating_add(sum));
        self.far = if self.cluster.is_uniform() {
            self.inputs.iter_mut().map(|i| i.elsewhere(self.cluster, self.clock)).max()
        } else {
            None
        };
    }

    /// The device that made the latest input of the considered op.
    pub fn nearest(&self) -> Option<DeviceId> {
        self.inputs.iter().max_by_key(|i| i.from).map(|i| i.at)
    }

    /// When all inputs of the considered op are on a device.
    pub fn arrival(&mut self, device: DeviceId) -> Arrival {
        match self.answer.arrived {
            Some((last, arrival)) if last == device => arrival,
            _ => {
                let undelayed = self.undelayed(device);
                let soonest = self.ask(device, undelayed);
                self.arrival_before(Ticks::MAX, device, soonest).expect("no price comes to that limit")
            }
        }
    }

    /// Asks for all inputs of the considered op on a device, which would be there at `undelayed` if every
    /// channel were idle. Returns when they could be there at the earliest: the transfers that this takes
    /// are not delayed by each other.
    #[inline(always)]
    fn ask(&mut self, device: DeviceId, undelayed: Ticks) -> Ticks {
        let mut soonest = undelayed;
        self.answer.forget();
        let Some(queues) = &mut self.queues else { return soonest };
        queues.clear();
        for (i, input) in self.inputs.iter_mut().enumerate().filter(|(_, input)| input.at != device) {
            let end = if let Some(transfer) = self.sent.to(input.tensor, device) {
                self.answer.known.push(transfer);
                queues.end(transfer)
            } else {
                let turn = Turn::new(input.queued(), self.work.graph.key(input.tensor), device);
                self.answer.legs.push(i);
                queues.ask(turn, input.at, input.transfer(device, self.cluster, self.clock))
            };
            soonest = soonest.max(end);
        }
        soonest
    }

    /// When all inputs that were asked for are on the device; none if the price comes to `limit`.
    #[inline(always)]
    fn arrival_before(&mut self, limit: Ticks, device: DeviceId, soonest: Ticks) -> Option<Arrival> {
        let arrival = match &mut self.queues {
            None => Some(Arrival { at: soonest, delay: 0 }),
            Some(queues) => {
                self.answer.known.sort_unstable();
                let copies = self.answer.legs.iter().map(|&i| self.inputs[i].copy).sum();
                queues.arrival(soonest, copies, &self.answer.known, limit)
            }
        };
        self.answer.arrived = arrival.map(|arrival| (device, arrival));
        arrival
    }

    /// With contention: puts the answer for the device last asked about aside. It will do if the op is
    /// scheduled there, and is not worked out again.
    #[inline(always)]
    pub fn put_aside(&mut self) {
        if let Some(queues) = &mut self.queues {
            std::mem::swap(&mut self.answer, &mut self.aside);
            queues.put_aside();
        }
    }

    /// When all inputs of the considered op are on each device if every channel is idle.
    pub fn soonest(&mut self, arrivals: &mut [Ticks]) {
        match self.far {
            Some((there, from)) => {
                arrivals.fill(there);
                arrivals[from.ix()] = self.undelayed(from);
            }
            None => {
                for (device, arrival) in self.cluster.device_ids().zip(arrivals) {
                    *arrival = self.undelayed(device);
                }
            }
        }
    }

    /// When all inputs of the considered op are on a device if every channel is idle.
    #[inline(always)]
    fn undelayed(&mut self, device: DeviceId) -> Ticks {
        if let Some((there, from)) = self.far
            && from != device
        {
            return there;
        }
        let mut ready = 0;
        for input in &mut self.inputs {
            ready = ready.max(if input.at == device {
                input.from
            } else {
                input.queued() + input.transfer(device, self.cluster, self.clock)
            });
        }
        ready
    }

    /// The earliest finish of the considered op on a device, in an idle slot or at the end, plus the price of
    /// sending its inputs there; none if the sum is not before `limit`. What comes too late even if nothing
    /// delays its inputs costs no look at the queues, and what comes too late behind the transfers that
    /// are booked pushes none of them back.
    pub fn finish_before(&mut self, limit: Ticks, device: DeviceId) -> Option<Ticks> {
        let length = self.length(self.op, device);
        let undelayed = self.undelayed(device).max(self.launched(self.op, device));
        if undelayed + length >= limit {
            return None;
        }
        let (mut ready, mut start) = (undelayed, self.devices[device.ix()].earliest(undelayed, length));
        if start + length >= limit {
            return None;
        }
        let soonest = self.ask(device, undelayed);
        if soonest > ready {
            (ready, start) = (soonest, self.devices[device.ix()].earliest(soonest, length));
            if start + length >= limit {
                return None;
            }
        }
        let arrival = self.arrival_before(limit - length, device, soonest)?;
        if arrival.at > ready {
            start = self.devices[device.ix()].earliest(arrival.at, length);
        }
        self.answer.slot = Some(start);
        let finish = start + length + (arrival.price() - arrival.at);
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

    /// The device for the considered op when it fits nowhere.
    ///
    /// # Errors
    /// It fits nowhere, unless best effort will do.
    pub fn nowhere(&self) -> Result<DeviceId, Error> {
        self.admission.nowhere(self.op, self.lead[self.op.ix()], |d| self.copies(d))
    }

    /// Schedules the considered op on a device, with its transfers. `at_end`: after all ops of the device.
    pub fn schedule(&mut self, device: DeviceId, at_end: bool) {
        let op = self.op;
        if self.aside.is_of(device) {
            self.put_aside();
        }
        let ready = self.arrival(device).at.max(self.launched(op, device));
        let length = self.length(op, device);
        let timeline = &mut self.devices[device.ix()];
        let start = match self.answer.slot {
            Some(start) if !at_end => start,
            _ if at_end => ready.max(timeline.open()),
            _ => timeline.earliest(ready, length),
        };
        timeline.book(start, length);
        let copies = self.send(device, start);
        let lead = self.lead[op.ix()];
        let first = self.bound[lead.ix()].is_none();
        self.admission.take(op, lead, device, copies, first);
        self.admission.read(op, &self.sent, |u| self.slots[u.ix()].device);
        self.slots[op.ix()] = Slot { device, start, finish: start + length };
        if !self.launch.is_empty() {
            self.hosts[self.cluster.host_of(device)] += self.launch[op.ix()];
        }
        self.bound[lead.ix()] = device;
        self.op = OpId::NONE;
    }

    /// Books the transfers of the considered op's inputs to the device on which it starts at `start`, as last
    /// worked out. Returns the bytes that they bring there.
    fn send(&mut self, device: DeviceId, start: Ticks) -> u64 {
        let mut copies = 0u64;
        if let Some(queues) = &mut self.queues {
            for (transfer, &i) in (queues.book()..).zip(&self.answer.legs) {
                let Input { tensor, bytes, .. } = self.inputs[i];
                self.sent.note(tensor, device, transfer);
                self.answer.known.push(transfer);
                copies = copies.saturating_add(bytes);
            }
            self.answer.known.iter().for_each(|&transfer| queues.want(transfer, start));
        } else if self.admission.counts_copies() {
            for input in self.inputs.iter().filter(|i| i.at != device) {
                if self.sent.note(input.tensor, device, 0) {
                    copies = copies.saturating_add(input.bytes);
                }
            }
        }
        copies
    }

    /// How many transfers were worked out to be pushed back: on congested channels most of the time goes there.
    pub fn pushed_back(&self) -> u64 {
        self.queues.as_ref().map_or(0, |queues| queues.pushed_back)
    }

    /// When a scheduled op ends.
    #[inline(always)]
    pub fn finish(&self, op: OpId) -> Ticks {
        self.slots[op.ix()].finish
    }

    /// The finished schedule.
    pub fn into_scheduled(self) -> Scheduled {
        Scheduled {
            device: self.slots.iter().map(|s| s.device).collect(),
            start: self.slots.iter().map(|s| s.start).collect(),
            finish: self.slots.iter().map(|s| s.finish).collect(),
        }
    }
}
