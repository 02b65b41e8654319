//! The best contiguous stages of one linear order, on devices of several kinds in any order.
//!
//! A step of m micro-batches takes the sum of all stages' times, and m - 1 times that of the
//! slowest: the dynamic program over cuts of Alpa (Zheng et al., OSDI 2022, section 5.2). Here a stage
//! has a choice of ways (kinds of devices, several of them, activations kept or made anew), and its
//! memory depends on how many devices come before it. Of all pairs (largest time, sum of times) of
//! which no other is better in both, each is found once: the program finds the least sum below a
//! limit on the largest, and the largest that it finds is the next limit. So the answer is exact.

use crate::error::Error;

/// A way to run stages: from cut i to cut j it takes what stands at `i * n_cuts + j` of its columns.
pub struct Way<'a> {
    /// Which pool its devices are from.
    pub pool: usize,
    /// How many devices it takes.
    pub width: usize,
    /// Bytes of each.
    pub memory: u64,
    /// Micro-batches that a stage holds at a time, by how many devices come before it.
    pub in_flight: &'a [u64],
    /// Seconds per micro-batch that a stage keeps its busiest device or channel; infinite: not allowed.
    pub load: &'a [f64],
    /// Seconds that a micro-batch takes through a stage.
    pub path: &'a [f64],
    /// Bytes that a stage holds for the whole step.
    pub fixed: &'a [u64],
    /// Bytes that a stage holds per micro-batch in flight.
    pub held: &'a [u64],
}

/// Stages in the order of the samples.
#[derive(Clone, Debug, PartialEq)]
pub struct Chain {
    /// Sum of the stages' paths.
    pub path: f64,
    /// The largest load of a stage.
    pub load: f64,
    /// The cut at the end of each stage, and the way that it is run.
    pub stages: Vec<(usize, usize)>,
}

impl Chain {
    /// What is to be small.
    fn cost(&self, weight: f64) -> f64 {
        self.path + weight * self.load
    }
}

/// How many devices of each pool are used, as one number.
struct States {
    pools: Vec<usize>,
    /// What one more device of each pool adds to the number.
    stride: Vec<usize>,
    /// Devices in all of each state.
    used: Vec<usize>,
}

impl States {
    fn new(pools: &[usize]) -> Self {
        let mut stride = Vec::with_capacity(pools.len());
        let mut used = vec![0];
        for &most in pools {
            stride.push(used.len());
            used = (0..=most).flat_map(|n| used.iter().map(move |&u| u + n)).collect();
        }
        Self { pools: pools.to_vec(), stride, used }
    }

    /// The state after a stage, where its pool has devices left.
    fn after(&self, state: usize, way: &Way) -> Option<usize> {
        let (stride, most) = (self.stride[way.pool], self.pools[way.pool]);
        let taken = state / stride % (most + 1);
        (taken + way.width <= most).then_some(state + way.width * stride)
    }
}

/// The most entries of the table: cuts by states.
const MOST_ENTRIES: usize = 1 << 24;

/// The contiguous stages on `devices` devices of some pools with the least sum of paths plus `weight`
/// times the largest load; nothing where none fit. O(cuts^2 x states x ways) for each pair of a sum and
/// a largest load that no other pair is better than in both.
///
/// # Errors
/// More cuts and sets of devices than the table has room for.
pub fn best_chain(
    n_cuts: usize,
    pools: &[usize],
    devices: usize,
    ways: &[Way],
    weight: f64,
) -> Result<Option<Chain>, Error> {
    let states = pools.iter().fold(1usize, |n, &most| n.saturating_mul(most.saturating_add(1)));
    let entries = states.saturating_mul(n_cuts);
    if entries > MOST_ENTRIES {
        let what = "cuts x sets of devices";
        return Err(Error::TooMany { what, count: entries, limit: MOST_ENTRIES });
    }
    let table = Table { n_cuts, states: States::new(pools), devices, ways };
    let Some(shortest) = table.least(f64::INFINITY, |path, _, stage| path + stage.0) else {
        return Ok(None);
    };
    let (mut least, mut limit) = (shortest.path, shortest.load);
    let evenest = table.least(f64::INFINITY, |_, load, stage| f64::max(load, stage.1));
    let mut best = evenest.filter(|other| other.cost(weight) < shortest.cost(weight)).unwrap_or(shortest);
    // No chain below a limit has a smaller sum than the one found there.
    while weight > 0.0 && least < best.cost(weight) {
        limit = limit.min((best.cost(weight) - least) / weight);
        let Some(found) = table.least(limit, |path, _, stage| path + stage.0) else { break };
        (least, limit) = (found.path, found.load);
        if found.cost(weight) < best.cost(weight) {
            best = found;
        }
    }
    Ok(Some(best))
}

struct Table<'a> {
    n_cuts: usize,
    states: States,
    devices: usize,
    ways: &'a [Way<'a>],
}

/// Of the stages before a cut: what is to be small, the sum of paths, the largest load; and the state,
/// the cut and the way of the last of them.
#[derive(Clone, Copy)]
struct Entry {
    key: f64,
    path: f64,
    load: f64,
    from: (u32, u32, u32),
}

impl Table<'_> {
    /// The chain of stages with loads below a limit that has the least key.
    fn least(&self, limit: f64, key: impl Fn(f64, f64, (f64, f64)) -> f64) -> Option<Chain> {
        let n = self.n_cuts;
        let none = Entry { key: f64::INFINITY, path: 0.0, load: 0.0, from: (0, 0, 0) };
        let mut entries = vec![none; n * self.states.used.len()];
        entries[0].key = 0.0;
        for state in 0..self.states.used.len() {
            let before = self.states.used[state];
            for (w, way) in self.ways.iter().enumerate() {
                let Some(after) = self.states.after(state, way) else { continue };
                if before + way.width > self.devices {
                    continue;
                }
                let in_flight = way.in_flight[before];
                for i in 0..n - 1 {
                    let here = entries[state * n + i];
                    if here.key == f64::INFINITY {
                        continue;
                    }
                    for j in i + 1..n {
                        let at = i * n + j;
                        let load = way.load[at];
                        if load >= limit || !way.holds(at, in_flight) {
                            continue;
                        }
                        let key = key(here.path, here.load, (way.path[at], load));
                        let there = &mut entries[after * n + j];
                        if key < there.key {
                            let from = (state as u32, i as u32, w as u32);
                            let (path, load) = (here.path + way.path[at], here.load.max(load));
                            *there = Entry { key, path, load, from };
                        }
                    }
                }
            }
        }
        self.chain(&entries)
    }

    /// The best of the chains that end at the last cut with all devices used.
    fn chain(&self, entries: &[Entry]) -> Option<Chain> {
        let n = self.n_cuts;
        let ends = (0..self.states.used.len()).filter(|&s| self.states.used[s] == self.devices);
        let key = |&state: &usize| entries[state * n + n - 1].key;
        let mut state = ends.min_by(|a, b| key(a).total_cmp(&key(b)))?;
        let last = entries[state * n + n - 1];
        if last.key == f64::INFINITY {
            return None;
        }
        let (mut cut, mut stages) = (n - 1, Vec::new());
        while cut > 0 {
            let (before, start, way) = entries[state * n + cut].from;
            stages.push((cut, way as usize));
            (state, cut) = (before as usize, start as usize);
        }
        stages.reverse();
        Some(Chain { path: last.path, load: last.load, stages })
    }
}

impl Way<'_> {
    /// Whether its devices hold a stage.
    #[inline]
    fn holds(&self, at: usize, in_flight: u64) -> bool {
        self.held[at].saturating_mul(in_flight).saturating_add(self.fixed[at]) <= self.memory
    }
}
