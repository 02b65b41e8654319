//! The order in which a ring passes devices.
//!
//! A ring is as fast as its slowest link, so the order wanted is a closed walk over all devices whose
//! narrowest link is as wide as can be. A depth-first walk tries links of at least some bandwidth,
//! widest first; it gives up after [`MOST_STEPS`] steps, for finding such a walk is hard in general.
//! Clusters have few kinds of links, and there the first few tries succeed.

use crate::cluster::Cluster;
use crate::ids::DeviceId;

/// Steps of the walk for each bandwidth.
const MOST_STEPS: u32 = 20_000;

/// The devices in the order of the widest ring that was found; as they are, where none was.
pub(super) fn order(cluster: &Cluster, devices: &[DeviceId]) -> Vec<DeviceId> {
    let width = |a: DeviceId, b: DeviceId| cluster.route(a, b).1.min(cluster.route(b, a).1);
    let pairs = devices.iter().flat_map(|&a| devices.iter().map(move |&b| (a, b)));
    let mut widths: Vec<f64> = pairs.filter(|(a, b)| a != b).map(|(a, b)| width(a, b)).collect();
    widths.sort_unstable_by(|a, b| b.total_cmp(a));
    widths.dedup();
    // At the least width all devices are joined, and their own order is a ring.
    let wider = &widths[..widths.len().saturating_sub(1)];
    let found = wider.iter().find_map(|&least| walk(devices, |a, b| width(a, b) >= least));
    found.unwrap_or_else(|| devices.to_vec())
}

/// A closed walk over all devices, each once, along links that are wide enough.
fn walk(devices: &[DeviceId], is_wide: impl Fn(DeviceId, DeviceId) -> bool) -> Option<Vec<DeviceId>> {
    let mut path = vec![0];
    let mut is_passed = vec![false; devices.len()];
    is_passed[0] = true;
    // Per device on the path, the next one to try.
    let mut next = vec![1];
    for _ in 0..MOST_STEPS {
        let (&at, try_next) = (path.last()?, next.last_mut()?);
        if path.len() == devices.len() && is_wide(devices[at], devices[0]) {
            return Some(path.into_iter().map(|i| devices[i]).collect());
        }
        let free = |i: &usize| !is_passed[*i] && is_wide(devices[at], devices[*i]);
        match (*try_next..devices.len()).find(free) {
            Some(i) => {
                *try_next = i + 1;
                is_passed[i] = true;
                path.push(i);
                next.push(1);
            }
            None => {
                is_passed[at] = false;
                path.pop();
                next.pop();
            }
        }
    }
    None
}
