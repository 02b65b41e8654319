//! Lower bounds on the makespan of any placement (design section 7).
//!
//! * *Critical path*: the longest path with each op on the fastest type it may use and no transfers. It is
//!   valid, since an op starts after all its predecessors and runs no faster on any other type.
//! * *Work over capacity*, a linear program over device types: [`speeds`].
//! * *Forced transfers*, [`forced`]: the critical path where the neighbours of an op either run on its
//!   device one after another, or send their tensors.
//! * *Heads and tails*, [`windows`]: work over capacity within a window of time, which begins after heads
//!   and ends before tails that [`forced`] gives.
//! * *Launches over hosts*: an op starts after its launch, and a host launches one op after another. Of
//!   several hosts one has at least as much to launch as all have on average.
//!
//! Each bound holds for every placement that obeys allowed types and colocation, every order and every link
//! model, unlimited channels included. Each module has its proof. No bound knows of memory, of all the
//! bytes that two devices must exchange, or of the time that sending costs devices: where one of these
//! binds, the bounds are weak.

pub mod forced;
pub mod speeds;
pub mod windows;

use crate::clock::{Clock, Ticks};
use crate::cluster::Cluster;
use crate::error::Error;
use crate::ids::OpId;
use crate::workload::{Times, Workload};
use forced::{NEVER, Reach};
use speeds::{Columns, Shares};
use windows::Windows;

/// Which argument gave a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Critical path on the fastest allowed types.
    CriticalPath,
    /// Work over capacity.
    Work,
    /// Critical path with forced transfers.
    ForcedTransfers,
    /// Work over capacity between heads and tails.
    HeadsAndTails,
    /// Launches over hosts.
    Launches,
}

/// A lower bound and what it is made of, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounds {
    /// Critical path on the fastest allowed types.
    pub critical_path: f64,
    /// Work over capacity.
    pub work: f64,
    /// Critical path with the transfers that joins and forks force.
    pub forced_transfers: f64,
    /// Work over capacity between heads and tails.
    pub heads_and_tails: f64,
    /// Launches over hosts; 0 where launches take no time.
    pub launches: f64,
    /// The largest of them.
    pub best: f64,
    /// Which bound is the largest; of equal ones the first in the order above.
    pub source: Source,
}

/// Bounds for all placements of a workload.
///
/// # Errors
/// Times too long to be counted; an op that no device of the cluster may run.
pub fn bounds(work: &Workload, cluster: &Cluster, times: &Times) -> Result<Bounds, Error> {
    let ticks = Table::new(work, cluster, times)?;
    let critical_path = ticks.critical_path(work);
    let reach = Reach::new(work, cluster, ticks.clock, &ticks.time);
    let forced_transfers = ticks.longest(&reach);

    // Rounding may make a sum of floats larger than the true sum. A bound must not be.
    let safe = |seconds: f64| seconds * (1.0 - 1e-12);
    let shares = Shares { devices: ticks.devices.clone(), seconds: ticks.columns(work, &ticks.time) };
    let speeds = shares.best_speeds();
    let capacity = safe(shares.work(&speeds));
    let (head, tail) = (ticks.columns(work, &reach.head), ticks.columns(work, &reach.tail));
    let heads_and_tails = safe(Windows::new(&shares, &head, &tail).best(&speeds));

    let candidates = [
        (ticks.clock.seconds(critical_path), Source::CriticalPath),
        (capacity, Source::Work),
        (ticks.clock.seconds(forced_transfers), Source::ForcedTransfers),
        (heads_and_tails, Source::HeadsAndTails),
        (safe(ticks.launches(cluster, times)), Source::Launches),
    ];
    let (best, source) =
        candidates.into_iter().fold((0.0, Source::CriticalPath), |a, b| if b.0 > a.0 { b } else { a });
    let [critical_path, work, forced_transfers, heads_and_tails, launches] =
        candidates.map(|(seconds, _)| seconds);
    Ok(Bounds { critical_path, work, forced_transfers, heads_and_tails, launches, best, source })
}

/// Least seconds before each op starts and after it ends, per device type (see [`forced`]).
/// Infinite where the type is not allowed. Rows are by the user's index.
///
/// # Errors
/// Those of [`bounds`].
pub fn heads_and_tails(
    work: &Workload,
    cluster: &Cluster,
    times: &Times,
) -> Result<(Vec<f64>, Vec<f64>), Error> {
    let ticks = Table::new(work, cluster, times)?;
    let reach = Reach::new(work, cluster, ticks.clock, &ticks.time);
    let rows = |columns: Columns| {
        (0..work.n_ops()).flat_map(|row| columns.iter().map(move |column| column[row])).collect()
    };
    Ok((rows(ticks.columns(work, &reach.head)), rows(ticks.columns(work, &reach.tail))))
}

/// Ticks per op and type as the simulator counts them; [`NEVER`] where the type is not allowed. A
/// bound on unrounded times could exceed the makespan of a schedule in ticks.
struct Table {
    clock: Clock,
    /// Devices per type.
    devices: Vec<f64>,
    time: Vec<Ticks>,
}

impl Table {
    fn new(work: &Workload, cluster: &Cluster, times: &Times) -> Result<Self, Error> {
        times.check_types(cluster)?;
        let clock = work.clock(times, cluster)?;
        let devices: Vec<f64> = cluster.type_counts().iter().map(|&count| count as f64).collect();
        let mut time = times.ticks(clock);
        // A member of a collective keeps no device busy.
        for u in work.collectives.all_members() {
            time[u.ix() * devices.len()..(u.ix() + 1) * devices.len()].fill(0);
        }
        let every = u64::MAX >> (64 - devices.len());
        let restricted = |u: &OpId| work.allowed[u.ix()] & every != every;
        for u in work.graph.ops().filter(restricted) {
            let row = &mut time[u.ix() * devices.len()..(u.ix() + 1) * devices.len()];
            for (k, ticks) in row.iter_mut().enumerate() {
                if work.allowed[u.ix()] >> k & 1 == 0 {
                    *ticks = NEVER;
                }
            }
        }
        let stuck = work.graph.ops().filter(|u| work.allowed[u.ix()] & every == 0);
        match stuck.min_by_key(|&u| work.graph.index(u)) {
            Some(u) => Err(Error::NoAllowedDevice { op: u.into() }),
            None => Ok(Self { clock, devices, time }),
        }
    }

    /// Seconds of launches per host.
    fn launches(&self, cluster: &Cluster, times: &Times) -> f64 {
        let ticks: Ticks = self.clock.ticks_of(times.dispatch()).iter().sum();
        self.clock.seconds(ticks) / cluster.n_hosts() as f64
    }

    fn critical_path(&self, work: &Workload) -> Ticks {
        let n_types = self.devices.len();
        let mut finish = vec![0; work.n_ops()];
        for &u in work.graph.topo() {
            let row = &self.time[u.ix() * n_types..(u.ix() + 1) * n_types];
            let fastest = row.iter().copied().min().unwrap_or(0);
            let ready = work.graph.input_ops(u).iter().map(|v| finish[v.ix()]).max().unwrap_or(0);
            finish[u.ix()] = ready + fastest;
        }
        finish.into_iter().max().unwrap_or(0)
    }

    /// The largest sum of head, time and tail over all ops, each on the type where its sum is
    /// least.
    fn longest(&self, reach: &Reach) -> Ticks {
        let n_types = self.devices.len();
        let through = |cell: usize| reach.head[cell].saturating_add(self.time[cell]) + reach.tail[cell];
        let least = |u: usize| (u * n_types..(u + 1) * n_types).map(through).min().unwrap_or(0);
        (0..self.time.len() / n_types).map(least).max().unwrap_or(0)
    }

    /// Seconds per op and type, infinite where not allowed. Rows are by the user's index, so that sums of
    /// floats do not depend on how ops are numbered inside.
    fn columns(&self, work: &Workload, ticks: &[Ticks]) -> Columns {
        let n_types = self.devices.len();
        let of_type = |k: usize| {
            let cells = work.graph.ops_by_index().map(move |u| u.ix() * n_types + k);
            let seconds = |cell: usize| {
                if self.time[cell] < NEVER { self.clock.seconds(ticks[cell]) } else { f64::INFINITY }
            };
            cells.map(seconds).collect()
        };
        (0..n_types).map(of_type).collect()
    }
}
