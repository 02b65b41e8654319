//! Adjusting Placement (Celeritas, Algorithm 2): stay on the previous op's device unless another one
//! lets the op start earlier by more than it costs to send its output back.
//!
//! Ops come in a topological order, usually CPD-TOPO of a coarse graph. The earliest start (EST) on a
//! device is the engine's: the first idle slot after all inputs are there (eq. (7)). O(D (E + V log V)).
//!
//! The paper leaves some things open (its lines 10, 13, 18). Here:
//!
//! * The EST is that of the coarse graph.
//! * Devices are compared by when the op would *finish*. On equal devices this is the paper's comparison of
//!   starts. On unequal ones it keeps ops off slow idle devices.
//! * The first op goes to the device of least EST, then of most memory.
//! * Infinities are never subtracted.
//! * Best effort takes the device with the *most* free memory.
//! * A tensor is sent once per device.

use crate::clock::{Clock, Ticks};
use crate::error::Error;
use crate::ids::{DeviceId, OpId};
use crate::schedule::Engine;

/// Schedules every op, in `order`, which is topological.
///
/// # Errors
/// An op that fits nowhere, unless best effort will do.
pub fn adjusting(engine: &mut Engine<'_>, clock: Clock, order: &[OpId]) -> Result<(), Error> {
    let mut previous: Option<DeviceId> = None;
    for &op in order {
        engine.consider(op);
        let device = match engine.bound(op) {
            Some(device) => device,
            None => {
                let device = match choose(engine, clock, op, previous) {
                    Some(device) => device,
                    None => engine.nowhere()?,
                };
                previous = Some(device);
                device
            }
        };
        engine.schedule(device, false);
    }
    Ok(())
}

/// The previous device, or the device of the earliest finish if moving there pays; none if no device has
/// room.
fn choose(engine: &mut Engine<'_>, clock: Clock, op: OpId, previous: Option<DeviceId>) -> Option<DeviceId> {
    // The previous device is asked first: it holds most inputs, so few others finish the op earlier.
    let stay =
        previous.filter(|&p| engine.fits(p)).and_then(|p| Some((engine.finish_before(Ticks::MAX, p)?, p)));
    let mut best = stay;
    for d in engine.cluster().device_ids().filter(|&d| Some(d) != previous) {
        if !engine.fits(d) {
            continue;
        }
        // A tie with the best may win only if there is no previous device.
        let limit = best.map_or(Ticks::MAX, |(f, _)| f + Ticks::from(previous.is_none()));
        let Some(finish) = engine.finish_before(limit, d) else { continue };
        if best.is_none_or(|(f, b)| finish < f || engine.free(d) > engine.free(b)) {
            best = Some((finish, d));
        }
    }
    let (finish, device) = best?;
    match stay {
        Some((here, p)) if here - finish <= back_cost(engine, clock, op, device, p) => Some(p),
        _ => Some(device),
    }
}

/// Most time that sending the op's output back to `to` takes for any one consumer (eq. (8)).
fn back_cost(engine: &Engine<'_>, clock: Clock, op: OpId, from: DeviceId, to: DeviceId) -> Ticks {
    let work = engine.work();
    let mut costs: Vec<(OpId, Ticks)> = Vec::new();
    for t in work.graph.outputs(op) {
        let bytes = work.tensor_bytes[t.ix()];
        let cost = clock.ticks(engine.cluster().transfer_seconds(from, to, bytes));
        costs.extend(work.graph.consumers(t).iter().map(|&c| (c, cost)));
    }
    costs.sort_unstable();
    costs.chunk_by(|a, b| a.0 == b.0).map(|same| same.iter().map(|c| c.1).sum()).max().unwrap_or(0)
}
