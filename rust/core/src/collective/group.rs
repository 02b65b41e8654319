//! How long a collective of a group of devices takes, and which channels it holds.
//!
//! A round lasts until the busiest channel has carried all that the round's transfers send over it.
//! Rounds follow one another. So the time of an algorithm is a sum over its rounds of the largest of
//! a few lines in the bytes, and each group needs them only once.

use std::sync::Arc;

use crate::cluster::Cluster;
use crate::collective::machines::machines;
use crate::collective::rounds::{self, Round};
use crate::collective::{Kind, ring};
use crate::collective_times::Taken;
use crate::ids::{ChannelId, DeviceId};

/// How a collective is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// One device is there: nothing is to be done.
    Alone,
    /// A part goes around a ring.
    Ring,
    /// Halves, quarters, ... are exchanged.
    HalvingDoubling,
    /// Inside machines, then across, then inside.
    Hierarchical,
    /// Every device sends to every other.
    Direct,
    /// Those who have the tensor send it on.
    Tree,
    /// The tensor is cut, its parts are handed out and gathered.
    Scattered,
    /// As the library that runs it does: a table of measured times.
    Table,
}

impl Algorithm {
    /// The name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Alone => "alone",
            Self::Ring => "ring",
            Self::HalvingDoubling => "halving and doubling",
            Self::Hierarchical => "hierarchical",
            Self::Direct => "direct",
            Self::Tree => "tree",
            Self::Scattered => "scattered",
            Self::Table => "table",
        }
    }
}

/// Seconds as a function of bytes: `latency + bytes * per_byte`.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Line {
    latency: f64,
    per_byte: f64,
}

impl Line {
    fn at(self, bytes: f64) -> f64 {
        self.latency + bytes * self.per_byte
    }
}

/// One algorithm for a group.
#[derive(Clone, Debug)]
struct Candidate {
    algorithm: Algorithm,
    /// Per round, what each channel that may be the busiest needs, all repeats together.
    rounds: Vec<Vec<Line>>,
    channels: Arc<[ChannelId]>,
}

impl Candidate {
    fn seconds(&self, bytes: f64) -> f64 {
        let longest = |lines: &Vec<Line>| lines.iter().map(|line| line.at(bytes)).fold(0.0, f64::max);
        self.rounds.iter().map(longest).sum()
    }
}

/// What a collective of some bytes takes.
#[derive(Clone, Debug, PartialEq)]
pub struct Way {
    /// The fastest algorithm for these bytes.
    pub algorithm: Algorithm,
    /// How long it takes.
    pub seconds: f64,
    /// For how much of that each member keeps its device busy.
    pub busy: f64,
    /// The channels that it holds.
    pub channels: Arc<[ChannelId]>,
}

/// Collectives of one kind among one group of devices.
#[derive(Clone, Debug)]
pub struct Group<'a> {
    cluster: &'a Cluster,
    kind: Kind,
    /// Devices by machine.
    machines: Vec<Vec<DeviceId>>,
    candidates: Vec<Candidate>,
}

impl<'a> Group<'a> {
    /// Prepares. `devices` are distinct; a broadcast comes from the first. O(k^2) for k devices, and
    /// the search for a ring.
    pub fn new(cluster: &'a Cluster, kind: Kind, devices: &[DeviceId]) -> Self {
        let machines = machines(cluster, devices);
        let found =
            if devices.len() > 1 { algorithms(cluster, kind, devices, &machines) } else { Vec::new() };
        let of = |(algorithm, rounds): (Algorithm, Vec<Round>)| candidate(cluster, algorithm, &rounds);
        let candidates = found.into_iter().map(of).collect();
        Self { cluster, kind, machines, candidates }
    }

    /// The fastest way for so many bytes; of equally fast ones the first of [`Algorithm`].
    pub fn way(&self, bytes: u64) -> Way {
        let seconds = |c: &Candidate| c.seconds(bytes as f64);
        let Some(best) = self.candidates.iter().min_by(|a, b| seconds(a).total_cmp(&seconds(b))) else {
            return Way { algorithm: Algorithm::Alone, seconds: 0.0, busy: 0.0, channels: Arc::from([]) };
        };
        let measured = self.cluster.collective_taken(self.kind, &self.machines, bytes);
        let (algorithm, Taken { seconds, busy }) = match measured {
            Some(taken) => (Algorithm::Table, taken),
            None => (best.algorithm, Taken { seconds: seconds(best), busy: 0.0 }),
        };
        Way { algorithm, seconds, busy, channels: Arc::clone(&best.channels) }
    }
}

/// Every algorithm that does a kind of collective.
fn algorithms(
    cluster: &Cluster,
    kind: Kind,
    devices: &[DeviceId],
    machines: &[Vec<DeviceId>],
) -> Vec<(Algorithm, Vec<Round>)> {
    match kind {
        Kind::AllToAll => vec![(Algorithm::Direct, rounds::direct(devices))],
        Kind::Broadcast => {
            let gather = rounds::ring(Kind::AllGather, &ring::order(cluster, devices));
            let scattered = rounds::scatter(devices).into_iter().chain(gather).collect();
            vec![(Algorithm::Tree, rounds::tree(devices)), (Algorithm::Scattered, scattered)]
        }
        Kind::AllReduce | Kind::ReduceScatter | Kind::AllGather => {
            let mut found = flat(cluster, kind, devices);
            found.extend(hierarchical(cluster, kind, machines));
            found
        }
    }
}

/// The algorithms that take all devices alike.
fn flat(cluster: &Cluster, kind: Kind, devices: &[DeviceId]) -> Vec<(Algorithm, Vec<Round>)> {
    vec![
        (Algorithm::Ring, rounds::ring(kind, &ring::order(cluster, devices))),
        (Algorithm::HalvingDoubling, rounds::halving_doubling(kind, devices)),
    ]
}

/// Reduces inside each machine, then across machines what each device of a machine has, and gathers
/// inside. Machines must have as many devices each.
fn hierarchical(cluster: &Cluster, kind: Kind, machines: &[Vec<DeviceId>]) -> Vec<(Algorithm, Vec<Round>)> {
    let (inner, outer) = (machines[0].len(), machines.len());
    if inner < 2 || outer < 2 || machines.iter().any(|machine| machine.len() != inner) {
        return Vec::new();
    }
    let across: Vec<Vec<DeviceId>> =
        (0..inner).map(|i| machines.iter().map(|machine| machine[i]).collect()).collect();
    // The same algorithm in every group, so that all groups have as many rounds.
    let on_all = |kind: Kind, groups: &[Vec<DeviceId>], which: usize| {
        rounds::side_by_side(groups.iter().map(|devices| flat(cluster, kind, devices).swap_remove(which).1))
    };
    let mut found = Vec::new();
    for (inside, outside) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let mut rounds = Vec::new();
        if kind != Kind::AllGather {
            rounds.extend(on_all(Kind::ReduceScatter, machines, inside));
        }
        rounds.extend(rounds::of_part(on_all(kind, &across, outside), 1.0 / inner as f64));
        if kind != Kind::ReduceScatter {
            rounds.extend(on_all(Kind::AllGather, machines, inside));
        }
        found.push((Algorithm::Hierarchical, rounds));
    }
    found
}

/// What the rounds of an algorithm need of each channel.
fn candidate(cluster: &Cluster, algorithm: Algorithm, rounds: &[Round]) -> Candidate {
    let mut channels: Vec<ChannelId> = Vec::new();
    let lines = rounds.iter().map(|round| {
        let mut loads: Vec<(ChannelId, Line)> = Vec::new();
        for &(from, to) in &round.hops {
            let (latency, bandwidth) = cluster.route(from, to);
            let line = Line { latency, per_byte: round.share / bandwidth };
            loads.extend(cluster.route_channels(from, to).iter().map(|&c| (c, line)));
        }
        loads.sort_unstable_by_key(|(channel, _)| *channel);
        channels.extend(loads.iter().map(|(channel, _)| *channel));
        busiest(&loads, f64::from(round.repeats))
    });
    let rounds = lines.collect();
    channels.sort_unstable();
    channels.dedup();
    Candidate { algorithm, rounds, channels: Arc::from(channels) }
}

/// The loads of the channels that may be the busiest, those that another exceeds for any number of
/// bytes left out. `loads` are sorted by channel.
fn busiest(loads: &[(ChannelId, Line)], repeats: f64) -> Vec<Line> {
    let sums = loads.chunk_by(|a, b| a.0 == b.0).map(|of_one| Line {
        latency: repeats * of_one.iter().map(|(_, line)| line.latency).sum::<f64>(),
        per_byte: repeats * of_one.iter().map(|(_, line)| line.per_byte).sum::<f64>(),
    });
    let mut lines: Vec<Line> = Vec::new();
    for line in sums {
        let exceeds = |a: &Line, b: &Line| a.latency >= b.latency && a.per_byte >= b.per_byte;
        if !lines.iter().any(|other| exceeds(other, &line)) {
            lines.retain(|other| !exceeds(&line, other));
            lines.push(line);
        }
    }
    lines
}
