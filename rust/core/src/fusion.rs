//! Sequential fusion: cuts an order of ops into segments so that the least data crosses cuts.
//!
//! Celeritas' Optimal Operation Fusion (eq. (4)-(6)), which is Kernighan's optimal sequential
//! partition (1971): S(j) = min over i of S(i) + cost(i, j) for half-open segments [i, j) of at most
//! `max_ops` ops and `max_bytes` bytes. Changed from the paper:
//! * A tensor is charged to the segment that *consumes* it, once: if the op at position p reads a
//!   tensor whose producer or latest earlier reader stands at q, the segments that begin in (q, p]
//!   pay for it. The sum is the number of transfers (weighted by time) the simulator makes when every
//!   segment has a device of its own. With one reader per tensor this is Kernighan's objective.
//! * The last segment is closed (sentinel n), and an op over a limit is a segment of its own.
//! * Costs are integer ticks, so that equal costs are equal; of equal costs the longer segment wins.
//! * `max_time` caps a segment's compute time, which the objective alone does not balance.
//! * [`exactly`] cuts into a given number of segments.
//!
//! Each charge raises a suffix of the candidates, so the window of candidates is kept in blocks with
//! a pending increase and a minimum each: O((V + E) sqrt(R)) for windows of R, and nearly O(V + E)
//! on real graphs, where most tensors are read soon.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::clock::Ticks;
use crate::graph::Graph;
use crate::ids::OpId;

/// Limits on a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most ops (the paper's R).
    pub max_ops: usize,
    /// Most bytes (the paper's M).
    pub max_bytes: u64,
    /// Most compute time.
    pub max_time: Ticks,
}

/// The best cuts: first positions of the segments after the first, ascending.
///
/// `order` is topological; `tensor_cost`, `op_bytes`, `op_time` are per tensor and per op. Ops of
/// different `class` (the device types they allow) never share a segment.
pub fn breakpoints(
    graph: &Graph,
    order: &[OpId],
    tensor_cost: &[Ticks],
    op_bytes: &[u64],
    op_time: &[Ticks],
    class: &[u64],
    limits: Limits,
) -> Vec<u32> {
    let charges = Charges::new(graph, order, tensor_cost, op_bytes, op_time, class, limits);
    charges.cut(Price::NONE).cuts()
}

/// Cuts into a given number of segments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exact {
    /// First positions of the segments after the first, ascending.
    pub cuts: Vec<u32>,
    /// Transfer time of the tensors that segments read and did not make, each once per segment.
    pub cost: Ticks,
}

/// Cuts an order into `segments` segments, or into the fewest that limits allow.
///
/// A price per segment (Lagrange) steers the number: the cuts found at a price are the cheapest of
/// their number. Where no price gives the very number, the nearest smaller one is split where that
/// costs least. About ten times [`breakpoints`] at worst.
#[expect(clippy::too_many_arguments, reason = "those of breakpoints and one more")]
pub fn exactly(
    graph: &Graph,
    order: &[OpId],
    tensor_cost: &[Ticks],
    op_bytes: &[u64],
    op_time: &[Ticks],
    class: &[u64],
    limits: Limits,
    segments: usize,
) -> Exact {
    let charges = Charges::new(graph, order, tensor_cost, op_bytes, op_time, class, limits);
    let wanted = segments.clamp(1, order.len().max(1));
    let most = Price::limit(order.len());
    // Invariant: `few` is at price `dear` and has at most the wanted number of segments, unless that is
    // the highest price; at price `cheap` there are more than wanted.
    let (mut dear, mut few) = (0, charges.cut(Price::NONE));
    if few.segments() <= wanted {
        // Cuts that cost nothing are common: often they are all it takes.
        let (least, split) = (charges.split(few.cuts(), 1).cost, charges.split(few.cuts(), wanted));
        if split.cost == least {
            return split;
        }
    }
    let mut cheap = -most;
    // About what a cut costs: the scale of prices.
    let mut step = (charges.total / (order.len() as u64 + 1)).clamp(1, most as u64 / 2) as i64;
    let mut rounds = 0;
    if few.segments() > wanted {
        cheap = 0;
        (dear, few) = (most, charges.cut(Price(most)));
        rounds = 1;
    }
    while few.segments() != wanted && dear - cheap > 1 && rounds < PRICES {
        let is_open = dear == most || cheap == -most;
        let price = if is_open {
            let next = if dear == most { cheap + step } else { dear - step };
            step = step.saturating_mul(4);
            next
        } else if cheap / 8 < dear && dear < 0 {
            // Prices of another order of magnitude: halve their ratio.
            -((cheap as f64 * dear as f64).sqrt() as i64)
        } else {
            cheap + (dear - cheap) / 2
        };
        let price = price.clamp(cheap + 1, dear - 1);
        let found = charges.cut(Price(price));
        if found.segments() <= wanted {
            (dear, few) = (price, found);
        } else {
            cheap = price;
        }
        rounds += 1;
    }
    charges.split(few.cuts(), wanted)
}

/// Prices that [`exactly`] tries.
const PRICES: usize = 12;

/// What a segment costs besides what it reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Price(i64);

impl Price {
    const NONE: Self = Self(0);

    /// The highest price: sums over all segments stay below [`OFFSET`].
    fn limit(n: usize) -> i64 {
        (1i64 << 58) / (n as i64 + 1)
    }
}

/// What each position of an order adds to the candidates of its window: all that the search for cuts
/// needs, whatever the price of a segment.
struct Charges {
    /// First candidate of each position's window.
    low: Vec<u32>,
    /// Added to every candidate of the window.
    everywhere: Vec<Ticks>,
    /// Suffixes of the window: those of position p are `starts[p]..starts[p + 1]`.
    starts: Vec<u32>,
    /// First candidate of a suffix, and what is added to it.
    suffixes: Vec<(u32, Ticks)>,
    window: usize,
    /// Sum of all charges.
    total: Ticks,
}

impl Charges {
    fn new(
        graph: &Graph,
        order: &[OpId],
        tensor_cost: &[Ticks],
        op_bytes: &[u64],
        op_time: &[Ticks],
        class: &[u64],
        limits: Limits,
    ) -> Self {
        let n = order.len();
        let max_ops = limits.max_ops.clamp(1, n.max(1));
        // Position of each tensor's producer or latest reader so far; MAX before the first.
        let mut last = vec![u32::MAX; graph.n_tensors()];
        let mut charges = Self {
            low: Vec::with_capacity(n),
            everywhere: Vec::with_capacity(n),
            starts: Vec::with_capacity(n + 1),
            suffixes: Vec::with_capacity(graph.n_edges()),
            window: 1,
            total: 0,
        };
        charges.starts.push(0);
        let (mut low, mut bytes, mut time) = (0, 0u64, 0u64);
        for (position, &op) in order.iter().enumerate() {
            let end = position + 1;
            bytes = bytes.saturating_add(op_bytes[op.ix()]);
            time += op_time[op.ix()];
            let class_from =
                if position > 0 && class[op.ix()] != class[order[position - 1].ix()] { position } else { 0 };
            while low < position
                && (low < class_from
                    || end - low > max_ops
                    || bytes > limits.max_bytes
                    || time > limits.max_time)
            {
                let first = order[low].ix();
                bytes = sum_without(bytes, op_bytes, first, &order[low + 1..end]);
                time -= op_time[first];
                low += 1;
            }
            charges.low.push(low as u32);
            charges.window = charges.window.max(end - low);

            let mut all = 0;
            for &t in graph.inputs(op).iter().chain(graph.pulls(op)) {
                let seen = std::mem::replace(&mut last[t.ix()], position as u32);
                if seen == u32::MAX {
                    continue;
                }
                charges.total += tensor_cost[t.ix()];
                if seen < low as u32 {
                    all += tensor_cost[t.ix()];
                } else {
                    charges.suffixes.push((seen + 1, tensor_cost[t.ix()]));
                }
            }
            charges.everywhere.push(all);
            charges.starts.push(charges.suffixes.len() as u32);
            for t in graph.outputs(op) {
                last[t.ix()] = position as u32;
            }
        }
        charges
    }

    fn suffixes(&self, position: usize) -> &[(u32, Ticks)] {
        &self.suffixes[self.starts[position] as usize..self.starts[position + 1] as usize]
    }

    /// The cheapest cuts at a price per segment; of equal ones the longer segment.
    fn cut(&self, price: Price) -> Cut {
        let n = self.low.len();
        // A negative price is a charge per position, less one per segment: nothing goes below zero.
        let (per_segment, per_position) = (price.0.max(0) as u64, (-price.0).max(0) as u64);
        let mut candidates = Candidates::new(n, self.window);
        let mut previous = vec![0u32; n + 1];
        let mut best = 0;
        for position in 0..n {
            candidates.everywhere += per_position;
            candidates.push(best + per_segment);
            candidates.drop_below(self.low[position] as usize);
            candidates.everywhere += self.everywhere[position];
            for &(from, cost) in self.suffixes(position) {
                candidates.raise(from as usize, cost);
            }
            let (cost, from) = candidates.best();
            best = cost;
            previous[position + 1] = from as u32;
        }
        Cut { previous }
    }

    /// More cuts, each where it costs least now, until there are `wanted` segments; and what all cost.
    fn split(&self, cuts: Vec<u32>, wanted: usize) -> Exact {
        let n = self.low.len();
        let mut is_cut = vec![false; n + 1];
        is_cut[0] = true;
        cuts.iter().for_each(|&c| is_cut[c as usize] = true);
        let mut bounds: Vec<u32> = std::iter::once(0).chain(cuts).chain([n as u32]).collect();
        let mut segments: BinaryHeap<Reverse<Split>> = BinaryHeap::new();
        let mut change = vec![0; n + 1];
        let add = |heap: &mut BinaryHeap<_>, change: &mut [i64], from: u32, to: u32| {
            if let Some((cost, at)) = self.cheapest_split(change, from, to) {
                heap.push(Reverse((cost, at, from, to)));
            }
        };
        let mut count = bounds.len() - 1;
        if count < wanted {
            for w in bounds.windows(2) {
                add(&mut segments, &mut change, w[0], w[1]);
            }
        }
        while count < wanted
            && let Some(Reverse((_, at, from, to))) = segments.pop()
        {
            is_cut[at as usize] = true;
            count += 1;
            add(&mut segments, &mut change, from, at);
            add(&mut segments, &mut change, at, to);
        }
        bounds = (1..n as u32).filter(|&p| is_cut[p as usize]).collect();
        let mut cost = 0;
        let mut begin = 0;
        for (position, everywhere) in self.everywhere.iter().enumerate() {
            if is_cut[position] {
                begin = position as u32;
            }
            let crossing = self.suffixes(position).iter().filter(|s| s.0 <= begin);
            cost += everywhere + crossing.map(|s| s.1).sum::<Ticks>();
        }
        Exact { cuts: bounds, cost }
    }

    /// Where a segment splits cheapest, and at what cost; nowhere, if it is one op.
    ///
    /// In its middle half only, so that splitting over and over is O(n log n); of equals, nearest the middle. A charge of a position
    /// with first candidate q is paid anew by a cut in q..=position. `change` is scratch.
    fn cheapest_split(&self, change: &mut [i64], from: u32, to: u32) -> Option<(Ticks, u32)> {
        change[from as usize..=to as usize].fill(0);
        for position in from as usize..to as usize {
            for &(first, charge) in self.suffixes(position).iter().filter(|s| s.0 > from) {
                change[first as usize] += charge as i64;
                change[position + 1] -= charge as i64;
            }
        }
        let quarter = (to - from) / 4;
        let mut sum = 0;
        let mut best = None;
        for p in from + 1..to - quarter {
            sum += change[p as usize];
            if p >= from + quarter && best.is_none_or(|(least, _)| sum < least) {
                best = Some((sum, p));
            }
        }
        best.map(|(cost, p)| (cost as Ticks, p))
    }
}

/// What a split costs, where it is, and where its segment begins and ends.
type Split = (Ticks, u32, u32, u32);

/// Where the segment that ends at each position begins.
struct Cut {
    previous: Vec<u32>,
}

impl Cut {
    fn segments(&self) -> usize {
        let mut count = 0;
        let mut at = self.previous.len() - 1;
        while at > 0 {
            count += 1;
            at = self.previous[at] as usize;
        }
        count
    }

    /// First positions of the segments after the first, ascending.
    fn cuts(&self) -> Vec<u32> {
        let mut cuts = Vec::new();
        let mut at = self.previous[self.previous.len() - 1];
        while at > 0 {
            cuts.push(at);
            at = self.previous[at as usize];
        }
        cuts.reverse();
        cuts
    }
}

/// `sum` less one op's bytes; counted anew where the sum had saturated.
fn sum_without(sum: u64, op_bytes: &[u64], dropped: usize, rest: &[OpId]) -> u64 {
    if sum == u64::MAX {
        rest.iter().fold(0, |s, op| s.saturating_add(op_bytes[op.ix()]))
    } else {
        sum - op_bytes[dropped]
    }
}

/// Number of the segment that each op is in.
pub fn segments(order: &[OpId], cuts: &[u32]) -> Vec<u32> {
    let mut group = vec![0; order.len()];
    let mut next = cuts.iter().peekable();
    let mut current = 0;
    for (position, op) in order.iter().enumerate() {
        if next.next_if(|&&cut| cut as usize == position).is_some() {
            current += 1;
        }
        group[op.ix()] = current;
    }
    group
}

/// The candidates i of a window, each with S(i) + cost(i, j) for the current j.
///
/// Invariants: the value of candidate i is `values[i] + raised[i / block] + everywhere - OFFSET`;
/// `least[b]` is the smallest of `values` over the live candidates of block b, plus `raised[b]`.
struct Candidates {
    block: usize,
    low: usize,
    values: Vec<u64>,
    raised: Vec<u64>,
    least: Vec<u64>,
    /// Increases that hit the whole window, new candidates excepted: counted here once, and taken
    /// off candidates pushed later.
    everywhere: u64,
}

/// Larger than any value of a live candidate.
const DEAD: u64 = 1 << 62;

/// Added to stored values, so that one pushed after many increases stays positive.
const OFFSET: u64 = 1 << 61;

impl Candidates {
    fn new(n: usize, window: usize) -> Self {
        let block = (window as f64).sqrt().ceil() as usize;
        let block = block.next_power_of_two().max(16);
        let blocks = n / block + 1;
        Self {
            block,
            low: 0,
            values: Vec::with_capacity(n),
            raised: vec![0; blocks],
            least: vec![DEAD; blocks],
            everywhere: 0,
        }
    }

    /// Adds the next candidate.
    fn push(&mut self, value: u64) {
        let b = self.values.len() / self.block;
        let stored = value + OFFSET - self.everywhere - self.raised[b];
        self.values.push(stored);
        self.least[b] = self.least[b].min(stored + self.raised[b]);
    }

    /// Forgets the candidates below `low`.
    fn drop_below(&mut self, low: usize) {
        if low == self.low {
            return;
        }
        let b = low / self.block;
        self.low = low;
        self.recount(b);
    }

    /// Adds `cost` to the candidates from `from` on.
    fn raise(&mut self, from: usize, cost: u64) {
        if from >= self.values.len() {
            return;
        }
        if from <= self.low {
            self.everywhere += cost;
            return;
        }
        let first = from / self.block;
        let last = (self.values.len() - 1) / self.block;
        let end = self.values.len().min((first + 1) * self.block);
        for v in &mut self.values[from..end] {
            *v += cost;
        }
        self.recount(first);
        let later = first + 1..last + 1;
        for (raised, least) in self.raised[later.clone()].iter_mut().zip(&mut self.least[later]) {
            *raised += cost;
            *least += cost;
        }
    }

    fn recount(&mut self, b: usize) {
        let (from, end) = (self.low.max(b * self.block), self.values.len().min((b + 1) * self.block));
        self.least[b] = self.values[from..end].iter().copied().min().unwrap_or(DEAD) + self.raised[b];
    }

    /// The least value and the earliest candidate that has it.
    fn best(&self) -> (u64, usize) {
        let last = (self.values.len() - 1) / self.block;
        let mut least = u64::MAX;
        let mut at = 0;
        for b in self.low / self.block..=last {
            if self.least[b] < least {
                (least, at) = (self.least[b], b);
            }
        }
        let (from, end) = (self.low.max(at * self.block), self.values.len().min((at + 1) * self.block));
        let wanted = least - self.raised[at];
        let i = self.values[from..end].iter().position(|&v| v == wanted).unwrap_or(0);
        (least + self.everywhere - OFFSET, from + i)
    }
}
