//! Placements obey types, sets and memory, and the estimates of list scheduling add up.

use crate::common::{
    self, Case, adjust, cases_of, device, link, mesh, micros, on, ops, plain, plain_works, works,
};
use loadmaster_core::Error;
use loadmaster_core::clock::Ticks;
use loadmaster_core::cluster::Cluster;
use loadmaster_core::free_memory::{Memory, OnOom, charge_to_leads};
use loadmaster_core::ids::{DeviceId, OpId, TensorId};
use loadmaster_core::levels::Levels;
use loadmaster_core::place::fill::{in_order, round_robin};
use loadmaster_core::place::locality::follow_bytes;
use loadmaster_core::schedule::Scheduled;
use loadmaster_core::simulate::{Options, Policy};
use loadmaster_core::topo::cpd_topo;
use loadmaster_core::workload::{Columns, Times, Workload};
use proptest::collection::vec;
use proptest::prelude::*;

/// A case with an order and bytes per device.
#[derive(Clone, Debug)]
struct Problem {
    case: Case,
    order: Vec<OpId>,
    bytes: Vec<u64>,
    capacity: Vec<u64>,
}

impl Problem {
    fn new(case: Case, capacity: &[u64]) -> Self {
        let (work, cluster) = (&case.work, &case.cluster);
        let clock = work.clock(&case.times, cluster).expect("countable");
        let time = clock.ticks_of(&case.times.mean(work, cluster));
        let levels = Levels::new(&work.graph, &time, &vec![clock.ticks(1e-6); work.graph.n_tensors()]);
        let order = cpd_topo(&work.graph, &levels);
        let bytes = work.static_bytes();
        let capacity = capacity[..cluster.n_devices()].to_vec();
        Self { case, order, bytes, capacity }
    }

    fn adjust(&self, on_oom: OnOom) -> Result<Scheduled, Error> {
        let Case { work, cluster, times, .. } = &self.case;
        let clock = work.clock(times, cluster)?;
        let time = times.ticks(clock);
        adjust(work, cluster, clock, &self.order, &time, &self.bytes, &self.capacity, on_oom)
    }

    fn all(&self, on_oom: OnOom) -> [Result<Vec<DeviceId>, Error>; 4] {
        let Case { work, cluster, .. } = &self.case;
        let devices: Vec<DeviceId> = cluster.device_ids().collect();
        let charge = charge_to_leads(&work.lead, &self.bytes);
        let memory = Memory::new(work, cluster, &work.lead, &charge, &self.capacity, on_oom);
        [
            in_order(memory.clone(), &self.order, &devices),
            follow_bytes(memory.clone(), &self.order),
            round_robin(memory, &self.order),
            self.adjust(on_oom).map(|s| s.device),
        ]
    }

    fn used(&self, placement: &[DeviceId]) -> Vec<u64> {
        let mut used = vec![0; self.capacity.len()];
        placement.iter().zip(&self.bytes).for_each(|(d, b)| used[d.ix()] += b);
        used
    }
}

/// Memory from none to plenty.
fn memory() -> impl Strategy<Value = Vec<u64>> {
    prop_oneof![
        2 => vec(0u64..200, 4),
        1 => vec(prop_oneof![Just(0u64), Just(300), Just(u64::MAX)], 4),
        1 => Just(vec![u64::MAX; 4]),
    ]
}

fn problems(max_ops: usize) -> impl Strategy<Value = Problem> {
    (cases_of(works(max_ops), max_ops), memory()).prop_map(|(case, memory)| Problem::new(case, &memory))
}

proptest! {
    #![proptest_config(common::config(256))]

    #[test]
    fn placements_keep_to_the_rules_or_say_what_does_not_fit(p in problems(14)) {
        let (work, cluster) = (&p.case.work, &p.case.cluster);
        let charge = charge_to_leads(&work.lead, &p.bytes);
        for result in p.all(OnOom::Fail) {
            match result {
                Ok(placement) => {
                    work.check_placement(cluster, &placement).expect("types and sets");
                    for u in work.graph.ops() {
                        prop_assert_eq!(placement[u.ix()], placement[work.lead[u.ix()].ix()]);
                    }
                    let used = p.used(&placement);
                    prop_assert!(used.iter().zip(&p.capacity).all(|(u, c)| u <= c), "{used:?}");
                }
                Err(error @ Error::DoesNotFit { .. }) => {
                    prop_assert!(error.to_string().contains("short"));
                    let Error::DoesNotFit { op, members, needed, free, device_id, .. } = error else { unreachable!() };
                    prop_assert!(needed > free && free <= p.capacity[device_id.ix()]);
                    prop_assert_eq!(needed, charge[op.id.ix()]);
                    prop_assert_eq!(members, work.lead.iter().filter(|&&l| l == op.id).count());
                    prop_assert!(work.allows(op.id, cluster, device_id));
                }
                Err(other) => prop_assert!(false, "{other}"),
            }
        }
        for placement in p.all(OnOom::BestEffort) {
            let placement = placement.expect("best effort places all");
            work.check_placement(cluster, &placement).expect("types and sets");
        }
    }

    #[test]
    fn with_room_for_all_on_any_device_everything_fits(p in problems(14)) {
        let total: u64 = p.bytes.iter().sum();
        let p = Problem { capacity: vec![total; p.capacity.len()], ..p };
        for placement in p.all(OnOom::Fail) {
            prop_assert!(placement.is_ok());
        }
    }

    #[test]
    fn estimated_starts_wait_for_inputs_and_devices(p in problems(14)) {
        let Ok(s) = p.adjust(OnOom::Fail) else { return Ok(()) };
        let Case { work, cluster, times, .. } = &p.case;
        let clock = work.clock(times, cluster).unwrap();
        for v in work.graph.ops() {
            let d = s.device[v.ix()];
            let length = clock.ticks(times.seconds(v, cluster.type_of(d)));
            prop_assert_eq!(s.finish[v.ix()] - s.start[v.ix()], length);
            for (t, u) in work.graph.inputs_with_ops(v) {
                let seconds = cluster.transfer_seconds(s.device[u.ix()], d, work.tensor_bytes[t.ix()]);
                prop_assert!(s.start[v.ix()] >= s.finish[u.ix()] + clock.ticks(seconds));
            }
        }
        for d in cluster.device_ids() {
            let mut busy: Vec<(Ticks, Ticks)> = work
                .graph
                .ops()
                .filter(|u| s.device[u.ix()] == d && s.finish[u.ix()] > s.start[u.ix()])
                .map(|u| (s.start[u.ix()], s.finish[u.ix()]))
                .collect();
            busy.sort_unstable();
            prop_assert!(busy.windows(2).all(|w| w[0].1 <= w[1].0), "two ops at once on {d:?}");
        }
    }

    #[test]
    fn the_first_op_goes_to_the_fastest_device_then_to_most_memory(p in problems(14)) {
        // Nothing delays it; of equals the smaller index.
        let Ok(s) = p.adjust(OnOom::Fail) else { return Ok(()) };
        let Case { work, cluster, times, .. } = &p.case;
        let first = p.order[0];
        let charge = charge_to_leads(&work.lead, &p.bytes)[work.lead[first.ix()].ix()];
        let fits = |d: &DeviceId| work.allows(first, cluster, *d) && charge <= p.capacity[d.ix()];
        let rank = |d: &DeviceId| {
            let seconds = times.seconds(first, cluster.type_of(*d));
            ((seconds * 1e6).round() as u64, u64::MAX - p.capacity[d.ix()], *d)
        };
        let best = cluster.device_ids().filter(fits).min_by_key(rank);
        prop_assert_eq!(Some(s.device[first.ix()]), best);
    }

    #[test]
    fn every_op_stays_or_moves_as_the_rule_says(
        case in cases_of(plain_works(10), 10),
        memory in memory(),
    ) {
        let times = longer(&case);
        let p = Problem::new(Case { times, ..case }, &memory);
        if let Ok(s) = p.adjust(OnOom::Fail) {
            Replay::new(&p, &s).check()?;
        }
    }

    /// In the simulator tensors from one op need not queue behind each other.
    #[test]
    fn without_contention_the_estimate_holds(case in cases_of(plain_works(12), 12)) {
        let mut p = Problem::new(case, &[u64::MAX; 4]);
        let s = p.adjust(OnOom::Fail).expect("unlimited memory");
        let mut sequence = p.order.clone();
        sequence.sort_by_key(|u| (s.start[u.ix()], s.finish[u.ix()]));
        sequence.iter().enumerate().for_each(|(i, u)| p.case.priority[u.ix()] = i as i32);
        p.case.placement = s.device.clone();
        let seen = p.case.run(Options { policy: Policy::Fixed, contention: None, record_memory: false });
        for u in p.case.work.graph.ops() {
            prop_assert!(
                seen.start[u.ix()] <= s.start[u.ix()],
                "{u:?} starts later than estimated: {:?} against {:?}, order {:?} on {:?}, sequence {sequence:?}", seen.start, s.start, p.order, s.device
            );
        }
    }
}

/// The same times and 1 us more, so that every op takes some.
fn longer(case: &Case) -> Times {
    let (n, types) = (case.work.n_ops(), case.times.n_types());
    let seconds = |u: OpId| (0..types).map(move |k| case.times.seconds(u, k) + 1e-6);
    Times::new(n, types, case.work.graph.ops().flat_map(seconds).collect()).expect("valid times")
}

/// Celeritas' Algorithm 2, decision by decision, on what was decided before.
struct Replay<'a> {
    p: &'a Problem,
    s: &'a Scheduled,
    /// Ops placed so far.
    placed: Vec<OpId>,
}

impl<'a> Replay<'a> {
    fn new(p: &'a Problem, s: &'a Scheduled) -> Self {
        Self { p, s, placed: Vec::new() }
    }

    fn transfer(&self, t: TensorId, from: DeviceId, to: DeviceId) -> Ticks {
        let Case { work, cluster, times, .. } = &self.p.case;
        let clock = work.clock(times, cluster).expect("countable");
        clock.ticks(cluster.transfer_seconds(from, to, work.tensor_bytes[t.ix()]))
    }

    /// When the tensors that `op` reads reach `d`, each sent on its own.
    fn arrivals(&self, op: OpId, d: DeviceId) -> Vec<Ticks> {
        let graph = &self.p.case.work.graph;
        let mut arrivals = Vec::new();
        for from in graph.ops() {
            for t in graph.outputs(from).filter(|&t| graph.consumers(t).contains(&op)) {
                let at = self.s.device[from.ix()];
                let sent = if at == d { 0 } else { self.transfer(t, at, d) };
                arrivals.push(self.s.finish[from.ix()] + sent);
            }
        }
        arrivals
    }

    fn length(&self, op: OpId, d: DeviceId) -> Ticks {
        let Case { work, cluster, times, .. } = &self.p.case;
        work.clock(times, cluster).expect("countable").ticks(times.seconds(op, cluster.type_of(d)))
    }

    /// The first idle slot on `d` after all inputs are there.
    fn earliest(&self, op: OpId, d: DeviceId) -> Ticks {
        let length = self.length(op, d);
        let ready = self.arrivals(op, d).into_iter().max().unwrap_or(0);
        let busy: Vec<(Ticks, Ticks)> = self
            .placed
            .iter()
            .filter(|u| self.s.device[u.ix()] == d)
            .map(|u| (self.s.start[u.ix()], self.s.finish[u.ix()]))
            .collect();
        let free = |start: Ticks| busy.iter().all(|&(a, b)| start + length <= a || b <= start);
        let starts = std::iter::once(ready).chain(busy.iter().map(|b| b.1));
        starts.filter(|&start| start >= ready && free(start)).min().expect("after all others")
    }

    /// Longest that any one reader of `op` would wait for its outputs to come back.
    fn back(&self, op: OpId, from: DeviceId, to: DeviceId) -> Ticks {
        let graph = &self.p.case.work.graph;
        let all = |reader: OpId| {
            let read = graph.outputs(op).filter(move |&t| graph.consumers(t).contains(&reader));
            read.map(|t| self.transfer(t, from, to)).sum::<Ticks>()
        };
        graph.ops().map(all).max().unwrap_or(0)
    }

    fn check(&mut self) -> Result<(), TestCaseError> {
        let Case { work, cluster, .. } = &self.p.case;
        let charge = charge_to_leads(&work.lead, &self.p.bytes);
        let mut free = self.p.capacity.clone();
        let mut previous: Option<DeviceId> = None;
        for &op in &self.p.order {
            let (lead, chosen) = (work.lead[op.ix()], self.s.device[op.ix()]);
            let bound = self.placed.iter().find(|u| work.lead[u.ix()] == lead);
            if let Some(mate) = bound {
                prop_assert_eq!(chosen, self.s.device[mate.ix()]);
            } else {
                let fits: Vec<DeviceId> = cluster
                    .device_ids()
                    .filter(|&d| work.allows(op, cluster, d) && charge[lead.ix()] <= free[d.ix()])
                    .collect();
                // Of equal finishes the first op takes the most memory, all others the smaller index.
                let finish = |d: DeviceId| self.earliest(op, d) + self.length(op, d);
                let least = |&&d: &&DeviceId| {
                    let room = if previous.is_none() { u64::MAX - free[d.ix()] } else { 0 };
                    (finish(d), room, d)
                };
                let best = *fits.iter().min_by_key(least).expect("it was placed");
                let expected = match previous.filter(|d| fits.contains(d)) {
                    Some(here) if finish(here) - finish(best) <= self.back(op, best, here) => here,
                    _ => best,
                };
                prop_assert_eq!(chosen, expected, "{:?} after {:?}", op, &self.placed);
                free[chosen.ix()] -= charge[lead.ix()];
                previous = Some(chosen);
            }
            prop_assert_eq!(self.s.start[op.ix()], self.earliest(op, chosen), "{:?}", op);
            self.placed.push(op);
        }
        Ok(())
    }
}

/// Links both ways between all pairs, 1 byte per us.
fn cluster(types: &[&str]) -> Cluster {
    let devices = types.iter().enumerate().map(|(d, name)| device(d, name, 0)).collect();
    let links: Vec<_> = common::pairs(types.len()).map(|(a, b)| link(a, b, 0.0, &[])).collect();
    Cluster::new(devices, &links).unwrap()
}

fn adjusted(
    work: &Workload,
    cluster: &Cluster,
    times: &Times,
    order: &[u32],
    capacity: &[u64],
) -> (Vec<u32>, Vec<u64>) {
    let clock = work.clock(times, cluster).unwrap();
    let time = times.ticks(clock);
    let bytes = work.static_bytes();
    let s = adjust(work, cluster, clock, &ops(order), &time, &bytes, capacity, OnOom::Fail).unwrap();
    let us = clock.ticks(1e-6);
    (s.device.iter().map(|d| d.0).collect(), s.start.iter().map(|t| t / us).collect())
}

#[test]
fn an_op_leaves_for_an_idle_device_if_that_pays() {
    // 0 (1 us, 2 bytes) feeds 1 and 2 (10 us each), which feed 3 with 3 bytes each.
    let work = plain(4, &[(0, 1), (0, 2), (1, 3), (2, 3)], &[2, 3, 3]);
    let times = micros(&[1, 10, 10, 1]);
    // 1 stays (1 < 3). 2 could start at 11 here or at 3 there: 8 earlier, more than the 3 to send back.
    // 3: here (device 1, where 2 ends at 13) it waits for 1's output until 14; on device 0 until 16.
    let (device, start) = adjusted(&work, &mesh(2, 0.0), &times, &[0, 1, 2, 3], &[u64::MAX; 2]);
    assert_eq!((device, start), (vec![0, 0, 1, 1], vec![0, 1, 3, 14]));
    // With 9 bytes to send back it stays: 8 > 9 fails.
    let work = plain(4, &[(0, 1), (0, 2), (1, 3), (2, 3)], &[2, 3, 9]);
    let (device, start) = adjusted(&work, &mesh(2, 0.0), &times, &[0, 1, 2, 3], &[u64::MAX; 2]);
    assert_eq!((device, start), (vec![0; 4], vec![0, 1, 11, 21]));
}

#[test]
fn an_op_fills_a_gap_that_holds_it() {
    // 0 (5 us) on device 0; 1 (type b only, 2 us) reads it over 3 us: 8..10; 2 (type b only) of 4 us and
    // no inputs goes before it.
    let columns = Columns { tensor_bytes: &[3], allowed: &[1, 2, 2], ..Columns::default() };
    let work = Workload::plain(common::graph(3, &[(0, 1)]), &columns).unwrap();
    let times = Times::new(3, 2, [5, 5, 2, 2, 4, 4].map(|t| f64::from(t) * 1e-6).to_vec()).unwrap();
    let (device, start) = adjusted(&work, &cluster(&["a", "b"]), &times, &[0, 1, 2], &[u64::MAX; 2]);
    assert_eq!((device, start), (vec![0, 1, 1], vec![0, 8, 0]));
}

#[test]
fn an_op_of_no_time_still_takes_its_turn() {
    // 0 (5 us) on device 0 lets 1 (no time) go at 5 on device 1. 2 (8 us), on device 1 too, cannot run
    // 0..8 around it: a device runs one op at a time.
    let columns = Columns { allowed: &[1, 2, 2], ..Columns::default() };
    let work = Workload::plain(common::graph(3, &[(0, 1)]), &columns).unwrap();
    let times = Times::new(3, 2, [5, 5, 0, 0, 8, 8].map(|t| f64::from(t) * 1e-6).to_vec()).unwrap();
    let (device, start) = adjusted(&work, &cluster(&["a", "b"]), &times, &[0, 1, 2], &[u64::MAX; 2]);
    assert_eq!((device, start), (vec![0, 1, 1], vec![0, 5, 5]));
}

#[test]
fn a_device_too_small_for_anything_is_passed_over() {
    let work = plain(3, &[(0, 1), (1, 2)], &[5, 5]);
    let times = micros(&[1, 1, 1]);
    let (device, _) = adjusted(&work, &mesh(3, 0.0), &times, &[0, 1, 2], &[0, 5, 7]);
    // 0 to the largest (2), 1 to the one with 5 left, 2 (no bytes) stays.
    assert_eq!(device, [2, 1, 1]);

    let clock = work.clock(&times, &mesh(3, 0.0)).unwrap();
    let time = times.ticks(clock);
    let place = |capacity: &[u64], on_oom| {
        let bytes = work.static_bytes();
        adjust(&work, &mesh(3, 0.0), clock, &ops(&[0, 1, 2]), &time, &bytes, capacity, on_oom)
    };
    let error = place(&[4, 0, 0], OnOom::Fail).expect_err("5 > 4").to_string();
    assert_eq!(
        error,
        "op 0 needs 5 bytes; the most that is free on a device it may use is 4 bytes, on d0: 1 byte short"
    );
    assert_eq!(place(&[0, 4, 0], OnOom::BestEffort).unwrap().device[0], DeviceId(1));
}

#[test]
fn filling_goes_on_where_it_stopped_and_wraps_at_the_end() {
    let columns = Columns { resident: &[4, 4, 3, 4, 2], ..Columns::default() };
    let work = Workload::plain(common::graph(5, &[]), &columns).unwrap();
    let fill_from = |devices: &[u32], capacity: &[u64]| {
        let (order, devices, bytes) = (ops(&[0, 1, 2, 3, 4]), on(devices), work.static_bytes());
        let (cluster, charge) = (mesh(2, 0.0), charge_to_leads(&work.lead, &bytes));
        in_order(Memory::new(&work, &cluster, &work.lead, &charge, capacity, OnOom::Fail), &order, &devices)
    };
    let fill = |capacity: &[u64]| fill_from(&[0, 1], capacity);
    // 0, 1 on d0 (8 of 10), 2 does not fit: d1 from now on (7 of 7); 4 goes where 2 bytes are left.
    assert_eq!(fill(&[10, 7]).unwrap(), on(&[0, 0, 1, 1, 0]));
    assert!(matches!(fill(&[9, 7]), Err(Error::DoesNotFit { .. })));
    assert_eq!(fill_from(&[1, 0], &[7, 10]).unwrap(), on(&[1, 1, 0, 0, 1]));
    let (cluster, charge) = (mesh(2, 0.0), work.static_bytes());
    let memory = Memory::new(&work, &cluster, &work.lead, &charge, &[9, 9], OnOom::Fail);
    let deal = round_robin(memory, &ops(&[4, 3, 2, 1, 0]));
    // 4 -> d0, 3 -> d1, 2 -> d0, 1 -> d1, 0 -> d0 (2 + 3 + 4).
    assert_eq!(deal.unwrap(), on(&[0, 1, 0, 1, 0]));
}

#[test]
fn an_op_of_another_type_does_not_close_the_devices_it_passes() {
    // d0 (a), d1 (b), d2 (a). 0 (a) and 1 (a) fill d0 and go to d2; 2 may go anywhere: d1 was never
    // full, since 1 was not allowed there.
    let columns = Columns { resident: &[4, 4, 4], allowed: &[1, 1, 3], ..Columns::default() };
    let work = Workload::plain(common::graph(3, &[]), &columns).unwrap();
    let (order, devices, bytes) = (ops(&[0, 1, 2]), on(&[0, 1, 2]), work.static_bytes());
    let aba = cluster(&["a", "b", "a"]);
    let memory = Memory::new(&work, &aba, &work.lead, &bytes, &[4, 8, 8], OnOom::Fail);
    let placed = in_order(memory, &order, &devices);
    assert_eq!(placed.unwrap(), on(&[0, 2, 1]));
}

#[test]
fn colocated_ops_are_charged_together() {
    let columns = Columns { resident: &[4, 4, 4], colocation: &[0, -1, 0], ..Columns::default() };
    let work = Workload::plain(common::graph(3, &[(0, 1), (1, 2)]), &columns).unwrap();
    let fill = |capacity: &[u64]| {
        let (order, devices, bytes) = (ops(&[0, 1, 2]), on(&[0, 1]), work.static_bytes());
        let (cluster, charge) = (mesh(2, 0.0), charge_to_leads(&work.lead, &bytes));
        in_order(Memory::new(&work, &cluster, &work.lead, &charge, capacity, OnOom::Fail), &order, &devices)
    };
    // 0 takes 8 at once, though 2 comes last.
    assert_eq!(fill(&[8, 8]).unwrap(), on(&[0, 1, 0]));
    assert_eq!(fill(&[7, 8]).unwrap(), on(&[1, 0, 1]));
    let error = fill(&[7, 7]).expect_err("8 > 7").to_string();
    assert!(error.contains("op 0, with the 1 op after it, needs 8 bytes"), "{error}");
}

#[test]
fn an_op_follows_most_of_the_bytes_it_reads() {
    // 0 (6 bytes) and 1 (4) fill d0 of 10; 2 (9 bytes) goes to d1. 3 reads 6 + 4 bytes on d0 and 9 on d1.
    let edges = [(0, 3), (1, 3), (2, 3)];
    let columns = Columns { tensor_bytes: &[6, 4, 9], resident: &[0, 0, 0, 1], ..Columns::default() };
    let work = Workload::plain(common::graph(4, &edges), &columns).unwrap();
    let follow = |capacity: &[u64]| {
        let (order, bytes) = (ops(&[0, 1, 2, 3]), work.static_bytes());
        let cluster = mesh(2, 0.0);
        follow_bytes(Memory::new(&work, &cluster, &work.lead, &bytes, capacity, OnOom::Fail), &order).unwrap()
    };
    assert_eq!(follow(&[11, 10]), on(&[0, 0, 1, 0]));
    // No room there: 9 bytes on d1 are more than none.
    assert_eq!(follow(&[10, 10]), on(&[0, 0, 1, 1]));
}
