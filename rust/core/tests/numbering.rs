//! However ops are numbered inside, every result is the same by the user's index.

use crate::common::{self, Case, all_options, cases_of, config, run, twins};
use loadmaster_core::bounds::bounds;
use loadmaster_core::clock::Ticks;
use loadmaster_core::coarsen::Weights;
use loadmaster_core::coarsen::contract::{contract, flows};
use loadmaster_core::coarsen::fusion::{Limits, breakpoints, segments};
use loadmaster_core::free_memory::{Memory, OnOom, charge_to_leads};
use loadmaster_core::ids::{DeviceId, OpId};
use loadmaster_core::levels::Levels;
use loadmaster_core::place::{fill, locality};
use loadmaster_core::simulate::lifetime::peak;
use loadmaster_core::simulate::{Blame, Doing, Policy, Schedule, Waited};
use loadmaster_core::topo::{cpd_topo, dfs_topo, is_topological, m_topo};
use loadmaster_core::workload::Workload;
use proptest::prelude::*;

/// A case, and the same with ops numbered as they run.
fn twin_cases(max_ops: usize) -> impl Strategy<Value = (Case, Case)> {
    twins(max_ops).prop_flat_map(move |(given, numbered)| {
        cases_of(Just(given), max_ops).prop_map(move |given| {
            let mut work = numbered.clone();
            let numbering = work.graph.numbering().clone();
            work.allowed = numbering.by_op(given.work.allowed.clone(), 1);
            let twin = Case {
                times: given.times.clone().numbered(&numbering),
                placement: numbering.by_op(given.placement.clone(), 1),
                priority: numbering.by_op(given.priority.clone(), 1),
                cluster: given.cluster.clone(),
                work,
            };
            (given, twin)
        })
    })
}

/// A list of ops by the user's indices.
fn indices(work: &Workload, ops: impl IntoIterator<Item = OpId>) -> Vec<u32> {
    ops.into_iter().map(|op| work.graph.index(op)).collect()
}

/// The three orders of the literature, with levels of whole numbers.
fn orders(work: &Workload) -> Vec<Vec<OpId>> {
    let graph = &work.graph;
    let op_time: Vec<Ticks> = graph.ops().map(|u| u64::from(graph.index(u)) % 3).collect();
    let tensor_time: Vec<Ticks> = graph.tensors().map(|t| u64::from(graph.key(t)) % 2).collect();
    let levels = Levels::new(graph, &op_time, &tensor_time);
    vec![m_topo(graph), dfs_topo(graph), cpd_topo(graph, &levels)]
}

/// All that a schedule says, by the user's indices.
fn told(work: &Workload, s: &Schedule) -> String {
    let graph = &work.graph;
    let by_index = |column: &Vec<Ticks>| graph.numbering().by_index(column.clone());
    let waited = |w: Waited| match w {
        Waited::Op(op) => Waited::Op(OpId(graph.index(op))),
        Waited::Device(op) => Waited::Device(OpId(graph.index(op))),
        Waited::Share(op) => Waited::Share(OpId(graph.index(op))),
        other => other,
    };
    let doing = |doing: Doing| match doing {
        Doing::Running(op) => Doing::Running(OpId(graph.index(op))),
        Doing::Sharing(op) => Doing::Sharing(OpId(graph.index(op))),
        other => other,
    };
    let blame = |b: Blame| (doing(b.doing), b.start, b.finish, waited(b.waited));
    let overflow = s.overflow.as_ref().map(|o| {
        let alive: Vec<_> = o.alive.iter().map(|a| (graph.index(a.op), a.bytes, a.copy)).collect();
        (o.device, o.time, o.op.map(|op| graph.index(op)), o.over, alive)
    });
    format!(
        "{:?}",
        (
            (by_index(&s.start), by_index(&s.finish), &s.transfers, &s.device_busy, &s.channel_busy, &s.peak),
            graph.numbering().by_index(s.op_waited.iter().copied().map(waited).collect()),
            s.blame(graph).into_iter().map(blame).collect::<Vec<_>>(),
            (overflow, &s.memory),
        )
    )
}

proptest! {
    #![proptest_config(config(256))]

    #[test]
    fn ops_numbered_as_they_run_need_no_order(pair in twins(14)) {
        let (given, numbered) = pair;
        let graph = &numbered.graph;
        prop_assert_eq!(graph.topo(), graph.ops().collect::<Vec<_>>());
        prop_assert!(is_topological(graph, graph.topo()));
        prop_assert_eq!(indices(&numbered, graph.topo().to_vec()), indices(&given, given.graph.topo().to_vec()));
        for t in graph.tensors() {
            prop_assert_eq!(graph.key(t), given.graph.key(t));
            let consumers = indices(&numbered, graph.consumers(t).to_vec());
            prop_assert_eq!(consumers, indices(&given, given.graph.consumers(t).to_vec()));
        }
        prop_assert_eq!(
            flows(&given).iter().map(|f| (f.src.0, f.dst.0, f.tensors, f.bytes)).collect::<Vec<_>>(),
            flows(&numbered).iter().map(|f| (graph.index(f.src), graph.index(f.dst), f.tensors, f.bytes))
                .collect::<Vec<_>>()
        );
    }

    #[test]
    fn orders_cuts_groups_and_placements_are_the_same(pair in twin_cases(14), max_ops in 1usize..6) {
        let (given, twin) = pair;
        let both = [&given, &twin].map(|case| {
            let Case { work, cluster, times, .. } = case;
            let capacity = vec![60; cluster.n_devices()];
            let devices: Vec<DeviceId> = cluster.device_ids().collect();
            let bytes = work.static_bytes();
            let cost: Vec<Ticks> = work.tensor_bytes.clone();
            let clock = work.clock(times, cluster).expect("countable");
            let ticks = times.ticks(clock);
            let limits = Limits { max_ops, max_bytes: 80, max_time: Ticks::MAX };
            let out = |placement: Vec<DeviceId>| work.graph.numbering().by_index(placement);
            orders(work).iter().map(|order| {
                let zeros = vec![0; work.n_ops()];
                let weights = Weights { op_time: &zeros, tensor_time: &cost, op_bytes: &bytes, class: &work.allowed };
                let cuts = breakpoints(&work.graph, order, &weights, limits);
                let coarse = contract(work, &segments(order, &cuts)).map_err(|e| e.to_string());
                let held = work.graph.numbering().by_index(peak(work, order).held);
                let best = OnOom::BestEffort;
                let charge = charge_to_leads(&work.lead, &bytes);
                let memory = Memory::new(work, cluster, &work.lead, &charge, &capacity, best);
                let filled = fill::in_order(memory.clone(), order, &devices);
                let local = locality::follow_bytes(memory, order);
                let placed = common::adjust(work, cluster, clock, order, &ticks, &bytes, &capacity, best);
                (
                    (indices(work, order.clone()), cuts, coarse, held),
                    (filled.map(out).ok(), local.map(out).ok(), placed.map(|p| out(p.device)).ok()),
                )
            }).collect::<Vec<_>>()
        });
        prop_assert_eq!(&both[0], &both[1]);
        let [a, b] = [&given, &twin].map(|c| bounds(&c.work, &c.cluster, &c.times).ok());
        prop_assert_eq!(a.map(|x| x.source), b.map(|x| x.source));
    }

    #[test]
    fn schedules_are_the_same(pair in twin_cases(14), seed in 0u64..4) {
        let (given, twin) = pair;
        for options in all_options(&[Policy::Priority, Policy::Fifo, Policy::Random(seed), Policy::Fixed]) {
            let [a, b] = [&given, &twin].map(|case| {
                let feasible = case.topological_priority();
                let priority = if options.policy == Policy::Fixed { &feasible } else { &case.priority };
                let s = run(&case.work, &case.cluster, &case.times, &case.placement, priority, options);
                told(&case.work, &s)
            });
            prop_assert_eq!(a, b);
        }
    }
}
