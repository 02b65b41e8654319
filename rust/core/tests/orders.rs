//! Topological orders and levels.

use crate::common::{self, dags, graph, on, ops, run};
use loadmaster_core::clock::Ticks;
use loadmaster_core::graph::Graph;
use loadmaster_core::ids::OpId;
use loadmaster_core::levels::Levels;
use loadmaster_core::simulate::Options;
use loadmaster_core::topo::{cpd_topo, dfs_topo, is_topological, m_topo};
use proptest::collection::vec;
use proptest::prelude::*;

/// Longest path that begins at `u`, by trying all.
fn longest_from(g: &Graph, u: OpId, op_time: &[Ticks], tensor_time: &[Ticks]) -> Ticks {
    let beyond = g
        .outputs(u)
        .flat_map(|t| g.consumers(t).iter().map(move |&v| (t, v)))
        .map(|(t, v)| tensor_time[t.ix()] + longest_from(g, v, op_time, tensor_time));
    op_time[u.ix()] + beyond.max().unwrap_or(0)
}

/// Longest path that ends where `v` begins.
fn longest_to(g: &Graph, v: OpId, op_time: &[Ticks], tensor_time: &[Ticks]) -> Ticks {
    let before = g
        .inputs_with_ops(v)
        .map(|(t, u)| longest_to(g, u, op_time, tensor_time) + op_time[u.ix()] + tensor_time[t.ix()]);
    before.max().unwrap_or(0)
}

/// Listed once each, producers first; written apart from [`is_topological`], which it checks too.
fn is_order(g: &Graph, order: &[OpId]) -> bool {
    let at = |u: OpId| order.iter().position(|&o| o == u);
    order.len() == g.n_ops()
        && g.ops().all(|v| at(v).is_some() && g.inputs_with_ops(v).all(|(_, u)| at(u) < at(v)))
}

proptest! {
    #![proptest_config(common::config(256))]

    #[test]
    fn orders_list_every_op_once_after_its_producers(dag in dags(14), times in vec(0u64..9, 14 * 4)) {
        let g = dag.graph();
        let (op_time, tensor_time) = (&times[..g.n_ops()], vec![times[0]; g.n_tensors()]);
        let levels = Levels::new(&g, op_time, &tensor_time);
        for order in [m_topo(&g), dfs_topo(&g), cpd_topo(&g, &levels), g.topo().to_vec()] {
            prop_assert!(is_order(&g, &order), "{order:?}");
            prop_assert!(is_topological(&g, &order));
        }
    }

    #[test]
    fn levels_are_longest_paths(dag in dags(9), times in vec(0u64..9, 9), sends in vec(0u64..9, 27 + 9)) {
        let g = dag.graph();
        let (op_time, tensor_time) = (&times[..g.n_ops()], &sends[..g.n_tensors()]);
        let levels = Levels::new(&g, op_time, tensor_time);
        for u in g.ops() {
            prop_assert_eq!(levels.bottom[u.ix()], longest_from(&g, u, op_time, tensor_time));
            prop_assert_eq!(levels.top[u.ix()], longest_to(&g, u, op_time, tensor_time));
            prop_assert!(levels.top[u.ix()] + levels.bottom[u.ix()] <= levels.critical_path());
        }
        let longest = g.ops().map(|u| longest_from(&g, u, op_time, tensor_time)).max();
        prop_assert_eq!(Some(levels.critical_path()), longest);
    }

    #[test]
    fn no_order_but_a_permutation_with_producers_first_is_topological(
        dag in dags(6),
        tried in vec(0u32..7, 0..8),
    ) {
        let (g, tried) = (dag.graph(), ops(&tried));
        prop_assert_eq!(is_topological(&g, &tried), is_order(&g, &tried));
    }

    #[test]
    fn cpd_topo_follows_the_longest_path_first(dag in dags(12), times in vec(1u64..1000, 12)) {
        let g = dag.graph();
        let op_time = &times[..g.n_ops()];
        let levels = Levels::new(&g, op_time, &vec![0; g.n_tensors()]);
        let order = cpd_topo(&g, &levels);
        // The first op is a source, and of all sources the one on the longest path.
        let path = |u: OpId| levels.top[u.ix()] + levels.bottom[u.ix()];
        let longest = g.ops().filter(|&u| g.in_degree(u) == 0).map(path).max();
        prop_assert_eq!(Some(path(order[0])), longest);
        prop_assert_eq!(path(order[0]), levels.critical_path());
    }
}

#[test]
fn a_diamond() {
    // 0 -> {1, 2} -> 3; times 1, 5, 2, 3; each tensor takes 10 x (op + 1).
    let g = graph(4, &[(0, 1), (0, 2), (1, 3), (2, 3)]);
    let levels = Levels::new(&g, &[1, 5, 2, 3], &[10, 20, 30]);
    assert_eq!(levels.top, [0, 11, 11, 43]); // 3 waits longer for 2: 11 + 2 + 30.
    assert_eq!(levels.bottom, [1 + 10 + 35, 5 + 20 + 3, 2 + 30 + 3, 3]);
    assert_eq!(levels.critical_path(), 46);
    assert_eq!(m_topo(&g), ops(&[0, 1, 2, 3]));
    assert_eq!(dfs_topo(&g), ops(&[0, 1, 2, 3]));
    assert_eq!(cpd_topo(&g, &levels), ops(&[0, 2, 1, 3])); // 2 lies on the critical path.
}

/// Two chains whose ids alternate: 0 -> 2 -> 4 -> 6 -> 8 and 1 -> 3 -> 5 -> 7 -> 9.
const CHAINS: [(i64, i64); 8] = [(0, 2), (2, 4), (4, 6), (6, 8), (1, 3), (3, 5), (5, 7), (7, 9)];

#[test]
fn depth_first_keeps_chains_whole_where_breadth_first_tears_them() {
    // Celeritas, Fig. 3: split by count, the first half of the order here, the second there.
    let g = graph(10, &CHAINS);
    let cut = |order: &[OpId]| {
        let second: Vec<bool> = g.ops().map(|u| order[5..].contains(&u)).collect();
        CHAINS.iter().filter(|&&(u, v)| second[u as usize] != second[v as usize]).count()
    };
    let breadth = m_topo(&g);
    assert_eq!(breadth, ops(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]));
    assert_eq!(cut(&breadth), 2); // One edge of each chain: 4 -> 6 and 3 -> 5.
    let depth = dfs_topo(&g);
    assert_eq!(depth, ops(&[0, 2, 4, 6, 8, 1, 3, 5, 7, 9]));
    assert_eq!(cut(&depth), 0);

    // Four chains of two, as (0, 4), (1, 5), ...: breadth first cuts every one.
    let pairs = [(0, 4), (1, 5), (2, 6), (3, 7)];
    let g = graph(8, &pairs);
    let halves = |order: &[OpId]| {
        pairs
            .iter()
            .filter(|p| order[..4].contains(&OpId(p.0 as u32)) != order[..4].contains(&OpId(p.1 as u32)))
            .count()
    };
    assert_eq!(halves(&m_topo(&g)), 4);
    assert_eq!(halves(&dfs_topo(&g)), 0);
}

#[test]
fn the_torn_chains_pay_for_their_cuts() {
    // The two splits of the chains above, each op 10 us and each transfer 3 us + 1 byte.
    let work = common::plain(10, &CHAINS, &[1; 10]);
    let (cluster, times) = (common::mesh(2, 3.0), common::micros(&[10; 10]));
    let us = common::tick(&work, &cluster, &times);
    let order: Vec<i32> = (0..10).collect();
    // Depth first: each chain on its own device, 50 us.
    let whole = on(&[0, 1, 0, 1, 0, 1, 0, 1, 0, 1]);
    assert_eq!(run(&work, &cluster, &times, &whole, &order, Options::default()).makespan, 50 * us);
    // Breadth first: ops 0..=4 on device 0 (0, 1, 2, 3, 4 end at 50), 5..=9 on device 1. 3 ends at 40
    // and reaches device 1 at 44: 5 runs to 54. 4 ends at 50, arrives at 54: 6, 7, 8, 9 run to 94.
    let torn = on(&[0, 0, 0, 0, 0, 1, 1, 1, 1, 1]);
    assert_eq!(run(&work, &cluster, &times, &torn, &order, Options::default()).makespan, 94 * us);
}

#[test]
fn ties_go_to_the_smaller_index() {
    let g = graph(5, &[(0, 3), (0, 2), (0, 4)]);
    let levels = Levels::new(&g, &[1; 5], &[0; 1]);
    assert_eq!(dfs_topo(&g), ops(&[0, 2, 3, 4, 1]));
    assert_eq!(cpd_topo(&g, &levels), ops(&[0, 2, 3, 4, 1]));
    assert_eq!(m_topo(&g), ops(&[0, 1, 2, 3, 4]));
}
