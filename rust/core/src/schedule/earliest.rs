//! Earliest time first (ETF, Hwang et al. 1989): of all ready ops and devices, the pair that starts first.
//!
//! Ties go to the op that stands first in a given order (static levels for ETF; the topological order for
//! Baechi's m-ETF), then to the smaller device. Ops are appended to a device, not inserted.
//!
//! With *favourites* it is Baechi's m-SCT (after Hanen and Munier): a device whose last op has a favourite
//! child that is ready, or only waits for its inputs to arrive, takes nothing else that would delay it.
//!
//! Per device there are two queues of ready ops: ops whose inputs have arrived, by `ties`, and ops whose
//! inputs are on their way, by arrival. A noted arrival may have become later since, as channels filled up,
//! so it is checked when its op comes up. Rarely it has become earlier, because another op had the tensor
//! sent meanwhile; then an op that starts later may be taken for the earliest. An op without room is tried
//! again when no other op can go.
//!
//! Without contention and favourites no pair starts before the pair taken last. By that time the inputs of an
//! op are mostly on all devices, or reach all devices together. So one queue that all devices share holds
//! each op by its latest arrival, and a device's own queue holds the op only if it arrives there earlier.
//! That takes O(D E + V log V), otherwise O(D (E + V log V)).

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::clock::Ticks;
use crate::error::Error;
use crate::ids::{DeviceId, OpId};
use crate::schedule::Engine;
use crate::schedule::rank_set::RankSet;

/// An op by its place in the order that breaks ties.
type Rank = u32;

/// An arrival and a rank in one word, which compares without a branch.
#[inline(always)]
fn entry(arrival: Ticks, rank: Rank) -> Reverse<u128> {
    Reverse(u128::from(arrival) << 32 | u128::from(rank))
}

/// The arrival and the rank of an [`entry`].
#[inline(always)]
fn arrival_and_rank(Reverse(word): Reverse<u128>) -> (Ticks, Rank) {
    ((word >> 32) as Ticks, word as Rank)
}

/// Ready ops by when they could start.
#[derive(Clone, Debug)]
struct Queue {
    /// Ops whose inputs arrive after the time last asked about; see [`entry`].
    waiting: BinaryHeap<Reverse<u128>>,
    /// Ops whose inputs have arrived.
    arrived: RankSet,
}

impl Queue {
    fn new(limit: usize) -> Self {
        Self { waiting: BinaryHeap::new(), arrived: RankSet::new(limit) }
    }

    /// Adds an op.
    #[inline(always)]
    fn add(&mut self, arrival: Ticks, rank: Rank, now: Ticks) {
        if arrival <= now {
            self.arrived.insert(rank);
        } else {
            self.waiting.push(entry(arrival, rank));
        }
    }

    /// The op that starts first by the noted arrivals, and when. Nothing starts before `now`, which
    /// never falls. Waiting ops that are no longer `here` are forgotten.
    #[inline(always)]
    fn first(&mut self, now: Ticks, here: impl Fn(Rank) -> bool) -> Option<(Ticks, Rank)> {
        while let Some((arrival, rank)) = self.waiting.peek().copied().map(arrival_and_rank) {
            if !here(rank) {
                self.waiting.pop();
            } else if arrival <= now {
                self.waiting.pop();
                self.arrived.insert(rank);
            } else {
                break;
            }
        }
        match self.arrived.first() {
            Some(rank) => Some((now, rank)),
            None => self.waiting.peek().copied().map(arrival_and_rank),
        }
    }

    /// Whether a waiting op arrives by the start of an offer. The op of the offer does not count if
    /// it starts as it arrives.
    #[inline(always)]
    fn arrives_before(&self, offer: Offer) -> bool {
        let next = self.waiting.peek().copied().map(arrival_and_rank);
        next.is_some_and(|next| next.0 <= offer.start && next != (offer.start, offer.rank))
    }

    /// Takes out the op that starts first.
    fn pop(&mut self) {
        match self.arrived.first() {
            Some(rank) => self.arrived.remove(rank),
            None => drop(self.waiting.pop()),
        }
    }
}

/// Ready ops as one device sees them.
#[derive(Clone, Debug)]
struct View {
    /// Ready ops that are not shared, and shared ones whose inputs reach this device before the last device.
    queue: Queue,
    /// Ops that had no room here when they came up.
    set_aside: Vec<Rank>,
    /// The favourite child of the last op here.
    favourite: Option<OpId>,
    /// The favourite that the device waits for, in the choice being made.
    waits: Option<Offer>,
}

/// In which queues an op is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// It is not ready yet, or scheduled.
    Out,
    /// In the queues of devices.
    Apart,
    /// In the queue that all devices share, too.
    Shared,
}

/// A ready op that a device could take, and when.
#[derive(Clone, Copy, Debug)]
struct Offer {
    start: Ticks,
    rank: Rank,
    device: DeviceId,
}

/// Schedules every op. `ties` lists every op once; `favourite` is the favourite child of each op (none where
/// it has none), or empty.
///
/// # Errors
/// An op that fits nowhere, unless best effort will do.
pub fn earliest(engine: &mut Engine<'_>, ties: &[OpId], favourite: &[OpId]) -> Result<(), Error> {
    let mut state = State::new(engine, ties, favourite.is_empty());
    let graph = &state.engine.work().graph;
    let mut missing: Vec<u32> = graph.ops().map(|u| graph.in_degree(u)).collect();
    for u in graph.ops().filter(|u| missing[u.ix()] == 0) {
        state.add(u);
    }
    for _ in 0..graph.n_ops() {
        let (op, device) = match state.next() {
            Some(offer) => (ties[offer.rank as usize], offer.device),
            None => state.stuck()?,
        };
        state.engine.consider(op);
        state.engine.schedule(device, true);
        state.remove(op);
        state.views[device.ix()].favourite = favourite.get(op.ix()).copied().filter(|f| !f.is_none());
        for &v in graph.successors(op) {
            missing[v.ix()] -= 1;
            if missing[v.ix()] == 0 {
                state.add(v);
            }
        }
    }
    Ok(())
}

struct State<'e, 'a> {
    engine: &'e mut Engine<'a>,
    ties: &'e [OpId],
    rank: Vec<Rank>,
    /// Per rank.
    standing: Vec<Standing>,
    ready: RankSet,
    /// Per device.
    views: Vec<View>,
    /// Per device, when the inputs of the op that is being added arrive.
    arrivals: Vec<Ticks>,
    /// Ops that every device may take, by when their inputs are on the last device.
    shared: Queue,
    /// Whether ops are shared. They are if no pair starts before the pair taken last.
    shares: bool,
    /// A lower bound on the start of every shared op.
    now: Ticks,
}

impl<'e, 'a> State<'e, 'a> {
    fn new(engine: &'e mut Engine<'a>, ties: &'e [OpId], no_favourites: bool) -> Self {
        let mut rank = vec![0; ties.len()];
        ties.iter().enumerate().for_each(|(r, u)| rank[u.ix()] = r as Rank);
        let queue = Queue::new(ties.len());
        let view = View { queue: queue.clone(), set_aside: Vec::new(), favourite: None, waits: None };
        Self {
            standing: vec![Standing::Out; ties.len()],
            ready: RankSet::new(ties.len()),
            views: vec![view; engine.cluster().n_devices()],
            arrivals: vec![0; engine.cluster().n_devices()],
            shared: queue,
            shares: no_favourites && engine.is_free_of_contention(),
            now: 0,
            engine,
            ties,
            rank,
        }
    }

    /// Adds an op that has become ready.
    fn add(&mut self, op: OpId) {
        let rank = self.rank[op.ix()];
        self.ready.insert(rank);
        self.engine.consider(op);
        self.engine.soonest(&mut self.arrivals);
        let (work, cluster) = (self.engine.work(), self.engine.cluster());
        let allowed = |d: &DeviceId| work.allows(op, cluster, *d);
        let last = self.arrivals.iter().copied().max().filter(|&last| last >= self.now);
        let shared = last.filter(|_| self.shares && cluster.device_ids().all(|d| allowed(&d)));
        self.standing[rank as usize] = if shared.is_some() { Standing::Shared } else { Standing::Apart };
        if let Some(last) = shared {
            self.shared.add(last, rank, self.now);
        }
        for device in cluster.device_ids().filter(allowed) {
            let arrival = self.arrivals[device.ix()];
            if shared.is_none_or(|last| arrival < last) {
                self.views[device.ix()].queue.add(arrival, rank, self.engine.open(device));
            }
        }
    }

    /// Removes an op that has been scheduled.
    fn remove(&mut self, op: OpId) {
        let rank = self.rank[op.ix()];
        self.ready.remove(rank);
        self.standing[rank as usize] = Standing::Out;
        self.shared.arrived.remove(rank);
        self.views.iter_mut().for_each(|view| view.queue.arrived.remove(rank));
    }

    /// Puts a ready op that a device may take into that device's own queue.
    fn offer(&mut self, rank: Rank, device: DeviceId) {
        self.engine.consider(self.ties[rank as usize]);
        let arrival = self.engine.arrival(device).price();
        self.views[device.ix()].queue.add(arrival, rank, self.engine.open(device));
    }

    /// The offer that starts first. Noted arrivals count as lower bounds. So only the earliest
    /// offer is checked, again and again, until one is as early as noted.
    fn next(&mut self) -> Option<Offer> {
        self.views.iter_mut().for_each(|view| view.waits = None);
        loop {
            let offer = self.first()?;
            let device = offer.device;
            if self.views[device.ix()].waits.is_some() {
                return Some(offer);
            }
            if self.shares && offer.start > self.now {
                self.now = offer.start;
                // Others that have arrived by then compete by rank.
                if self.shared.arrives_before(offer) {
                    continue;
                }
            }
            let op = self.ties[offer.rank as usize];
            if !self.may_take(op, device) {
                self.refuse(device, op, offer.rank);
                continue;
            }
            let start = self.engine.arrival(device).price().max(self.engine.open(device));
            if start > offer.start {
                self.withdraw(device, offer.rank);
                self.views[device.ix()].queue.waiting.push(entry(start, offer.rank));
                continue;
            }
            match self.awaited(device) {
                Some(awaited) if start + self.engine.length(op, device) > awaited.start => {
                    self.views[device.ix()].waits = Some(awaited);
                }
                _ => return Some(offer),
            }
        }
    }

    /// The first offer by the noted arrivals. Of equal offers, that of the smaller device.
    fn first(&mut self) -> Option<Offer> {
        let Self { engine, views, shared, standing, now, .. } = self;
        let shared = shared.first(*now, |rank| standing[rank as usize] == Standing::Shared);
        let mut first: Option<Offer> = None;
        for (device, view) in engine.cluster().device_ids().zip(views) {
            // Nothing starts before the device is idle.
            let open = engine.open(device);
            if first.is_some_and(|f| open > f.start) {
                continue;
            }
            let offer = view.waits.or_else(|| {
                let own = view.queue.first(open, |rank| standing[rank as usize] != Standing::Out);
                let shared = shared.map(|(start, rank)| (start.max(open), rank));
                let (start, rank) = own.into_iter().chain(shared).min()?;
                Some(Offer { start, rank, device })
            });
            if offer.is_some_and(|o| first.is_none_or(|f| entry(o.start, o.rank) > entry(f.start, f.rank))) {
                first = offer;
            }
        }
        first
    }

    /// The favourite that a device may be waiting for.
    fn awaited(&mut self, device: DeviceId) -> Option<Offer> {
        let op = self.views[device.ix()].favourite?;
        let rank = self.rank[op.ix()];
        if self.standing[rank as usize] == Standing::Out || !self.may_take(op, device) {
            return None;
        }
        let start = self.engine.arrival(device).price().max(self.engine.open(device));
        Some(Offer { start, rank, device })
    }

    /// Whether a device may take a ready op now: it is free to go there, and fits.
    fn may_take(&mut self, op: OpId, device: DeviceId) -> bool {
        self.engine.consider(op);
        match self.engine.bound(op) {
            Some(bound) => bound == device,
            None => self.engine.fits(device),
        }
    }

    /// Takes a device's first op out of the device's queue, or out of the queue that all devices share.
    fn withdraw(&mut self, device: DeviceId, rank: Rank) {
        if self.standing[rank as usize] == Standing::Apart {
            self.views[device.ix()].queue.pop();
            return;
        }
        self.standing[rank as usize] = Standing::Apart;
        self.shared.arrived.remove(rank);
        for other in self.engine.cluster().device_ids().filter(|&d| d != device) {
            self.offer(rank, other);
        }
    }

    /// Takes from a device its first op, which may not go there. The op is set aside if it may get
    /// room there later.
    fn refuse(&mut self, device: DeviceId, op: OpId, rank: Rank) {
        self.withdraw(device, rank);
        if self.engine.bound(op).is_none() {
            self.views[device.ix()].set_aside.push(rank);
        }
    }

    /// The choice when no device has room for any ready op. Ops that were set aside are tried once
    /// more. Then the first ready op goes where most memory is free.
    fn stuck(&mut self) -> Result<(OpId, DeviceId), Error> {
        for device in self.engine.cluster().device_ids() {
            for rank in std::mem::take(&mut self.views[device.ix()].set_aside) {
                // Another device may have taken the op since.
                if self.standing[rank as usize] != Standing::Out {
                    self.offer(rank, device);
                }
            }
        }
        if let Some(offer) = self.next() {
            return Ok((self.ties[offer.rank as usize], offer.device));
        }
        let rank = self.ready.first().expect("an acyclic graph has a ready op until all are done");
        let op = self.ties[rank as usize];
        self.engine.consider(op);
        Ok((op, self.engine.nowhere()?))
    }
}
