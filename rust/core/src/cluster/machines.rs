//! Machines: which devices are in one.
//!
//! The name of a device may begin with its machine's: `node0.gpu3` is in `node0`, which stands before the
//! last point. Where no name has a point links tell: the widest links of a cluster join devices of one
//! machine, directly or through others.

use super::Device;
use crate::union::Union;

/// The number of each device's machine, by smallest device.
pub(super) fn machines(devices: &[Device], width: impl Fn(usize, usize) -> f64) -> Vec<u32> {
    let before: Vec<&str> =
        devices.iter().map(|d| d.name.rsplit_once('.').map_or("", |(machine, _)| machine)).collect();
    if before.iter().all(|machine| machine.is_empty()) {
        return joined_by_widest(devices.len(), width);
    }
    let mut names: Vec<&str> = Vec::new();
    before.iter().map(|machine| super::index_of(&mut names, machine)).collect()
}

/// The number of each item's set, by smallest item: sets of those that the widest pairs join, directly or
/// through others.
pub(crate) fn joined_by_widest(n: usize, width: impl Fn(usize, usize) -> f64) -> Vec<u32> {
    let pairs = || (0..n).flat_map(|a| (0..n).map(move |b| (a, b))).filter(|(a, b)| a != b);
    let widest = pairs().map(|(a, b)| width(a, b)).fold(0.0, f64::max);
    let mut union = Union::new(n);
    pairs().filter(|&(a, b)| width(a, b) >= widest).for_each(|(a, b)| union.join(a, b));
    union.sets(n).0
}
