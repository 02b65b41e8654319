//! The cuts of a partial order: all of its downsets, where they are few.
//!
//! A downset is a set of groups that holds all that must come before any of its groups. A stage of
//! contiguous groups is what lies between two downsets, one inside the other.

use std::ops::Range;

use super::walk::Cuts;
use super::{Groups, Sums};

/// The most downsets that are listed.
const MOST: usize = 32_768;

/// The most words of 64 bits that all downsets take.
const MOST_WORDS: usize = 1 << 22;

/// The most words that are looked at while they are listed.
const MOST_STEPS: usize = 1 << 28;

/// All downsets, by accelerator time and then by size.
pub struct Downsets<'a> {
    groups: &'a Groups,
    /// Words per downset.
    words: usize,
    /// The downsets, a bit per group.
    bits: Vec<u64>,
    sums: Vec<Sums>,
    /// The groups of each tensor, a bit per group.
    pins: Vec<u64>,
}

/// Downsets as they are found.
struct Listing {
    bits: Vec<u64>,
    sums: Vec<Sums>,
    /// Position, in the order, of the next group that may be added to each.
    next: Vec<u32>,
}

fn contains(set: &[u64], part: &[u64]) -> bool {
    set.iter().zip(part).all(|(s, p)| p & !s == 0)
}

fn masks<'r>(n: usize, words: usize, row: impl Fn(usize) -> &'r [u32]) -> Vec<u64> {
    let mut bits = vec![0u64; n * words];
    for r in 0..n {
        row(r).iter().for_each(|&g| bits[r * words + g as usize / 64] |= 1 << (g % 64));
    }
    bits
}

impl<'a> Downsets<'a> {
    /// All downsets; nothing where they are more than can be looked through.
    ///
    /// Each is made once: its groups are added in a given topological order.
    pub fn list(groups: &'a Groups, order: &[u32]) -> Option<Self> {
        let (n, words) = (groups.len(), groups.len().div_ceil(64));
        if (n + 1) * words > MOST_WORDS || (groups.cost.len() + 1) * words > MOST_WORDS {
            return None;
        }
        let pins = masks(groups.cost.len(), words, |t| groups.pins.row(t));
        let before = masks(n, words, |g| groups.before.row(g));
        let mut found = Listing { bits: vec![0; words], sums: vec![Sums::default()], next: vec![0] };
        let (mut at, mut steps) = (0, 0);
        while at < found.next.len() {
            for (p, &group) in order.iter().enumerate().skip(found.next[at] as usize) {
                let g = group as usize;
                steps += words;
                if contains(&found.bits[at * words..][..words], &before[g * words..][..words]) {
                    found.add(groups, &pins, at, (group, p as u32 + 1));
                }
            }
            at += 1;
            if found.next.len() > MOST || found.bits.len() > MOST_WORDS || steps > MOST_STEPS {
                return None;
            }
        }
        Some(found.sorted(groups, words, pins))
    }

    /// Each downset, a bit per group in words of 64.
    pub fn sets(&self) -> impl Iterator<Item = &[u64]> {
        self.bits.chunks_exact(self.words)
    }

    /// The groups of a cut that another, smaller cut lacks.
    pub fn between(&self, smaller: usize, larger: usize) -> Vec<u32> {
        let has = |cut: usize, g: u32| self.bits[cut * self.words + g as usize / 64] >> (g % 64) & 1 == 1;
        (0..self.groups.len() as u32).filter(|&g| has(larger, g) && !has(smaller, g)).collect()
    }

    /// The tensors that go over cut i: what each joins outside of it, and their times. Tensors that
    /// join the same are taken together.
    fn crossing(&self, i: usize) -> (Vec<u64>, Vec<f64>) {
        let words = self.words;
        let set = &self.bits[i * words..][..words];
        let mut rests: Vec<(Vec<u64>, f64)> = Vec::new();
        for (t, &cost) in self.groups.cost.iter().enumerate() {
            let pins = &self.pins[t * words..][..words];
            let meets = pins.iter().zip(set).any(|(p, s)| p & s != 0);
            if cost > 0.0 && meets && !contains(set, pins) {
                rests.push((pins.iter().zip(set).map(|(p, s)| p & !s).collect(), cost));
            }
        }
        rests.sort_by(|a, b| a.0.cmp(&b.0));
        let mut joined: (Vec<u64>, Vec<f64>) = (Vec::new(), Vec::new());
        for same in rests.chunk_by(|a, b| a.0 == b.0) {
            joined.0.extend(&same[0].0);
            joined.1.push(same.iter().map(|r| r.1).sum());
        }
        joined
    }
}

impl Listing {
    /// Adds the downset that has one more group than another.
    fn add(&mut self, groups: &Groups, pins: &[u64], from: usize, (group, next): (u32, u32)) {
        let words = self.bits.len() / self.next.len();
        let start = self.bits.len();
        self.bits.extend_from_within(from * words..(from + 1) * words);
        let mut sums = self.sums[from].with(groups, group);
        let (word, bit) = (group as usize / 64, 1u64 << (group % 64));
        for &t in groups.tensors.row(group as usize) {
            let pins = &pins[t as usize * words..][..words];
            let meets = self.bits[start..].iter().zip(pins).any(|(s, p)| p & s != 0);
            self.bits[start + word] |= bit;
            let crosses = !contains(&self.bits[start..], pins);
            self.bits[start + word] &= !bit;
            sums.crossing += groups.cost[t as usize] * (f64::from(crosses) - f64::from(meets));
        }
        self.bits[start + word] |= bit;
        self.sums.push(sums);
        self.next.push(next);
    }

    fn sorted(self, groups: &Groups, words: usize, pins: Vec<u64>) -> Downsets<'_> {
        let set = |i: u32| &self.bits[i as usize * words..][..words];
        let size = |i: u32| set(i).iter().map(|w| w.count_ones()).sum::<u32>();
        let mut order: Vec<u32> = (0..self.next.len() as u32).collect();
        order.sort_by(|&a, &b| {
            let time = |i: u32| self.sums[i as usize].accelerator;
            time(a).total_cmp(&time(b)).then_with(|| size(a).cmp(&size(b))).then(a.cmp(&b))
        });
        let bits = order.iter().flat_map(|&i| set(i)).copied().collect();
        let sums = order.iter().map(|&i| self.sums[i as usize]).collect();
        Downsets { groups, words, bits, sums, pins }
    }
}

impl Cuts for Downsets<'_> {
    fn sums(&self) -> &[Sums] {
        &self.sums
    }

    /// As for [`super::line::Line`]. O(cuts x (words of a set + tensors over cut i)).
    fn stages(&mut self, i: usize, range: Range<usize>, mut visit: impl FnMut(usize, &Sums, f64)) {
        let words = self.words;
        let inner = &self.bits[i * words..][..words];
        let (rests, costs) = self.crossing(i);
        for j in range {
            let outer = &self.bits[j * words..][..words];
            if !contains(outer, inner) {
                continue;
            }
            let mut transfers = self.sums[j].crossing;
            for (rest, cost) in rests.chunks_exact(words).zip(&costs) {
                if rest.iter().zip(outer).all(|(r, o)| r & o == 0) {
                    transfers -= cost;
                } else if contains(outer, rest) {
                    transfers += cost;
                }
            }
            visit(j, &self.sums[j], transfers);
        }
    }
}
