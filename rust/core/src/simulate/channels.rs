//! Queues of transfers and collectives, one per channel. Both are called transfers here.
//!
//! Every queue is ordered by one global key (urgency, then order of arrival). A transfer starts when
//! it heads the queue of every channel on its route and all of them are free. The transfer with the least
//! key of all heads all its queues, so some transfer can always start.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::clock::Ticks;
use crate::cluster::Cluster;
use crate::ids::ChannelId;
use crate::simulate::LinkOrder;

/// Transfers that wait for a channel.
#[derive(Clone, Debug)]
enum Queue {
    /// In order of arrival.
    Fifo(VecDeque<u32>),
    /// By (urgency, order of arrival, message), smallest first.
    Urgent(BinaryHeap<Reverse<(i32, u32, u32)>>),
}

impl Queue {
    fn head(&self) -> Option<u32> {
        match self {
            Self::Fifo(queue) => queue.front().copied(),
            Self::Urgent(heap) => heap.peek().map(|e| e.0.2),
        }
    }

    fn pop(&mut self) {
        match self {
            Self::Fifo(queue) => drop(queue.pop_front()),
            Self::Urgent(heap) => drop(heap.pop()),
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Channels {
    limited: bool,
    queues: Vec<Queue>,
    busy: Vec<bool>,
    /// The transfer each channel carried last, and when it ended.
    carried: Vec<Option<(Ticks, u32)>>,
    /// Channels that may have something to start.
    wake: Vec<ChannelId>,
    /// Transfers that start at once: all without contention, else those that hold no channel.
    unlimited: Vec<u32>,
    arrivals: u32,
    started: Vec<(u32, Option<u32>)>,
}

impl Channels {
    pub fn new(cluster: &Cluster, order: Option<LinkOrder>) -> Self {
        let n = cluster.channels().len();
        Self {
            limited: order.is_some(),
            queues: vec![
                match order {
                    Some(LinkOrder::Priority) => Queue::Urgent(BinaryHeap::new()),
                    Some(LinkOrder::Fifo) | None => Queue::Fifo(VecDeque::new()),
                };
                n
            ],
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
        if !self.limited || route.is_empty() {
            self.unlimited.push(message);
            return;
        }
        self.arrivals += 1;
        for &c in route {
            match &mut self.queues[c.ix()] {
                Queue::Fifo(queue) => queue.push_back(message),
                Queue::Urgent(heap) => heap.push(Reverse((urgency, self.arrivals, message))),
            }
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

    /// Whether anything may be able to start.
    #[inline(always)]
    pub fn is_awake(&self) -> bool {
        !self.wake.is_empty() || !self.unlimited.is_empty()
    }

    /// Takes up every transfer that can start, by channel index. With each comes the transfer that
    /// held one of its channels last.
    pub fn take_started<'a>(&mut self, route: impl Fn(u32) -> &'a [ChannelId]) -> Vec<(u32, Option<u32>)> {
        let mut started = std::mem::take(&mut self.started);
        started.extend(self.unlimited.drain(..).map(|m| (m, None)));
        if !self.limited {
            return started;
        }
        self.wake.sort_unstable();
        self.wake.dedup();
        let wake = std::mem::take(&mut self.wake);
        for &c in &wake {
            let Some(message) = self.queues[c.ix()].head() else { continue };
            let route = route(message);
            let heads = |c: &ChannelId| !self.busy[c.ix()] && self.queues[c.ix()].head() == Some(message);
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
