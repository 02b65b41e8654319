//! Policies, and the ready ops of every device under each. A new policy is written here.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::clock::Ticks;
use crate::csr::Csr;
use crate::graph::Graph;
use crate::ids::{DeviceId, OpId};
use crate::numbering::Numbering;
use crate::schedule::rank_set::RankSet;
use crate::simulate::Simulator;
use crate::workload::Workload;

/// Which ready op a free device takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// The one with the smallest priority (FastT's order enforcement).
    Priority,
    /// The one that has been ready longest (TensorFlow's executor).
    Fifo,
    /// Any ready op, drawn with this seed (what Pesto says TensorFlow does).
    Random(u64),
    /// The next op in the sequence of priorities; the device waits until that op is ready.
    Fixed,
}

impl Policy {
    /// Every policy by its name; one that draws takes the seed.
    pub fn named(seed: u64) -> [(&'static str, Self); 4] {
        [
            ("priority", Self::Priority),
            ("fifo", Self::Fifo),
            ("random", Self::Random(seed)),
            ("fixed", Self::Fixed),
        ]
    }
}

/// Ready ops per device.
#[derive(Clone, Debug)]
pub(super) enum Ready<'a> {
    /// Smallest priority first, then smallest index. `places` has the position of each op in its device's
    /// row of `sequences`.
    Priority { sequences: Csr<OpId>, places: Vec<u32>, ready: Vec<RankSet> },
    /// The op that has been ready longest first, then the smallest index.
    Fifo { heaps: Vec<BinaryHeap<Reverse<(Ticks, u32)>>>, numbering: &'a Numbering },
    /// Any.
    Random { random: SplitMix, bags: Vec<Vec<OpId>> },
    /// The given sequences, and per sequence how many of its ops have started.
    Fixed { sequences: Csr<OpId>, started: Vec<usize> },
}

impl<'a> Ready<'a> {
    /// `sim` knows the graph, the devices, and the time of every op on each.
    pub fn new(policy: Policy, sim: &Simulator<'a>, placement: &[DeviceId], priority: &[i32]) -> Self {
        let (work, n_devices) = (sim.work, sim.cluster.n_devices());
        let sequences = || device_sequences(work, by_priority(&work.graph, priority), placement, n_devices);
        match policy {
            Policy::Priority => {
                let sequences = sequences();
                let mut places = vec![0; placement.len()];
                let rows = (0..n_devices).map(|d| sequences.row(d));
                let ready = rows.clone().map(|row| RankSet::new(row.len())).collect();
                rows.flat_map(|row| row.iter().zip(0..)).for_each(|(op, place)| places[op.ix()] = place);
                Self::Priority { sequences, places, ready }
            }
            Policy::Fifo => {
                Self::Fifo { heaps: vec![BinaryHeap::new(); n_devices], numbering: work.graph.numbering() }
            }
            Policy::Random(seed) => {
                Self::Random { random: SplitMix(seed), bags: vec![Vec::new(); n_devices] }
            }
            Policy::Fixed => Self::fixed(sequences()),
        }
    }

    /// Devices that run exactly these sequences.
    pub fn fixed(sequences: Csr<OpId>) -> Self {
        Self::Fixed { started: vec![0; sequences.n_rows()], sequences }
    }

    /// Adds an op that has all its inputs since `now`.
    #[inline(always)]
    pub fn push(&mut self, op: OpId, device: DeviceId, now: Ticks) {
        match self {
            Self::Priority { places, ready, .. } => ready[device.ix()].insert(places[op.ix()]),
            Self::Fifo { heaps, numbering } => {
                heaps[device.ix()].push(Reverse((now, numbering.index(op))));
            }
            Self::Random { bags, .. } => bags[device.ix()].push(op),
            Self::Fixed { .. } => {}
        }
    }

    /// The op that a free device takes up.
    #[inline(always)]
    pub fn pop(&mut self, device: DeviceId, is_ready: impl Fn(OpId) -> bool) -> Option<OpId> {
        match self {
            Self::Priority { sequences, ready, .. } => {
                let place = ready[device.ix()].take_first()?;
                Some(sequences.row(device.ix())[place as usize])
            }
            Self::Fifo { heaps, numbering } => {
                heaps[device.ix()].pop().map(|Reverse((_, index))| numbering.op(index))
            }
            Self::Random { random, bags } => {
                let bag = &mut bags[device.ix()];
                (!bag.is_empty()).then(|| bag.swap_remove(random.below(bag.len())))
            }
            Self::Fixed { sequences, started } => {
                let started = &mut started[device.ix()];
                let op = *sequences.row(device.ix()).get(*started)?;
                is_ready(op).then(|| {
                    *started += 1;
                    op
                })
            }
        }
    }

    /// The op that each device waits for, when a fixed sequence is stuck.
    pub fn heads(&self) -> Vec<Option<OpId>> {
        self.left().map(|left| left.first().copied()).collect()
    }

    /// Which ops a stuck fixed sequence has not started.
    pub fn waiting(&self, n_ops: usize) -> Vec<bool> {
        let mut waiting = vec![false; n_ops];
        self.left().flatten().for_each(|op| waiting[op.ix()] = true);
        waiting
    }

    /// What is left of each fixed sequence.
    fn left(&self) -> impl Iterator<Item = &[OpId]> {
        let fixed = match self {
            Self::Fixed { sequences, started } => Some((sequences, started)),
            _ => None,
        };
        fixed.into_iter().flat_map(|(sequences, started)| {
            started.iter().enumerate().map(|(d, &from)| &sequences.row(d)[from..])
        })
    }
}

/// The ops of an order that run on each device: members of collectives take none.
pub(super) fn device_sequences(
    work: &Workload,
    mut order: Vec<OpId>,
    placement: &[DeviceId],
    n_devices: usize,
) -> Csr<OpId> {
    if !work.collectives.is_empty() {
        order.retain(|&op| work.collectives.of_op(op).is_none());
    }
    Csr::from_pairs(n_devices, order.iter().map(|&op| (placement[op.ix()].ix(), op)))
}

/// Ops sorted by priority, then by the user's index: by counting where the range of priorities is small,
/// as that of an order is, else by comparing.
pub(super) fn by_priority(graph: &Graph, priority: &[i32]) -> Vec<OpId> {
    let least = i64::from(priority.iter().copied().min().unwrap_or(0));
    let most = i64::from(priority.iter().copied().max().unwrap_or(0));
    let above = |op: OpId| (i64::from(priority[op.ix()]) - least) as usize;
    let range = (most - least) as usize + 1;
    if range <= 4 * priority.len() {
        return Csr::from_pairs(range, graph.ops_by_index().map(|op| (above(op), op))).into_items();
    }
    let mut order: Vec<OpId> = graph.ops().collect();
    order.sort_unstable_by_key(|&op| (above(op), graph.index(op)));
    order
}

/// SplitMix64 (Steele, Lea, Flood 2014): small, seeded, the same everywhere.
#[derive(Clone, Debug)]
pub(super) struct SplitMix(pub u64);

impl SplitMix {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`, by multiplication: the bias is under 2^-32 for the sizes here.
    fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.next()) * n as u128) >> 64) as usize
    }
}
