//! Machines: groups of devices that are joined by wider links than any that lead out of them.
//!
//! A cluster does not say which devices are in one machine; its links do.

use crate::cluster::Cluster;
use crate::ids::DeviceId;
use crate::union::Union;

/// The devices by machine, devices in the order given: those that the widest links join, directly or
/// through others.
pub(super) fn machines(cluster: &Cluster, devices: &[DeviceId]) -> Vec<Vec<DeviceId>> {
    let width = |a: usize, b: usize| cluster.route(devices[a], devices[b]).1;
    let k = devices.len();
    let pairs = || (0..k).flat_map(|a| (0..k).map(move |b| (a, b))).filter(|(a, b)| a != b);
    let widest = pairs().map(|(a, b)| width(a, b)).fold(0.0, f64::max);
    let mut union = Union::new(k);
    pairs().filter(|&(a, b)| width(a, b) >= widest).for_each(|(a, b)| union.join(a, b));
    let (_, sets) = union.sets(k);
    (0..sets.n_rows()).map(|s| sets.row(s).iter().map(|i| devices[i.ix()]).collect()).collect()
}
