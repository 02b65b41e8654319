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

/// Channels for which there is room from the start.
const USUAL: usize = 64;

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

/// A channel that a transfer has asked for.
#[derive(Clone, Debug)]
struct Channel {
    queue: Queue,
    busy: bool,
    /// The transfer that it carried last, and when that ended.
    carried: Option<(Ticks, u32)>,
}

impl Channel {
    fn new(order: LinkOrder) -> Self {
        let queue = match order {
            LinkOrder::Priority => Queue::Urgent(BinaryHeap::new()),
            LinkOrder::Fifo => Queue::Fifo(VecDeque::new()),
        };
        Self { queue, busy: false, carried: None }
    }

    /// Whether it is free, and this transfer is the first that waits for it.
    fn offers(&self, message: u32) -> bool {
        !self.busy && self.queue.head() == Some(message)
    }
}

#[derive(Clone, Debug)]
pub(super) struct Channels {
    /// None: unlimited channels.
    order: Option<LinkOrder>,
    /// Per channel, its place in `used`; 0, that of no channel, before a transfer asks for it. Of the million
    /// channels that a thousand devices can have, a plan uses few.
    place: Vec<u32>,
    used: Vec<Channel>,
    /// Channels that may have something to start.
    wake: Vec<ChannelId>,
    /// Transfers that start at once: all without contention, else those that hold no channel.
    unlimited: Vec<u32>,
    arrivals: u32,
    started: Vec<(u32, Option<u32>)>,
}

impl Channels {
    pub fn new(cluster: &Cluster, order: Option<LinkOrder>) -> Self {
        let n = cluster.n_channels();
        let mut used = Vec::with_capacity(n.min(USUAL) + 1);
        used.push(Channel::new(LinkOrder::Fifo));
        Self {
            order,
            place: vec![0; n],
            used,
            wake: Vec::new(),
            unlimited: Vec::new(),
            arrivals: 0,
            started: Vec::new(),
        }
    }

    /// Queues a transfer on all channels of its route.
    pub fn push(&mut self, route: &[ChannelId], message: u32, urgency: i32) {
        let Some(order) = self.order.filter(|_| !route.is_empty()) else {
            self.unlimited.push(message);
            return;
        };
        self.arrivals += 1;
        for &c in route {
            if self.place[c.ix()] == 0 {
                self.place[c.ix()] = self.used.len() as u32;
                self.used.push(Channel::new(order));
            }
            let channel = &mut self.used[self.place[c.ix()] as usize];
            match &mut channel.queue {
                Queue::Fifo(queue) => queue.push_back(message),
                Queue::Urgent(heap) => heap.push(Reverse((urgency, self.arrivals, message))),
            }
            if !channel.busy {
                self.wake.push(c);
            }
        }
    }

    /// Frees the channels of a route.
    pub fn finished(&mut self, route: &[ChannelId], message: u32, now: Ticks) {
        if self.order.is_none() {
            return;
        }
        for &c in route {
            let channel = &mut self.used[self.place[c.ix()] as usize];
            channel.busy = false;
            channel.carried = Some((now, message));
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
        if self.order.is_none() {
            return started;
        }
        self.wake.sort_unstable();
        self.wake.dedup();
        let wake = std::mem::take(&mut self.wake);
        for &c in &wake {
            let place = |c: ChannelId| self.place[c.ix()] as usize;
            let Some(message) = self.used[place(c)].queue.head() else { continue };
            let route = route(message);
            if !route.iter().all(|&c| self.used[place(c)].offers(message)) {
                continue;
            }
            // Of the transfers that held these channels, the one that finished last is the cause.
            let mut freed_by = None;
            for &c in route {
                let channel = &mut self.used[place(c)];
                channel.queue.pop();
                channel.busy = true;
                freed_by = freed_by.max(channel.carried);
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
