//! Labels of layered graphs, 4 to 8 for each op: forty sweeps, with all that comes before and after them, one
//! thread.

#![allow(missing_docs, reason = "criterion_group! makes a public function")]

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, criterion_group, criterion_main};
use loadmaster_benches::{Layered, Options};
use loadmaster_core::labelling::solve::Solver;
use loadmaster_core::labelling::{Columns, Labelling};
use loadmaster_core::random::Random;

const SWEEPS: usize = 40;

/// Numbers of labels, and tables of costs for each number or pair of numbers.
const LABELS: std::ops::RangeInclusive<i64> = 4..=8;
const TABLES: usize = 4;

/// Where each of some tables starts, and where the last one ends.
fn starts(sizes: impl Iterator<Item = i64>) -> Vec<i64> {
    let ends = sizes.scan(0, |sum, size| {
        *sum += size;
        Some(*sum)
    });
    std::iter::once(0).chain(ends).collect()
}

fn problem(n_ops: usize) -> Labelling {
    let drawn = Layered::new(Options { n_ops, ..Options::default() });
    let mut random = Random::new(7, 0);
    let kinds = LABELS.count();
    let sizes = || LABELS.flat_map(|k| [k; TABLES]);
    let shapes = || LABELS.flat_map(|a| LABELS.map(move |b| (a, b))).flat_map(|shape| [shape; TABLES]);
    let node_table: Vec<i64> = (0..n_ops).map(|_| random.below(kinds * TABLES) as i64).collect();
    let kind = |op: i64| node_table[op as usize] as usize / TABLES;
    let ends = drawn.src.iter().zip(&drawn.dst);
    let edge_table =
        ends.map(|(&a, &b)| ((kind(a) * kinds + kind(b)) * TABLES + random.below(TABLES)) as i64).collect();
    let mut costs = |n: i64| (0..n).map(|_| random.unit()).collect();
    let (unary_start, pair_start) = (starts(sizes()), starts(shapes().map(|(a, b)| a * b)));
    let columns = Columns {
        unary: costs(unary_start[unary_start.len() - 1]),
        pair: costs(pair_start[pair_start.len() - 1]),
        pair_columns: shapes().map(|(_, b)| b).collect(),
        node_table,
        unary_start,
        src: drawn.src,
        dst: drawn.dst,
        edge_table,
        pair_start,
        components: 1,
    };
    Labelling::new(columns).expect("a generated problem is valid")
}

fn labels(c: &mut Criterion) {
    let mut group = c.benchmark_group("labelling, 40 sweeps");
    group.measurement_time(Duration::from_secs(2)).warm_up_time(Duration::from_millis(500));
    group.sample_size(10);
    for n_ops in [4_000, 27_000] {
        let problem = problem(n_ops);
        group.bench_function(format!("{n_ops} nodes"), |b| {
            b.iter(|| {
                let mut solver =
                    Solver::new(black_box(&problem), &[1.0], None, None).expect("countable costs");
                for _ in 0..SWEEPS {
                    solver.sweep().expect("nothing is forbidden");
                }
                solver.labels().expect("nothing is forbidden")
            });
        });
    }
    group.finish();
}

criterion_group!(benches, labels);
criterion_main!(benches);
