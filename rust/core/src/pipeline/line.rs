//! The cuts of one linear order of groups: its positions, or some of them.

use std::ops::Range;

use super::walk::Cuts;
use super::{Groups, Sums};

/// Some positions of an order, the first and the last among them. A tensor is told by the positions
/// of its groups.
pub struct Line<'a> {
    groups: &'a Groups,
    /// The positions, ascending.
    positions: Vec<u32>,
    /// The first cut after the group at each position.
    cut_after: Vec<u32>,
    sums: Vec<Sums>,
    /// The positions of each tensor's groups, ascending, tensor after tensor as in `groups.pins`.
    pins: Vec<u32>,
    /// The tensors, by their first position.
    starting: Vec<u32>,
    /// How many of `starting` have been looked at, and those of them that went on when last asked.
    started: usize,
    active: Vec<u32>,
    /// What is added to the transfers from each cut on. Zero between calls.
    steps: Vec<f64>,
}

impl<'a> Line<'a> {
    /// All positions of an order.
    pub fn new(groups: &'a Groups, order: &[u32]) -> Self {
        let mut position = vec![0u32; groups.len()];
        order.iter().enumerate().for_each(|(p, &g)| position[g as usize] = p as u32);
        let mut pins: Vec<u32> = groups.pins.items().iter().map(|&g| position[g as usize]).collect();
        for t in 0..groups.cost.len() {
            pins[groups.pins.range(t)].sort_unstable();
        }
        let mut starting: Vec<u32> =
            (0..groups.cost.len() as u32).filter(|&t| groups.pins.row(t as usize).len() > 1).collect();
        starting.sort_by_key(|&t| pins[groups.pins.range(t as usize).start]);
        let n = groups.len() as u32;
        let mut line = Self {
            groups,
            positions: (0..=n).collect(),
            cut_after: (1..=n).collect(),
            sums: Vec::new(),
            pins,
            starting,
            started: 0,
            active: Vec::new(),
            steps: vec![0.0; n as usize + 2],
        };
        line.sums = line.summed(order);
        line
    }

    /// The same order cut at fewer positions: where the accelerator time passes a multiple of a
    /// part of the whole, and the position of the lightest cut in between.
    pub fn thinned(mut self, parts: usize) -> Self {
        let whole = self.sums[self.sums.len() - 1].accelerator;
        let part = |p: usize| (self.sums[p].accelerator / whole * parts as f64) as usize;
        let mut chosen = vec![0u32];
        let mut start = 0;
        for p in 1..self.sums.len() {
            if p + 1 == self.sums.len() || part(p) != part(start) {
                let lightest = (start..p)
                    .min_by(|&a, &b| self.sums[a].crossing.total_cmp(&self.sums[b].crossing))
                    .unwrap_or(start);
                chosen.extend([lightest as u32, p as u32]);
                start = p;
            }
        }
        chosen.sort_unstable();
        chosen.dedup();
        self.sums = chosen.iter().map(|&p| self.sums[p as usize]).collect();
        let cuts = chosen.windows(2).enumerate();
        self.cut_after = cuts.flat_map(|(c, ends)| (ends[0]..ends[1]).map(move |_| c as u32 + 1)).collect();
        self.positions = chosen;
        self
    }

    /// The position of a cut.
    pub fn position(&self, cut: usize) -> usize {
        self.positions[cut] as usize
    }

    fn ends(&self, tensor: u32) -> &[u32] {
        &self.pins[self.groups.pins.range(tensor as usize)]
    }

    fn summed(&self, order: &[u32]) -> Vec<Sums> {
        let mut sums = vec![Sums::default(); order.len() + 1];
        for (p, &g) in order.iter().enumerate() {
            sums[p + 1] = sums[p].with(self.groups, g);
        }
        let mut change = vec![0.0; order.len() + 1];
        for &t in &self.starting {
            let ends = self.ends(t);
            change[ends[0] as usize + 1] += self.groups.cost[t as usize];
            change[ends[ends.len() - 1] as usize + 1] -= self.groups.cost[t as usize];
        }
        let mut crossing = 0.0;
        for (sum, change) in sums.iter_mut().zip(change) {
            crossing += change;
            sum.crossing = crossing;
        }
        sums
    }

    /// Brings `active` to the tensors that go over a position: some groups before it, some after.
    fn advance(&mut self, position: u32) {
        let first = |t: u32| self.pins[self.groups.pins.range(t as usize).start];
        while self.starting.get(self.started).is_some_and(|&t| first(t) < position) {
            self.active.push(self.starting[self.started]);
            self.started += 1;
        }
        let (groups, pins) = (self.groups, &self.pins);
        self.active.retain(|&t| pins[groups.pins.range(t as usize).end - 1] >= position);
    }
}

impl Cuts for Line<'_> {
    fn sums(&self) -> &[Sums] {
        &self.sums
    }

    /// A stage from cut i pays for all tensors that go over its end. Of those that go over its start
    /// too, it pays only for the ones that join a group of it, and those it pays for even where they
    /// end in it. O(tensors over cut i x log(groups of one) + cuts).
    fn stages(&mut self, i: usize, range: Range<usize>, mut visit: impl FnMut(usize, &Sums, f64)) {
        let from = self.positions[i];
        self.advance(from);
        let mut transfers = 0.0;
        let active = std::mem::take(&mut self.active);
        for &t in &active {
            let cost = self.groups.cost[t as usize];
            transfers -= cost;
            let ends = self.ends(t);
            let (met, last) = (ends[ends.partition_point(|&p| p < from)], ends[ends.len() - 1]);
            for end in [met, last] {
                let cut = self.cut_after[end as usize] as usize;
                if cut <= range.start {
                    transfers += cost;
                } else if cut < range.end {
                    self.steps[cut] += cost;
                }
            }
        }
        self.active = active;
        for j in range {
            transfers += std::mem::take(&mut self.steps[j]);
            visit(j, &self.sums[j], transfers + self.sums[j].crossing);
        }
    }
}
