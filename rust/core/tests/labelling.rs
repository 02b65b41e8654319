//! Labellings held to what every labelling of a small problem costs.

use crate::common::config;
use loadmaster_core::Error;
use loadmaster_core::labelling::forest::Forests;
use loadmaster_core::labelling::model::{Energy, Model};
use loadmaster_core::labelling::reduce::Reduced;
use loadmaster_core::labelling::solve::{Labels, Solver};
use loadmaster_core::labelling::ties::Ties;
use loadmaster_core::labelling::{Columns, Labelling, energy, icm::descend};
use proptest::prelude::*;

/// How the nodes of a problem are joined.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Shape {
    /// A forest: each node is joined to one earlier node at most, which need not be its neighbour by number.
    Forest,
    /// Any edges, parallel ones among them.
    Any,
}

/// Costs that are seldom forbidden, of two components.
fn cost(forbidden: u32) -> impl Strategy<Value = [f64; 2]> {
    let number = prop_oneof![Just(0.0), 0.0..10.0, -1.0..1.0];
    let first = prop_oneof![
        20 => number.clone(),
        forbidden => Just(f64::INFINITY),
    ];
    (first, number).prop_map(|(a, b)| [a, b])
}

/// A problem of up to `n` nodes of up to 3 labels. Tables are shared: nodes of equally many labels have one of
/// two tables, edges between them one of two.
fn problems(n: usize, shape: Shape, forbidden: u32) -> impl Strategy<Value = Labelling> {
    let unary = prop::collection::vec(cost(forbidden), 2 * 6);
    let pair = prop::collection::vec(cost(forbidden), 2 * 36);
    let nodes = prop::collection::vec(0..6i64, 1..=n);
    (unary, pair, nodes, prop::collection::vec((any::<u32>(), any::<u32>(), 0..2i64), 2 * n)).prop_map(
        move |(unary, pair, nodes, drawn)| {
            let (n, labels) = (nodes.len(), |node: i64| nodes[node as usize] / 2 + 1);
            let ends: Vec<(i64, i64, i64)> = if shape == Shape::Forest {
                let above = |i: usize| drawn[i - 1].0 as usize % (i + 1);
                // Numbers are shuffled, so that a node's neighbours may come before or after it.
                let number = |i: usize| ((i * 5 + 3) % n) as i64;
                let is_mixed = n % 5 != 0;
                let number = |i: usize| if is_mixed { number(i) } else { i as i64 };
                (1..n)
                    .filter(|&i| above(i) < i)
                    .map(|i| (number(above(i)), number(i), drawn[i - 1].2))
                    .collect()
            } else {
                let ends =
                    drawn.iter().map(|&(a, b, t)| ((a as usize % n) as i64, (b as usize % n) as i64, t));
                ends.filter(|&(a, b, _)| a != b).collect()
            };
            // A table per number of rows, of columns, and one of two.
            let table = |a: i64, b: i64, t: i64| ((labels(a) - 1) * 3 + labels(b) - 1) * 2 + t;
            let sizes: Vec<i64> = (0..18).map(|t| (t / 6 + 1) * (t / 2 % 3 + 1)).collect();
            let starts = |sizes: &[i64]| -> Vec<i64> {
                std::iter::once(0)
                    .chain(sizes.iter().scan(0, |sum, size| {
                        *sum += size;
                        Some(*sum)
                    }))
                    .collect()
            };
            let (pair_start, unary_start) = (starts(&sizes), starts(&[1, 1, 2, 2, 3, 3]));
            let columns = Columns {
                node_table: nodes.clone(),
                unary_start,
                unary: unary.concat(),
                src: ends.iter().map(|e| e.0).collect(),
                dst: ends.iter().map(|e| e.1).collect(),
                edge_table: ends.iter().map(|&(a, b, t)| table(a, b, t)).collect(),
                pair_columns: (0..18).map(|t| t / 2 % 3 + 1).collect(),
                pair: pair.concat(),
                pair_start,
                components: 2,
            };
            Labelling::new(columns).expect("a valid problem")
        },
    )
}

/// All labellings.
fn all(problem: &Labelling) -> Vec<Vec<u32>> {
    (0..problem.n_nodes()).fold(vec![vec![]], |found, node| {
        let more = |labels: &Vec<u32>| -> Vec<Vec<u32>> {
            let with = |label| labels.iter().copied().chain([label]).collect();
            (0..problem.n_labels(node) as u32).map(with).collect()
        };
        found.iter().flat_map(more).collect()
    })
}

/// All labels of a model.
fn all_of(model: &Model) -> Vec<Vec<u32>> {
    (0..model.n_nodes()).fold(vec![vec![]], |found, node| {
        let more = |labels: &Vec<u32>| -> Vec<Vec<u32>> {
            (0..model.n_labels(node) as u32).map(|l| labels.iter().copied().chain([l]).collect()).collect()
        };
        found.iter().flat_map(more).collect()
    })
}

/// The least energy of all labellings, of those that agree with the ties.
fn optimum(problem: &Labelling, weights: &[f64], tied: Option<&[i64]>) -> f64 {
    let agrees = |labels: &Vec<u32>| {
        let pairs = |tied: &[i64]| {
            let n = tied.len();
            (0..n).all(|a| (0..n).all(|b| tied[a] < 0 || tied[a] != tied[b] || labels[a] == labels[b]))
        };
        tied.is_none_or(pairs)
    };
    let of = |labels: Vec<u32>| energy(&problem.components(&labels), weights);
    all(problem).into_iter().filter(agrees).map(of).fold(f64::INFINITY, f64::min)
}

fn solve(
    problem: &Labelling,
    weights: &[f64],
    tied: Option<&[i64]>,
    start: Option<&[u32]>,
    sweeps: u32,
) -> Result<Labels, Error> {
    let mut solver = Solver::new(problem, weights, tied, start)?;
    for _ in 0..sweeps {
        if solver.is_done() {
            break;
        }
        solver.sweep()?;
    }
    solver.labels()
}

/// Nodes of one number of labels are tied or not.
fn ties(problem: &Labelling, drawn: &[u8]) -> Vec<i64> {
    let number = |(node, &draw): (usize, &u8)| {
        if draw == 0 { -1 } else { 10 * problem.n_labels(node) as i64 + i64::from(draw) }
    };
    (0..problem.n_nodes()).zip(drawn).map(|(node, draw)| number((node, draw))).collect()
}

const SLACK: f64 = 1e-9;

proptest! {
    #![proptest_config(config(400))]

    #[test]
    fn the_bound_is_below_and_the_energy_above_what_is_best(
        problem in problems(6, Shape::Any, 2),
        weight in prop_oneof![Just(0.0), 0.1..3.0],
    ) {
        let weights = [1.0, weight];
        let best = optimum(&problem, &weights, None);
        match solve(&problem, &weights, None, None, 100) {
            Ok(found) => {
                prop_assert!(found.bound <= best + SLACK && best <= found.energy + SLACK);
                prop_assert!((found.energy - energy(&problem.components(&found.labels), &weights)).abs() <= SLACK);
            }
            // Said to be proved, or found to be hard.
            Err(Error::NoLabelling(reason)) => {
                prop_assert!(best == f64::INFINITY || reason.starts_with("none was found"), "{reason}");
            }
            Err(other) => prop_assert!(false, "{other}"),
        }
    }

    #[test]
    fn a_forest_is_solved_exactly(problem in problems(7, Shape::Forest, 1), weight in 0.0..3.0) {
        let weights = [1.0, weight];
        let best = optimum(&problem, &weights, None);
        match solve(&problem, &weights, None, None, 1000) {
            Ok(found) => {
                prop_assert!((found.energy - best).abs() <= SLACK, "{} {best}", found.energy);
                prop_assert!(found.energy - found.bound <= 1e-6 * best.abs() + SLACK, "{} {}", found.bound, found.sweeps);
            }
            Err(error) => prop_assert!(best == f64::INFINITY, "{error}"),
        }
    }

    #[test]
    fn tied_nodes_take_one_label_and_cost_what_they_cost_one_by_one(
        problem in problems(6, Shape::Any, 1),
        drawn in prop::collection::vec(0..3u8, 6),
        weight in 0.0..3.0,
    ) {
        let (weights, tied) = ([1.0, weight], ties(&problem, &drawn));
        let best = optimum(&problem, &weights, Some(&tied));
        match solve(&problem, &weights, Some(&tied), None, 100) {
            Ok(found) => {
                prop_assert!(found.bound <= best + SLACK && best <= found.energy + SLACK);
                let sets = Ties::new(&problem, Some(&tied)).expect("equally many labels");
                prop_assert!(sets.per_set(&found.labels).is_ok());
            }
            Err(Error::NoLabelling(reason)) => {
                prop_assert!(best == f64::INFINITY || reason.starts_with("none was found"), "{reason}");
            }
            Err(other) => prop_assert!(false, "{other}"),
        }
    }

    #[test]
    fn sweeps_make_nothing_worse_and_runs_are_alike(problem in problems(9, Shape::Any, 0)) {
        let weights = [1.0, 1.0];
        let mut last: Option<Labels> = None;
        for sweeps in [0, 1, 2, 3, 10, 100] {
            let found = solve(&problem, &weights, None, None, sweeps).expect("nothing is forbidden");
            prop_assert_eq!(&solve(&problem, &weights, None, None, sweeps).expect("as before"), &found);
            if let Some(last) = last {
                // Sums of the same costs in another order differ by rounding.
                prop_assert!(found.energy <= last.energy + SLACK && last.bound <= found.bound + SLACK);
            }
            last = Some(found);
        }
    }

    #[test]
    fn the_result_is_never_worse_than_the_start(
        problem in problems(6, Shape::Any, 2),
        drawn in prop::collection::vec(any::<u32>(), 6),
    ) {
        let weights = [1.0, 1.0];
        let start: Vec<u32> =
            (0..problem.n_nodes()).map(|node| drawn[node] % problem.n_labels(node) as u32).collect();
        let before = energy(&problem.components(&start), &weights);
        let found = solve(&problem, &weights, None, Some(&start), 3);
        if before < f64::INFINITY {
            prop_assert!(found.expect("the start").energy <= before + SLACK);
        }
    }

    #[test]
    fn a_search_that_goes_on_from_other_costs_has_a_valid_bound(
        problem in problems(9, Shape::Any, 4),
        weights in [0.1..3.0, 0.1..3.0],
        sweeps in 0..20u32,
    ) {
        let (Ok(before), Ok(fresh)) = (
            solve(&problem, &[1.0, 0.0], None, None, 50),
            solve(&problem, &weights, None, None, sweeps),
        ) else { return Ok(()) };
        let mut solver = Solver::new(&problem, &weights, None, Some(&before.labels)).expect("valid").after(&before.sent);
        for _ in 0..sweeps {
            solver.sweep().expect("labels are known");
        }
        let found = solver.labels().expect("those before");
        let start = energy(&problem.components(&before.labels), &weights);
        prop_assert!(found.bound <= fresh.energy + SLACK && fresh.bound <= found.energy + SLACK);
        prop_assert!(found.energy <= start + SLACK, "{} {start}", found.energy);
    }

    #[test]
    fn what_is_left_costs_at_best_what_all_did(
        problem in problems(7, Shape::Any, 2),
        drawn in prop::collection::vec(any::<u32>(), 7),
    ) {
        let model = Ties::new(&problem, None).and_then(|t| t.model(&problem, &[1.0, 1.0])).expect("countable");
        let Reduced { model: left, constant, back } = Reduced::of(&model);
        let best = optimum(&problem, &[1.0, 1.0], None);
        let of = |labels: &[u32]| {
            let energy = left.energy(labels);
            if energy.forbidden == 0 { energy.cost + constant } else { f64::INFINITY }
        };
        let found = all_of(&left).into_iter().min_by(|a, b| of(a).total_cmp(&of(b))).expect("one or more");
        if best == f64::INFINITY {
            prop_assert_eq!(of(&found), best);
        } else {
            prop_assert!((of(&found) - best).abs() <= SLACK, "{} {best}", of(&found));
            let whole = energy(&problem.components(&back.whole(&found)), &[1.0, 1.0]);
            prop_assert!((whole - best).abs() <= SLACK, "{whole} {best}");
        }
        let start: Vec<u32> =
            (0..problem.n_nodes()).map(|node| drawn[node] % problem.n_labels(node) as u32).collect();
        let before = energy(&problem.components(&start), &[1.0, 1.0]);
        let after = energy(&problem.components(&back.whole(&back.restricted(&start))), &[1.0, 1.0]);
        prop_assert!(after <= before + SLACK, "{after} {before}");
    }

    #[test]
    fn nothing_is_left_of_a_forest(problem in problems(7, Shape::Forest, 0)) {
        let model = Ties::new(&problem, None).and_then(|t| t.model(&problem, &[1.0, 1.0])).expect("countable");
        let reduced = Reduced::of(&model);
        prop_assert_eq!(reduced.model.n_nodes(), 0);
        prop_assert!((reduced.constant - optimum(&problem, &[1.0, 1.0], None)).abs() <= SLACK);
    }

    #[test]
    fn no_move_of_many_nodes_raises_the_energy(
        problem in problems(8, Shape::Any, 4),
        drawn in prop::collection::vec(any::<u32>(), 8),
    ) {
        let model = Ties::new(&problem, None).and_then(|t| t.model(&problem, &[1.0, 1.0])).expect("countable");
        let mut labels: Vec<u32> =
            (0..problem.n_nodes()).map(|node| drawn[node] % problem.n_labels(node) as u32).collect();
        let mut forests = Forests::new(&model);
        for _ in 0..20 {
            let before = model.energy(&labels);
            let old = labels.clone();
            let changed = forests.improve(&model, &mut labels);
            prop_assert_eq!(changed, old != labels);
            let after = model.energy(&labels);
            prop_assert!(after.forbidden < before.forbidden || after.forbidden == before.forbidden
                && after.cost <= before.cost + SLACK, "{before:?} {after:?}");
        }
    }

    #[test]
    fn descending_ends_where_no_node_alone_can_do_better(
        problem in problems(6, Shape::Any, 4),
        drawn in prop::collection::vec(any::<u32>(), 6),
    ) {
        let model = Ties::new(&problem, None).and_then(|t| t.model(&problem, &[1.0, 1.0])).expect("countable");
        let mut labels: Vec<u32> =
            (0..problem.n_nodes()).map(|node| drawn[node] % problem.n_labels(node) as u32).collect();
        let before = model.energy(&labels);
        descend(&model, &mut labels);
        let after = model.energy(&labels);
        let no_better = |new: Energy| new.forbidden > after.forbidden || new.cost >= after.cost - SLACK;
        prop_assert!(after.forbidden < before.forbidden || no_better(before));
        for node in 0..problem.n_nodes() {
            for label in 0..problem.n_labels(node) as u32 {
                let old = std::mem::replace(&mut labels[node], label);
                prop_assert!(model.energy(&labels).forbidden >= after.forbidden);
                prop_assert!(no_better(model.energy(&labels)));
                labels[node] = old;
            }
        }
    }
}

/// A chain of nodes of two labels that must agree: the second label is better if all take it.
#[test]
fn a_move_of_many_nodes_leaves_where_no_node_alone_can_do_better() {
    const N: usize = 6;
    let columns = Columns {
        node_table: vec![0; N],
        unary_start: vec![0, 2],
        unary: vec![1.0, 0.0],
        src: (0..N as i64 - 1).collect(),
        dst: (1..N as i64).collect(),
        edge_table: vec![0; N - 1],
        pair_start: vec![0, 4],
        pair_columns: vec![2],
        pair: vec![0.0, 9.0, 9.0, 0.0],
        components: 1,
    };
    let problem = Labelling::new(columns).expect("a valid problem");
    let model = Ties::new(&problem, None).and_then(|t| t.model(&problem, &[1.0])).expect("countable");
    let mut labels = vec![0; N];
    descend(&model, &mut labels);
    assert_eq!(labels, [0; N]);
    let mut forests = Forests::new(&model);
    assert!((0..100).any(|_| forests.improve(&model, &mut labels)));
    assert_eq!(labels, [1; N]);
}
