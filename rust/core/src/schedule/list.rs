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

/// Columns that change the choice of devices. An empty column changes nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Choice<'a> {
    /// Per op, the device that it takes if it has room there; none: any device.
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
    // The nearest device waits for no late transfer, so it finishes the op early. After it, most
    // devices are ruled out before a slot is looked for.
    let near = engine.nearest();
    let others = engine.cluster().device_ids().filter(|&d| Some(d) != near);
    let best = near.into_iter().chain(others).fold(None, |best, d| better(engine, op, choice, best, d));
    best.map(|(_, device)| device)
}

/// The better of the best so far, as finish with bias and device, and `device` if that has room.
fn better(
    engine: &mut Engine<'_>,
    op: OpId,
    choice: Choice<'_>,
    best: Option<(Ticks, DeviceId)>,
    device: DeviceId,
) -> Option<(Ticks, DeviceId)> {
    let row = op.ix() * engine.cluster().types().len();
    let bias = choice.bias.get(row + engine.cluster().type_of(device)).copied().unwrap_or(0);
    let limit = match best {
        None => Some(Ticks::MAX),
        // Of equal finishes that of the smaller device wins.
        Some((finish, chosen)) => finish.checked_sub(bias).map(|f| f + Ticks::from(device < chosen)),
    };
    let found = limit.and_then(|limit| engine.finish_before(limit, device)).filter(|_| engine.fits(device));
    found.map(|finish| (finish.saturating_add(bias), device)).or(best)
}
