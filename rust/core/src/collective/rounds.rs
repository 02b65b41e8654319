//! The algorithms of collectives, each as rounds of transfers that go on at the same time.
//!
//! * *Ring* (Patarasuk, Yuan 2009): each device passes a part on to the next device, k - 1 times to
//!   reduce and k - 1 times to gather.
//! * *Halving and doubling* (Thakur, Rabenseifner, Gropp 2005) in the circulant form of Träff (2024),
//!   which takes ceil(log2 k) rounds to reduce and as many to gather, for any k. In the round that
//!   leaves s of s' parts, each device sends s' - s parts to the device s places on.
//! * *Direct*: each device sends its piece to each other device. A tensor is reduced by one such round,
//!   and gathered by another.
//! * *Tree*: those who have the tensor send it to as many others, ceil(log2 k) times. *Scattered*:
//!   down the tree goes only what each half needs, and a ring gathers the parts.

use crate::collective::Kind;
use crate::ids::DeviceId;

/// A transfer of a share of the collective's bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Hop {
    pub from: DeviceId,
    pub to: DeviceId,
    pub share: f64,
}

/// Transfers that go on at the same time, so often one after another.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Round {
    pub hops: Vec<Hop>,
    pub repeats: u32,
}

/// The rounds of rings, each of which passes the devices in its order and carries its part of the bytes.
pub(super) fn rings(kind: Kind, rings: &[(Vec<DeviceId>, f64)]) -> Vec<Round> {
    let k = rings[0].0.len();
    let hop = |order: &[DeviceId], i: usize, part: f64| Hop {
        from: order[i],
        to: order[(i + 1) % k],
        share: part / k as f64,
    };
    let hops = rings.iter().flat_map(|(order, part)| (0..k).map(move |i| hop(order, i, *part))).collect();
    vec![Round { hops, repeats: passes(kind) * (k as u32 - 1) }]
}

/// How often a tensor goes round: to reduce it, to gather it, or for both.
fn passes(kind: Kind) -> u32 {
    if kind == Kind::AllReduce { 2 } else { 1 }
}

/// The rounds of halving (to reduce), of doubling (to gather), or of both.
pub(super) fn halving_doubling(kind: Kind, devices: &[DeviceId]) -> Vec<Round> {
    let k = devices.len();
    let mut halving = Vec::new();
    let mut parts = k;
    while parts > 1 {
        let left = parts.div_ceil(2);
        let share = (parts - left) as f64 / k as f64;
        let hop = |i: usize| Hop { from: devices[i], to: devices[(i + left) % k], share };
        halving.push(Round { hops: (0..k).map(hop).collect(), repeats: 1 });
        parts = left;
    }
    let doubling = halving.iter().rev().cloned();
    match kind {
        Kind::ReduceScatter => halving,
        Kind::AllGather => doubling.collect(),
        _ => halving.iter().cloned().chain(doubling).collect(),
    }
}

/// The rounds in which every device sends a piece to every other.
pub(super) fn direct(kind: Kind, devices: &[DeviceId]) -> Vec<Round> {
    let k = devices.len();
    let pieces = if kind == Kind::AllToAll { k * k } else { k };
    let share = 1.0 / pieces as f64;
    // The s-th hop of each device goes s places on, so that no device is sent two pieces at once.
    let hop = |s: usize, i: usize| Hop { from: devices[i], to: devices[(i + s) % k], share };
    let hops = (1..k).flat_map(|s| (0..k).map(move |i| hop(s, i))).collect();
    vec![Round { hops, repeats: passes(kind) }]
}

/// One round in which the first device hands each other one its part.
pub(super) fn hand_out(devices: &[DeviceId]) -> Vec<Round> {
    let share = 1.0 / devices.len() as f64;
    let hops = devices[1..].iter().map(|&to| Hop { from: devices[0], to, share }).collect();
    vec![Round { hops, repeats: 1 }]
}

/// The rounds of a tree from the first device.
pub(super) fn tree(devices: &[DeviceId]) -> Vec<Round> {
    let mut rounds = Vec::new();
    let mut have = 1;
    while have < devices.len() {
        let new = have.min(devices.len() - have);
        let hop = |i: usize| Hop { from: devices[i], to: devices[have + i], share: 1.0 };
        rounds.push(Round { hops: (0..new).map(hop).collect(), repeats: 1 });
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
        let hop = |&(first, middle, end): &(usize, usize, usize)| Hop {
            from: devices[first],
            to: devices[middle],
            share: (end - middle) as f64 / k as f64,
        };
        rounds.push(Round { hops: halves.iter().map(hop).collect(), repeats: 1 });
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
pub(super) fn of_part(rounds: &[Round], part: f64) -> Vec<Round> {
    let smaller = |hop: &Hop| Hop { share: hop.share * part, ..*hop };
    let of = |round: &Round| Round { hops: round.hops.iter().map(smaller).collect(), ..*round };
    rounds.iter().map(of).collect()
}
