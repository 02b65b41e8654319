//! The best way through cuts: which chain of cuts, from none of the groups to all of them, has the
//! smallest largest stage.
//!
//! The dynamic program of Tarnawski et al. (NeurIPS 2020, section 4): the best period with which f
//! accelerators and c CPU cores can do what lies before a cut. Three things were added. Only periods
//! below the best known one are looked for. A cut is left out where the devices before it or after it
//! could not do their share in that period, transfers over the cut included. And the cuts are
//! whatever [`Cuts`] says: positions of one order, or all downsets.

use std::ops::Range;

use super::{Devices, Groups, Sums};

/// Sets of groups at which a pipeline may be cut, a set before the sets that contain it. The first
/// is empty, the last is whole, and the time on accelerators ascends.
pub trait Cuts {
    /// What each cut's set adds up to.
    fn sums(&self) -> &[Sums];

    /// Calls `visit(j, sums of j, transfers)` for the cuts j of `range` that contain cut i, with the
    /// transfers of a stage between the two. Asked for ascending i.
    fn stages(&mut self, i: usize, range: Range<usize>, visit: impl FnMut(usize, &Sums, f64));
}

/// A chain of cuts and its period.
pub struct Walk {
    /// The largest load.
    pub period: f64,
    /// For each stage, the cut at its end and whether a CPU core runs it.
    pub stages: Vec<(usize, bool)>,
}

/// How much time of accelerators some number of CPU cores can stand in for.
struct Absorbed {
    /// Time on CPU cores and on accelerators, of the groups that gain least first: both summed up.
    sums: Vec<(f64, f64)>,
}

impl Absorbed {
    fn new(groups: &Groups) -> Self {
        let both = groups.accelerator.iter().zip(&groups.cpu);
        let mut pairs: Vec<(f64, f64)> =
            both.filter_map(|(a, &cpu)| a.filter(|&a| a > 0.0).map(|a| (cpu, a))).collect();
        pairs.sort_by(|x, y| (x.0 / x.1).total_cmp(&(y.0 / y.1)));
        let mut sum = (0.0, 0.0);
        for pair in &mut pairs {
            sum = (sum.0 + pair.0, sum.1 + pair.1);
            *pair = sum;
        }
        Self { sums: pairs }
    }

    /// At most this much within so much time of CPU cores: the groups of the best ratio, and all of
    /// the first that does not fit.
    fn within(&self, seconds: f64) -> f64 {
        let whole = self.sums.partition_point(|s| s.0 <= seconds);
        self.sums.get(whole).or(self.sums.last()).map_or(0.0, |s| s.1)
    }
}

/// Rounding of sums, relative to the whole.
const ROUNDING: f64 = 1e-9;

/// What a stage would take on an accelerator, and on a CPU core.
struct Loads {
    accelerator: f64,
    cpu: f64,
}

/// The table of the dynamic program: a row per cut, a column per numbers of devices used.
struct Table<'a> {
    devices: Devices,
    total: Sums,
    absorbed: &'a [f64],
    value: Vec<f64>,
    from: Vec<(u32, bool)>,
    columns: usize,
    best: f64,
}

impl Table<'_> {
    fn used(&self, column: usize) -> (usize, usize) {
        (column / (self.devices.cpus + 1), column % (self.devices.cpus + 1))
    }

    /// The time of so many accelerators within the best known period.
    fn within(&self, accelerators: usize) -> f64 {
        if accelerators == 0 { 0.0 } else { accelerators as f64 * self.best }
    }

    /// Whether the devices on both sides of a cut can do their shares.
    fn can_finish(&self, sums: &Sums, column: usize) -> bool {
        let (f, c) = self.used(column);
        let (left_f, left_c) = (self.devices.accelerators - f, self.devices.cpus - c);
        let slack = ROUNDING * self.total.accelerator;
        let share = |f: usize, c: usize| self.within(f) + self.absorbed[c] + slack;
        let crossing = |c: usize| if c == 0 { sums.crossing } else { 0.0 };
        let holds = |f: usize, c: usize, bytes: u64| {
            c > 0 || u128::from(bytes) <= f as u128 * u128::from(self.devices.memory)
        };
        holds(f, c, sums.bytes)
            && holds(left_f, left_c, self.total.bytes - sums.bytes)
            && sums.accelerator + crossing(c) <= share(f, c)
            && self.total.accelerator - sums.accelerator + crossing(left_c) <= share(left_f, left_c)
    }

    /// The columns from which cut i can still lead to a better period.
    fn open(&self, i: usize, sums: &Sums) -> Vec<usize> {
        let row = &self.value[i * self.columns..][..self.columns];
        (0..self.columns).filter(|&k| row[k] < self.best && self.can_finish(sums, k)).collect()
    }

    /// The most accelerator time that may be left after one more stage.
    fn left(&self, open: &[usize]) -> f64 {
        let left = |&k: &usize| {
            let (f, c) = self.used(k);
            let (f, c) = (self.devices.accelerators - f, self.devices.cpus - c);
            let by_accelerator = if f > 0 { self.within(f - 1) + self.absorbed[c] } else { 0.0 };
            let by_cpu = if c > 0 { self.within(f) + self.absorbed[c - 1] } else { 0.0 };
            by_accelerator.max(by_cpu)
        };
        open.iter().map(left).fold(0.0, f64::max) + ROUNDING * self.total.accelerator
    }

    /// The cuts that one more stage may end at.
    fn range(&self, sums: &[Sums], i: usize, open: &[usize]) -> Range<usize> {
        let most = if self.devices.cpus == 0 { self.best } else { self.best.max(self.absorbed[1]) };
        let most = sums[i].accelerator + most + ROUNDING * self.total.accelerator;
        let least = self.total.accelerator - self.left(open);
        let start = sums.partition_point(|s| s.accelerator < least).max(i + 1);
        start..sums.partition_point(|s| s.accelerator <= most).max(start)
    }

    /// Extends the chains to cut i by one stage, which ends at cut j.
    #[inline(always)]
    fn extend(&mut self, i: usize, j: usize, stage: &Loads, open: &[usize]) {
        for &k in open {
            let (f, c) = self.used(k);
            if f < self.devices.accelerators && stage.accelerator < self.best {
                self.offer((i, k), (j, k + self.devices.cpus + 1), stage.accelerator, false);
            }
            if c < self.devices.cpus && stage.cpu < self.best {
                self.offer((i, k), (j, k + 1), stage.cpu, true);
            }
        }
    }

    /// Notes that a stage of this load leads from a cut and column to another.
    #[inline(always)]
    fn offer(&mut self, from: (usize, usize), to: (usize, usize), load: f64, on_cpu: bool) {
        let period = self.value[from.0 * self.columns + from.1].max(load);
        let at = to.0 * self.columns + to.1;
        if period < self.value[at] {
            self.value[at] = period;
            self.from[at] = (from.0 as u32, on_cpu);
        }
    }

    /// The chain that ends at the last cut in its best column.
    fn walk(&self, last: usize) -> Option<Walk> {
        let row = &self.value[last * self.columns..][..self.columns];
        let mut column = (0..self.columns).min_by(|&a, &b| row[a].total_cmp(&row[b]))?;
        let period = row[column];
        if period == f64::INFINITY {
            return None;
        }
        let (mut cut, mut stages) = (last, Vec::new());
        while cut > 0 {
            let (before, on_cpu) = self.from[cut * self.columns + column];
            stages.push((cut, on_cpu));
            column -= if on_cpu { 1 } else { self.devices.cpus + 1 };
            cut = before as usize;
        }
        stages.reverse();
        Some(Walk { period, stages })
    }
}

/// The best chain of cuts with a period below `best`, if there is one. O(pairs of cuts x devices)
/// at worst; far less where `best` is close to what the devices can reach.
pub fn best_walk(cuts: &mut impl Cuts, groups: &Groups, devices: Devices, best: f64) -> Option<Walk> {
    let (m, columns) = (cuts.sums().len(), (devices.accelerators + 1) * (devices.cpus + 1));
    let cpu_time = Absorbed::new(groups);
    let absorbed: Vec<f64> =
        (0..=devices.cpus).map(|c| if c == 0 { 0.0 } else { cpu_time.within(c as f64 * best) }).collect();
    let total = *cuts.sums().last()?;
    let (value, from) = (vec![f64::INFINITY; m * columns], vec![(0, false); m * columns]);
    let mut table = Table { devices, total, absorbed: &absorbed, value, from, columns, best };
    table.value[0] = 0.0;
    for i in 0..m - 1 {
        let here = cuts.sums()[i];
        let open = table.open(i, &here);
        if open.is_empty() {
            continue;
        }
        let range = table.range(cuts.sums(), i, &open);
        cuts.stages(i, range, |j, there, transfers| {
            let fits = there.barred == here.barred && there.bytes - here.bytes <= devices.memory;
            let work = there.accelerator - here.accelerator;
            let accelerator = if fits { work + transfers } else { f64::INFINITY };
            table.extend(i, j, &Loads { accelerator, cpu: there.cpu - here.cpu }, &open);
        });
        let last = &table.value[(m - 1) * columns..];
        table.best = last.iter().copied().fold(table.best, f64::min);
    }
    table.walk(m - 1)
}
