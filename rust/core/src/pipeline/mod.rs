//! Stages of a pipeline.
//!
//! * [`max_load`]: stages with the smallest largest load, Tarnawski et al. (NeurIPS 2020).
//! * [`piper`]: stages that are replicated and tensor-parallel, Tarnawski et al. (NeurIPS 2021).
//! * [`chain`]: stages with the shortest step of several micro-batches, on devices of several kinds.
//!
//! A pipeline with enough samples in flight finishes one per period, and the period is the load of
//! its busiest device. A device has one stage. Stages are contiguous: nothing leads from a stage to
//! an earlier one.

pub mod chain;
pub mod downsets;
pub mod line;
pub mod max_load;
pub mod moves;
pub mod piper;
pub mod walk;

use crate::csr::Csr;
use crate::error::Error;

/// Groups of nodes that share a device, the order between them, and what they send.
pub struct Groups {
    /// Time of each group on an accelerator; nothing where it may not run there.
    pub accelerator: Vec<Option<f64>>,
    /// Time of each group on a CPU core.
    pub cpu: Vec<f64>,
    /// Bytes that each group holds on an accelerator.
    pub bytes: Vec<u64>,
    /// The groups that must not be in a later stage than each group.
    pub before: Csr<u32>,
    /// The groups that each tensor joins, each once: where it is made and where it is read.
    pub pins: Csr<u32>,
    /// Time of each tensor between an accelerator and the host.
    pub cost: Vec<f64>,
    /// The tensors that join each group to others.
    pub tensors: Csr<u32>,
}

impl Groups {
    /// From edges `(group, later group)` and `(tensor, group that makes or reads it)`.
    ///
    /// # Errors
    /// More bytes in all than 2^62; times that add up to infinity.
    pub fn new(
        accelerator: Vec<Option<f64>>,
        cpu: Vec<f64>,
        bytes: Vec<u64>,
        edges: &[(u32, u32)],
        pins: &[(u32, u32)],
        cost: Vec<f64>,
    ) -> Result<Self, Error> {
        let total = bytes.iter().fold(0u64, |sum, &b| sum.saturating_add(b));
        if total > 1 << 62 {
            let reason = format!("{total} bytes in all: at most 2^62 are supported");
            return Err(Error::BadArgument { argument: "bytes", reason });
        }
        let mut pins = pins.to_vec();
        pins.sort_unstable();
        pins.dedup();
        let n = cpu.len();
        let work = accelerator.iter().flatten().chain(&cpu).sum::<f64>();
        let moved = pins.iter().map(|&(t, _)| cost[t as usize]).sum::<f64>();
        if !(work + moved).is_finite() {
            return Err(Error::HorizonTooLong { seconds: work + moved });
        }
        Ok(Self {
            before: Csr::from_pairs(n, edges.iter().map(|&(a, b)| (b as usize, a))),
            tensors: Csr::from_pairs(n, pins.iter().map(|&(t, g)| (g as usize, t))),
            pins: Csr::from_pairs(cost.len(), pins.iter().map(|&(t, g)| (t as usize, g))),
            accelerator,
            cpu,
            bytes,
            cost,
        })
    }

    /// How many groups there are.
    pub fn len(&self) -> usize {
        self.cpu.len()
    }

    /// Whether there are no groups.
    pub fn is_empty(&self) -> bool {
        self.cpu.is_empty()
    }
}

/// How many devices there are, and the memory of an accelerator.
#[derive(Clone, Copy, Debug)]
pub struct Devices {
    /// Accelerators: each takes the transfers of its stage besides the work.
    pub accelerators: usize,
    /// Bytes of each accelerator.
    pub memory: u64,
    /// CPU cores, which pay nothing for transfers and have no limit of memory.
    pub cpus: usize,
}

/// What a set of groups adds up to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sums {
    /// Time on an accelerator, of the groups that may run there.
    pub accelerator: f64,
    /// Time on a CPU core.
    pub cpu: f64,
    /// Bytes on an accelerator.
    pub bytes: u64,
    /// Groups that may not run on an accelerator.
    pub barred: u32,
    /// Time of the tensors that join the set to the rest.
    pub crossing: f64,
}

impl Sums {
    /// These and one more group; `crossing` is left as it is.
    fn with(mut self, groups: &Groups, group: u32) -> Self {
        let g = group as usize;
        match groups.accelerator[g] {
            Some(time) => self.accelerator += time,
            None => self.barred += 1,
        }
        self.cpu += groups.cpu[g];
        self.bytes += groups.bytes[g];
        self
    }
}

/// A stage: its groups, and whether a CPU core runs it.
#[derive(Clone, Debug, PartialEq)]
pub struct Stage {
    /// The groups, ascending.
    pub groups: Vec<u32>,
    /// Whether it runs on a CPU core.
    pub on_cpu: bool,
}

/// The load of each stage.
pub fn loads(groups: &Groups, stages: &[Stage]) -> Vec<f64> {
    let mut sums = vec![Sums::default(); stages.len()];
    let mut of = vec![0u32; groups.len()];
    for (s, stage) in stages.iter().enumerate() {
        for &g in &stage.groups {
            sums[s] = sums[s].with(groups, g);
            of[g as usize] = s as u32;
        }
    }
    let mut met: Vec<u32> = Vec::new();
    for (t, &cost) in groups.cost.iter().enumerate() {
        met.clear();
        met.extend(groups.pins.row(t).iter().map(|&g| of[g as usize]));
        met.sort_unstable();
        met.dedup();
        if met.len() > 1 {
            met.iter().for_each(|&s| sums[s as usize].crossing += cost);
        }
    }
    let load = |(sum, stage): (&Sums, &Stage)| match stage.on_cpu {
        true => sum.cpu,
        false => sum.accelerator + sum.crossing,
    };
    sums.iter().zip(stages).map(load).collect()
}

/// Whether every group stands in an order once, after all that must come before it.
fn is_topological(groups: &Groups, order: &[u32]) -> bool {
    let mut is_done = vec![false; groups.len()];
    let in_order = order.iter().all(|&g| {
        let g = g as usize;
        let ready = g < groups.len() && !is_done[g];
        let ready = ready && groups.before.row(g).iter().all(|&b| is_done[b as usize]);
        ready && !std::mem::replace(&mut is_done[g], true)
    });
    in_order && order.len() == groups.len()
}

/// That there are groups, and topological orders of them.
fn check_orders(groups: &Groups, orders: &[&[u32]]) -> Result<(), Error> {
    if groups.is_empty() {
        return Err(Error::EmptyGraph);
    }
    if orders.is_empty() || !orders.iter().all(|order| is_topological(groups, order)) {
        let reason = "wants topological orders, each with every group once; one at least".to_owned();
        return Err(Error::BadArgument { argument: "orders", reason });
    }
    Ok(())
}
