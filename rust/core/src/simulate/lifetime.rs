//! What memory holds at the worst moment of a sequential run: ops one after another on one device.
//!
//! The papers charge an op its outputs for the whole step. Most tensors die early, so this charge
//! overstates the need several times (Evoformer inference: 327 GiB of outputs, under 2 GiB at the
//! peak). What each op holds *at the peak* of a sequential run adds up to what one device would
//! need. In training it is the activations kept for the backward pass, which a split must share
//! out. O(V + E).

use crate::ids::OpId;
use crate::workload::{Lifetime, Storage, Workload};

/// Bytes at the worst moment of a sequential run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peak {
    /// Resident bytes, outputs alive and workspace at that moment.
    pub bytes: u64,
    /// Per op, its resident bytes and the bytes of its outputs that are alive at that moment.
    pub held: Vec<u64>,
}

/// The peak of running ops in `order`, which is topological.
pub fn peak(work: &Workload, order: &[OpId]) -> Peak {
    let mut position = vec![0u32; order.len()];
    order.iter().enumerate().for_each(|(p, op)| position[op.ix()] = p as u32);
    let last_use = last_uses(work, &position);
    let mut frees = vec![0u64; order.len()];
    for (storage, &end) in work.storages.iter().zip(&last_use).filter(|(_, end)| **end != u32::MAX) {
        let freed = &mut frees[end as usize];
        *freed = freed.saturating_add(storage.bytes);
    }
    let resident: u64 = work.resident.iter().fold(0, |s, &b| s.saturating_add(b));
    let (mut used, mut worst, mut worst_at) = (resident, 0, 0);
    for (at, &op) in order.iter().enumerate() {
        used = used.saturating_add(work.output_bytes(op));
        let now = used.saturating_add(work.workspace[op.ix()]);
        if now > worst {
            (worst, worst_at) = (now, at as u32);
        }
        used = used.saturating_sub(frees[at]);
    }
    let mut held = work.resident.clone();
    for (storage, &end) in work.storages.iter().zip(&last_use) {
        if position[storage.op.ix()] <= worst_at && worst_at <= end {
            let h = &mut held[storage.op.ix()];
            *h = h.saturating_add(storage.bytes);
        }
    }
    Peak { bytes: worst, held }
}

/// Per storage, the position after which it is free, `u32::MAX`: never. `position` is that of each
/// op.
fn last_uses(work: &Workload, position: &[u32]) -> Vec<u32> {
    let end = |storage: &Storage| match storage.lifetime {
        Lifetime::UntilUsed => position[storage.op.ix()],
        Lifetime::UntilEnd => u32::MAX,
    };
    let mut last: Vec<u32> = work.storages.iter().map(end).collect();
    for t in work.graph.tensors().take(work.graph.n_produced()) {
        let storage = work.tensor_storage[t.ix()];
        if !storage.is_none() {
            let read = work.graph.consumers(t).iter().map(|c| position[c.ix()]).max().unwrap_or(0);
            last[storage.ix()] = last[storage.ix()].max(read);
        }
    }
    last
}
