//! The collectives of a run: whose members have arrived, how long each takes, what it holds.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::clock::Ticks;
use crate::collective::{Algorithm, Collective, Group, Kind};
use crate::ids::{ChannelId, DeviceId, OpId};
use crate::simulate::Simulator;

/// One collective of a schedule.
#[derive(Clone, Debug, PartialEq)]
pub struct Together {
    /// How it is done.
    pub algorithm: Algorithm,
    /// The channels that it holds.
    pub channels: Arc<[ChannelId]>,
    /// The member that arrived last.
    pub last: OpId,
    /// For how long each member kept its device busy before it had arrived.
    pub busy: Ticks,
    /// When all members had arrived.
    pub queued: Ticks,
    /// When it had all its channels.
    pub start: Ticks,
    /// When it and its members ended.
    pub finish: Ticks,
}

/// The collectives of a run. The message of collective `c` is that of all transfers, and `c` more.
#[derive(Clone, Debug)]
pub(super) struct Gathering {
    first_message: u32,
    all: Vec<Together>,
    length: Vec<Ticks>,
    /// Members to come, per collective.
    missing: Vec<u32>,
    ended: Vec<bool>,
}

impl Gathering {
    pub fn new(sim: &Simulator<'_>, placement: &[DeviceId], n_transfers: usize) -> Self {
        let collectives = &sim.work.collectives;
        let mut groups = BTreeMap::new();
        let (mut all, mut length, mut missing) = (Vec::new(), Vec::new(), Vec::new());
        for (c, collective) in collectives.all().iter().enumerate() {
            let members = collectives.members(c);
            let key = (collective.kind, devices(collective, members, placement));
            let group = groups
                .entry(key)
                .or_insert_with_key(|(kind, devices)| Group::new(sim.cluster, *kind, devices));
            let way = group.way(collective.bytes);
            let slowest = members.iter().map(|op| sim.time_on(*op, placement[op.ix()])).max().unwrap_or(0);
            let runs = collective.runs as f64;
            let whole = sim.clock.ticks(way.seconds * runs);
            let busy = sim.clock.ticks(way.busy * runs).min(whole);
            length.push(whole - busy + slowest);
            missing.push(members.len() as u32);
            let (algorithm, channels) = (way.algorithm, way.channels);
            all.push(Together {
                algorithm,
                channels,
                last: members[0],
                busy,
                queued: 0,
                start: 0,
                finish: 0,
            });
        }
        let ended = vec![false; all.len()];
        Self { first_message: n_transfers as u32, all, length, missing, ended }
    }

    /// For how long each member of a collective keeps its device busy.
    pub fn share(&self, collective: usize) -> Ticks {
        self.all[collective].busy
    }

    /// The collective of a message, if it is none of a transfer.
    #[inline(always)]
    pub fn of_message(&self, message: u32) -> Option<usize> {
        (message >= self.first_message).then(|| (message - self.first_message) as usize)
    }

    pub fn message(&self, collective: usize) -> u32 {
        self.first_message + collective as u32
    }

    /// Counts a member; the message to queue, if it was the last one to arrive.
    pub fn arrived(&mut self, op: OpId, collective: usize) -> Option<u32> {
        self.all[collective].last = op;
        self.missing[collective] -= 1;
        (self.missing[collective] == 0).then(|| self.message(collective))
    }

    pub fn queued(&mut self, collective: usize, now: Ticks) -> &Together {
        self.all[collective].queued = now;
        &self.all[collective]
    }

    pub fn started(&mut self, collective: usize, now: Ticks) -> &Together {
        let one = &mut self.all[collective];
        (one.start, one.finish) = (now, now + self.length[collective]);
        one
    }

    pub fn end(&mut self, collective: usize) {
        self.ended[collective] = true;
    }

    pub fn has_ended(&self, collective: usize) -> bool {
        self.ended[collective]
    }

    pub fn channels(&self, message: u32) -> &[ChannelId] {
        &self.all[(message - self.first_message) as usize].channels
    }

    pub fn into_all(self) -> Vec<Together> {
        self.all
    }
}

/// The devices of the members, each once: that of a broadcast's root first, then by index.
fn devices(collective: &Collective, members: &[OpId], placement: &[DeviceId]) -> Vec<DeviceId> {
    let mut devices: Vec<DeviceId> = members.iter().map(|op| placement[op.ix()]).collect();
    devices.sort_unstable();
    devices.dedup();
    if collective.kind == Kind::Broadcast {
        let root = placement[collective.root.ix()];
        devices.sort_by_key(|device| *device != root);
    }
    devices
}
