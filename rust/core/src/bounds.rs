//! Lower bounds on the makespan of any placement (design section 7).
//!
//! * *Critical path*: the longest path with each op on the fastest type it may use and no transfers,
//!   since everything could sit on one device.
//! * *Work over capacity*: even if ops could be split at will, T must satisfy the linear program
//!   min T, where each op is shared out over its allowed device types and type k with m_k devices
//!   gets at most m_k T. By duality T = max over speeds y >= 0 with sum m_k y_k = 1 of the sum over
//!   ops of min_k y_k t_ik: any y gives a bound, so rounding cannot make it wrong. With one type this
//!   is work / devices.
//! * *Heads and tails*: the ops that cannot start before h, and after which q must still pass, take at
//!   least h + (their share of the dual work) + q. Tried for thousands of thresholds on heads or tails
//!   alone and for a grid of both.
//!
//! None knows about memory or about transfers that a split forces: where those bind, the bound is
//! weak. O(V + E) plus, for several types, some dozens of passes over the ops.

use crate::clock::{Clock, Ticks};
use crate::cluster::Cluster;
use crate::error::Error;
use crate::levels::Levels;
use crate::workload::{Times, Workload};

/// Which argument gave a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Critical path on the fastest allowed types.
    CriticalPath,
    /// Work over capacity.
    Work,
    /// Work over capacity between heads and tails.
    HeadsAndTails,
}

/// A lower bound and what it is made of, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounds {
    /// Critical path on the fastest allowed types.
    pub critical_path: f64,
    /// Work over capacity.
    pub work: f64,
    /// Work over capacity between heads and tails.
    pub heads_and_tails: f64,
    /// The largest.
    pub best: f64,
    /// Which one that is.
    pub source: Source,
}

/// Bounds for all placements of a workload.
///
/// # Errors
/// Times too long to be counted; an op that no device of the cluster may run.
pub fn bounds(work: &Workload, cluster: &Cluster, times: &Times) -> Result<Bounds, Error> {
    times.check_types(cluster)?;
    let counts = cluster.type_counts();
    let clock = work.clock(times, cluster)?;
    let table = Table::new(work, times, clock, &counts)?;
    let numbering = work.graph.numbering();
    let fastest: Vec<Ticks> = (0..work.n_ops()).map(|u| clock.ticks(table.fastest(u))).collect();
    let op_time = numbering.by_op(fastest.clone(), 1);
    let levels = Levels::new(&work.graph, &op_time, &vec![0; work.graph.n_tensors()]);
    let critical_path = clock.seconds(levels.critical_path());

    let speeds = table.best_speeds();
    let weight: Vec<f64> = (0..work.n_ops()).map(|u| table.weight(u, &speeds)).collect();
    let total: f64 = weight.iter().sum();
    let Levels { top, bottom } = levels;
    let levels = Levels { top: numbering.by_index(top), bottom: numbering.by_index(bottom) };
    let heads_and_tails = heads_and_tails(clock, &levels, &fastest, &weight);
    // Sums of floats may exceed the true sum by their rounding; a bound must not.
    let safe = |seconds: f64| seconds * (1.0 - 1e-12);
    let (total, heads_and_tails) = (safe(total), safe(heads_and_tails));
    let candidates = [
        (critical_path, Source::CriticalPath),
        (total, Source::Work),
        (heads_and_tails, Source::HeadsAndTails),
    ];
    let (best, source) =
        candidates.into_iter().fold((0.0, Source::CriticalPath), |a, b| if b.0 > a.0 { b } else { a });
    Ok(Bounds { critical_path, work: total, heads_and_tails, best, source })
}

/// Largest over thresholds on heads and on tails of: least head + work + least tail of the ops past
/// both. Thousands of thresholds on one side alone, then a grid of both.
fn heads_and_tails(clock: Clock, levels: &Levels, fastest: &[Ticks], weight: &[f64]) -> f64 {
    let head: Vec<f64> = levels.top.iter().map(|&t| clock.seconds(t)).collect();
    let tails = levels.bottom.iter().zip(fastest).map(|(bottom, own)| bottom - own);
    let tail: Vec<f64> = tails.map(|t| clock.seconds(t)).collect();
    let grids = [(4096, 1), (1, 4096), (128, 128)];
    grids
        .into_iter()
        .map(|(rows, columns)| past_both(&head, &tail, weight, rows, columns))
        .fold(0.0, f64::max)
}

/// Some ops: their work, and the least head and tail among them.
#[derive(Clone, Copy)]
struct Part {
    work: f64,
    head: f64,
    tail: f64,
}

impl Part {
    const NONE: Self = Self { work: 0.0, head: f64::INFINITY, tail: f64::INFINITY };

    fn with(self, other: Self) -> Self {
        let (head, tail) = (self.head.min(other.head), self.tail.min(other.tail));
        Self { work: self.work + other.work, head, tail }
    }
}

/// The bound for every pair of thresholds of a grid. O(V + rows * columns): thresholds lie evenly, and
/// what is past them is told by the least head and tail of the ops themselves, so nothing is lost but
/// thresholds between two of the grid's.
fn past_both(head: &[f64], tail: &[f64], weight: &[f64], rows: usize, columns: usize) -> f64 {
    let scale = |values: &[f64], n: usize| {
        let most = values.iter().copied().fold(0.0, f64::max);
        if most > 0.0 { (n - 1) as f64 / most } else { 0.0 }
    };
    let (by_head, by_tail) = (scale(head, rows), scale(tail, columns));
    let mut grid = vec![Part::NONE; rows * columns];
    for ((&head, &tail), &work) in head.iter().zip(tail).zip(weight) {
        let cell = (head * by_head) as usize * columns + (tail * by_tail) as usize;
        grid[cell] = grid[cell].with(Part { work, head, tail });
    }
    let mut below = vec![Part::NONE; columns];
    let mut best = 0.0f64;
    for row in grid.chunks_exact(columns).rev() {
        let mut past = Part::NONE;
        for (column, cell) in below.iter_mut().zip(row).rev() {
            *column = column.with(*cell);
            past = past.with(*column);
            if past.work > 0.0 {
                best = best.max(past.head + past.work + past.tail);
            }
        }
    }
    best
}

/// Seconds per op and type, infinite where not allowed; types without devices left out. Rows are by the
/// user's index, so that sums of floats do not depend on how ops are numbered.
struct Table {
    n_types: usize,
    devices: Vec<f64>,
    seconds: Vec<f64>,
}

impl Table {
    fn new(work: &Workload, times: &Times, clock: Clock, counts: &[usize]) -> Result<Self, Error> {
        // As the simulator counts them: a bound on unrounded times could exceed a rounded schedule.
        let seconds_of = |u, k| clock.seconds(clock.ticks(times.seconds(u, k)));
        let mut seconds = Vec::with_capacity(work.n_ops() * counts.len());
        for u in work.graph.ops_by_index() {
            let from = seconds.len();
            seconds.extend(
                (0..counts.len()).map(|k| {
                    if work.allowed[u.ix()] >> k & 1 == 1 { seconds_of(u, k) } else { f64::INFINITY }
                }),
            );
            if seconds[from..].iter().all(|s| s.is_infinite()) {
                return Err(Error::NoAllowedDevice { op: u.into() });
            }
        }
        Ok(Self { n_types: counts.len(), devices: counts.iter().map(|&c| c as f64).collect(), seconds })
    }

    fn row(&self, u: usize) -> &[f64] {
        &self.seconds[u * self.n_types..(u + 1) * self.n_types]
    }

    fn fastest(&self, u: usize) -> f64 {
        self.row(u).iter().copied().fold(f64::INFINITY, f64::min)
    }

    /// The op's share of the dual work.
    fn weight(&self, u: usize, speeds: &[f64]) -> f64 {
        self.row(u)
            .iter()
            .zip(speeds)
            .map(|(t, y)| if t.is_infinite() { *t } else { t * y })
            .fold(f64::INFINITY, f64::min)
    }

    /// The dual objective at `speeds`, and its slope: seconds that each type works.
    fn dual(&self, speeds: &[f64]) -> (f64, Vec<f64>) {
        let mut load = vec![0.0; self.n_types];
        let mut value = 0.0;
        for u in 0..self.seconds.len() / self.n_types {
            let row = self.row(u);
            let mut best = (f64::INFINITY, 0);
            for k in 0..self.n_types {
                let cost = if row[k].is_infinite() { row[k] } else { row[k] * speeds[k] };
                if cost < best.0 {
                    best = (cost, k);
                }
            }
            value += best.0;
            load[best.1] += row[best.1];
        }
        (value, load)
    }

    /// Speeds that (nearly) maximise the dual, by Kelley's cutting planes: the dual is concave and
    /// below each of its tangents; the next speeds maximise the least tangent.
    fn best_speeds(&self) -> Vec<f64> {
        const ROUNDS: usize = 100;
        const CLOSE: f64 = 1e-9;
        let total: f64 = self.devices.iter().sum();
        let mut speeds = vec![1.0 / total; self.n_types];
        let mut best = (f64::NEG_INFINITY, speeds.clone());
        let mut tangents: Vec<Vec<f64>> = Vec::new();
        for _ in 0..if self.n_types == 1 { 1 } else { ROUNDS } {
            let (value, load) = self.dual(&speeds);
            if value > best.0 {
                best = (value, speeds.clone());
            }
            tangents.push(load);
            let (upper, next) = max_min(&tangents, &self.devices);
            if upper - best.0 <= CLOSE * upper.abs() {
                break;
            }
            speeds = next;
        }
        best.1
    }
}

/// max over y >= 0 with devices . y = 1 of min over tangents g of g . y, by the simplex method on the
/// dual: min over convex combinations of tangents of max_k (sum_j x_j g_jk) / devices_k.
///
/// One row per type, so the tableau stays small; Bland's rule prevents cycling.
fn max_min(tangents: &[Vec<f64>], devices: &[f64]) -> (f64, Vec<f64>) {
    // A matrix game: row player y' = devices * y on the simplex, payoff a_kj = g_jk / devices_k. With
    // all payoffs shifted to be positive, max sum(x) s.t. A x <= 1, x >= 0 starts feasible at 0.
    let (rows, columns) = (devices.len(), tangents.len());
    let payoff = |k: usize, j: usize| tangents[j][k] / devices[k];
    let scale = (0..rows).flat_map(|k| (0..columns).map(move |j| payoff(k, j))).fold(0.0, f64::max);
    if scale == 0.0 {
        return (0.0, vec![1.0 / devices.iter().sum::<f64>(); rows]);
    }
    let shift = 1.0;
    let width = columns + rows + 1;
    let mut tableau = vec![vec![0.0; width]; rows + 1];
    for (k, row) in tableau.iter_mut().take(rows).enumerate() {
        for (j, cell) in row.iter_mut().take(columns).enumerate() {
            *cell = payoff(k, j) / scale + shift;
        }
        row[columns + k] = 1.0;
        row[width - 1] = 1.0;
    }
    tableau[rows][..columns].fill(-1.0);
    for _ in 0..50 * (rows + columns) {
        let Some(enter) = (0..width - 1).find(|&j| tableau[rows][j] < -1e-12) else { break };
        let ratio = |k: usize| tableau[k][width - 1] / tableau[k][enter];
        let leave =
            (0..rows).filter(|&k| tableau[k][enter] > 1e-12).min_by(|&a, &b| ratio(a).total_cmp(&ratio(b)));
        let Some(leave) = leave else { break };
        pivot(&mut tableau, leave, enter);
    }
    let sum = tableau[rows][width - 1];
    let strategy: Vec<f64> = (0..rows).map(|k| (tableau[rows][columns + k] / sum).max(0.0)).collect();
    let norm: f64 = strategy.iter().sum();
    let speeds = strategy.iter().zip(devices).map(|(y, m)| y / norm / m).collect();
    ((1.0 / sum - shift) * scale, speeds)
}

fn pivot(tableau: &mut [Vec<f64>], row: usize, column: usize) {
    let by = tableau[row][column];
    tableau[row].iter_mut().for_each(|v| *v /= by);
    let pivot_row = tableau[row].clone();
    for (k, other) in tableau.iter_mut().enumerate() {
        let factor = other[column];
        if k != row && factor != 0.0 {
            other.iter_mut().zip(&pivot_row).for_each(|(v, p)| *v -= factor * p);
        }
    }
}
