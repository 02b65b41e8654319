//! Hosts: threads that launch ops one after another, where launches take time.
//!
//! A host launches its ops in one sequence and waits for nothing, so an op is launched once all before it
//! are: at the sum of their launches and its own. The sequence is one that a program could have: an op comes
//! after all whose outputs it reads (of a collective: after all members). Of the ops that may come next the
//! policy takes one: that of the smallest priority, the one that could come next longest, or any. With fixed
//! sequences, ops of a device keep theirs. Devices take ops in the order in which they were launched, as
//! streams do, and since that order is topological they never block each other.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::clock::Ticks;
use crate::csr::Csr;
use crate::ids::{DeviceId, OpId};
use crate::simulate::ready::{SplitMix, by_priority, device_sequences};
use crate::simulate::{Policy, Simulator};
use crate::workload::Workload;

/// What hosts launch in a run.
#[derive(Clone, Debug)]
pub(super) struct Launching {
    /// When each op is launched.
    at: Vec<Ticks>,
    /// Ops by that time, then as they follow each other in the sequence.
    order: Vec<OpId>,
    /// How many are launched.
    done: usize,
}

impl Launching {
    /// None where launches take no time, or where fixed sequences block each other, launches or not.
    pub fn new(
        sim: &Simulator<'_>,
        placement: &[DeviceId],
        priority: &[i32],
        policy: Policy,
    ) -> Option<Self> {
        if sim.dispatch.is_empty() {
            return None;
        }
        let mut order = Sequence::new(sim, placement, priority, policy).ops()?;
        let mut busy = vec![0; sim.cluster.n_devices()];
        let mut at = vec![0; order.len()];
        for &op in &order {
            let host = &mut busy[sim.cluster.host_of(placement[op.ix()])];
            *host += sim.dispatch[op.ix()];
            at[op.ix()] = *host;
        }
        order.sort_by_key(|op| at[op.ix()]);
        Some(Self { at, order, done: 0 })
    }

    /// The ops that run on each device, as they were launched.
    pub fn sequences(&self, work: &Workload, placement: &[DeviceId], n_devices: usize) -> Csr<OpId> {
        device_sequences(work, self.order.clone(), placement, n_devices)
    }

    /// When the next op is launched.
    pub fn next(&self) -> Option<Ticks> {
        self.order.get(self.done).map(|op| self.at[op.ix()])
    }

    /// The next op, if it is launched by now.
    pub fn pop(&mut self, now: Ticks) -> Option<OpId> {
        self.next().filter(|at| *at <= now)?;
        self.done += 1;
        Some(self.order[self.done - 1])
    }

    /// When each op is launched.
    pub fn times(&self) -> &[Ticks] {
        &self.at
    }

    pub fn into_times(self) -> Vec<Ticks> {
        self.at
    }
}

/// One order of all ops, while it is made.
struct Sequence<'a> {
    work: &'a Workload,
    priority: &'a [i32],
    policy: Policy,
    random: SplitMix,
    /// Per op, how many must still come before it.
    missing: Vec<u32>,
    /// Per op, the next in the fixed sequence of its device, which must wait for it.
    follower: Vec<OpId>,
    /// Members to come, per collective.
    members: Vec<usize>,
    /// Ops that may come next: the key by which they are taken, then the user's index.
    open: BinaryHeap<Reverse<(i64, u32)>>,
    made: Vec<OpId>,
}

impl<'a> Sequence<'a> {
    fn new(sim: &Simulator<'a>, placement: &[DeviceId], priority: &'a [i32], policy: Policy) -> Self {
        let (work, n) = (sim.work, sim.work.n_ops());
        let collectives = &work.collectives;
        let mut missing: Vec<u32> = work.graph.ops().map(|op| work.graph.in_degree(op)).collect();
        let mut follower = vec![OpId::NONE; n];
        if policy == Policy::Fixed {
            let order = by_priority(&work.graph, priority);
            let sequences = device_sequences(work, order, placement, sim.cluster.n_devices());
            for pair in (0..sequences.n_rows()).flat_map(|d| sequences.row(d).windows(2)) {
                follower[pair[0].ix()] = pair[1];
                missing[pair[1].ix()] += 1;
            }
        }
        Self {
            work,
            priority,
            policy,
            random: SplitMix(if let Policy::Random(seed) = policy { seed } else { 0 }),
            missing,
            follower,
            members: (0..collectives.all().len()).map(|c| collectives.members(c).len()).collect(),
            open: BinaryHeap::new(),
            made: Vec::with_capacity(n),
        }
    }

    /// The order; none where fixed sequences block each other.
    fn ops(mut self) -> Option<Vec<OpId>> {
        for op in self.work.graph.ops_by_index() {
            if self.missing[op.ix()] == 0 {
                self.open_up(op);
            }
        }
        while let Some(Reverse((_, index))) = self.open.pop() {
            let op = self.work.graph.numbering().op(index);
            self.made.push(op);
            if !self.follower[op.ix()].is_none() {
                self.release(self.follower[op.ix()]);
            }
            self.release_readers(op);
        }
        (self.made.len() == self.work.n_ops()).then_some(self.made)
    }

    /// What follows from an op's launch: its readers may come, if it is no member or the last one.
    fn release_readers(&mut self, op: OpId) {
        let (graph, collectives) = (&self.work.graph, &self.work.collectives);
        let makers = match collectives.of_op(op) {
            None => std::slice::from_ref(&op),
            Some(c) => {
                self.members[c] -= 1;
                if self.members[c] > 0 { &[] } else { collectives.members(c) }
            }
        };
        for t in makers.iter().flat_map(|maker| graph.outputs(*maker)) {
            for &reader in graph.consumers(t) {
                self.release(reader);
            }
        }
    }

    fn release(&mut self, op: OpId) {
        self.missing[op.ix()] -= 1;
        if self.missing[op.ix()] == 0 {
            self.open_up(op);
        }
    }

    fn open_up(&mut self, op: OpId) {
        let key = match self.policy {
            Policy::Priority | Policy::Fixed => i64::from(self.priority[op.ix()]),
            Policy::Fifo => self.made.len() as i64,
            Policy::Random(_) => self.random.next() as i64,
        };
        self.open.push(Reverse((key, self.work.graph.index(op))));
    }
}
