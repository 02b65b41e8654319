//! Channels that serve first come, first served, as transfers are booked on them in any order.
//!
//! A transfer queues when its tensor is made, as in the simulator, and holds every channel of its route. A
//! transfer that is booked late may queue early and push back others. Each of the others knows when it is
//! wanted: when the first op that reads it starts. A transfer that is pushed back no further than that delays
//! no op. The time by which it comes later than it is wanted is the *price* of pushing it back. As long as no
//! price is paid, transfers end exactly when the simulator ends them.
//!
//! Where a channel is busy for long, one transfer can push back its whole queue. [`PUSHED_EACH`] keeps the
//! time for that linear: past this number of transfers, those further behind stay where they were booked, and
//! their ends are estimates.

use std::cmp::Reverse;

use crate::clock::Ticks;
use crate::cluster::Cluster;
use crate::ids::{ChannelId, DeviceId};

/// What a tick of delay of another op weighs against a tick of delay of the op itself, by default. The other
/// op was scheduled first, so it has the higher priority.
pub const DELAY_WEIGHT: Ticks = 2;

/// How many booked transfers each call may push back on average: what one call leaves of this number, later
/// calls may use.
pub const PUSHED_EACH: usize = 96;

/// What orders a queue: the time at which a transfer's tensor was made, then the tensor's key and
/// the device that it goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Turn {
    made: Ticks,
    key: u32,
    to: DeviceId,
}

impl Turn {
    /// The turn of a tensor with key `key`, made at `made`, on its way to `to`.
    #[inline(always)]
    pub fn new(made: Ticks, key: u32, to: DeviceId) -> Self {
        Self { made, key, to }
    }
}

/// When all that an op reads is on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// When the last of it is there.
    pub at: Ticks,
    /// The price: the ticks by which booked transfers come later than they are wanted because this
    /// arrival pushes them back, and for which senders copy, summed and weighted.
    pub delay: Ticks,
}

impl Arrival {
    /// What arrivals are compared by: the time plus the price.
    #[inline(always)]
    pub fn price(self) -> Ticks {
        // Far below `Ticks::MAX`, so that a length can be added.
        self.at.saturating_add(self.delay).min(Ticks::MAX / 4)
    }
}

/// A booked transfer, numbered as booked.
pub type TransferId = u32;

/// A transfer, booked or asked for.
#[derive(Clone, Copy, Debug)]
struct Transfer {
    turn: Turn,
    from: DeviceId,
    length: Ticks,
    /// When the first op starts that reads the tensor there.
    wanted: Ticks,
}

/// A booked transfer as its neighbours in a queue see it. [`Block`] has a column of its own for
/// when the tensor was made.
#[derive(Clone, Copy, Debug)]
struct Place {
    start: Ticks,
    end: Ticks,
    key: u32,
    to: DeviceId,
    id: TransferId,
}

/// Where a transfer stands in a queue: its block and its place in the block. The end of the queue is one past
/// the last block.
type Position = (usize, usize);

/// Most transfers in a block; a full one is split in two.
const BLOCK: usize = 256;

/// Some of a queue's transfers, in the order of the queue. Never empty.
#[derive(Clone, Debug)]
struct Block {
    /// When the tensor of each transfer was made. This is what is searched, so it lies close
    /// together.
    made: Vec<Ticks>,
    places: Vec<Place>,
    /// The turn of the last transfer.
    last: Turn,
}

impl Block {
    /// How many transfers of the block come before a turn. Most often nearly all do.
    #[inline(always)]
    fn position(&self, turn: Turn) -> usize {
        let (mut high, mut step) = (self.made.len(), 1);
        loop {
            let low = high.saturating_sub(step);
            if low == 0 || self.made[low] < turn.made {
                return self.position_in(low, high, turn);
            }
            (high, step) = (low, 2 * step);
        }
    }

    /// As [`Self::position`], searched from a position that is not past the result. Most often the
    /// result is near.
    #[inline(always)]
    fn position_from(&self, from: usize, turn: Turn) -> usize {
        let (mut low, mut step) = (from, 1);
        loop {
            let high = self.made.len().min(low + step);
            if high == self.made.len() || self.made[high] >= turn.made {
                return self.position_in(low, high, turn);
            }
            (low, step) = (high, 2 * step);
        }
    }

    /// As [`Self::position`]. The tensors made before the turn's end between `low` and `high`.
    #[inline(always)]
    fn position_in(&self, low: usize, high: usize, turn: Turn) -> usize {
        let first = low + self.made[low..high].partition_point(|&made| made < turn.made);
        if self.made.get(first).is_none_or(|&made| made > turn.made) {
            return first;
        }
        let equal = self.made[first..].partition_point(|&made| made == turn.made);
        first + self.places[first..first + equal].partition_point(|p| (p.key, p.to) < (turn.key, turn.to))
    }
}

/// The queue of a channel: blocks of bounded size, so that a transfer that is booked late moves only the rest
/// of its block.
#[derive(Clone, Debug, Default)]
struct Queue {
    blocks: Vec<Block>,
    /// When the tensor of the last transfer was made, and when that transfer ends. Often nothing else is
    /// needed.
    last: (Ticks, Ticks),
    /// While transfers are worked out: the position behind the last of them on this channel, and when
    /// that one ends; none before the first.
    at_work: Option<(Position, Ticks)>,
}

impl Queue {
    /// The position behind the last transfer.
    #[inline(always)]
    fn end(&self) -> Position {
        (self.blocks.len(), 0)
    }

    /// The position of a turn, whether or not it is in the queue. Most often it is near the end.
    #[inline(always)]
    fn position(&self, turn: Turn) -> Position {
        if turn.made > self.last.0 {
            return self.end();
        }
        let (mut block, mut step) = (self.blocks.len().saturating_sub(1), 1);
        while block > 0 && turn <= self.blocks[block - 1].last {
            block = block.saturating_sub(step);
            step *= 2;
        }
        self.position_behind(block, turn)
    }

    /// As [`Self::position`], searched from a position that is not past the result. Most often the
    /// result is in the same block.
    #[inline(always)]
    fn position_from(&self, (block, place): Position, turn: Turn) -> Position {
        match self.blocks.get(block) {
            Some(b) if turn <= b.last => (block, b.position_from(place, turn)),
            _ => self.position_behind(block, turn),
        }
    }

    /// As [`Self::position`], of a turn that comes after those worked out before it. Most often it
    /// is a booked transfer's, and stands where the last of these left off. If there is none,
    /// `first` is called.
    #[inline(always)]
    fn next_position(&self, turn: Turn, which: usize, first: impl FnOnce()) -> Position {
        match self.at_work {
            None => {
                first();
                self.position(turn)
            }
            Some((from @ (block, place), _)) => {
                let is_there = self.blocks.get(block).is_some_and(|b| b.places[place].id as usize == which);
                if is_there { from } else { self.position_from(from, turn) }
            }
        }
    }

    /// As [`Self::position`], searched from a block that is not past the result.
    #[inline(always)]
    fn position_behind(&self, from: usize, turn: Turn) -> Position {
        let block = from + self.blocks[from..].partition_point(|b| b.last < turn);
        (block, self.blocks.get(block).map_or(0, |b| b.position(turn)))
    }

    /// The position behind one that is not the end.
    #[inline(always)]
    fn behind(&self, (block, place): Position) -> Position {
        if place + 1 < self.blocks[block].places.len() { (block, place + 1) } else { (block + 1, 0) }
    }

    /// When the transfers before a position are done.
    #[inline(always)]
    fn done_before(&self, (block, place): Position) -> Ticks {
        if block == self.blocks.len() {
            self.last.1
        } else if place > 0 {
            self.blocks[block].places[place - 1].end
        } else if block > 0 {
            self.blocks[block - 1].places.last().map_or(0, |p| p.end)
        } else {
            0
        }
    }

    /// The transfer at a position, with its turn; none at the end.
    #[inline(always)]
    fn at(&self, (block, place): Position) -> Option<(Turn, Place)> {
        let block = self.blocks.get(block)?;
        let p = block.places[place];
        Some((Turn::new(block.made[place], p.key, p.to), p))
    }

    /// Books a transfer. O(log queue + BLOCK), and once in many bookings O(blocks).
    fn insert(&mut self, turn: Turn, place: Place) {
        let (at, position) = self.position(turn);
        if at == self.blocks.len() {
            self.last = (turn.made, place.end);
            match self.blocks.last_mut() {
                Some(block) if block.places.len() < BLOCK => {
                    block.made.push(turn.made);
                    block.places.push(place);
                    block.last = turn;
                }
                _ => self.blocks.push(Block { made: vec![turn.made], places: vec![place], last: turn }),
            }
            return;
        }
        let block = &mut self.blocks[at];
        block.made.insert(position, turn.made);
        block.places.insert(position, place);
        if block.places.len() > BLOCK {
            let half = BLOCK / 2;
            let (made, places) = (block.made.split_off(half), block.places.split_off(half));
            let rest = Block { made, places, last: block.last };
            let Place { key, to, .. } = block.places[half - 1];
            block.last = Turn::new(block.made[half - 1], key, to);
            self.blocks.insert(at + 1, rest);
        }
    }

    /// Moves the booked transfer at a position to a later end. Returns the position behind it.
    fn push_back(&mut self, position @ (block, place): Position, end: Ticks, length: Ticks) -> Position {
        let place = &mut self.blocks[block].places[place];
        (place.start, place.end) = (end - length, end);
        let behind = self.behind(position);
        if behind == self.end() {
            self.last.1 = end;
        }
        behind
    }
}

/// Transfers asked for, and what comes of them.
#[derive(Clone, Debug, Default)]
struct Request {
    asked: Vec<Transfer>,
    /// When each of them would end.
    ends: Vec<Ticks>,
    /// Booked transfers that they push back, and when those would end.
    pushed: Vec<(TransferId, Ticks)>,
}

impl Request {
    fn clear(&mut self) {
        self.asked.clear();
        self.ends.clear();
        self.pushed.clear();
    }
}

/// A transfer whose end is to be worked out. `which` numbers the booked transfers, then those asked
/// for.
#[derive(Clone, Copy, Debug)]
struct Due {
    turn: Turn,
    which: usize,
}

/// The queues of all channels.
#[derive(Debug)]
pub struct Queues<'a> {
    cluster: &'a Cluster,
    /// See [`DELAY_WEIGHT`].
    pub delay_weight: Ticks,
    booked: Vec<Transfer>,
    /// When each booked transfer ends.
    ends: Vec<Ticks>,
    /// The queue of each channel.
    queues: Vec<Queue>,
    /// What is asked for, and the request that was put aside.
    request: Request,
    aside: Request,
    /// Transfers to be worked out, the next one last.
    due: Vec<Due>,
    /// Channels that transfers were worked out on.
    touched: Vec<ChannelId>,
    /// How many transfers may still be pushed back.
    allowed: usize,
    /// How many were, booked or not.
    pub pushed_back: u64,
}

impl<'a> Queues<'a> {
    /// Empty queues.
    pub fn new(cluster: &'a Cluster) -> Self {
        Self {
            cluster,
            delay_weight: DELAY_WEIGHT,
            booked: Vec::new(),
            ends: Vec::new(),
            queues: vec![Queue::default(); cluster.n_channels()],
            request: Request::default(),
            aside: Request::default(),
            due: Vec::new(),
            touched: Vec::new(),
            allowed: 0,
            pushed_back: 0,
        }
    }

    /// When a booked transfer ends.
    #[inline(always)]
    pub fn end(&self, transfer: TransferId) -> Ticks {
        self.ends[transfer as usize]
    }

    /// Forgets what was asked for.
    #[inline(always)]
    pub fn clear(&mut self) {
        self.request.clear();
    }

    /// Exchanges what is asked for, as worked out, for what was put aside. This holds until a transfer
    /// is booked.
    #[inline(always)]
    pub fn put_aside(&mut self) {
        std::mem::swap(&mut self.request, &mut self.aside);
    }

    /// Asks for a transfer. Returns when it would end if it were the only one: behind the transfers
    /// that are booked before its turn.
    #[inline(always)]
    pub fn ask(&mut self, turn: Turn, from: DeviceId, length: Ticks) -> Ticks {
        self.request.asked.push(Transfer { turn, from, length, wanted: Ticks::MAX });
        self.request.ends.push(0);
        let mut start = turn.made;
        for &c in self.cluster.route_channels(from, turn.to) {
            let queue = &self.queues[c.ix()];
            start = start.max(queue.done_before(queue.position(turn)));
        }
        start + length
    }

    /// When the transfers asked for would all be there, and also the booked transfers `known`,
    /// which ascend. It is `soonest` at the earliest. Other ops wait for `copies` ticks anyway, until their
    /// device has copied out what is asked for. None if the price comes to `limit`.
    /// O((asked for + pushed back) log queue).
    pub fn arrival(
        &mut self,
        soonest: Ticks,
        copies: Ticks,
        known: &[TransferId],
        limit: Ticks,
    ) -> Option<Arrival> {
        let mut arrival = Arrival { at: soonest, delay: copies.saturating_mul(self.delay_weight) };
        let booked = self.booked.len();
        self.due
            .extend(self.request.asked.iter().zip(booked..).map(|(t, which)| Due { turn: t.turn, which }));
        self.due.sort_unstable_by_key(|due| Reverse(due.turn));
        self.allowed += PUSHED_EACH;
        while arrival.price() < limit {
            let Some(due) = self.due.pop() else { break };
            if due.which >= booked || self.request.pushed.len() < self.allowed {
                self.serve(due, known, &mut arrival);
            }
        }
        self.allowed -= self.request.pushed.len();
        self.pushed_back += self.request.pushed.len() as u64;
        self.due.clear();
        self.rest();
        (arrival.price() < limit).then_some(arrival)
    }

    /// Forgets which transfers were worked out last.
    #[inline(always)]
    fn rest(&mut self) {
        for c in self.touched.drain(..) {
            self.queues[c.ix()].at_work = None;
        }
    }

    /// Works out when a transfer ends. On each of its channels, the transfer behind it is due next
    /// if it is pushed back.
    #[inline(always)]
    fn serve(&mut self, Due { turn, which }: Due, known: &[TransferId], arrival: &mut Arrival) {
        let asked = which.checked_sub(self.booked.len());
        let transfer = asked.map_or_else(|| self.booked[which], |i| self.request.asked[i]);
        let route = self.cluster.route_channels(transfer.from, turn.to);
        let mut start = turn.made;
        for &c in route {
            let queue = &mut self.queues[c.ix()];
            let free = queue.at_work.map_or(0, |(_, free)| free);
            let position = queue.next_position(turn, which, || self.touched.push(c));
            queue.at_work = Some((position, free));
            start = start.max(queue.done_before(position)).max(free);
        }
        let end = start + transfer.length;
        if let Some(i) = asked {
            self.request.ends[i] = end;
            arrival.at = arrival.at.max(end);
        } else if end > self.ends[which] {
            let id = which as TransferId;
            self.request.pushed.push((id, end));
            let late = end.saturating_sub(transfer.wanted).saturating_mul(self.delay_weight);
            arrival.delay = arrival.delay.saturating_add(late);
            if known.binary_search(&id).is_ok() {
                arrival.at = arrival.at.max(end);
            }
        } else {
            return;
        }
        for &c in route {
            let queue = &mut self.queues[c.ix()];
            let Some((position, _)) = queue.at_work else { continue };
            let behind = if asked.is_some() { position } else { queue.behind(position) };
            queue.at_work = Some((behind, end));
            if let Some((turn, place)) = queue.at(behind).filter(|(_, b)| b.start < end) {
                add(&mut self.due, Due { turn, which: place.id as usize });
            }
        }
    }

    /// Books the transfers asked for, as worked out. Returns the first one's number; the others
    /// follow.
    pub fn book(&mut self) -> TransferId {
        for &(id, end) in &self.request.pushed {
            let transfer = self.booked[id as usize];
            self.ends[id as usize] = end;
            for &c in self.cluster.route_channels(transfer.from, transfer.turn.to) {
                let queue = &mut self.queues[c.ix()];
                let position = queue.next_position(transfer.turn, id as usize, || self.touched.push(c));
                queue.at_work = Some((queue.push_back(position, end, transfer.length), end));
            }
        }
        self.rest();
        let first = self.booked.len() as TransferId;
        let Request { asked, ends, .. } = &self.request;
        for ((id, &Transfer { turn, from, length, .. }), &end) in (first..).zip(asked).zip(ends) {
            for &c in self.cluster.route_channels(from, turn.to) {
                let Turn { key, to, .. } = turn;
                self.queues[c.ix()].insert(turn, Place { start: end - length, end, key, to, id });
            }
        }
        self.booked.append(&mut self.request.asked);
        self.ends.append(&mut self.request.ends);
        self.clear();
        first
    }

    /// Notes that an op which starts at `start` reads what a transfer brings.
    #[inline(always)]
    pub fn want(&mut self, transfer: TransferId, start: Ticks) {
        let wanted = &mut self.booked[transfer as usize].wanted;
        *wanted = start.min(*wanted);
    }
}

/// Adds a transfer to `due`, unless it is in it.
#[inline(always)]
fn add(due: &mut Vec<Due>, new: Due) {
    // Most often the new transfer is the next one. A longer search costs no more than the
    // insertion, which moves all entries that were searched.
    let at = due.iter().rposition(|d| d.turn >= new.turn).map_or(0, |last| last + 1);
    if at == 0 || due[at - 1].turn != new.turn {
        due.insert(at, new);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{Device, Links};

    /// Two devices joined by one channel.
    fn pair() -> Cluster {
        let name = |i: usize| format!("d{i}");
        let devices = (0..2).map(|i| Device { name: name(i), type_name: "gpu".into(), memory: 1 << 30 });
        let link = |from, to| Links {
            from: vec![name(from)],
            to: vec![name(to)],
            bandwidth: 1e9,
            latency: 0.0,
            channels: vec!["bus".into()],
        };
        Cluster::new(devices.collect(), &[link(0, 1), link(1, 0)]).unwrap()
    }

    /// A transfer of ten ticks from the first device to the second, when its tensor is made, and its arrival.
    fn sent(queues: &mut Queues, made: Ticks, key: u32) -> Arrival {
        queues.clear();
        let soonest = queues.ask(Turn::new(made, key, DeviceId(1)), DeviceId(0), 10);
        queues.arrival(soonest, 0, &[], Ticks::MAX).unwrap()
    }

    #[test]
    fn who_comes_first_is_served_first_and_pays_for_whom_that_makes_late() {
        let cluster = pair();
        let mut queues = Queues::new(&cluster);
        assert_eq!(sent(&mut queues, 5, 0), Arrival { at: 15, delay: 0 });
        let first = queues.book();
        queues.want(first, 18);
        assert_eq!(sent(&mut queues, 5, 1), Arrival { at: 25, delay: 0 });
        // It would be on the channel until 13, and the first there at 23, wanted at 18.
        assert_eq!(sent(&mut queues, 3, 2), Arrival { at: 13, delay: 5 * DELAY_WEIGHT });
        queues.book();
        assert_eq!(queues.end(first), 23);
    }

    #[test]
    fn questions_about_a_long_queue_push_back_a_bounded_number() {
        let cluster = pair();
        let mut queues = Queues::new(&cluster);
        let n = 1000;
        for key in 0..n {
            sent(&mut queues, 1, key);
            queues.book();
        }
        let pushed: Vec<usize> = (0..1000)
            .map(|_| {
                sent(&mut queues, 0, n);
                queues.request.pushed.len()
            })
            .collect();
        assert_eq!(pushed[0], n as usize, "what was not used is there for later");
        assert!(pushed.iter().sum::<usize>() <= 2000 * PUSHED_EACH);
        assert_eq!(pushed[999], PUSHED_EACH);
    }

    #[test]
    fn a_long_queue_stands_in_turn_in_whatever_order_transfers_are_booked() {
        let mut state = 1u32;
        let mut draw = |n: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) % n
        };
        let (mut queue, mut plain) = (Queue::default(), Vec::new());
        for id in 0..4 * BLOCK as u32 {
            // Many are made at the same time; the first half come in reverse.
            let made =
                if id < 2 * BLOCK as u32 { 5000 - Ticks::from(id) } else { 2900 + Ticks::from(draw(80)) };
            let turn = Turn::new(made, id ^ 1, DeviceId(draw(3)));
            let at = plain.partition_point(|&(other, _)| other < turn);
            assert_eq!(queue.at(queue.position(turn)).map(|(turn, _)| turn), plain.get(at).map(|p| p.0));
            queue.insert(turn, Place { start: 0, end: made + 1, key: turn.key, to: turn.to, id });
            plain.insert(at, (turn, id));
        }
        let mut position = (0, 0);
        for (i, &(turn, id)) in plain.iter().enumerate() {
            assert_eq!(queue.at(position).map(|(turn, place)| (turn, place.id)), Some((turn, id)));
            let done = if i > 0 { plain[i - 1].0.made + 1 } else { 0 };
            assert_eq!((queue.position(turn), queue.done_before(position)), (position, done));
            let later = plain[(i + 1 + draw(300) as usize).min(plain.len() - 1)].0;
            assert_eq!(queue.position_from(position, later), queue.position(later));
            position = queue.behind(position);
        }
        assert_eq!((position, queue.done_before(position)), (queue.end(), queue.last.1));
        assert!(queue.blocks.iter().all(|b| b.places.len() <= BLOCK && b.places.len() == b.made.len()));
    }
}
