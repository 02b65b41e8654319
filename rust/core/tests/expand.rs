//! Copies of drawn models on devices, and blocks of ops in the place of one: valid as if a user had given them.

use crate::common::{Model, config, models};
use loadmaster_core::Error;
use loadmaster_core::expand::block::{self, Block};
use loadmaster_core::expand::copies::{Added, Copies, Expanded, Home, Links, Terms, expand};
use loadmaster_core::expand::ways::Way;
use loadmaster_core::graph::MAX_ITEMS;
use loadmaster_core::opgraph::{OpColumns, OpGraph};
use proptest::collection::vec;
use proptest::prelude::*;

/// Rows of devices, and a number per op that says where it is and how it is shared.
fn ways(max_ops: usize) -> impl Strategy<Value = (Vec<u64>, Vec<u8>)> {
    (vec(1u64..9, 1..5), vec(any::<u8>(), max_ops))
}

const WHOLE: u32 = 0;

/// On each device; on one that all read, for the first few; on the first and the last; on none.
fn homes(k: usize) -> Vec<Home> {
    let only = (0..k.min(8) as u32).map(|d| Home::new(vec![d; k]));
    let ends = (0..k as u32).map(|d| if d == 0 { 0 } else { k as u32 - 1 }).collect();
    std::iter::once(Home::new((0..k as u32).collect()))
        .chain(only)
        .chain([Home::new(ends), Home::common(k)])
        .collect()
}

fn copies(model: &OpGraph, rows: &[u64], how: &[u8]) -> Copies {
    let (c, n, k) = (model.columns(), model.n_ops(), rows.len());
    let homes = homes(k);
    let home = |u: usize| if how[u] % 8 < 3 { u32::from(how[u] / 8) % homes.len() as u32 } else { 0 };
    let way = |u: usize| u32::from(how[u].is_multiple_of(2));
    let of_ops = || (0..n).map(way).collect::<Vec<u32>>();
    // Two terms per op: half of it is whole on each device.
    let two = |bytes: &[u64]| Terms {
        first: (0..=n as u32).map(|u| 2 * u).collect(),
        way: (0..n).flat_map(|u| [WHOLE, way(u)]).collect(),
        bytes: bytes.iter().flat_map(|&b| [b / 2, b - b / 2]).collect(),
    };
    Copies {
        k,
        ways: vec![Way::new(1, vec![0; k], vec![1; k]), Way::of_rows(rows)],
        home: (0..n).map(home).collect(),
        homes,
        work: of_ops(),
        resident: of_ops(),
        accessed: two(&c.accessed),
        output: two(&c.output_bytes),
        stays: (0..c.src.len()).map(|e| e % 5 > 0).collect(),
        edge: (0..c.src.len()).map(|e| u32::from(how[c.src[e] as usize].is_multiple_of(4))).collect(),
        together: vec![-1; n],
    }
}

/// A collective between the ends of each edge with data that does not stay.
fn collectives(model: &OpGraph, copies: &Copies) -> (Added, Links) {
    let (c, k) = (model.columns(), copies.k);
    let ids = c.tensor.as_ref().expect("given");
    let gone: Vec<usize> = (0..c.src.len()).filter(|&e| !copies.stays[e] && ids[e] >= 0).collect();
    let members: Vec<(usize, usize)> = gone.iter().flat_map(|&e| (0..k).map(move |r| (e, r))).collect();
    let a = members.len();
    let stride = ids.iter().max().map_or(0, |last| last + 1);
    let added = Added {
        place: members.iter().map(|&(e, _)| c.src[e] as u32).collect(),
        is_before: vec![false; a],
        serves: members.iter().map(|&(e, _)| c.src[e] as u32).collect(),
        device: members.iter().map(|&(_, d)| d as i32).collect(),
        collective: (0..a).map(|i| (i / k) as i64).collect(),
        kind: vec![0; a],
        runs: Vec::new(),
        flops: vec![0; a],
        accessed: vec![0; a],
        output: vec![7; a],
        alias: vec![],
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
    fn copies_are_valid_and_share_what_there_is(model in models(16), (rows, how) in ways(16)) {
        let Some((copies, made)) = expanded(&model, &rows, &how) else { return Ok(()) };
        made.graph.validated().expect("as if a user had given it");
        let (c, source) = (made.graph.columns(), model.graph.columns());
        let n = made.graph.n_ops();
        prop_assert!(made.serves.iter().zip(&made.added).all(|(_, &i)| i >= -1));
        for u in 0..model.graph.n_ops() {
            let own: Vec<usize> =
                (0..n).filter(|&v| made.added[v] < 0 && made.serves[v] == u as i32).collect();
            let home = &copies.homes[copies.home[u] as usize];
            prop_assert_eq!(own.len(), home.devices().len());
            prop_assert!(own.windows(2).all(|pair| pair[1] == pair[0] + 1), "copies are neighbours");
            let sum = |column: &[u64]| own.iter().map(|&v| column[v]).sum::<u64>();
            let (kept, rest) = (source.output_bytes[u] / 2, source.output_bytes[u].div_ceil(2));
            let many = own.len() as u64;
            if copies.work[u] == WHOLE {
                prop_assert_eq!(sum(&c.output_bytes), many * (kept + rest));
                prop_assert_eq!(sum(&c.flops), many * source.flops[u]);
            } else if many == rows.len() as u64 {
                prop_assert_eq!(sum(&c.output_bytes), many * kept + rest);
                prop_assert_eq!(sum(&c.flops), source.flops[u]);
                prop_assert_eq!(sum(&c.resident), source.resident[u]);
            }
            for (&d, &v) in home.devices().iter().zip(&own) {
                prop_assert_eq!(made.device[v], if home.is_common() { -1 } else { d as i32 });
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
    fn one_device_that_shares_all_has_the_graph_itself(model in models(16)) {
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

    /// Copies of a graph that has been expanded once: its collectives are of each device, what is together
    /// is one set on all of them, and an op that is added writes where it is told.
    #[test]
    fn what_was_expanded_can_be_again(model in models(16), (rows, how) in ways(16), k in 1usize..4) {
        let Some((_, once)) = expanded(&model, &rows, &how) else { return Ok(()) };
        let (source, n) = (once.graph.columns(), once.graph.n_ops());
        let own = (0..n).find(|&u| !source.view[u] && source.alias_of[u] < 0 && !source.placeholder[u]);
        let mut copies = copies(&once.graph, &vec![1; k], &vec![2; n]);
        copies.stays.fill(true);
        copies.home.fill(0);
        copies.together = (0..n).map(|u| if u % 3 == 0 { u as i64 } else { -1 }).collect();
        let a = usize::from(own.is_some());
        let added = Added {
            place: own.iter().map(|&u| u as u32).collect(),
            is_before: vec![false; a],
            serves: own.iter().map(|&u| u as u32).collect(),
            device: vec![0; a],
            collective: vec![-1; a],
            kind: vec![0; a],
            runs: Vec::new(),
            flops: vec![1; a],
            accessed: vec![1; a],
            output: vec![0; a],
            alias: own.iter().map(|&u| (u * k + k - 1) as i64).collect(),
        };
        let links = Links { place: vec![], src: vec![], dst: vec![], tensor: vec![], bytes: vec![] };
        let made = expand(&once.graph, &copies, &added, &links).expect("no cycle");
        made.graph.validated().expect("as if a user had given it");
        let c = made.graph.columns();
        for v in 0..made.graph.n_ops() {
            let (u, d) = (made.serves[v] as usize, made.device[v] as i64);
            if made.added[v] >= 0 {
                let onto = c.alias_of[v] as usize;
                prop_assert_eq!((made.serves[onto], made.device[onto]), (u as i32, k as i32 - 1));
                continue;
            }
            let group = source.collective.get(u).copied().unwrap_or(-1);
            let wanted = if group < 0 { -1 } else { group * k as i64 + d };
            prop_assert_eq!(c.collective.get(v).copied().unwrap_or(-1), wanted);
            let own_set = if source.colocation[u] < 0 { -1 } else { source.colocation[u] * k as i64 + d };
            let set = if u % 3 == 0 { u as i64 * k as i64 } else { own_set };
            prop_assert_eq!(c.colocation[v], set);
        }
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
        let way = Way::of_rows(&rows);
        let parts: Vec<u64> = (0..rows.len()).map(|part| way.of(total, part)).collect();
        prop_assert_eq!(parts.iter().map(|&part| u128::from(part)).sum::<u128>(), u128::from(total));
        let size: u128 = rows.iter().map(|&row| u128::from(row)).sum();
        for (part, &row) in parts.iter().zip(&rows) {
            let exact = u128::from(total) * u128::from(row) / size;
            prop_assert!((exact..=exact + 1).contains(&u128::from(*part)));
        }
    }

    #[test]
    fn bounds_that_repeat_or_are_empty_give_the_same_or_nothing(total in any::<u64>(), size in 1u64..1 << 40) {
        let half = size / 2;
        let way = Way::new(size, vec![0, 0, half, size, 0], vec![half, half, size, size, size]);
        prop_assert_eq!(way.of(total, 0), way.of(total, 1));
        prop_assert_eq!(u128::from(way.of(total, 0)) + u128::from(way.of(total, 2)), u128::from(total));
        prop_assert_eq!((way.of(total, 3), way.of(total, 4)), (0, total));
    }
}

#[test]
fn copies_past_the_largest_graph_are_refused() {
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
