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
//!
//! Each charge raises a suffix of the candidates, so the window of candidates is kept in blocks with
//! a pending increase and a minimum each: O((V + E) sqrt(R)) for windows of R, and nearly O(V + E)
//! on real graphs, where most tensors are read soon.

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
    let n = order.len();
    let max_ops = limits.max_ops.clamp(1, n.max(1));
    // Position of each tensor's producer or latest reader so far; MAX before the first.
    let mut last = vec![u32::MAX; graph.n_tensors()];
    let mut candidates = Candidates::new(n, max_ops);
    let mut previous = vec![0u32; n + 1];
    let (mut low, mut bytes, mut time) = (0, 0u64, 0u64);
    let mut best = 0;
    for (position, &op) in order.iter().enumerate() {
        let end = position + 1;
        candidates.push(best);

        bytes = bytes.saturating_add(op_bytes[op.ix()]);
        time += op_time[op.ix()];
        let class_from =
            if position > 0 && class[op.ix()] != class[order[position - 1].ix()] { position } else { 0 };
        while low < position
            && (low < class_from || end - low > max_ops || bytes > limits.max_bytes || time > limits.max_time)
        {
            let first = order[low].ix();
            bytes = sum_without(bytes, op_bytes, first, &order[low + 1..end]);
            time -= op_time[first];
            low += 1;
        }
        candidates.drop_below(low);

        for &t in graph.inputs(op).iter().chain(graph.pulls(op)) {
            let seen = std::mem::replace(&mut last[t.ix()], position as u32);
            if seen != u32::MAX {
                candidates.raise(seen as usize + 1, tensor_cost[t.ix()]);
            }
        }
        for t in graph.outputs(op) {
            last[t.ix()] = position as u32;
        }

        let (cost, from) = candidates.best();
        best = cost;
        previous[end] = from as u32;
    }
    let mut cuts = Vec::new();
    let mut at = previous[n];
    while at > 0 {
        cuts.push(at);
        at = previous[at as usize];
    }
    cuts.reverse();
    cuts
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
