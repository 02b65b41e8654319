//! Work that must be done between a head and a tail.
//!
//! Take a head `h` and a tail `q`. Op `i` on type `k` works in the window from `h` to `T - q` for at least
//!
//! ```text
//! e_ik = max(0, time(i, k) - max(0, h - head(i, k)) - max(0, q - tail(i, k)))
//! ```
//!
//! seconds. Then `T >= h + q + sum_i min_k y_k e_ik` for any speeds `y >= 0` with `sum_k m_k y_k = 1`.
//!
//! *Valid:* let some op have `head >= h` and `tail >= q` on every type it may use. Then `T >= h + q`, and the
//! window is `L = T - h - q` long. On its type `k`, op `i` runs within `[head, T - tail]`. It starts no
//! sooner than its head, so at most `max(0, h - head)` of its time lies before `h`. In the same way at most
//! `max(0, q - tail)` lies after `T - q`. So at least `e_ik` lies in the window. A device works at most `L`
//! in the window, and the devices of type `k` at most `m_k L`. So `sum_i min_k y_k e_ik <= sum_k y_k m_k L =
//! L`, as in [`speeds`](crate::bounds::speeds). This is energetic reasoning (Erschler et al. 1991), with the
//! dual's speeds as weights and without a deadline.
//!
//! The search for windows goes in rounds. A round bounds all pairs of thresholds of a grid at once, counting
//! only ops that lie whole in the window. The best windows then get speeds of their own (cutting planes,
//! some ten passes over the ops each). The next round uses the best of these speeds. O(V T) per pass, a few
//! hundred passes at most.

use crate::bounds::speeds::{Columns, Shares, least};

/// Windows per round that get speeds of their own.
const TRIED: usize = 4;

/// Rounds of the search for windows, at most.
const ROUNDS: usize = 6;

/// Rows (heads) and columns (tails) of the grids of thresholds: heads alone, tails alone, then both.
const GRIDS: [(usize, usize); 3] = [(4096, 1), (1, 4096), (128, 128)];

/// A pair of thresholds. Some op has at least this head and this tail on every type it may use.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Window {
    head: f64,
    tail: f64,
}

/// Ops with their heads and tails.
pub struct Windows<'a> {
    shares: &'a Shares,
    head: &'a Columns,
    tail: &'a Columns,
    /// Per op, the least head over types.
    least_head: Vec<f64>,
    least_tail: Vec<f64>,
    /// The largest least head.
    most_head: f64,
    most_tail: f64,
}

impl<'a> Windows<'a> {
    /// Heads and tails are in the unit of [`Shares`], a column per type.
    pub fn new(shares: &'a Shares, head: &'a Columns, tail: &'a Columns) -> Self {
        let least_of = |columns: &Columns| least(columns.iter().map(|column| column.iter().copied()));
        let most = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
        let (least_head, least_tail) = (least_of(head), least_of(tail));
        let (most_head, most_tail) = (most(&least_head), most(&least_tail));
        Self { shares, head, tail, least_head, least_tail, most_head, most_tail }
    }

    /// The best bound found, starting from some speeds.
    pub fn best(&self, speeds: &[f64]) -> f64 {
        let mut best = (0.0, speeds.to_vec());
        let mut tried: Vec<Window> = Vec::new();
        for _ in 0..ROUNDS {
            let sought_with = best.1.clone();
            let fresh: Vec<Window> =
                self.promising(&best.1).into_iter().filter(|w| !tried.contains(w)).collect();
            for window in fresh {
                let inside = self.inside(window);
                let speeds = inside.best_speeds();
                let value = window.head + window.tail + inside.work(&speeds);
                if value > best.0 {
                    best = (value, speeds);
                }
                tried.push(window);
            }
            if best.1 == sought_with {
                break;
            }
        }
        best.0
    }

    /// The work that each op must do in a window. Ops that need do none on some type are left out.
    fn inside(&self, window: Window) -> Shares {
        let types = self.shares.seconds.iter().zip(self.head).zip(self.tail);
        let left = |((time, head), tail): ((&Vec<f64>, &Vec<f64>), &Vec<f64>)| -> Vec<f64> {
            let rows = time.iter().zip(head).zip(tail);
            rows.map(|((time, head), tail)| {
                time - (window.head - head).max(0.0) - (window.tail - tail).max(0.0)
            })
            .collect()
        };
        let mut seconds: Columns = types.map(left).collect();
        let least = least(seconds.iter().map(|column| column.iter().copied()));
        for column in &mut seconds {
            let mut filled = 0;
            for (row, least) in least.iter().enumerate() {
                // The next row overwrites this one if the op need do nothing. A branch would be mispredicted.
                column[filled] = column[row];
                filled += usize::from(*least > 0.0);
            }
            column.truncate(filled);
        }
        Shares { devices: self.shares.devices.clone(), seconds }
    }

    /// The windows with the largest bounds, counting only ops that lie whole in them. No window
    /// comes twice.
    fn promising(&self, speeds: &[f64]) -> Vec<Window> {
        let work = self.shares.weights(speeds);
        let mut found: Vec<(f64, Window)> = Vec::new();
        for (rows, columns) in GRIDS {
            self.past_both(&work, rows, columns, &mut found);
        }
        found.sort_by(|a, b| b.0.total_cmp(&a.0));
        found.dedup_by(|a, b| a.1 == b.1);
        found.truncate(TRIED);
        found.into_iter().map(|(_, window)| window).collect()
    }

    /// For every pair of thresholds of a grid, the bound by the ops whose head and tail are no
    /// less. Thresholds are evenly spaced. The window has the least head and tail of those ops, so
    /// the grid only misses thresholds that lie between two of its own. O(V + rows * columns).
    fn past_both(&self, work: &[f64], rows: usize, columns: usize, found: &mut Vec<(f64, Window)>) {
        let scale = |most: f64, n: usize| if most > 0.0 { (n - 1) as f64 / most } else { 0.0 };
        let (by_head, by_tail) = (scale(self.most_head, rows), scale(self.most_tail, columns));
        let mut grid = vec![Part::NONE; rows * columns];
        for ((&head, &tail), &work) in self.least_head.iter().zip(&self.least_tail).zip(work) {
            let cell = (head * by_head) as u32 as usize * columns + (tail * by_tail) as u32 as usize;
            grid[cell] = grid[cell].with(Part { work, head, tail });
        }
        let mut below = vec![Part::NONE; columns];
        let mut best: Vec<(f64, Window)> = Vec::with_capacity(TRIED);
        for row in grid.chunks_exact(columns).rev() {
            let mut past = Part::NONE;
            for (column, cell) in below.iter_mut().zip(row).rev() {
                *column = column.with(*cell);
                past = past.with(*column);
                if past.work > 0.0 {
                    let value = past.head + past.work + past.tail;
                    if best.len() < TRIED || value > best[TRIED - 1].0 {
                        best.truncate(TRIED - 1);
                        let at = best.partition_point(|other| other.0 >= value);
                        best.insert(at, (value, Window { head: past.head, tail: past.tail }));
                    }
                }
            }
        }
        found.append(&mut best);
    }
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
