//! The order in which a ring passes devices, and rings that go on at the same time.
//!
//! A ring is as fast as its slowest link, so the order wanted is a closed walk over all devices whose
//! narrowest link is as wide as can be. A depth-first walk tries links of at least some bandwidth,
//! widest first; it gives up after [`MOST_STEPS`] steps, for finding such a walk is hard in general.
//! Clusters have few kinds of links, and there the first few tries succeed.
//!
//! Where links have channels of their own, one ring leaves most of them idle. Then rings are packed: each
//! is the widest by what those before it leave of the channels.

use std::collections::BTreeMap;

use crate::cluster::Cluster;
use crate::ids::{ChannelId, DeviceId};

/// Steps of the walk for each bandwidth.
const MOST_STEPS: u32 = 20_000;

/// Rings that are packed, and devices among which they are.
const MOST_RINGS: usize = 16;

/// A ring that carries less than this part of what the first one does is not worth its messages.
const LEAST_PART: f64 = 0.01;

/// The devices in the order of the widest ring that was found; as they are, where none was.
pub(super) fn order(cluster: &Cluster, devices: &[DeviceId]) -> Vec<DeviceId> {
    let width = |a: DeviceId, b: DeviceId| cluster.route(a, b).1.min(cluster.route(b, a).1);
    widest(devices, width).unwrap_or_else(|| devices.to_vec())
}

/// Rings that share the channels of the devices, each with its part of the bytes. O(k^2) for each ring of
/// k devices, and the search for it.
pub(super) fn packed(cluster: &Cluster, devices: &[DeviceId]) -> Vec<(Vec<DeviceId>, f64)> {
    let mut used: BTreeMap<ChannelId, f64> = BTreeMap::new();
    let mut rings: Vec<(Vec<DeviceId>, f64)> = Vec::new();
    while rings.len() < MOST_RINGS && devices.len() <= MOST_RINGS {
        let free = |channel: &ChannelId| 1.0 - used.get(channel).copied().unwrap_or(0.0);
        let width = |a: DeviceId, b: DeviceId| {
            let free = cluster.route_channels(a, b).iter().map(free).fold(1.0, f64::min);
            let (_, bandwidth) = cluster.route(a, b);
            if free < LEAST_PART { 0.0 } else { free * bandwidth }
        };
        let is_stuck = |&a: &DeviceId| devices.iter().all(|&b| a == b || width(a, b) == 0.0);
        let Some(order) = (!devices.iter().any(is_stuck)).then(|| widest(devices, width)).flatten() else {
            break;
        };
        // Seconds for which a byte on every hop keeps each channel.
        let mut loads: BTreeMap<ChannelId, f64> = BTreeMap::new();
        for (i, &from) in order.iter().enumerate() {
            let to = order[(i + 1) % order.len()];
            for &channel in cluster.route_channels(from, to) {
                *loads.entry(channel).or_default() += cluster.route(from, to).1.recip();
            }
        }
        let rate = loads.iter().map(|(channel, load)| free(channel) / load).fold(f64::INFINITY, f64::min);
        if rings.first().is_some_and(|(_, first)| rate < LEAST_PART * first) {
            break;
        }
        loads.iter().for_each(|(&channel, load)| *used.entry(channel).or_default() += rate * load);
        rings.push((order, rate));
    }
    let all: f64 = rings.iter().map(|(_, rate)| rate).sum();
    rings.into_iter().map(|(order, rate)| (order, rate / all)).collect()
}

/// The devices in the order of the widest closed walk; none, where links of no width join them so, or the
/// search gave up.
fn widest(devices: &[DeviceId], width: impl Fn(DeviceId, DeviceId) -> f64) -> Option<Vec<DeviceId>> {
    let pairs = devices.iter().flat_map(|&a| devices.iter().map(move |&b| (a, b)));
    let mut widths: Vec<f64> = pairs.filter(|(a, b)| a != b).map(|(a, b)| width(a, b)).collect();
    widths.retain(|&width| width > 0.0);
    widths.sort_unstable_by(|a, b| b.total_cmp(a));
    widths.dedup();
    widths.iter().find_map(|&least| walk(devices, |a, b| width(a, b) >= least))
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
