//! The judge: an event-driven simulation of one step of a placed graph.
//!
//! Each device runs one op at a time and each channel carries one transfer at a time; both overlap.
//! Time advances in rounds. First every completion at this instant happens (ops by index, then
//! transfers by tensor and device), with the frees it causes; then every start (devices in index
//! order, then channels), with its allocations. Starts of zero length complete in another round of
//! the same instant. Times are whole ticks, so "the same instant" is exact and every run gives the
//! same schedule. O((V + E + T) log V) for T transfers.
//!
//! A tensor is sent once per destination device, the moment it is produced (home tensors: at 0). A
//! control edge between devices is a message of no bytes. A transfer over several channels starts
//! when it heads the queue of each of them; queues share one global order, hence no deadlock.
//!
//! A member of a collective takes no device: it has arrived once its inputs are there. When all have
//! arrived, the collective is queued on all channels of its algorithm, like a transfer over several
//! channels. While it holds them its members run, as long as the links need and the slowest member.
//!
//! Three costs of a runtime are off unless the problem has them. Where a device type has a cost of
//! sending, its devices copy out what they send ([`Copied`], `sending.rs`). Where measured times of a
//! collective say that it keeps devices busy, each member's device does that share before the member has
//! arrived, and the collective takes the rest of its time. Where launches take time, an op can start once
//! its host has launched it, and devices take ops as they were launched (`launching.rs`). A member of a
//! collective is launched too; a copy that a device sends is launched with the op that made the tensor.

mod blame;
mod channels;
mod gathering;
mod launching;
pub mod lifetime;
mod memory;
mod messages;
mod ready;
mod sending;

pub use blame::{Blame, Doing, Waited};
pub use memory::{Alive, MemorySample, Overflow};

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::clock::{Clock, Ticks};
use crate::cluster::Cluster;
use crate::error::Error;
use crate::graph::Graph;
use crate::ids::{DeviceId, OpId, TensorId};
use crate::workload::{Times, Workload};
use channels::Channels;
use gathering::Gathering;
pub use gathering::Together;
use launching::Launching;
use memory::Memory;
use messages::{Message, Messages};
pub use ready::Policy;
use ready::Ready;
pub use sending::Copied;
use sending::Sending;
use std::borrow::Cow;

/// In which order a channel serves its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkOrder {
    /// First come, first served; ties by tensor, then destination.
    Fifo,
    /// By the smallest priority among the transfer's consumers, then first come.
    Priority,
}

/// What to simulate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// How devices choose.
    pub policy: Policy,
    /// How channels choose; none: unlimited channels, the classic model without contention.
    pub contention: Option<LinkOrder>,
    /// Whether to keep every change of memory use, for drawing, and all that is alive at the first
    /// overflow.
    pub record_memory: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { policy: Policy::Priority, contention: Some(LinkOrder::Fifo), record_memory: false }
    }
}

/// One transfer of a tensor to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// What is sent.
    pub tensor: TensorId,
    /// From where.
    pub src: DeviceId,
    /// To where.
    pub dst: DeviceId,
    /// When it entered its queues: its tensor was there and, if sending costs, copied out.
    pub queued: Ticks,
    /// When its channels took it up.
    pub start: Ticks,
    /// When it arrived.
    pub finish: Ticks,
}

/// What happened.
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    /// Finish of the last op.
    pub makespan: Ticks,
    /// Start per op.
    pub start: Vec<Ticks>,
    /// Finish per op.
    pub finish: Vec<Ticks>,
    /// Every transfer, by tensor, then destination.
    pub transfers: Vec<Transfer>,
    /// Every collective, in the workload's order.
    pub together: Vec<Together>,
    /// The copy that each transfer's sender made; empty where no device pays for sending.
    pub copies: Vec<Copied>,
    /// Per op, what its device did of a collective before the op had arrived as a member; empty where no
    /// collective keeps devices busy.
    pub shares: Vec<Copied>,
    /// When each op was launched; empty where launches take no time.
    pub launched: Vec<Ticks>,
    /// What each op's start waited for.
    pub op_waited: Vec<Waited>,
    /// What each transfer's start waited for.
    pub transfer_waited: Vec<Waited>,
    /// Ticks that each device computes.
    pub device_busy: Vec<Ticks>,
    /// Ticks that each channel carries a transfer or a collective. With unlimited channels they may add up to more
    /// than the makespan.
    pub channel_busy: Vec<Ticks>,
    /// Largest number of bytes in use per device.
    pub peak: Vec<u64>,
    /// Bytes that transfers moved between devices.
    pub bytes_moved: u64,
    /// The first time a device held more than it can.
    pub overflow: Option<Overflow>,
    /// Every change of memory use, when asked for.
    pub memory: Vec<MemorySample>,
}

/// Simulates placements of one workload on one cluster; keeps what they share.
#[derive(Clone, Debug)]
pub struct Simulator<'a> {
    work: &'a Workload,
    cluster: &'a Cluster,
    clock: Clock,
    /// Ticks per op and device type, row-major.
    time: Cow<'a, [Ticks]>,
    /// Ticks per op that its launch takes; empty: none.
    dispatch: Cow<'a, [Ticks]>,
}

impl<'a> Simulator<'a> {
    /// Prepares. `times` has a column per device type of the cluster.
    ///
    /// # Errors
    /// A matrix of another shape; times too long to be counted.
    pub fn new(work: &'a Workload, cluster: &'a Cluster, times: &Times) -> Result<Self, Error> {
        times.check_types(cluster)?;
        let clock = work.clock(times, cluster)?;
        let dispatch = Cow::Owned(clock.ticks_of(times.dispatch()));
        Ok(Self { work, cluster, clock, time: Cow::Owned(times.ticks(clock)), dispatch })
    }

    /// Prepares with times that are counted already, in ticks: per op and device type, row-major, and
    /// of the launch of each op (empty: none).
    pub fn counted(
        work: &'a Workload,
        cluster: &'a Cluster,
        clock: Clock,
        time: &'a [Ticks],
        dispatch: &'a [Ticks],
    ) -> Self {
        Self { work, cluster, clock, time: Cow::Borrowed(time), dispatch: Cow::Borrowed(dispatch) }
    }

    /// The clock that ticks in the results are counted on.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// Ticks per op and device type, row-major.
    pub fn time(&self) -> &[Ticks] {
        &self.time
    }

    #[inline(always)]
    fn time_on(&self, op: OpId, device: DeviceId) -> Ticks {
        self.time[op.ix() * self.cluster.types().len() + self.cluster.type_of(device)]
    }

    /// Simulates one step. `priority` is per op; smaller runs first.
    ///
    /// # Errors
    /// A placement that breaks a rule; columns of the wrong length; a fixed sequence that can never
    /// run.
    pub fn run(&self, placement: &[DeviceId], priority: &[i32], options: Options) -> Result<Schedule, Error> {
        let busy = self.busy(placement, priority)?;
        let mut run = Run::new(self, placement, priority, options, busy);
        run.go(Ticks::MAX)?;
        Ok(run.into_schedule())
    }

    /// Simulates one step while the makespan may still be below `limit`. None: some device has at least as
    /// much left to compute as there is time up to `limit`.
    ///
    /// # Errors
    /// Those of [`Simulator::run`].
    pub fn run_below(
        &self,
        placement: &[DeviceId],
        priority: &[i32],
        options: Options,
        limit: Ticks,
    ) -> Result<Option<Schedule>, Error> {
        let busy = self.busy(placement, priority)?;
        if busy.iter().any(|&ticks| ticks >= limit) {
            return Ok(None);
        }
        let mut run = Run::new(self, placement, priority, options, busy);
        Ok(run.go(limit)?.then(|| run.into_schedule()))
    }

    /// Checks columns, and sums what each device computes.
    fn busy(&self, placement: &[DeviceId], priority: &[i32]) -> Result<Vec<Ticks>, Error> {
        self.work.check_placement(self.cluster, placement)?;
        if priority.len() != self.work.n_ops() {
            return Err(Error::WrongLength {
                argument: "priority",
                got: priority.len(),
                want: self.work.n_ops(),
                per: "op",
            });
        }
        let mut busy = vec![0; self.cluster.n_devices()];
        for (op, &device) in self.work.graph.ops().zip(placement) {
            busy[device.ix()] += self.time_on(op, device);
        }
        for &op in self.work.collectives.all_members() {
            busy[placement[op.ix()].ix()] -= self.time_on(op, placement[op.ix()]);
        }
        Ok(busy)
    }
}

/// A completion to come, in one word that compares without a branch: when, then [`of_op`],
/// [`LAUNCH`], [`of_copy`] or [`of_transfer`].
type Event = Reverse<u128>;

#[inline(always)]
fn event(time: Ticks, what: u64) -> Event {
    Reverse(u128::from(time) << 64 | u128::from(what))
}

/// At one instant, ops come before transfers, by the user's index. The low 24 bits are the device,
/// which tells the op that it runs.
#[inline(always)]
fn of_op(index: u32, device: DeviceId) -> u64 {
    u64::from(index) << 24 | u64::from(device.0)
}

/// At one instant, transfers come after ops, by their own index.
#[inline(always)]
fn of_transfer(message: u32) -> u64 {
    TRANSFER | u64::from(message)
}

/// At one instant, copies come after launches, by the index of their transfer; then shares, by op.
#[inline(always)]
fn of_copy(message: u32) -> u64 {
    COPY | u64::from(message)
}

const TRANSFER: u64 = 1 << 63;
const COPY: u64 = 1 << 62;
/// At one instant, hosts launch after ops have ended.
const LAUNCH: u64 = 1 << 61;

/// Stands for the op that a device runs while it copies out what it sends, or does a member's share.
const COPYING: OpId = OpId(u32::MAX - 1);

/// What the arrival of an input reads of its op. The two lie side by side, since arrivals visit ops
/// in no order of memory.
#[derive(Clone, Copy, Debug)]
struct Missing {
    /// Inputs that are not there yet.
    inputs: u32,
    device: DeviceId,
}

struct Run<'a> {
    sim: &'a Simulator<'a>,
    work: &'a Workload,
    cluster: &'a Cluster,
    placement: &'a [DeviceId],
    priority: &'a [i32],
    options: Options,
    now: Ticks,
    events: BinaryHeap<Event>,
    messages: Messages,
    missing: Vec<Missing>,
    /// Per op that has not started, when it became ready; `waited` then holds its last input.
    start: Vec<Ticks>,
    waited: Vec<Waited>,
    ready: Ready<'a>,
    /// The op each device runs.
    running: Vec<OpId>,
    /// What each device did last: an op, a copy, or a share of a collective.
    did: Vec<Waited>,
    /// Devices that may have something to start.
    wake: Vec<DeviceId>,
    channels: Channels,
    /// Collectives, whose messages are numbered after those of transfers.
    gathering: Gathering,
    /// What devices copy out and do of collectives, if any pays for that.
    sending: Option<Sending>,
    /// What hosts launch, if launches take time.
    launching: Option<Launching>,
    /// Messages queued in this round.
    fresh: Vec<u32>,
    memory: Memory<'a>,
    done: usize,
    transfer_waited: Vec<Waited>,
    transfers: Vec<Transfer>,
    device_busy: Vec<Ticks>,
    /// The part of `device_busy` that has not started.
    device_left: Vec<Ticks>,
    /// A lower bound on the makespan: now, plus what some device has left to compute. In the end it is the
    /// makespan.
    least: Ticks,
    channel_busy: Vec<Ticks>,
    bytes_moved: u64,
}

impl<'a> Run<'a> {
    fn new(
        sim: &'a Simulator<'a>,
        placement: &'a [DeviceId],
        priority: &'a [i32],
        options: Options,
        busy: Vec<Ticks>,
    ) -> Self {
        let (work, cluster) = (sim.work, sim.cluster);
        let k = cluster.n_devices();
        let messages = Messages::new(work, placement, k);
        let transfers = transfers(work, placement, &messages);
        let gathering = Gathering::new(sim, placement, messages.len());
        let launching = Launching::new(sim, placement, priority, options.policy);
        let mut missing = missing(work, placement);
        let mut least = busy.iter().copied().max().unwrap_or(0);
        let ready = match &launching {
            Some(launching) => {
                missing.iter_mut().for_each(|missing| missing.inputs += 1);
                let ends = work.graph.ops().zip(launching.times()).zip(placement);
                least = ends.map(|((op, at), &d)| at + sim.time_on(op, d)).fold(least, Ticks::max);
                Ready::fixed(launching.sequences(work, placement, k))
            }
            None => Ready::new(options.policy, sim, placement, priority),
        };
        Self {
            sim,
            work,
            cluster,
            placement,
            priority,
            options,
            now: 0,
            events: BinaryHeap::with_capacity(64),
            missing,
            start: vec![0; work.n_ops()],
            waited: vec![Waited::Nothing; work.n_ops()],
            ready,
            running: vec![OpId::NONE; k],
            did: vec![Waited::Nothing; k],
            wake: Vec::with_capacity(k),
            channels: Channels::new(cluster, options.contention),
            fresh: Vec::new(),
            memory: Memory::new(work, cluster, placement, &messages, options.record_memory),
            done: 0,
            transfer_waited: vec![Waited::Nothing; messages.len()],
            sending: Sending::new(sim, &transfers, &gathering),
            gathering,
            launching,
            transfers,
            device_left: busy.clone(),
            least,
            device_busy: busy,
            channel_busy: vec![0; cluster.n_channels()],
            bytes_moved: messages
                .iter()
                .fold(0, |sum, m| work.tensor_bytes[m.tensor.ix()].saturating_add(sum)),
            messages,
        }
    }

    /// Runs to the end, or until the makespan is certain not to be below `limit`; says which.
    fn go(&mut self, limit: Ticks) -> Result<bool, Error> {
        self.begin();
        while let Some(&Reverse(next)) = self.events.peek()
            && self.least < limit
        {
            self.now = (next >> 64) as Ticks;
            while let Some(&Reverse(next)) = self.events.peek() {
                if (next >> 64) as Ticks != self.now {
                    break;
                }
                self.events.pop();
                self.complete(next as u64);
            }
            self.queue_fresh();
            self.start_all();
        }
        if self.least >= limit {
            return Ok(false);
        }
        if self.done == self.work.n_ops() { Ok(true) } else { Err(self.deadlock()) }
    }

    /// What can happen at time 0.
    fn begin(&mut self) {
        for t in self.work.graph.n_produced()..self.work.graph.n_tensors() {
            self.fresh.extend(self.messages.of(TensorId::new(t)));
        }
        for op in self.work.graph.ops() {
            let Missing { inputs, device } = self.missing[op.ix()];
            if inputs == 0 {
                match self.work.collectives.of_op(op) {
                    Some(collective) => self.member_ready(op, device, collective, Waited::Nothing),
                    None => self.ready.push(op, device, 0),
                }
            }
        }
        self.wake.extend(self.cluster.device_ids());
        self.launch();
        self.queue_fresh();
        self.start_all();
    }

    /// What has come to its end now.
    #[inline(always)]
    fn complete(&mut self, what: u64) {
        if what < LAUNCH {
            self.complete_op(DeviceId(what as u32 & 0xff_ffff));
        } else if what >= TRANSFER {
            match self.gathering.of_message(what as u32) {
                Some(collective) => self.complete_collective(collective),
                None => self.complete_transfer(what as u32),
            }
        } else if what >= COPY {
            self.complete_copy(what as u32);
        } else {
            self.launch();
        }
    }

    fn complete_op(&mut self, device: DeviceId) {
        let op = std::mem::replace(&mut self.running[device.ix()], OpId::NONE);
        self.did[device.ix()] = Waited::Device(op);
        self.wake.push(device);
        self.end_op(op, device);
    }

    /// What follows from the end of an op: memory is freed, and its outputs are there.
    #[inline(always)]
    fn end_op(&mut self, op: OpId, device: DeviceId) {
        self.done += 1;
        self.memory.op_finished(self.work, &self.messages, op, device, self.now);
        for t in self.work.graph.outputs(op) {
            for &c in self.work.graph.consumers(t) {
                if self.missing[c.ix()].device == device {
                    self.arrived(c, Waited::Op(op));
                }
            }
            self.fresh.extend(self.messages.of(t));
        }
    }

    fn complete_transfer(&mut self, message: u32) {
        let m = self.messages.get(message);
        let Transfer { src, dst, .. } = self.transfers[message as usize];
        self.memory.transfer_finished(self.work, m.tensor, src, self.now);
        self.channels.finished(self.cluster.route_channels(src, dst), message, self.now);
        for &c in self.work.graph.consumers(m.tensor) {
            if self.missing[c.ix()].device == m.dst {
                self.arrived(c, Waited::Transfer(message));
            }
        }
    }

    /// One more input of `op` is there.
    #[inline(always)]
    fn arrived(&mut self, op: OpId, cause: Waited) {
        let Missing { inputs, device } = &mut self.missing[op.ix()];
        *inputs -= 1;
        if *inputs == 0 {
            let device = *device;
            self.start[op.ix()] = self.now;
            self.waited[op.ix()] = cause;
            if let Some(collective) = self.work.collectives.of_op(op) {
                return self.member_ready(op, device, collective, cause);
            }
            self.ready.push(op, device, self.now);
            // Most often this is the device that has just become free.
            if self.running[device.ix()].is_none() && self.wake.last() != Some(&device) {
                self.wake.push(device);
            }
        }
    }

    /// The launches of this instant.
    fn launch(&mut self) {
        while let Some(op) = self.launching.as_mut().and_then(|launching| launching.pop(self.now)) {
            self.arrived(op, Waited::Launch(op));
        }
        if let Some(at) = self.launching.as_ref().and_then(Launching::next) {
            self.events.push(event(at, LAUNCH));
        }
    }

    /// A member of a collective has its inputs. Where its device must do a share first, it waits for that.
    fn member_ready(&mut self, op: OpId, device: DeviceId, collective: usize, cause: Waited) {
        let (now, index) = (self.now, self.work.graph.index(op));
        if self.sending.as_mut().is_some_and(|sending| sending.holds_member(index, device, now, cause)) {
            self.wake.push(device);
        } else {
            self.member_arrived(op, collective);
        }
    }

    /// One more member of a collective has arrived.
    fn member_arrived(&mut self, op: OpId, collective: usize) {
        if let Some(message) = self.gathering.arrived(op, collective) {
            self.fresh.push(message);
        }
    }

    /// Puts the transfers and collectives that became possible in this round into their queues.
    fn queue_fresh(&mut self) {
        if self.sending.is_some() {
            self.hold_back();
        }
        if self.fresh.is_empty() {
            return;
        }
        self.sort_fresh();
        let graph = &self.work.graph;
        let by_priority = self.options.contention == Some(LinkOrder::Priority);
        for &m in &self.fresh {
            if let Some(collective) = self.gathering.of_message(m) {
                let members = self.work.collectives.members(collective).iter();
                let urgency = members.map(|op| self.priority[op.ix()]).min().unwrap_or(0);
                let together = self.gathering.queued(collective, self.now);
                self.channels.push(&together.channels, m, if by_priority { urgency } else { 0 });
                continue;
            }
            let transfer = &mut self.transfers[m as usize];
            transfer.queued = self.now;
            let urgency = if by_priority {
                let there = graph
                    .consumers(transfer.tensor)
                    .iter()
                    .filter(|c| self.placement[c.ix()] == transfer.dst);
                there.map(|c| self.priority[c.ix()]).min().unwrap_or(0)
            } else {
                0
            };
            self.channels.push(self.cluster.route_channels(transfer.src, transfer.dst), m, urgency);
        }
        self.fresh.clear();
    }

    /// Transfers by tensor, then destination; collectives come after all of them.
    fn sort_fresh(&mut self) {
        if self.fresh.len() < 2 {
            return;
        }
        let (graph, messages, gathering) = (&self.work.graph, &self.messages, &self.gathering);
        self.fresh.sort_unstable_by_key(|&m| match gathering.of_message(m) {
            None => (graph.key(messages.get(m).tensor), messages.get(m).dst, m),
            Some(_) => (u32::MAX, DeviceId::NONE, m),
        });
    }

    /// Messages whose sender must copy them wait for it; those whose copies are done take their place.
    fn hold_back(&mut self) {
        self.sort_fresh();
        let Some(sending) = &mut self.sending else { return };
        let (graph, transfers, wake, now) = (&self.work.graph, &self.transfers, &mut self.wake, self.now);
        self.fresh.retain(|&m| {
            let Some(Transfer { tensor, src, .. }) = transfers.get(m as usize) else { return true };
            let must_wait = sending.holds(m, *src, now, maker(graph, *tensor));
            if must_wait {
                wake.push(*src);
            }
            !must_wait
        });
        self.fresh.extend(sending.take_done());
    }

    fn start_all(&mut self) {
        if self.wake.len() > 1 {
            self.wake.sort_unstable();
            self.wake.dedup();
        }
        let mut wake = std::mem::take(&mut self.wake);
        for &device in &wake {
            if self.running[device.ix()].is_none()
                && !self.start_copy(device)
                && let Some(op) = self.ready.pop(device, |op| self.missing[op.ix()].inputs == 0)
            {
                self.start_op(op, device);
            }
        }
        wake.clear();
        self.wake = wake;
        if !self.channels.is_awake() {
            return;
        }
        let (transfers, gathering, cluster) = (&self.transfers, &self.gathering, self.cluster);
        let mut started = self.channels.take_started(|m| match transfers.get(m as usize) {
            Some(t) => cluster.route_channels(t.src, t.dst),
            None => gathering.channels(m),
        });
        for &(message, freed_by) in &started {
            match self.gathering.of_message(message) {
                None => self.start_transfer(message, freed_by),
                Some(collective) => self.start_collective(collective, message, freed_by),
            }
        }
        started.clear();
        self.channels.give_back(started);
    }

    fn start_op(&mut self, op: OpId, device: DeviceId) {
        let length = self.sim.time_on(op, device);
        let start = &mut self.start[op.ix()];
        if *start < self.now {
            *start = self.now;
            self.waited[op.ix()] = self.did[device.ix()];
        }
        self.running[device.ix()] = op;
        let left = &mut self.device_left[device.ix()];
        self.least = self.least.max(self.now + *left);
        *left -= length;
        self.memory.op_started(self.work, &self.messages, op, device, self.now);
        self.events.push(event(self.now + length, of_op(self.work.graph.index(op), device)));
    }

    /// Whether a free device has something to copy out, or a share to do; then it begins.
    #[inline(always)]
    fn start_copy(&mut self, device: DeviceId) -> bool {
        let Some(sending) = &mut self.sending else { return false };
        let Some((what, finish)) = sending.begin(device, self.now, self.did[device.ix()]) else {
            return false;
        };
        self.running[device.ix()] = COPYING;
        self.events.push(event(finish, of_copy(what)));
        true
    }

    /// The end of a copy, or of a member's share.
    fn complete_copy(&mut self, what: u32) {
        let Some(sending) = &mut self.sending else { return };
        let member = sending.member(what).map(|index| self.work.graph.numbering().op(index));
        let (device, did) = match member {
            Some(op) => (self.placement[op.ix()], Waited::Share(op)),
            None => (self.transfers[what as usize].src, Waited::Copy(what)),
        };
        self.running[device.ix()] = OpId::NONE;
        self.did[device.ix()] = did;
        self.wake.push(device);
        match member.and_then(|op| Some((op, self.work.collectives.of_op(op)?))) {
            Some((op, collective)) => {
                self.waited[op.ix()] = did;
                self.member_arrived(op, collective);
            }
            None => sending.end(what),
        }
    }

    fn start_transfer(&mut self, message: u32, freed_by: Option<u32>) {
        let transfer = &mut self.transfers[message as usize];
        let bytes = self.work.tensor_bytes[transfer.tensor.ix()];
        let length = self.sim.clock.ticks(self.cluster.transfer_seconds(transfer.src, transfer.dst, bytes));
        transfer.start = self.now;
        transfer.finish = self.now + length;
        self.transfer_waited[message as usize] = match freed_by {
            Some(other) if transfer.queued < self.now => Waited::Channel(other),
            _ => match &self.sending {
                Some(sending) => sending.cause(message),
                None => maker(&self.work.graph, transfer.tensor),
            },
        };
        for c in self.cluster.route_channels(transfer.src, transfer.dst) {
            self.channel_busy[c.ix()] += length;
        }
        self.memory.transfer_started(self.work, &self.messages, message, self.now);
        self.events.push(event(self.now + length, of_transfer(message)));
    }

    fn start_collective(&mut self, collective: usize, message: u32, freed_by: Option<u32>) {
        let together = self.gathering.started(collective, self.now);
        let waited = match freed_by {
            Some(other) if together.queued < self.now => Waited::Channel(other),
            _ => self.waited[together.last.ix()],
        };
        let finish = together.finish;
        for c in together.channels.iter() {
            self.channel_busy[c.ix()] += finish - self.now;
        }
        self.least = self.least.max(finish);
        for &op in self.work.collectives.members(collective) {
            self.start[op.ix()] = self.now;
            self.waited[op.ix()] = waited;
            self.memory.op_started(self.work, &self.messages, op, self.placement[op.ix()], self.now);
        }
        self.events.push(event(finish, of_transfer(message)));
    }

    fn complete_collective(&mut self, collective: usize) {
        let message = self.gathering.message(collective);
        self.gathering.end(collective);
        self.channels.finished(self.gathering.channels(message), message, self.now);
        for &op in self.work.collectives.members(collective) {
            self.end_op(op, self.placement[op.ix()]);
        }
    }

    /// The ops that wait for each other. The walk goes from a blocked head to the producer that it
    /// waits for, then to the head of that producer's device, until an op comes again.
    fn deadlock(&self) -> Error {
        let heads = self.ready.heads();
        let waiting = self.ready.waiting(self.work.n_ops());
        let mut chain: Vec<OpId> = Vec::new();
        let mut at = heads.iter().copied().flatten().next();
        while let Some(op) = at {
            if let Some(first) = chain.iter().position(|&o| o == op) {
                chain.drain(..first);
                chain.push(op);
                break;
            }
            chain.push(op);
            let blocker = self.blocker(op, &waiting);
            at = blocker.and_then(|b| {
                let head = heads[self.placement[b.ix()].ix()];
                if head != Some(b) {
                    chain.push(b);
                }
                head
            });
        }
        Error::Deadlock(chain.into_iter().collect())
    }

    /// The op that has not started and that another waits for, directly or by way of a collective.
    fn blocker(&self, op: OpId, waiting: &[bool]) -> Option<OpId> {
        let mut ops = vec![op];
        let mut seen = vec![false; self.work.collectives.all().len()];
        while let Some(op) = ops.pop() {
            for &input in self.work.graph.input_ops(op) {
                match self.work.collectives.of_op(input) {
                    None if waiting[input.ix()] => return Some(input),
                    Some(c) if !self.gathering.has_ended(c) && !std::mem::replace(&mut seen[c], true) => {
                        ops.extend(self.work.collectives.members(c));
                    }
                    _ => {}
                }
            }
        }
        None
    }

    fn into_schedule(self) -> Schedule {
        let ops = self.work.graph.ops().zip(&self.start).zip(self.placement);
        let mut finish: Vec<Ticks> =
            ops.map(|((op, start), &device)| start + self.sim.time_on(op, device)).collect();
        let together = self.gathering.into_all();
        for (c, one) in together.iter().enumerate() {
            self.work.collectives.members(c).iter().for_each(|op| finish[op.ix()] = one.finish);
        }
        let (peak, overflow, memory) = self.memory.into_parts();
        let pays_for_sending = self.cluster.has_send_costs();
        let (copies, shares) =
            self.sending.map_or_else(Default::default, |sending| sending.into_parts(pays_for_sending));
        Schedule {
            makespan: self.least,
            start: self.start,
            finish,
            transfers: self.transfers,
            together,
            copies,
            shares: if shares.is_empty() { shares } else { self.work.graph.numbering().by_op(shares, 1) },
            launched: self.launching.map_or_else(Vec::new, Launching::into_times),
            op_waited: self.waited,
            transfer_waited: self.transfer_waited,
            device_busy: self.device_busy,
            channel_busy: self.channel_busy,
            peak,
            bytes_moved: self.bytes_moved,
            overflow,
            memory,
        }
    }
}

/// What a tensor is there after: the op that makes it, if it is not there from the start.
fn maker(graph: &Graph, tensor: TensorId) -> Waited {
    if graph.is_home(tensor) { Waited::Nothing } else { Waited::Op(graph.source(tensor)) }
}

/// The transfers of all messages, before anything is sent.
fn transfers(work: &Workload, placement: &[DeviceId], messages: &Messages) -> Vec<Transfer> {
    let of = |m: &Message| Transfer {
        tensor: m.tensor,
        src: placement[work.graph.source(m.tensor).ix()],
        dst: m.dst,
        queued: 0,
        start: 0,
        finish: 0,
    };
    messages.iter().map(of).collect()
}

/// What ops miss before the first has run: tensors that ops produce, and home tensors from elsewhere.
fn missing(work: &Workload, placement: &[DeviceId]) -> Vec<Missing> {
    let graph = &work.graph;
    let state = |op: OpId| Missing { inputs: graph.in_degree(op), device: placement[op.ix()] };
    let mut missing: Vec<Missing> = graph.ops().map(state).collect();
    for t in (graph.n_produced()..graph.n_tensors()).map(TensorId::new) {
        let home = placement[graph.source(t).ix()];
        for c in graph.consumers(t) {
            missing[c.ix()].inputs += u32::from(placement[c.ix()] != home);
        }
    }
    missing
}
