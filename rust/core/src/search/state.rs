//! The evaluator: the makespan of a placement and an order, again after every small change.
//!
//! The recurrence is that of [`append`](crate::schedule::append): every op at the end of its device, every
//! tensor sent the moment it is produced, each transfer at the end of its channels' queues. All that one op
//! leaves to the next is when each device and channel is free, so copies of those after every few ops
//! (*checkpoints*) let an evaluation start at the earliest position that a change touches. It stops as soon
//! as the makespan is certain to exceed a limit: an op's finish plus the time that the rest must take, or a
//! device's work plus the time it has stood idle. Past the last position that a change touches, what is left
//! is placed and ordered as before, so that the rest of the longest path counts transfers between devices
//! and the ops that follow on the same device (*bottoms*); before it, only what any placement must take.
//!
//! It also stops where a change has come to nothing: at a checkpoint past all it touches and past all
//! readers of tensors that arrive at another time, where devices and channels are free when they were.
//!
//! O(V + E + T) from the start for T transfers, usually a fraction; nothing is allocated.

use crate::clock::Ticks;
use crate::ids::{DeviceId, OpId, TensorId};
use crate::search::problem::Problem;

/// The fewest positions from one checkpoint to the next: writing one costs as much as a few ops.
const STRIDE: usize = 4;

/// Kept states after which bottoms are worked out anew: that takes as long as an evaluation.
const RENEWAL: u32 = 16;

/// Position of nothing.
const NEVER: usize = usize::MAX;

/// A change of the state.
#[derive(Clone, Copy, Debug)]
enum Change {
    /// An op that was on this device.
    Device(OpId, DeviceId),
    /// An op that was at position `from` and is at `to`.
    Position { from: u32, to: u32 },
}

/// A placement and an order with its schedule, open to changes that are kept or taken back.
#[derive(Clone, Debug)]
pub struct State<'a> {
    pub(super) problem: &'a Problem<'a>,
    pub(super) device: Vec<DeviceId>,
    pub(super) order: Vec<OpId>,
    pub(super) position: Vec<u32>,
    pub(super) makespan: Ticks,
    /// Readers per tensor and device, row-major, and the devices that have any, as bits.
    readers: Vec<u32>,
    reader_mask: Vec<u64>,
    /// When each tensor is on each device where it is read or made; stale elsewhere.
    arrival: Vec<Ticks>,
    /// Arrivals that the last evaluation overwrote.
    overwritten: Vec<(u32, Ticks)>,
    /// Ticks of compute and bytes charged per device.
    load: Vec<Ticks>,
    pub(super) used: Vec<u64>,
    /// When each device and then each channel is free, the makespan, how long each device has stood idle.
    now: Vec<Ticks>,
    /// `now` before every `stride`-th position, row-major.
    checkpoints: Vec<Ticks>,
    stride: usize,
    /// Changes since the state was last kept, the first and last position they touch, and whether they touch
    /// transfers at time 0.
    changes: Vec<Change>,
    touched: usize,
    touched_last: usize,
    touched_homes: bool,
    /// The last reader of a tensor that arrives at another time than in what was last kept.
    late_reader: usize,
    /// Lower bound on the time from each op's finish to the end in the placement and order at the time of
    /// renewal. Holds still past the position `settled`.
    bottom: Vec<Ticks>,
    /// The same from each tensor's arrival per device, and the position of the reader it holds for.
    needed: Vec<(Ticks, u32)>,
    settled: usize,
    kept: u32,
    /// The same per device, from the start of the next op there.
    next: Vec<Ticks>,
    /// When each channel has sent the home tensors.
    home_free: Vec<Ticks>,
    /// The position of the first op whose tensors use each channel.
    first_use: Vec<usize>,
    /// The same before the state that is being kept.
    used_before: Vec<usize>,
}

impl<'a> State<'a> {
    /// Evaluates a placement and a topological order that [`Problem::check`] has passed.
    pub fn new(problem: &'a Problem<'a>, device: &[DeviceId], order: &[OpId]) -> Self {
        let (n, k) = (problem.n_ops(), problem.n_devices);
        let (n_tensors, n_channels) = (problem.work.graph.n_tensors(), problem.cluster.channels().len());
        let width = 2 * k + n_channels + 1;
        let stride = STRIDE.max(k);
        let mut state = Self {
            problem,
            device: device.to_vec(),
            order: order.to_vec(),
            position: vec![0; n],
            makespan: 0,
            readers: vec![0; n_tensors * k],
            reader_mask: vec![0; n_tensors],
            arrival: vec![0; n_tensors * k],
            overwritten: Vec::with_capacity(n_tensors * k),
            load: vec![0; k],
            used: problem.charged(device),
            now: vec![0; width],
            checkpoints: vec![0; n.div_ceil(stride) * width],
            stride,
            changes: Vec::with_capacity(2 * n),
            touched: 0,
            touched_last: 0,
            touched_homes: false,
            late_reader: 0,
            bottom: vec![0; n],
            needed: vec![(0, 0); n_tensors * k],
            settled: 0,
            kept: 0,
            next: vec![0; k],
            home_free: vec![0; n_channels],
            first_use: vec![NEVER; n_channels],
            used_before: vec![NEVER; n_channels],
        };
        state.recount();
        state
    }

    /// Takes over another placement and order; nothing may be pending.
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
        self.load.fill(0);
        for u in graph.ops() {
            let d = self.device[u.ix()];
            self.load[d.ix()] += problem.length(u, d);
        }
        self.used = problem.charged(&self.device);
        self.changes.clear();
        self.touched = 0;
        self.touched_last = self.order.len() - 1;
        self.touched_homes = true;
        self.kept = RENEWAL;
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
        let mut touched = self.touched.min(position);
        self.touched_last = self.touched_last.max(position);
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
                touched = touched.min(self.position[source.ix()] as usize);
            }
        }
        self.touched = touched;
        self.touched_homes |= problem.at_home[u.ix()];
    }

    /// The positions an op may take: after all it waits for, before all that wait for it.
    pub fn window(&self, u: OpId) -> (usize, usize) {
        let graph = &self.problem.work.graph;
        let at = |u: OpId| self.position[u.ix()] as usize;
        let first = graph.inputs_with_ops(u).map(|(_, source)| at(source) + 1).max().unwrap_or(0);
        let end = graph.successors(u).iter().map(|&v| at(v)).min().unwrap_or(self.order.len());
        (first, end - 1)
    }

    /// Moves an op to a position within its window.
    pub fn shift(&mut self, u: OpId, to: usize) {
        let from = self.position[u.ix()];
        self.changes.push(Change::Position { from, to: to as u32 });
        self.touched = self.touched.min(to).min(from as usize);
        self.touched_last = self.touched_last.max(to).max(from as usize);
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

    /// The makespan with the changes, if at most `limit`.
    pub fn evaluate(&mut self, limit: Ticks) -> Option<Ticks> {
        if self.load.iter().any(|&load| load > limit) {
            return None;
        }
        let start = self.rewind();
        let makespan = self.run::<false>(start, limit);
        makespan.filter(|&m| m <= limit)
    }

    /// Keeps the changes, which have been evaluated.
    pub fn keep(&mut self) {
        self.restore();
        let start = self.rewind();
        self.overwritten.clear();
        if let Some(makespan) = self.run::<true>(start, Ticks::MAX) {
            self.makespan = makespan;
        }
        self.overwritten.clear();
        self.settled = self.settled.max(self.touched_last);
        self.kept += 1;
        if self.kept > RENEWAL {
            self.renew();
        }
        self.forget();
    }

    /// Works out the bottoms of the present placement and order.
    fn renew(&mut self) {
        let (problem, k) = (self.problem, self.problem.n_devices);
        let graph = &problem.work.graph;
        self.next.fill(0);
        for i in (0..self.order.len()).rev() {
            let u = self.order[i];
            let d = self.device[u.ix()];
            let mut bottom = self.next[d.ix()];
            for t in graph.outputs(u) {
                let needed = &mut self.needed[t.ix() * k..(t.ix() + 1) * k];
                needed.fill((0, 0));
                for &v in graph.consumers(t) {
                    let to = self.device[v.ix()];
                    let rest = problem.length(v, to) + self.bottom[v.ix()];
                    if rest > needed[to.ix()].0 {
                        needed[to.ix()] = (rest, self.position[v.ix()]);
                    }
                    let sent = if to == d { 0 } else { problem.transfer(t, d, to) };
                    bottom = bottom.max(sent + rest);
                }
            }
            self.bottom[u.ix()] = bottom;
            self.next[d.ix()] = bottom + problem.length(u, d);
        }
        self.settled = 0;
        self.kept = 0;
    }

    /// Starts a new list of changes.
    fn forget(&mut self) {
        self.changes.clear();
        self.touched = usize::MAX;
        self.touched_last = 0;
        self.touched_homes = false;
    }

    /// Takes the changes back.
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
                Change::Position { from, to } => self.rotate(to as usize, from as usize),
            }
        }
        self.forget();
    }

    /// The arrivals of what was last kept.
    fn restore(&mut self) {
        while let Some((i, old)) = self.overwritten.pop() {
            self.arrival[i as usize] = old;
        }
    }

    /// Sets `now` to the last checkpoint before everything that is touched; the position it is for.
    fn rewind(&mut self) -> usize {
        self.late_reader = 0;
        let mut start = self.touched.min(self.order.len() - 1);
        if self.touched_homes {
            start = start.min(self.send_homes());
        }
        let (row, width) = (start / self.stride, self.now.len());
        let k = self.problem.n_devices;
        let checkpoint = &self.checkpoints[row * width..(row + 1) * width];
        if self.touched_homes {
            // Where no op before it has used a channel, all it has carried are home tensors.
            let n_channels = self.home_free.len();
            self.now[..k].copy_from_slice(&checkpoint[..k]);
            self.now[k + n_channels..].copy_from_slice(&checkpoint[k + n_channels..]);
            for c in 0..n_channels {
                let is_unused = self.first_use[c] >= row * self.stride;
                self.now[k + c] = if is_unused { self.home_free[c] } else { checkpoint[k + c] };
            }
        } else {
            self.now.copy_from_slice(checkpoint);
        }
        row * self.stride
    }

    /// Sends the home tensors at time 0; the first position of an op that this may change.
    fn send_homes(&mut self) -> usize {
        let (problem, k) = (self.problem, self.problem.n_devices);
        let graph = &problem.work.graph;
        let n_channels = self.home_free.len();
        self.now[k..k + n_channels].fill(0);
        let logged = self.overwritten.len();
        for &t in &problem.homes {
            self.send::<true>(t, self.device[graph.source(t).ix()], 0, Ticks::MAX);
        }
        let mut first = self.order.len() - 1;
        for &(i, _) in &self.overwritten[logged..] {
            let (t, d) = (TensorId::new(i as usize / k), DeviceId::new(i as usize % k));
            for u in graph.consumers(t).iter().filter(|u| self.device[u.ix()] == d) {
                first = first.min(self.position[u.ix()] as usize);
            }
        }
        // A channel that is free at another time than before changes nothing before its first use.
        self.home_free.copy_from_slice(&self.now[k..k + n_channels]);
        for c in 0..n_channels {
            if self.home_free[c] != self.checkpoints[k + c] {
                first = first.min(self.first_use[c]);
            }
        }
        first
    }

    /// Evaluates from a position on; none: the makespan would exceed `limit`. With `RECORD` writes the
    /// checkpoints on the way.
    fn run<const RECORD: bool>(&mut self, start: usize, limit: Ticks) -> Option<Ticks> {
        let (problem, k) = (self.problem, self.problem.n_devices);
        let graph = &problem.work.graph;
        let (width, n_channels) = (self.now.len(), self.home_free.len());
        let settled = self.settled.max(self.touched_last);
        let mut n_unused = 0;
        if RECORD {
            for c in 0..n_channels {
                if self.first_use[c] >= start {
                    self.used_before[c] = std::mem::replace(&mut self.first_use[c], NEVER);
                    n_unused += 1;
                }
                if self.touched_homes {
                    let rows = start.min(self.first_use[c]).div_ceil(self.stride);
                    (0..rows).for_each(|row| self.checkpoints[row * width + k + c] = self.home_free[c]);
                }
            }
        }
        for i in start..self.order.len() {
            if i.is_multiple_of(self.stride) {
                let row = i / self.stride * width;
                let free = k + n_channels + 1;
                let is_as_before = i > self.late_reader.max(self.touched_last)
                    && self.now[..free] == self.checkpoints[row..row + free];
                if is_as_before {
                    if RECORD {
                        self.shift_idle(i / self.stride);
                        for c in (0..n_channels).filter(|_| n_unused > 0) {
                            if self.first_use[c] == NEVER {
                                // Used from here on as before; where its first user is gone, not sooner.
                                self.first_use[c] = self.used_before[c].max(i);
                            }
                        }
                    }
                    return Some(self.makespan);
                }
                if RECORD {
                    self.checkpoints[row..row + width].copy_from_slice(&self.now);
                }
            }
            let u = self.order[i];
            let d = self.device[u.ix()];
            let mut begin = self.now[d.ix()];
            let free = begin;
            for t in problem.reads.row(u.ix()) {
                begin = begin.max(self.arrival[t.ix() * k + d.ix()]);
            }
            let end = begin + problem.length(u, d);
            let idle = &mut self.now[k + n_channels + 1 + d.ix()];
            *idle += begin - free;
            if !RECORD {
                let rest = if i > settled { self.bottom[u.ix()] } else { problem.tail[u.ix()] };
                if end + rest > limit || *idle + self.load[d.ix()] > limit {
                    return None;
                }
            }
            self.now[d.ix()] = end;
            let last = &mut self.now[k + n_channels];
            *last = end.max(*last);
            for t in graph.outputs(u) {
                if !self.send::<RECORD>(t, d, end, limit) {
                    return None;
                }
            }
            if RECORD && n_unused > 0 {
                n_unused -= self.note_first_use(u, d, i);
            }
        }
        Some(self.now[k + n_channels])
    }

    /// Corrects how long devices have stood idle in the checkpoints from a row on, where they are free when
    /// they were, but have done more or less.
    fn shift_idle(&mut self, from: usize) {
        let (width, k) = (self.now.len(), self.problem.n_devices);
        for column in width - k..width {
            let change = self.now[column].wrapping_sub(self.checkpoints[from * width + column]);
            if change != 0 {
                for idle in self.checkpoints[from * width + column..].iter_mut().step_by(width) {
                    *idle = idle.wrapping_add(change);
                }
            }
        }
    }

    /// Notes the channels that an op is the first to use; how many.
    fn note_first_use(&mut self, u: OpId, from: DeviceId, position: usize) -> usize {
        let problem = self.problem;
        let mut noted = 0;
        for t in problem.work.graph.outputs(u) {
            for to in self.sent_to(t, from) {
                for c in problem.cluster.route_channels(from, to) {
                    if self.first_use[c.ix()] == NEVER {
                        self.first_use[c.ix()] = position;
                        noted += 1;
                    }
                }
            }
        }
        noted
    }

    /// Sends a tensor made on a device at `end` to every device where it is read; false: the makespan would
    /// exceed `limit`.
    #[inline(always)]
    fn send<const RECORD: bool>(&mut self, t: TensorId, from: DeviceId, end: Ticks, limit: Ticks) -> bool {
        let (problem, k) = (self.problem, self.problem.n_devices);
        let mut in_time = self.arrive::<RECORD>(t.ix() * k + from.ix(), end, limit);
        for to in self.sent_to(t, from) {
            let route = problem.cluster.route_channels(from, to);
            let start = route.iter().map(|c| self.now[k + c.ix()]).fold(end, Ticks::max);
            let there = start + problem.transfer(t, from, to);
            for c in route {
                self.now[k + c.ix()] = there;
            }
            in_time &= self.arrive::<RECORD>(t.ix() * k + to.ix(), there, limit);
        }
        in_time
    }

    #[inline(always)]
    fn arrive<const RECORD: bool>(&mut self, i: usize, when: Ticks, limit: Ticks) -> bool {
        let old = self.arrival[i];
        if old == when {
            return true;
        }
        self.overwritten.push((i as u32, old));
        self.arrival[i] = when;
        let k = self.problem.n_devices;
        for v in self.problem.work.graph.consumers(TensorId::new(i / k)) {
            if self.device[v.ix()].ix() == i % k {
                self.late_reader = self.late_reader.max(self.position[v.ix()] as usize);
            }
        }
        if RECORD {
            return true;
        }
        let (rest, reader) = self.needed[i];
        reader as usize <= self.settled.max(self.touched_last) || when + rest <= limit
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

    /// When a tensor is on a device where it is made or read.
    #[inline(always)]
    pub(super) fn arrival(&self, t: TensorId, device: DeviceId) -> Ticks {
        self.arrival[t.ix() * self.problem.n_devices + device.ix()]
    }
}
