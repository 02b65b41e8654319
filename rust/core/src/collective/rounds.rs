//! The algorithms of collectives, each as rounds of transfers that go on at the same time.
//!
//! * *Ring* (Patarasuk, Yuan 2009): each device passes a part on to the next device, k - 1 times to
//!   reduce and k - 1 times to gather.
//! * *Halving and doubling* (Thakur, Rabenseifner, Gropp 2005) in the circulant form of Träff (2024),
//!   which takes ceil(log2 k) rounds to reduce and as many to gather, for any k. In the round that
//!   leaves s of s' parts, each device sends s' - s parts to the device s places on.
//! * *Direct*: each device sends its piece to each other device.
//! * *Tree*: those who have the tensor send it to as many others, ceil(log2 k) times. *Scattered*:
//!   down the tree goes only what each half needs, and a ring gathers the parts.

use crate::collective::Kind;
use crate::ids::DeviceId;

/// Transfers of one size that go on at the same time, so often one after another.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Round {
    pub hops: Vec<(DeviceId, DeviceId)>,
    /// Bytes per hop, as a share of the collective's bytes.
    pub share: f64,
    pub repeats: u32,
}

/// The rounds of a ring that passes the devices in this order.
pub(super) fn ring(kind: Kind, order: &[DeviceId]) -> Vec<Round> {
    let k = order.len();
    let hops = (0..k).map(|i| (order[i], order[(i + 1) % k])).collect();
    let passes = if kind == Kind::AllReduce { 2 } else { 1 };
    vec![Round { hops, share: 1.0 / k as f64, repeats: passes * (k as u32 - 1) }]
}

/// The rounds of halving (to reduce), of doubling (to gather), or of both.
pub(super) fn halving_doubling(kind: Kind, devices: &[DeviceId]) -> Vec<Round> {
    let k = devices.len();
    let mut halving = Vec::new();
    let mut parts = k;
    while parts > 1 {
        let left = parts.div_ceil(2);
        let hops = (0..k).map(|i| (devices[i], devices[(i + left) % k])).collect();
        halving.push(Round { hops, share: (parts - left) as f64 / k as f64, repeats: 1 });
        parts = left;
    }
    let doubling = halving.iter().rev().cloned();
    match kind {
        Kind::ReduceScatter => halving,
        Kind::AllGather => doubling.collect(),
        _ => halving.iter().cloned().chain(doubling).collect(),
    }
}

/// One round in which every device sends a piece to every other.
pub(super) fn direct(devices: &[DeviceId]) -> Vec<Round> {
    let k = devices.len();
    // The s-th hop of each device goes s places on, so that no device is sent two pieces at once.
    let hops = (1..k).flat_map(|s| (0..k).map(move |i| (devices[i], devices[(i + s) % k]))).collect();
    vec![Round { hops, share: 1.0 / (k * k) as f64, repeats: 1 }]
}

/// The rounds of a tree from the first device.
pub(super) fn tree(devices: &[DeviceId]) -> Vec<Round> {
    let mut rounds = Vec::new();
    let mut have = 1;
    while have < devices.len() {
        let new = have.min(devices.len() - have);
        let hops = (0..new).map(|i| (devices[i], devices[have + i])).collect();
        rounds.push(Round { hops, share: 1.0, repeats: 1 });
        have += new;
    }
    rounds
}

/// The rounds that hand each device its part, from the first device down a tree of halves.
pub(super) fn scatter(devices: &[DeviceId]) -> Vec<Round> {
    let k = devices.len();
    let mut rounds = Vec::new();
    // Ranges as (first, end): the first device of each has the parts of all.
    let mut ranges = vec![(0, k)];
    while ranges.iter().any(|(first, end)| end - first > 1) {
        let wide = ranges.iter().filter(|(first, end)| end - first > 1);
        let halves: Vec<_> =
            wide.map(|&(first, end)| (first, first + (end - first).div_ceil(2), end)).collect();
        let hops = halves.iter().map(|&(first, middle, _)| (devices[first], devices[middle])).collect();
        let parts = halves.iter().map(|(_, middle, end)| end - middle).max().unwrap_or(0);
        rounds.push(Round { hops, share: parts as f64 / k as f64, repeats: 1 });
        ranges = halves.iter().flat_map(|&(first, middle, end)| [(first, middle), (middle, end)]).collect();
    }
    rounds
}

/// The rounds of several collectives of as many devices each that go on at the same time.
pub(super) fn side_by_side(some: impl Iterator<Item = Vec<Round>>) -> Vec<Round> {
    let together = some.reduce(|mut all, one| {
        all.iter_mut().zip(one).for_each(|(round, other)| round.hops.extend(other.hops));
        all
    });
    together.unwrap_or_default()
}

/// The same rounds for a part of the bytes.
pub(super) fn of_part(rounds: Vec<Round>, share: f64) -> Vec<Round> {
    rounds.into_iter().map(|round| Round { share: round.share * share, ..round }).collect()
}
