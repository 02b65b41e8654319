//! What each start waited for, from the last op back to time 0: the critical chain of a [`State`].
//!
//! An op starts when the last of its inputs arrives, or when the op before it on its device ends. A transfer
//! starts when its tensor is made, or when the transfer before it on its channels ends. The chain follows one
//! such cause after another. Where sending or launching costs time, what waited for that counts as waiting for
//! the op before. O(D V + E + T) for D devices and T transfers, usually far less.

use crate::clock::Ticks;
use crate::ids::{DeviceId, OpId, TensorId};
use crate::search::state::State;

impl State<'_> {
    /// The ops of the chain found last, last op first.
    pub fn critical_ops(&self) -> &[OpId] {
        &self.critical.ops
    }

    /// Finds the chain, unless it is known. There may be no changes that are neither kept nor undone.
    pub fn find_critical(&mut self) {
        if self.critical.is_known {
            return;
        }
        self.critical.clear();
        let mut at = self.order.iter().rev().copied().find(|&u| self.finish(u) == self.makespan);
        while let Some(u) = at {
            let step = self.critical.ops.len() as u32;
            self.critical.ops.push(u);
            self.critical.step[u.ix()] = step;
            self.critical.note(u, step);
            self.critical.rows.mark(self.row_of(self.position[u.ix()] as usize));
            at = self.cause(u, step + 1);
        }
        self.visits += self.critical.ops.len() as u64;
        self.critical.is_known = true;
        self.forget();
    }

    /// The op that the start of `u` waited for. A change of anything between the two leaves the last `steps`
    /// steps of the chain as they are, and no more.
    fn cause(&mut self, u: OpId, steps: u32) -> Option<OpId> {
        let problem = self.problem;
        let d = self.device[u.ix()];
        let begin = self.finish(u) - problem.length(u, d);
        let position = self.position[u.ix()] as usize;
        let before = self.order[..position].iter().rev().copied().find(|v| self.device[v.ix()] == d);
        if before.is_some_and(|v| self.finish(v) == begin) {
            return before;
        }
        let is_last = |t: &TensorId| problem.ready(u, *t, d, self.arrival(*t, d)) == begin;
        let read = problem.reads.row(u.ix()).iter().copied().find(is_last).map(|t| (t, d));
        let is_open = u.ix() < problem.open.end;
        let Some(mut sent) = read.or_else(|| if is_open { None } else { self.sent_last(self.finish(u)) })
        else {
            // It waited for a channel that carries none of the order's transfers.
            self.critical.home_reach = steps;
            // Or it waited until the device had copied something out, or until it was launched.
            return before.filter(|_| problem.has_runtime_costs());
        };
        if read.is_none() {
            self.note_readers(sent, steps);
        }
        loop {
            let (t, to) = sent;
            if problem.work.graph.is_home(t) {
                self.critical.home_reach = steps;
                return None;
            }
            let source = problem.work.graph.source(t);
            let from = self.device[source.ix()];
            if from == to {
                return Some(source);
            }
            self.critical.note(source, steps);
            let start = self.arrival(t, to) - problem.transfer(t, from, to);
            if start == self.finish(source) || problem.has_runtime_costs() {
                return Some(source);
            }
            let Some(queued) = self.queued_before(t, to, start) else {
                // It waited for a transfer that starts at time 0.
                self.critical.home_reach = steps;
                return None;
            };
            sent = queued;
            self.note_readers(sent, steps);
        }
    }

    /// Notes that a change of an op that reads this tensor on this device leaves only the last `steps` steps
    /// as they are.
    fn note_readers(&mut self, sent: (TensorId, DeviceId), steps: u32) {
        for &v in self.problem.work.graph.consumers(sent.0) {
            if self.device[v.ix()] == sent.1 {
                self.critical.note(v, steps);
            }
        }
    }

    /// The last transfer whose end plus the time that its channel is needed after the order comes to `end`.
    fn sent_last(&self, end: Ticks) -> Option<(TensorId, DeviceId)> {
        let problem = self.problem;
        for &u in self.order.iter().rev() {
            let from = self.device[u.ix()];
            for t in problem.work.graph.outputs(u).rev() {
                let is_last = |to: &DeviceId| {
                    let rest = problem.cluster.route_channels(from, *to).iter();
                    rest.map(|c| problem.channel_rest[c.ix()]).any(|rest| self.arrival(t, *to) + rest == end)
                };
                if let Some(to) = self.sent_to(t, from).find(is_last) {
                    return Some((t, to));
                }
            }
        }
        None
    }

    /// The transfer that kept a channel busy until `start`, when this one could begin.
    fn queued_before(&self, t: TensorId, to: DeviceId, start: Ticks) -> Option<(TensorId, DeviceId)> {
        let (problem, graph) = (self.problem, &self.problem.work.graph);
        let source = graph.source(t);
        let route = problem.cluster.route_channels(self.device[source.ix()], to);
        for &u in self.order[..=self.position[source.ix()] as usize].iter().rev() {
            let from = self.device[u.ix()];
            if !route.iter().any(|c| problem.senders[c.ix()] >> from.0 & 1 == 1) {
                continue;
            }
            for other in graph.outputs(u).rev() {
                let mut last = None;
                for device in self.sent_to(other, from) {
                    let is_before = u != source || (other, device) < (t, to);
                    let shares = |c| problem.cluster.route_channels(from, device).contains(c);
                    if is_before && self.arrival(other, device) == start && route.iter().any(shares) {
                        last = Some((other, device));
                    }
                }
                if last.is_some() {
                    return last;
                }
            }
        }
        None
    }
}
