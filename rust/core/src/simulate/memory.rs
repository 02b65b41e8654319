//! Bytes in use on every device as the simulation runs.
//!
//! Resident bytes are there from 0. An op's storages are allocated when it starts and live until the
//! last reader on that device has finished and the last transfer away has ended; a copy on another
//! device lives from the start of its transfer until the last reader there has finished. Workspace
//! lives while its op runs. Outputs of the graph live to the end.

use std::cmp::Reverse;

use crate::clock::Ticks;
use crate::cluster::Cluster;
use crate::ids::{DeviceId, OpId, TensorId};
use crate::simulate::messages::{Message, Messages};
use crate::workload::{Lifetime, Storage, Workload};

/// Bytes in use on a device from some time on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemorySample {
    /// The time from which the device holds `bytes`.
    pub time: Ticks,
    /// Where.
    pub device: DeviceId,
    /// Bytes in use.
    pub bytes: u64,
}

/// A tensor that takes memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alive {
    /// The op that made it.
    pub op: OpId,
    /// Its size.
    pub bytes: u64,
    /// Whether it is a copy that was sent here.
    pub copy: bool,
}

/// The first time that a device held more than it can.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overflow {
    /// Where.
    pub device: DeviceId,
    /// When.
    pub time: Ticks,
    /// The op that started, or whose tensor began to arrive; none: resident bytes alone.
    pub op: Option<OpId>,
    /// Bytes beyond the device's memory.
    pub over: u64,
    /// The tensors alive on the device, largest first: all of them where memory is recorded, else
    /// the largest eight.
    pub alive: Vec<Alive>,
}

/// How many tensors an [`Overflow`] lists where memory is not recorded.
const LISTED: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Waiting,
    Running,
    Done,
}

#[derive(Clone, Debug)]
pub(super) struct Memory<'a> {
    capacity: Vec<u64>,
    used: Vec<u64>,
    peak: Vec<u64>,
    phases: Vec<Phase>,
    /// Per storage, uses still to come: readers at home and transfers away. An output of the graph has one
    /// more, which never comes.
    uses: Vec<u32>,
    /// Readers still to come, per message.
    copy_uses: Vec<u32>,
    copy_live: Vec<bool>,
    placement: &'a [DeviceId],
    record: bool,
    samples: Vec<MemorySample>,
    overflow: Option<Overflow>,
}

impl<'a> Memory<'a> {
    pub fn new(
        work: &Workload,
        cluster: &Cluster,
        placement: &'a [DeviceId],
        messages: &Messages,
        record: bool,
    ) -> Self {
        let kept = |s: &Storage| u32::from(s.lifetime == Lifetime::UntilEnd);
        let mut uses: Vec<u32> = work.storages.iter().map(kept).collect();
        for t in work.graph.tensors() {
            let storage = work.tensor_storage[t.ix()];
            if !storage.is_none() {
                let sent = messages.of(t);
                let away: u32 = sent.clone().map(|m| messages.get(m).readers).sum();
                uses[storage.ix()] += work.graph.consumers(t).len() as u32 - away + sent.len() as u32;
            }
        }
        let mut memory = Self {
            phases: vec![Phase::Waiting; work.n_ops()],
            capacity: cluster.devices().iter().map(|d| d.memory).collect(),
            used: vec![0; cluster.n_devices()],
            peak: vec![0; cluster.n_devices()],
            uses,
            copy_uses: messages.iter().map(|m| m.readers).collect(),
            copy_live: vec![false; messages.len()],
            placement,
            record,
            samples: Vec::new(),
            overflow: None,
        };
        for (op, &bytes) in work.resident.iter().enumerate() {
            let used = &mut memory.used[placement[op].ix()];
            *used = used.saturating_add(bytes);
        }
        for d in cluster.device_ids() {
            memory.note(d, 0);
            memory.check(work, messages, None, d, 0);
        }
        memory
    }

    pub fn op_started(
        &mut self,
        work: &Workload,
        messages: &Messages,
        op: OpId,
        device: DeviceId,
        now: Ticks,
    ) {
        self.phases[op.ix()] = Phase::Running;
        let storages = work.storages_of(op).iter();
        let bytes = storages.fold(work.workspace[op.ix()], |sum, s| sum.saturating_add(s.bytes));
        self.allocate(work, messages, Some(op), device, bytes, now);
    }

    pub fn op_finished(
        &mut self,
        work: &Workload,
        messages: &Messages,
        op: OpId,
        device: DeviceId,
        now: Ticks,
    ) {
        self.phases[op.ix()] = Phase::Done;
        // The readers of a storage have yet to run, so a storage without uses now never had any.
        let range = work.storages_range(op);
        let own = work.storages[range.clone()].iter().zip(&self.uses[range]);
        let unused = own.filter(|(_, uses)| **uses == 0);
        let mut freed = unused.fold(work.workspace[op.ix()], |sum, (s, _)| sum.saturating_add(s.bytes));
        for (t, from) in work.graph.inputs_with_ops(op) {
            let is_local = self.placement[from.ix()] == device;
            let ended =
                if is_local { self.used_storage(work, t) } else { self.used_copy(work, messages, t, device) };
            freed = freed.saturating_add(ended);
        }
        for &t in work.graph.pulls(op) {
            if self.placement[work.graph.source(t).ix()] != device {
                freed = freed.saturating_add(self.used_copy(work, messages, t, device));
            }
        }
        self.free(device, freed, now);
    }

    pub fn transfer_started(&mut self, work: &Workload, messages: &Messages, message: u32, now: Ticks) {
        self.copy_live[message as usize] = true;
        let Message { tensor, dst, .. } = messages.get(message);
        let bytes = work.tensor_bytes[tensor.ix()];
        self.allocate(work, messages, Some(work.graph.source(tensor)), dst, bytes, now);
    }

    pub fn transfer_finished(&mut self, work: &Workload, tensor: TensorId, src: DeviceId, now: Ticks) {
        let freed = self.used_storage(work, tensor);
        self.free(src, freed, now);
    }

    /// Peaks, the first overflow and the samples.
    pub fn into_parts(self) -> (Vec<u64>, Option<Overflow>, Vec<MemorySample>) {
        (self.peak, self.overflow, self.samples)
    }

    /// Counts one use of the tensor's storage as over, and returns the bytes that this frees.
    #[inline(always)]
    fn used_storage(&mut self, work: &Workload, t: TensorId) -> u64 {
        let s = work.tensor_storage[t.ix()];
        if s.is_none() {
            return 0;
        }
        let uses = &mut self.uses[s.ix()];
        *uses -= 1;
        if *uses > 0 { 0 } else { work.storages[s.ix()].bytes }
    }

    fn used_copy(&mut self, work: &Workload, messages: &Messages, t: TensorId, device: DeviceId) -> u64 {
        let Some(message) = messages.to(t, device) else { return 0 };
        let uses = &mut self.copy_uses[message as usize];
        *uses -= 1;
        if *uses > 0 {
            return 0;
        }
        self.copy_live[message as usize] = false;
        work.tensor_bytes[t.ix()]
    }

    fn allocate(
        &mut self,
        work: &Workload,
        messages: &Messages,
        op: Option<OpId>,
        device: DeviceId,
        bytes: u64,
        now: Ticks,
    ) {
        if bytes == 0 {
            return;
        }
        let used = &mut self.used[device.ix()];
        *used = used.saturating_add(bytes);
        self.note(device, now);
        self.check(work, messages, op, device, now);
    }

    fn free(&mut self, device: DeviceId, bytes: u64, now: Ticks) {
        if bytes > 0 {
            let used = &mut self.used[device.ix()];
            *used = used.saturating_sub(bytes);
            self.note(device, now);
        }
    }

    #[inline(always)]
    fn note(&mut self, device: DeviceId, now: Ticks) {
        let bytes = self.used[device.ix()];
        let peak = &mut self.peak[device.ix()];
        *peak = (*peak).max(bytes);
        if self.record {
            self.samples.push(MemorySample { time: now, device, bytes });
        }
    }

    #[inline(always)]
    fn check(
        &mut self,
        work: &Workload,
        messages: &Messages,
        op: Option<OpId>,
        device: DeviceId,
        now: Ticks,
    ) {
        let over = self.used[device.ix()].saturating_sub(self.capacity[device.ix()]);
        if over > 0 && self.overflow.is_none() {
            let alive = self.alive(work, messages, device);
            self.overflow = Some(Overflow { device, time: now, op, over, alive });
        }
    }

    fn alive(&self, work: &Workload, messages: &Messages, device: DeviceId) -> Vec<Alive> {
        let is_live = |op: OpId, uses: u32| match self.phases[op.ix()] {
            Phase::Waiting => false,
            Phase::Running => true,
            Phase::Done => uses > 0,
        };
        let outputs = work.storages.iter().zip(&self.uses);
        let outputs = outputs
            .filter(|(s, uses)| is_live(s.op, **uses) && self.placement[s.op.ix()] == device)
            .map(|(s, _)| Alive { op: s.op, bytes: s.bytes, copy: false });
        let copies = messages.iter().zip(&self.copy_live);
        let copies = copies.filter(|(m, live)| **live && m.dst == device).map(|(m, _)| Alive {
            op: work.graph.source(m.tensor),
            bytes: work.tensor_bytes[m.tensor.ix()],
            copy: true,
        });
        let mut alive: Vec<Alive> = outputs.chain(copies).collect();
        let key = |a: &Alive| (Reverse(a.bytes), work.graph.index(a.op), a.copy);
        if !self.record && alive.len() > LISTED {
            alive.select_nth_unstable_by_key(LISTED, key);
            alive.truncate(LISTED);
        }
        alive.sort_unstable_by_key(key);
        alive
    }
}
