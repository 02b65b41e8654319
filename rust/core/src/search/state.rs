//! A placement and an order with its schedule, open to small changes.
//!
//! Changes are made ([`State::place`], [`State::shift`]), evaluated ([`evaluate`](super::evaluate)) and then
//! kept or undone. Positions of the order are grouped into rows. An op depends on the ops before it through
//! two things only: when tensors arrive, and when each device and channel is free. A copy of the latter
//! before every row is a *checkpoint*. With checkpoints an evaluation works out only the rows that a change
//! reaches.

use crate::clock::Ticks;
use crate::ids::{DeviceId, OpId, TensorId};
use crate::search::critical::{Critical, FAR};
use crate::search::problem::Problem;
use crate::search::rows::Rows;
use std::ops::Range;

/// The fewest positions of a row: writing a checkpoint costs as much as a few ops.
const STRIDE: usize = 4;

/// The position of an op that does not exist.
pub(super) const NEVER: usize = usize::MAX;

/// A change of the state.
#[derive(Clone, Copy, Debug)]
pub(super) enum Change {
    /// An op that was on this device.
    Device(OpId, DeviceId),
    /// An op that was at position `from` and is at `to`.
    Position { from: u32, to: u32 },
}

/// How much longer a device has stood idle (modulo 2^64) before each row from `row` to before `end`.
#[derive(Clone, Copy, Debug)]
pub(super) struct IdleChange {
    pub row: usize,
    pub end: usize,
    pub device: usize,
    pub by: Ticks,
}

/// A placement and an order with its schedule, open to changes that are kept or taken back.
#[derive(Clone, Debug)]
pub struct State<'a> {
    pub(super) problem: &'a Problem<'a>,
    pub(super) device: Vec<DeviceId>,
    pub(super) order: Vec<OpId>,
    pub(super) position: Vec<u32>,
    pub(super) makespan: Ticks,
    /// The makespan with the changes, as last evaluated.
    pub(super) evaluated: Ticks,
    /// Readers per tensor and device, row-major, and the devices that have any, as bits.
    readers: Vec<u32>,
    pub(super) reader_mask: Vec<u64>,
    /// Per tensor and device, when the tensor is there. Entries of devices that neither make nor read the
    /// tensor are stale. After these, one entry per op: when an op that makes no tensor finishes.
    pub(super) arrival: Vec<Ticks>,
    /// Arrivals that the last evaluation overwrote.
    pub(super) overwritten: Vec<(u32, Ticks)>,
    /// Ticks of compute and bytes charged per device.
    pub(super) load: Vec<Ticks>,
    pub(super) used: Vec<u64>,
    /// When each device is free, then when each channel is free, then how long each device has stood idle, then
    /// when each host is free that launches ops.
    pub(super) now: Vec<Ticks>,
    /// Checkpoints: `now` before every row of `stride` positions, row-major. Each row has two copies. One
    /// copy is of the state last kept. The other is of the state with the changes, and valid in the rows that
    /// the last evaluation worked out (`worked`).
    pub(super) checkpoints: Vec<Ticks>,
    /// Rows whose second copy is the one of the state last kept.
    pub(super) is_second: Rows,
    pub(super) worked: Rows,
    /// How much longer devices stand idle before the rows that the last evaluation passed over.
    pub(super) idle_changes: Vec<IdleChange>,
    pub(super) stride: usize,
    /// The logarithm of `stride` to base 2.
    stride_bits: u32,
    /// Changes since the state was last kept, the rows and the last position that the changes touch, and
    /// whether they touch a transfer at time 0.
    pub(super) changes: Vec<Change>,
    pub(super) touched: Rows,
    pub(super) touched_last: usize,
    pub(super) touched_homes: bool,
    /// Rows that the evaluation under way has yet to work out.
    pub(super) rows: Rows,
    /// Rows whose bottoms have yet to be worked out. No bottom before the last of these rows is up to date.
    pub(super) stale: Rows,
    /// Bottoms: per op, the longest path from its finish to the end, in the placement and order last kept.
    pub(super) bottom: Vec<Ticks>,
    /// Per tensor and device, the longest path from the tensor's arrival to the end, and the reader through
    /// which the path leads.
    pub(super) needed: Vec<(Ticks, OpId)>,
    /// Before every row and after the last row, per device and channel: the longest path to the end from the
    /// start of the next op or transfer there.
    pub(super) next: Vec<Ticks>,
    pub(super) critical: Critical,
    /// How many steps of the critical chain, counted from its end, the changes leave as they are; 0 if the
    /// chain is unknown.
    pub(super) intact: u32,
    /// Ranks of the home tensors that are read on a device other than their home.
    pub(super) away: Rows,
    /// When each channel has sent the home tensors.
    pub(super) home_free: Vec<Ticks>,
    /// When each device has copied out the home tensors that it sends.
    pub(super) home_copied: Vec<Ticks>,
    /// Per channel, a position before which no op uses it; then the same position in the state last kept.
    pub(super) first_use: Vec<usize>,
    pub(super) used_before: Vec<usize>,
    /// How many channels have no first use yet.
    pub(super) released: usize,
    /// Ops visited by all evaluations.
    pub(super) visits: u64,
}

impl<'a> State<'a> {
    /// Bytes that a state of a problem takes, about.
    pub fn bytes(problem: &Problem<'_>) -> usize {
        const PER_ENTRY: usize =
            size_of::<u32>() + size_of::<Ticks>() + size_of::<(u32, Ticks)>() + size_of::<(Ticks, OpId)>();
        let (n, n_tensors) = (problem.n_ops(), problem.work.graph.n_tensors());
        let (width, stride) = Self::rows_of(problem);
        let entries = n_tensors.saturating_mul(problem.n_devices).saturating_add(n);
        let rows = n.div_ceil(stride).saturating_mul(3 * width * size_of::<Ticks>());
        entries.saturating_mul(PER_ENTRY).saturating_add(rows).saturating_add(n * 2 * size_of::<Change>())
    }

    /// Numbers of a checkpoint, and positions from one to the next.
    fn rows_of(problem: &Problem<'_>) -> (usize, usize) {
        let k = problem.n_devices;
        let width = 2 * k + problem.cluster.n_channels() + problem.host_free.len();
        (width, STRIDE.max(k).next_power_of_two())
    }

    /// Evaluates a placement and a topological order that [`Problem::check`] has passed.
    pub fn new(problem: &'a Problem<'a>, device: &[DeviceId], order: &[OpId]) -> Self {
        let (n, k) = (problem.n_ops(), problem.n_devices);
        let (n_tensors, n_channels) = (problem.work.graph.n_tensors(), problem.cluster.n_channels());
        let (width, stride) = Self::rows_of(problem);
        let n_rows = n.div_ceil(stride);
        let mut state = Self {
            problem,
            device: device.to_vec(),
            order: order.to_vec(),
            position: vec![0; n],
            makespan: 0,
            evaluated: 0,
            readers: vec![0; n_tensors * k],
            reader_mask: vec![0; n_tensors],
            arrival: vec![0; n_tensors * k + n],
            overwritten: Vec::with_capacity(n_tensors * k + n),
            load: vec![0; k],
            used: problem.charged(device),
            now: vec![0; width],
            checkpoints: vec![0; 2 * n_rows * width],
            is_second: Rows::new(n_rows),
            worked: Rows::new(n_rows),
            idle_changes: Vec::new(),
            stride,
            stride_bits: stride.trailing_zeros(),
            changes: Vec::with_capacity(2 * n),
            touched: Rows::new(n_rows),
            touched_last: 0,
            touched_homes: false,
            rows: Rows::new(n_rows),
            stale: Rows::new(n_rows),
            bottom: vec![0; n],
            needed: vec![(0, OpId::NONE); n_tensors * k],
            next: vec![0; (n_rows + 1) * (k + n_channels)],
            critical: Critical::new(n, n_rows),
            intact: 0,
            away: Rows::new(problem.homes.len()),
            home_free: vec![0; n_channels],
            home_copied: vec![0; k],
            first_use: vec![NEVER; n_channels],
            used_before: vec![NEVER; n_channels],
            released: 0,
            visits: 0,
        };
        let last = state.next.len() - n_channels;
        state.next[last..].copy_from_slice(&problem.channel_rest);
        state.recount();
        state
    }

    /// Replaces the placement and the order. There may be no changes that are neither kept nor undone.
    pub fn set(&mut self, device: &[DeviceId], order: &[OpId]) {
        self.device.copy_from_slice(device);
        self.order.copy_from_slice(order);
        self.recount();
    }

    /// Counts and evaluates everything anew.
    fn recount(&mut self) {
        let (problem, k) = (self.problem, self.problem.n_devices);
        let graph = &problem.work.graph;
        for (i, u) in self.order.iter().enumerate() {
            self.position[u.ix()] = i as u32;
        }
        self.readers.fill(0);
        self.reader_mask.fill(0);
        for t in graph.tensors() {
            for u in graph.consumers(t) {
                let d = self.device[u.ix()];
                self.readers[t.ix() * k + d.ix()] += 1;
                self.reader_mask[t.ix()] |= 1 << d.0;
            }
        }
        // A tensor that is on a device anyway has one reader there that never leaves, so that it is not sent
        // there.
        for (i, &when) in problem.surroundings.there.iter().enumerate() {
            if when < Ticks::MAX {
                let t = graph.n_produced() + i / k;
                self.arrival[t * k + i % k] = when;
                self.readers[t * k + i % k] += 1;
                self.reader_mask[t] &= !(1 << (i % k));
            }
        }
        for (rank, t) in problem.homes.iter().enumerate() {
            let home = self.device[graph.source(*t).ix()];
            self.arrival[t.ix() * k + home.ix()] = problem.made[t.ix() - graph.n_produced()];
            self.find_away(rank);
        }
        self.load.fill(0);
        for u in graph.ops() {
            let d = self.device[u.ix()];
            self.load[d.ix()] += problem.length(u, d);
        }
        self.used = problem.charged(&self.device);
        self.changes.clear();
        self.touched.mark_range(0, self.row_of(self.order.len() - 1));
        self.touched_last = self.order.len() - 1;
        self.touched_homes = true;
        self.first_use.fill(NEVER);
        self.used_before.fill(NEVER);
        self.evaluate(Ticks::MAX);
        self.keep();
    }

    /// Device per op.
    pub fn device(&self) -> &[DeviceId] {
        &self.device
    }

    /// Ops in order.
    pub fn order(&self) -> &[OpId] {
        &self.order
    }

    /// The makespan of what was last kept.
    pub fn makespan(&self) -> Ticks {
        self.makespan
    }

    /// Ops visited by all evaluations so far.
    pub fn visits(&self) -> u64 {
        self.visits
    }

    /// Whether a unit may be on a device and has room there.
    pub fn fits(&self, unit: usize, device: DeviceId) -> bool {
        let problem = self.problem;
        problem.allowed[unit] >> device.0 & 1 == 1
            && self.used[device.ix()].saturating_add(problem.charge[unit]) <= problem.capacity[device.ix()]
    }

    /// The device of a unit.
    pub fn device_of(&self, unit: usize) -> DeviceId {
        self.device[self.problem.units.row(unit)[0].ix()]
    }

    /// Moves a unit to another device, which the caller has found to fit.
    pub fn place(&mut self, unit: usize, device: DeviceId) {
        let problem = self.problem;
        let from = self.device_of(unit);
        self.used[from.ix()] -= problem.charge[unit];
        self.used[device.ix()] += problem.charge[unit];
        for &u in problem.units.row(unit) {
            self.changes.push(Change::Device(u, from));
            self.put(u, device);
        }
    }

    fn put(&mut self, u: OpId, to: DeviceId) {
        let (problem, k) = (self.problem, self.problem.n_devices);
        let from = std::mem::replace(&mut self.device[u.ix()], to);
        self.load[from.ix()] -= problem.length(u, from);
        self.load[to.ix()] += problem.length(u, to);
        let position = self.position[u.ix()] as usize;
        self.touch(position);
        for &t in problem.reads.row(u.ix()) {
            let left = &mut self.readers[t.ix() * k + from.ix()];
            *left -= 1;
            let gone = *left == 0;
            let here = &mut self.readers[t.ix() * k + to.ix()];
            *here += 1;
            let new = *here == 1;
            let mask = &mut self.reader_mask[t.ix()];
            *mask = *mask & !(u64::from(gone) << from.0) | u64::from(new) << to.0;
            if (gone || new) && !problem.work.graph.is_home(t) {
                let source = problem.work.graph.source(t);
                self.touched.mark(self.row_of(self.position[source.ix()] as usize));
            }
        }
        for &t in problem.work.graph.pulls(u) {
            let rank = problem.rank[t.ix() - problem.work.graph.n_produced()];
            if rank != u32::MAX {
                self.find_away(rank as usize);
            }
        }
        problem.homes_at.row(u.ix()).iter().for_each(|&rank| self.find_away(rank as usize));
        self.intact = self.intact.min(self.critical.reach[u.ix()]);
        if problem.at_home[u.ix()] {
            self.touched_homes = true;
            self.intact = self.intact.min(self.critical.home_reach);
        }
    }

    /// Finds whether the home tensor of this rank is read on a device other than its home.
    fn find_away(&mut self, rank: usize) {
        let t = self.problem.homes[rank];
        let home = self.device[self.problem.work.graph.source(t).ix()];
        self.away.set(rank, self.reader_mask[t.ix()] & !(1 << home.0) != 0);
    }

    /// Rows of all positions.
    pub(super) fn n_rows(&self) -> usize {
        self.order.len().div_ceil(self.stride)
    }

    /// Whether a device is charged more than it holds.
    pub(super) fn is_overfull(&self) -> bool {
        self.used.iter().zip(&self.problem.capacity).any(|(used, capacity)| used > capacity)
    }

    /// The row of a position.
    #[inline(always)]
    pub(super) fn row_of(&self, position: usize) -> usize {
        position >> self.stride_bits
    }

    /// Where the checkpoint of a row lies, of the state last kept.
    #[inline(always)]
    pub(super) fn checkpoint(&self, row: usize) -> Range<usize> {
        self.copy(row, self.is_second.has(row))
    }

    /// Where the checkpoint of a row lies, of the state with the changes.
    #[inline(always)]
    pub(super) fn fresh(&self, row: usize) -> Range<usize> {
        self.copy(row, !self.is_second.has(row))
    }

    #[inline(always)]
    fn copy(&self, row: usize, is_second: bool) -> Range<usize> {
        let begin = (2 * row + usize::from(is_second)) * self.now.len();
        begin..begin + self.now.len()
    }

    fn touch(&mut self, position: usize) {
        self.touched.mark(self.row_of(position));
        self.touched_last = self.touched_last.max(position);
    }

    /// The first and the last position that an op may take: after all ops that it reads from, before all that
    /// read from it.
    pub fn window(&self, u: OpId) -> (usize, usize) {
        let graph = &self.problem.work.graph;
        let at = |u: OpId| self.position[u.ix()] as usize;
        let open = &self.problem.open;
        if !open.contains(&u.ix()) {
            return (at(u), at(u));
        }
        let first = graph.inputs_with_ops(u).map(|(_, source)| at(source) + 1).fold(open.start, usize::max);
        let end = graph.successors(u).iter().map(|&v| at(v)).fold(open.end, usize::min);
        (first, end - 1)
    }

    /// Moves an op to a position within its window.
    pub fn shift(&mut self, u: OpId, to: usize) {
        let from = self.position[u.ix()];
        self.changes.push(Change::Position { from, to: to as u32 });
        let (first, last) = (to.min(from as usize), to.max(from as usize));
        self.touched.mark_range(self.row_of(first), self.row_of(last));
        self.touched_last = self.touched_last.max(last);
        self.intact = self.intact.min(self.critical.reach[u.ix()]);
        self.rotate(from as usize, to);
    }

    fn rotate(&mut self, from: usize, to: usize) {
        if from < to {
            self.order[from..=to].rotate_left(1);
        } else {
            self.order[to..=from].rotate_right(1);
        }
        for i in from.min(to)..=from.max(to) {
            self.position[self.order[i].ix()] = i as u32;
        }
    }

    /// Whether anything has changed since the state was last kept.
    pub fn is_changed(&self) -> bool {
        !self.changes.is_empty()
    }

    /// Keeps the changes. They must have been evaluated.
    pub fn keep(&mut self) {
        self.record();
        self.overwritten.clear();
        self.stale.join(&self.touched);
        for i in 0..self.changes.len() {
            if let Change::Device(u, _) = self.changes[i] {
                self.mark_producers(u);
            }
        }
        self.critical.is_known = false;
        self.forget();
    }

    /// Starts a new list of changes.
    pub(super) fn forget(&mut self) {
        // The chain knows nothing of copies and launches: it may miss what a start waited for.
        let is_known = self.critical.is_known && !self.problem.has_runtime_costs();
        self.intact = if is_known { FAR } else { 0 };
        self.changes.clear();
        self.touched.clear();
        self.touched_last = 0;
        self.touched_homes = false;
    }

    /// Undoes the changes.
    pub fn undo(&mut self) {
        self.restore();
        let mut rest = self.changes.len();
        while rest > 0 {
            rest -= 1;
            match self.changes[rest] {
                Change::Device(u, device) => {
                    let unit = self.problem.unit(u);
                    if self.problem.units.row(unit)[0] == u {
                        let bytes = self.problem.charge[unit];
                        self.used[self.device[u.ix()].ix()] -= bytes;
                        self.used[device.ix()] += bytes;
                    }
                    self.put(u, device);
                }
                Change::Position { from, to } => {
                    // A stale row was marked by an op's position at that time, which is another one now.
                    let (first, last) =
                        (self.row_of(from.min(to) as usize), self.row_of(from.max(to) as usize));
                    if self.stale.first_from(first).is_some_and(|row| row <= last) {
                        self.stale.mark_range(first, last);
                    }
                    self.rotate(to as usize, from as usize);
                }
            }
        }
        self.forget();
    }

    /// Brings back the arrivals of the state last kept.
    pub(super) fn restore(&mut self) {
        while let Some((i, old)) = self.overwritten.pop() {
            self.arrival[i as usize] = old;
        }
    }

    /// The devices that a tensor made on one device is sent to.
    pub(super) fn sent_to(&self, t: TensorId, from: DeviceId) -> impl Iterator<Item = DeviceId> + use<> {
        let mut rest = self.reader_mask[t.ix()] & !(1 << from.0);
        std::iter::from_fn(move || {
            let to = (rest != 0).then(|| DeviceId(rest.trailing_zeros()))?;
            rest &= rest - 1;
            Some(to)
        })
    }

    /// Where [`Self::arrival`] has the finish of an op: it is the arrival of the op's first tensor, if it
    /// makes one.
    #[inline(always)]
    pub(super) fn finish_at(&self, u: OpId) -> usize {
        let (graph, k) = (&self.problem.work.graph, self.problem.n_devices);
        match graph.outputs(u).next() {
            Some(t) => t.ix() * k + self.device[u.ix()].ix(),
            None => graph.n_tensors() * k + u.ix(),
        }
    }

    /// When an op finishes.
    #[inline(always)]
    pub(super) fn finish(&self, u: OpId) -> Ticks {
        self.arrival[self.finish_at(u)]
    }

    /// When a tensor is on a device where it is made or read.
    #[inline(always)]
    pub(super) fn arrival(&self, t: TensorId, device: DeviceId) -> Ticks {
        self.arrival[t.ix() * self.problem.n_devices + device.ix()]
    }
}
