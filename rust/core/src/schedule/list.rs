//! List scheduling with given order: each op goes where it finishes earliest.
//!
//! With upward ranks for an order this is HEFT (Topcuoglu et al. 2002); with critical-path ops pinned to
//! one device CPoP (same paper) and FastT's DPOS (Algorithm 1); with an optimistic cost to the end added
//! to each finish PEFT (Arabnejad and Barbosa 2014). Ties go to the smaller device. An op that must follow
//! another goes where that one is. O(D (E + V log V)).

use crate::clock::Ticks;
use crate::error::Error;
use crate::ids::{DeviceId, OpId};
use crate::schedule::Engine;

/// What bends the choice of devices. An empty column bends nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Choice<'a> {
    /// Device per op that it takes if it has room there; none: free to choose.
    pub pinned: &'a [DeviceId],
    /// Ticks per op and device type that are added to a finish there, row-major.
    pub bias: &'a [Ticks],
}

/// Schedules every op, in `order`, which is topological.
///
/// # Errors
/// An op that fits nowhere, unless best effort will do.
pub fn list(engine: &mut Engine<'_>, order: &[OpId], choice: Choice<'_>) -> Result<(), Error> {
    for &op in order {
        engine.consider(op);
        let device = match engine.bound(op) {
            Some(device) => device,
            None => match choose(engine, op, choice) {
                Some(device) => device,
                None => engine.nowhere()?,
            },
        };
        engine.schedule(device, false);
    }
    Ok(())
}

/// The device for an op: its pinned one, or that of the earliest finish; none where it has no room.
fn choose(engine: &mut Engine<'_>, op: OpId, choice: Choice<'_>) -> Option<DeviceId> {
    let pinned = choice.pinned.get(op.ix()).copied().unwrap_or(DeviceId::NONE);
    if !pinned.is_none() && engine.fits(pinned) {
        return Some(pinned);
    }
    let n_types = engine.cluster().types().len();
    let mut best: Option<(Ticks, DeviceId)> = None;
    for device in engine.cluster().device_ids() {
        if !engine.fits(device) {
            continue;
        }
        let device_type = engine.cluster().type_of(device);
        let bias = choice.bias.get(op.ix() * n_types + device_type).copied().unwrap_or(0);
        let limit = best.map_or(Ticks::MAX, |(earliest, _)| earliest.saturating_sub(bias));
        if let Some(finish) = engine.finish_before(limit, device) {
            best = Some((finish.saturating_add(bias), device));
        }
    }
    best.map(|(_, device)| device)
}
