//! Queues of transfers, one per channel.
//!
//! Every queue is ordered by one global key (urgency, then order of arrival). A transfer starts when
//! it heads the queue of every channel on its route and all of them are free; since the least of all
//! waiting keys heads all its queues, some transfer always can.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::clock::Ticks;
use crate::cluster::Cluster;
use crate::ids::ChannelId;

/// (urgency, order of arrival, message), smallest first.
type Entry = Reverse<(i32, u32, u32)>;

#[derive(Clone, Debug)]
pub(super) struct Channels {
    limited: bool,
    queues: Vec<BinaryHeap<Entry>>,
    busy: Vec<bool>,
    /// The transfer each channel carried last, and when it ended.
    carried: Vec<Option<(Ticks, u32)>>,
    /// Channels that may have something to start.
    wake: Vec<ChannelId>,
    /// Without contention: transfers that start at once.
    unlimited: Vec<u32>,
    arrivals: u32,
    started: Vec<(u32, Option<u32>)>,
}

impl Channels {
    pub fn new(cluster: &Cluster, limited: bool, n_messages: usize) -> Self {
        debug_assert!(n_messages < u32::MAX as usize);
        let n = cluster.channels().len();
        Self {
            limited,
            queues: vec![BinaryHeap::new(); n],
            busy: vec![false; n],
            carried: vec![None; n],
            wake: Vec::new(),
            unlimited: Vec::new(),
            arrivals: 0,
            started: Vec::new(),
        }
    }

    /// Queues a transfer on all channels of its route.
    pub fn push(&mut self, route: &[ChannelId], message: u32, urgency: i32) {
        if !self.limited {
            self.unlimited.push(message);
            return;
        }
        let entry = Reverse((urgency, self.arrivals, message));
        self.arrivals += 1;
        for &c in route {
            self.queues[c.ix()].push(entry);
            if !self.busy[c.ix()] {
                self.wake.push(c);
            }
        }
    }

    /// Frees the channels of a route.
    pub fn finished(&mut self, route: &[ChannelId], message: u32, now: Ticks) {
        if !self.limited {
            return;
        }
        for &c in route {
            self.busy[c.ix()] = false;
            self.carried[c.ix()] = Some((now, message));
            self.wake.push(c);
        }
    }

    /// Takes up every transfer that can start, by channel index. With each comes the transfer that
    /// held one of its channels last.
    pub fn take_started<'a>(&mut self, route: impl Fn(u32) -> &'a [ChannelId]) -> Vec<(u32, Option<u32>)> {
        let mut started = std::mem::take(&mut self.started);
        if !self.limited {
            started.extend(self.unlimited.drain(..).map(|m| (m, None)));
            return started;
        }
        self.wake.sort_unstable();
        self.wake.dedup();
        let wake = std::mem::take(&mut self.wake);
        for &c in &wake {
            let Some(&Reverse((_, _, message))) = self.queues[c.ix()].peek() else { continue };
            let route = route(message);
            let heads = |c: &ChannelId| {
                !self.busy[c.ix()] && self.queues[c.ix()].peek().is_some_and(|e| e.0.2 == message)
            };
            if !route.iter().all(heads) {
                continue;
            }
            // Of the transfers that held these channels, the one that finished last is the cause.
            let mut freed_by = None;
            for c in route {
                self.queues[c.ix()].pop();
                self.busy[c.ix()] = true;
                freed_by = freed_by.max(self.carried[c.ix()]);
            }
            started.push((message, freed_by.map(|(_, m)| m)));
        }
        self.wake = wake;
        self.wake.clear();
        started
    }

    /// Returns the buffer of [`Self::take_started`].
    pub fn give_back(&mut self, buffer: Vec<(u32, Option<u32>)>) {
        self.started = buffer;
    }
}
