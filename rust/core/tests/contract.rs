//! The quotient by groups: what is kept, what is counted once, what is refused.

use std::collections::{BTreeMap, BTreeSet};

use crate::common::{self, graph, plain, works};
use loadmaster_core::Error;
use loadmaster_core::coarsen::Weights;
use loadmaster_core::coarsen::contract::{contract, contract_colocated, flows};
use loadmaster_core::coarsen::fusion::{Limits, breakpoints, segments};
use loadmaster_core::ids::OpId;
use loadmaster_core::workload::{ANY_TYPE, Columns, Workload};
use petgraph::algo::is_cyclic_directed;
use petgraph::graph::{DiGraph, NodeIndex};
use proptest::collection::vec;
use proptest::prelude::*;

/// Pairs of groups joined by a tensor that an op must wait for.
fn joined(work: &Workload, group: &[u32]) -> BTreeSet<(u32, u32)> {
    let g = &work.graph;
    let ends = g.ops().flat_map(|v| g.inputs_with_ops(v).map(move |(_, u)| (group[u.ix()], group[v.ix()])));
    ends.filter(|(a, b)| a != b).collect()
}

fn is_acyclic(pairs: &BTreeSet<(u32, u32)>, n: usize) -> bool {
    let mut oracle = DiGraph::<(), ()>::new();
    (0..n).for_each(|_| {
        oracle.add_node(());
    });
    for &(a, b) in pairs {
        oracle.add_edge(NodeIndex::new(a as usize), NodeIndex::new(b as usize), ());
    }
    !is_cyclic_directed(&oracle)
}

/// Groups numbered without gaps from any numbers.
fn dense(group: &[u8]) -> Vec<u32> {
    let codes: BTreeSet<u8> = group.iter().copied().collect();
    group.iter().map(|c| codes.range(..c).count() as u32).collect()
}

fn check(work: &Workload, group: &[u32], coarse: &Workload) -> Result<(), TestCaseError> {
    let n = coarse.n_ops();
    let members = |k: usize| (0..group.len()).filter(move |&u| group[u] as usize == k).map(OpId::new);

    // Bytes of ops.
    for k in 0..n {
        prop_assert_eq!(coarse.resident[k], members(k).map(|u| work.resident[u.ix()]).sum::<u64>());
        prop_assert_eq!(Some(coarse.workspace[k]), members(k).map(|u| work.workspace[u.ix()]).max());
        prop_assert_eq!(
            coarse.output_bytes(OpId::new(k)),
            members(k).map(|u| work.output_bytes(u)).sum::<u64>()
        );
        prop_assert_eq!(coarse.allowed[k], members(k).fold(u64::MAX, |m, u| m & work.allowed[u.ix()]));
    }
    let total = |w: &Workload| w.static_bytes().iter().sum::<u64>();
    prop_assert_eq!(total(coarse), total(work));

    // Who waits for whom, by which tensor: one edge per tensor and reading group.
    let (fine, rough) = (&work.graph, &coarse.graph);
    let mut expected = BTreeSet::new();
    let mut pulled = BTreeSet::new();
    for t in fine.tensors() {
        let from = group[fine.source(t).ix()];
        for to in fine.consumers(t).iter().map(|c| group[c.ix()]).filter(|&to| to != from) {
            let id = if fine.is_control(t) { None } else { Some((fine.key(t), work.tensor_bytes[t.ix()])) };
            if fine.is_home(t) {
                pulled.insert((from, to, id))
            } else {
                expected.insert((from, to, id))
            };
        }
    }
    let mut got = BTreeSet::new();
    let mut got_pulled = BTreeSet::new();
    for t in rough.tensors() {
        for to in rough.consumers(t) {
            let id =
                if rough.is_control(t) { None } else { Some((rough.key(t), coarse.tensor_bytes[t.ix()])) };
            let edge = (rough.source(t).0, to.0, id);
            prop_assert!(
                if rough.is_home(t) { got_pulled.insert(edge) } else { got.insert(edge) },
                "twice: {edge:?}"
            );
        }
    }
    prop_assert_eq!(&got, &expected);
    prop_assert_eq!(&got_pulled, &pulled);

    // The same, summed per pair.
    let mut sums: BTreeMap<(u32, u32), (u32, u64)> = BTreeMap::new();
    for (from, to, id) in expected {
        let sum = sums.entry((from, to)).or_default();
        if let Some((_, bytes)) = id {
            *sum = (sum.0 + 1, sum.1 + bytes);
        }
    }
    let got: Vec<_> = flows(coarse).iter().map(|f| ((f.src.0, f.dst.0), (f.tensors, f.bytes))).collect();
    prop_assert_eq!(got, sums.into_iter().collect::<Vec<_>>());
    Ok(())
}

proptest! {
    #![proptest_config(common::config(256))]

    #[test]
    fn any_groups_give_the_quotient_or_the_reason_why_not(
        work in works(14),
        codes in vec(0u8..10, 14),
    ) {
        let mut work = work;
        work.allowed.fill(ANY_TYPE);
        let group = dense(&codes[..work.n_ops()]);
        let n = group.iter().max().map_or(0, |&g| g as usize + 1);
        let pairs = joined(&work, &group);
        match contract(&work, &group) {
            Ok(coarse) => {
                prop_assert!(is_acyclic(&pairs, n));
                check(&work, &group, &coarse)?;
            }
            Err(Error::CyclicGroups(cycle)) => {
                let groups: Vec<u32> = cycle.0.iter().map(|op| group[op.id.ix()]).collect();
                prop_assert!(groups.len() >= 3 && groups.first() == groups.last());
                prop_assert!(groups.windows(2).all(|w| pairs.contains(&(w[0], w[1]))));
            }
            Err(other) => prop_assert!(false, "{other}"),
        }
    }

    #[test]
    fn groups_share_a_device_where_ops_of_theirs_do(work in works(12), codes in vec(0u8..9, 12)) {
        let group = dense(&codes[..work.n_ops()]);
        let Ok(free) = contract(&work, &group) else { return Ok(()) };
        let coarse = match contract_colocated(&work, &group) {
            Ok(coarse) => coarse,
            Err(error) => {
                let is_type = matches!(error, Error::NoCommonType { .. });
                prop_assert!(is_type);
                return Ok(());
            }
        };
        for ops in (0..work.sets.n_rows()).map(|s| work.sets.row(s)) {
            let mut sets = ops.iter().map(|u| coarse.set_of[group[u.ix()] as usize]);
            let first = sets.next();
            prop_assert!(sets.all(|set| Some(set) == first));
        }
        // Never more than that joins groups: there are as many sets as parts of a graph whose
        // vertices are groups and sets of ops.
        let n = free.n_ops();
        let mut part: Vec<usize> = (0..n + work.sets.n_rows()).collect();
        for u in work.graph.ops() {
            let (a, b) = (part[group[u.ix()] as usize], part[n + work.set_of[u.ix()] as usize]);
            part.iter_mut().filter(|p| **p == a).for_each(|p| *p = b);
        }
        part.sort_unstable();
        part.dedup();
        prop_assert_eq!(coarse.sets.n_rows(), part.len());
        prop_assert!(coarse.static_bytes().iter().all(|&bytes| bytes == 0));
        prop_assert_eq!(&coarse.graph, &free.graph);
        prop_assert_eq!(&coarse.tensor_bytes, &free.tensor_bytes);
    }

    #[test]
    fn segments_of_an_order_always_merge(work in works(16), max_ops in 1usize..6) {
        let g = &work.graph;
        let (cost, zeros) = (vec![1; g.n_tensors()], vec![0; work.n_ops()]);
        let weights =
            Weights { op_time: &zeros, tensor_time: &cost, op_bytes: &zeros, class: &work.allowed };
        let limits = Limits { max_ops, max_bytes: u64::MAX, max_time: u64::MAX };
        let cuts = breakpoints(g, g.topo(), &weights, limits);
        let group = segments(g.topo(), &cuts);
        let coarse = contract(&work, &group).expect("segments only look back");
        check(&work, &group, &coarse)?;
        // Segments are numbered along the order.
        let rough = &coarse.graph;
        prop_assert!(rough.ops().all(|u| rough.successors(u).iter().all(|&v| u < v)));
    }

    #[test]
    fn merging_in_two_steps_is_merging_at_once(
        work in works(12),
        first in vec(0u8..9, 12),
        second in vec(0u8..4, 12),
    ) {
        let mut work = work;
        work.allowed.fill(ANY_TYPE);
        let first = dense(&first[..work.n_ops()]);
        let n = first.iter().max().map_or(0, |&g| g as usize + 1);
        let second = dense(&second[..n]);
        let both: Vec<u32> = first.iter().map(|&g| second[g as usize]).collect();
        if let (Ok(one), Ok(at_once)) = (contract(&work, &first), contract(&work, &both)) {
            let two = contract(&one, &second).expect("acyclic at once, hence in steps");
            prop_assert_eq!(two, at_once);
        }
    }

    #[test]
    fn no_groups_make_it_panic(
        work in works(6),
        group in vec(prop_oneof![8 => 0u32..6, 1 => any::<u32>(), 1 => Just(u32::MAX)], 0..8),
    ) {
        if let Err(error) = contract(&work, &group) {
            prop_assert!(!error.to_string().is_empty());
        }
    }
}

#[test]
fn both_diagonals_of_k22_make_a_cycle() {
    // a0 = 0, a1 = 1; b0 = 2, b1 = 3; every a to every b. {a0, b1} and {a1, b0} wait for each other.
    let work = plain(4, &[(0, 2), (0, 3), (1, 2), (1, 3)], &[]);
    let Err(Error::CyclicGroups(cycle)) = contract(&work, &[0, 1, 1, 0]) else {
        panic!("merging both diagonals must be refused")
    };
    assert_eq!(cycle.0.len(), 3);
    // One diagonal alone waits for a1, and b0 waits for it.
    let coarse = contract(&work, &[0, 1, 2, 0]).unwrap();
    assert_eq!(coarse.graph.topo(), common::ops(&[1, 0, 2]));
}

#[test]
fn a_diamond_merged_along_its_sides_has_one_edge() {
    let work = plain(4, &[(0, 1), (0, 2), (1, 3), (2, 3)], &[5, 6, 7]);
    let coarse = contract(&work, &[0, 0, 1, 1]).unwrap();
    // Tensor 0 (to op 2) and tensor 1 (to op 3) cross.
    let flow = flows(&coarse);
    assert_eq!(flow.len(), 1);
    assert_eq!((flow[0].tensors, flow[0].bytes), (2, 11));
    assert_eq!(coarse.output_bytes(OpId(0)), 11);
    assert_eq!(coarse.output_bytes(OpId(1)), 7);
}

#[test]
fn errors_say_which_group() {
    let work = plain(3, &[(0, 1), (1, 2)], &[]);
    let error = |group: &[u32]| contract(&work, group).expect_err("bad groups").to_string();
    assert!(error(&[0, 1]).contains("group has 2 values where 3"));
    assert!(error(&[0, 0, 2]).contains("no op is in group 1"));
    assert!(error(&[0, 0, u32::MAX]).contains("4294967295"));
    assert!(error(&[0, 1, 0]).contains("makes a cycle"));

    let columns = Columns { allowed: &[1, 1, 2], ..Columns::default() };
    let work = Workload::plain(graph(3, &[(0, 1), (1, 2)]), &columns).unwrap();
    assert!(matches!(contract(&work, &[0, 1, 1]), Err(Error::NoCommonType { .. })));
    assert_eq!(contract(&work, &[0, 0, 1]).unwrap().allowed, [1, 2]);
}
