//! Placing ops one after another by memory alone.
//!
//! * [`in_order`]: fill one device, then the next. On groups in CPD-TOPO order this is Celeritas'
//!   *Order-Place* (section 5.2). On ops in Kahn order, with a cap of total / k + largest op, it is
//!   Baechi's *m-TOPO*.
//! * [`round_robin`]: deal the ops out.

use crate::error::Error;
use crate::free_memory::Memory;
use crate::ids::{DeviceId, OpId};

/// Places ops in `order` on the first of `devices` until one does not fit, then on the second, and
/// so on. When the last device is full, ops go wherever there is room left. An op that the device
/// may not run goes to the next device that may run it, and the first device stays open. O(V + D)
/// placements, O(V D) at worst.
///
/// # Errors
/// An op that fits nowhere, unless the memory is for best effort.
pub fn in_order(
    mut memory: Memory<'_>,
    order: &[OpId],
    devices: &[DeviceId],
) -> Result<Vec<DeviceId>, Error> {
    let Memory { work, cluster, lead, .. } = memory;
    let mut device = vec![DeviceId::NONE; work.n_ops()];
    let mut filling = 0;
    for op in deciding(lead, order) {
        let (before, after) = devices.split_at(filling);
        let found = after.iter().chain(before).copied().find(|&d| memory.fits(op, d));
        let chosen = match found {
            Some(d) => d,
            None => memory.nowhere(op)?,
        };
        // Devices that may run the op and have no room for it are full. The first device that is
        // not full is filled next.
        let is_full = |&&d: &&DeviceId| d != chosen && work.allows(op, cluster, d);
        if after.contains(&chosen) {
            filling += after.iter().take_while(is_full).count();
        }
        memory.take(op, chosen);
        device[op.ix()] = chosen;
    }
    Ok(lead.iter().map(|lead| device[lead.ix()]).collect())
}

/// Places the i-th op of `order` on device i mod k, or on the next device that may run it and has room.
///
/// # Errors
/// An op that fits nowhere, unless the memory is for best effort.
pub fn round_robin(mut memory: Memory<'_>, order: &[OpId]) -> Result<Vec<DeviceId>, Error> {
    let Memory { work, cluster, lead, .. } = memory;
    let mut device = vec![DeviceId::NONE; work.n_ops()];
    let k = cluster.n_devices();
    for (i, op) in deciding(lead, order).into_iter().enumerate() {
        let found = (0..k).map(|step| DeviceId::new((i + step) % k)).find(|&d| memory.fits(op, d));
        let chosen = match found {
            Some(d) => d,
            None => memory.nowhere(op)?,
        };
        memory.take(op, chosen);
        device[op.ix()] = chosen;
    }
    Ok(lead.iter().map(|lead| device[lead.ix()]).collect())
}

/// The deciding ops, in the order in which the first op of each colocated set comes up.
fn deciding(lead: &[OpId], order: &[OpId]) -> Vec<OpId> {
    let mut seen = vec![false; lead.len()];
    let leads = order.iter().map(|op| lead[op.ix()]);
    leads.filter(|lead| !std::mem::replace(&mut seen[lead.ix()], true)).collect()
}
