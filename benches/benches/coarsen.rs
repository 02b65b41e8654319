//! Coarseners on the layered graph of 50,000 ops, one thread.

#![allow(missing_docs, reason = "criterion_group! makes a public function")]

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use loadmaster_benches::{Layered, Options};
use loadmaster_core::clock::{Clock, Ticks};
use loadmaster_core::coarsen::fusion;
use loadmaster_core::coarsen::{Limits, Weights, batch, multilevel, parallel};
use loadmaster_core::levels::Levels;
use loadmaster_core::topo::cpd_topo;

const GROUPS: usize = 250;

fn coarseners(c: &mut Criterion) {
    let columns = Layered::new(Options { n_ops: 50_000, ..Options::default() });
    let work = columns.workload().expect("a generated graph is valid");
    let total: f64 = columns.op_seconds.iter().sum();
    let sending: f64 = columns.tensor_seconds.iter().sum();
    let clock = Clock::for_horizon(total + 8.0 * sending).expect("hours");
    let seconds_of = |t| columns.tensor_seconds[work.graph.key(t) as usize];
    let op_time = clock.ticks_of(&columns.op_seconds);
    let tensor_time: Vec<Ticks> = work.graph.tensors().map(|t| clock.ticks(seconds_of(t))).collect();
    let op_bytes = work.static_bytes();
    let (graph, class) = (&work.graph, work.allowed.as_slice());
    let weights = Weights { op_time: &op_time, tensor_time: &tensor_time, op_bytes: &op_bytes, class };
    let free = Limits { groups: GROUPS, max_time: Ticks::MAX, max_bytes: u64::MAX };
    let even = Limits { max_time: clock.ticks(1.35 * total / GROUPS as f64), ..free };
    let order = cpd_topo(graph, &Levels::new(graph, &op_time, &tensor_time));
    let segment = fusion::Limits { max_ops: usize::MAX, max_bytes: u64::MAX, max_time: even.max_time };

    let mut group = c.benchmark_group("50,000 ops to 250 groups");
    group.measurement_time(Duration::from_secs(2)).warm_up_time(Duration::from_millis(500));
    group.sample_size(10);
    group.bench_function("batch merging", |b| {
        b.iter(|| batch::merge(black_box(graph), &weights, &free));
    });
    group.bench_function("sequential fusion, exactly 250, 1.35 x mean", |b| {
        b.iter(|| fusion::exactly(black_box(graph), &order, &weights, segment, GROUPS));
    });
    group.bench_function("parallel", |b| b.iter(|| parallel::merge(black_box(graph), &weights, &free)));
    group.bench_function("multilevel, 1.35 x mean", |b| {
        b.iter(|| multilevel::partition(black_box(graph), &weights, &even));
    });
    group.finish();
}

criterion_group!(benches, coarseners);
criterion_main!(benches);
