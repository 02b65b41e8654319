//! What a runtime costs: copies that senders make, and launches by hosts.

use crate::common::{
    self, Case, US, cases, cost, costly, launched_in, mesh, micros, on, plain, run, tick, with_costs,
};
use loadmaster_core::Error;
use loadmaster_core::bounds::{Source, bounds};
use loadmaster_core::clock::Ticks;
use loadmaster_core::cluster::{Cluster, SendCost};
use loadmaster_core::collective::MemberColumns;
use loadmaster_core::graph::Graph;
use loadmaster_core::ids::{DeviceId, OpId, TensorId};
use loadmaster_core::opgraph::{OpColumns, OpGraph};
use loadmaster_core::reduce::reduce;
use loadmaster_core::simulate::{Copied, Doing, LinkOrder, Options, Policy, Schedule, Simulator, Waited};
use loadmaster_core::workload::{Columns, Times, Workload};
use proptest::prelude::*;

const POLICIES: [Policy; 4] = [Policy::Priority, Policy::Fifo, Policy::Random(7), Policy::Fixed];

/// A schedule with the questions that the properties ask of it.
struct Seen<'a> {
    case: &'a Case,
    simulator: Simulator<'a>,
    policy: Policy,
    schedule: Schedule,
}

impl Seen<'_> {
    fn length(&self, u: OpId) -> Ticks {
        let n_types = self.case.cluster.types().len();
        self.simulator.time()[u.ix() * n_types + self.case.cluster.type_of(self.device(u))]
    }

    fn device(&self, u: OpId) -> DeviceId {
        self.case.placement[u.ix()]
    }

    /// When a tensor has been made.
    fn made(&self, t: TensorId) -> Ticks {
        let graph = &self.case.work.graph;
        if graph.is_home(t) { 0 } else { self.schedule.finish[graph.source(t).ix()] }
    }

    /// When all that an op reads is there.
    fn ready(&self, u: OpId) -> Ticks {
        let graph = &self.case.work.graph;
        let there = |t: &TensorId| {
            let sent = self.schedule.transfers.iter().find(|x| x.tensor == *t && x.dst == self.device(u));
            sent.map_or(self.made(*t), |x| x.finish)
        };
        graph.inputs(u).iter().chain(graph.pulls(u)).map(there).max().unwrap_or(0)
    }

    fn copy(&self, transfer: usize) -> Copied {
        let queued = self.schedule.transfers[transfer].queued;
        let none = Copied { start: queued, finish: queued, waited: Waited::Nothing };
        self.schedule.copies.get(transfer).copied().unwrap_or(none)
    }

    /// What keeps a device busy: ops and copies.
    fn busy(&self, d: DeviceId) -> Vec<(Ticks, Ticks)> {
        let (graph, sent) = (&self.case.work.graph, &self.schedule.transfers);
        let of_op = |u: OpId| (self.schedule.start[u.ix()], self.schedule.finish[u.ix()]);
        let of_copy = |i: usize| (self.copy(i).start, self.copy(i).finish);
        let ops = graph.ops().filter(|&u| self.device(u) == d).map(of_op);
        let mut all: Vec<_> = ops.chain((0..sent.len()).filter(|&i| sent[i].src == d).map(of_copy)).collect();
        all.sort_unstable();
        all
    }

    /// Whether a device has no moment without work from one time to another.
    fn is_covered(&self, d: DeviceId, from: Ticks, to: Ticks) -> bool {
        let reach =
            |reached: Ticks, (a, b): (Ticks, Ticks)| if a <= reached { reached.max(b) } else { reached };
        self.busy(d).into_iter().fold(from, reach) >= to
    }
}

/// Copies take their senders' time, come before ops, and before their transfers.
fn senders_copy(s: &Seen<'_>) -> Result<(), TestCaseError> {
    let Case { work, cluster, .. } = s.case;
    let clock = s.simulator.clock();
    for (i, x) in s.schedule.transfers.iter().enumerate() {
        let (copy, made) = (s.copy(i), s.made(x.tensor));
        let wanted = cluster.send_seconds(x.src, work.tensor_bytes[x.tensor.ix()]);
        prop_assert_eq!(copy.finish - copy.start, wanted.map_or(0, |seconds| clock.ticks(seconds)));
        prop_assert_eq!(copy.finish, x.queued);
        prop_assert!(copy.start >= made && x.start >= x.queued);
        if wanted.is_none() {
            prop_assert_eq!(copy.start, made);
        }
        prop_assert!(s.is_covered(x.src, made, copy.start), "transfer {i} waits for an idle sender");
        for u in work.graph.ops().filter(|&u| s.device(u) == x.src) {
            let start = s.schedule.start[u.ix()];
            prop_assert!(!(made < start && start < copy.start), "{u:?} goes before a copy that waits");
        }
    }
    for d in cluster.device_ids() {
        prop_assert!(s.busy(d).windows(2).all(|w| w[0].1 <= w[1].0), "two things at once on {d:?}");
    }
    Ok(())
}

/// Hosts launch one op after another, makers before readers; devices keep that order and do not idle.
fn hosts_launch(s: &Seen<'_>) -> Result<(), TestCaseError> {
    let Case { work, cluster, times, .. } = s.case;
    let launched = &s.schedule.launched;
    prop_assert_eq!(launched.is_empty(), times.dispatch().is_empty());
    for u in work.graph.ops() {
        let d = s.device(u);
        let (start, finish) = (s.schedule.start[u.ix()], s.schedule.finish[u.ix()]);
        prop_assert_eq!(finish - start, s.length(u));
        let mut may_start = s.ready(u);
        prop_assert!(start >= may_start);
        if !launched.is_empty() {
            let length = s.simulator.clock().ticks(times.dispatch()[u.ix()]);
            prop_assert!(start >= launched[u.ix()] && launched[u.ix()] >= length);
            let same_host = |v: OpId| cluster.host_of(s.device(v)) == cluster.host_of(d);
            for v in work.graph.ops().filter(|&v| v != u && same_host(v)) {
                let gap = launched[v.ix()].saturating_sub(length);
                prop_assert!(
                    launched[v.ix()] <= launched[u.ix()] - length || gap >= launched[u.ix()] - length
                );
            }
            for (_, maker) in work.graph.inputs_with_ops(u).filter(|&(_, maker)| same_host(maker)) {
                prop_assert!(launched[maker.ix()] <= launched[u.ix()] - length);
            }
            let before = |v: &OpId| s.device(*v) == d && launched[v.ix()] < launched[u.ix()];
            let earlier = work.graph.ops().filter(before).map(|v| s.schedule.start[v.ix()]).max();
            prop_assert!(earlier.is_none_or(|earlier| earlier <= start), "{u:?} overtakes");
            may_start = may_start.max(launched[u.ix()]).max(earlier.unwrap_or(0));
        }
        // Ops that are launched at one time may stand in either order.
        let ties = |v: OpId| v != u && s.device(v) == d && launched.get(v.ix()) == launched.get(u.ix());
        let is_told =
            if launched.is_empty() { s.policy != Policy::Fixed } else { !work.graph.ops().any(ties) };
        if is_told {
            prop_assert!(s.is_covered(d, may_start, start), "{d:?} idles, {u:?} waits");
        }
    }
    Ok(())
}

fn chain_is_whole(s: &Seen<'_>) -> Result<(), TestCaseError> {
    let chain = s.schedule.blame(&s.case.work.graph);
    prop_assert_eq!(chain.first().map(|b| b.finish), Some(s.schedule.makespan));
    prop_assert_eq!(chain.last().map(|b| (b.start, b.waited)), Some((0, Waited::Nothing)));
    prop_assert!(chain.windows(2).all(|w| w[1].finish == w[0].start), "{chain:?}");
    for link in &chain {
        match link.doing {
            Doing::Launching(op) => prop_assert_eq!(link.finish, s.schedule.launched[op.ix()]),
            Doing::Copying(t) => {
                let Copied { start, finish, waited } = s.copy(t as usize);
                prop_assert_eq!((start, finish, waited), (link.start, link.finish, link.waited));
            }
            Doing::Running(_) | Doing::Moving(_) | Doing::Sharing(_) => {}
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(common::config(256))]

    #[test]
    fn costs_of_a_runtime_obey_the_model(costly in costly(12)) {
        let case = &costly.case;
        let policies = &POLICIES[..if costly.is_sorted { 4 } else { 3 }];
        let least = bounds(&case.work, &case.cluster, &case.times).expect("countable");
        for options in common::all_options(policies) {
            let simulator = Simulator::new(&case.work, &case.cluster, &case.times).expect("countable");
            let schedule = simulator.run(&case.placement, &case.priority, options).expect("it runs");
            let s = Seen { case, simulator, policy: options.policy, schedule };
            senders_copy(&s)?;
            hosts_launch(&s)?;
            chain_is_whole(&s)?;
            let makespan = s.schedule.makespan;
            prop_assert_eq!(Some(makespan), s.schedule.finish.iter().copied().max());
            prop_assert!(least.best <= s.simulator.clock().seconds(makespan), "{least:?}");
            prop_assert_eq!(&case.run(options), &s.schedule);
            for limit in [0, makespan / 2, makespan, makespan + 1] {
                let below = s.simulator.run_below(&case.placement, &case.priority, options, limit);
                prop_assert_eq!(below.expect("it runs").is_some(), makespan < limit);
            }
        }
    }

    #[test]
    fn costs_that_are_off_change_nothing(case in cases(12)) {
        let times = case.times.clone().with_dispatch(vec![0.0; case.work.n_ops()]).expect("good times");
        let cluster = with_costs(case.cluster.clone(), &[]).with_host_each(true);
        let off = Case { times, cluster, ..case.clone() };
        for options in common::all_options(&POLICIES[..3]) {
            let (before, after) = (case.run(options), off.run(options));
            prop_assert!(after.copies.is_empty() && after.launched.is_empty());
            prop_assert_eq!(before, after);
        }
    }

    #[test]
    fn sequences_that_block_each_other_do_so_whatever_launches_cost(case in cases(10)) {
        let costly = Case { times: launched_in(case.times.clone(), &vec![3; case.work.n_ops()]), ..case.clone() };
        let fixed = Options { policy: Policy::Fixed, ..Options::default() };
        let found = [&case, &costly].map(|one| {
            let simulator = Simulator::new(&one.work, &one.cluster, &one.times).expect("countable");
            simulator.run(&one.placement, &one.priority, fixed).map(|_| ())
        });
        prop_assert_eq!(&found[0], &found[1]);
        prop_assert!(matches!(found[0], Ok(()) | Err(Error::Deadlock(_))));
    }
}

// By hand. Links carry 1 byte per us, and so do copies.

/// Per op, its start in microseconds; the makespan.
fn starts(work: &Workload, cluster: &Cluster, times: &Times, s: &Schedule) -> (Vec<u64>, u64) {
    let us = tick(work, cluster, times);
    (s.start.iter().map(|t| t / us).collect(), s.makespan / us)
}

#[test]
fn a_sender_copies_one_message_after_another_before_its_next_op() {
    // d0 runs 0 (2 us, 4 bytes to d1 and d2), then 1 (5 us). Copies: 1 us and 4 bytes, 2..7 and 7..12; op 1
    // starts at 12. Transfers 7..11 and 12..16.
    let work = plain(4, &[(0, 2), (0, 3)], &[4]);
    let cluster = with_costs(mesh(3, 0.0), &[cost("gpu", 1.0)]);
    let times = micros(&[2, 5, 1, 1]);
    let s = run(&work, &cluster, &times, &on(&[0, 0, 1, 2]), &[0, 1, 2, 3], Options::default());
    assert_eq!(starts(&work, &cluster, &times, &s), (vec![0, 12, 11, 16], 17));
    let us = tick(&work, &cluster, &times);
    let copied = |start, finish, waited| Copied { start: start * us, finish: finish * us, waited };
    let expected = [copied(2, 7, Waited::Op(OpId(0))), copied(7, 12, Waited::Copy(0))];
    assert_eq!(s.copies, expected);
    assert_eq!(s.op_waited, [Waited::Nothing, Waited::Copy(1), Waited::Transfer(0), Waited::Transfer(1)]);
    assert_eq!(s.device_busy.iter().map(|t| t / us).collect::<Vec<_>>(), [7, 1, 1]);
    let chain: Vec<Doing> = s.blame(&work.graph).into_iter().map(|link| link.doing).collect();
    let ran = |op| Doing::Running(OpId(op));
    // Op 1 and op 3 both end at 17: the chain is that of the first.
    assert_eq!(chain, [ran(1), Doing::Copying(1), Doing::Copying(0), ran(0)]);
}

#[test]
fn a_message_without_bytes_is_a_send_too_and_only_some_types_pay() {
    // By a control edge, 0 on d0 (type a, pays 3 us) to 1 on d1 (type b, pays nothing), and on to 2 on d0.
    let graph = Graph::new(3, &[0, 1], &[1, 2], Some(&[-1, -1])).expect("a graph");
    let work = Workload::plain(graph, &Columns::default()).expect("a workload");
    let devices = vec![common::device(0, "a", 0), common::device(1, "b", 0)];
    let links = [common::link(0, 1, 7.0, &[]), common::link(1, 0, 7.0, &[])];
    let cluster = with_costs(Cluster::new(devices, &links).expect("a cluster"), &[cost("a", 3.0)]);
    let times = Times::new(3, 2, vec![US; 6]).expect("good times");
    let s = run(&work, &cluster, &times, &on(&[0, 1, 0]), &[0, 1, 2], Options::default());
    assert_eq!(starts(&work, &cluster, &times, &s), (vec![0, 11, 19], 20));
    assert_eq!(s.transfer_waited, [Waited::Copy(0), Waited::Op(OpId(1))]);
}

#[test]
fn what_lies_at_home_is_copied_first() {
    // Op 1 on d1 pulls 6 bytes that lie with op 0 on d0: copied 0..6, sent 6..12. Op 0 starts at 6.
    let columns = OpColumns {
        name: ["p", "a", "b"].map(String::from).to_vec(),
        src: vec![0, 0],
        dst: vec![1, 2],
        tensor: Some(vec![0, 0]),
        bytes: vec![6, 6],
        view: vec![false; 3],
        placeholder: vec![true, false, false],
        alias_of: vec![-1; 3],
        near: vec![-1; 3],
        colocation: vec![-1; 3],
        flops: vec![0; 3],
        accessed: vec![0; 3],
        output_bytes: vec![6, 0, 0],
        resident: vec![6, 0, 0],
        workspace: vec![0; 3],
        ..OpColumns::default()
    };
    let model = OpGraph::new(columns).expect("a graph");
    let work = reduce(&model, &[]).expect("reducible").work;
    let cluster = with_costs(mesh(2, 0.0), &[cost("gpu", 0.0)]);
    let times = micros(&[1, 1]);
    let s = run(&work, &cluster, &times, &on(&[0, 1]), &[0, 1], Options::default());
    assert_eq!(starts(&work, &cluster, &times, &s), (vec![6, 12], 13));
    assert_eq!(s.copies[0].waited, Waited::Nothing);
}

#[test]
fn one_host_launches_for_all_devices() {
    // Two chains of two ops, 1 us each: 0, 2 on d0 and 1, 3 on d1. Launches of 4 us end at 4, 8, 12, 16.
    let work = plain(4, &[(0, 2), (1, 3)], &[]);
    let (cluster, times) = (mesh(2, 0.0), launched_in(micros(&[1; 4]), &[4; 4]));
    let at = on(&[0, 1, 0, 1]);
    let s = run(&work, &cluster, &times, &at, &[0, 1, 2, 3], Options::default());
    assert_eq!(starts(&work, &cluster, &times, &s), (vec![4, 8, 12, 16], 17));
    let us = tick(&work, &cluster, &times);
    let chain = s.blame(&work.graph);
    assert_eq!(
        chain.iter().map(|b| b.doing).collect::<Vec<_>>(),
        [Doing::Running(OpId(3)), Doing::Launching(OpId(3))]
    );
    assert_eq!((chain[1].start, chain[1].finish, chain[0].waited), (0, 16 * us, Waited::Launch(OpId(3))));
    // With a host for each device both launch at once.
    let each = cluster.clone().with_host_each(true);
    let s = run(&work, &each, &times, &at, &[0, 1, 2, 3], Options::default());
    assert_eq!(starts(&work, &each, &times, &s), (vec![4, 4, 8, 8], 9));
    let found =
        [bounds(&work, &cluster, &times), bounds(&work, &each, &times)].map(|b| b.expect("countable"));
    assert_eq!(found.map(|b| b.source), [Source::Launches; 2]);
    let near = |got: f64, want: f64| (got / US - want).abs() < 1e-6;
    assert!(near(found[0].best, 16.0) && near(found[1].best, 8.0));
}

#[test]
fn launches_hide_behind_ops_that_take_longer() {
    // 0 (20 us) on d0; 1 reads it on d0, 2 is of d1 and alone. Launches of 4 us: at 4, 8 and 12.
    let work = plain(3, &[(0, 1)], &[]);
    let (cluster, times) = (mesh(2, 0.0), launched_in(micros(&[20, 1, 1]), &[4; 3]));
    let s = run(&work, &cluster, &times, &on(&[0, 0, 1]), &[0, 1, 2], Options::default());
    assert_eq!(starts(&work, &cluster, &times, &s), (vec![4, 24, 12], 25));
}

#[test]
fn devices_take_ops_as_they_were_launched() {
    // 1 on d0 reads 0 on d1 (9 us, 5 bytes) and was launched before 2 on d0, which waits behind it.
    let work = plain(3, &[(0, 1)], &[5]);
    let (cluster, times) = (mesh(2, 0.0), launched_in(micros(&[9, 1, 1]), &[1; 3]));
    let s = run(&work, &cluster, &times, &on(&[1, 0, 0]), &[0, 1, 2], Options::default());
    assert_eq!(starts(&work, &cluster, &times, &s), (vec![1, 15, 16], 17));
    assert_eq!(s.op_waited[2], Waited::Device(OpId(1)));
    // A priority that puts it first helps, though a host never launches a reader before its maker.
    let s = run(&work, &cluster, &times, &on(&[1, 0, 0]), &[2, 0, 1], Options::default());
    assert_eq!(starts(&work, &cluster, &times, &s), (vec![2, 16, 1], 17));
}

#[test]
fn a_host_launches_by_the_policy() {
    // Ops 0 to 3 are free to go, 4 reads 3.
    let work = plain(5, &[(3, 4)], &[]);
    let (cluster, times) = (mesh(1, 0.0), launched_in(micros(&[0; 5]), &[1; 5]));
    let launched = |policy, priority: &[i32; 5]| {
        let options = Options { policy, ..Options::default() };
        let s = run(&work, &cluster, &times, &on(&[0; 5]), priority, options);
        let us = tick(&work, &cluster, &times);
        s.launched.iter().map(|t| t / us).collect::<Vec<_>>()
    };
    assert_eq!(launched(Policy::Priority, &[4, 3, 2, 1, 0]), [5, 4, 3, 1, 2]);
    assert_eq!(launched(Policy::Fixed, &[4, 3, 2, 0, 1]), [5, 4, 3, 1, 2]);
    assert_eq!(launched(Policy::Fifo, &[4, 3, 2, 1, 0]), [1, 2, 3, 4, 5]);
    let mut drawn = launched(Policy::Random(1), &[0; 5]);
    assert_eq!(drawn, launched(Policy::Random(1), &[4, 3, 2, 1, 0]));
    assert_ne!(drawn, launched(Policy::Random(2), &[0; 5]));
    drawn.sort_unstable();
    assert_eq!(drawn, [1, 2, 3, 4, 5]);
}

/// Members 2 (d0) and 3 (d1) of an all-reduce of 4 bytes follow ops 0 and 1; 4 (d0) reads 2, 5 (d1) reads 3
/// from d0 and so does 6.
fn with_members() -> Workload {
    let graph = Graph::new(6, &[0, 1, 2, 3], &[2, 3, 4, 5], None).expect("a graph");
    let members = MemberColumns { group: &[-1, -1, 0, 0, -1, -1], kind: &[0; 6], runs: &[] };
    let columns = Columns { tensor_bytes: &[4, 4, 4, 4], members, ..Columns::default() };
    Workload::plain(graph, &columns).expect("a workload")
}

#[test]
fn members_are_launched_and_their_readers_only_after_all_of_them() {
    let work = with_members();
    let (cluster, times) = (mesh(2, 0.0), launched_in(micros(&[1, 1, 0, 0, 1, 1]), &[2; 6]));
    // By priority 4 would come before 1 and 3, but no program can read what it has not launched.
    let s = run(&work, &cluster, &times, &on(&[0, 1, 0, 1, 0, 1]), &[0, 5, 1, 6, 2, 7], Options::default());
    let us = tick(&work, &cluster, &times);
    let launched: Vec<u64> = s.launched.iter().map(|t| t / us).collect();
    assert_eq!(launched, [2, 6, 4, 8, 10, 12]);
    // Member 3 is launched at 8; by then op 1 has run 6..7. 4 bytes by two: 2 steps of 2 bytes.
    assert_eq!(s.together[0].queued / us, 8);
    assert_eq!(s.op_waited[3], Waited::Launch(OpId(3)));
    assert_eq!(starts(&work, &cluster, &times, &s).0, [2, 6, 8, 8, 12, 12]);
}

#[test]
fn a_member_sends_its_result_when_its_device_is_free() {
    // Op 4, which reads member 2 of d0, runs on d1 here; d0 runs op 5 from 1 to 21, so the copy (0 us + 4
    // bytes) waits until 21 and ends at 25; the transfer takes 25..29.
    let graph = Graph::new(6, &[0, 1, 2], &[2, 3, 4], None).expect("a graph");
    let members = MemberColumns { group: &[-1, -1, 0, 0, -1, -1], kind: &[0; 6], runs: &[] };
    let columns = Columns { tensor_bytes: &[4, 4, 4], members, ..Columns::default() };
    let work = Workload::plain(graph, &columns).expect("a workload");
    let cluster = with_costs(mesh(2, 0.0), &[cost("gpu", 0.0)]);
    let times = micros(&[1, 1, 0, 0, 1, 20]);
    let s = run(&work, &cluster, &times, &on(&[0, 1, 0, 1, 1, 0]), &[0; 6], Options::default());
    assert_eq!(starts(&work, &cluster, &times, &s), (vec![0, 0, 1, 1, 29, 1], 30));
    assert_eq!(s.copies[0].waited, Waited::Device(OpId(5)));
    assert_eq!(s.transfer_waited[0], Waited::Copy(0));
}

#[test]
fn both_costs_together() {
    // 0 (2 us) on d0 is launched at 3; it ends at 5, is copied (4 bytes) 5..9 and sent 9..13. 1 on d0,
    // launched at 6, starts at 9; 2 on d1, launched at 9, at 13.
    let work = plain(3, &[(0, 2)], &[4]);
    let cluster = with_costs(mesh(2, 0.0), &[cost("gpu", 0.0)]);
    let times = launched_in(micros(&[2, 5, 1]), &[3; 3]);
    let s = run(&work, &cluster, &times, &on(&[0, 0, 1]), &[0, 1, 2], Options::default());
    assert_eq!(starts(&work, &cluster, &times, &s), (vec![3, 9, 13], 14));
    let urgent = Options { contention: Some(LinkOrder::Priority), ..Options::default() };
    let same = run(&work, &cluster, &times, &on(&[0, 0, 1]), &[0, 1, 2], urgent);
    assert_eq!(same, s);
}

#[test]
fn bad_costs_are_refused() {
    let bad = |cost: SendCost| mesh(2, 0.0).with_send_costs(&[cost]).expect_err("bad").to_string();
    assert!(bad(cost("tpu", 0.0)).contains("\"tpu\""));
    assert!(bad(cost("gpu", -1.0)).contains("latency"));
    for bandwidth in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e-310] {
        assert!(bad(SendCost { bandwidth, ..cost("gpu", 0.0) }).contains("bandwidth"));
    }
    assert!(matches!(micros(&[1]).with_dispatch(vec![f64::NAN]), Err(Error::BadValue { .. })));
    assert!(matches!(micros(&[1]).with_dispatch(vec![1.0; 2]), Err(Error::WrongLength { .. })));
}
