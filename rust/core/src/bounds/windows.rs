//! Work that must be done between a head and a tail.
//!
//! Given `h` and `q`, op `i` on type `k` works in the window from `h` to `T - q` for at least
//!
//! ```text
//! e_ik = max(0, time(i, k) - max(0, h - head(i, k)) - max(0, q - tail(i, k)))
//! ```
//!
//! and `T >= h + q + sum_i min_k y_k e_ik` for any speeds `y >= 0` with `sum_k m_k y_k = 1`.
//!
//! *Valid:* let some op have `head >= h` and `tail >= q` on every type it may use; then `T >= h + q`, and the
//! window is `L = T - h - q` long. On its type `k`, op `i` runs within `[head, T - tail]`. Of its time, what
//! lies before `h` is at most `max(0, h - head)`, since it starts no sooner than its head; what lies after
//! `T - q` at most `max(0, q - tail)`; so at least `e_ik` lies between. A device works at most `L` in the
//! window, so the devices of type `k` at most `m_k L`, and `sum_i min_k y_k e_ik <= sum_k y_k m_k L = L` as
//! in [`speeds`](crate::bounds::speeds). This is energetic reasoning (Erschler et al. 1991) with the speeds
//! of the dual for weights and without a deadline.
//!
//! Windows are sought by what lies whole in them, for all pairs of thresholds of a grid at once; for the
//! best of those speeds of their own are found (cutting planes, some ten passes over the ops each), and with
//! the best of these speeds windows are sought again. O(V T) per pass, a few hundred passes at most.

use crate::bounds::speeds::{Columns, Shares, least};

/// Windows of a search that get speeds of their own.
const TRIED: usize = 4;

/// Searches for windows, the last with the best speeds of those before.
const ROUNDS: usize = 6;

/// Rows and columns of the grids of thresholds: on one side alone, then on both.
const GRIDS: [(usize, usize); 3] = [(4096, 1), (1, 4096), (128, 128)];

/// A head and a tail that some op has at least, on every type it may use.
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
    /// The least over types.
    least_head: Vec<f64>,
    least_tail: Vec<f64>,
    /// The largest of these.
    most_head: f64,
    most_tail: f64,
}

impl<'a> Windows<'a> {
    /// From what [`Shares`] counts as time.
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

    /// What must be done in a window, per op that must do any whichever type it runs on.
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
                // Written over by the next where nothing must be done; a branch would be guessed wrong.
                column[filled] = column[row];
                filled += usize::from(*least > 0.0);
            }
            column.truncate(filled);
        }
        Shares { devices: self.shares.devices.clone(), seconds }
    }

    /// The windows with most work whole in them, by the largest bound, no two of one grid cell.
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

    /// The bound of the ops past every pair of thresholds of a grid. O(V + rows * columns): thresholds lie
    /// evenly, and what is past them is told by the least head and tail of the ops themselves, so nothing
    /// is lost but thresholds between two of the grid's.
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
