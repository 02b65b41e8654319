//! The evaluator: the makespan of a placement and an order, again after every small change.
//!
//! The recurrence is that of [`append`](crate::schedule::append): every op at the end of its device, every
//! tensor sent the moment it is produced, each transfer at the end of its channels' queues. Rows that a
//! change touches are worked out, and so are the readers of tensors that arrive at another time; where
//! devices and channels are free when they were before, all rows up to the next of those are passed over.
//!
//! An evaluation stops as soon as the makespan is certain to exceed a limit:
//! * by an op's finish plus the time that the rest must take. Past the last position that a change touches,
//!   what is left is placed and ordered as before, so that the rest of the longest path counts transfers
//!   and the ops that follow on the same device ([`bottoms`](super::bottoms)); before it, only what any
//!   placement must take;
//! * by a device's work plus the time it has stood idle;
//! * where a shorter makespan is asked for, by a run through it in [`pass::HOPEFUL`]: it works out only what
//!   is touched or there sooner, and passes over the rest wherever no device or channel is free sooner than
//!   before, as if none were later. The recurrence is monotone, so this finds no more than the makespan.
//!
//! O(V + E + T) from the start for T transfers, usually a small fraction; nothing is allocated.

use crate::clock::Ticks;
use crate::ids::{DeviceId, OpId, TensorId};
use crate::search::state::{NEVER, State};

/// What a run through the marked rows is for.
mod pass {
    /// The makespan.
    pub(super) const EXACT: u8 = 0;
    /// The makespan, for good: writes checkpoints and first uses.
    pub(super) const RECORD: u8 = 1;
    /// A lower bound on the makespan, less than the present one if the change shortens it.
    pub(super) const HOPEFUL: u8 = 2;
}

impl State<'_> {
    /// The makespan with the changes, if at most `limit`.
    pub fn evaluate(&mut self, limit: Ticks) -> Option<Ticks> {
        if self.load.iter().any(|&load| load > limit) {
            return None;
        }
        if limit < self.makespan {
            self.begin::<{ pass::HOPEFUL }>();
            self.run::<{ pass::HOPEFUL }>(limit)?;
            self.restore();
        }
        self.begin::<{ pass::EXACT }>();
        self.run::<{ pass::EXACT }>(limit).filter(|&makespan| makespan <= limit)
    }

    /// Works out the changes once more, for good.
    pub(super) fn record(&mut self) {
        self.begin::<{ pass::RECORD }>();
        self.release_channels();
        if let Some(makespan) = self.run::<{ pass::RECORD }>(Ticks::MAX) {
            self.makespan = makespan;
        }
        self.used_before.copy_from_slice(&self.first_use);
    }

    /// Marks what the changes touch; sends the home tensors where they touch those.
    fn begin<const PASS: u8>(&mut self) {
        self.rows.clear();
        for &row in &self.touched {
            self.rows.mark(row as usize);
        }
        if self.touched_homes {
            self.send_homes::<PASS>();
        }
    }

    /// Sends the home tensors at time 0.
    fn send_homes<const PASS: u8>(&mut self) {
        let (problem, k) = (self.problem, self.problem.n_devices);
        let n_channels = self.home_free.len();
        self.now[k..k + n_channels].fill(0);
        for &t in &problem.homes {
            self.send::<PASS>(t, self.device[problem.work.graph.source(t).ix()], 0, Ticks::MAX);
        }
        // A channel that is free at another time than before changes nothing before its first use.
        self.home_free.copy_from_slice(&self.now[k..k + n_channels]);
        for c in 0..n_channels {
            if self.home_free[c] != self.checkpoints[k + c] && self.used_before[c] != NEVER {
                self.rows.mark(self.used_before[c] / self.stride);
            }
        }
    }

    /// Forgets the first uses of channels that may be others now.
    fn release_channels(&mut self) {
        let (k, width, n_channels) = (self.problem.n_devices, self.now.len(), self.home_free.len());
        let first = self.rows.first_from(0).unwrap_or(0);
        self.released = 0;
        for c in 0..n_channels {
            if self.first_use[c] >= first * self.stride {
                self.first_use[c] = NEVER;
                self.released += 1;
            }
            if self.touched_homes {
                let rows = first.min(self.used_before[c].div_ceil(self.stride));
                (0..rows).for_each(|row| self.checkpoints[row * width + k + c] = self.home_free[c]);
            }
        }
    }

    /// Works out all marked rows; none: the makespan would exceed `limit`.
    fn run<const PASS: u8>(&mut self, limit: Ticks) -> Option<Ticks> {
        let (k, n, width) = (self.problem.n_devices, self.order.len(), self.now.len());
        let n_rows = n.div_ceil(self.stride);
        let Some(mut row) = self.rows.first_from(0) else { return Some(self.makespan) };
        self.rewind(row, false);
        while row < n_rows {
            let is_settled = !self.rows.has(row)
                && if PASS == pass::HOPEFUL { self.is_no_sooner(row) } else { self.is_as_before(row) };
            if is_settled {
                let next = self.rows.first_from(row + 1).unwrap_or(n_rows);
                self.pass_over::<PASS>(row, next);
                if next == n_rows {
                    return Some(self.makespan).filter(|&makespan| makespan <= limit);
                }
                row = next;
            }
            if PASS == pass::RECORD {
                self.checkpoints[row * width..(row + 1) * width].copy_from_slice(&self.now);
            }
            let end = n.min((row + 1) * self.stride);
            for i in row * self.stride..end {
                if !self.visit::<PASS>(i, limit) {
                    return None;
                }
            }
            row += 1;
        }
        self.now[..k].iter().copied().max()
    }

    /// Runs the op at a position and sends what it makes; false: the makespan would exceed `limit`.
    #[inline(always)]
    fn visit<const PASS: u8>(&mut self, i: usize, limit: Ticks) -> bool {
        let (problem, k) = (self.problem, self.problem.n_devices);
        self.visits += 1;
        let u = self.order[i];
        let d = self.device[u.ix()];
        let free = self.now[d.ix()];
        let mut begin = free;
        for t in problem.reads.row(u.ix()) {
            begin = begin.max(self.arrival[t.ix() * k + d.ix()]);
        }
        let end = begin + problem.length(u, d);
        let idle = &mut self.now[k + self.home_free.len() + d.ix()];
        *idle = idle.wrapping_add(begin - free);
        if PASS != pass::RECORD {
            let rest = if i > self.settled.max(self.touched_last) {
                self.bottom[u.ix()]
            } else {
                problem.tail[u.ix()]
            };
            if end + rest > limit || idle.wrapping_add(self.load[d.ix()]) > limit {
                return false;
            }
        }
        self.now[d.ix()] = end;
        for t in problem.work.graph.outputs(u) {
            if !self.send::<PASS>(t, d, end, limit) {
                return false;
            }
        }
        if PASS == pass::RECORD && self.released > 0 {
            self.note_first_use(u, d, i);
        }
        true
    }

    /// Whether all devices and channels are free when they were before a row.
    fn is_as_before(&self, row: usize) -> bool {
        let (k, width) = (self.problem.n_devices, self.now.len());
        let before = &self.checkpoints[row * width..(row + 1) * width];
        self.now[..k] == before[..k]
            && (0..self.home_free.len()).all(|c| {
                let (now, before) = (self.now[k + c], before[k + c]);
                now == before || self.is_unused(c, row) || now.max(before) <= self.earliest_use(c)
            })
    }

    /// Whether no device and no channel is free sooner than before a row.
    fn is_no_sooner(&self, row: usize) -> bool {
        let (k, width) = (self.problem.n_devices, self.now.len());
        let before = &self.checkpoints[row * width..(row + 1) * width];
        self.now[..k].iter().zip(before).all(|(now, before)| now >= before)
            && (0..self.home_free.len()).all(|c| {
                let (now, before) = (self.now[k + c], before[k + c]);
                now >= before || self.is_unused(c, row) || before <= self.earliest_use(c)
            })
    }

    /// Whether a channel has carried nothing but home tensors before a row, now as before.
    fn is_unused(&self, c: usize, row: usize) -> bool {
        self.touched_homes
            && self.used_before[c] >= row * self.stride
            && self.now[self.problem.n_devices + c] == self.home_free[c]
    }

    /// Before that no op still to come can use a channel: that it is free sooner makes no difference.
    fn earliest_use(&self, c: usize) -> Ticks {
        let mut senders = self.problem.senders[c];
        let mut earliest = Ticks::MAX;
        while senders != 0 {
            earliest = earliest.min(self.now[senders.trailing_zeros() as usize]);
            senders &= senders - 1;
        }
        earliest
    }

    /// Sets `now` to a row's checkpoint, with channels that have carried nothing but home tensors as they
    /// are. With `is_under_way` how long devices have stood idle goes on from what it is.
    fn rewind(&mut self, row: usize, is_under_way: bool) {
        let (k, width, n_channels) = (self.problem.n_devices, self.now.len(), self.home_free.len());
        let checkpoint = &self.checkpoints[row * width..(row + 1) * width];
        self.now[..k].copy_from_slice(&checkpoint[..k]);
        for c in 0..n_channels {
            let is_unused = self.touched_homes
                && self.used_before[c] >= row * self.stride
                && (!is_under_way || self.now[k + c] == self.home_free[c]);
            self.now[k + c] = if is_unused { self.home_free[c] } else { checkpoint[k + c] };
        }
        if !is_under_way {
            self.now[k + n_channels..].copy_from_slice(&checkpoint[k + n_channels..]);
        }
    }

    /// Goes on from a row where all is as before to the next that is not.
    fn pass_over<const PASS: u8>(&mut self, row: usize, next: usize) {
        let (k, width, n_channels) = (self.problem.n_devices, self.now.len(), self.home_free.len());
        let n_rows = self.order.len().div_ceil(self.stride);
        if PASS == pass::RECORD {
            self.keep_first_uses(row, next);
        }
        for d in 0..k {
            // Devices have stood idle for another time where they have done more or less.
            let column = k + n_channels + d;
            let before = &self.checkpoints[row * width..(row + 1) * width];
            let later = self.now[d].wrapping_sub(before[d]);
            let change = self.now[column].wrapping_sub(before[column]).wrapping_sub(later);
            if next < n_rows {
                self.now[column] = self.checkpoints[next * width + column].wrapping_add(change);
            }
            if PASS == pass::RECORD && change != 0 {
                for idle in self.checkpoints[row * width + column..next * width].iter_mut().step_by(width) {
                    *idle = idle.wrapping_add(change);
                }
            }
        }
        if next < n_rows {
            self.rewind(next, true);
        }
    }

    /// Notes in the checkpoints of the rows passed over what their channels are free, if only home tensors
    /// have used them, and which are used there.
    fn keep_first_uses(&mut self, row: usize, next: usize) {
        let (k, width) = (self.problem.n_devices, self.now.len());
        for c in 0..self.home_free.len() {
            if self.is_unused(c, row) && self.home_free[c] != self.checkpoints[row * width + k + c] {
                let end = next.min(self.used_before[c].div_ceil(self.stride));
                (row..end).for_each(|row| self.checkpoints[row * width + k + c] = self.home_free[c]);
            }
            // Used from here on as before; where its first user is gone, not sooner.
            let use_after = self.used_before[c].max(row * self.stride);
            if self.first_use[c] == NEVER && use_after < next.saturating_mul(self.stride) {
                self.first_use[c] = use_after;
                self.released -= 1;
            }
        }
    }

    /// Notes the channels that an op is the first to use.
    fn note_first_use(&mut self, u: OpId, from: DeviceId, position: usize) {
        let problem = self.problem;
        for t in problem.work.graph.outputs(u) {
            for to in self.sent_to(t, from) {
                for c in problem.cluster.route_channels(from, to) {
                    if self.first_use[c.ix()] == NEVER {
                        self.first_use[c.ix()] = position;
                        self.released -= 1;
                    }
                }
            }
        }
    }

    /// Sends a tensor made on a device at `end` to every device where it is read; false: the makespan would
    /// exceed `limit`.
    #[inline(always)]
    fn send<const PASS: u8>(&mut self, t: TensorId, from: DeviceId, end: Ticks, limit: Ticks) -> bool {
        let (problem, k) = (self.problem, self.problem.n_devices);
        let mut in_time = self.arrive::<PASS>(t.ix() * k + from.ix(), end, limit);
        for to in self.sent_to(t, from) {
            let route = problem.cluster.route_channels(from, to);
            let start = route.iter().map(|c| self.now[k + c.ix()]).fold(end, Ticks::max);
            let there = start + problem.transfer(t, from, to);
            for c in route {
                self.now[k + c.ix()] = there;
            }
            in_time &= self.arrive::<PASS>(t.ix() * k + to.ix(), there, limit);
        }
        in_time
    }

    /// Notes when a tensor is on a device, and marks who reads it there at another time than before.
    #[inline(always)]
    fn arrive<const PASS: u8>(&mut self, i: usize, when: Ticks, limit: Ticks) -> bool {
        let old = self.arrival[i];
        if old == when {
            return true;
        }
        self.overwritten.push((i as u32, old));
        self.arrival[i] = when;
        let k = self.problem.n_devices;
        if PASS != pass::HOPEFUL || when < old {
            for v in self.problem.work.graph.consumers(TensorId::new(i / k)) {
                if self.device[v.ix()].ix() == i % k {
                    self.rows.mark(self.position[v.ix()] as usize / self.stride);
                }
            }
        }
        if PASS == pass::RECORD {
            return true;
        }
        let (rest, reader) = self.needed[i];
        reader.is_none()
            || self.position[reader.ix()] as usize <= self.settled.max(self.touched_last)
            || when + rest <= limit
    }
}
