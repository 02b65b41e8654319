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
//! Each charge raises the values of a suffix of the candidates: of two candidates, the later one can only
//! lose against the earlier one. So a stack with path halving finds the best candidates in O((V + E) α(V)),
//! however long the window is ([`Search`]).

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::clock::Ticks;
use crate::coarsen::Weights;
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
/// `order` is topological.
pub fn breakpoints(graph: &Graph, order: &[OpId], weights: &Weights<'_>, limits: Limits) -> Vec<u32> {
    let charges = Charges::new(graph, order, weights, limits);
    Search::new(order.len()).cut(&charges, 0).cuts
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
/// A price per segment (a Lagrange multiplier) steers the number of segments. The cuts found at a price are
/// the cheapest cuts into their number of segments: a corner of the lower hull of least cost over number.
/// Prices are narrowed down until the two corners next to the wanted number are found. If neither corner has
/// the wanted number, cuts are taken from both: between two cuts that both corners share, the cuts of either
/// may be taken. At the price where both corners cost the same this costs nothing, so the result is optimal
/// if it has the wanted number. If it has fewer segments, the rest are split off where that costs least.
/// (Least cost need not be convex in the number, so a hull may have long edges: without limits, cuts that
/// share charges cost less together.) O((V + E) α(V)) a price.
///
/// Without limits the cost of cuts is submodular: a charge that several cuts hit is paid once. So the
/// cheapest cuts at one price are among the cheapest cuts at any lower price, and once a price gives too many
/// cuts only these are searched.
pub fn exactly(
    graph: &Graph,
    order: &[OpId],
    weights: &Weights<'_>,
    limits: Limits,
    segments: usize,
) -> Exact {
    let charges = Charges::new(graph, order, weights, limits);
    let n = order.len();
    let longest = charges.longest();
    let fewest = longest.len() + 1;
    let wanted = segments.clamp(fewest, n.max(1));
    let mut search = Search::new(n);
    let mut nested: Option<Charges> = None;
    let free = if fewest == 1 { charges.uncut() } else { search.cut(&charges, 0) };
    let (mut few, mut many, base);
    if free.count() <= wanted {
        // Cuts that cost nothing are common. Often they are enough.
        let split = charges.split(&free, wanted, 0);
        if split.count() == wanted {
            return charges.exact(split);
        }
        base = free.count();
        (few, many) = (free, charges.all_cut());
    } else {
        base = fewest;
        let dear = search.cut(&charges, PRICE / (fewest as i64 + 2));
        (few, many) = (if dear.count() <= wanted { dear } else { charges.corner(longest, PRICE) }, free);
    }
    let nests = fewest == 1;
    // In graphs of models the number grows with about the fourth power of what a segment earns. Where cuts
    // nest, too many cuts are better than too few, because later searches are among them.
    let power = if nests { 5.0 } else { 4.0 };
    // Whether the last guess at a price came much closer to the wanted number.
    let mut guessing = true;
    for _ in 0..PRICES {
        if few.count() >= wanted || many.count() == few.count() + 1 {
            break;
        }
        // Next to the wanted number there is nothing left to guess.
        guessing &= many.count() > few.count() + 2;
        let guess = if guessing { few.guess(&many, base, wanted, power) } else { None };
        let price = guess.unwrap_or(few.price_to(&many)).max(-PRICE / (n as i64 + 2));
        let among = nested.as_ref().unwrap_or(&charges);
        let found = search.cut(among, price);
        if guess.is_none() && found.at(price) >= few.at(price).min(many.at(price)) {
            // No corner lies between the two.
            break;
        }
        if found.count() > wanted && nests {
            nested = Some(among.only(&found.cuts));
        }
        let corner = if found.count() <= wanted { &mut few } else { &mut many };
        guessing = 2 * found.count().abs_diff(wanted) <= corner.count().abs_diff(wanted);
        *corner = found;
    }
    let blended = charges.corner(few.blended(&many, wanted), few.price);
    charges.exact(charges.split(&blended, wanted, Ticks::MAX))
}

/// Most prices that [`exactly`] tries; it takes about six.
const PRICES: usize = 40;

/// The prices of all segments together stay below this, so that sums of costs (2^53 at most, see
/// [`crate::clock`]) and prices fit 64 bits.
const PRICE: i64 = 1 << 60;

/// Costs are counted in units so fine that all costs together come to about this many. Then integer prices
/// can tell two corners apart even where all costs are a few ticks.
const SPAN: Ticks = 1 << 50;

/// Cuts, often the cheapest at a price: a corner of the lower hull of cost over number.
#[derive(Clone)]
struct Corner {
    cuts: Vec<u32>,
    /// The cost of all segments together.
    cost: Ticks,
    price: i64,
}

impl Corner {
    fn count(&self) -> usize {
        self.cuts.len() + 1
    }

    /// Cost at a price per segment.
    fn at(&self, price: i64) -> i64 {
        self.cost as i64 + price * self.count() as i64
    }

    /// The price at which another corner, of more segments, costs the same.
    fn price_to(&self, many: &Self) -> i64 {
        (self.cost as i64 - many.cost as i64).div_euclid((many.count() - self.count()) as i64)
    }

    /// A guess at the price for `wanted` segments, strictly between those of the two corners.
    ///
    /// `base` is the number of segments that cost nothing. The number of segments beyond the base grows as a
    /// power of the price: the power that fits the two corners or, where one corner is the base, the given
    /// `power`.
    fn guess(&self, many: &Self, base: usize, wanted: usize, power: f64) -> Option<i64> {
        let past = |count: usize| (count as f64 - base as f64).ln();
        let (low, high) = (past(self.count()), past(many.count()));
        let price = if low.is_finite() && self.price < 0 {
            let share = (past(wanted) - low) / (high - low);
            self.price as f64 * (many.price as f64 / self.price as f64).powf(share)
        } else {
            many.price as f64 * ((past(wanted) - high) / power).exp()
        };
        Some(price as i64).filter(|&price| many.price < price && price < self.price)
    }

    /// Between each two cuts that both corners share, the cuts of one of them: those of `many` while that
    /// makes no more than `wanted` segments.
    fn blended(&self, many: &Self, wanted: usize) -> Vec<u32> {
        let mut left = wanted.saturating_sub(self.count());
        let mut cuts = Vec::with_capacity(wanted);
        let (mut a, mut b) = (self.cuts.as_slice(), many.cuts.as_slice());
        while left > 0 && !b.is_empty() {
            // Up to the next cut they share.
            let (mut i, mut j) = (0, 0);
            while i < a.len() && j < b.len() && a[i] != b[j] {
                if a[i] < b[j] { i += 1 } else { j += 1 }
            }
            let shared = i < a.len() && j < b.len();
            if !shared {
                (i, j) = (a.len(), b.len());
            }
            if j > i && j - i <= left {
                left -= j - i;
                cuts.extend(&b[..j]);
            } else {
                cuts.extend(&a[..i]);
            }
            cuts.extend(shared.then(|| a[i]));
            (a, b) = (&a[a.len().min(i + 1)..], &b[b.len().min(j + 1)..]);
        }
        cuts.extend(a);
        cuts
    }
}

/// What each position of an order charges to the candidates of its window. The search for cuts needs no more
/// than this at any price.
struct Charges {
    /// Where in the order each position begins: itself, unless only some positions may begin a segment.
    begins: Vec<u32>,
    /// First candidate of each position's window.
    low: Vec<u32>,
    /// Where each period of the order begins, then the end. No candidate leaves the window in its own period.
    periods: Vec<u32>,
    /// Charges of position p: those of `starts[p]..starts[p + 1]`.
    starts: Vec<u32>,
    /// Of these, charges from `inner[p]` on spare some candidates of p's own period.
    inner: Vec<u32>,
    /// Per charge, the first candidate that pays it, which is past the first of the window, and how much.
    suffixes: Vec<(u32, Ticks)>,
    /// What each candidate has been charged when it leaves the window.
    paid: Vec<Ticks>,
    /// Charges of whole windows: paid whatever the cuts are.
    fixed: Ticks,
    /// Units in a tick.
    unit: Ticks,
}

impl Charges {
    fn new(graph: &Graph, order: &[OpId], weights: &Weights<'_>, limits: Limits) -> Self {
        let n = order.len();
        // Position of each tensor's producer or latest reader so far; MAX before the first.
        let mut last = vec![u32::MAX; graph.n_tensors()];
        let mut charges = Self {
            begins: (0..n as u32).collect(),
            low: Vec::with_capacity(n),
            periods: vec![0],
            starts: Vec::with_capacity(n + 1),
            inner: Vec::with_capacity(n),
            suffixes: Vec::with_capacity(graph.n_edges()),
            paid: Vec::new(),
            fixed: 0,
            unit: 1,
        };
        charges.starts.push(0);
        let mut window = Window::new(order, weights, limits);
        let mut period = 0;
        let mut inner = Vec::new();
        for (position, &op) in order.iter().enumerate() {
            let low = window.take(position);
            charges.low.push(low as u32);
            if low > period {
                period = position;
                charges.periods.push(period as u32);
            }
            for &t in graph.inputs(op).iter().chain(graph.pulls(op)) {
                let cost = weights.tensor_time[t.ix()];
                let seen = std::mem::replace(&mut last[t.ix()], position as u32);
                if seen == u32::MAX {
                    continue;
                }
                if seen < low as u32 {
                    charges.fixed += cost;
                } else if cost > 0 {
                    let charged = if seen < period as u32 { &mut charges.suffixes } else { &mut inner };
                    charged.push((seen + 1, cost));
                }
            }
            charges.inner.push(charges.suffixes.len() as u32);
            charges.suffixes.append(&mut inner);
            charges.starts.push(charges.suffixes.len() as u32);
            for t in graph.outputs(op) {
                last[t.ix()] = position as u32;
            }
        }
        charges.periods.push(n as u32);
        charges.scale();
        if window.low > 0 {
            charges.paid = charges.paid_in_all();
        }
        charges
    }

    /// Counts all charges in units of which about [`SPAN`] are charged in all.
    fn scale(&mut self) {
        let all = self.fixed + self.suffixes.iter().map(|s| s.1).sum::<Ticks>();
        self.unit = (SPAN / (all + 1)).max(1);
        if self.unit > 1 {
            self.fixed *= self.unit;
            self.suffixes.iter_mut().for_each(|s| s.1 *= self.unit);
        }
    }

    /// What each candidate is charged in all by the positions whose window holds it. O(V + E): the last such
    /// position only moves forward from one candidate to the next.
    fn paid_in_all(&self) -> Vec<Ticks> {
        let n = self.low.len();
        // Charges seen so far whose first candidate has not come up yet.
        let mut to_come = vec![0; n + 1];
        let (mut sum, mut end) = (0, 0);
        (0..n)
            .map(|i| {
                sum += to_come[i];
                while end < n && self.low[end] as usize <= i {
                    for &(from, cost) in self.suffixes(end) {
                        if from as usize <= i {
                            sum += cost;
                        } else {
                            to_come[from as usize] += cost;
                        }
                    }
                    end += 1;
                }
                let paid = sum;
                // All charges of a position begin at or before it.
                sum -= self.suffixes(i).iter().map(|s| s.1).sum::<Ticks>();
                paid
            })
            .collect()
    }

    /// The charges of an order without limits where segments may begin at the given cuts only.
    fn only(&self, cuts: &[u32]) -> Self {
        let n = cuts.len() + 1;
        let mut next = cuts.iter().peekable();
        let mut starts = vec![0];
        let mut suffixes = vec![(0, 0); self.suffixes.len()];
        let mut count = 0;
        // The position in the result that each position here belongs to.
        let mut within: Vec<u32> = Vec::with_capacity(self.low.len());
        let mut there = 0;
        for (position, begin) in self.begins.iter().enumerate() {
            if next.next_if_eq(&begin).is_some() {
                starts.push(count as u32);
                there += 1;
            }
            within.push(there);
            for &(from, cost) in self.suffixes(position) {
                // Written always, and kept if some cut pays: a branch on it would be mispredicted.
                let from = within[from as usize - 1] + 1;
                suffixes[count] = (from, cost);
                count += usize::from(from <= there);
            }
        }
        starts.push(count as u32);
        suffixes.truncate(count);
        let inner = starts[..n].to_vec();
        let begins = [0].iter().chain(cuts).copied().collect();
        let periods = vec![0, n as u32];
        Self { begins, low: vec![0; n], periods, starts, inner, suffixes, paid: Vec::new(), ..*self }
    }

    fn suffixes(&self, position: usize) -> &[(u32, Ticks)] {
        &self.suffixes[self.starts[position] as usize..self.starts[position + 1] as usize]
    }

    /// Charges that all candidates of a position's own period pay.
    fn crossing(&self, position: usize) -> &[(u32, Ticks)] {
        &self.suffixes[self.starts[position] as usize..self.inner[position] as usize]
    }

    /// Charges that some candidates of a position's own period do not pay.
    fn inner(&self, position: usize) -> &[(u32, Ticks)] {
        &self.suffixes[self.inner[position] as usize..self.starts[position + 1] as usize]
    }

    /// One segment.
    fn uncut(&self) -> Corner {
        Corner { cuts: Vec::new(), cost: self.fixed, price: 0 }
    }

    /// Every op a segment of its own, with a price at which about every op is.
    fn all_cut(&self) -> Corner {
        let n = self.low.len() as u32;
        let charged: Ticks = self.suffixes.iter().map(|s| s.1).sum();
        let price = -(2 * charged as i64 / i64::from(n.max(1)));
        Corner { cuts: (1..n).collect(), cost: self.fixed + charged, price }
    }

    /// Cuts into the fewest segments: each as long as limits allow, from the end.
    fn longest(&self) -> Vec<u32> {
        let mut cuts = Vec::new();
        let mut end = self.low.last().map_or(0, |&low| low as usize);
        while end > 0 {
            cuts.push(end as u32);
            end = self.low[end - 1] as usize;
        }
        cuts.reverse();
        cuts
    }

    /// Cuts with what they cost.
    fn corner(&self, cuts: Vec<u32>, price: i64) -> Corner {
        Corner { cost: self.cost(&cuts), cuts, price }
    }

    /// Cuts with their cost in ticks.
    fn exact(&self, found: Corner) -> Exact {
        Exact { cuts: found.cuts, cost: found.cost / self.unit }
    }

    /// The cost of cuts: the transfer time of what segments read and did not make.
    fn cost(&self, cuts: &[u32]) -> Ticks {
        let mut cost = self.fixed;
        let mut begin = 0;
        let mut next = cuts.iter().copied().peekable();
        for position in 0..self.low.len() as u32 {
            begin = next.next_if_eq(&position).unwrap_or(begin);
            let crossing = self.suffixes(position as usize).iter().filter(|s| s.0 <= begin);
            cost += crossing.map(|s| s.1).sum::<Ticks>();
        }
        cost
    }

    /// Adds cuts, each where it costs least at that moment, until there are `wanted` segments or the next cut
    /// costs more than `most`.
    fn split(&self, corner: &Corner, wanted: usize, most: Ticks) -> Corner {
        let n = self.low.len();
        let Corner { mut cuts, mut cost, price } = corner.clone();
        let mut segments: BinaryHeap<Reverse<Split>> = BinaryHeap::new();
        let mut change = vec![0; n + 1];
        let mut add = |heap: &mut BinaryHeap<_>, from: u32, to: u32| {
            if let Some((cost, at)) = self.cheapest_split(&mut change, from, to) {
                heap.push(Reverse((cost, at, from, to)));
            }
        };
        if cuts.len() + 1 < wanted {
            let mut from = 0;
            for &to in cuts.iter().chain(&[n as u32]) {
                add(&mut segments, from, to);
                from = to;
            }
        }
        while cuts.len() + 1 < wanted
            && let Some(Reverse((more, at, from, to))) = segments.pop()
            && more <= most
        {
            cuts.push(at);
            cost += more;
            add(&mut segments, from, at);
            add(&mut segments, at, to);
        }
        cuts.sort_unstable();
        Corner { cuts, cost, price }
    }

    /// Where a segment splits cheapest, and at what cost; nowhere, if it is one op.
    ///
    /// Only cuts in the middle half of the segment count, so that repeated splitting is O(n log n); of equal
    /// cuts, the first. A cut in q..=position pays a charge of that position with first candidate q. `change`
    /// is scratch memory.
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

/// What a split costs, its position, and where its segment begins and ends.
type Split = (Ticks, u32, u32, u32);

/// The longest segment that limits allow, up to one position of an order after another.
struct Window<'a> {
    order: &'a [OpId],
    weights: &'a Weights<'a>,
    limits: Limits,
    /// First position of the segment.
    low: usize,
    /// Bytes and compute time of the segment.
    bytes: u64,
    time: Ticks,
}

impl<'a> Window<'a> {
    fn new(order: &'a [OpId], weights: &'a Weights<'a>, limits: Limits) -> Self {
        let limits = Limits { max_ops: limits.max_ops.clamp(1, order.len().max(1)), ..limits };
        Self { order, weights, limits, low: 0, bytes: 0, time: 0 }
    }

    /// Takes in the op at `position`, which comes after the one taken last. Returns where the longest segment
    /// that ends with the op begins.
    #[inline(always)]
    fn take(&mut self, position: usize) -> usize {
        let Weights { op_time, op_bytes, class, .. } = *self.weights;
        let op = self.order[position].ix();
        self.bytes = self.bytes.saturating_add(op_bytes[op]);
        self.time += op_time[op];
        let is_other = position > 0 && class[op] != class[self.order[position - 1].ix()];
        let class_from = if is_other { position } else { 0 };
        while self.low < position
            && (self.low < class_from
                || position + 1 - self.low > self.limits.max_ops
                || self.bytes > self.limits.max_bytes
                || self.time > self.limits.max_time)
        {
            let first = self.order[self.low].ix();
            let rest = &self.order[self.low + 1..=position];
            self.bytes = sum_without(self.bytes, op_bytes, first, rest);
            self.time -= op_time[first];
            self.low += 1;
        }
        self.low
    }
}

/// The bytes of `rest`, given the `sum` of its bytes and those of the op `dropped`.
///
/// They are added up anew where the sum had saturated.
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

/// The candidate that does not exist.
const NONE: u32 = u32::MAX;

/// The search for cuts at a price: one pass over the order. Its memory is used again for the next price.
///
/// A candidate is a position i at which a segment may begin. Its value is S(i) plus all that it was charged.
/// A charge raises the values of a suffix of the candidates. So once a later candidate is not below an
/// earlier one, it never will be again. While no candidate leaves the window, the candidates that can still
/// win form a stack of falling values, and the last of them is the best. A charge makes one step between two
/// neighbours of the stack smaller. When a step vanishes, the later candidate is out.
///
/// Where candidates leave the window, the order is split into periods, so that no candidate of a period
/// leaves during it, and of the candidates from before the period none is added. Seen *backwards in time*,
/// the latter only grow in number at the front, and suffixes of them are lowered: the same stack the other
/// way round.
///
/// `joined` leads from a candidate that is out to the one that beat it. With path halving a charge costs
/// O(α(V)).
struct Search {
    /// Cost of what lies before each position, at the current price and without `fixed`.
    least: Vec<i64>,
    /// Where the last segment before each position begins.
    previous: Vec<u32>,
    candidates: Vec<Candidate>,
    /// Best of the candidates before the period, per position of it.
    before: Vec<(i64, u32)>,
}

/// A candidate's place in the stack.
#[derive(Clone, Copy)]
struct Candidate {
    /// The difference of its value to that of the candidate before.
    step: i64,
    /// Its neighbour in the stack: the next candidate forwards, the one before backwards.
    beside: u32,
    /// The candidate that beat this one; itself while it is in the stack.
    joined: u32,
}

impl Search {
    /// Room for an order of `n` ops.
    fn new(n: usize) -> Self {
        Self {
            least: vec![0; n + 1],
            previous: vec![0; n + 1],
            candidates: vec![Candidate { step: 0, beside: NONE, joined: 0 }; n],
            before: Vec::new(),
        }
    }

    /// The cheapest cuts where every segment costs `price` more. Of equal cuts the longer segment wins.
    fn cut(&mut self, charges: &Charges, price: i64) -> Corner {
        let n = charges.low.len();
        for period in charges.periods.windows(2) {
            let (begin, end) = (period[0] as usize, period[1] as usize);
            self.backwards(charges, begin, end, price);
            self.forwards(charges, begin, end, price);
        }
        let mut cuts = Vec::new();
        let mut at = self.previous[n];
        while at > 0 {
            cuts.push(charges.begins[at as usize]);
            at = self.previous[at as usize];
        }
        cuts.reverse();
        let paid = self.least[n] - price * (cuts.len() as i64 + 1);
        Corner { cuts, cost: charges.fixed + paid as Ticks, price }
    }

    /// The candidate in the stack that beat candidate `i`, directly or through others; itself if it is in the
    /// stack.
    fn find(&mut self, mut i: u32) -> u32 {
        while self.candidates[i as usize].joined != i {
            let up = self.candidates[self.candidates[i as usize].joined as usize].joined;
            self.candidates[i as usize].joined = up;
            i = up;
        }
        i
    }

    /// The best candidate before `begin` of every position of a period.
    fn backwards(&mut self, charges: &Charges, begin: usize, end: usize, price: i64) {
        self.before.clear();
        self.before.resize(end - begin, (i64::MAX, NONE));
        let (mut front, mut value, mut low) = (NONE, 0, begin);
        for position in (begin..end).rev() {
            while low > charges.low[position] as usize {
                low -= 1;
                let own = self.least[low] + price + charges.paid[low] as i64;
                let i = low as u32;
                if front == NONE || own <= value {
                    if front != NONE {
                        (self.candidates[front as usize].step, self.candidates[front as usize].beside) =
                            (value - own, i);
                    }
                    self.candidates[low].joined = i;
                    (front, value) = (i, own);
                } else {
                    self.candidates[low].joined = front;
                }
            }
            if front == NONE {
                continue;
            }
            self.before[position - begin] = (value, front);
            for &(from, cost) in charges.crossing(position) {
                if from as usize == begin {
                    continue;
                }
                let first = self.find(from);
                let f = first as usize;
                if first == front {
                    value -= cost as i64;
                    continue;
                }
                self.candidates[f].step -= cost as i64;
                while self.candidates[f].step < 0 {
                    let out = self.candidates[f].beside;
                    self.candidates[out as usize].joined = first;
                    if out == front {
                        value += self.candidates[f].step;
                        front = first;
                        break;
                    }
                    self.candidates[f].step += self.candidates[out as usize].step;
                    self.candidates[f].beside = self.candidates[out as usize].beside;
                }
            }
        }
    }

    /// The cheapest cuts before every position of a period.
    fn forwards(&mut self, charges: &Charges, begin: usize, end: usize, price: i64) {
        let (mut last, mut value) = (NONE, 0);
        for position in begin..end {
            let own = self.least[position] + price;
            let i = position as u32;
            if last == NONE || own < value {
                if last != NONE {
                    self.candidates[last as usize].beside = i;
                }
                self.candidates[position].step = value - own;
                self.candidates[position].beside = NONE;
                self.candidates[position].joined = i;
                (last, value) = (i, own);
            } else {
                self.candidates[position].joined = last;
            }
            value += charges.crossing(position).iter().map(|s| s.1 as i64).sum::<i64>();
            for &(from, cost) in charges.inner(position) {
                let stays = self.find(from - 1);
                let mut first = self.candidates[stays as usize].beside;
                if first == NONE {
                    continue;
                }
                value += cost as i64;
                self.candidates[first as usize].step -= cost as i64;
                while self.candidates[first as usize].step <= 0 {
                    let step = self.candidates[first as usize].step;
                    self.candidates[first as usize].joined = stays;
                    let next = self.candidates[first as usize].beside;
                    self.candidates[stays as usize].beside = next;
                    if next == NONE {
                        (last, value) = (stays, value + step);
                        break;
                    }
                    self.candidates[next as usize].step += step;
                    first = next;
                }
            }
            let (before, at) = self.before[position - begin];
            let (cost, from) = if before <= value { (before, at) } else { (value, last) };
            self.least[position + 1] = cost;
            self.previous[position + 1] = from;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Graph;

    /// A layered graph without limits: its charges.
    fn charges(n: usize, seed: u64) -> Charges {
        let mut state = seed;
        let mut random = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize % below
        };
        let edges: Vec<(i64, i64)> = (1..n)
            .flat_map(|v| [(v, random(v)), (v, v - 1 - random(v.min(4)))])
            .map(|(v, u)| (u as i64, v as i64))
            .collect();
        let (src, dst): (Vec<i64>, Vec<i64>) = edges.into_iter().unzip();
        let graph = Graph::new(n, &src, &dst, None).unwrap();
        let cost: Vec<Ticks> = graph.tensors().map(|_| random(9) as Ticks).collect();
        let none = Limits { max_ops: usize::MAX, max_bytes: u64::MAX, max_time: Ticks::MAX };
        let zeros = vec![0; n];
        let weights = Weights { op_time: &zeros, tensor_time: &cost, op_bytes: &zeros, class: &zeros };
        Charges::new(&graph, graph.topo(), &weights, none)
    }

    #[test]
    fn without_limits_cheapest_cuts_are_among_those_of_a_lower_price() {
        for seed in 0..50 {
            let charges = charges(60, seed);
            let mut search = Search::new(60);
            for lower in 1..40 {
                let price = |halves: i64| -halves * charges.unit as i64 / 2;
                let many = search.cut(&charges, price(lower));
                let among = charges.only(&many.cuts);
                for higher in 0..=lower {
                    let few = search.cut(&charges, price(higher));
                    assert!(few.cuts.iter().all(|cut| many.cuts.contains(cut)));
                    let found = search.cut(&among, price(higher));
                    assert_eq!(
                        (found.cuts, found.cost),
                        (few.cuts, few.cost),
                        "seed {seed}, {lower} {higher}"
                    );
                }
            }
        }
    }
}
