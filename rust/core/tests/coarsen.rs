//! What holds of every coarsening: no cycle, nothing lost, limits kept, and an honest account of
//! where it stopped.

use std::collections::BTreeSet;

use crate::common::{self, plain_works, works};
use loadmaster_core::Error;
use loadmaster_core::clock::Ticks;
use loadmaster_core::coarsen::contract::contract;
use loadmaster_core::coarsen::{Coarsening, Limits, Obstacles, Weights, batch, multilevel, parallel, rules};
use loadmaster_core::graph::Graph;
use loadmaster_core::ids::{OpId, TensorId};
use loadmaster_core::union::Union;
use loadmaster_core::workload::Workload;
use petgraph::algo::is_cyclic_directed;
use petgraph::graph::{DiGraph, NodeIndex};
use proptest::collection::vec;
use proptest::prelude::*;

type Method = fn(&Graph, &Weights<'_>, &Limits) -> Result<Coarsening, Error>;

const METHODS: [(&str, Method); 3] =
    [("batch", batch::merge), ("parallel", parallel::merge), ("multilevel", multilevel::partition)];

/// A workload with times and sizes, and how far to merge it.
#[derive(Clone, Debug)]
struct Case {
    work: Workload,
    op_time: Vec<Ticks>,
    tensor_time: Vec<Ticks>,
    op_bytes: Vec<u64>,
    limits: Limits,
}

impl Case {
    fn weights(&self) -> Weights<'_> {
        Weights {
            op_time: &self.op_time,
            tensor_time: &self.tensor_time,
            op_bytes: &self.op_bytes,
            class: &self.work.allowed,
        }
    }

    fn run(&self, method: Method) -> Coarsening {
        method(&self.work.graph, &self.weights(), &self.limits).expect("columns of the right length")
    }
}

fn cases(works: impl Strategy<Value = Workload>, max_ops: usize) -> impl Strategy<Value = Case> {
    let most = prop_oneof![2 => Just(u64::MAX), 1 => 1u64..40];
    let columns = (vec(0u64..12, max_ops), vec(0u64..30, 4 * max_ops), vec(0u64..12, max_ops));
    (works, columns, 1usize..max_ops, most.clone(), most).prop_map(
        |(work, (op_time, tensor_time, op_bytes), groups, max_time, max_bytes)| Case {
            op_time: op_time[..work.n_ops()].to_vec(),
            tensor_time: tensor_time[..work.graph.n_tensors()].to_vec(),
            op_bytes: op_bytes[..work.n_ops()].to_vec(),
            limits: Limits { groups, max_time, max_bytes },
            work,
        },
    )
}

/// Members of each group.
fn members(c: &Coarsening) -> Vec<Vec<usize>> {
    let mut of = vec![Vec::new(); c.n_groups];
    c.group.iter().enumerate().for_each(|(u, &g)| of[g as usize].push(u));
    of
}

/// Pairs of groups joined by a dependency.
fn joined(g: &Graph, group: &[u32]) -> Vec<(u32, u32)> {
    let ends = g.ops().flat_map(|v| g.inputs_with_ops(v).map(move |(_, u)| (group[u.ix()], group[v.ix()])));
    ends.filter(|(a, b)| a != b).collect()
}

fn check(case: &Case, c: &Coarsening) -> Result<(), TestCaseError> {
    let g = &case.work.graph;
    let of = members(c);
    prop_assert_eq!(c.group.len(), g.n_ops());
    prop_assert!(of.iter().all(|m| !m.is_empty()), "numbered without gaps");
    prop_assert!(joined(g, &c.group).iter().all(|(a, b)| a < b), "numbered in topological order");

    let mut oracle = DiGraph::<(), ()>::new();
    of.iter().for_each(|_| {
        oracle.add_node(());
    });
    for (a, b) in joined(g, &c.group) {
        oracle.add_edge(NodeIndex::new(a as usize), NodeIndex::new(b as usize), ());
    }
    prop_assert!(!is_cyclic_directed(&oracle));

    for m in of.iter().filter(|m| m.len() > 1) {
        let sum = |column: &[u64]| m.iter().map(|&u| column[u]).sum::<u64>();
        prop_assert!(sum(&case.op_time) <= case.limits.max_time);
        prop_assert!(sum(&case.op_bytes) <= case.limits.max_bytes);
        prop_assert!(m.iter().all(|&u| case.work.allowed[u] == case.work.allowed[m[0]]), "types mix");
    }

    let coarse = contract(&case.work, &c.group).expect("no cycle, types agree");
    let total = |w: &Workload| w.static_bytes().iter().sum::<u64>();
    prop_assert_eq!(total(&coarse), total(&case.work));

    prop_assert!(c.n_groups >= case.limits.groups.min(g.n_ops()));
    if c.n_groups <= case.limits.groups {
        prop_assert_eq!(c.obstacles, Obstacles::default());
    }
    Ok(())
}

/// Sets of ops that dependencies join, whichever way they point.
fn components(g: &Graph) -> usize {
    let mut union = Union::new(g.n_ops());
    g.ops().for_each(|u| g.successors(u).iter().for_each(|v| union.join(u.ix(), v.ix())));
    union.sets(g.n_ops()).1.n_rows()
}

proptest! {
    #![proptest_config(common::config(400))]

    #[test]
    fn every_coarsening_is_a_quotient_within_limits(case in cases(works(24), 24)) {
        for (name, method) in METHODS {
            let c = case.run(method);
            check(&case, &c).map_err(|e| TestCaseError::fail(format!("{name}: {e}")))?;
            prop_assert_eq!(&c, &case.run(method), "{}", name);
        }
    }

    /// Without limits and types, batch merging stops only at one group per component.
    #[test]
    fn batch_merging_reaches_any_number_of_a_connected_graph(case in cases(plain_works(20), 20)) {
        let mut case = case;
        case.work.allowed.fill(u64::MAX);
        (case.limits.max_time, case.limits.max_bytes) = (Ticks::MAX, u64::MAX);
        let c = case.run(batch::merge);
        let (n, parts) = (case.work.n_ops(), components(&case.work.graph));
        prop_assert_eq!(c.n_groups, case.limits.groups.clamp(parts, n.max(parts)));
    }

    /// Every way to put the ops into groups is tried: what is found is one that is allowed, and merging
    /// goes on while any two groups that an edge joins may be one.
    #[test]
    fn groups_are_one_of_all_partitions_that_are_allowed(case in cases(works(7), 7)) {
        let found = allowed_partitions(&case);
        let g = &case.work.graph;
        for (name, method) in METHODS {
            let c = case.run(method);
            let group = canonical(&c.group);
            prop_assert!(found.contains(&group), "{name}: {group:?}");
            let fewest = found.iter().map(|p| p.iter().max().map_or(0, |&g| g as usize + 1)).min();
            prop_assert!(Some(c.n_groups) >= fewest);
            if c.n_groups <= case.limits.groups || name == "multilevel" {
                continue;
            }
            let merged = |(a, b): (u32, u32)| canonical(&group.iter().map(|&x| if x == b { a } else { x }).collect::<Vec<_>>());
            let left = joined(g, &group).into_iter().filter(|&pair| found.contains(&merged(pair))).count();
            // The condition of a batch is sufficient only: it may refuse what would close no cycle.
            prop_assert!(left == 0 || (name == "batch" && c.obstacles.cycle > 0), "{name} stopped at {group:?}");
        }
    }

    /// Batch merging of one pair takes the heaviest edge of those whose ends may share a group.
    #[test]
    fn the_first_merge_is_the_heaviest_there_is(case in cases(plain_works(7), 7)) {
        let mut case = case;
        let n = case.work.n_ops();
        case.limits.groups = n.saturating_sub(1).max(1);
        let c = case.run(batch::merge);
        let found = allowed_partitions(&case);
        let g = &case.work.graph;
        let weight = |a: u32, b: u32| -> Ticks {
            let of = |&t: &TensorId| g.consumers(t).iter().any(|v| v.0 == b);
            g.outputs(OpId(a)).filter(of).map(|t| case.tensor_time[t.ix()]).sum()
        };
        let alone: Vec<u32> = (0..n as u32).collect();
        let pairs = joined(g, &alone).into_iter().filter(|&(a, b)| {
            let group: Vec<u32> = alone.iter().map(|&x| if x == b { a } else { x }).collect();
            found.contains(&canonical(&group))
        });
        let most = pairs.map(|(a, b)| weight(a, b)).max();
        if let Some(m) = members(&c).into_iter().find(|m| m.len() > 1) {
            let (a, b) = (m[0] as u32, m[1] as u32);
            let merged = weight(a, b).max(weight(b, a));
            prop_assert!(Some(merged) <= most);
            prop_assert!(Some(merged) == most || c.obstacles == Obstacles::default());
        } else {
            prop_assert!(n == 1 || most.is_none() || c.obstacles.cycle > 0);
        }
    }

    /// However ops are numbered inside, groups are the same by the user's index.
    #[test]
    fn groups_depend_on_the_users_numbering_only(
        twins in common::twins(20),
        columns in (vec(0u64..4, 20), vec(0u64..4, 80), vec(0u64..4, 20)),
        kind in vec(0u32..3, 20),
        groups in 1usize..8,
        max_time in prop_oneof![Just(Ticks::MAX), 1u64..20],
    ) {
        let rules = [vec![vec![0], vec![1, 2]], vec![vec![0], vec![2], vec![0, 1]]];
        let [a, b] = [twins.0, twins.1].map(|mut work| {
            let numbering = work.graph.numbering().clone();
            let by_op = |column: &[u64]| numbering.by_op(column[..work.n_ops()].to_vec(), 1);
            let (op_time, op_bytes) = (by_op(&columns.0), by_op(&columns.2));
            let kind = numbering.by_op(kind[..work.n_ops()].to_vec(), 1);
            let tensor_time = columns.1[..work.graph.n_tensors()].to_vec();
            work.allowed = by_op(&columns.2).into_iter().map(|b| if b == 0 { 1 } else { 3 }).collect();
            let limits = Limits { groups, max_time, max_bytes: u64::MAX };
            let case = Case { work, op_time, tensor_time, op_bytes, limits };
            let mut found: Vec<Coarsening> = METHODS.iter().map(|(_, method)| case.run(*method)).collect();
            found.push(run_rules(&case, &kind, &rules));
            found.into_iter().map(|c| (numbering.by_index(c.group), c.obstacles)).collect::<Vec<_>>()
        });
        prop_assert_eq!(a, b);
    }

    /// Where no two costs are the same, the numbering of ops decides nothing in a batch.
    #[test]
    fn shuffled_ids_make_the_same_batches(
        dag in common::dags(16),
        keys in vec(any::<u32>(), 16),
        op_time in vec(1u64..1 << 40, 16),
        tensor_time in vec(1u64..1 << 40, 64),
        groups in 1usize..10,
    ) {
        let mut order: Vec<usize> = (0..dag.n).collect();
        order.sort_by_key(|&u| (keys[u], u));
        let mut place = vec![0i64; dag.n];
        order.iter().enumerate().for_each(|(new, &u)| place[u] = new as i64);
        let renamed = |ends: &[i64]| ends.iter().map(|&u| place[u as usize]).collect::<Vec<_>>();
        let ids = [(dag.src.clone(), dag.dst.clone()), (renamed(&dag.src), renamed(&dag.dst))];
        let [a, b] = [0, 1].map(|shuffled| {
            let (src, dst) = &ids[shuffled];
            let name = |u: usize| if shuffled == 1 { place[u] as usize } else { u };
            let graph = Graph::numbered(dag.n, src, dst, Some(&dag.tensor)).expect("acyclic");
            let mut time = vec![0; dag.n];
            (0..dag.n).for_each(|u| time[name(u)] = op_time[u]);
            // A control message goes by its op.
            let cost = |t| {
                let op = graph.index(graph.source(t)) as usize;
                let own = (0..dag.n).find(|&u| name(u) == op).expect("is there");
                if graph.is_control(t) { tensor_time[48 + own] } else { tensor_time[graph.key(t) as usize] }
            };
            let tensor_time: Vec<Ticks> = graph.tensors().map(cost).collect();
            let op_time = graph.numbering().by_op(time, 1);
            let ones = vec![1; dag.n];
            let weights =
                Weights { op_time: &op_time, tensor_time: &tensor_time, op_bytes: &ones, class: &ones };
            let limits = Limits { groups, ..NO_LIMITS };
            let c = batch::merge(&graph, &weights, &limits).expect("columns fit");
            let group = graph.numbering().by_index(c.group);
            canonical(&(0..dag.n).map(|u| group[name(u)]).collect::<Vec<_>>())
        });
        prop_assert_eq!(a, b);
    }
}

/// Groups numbered by first member.
fn canonical(group: &[u32]) -> Vec<u32> {
    let mut seen: Vec<u32> = Vec::new();
    group
        .iter()
        .map(|g| {
            seen.iter().position(|x| x == g).unwrap_or_else(|| {
                seen.push(*g);
                seen.len() - 1
            }) as u32
        })
        .collect()
}

/// All partitions of few ops within limits whose quotient has no cycle.
fn allowed_partitions(case: &Case) -> BTreeSet<Vec<u32>> {
    let n = case.work.n_ops();
    let mut all = vec![Vec::new()];
    for _ in 0..n {
        let grown = |p: &Vec<u32>| {
            let next = p.iter().max().map_or(0, |g| g + 1);
            (0..=next).map(|g| [p.as_slice(), &[g]].concat()).collect::<Vec<_>>()
        };
        all = all.iter().flat_map(grown).collect();
    }
    let fits = |p: &Vec<u32>| {
        (0..=n as u32).all(|g| {
            let m: Vec<usize> = (0..n).filter(|&u| p[u] == g).collect();
            let sum = |column: &[u64]| m.iter().map(|&u| column[u]).sum::<u64>();
            m.len() < 2
                || (sum(&case.op_time) <= case.limits.max_time
                    && sum(&case.op_bytes) <= case.limits.max_bytes
                    && m.iter().all(|&u| case.work.allowed[u] == case.work.allowed[m[0]]))
        })
    };
    let is_acyclic = |p: &Vec<u32>| {
        let edges = joined(&case.work.graph, p);
        !is_cyclic_directed(&DiGraph::<(), ()>::from_edges(edges))
    };
    all.into_iter().filter(|p| fits(p) && is_acyclic(p)).collect()
}

/// Weights of one microsecond per op, and the given transfer time per tensor.
fn plain_case(n: usize, edges: &[(i64, i64)], tensor_time: &[Ticks], limits: Limits) -> Case {
    let work = common::plain(n, edges, &[]);
    let tensor_time =
        work.graph.tensors().map(|t: TensorId| tensor_time[work.graph.key(t) as usize]).collect();
    Case { op_time: vec![1; n], tensor_time, op_bytes: vec![1; n], limits, work }
}

const NO_LIMITS: Limits = Limits { groups: 1, max_time: Ticks::MAX, max_bytes: u64::MAX };

#[test]
fn k22_never_merges_both_diagonals() {
    // a0 = 0, a1 = 1; b0 = 2, b1 = 3: every a sends to every b. Theorem 3.5 as printed merges
    // {a0, b1} and {a1, b0}, which wait for each other.
    let edges = [(0, 2), (0, 3), (1, 2), (1, 3)];
    for (name, method) in METHODS {
        for groups in 1..=4 {
            let case = plain_case(4, &edges, &[5, 5, 0, 0], Limits { groups, ..NO_LIMITS });
            let c = case.run(method);
            check(&case, &c).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert_eq!(c.n_groups, groups, "{name}");
        }
    }
}

#[test]
fn complete_bipartite_graphs_take_few_rounds() {
    let m = 60;
    let edges: Vec<(i64, i64)> = (0..m).flat_map(|a| (0..m).map(move |b| (a, m + b))).collect();
    let case = plain_case(2 * m as usize, &edges, &vec![1; 2 * m as usize], NO_LIMITS);
    assert_eq!(case.run(batch::merge).n_groups, 1);
}

#[test]
fn long_chains_and_wide_stars_merge_quickly() {
    let chain = |n: i64| (1..n).map(|v| (v - 1, v)).collect::<Vec<_>>();
    let into = |n: i64| (1..n).map(|v| (v - 1, n - 1)).collect();
    let out = |n: i64| (1..n).map(|v| (0, v)).collect();
    let reaches = |name, method: Method, n: i64, edges: Vec<(i64, i64)>| {
        let limits = Limits { groups: 7, ..NO_LIMITS };
        let case = plain_case(n as usize, &edges, &vec![1; n as usize], limits);
        assert_eq!(case.run(method).n_groups, 7, "{name}");
    };
    for (name, method) in METHODS {
        reaches(name, method, 100_000, chain(100_000));
        reaches(name, method, 10_000, into(10_000));
        reaches(name, method, 10_000, out(10_000));
    }
    reaches("batch", batch::merge, 100_000, into(100_000));
    reaches("batch", batch::merge, 100_000, out(100_000));
}

#[test]
fn the_heaviest_edge_goes_first() {
    let case = plain_case(4, &[(0, 1), (1, 2), (2, 3)], &[3, 9, 4, 0], Limits { groups: 3, ..NO_LIMITS });
    assert_eq!(case.run(batch::merge).group, [0, 1, 1, 2]);
}

#[test]
fn what_stands_in_the_way_is_counted() {
    let stopped = |limits: Limits| {
        let case = plain_case(4, &[(0, 1), (1, 2), (2, 3)], &[1; 4], limits);
        let c = case.run(batch::merge);
        (c.n_groups, c.obstacles)
    };
    let none = Obstacles::default();
    assert_eq!(stopped(NO_LIMITS), (1, none));
    assert_eq!(stopped(Limits { max_time: 2, ..NO_LIMITS }), (2, Obstacles { max_time: 1, ..none }));
    assert_eq!(stopped(Limits { max_bytes: 1, ..NO_LIMITS }), (4, Obstacles { max_bytes: 3, ..none }));

    let mut case = plain_case(3, &[(0, 1), (1, 2)], &[1; 3], NO_LIMITS);
    case.work.allowed = vec![3, 1, 3];
    assert_eq!(case.run(batch::merge).obstacles, Obstacles { types: 2, ..none });

    // Two components: nothing left to merge, and nobody to blame.
    let case = plain_case(4, &[(0, 1), (2, 3)], &[1; 4], NO_LIMITS);
    assert_eq!((case.run(batch::merge).n_groups, case.run(batch::merge).obstacles), (2, none));
}

#[test]
fn columns_of_the_wrong_length_are_refused() {
    let case = plain_case(3, &[(0, 1), (1, 2)], &[1; 3], NO_LIMITS);
    let g = &case.work.graph;
    let bad = Weights { op_bytes: &[1], ..case.weights() };
    for (name, method) in METHODS {
        let error = method(g, &bad, &NO_LIMITS).expect_err(name).to_string();
        assert_eq!(error, "op_bytes has 1 value where 3 are wanted (one per op)");
    }
}

// -- fusion by rules ----------------------------------------------------------------------------

fn run_rules(case: &Case, kind: &[u32], rules: &[rules::Rule]) -> Coarsening {
    rules::fuse(&case.work.graph, &case.weights(), &case.limits, kind, rules).expect("columns fit")
}

proptest! {
    #![proptest_config(common::config(300))]

    #[test]
    fn fused_chains_match_a_rule_and_none_is_missed(
        case in cases(works(20), 20),
        kind in vec(0u32..3, 20),
        rules in vec(vec(vec(0u32..3, 1..3), 2..4), 0..4),
    ) {
        let mut case = case;
        case.limits.groups = 1;
        let (g, n) = (&case.work.graph, case.work.n_ops());
        let c = run_rules(&case, &kind[..n], &rules);
        check(&case, &c)?;
        prop_assert_eq!(&c, &run_rules(&case, &kind[..n], &rules));
        // Every list of ops, each the only successor of the one before, that some rule matches.
        let sole = |u: usize| {
            let all: std::collections::BTreeSet<usize> =
                g.successors(loadmaster_core::ids::OpId::new(u)).iter().map(|v| v.ix()).collect();
            if all.len() == 1 { all.into_iter().next() } else { None }
        };
        let matched = |ops: &[usize], rule: &rules::Rule| {
            ops.len() == rule.len() && ops.iter().zip(rule).all(|(u, kinds)| kinds.contains(&kind[*u]))
        };
        for m in members(&c).into_iter().filter(|m| m.len() > 1) {
            let last = *m.iter().find(|u| sole(**u).is_none_or(|v| !m.contains(&v))).expect("a last op");
            let mut chain = vec![last];
            while let Some(&before) = m.iter().find(|u| sole(**u) == Some(chain[0])) {
                chain.insert(0, before);
            }
            prop_assert_eq!(chain.len(), m.len(), "a chain");
            prop_assert!(rules.iter().any(|rule| matched(&chain, rule)));
        }
        // What is left alone could not be fused any more.
        let alone = |u: usize| c.group.iter().filter(|x| **x == c.group[u]).count() == 1;
        for first in (0..n).filter(|&u| alone(u)) {
            let mut chain = vec![first];
            while let Some(next) = sole(chain[chain.len() - 1]).filter(|&v| alone(v)) {
                chain.push(next);
                let fits = {
                    let sum = |column: &[u64]| chain.iter().map(|&u| column[u]).sum::<u64>();
                    sum(&case.op_time) <= case.limits.max_time
                        && sum(&case.op_bytes) <= case.limits.max_bytes
                        && chain.iter().all(|&u| case.work.allowed[u] == case.work.allowed[first])
                };
                // A longer rule over the limits hides a shorter one: only the longest counts.
                if !fits {
                    break;
                }
                let longer = c.obstacles != Obstacles::default();
                prop_assert!(longer || !rules.iter().any(|rule| matched(&chain, rule)), "missed {chain:?}");
            }
        }
    }
}

#[test]
fn the_papers_example_is_fused_as_in_its_figure() {
    // Moirai, Fig. 7: add -> relu (twice read) -> upper: conv1 -> bn; lower: conv2 -> bn -> add -> relu.
    let (conv, bn, add, relu) = (0, 1, 2, 3);
    let kind = [add, conv, bn, conv, bn, add, relu];
    let edges = [(0, 1), (0, 3), (1, 2), (3, 4), (4, 5), (2, 5), (5, 6)];
    let list = |kinds: &[u32]| kinds.iter().map(|k| vec![*k]).collect::<rules::Rule>();
    let rules = [list(&[conv, bn]), list(&[conv, bn, relu]), list(&[conv, bn, add, relu])];
    let case = plain_case(7, &edges, &[1; 7], NO_LIMITS);
    let c = run_rules(&case, &kind, &rules);
    check(&case, &c).expect("a coarsening");
    let together = |a: usize, b: usize| c.group[a] == c.group[b];
    // The chain that comes first in topological order takes the add.
    assert!(together(1, 2) && together(3, 4) && together(5, 6));
    assert!(together(2, 5) != together(4, 5));
    assert_eq!(c.n_groups, 3);
}

#[test]
fn a_chain_of_a_hundred_thousand_ops_is_fused_without_recursion() {
    let n = 100_000;
    let edges: Vec<(i64, i64)> = (1..n).map(|v| (v - 1, v)).collect();
    let case = plain_case(n as usize, &edges, &vec![1; n as usize], NO_LIMITS);
    let c = run_rules(&case, &vec![0; n as usize], &[vec![vec![0]; 4]]);
    assert_eq!(c.n_groups, 25_000);
}
