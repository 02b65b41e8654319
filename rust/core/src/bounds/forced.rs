//! Critical path with the transfers that joins and forks force.
//!
//! `head(v, k)` is a lower bound on the start of op `v` if `v` runs on a device of type `k`. A placement
//! splits the predecessors of `v` in two. Set `A` has those on the device of `v`: they run one after
//! another, each no sooner than its own head on type `k`. The tensors of all others must be sent. The bound
//! takes the best split:
//!
//! ```text
//! head(v, k) = min over subsets A of its predecessors of max(
//!     one after another(A),                                        released at head(u, k), u in A
//!     max over u not in A of min over k' of head(u, k') + time(u, k') + c(u, v, k', k) )
//! ```
//!
//! Here `c` is the least time that the largest tensor from `u` to `v` takes between two devices of types
//! `k'` and `k`. It is infinite where the cluster has no two such devices. A predecessor in the colocated
//! set of `v` is always in `A`. A predecessor that may not run on type `k` never is.
//!
//! *Valid:* take any schedule. Let `v` run on device `d` of type `k`, and let `A` be its predecessors on
//! `d`. They run on `d` one at a time, by induction none before its head on type `k`. So the last of them
//! ends no sooner than the first term, and `v` starts after it. A predecessor on another device, of type
//! `k'`, ends no sooner than `head(u, k') + time(u, k')` by induction. Each of its tensors then takes at
//! least `c`, whatever else the channels carry. Memory, colocation among predecessors and the queues of
//! channels are left out, which can only lower the bound. Tails are heads with time reversed: the
//! successors of an op on its device run one after another, each with its own tail behind it.
//!
//! *The best subset* is a prefix of the predecessors in the order of their arrival if sent, latest first.
//! For let `a` be the latest arrival outside `A`. A member of `A` that would arrive by `a` can leave `A`:
//! the first term falls, and the second stays. Along the prefixes the first term grows and the second
//! falls, so binary search finds where they cross. O(E T^2 log d) for T types and d predecessors.

use crate::clock::{Clock, Ticks};
use crate::cluster::Cluster;
use crate::ids::{OpId, TensorId};
use crate::workload::Workload;

/// The time of an op on a type that may not run it.
pub const NEVER: Ticks = Ticks::MAX / 4;

/// Least starts, and least times from finish to the end of the step, per op and device type
/// (row-major).
#[derive(Clone, Debug)]
pub struct Reach {
    /// Least ticks before the op starts on the type.
    pub head: Vec<Ticks>,
    /// Least ticks from the op's finish on the type to the end of the step.
    pub tail: Vec<Ticks>,
}

impl Reach {
    /// `time` is ticks per op and type, [`NEVER`] where the op may not run.
    pub fn new(work: &Workload, cluster: &Cluster, clock: Clock, time: &[Ticks]) -> Self {
        let sent = Links::new(cluster, clock).sent(work);
        let walk = Walk { work, time, n_types: cluster.types().len(), sent: &sent };
        Self { head: walk.heads(), tail: walk.tails() }
    }
}

/// The fastest links between devices of two types.
struct Links {
    clock: Clock,
    /// Per pair of types, latency (s) and bandwidth (B/s) of the links that no other link beats or equals
    /// in both. Empty: the cluster has no two such devices.
    best: Vec<Vec<(f64, f64)>>,
}

impl Links {
    fn new(cluster: &Cluster, clock: Clock) -> Self {
        let n_types = cluster.types().len();
        let mut best: Vec<Vec<(f64, f64)>> = vec![Vec::new(); n_types * n_types];
        for from in cluster.device_ids() {
            for to in cluster.device_ids().filter(|&to| to != from) {
                let link = cluster.route(from, to);
                let known = &mut best[cluster.type_of(from) * n_types + cluster.type_of(to)];
                let as_good = |a: &(f64, f64), b: &(f64, f64)| a.0 <= b.0 && a.1 >= b.1;
                if !known.iter().any(|other| as_good(other, &link)) {
                    known.retain(|other| !as_good(&link, other));
                    known.push(link);
                }
            }
        }
        Self { clock, best }
    }

    /// Least ticks that each tensor takes from a device of one type to another device, per tensor and pair
    /// of types.
    fn sent(&self, work: &Workload) -> Vec<Ticks> {
        let ticks = |links: &Vec<(f64, f64)>, bytes: u64| {
            let all = links.iter().map(|&(latency, bandwidth)| latency + bytes as f64 / bandwidth);
            all.reduce(f64::min).map_or(NEVER, |least| self.clock.ticks(least))
        };
        let mut sent = Vec::with_capacity(work.tensor_bytes.len() * self.best.len());
        for &bytes in &work.tensor_bytes {
            sent.extend(self.best.iter().map(|links| ticks(links, bytes)));
        }
        sent
    }
}

/// A neighbour that an op on some type waits for.
#[derive(Clone, Copy, Debug)]
struct Near {
    op: OpId,
    /// Least start on the same device, [`NEVER`] if it may not be there.
    release: Ticks,
    length: Ticks,
    /// Least arrival from elsewhere, [`NEVER`] if it must be on the same device.
    away: Ticks,
}

impl Near {
    /// When it is done, if it runs on the same device and nothing else does.
    fn done(self) -> Ticks {
        self.release + self.length
    }
}

#[derive(Clone, Copy)]
struct Walk<'a> {
    work: &'a Workload,
    time: &'a [Ticks],
    n_types: usize,
    /// See [`Links::sent`].
    sent: &'a [Ticks],
}

impl Walk<'_> {
    fn heads(self) -> Vec<Ticks> {
        let graph = &self.work.graph;
        let from_to = |from, to| from * self.n_types + to;
        // Tensors of one op are neighbours.
        let repeats = |u| graph.input_ops(u).windows(2).any(|pair| pair[0] == pair[1]);
        self.levels(graph.topo().iter(), from_to, |u| graph.inputs_with_ops(u), repeats)
    }

    fn tails(self) -> Vec<Ticks> {
        let graph = &self.work.graph;
        let to_from = |to, from| from * self.n_types + to;
        let readers = |u| graph.outputs(u).flat_map(|t| graph.consumers(t).iter().map(move |&v| (t, v)));
        self.levels(graph.topo().iter().rev(), to_from, readers, |u| graph.outputs(u).len() > 1)
    }

    /// Levels of all ops. In `order` all neighbours of an op come before it. `pair` gives the index of a
    /// pair of types: that of the neighbour, then that of the op. `neighbours` lists an op's neighbours, each
    /// with a tensor between the two. `repeats` says whether it may list a neighbour twice.
    fn levels<'b, N: Iterator<Item = (TensorId, OpId)>>(
        self,
        order: impl Iterator<Item = &'b OpId>,
        pair: impl Fn(usize, usize) -> usize,
        neighbours: impl Fn(OpId) -> N,
        repeats: impl Fn(OpId) -> bool,
    ) -> Vec<Ticks> {
        let n_types = self.n_types;
        let mut level = vec![NEVER; self.time.len()];
        let mut waits = Waits::default();
        for &u in order {
            for k in (0..n_types).filter(|k| self.time[u.ix() * n_types + k] < NEVER) {
                let all = neighbours(u).map(|(t, v)| self.near(u, k, t, v, &level, &pair));
                let latest = all.fold(Latest::NONE, Latest::with);
                level[u.ix() * n_types + k] = latest.least().unwrap_or_else(|| {
                    let all = neighbours(u).map(|(t, v)| self.near(u, k, t, v, &level, &pair));
                    waits.all.clear();
                    waits.all.extend(all);
                    if repeats(u) {
                        waits.last_per_op();
                    }
                    waits.least()
                });
            }
        }
        level
    }

    /// What neighbour `v` means for op `u` on type `k`; tensor `t` goes between them, and `level` has `v`.
    #[inline(always)]
    fn near(
        &self,
        u: OpId,
        k: usize,
        t: TensorId,
        v: OpId,
        level: &[Ticks],
        pair: &impl Fn(usize, usize) -> usize,
    ) -> Near {
        let n_types = self.n_types;
        let cell = v.ix() * n_types;
        let mut away = NEVER;
        if self.work.set_of[u.ix()] != self.work.set_of[v.ix()] {
            for other in 0..n_types {
                let sent = self.sent[t.ix() * n_types * n_types + pair(other, k)];
                away = away.min(level[cell + other] + self.time[cell + other] + sent);
            }
        }
        Near { op: v, release: level[cell + k], length: self.time[cell + k], away }
    }
}

/// The neighbour that would arrive last if all were sent: when it arrives (`away`), when it is done if it
/// runs here instead (`done`), and when the last of the others arrives (`runner_up`).
#[derive(Clone, Copy, Debug)]
struct Latest {
    away: Ticks,
    done: Ticks,
    runner_up: Ticks,
}

impl Latest {
    /// The value for no neighbours.
    const NONE: Self = Self { away: 0, done: 0, runner_up: 0 };

    #[inline(always)]
    fn with(self, near: Near) -> Self {
        let is_last = near.away > self.away;
        Self {
            away: near.away.max(self.away),
            done: if is_last { near.done() } else { self.done },
            runner_up: self.runner_up.max(near.away.min(self.away)),
        }
    }

    /// Least time until all neighbours are there, if all but the last, when sent, arrive before the
    /// last is done here. None if they do not: then more choices count. A neighbour that is listed
    /// twice can only turn an answer into none.
    #[inline(always)]
    fn least(self) -> Option<Ticks> {
        (self.done >= self.runner_up).then(|| self.away.min(self.done))
    }
}

/// The neighbours of one op, and room to sort them.
#[derive(Default)]
struct Waits {
    all: Vec<Near>,
    /// Release, length and rank by arrival of each neighbour, sorted by release.
    by_release: Vec<(Ticks, Ticks, usize)>,
}

impl Waits {
    /// Keeps, of several tensors between two ops, the one that arrives last.
    fn last_per_op(&mut self) {
        self.all.sort_unstable_by_key(|near| (near.op, std::cmp::Reverse(near.away)));
        self.all.dedup_by_key(|near| near.op);
    }

    /// Least time until all are there, over all choices of the neighbours that run on the op's device.
    fn least(&mut self) -> Ticks {
        let latest = self.all.iter().copied().fold(Latest::NONE, Latest::with);
        match (latest.least(), &self.all[..]) {
            (Some(least), _) => least,
            (None, &[one, two]) => {
                // Either both stay, or the one that would arrive last stays and the other is sent.
                let (first, last) = if one.release <= two.release { (one, two) } else { (two, one) };
                let both = first.done().max(last.release) + last.length;
                latest.runner_up.min(both)
            }
            _ => self.least_of_many(),
        }
    }

    /// The best prefix by arrival, found by binary search: see the module's text.
    fn least_of_many(&mut self) -> Ticks {
        let never_here = |near: &Near| near.release >= NEVER;
        let base = self.all.iter().filter(|n| never_here(n)).map(|n| n.away).max().unwrap_or(0);
        self.all.retain(|n| !never_here(n));
        self.all.sort_unstable_by_key(|n| std::cmp::Reverse(n.away));
        self.by_release.clear();
        self.by_release.extend(self.all.iter().enumerate().map(|(rank, n)| (n.release, n.length, rank)));
        self.by_release.sort_unstable();
        let arrival = |kept: usize| self.all.get(kept).map_or(0, |n| n.away);
        // The best is the shortest prefix that is done no sooner than the others arrive, or the
        // prefix that is one shorter.
        let (mut low, mut high) = (0, self.all.len());
        while low < high {
            let middle = usize::midpoint(low, high);
            if self.one_after_another(middle) >= arrival(middle) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        let here = self.one_after_another(low);
        let fewer = if low == 0 { NEVER } else { arrival(low - 1) };
        base.max(here.min(fewer))
    }

    /// When the first `kept` neighbours by arrival, latest first, are done one at a time on one device.
    fn one_after_another(&self, kept: usize) -> Ticks {
        let mine = self.by_release.iter().filter(|&&(_, _, rank)| rank < kept);
        mine.fold(0, |free, &(release, length, _)| release.max(free) + length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn least(all: &[(Ticks, Ticks, Ticks)]) -> Ticks {
        let near =
            |&(release, length, away): &(Ticks, Ticks, Ticks)| Near { op: OpId(0), release, length, away };
        Waits { all: all.iter().map(near).collect(), by_release: Vec::new() }.least()
    }

    /// All subsets, from the definition.
    fn by_subsets(all: &[(Ticks, Ticks, Ticks)]) -> Ticks {
        let choices = 0u32..1 << all.len();
        let value = |choice: u32| {
            let kept = |i: &usize| choice >> i & 1 == 1;
            let mut here: Vec<_> = (0..all.len()).filter(kept).map(|i| all[i]).collect();
            here.sort_unstable();
            let end = here.iter().fold(0, |free: Ticks, n| n.0.max(free).saturating_add(n.1));
            (0..all.len()).filter(|i| !kept(i)).map(|i| all[i].2).fold(end, Ticks::max)
        };
        choices.map(value).min().unwrap()
    }

    #[test]
    fn prefixes_by_arrival_are_as_good_as_all_subsets() {
        let mut seed = 7u64;
        let mut draw = |n: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % n
        };
        for _ in 0..3000 {
            let all: Vec<_> = (0..draw(7))
                .map(|_| {
                    let (release, length) = (draw(10), draw(6));
                    let away = release + length + draw(12);
                    match draw(8) {
                        0 => (NEVER, NEVER, away),
                        1 => (release, length, NEVER),
                        _ => (release, length, away),
                    }
                })
                .collect();
            assert_eq!(least(&all), by_subsets(&all).min(NEVER), "{all:?}");
        }
    }
}
