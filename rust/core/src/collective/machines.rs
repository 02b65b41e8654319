//! Parts of a group of devices: by machine, and by what the group's widest links join.

use crate::cluster::Cluster;
use crate::cluster::machines::joined_by_widest;
use crate::ids::DeviceId;

/// The devices by machine, devices and machines in the order given.
pub(super) fn machines(cluster: &Cluster, devices: &[DeviceId]) -> Vec<Vec<DeviceId>> {
    parted(devices, devices.iter().map(|&device| cluster.machine_of(device)))
}

/// The devices by what the widest links among them join, directly or through others.
pub(super) fn joined(cluster: &Cluster, devices: &[DeviceId]) -> Vec<Vec<DeviceId>> {
    let width = |a: usize, b: usize| cluster.route(devices[a], devices[b]).1;
    parted(devices, joined_by_widest(devices.len(), width).into_iter())
}

/// The devices by their labels.
fn parted(devices: &[DeviceId], labels: impl Iterator<Item = u32>) -> Vec<Vec<DeviceId>> {
    let mut parts: Vec<(u32, Vec<DeviceId>)> = Vec::new();
    for (&device, label) in devices.iter().zip(labels) {
        match parts.iter_mut().find(|(known, _)| *known == label) {
            Some((_, part)) => part.push(device),
            None => parts.push((label, vec![device])),
        }
    }
    parts.into_iter().map(|(_, part)| part).collect()
}
