//! Work over capacity, as a linear program over device types.
//!
//! Let ops be split at will over the types that they may use. The least `T` for which type `k`, with its
//! `m_k` devices, works at most `m_k T` is then a lower bound on the makespan. By duality this `T` is the
//! maximum, over speeds `y >= 0` with `sum m_k y_k = 1`, of the sum over ops of `min_k y_k t_ik`.
//!
//! *Valid:* let op `i` run on type `k(i)` in some schedule of makespan `T`. Then `sum_i min_k y_k t_ik <=
//! sum_i y_k(i) t_i,k(i) = sum_k y_k (work on type k) <= sum_k y_k m_k T = T`. So any speeds give a bound,
//! and rounding the speeds found here cannot make the bound wrong. With one type it is work / devices.

/// Seconds per row, a column for each device type; infinite where not allowed.
pub type Columns = Vec<Vec<f64>>;

/// Seconds of work per row and device type.
#[derive(Clone, Debug)]
pub struct Shares {
    /// Devices per type.
    pub devices: Vec<f64>,
    /// Seconds that each row takes on each type; infinite where it is not allowed.
    pub seconds: Columns,
}

impl Shares {
    fn n_types(&self) -> usize {
        self.devices.len()
    }

    /// What each row adds to the dual objective at `speeds`.
    pub fn weights(&self, speeds: &[f64]) -> Vec<f64> {
        least(
            self.seconds
                .iter()
                .zip(speeds)
                .map(|(column, speed)| column.iter().map(move |&t| cost(t, *speed))),
        )
    }

    /// The dual objective at `speeds`: a bound on the time that all rows take.
    pub fn work(&self, speeds: &[f64]) -> f64 {
        self.weights(speeds).iter().sum()
    }

    /// The dual objective at `speeds`, and its slope: the seconds that each type works.
    fn dual(&self, speeds: &[f64]) -> (f64, Vec<f64>) {
        let mut load = vec![0.0; self.n_types()];
        let mut value = 0.0;
        for row in 0..self.seconds[0].len() {
            let mut best = (f64::INFINITY, 0);
            for (k, (column, &speed)) in self.seconds.iter().zip(speeds).enumerate() {
                let cost = cost(column[row], speed);
                if cost < best.0 {
                    best = (cost, k);
                }
            }
            value += best.0;
            load[best.1] += self.seconds[best.1][row];
        }
        (value, load)
    }

    /// Speeds that (nearly) maximise the dual, by Kelley's cutting planes. The dual is concave, so it lies
    /// below each of its tangents. The next speeds maximise the least of the tangents so far.
    pub fn best_speeds(&self) -> Vec<f64> {
        const ROUNDS: usize = 100;
        const CLOSE: f64 = 1e-9;
        let total: f64 = self.devices.iter().sum();
        let mut speeds = vec![1.0 / total; self.n_types()];
        if self.n_types() == 1 {
            return speeds;
        }
        let mut best = (f64::NEG_INFINITY, speeds.clone());
        let mut tangents: Vec<Vec<f64>> = Vec::new();
        for _ in 0..ROUNDS {
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

/// Seconds times speed; infinite where the type is not allowed, even at speed 0.
#[inline(always)]
fn cost(seconds: f64, speed: f64) -> f64 {
    if seconds.is_infinite() { seconds } else { seconds * speed }
}

/// The least of each row.
pub fn least(columns: impl Iterator<Item = impl Iterator<Item = f64>>) -> Vec<f64> {
    let mut least: Vec<f64> = Vec::new();
    for column in columns {
        if least.is_empty() {
            least = column.collect();
        } else {
            least.iter_mut().zip(column).for_each(|(least, value)| *least = value.min(*least));
        }
    }
    least
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
