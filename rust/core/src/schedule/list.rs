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
use crate::schedule::placed::Paths;
use crate::workload::Workload;

/// Columns that change the choice of devices. An empty column changes nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Choice<'a> {
    /// Per op, the device that it takes if it has room there; none: any device.
    pub pinned: &'a [DeviceId],
    /// Ticks per op and device type that are added to a finish there, row-major.
    pub bias: &'a [Ticks],
}

/// A makespan that a schedule must stay below to be of use.
#[derive(Clone, Debug)]
pub struct Limit {
    /// The makespan.
    pub makespan: Ticks,
    /// Least ticks from the end of each op to the end of the step, whatever the placement.
    after: Vec<Ticks>,
}

impl Limit {
    /// A limit for schedules of a graph. `time` is ticks per op and device type, row-major. No op can be faster
    /// than on its fastest type, and a tensor that stays on its device takes no time. O(E + V K).
    pub fn new(work: &Workload, time: &[Ticks], n_types: usize, makespan: Ticks) -> Self {
        let least: Vec<Ticks> =
            time.chunks_exact(n_types).map(|row| row.iter().copied().min().unwrap_or(0)).collect();
        let mut after = Paths::new(&work.graph, &least, |_, _| 0).bottom;
        after.iter_mut().zip(&least).for_each(|(after, least)| *after -= least);
        Self { makespan, after }
    }
}

/// Schedules ops in `order`, which is topological. All their producers are scheduled, or in `order` before
/// them. Returns whether the makespan may be below the limit; once it cannot, no further op is scheduled.
///
/// # Errors
/// An op that fits nowhere, unless best effort will do.
pub fn list(
    engine: &mut Engine<'_>,
    order: &[OpId],
    choice: Choice<'_>,
    limit: Option<&Limit>,
) -> Result<bool, Error> {
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
        if limit.is_some_and(|limit| engine.finish(op) + limit.after[op.ix()] >= limit.makespan) {
            return Ok(false);
        }
    }
    Ok(true)
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
    let Some(finish) = found else { return best };
    engine.put_aside();
    Some((finish.saturating_add(bias), device))
}
