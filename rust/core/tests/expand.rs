//! Replicas of drawn models, and blocks of ops in the place of one: valid as if a user had given them.

mod common;

use common::{Model, config, models};
use loadmaster_core::Error;
use loadmaster_core::expand::block::{self, Block};
use loadmaster_core::expand::replicas::{Added, Copies, Expanded, Home, Links, Shares, expand};
use loadmaster_core::graph::MAX_ITEMS;
use loadmaster_core::opgraph::{OpColumns, OpGraph};
use proptest::collection::vec;
use proptest::prelude::*;

/// Rows of replicas, and a number per op that says where it is and how it is shared.
fn ways(max_ops: usize) -> impl Strategy<Value = (Vec<u64>, Vec<u8>)> {
    (vec(1u64..9, 1..5), vec(any::<u8>(), max_ops))
}

fn copies(model: &OpGraph, rows: &[u64], how: &[u8]) -> Copies {
    let (c, n, k) = (model.columns(), model.n_ops(), rows.len());
    let home = |u: usize| match how[u] % 8 {
        0 => Home::Common,
        1 => Home::Only(u32::from(how[u] / 8) % k as u32),
        _ => Home::Each,
    };
    let each = |u: usize| home(u) == Home::Each;
    let of_source = |e: usize| c.src[e] as usize;
    Copies {
        rows: rows.to_vec(),
        home: (0..n).map(home).collect(),
        by_rows: (0..n).map(|u| each(u) && how[u].is_multiple_of(2)).collect(),
        even: (0..n).map(|u| each(u) && how[u].is_multiple_of(3)).collect(),
        whole_accessed: vec![0; n],
        whole_output: c.output_bytes.iter().map(|bytes| bytes / 2).collect(),
        whole_resident: vec![0; n],
        stays: (0..c.src.len()).map(|e| e % 5 > 0).collect(),
        along: (0..c.src.len()).map(|e| how[of_source(e)].is_multiple_of(4)).collect(),
    }
}

/// A collective between the ends of each edge with data that does not stay.
fn collectives(model: &OpGraph, copies: &Copies) -> (Added, Links) {
    let (c, k) = (model.columns(), copies.rows.len());
    let ids = c.tensor.as_ref().expect("given");
    let gone: Vec<usize> = (0..c.src.len()).filter(|&e| !copies.stays[e] && ids[e] >= 0).collect();
    let members: Vec<(usize, usize)> = gone.iter().flat_map(|&e| (0..k).map(move |r| (e, r))).collect();
    let a = members.len();
    let stride = ids.iter().max().map_or(0, |last| last + 1);
    let added = Added {
        place: members.iter().map(|&(e, _)| c.src[e] as u32).collect(),
        is_before: vec![false; a],
        serves: members.iter().map(|&(e, _)| c.src[e] as u32).collect(),
        replica: members.iter().map(|&(_, r)| r as i32).collect(),
        collective: (0..a).map(|i| (i / k) as i64).collect(),
        kind: vec![0; a],
        flops: vec![0; a],
        accessed: vec![0; a],
        output: vec![7; a],
    };
    let mut links = Links { place: vec![], src: vec![], dst: vec![], tensor: vec![], bytes: vec![] };
    for (i, &(e, r)) in members.iter().enumerate() {
        let member = (model.n_ops() * k + i) as u64;
        let copy = |op: i64| op as u64 * k as u64 + r as u64;
        let fresh = k as i64 * stride + i as i64;
        for (src, dst, id) in [(copy(c.src[e]), member, -1), (member, copy(c.dst[e]), fresh)] {
            links.place.push(e as u32);
            links.src.push(src);
            links.dst.push(dst);
            links.tensor.push(id);
            links.bytes.push(if id < 0 { 0 } else { 7 });
        }
    }
    (added, links)
}

/// None: a view passes a tensor on, and what it reads is another one now.
fn expanded(model: &Model, rows: &[u64], how: &[u8]) -> Option<(Copies, Expanded)> {
    let copies = copies(&model.graph, rows, how);
    let (added, links) = collectives(&model.graph, &copies);
    match expand(&model.graph, &copies, &added, &links) {
        Ok(made) => Some((copies, made)),
        Err(Error::TwoProducers { .. }) => None,
        Err(error) => panic!("{error}"),
    }
}

proptest! {
    #![proptest_config(config(256))]

    #[test]
    fn replicas_are_valid_and_share_what_there_is(model in models(16), (rows, how) in ways(16)) {
        let Some((copies, made)) = expanded(&model, &rows, &how) else { return Ok(()) };
        made.graph.validated().expect("as if a user had given it");
        let (c, source) = (made.graph.columns(), model.graph.columns());
        let (n, k) = (made.graph.n_ops(), rows.len());
        prop_assert!(made.serves.iter().zip(&made.added).all(|(_, &i)| i >= -1));
        for u in 0..model.graph.n_ops() {
            let own: Vec<usize> =
                (0..n).filter(|&v| made.added[v] < 0 && made.serves[v] == u as i32).collect();
            prop_assert_eq!(own.len(), if copies.home[u] == Home::Each { k } else { 1 });
            prop_assert!(own.windows(2).all(|pair| pair[1] == pair[0] + 1), "copies are neighbours");
            let sum: u64 = own.iter().map(|&v| c.output_bytes[v]).sum();
            let (total, whole) = (source.output_bytes[u], copies.whole_output[u]);
            let is_shared = copies.even[u] || copies.by_rows[u];
            let more = if copies.even[u] { 0 } else { whole * (own.len() as u64 - 1) };
            prop_assert_eq!(sum, if is_shared { total + more } else { total * own.len() as u64 });
            for (r, &v) in own.iter().enumerate() {
                let replica = match copies.home[u] {
                    Home::Each => r as i32,
                    Home::Only(only) => only as i32,
                    Home::Common => -1,
                };
                prop_assert_eq!(made.replica[v], replica);
                prop_assert_eq!(c.view[v], source.view[u]);
            }
        }
        prop_assert!(made.serves.windows(2).all(|pair| pair[0] <= pair[1]), "ops keep their order");
        let ids = c.tensor.as_ref().expect("given");
        let mut used: Vec<i64> = ids.iter().copied().filter(|&id| id >= 0).collect();
        used.sort_unstable();
        used.dedup();
        prop_assert!(used.iter().enumerate().all(|(i, &id)| id == i as i64), "no gaps between tensors");
    }

    #[test]
    fn one_replica_that_shares_all_is_the_graph_itself(model in models(16)) {
        let n = model.graph.n_ops();
        let mut copies = copies(&model.graph, &[3], &vec![2; n]);
        copies.stays.fill(true);
        let (added, links) = collectives(&model.graph, &copies);
        let made = expand(&model.graph, &copies, &added, &links).expect("no cycle");
        let (c, source) = (made.graph.columns(), model.graph.columns());
        prop_assert_eq!((&c.src, &c.dst), (&source.src, &source.dst));
        prop_assert_eq!((&c.alias_of, &c.near), (&source.alias_of, &source.near));
        prop_assert_eq!((&c.output_bytes, &c.resident), (&source.output_bytes, &source.resident));
    }

    #[test]
    fn a_block_takes_the_place_of_an_op(model in models(16), which in any::<u8>(), n_parts in 1usize..4) {
        let c = model.graph.columns();
        let plain: Vec<usize> = (0..model.graph.n_ops())
            .filter(|&u| !c.view[u] && !c.placeholder[u] && c.alias_of[u] < 0 && c.near[u] < 0)
            .collect();
        let at = plain[which as usize % plain.len()];
        let of = |ends: &[i64]| -> Vec<u32> {
            (0..ends.len()).filter(|&e| ends[e] == at as i64).map(|e| e as u32).collect()
        };
        let (entering, leaving) = (of(&c.dst), of(&c.src));
        let shows: Vec<u32> =
            (0..model.graph.n_ops()).filter(|&u| c.alias_of[u] == at as i64).map(|u| u as u32).collect();
        let last = at + n_parts - 1;
        let moved = |u: i64| if u > at as i64 { u + n_parts as i64 - 1 } else { u };
        let ids = c.tensor.as_ref().expect("given");
        let inner = (at..last).map(|u| (u as i64, u as i64 + 1, -1, 0));
        let outer = entering.iter().map(|&e| e as usize);
        let rows: Vec<(i64, i64, i64, u64)> =
            outer.map(|e| (moved(c.src[e]), at as i64, ids[e], c.bytes[e])).chain(inner).collect();
        let block = Block {
            at,
            flops: vec![1; n_parts],
            accessed: vec![2; n_parts],
            output_bytes: (0..n_parts).map(|i| if at + i == last { c.output_bytes[at] } else { 3 }).collect(),
            workspace: vec![4; n_parts],
            dropped: entering,
            leaving_src: vec![last as u32; leaving.len()],
            leaving,
            src: rows.iter().map(|row| row.0).collect(),
            dst: rows.iter().map(|row| row.1).collect(),
            tensor: rows.iter().map(|row| row.2).collect(),
            bytes: rows.iter().map(|row| row.3).collect(),
            shown: vec![last as u32; shows.len()],
            shows,
        };
        let made = block::replace(&model.graph, &block).expect("no cycle");
        made.validated().expect("as if a user had given it");
        let m = made.columns();
        prop_assert_eq!(made.n_ops(), model.graph.n_ops() + n_parts - 1);
        prop_assert_eq!(m.src.len(), c.src.len() + n_parts - 1);
        prop_assert_eq!(m.flops.iter().sum::<u64>(), c.flops.iter().sum::<u64>() - c.flops[at] + n_parts as u64);
        for u in (0..model.graph.n_ops()).filter(|&u| u != at) {
            let v = moved(u as i64) as usize;
            prop_assert_eq!((m.view[v], m.output_bytes[v]), (c.view[u], c.output_bytes[u]));
            let of = c.alias_of[u];
            let owner = if of == at as i64 { last as i64 } else { moved(of) };
            prop_assert_eq!(m.alias_of[v], owner);
        }
    }

    #[test]
    fn shares_add_up(total in any::<u64>(), rows in vec(1u64..1 << 40, 1..9)) {
        let shares = Shares::new(&rows);
        let parts: Vec<u64> = (0..rows.len()).map(|part| shares.of(total, part)).collect();
        prop_assert_eq!(parts.iter().map(|&part| u128::from(part)).sum::<u128>(), u128::from(total));
        let size: u128 = rows.iter().map(|&row| u128::from(row)).sum();
        for (part, &row) in parts.iter().zip(&rows) {
            let exact = u128::from(total) * u128::from(row) / size;
            prop_assert!((exact..=exact + 1).contains(&u128::from(*part)));
        }
    }
}

#[test]
fn replicas_past_the_largest_graph_are_refused() {
    let columns = OpColumns {
        name: vec!["a".into(), "b".into()],
        view: vec![false; 2],
        placeholder: vec![false; 2],
        alias_of: vec![-1; 2],
        near: vec![-1; 2],
        colocation: vec![-1; 2],
        flops: vec![0; 2],
        accessed: vec![0; 2],
        output_bytes: vec![0; 2],
        resident: vec![0; 2],
        workspace: vec![0; 2],
        tensor: Some(Vec::new()),
        ..OpColumns::default()
    };
    let graph = OpGraph::new(columns).expect("valid");
    let copies = copies(&graph, &vec![1; MAX_ITEMS], &[2, 2]);
    let (added, links) = collectives(&graph, &copies);
    let refused = expand(&graph, &copies, &added, &links).expect_err("too many ops");
    assert!(refused.to_string().contains("ops"), "{refused}");
}
