//! Placing each op where most of the bytes that it reads already are, so that little is sent and
//! copied.
//!
//! Filling devices in topological order puts the backward pass of a training graph on other devices
//! than the forward pass, so every activation is held twice. Where memory is tight nothing fits. Here an
//! op goes to the device, of those with room, that holds most of its input bytes (tensors made there,
//! sent there before, or at home there). An op that reads nothing stays on the device being filled. So a
//! backward op follows the activations and weights that it reads. This is not from a paper; it is tried
//! last, before a graph is said not to fit. O(D (V + E)).

use std::cmp::Reverse;

use crate::error::Error;
use crate::free_memory::Memory;
use crate::ids::{DeviceId, OpId};
use crate::schedule::sent::Sent;

/// Places ops in `order`, each with its largest inputs.
///
/// # Errors
/// An op that fits nowhere, unless the memory is for best effort.
pub fn follow_bytes(mut memory: Memory<'_>, order: &[OpId]) -> Result<Vec<DeviceId>, Error> {
    let Memory { work, cluster, lead: leads, charge, .. } = memory;
    let mut device = vec![DeviceId::NONE; work.n_ops()];
    let mut bound = vec![DeviceId::NONE; work.n_ops()];
    let mut sent = Sent::new(&work.graph);
    let mut filling = DeviceId(0);
    let mut here = vec![0u64; cluster.n_devices()];
    for &op in order {
        let lead = leads[op.ix()];
        if bound[lead.ix()].is_none() {
            here.fill(0);
            for &t in work.graph.inputs(op).iter().chain(work.graph.pulls(op)) {
                let at = bound[leads[work.graph.source(t).ix()].ix()];
                let holders = sent.of(t).iter().map(|&(d, ())| d).filter(|&d| d != at);
                for d in holders.chain((!at.is_none()).then_some(at)) {
                    here[d.ix()] = here[d.ix()].saturating_add(work.tensor_bytes[t.ix()]);
                }
            }
            let rank = |d: DeviceId| (Reverse(here[d.ix()]), d != filling, d < filling, d);
            let found = cluster.device_ids().filter(|&d| memory.fits(lead, d)).min_by_key(|&d| rank(d));
            let chosen = match found {
                Some(d) => d,
                None => memory.nowhere(lead)?,
            };
            if charge[lead.ix()] > 0 && chosen > filling && !memory.fits(lead, filling) {
                filling = chosen;
            }
            memory.take(lead, chosen);
            bound[lead.ix()] = chosen;
        }
        let chosen = bound[lead.ix()];
        device[op.ix()] = chosen;
        for t in work.graph.inputs(op).iter().chain(work.graph.pulls(op)) {
            sent.note(*t, chosen, ());
        }
    }
    Ok(device)
}
