//! Sequential fusion against the definition: a segment pays for each tensor it reads from outside.

use std::collections::BTreeSet;

use crate::common::{self, dags, graph, models, ops};
use loadmaster_core::clock::Ticks;
use loadmaster_core::coarsen::Weights;
use loadmaster_core::coarsen::fusion::{Exact, Limits, breakpoints, exactly, segments};
use loadmaster_core::graph::Graph;
use loadmaster_core::ids::OpId;
use loadmaster_core::topo::dfs_topo;
use proptest::collection::vec;
use proptest::prelude::*;

/// An order and what its ops and tensors cost.
#[derive(Clone, Debug)]
struct Problem {
    graph: Graph,
    order: Vec<OpId>,
    cost: Vec<Ticks>,
    bytes: Vec<u64>,
    time: Vec<Ticks>,
    class: Vec<u64>,
    limits: Limits,
}

impl Problem {
    /// All free but for `cost` per tensor and `max_ops`.
    fn new(graph: Graph, order: Vec<OpId>, cost: &[Ticks], max_ops: usize) -> Self {
        let n = graph.n_ops();
        let limits = Limits { max_ops, max_bytes: u64::MAX, max_time: Ticks::MAX };
        let (bytes, time, class) = (vec![0; n], vec![0; n], vec![1; n]);
        Self { graph, order, cost: cost.to_vec(), bytes, time, class, limits }
    }

    fn cuts(&self) -> Vec<u32> {
        breakpoints(&self.graph, &self.order, &self.weights(), self.limits)
    }

    fn exactly(&self, segments: usize) -> Exact {
        exactly(&self.graph, &self.order, &self.weights(), self.limits, segments)
    }

    fn weights(&self) -> Weights<'_> {
        Weights { op_time: &self.time, tensor_time: &self.cost, op_bytes: &self.bytes, class: &self.class }
    }

    /// What the segment `from..to` reads from outside, each tensor once. A home tensor costs nothing
    /// where it is read first.
    fn cost(&self, from: usize, to: usize) -> Ticks {
        let g = &self.graph;
        let inside = |u: OpId| self.order[from..to].contains(&u);
        let before = |u: OpId| self.order[..from].contains(&u);
        let mut read = BTreeSet::new();
        for &u in &self.order[from..to] {
            read.extend(g.inputs_with_ops(u).filter(|&(_, p)| !inside(p)).map(|(t, _)| t));
            read.extend(g.pulls(u).iter().filter(|&&t| g.consumers(t).iter().any(|&c| before(c))));
        }
        read.into_iter().map(|t| self.cost[t.ix()]).sum()
    }

    fn may_join(&self, from: usize, to: usize) -> bool {
        let members = &self.order[from..to];
        // A limit of u64::MAX is none.
        let sum = |column: &[u64]| members.iter().fold(0u64, |s, u| s.saturating_add(column[u.ix()]));
        to - from == 1
            || (to - from <= self.limits.max_ops
                && sum(&self.bytes) <= self.limits.max_bytes
                && sum(&self.time) <= self.limits.max_time
                && members.iter().all(|u| self.class[u.ix()] == self.class[members[0].ix()]))
    }

    /// The least cost of cutting `..to`, for every `to`: S(j) = min S(i) + cost(i, j).
    fn optimum(&self) -> Vec<Ticks> {
        let mut least = vec![0];
        for to in 1..=self.order.len() {
            let from = (0..to).filter(|&i| self.may_join(i, to));
            least.push(from.map(|i| least[i] + self.cost(i, to)).min().expect("an op alone is allowed"));
        }
        least
    }

    fn bounds_of(&self, cuts: &[u32]) -> Vec<(usize, usize)> {
        let mut ends: Vec<usize> = vec![0];
        ends.extend(cuts.iter().map(|&c| c as usize));
        ends.push(self.order.len());
        ends.windows(2).map(|w| (w[0], w[1])).collect()
    }
}

/// `n` values below 6, some of them far larger or as large as can be.
fn sizes(n: usize) -> impl Strategy<Value = Vec<u64>> {
    vec(prop_oneof![12 => 0u64..6, 1 => Just(1u64 << 40), 1 => Just(u64::MAX)], n)
}

fn problems(max_ops: usize) -> impl Strategy<Value = Problem> {
    let graphs = prop_oneof![
        dags(max_ops).prop_map(|d| d.graph()),
        models(max_ops).prop_map(|m| m.reduce().work.graph),
    ];
    let limits = (1usize..max_ops + 2, 0u64..16, 0u64..16, 0u8..8);
    let time = vec(prop_oneof![12 => 0u64..6, 1 => Just(1u64 << 40)], max_ops);
    let class = vec(prop_oneof![6 => Just(3u64), 1 => Just(1u64)], max_ops);
    (graphs, vec(0u64..5, 4 * max_ops), sizes(max_ops), time, class, limits, any::<bool>()).prop_map(
        |(graph, cost, bytes, time, class, (max_ops, max_bytes, max_time, unlimited), depth)| {
            let n = graph.n_ops();
            let order = if depth { dfs_topo(&graph) } else { graph.topo().to_vec() };
            Problem {
                order,
                cost: cost[..graph.n_tensors()].to_vec(),
                bytes: bytes[..n].to_vec(),
                time: time[..n].to_vec(),
                class: if unlimited & 1 == 0 { vec![3; n] } else { class[..n].to_vec() },
                limits: Limits {
                    max_ops,
                    max_bytes: if unlimited & 2 == 0 { u64::MAX } else { max_bytes },
                    max_time: if unlimited & 4 == 0 { Ticks::MAX } else { max_time },
                },
                graph,
            }
        },
    )
}

proptest! {
    #![proptest_config(common::config(256))]

    #[test]
    fn the_cuts_are_allowed_and_none_are_cheaper(p in problems(18)) {
        let cuts = p.cuts();
        prop_assert!(cuts.windows(2).all(|w| w[0] < w[1]));
        let segments = p.bounds_of(&cuts);
        for &(from, to) in &segments {
            prop_assert!(p.may_join(from, to), "{from}..{to} breaks a limit");
        }
        let total: Ticks = segments.iter().map(|&(from, to)| p.cost(from, to)).sum();
        prop_assert_eq!(Some(total), p.optimum().last().copied());
    }

    /// Every way to cut the order is tried.
    #[test]
    fn no_segmentation_is_cheaper(p in problems(11)) {
        let n = p.order.len();
        let all = (0u32..1 << (n - 1)).filter_map(|chosen| {
            let cuts: Vec<u32> = (1..n as u32).filter(|c| chosen >> (c - 1) & 1 == 1).collect();
            let segments = p.bounds_of(&cuts);
            let allowed = segments.iter().all(|&(from, to)| p.may_join(from, to));
            allowed.then(|| segments.iter().map(|&(from, to)| p.cost(from, to)).sum::<Ticks>())
        });
        let found: Ticks = p.bounds_of(&p.cuts()).into_iter().map(|(from, to)| p.cost(from, to)).sum();
        prop_assert_eq!(Some(found), all.min());
    }

    #[test]
    fn of_equal_costs_the_longer_last_segment_wins(p in problems(14)) {
        // The last cut is the earliest that loses nothing; the same holds for what lies before it.
        let least = p.optimum();
        let mut to = p.order.len();
        let mut expected = Vec::new();
        while to > 0 {
            let found = (0..to).find(|&i| p.may_join(i, to) && least[i] + p.cost(i, to) == least[to]);
            to = found.expect("the optimum is reached");
            expected.push(to as u32);
        }
        expected.pop();
        expected.reverse();
        prop_assert_eq!(p.cuts(), expected);
    }

    #[test]
    fn segments_of_a_topological_order_only_look_back(p in problems(18)) {
        let cuts = p.cuts();
        let group = segments(&p.order, &cuts);
        for (s, (from, to)) in p.bounds_of(&cuts).into_iter().enumerate() {
            for &u in &p.order[from..to] {
                prop_assert_eq!(group[u.ix()] as usize, s);
                prop_assert!(p.graph.inputs_with_ops(u).all(|(_, v)| group[v.ix()] as usize <= s));
            }
        }
    }
}

proptest! {
    #![proptest_config(common::config(24))]

    /// Windows of several blocks of candidates: far readers, many charges.
    #[test]
    fn long_windows_are_searched_right(
        ends in vec((any::<u16>(), any::<u16>()), 300..900),
        cost in vec(0u64..50, 600),
        max_ops in 1usize..400,
    ) {
        let n = 300;
        let sorted = |(a, b): (u16, u16)| {
            let (a, b) = (i64::from(a) % n, i64::from(b) % n);
            (a.min(b), a.max(b))
        };
        let edges: Vec<(i64, i64)> = ends.into_iter().map(sorted).filter(|(a, b)| a != b).collect();
        let g = graph(n as usize, &edges);
        let cost = &cost[..g.n_tensors()];
        // Of the cost of segment i..j only what op j - 1 adds to it is new.
        let order: Vec<OpId> = g.ops().collect();
        let p = Problem::new(g.clone(), order.clone(), cost, max_ops);
        let mut least: Vec<Ticks> = vec![0];
        let mut last = vec![usize::MAX; g.n_tensors()];
        let mut paid = vec![0u64; n as usize];
        let mut longest = vec![0];
        for j in 0..n as usize {
            for &t in g.inputs(order[j]) {
                let read = std::mem::replace(&mut last[t.ix()], j);
                paid[read + 1..=j].iter_mut().for_each(|c| *c += cost[t.ix()]);
            }
            g.outputs(order[j]).for_each(|t| last[t.ix()] = j);
            let from = (j + 1).saturating_sub(max_ops);
            let (cost, first) = (from..=j).map(|i| (least[i] + paid[i], i)).min().expect("not empty");
            least.push(cost);
            longest.push(first);
        }
        let mut to = n as usize;
        let mut cuts = Vec::new();
        while longest[to] > 0 {
            to = longest[to];
            cuts.push(to as u32);
        }
        cuts.reverse();
        prop_assert_eq!(p.cuts(), cuts);
        let total: Ticks = p.bounds_of(&p.cuts()).into_iter().map(|(from, to)| p.cost(from, to)).sum();
        prop_assert_eq!(total, least[n as usize]);
    }
}

/// Ids in order.
fn chain(n: u32, cost: &[Ticks], max_ops: usize) -> Problem {
    let edges: Vec<(i64, i64)> = (1..i64::from(n)).map(|v| (v - 1, v)).collect();
    let g = graph(n as usize, &edges);
    Problem::new(g, (0..n).map(OpId).collect(), cost, max_ops)
}

#[test]
fn a_chain_is_cut_at_its_thinnest_tensors() {
    // Segments of at most 3 of 6 ops: cut at 2 and 4 (1 + 1), not in the middle (9).
    assert_eq!(chain(6, &[5, 1, 9, 1, 5], 3).cuts(), [2, 4]);
    assert_eq!(chain(6, &[5, 1, 3, 1, 5], 3).cuts(), [2, 4]);
    assert_eq!(chain(6, &[5, 1, 2, 1, 5], 3).cuts(), [3]); // 2 = 1 + 1: the longer last segment.
    assert!(chain(6, &[5, 1, 2, 1, 5], 6).cuts().is_empty());
    assert_eq!(chain(4, &[7, 7, 7], 1).cuts(), [1, 2, 3]);
    assert_eq!(chain(4, &[7, 7, 7], 0).cuts(), [1, 2, 3]); // No less than one op.
    assert!(chain(1, &[], 5).cuts().is_empty());
}

#[test]
fn ops_that_read_nothing_fall_into_the_longest_segments() {
    let free = |max_ops| Problem::new(graph(100, &[]), (0..100).map(OpId).collect(), &[], max_ops).cuts();
    assert_eq!(free(50), [50]);
    assert_eq!(free(40), [20, 60]);
    assert!(free(100).is_empty());
}

#[test]
fn a_tensor_with_three_readers_in_one_segment_is_paid_once() {
    // 0 -> {1, 2, 3}, at most 3 ops: 0 | 1 2 3 costs the tensor once, as does 0 1 | 2 3 and 0 1 2 | 3:
    // the last segment is the longest.
    let g = graph(4, &[(0, 1), (0, 2), (0, 3)]);
    let p = Problem::new(g, ops(&[0, 1, 2, 3]), &[10], 3);
    assert_eq!(p.cuts(), [1]);
    assert_eq!(p.cost(1, 4), 10);
}

#[test]
fn an_op_over_a_limit_stands_alone() {
    let mut p = chain(5, &[1, 1, 1, 1], 5);
    p.bytes = vec![2, 2, 99, 2, 2];
    p.limits.max_bytes = 10;
    assert_eq!(p.cuts(), [2, 3]);
    p.bytes[2] = u64::MAX;
    assert_eq!(p.cuts(), [2, 3]);
    p.bytes[3] = u64::MAX;
    assert_eq!(p.cuts(), [2, 3, 4]);

    let mut p = chain(5, &[1, 1, 1, 1], 5);
    p.time = vec![2, 2, 99, 2, 2];
    p.limits.max_time = 10;
    assert_eq!(p.cuts(), [2, 3]);
}

#[test]
fn device_types_never_mix() {
    let mut p = chain(6, &[9, 9, 9, 9, 9], 6);
    p.class = vec![3, 3, 1, 3, 3, 3];
    assert_eq!(p.cuts(), [2, 3]);
}

proptest! {
    #![proptest_config(common::config(200))]

    /// The number asked for, or the fewest there can be; never cheaper than the best of that number.
    #[test]
    fn a_given_number_of_segments_is_met_within_limits(p in problems(14), wanted in 1usize..16) {
        let mut p = p;
        p.limits.max_ops = p.order.len();
        let n = p.order.len();
        let exact = p.exactly(wanted);
        let segments = p.bounds_of(&exact.cuts);
        prop_assert!(segments.iter().all(|&(from, to)| p.may_join(from, to)));
        prop_assert_eq!(exact.cost, segments.iter().map(|&(from, to)| p.cost(from, to)).sum::<Ticks>());
        // Least cost of every prefix by number of segments.
        let mut best = vec![vec![None; n + 1]; n + 1];
        best[0][0] = Some(0u64);
        for k in 1..=n {
            for to in 1..=n {
                best[k][to] = (0..to)
                    .filter(|&from| p.may_join(from, to))
                    .filter_map(|from| best[k - 1][from].map(|c: u64| c + p.cost(from, to)))
                    .min();
            }
        }
        let fewest = (1..=n).find(|&k| best[k][n].is_some()).expect("single ops are always allowed");
        let expected = wanted.clamp(fewest, n);
        prop_assert_eq!(segments.len(), expected);
        let least = |k: usize| best[k][n].map(i128::from);
        let found = i128::from(exact.cost);
        prop_assert!(Some(found) >= least(expected));
        // A corner of the lower hull of least cost over number is met.
        let below = |i: usize, j: usize| {
            let (Some(a), Some(b), Some(c)) = (least(i), least(expected), least(j)) else { return true };
            let [whole, left, right] = [j - i, expected - i, j - expected].map(|d| d as i128);
            b * whole < a * right + c * left
        };
        if (fewest..expected).all(|i| (expected + 1..=n).all(|j| below(i, j))) {
            prop_assert_eq!(Some(found), least(expected));
        }
    }
}

#[test]
fn three_segments_of_a_chain_are_cut_where_it_is_thin() {
    let p = chain(6, &[5, 1, 9, 2, 5], 6);
    let exact = p.exactly(3);
    assert_eq!((exact.cuts, exact.cost), (vec![2, 4], 3));
}
