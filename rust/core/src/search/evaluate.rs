//! The evaluator: the makespan of a placement and an order, again after every small change.
//!
//! The recurrence is that of [`append`](crate::schedule::append): every op at the end of its device, every
//! tensor sent the moment it is produced, each transfer at the end of its channels' queues. Where sending
//! costs its sender time, a device copies out what it sends before its next op; where launches take time, an
//! op starts once its host has launched all ops up to it in the order. Two kinds of rows
//! are marked to be worked out: rows that a change touches, and rows with a reader of a tensor that arrives
//! at another time than before. Where all devices and channels are free at the same time as before the
//! change, the evaluation passes over to the next marked row.
//!
//! An evaluation stops as soon as the makespan is certain to exceed a limit:
//! * by an op's finish plus the time from there to the end. Past the last position that a change touches,
//!   that time is the op's bottom ([`bottoms`](super::bottoms)), because all later ops are placed and ordered
//!   as before. Up to that position it is the time that any placement needs;
//! * by a device's whole work plus the time that the device has stood idle;
//! * where the makespan must get shorter, by a first run that is [`HOPEFUL`]. This run ignores the delays
//!   that a change brings: it works out only the rows that the change touches and the readers of tensors that
//!   arrive sooner, and it passes over the other rows wherever no device or channel is free sooner than
//!   before. The recurrence is monotone, so the run finds a lower bound on the makespan.
//!
//! O(V + E + T) for T transfers at worst, usually a small fraction of that. Nothing is allocated.

use crate::clock::Ticks;
use crate::graph::Graph;
use crate::ids::{DeviceId, OpId, TensorId};
use crate::search::critical::FAR;
use crate::search::problem::Problem;
use crate::search::state::{Change, IdleChange, NEVER, State};

/// Kinds of runs through the marked rows: one finds the makespan; the other finds a lower bound on it, less
/// than the makespan last kept if the change shortens it.
const EXACT: bool = false;
const HOPEFUL: bool = true;

impl State<'_> {
    /// The makespan with the changes, if at most `limit`.
    pub fn evaluate(&mut self, limit: Ticks) -> Option<Ticks> {
        if self.load.iter().any(|&load| load > limit) {
            return None;
        }
        let must_shorten = limit < self.makespan;
        if must_shorten && self.intact == FAR {
            return None;
        }
        let graph = &self.problem.work.graph;
        self.renew_bottoms(self.row_of(self.touched_last) + 1);
        if must_shorten && self.intact > 0 {
            self.begin::<HOPEFUL>();
            self.run::<HOPEFUL>(self.problem, graph, limit)?;
            self.restore();
        }
        self.begin::<EXACT>();
        self.worked.clear();
        self.idle_changes.clear();
        self.evaluated =
            self.run::<EXACT>(self.problem, graph, limit).filter(|&makespan| makespan <= limit)?;
        Some(self.evaluated)
    }

    /// Makes the last evaluation the state last kept.
    pub(super) fn record(&mut self) {
        let (k, n_channels) = (self.problem.n_devices, self.home_free.len());
        self.makespan = self.evaluated;
        if !self.problem.homes.is_empty() {
            self.find_first_uses();
        }
        for change in &self.idle_changes {
            for row in change.row..change.end {
                let column = self.checkpoint(row).start + k + n_channels + change.device;
                let idle = &mut self.checkpoints[column];
                *idle = idle.wrapping_add(change.by);
            }
        }
        self.is_second.toggle(&self.worked);
    }

    /// Marks the rows that the changes touch. Sends the home tensors if the changes touch one.
    fn begin<const IS_HOPEFUL: bool>(&mut self) {
        self.rows.copy_from(&self.touched);
        if self.touched_homes {
            self.send_homes::<IS_HOPEFUL>();
        }
    }

    /// Sends the home tensors as soon as they can be.
    fn send_homes<const IS_HOPEFUL: bool>(&mut self) {
        let (problem, k) = (self.problem, self.problem.n_devices);
        let n_channels = self.home_free.len();
        self.now[..k].fill(0);
        self.now[k..k + n_channels].copy_from_slice(&problem.channel_free);
        let mut next = self.away.first_from(0);
        while let Some(rank) = next {
            self.send_home::<IS_HOPEFUL>(rank);
            next = self.away.first_from(rank + 1);
        }
        // A home tensor that is read at its home alone moves with its home.
        for i in 0..self.changes.len() {
            if let Change::Device(u, _) = self.changes[i] {
                for &rank in problem.homes_at.row(u.ix()) {
                    if !self.away.has(rank as usize) {
                        self.send_home::<IS_HOPEFUL>(rank as usize);
                    }
                }
            }
        }
        if problem.is_whole() {
            self.home_copied.copy_from_slice(&self.now[..k]);
            if self.home_copied != self.checkpoints[self.checkpoint(0)][..k] {
                self.rows.mark(0);
            }
        }
        // A channel that is free at another time than before changes nothing before its first use.
        self.home_free.copy_from_slice(&self.now[k..k + n_channels]);
        for c in 0..n_channels {
            if self.home_free[c] != self.checkpoints[self.checkpoint(0).start + k + c]
                && self.used_before[c] != NEVER
            {
                self.rows.mark(self.row_of(self.used_before[c]));
            }
        }
    }

    fn send_home<const IS_HOPEFUL: bool>(&mut self, rank: usize) {
        let (problem, graph) = (self.problem, &self.problem.work.graph);
        let t = problem.homes[rank];
        let made = problem.made[t.ix() - graph.n_produced()];
        let home = self.device[graph.source(t).ix()];
        self.send::<IS_HOPEFUL>(problem, graph, t, home, made, Ticks::MAX);
    }

    /// The makespan, from working out all marked rows; none if it would exceed `limit`. The problem and its
    /// graph are arguments so that the compiler knows that no write changes them.
    #[inline(never)]
    fn run<const IS_HOPEFUL: bool>(
        &mut self,
        problem: &Problem<'_>,
        graph: &Graph,
        limit: Ticks,
    ) -> Option<Ticks> {
        let (k, n) = (self.problem.n_devices, self.order.len());
        let n_rows = self.n_rows();
        let Some(mut row) = self.rows.first_from(0) else { return Some(self.makespan) };
        self.rewind(row, false);
        while row < n_rows {
            let is_settled = !self.rows.has(row)
                && if IS_HOPEFUL { self.is_no_sooner(row) } else { self.is_as_before(row) };
            if is_settled {
                let next = self.rows.first_from(row + 1).unwrap_or(n_rows);
                if IS_HOPEFUL && self.has_critical(row, next) {
                    return None;
                }
                self.pass_over(row, next);
                if next == n_rows {
                    return Some(self.makespan).filter(|&makespan| makespan <= limit);
                }
                row = next;
            }
            if !IS_HOPEFUL {
                let fresh = self.fresh(row);
                self.checkpoints[fresh].copy_from_slice(&self.now);
                self.worked.mark(row);
            }
            let end = n.min((row + 1) * self.stride);
            for i in row * self.stride..end {
                if !self.visit::<IS_HOPEFUL>(problem, graph, i, limit) {
                    return None;
                }
            }
            row += 1;
        }
        self.now[..k].iter().copied().max()
    }

    /// Runs the op at position `i` and sends the tensors that it makes. False if the makespan would exceed
    /// `limit`.
    #[inline(always)]
    fn visit<const IS_HOPEFUL: bool>(
        &mut self,
        problem: &Problem<'_>,
        graph: &Graph,
        i: usize,
        limit: Ticks,
    ) -> bool {
        let k = problem.n_devices;
        self.visits += 1;
        let u = self.order[i];
        let d = self.device[u.ix()];
        let free = self.now[d.ix()];
        let mut begin = free;
        let is_open = u.ix() < problem.open.end;
        for t in problem.reads.row(u.ix()) {
            let there = self.arrival[t.ix() * k + d.ix()];
            begin = begin.max(if is_open { there } else { problem.ready(u, *t, d, there) });
        }
        if !is_open {
            begin = begin.max(self.channels_in_time(u, d));
        }
        if !problem.launch.is_empty() && problem.open.contains(&u.ix()) {
            let host = self.hosts() + problem.cluster.host_of(d);
            self.now[host] += problem.launch[u.ix()];
            begin = begin.max(self.now[host]);
        }
        let end = begin + problem.length(u, d);
        let idle = &mut self.now[k + self.home_free.len() + d.ix()];
        *idle = idle.wrapping_add(begin - free);
        let rest = if i > self.touched_last | (self.stride - 1) {
            self.bottom[u.ix()]
        } else {
            problem.tail[u.ix()]
        };
        if end + rest > limit || idle.wrapping_add(self.load[d.ix()]) > limit {
            return false;
        }
        if IS_HOPEFUL && self.critical.step[u.ix()] < self.intact && end >= self.finish(u) {
            return false;
        }
        self.now[d.ix()] = end;
        let made = graph.outputs(u);
        if made.len() == 0 {
            self.note(self.finish_at(u), end);
        }
        for t in made {
            if !self.send::<IS_HOPEFUL>(problem, graph, t, d, end, limit) {
                return false;
            }
        }
        true
    }

    /// When an op that stands for what follows on a device may start, as far as the channels decide that the
    /// device sends over.
    fn channels_in_time(&self, u: OpId, d: DeviceId) -> Ticks {
        let (problem, k) = (self.problem, self.problem.n_devices);
        let sends = |c: &usize| problem.senders[*c] >> d.0 & 1 == 1;
        let end = |c: usize| self.now[k + c] + problem.channel_rest[c];
        let last = (0..self.home_free.len()).filter(sends).map(end).max().unwrap_or(0);
        last.saturating_sub(problem.length(u, d))
    }

    /// Whether the rows from `row` to before `end` hold an op of an intact step of the critical chain.
    fn has_critical(&self, row: usize, end: usize) -> bool {
        // Ops of intact steps stand later in the order than the op of the first step that a change touches.
        let Some(&touched) = self.critical.ops.get(self.intact as usize) else { return false };
        let first = row.max(self.row_of(self.position[touched.ix()] as usize) + 1);
        self.critical.rows.first_from(first).is_some_and(|row| row < end)
    }

    /// The first column of [`Self::now`] that tells of a host.
    #[inline(always)]
    fn hosts(&self) -> usize {
        2 * self.problem.n_devices + self.home_free.len()
    }

    /// Whether all devices, channels and hosts are free at the same times as at the row's checkpoint.
    fn is_as_before(&self, row: usize) -> bool {
        let (k, hosts) = (self.problem.n_devices, self.hosts());
        let before = &self.checkpoints[self.checkpoint(row)];
        self.now[..k].iter().zip(before).all(|(now, before)| now == before)
            && self.now[hosts..] == before[hosts..]
            && self.channels(before).all(|(c, now, before)| {
                now == before || self.is_unused(c, row) || now.max(before) <= self.earliest_use(c)
            })
    }

    /// Whether no device and no channel is free sooner than at the row's checkpoint.
    fn is_no_sooner(&self, row: usize) -> bool {
        let k = self.problem.n_devices;
        let before = &self.checkpoints[self.checkpoint(row)];
        self.now[..k].iter().zip(before).all(|(now, before)| now >= before)
            && self.channels(before).all(|(c, now, before)| {
                now >= before || self.is_unused(c, row) || before <= self.earliest_use(c)
            })
    }

    /// The channels, each with when it is free now and when it was free at a checkpoint.
    #[inline(always)]
    fn channels(&self, before: &[Ticks]) -> impl Iterator<Item = (usize, Ticks, Ticks)> {
        let all = self.problem.n_devices..self.problem.n_devices + self.home_free.len();
        let pairs = self.now[all.clone()].iter().zip(&before[all]).enumerate();
        pairs.map(|(c, (&now, &before))| (c, now, before))
    }

    /// Whether a channel has carried nothing but home tensors before a row, both now and in the state last
    /// kept.
    fn is_unused(&self, c: usize, row: usize) -> bool {
        self.touched_homes
            && self.used_before[c] >= row * self.stride
            && self.now[self.problem.n_devices + c] == self.home_free[c]
    }

    /// The earliest time at which an op still to come can use a channel. Whether the channel is free before
    /// that makes no difference.
    fn earliest_use(&self, c: usize) -> Ticks {
        let mut senders = self.problem.senders[c];
        let mut earliest = Ticks::MAX;
        while senders != 0 {
            earliest = earliest.min(self.now[senders.trailing_zeros() as usize]);
            senders &= senders - 1;
        }
        earliest
    }

    /// Sets `now` to a row's checkpoint. Channels that have carried nothing but home tensors stay as they are
    /// now. With `is_under_way` the idle times of devices stay as well.
    fn rewind(&mut self, row: usize, is_under_way: bool) {
        let (k, n_channels) = (self.problem.n_devices, self.home_free.len());
        let range = self.checkpoint(row);
        let checkpoint = &self.checkpoints[range];
        self.now[..k].copy_from_slice(&checkpoint[..k]);
        for c in 0..n_channels {
            let is_unused = self.touched_homes
                && self.used_before[c] >= row * self.stride
                && (!is_under_way || self.now[k + c] == self.home_free[c]);
            self.now[k + c] = if is_unused { self.home_free[c] } else { checkpoint[k + c] };
        }
        let rest = if is_under_way { 2 * k + n_channels } else { k + n_channels };
        self.now[rest..].copy_from_slice(&checkpoint[rest..]);
        if row == 0 {
            let hosts = self.hosts();
            self.now[hosts..].copy_from_slice(&self.problem.host_free);
            if self.touched_homes && self.problem.is_whole() {
                self.now[..k].copy_from_slice(&self.home_copied);
            }
        }
    }

    /// Goes from a row where all is as before on to the row `next`.
    fn pass_over(&mut self, row: usize, next: usize) {
        let (k, n_channels) = (self.problem.n_devices, self.home_free.len());
        let n_rows = self.n_rows();
        for d in 0..k {
            // A device that has done more or less work by then has stood idle for less or more time.
            let column = k + n_channels + d;
            let before = &self.checkpoints[self.checkpoint(row)];
            let later = self.now[d].wrapping_sub(before[d]);
            let change = self.now[column].wrapping_sub(before[column]).wrapping_sub(later);
            if next < n_rows {
                self.now[column] =
                    self.checkpoints[self.checkpoint(next).start + column].wrapping_add(change);
            }
            if change != 0 {
                self.idle_changes.push(IdleChange { row, end: next, device: d, by: change });
            }
        }
        if next < n_rows {
            self.rewind(next, true);
        }
    }

    /// Finds the position from which on each channel is used. In the checkpoints of rows that were passed
    /// over, it notes when channels are free that have carried nothing but home tensors.
    fn find_first_uses(&mut self) {
        let (k, n) = (self.problem.n_devices, self.order.len());
        let Some(first) = self.worked.first_from(0) else { return };
        self.released = 0;
        for c in 0..self.home_free.len() {
            if self.first_use[c] >= first * self.stride {
                self.first_use[c] = NEVER;
                self.released += 1;
            }
        }
        for row in 0..self.n_rows() {
            let (begin, end) = (row * self.stride, n.min((row + 1) * self.stride));
            if self.worked.has(row) {
                for i in begin..end {
                    self.note_first_use(i);
                }
                continue;
            }
            for c in 0..self.home_free.len() {
                if self.touched_homes && self.used_before[c] > begin && self.first_use[c] >= begin {
                    let channel = self.checkpoint(row).start + k + c;
                    self.checkpoints[channel] = self.home_free[c];
                }
                // From this row on the channel is used as before. Its first user before may be gone, so the
                // row's begin is a bound.
                if self.first_use[c] == NEVER && self.used_before[c] < end && row >= first {
                    self.first_use[c] = self.used_before[c].max(begin);
                    self.released -= 1;
                }
            }
        }
        self.used_before.copy_from_slice(&self.first_use);
    }

    /// Notes the channels that the op at a position is the first to use.
    fn note_first_use(&mut self, position: usize) {
        if self.released == 0 {
            return;
        }
        let problem = self.problem;
        let u = self.order[position];
        let from = self.device[u.ix()];
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

    /// Sends a tensor that was made at `end` to every device where it is read. False if the makespan would
    /// exceed `limit`.
    #[inline(always)]
    fn send<const IS_HOPEFUL: bool>(
        &mut self,
        problem: &Problem<'_>,
        graph: &Graph,
        t: TensorId,
        from: DeviceId,
        end: Ticks,
        limit: Ticks,
    ) -> bool {
        let mut news = 0;
        let mut in_time = self.arrive::<IS_HOPEFUL>(problem, t, from, end, limit, &mut news);
        for to in self.sent_to(t, from) {
            let mut queued = end;
            if !problem.copy.is_empty() {
                let sender = &mut self.now[from.ix()];
                queued = end.max(*sender) + problem.copy(t, from);
                *sender = queued;
            }
            let there = problem.pass(&mut self.now[problem.n_devices..], t, from, to, queued);
            in_time &= self.arrive::<IS_HOPEFUL>(problem, t, to, there, limit, &mut news);
        }
        if news != 0 {
            for v in graph.consumers(t) {
                let row = self.row_of(self.position[v.ix()] as usize);
                self.rows.mark_if(news >> self.device[v.ix()].0 & 1 == 1, row);
            }
        }
        in_time
    }

    /// Notes when a tensor is on a device. If that is another time than before, the device's bit in `news` is
    /// set: the tensor's readers there have to be worked out. False if the makespan would exceed `limit`.
    #[inline(always)]
    fn arrive<const IS_HOPEFUL: bool>(
        &mut self,
        problem: &Problem<'_>,
        t: TensorId,
        to: DeviceId,
        when: Ticks,
        limit: Ticks,
        news: &mut u64,
    ) -> bool {
        let i = t.ix() * problem.n_devices + to.ix();
        let Some(old) = self.note(i, when) else { return true };
        *news |= u64::from(!IS_HOPEFUL || when < old) << to.0;
        let (rest, reader) = self.needed[i];
        when + rest <= limit || reader.is_none() || self.is_in_time(problem, t, to, when, limit, reader)
    }

    /// Whether the makespan stays within `limit` as far as the way through `reader` tells. The reader may
    /// have moved to another device since the bottoms were worked out; then it tells nothing.
    fn is_in_time(
        &self,
        problem: &Problem<'_>,
        t: TensorId,
        to: DeviceId,
        when: Ticks,
        limit: Ticks,
        reader: OpId,
    ) -> bool {
        self.position[reader.ix()] as usize <= self.touched_last | (self.stride - 1)
            || self.device[reader.ix()] != to
            || when + problem.rest(reader, t, to, self.bottom[reader.ix()]) <= limit
    }

    /// Overwrites an arrival. Returns the arrival before if it was another time.
    #[inline(always)]
    fn note(&mut self, i: usize, when: Ticks) -> Option<Ticks> {
        let old = std::mem::replace(&mut self.arrival[i], when);
        if old == when {
            return None;
        }
        self.overwritten.push((i as u32, old));
        Some(old)
    }
}
