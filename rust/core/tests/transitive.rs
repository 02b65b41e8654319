//! Which control edges are needed: what goes is implied, what is reached stays reached.

use crate::common;
use loadmaster_core::graph::Graph;
use loadmaster_core::ids::OpId;
use loadmaster_core::transitive::{BLOCK, NeededControl};
use proptest::collection::vec;
use proptest::prelude::*;

type Pair = (usize, usize);

/// A graph of control edges and of edges with data, a tensor each.
fn mixed(n: usize, control: &[Pair], data: &[Pair]) -> Graph {
    let ids = vec![-1; control.len()].into_iter().chain(0..data.len() as i64);
    let (src, dst): (Vec<i64>, Vec<i64>) =
        control.iter().chain(data).map(|&(u, v)| (u as i64, v as i64)).unzip();
    Graph::new(n, &src, &dst, Some(&ids.collect::<Vec<_>>())).expect("a valid graph")
}

fn needed(graph: &Graph) -> Vec<Pair> {
    let pair = |(u, v): (OpId, OpId)| (u.ix(), v.ix());
    let mut found: Vec<Pair> = NeededControl::of(graph).flatten().map(pair).collect();
    found.sort_unstable();
    found
}

/// Whether each op is reached from each by an edge or several: Warshall's closure.
fn closure(n: usize, edges: impl Iterator<Item = Pair>) -> Vec<Vec<bool>> {
    let mut reached = vec![vec![false; n]; n];
    edges.for_each(|(u, v)| reached[u][v] = true);
    for k in 0..n {
        for i in 0..n {
            if reached[i][k] {
                let through = reached[k].clone();
                reached[i].iter_mut().zip(through).for_each(|(a, b)| *a |= b);
            }
        }
    }
    reached
}

#[test]
fn by_hand() {
    // 0 -> 1 -> 2 in control, 0 -> 2 implied by both; 3 -> 4 beside data; 0 -> 5 by data only.
    let g = mixed(6, &[(0, 1), (1, 2), (0, 2), (3, 4)], &[(3, 4), (0, 5)]);
    assert_eq!(needed(&g), [(0, 1), (1, 2)]);
    // A path of data implies a control edge; a control edge never makes data go.
    let g = mixed(3, &[(0, 2)], &[(0, 1), (1, 2)]);
    assert_eq!(needed(&g), []);
    let g = mixed(3, &[(0, 1), (1, 2)], &[(0, 2)]);
    assert_eq!(needed(&g), [(0, 1), (1, 2)]);
}

#[test]
fn every_edge_of_a_complete_order_but_its_steps_goes() {
    // More ops than one block holds, so that paths lead through several.
    let n = 2 * BLOCK + 3;
    let all: Vec<Pair> = (0..n).flat_map(|v| (0..v).map(move |u| (u, v))).collect();
    let steps: Vec<Pair> = (1..n).map(|v| (v - 1, v)).collect();
    assert_eq!(needed(&mixed(n, &all, &[])), steps);
}

#[test]
fn a_graph_without_control_edges_needs_none() {
    assert_eq!(NeededControl::of(&common::graph(3, &[(0, 1), (1, 2)])).count(), 0);
}

proptest! {
    #![proptest_config(common::config(256))]

    #[test]
    fn what_goes_is_implied_and_reachability_stays(
        n in 2usize..24,
        edges in vec((0usize..24, 0usize..24, any::<bool>()), 0..120),
        shift in 0usize..24,
    ) {
        // Numbered against the topological order, so that the two are not the same.
        let number = |u: usize| (n - 1 - u + shift) % n;
        let mut kinds = [Vec::new(), Vec::new()];
        for &(a, b, is_data) in &edges {
            let (a, b) = (a % n, b % n);
            if a != b {
                kinds[usize::from(is_data)].push((number(a.min(b)), number(a.max(b))));
            }
        }
        let [control, data] = kinds;
        let kept = needed(&mixed(n, &control, &data));
        let with = |control: &[Pair]| closure(n, control.iter().chain(&data).copied());
        prop_assert!(kept.iter().all(|edge| control.contains(edge)));
        prop_assert_eq!(with(&kept), with(&control));
        // Minimal: without any one of them something is no longer reached.
        for i in 0..kept.len() {
            let fewer: Vec<Pair> = kept.iter().enumerate().filter(|e| e.0 != i).map(|e| *e.1).collect();
            prop_assert_ne!(with(&fewer), with(&control));
        }
    }
}
