//! Whether an op has room on a device: memory as the engine fills it.
//!
//! There are two ways to count, both in the order in which ops are scheduled. *Charged*: every op
//! takes given bytes for good (the papers' static rule, or the bytes that it holds at the peak of a
//! sequential run). *Lifetimes*: a storage is freed when the last op that reads it has been
//! scheduled, and so is a copy of a tensor. An op that is put into an idle slot runs earlier than
//! it is counted, so the simulator has the last word. If every device could hold everything,
//! nothing is counted.

use crate::cluster::Cluster;
use crate::error::Error;
use crate::free_memory::{Memory, OnOom};
use crate::ids::{DeviceId, OpId};
use crate::schedule::queues::TransferId;
use crate::schedule::sent::Sent;
use crate::workload::{Lifetime, Workload};

/// How memory is counted while ops are scheduled.
#[derive(Clone, Debug)]
pub enum Admission<'a> {
    /// Given bytes per op, for the whole step.
    Charged(Memory<'a>),
    /// Residents, and tensors from their producer to their last reader.
    Lifetimes(Lifetimes<'a>),
    /// Bytes per device: each could hold everything at once, a copy of every tensor included.
    Ample(Vec<u64>),
}

/// What each device holds, without tensors that no op will read any more.
#[derive(Clone, Debug)]
pub struct Lifetimes<'a> {
    work: &'a Workload,
    cluster: &'a Cluster,
    lead: &'a [OpId],
    /// Resident bytes of all ops that each op decides for.
    resident: Vec<u64>,
    /// Whether those bytes are on a device already.
    settled: Vec<bool>,
    capacity: Vec<u64>,
    held: Vec<u64>,
    /// Ops yet to be scheduled that read each tensor, and each storage.
    tensor_readers: Vec<u32>,
    storage_readers: Vec<u32>,
    on_oom: OnOom,
}

impl<'a> Lifetimes<'a> {
    /// The state before any op is placed. `capacity` is bytes per device. O(V + E).
    pub fn new(
        work: &'a Workload,
        cluster: &'a Cluster,
        lead: &'a [OpId],
        capacity: &[u64],
        on_oom: OnOom,
    ) -> Self {
        let graph = &work.graph;
        let tensor_readers: Vec<u32> = graph.tensors().map(|t| graph.consumers(t).len() as u32).collect();
        let mut storage_readers = vec![0u32; work.storages.len()];
        for (storage, readers) in work.tensor_storage.iter().zip(&tensor_readers) {
            if !storage.is_none() {
                storage_readers[storage.ix()] += readers;
            }
        }
        let mut resident = vec![0u64; work.n_ops()];
        for (l, bytes) in lead.iter().zip(&work.resident) {
            resident[l.ix()] = resident[l.ix()].saturating_add(*bytes);
        }
        Self {
            work,
            cluster,
            lead,
            resident,
            settled: vec![false; work.n_ops()],
            capacity: capacity.to_vec(),
            held: vec![0; capacity.len()],
            tensor_readers,
            storage_readers,
            on_oom,
        }
    }

    fn free(&self, device: DeviceId) -> u64 {
        self.capacity[device.ix()].saturating_sub(self.held[device.ix()])
    }

    /// Bytes that the op takes while it runs, copies of its inputs left out.
    fn needed(&self, op: OpId, lead: OpId) -> u64 {
        let resident = if self.settled[lead.ix()] { 0 } else { self.resident[lead.ix()] };
        let own = self.work.output_bytes(op).saturating_add(self.work.workspace[op.ix()]);
        resident.saturating_add(own)
    }

    fn take(&mut self, op: OpId, lead: OpId, device: DeviceId, copies: u64) {
        let mut bytes = copies;
        if !std::mem::replace(&mut self.settled[lead.ix()], true) {
            bytes = bytes.saturating_add(self.resident[lead.ix()]);
        }
        let first = self.work.op_storages[op.ix()] as usize;
        for (i, storage) in self.work.storages_of(op).iter().enumerate() {
            // A storage that no op reads is free again when its op ends.
            if storage.lifetime == Lifetime::UntilEnd || self.storage_readers[first + i] > 0 {
                bytes = bytes.saturating_add(storage.bytes);
            }
        }
        let held = &mut self.held[device.ix()];
        *held = held.saturating_add(bytes);
    }

    /// Counts one reader less for each input of an op, and frees inputs that no op has yet to read.
    fn read(&mut self, op: OpId, sent: &Sent<TransferId>, device_of: impl Fn(OpId) -> DeviceId) {
        let graph = &self.work.graph;
        for &t in graph.inputs(op).iter().chain(graph.pulls(op)) {
            let readers = &mut self.tensor_readers[t.ix()];
            *readers -= 1;
            if *readers == 0 {
                let bytes = self.work.tensor_bytes[t.ix()];
                for &(device, _) in sent.of(t) {
                    self.held[device.ix()] = self.held[device.ix()].saturating_sub(bytes);
                }
            }
            let s = self.work.tensor_storage[t.ix()];
            if s.is_none() {
                continue;
            }
            self.storage_readers[s.ix()] -= 1;
            let storage = self.work.storages[s.ix()];
            if self.storage_readers[s.ix()] == 0 && storage.lifetime == Lifetime::UntilUsed {
                let held = &mut self.held[device_of(storage.op).ix()];
                *held = held.saturating_sub(storage.bytes);
            }
        }
    }
}

impl<'a> Admission<'a> {
    /// Counts tensors while they live, unless memory is so ample that it cannot matter. O(V + E).
    pub fn by_lifetimes(
        work: &'a Workload,
        cluster: &'a Cluster,
        lead: &'a [OpId],
        capacity: &[u64],
        on_oom: OnOom,
    ) -> Self {
        let kept = work.storages.iter().map(|s| s.bytes).chain(work.resident.iter().copied());
        let all = kept.chain(work.tensor_bytes.iter().copied()).chain(work.workspace.iter().copied());
        let everything = all.fold(0, u64::saturating_add);
        if capacity.iter().all(|&bytes| bytes >= everything) {
            Self::Ample(capacity.to_vec())
        } else {
            Self::Lifetimes(Lifetimes::new(work, cluster, lead, capacity, on_oom))
        }
    }

    /// Whether it matters which tensors have been sent where.
    #[inline(always)]
    pub(super) fn counts_copies(&self) -> bool {
        matches!(self, Self::Lifetimes(_))
    }

    /// Bytes still free on a device; all its bytes if nothing is counted.
    pub(super) fn free(&self, device: DeviceId) -> u64 {
        match self {
            Self::Charged(memory) => memory.free(device),
            Self::Lifetimes(l) => l.free(device),
            Self::Ample(capacity) => capacity[device.ix()],
        }
    }

    /// Bytes that an op takes beside copies of its inputs. They are the same on every device.
    #[inline(always)]
    pub(super) fn needed(&self, op: OpId, lead: OpId) -> u64 {
        match self {
            Self::Charged(_) | Self::Ample(_) => 0,
            Self::Lifetimes(l) => l.needed(op, lead),
        }
    }

    /// Whether an op has room on a device that it allows. `needed` is what [`Self::needed`] says,
    /// `inputs` the bytes of the op's inputs, `copies` the bytes of those that must be sent there.
    #[inline(always)]
    pub(super) fn fits(
        &self,
        lead: OpId,
        device: DeviceId,
        needed: u64,
        inputs: u64,
        copies: impl Fn() -> u64,
    ) -> bool {
        match self {
            Self::Charged(memory) => memory.fits(lead, device),
            Self::Lifetimes(l) => {
                let Some(left) = l.free(device).checked_sub(needed) else { return false };
                inputs <= left || copies() <= left
            }
            Self::Ample(_) => true,
        }
    }

    /// Takes the op's bytes, copies of its inputs included. `first` says whether it is the first of
    /// the ops that go together.
    pub(super) fn take(&mut self, op: OpId, lead: OpId, device: DeviceId, copies: u64, first: bool) {
        match self {
            Self::Charged(memory) if first => memory.take(lead, device),
            Self::Charged(_) | Self::Ample(_) => {}
            Self::Lifetimes(l) => l.take(op, lead, device, copies),
        }
    }

    /// Frees what the op was the last to read.
    pub(super) fn read(&mut self, op: OpId, sent: &Sent<TransferId>, device_of: impl Fn(OpId) -> DeviceId) {
        if let Self::Lifetimes(l) = self {
            l.read(op, sent, device_of);
        }
    }

    /// The device for an op that fits nowhere: an error, or the allowed one with most room.
    pub(super) fn nowhere(
        &self,
        op: OpId,
        lead: OpId,
        copies: impl Fn(DeviceId) -> u64,
    ) -> Result<DeviceId, Error> {
        let l = match self {
            Self::Charged(memory) => return memory.nowhere(lead),
            Self::Lifetimes(l) => l,
            // An op fits on every device that it allows, so it allows none.
            Self::Ample(_) => return Err(Error::NoAllowedDevice { op: op.into() }),
        };
        let allowed = l.cluster.device_ids().filter(|&d| l.work.allows(op, l.cluster, d));
        let room = |d: DeviceId| i128::from(l.free(d)) - i128::from(copies(d));
        let best = allowed.max_by(|&a, &b| room(a).cmp(&room(b)).then(b.cmp(&a)));
        let Some(device_id) = best else { return Err(Error::NoAllowedDevice { op: op.into() }) };
        match l.on_oom {
            OnOom::BestEffort => Ok(device_id),
            OnOom::Fail => Err(Error::DoesNotFit {
                op: op.into(),
                members: l.lead.iter().filter(|&&other| other == lead).count(),
                needed: l.needed(op, lead).saturating_add(copies(device_id)),
                free: l.free(device_id),
                device: l.cluster.name(device_id).to_owned(),
                device_id,
            }),
        }
    }
}
