//! The judge: every schedule obeys the model, whatever the policy, the links and the graph.

use std::collections::BTreeSet;

use crate::common::{
    self, Case, all_options, bridge, cases, cases_of, line, mesh, messages, micros, on, one_port, ops, plain,
    plain_works, run, tick,
};
use loadmaster_core::Error;
use loadmaster_core::bounds::bounds;
use loadmaster_core::clock::Ticks;
use loadmaster_core::cluster::Cluster;
use loadmaster_core::graph::Graph;
use loadmaster_core::ids::{ChannelId, DeviceId, OpId, TensorId};
use loadmaster_core::simulate::{Blame, Doing, LinkOrder, Options, Policy, Schedule, Simulator, Waited};
use loadmaster_core::workload::{Columns, Lifetime, Times, Workload};
use petgraph::algo::is_cyclic_directed;
use petgraph::graph::{DiGraph, NodeIndex};
use proptest::collection::vec;
use proptest::prelude::*;

const FREE: [Policy; 3] = [Policy::Priority, Policy::Fifo, Policy::Random(7)];

/// A schedule with the questions that the properties ask of it.
struct Seen<'a> {
    case: &'a Case,
    options: Options,
    schedule: Schedule,
    /// Ticks per op on its device.
    length: Vec<Ticks>,
}

impl<'a> Seen<'a> {
    fn new(case: &'a Case, options: Options) -> Self {
        let simulator = Simulator::new(&case.work, &case.cluster, &case.times).expect("countable");
        let schedule = simulator.run(&case.placement, &case.priority, options).expect("a valid placement");
        let n_types = case.cluster.types().len();
        let at = |u: OpId| u.ix() * n_types + case.cluster.type_of(case.placement[u.ix()]);
        let length = case.work.graph.ops().map(|u| simulator.time()[at(u)]).collect();
        Self { case, options, schedule, length }
    }

    fn graph(&self) -> &Graph {
        &self.case.work.graph
    }

    fn device(&self, u: OpId) -> DeviceId {
        self.case.placement[u.ix()]
    }

    fn start(&self, u: OpId) -> Ticks {
        self.schedule.start[u.ix()]
    }

    fn finish(&self, u: OpId) -> Ticks {
        self.schedule.finish[u.ix()]
    }

    /// When a tensor is there for ops on `d`.
    fn there(&self, t: TensorId, d: DeviceId) -> Ticks {
        let source = self.graph().source(t);
        if self.device(source) != d {
            let to = self.schedule.transfers.iter().find(|x| x.tensor == t && x.dst == d);
            to.expect("the tensor is sent").finish
        } else if self.graph().is_home(t) {
            0
        } else {
            self.finish(source)
        }
    }

    /// When all that an op reads is there.
    fn ready(&self, u: OpId) -> Ticks {
        let read = self.graph().inputs(u).iter().chain(self.graph().pulls(u));
        read.map(|&t| self.there(t, self.device(u))).max().unwrap_or(0)
    }

    fn channels(&self, transfer: usize) -> &[ChannelId] {
        let x = self.schedule.transfers[transfer];
        self.case.cluster.route_channels(x.src, x.dst)
    }

    fn share_a_channel(&self, a: usize, b: usize) -> bool {
        self.channels(a).iter().any(|c| self.channels(b).contains(c))
    }

    fn ops_on(&self, d: DeviceId) -> impl Iterator<Item = OpId> {
        self.graph().ops().filter(move |&u| self.device(u) == d)
    }
}

/// Whether half-open intervals are disjoint; those of no length may not lie inside another.
fn disjoint(mut intervals: Vec<(Ticks, Ticks)>) -> bool {
    intervals.sort_unstable();
    intervals.windows(2).all(|w| w[0].1 <= w[1].0)
}

/// Whether intervals cover `from..to`.
fn covered(from: Ticks, to: Ticks, mut intervals: Vec<(Ticks, Ticks)>) -> bool {
    intervals.sort_unstable();
    let mut reached = from;
    for (a, b) in intervals {
        if a <= reached {
            reached = reached.max(b);
        }
    }
    reached >= to
}

/// Every tensor goes once to each device that needs it, in the route's time; ops wait for all inputs.
fn causes_come_first(s: &Seen<'_>) -> Result<(), TestCaseError> {
    let (case, schedule) = (s.case, &s.schedule);
    let sent: Vec<_> = schedule.transfers.iter().map(|x| (x.tensor, x.dst)).collect();
    prop_assert_eq!(&sent, &messages(&case.work, &case.placement));
    let clock = case.work.clock(&case.times, &case.cluster).expect("countable");
    for x in &schedule.transfers {
        let source = s.graph().source(x.tensor);
        prop_assert_eq!(x.src, s.device(source));
        prop_assert_eq!(x.queued, if s.graph().is_home(x.tensor) { 0 } else { s.finish(source) });
        prop_assert!(x.start >= x.queued);
        let seconds = case.cluster.transfer_seconds(x.src, x.dst, case.work.tensor_bytes[x.tensor.ix()]);
        prop_assert_eq!(x.finish - x.start, clock.ticks(seconds));
    }
    for u in s.graph().ops() {
        prop_assert!(s.start(u) >= s.ready(u), "{u:?} starts before its inputs are there");
        prop_assert_eq!(s.finish(u) - s.start(u), s.length[u.ix()]);
    }
    prop_assert_eq!(Some(schedule.makespan), schedule.finish.iter().copied().max());
    let bytes = schedule.transfers.iter().map(|x| case.work.tensor_bytes[x.tensor.ix()]).sum::<u64>();
    prop_assert_eq!(schedule.bytes_moved, bytes);
    Ok(())
}

/// One op at a time per device, and no device idles while one of its ops could run.
fn devices_work(s: &Seen<'_>) -> Result<(), TestCaseError> {
    for d in s.case.cluster.device_ids() {
        let intervals: Vec<_> = s.ops_on(d).map(|u| (s.start(u), s.finish(u))).collect();
        let busy: Ticks = intervals.iter().map(|(a, b)| b - a).sum();
        prop_assert_eq!(s.schedule.device_busy[d.ix()], busy);
        prop_assert!(disjoint(intervals.clone()), "two ops at once on {d:?}");
        if s.options.policy == Policy::Fixed {
            let mut sequence: Vec<OpId> = s.ops_on(d).collect();
            sequence.sort_unstable_by_key(|&u| (s.case.priority[u.ix()], s.graph().index(u)));
            let mut free = 0;
            for u in sequence {
                prop_assert_eq!(s.start(u), s.ready(u).max(free));
                free = s.finish(u);
            }
            continue;
        }
        for u in s.ops_on(d) {
            prop_assert!(covered(s.ready(u), s.start(u), intervals.clone()), "{d:?} idles, {u:?} waits");
            // Of ops that were waiting when `u` was taken, none should have gone first.
            for v in s.ops_on(d).filter(|&v| s.ready(v) < s.start(u) && s.start(u) < s.start(v)) {
                let priority = |w: OpId| (s.case.priority[w.ix()], s.graph().index(w));
                let since = |w: OpId| (s.ready(w), s.graph().index(w));
                match s.options.policy {
                    Policy::Priority => prop_assert!(priority(u) < priority(v), "{u:?} before {v:?}"),
                    Policy::Fifo => prop_assert!(since(u) < since(v), "{u:?} before {v:?}"),
                    Policy::Random(_) | Policy::Fixed => {}
                }
            }
        }
    }
    Ok(())
}

/// One transfer at a time per channel, each holding all of its route; none waits without a cause.
fn channels_work(s: &Seen<'_>) -> Result<(), TestCaseError> {
    let transfers = &s.schedule.transfers;
    for c in (0..s.case.cluster.n_channels()).map(ChannelId::new) {
        let held = (0..transfers.len()).filter(|&i| s.channels(i).contains(&c));
        let intervals: Vec<_> = held.map(|i| (transfers[i].start, transfers[i].finish)).collect();
        let busy: Ticks = intervals.iter().map(|(a, b)| b - a).sum();
        prop_assert_eq!(s.schedule.channel_busy[c.ix()], busy);
        if s.options.contention.is_some() {
            prop_assert!(disjoint(intervals), "two transfers at once on {c:?}");
        }
    }
    for (i, x) in transfers.iter().enumerate() {
        if s.options.contention.is_none() {
            prop_assert_eq!(x.start, x.queued);
            continue;
        }
        let rivals = || (0..transfers.len()).filter(|&j| j != i && s.share_a_channel(i, j));
        // From its queueing to its start some earlier transfer held, or waited for, a channel of its.
        let before = rivals().filter(|&j| transfers[j].start <= x.start);
        let intervals: Vec<_> = before.map(|j| (transfers[j].queued, transfers[j].finish)).collect();
        prop_assert!(covered(x.queued, x.start, intervals), "transfer {i} waits for nothing");
        if s.options.contention == Some(LinkOrder::Fifo) {
            for j in rivals().filter(|&j| transfers[j].queued < x.queued) {
                prop_assert!(transfers[j].finish <= x.start, "transfer {i} overtakes {j}");
            }
        } else {
            // Both waiting, the more urgent one goes first.
            for j in rivals().filter(|&j| transfers[j].queued < x.start && x.start < transfers[j].start) {
                prop_assert!((urgency(s, i), x.queued) <= (urgency(s, j), transfers[j].queued));
            }
        }
    }
    Ok(())
}

/// Smallest priority among those who read a transfer.
fn urgency(s: &Seen<'_>, transfer: usize) -> i32 {
    let x = s.schedule.transfers[transfer];
    let readers = s.graph().consumers(x.tensor).iter().filter(|&&c| s.device(c) == x.dst);
    readers.map(|c| s.case.priority[c.ix()]).min().expect("somebody reads it")
}

/// What takes memory, from when to when.
struct Resident {
    from: Ticks,
    /// None: to the end.
    to: Option<Ticks>,
    device: DeviceId,
    bytes: u64,
    /// The op that made it, for tensors.
    made: Option<OpId>,
}

fn residents(s: &Seen<'_>) -> Vec<Resident> {
    let (work, graph, schedule) = (&s.case.work, s.graph(), &s.schedule);
    let mut all = Vec::new();
    for u in graph.ops() {
        let (device, resident, workspace) = (s.device(u), work.resident[u.ix()], work.workspace[u.ix()]);
        all.push(Resident { from: 0, to: None, device, bytes: resident, made: None });
        let (from, to) = (s.start(u), Some(s.finish(u)));
        all.push(Resident { from, to, device, bytes: workspace, made: None });
    }
    let readers_on = |t: TensorId, d: DeviceId| {
        graph.consumers(t).iter().filter(move |&&c| s.device(c) == d).map(|&c| s.finish(c))
    };
    for (i, storage) in work.storages.iter().enumerate() {
        let device = s.device(storage.op);
        let lying = || graph.tensors().filter(|t| work.tensor_storage[t.ix()].0 as usize == i);
        let read = lying().flat_map(|t| readers_on(t, device)).max();
        let sent =
            schedule.transfers.iter().filter(|x| lying().any(|t| t == x.tensor)).map(|x| x.finish).max();
        let end = read.max(sent).unwrap_or(s.finish(storage.op));
        let to = (storage.lifetime == Lifetime::UntilUsed).then_some(end);
        let (from, made) = (s.start(storage.op), Some(storage.op));
        all.push(Resident { from, to, device, bytes: storage.bytes, made });
    }
    for x in &schedule.transfers {
        let (bytes, made) = (work.tensor_bytes[x.tensor.ix()], Some(graph.source(x.tensor)));
        let to = Some(readers_on(x.tensor, x.dst).max().expect("somebody reads it"));
        all.push(Resident { from: x.start, to, device: x.dst, bytes, made });
    }
    all
}

/// Memory counted anew from the schedule, by sums over intervals.
fn memory_adds_up(s: &Seen<'_>) -> Result<(), TestCaseError> {
    let all = residents(s);
    let used = |d: DeviceId, now: Ticks| -> u64 {
        let alive = all.iter().filter(|r| r.device == d && r.from <= now && r.to.is_none_or(|end| now < end));
        alive.map(|r| r.bytes).sum()
    };
    let mut instants: BTreeSet<Ticks> = all.iter().map(|r| r.from).collect();
    instants.extend(all.iter().filter_map(|r| r.to));
    // Without ops or transfers of no length, an instant is one round: frees, then allocations.
    let plain = s.length.iter().all(|&l| l > 0) && s.schedule.transfers.iter().all(|x| x.finish > x.start);
    let mut first_over: Option<Ticks> = None;
    for d in s.case.cluster.device_ids() {
        let samples: Vec<_> = s.schedule.memory.iter().filter(|m| m.device == d).collect();
        prop_assert!(samples.windows(2).all(|w| w[0].time <= w[1].time));
        let mut peak = 0;
        for &now in &instants {
            let sample = samples.iter().rev().find(|m| m.time <= now).expect("a sample at 0");
            prop_assert_eq!(sample.bytes, used(d, now), "on {:?} at {}", d, now);
            peak = peak.max(sample.bytes);
            if sample.bytes > s.case.cluster.memory(d) {
                first_over = Some(first_over.map_or(now, |f| f.min(now)));
            }
        }
        prop_assert_eq!(Some(s.schedule.peak[d.ix()]), samples.iter().map(|m| m.bytes).max());
        if plain {
            prop_assert_eq!(s.schedule.peak[d.ix()], peak);
        }
        let kept: u64 = all.iter().filter(|r| r.device == d && r.to.is_none()).map(|r| r.bytes).sum();
        prop_assert_eq!(samples.last().map(|m| m.bytes), Some(kept));
        let fixed: u64 = s.ops_on(d).map(|u| s.case.work.static_bytes()[u.ix()]).sum();
        let placed = s.case.work.static_per_device(&s.case.placement, s.case.cluster.n_devices());
        prop_assert_eq!(placed[d.ix()], fixed);
    }
    match &s.schedule.overflow {
        None => prop_assert_eq!(first_over, None),
        Some(o) => {
            prop_assert!(s.schedule.peak[o.device.ix()] >= s.case.cluster.memory(o.device) + o.over);
            prop_assert!(o.over > 0 && first_over.is_none_or(|first| o.time <= first));
            prop_assert!(!plain || first_over == Some(o.time));
            prop_assert!(o.alive.windows(2).all(|w| w[0].bytes >= w[1].bytes));
            for a in &o.alive {
                prop_assert_eq!(a.copy, s.device(a.op) != o.device);
                let made = |r: &&Resident| r.made == Some(a.op) && r.device == o.device && r.bytes == a.bytes;
                let now = |r: &&Resident| r.from <= o.time && r.to.is_none_or(|end| o.time < end);
                prop_assert!(!plain || all.iter().filter(made).any(|r| now(&r)), "{:?} is not there", a);
            }
        }
    }
    Ok(())
}

/// The chain of causes leads from the makespan to 0 without a gap, and each cause is one.
fn blame_is_whole(s: &Seen<'_>) -> Result<(), TestCaseError> {
    let chain = s.schedule.blame(&s.case.work.graph);
    prop_assert_eq!(chain.first().map(|b| b.finish), Some(s.schedule.makespan));
    prop_assert_eq!(chain.last().map(|b| (b.start, b.waited)), Some((0, Waited::Nothing)));
    prop_assert_eq!(chain.iter().map(|b| b.finish - b.start).sum::<Ticks>(), s.schedule.makespan);
    for w in chain.windows(2) {
        prop_assert_eq!(w[1].finish, w[0].start);
    }
    let all_links = s.graph().ops().map(|u| (Some(u), None, s.schedule.op_waited[u.ix()]));
    let sent = (0..s.schedule.transfers.len()).map(|i| (None, Some(i), s.schedule.transfer_waited[i]));
    for (op, transfer, waited) in all_links.chain(sent) {
        let start =
            op.map_or_else(|| s.schedule.transfers[transfer.expect("one of both")].start, |u| s.start(u));
        match (waited, op, transfer) {
            (Waited::Nothing, ..) => prop_assert_eq!(start, 0),
            (Waited::Op(p), Some(u), _) => {
                prop_assert_eq!((s.finish(p), s.device(p)), (start, s.device(u)));
                prop_assert!(s.graph().inputs_with_ops(u).any(|(_, q)| q == p));
            }
            (Waited::Op(p), _, Some(i)) => {
                prop_assert_eq!(s.finish(p), start);
                prop_assert_eq!(p, s.graph().source(s.schedule.transfers[i].tensor));
            }
            (Waited::Transfer(i), Some(u), _) => {
                let x = s.schedule.transfers[i as usize];
                prop_assert_eq!((x.finish, x.dst), (start, s.device(u)));
                prop_assert!(s.graph().consumers(x.tensor).contains(&u));
            }
            (Waited::Device(p), Some(u), _) => {
                prop_assert_eq!((s.finish(p), s.device(p)), (start, s.device(u)));
            }
            (Waited::Channel(j), _, Some(i)) => {
                prop_assert_eq!(s.schedule.transfers[j as usize].finish, start);
                prop_assert!(s.share_a_channel(i, j as usize));
            }
            other => prop_assert!(false, "{other:?}"),
        }
    }
    Ok(())
}

fn check(case: &Case, options: Options) -> Result<(), TestCaseError> {
    let s = Seen::new(case, options);
    causes_come_first(&s)?;
    devices_work(&s)?;
    channels_work(&s)?;
    memory_adds_up(&s)?;
    blame_is_whole(&s)?;
    let least = bounds(&case.work, &case.cluster, &case.times).expect("countable");
    let clock = case.work.clock(&case.times, &case.cluster).expect("countable");
    prop_assert!(least.best <= clock.seconds(s.schedule.makespan), "{least:?}");
    prop_assert_eq!(Seen::new(case, options).schedule, s.schedule);
    Ok(())
}

proptest! {
    #![proptest_config(common::config(256))]

    #[test]
    fn every_policy_obeys_the_model(case in cases(14)) {
        for options in all_options(&FREE) {
            check(&case, options)?;
        }
    }

    #[test]
    fn a_limit_stops_what_is_not_below_it_and_nothing_else(case in cases(14)) {
        let simulator = Simulator::new(&case.work, &case.cluster, &case.times).expect("countable times");
        for options in all_options(&FREE) {
            let whole = case.run(options);
            for limit in [0, whole.makespan / 2, whole.makespan, whole.makespan + 1, Ticks::MAX] {
                let found = simulator.run_below(&case.placement, &case.priority, options, limit);
                let wanted = (whole.makespan < limit).then(|| whole.clone());
                prop_assert_eq!(found.expect("a valid placement"), wanted);
            }
        }
    }

    #[test]
    fn a_fixed_sequence_runs_as_given(case in cases(14)) {
        let case = Case { priority: case.topological_priority(), ..case };
        for options in all_options(&[Policy::Fixed]) {
            check(&case, options)?;
        }
    }

    #[test]
    fn a_fixed_sequence_runs_unless_ops_block_each_other(case in cases(10)) {
        let (g, n) = (&case.work.graph, case.work.n_ops());
        let key = |u: OpId| (case.priority[u.ix()], case.work.graph.index(u));
        let same_device = |a: OpId, b: OpId| case.placement[a.ix()] == case.placement[b.ix()];
        // `a` waits for `b`: it reads from it, or comes after it in the sequence.
        let waits = |a: OpId, b: OpId| {
            g.inputs_with_ops(a).any(|(_, p)| p == b) || (same_device(a, b) && key(b) < key(a))
        };
        let mut oracle = DiGraph::<(), ()>::new();
        (0..n).for_each(|_| { oracle.add_node(()); });
        for (a, b) in g.ops().flat_map(|a| g.ops().map(move |b| (a, b))).filter(|&(a, b)| waits(a, b)) {
            oracle.add_edge(NodeIndex::new(a.ix()), NodeIndex::new(b.ix()), ());
        }
        for options in all_options(&[Policy::Fixed]) {
            let simulator = Simulator::new(&case.work, &case.cluster, &case.times).unwrap();
            match simulator.run(&case.placement, &case.priority, options) {
                Ok(_) => prop_assert!(!is_cyclic_directed(&oracle)),
                Err(Error::Deadlock(blocked)) => {
                    let chain: Vec<OpId> = blocked.0.iter().map(|op| op.id).collect();
                    prop_assert!(chain.len() >= 3 && chain.first() == chain.last(), "{chain:?}");
                    for w in chain.windows(2) {
                        prop_assert!(waits(w[0], w[1]), "{:?} does not wait for {:?}: {chain:?}", w[0], w[1]);
                    }
                }
                Err(other) => prop_assert!(false, "{other}"),
            }
        }
    }

    #[test]
    fn more_channels_never_delay_a_fixed_sequence(case in cases_of(plain_works(12), 12)) {
        let case = Case { priority: case.topological_priority(), ..case };
        let makespan = |contention| {
            case.run(Options { policy: Policy::Fixed, contention, record_memory: false }).makespan
        };
        let free = makespan(None);
        prop_assert!(free <= makespan(Some(LinkOrder::Fifo)));
        prop_assert!(free <= makespan(Some(LinkOrder::Priority)));
    }
}

/// Unlike times, sizes and priorities, so that nothing happens at the same instant by chance.
fn without_ties(max_ops: usize) -> impl Strategy<Value = (Case, Vec<u32>)> {
    let odd = vec(1u64..1 << 30, 4 * max_ops);
    let shuffled = Just((0..max_ops as u32).collect::<Vec<_>>()).prop_shuffle();
    (cases_of(plain_works(max_ops), max_ops), odd, shuffled).prop_map(move |(mut case, odd, permutation)| {
        let (n, types) = (case.work.n_ops(), case.cluster.types().len());
        // The tensors in another order of size, as if drawn apart from the times.
        let columns: Vec<u64> = odd[..3 * max_ops].to_vec();
        let g = &case.work.graph;
        let bytes: Vec<u64> =
            g.tensors().map(|t| if g.is_control(t) { 0 } else { columns[g.key(t) as usize] }).collect();
        case.work.tensor_bytes = bytes;
        case.work.storages.clear();
        case.work.op_storages = vec![0; n + 1];
        case.work.tensor_storage.fill(loadmaster_core::ids::StorageId::NONE);
        let seconds = odd.iter().rev().cycle().take(n * types).map(|&t| t as f64 * 1e-9).collect();
        case.times = Times::new(n, types, seconds).expect("valid times");
        let mut kept: Vec<u32> = permutation.into_iter().filter(|&p| (p as usize) < n).collect();
        kept.truncate(n);
        case.priority = kept.iter().rev().map(|&p| p as i32).collect();
        (case, kept)
    })
}

/// The same case with op `u` called `permutation[u]`; tensors keep their ids.
fn renumber(case: &Case, permutation: &[u32]) -> Case {
    let (g, n, types) = (&case.work.graph, case.work.n_ops(), case.cluster.types().len());
    let new = |u: OpId| i64::from(permutation[u.ix()]);
    let mut old = vec![OpId(0); n];
    g.ops().for_each(|u| old[permutation[u.ix()] as usize] = u);
    let edges = g.ops().flat_map(|v| g.inputs_with_ops(v).map(move |(t, u)| (new(u), new(v), t)));
    let (mut src, mut dst, mut tensor) = (Vec::new(), Vec::new(), Vec::new());
    for (u, v, t) in edges {
        src.push(u);
        dst.push(v);
        tensor.push(if g.is_control(t) { -1 } else { i64::from(g.key(t)) });
    }
    let mut bytes = vec![0; 4 * n + src.len()];
    for t in g.tensors().filter(|&t| !g.is_control(t)) {
        bytes[g.key(t) as usize] = case.work.tensor_bytes[t.ix()];
    }
    let graph = Graph::new(n, &src, &dst, Some(&tensor)).expect("the same graph");
    let allowed: Vec<u64> = old.iter().map(|u| case.work.allowed[u.ix()]).collect();
    let columns = Columns { tensor_bytes: &bytes, allowed: &allowed, ..Columns::default() };
    let work = Workload::plain(graph, &columns).expect("valid");
    let times = old.iter().flat_map(|&u| (0..types).map(move |k| case.times.seconds(u, k))).collect();
    Case {
        work,
        cluster: case.cluster.clone(),
        times: Times::new(n, types, times).expect("valid times"),
        placement: old.iter().map(|u| case.placement[u.ix()]).collect(),
        priority: old.iter().map(|u| case.priority[u.ix()]).collect(),
    }
}

proptest! {
    #![proptest_config(common::config(256))]

    #[test]
    fn names_do_not_matter_where_nothing_ties((case, permutation) in without_ties(10)) {
        let other = renumber(&case, &permutation);
        for options in all_options(&[Policy::Priority]) {
            let (a, b) = (case.run(options), other.run(options));
            let moved: Vec<Ticks> = permutation.iter().map(|&p| b.start[p as usize]).collect();
            prop_assert_eq!(&a.start, &moved);
            prop_assert_eq!(a.makespan, b.makespan);
            prop_assert_eq!(a.channel_busy, b.channel_busy);
        }
    }

    #[test]
    fn the_largest_sizes_do_not_make_it_panic(
        case in cases(8),
        huge in vec(any::<bool>(), 64),
        by in prop_oneof![Just(u64::MAX), Just(1u64 << 63)],
    ) {
        let mut case = case;
        let mut huge = huge.into_iter().cycle();
        let mut spoil = |column: &mut [u64]| {
            column.iter_mut().filter(|_| huge.next() == Some(true)).for_each(|b| *b = by);
        };
        spoil(&mut case.work.tensor_bytes);
        spoil(&mut case.work.resident);
        spoil(&mut case.work.workspace);
        case.work.storages.iter_mut().filter(|s| s.bytes > 15).for_each(|s| s.bytes = by);
        for options in all_options(&[Policy::Priority]) {
            let s = case.run(options);
            let full = s.peak.iter().zip(case.cluster.devices()).any(|(&peak, d)| peak > d.memory);
            prop_assert_eq!(full, s.overflow.is_some());
        }
    }
}

// By hand. Links carry 1 byte per us.

fn fifo() -> Options {
    Options::default()
}

fn us_of(work: &Workload, cluster: &Cluster, times: &Times, s: &Schedule) -> (Vec<u64>, u64) {
    let us = tick(work, cluster, times);
    (s.start.iter().map(|t| t / us).collect(), s.makespan / us)
}

/// Start per op and makespan in microseconds, in order of priority by index.
fn by_hand(work: &Workload, cluster: &Cluster, time: &[u32], placement: &[u32]) -> (Vec<u64>, u64) {
    let times = micros(time);
    let priority: Vec<i32> = (0..time.len() as i32).collect();
    let s = run(work, cluster, &times, &on(placement), &priority, fifo());
    us_of(work, cluster, &times, &s)
}

#[test]
fn a_diamond_on_one_device_and_on_two() {
    // 0 -> {1, 2} -> 3; times 1, 5, 2, 3; tensors of 4, 1, 1 bytes, 2 us latency.
    let work = plain(4, &[(0, 1), (0, 2), (1, 3), (2, 3)], &[4, 1, 1]);
    let cluster = mesh(2, 2.0);
    assert_eq!(by_hand(&work, &cluster, &[1, 5, 2, 3], &[0; 4]), (vec![0, 1, 6, 8], 11));
    // 2 elsewhere: 0's tensor travels 1..7, 2 runs 7..9, comes back 9..12.
    assert_eq!(by_hand(&work, &cluster, &[1, 5, 2, 3], &[0, 0, 1, 0]), (vec![0, 1, 7, 12], 15));
}

#[test]
fn three_readers_on_one_remote_device_are_one_transfer() {
    let work = plain(4, &[(0, 1), (0, 2), (0, 3)], &[10]);
    let cluster = mesh(2, 1.0);
    let times = micros(&[1, 1, 1, 1]);
    let s = run(&work, &cluster, &times, &on(&[0, 1, 1, 1]), &[0; 4], fifo());
    assert_eq!((s.transfers.len(), s.bytes_moved), (1, 10));
    assert_eq!(us_of(&work, &cluster, &times, &s), (vec![0, 12, 13, 14], 15));
}

#[test]
fn two_tensors_on_one_channel_go_one_after_the_other() {
    // Op 0 makes tensors 0 (3 bytes) and 1 (5 bytes) at 1 us, for ops 1 and 2 elsewhere.
    let graph = Graph::new(3, &[0, 0], &[1, 2], Some(&[0, 1])).unwrap();
    let columns = Columns { tensor_bytes: &[3, 5], ..Columns::default() };
    let work = Workload::plain(graph, &columns).unwrap();
    let (cluster, times) = (mesh(2, 1.0), micros(&[1, 1, 1]));
    let at = on(&[0, 1, 1]);
    let start = |options, priority: &[i32]| {
        us_of(&work, &cluster, &times, &run(&work, &cluster, &times, &at, priority, options)).0
    };
    // Tensor 0 holds the channel 1..5, tensor 1 5..11.
    assert_eq!(start(fifo(), &[0, 1, 2]), [0, 5, 11]);
    let urgent = Options { contention: Some(LinkOrder::Priority), ..fifo() };
    // Op 2 is more urgent: tensor 1 1..7, tensor 0 7..11.
    assert_eq!(start(urgent, &[0, 2, 1]), [0, 11, 7]);
    let unlimited = Options { contention: None, ..fifo() };
    assert_eq!(start(unlimited, &[0, 1, 2]), [0, 5, 7]);
}

#[test]
fn two_hops_add_latencies_and_hold_both_channels() {
    // d0 - d1 - d2. 0 on d0 sends 4 bytes to 1 on d2: 1..(1 + 2 * 3 + 4) = 11. 2 on d1, done at 2,
    // sends 1 byte to 3 on d2 by the second of these channels: waits until 11, arrives at 15.
    let work = plain(4, &[(0, 1), (2, 3)], &[4, 0, 1, 0]);
    let cluster = line(3, 3.0);
    assert_eq!(by_hand(&work, &cluster, &[1, 1, 2, 1], &[0, 2, 1, 2]), (vec![0, 11, 0, 15], 16));
}

#[test]
fn a_one_port_nic_sends_or_receives_one_thing_at_a_time() {
    // 0 and 1 on d0 and d1, done at 1 and 2; both send 5 bytes to d2: 1..6, then 6..11.
    let work = plain(4, &[(0, 2), (1, 3)], &[5, 5]);
    assert_eq!(by_hand(&work, &one_port(3, 0.0), &[1, 2, 1, 1], &[0, 1, 2, 2]), (vec![0, 0, 6, 11], 12));
    // In a full mesh they overlap: 1..6 and 2..7.
    assert_eq!(by_hand(&work, &mesh(3, 0.0), &[1, 2, 1, 1], &[0, 1, 2, 2]), (vec![0, 0, 6, 7], 8));
    // Both from d0, to d1 and d2: the port of d0 is held 1..6 and 6..11.
    let work = plain(3, &[(0, 1), (0, 2)], &[5]);
    assert_eq!(by_hand(&work, &one_port(3, 0.0), &[1, 1, 1], &[0, 1, 2]), (vec![0, 6, 11], 12));
}

#[test]
fn a_bridge_is_shared_by_disjoint_pairs() {
    // d0 -> d1 and d2 -> d3, 5 bytes each, at 1 us.
    let work = plain(4, &[(0, 1), (2, 3)], &[5, 0, 5]);
    assert_eq!(by_hand(&work, &bridge(4, 0.0), &[1; 4], &[0, 1, 2, 3]), (vec![0, 6, 0, 11], 12));
    assert_eq!(by_hand(&work, &mesh(4, 0.0), &[1; 4], &[0, 1, 2, 3]), (vec![0, 6, 0, 6], 7));
    assert_eq!(by_hand(&work, &one_port(4, 0.0), &[1; 4], &[0, 1, 2, 3]), (vec![0, 6, 0, 6], 7));
}

#[test]
fn a_message_without_bytes_costs_latency_and_ops_may_cost_nothing() {
    // 0 -> 1 -> 2 by control edges across devices, 7 us each; op 1 takes no time.
    let graph = Graph::new(3, &[0, 1], &[1, 2], Some(&[-1, -1])).unwrap();
    let work = Workload::plain(graph, &Columns::default()).unwrap();
    assert_eq!(by_hand(&work, &mesh(2, 7.0), &[1, 0, 1], &[0, 1, 0]), (vec![0, 8, 15], 16));
    assert_eq!(by_hand(&work, &mesh(2, 0.0), &[1, 0, 1], &[0, 1, 0]), (vec![0, 1, 1], 2));
    assert_eq!(by_hand(&work, &mesh(2, 0.0), &[0, 0, 0], &[0, 1, 0]), (vec![0, 0, 0], 0));
}

#[test]
fn the_order_on_a_device_decides_what_overlaps() {
    // Pesto, Fig. 2: one placement, two orders. Device 0 runs a (2 us), b (3), c (4); a feeds d (8) on
    // device 1 by a transfer of 2 us; b and c feed nothing.
    let work = plain(4, &[(0, 3)], &[2]);
    let (cluster, times, at) = (mesh(2, 0.0), micros(&[2, 3, 4, 8]), on(&[0, 0, 0, 1]));
    let makespan = |priority: &[i32]| {
        us_of(&work, &cluster, &times, &run(&work, &cluster, &times, &at, priority, fifo())).1
    };
    // a 0..2, sent 2..4, d 4..12; b and c 2..9 meanwhile.
    assert_eq!(makespan(&[0, 1, 2, 3]), 12);
    // b first: b 0..3, a 3..5, sent 5..7, d 7..15: a quarter slower.
    assert_eq!(makespan(&[1, 0, 2, 3]), 15);
}

#[test]
fn k22_across_two_devices_sends_each_tensor_once() {
    // a0, a1 (1 us) on devices 0 and 1, b0, b1 (1 us) likewise; every a to every b, 3 bytes.
    let work = plain(4, &[(0, 2), (0, 3), (1, 2), (1, 3)], &[3, 3]);
    assert_eq!(by_hand(&work, &mesh(2, 1.0), &[1; 4], &[0, 1, 0, 1]), (vec![0, 0, 5, 5], 6));
    // Over one bridge the second waits: 1..5, 5..9.
    assert_eq!(by_hand(&work, &bridge(2, 1.0), &[1; 4], &[0, 1, 0, 1]), (vec![0, 0, 9, 5], 10));
}

#[test]
fn fifo_takes_what_was_ready_first_whatever_its_priority() {
    // 0 keeps device 0 busy to 5. 1 (device 1, 2 us) readies 2 at 2; 3 (device 1, 2..3) readies 4 at 3.
    let work = plain(5, &[(1, 2), (3, 4)], &[]);
    let (cluster, times) = (mesh(2, 0.0), micros(&[5, 2, 1, 1, 1]));
    let at = on(&[0, 1, 0, 1, 0]);
    let start = |policy| {
        let options = Options { policy, ..fifo() };
        us_of(&work, &cluster, &times, &run(&work, &cluster, &times, &at, &[0, 0, 9, 1, 1], options)).0
    };
    assert_eq!(start(Policy::Fifo), [0, 0, 5, 2, 6]);
    assert_eq!(start(Policy::Priority), [0, 0, 6, 2, 5]);
}

#[test]
fn sequences_that_block_each_other_are_named() {
    // On device 0 op 2 before op 0, on device 1 op 3 before op 1; 1 -> 2 and 0 -> 3.
    let work = plain(4, &[(1, 2), (0, 3)], &[]);
    let (cluster, times) = (mesh(2, 0.0), micros(&[1; 4]));
    let simulator = Simulator::new(&work, &cluster, &times).unwrap();
    let fixed = Options { policy: Policy::Fixed, ..fifo() };
    let at = on(&[0, 1, 0, 1]);
    let Err(Error::Deadlock(blocked)) = simulator.run(&at, &[1, 1, 0, 0], fixed) else {
        panic!("it cannot run")
    };
    let chain: Vec<OpId> = blocked.0.iter().map(|op| op.id).collect();
    assert_eq!(chain, ops(&[2, 1, 3, 0, 2]));
    assert!(simulator.run(&at, &[0, 0, 1, 1], fixed).is_ok());

    // Three ops on two devices: 0 waits for 1, 1 for 2, and 2 stands behind 0.
    let work = plain(3, &[(1, 0), (2, 1)], &[]);
    let times = micros(&[1; 3]);
    let simulator = Simulator::new(&work, &cluster, &times).unwrap();
    let Err(Error::Deadlock(blocked)) = simulator.run(&on(&[0, 1, 0]), &[0, 0, 1], fixed) else {
        panic!("it cannot run")
    };
    let chain: Vec<OpId> = blocked.0.iter().map(|op| op.id).collect();
    assert_eq!(chain, ops(&[0, 1, 2, 0]));
}

#[test]
fn the_chain_of_causes_of_a_schedule_by_hand() {
    // Device 0: 0 (2 us), then 1 (3 us); 0 and 1 send 4 bytes each to 2 on device 1 over one channel:
    // 2..6 and 6..10 (queued at 5). 2 runs 10..11.
    let work = plain(3, &[(0, 2), (1, 2)], &[4, 4]);
    let (cluster, times) = (mesh(2, 0.0), micros(&[2, 3, 1]));
    let s = run(&work, &cluster, &times, &on(&[0, 0, 1]), &[0, 1, 2], fifo());
    let us = tick(&work, &cluster, &times);
    let link = |doing, start: u64, finish: u64, waited| Blame {
        doing,
        start: start * us,
        finish: finish * us,
        waited,
    };
    let expected = [
        link(Doing::Running(OpId(2)), 10, 11, Waited::Transfer(1)),
        link(Doing::Moving(1), 6, 10, Waited::Channel(0)),
        link(Doing::Moving(0), 2, 6, Waited::Op(OpId(0))),
        link(Doing::Running(OpId(0)), 0, 2, Waited::Nothing),
    ];
    assert_eq!(s.blame(&work.graph), expected);
}

#[test]
fn memory_by_hand() {
    // 0 (2 us, 5 bytes out, workspace 3) on d0 feeds 1 on d0 (1 us) and 2 on d1. Resident: 10 on d0.
    // d0: 10 + 5 + 3 from 0, 15 from 2 (workspace freed), 10 from 7 (transfer 2..7 is the last use).
    // d1: 5 from 2 to 8.
    let graph = common::graph(3, &[(0, 1), (0, 2)]);
    let columns =
        Columns { tensor_bytes: &[5], resident: &[10, 0, 0], workspace: &[3, 0, 0], ..Columns::default() };
    let work = Workload::plain(graph, &columns).unwrap();
    let (mut cluster, times, at) = (mesh(2, 0.0), micros(&[2, 1, 1]), on(&[0, 0, 1]));
    let options = Options { record_memory: true, ..fifo() };
    let s = run(&work, &cluster, &times, &at, &[0; 3], options);
    let us = tick(&work, &cluster, &times);
    let samples: Vec<_> = s.memory.iter().map(|m| (m.time / us, m.device.0, m.bytes)).collect();
    assert_eq!(samples, [(0, 0, 10), (0, 1, 0), (0, 0, 18), (2, 0, 15), (2, 1, 5), (7, 0, 10), (8, 1, 0)]);
    assert_eq!(s.peak, [18, 5]);
    assert_eq!(work.static_per_device(&at, 2), [15, 0]);
    assert_eq!(s.overflow, None);

    let small = [common::device(0, "gpu", 17), common::device(1, "gpu", 1)];
    cluster =
        Cluster::new(small.to_vec(), &[common::link(0, 1, 0.0, &[]), common::link(1, 0, 0.0, &[])]).unwrap();
    let overflow = run(&work, &cluster, &times, &at, &[0; 3], options).overflow.expect("18 > 17");
    assert_eq!((overflow.device.0, overflow.time, overflow.op, overflow.over), (0, 0, Some(OpId(0)), 1));
    assert_eq!(overflow.alive.len(), 1);
}

#[test]
fn placements_and_columns_are_checked() {
    let columns = Columns { allowed: &[1, 2], ..Columns::default() };
    let work = Workload::plain(common::graph(2, &[(0, 1)]), &columns).unwrap();
    let types = [common::device(0, "a", 1), common::device(1, "b", 1)];
    let cluster =
        Cluster::new(types.to_vec(), &[common::link(0, 1, 0.0, &[]), common::link(1, 0, 0.0, &[])]).unwrap();
    let times = Times::new(2, 2, vec![1.0; 4]).unwrap();
    let simulator = Simulator::new(&work, &cluster, &times).unwrap();
    let error = |at: &[u32], priority: &[i32]| {
        simulator.run(&on(at), priority, fifo()).expect_err("a bad argument").to_string()
    };
    assert!(error(&[1, 1], &[0; 2]).contains("op 0 may not run on d1 (device type b)"));
    assert!(error(&[0, 2], &[0; 2]).contains("device 2 of 2"));
    assert!(error(&[0], &[0; 2]).contains("placement has 1 value"));
    assert!(error(&[0, 1], &[0]).contains("priority has 1 value"));
    assert!(Simulator::new(&work, &cluster, &micros(&[1, 1])).is_err());
    assert!(Times::new(2, 1, vec![1.0, f64::NAN]).is_err());
    assert!(Times::new(2, 1, vec![1.0]).is_err());
}

#[test]
fn times_on_forbidden_types_do_not_coarsen_the_clock() {
    // Where an op may not run it may as well take 30 years.
    let columns = Columns { allowed: &[1], ..Columns::default() };
    let work = Workload::plain(common::graph(1, &[]), &columns).unwrap();
    let types = [common::device(0, "a", 1), common::device(1, "b", 1)];
    let links = [common::link(0, 1, 0.0, &[]), common::link(1, 0, 0.0, &[])];
    let cluster = Cluster::new(types.to_vec(), &links).unwrap();
    let times = Times::new(1, 2, vec![1.4e-6, 1e9]).unwrap();
    let simulator = Simulator::new(&work, &cluster, &times).unwrap();
    let makespan = simulator.run(&on(&[0]), &[0], fifo()).unwrap().makespan;
    assert_eq!(simulator.clock().seconds(makespan), 1.4e-6);
}
