//! What memory holds at the worst moment, if ops ran one after another on one device.
//!
//! The papers charge an op its outputs for the whole step. Most tensors die early, so that overstates
//! the need several times (Evoformer inference: 327 GiB of outputs, under 2 GiB at the peak). Charging
//! each op what it holds *at the peak* of a sequential run adds up to what one device would need, and
//! in training it is the activations kept for the backward pass: what a split must really share out.
//! O(V + E).

use crate::ids::OpId;
use crate::workload::{Lifetime, Workload};

/// Bytes at the worst moment of a sequential run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peak {
    /// Resident bytes, outputs alive and workspace at that moment.
    pub bytes: u64,
    /// Each op's part: its resident bytes, and of its outputs those alive then.
    pub held: Vec<u64>,
}

/// The peak of running ops in `order`, which is topological.
pub fn peak(work: &Workload, order: &[OpId]) -> Peak {
    let last_use = last_uses(work, order);
    let mut frees = vec![0u64; order.len()];
    for (storage, &end) in work.storages.iter().zip(&last_use).filter(|(_, end)| **end != u32::MAX) {
        let freed = &mut frees[end as usize];
        *freed = freed.saturating_add(storage.bytes);
    }
    let resident: u64 = work.resident.iter().fold(0, |s, &b| s.saturating_add(b));
    let (mut used, mut worst, mut worst_at) = (resident, 0, 0);
    for (position, &op) in order.iter().enumerate() {
        used = used.saturating_add(work.output_bytes(op));
        let now = used.saturating_add(work.workspace[op.ix()]);
        if now > worst {
            (worst, worst_at) = (now, position as u32);
        }
        used = used.saturating_sub(frees[position]);
    }
    let mut born = vec![0u32; order.len()];
    order.iter().enumerate().for_each(|(p, op)| born[op.ix()] = p as u32);
    let mut held = work.resident.clone();
    for (storage, &end) in work.storages.iter().zip(&last_use) {
        if born[storage.op.ix()] <= worst_at && worst_at <= end {
            let h = &mut held[storage.op.ix()];
            *h = h.saturating_add(storage.bytes);
        }
    }
    Peak { bytes: worst, held }
}

/// Position after which each storage is free; `u32::MAX`: never.
fn last_uses(work: &Workload, order: &[OpId]) -> Vec<u32> {
    let mut last = vec![0u32; work.storages.len()];
    for (position, &op) in order.iter().enumerate() {
        for s in work.op_storages[op.ix()]..work.op_storages[op.ix() + 1] {
            last[s as usize] = last[s as usize].max(position as u32);
        }
        for t in work.graph.inputs(op) {
            let s = work.tensor_storage[t.ix()];
            if !s.is_none() {
                last[s.ix()] = last[s.ix()].max(position as u32);
            }
        }
    }
    for (end, storage) in last.iter_mut().zip(&work.storages) {
        if storage.lifetime == Lifetime::UntilEnd {
            *end = u32::MAX;
        }
    }
    last
}
