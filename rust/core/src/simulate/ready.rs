//! The ready ops of every device, under each policy.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::clock::Ticks;
use crate::graph::Graph;
use crate::ids::{DeviceId, OpId};
use crate::numbering::Numbering;
use crate::simulate::Policy;

/// Ready ops per device.
#[derive(Clone, Debug)]
pub(super) enum Ready<'a> {
    /// Smallest priority first, then smallest index: both in one word, priority above.
    Priority { keys: Vec<u64>, heaps: Vec<BinaryHeap<Reverse<u64>>>, numbering: &'a Numbering },
    /// Ready longest first, then smallest index.
    Fifo { heaps: Vec<BinaryHeap<Reverse<(Ticks, u32)>>>, numbering: &'a Numbering },
    /// Any.
    Random { random: SplitMix, bags: Vec<Vec<OpId>> },
    /// The given sequence.
    Fixed(Vec<Sequence>),
}

/// A device's ops in the order in which they must run.
#[derive(Clone, Debug, Default)]
pub(super) struct Sequence {
    ops: Vec<OpId>,
    next: usize,
}

impl<'a> Ready<'a> {
    pub fn new(
        policy: Policy,
        graph: &'a Graph,
        placement: &[DeviceId],
        priority: &[i32],
        n_devices: usize,
    ) -> Self {
        let numbering = graph.numbering();
        let key = |op: OpId| key(priority[op.ix()], numbering.index(op));
        match policy {
            Policy::Priority => Self::Priority {
                keys: graph.ops().map(key).collect(),
                heaps: vec![BinaryHeap::new(); n_devices],
                numbering,
            },
            Policy::Fifo => Self::Fifo { heaps: vec![BinaryHeap::new(); n_devices], numbering },
            Policy::Random(seed) => {
                Self::Random { random: SplitMix(seed), bags: vec![Vec::new(); n_devices] }
            }
            Policy::Fixed => {
                let mut order: Vec<OpId> = graph.ops().collect();
                order.sort_unstable_by_key(|&op| key(op));
                let mut sequences = vec![Sequence::default(); n_devices];
                order.into_iter().for_each(|op| sequences[placement[op.ix()].ix()].ops.push(op));
                Self::Fixed(sequences)
            }
        }
    }

    /// An op has all its inputs.
    #[inline(always)]
    pub fn push(&mut self, op: OpId, device: DeviceId, now: Ticks) {
        match self {
            Self::Priority { keys, heaps, .. } => heaps[device.ix()].push(Reverse(keys[op.ix()])),
            Self::Fifo { heaps, numbering } => {
                heaps[device.ix()].push(Reverse((now, numbering.index(op))));
            }
            Self::Random { bags, .. } => bags[device.ix()].push(op),
            Self::Fixed(_) => {}
        }
    }

    /// The op that a free device takes up.
    #[inline(always)]
    pub fn pop(&mut self, device: DeviceId, is_ready: impl Fn(OpId) -> bool) -> Option<OpId> {
        match self {
            Self::Priority { heaps, numbering, .. } => {
                heaps[device.ix()].pop().map(|Reverse(k)| numbering.op(k as u32))
            }
            Self::Fifo { heaps, numbering } => {
                heaps[device.ix()].pop().map(|Reverse((_, index))| numbering.op(index))
            }
            Self::Random { random, bags } => {
                let bag = &mut bags[device.ix()];
                (!bag.is_empty()).then(|| bag.swap_remove(random.below(bag.len())))
            }
            Self::Fixed(sequences) => {
                let s = &mut sequences[device.ix()];
                let op = *s.ops.get(s.next)?;
                is_ready(op).then(|| {
                    s.next += 1;
                    op
                })
            }
        }
    }

    /// The op each device waits for, when a fixed sequence is stuck.
    pub fn heads(&self) -> Vec<Option<OpId>> {
        match self {
            Self::Fixed(sequences) => sequences.iter().map(|s| s.ops.get(s.next).copied()).collect(),
            _ => Vec::new(),
        }
    }

    /// Which ops a stuck fixed sequence has not started.
    pub fn waiting(&self, n_ops: usize) -> Vec<bool> {
        let mut waiting = vec![false; n_ops];
        if let Self::Fixed(sequences) = self {
            sequences.iter().flat_map(|s| &s.ops[s.next..]).for_each(|op| waiting[op.ix()] = true);
        }
        waiting
    }
}

/// Priority above, index below; the sign bit is flipped so that negative priorities come first.
#[inline(always)]
fn key(priority: i32, index: u32) -> u64 {
    u64::from(priority as u32 ^ 0x8000_0000) << 32 | u64::from(index)
}

/// SplitMix64 (Steele, Lea, Flood 2014): small, seeded, the same everywhere.
#[derive(Clone, Debug)]
pub(super) struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
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
