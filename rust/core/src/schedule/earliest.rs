//! Earliest time first (ETF, Hwang et al. 1989): of all ready ops and devices, the pair that starts first.
//!
//! Ties go to the op that stands first in a given order (static levels for ETF; the topological order for
//! Baechi's m-ETF), then to the smaller device. Ops are appended to a device, not inserted.
//!
//! With *favourites* it is Baechi's m-SCT (after Hanen and Munier): a device whose last op has a favourite
//! child that is ready, or only waits for its inputs to arrive, takes nothing else that would delay it.
//!
//! Per device the ready ops are those whose inputs have arrived, by order, and those still waiting, by
//! arrival. An arrival noted there may have moved since, as channels filled up: it is checked when it comes
//! up. Rarely it has come forward (a tensor that others sent meanwhile); then a later op may be taken for the
//! earliest. An op without room is tried again when nothing else can go. O(D (E + V log V)) without contention.

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

/// Ready ops as one device sees them.
#[derive(Clone, Debug)]
struct Queue {
    /// Inputs arrive after the device is idle; see [`entry`].
    waiting: BinaryHeap<Reverse<u128>>,
    /// Inputs are there.
    arrived: RankSet,
    /// Ops without room here when they came up.
    set_aside: Vec<Rank>,
    /// The favourite child of the last op here.
    favourite: Option<OpId>,
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
    let mut state = State::new(engine, ties);
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
        state.queues[device.ix()].favourite = favourite.get(op.ix()).copied().filter(|f| !f.is_none());
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
    /// By rank: whether the op is ready and not scheduled.
    is_ready: Vec<bool>,
    /// Ready ops, scheduled ones among them.
    ready: BinaryHeap<Reverse<Rank>>,
    /// The favourite each device waits for, in the choice being made.
    waits: Vec<Option<Offer>>,
    queues: Vec<Queue>,
}

impl<'e, 'a> State<'e, 'a> {
    fn new(engine: &'e mut Engine<'a>, ties: &'e [OpId]) -> Self {
        let mut rank = vec![0; ties.len()];
        ties.iter().enumerate().for_each(|(r, u)| rank[u.ix()] = r as Rank);
        let queue = Queue {
            waiting: BinaryHeap::new(),
            arrived: RankSet::new(ties.len()),
            set_aside: Vec::new(),
            favourite: None,
        };
        let queues = vec![queue; engine.cluster().n_devices()];
        let waits = vec![None; queues.len()];
        Self {
            is_ready: vec![false; ties.len()],
            ready: BinaryHeap::new(),
            waits,
            engine,
            ties,
            rank,
            queues,
        }
    }

    /// An op has become ready.
    fn add(&mut self, op: OpId) {
        let rank = self.rank[op.ix()];
        self.is_ready[rank as usize] = true;
        self.ready.push(Reverse(rank));
        for device in self.engine.cluster().device_ids() {
            self.offer(op, device);
        }
    }

    /// An op has been scheduled.
    fn remove(&mut self, op: OpId) {
        let rank = self.rank[op.ix()];
        self.is_ready[rank as usize] = false;
        self.queues.iter_mut().for_each(|queue| queue.arrived.remove(rank));
    }

    /// Puts a ready op into a device's queue, if it may run there.
    fn offer(&mut self, op: OpId, device: DeviceId) {
        if !self.engine.work().allows(op, self.engine.cluster(), device) {
            return;
        }
        self.engine.consider(op);
        let arrival = self.engine.arrival(device).price();
        let rank = self.rank[op.ix()];
        let queue = &mut self.queues[device.ix()];
        if arrival <= self.engine.open(device) {
            queue.arrived.insert(rank);
        } else {
            queue.waiting.push(entry(arrival, rank));
        }
    }

    /// The offer that starts first. What the queues note is taken to be no later than the truth, so only
    /// the earliest needs to be checked, again and again until one holds.
    fn next(&mut self) -> Option<Offer> {
        self.waits.fill(None);
        loop {
            let offer = self.first()?;
            let device = offer.device;
            if self.waits[device.ix()].is_some() {
                return Some(offer);
            }
            let op = self.ties[offer.rank as usize];
            if !self.may_take(op, device) {
                self.drop_first(device, op, offer.rank);
                continue;
            }
            let start = self.engine.arrival(device).price().max(self.engine.open(device));
            if start > offer.start {
                self.pop(device);
                self.queues[device.ix()].waiting.push(entry(start, offer.rank));
                continue;
            }
            match self.awaited(device) {
                Some(awaited) if start + self.engine.length(op, device) > awaited.start => {
                    self.waits[device.ix()] = Some(awaited);
                }
                _ => return Some(offer),
            }
        }
    }

    /// The first offer as noted; of equals that of the smaller device.
    fn first(&mut self) -> Option<Offer> {
        let mut first: Option<Offer> = None;
        for device in self.engine.cluster().device_ids() {
            // Nothing starts before the device is idle.
            if first.is_some_and(|f| self.engine.open(device) > f.start) {
                continue;
            }
            let offer = self.waits[device.ix()].or_else(|| self.first_on(device));
            if offer.is_some_and(|o| first.is_none_or(|f| entry(o.start, o.rank) > entry(f.start, f.rank))) {
                first = offer;
            }
        }
        first
    }

    /// The favourite that a device may be waiting for.
    fn awaited(&mut self, device: DeviceId) -> Option<Offer> {
        let op = self.queues[device.ix()].favourite?;
        if !self.is_ready[self.rank[op.ix()] as usize] || !self.may_take(op, device) {
            return None;
        }
        let start = self.engine.arrival(device).price().max(self.engine.open(device));
        Some(Offer { start, rank: self.rank[op.ix()], device })
    }

    /// Whether a device may take a ready op now: it is free to go there, and fits.
    fn may_take(&mut self, op: OpId, device: DeviceId) -> bool {
        self.engine.consider(op);
        match self.engine.bound(op) {
            Some(bound) => bound == device,
            None => self.engine.fits(device),
        }
    }

    /// The first op in a device's queue, with its start as noted.
    #[inline(always)]
    fn first_on(&mut self, device: DeviceId) -> Option<Offer> {
        let open = self.engine.open(device);
        let queue = &mut self.queues[device.ix()];
        while let Some((arrival, rank)) = queue.waiting.peek().copied().map(arrival_and_rank) {
            if !self.is_ready[rank as usize] {
                queue.waiting.pop();
            } else if arrival <= open {
                queue.waiting.pop();
                queue.arrived.insert(rank);
            } else {
                break;
            }
        }
        if let Some(rank) = queue.arrived.first() {
            return Some(Offer { start: open, rank, device });
        }
        let (start, rank) = arrival_and_rank(*queue.waiting.peek()?);
        Some(Offer { start, rank, device })
    }

    fn pop(&mut self, device: DeviceId) {
        let queue = &mut self.queues[device.ix()];
        match queue.arrived.first() {
            Some(rank) => queue.arrived.remove(rank),
            None => drop(queue.waiting.pop()),
        }
    }

    /// Takes out the first op of a queue; one that may get room later is set aside.
    fn drop_first(&mut self, device: DeviceId, op: OpId, rank: Rank) {
        self.pop(device);
        if self.engine.bound(op).is_none() {
            self.queues[device.ix()].set_aside.push(rank);
        }
    }

    /// No device has room for any ready op: what was set aside gets another try, then the first ready op
    /// goes where most is free.
    fn stuck(&mut self) -> Result<(OpId, DeviceId), Error> {
        for device in self.engine.cluster().device_ids() {
            for rank in std::mem::take(&mut self.queues[device.ix()].set_aside) {
                // Another device may have taken it since.
                if self.is_ready[rank as usize] {
                    self.offer(self.ties[rank as usize], device);
                }
            }
        }
        if let Some(offer) = self.next() {
            return Ok((self.ties[offer.rank as usize], offer.device));
        }
        let op = loop {
            let Reverse(rank) = self.ready.pop().expect("an acyclic graph has a ready op until all are done");
            if self.is_ready[rank as usize] {
                break self.ties[rank as usize];
            }
        };
        self.engine.consider(op);
        Ok((op, self.engine.nowhere()?))
    }
}
