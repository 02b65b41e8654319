//! Validation of graphs and clusters, and the graph's two directions.

use std::collections::BTreeSet;

use crate::common::{self, dags, device, graph, link, ops};
use loadmaster_core::Error;
use loadmaster_core::cluster::{Cluster, Links};
use loadmaster_core::graph::Graph;
use loadmaster_core::ids::{DeviceId, OpId};
use loadmaster_core::workload::{Columns, Workload};
use petgraph::algo::is_cyclic_directed;
use petgraph::graph::DiGraph;
use proptest::collection::vec;
use proptest::prelude::*;

fn oracle(n: usize, edges: &[(u8, u8)]) -> DiGraph<(), ()> {
    let mut oracle = DiGraph::new();
    let nodes: Vec<_> = (0..n).map(|_| oracle.add_node(())).collect();
    for &(a, b) in edges {
        oracle.add_edge(nodes[a as usize % n], nodes[b as usize % n], ());
    }
    oracle
}

proptest! {
    #![proptest_config(common::config(256))]

    #[test]
    fn exactly_the_cyclic_graphs_are_refused_and_the_cycle_is_real(
        n in 2usize..12,
        edges in vec((any::<u8>(), any::<u8>()), 0..20),
    ) {
        let edges: Vec<(u8, u8)> =
            edges.into_iter().filter(|(a, b)| *a as usize % n != *b as usize % n).collect();
        let ends = |e: u8| (e as usize % n) as i64;
        let src: Vec<i64> = edges.iter().map(|e| ends(e.0)).collect();
        let dst: Vec<i64> = edges.iter().map(|e| ends(e.1)).collect();
        match Graph::new(n, &src, &dst, None) {
            Ok(_) => prop_assert!(!is_cyclic_directed(&oracle(n, &edges))),
            Err(Error::Cycle(cycle)) => {
                let ids: Vec<i64> = cycle.0.iter().map(|op| i64::from(op.id.0)).collect();
                prop_assert!(ids.len() >= 3, "{ids:?}");
                prop_assert_eq!(ids.first(), ids.last());
                let inner: BTreeSet<_> = ids[1..].iter().collect();
                prop_assert_eq!(inner.len(), ids.len() - 1, "an op comes twice: {:?}", ids);
                for w in ids.windows(2) {
                    prop_assert!(src.iter().zip(&dst).any(|(&s, &d)| (s, d) == (w[0], w[1])), "{ids:?}");
                }
            }
            Err(other) => prop_assert!(false, "{other}"),
        }
    }

    #[test]
    fn both_directions_hold_exactly_the_edges_given(dag in dags(16)) {
        let g = dag.graph();
        let given: BTreeSet<(i64, i64, i64)> =
            (0..dag.src.len()).map(|i| (dag.src[i], dag.dst[i], dag.tensor[i])).collect();
        let id = |t| if g.is_control(t) { -1 } else { i64::from(g.key(t)) };
        let op = |u: OpId| i64::from(u.0);
        let forward: BTreeSet<_> = g
            .ops()
            .flat_map(|u| g.outputs(u).map(move |t| (u, t)))
            .flat_map(|(u, t)| g.consumers(t).iter().map(move |&v| (u, v, t)))
            .map(|(u, v, t)| (op(u), op(v), id(t)))
            .collect();
        let backward: BTreeSet<_> = g
            .ops()
            .flat_map(|v| g.inputs_with_ops(v).map(move |(t, u)| (u, v, t)))
            .map(|(u, v, t)| (op(u), op(v), id(t)))
            .collect();
        prop_assert_eq!(&forward, &given);
        prop_assert_eq!(&backward, &given);
        prop_assert_eq!(g.n_edges(), given.len());
        for t in g.tensors() {
            prop_assert_eq!(g.output_with_key(g.source(t), g.key(t)), Some(t));
            prop_assert!(g.consumers(t).is_sorted());
        }
    }

    #[test]
    fn the_order_in_which_edges_are_given_makes_no_difference(dag in dags(16), with_tensors in any::<bool>()) {
        let mut edges: Vec<(i64, i64, i64)> =
            (0..dag.src.len()).map(|i| (dag.src[i], dag.dst[i], dag.tensor[i])).collect();
        edges.sort_unstable();
        let built = |edges: &[(i64, i64, i64)]| {
            let column = |of: fn(&(i64, i64, i64)) -> i64| edges.iter().map(of).collect::<Vec<_>>();
            let tensor = column(|e| e.2);
            let tensor = with_tensors.then_some(tensor.as_slice());
            Graph::numbered(dag.n, &column(|e| e.0), &column(|e| e.1), tensor).unwrap()
        };
        let sorted = built(&edges);
        edges.reverse();
        prop_assert_eq!(&sorted, &built(&edges));
        edges.sort_unstable_by_key(|e| (e.1, e.0, e.2));
        prop_assert_eq!(&sorted, &built(&edges));
    }

    #[test]
    fn no_array_makes_it_panic(
        n in 0usize..6,
        src in vec(wild(), 0..6),
        dst in vec(wild(), 0..6),
        tensor in proptest::option::of(vec(wild(), 0..6)),
    ) {
        if let Err(error) = Graph::new(n, &src, &dst, tensor.as_deref()) {
            prop_assert!(!error.to_string().is_empty());
        }
    }

    #[test]
    fn no_cluster_makes_it_panic(
        k in 0usize..5,
        links in vec((0usize..6, 0usize..6, float(), float()), 0..12),
        bytes in any::<u64>(),
    ) {
        let devices = (0..k).map(|d| device(d, "gpu", bytes)).collect();
        let links: Vec<Links> = links
            .into_iter()
            .map(|(a, b, bandwidth, latency)| Links { bandwidth, latency, ..link(a, b, 0.0, &[]) })
            .collect();
        match Cluster::new(devices, &links) {
            Err(error) => prop_assert!(!error.to_string().is_empty()),
            Ok(cluster) => {
                for (a, b) in common::pairs(k) {
                    let (a, b) = (DeviceId::new(a), DeviceId::new(b));
                    prop_assert!(cluster.transfer_seconds(a, b, bytes) >= 0.0);
                    let hops = cluster.route_hops(a, b);
                    prop_assert_eq!((hops.first(), hops.last()), (Some(&a), Some(&b)));
                    prop_assert!(!cluster.route_channels(a, b).is_empty());
                }
            }
        }
    }
}

/// Every way from one device to another that passes none twice.
fn paths(links: &[(usize, usize, f64)], path: &mut Vec<usize>, to: usize, found: &mut Vec<Vec<usize>>) {
    let at = path[path.len() - 1];
    if at == to {
        found.push(path.clone());
        return;
    }
    for next in links.iter().filter(|l| l.0 == at).map(|l| l.1) {
        if !path.contains(&next) {
            path.push(next);
            paths(links, path, to, found);
            path.pop();
        }
    }
}

proptest! {
    #![proptest_config(common::config(256))]

    #[test]
    fn routes_are_direct_or_else_widest_then_shortest_then_of_smallest_indices(
        k in 2usize..6,
        drawn in vec((0usize..6, 0usize..6, 1u8..4), 0..25),
    ) {
        let mut links: Vec<(usize, usize, f64)> = Vec::new();
        for (a, b, width) in drawn.into_iter().map(|(a, b, w)| (a % k, b % k, f64::from(w) * 1e9)) {
            if a != b && links.iter().all(|l| (l.0, l.1) != (a, b)) {
                links.push((a, b, width));
            }
        }
        let width = |p: &[usize]| {
            let of = |w: &[usize]| links.iter().find(|l| (l.0, l.1) == (w[0], w[1])).expect("a link").2;
            p.windows(2).map(of).fold(f64::INFINITY, f64::min)
        };
        let given: Vec<Links> =
            links.iter().map(|&(a, b, bandwidth)| Links { bandwidth, ..link(a, b, 1.0, &[]) }).collect();
        let cluster = Cluster::new(common::devices(k), &given);
        for (a, b) in common::pairs(k) {
            let mut found = Vec::new();
            paths(&links, &mut vec![a], b, &mut found);
            let Ok(cluster) = &cluster else {
                if found.is_empty() { return Ok(()) } else { continue }
            };
            let rank = |p: &Vec<usize>| {
                let direct = p.len() == 2;
                (!direct, if direct { 0.0 } else { -width(p) }, p.len(), p.clone())
            };
            let compare = |p: &Vec<usize>, q: &Vec<usize>| rank(p).partial_cmp(&rank(q)).expect("no NaN");
            let best = found.into_iter().min_by(compare).expect("reachable");
            let (from, to) = (DeviceId::new(a), DeviceId::new(b));
            let hops: Vec<usize> = cluster.route_hops(from, to).iter().map(|d| d.ix()).collect();
            prop_assert_eq!(&hops, &best);
            let (latency, bandwidth) = cluster.route(from, to);
            prop_assert_eq!(bandwidth, width(&best));
            prop_assert!((latency - (best.len() - 1) as f64 * 1e-6).abs() < 1e-15);
            prop_assert_eq!(cluster.route_channels(from, to).len(), best.len() - 1);
        }
        prop_assert!(cluster.is_ok(), "refused though all pairs are joined");
    }
}

/// Small ids, good and bad, and the ends of the range.
fn wild() -> impl Strategy<Value = i64> {
    prop_oneof![8 => -2i64..8, 1 => any::<i64>(), 1 => Just(i64::MIN), 1 => Just(i64::MAX)]
}

fn float() -> impl Strategy<Value = f64> {
    prop_oneof![
        4 => 0.0..1e12,
        1 => any::<f64>(),
        1 => Just(f64::NAN),
        1 => Just(f64::INFINITY),
        1 => Just(f64::MAX),
        1 => Just(f64::MIN_POSITIVE),
    ]
}

#[test]
fn errors_say_which_edge_and_what_is_wrong() {
    let error = |n, src: &[i64], dst: &[i64], tensor: Option<&[i64]>| {
        Graph::new(n, src, dst, tensor).expect_err("a bad graph").to_string()
    };
    assert_eq!(error(0, &[], &[], None), "the graph has no ops");
    assert!(error(2, &[0, 5], &[1, 1], None).contains("edge 1 has src 5"));
    assert!(error(2, &[0], &[i64::MIN], None).contains("edge 0 has dst -9223372036854775808"));
    assert!(error(2, &[1], &[1], None).contains("edge 0 joins op 1 to itself"));
    assert!(error(2, &[0], &[], None).contains("dst has 0 values where 1"));
    assert!(error(2, &[0], &[1], Some(&[])).contains("tensor has 0 values where 1"));
    assert!(error(2, &[0], &[1], Some(&[-2])).contains("carries tensor -2"));
    assert!(error(2, &[0], &[1], Some(&[3])).contains("0 to 2"));
    assert!(error(3, &[0, 1], &[2, 2], Some(&[0, 0])).contains("op 0 and op 1"));
    assert!(error(usize::MAX, &[], &[], None).contains("at most"));
    let cycle = error(3, &[0, 1, 2], &[1, 2, 0], None);
    assert!(cycle.contains("op 0 -> op 1 -> op 2 -> op 0") || cycle.contains("op 1 -> op 2 -> op 0 -> op 1"));
}

#[test]
fn repeated_edges_count_once_and_parallel_tensors_count_each() {
    // Op 1 reads tensor 0 twice, tensor 1 and a control message, all from op 0.
    let g = Graph::new(2, &[0, 0, 0, 0], &[1, 1, 1, 1], Some(&[0, 0, 1, -1])).unwrap();
    assert_eq!((g.n_edges(), g.n_tensors(), g.in_degree(OpId(1))), (3, 3, 3));
    assert_eq!(g.successors(OpId(0)), ops(&[1, 1, 1]));
    assert_eq!(g.tensors().filter(|&t| g.is_control(t)).count(), 1);
}

#[test]
fn a_graph_may_be_nothing_but_isolated_ops() {
    let g = graph(3, &[]);
    assert_eq!((g.n_ops(), g.n_edges(), g.n_tensors()), (3, 0, 0));
    assert_eq!(g.topo(), ops(&[0, 1, 2]));
}

#[test]
fn sizes_need_a_value_for_every_tensor_id_and_every_op() {
    let g = graph(3, &[(0, 1), (2, 1)]);
    let plain = |columns: &Columns<'_>| Workload::plain(g.clone(), columns);
    assert!(plain(&Columns { tensor_bytes: &[1, 2], ..Columns::default() }).is_err());
    assert!(plain(&Columns { tensor_bytes: &[1, 2, 3], ..Columns::default() }).is_ok());
    assert!(plain(&Columns { resident: &[1, 2], ..Columns::default() }).is_err());
    // Op 0 may use type 0 only, op 1 type 1 only: they cannot share a device.
    let apart = Columns { allowed: &[1, 2, 3], colocation: &[7, 7, -1], ..Columns::default() };
    let error = plain(&apart).expect_err("no common type").to_string();
    assert!(error.contains("op 0 and op 1 must share a device"), "{error}");
}
