//! Stages that are replicated and tensor-parallel, with one way to run each layer: Piper.
//!
//! Tarnawski, Narayanan, Phanishayee: "Piper: Multidimensional Planner for DNN Parallelization"
//! (NeurIPS 2021, section 3). A stage of degree `t` of tensor parallelism and of `d` replicas is on
//! `t * d` devices. It holds `ceil(s / d)` samples, where `s` counts its replicas and those of all
//! later stages. The period is the largest time per sample of any stage.
//!
//! Their dynamic program tells the best period for every cut, number of devices and `s`. Here a period
//! is given, and each cut keeps what reaches it: few pairs of devices and `s`, of which none is better in
//! both. The smallest number of replicas that is quick enough for a stage is then the only one to
//! look at. Halving finds the period.

use std::collections::BTreeMap;

use super::downsets::Downsets;
use super::{Groups, check_orders};
use crate::border::check_room;
use crate::csr::Csr;
use crate::error::Error;

/// The most pairs of cuts, one inside the other, that are looked at.
const MOST_PAIRS: usize = 1 << 18;

/// The most devices, and the most samples of a batch.
const MOST: u32 = 1 << 20;

/// The most cuts of an order.
const MOST_CUTS: usize = 400;

/// As many cuts of an order give a period to begin with.
const FEW_CUTS: usize = 40;

/// The search ends where the period is known to this share of it.
const CLOSE: f64 = 1e-11;

/// A way to run a layer on some number of devices.
#[derive(Clone, Copy, Debug)]
pub struct Choice {
    /// Seconds per sample.
    pub seconds: f64,
    /// Bytes of parameters, whose gradients replicas exchange.
    pub parameters: f64,
    /// Bytes held per sample.
    pub held: f64,
    /// Bytes held besides.
    pub fixed: f64,
}

/// Layers, their order, and the ways to run each.
pub struct Layers {
    /// Number of layers.
    pub n: usize,
    /// Pairs `(layer, later layer)`.
    pub edges: Vec<(u32, u32)>,
    /// Degrees of tensor parallelism.
    pub degrees: Vec<u32>,
    /// All choices.
    pub choices: Vec<Choice>,
    /// The choices of layer `v` for the degree at `i`, in row `v * degrees + i`.
    pub of: Csr<u32>,
    /// Per choice, the layers that it exchanges bytes with where these are in other stages. The bytes
    /// are of both passes.
    pub exchanges: Csr<(u32, f64)>,
}

/// The devices and the batch.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Number of devices.
    pub devices: u32,
    /// Bytes of each.
    pub memory: f64,
    /// Bytes per second that a device sends and receives.
    pub bandwidth: f64,
    /// Samples of a batch: replicas divide it.
    pub samples: u32,
}

/// A stage of a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Stage {
    /// The layers, ascending.
    pub layers: Vec<u32>,
    /// The choice of each of them.
    pub choices: Vec<u32>,
    /// Degree of tensor parallelism.
    pub tensor: u32,
    /// Number of replicas.
    pub replicas: u32,
}

/// Stages, the first first, nothing where none fit; and how many downsets there are, nothing where
/// they were too many to be listed.
pub type Plan = (Option<Vec<Stage>>, Option<usize>);

/// The stages with the smallest period over all downsets, or, where these are too many, over the cuts
/// of some topological orders. Where memory is short, choices are made by a heuristic.
///
/// # Errors
/// No layers; an order that is none; too many devices or samples; more choices than there is room for.
pub fn plan(layers: &Layers, limits: Limits, orders: &[&[u32]]) -> Result<Plan, Error> {
    for (what, count) in [("devices", limits.devices), ("samples", limits.samples)] {
        if count > MOST {
            return Err(Error::TooMany { what, count: count as usize, limit: MOST as usize });
        }
    }
    let nothing = || vec![0.0; layers.n];
    let groups =
        Groups::new(vec![Some(0.0); layers.n], nothing(), vec![0; layers.n], &layers.edges, &[], Vec::new())?;
    check_orders(&groups, orders)?;
    let all = Downsets::list(&groups, orders[0]);
    let most = if all.is_some() { FEW_CUTS } else { MOST_CUTS };
    let mut best: Option<(f64, Vec<Stage>)> = None;
    for order in orders {
        let sets = prefixes(layers.n, order, most);
        let sets: Vec<&[u64]> = sets.iter().map(Vec::as_slice).collect();
        let found = Search::new(layers, limits, &sets)?.and_then(|mut search| search.best(f64::MAX));
        best = match (best, found) {
            (Some(a), Some(b)) => Some(if b.0 < a.0 { b } else { a }),
            (a, b) => a.or(b),
        };
    }
    if let Some(all) = all {
        let sets: Vec<&[u64]> = all.sets().collect();
        if let Some(mut search) = Search::new(layers, limits, &sets)? {
            let known = best.map_or(f64::MAX, |found| found.0);
            return Ok((search.best(known).map(|found| found.1), Some(sets.len())));
        }
    }
    Ok((best.map(|found| found.1), None))
}

/// Sets of the first layers of an order, evenly spread where they are many.
fn prefixes(n: usize, order: &[u32], most: usize) -> Vec<Vec<u64>> {
    let cuts = n.min(most);
    let mut set = vec![0u64; n.div_ceil(64)];
    let mut sets = vec![set.clone()];
    for cut in 0..cuts {
        order[n * cut / cuts..n * (cut + 1) / cuts]
            .iter()
            .for_each(|&v| set[v as usize / 64] |= 1 << (v % 64));
        sets.push(set.clone());
    }
    sets
}

/// What a part takes where every layer has its quickest choice.
#[derive(Clone, Copy)]
struct Quickest {
    seconds: f64,
    held: f64,
    fixed: f64,
}

/// What lies between two cuts, on one degree of tensor parallelism.
struct Part {
    /// The cut that it ends at.
    end: u32,
    /// Index of the degree.
    degree: u32,
    /// Per number of replicas.
    quickest: Vec<Quickest>,
    /// Index of replicas, samples held, and seconds, where memory is short: what was found, ascending.
    known: Vec<(u32, u32, f64)>,
}

/// How the layers after a cut can be run within a period.
#[derive(Clone, Copy)]
struct Reached {
    devices: u32,
    /// Replicas, summed over stages.
    replicas: u32,
    /// The part of the first of these stages, its index of replicas, and what follows.
    part: u32,
    d: u32,
    next: u32,
}

/// A choice of a layer in a part, with what it takes there.
#[derive(Clone, Copy)]
struct Way {
    /// The layer's place in the part.
    layer: u32,
    choice: u32,
    seconds: f64,
    bytes: f64,
}

struct Search<'a> {
    layers: &'a Layers,
    limits: Limits,
    sets: &'a [&'a [u64]],
    /// Numbers of replicas, ascending.
    replicas: Vec<u32>,
    /// Per layer, degree and number of replicas, the quickest choice where all that it exchanges bytes
    /// with is in the same stage, with its seconds; nothing where there is no choice.
    inside: Vec<Option<(u32, f64)>>,
    parts: Vec<Part>,
    /// The parts that begin at each cut.
    from: Vec<std::ops::Range<usize>>,
    /// Per part that was short of memory, the choices of its layers and what they exchange.
    exchanged: BTreeMap<u32, Vec<(u32, u32, f64)>>,
}

impl<'a> Search<'a> {
    /// Nothing where the sets have too many pairs. Sets ascend by size, the first is empty.
    ///
    /// # Errors
    /// More layers, pairs, degrees and numbers of replicas than there is room for.
    fn new(layers: &'a Layers, limits: Limits, sets: &'a [&'a [u64]]) -> Result<Option<Self>, Error> {
        let replicas: Vec<u32> =
            (1..=limits.devices.min(limits.samples)).filter(|d| limits.samples.is_multiple_of(*d)).collect();
        let ways = layers.degrees.len().saturating_mul(replicas.len());
        check_room("layers", layers.n, ways.saturating_mul(size_of::<Option<(u32, f64)>>()))?;
        let (inside, parts, from) = (Vec::new(), Vec::new(), Vec::with_capacity(sets.len()));
        let exchanged = BTreeMap::new();
        let mut made = Self { layers, limits, sets, replicas, inside, parts, from, exchanged };
        made.inside = made.quickest_inside();
        let (mut larger, mut pairs): (Vec<Vec<usize>>, usize) = (Vec::with_capacity(sets.len()), 0);
        for i in 0..sets.len() {
            let is_larger = |j: &usize| sets[i].iter().zip(sets[*j]).all(|(a, b)| a & !b == 0);
            larger.push((i + 1..sets.len()).filter(is_larger).collect());
            pairs += larger[i].len();
            if pairs > MOST_PAIRS {
                return Ok(None);
            }
        }
        check_room("stages", pairs, ways.saturating_mul(size_of::<Quickest>()))?;
        for (i, ends) in larger.into_iter().enumerate() {
            let begin = made.parts.len();
            ends.into_iter().for_each(|j| made.add(i, j));
            made.from.push(begin..made.parts.len());
        }
        Ok(Some(made))
    }

    fn between(&self, i: usize, j: usize) -> Vec<u32> {
        let has = |set: &[u64], v: u32| set[v as usize / 64] >> (v % 64) & 1 == 1;
        (0..self.layers.n as u32).filter(|&v| has(self.sets[j], v) && !has(self.sets[i], v)).collect()
    }

    /// The parts between two cuts.
    fn add(&mut self, i: usize, j: usize) {
        let inside = self.between(i, j);
        for t in 0..self.layers.degrees.len() {
            if self.layers.degrees[t] > self.limits.devices {
                continue;
            }
            let Some(sums) = self.quickest(&inside, (i, j), t) else { continue };
            self.parts.push(Part { end: j as u32, degree: t as u32, quickest: sums, known: Vec::new() });
        }
    }

    /// Bytes that a choice exchanges with other stages.
    fn exchanged_by(&self, choice: u32, (i, j): (usize, usize)) -> f64 {
        let is_inside = |v: u32| {
            let (word, bit) = (v as usize / 64, v % 64);
            (self.sets[j][word] & !self.sets[i][word]) >> bit & 1 == 1
        };
        let of = self.layers.exchanges.row(choice as usize);
        of.iter().filter(|&&(v, _)| !is_inside(v)).map(|&(_, bytes)| bytes).sum()
    }

    /// Seconds per sample of a choice with so many replicas.
    fn seconds(&self, choice: u32, exchanged: f64, replicas: u32) -> f64 {
        let (choice, d) = (&self.layers.choices[choice as usize], f64::from(replicas));
        // A distributed parameter server sends and receives each shard, for both passes.
        let summed = 4.0 * (d - 1.0) * choice.parameters / d / f64::from(self.limits.samples);
        (exchanged / d + summed) / self.limits.bandwidth + choice.seconds / d
    }

    fn quickest_inside(&self) -> Vec<Option<(u32, f64)>> {
        let rows = 0..self.layers.n * self.layers.degrees.len();
        let of_row = |row| {
            let choices = self.layers.of.row(row);
            self.replicas.iter().map(move |&d| self.quickest_of(choices.iter().map(|&c| (c, 0.0)), d))
        };
        rows.flat_map(of_row).collect()
    }

    /// The quickest of some choices, each with the bytes that it exchanges, and its seconds.
    fn quickest_of(&self, some: impl Iterator<Item = (u32, f64)>, replicas: u32) -> Option<(u32, f64)> {
        let timed = some.map(|(c, exchanged)| (c, self.seconds(c, exchanged, replicas)));
        timed.min_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// Sums per number of replicas; nothing where a layer has no choice for the degree.
    fn quickest(&self, inside: &[u32], cuts: (usize, usize), t: usize) -> Option<Vec<Quickest>> {
        let mut sums = vec![Quickest { seconds: 0.0, held: 0.0, fixed: 0.0 }; self.replicas.len()];
        let mut some: Vec<(u32, f64)> = Vec::new();
        for &v in inside {
            let row = v as usize * self.layers.degrees.len() + t;
            some.clear();
            some.extend(self.layers.of.row(row).iter().map(|&c| (c, self.exchanged_by(c, cuts))));
            let is_inside = some.iter().all(|&(_, exchanged)| exchanged == 0.0);
            for (d, sum) in sums.iter_mut().enumerate() {
                let (c, seconds) = if is_inside {
                    self.inside[row * self.replicas.len() + d]?
                } else {
                    self.quickest_of(some.iter().copied(), self.replicas[d])?
                };
                let choice = &self.layers.choices[c as usize];
                sum.seconds += seconds;
                sum.held += choice.held;
                sum.fixed += choice.fixed;
            }
        }
        Some(sums)
    }

    /// Whether the quickest choices of a part fit.
    fn fits_quickest(&self, part: usize, d: usize, samples: u32) -> bool {
        let quickest = self.parts[part].quickest[d];
        quickest.held * f64::from(samples) + quickest.fixed <= self.limits.memory
    }

    /// Whether a part with replicas, which each hold so many samples, is within a period. With more
    /// samples no part is quicker.
    fn is_within(&mut self, period: f64, begin: usize, part: usize, d: usize, samples: u32) -> bool {
        if self.parts[part].quickest[d].seconds > period {
            return false;
        }
        if self.fits_quickest(part, d, samples) {
            return true;
        }
        let (known, of) = (&self.parts[part].known, d as u32);
        let at = known.partition_point(|&(other, held, _)| (other, held) < (of, samples));
        if known[..at].last().is_some_and(|&(other, _, seconds)| other == of && seconds > period) {
            return false;
        }
        if let Some(&(other, held, seconds)) = known.get(at)
            && other == of
            && (held == samples || seconds <= period)
        {
            return seconds <= period;
        }
        let seconds = self.chosen(begin, part, d, samples).map_or(f64::INFINITY, |chosen| chosen.0);
        self.parts[part].known.insert(at, (of, samples, seconds));
        seconds <= period
    }

    /// Seconds per sample of a part, and the choice of each of its layers.
    fn chosen(&mut self, begin: usize, part: usize, d: usize, samples: u32) -> Option<(f64, Vec<u32>)> {
        let memory = if self.fits_quickest(part, d, samples) { f64::MAX } else { self.limits.memory };
        if !self.exchanged.contains_key(&(part as u32)) {
            let found = self.choices(begin, part);
            self.exchanged.insert(part as u32, found);
        }
        let exchanged = &self.exchanged[&(part as u32)];
        let option = |&(layer, c, exchanged): &(u32, u32, f64)| {
            let choice = &self.layers.choices[c as usize];
            let seconds = self.seconds(c, exchanged, self.replicas[d]);
            Way { layer, choice: c, seconds, bytes: choice.held * f64::from(samples) + choice.fixed }
        };
        within(exchanged.iter().map(option).collect(), memory)
    }

    /// The choices of each layer of a part, layer by layer: the layer's place in the part, the choice,
    /// and the bytes that it exchanges with other stages.
    fn choices(&self, begin: usize, part: usize) -> Vec<(u32, u32, f64)> {
        let (end, t) = (self.parts[part].end as usize, self.parts[part].degree as usize);
        let mut found = Vec::new();
        for (at, &v) in self.between(begin, end).iter().enumerate() {
            let row = self.layers.of.row(v as usize * self.layers.degrees.len() + t);
            found.extend(row.iter().map(|&c| (at as u32, c, self.exchanged_by(c, (begin, end)))));
        }
        found
    }

    /// The best stages and their period, of those with at most a period.
    fn best(&mut self, most: f64) -> Option<(f64, Vec<Stage>)> {
        let mut found = self.reach(most)?;
        let mut low = self.least();
        while found.0 - low > CLOSE * found.0 {
            let period = low + (found.0 - low) / 2.0;
            match self.reach(period) {
                Some(better) => found = better,
                None => low = period,
            }
        }
        Some(found)
    }

    /// No period is shorter: all devices share the least work of all layers.
    fn least(&self) -> f64 {
        let degrees = &self.layers.degrees;
        let of_row = |(row, &t): (usize, &u32)| {
            let seconds = self.layers.of.row(row).iter().map(|&c| self.layers.choices[c as usize].seconds);
            seconds.map(|s| s * f64::from(t)).fold(f64::INFINITY, f64::min)
        };
        let of_layer = |v: usize| {
            let rows = v * degrees.len()..(v + 1) * degrees.len();
            rows.zip(degrees).map(of_row).fold(f64::INFINITY, f64::min)
        };
        (0..self.layers.n).map(of_layer).sum::<f64>() / f64::from(self.limits.devices) * (1.0 - CLOSE)
    }

    /// Some stages within a period, and theirs.
    fn reach(&mut self, period: f64) -> Option<(f64, Vec<Stage>)> {
        let last = self.sets.len() - 1;
        let start = Reached { devices: 0, replicas: 0, part: 0, d: 0, next: 0 };
        let mut reached: Vec<Vec<Reached>> = vec![Vec::new(); self.sets.len()];
        reached[last].push(start);
        for i in (0..last).rev() {
            let mut some: Vec<Reached> = Vec::new();
            for part in self.from[i].clone() {
                let end = self.parts[part].end as usize;
                for (next, &after) in reached[end].iter().enumerate() {
                    if let Some(one) = self.extended(i, part, (next, after), period) {
                        add_if_better(&mut some, one);
                    }
                }
            }
            reached[i] = some;
        }
        let fewest = |a: &&Reached| (a.devices, a.replicas);
        let first = *reached[0].iter().min_by_key(fewest)?;
        Some(self.told(&reached, first))
    }

    /// A stage before others, with the fewest replicas that are quick enough.
    fn extended(&mut self, i: usize, part: usize, next: (usize, Reached), period: f64) -> Option<Reached> {
        let (index, after) = next;
        let tensor = self.layers.degrees[self.parts[part].degree as usize];
        let most = self.limits.devices.min(self.limits.samples);
        for d in 0..self.replicas.len() {
            let replicas = self.replicas[d];
            let devices = after.devices + tensor * replicas;
            let sum = after.replicas + replicas;
            if devices > self.limits.devices || sum > most {
                return None;
            }
            if self.is_within(period, i, part, d, sum.div_ceil(replicas)) {
                let (part, d, next) = (part as u32, d as u32, index as u32);
                return Some(Reached { devices, replicas: sum, part, d, next });
            }
        }
        None
    }

    /// The stages behind what reached the first cut, and their period.
    fn told(&mut self, reached: &[Vec<Reached>], first: Reached) -> (f64, Vec<Stage>) {
        let (mut at, mut one, mut period, mut stages) = (0, first, 0.0f64, Vec::new());
        while one.devices > 0 {
            let (part, d) = (one.part as usize, one.d as usize);
            let replicas = self.replicas[d];
            let samples = one.replicas.div_ceil(replicas);
            let (seconds, choices) = self.chosen(at, part, d, samples).expect("fits, as it did before");
            let end = self.parts[part].end as usize;
            let tensor = self.layers.degrees[self.parts[part].degree as usize];
            stages.push(Stage { layers: self.between(at, end), choices, tensor, replicas });
            period = period.max(seconds);
            (at, one) = (end, reached[end][one.next as usize]);
        }
        (period, stages)
    }
}

/// Keeps those of which none is better in both numbers.
fn add_if_better(some: &mut Vec<Reached>, one: Reached) {
    let is_covered = |a: &Reached, b: &Reached| b.devices <= a.devices && b.replicas <= a.replicas;
    if some.iter().any(|other| is_covered(&one, other)) {
        return;
    }
    some.retain(|other| !is_covered(other, &one));
    some.push(one);
}

/// A choice per layer of few seconds within a memory: of all quickest ones, those that save most bytes
/// per second lost are changed until all fit, then whatever fits is changed back. Nothing where even the
/// smallest choices do not fit.
fn within(mut options: Vec<Way>, memory: f64) -> Option<(f64, Vec<u32>)> {
    options.sort_unstable_by(|a, b| {
        let by_cost = a.seconds.total_cmp(&b.seconds).then(a.bytes.total_cmp(&b.bytes));
        a.layer.cmp(&b.layer).then(by_cost).then(a.choice.cmp(&b.choice))
    });
    let (ladder, first) = ladders(&options);
    let mut steps: Vec<(f64, u32, u32)> = Vec::with_capacity(ladder.len());
    for (layer, range) in first.windows(2).enumerate() {
        let rungs = range[0] + 1..range[1];
        steps.extend(rungs.map(|r| (rate(&ladder[r - 1], &ladder[r]), layer as u32, r as u32)));
    }
    steps.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then((a.1, a.2).cmp(&(b.1, b.2))));
    let mut rung: Vec<usize> = first[..first.len() - 1].to_vec();
    let mut bytes: f64 = rung.iter().map(|&r| ladder[r].bytes).sum();
    let mut steps = steps.into_iter();
    while bytes > memory {
        let (_, layer, r) = steps.next()?;
        bytes += ladder[r as usize].bytes - ladder[rung[layer as usize]].bytes;
        rung[layer as usize] = r as usize;
    }
    let mut slowed: Vec<usize> = (0..rung.len()).filter(|&layer| rung[layer] > first[layer]).collect();
    let lost = |layer: usize| ladder[rung[layer]].seconds - ladder[first[layer]].seconds;
    slowed.sort_by(|&a, &b| lost(b).total_cmp(&lost(a)).then(a.cmp(&b)));
    for layer in slowed {
        let more = |r: usize| ladder[r].bytes - ladder[rung[layer]].bytes;
        if let Some(quicker) = (first[layer]..rung[layer]).find(|&r| bytes + more(r) <= memory) {
            bytes += more(quicker);
            rung[layer] = quicker;
        }
    }
    let seconds = rung.iter().map(|&r| ladder[r].seconds).sum();
    Some((seconds, rung.iter().map(|&r| ladder[r].choice).collect()))
}

/// Seconds lost per byte saved.
fn rate(quick: &Way, small: &Way) -> f64 {
    (small.seconds - quick.seconds) / (quick.bytes - small.bytes)
}

/// Per layer its quickest choice, and each slower one that saves bytes and is on the convex hull of both;
/// where each layer's begin. Options are sorted by layer and seconds.
fn ladders(options: &[Way]) -> (Vec<Way>, Vec<usize>) {
    let (mut ladder, mut first): (Vec<Way>, Vec<usize>) = (Vec::with_capacity(options.len()), Vec::new());
    for one in options {
        if one.layer as usize == first.len() {
            first.push(ladder.len());
        }
        let begin = first[first.len() - 1];
        if ladder[begin..].last().is_some_and(|last| one.bytes >= last.bytes) {
            continue;
        }
        while let [.., a, b] = &ladder[begin..]
            && rate(a, b) >= rate(b, one)
        {
            ladder.pop();
        }
        ladder.push(*one);
    }
    first.push(ladder.len());
    (ladder, first)
}
