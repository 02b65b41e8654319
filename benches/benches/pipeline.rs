//! Every stage that a graph of 50,000 ops passes through, one thread, ids in order and shuffled.

#![allow(missing_docs, reason = "criterion_group! makes a public function")]

use std::hint::black_box;
use std::time::Duration;

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use loadmaster_benches::{Layered, Options};
use loadmaster_core::bounds::bounds;
use loadmaster_core::clock::{Clock, Ticks};
use loadmaster_core::cluster::{Cluster, Device, Links};
use loadmaster_core::coarsen::Weights;
use loadmaster_core::coarsen::contract::contract;
use loadmaster_core::coarsen::fusion::{Limits, breakpoints, segments};
use loadmaster_core::free_memory::{Memory, OnOom, charge_to_leads};
use loadmaster_core::graph::Graph;
use loadmaster_core::ids::{DeviceId, OpId};
use loadmaster_core::levels::Levels;
use loadmaster_core::place::fill;
use loadmaster_core::schedule::Engine;
use loadmaster_core::schedule::admission::{Admission, Lifetimes};
use loadmaster_core::schedule::earliest::earliest;
use loadmaster_core::schedule::list::{Choice, list};
use loadmaster_core::schedule::order::by_priority;
use loadmaster_core::simulate::{self, Simulator};
use loadmaster_core::topo::cpd_topo;
use loadmaster_core::workload::{Times, Workload};

const DEVICES: usize = 4;
/// What list schedulers place on.
const MANY: usize = 8;
const R: usize = 200;

/// A graph with everything its stages need, so that each bench measures its stage alone.
struct Case {
    columns: Layered,
    work: Workload,
    times: Times,
    cluster: Cluster,
    op_ticks: Vec<Ticks>,
    tensor_ticks: Vec<Ticks>,
    static_bytes: Vec<u64>,
    limits: Limits,
}

impl Case {
    fn new(n_ops: usize, shuffle: bool) -> Self {
        let columns = Layered::new(Options { n_ops, shuffle, ..Options::default() });
        let work = columns.workload().expect("a generated graph is valid");
        let op_seconds = work.graph.numbering().by_op(columns.op_seconds.clone(), 1);
        let times = Times::new(n_ops, 1, op_seconds.clone()).expect("times are valid");
        let static_bytes = work.static_bytes();
        let total: u64 = static_bytes.iter().sum();
        let cluster = mesh(DEVICES, total / DEVICES as u64 * 11 / 10);
        let sending: f64 = columns.tensor_seconds.iter().sum();
        let clock = Clock::for_horizon(columns.op_seconds.iter().sum::<f64>() + sending).expect("hours");
        let seconds_of = |t| columns.tensor_seconds[work.graph.key(t) as usize];
        Self {
            op_ticks: clock.ticks_of(&op_seconds),
            tensor_ticks: work.graph.tensors().map(|t| clock.ticks(seconds_of(t))).collect(),
            limits: Limits { max_ops: R, max_bytes: total / DEVICES as u64 / 4, max_time: Ticks::MAX },
            columns,
            work,
            times,
            cluster,
            static_bytes,
        }
    }

    fn levels(&self) -> Levels {
        Levels::new(&self.work.graph, &self.op_ticks, &self.tensor_ticks)
    }

    fn fuse(&self, order: &[OpId]) -> Vec<u32> {
        let weights = Weights {
            op_time: &self.op_ticks,
            tensor_time: &self.tensor_ticks,
            op_bytes: &self.static_bytes,
            class: &self.work.allowed,
        };
        breakpoints(&self.work.graph, order, &weights, self.limits)
    }

    fn coarsen(&self) -> Workload {
        let order = cpd_topo(&self.work.graph, &self.levels());
        let group = segments(&order, &self.fuse(&order));
        contract(&self.work, &group).expect("segments of an order make no cycle")
    }

    fn fill(&self, order: &[OpId]) -> Vec<DeviceId> {
        let capacity: Vec<u64> = self.cluster.devices().iter().map(|d| d.memory).collect();
        let devices: Vec<DeviceId> = self.cluster.device_ids().collect();
        let work = &self.work;
        let charge = charge_to_leads(&work.lead, &self.static_bytes);
        let memory = Memory::new(work, &self.cluster, &work.lead, &charge, &capacity, OnOom::BestEffort);
        fill::in_order(memory, order, &devices).expect("best effort places all")
    }
}

/// Equal devices, a channel of 12 GB/s and 10 us for each directed pair.
fn mesh(count: usize, memory: u64) -> Cluster {
    let name = |d: usize| format!("gpu{d}");
    let devices =
        (0..count).map(|d| Device { name: name(d), type_name: "gpu".into(), memory }).collect::<Vec<_>>();
    let pairs = (0..count * count).map(|i| (i / count, i % count)).filter(|(a, b)| a != b);
    let links: Vec<Links> = pairs
        .map(|(a, b)| Links {
            from: vec![name(a)],
            to: vec![name(b)],
            bandwidth: 12e9,
            latency: 10e-6,
            channels: Vec::new(),
        })
        .collect();
    Cluster::new(devices, &links).expect("a full mesh is valid")
}

fn stages(c: &mut Criterion) {
    keep_freed_memory();
    for (ids, shuffle) in [("ids in order", false), ("ids shuffled", true)] {
        let case = Case::new(50_000, shuffle);
        let levels = case.levels();
        let order = cpd_topo(&case.work.graph, &levels);
        let mut group = c.benchmark_group("50,000 ops");
        group.measurement_time(Duration::from_secs(2)).warm_up_time(Duration::from_millis(500));
        group.sample_size(30).throughput(Throughput::Elements(50_000));

        group.bench_function(BenchmarkId::new("columns to validated CSR both ways", ids), |b| {
            let l = &case.columns;
            b.iter(|| Graph::numbered(black_box(l.n_ops), black_box(&l.src), black_box(&l.dst), None));
        });
        group.bench_function(BenchmarkId::new("levels: t-level and b-level", ids), |b| {
            b.iter(|| black_box(&case).levels());
        });
        group.bench_function(BenchmarkId::new("CPD-TOPO, levels given", ids), |b| {
            b.iter(|| cpd_topo(black_box(&case.work.graph), black_box(&levels)));
        });
        group.bench_function(BenchmarkId::new("sequential fusion, R = 200", ids), |b| {
            b.iter(|| black_box(&case).fuse(black_box(&order)));
        });
        group.bench_function(BenchmarkId::new("coarsen: levels, CPD-TOPO, fusion, contraction", ids), |b| {
            b.iter(|| black_box(&case).coarsen());
        });
        group.bench_function(BenchmarkId::new("bounds: critical path, work, heads and tails", ids), |b| {
            b.iter(|| bounds(black_box(&case.work), &case.cluster, &case.times));
        });
        simulation(&mut group, ids, &case, &order);
        list_scheduling(&mut group, ids, &case, &levels);
        group.finish();
    }
}

/// Has glibc keep the memory that is freed, as the package does when it is imported (`rust/fast`).
fn keep_freed_memory() {
    drop(black_box(Vec::<u8>::with_capacity(8 << 20)));
}

/// The judge on an easy placement and on one that sends almost everything.
fn simulation(group: &mut BenchmarkGroup<'_, WallTime>, ids: &str, case: &Case, order: &[OpId]) {
    let simulator = Simulator::new(&case.work, &case.cluster, &case.times).expect("counted in ticks");
    let mut priority = vec![0; order.len()];
    let mut dealt = vec![DeviceId(0); order.len()];
    for (position, op) in order.iter().enumerate() {
        priority[op.ix()] = position as i32;
        dealt[op.ix()] = DeviceId::new(position / 50 % DEVICES);
    }
    for (name, placement) in [
        ("simulate with contention, devices filled in order", case.fill(order)),
        ("simulate with contention, chunks of 50 ops dealt out", dealt),
    ] {
        group.bench_function(BenchmarkId::new(name, ids), |b| {
            b.iter(|| simulator.run(black_box(&placement), &priority, simulate::Options::default()));
        });
    }
}

/// HEFT and ETF with room for everything, b-levels given.
fn list_scheduling(group: &mut BenchmarkGroup<'_, WallTime>, ids: &str, case: &Case, levels: &Levels) {
    let cluster = mesh(MANY, u64::MAX);
    let clock = case.work.clock(&case.times, &cluster).expect("hours");
    let time = case.times.ticks(clock);
    let order = by_priority(&case.work.graph, &levels.bottom);
    let capacity = [u64::MAX; MANY];
    let engine = |contention| {
        let work = &case.work;
        let memory = Admission::Lifetimes(Lifetimes::new(work, &cluster, &work.lead, &capacity, OnOom::Fail));
        Engine::new(work, &cluster, clock, &time, &work.lead, contention, memory)
    };
    for (links, contention) in [("without contention", false), ("with contention", true)] {
        let name = |rule: &str| BenchmarkId::new(format!("{rule} {links}, {MANY} devices"), ids);
        group.bench_function(name("HEFT"), |b| {
            b.iter(|| list(&mut engine(contention), black_box(&order), Choice::default(), None));
        });
        group.bench_function(name("ETF"), |b| {
            b.iter(|| earliest(&mut engine(contention), black_box(&order), &[]));
        });
    }
}

fn large(c: &mut Criterion) {
    let mut group = c.benchmark_group("1,000,000 ops");
    group.measurement_time(Duration::from_secs(2)).warm_up_time(Duration::from_millis(500));
    group.sample_size(10).throughput(Throughput::Elements(1_000_000));
    for (ids, shuffle) in [("ids in order", false), ("ids shuffled", true)] {
        let case = Case::new(1_000_000, shuffle);
        group.bench_function(BenchmarkId::new("coarsen: levels, CPD-TOPO, fusion, contraction", ids), |b| {
            b.iter(|| black_box(&case).coarsen());
        });
    }
    group.finish();
}

criterion_group!(benches, stages, large);
criterion_main!(benches);
