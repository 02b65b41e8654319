//! Replicas of a graph of 50,000 ops, and a block of ops in the place of one, one thread.

#![allow(missing_docs, reason = "criterion_group! makes a public function")]

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use loadmaster_benches::{Layered, Options};
use loadmaster_core::expand::block::{Block, replace};
use loadmaster_core::expand::copies::{Added, Copies, Home, Links, Terms, expand};
use loadmaster_core::expand::ways::Way;
use loadmaster_core::opgraph::{OpColumns, OpGraph};
use loadmaster_core::roles::{Facts, roles};

const OPS: usize = 50_000;
const REPLICAS: usize = 8;

fn model() -> OpGraph {
    let drawn = Layered::new(Options { n_ops: OPS, ..Options::default() });
    let bytes = drawn.src.iter().map(|&op| drawn.tensor_bytes[op as usize]).collect();
    let columns = OpColumns {
        name: (0..OPS).map(|op| op.to_string()).collect(),
        tensor: Some(drawn.src.clone()),
        src: drawn.src,
        dst: drawn.dst,
        bytes,
        view: vec![false; OPS],
        placeholder: vec![false; OPS],
        alias_of: vec![-1; OPS],
        near: vec![-1; OPS],
        colocation: vec![-1; OPS],
        flops: drawn.tensor_bytes.clone(),
        accessed: drawn.tensor_bytes.clone(),
        output_bytes: drawn.tensor_bytes,
        resident: drawn.resident_bytes,
        workspace: vec![0; OPS],
        ..OpColumns::default()
    };
    OpGraph::new(columns).expect("a generated graph is valid")
}

/// Every op in every replica, sharing by rows; what stays is whole.
fn copies(model: &OpGraph) -> Copies {
    let edges = model.columns().src.len();
    let terms =
        |bytes: &[u64]| Terms { first: (0..=OPS as u32).collect(), way: vec![1; OPS], bytes: bytes.to_vec() };
    Copies {
        k: REPLICAS,
        ways: vec![Way::new(1, vec![0; REPLICAS], vec![1; REPLICAS]), Way::of_rows(&[4; REPLICAS])],
        homes: vec![Home::new((0..REPLICAS as u32).collect())],
        home: vec![0; OPS],
        work: vec![1; OPS],
        resident: vec![0; OPS],
        accessed: terms(&model.columns().accessed),
        output: terms(&model.columns().output_bytes),
        stays: vec![true; edges],
        edge: vec![1; edges],
        together: vec![-1; OPS],
    }
}

fn nothing() -> (Added, Links) {
    let added = Added {
        place: vec![],
        is_before: vec![],
        serves: vec![],
        device: vec![],
        collective: vec![],
        kind: vec![],
        flops: vec![],
        accessed: vec![],
        output: vec![],
        alias: vec![],
        runs: vec![],
    };
    (added, Links { place: vec![], src: vec![], dst: vec![], tensor: vec![], bytes: vec![] })
}

/// Two ops in the place of the middle one, both of which read what it read.
fn block(model: &OpGraph) -> Block {
    let (c, at) = (model.columns(), OPS / 2);
    let of = |ends: &[i64]| -> Vec<u32> {
        (0..ends.len()).filter(|&e| ends[e] == at as i64).map(|e| e as u32).collect()
    };
    let (entering, leaving) = (of(&c.dst), of(&c.src));
    let ids = c.tensor.as_ref().expect("given");
    let moved = |op: i64| if op > at as i64 { op + 1 } else { op };
    let read = |d: usize| entering.iter().map(move |&e| (e as usize, d as i64));
    let rows: Vec<(usize, i64)> = read(at).chain(read(at + 1)).collect();
    Block {
        at,
        flops: vec![1; 2],
        accessed: vec![1; 2],
        output_bytes: vec![1; 2],
        workspace: vec![0; 2],
        leaving_src: vec![at as u32; leaving.len()],
        leaving,
        src: rows.iter().map(|&(e, _)| moved(c.src[e])).collect(),
        dst: rows.iter().map(|&(_, d)| d).collect(),
        tensor: rows.iter().map(|&(e, _)| ids[e]).collect(),
        bytes: rows.iter().map(|&(e, _)| c.bytes[e]).collect(),
        dropped: entering.clone(),
        shows: vec![],
        shown: vec![],
    }
}

fn expansion(c: &mut Criterion) {
    let model = model();
    let (copies, (added, links), block) = (copies(&model), nothing(), block(&model));
    let mut group = c.benchmark_group("50,000 ops");
    group.measurement_time(Duration::from_secs(3)).warm_up_time(Duration::from_millis(500));
    group.sample_size(10);
    group.bench_function("8 replicas", |b| {
        b.iter(|| expand(black_box(&model), &copies, &added, &links).expect("no cycle"));
    });
    group.bench_function("a block in the place of an op", |b| {
        b.iter(|| replace(black_box(&model), &block).expect("no cycle"));
    });
    let (state, update) = (vec![false; OPS], vec![false; OPS]);
    let facts = Facts { state: &state, input: &state, update: &update };
    group.bench_function("roles", |b| b.iter(|| roles(black_box(&model), facts)));
    group.finish();
}

criterion_group!(benches, expansion);
criterion_main!(benches);
