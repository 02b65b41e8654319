//! The search: its evaluator against the list-scheduling engine and the simulator, its rules, its
//! independence of threads.

use crate::common::*;
use loadmaster_core::clock::{Clock, Ticks};
use loadmaster_core::ids::{DeviceId, OpId};
use loadmaster_core::random::Random;
use loadmaster_core::schedule::append::append;
use loadmaster_core::search::anneal::{Found, Stop};
use loadmaster_core::search::chains::{Chains, ROUND};
use loadmaster_core::search::moves::Moves;
use loadmaster_core::search::problem::Problem;
use loadmaster_core::search::refine;
use loadmaster_core::search::state::State;
use loadmaster_core::search::windows::Windows;
use loadmaster_core::simulate::{LinkOrder, Options, Policy};
use proptest::collection::vec;
use proptest::prelude::*;

/// Whether every channel serves one pair of devices.
fn is_mesh(case: &Case) -> bool {
    let k = case.cluster.n_devices();
    let is_own = |(a, b)| case.cluster.route_channels(DeviceId::new(a), DeviceId::new(b)).len() == 1;
    case.cluster.n_channels() == k * (k - 1) && pairs(k).all(is_own)
}

fn clock_and_ticks(case: &Case) -> (Clock, Vec<Ticks>) {
    let clock = case.work.clock(&case.times, &case.cluster).expect("countable times");
    (clock, case.times.ticks(clock))
}

/// A search problem in which every device may hold what it holds already and `spare` bytes more.
fn problem<'a>(case: &'a Case, spare: u64, lead: Option<&[OpId]>) -> Problem<'a> {
    let (clock, ticks) = clock_and_ticks(case);
    let bytes = case.work.static_bytes();
    let used = case.work.static_per_device(&case.placement, case.cluster.n_devices());
    let capacity: Vec<u64> = used.iter().map(|u| u + spare).collect();
    let (work, cluster) = (&case.work, &case.cluster);
    let searched = Problem::new(work, cluster, clock, &ticks, &bytes, &capacity, lead).expect("few devices");
    searched.launching(&clock.ticks_of(case.times.dispatch()))
}

fn found(case: &Case) -> Found {
    Found { device: case.placement.clone(), order: case.work.graph.topo().to_vec(), makespan: 0 }
}

fn simulated(case: &Case, device: &[DeviceId], order: &[OpId]) -> Ticks {
    let mut priority = vec![0; order.len()];
    order.iter().enumerate().for_each(|(i, u)| priority[u.ix()] = i as i32);
    let options = Options { policy: Policy::Fixed, contention: Some(LinkOrder::Fifo), record_memory: false };
    run(&case.work, &case.cluster, &case.times, device, &priority, options).makespan
}

proptest! {
    #![proptest_config(config(400))]

    /// After any row of moves, kept and taken back, a state is what it would be if made afresh; on a mesh
    /// the engine and the simulator find its makespan too. No rule is ever broken.
    #[test]
    fn every_state_is_what_the_simulator_sees(
        case in cases(14), seed in any::<u64>(), spare in 0u64..60, led in any::<bool>(),
    ) {
        let own: Vec<OpId> = case.work.graph.ops().collect();
        // Leads that the placement follows: those of sets alone, or none where there are no sets.
        let alone = case.work.sets.n_rows() == case.work.n_ops();
        let problem = problem(&case, spare, (led && alone).then_some(&own));
        let start = found(&case);
        problem.check(&start.device).expect("a valid start");
        let mut state = State::new(&problem, &start.device, &start.order);
        let (mut moves, mut random) = (Moves::new(case.work.n_ops()), Random::new(seed, 0));
        let (clock, ticks) = clock_and_ticks(&case);
        for step in 0..120 {
            let before = (state.device().to_vec(), state.order().to_vec(), state.makespan());
            let u = OpId::new(random.below(case.work.n_ops()));
            if random.below(4) > 0 {
                state.find_critical();
            }
            moves.draw(&mut state, u, &mut random);
            if state.is_changed() {
                let full = State::new(&problem, state.device(), state.order()).makespan();
                let limit = [Ticks::MAX / 2, before.2, full, full.saturating_sub(1)][step % 4];
                let seen = state.evaluate(limit);
                prop_assert_eq!(seen, (full <= limit).then_some(full));
                if seen.is_some() {
                    state.keep();
                    prop_assert_eq!(state.makespan(), full);
                } else {
                    state.undo();
                    prop_assert_eq!(state.device(), &before.0[..]);
                    prop_assert_eq!(state.order(), &before.1[..]);
                    prop_assert_eq!(state.makespan(), before.2);
                }
            }
            problem.check(state.device()).expect("no rule is broken");
            if is_mesh(&case) {
                let of = append(
                    &case.work, &case.cluster, clock, &ticks, state.device(), state.order(), true,
                );
                prop_assert_eq!(Some(state.makespan()), of.finish.iter().copied().max());
                prop_assert_eq!(state.makespan(), simulated(&case, state.device(), state.order()));
            }
        }
    }

    /// So it is where senders copy what they send, and hosts launch ops.
    #[test]
    fn every_state_knows_what_the_runtime_costs(costly in costly(14), seed in any::<u64>()) {
        let case = &costly.case;
        let problem = problem(case, 30, None);
        let start = found(case);
        let mut state = State::new(&problem, &start.device, &start.order);
        let (mut moves, mut random) = (Moves::new(case.work.n_ops()), Random::new(seed, 0));
        for step in 0..120 {
            if random.below(4) > 0 {
                state.find_critical();
            }
            moves.draw(&mut state, OpId::new(random.below(case.work.n_ops())), &mut random);
            if state.is_changed() {
                let full = State::new(&problem, state.device(), state.order()).makespan();
                let limit = [Ticks::MAX / 2, state.makespan(), full, full.saturating_sub(1)][step % 4];
                let seen = state.evaluate(limit);
                prop_assert_eq!(seen, (full <= limit).then_some(full));
                if seen.is_some() { state.keep() } else { state.undo() }
            }
            if is_mesh(case) {
                prop_assert_eq!(state.makespan(), simulated(case, state.device(), state.order()));
            }
        }
    }

    /// The number of threads and pauses change nothing; more moves never make it worse.
    #[test]
    fn threads_and_pauses_change_nothing(case in cases(10), seed in any::<u64>()) {
        let problem = problem(&case, 30, None);
        let start = found(&case);
        let moves = ROUND + 700;
        let mut one = Chains::new(&problem, &start, seed, 3, 1, Stop::NEVER).expect("room");
        one.run(moves);
        let mut many = Chains::new(&problem, &start, seed, 3, 3, Stop::NEVER).expect("room");
        for slice in [1, 300, moves - 301] {
            let before = many.best().makespan;
            many.run(slice);
            prop_assert!(many.best().makespan <= before);
        }
        prop_assert_eq!(one.best(), many.best());
        // Nothing is shorter than no time at all.
        prop_assert!(one.moves() == 3 * moves || one.best().makespan == 0);
        problem.check(&one.best().device).expect("no rule is broken");
        let again = State::new(&problem, &one.best().device, &one.best().order);
        prop_assert_eq!(again.makespan(), one.best().makespan);
        if is_mesh(&case) {
            prop_assert_eq!(again.makespan(), simulated(&case, &one.best().device, &one.best().order));
        }
    }

    /// Windows never make it worse, break no rule, and know how long what they have found takes.
    #[test]
    fn windows_are_what_the_simulator_sees(case in cases(14), seed in any::<u64>(), spare in 0u64..60) {
        let problem = problem(&case, spare, None);
        let start = found(&case);
        let before = State::new(&problem, &start.device, &start.order).makespan();
        let mut windows = Windows::new(&problem, &start, seed, 2, 2, Stop::NEVER).expect("room");
        for _ in 0..4 {
            let last = windows.makespan();
            windows.run();
            prop_assert!(windows.makespan() <= last);
        }
        let best = windows.best();
        prop_assert!(best.makespan <= before);
        problem.check(&best.device).expect("no rule is broken");
        prop_assert_eq!(State::new(&problem, &best.device, &best.order).makespan(), best.makespan);
        if is_mesh(&case) {
            prop_assert_eq!(simulated(&case, &best.device, &best.order), best.makespan);
        }
    }

    /// Critical ops are one chain that ends with the last op.
    #[test]
    fn critical_ops_end_with_the_last(case in cases(14)) {
        let problem = problem(&case, 0, None);
        let start = found(&case);
        let mut state = State::new(&problem, &start.device, &start.order);
        state.find_critical();
        let (clock, ticks) = clock_and_ticks(&case);
        let of = append(&case.work, &case.cluster, clock, &ticks, &start.device, &start.order, true);
        let finish: Vec<Ticks> = state.critical_ops().iter().map(|u| of.finish[u.ix()]).collect();
        if is_mesh(&case) {
            prop_assert_eq!(finish.first().copied(), of.finish.iter().copied().max());
            prop_assert!(finish.windows(2).all(|w| w[0] >= w[1]));
        }
    }
}

/// Two chains of ops on two devices: the search parts them from one device, and never a colocated set.
#[test]
fn chains_of_ops_are_parted_where_they_may_be() {
    let work = plain(4, &[(0, 1), (2, 3)], &[1; 4]);
    let (cluster, times) = (mesh(2, 0.0), micros(&[10; 4]));
    let case = |work| Case {
        work,
        cluster: cluster.clone(),
        times: times.clone(),
        placement: on(&[0; 4]),
        priority: vec![0; 4],
    };
    let search = |case: &Case| {
        let (clock, ticks) = clock_and_ticks(case);
        let problem = Problem::new(&case.work, &case.cluster, clock, &ticks, &[], &[0; 2], None);
        let problem = problem.expect("few devices");
        let mut chains = Chains::new(&problem, &found(case), 0, 1, 1, Stop::NEVER).expect("room");
        chains.run(100_000);
        chains.best().makespan / clock.ticks(US)
    };
    assert_eq!(search(&case(work.clone())), 20);
    let mut bound = work;
    bound.set_of = vec![0; 4];
    bound.sets = loadmaster_core::csr::Csr::from_pairs(1, ops(&[0, 1, 2, 3]).into_iter().map(|u| (0, u)));
    assert_eq!(search(&case(bound)), 40);
}

/// A start that overfills a device is refused, with the device and the bytes.
#[test]
fn a_start_that_does_not_fit_is_refused() {
    let work = plain(2, &[(0, 1)], &[7, 5]);
    let (cluster, times) = (mesh(2, 0.0), micros(&[1, 1]));
    let clock = work.clock(&times, &cluster).expect("countable times");
    let ticks = times.ticks(clock);
    let problem =
        Problem::new(&work, &cluster, clock, &ticks, &[7, 5], &[11, 12], None).expect("two devices");
    let error = problem.check(&on(&[0, 0])).expect_err("12 bytes on device 0").to_string();
    assert!(error.contains("device 0 take 12 bytes: it may hold 11"), "{error}");
    problem.check(&on(&[1, 1])).expect("12 bytes");
}

// -- refinement -----------------------------------------------------------------------------------

proptest! {
    #![proptest_config(config(200))]

    #[test]
    fn refinement_keeps_rules_and_never_gets_worse(
        case in cases(14),
        group in vec(0u32..5, 14),
    ) {
        let work = &case.work;
        let n = work.n_ops();
        let order = work.graph.topo().to_vec();
        let levels = [group[..n].to_vec(), (0..n as u32).collect()];
        let (bytes, capacity) = (vec![1; n], vec![n as u64; case.cluster.n_devices()]);
        let clock = work.clock(&case.times, &case.cluster).expect("times that can be counted");
        let ticks = case.times.ticks(clock);
        let problem = Problem::new(work, &case.cluster, clock, &ticks, &bytes, &capacity, None).expect("few devices");
        let run = |budget| {
            let request = refine::Request {
                order: &order,
                placement: &case.placement,
                levels: &levels,
                budget,
            };
            refine::refine(&problem, &request).expect("a valid request")
        };
        let (before, after) = (run(0), run(1_000_000));
        prop_assert_eq!(&before.placement, &case.placement);
        prop_assert!(after.makespan <= before.makespan);
        prop_assert!(work.check_placement(&case.cluster, &after.placement).is_ok());
        prop_assert_eq!(&after, &run(1_000_000));
        if is_mesh(&case) {
            let of = append(work, &case.cluster, clock, &ticks, &after.placement, &order, true);
            let last = of.finish.iter().copied().max().unwrap_or(0);
            prop_assert_eq!(after.makespan, last);
        }
    }

    #[test]
    fn a_full_device_takes_no_more(case in cases(12)) {
        let work = &case.work;
        let n = work.n_ops();
        let order = work.graph.topo().to_vec();
        let mut held = vec![0u64; case.cluster.n_devices()];
        case.placement.iter().for_each(|d| held[d.ix()] += 1);
        let request = refine::Request {
            order: &order,
            placement: &case.placement,
            levels: &[(0..n as u32).collect()],
            budget: 1_000_000,
        };
        let clock = work.clock(&case.times, &case.cluster).expect("times that can be counted");
        let ticks = case.times.ticks(clock);
        let problem = Problem::new(work, &case.cluster, clock, &ticks, &vec![1; n], &held, None).expect("few devices");
        let after = refine::refine(&problem, &request).expect("a valid request");
        let mut now = vec![0u64; held.len()];
        after.placement.iter().for_each(|d| now[d.ix()] += 1);
        prop_assert_eq!(now, held);
    }
}

#[test]
fn two_free_ops_are_spread_over_two_devices() {
    let work = plain(2, &[], &[]);
    let (cluster, times) = (mesh(2, 1.0), micros(&[5, 5]));
    let order = work.graph.topo().to_vec();
    let request =
        refine::Request { order: &order, placement: &on(&[0, 0]), levels: &[vec![0, 1]], budget: 100 };
    let clock = work.clock(&times, &cluster).expect("times that can be counted");
    let ticks = times.ticks(clock);
    let problem = Problem::new(&work, &cluster, clock, &ticks, &[0, 0], &[0, 0], None).expect("few devices");
    let refined = refine::refine(&problem, &request).expect("a valid request");
    assert_eq!(clock.seconds(refined.makespan), 5e-6);
}
