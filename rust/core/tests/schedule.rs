//! The list-scheduling engine: its schedules are valid, are what the simulator finds where the design says so,
//! and are what plain versions of the algorithms find.

use std::collections::{BTreeMap, BTreeSet};

use crate::common::{
    self, Case, cases_of, cases_on, device, graph, mesh, meshes, micros, on, ops, plain, plain_works, works,
};
use loadmaster_core::Error;
use loadmaster_core::clock::{Clock, Ticks};
use loadmaster_core::cluster::Cluster;
use loadmaster_core::free_memory::{Memory, OnOom, charge_to_leads};
use loadmaster_core::graph::Graph;
use loadmaster_core::ids::{DeviceId, OpId, TensorId};
use loadmaster_core::schedule::admission::{Admission, Lifetimes};
use loadmaster_core::schedule::append::append;
use loadmaster_core::schedule::dominant::dominant;
use loadmaster_core::schedule::earliest::earliest;
use loadmaster_core::schedule::linear::linear;
use loadmaster_core::schedule::list::{Choice, Limit, list};
use loadmaster_core::schedule::optimistic::optimistic_costs;
use loadmaster_core::schedule::order::by_priority;
use loadmaster_core::schedule::placed::Paths;
use loadmaster_core::schedule::queues::DELAY_WEIGHT;
use loadmaster_core::schedule::timeline::Timeline;
use loadmaster_core::schedule::{Engine, Scheduled};
use loadmaster_core::simulate::{LinkOrder, Options, Policy, Schedule};
use loadmaster_core::workload::{Columns, Lifetime, Times, Workload};
use proptest::collection::vec;
use proptest::prelude::*;

const PLENTY: [u64; 4] = [u64::MAX; 4];

/// How a problem counts memory.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Counted {
    Charged,
    Lifetimes,
    /// Lifetimes, unless memory is ample.
    IfItMatters,
}

/// Which list scheduler.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Rule {
    /// In order, earliest finish.
    List,
    /// The same, some ops pinned, finishes bent.
    Bent,
    /// Earliest start first.
    Earliest,
    /// The same with favourite children.
    Favourites,
}

const RULES: [Rule; 4] = [Rule::List, Rule::Bent, Rule::Earliest, Rule::Favourites];

/// A case with all that list schedulers are given.
#[derive(Clone, Debug)]
struct Problem {
    case: Case,
    clock: Clock,
    /// Ticks per op and device type.
    time: Vec<Ticks>,
    /// A topological order.
    order: Vec<OpId>,
    /// Any order.
    ties: Vec<OpId>,
    /// The device of the case for some ops, none for others.
    pinned: Vec<DeviceId>,
    bias: Vec<Ticks>,
    /// A consumer of each op that has one.
    favourite: Vec<OpId>,
    capacity: Vec<u64>,
    delay_weight: Ticks,
}

impl Problem {
    fn new(case: Case, capacity: &[u64]) -> Self {
        let (work, cluster) = (&case.work, &case.cluster);
        let clock = work.clock(&case.times, cluster).expect("countable");
        let time = case.times.ticks(clock);
        let mut ties: Vec<OpId> = work.graph.ops().collect();
        ties.sort_by_key(|u| case.priority[u.ix()]);
        // A set is pinned or not as a whole.
        let is_pinned = |u: OpId| work.set_of[u.ix()] % 3 == 0;
        let at = |u: OpId| if is_pinned(u) { case.placement[u.ix()] } else { DeviceId::NONE };
        // Whatever the sign.
        let priority: Vec<u64> =
            case.priority.iter().map(|p| (i64::from(*p) - i64::from(i32::MIN)) as u64).collect();
        let child = |u: OpId| work.graph.successors(u).iter().min().copied().unwrap_or(OpId::NONE);
        Self {
            clock,
            order: by_priority(&work.graph, &priority),
            ties,
            pinned: work.graph.ops().map(at).collect(),
            bias: time.iter().rev().copied().collect(),
            favourite: work.graph.ops().map(child).collect(),
            capacity: capacity[..cluster.n_devices()].to_vec(),
            delay_weight: DELAY_WEIGHT,
            time,
            case,
        }
    }

    fn run(&self, rule: Rule, counted: Counted, on_oom: OnOom, contention: bool) -> Result<Scheduled, Error> {
        let Case { work, cluster, .. } = &self.case;
        let charge = charge_to_leads(&work.lead, &work.static_bytes());
        let admission = match counted {
            Counted::Charged => {
                Admission::Charged(Memory::new(work, cluster, &work.lead, &charge, &self.capacity, on_oom))
            }
            Counted::Lifetimes => {
                Admission::Lifetimes(Lifetimes::new(work, cluster, &work.lead, &self.capacity, on_oom))
            }
            Counted::IfItMatters => {
                Admission::by_lifetimes(work, cluster, &work.lead, &self.capacity, on_oom)
            }
        };
        let mut engine =
            Engine::new(work, cluster, self.clock, &self.time, &work.lead, contention, admission);
        engine.weigh_delays(self.delay_weight);
        match rule {
            Rule::List => assert!(list(&mut engine, &self.order, Choice::default(), None)?),
            Rule::Bent => assert!(list(&mut engine, &self.order, self.bent(), None)?),
            Rule::Earliest => earliest(&mut engine, &self.ties, &[])?,
            Rule::Favourites => earliest(&mut engine, &self.ties, &self.favourite)?,
        }
        Ok(engine.into_scheduled())
    }

    /// With room for everything everywhere.
    fn roomy(&self, rule: Rule, contention: bool) -> Scheduled {
        self.run(rule, Counted::Lifetimes, OnOom::Fail, contention).expect("there is room")
    }

    /// Whether a list schedule goes on to its end below a limit, with room for everything.
    fn stays_below(&self, makespan: Ticks, contention: bool) -> bool {
        let (work, cluster) = (&self.case.work, &self.case.cluster);
        let admission = Admission::by_lifetimes(work, cluster, &work.lead, &self.capacity, OnOom::Fail);
        let mut engine =
            Engine::new(work, cluster, self.clock, &self.time, &work.lead, contention, admission);
        let limit = Limit::new(work, &self.time, cluster.types().len(), makespan);
        list(&mut engine, &self.order, Choice::default(), Some(&limit)).expect("there is room")
    }

    fn bent(&self) -> Choice<'_> {
        Choice { pinned: &self.pinned, bias: &self.bias }
    }

    fn length(&self, op: OpId, device: DeviceId) -> Ticks {
        self.time[op.ix() * self.case.cluster.types().len() + self.case.cluster.type_of(device)]
    }

    fn transfer(&self, t: TensorId, from: DeviceId, to: DeviceId) -> Ticks {
        let Case { work, cluster, .. } = &self.case;
        if from == to {
            return 0;
        }
        self.clock.ticks(cluster.transfer_seconds(from, to, work.tensor_bytes[t.ix()]))
    }

    /// What the simulator finds for a placement in exactly this sequence.
    fn simulated(&self, device: &[DeviceId], sequence: &[OpId], contention: Option<LinkOrder>) -> Schedule {
        let mut case = self.case.clone();
        case.placement = device.to_vec();
        sequence.iter().enumerate().for_each(|(i, u)| case.priority[u.ix()] = i as i32);
        case.run(Options { policy: Policy::Fixed, contention, record_memory: false })
    }

    /// Ops by start; ties by finish, then topologically.
    fn sequence(&self, s: &Scheduled) -> Vec<OpId> {
        let mut sequence = self.case.work.graph.topo().to_vec();
        sequence.sort_by_key(|u| (s.start[u.ix()], s.finish[u.ix()]));
        sequence
    }
}

fn roomy_problems(works: impl Strategy<Value = Workload>) -> impl Strategy<Value = Problem> {
    cases_of(works, 14).prop_map(|case| Problem::new(case, &PLENTY))
}

fn tight_problems(works: impl Strategy<Value = Workload>) -> impl Strategy<Value = Problem> {
    let memory = prop_oneof![3 => vec(0u64..200, 4), 1 => Just(PLENTY.to_vec())];
    (cases_of(works, 14), memory).prop_map(|(case, memory)| Problem::new(case, &memory))
}

/// Idle slots as a plain list, the last one without end.
#[derive(Clone, Debug)]
struct Idle(Vec<(Ticks, Ticks)>);

impl Default for Idle {
    fn default() -> Self {
        Self(vec![(0, Ticks::MAX)])
    }
}

impl Idle {
    fn earliest(&self, ready: Ticks, length: Ticks) -> Ticks {
        let fits = |&(from, to): &(Ticks, Ticks)| {
            let start = from.max(ready);
            (start <= to && to - start >= length).then_some(start)
        };
        self.0.iter().find_map(fits).expect("the last slot never ends")
    }

    fn open(&self) -> Ticks {
        self.0[self.0.len() - 1].0
    }

    /// Splits the slot that holds it, if one does: what takes no time may lie between two that touch.
    fn book(&mut self, start: Ticks, length: Ticks) {
        let finish = start + length;
        if let Some(i) = self.0.iter().position(|&(from, to)| from <= start && finish <= to) {
            let (from, to) = self.0.remove(i);
            let rest = [(from, start), (finish, to)];
            self.0.splice(i..i, rest.into_iter().filter(|(from, to)| from < to));
        }
    }
}

/// When a transfer queues: once its tensor is made, then by key and destination.
type Turn = (Ticks, u32, DeviceId);

/// A transfer: of what, from where, how long, and when it is wanted.
type Transfer = (TensorId, DeviceId, Ticks, Ticks);

/// The engine in plain words: everything is looked up again for every question. Memory is not counted.
struct PlainEngine<'a> {
    p: &'a Problem,
    contention: bool,
    devices: Vec<Idle>,
    transfers: BTreeMap<Turn, Transfer>,
    /// By how much ops that were scheduled are delayed.
    delay: Ticks,
    done: BTreeMap<OpId, (DeviceId, Ticks, Ticks)>,
    bound: BTreeMap<OpId, DeviceId>,
}

impl<'a> PlainEngine<'a> {
    fn new(p: &'a Problem, contention: bool) -> Self {
        let cluster = &p.case.cluster;
        Self {
            p,
            contention,
            devices: vec![Idle::default(); cluster.n_devices()],
            transfers: BTreeMap::new(),
            delay: 0,
            done: BTreeMap::new(),
            bound: BTreeMap::new(),
        }
    }

    /// What an op reads, as the transfers that would bring it to a device.
    fn inputs(&self, op: OpId, to: DeviceId) -> BTreeMap<Turn, Transfer> {
        let graph = &self.p.case.work.graph;
        let transfer = |t: TensorId| {
            let &(at, _, finish) = self.done.get(&graph.source(t))?;
            let made = if graph.is_home(t) { 0 } else { finish };
            Some(((made, graph.key(t), to), (t, at, self.p.transfer(t, at, to), Ticks::MAX)))
        };
        graph.inputs(op).iter().chain(graph.pulls(op)).filter_map(|&t| transfer(t)).collect()
    }

    /// When transfers end that queue first come, first served.
    fn served(&self, transfers: &BTreeMap<Turn, Transfer>) -> BTreeMap<Turn, Ticks> {
        let cluster = &self.p.case.cluster;
        let mut free = vec![0; cluster.n_channels()];
        let mut ends = BTreeMap::new();
        for (&turn, &(_, from, length, _)) in transfers {
            let route = cluster.route_channels(from, turn.2);
            let end = route.iter().map(|c| free[c.ix()]).fold(turn.0, Ticks::max) + length;
            route.iter().for_each(|c| free[c.ix()] = end);
            ends.insert(turn, end);
        }
        ends
    }

    /// When all that an op reads is on a device, and by how much that delays others.
    fn ready(&self, op: OpId, to: DeviceId) -> (Ticks, Ticks) {
        let inputs = self.inputs(op, to);
        let here = |transfer: &Transfer| transfer.1 == to;
        let made = inputs.iter().filter(|i| here(i.1)).map(|i| i.0.0);
        if !self.contention {
            let sent = inputs.iter().map(|(turn, transfer)| turn.0 + transfer.2);
            return (made.chain(sent).max().unwrap_or(0), 0);
        }
        let mut then = self.transfers.clone();
        for (&turn, &transfer) in inputs.iter().filter(|i| !here(i.1)) {
            then.entry(turn).or_insert(transfer);
        }
        let (before, after) = (self.served(&self.transfers), self.served(&then));
        let pushed = self.transfers.iter().filter(|&(turn, _)| after[turn] > before[turn]);
        let delay = pushed.map(|(turn, &(.., wanted))| after[turn].saturating_sub(wanted)).sum();
        let sent = inputs.keys().filter_map(|turn| after.get(turn).copied());
        (made.chain(sent).max().unwrap_or(0), delay)
    }

    fn start(&self, op: OpId, d: DeviceId, at_end: bool) -> Ticks {
        let (ready, _) = self.ready(op, d);
        let idle = &self.devices[d.ix()];
        if at_end { ready.max(idle.open()) } else { idle.earliest(ready, self.p.length(op, d)) }
    }

    /// The devices that an op may go to.
    fn choices(&self, op: OpId) -> Vec<DeviceId> {
        let bound = self.bound.get(&self.p.case.work.lead[op.ix()]);
        bound.map_or_else(|| self.p.case.allowed(op), |&d| vec![d])
    }

    fn schedule(&mut self, op: OpId, d: DeviceId, at_end: bool) {
        let (start, length) = (self.start(op, d, at_end), self.p.length(op, d));
        self.delay += self.ready(op, d).1;
        if self.contention {
            for (turn, transfer) in self.inputs(op, d).into_iter().filter(|(_, transfer)| transfer.1 != d) {
                let wanted = &mut self.transfers.entry(turn).or_insert(transfer).3;
                *wanted = start.min(*wanted);
            }
        }
        self.devices[d.ix()].book(start, length);
        self.bound.insert(self.p.case.work.lead[op.ix()], d);
        self.done.insert(op, (d, start, start + length));
    }

    fn list(&mut self, choice: Choice<'_>) -> Scheduled {
        let types = self.p.case.cluster.types().len();
        for &op in &self.p.order {
            let choices = self.choices(op);
            let pinned = choice.pinned.get(op.ix()).filter(|d| choices.contains(d));
            let finish = |&d: &DeviceId| {
                let column = op.ix() * types + self.p.case.cluster.type_of(d);
                let bias = choice.bias.get(column).copied().unwrap_or(0);
                let delay = self.ready(op, d).1 * self.p.delay_weight;
                (self.start(op, d, false) + self.p.length(op, d) + delay + bias, d)
            };
            let best = pinned.copied().or_else(|| choices.iter().copied().min_by_key(finish));
            self.schedule(op, best.expect("some device allows every op"), false);
        }
        self.to_scheduled()
    }

    /// Every ready op on every device asked again in every step.
    fn earliest(&mut self) -> Scheduled {
        let graph = &self.p.case.work.graph;
        let rank: BTreeMap<OpId, usize> = self.p.ties.iter().enumerate().map(|(r, &u)| (u, r)).collect();
        while self.done.len() < graph.n_ops() {
            let is_ready = |u: &OpId| {
                let made = graph.inputs(*u).iter().all(|&t| self.done.contains_key(&graph.source(t)));
                made && !self.done.contains_key(u)
            };
            let pairs =
                graph.ops().filter(is_ready).flat_map(|u| self.choices(u).into_iter().map(move |d| (u, d)));
            let first = pairs.min_by_key(|&(u, d)| (self.start(u, d, true), rank[&u], d));
            let (op, d) = first.expect("an acyclic graph has a ready op until all are done");
            self.schedule(op, d, true);
        }
        self.to_scheduled()
    }

    fn to_scheduled(&self) -> Scheduled {
        let slots = || self.done.values();
        Scheduled {
            device: slots().map(|s| s.0).collect(),
            start: slots().map(|s| s.1).collect(),
            finish: slots().map(|s| s.2).collect(),
        }
    }
}

// -- what the engine promises ----------------------------------------------------------------

/// Precedence, one op per device at a time, leads and types.
fn check_valid(p: &Problem, s: &Scheduled) -> Result<(), TestCaseError> {
    let Case { work, cluster, .. } = &p.case;
    work.check_placement(cluster, &s.device).expect("types and sets");
    for v in work.graph.ops() {
        let d = s.device[v.ix()];
        prop_assert_eq!(d, s.device[work.lead[v.ix()].ix()], "{:?} follows another op", v);
        prop_assert_eq!(s.finish[v.ix()] - s.start[v.ix()], p.length(v, d));
        for (t, u) in work.graph.inputs_with_ops(v) {
            let arrival = s.finish[u.ix()] + p.transfer(t, s.device[u.ix()], d);
            prop_assert!(s.start[v.ix()] >= arrival, "{v:?} starts before {t:?} of {u:?} is there");
        }
    }
    for d in cluster.device_ids() {
        let here = |u: &&OpId| s.device[u.ix()] == d;
        let sequence: Vec<OpId> = p.sequence(s).iter().filter(here).copied().collect();
        let apart = |w: &[OpId]| s.finish[w[0].ix()] <= s.start[w[1].ix()];
        prop_assert!(sequence.windows(2).all(apart), "two ops at once on {d:?}: {sequence:?} of {s:?}");
    }
    Ok(())
}

proptest! {
    #![proptest_config(common::config(256))]

    #[test]
    fn without_contention_the_simulator_finds_exactly_the_engines_schedule(
        p in roomy_problems(plain_works(14)),
    ) {
        for rule in RULES {
            let s = p.roomy(rule, false);
            let seen = p.simulated(&s.device, &p.sequence(&s), None);
            prop_assert_eq!(&seen.start, &s.start, "{:?}", rule);
            prop_assert_eq!(Some(seen.makespan), s.finish.iter().max().copied());
        }
    }

    #[test]
    fn with_contention_the_simulator_finds_the_engines_schedule_if_nothing_scheduled_was_delayed(
        p in roomy_problems(plain_works(14)),
    ) {
        let mut plain = PlainEngine::new(&p, true);
        let s = plain.list(Choice::default());
        prop_assert_eq!(&p.roomy(Rule::List, true), &s);
        if plain.delay == 0 {
            let seen = p.simulated(&s.device, &p.sequence(&s), Some(LinkOrder::Fifo));
            prop_assert_eq!((seen.start, seen.finish), (s.start, s.finish));
        }
    }

    #[test]
    fn appending_is_what_the_simulator_does_where_every_channel_serves_one_pair(
        case in cases_on(works(14), meshes(), 14),
    ) {
        let p = Problem::new(case, &PLENTY);
        let Case { work, cluster, placement, .. } = &p.case;
        let s = append(work, cluster, p.clock, &p.time, placement, &p.order, true);
        let seen = p.simulated(placement, &p.order, Some(LinkOrder::Fifo));
        prop_assert_eq!((seen.start, seen.finish), (s.start, s.finish));
    }

    #[test]
    fn appending_is_what_the_simulator_does_without_contention(p in roomy_problems(works(14))) {
        let Case { work, cluster, placement, .. } = &p.case;
        let s = append(work, cluster, p.clock, &p.time, placement, &p.order, false);
        let seen = p.simulated(placement, &p.order, None);
        prop_assert_eq!((seen.start, seen.finish), (s.start, s.finish));
    }

    #[test]
    fn schedules_are_valid_however_memory_and_channels_count(p in tight_problems(works(14))) {
        for rule in RULES {
            for counted in [Counted::Charged, Counted::Lifetimes] {
                for contention in [false, true] {
                    if let Ok(s) = p.run(rule, counted, OnOom::Fail, contention) {
                        check_valid(&p, &s)?;
                    }
                    check_valid(&p, &p.run(rule, counted, OnOom::BestEffort, contention).expect("best effort"))?;
                }
            }
        }
    }

    #[test]
    fn memory_that_cannot_run_out_need_not_be_counted(p in roomy_problems(works(14)), q in tight_problems(works(14))) {
        for problem in [p, q] {
            for rule in RULES {
                for contention in [false, true] {
                    let run = |counted| problem.run(rule, counted, OnOom::BestEffort, contention);
                    prop_assert_eq!(run(Counted::IfItMatters).ok(), run(Counted::Lifetimes).ok());
                }
            }
        }
    }

    #[test]
    fn ops_go_where_they_are_pinned_if_there_is_room(p in roomy_problems(works(14))) {
        let lead = &p.case.work.lead;
        for contention in [false, true] {
            let s = p.roomy(Rule::Bent, contention);
            // Of ops that go together the first in the order decides.
            let mut decided = BTreeSet::new();
            for u in p.order.iter().filter(|u| decided.insert(lead[u.ix()])) {
                let pinned = p.pinned[u.ix()];
                prop_assert!(pinned.is_none() || s.device[u.ix()] == pinned);
            }
        }
    }

    #[test]
    fn charged_bytes_never_exceed_capacity_or_the_error_says_by_how_much(p in tight_problems(works(14))) {
        let Case { work, cluster, .. } = &p.case;
        let bytes = work.static_bytes();
        let charge = charge_to_leads(&work.lead, &bytes);
        for rule in RULES {
            match p.run(rule, Counted::Charged, OnOom::Fail, true) {
                Ok(s) => {
                    let mut used = vec![0; p.capacity.len()];
                    s.device.iter().zip(&bytes).for_each(|(d, b)| used[d.ix()] += b);
                    prop_assert!(used.iter().zip(&p.capacity).all(|(u, c)| u <= c), "{used:?}");
                }
                Err(Error::DoesNotFit { op, members, needed, free, device_id, .. }) => {
                    prop_assert!(needed > free && free <= p.capacity[device_id.ix()]);
                    prop_assert_eq!(needed, charge[op.id.ix()]);
                    prop_assert_eq!(members, work.lead.iter().filter(|&&l| l == op.id).count());
                    prop_assert!(work.allows(op.id, cluster, device_id));
                }
                Err(other) => prop_assert!(false, "{other}"),
            }
        }
    }

    /// Counted from scratch after every op; ops that follow another are not asked whether they fit.
    #[test]
    fn an_op_that_may_choose_has_room_for_all_that_lives_then(p in tight_problems(plain_works(14))) {
        for rule in [Rule::List, Rule::Bent] {
            let Ok(s) = p.run(rule, Counted::Lifetimes, OnOom::Fail, true) else { continue };
            let mut placed = Vec::new();
            for &op in &p.order {
                let is_free = placed.iter().all(|&u: &OpId| p.case.work.lead[u.ix()] != p.case.work.lead[op.ix()]);
                placed.push(op);
                if is_free {
                    let d = s.device[op.ix()];
                    let held = held_by(&p, &s.device, &placed, d);
                    prop_assert!(held <= p.capacity[d.ix()], "{op:?}: {held} of {:?}", p.capacity);
                }
            }
        }
    }

    #[test]
    fn an_op_that_fits_nowhere_needs_more_than_is_free(p in tight_problems(works(14))) {
        for rule in RULES {
            match p.run(rule, Counted::Lifetimes, OnOom::Fail, true) {
                Ok(_) => {}
                Err(Error::DoesNotFit { op, needed, free, device_id, .. }) => {
                    prop_assert!(needed > free && free <= p.capacity[device_id.ix()]);
                    prop_assert!(p.case.work.allows(op.id, &p.case.cluster, device_id));
                }
                Err(other) => prop_assert!(false, "{other}"),
            }
        }
    }

    // -- against plain versions --------------------------------------------------------------

    #[test]
    fn list_scheduling_is_what_a_plain_version_finds(
        mut p in roomy_problems(works(14)),
        delay_weight in 0..2 * DELAY_WEIGHT + 1,
    ) {
        p.delay_weight = delay_weight;
        for contention in [false, true] {
            let plain = || PlainEngine::new(&p, contention);
            prop_assert_eq!(p.roomy(Rule::List, contention), plain().list(Choice::default()));
            prop_assert_eq!(p.roomy(Rule::Bent, contention), plain().list(p.bent()));
        }
    }

    #[test]
    fn a_limit_breaks_off_the_schedules_that_are_not_below_it_and_no_others(
        p in roomy_problems(works(14)),
        share in 0.0..1.0,
    ) {
        for contention in [false, true] {
            let whole = p.roomy(Rule::List, contention).finish.into_iter().max().unwrap_or(0);
            for limit in [(whole as f64 * share) as Ticks, whole, whole + 1] {
                prop_assert_eq!(p.stays_below(limit, contention), whole < limit || p.order.is_empty());
            }
        }
    }

    #[test]
    fn earliest_first_is_what_asking_every_pair_again_finds(case in cases_of(plain_works(40), 40)) {
        let p = Problem::new(case, &PLENTY);
        prop_assert_eq!(p.roomy(Rule::Earliest, false), PlainEngine::new(&p, false).earliest());
    }

    #[test]
    fn timelines_are_lists_of_idle_slots(
        bookings in vec((0u64..600, 0u64..9), 0..400),
        horizon in prop_oneof![Just(10u64), Just(80), Just(600)],
    ) {
        let (mut timeline, mut plain) = (Timeline::default(), Idle::default());
        for (ready, length) in bookings {
            let start = timeline.earliest(ready % horizon, length);
            prop_assert_eq!(start, plain.earliest(ready % horizon, length));
            timeline.book(start, length);
            plain.book(start, length);
            prop_assert_eq!(timeline.open(), plain.open());
        }
    }

    #[test]
    fn orders_by_priority_always_take_the_ready_op_of_highest_priority(
        work in plain_works(14),
        priority in vec(0u64..6, 14),
    ) {
        let graph = &work.graph;
        let mut left: BTreeSet<OpId> = graph.ops().collect();
        for u in by_priority(graph, &priority[..graph.n_ops()]) {
            let is_ready = |v: &&OpId| graph.inputs_with_ops(**v).all(|(_, from)| !left.contains(&from));
            let best = left.iter().filter(is_ready).max_by_key(|v| (priority[v.ix()], std::cmp::Reverse(**v)));
            prop_assert_eq!(best, Some(&u));
            left.remove(&u);
        }
        prop_assert!(left.is_empty());
    }

    #[test]
    fn optimistic_costs_are_the_recursion_of_the_paper(
        work in plain_works(9),
        n_types in 1usize..4,
        times in vec((0u64..9, any::<bool>()), 27),
        tensor_time in vec(0u64..9, 27),
    ) {
        let mut work = work;
        // Every op may run on the first type, or on more.
        for (u, mask) in work.allowed.iter_mut().enumerate() {
            *mask = (0..n_types).filter(|k| *k == u % n_types || times[u * 3 + k].1).map(|k| 1 << k).sum();
        }
        let time: Vec<Ticks> =
            work.graph.ops().flat_map(|u| (0..n_types).map(move |k| (u, k))).map(|(u, k)| times[u.ix() * 3 + k].0).collect();
        let paper = Recursion { work: &work, n_types, time: &time, tensor_time: &tensor_time };
        let table = optimistic_costs(&work, n_types, &time, &tensor_time);
        for u in work.graph.ops() {
            for k in 0..n_types {
                prop_assert_eq!(table[u.ix() * n_types + k], paper.cost(u, k));
            }
        }
    }

    #[test]
    fn levels_and_the_critical_path_are_those_of_all_paths(p in roomy_problems(plain_works(9))) {
        let Case { work, cluster, placement, .. } = &p.case;
        let found = Paths::placed(work, cluster, p.clock, &p.time, placement);
        let graph = &work.graph;
        let op_time = |u: OpId| p.length(u, placement[u.ix()]);
        let transfer = |t, v: OpId| p.transfer(t, placement[graph.source(t).ix()], placement[v.ix()]);
        check_paths(graph, &found, op_time, transfer)?;
        let flat: Vec<Ticks> = graph.ops().map(|u| p.time[u.ix() * cluster.types().len()]).collect();
        let bytes = |t: TensorId, _| work.tensor_bytes[t.ix()];
        check_paths(graph, &Paths::new(graph, &flat, bytes), |u| flat[u.ix()], bytes)?;
    }

    #[test]
    fn linear_clusters_are_the_longest_paths_of_what_is_left(p in roomy_problems(plain_works(10))) {
        let (graph, op_time, tensor_time) = p.flat();
        let group = linear(graph, &op_time, tensor_time);
        prop_assert_eq!(group.len(), graph.n_ops());
        let mut left: BTreeSet<OpId> = graph.ops().collect();
        for g in 0..=*group.iter().max().expect("an op") {
            let paths = all_paths(graph, &|u| op_time[u.ix()], &|t, _| tensor_time[t.ix()], &left);
            let longest = paths.iter().map(|path| path.1).max();
            let members: Vec<OpId> = graph.topo().iter().copied().filter(|u| group[u.ix()] == g).collect();
            let taken = paths.iter().filter(|(path, _)| *path == members).map(|path| path.1).max();
            prop_assert_eq!(taken, longest, "group {} is {:?}", g, members);
            left.retain(|u| group[u.ix()] != g);
        }
        prop_assert!(left.is_empty());
    }

    #[test]
    fn dominant_sequences_are_never_longer_than_all_ops_apart(p in roomy_problems(plain_works(7))) {
        let (graph, op_time, tensor_time) = p.flat();
        let group = dominant(graph, &op_time, tensor_time);
        let count = group.iter().collect::<BTreeSet<_>>().len() as u32;
        prop_assert_eq!(group.iter().max(), Some(&(count - 1)), "groups are numbered without gaps");
        let apart = Paths::new(graph, &op_time, |t, _| tensor_time[t.ix()]).bottom;
        let best = shortest(graph, &op_time, tensor_time, &group, &mut Vec::new());
        prop_assert!(best <= *apart.iter().max().expect("an op"), "{group:?} takes {best}");
    }
}

impl Problem {
    /// The graph with one time per op and the bytes of a tensor for its time.
    fn flat(&self) -> (&Graph, Vec<Ticks>, &[u64]) {
        let Case { work, cluster, .. } = &self.case;
        let us = self.clock.ticks(common::US);
        let first = work.graph.ops().map(|u| self.time[u.ix() * cluster.types().len()] / us);
        (&work.graph, first.collect(), &work.tensor_bytes)
    }
}

/// Bytes on a device while the last of `placed` runs: residents of all that goes with a placed op, and
/// storages and copies that are still to be read, by this op or later.
fn held_by(p: &Problem, device: &[DeviceId], placed: &[OpId], d: DeviceId) -> u64 {
    let work = &p.case.work;
    let running = placed[placed.len() - 1];
    let is_placed = |u: OpId| placed.contains(&u);
    let mut held = work.workspace[running.ix()];
    for u in work.graph.ops() {
        let with_it = placed.iter().any(|v| work.lead[v.ix()] == work.lead[u.ix()] && device[v.ix()] == d);
        held += if with_it { work.resident[u.ix()] } else { 0 };
    }
    let awaited = |t: TensorId| work.graph.consumers(t).iter().any(|&c| !is_placed(c) || c == running);
    for (s, storage) in work.storages.iter().enumerate().filter(|(_, s)| is_placed(s.op)) {
        let mut tensors = work.graph.tensors().filter(|t| work.tensor_storage[t.ix()].0 == s as u32);
        let lives = storage.op == running || storage.lifetime == Lifetime::UntilEnd || tensors.any(awaited);
        held += if lives && device[storage.op.ix()] == d { storage.bytes } else { 0 };
    }
    for t in work.graph.tensors().filter(|&t| device[work.graph.source(t).ix()] != d && awaited(t)) {
        let is_copied = work.graph.consumers(t).iter().any(|&c| is_placed(c) && device[c.ix()] == d);
        held += if is_copied { work.tensor_bytes[t.ix()] } else { 0 };
    }
    held
}

/// PEFT's eq. (1), op by op.
struct Recursion<'a> {
    work: &'a Workload,
    n_types: usize,
    time: &'a [Ticks],
    tensor_time: &'a [Ticks],
}

impl Recursion<'_> {
    fn cost(&self, u: OpId, k: usize) -> Ticks {
        let graph = &self.work.graph;
        let children = graph.outputs(u).flat_map(|t| graph.consumers(t).iter().map(move |&v| (t, v)));
        children
            .map(|(t, v)| {
                let types = (0..self.n_types).filter(|other| self.work.allowed[v.ix()] >> other & 1 == 1);
                let on = |other| {
                    let sent = if other == k { 0 } else { self.tensor_time[t.ix()] };
                    self.cost(v, other) + self.time[v.ix() * self.n_types + other] + sent
                };
                types.map(on).min().expect("an op may run somewhere")
            })
            .max()
            .unwrap_or(0)
    }
}

type Weigh<'a> = &'a dyn Fn(OpId) -> Ticks;
type Send<'a> = &'a dyn Fn(TensorId, OpId) -> Ticks;

/// Every path among some ops that ends where none of them follows, with its length.
fn all_paths(
    graph: &Graph,
    op_time: Weigh,
    transfer: Send,
    among: &BTreeSet<OpId>,
) -> Vec<(Vec<OpId>, Ticks)> {
    among.iter().flat_map(|&u| paths_from(graph, op_time, transfer, among, u)).collect()
}

fn paths_from(
    graph: &Graph,
    op_time: Weigh,
    transfer: Send,
    among: &BTreeSet<OpId>,
    u: OpId,
) -> Vec<(Vec<OpId>, Ticks)> {
    let mut paths = Vec::new();
    for t in graph.outputs(u) {
        for &v in graph.consumers(t).iter().filter(|v| among.contains(v)) {
            for (mut path, length) in paths_from(graph, op_time, transfer, among, v) {
                path.insert(0, u);
                paths.push((path, op_time(u) + transfer(t, v) + length));
            }
        }
    }
    if paths.is_empty() { vec![(vec![u], op_time(u))] } else { paths }
}

fn check_paths(
    graph: &Graph,
    found: &Paths,
    op_time: impl Fn(OpId) -> Ticks,
    transfer: impl Fn(TensorId, OpId) -> Ticks,
) -> Result<(), TestCaseError> {
    let paths = all_paths(graph, &op_time, &transfer, &graph.ops().collect());
    for u in graph.ops() {
        let longest = paths.iter().filter(|(path, _)| path[0] == u).map(|path| path.1).max();
        prop_assert_eq!(Some(found.bottom[u.ix()]), longest);
    }
    let from_source = paths.iter().filter(|(path, _)| graph.in_degree(path[0]) == 0);
    let first = from_source.min_by_key(|(path, length)| (std::cmp::Reverse(*length), path));
    prop_assert_eq!(first.map(|(path, _)| path), Some(&found.critical));
    Ok(())
}

/// The shortest schedule in which every group has a processor of its own, over all topological orders.
fn shortest(
    graph: &Graph,
    op_time: &[Ticks],
    tensor_time: &[Ticks],
    group: &[u32],
    order: &mut Vec<OpId>,
) -> Ticks {
    if order.len() == graph.n_ops() {
        let mut finish = vec![0; graph.n_ops()];
        let mut end = vec![0; graph.n_ops()];
        for &v in order.iter() {
            let g = group[v.ix()] as usize;
            let arrival = |(t, u): (TensorId, OpId)| {
                finish[u.ix()] + if group[u.ix()] == group[v.ix()] { 0 } else { tensor_time[t.ix()] }
            };
            let start = graph.inputs_with_ops(v).map(arrival).fold(end[g], Ticks::max);
            finish[v.ix()] = start + op_time[v.ix()];
            end[g] = finish[v.ix()];
        }
        return finish.into_iter().max().expect("an op");
    }
    let next: Vec<OpId> = graph
        .ops()
        .filter(|u| !order.contains(u) && graph.inputs_with_ops(*u).all(|(_, from)| order.contains(&from)))
        .collect();
    let mut best = Ticks::MAX;
    for u in next {
        order.push(u);
        best = best.min(shortest(graph, op_time, tensor_time, group, order));
        order.pop();
    }
    best
}

// -- by hand ---------------------------------------------------------------------------------

/// A list schedule in microseconds, memory by lifetimes.
fn listed(
    work: &Workload,
    cluster: &Cluster,
    times: &Times,
    order: &[u32],
    capacity: &[u64],
    on_oom: OnOom,
) -> Result<(Vec<DeviceId>, Vec<u64>), Error> {
    let clock = work.clock(times, cluster)?;
    let time = times.ticks(clock);
    let admission = Admission::Lifetimes(Lifetimes::new(work, cluster, &work.lead, capacity, on_oom));
    let mut engine = Engine::new(work, cluster, clock, &time, &work.lead, true, admission);
    list(&mut engine, &ops(order), Choice::default(), None)?;
    let s = engine.into_scheduled();
    let us = clock.ticks(common::US);
    Ok((s.device, s.start.iter().map(|t| t / us).collect()))
}

/// Places ops in the order of their ids, 1 us each, by lifetimes.
fn fitted(work: &Workload, capacity: &[u64]) -> Result<Vec<DeviceId>, Error> {
    let n = work.n_ops();
    let order: Vec<u32> = (0..n as u32).collect();
    let placed =
        listed(work, &mesh(capacity.len(), 0.0), &micros(&vec![1; n]), &order, capacity, OnOom::Fail);
    placed.map(|(device, _)| device)
}

/// The bytes needed and free of an error.
fn short(result: Result<Vec<DeviceId>, Error>) -> (u32, u64, u64, u32) {
    match result {
        Err(Error::DoesNotFit { op, needed, free, device_id, .. }) => (op.id.0, needed, free, device_id.0),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_tensor_is_free_again_when_its_last_reader_is_placed() {
    // 6 bytes from 0 to 1, 6 from 1 to 2, 6 from 2 to 3: two at a time.
    let chain = plain(4, &[(0, 1), (1, 2), (2, 3)], &[6, 6, 6]);
    assert_eq!(fitted(&chain, &[12]).unwrap(), on(&[0; 4]));
    assert_eq!(short(fitted(&chain, &[11])), (1, 6, 5, 0));
    // Read by 2 as well, the first one stays: three at a time.
    let kept = plain(4, &[(0, 1), (0, 2), (1, 2), (2, 3)], &[6, 6, 6]);
    assert_eq!(fitted(&kept, &[18]).unwrap(), on(&[0; 4]));
    assert_eq!(short(fitted(&kept, &[17])), (2, 6, 5, 0));
}

#[test]
fn a_copy_takes_room_where_it_goes_until_its_last_reader_there_is_placed() {
    let chain = plain(3, &[(0, 1), (1, 2)], &[6, 6]);
    // 1 has no room beside its input; elsewhere it needs 6 for the copy and 6 for its output, and then 2 stays
    // with it, the copy gone.
    assert_eq!(fitted(&chain, &[11, 12]).unwrap(), on(&[0, 1, 1]));
    // 5 free where its input is, 11 where it must be copied: 1 short either way, and the first is named.
    assert_eq!(short(fitted(&chain, &[11, 11])), (1, 6, 5, 0));
    assert_eq!(short(fitted(&chain, &[10, 11])), (1, 12, 11, 1));
    // Two readers share a copy. 1 and 2 need 3 each besides, 0 has no room left.
    let columns = Columns { tensor_bytes: &[6], resident: &[0, 3, 3], ..Columns::default() };
    let fork = Workload::plain(graph(3, &[(0, 1), (0, 2)]), &columns).unwrap();
    assert_eq!(fitted(&fork, &[6, 12]).unwrap(), on(&[0, 1, 1]));
    // 3 + 6 of 11 taken by 1; 2 finds the copy there.
    assert_eq!(short(fitted(&fork, &[6, 11])), (2, 3, 2, 1));
}

#[test]
fn outputs_that_nobody_reads_stay_if_they_are_the_graphs_and_go_if_not() {
    let columns = Columns { output_bytes: &[5, 5], ..Columns::default() };
    let results = Workload::plain(graph(2, &[]), &columns).unwrap();
    assert_eq!(fitted(&results, &[10]).unwrap(), on(&[0, 0]));
    assert_eq!(short(fitted(&results, &[9])), (1, 5, 4, 0));
    // 5 of the 8 bytes that 0 makes are read by nobody, though 3 are: while 1 runs, only 3 + 5 are there.
    let columns = Columns { tensor_bytes: &[3], output_bytes: &[8, 5], ..Columns::default() };
    let spilled = Workload::plain(graph(2, &[(0, 1)]), &columns).unwrap();
    assert_eq!(fitted(&spilled, &[8]).unwrap(), on(&[0, 0]));
    assert_eq!(short(fitted(&spilled, &[7])), (0, 8, 7, 0));
}

#[test]
fn workspace_counts_while_its_op_runs_and_residents_from_the_start() {
    let columns = Columns { workspace: &[5, 5], resident: &[2, 3], ..Columns::default() };
    let work = Workload::plain(graph(2, &[]), &columns).unwrap();
    assert_eq!(fitted(&work, &[10]).unwrap(), on(&[0, 0]));
    assert_eq!(short(fitted(&work, &[9])), (1, 8, 7, 0));
}

#[test]
fn colocated_ops_bring_the_residents_of_their_whole_set() {
    let columns = Columns { resident: &[4, 1, 4], colocation: &[0, -1, 0], ..Columns::default() };
    let work = Workload::plain(graph(3, &[]), &columns).unwrap();
    assert_eq!(fitted(&work, &[8, 1]).unwrap(), on(&[0, 1, 0]));
    let error = fitted(&work, &[7, 7]).expect_err("8 > 7");
    assert_eq!(short(Err(error.clone())), (0, 8, 7, 0));
    assert!(error.to_string().starts_with("op 0, with the 1 op after it, needs 8 bytes"), "{error}");
}

#[test]
fn best_effort_goes_where_least_is_missing() {
    let columns = Columns { resident: &[9, 9, 9], ..Columns::default() };
    let work = Workload::plain(graph(3, &[]), &columns).unwrap();
    let (cluster, times) = (mesh(2, 0.0), micros(&[1; 3]));
    let place = |capacity: &[u64], on_oom| listed(&work, &cluster, &times, &[0, 1, 2], capacity, on_oom);
    assert_eq!(short(place(&[4, 5], OnOom::Fail).map(|p| p.0)), (0, 9, 5, 1));
    // 5 bytes free are the most; then 4; then both are full.
    assert_eq!(place(&[4, 5], OnOom::BestEffort).unwrap().0, on(&[1, 0, 0]));
}

#[test]
fn an_op_allowed_nowhere_is_named() {
    let columns = Columns { allowed: &[1, 1 << 5], ..Columns::default() };
    let work = Workload::plain(graph(2, &[]), &columns).unwrap();
    let error = fitted(&work, &[9]).expect_err("no device of that type").to_string();
    assert_eq!(error, "op 1 is allowed on no device of this cluster");
}

#[test]
fn a_transfer_waits_for_its_channel_and_an_op_for_its_transfer() {
    // 0 (1 us) sends 4 bytes to 1 and 5 other bytes to 2; both cost 9 us, 1 us where 0 cannot be.
    let work = {
        let (src, dst, tensor) = ([0, 0], [1, 2], [0, 1]);
        let graph = Graph::new(3, &src, &dst, Some(&tensor)).unwrap();
        let columns = Columns { tensor_bytes: &[4, 5], allowed: &[1, 2, 2], ..Columns::default() };
        Workload::plain(graph, &columns).unwrap()
    };
    let devices = vec![device(0, "a", 0), device(1, "b", 0), device(2, "b", 0)];
    let link = |a, b, ports: &[&str]| {
        common::link(a, b, 0.0, &ports.iter().map(ToString::to_string).collect::<Vec<_>>())
    };
    let times = Times::new(3, 2, [1, 1, 9, 9, 9, 9].map(|t| f64::from(t) * common::US).to_vec()).unwrap();
    let starts = |ports: [&[&str]; 2]| {
        let links: Vec<_> = common::pairs(3).map(|(a, b)| link(a, b, ports[usize::from(a == 0)])).collect();
        let cluster = Cluster::new(devices.clone(), &links).unwrap();
        listed(&work, &cluster, &times, &[0, 1, 2], &[u64::MAX; 3], OnOom::Fail).unwrap().1
    };
    // A channel per pair: 1 + 4 and 1 + 5. One port for all that device 0 sends: 5 more for the second.
    assert_eq!(starts([&[], &[]]), [0, 5, 6]);
    assert_eq!(starts([&[], &["port"]]), [0, 5, 10]);
}

#[test]
fn ops_of_no_time_between_two_that_touch_leave_the_device_as_it_was() {
    // Bookings 0..5, 5..20, 20..25, 30..35; an op of no time at 5.
    let mut device = Timeline::default();
    for (start, length) in [(0, 5), (20, 5), (30, 5), (5, 15), (5, 0)] {
        device.book(start, length);
    }
    assert_eq!(device.earliest(0, 5), 25);
    assert_eq!(device.earliest(0, 6), 35);
}

/// ETF with favourites: devices and starts in microseconds.
fn favoured(filler: u32, favourite: &[OpId]) -> (Vec<DeviceId>, Vec<u64>) {
    // 0 (2 us, 10 bytes) and 1 (3 us, 1 byte) feed 2 (1 us); 3 is apart and comes last of equals.
    let work = plain(4, &[(0, 2), (1, 2)], &[10, 1]);
    let (cluster, times) = (mesh(2, 0.0), micros(&[2, 3, 1, filler]));
    let clock = work.clock(&times, &cluster).unwrap();
    let time = times.ticks(clock);
    let admission =
        Admission::Lifetimes(Lifetimes::new(&work, &cluster, &work.lead, &[u64::MAX; 2], OnOom::Fail));
    let mut engine = Engine::new(&work, &cluster, clock, &time, &work.lead, false, admission);
    earliest(&mut engine, &ops(&[0, 1, 2, 3]), favourite).unwrap();
    let s = engine.into_scheduled();
    let us = clock.ticks(common::US);
    (s.device, s.start.iter().map(|t| t / us).collect())
}

#[test]
fn a_device_waits_for_a_favourite_child_that_is_about_to_be_ready() {
    let child = [OpId(2), OpId::NONE, OpId::NONE, OpId::NONE];
    // 0 runs on device 0 until 2, 1 on device 1 until 3. 2 could start at 4 here, at 12 there.
    // Without favourites 3 starts at 2 here, which holds 2 up until 12.
    assert_eq!(favoured(10, &[]), (on(&[0, 1, 0, 0]), vec![0, 0, 12, 2]));
    // Device 0 waits: 3 starts at 3 there, and then 2 at 4 here.
    assert_eq!(favoured(10, &child), (on(&[0, 1, 0, 1]), vec![0, 0, 4, 3]));
    // 3 is done by the time 2's last input is here: nothing to wait for.
    assert_eq!(favoured(2, &child), (on(&[0, 1, 0, 0]), vec![0, 0, 4, 2]));
}

#[test]
fn linear_clustering_takes_paths_out_by_length() {
    // Two chains, 0 -> 1 -> 2 and 3 -> 4 -> 5, crossed by 1 -> 5 and 3 -> 2. Times 4 4 4 / 3 3 9, 2 per tensor.
    let graph = graph(6, &[(0, 1), (1, 2), (3, 4), (4, 5), (1, 5), (3, 2)]);
    // Longest: 0 1 5 at 4 + 2 + 4 + 2 + 9 = 21. Left: 3 -> 4 (8), 3 -> 2 (9); then 4.
    assert_eq!(linear(&graph, &[4, 4, 4, 3, 3, 9], &[2; 6]), [0, 0, 1, 1, 2, 0]);
}

#[test]
fn dominant_sequences_zero_the_edges_that_hold_ops_up() {
    // Yang and Gerasoulis' condition by hand: 0 (1) feeds 1 (3) and 2 (2), both feed 3 (1); every tensor 4.
    let graph = graph(4, &[(0, 1), (0, 2), (1, 3), (2, 3)]);
    // 0 .. 1; 1 joins it at 1 (not 5), done at 4; 2 would start at 4 there, at 5 apart: joins; 3 at 6.
    assert_eq!(dominant(&graph, &[1, 3, 2, 1], &[4; 4]), [0, 0, 0, 0]);
    // With 7 us for 1, 2 starts at 5 apart rather than at 8; 3 waits for 2 until 11 with 1, until 12 with 2.
    assert_eq!(dominant(&graph, &[1, 7, 2, 1], &[4; 4]), [0, 0, 1, 0]);
}
