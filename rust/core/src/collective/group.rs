//! How long a collective of a group of devices takes, and which channels it holds.
//!
//! A round lasts until the busiest channel has carried all that the round's transfers send over it. Those
//! transfers are under way together, so a channel that several share has the latency of one. Rounds
//! follow one another. So the time of an algorithm is a sum over its rounds of the largest of a few
//! lines in the bytes, and each group needs them only once.
//!
//! Measured times are of a shape of group: so many devices of so many machines. A group over machines that
//! none was measured on is made of levels, and inside of a machine measured times hold.

use std::borrow::Borrow;
use std::collections::BTreeSet;
use std::sync::Arc;

use crate::cluster::Cluster;
use crate::collective::machines::{joined, machines};
use crate::collective::rounds::{self, Hop, Round};
use crate::collective::{Kind, ring};
use crate::collective_times::Taken;
use crate::ids::{ChannelId, DeviceId};

/// How a collective is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// Nothing is to be sent: one device is there, or no bytes.
    Idle,
    /// A part goes around a ring.
    Ring,
    /// Halves, quarters, ... are exchanged.
    HalvingDoubling,
    /// Parts go around several rings at the same time.
    Rings,
    /// Those who have the tensor send it on.
    Tree,
    /// The tensor is cut, its parts are handed out and gathered.
    Scattered,
    /// Every device sends to every other.
    Direct,
    /// Inside machines, then across, then inside.
    Hierarchical,
    /// As the library that runs it does: a table of measured times.
    Table,
}

impl Algorithm {
    /// The name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Idle => "nothing to send",
            Self::Ring => "ring",
            Self::Rings => "rings",
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

/// A part of an algorithm.
struct Phase {
    /// The collective inside a machine that it is, and of how many devices, where that was measured.
    measured: Option<(Kind, usize)>,
    rounds: Vec<Round>,
}

impl Phase {
    fn by_links(rounds: Vec<Round>) -> Self {
        Self { measured: None, rounds }
    }
}

/// One algorithm for a group.
#[derive(Clone, Debug)]
struct Candidate {
    algorithm: Algorithm,
    /// Per round that was not measured, what each channel that may be the busiest needs, all repeats
    /// together.
    rounds: Vec<Vec<Line>>,
    /// Collectives of all bytes inside of machines, by their numbers of devices, whose times are measured.
    measured: Vec<(Kind, usize)>,
    channels: Arc<[ChannelId]>,
}

impl Candidate {
    fn taken(&self, cluster: &Cluster, bytes: u64) -> Taken {
        let longest = |lines: &Vec<Line>| lines.iter().map(|line| line.at(bytes as f64)).fold(0.0, f64::max);
        let sent = Taken { seconds: self.rounds.iter().map(longest).sum(), busy: 0.0 };
        let inside = |&(kind, devices): &(Kind, usize)| cluster.collective_taken(kind, 1, devices, bytes);
        self.measured
            .iter()
            .filter_map(inside)
            .fold(sent, |all, part| Taken { seconds: all.seconds + part.seconds, busy: all.busy + part.busy })
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
    /// the search for rings.
    pub fn new(cluster: &'a Cluster, kind: Kind, devices: &[DeviceId]) -> Self {
        let machines = machines(cluster, devices);
        let mut candidates = Vec::new();
        if devices.len() > 1 {
            let alone = |rounds: Vec<Round>| [Phase::by_links(rounds)];
            let flat = flat(cluster, kind, devices).into_iter();
            candidates.extend(flat.map(|(named, rounds)| candidate(cluster, named, &alone(rounds))));
            candidates.extend(hierarchical(cluster, kind, &machines));
            let joined = Some(joined(cluster, devices)).filter(|parts| *parts != machines);
            candidates.extend(joined.iter().flat_map(|parts| hierarchical(cluster, kind, parts)));
        }
        Self { cluster, kind, machines, candidates }
    }

    /// The fastest way for so many bytes; of equally fast ones the first of [`Algorithm`].
    pub fn way(&self, bytes: u64) -> Way {
        let each = self.candidates.iter().map(|c| (c, c.taken(self.cluster, bytes)));
        let fastest = each.min_by(|(_, a), (_, b)| a.seconds.total_cmp(&b.seconds));
        let Some((best, taken)) = fastest.filter(|_| bytes > 0) else {
            return Way { algorithm: Algorithm::Idle, seconds: 0.0, busy: 0.0, channels: Arc::from([]) };
        };
        let (algorithm, taken) = match self.measured(bytes) {
            Some(taken) => (Algorithm::Table, taken),
            None => (best.algorithm, taken),
        };
        let inside = self.inside(bytes).filter(|inside| inside.seconds > taken.seconds);
        let Taken { seconds, busy } = inside.unwrap_or(taken);
        Way { algorithm, seconds, busy, channels: Arc::clone(&best.channels) }
    }

    /// What so many bytes take by the times of groups of this shape, if they were measured.
    fn measured(&self, bytes: u64) -> Option<Taken> {
        let (n, each) = (self.machines.len(), self.machines[0].len());
        let is_even = self.machines.iter().all(|machine| machine.len() == each);
        is_even.then(|| self.cluster.collective_taken(self.kind, n, n * each, bytes)).flatten()
    }

    /// What the part of the largest machine takes by itself, where the group is over several and that was
    /// measured: all of it is not done sooner.
    fn inside(&self, bytes: u64) -> Option<Taken> {
        let each = self.machines.iter().map(Vec::len).max().filter(|_| self.machines.len() > 1)?;
        let part = each as f64 / self.machines.iter().map(Vec::len).sum::<usize>() as f64;
        let share = match self.kind {
            Kind::AllReduce | Kind::Broadcast => 1.0,
            Kind::ReduceScatter | Kind::AllGather => part,
            Kind::AllToAll => part * part,
        };
        self.cluster.collective_taken(self.kind, 1, each, (bytes as f64 * share) as u64)
    }
}

/// The algorithms that take all devices alike.
fn flat(cluster: &Cluster, kind: Kind, devices: &[DeviceId]) -> Vec<(Algorithm, Vec<Round>)> {
    let direct = || rounds::direct(kind, devices);
    let has_own = has_own_channels(cluster, devices);
    match kind {
        Kind::AllToAll => vec![(Algorithm::Direct, direct())],
        Kind::Broadcast => {
            let scattered = |rings: Vec<(Vec<DeviceId>, f64)>| {
                let gather = rounds::rings(Kind::AllGather, &rings);
                (Algorithm::Scattered, rounds::scatter(devices).into_iter().chain(gather).collect())
            };
            let mut all = vec![(Algorithm::Tree, rounds::tree(devices))];
            all.extend(rings(cluster, devices, has_own).into_iter().map(scattered));
            let handed = has_own.then(|| rounds::hand_out(devices).into_iter().chain(direct()).collect());
            all.extend(handed.map(|rounds| (Algorithm::Direct, rounds)));
            all
        }
        Kind::AllReduce | Kind::ReduceScatter | Kind::AllGather => {
            let of = |rings: Vec<(Vec<DeviceId>, f64)>| {
                let name = if rings.len() > 1 { Algorithm::Rings } else { Algorithm::Ring };
                (name, rounds::rings(kind, &rings))
            };
            let mut all: Vec<_> = rings(cluster, devices, has_own).into_iter().map(of).collect();
            all.insert(1, (Algorithm::HalvingDoubling, rounds::halving_doubling(kind, devices)));
            all.extend(has_own.then(|| (Algorithm::Direct, direct())));
            all
        }
    }
}

/// One ring, and, where they may be better, several: within a machine, unless all links are alike and each
/// pair has its own, where the direct algorithm is at least as fast.
fn rings(cluster: &Cluster, devices: &[DeviceId], has_own: bool) -> Vec<Vec<(Vec<DeviceId>, f64)>> {
    let mut all = vec![vec![(ring::order(cluster, devices), 1.0)]];
    let first = cluster.route_kind(devices[0], devices[1]);
    let is_as_first = |&a: &DeviceId| devices.iter().all(|&b| a == b || cluster.route_kind(a, b) == first);
    let is_uniform = || devices.iter().all(is_as_first);
    let is_inside = devices.iter().all(|&d| cluster.machine_of(d) == cluster.machine_of(devices[0]));
    if is_inside && !(has_own && is_uniform()) {
        all.extend(Some(ring::packed(cluster, devices)).filter(|rings| rings.len() > 1));
    }
    all
}

/// Whether no two transfers among the devices share a channel, and there are more than two devices.
fn has_own_channels(cluster: &Cluster, devices: &[DeviceId]) -> bool {
    let mut seen = BTreeSet::new();
    let mut pairs = devices.iter().flat_map(|&a| devices.iter().map(move |&b| (a, b)));
    devices.len() > 2
        && pairs.all(|(a, b)| cluster.route_channels(a, b).iter().all(|&channel| seen.insert(channel)))
}

/// Reduces inside each machine, then across machines what each device of a machine has, and gathers
/// inside; a broadcast is handed out in the first machine instead. Machines must have as many devices each.
fn hierarchical(cluster: &Cluster, kind: Kind, machines: &[Vec<DeviceId>]) -> Vec<Candidate> {
    let (inner, outer) = (machines[0].len(), machines.len());
    let is_even = machines.iter().all(|machine| machine.len() == inner);
    if inner < 2 || outer < 2 || !is_even || kind == Kind::AllToAll {
        return Vec::new();
    }
    let across: Vec<Vec<DeviceId>> =
        (0..inner).map(|i| machines.iter().map(|machine| machine[i]).collect()).collect();
    let inside = |kind: Kind| -> Vec<Phase> {
        let measured = cluster.collective_taken(kind, 1, inner, 0).map(|_| (kind, inner));
        let all = on_all(cluster, kind, machines).into_iter().map(|rounds| Phase { measured, rounds });
        all.take(if measured.is_some() { 1 } else { usize::MAX }).collect()
    };
    let nothing = || vec![Phase::by_links(Vec::new())];
    let before = match kind {
        Kind::AllGather => nothing(),
        Kind::Broadcast => vec![Phase::by_links(rounds::scatter(&machines[0]))],
        _ => inside(Kind::ReduceScatter),
    };
    let after = if kind == Kind::ReduceScatter { nothing() } else { inside(Kind::AllGather) };
    // What is reduced in one way is gathered in the same.
    let alike = before.len().max(after.len());
    let both = || before.iter().cycle().zip(after.iter().cycle()).take(alike);
    let between = on_all(cluster, kind, &across).into_iter();
    let between = between.map(|rounds| Phase::by_links(rounds::of_part(&rounds, 1.0 / inner as f64)));
    let of = |between: Phase| {
        let all = both().map(|(before, after)| [before, &between, after]);
        all.map(|phases| candidate(cluster, Algorithm::Hierarchical, &phases)).collect::<Vec<_>>()
    };
    between.flat_map(of).collect()
}

/// Each algorithm that every one of several groups of as many devices has, in all of them at once.
fn on_all(cluster: &Cluster, kind: Kind, groups: &[Vec<DeviceId>]) -> Vec<Vec<Round>> {
    let each: Vec<_> = groups.iter().map(|devices| flat(cluster, kind, devices)).collect();
    let of = |named: Algorithm| {
        let rounds = |all: &Vec<(Algorithm, Vec<Round>)>| {
            all.iter().find(|(name, _)| *name == named).map(|(_, rounds)| rounds.clone())
        };
        Some(rounds::side_by_side(each.iter().map(rounds).collect::<Option<Vec<_>>>()?.into_iter()))
    };
    each[0].iter().filter_map(|(named, _)| of(*named)).collect()
}

/// What the rounds of an algorithm need of each channel.
fn candidate<P: Borrow<Phase>>(cluster: &Cluster, algorithm: Algorithm, phases: &[P]) -> Candidate {
    let mut channels: Vec<ChannelId> = Vec::new();
    let mut lines = Vec::new();
    for phase in phases.iter().map(Borrow::borrow) {
        for round in &phase.rounds {
            let mut loads: Vec<(ChannelId, Line)> = Vec::new();
            for &Hop { from, to, share } in &round.hops {
                let (latency, bandwidth) = cluster.route(from, to);
                let line = Line { latency, per_byte: share / bandwidth };
                loads.extend(cluster.route_channels(from, to).iter().map(|&c| (c, line)));
            }
            loads.sort_unstable_by_key(|(channel, _)| *channel);
            channels.extend(loads.iter().map(|(channel, _)| *channel));
            if phase.measured.is_none() {
                lines.push(busiest(&loads, f64::from(round.repeats)));
            }
        }
    }
    channels.sort_unstable();
    channels.dedup();
    let measured = phases.iter().filter_map(|phase| phase.borrow().measured).collect();
    Candidate { algorithm, rounds: lines, measured, channels: Arc::from(channels) }
}

/// The loads of the channels that may be the busiest, those that another exceeds for any number of
/// bytes left out. `loads` are sorted by channel.
fn busiest(loads: &[(ChannelId, Line)], repeats: f64) -> Vec<Line> {
    let sums = loads.chunk_by(|a, b| a.0 == b.0).map(|of_one| Line {
        latency: repeats * of_one.iter().map(|(_, line)| line.latency).fold(0.0, f64::max),
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
