//! Lower bounds: never above what some placement reaches, and as strong as they claim.

use crate::common::{self, Case, cases_of, graph, mesh, micros, on, plain, plain_works};
use loadmaster_core::Error;
use loadmaster_core::bounds::{Source, bounds};
use loadmaster_core::cluster::{Cluster, Links};
use loadmaster_core::ids::{DeviceId, OpId};
use loadmaster_core::simulate::{LinkOrder, Options, Simulator};
use loadmaster_core::workload::{Columns, Times, Workload};
use proptest::collection::vec;
use proptest::prelude::*;

/// All ways to put one choice of `per` in each of `n` places.
fn choices(n: usize, per: usize) -> impl Iterator<Item = Vec<usize>> {
    (0..per.pow(n as u32)).map(move |code| (0..n as u32).map(|i| code / per.pow(i) % per).collect())
}

fn permutations(n: usize) -> Vec<Vec<i32>> {
    let all = choices(n, n).map(|c| c.into_iter().map(|i| i as i32).collect::<Vec<_>>());
    all.filter(|p| (0..n as i32).all(|i| p.contains(&i))).collect()
}

/// The least makespan over all placements and orders, in seconds.
fn best_of_all(case: &Case, contention: Option<LinkOrder>) -> f64 {
    let (work, n) = (&case.work, case.work.n_ops());
    let simulator = Simulator::new(work, &case.cluster, &case.times).expect("countable");
    let orders = permutations(n);
    let mut best = u64::MAX;
    for choice in choices(n, case.cluster.n_devices()) {
        let placement: Vec<DeviceId> = choice.into_iter().map(DeviceId::new).collect();
        if work.check_placement(&case.cluster, &placement).is_ok() {
            for order in &orders {
                let options = Options { contention, ..Options::default() };
                best = best.min(simulator.run(&placement, order, options).expect("valid").makespan);
            }
        }
    }
    simulator.clock().seconds(best)
}

/// The linear program for one or two types: ops sorted by how much type 0 suits them, the first part
/// of the row on type 0, the rest on type 1, one op shared.
fn work_over_capacity(case: &Case) -> f64 {
    let counts: Vec<f64> = case.cluster.type_counts().iter().map(|&c| c as f64).collect();
    let seconds = |u: OpId, k: usize| {
        if case.work.allowed[u.ix()] >> k & 1 == 1 { case.times.seconds(u, k) } else { f64::INFINITY }
    };
    if counts.len() == 1 {
        return case.work.graph.ops().map(|u| seconds(u, 0)).sum::<f64>() / counts[0];
    }
    let mut rows: Vec<(f64, f64)> = case.work.graph.ops().map(|u| (seconds(u, 0), seconds(u, 1))).collect();
    rows.retain(|r| r.0 > 0.0 && r.1 > 0.0);
    rows.sort_by(|a, b| (a.0 / a.1).total_cmp(&(b.0 / b.1)));
    // With the first i ops on type 0 and a share x of the next: the larger of the two loads.
    let mut best = f64::INFINITY;
    for i in 0..=rows.len() {
        let here: f64 = rows[..i].iter().map(|r| r.0).sum();
        let there: f64 = rows[(i + 1).min(rows.len())..].iter().map(|r| r.1).sum();
        let Some(&(a, b)) = rows.get(i) else {
            best = best.min((here / counts[0]).max(there / counts[1]));
            continue;
        };
        let loads = |x: f64| {
            let share = |x: f64, t: f64| if x == 0.0 { 0.0 } else { x * t };
            let (l, r) = (here + share(x, a), there + share(1.0 - x, b));
            (l / counts[0]).max(r / counts[1])
        };
        // Where both loads meet, if they do.
        let meet = (counts[0] * (there + b) - counts[1] * here) / (counts[1] * a + counts[0] * b);
        for x in [0.0, 1.0, meet] {
            if (0.0..=1.0).contains(&x) {
                best = best.min(loads(x));
            }
        }
    }
    best
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-7 * a.abs().max(b.abs())
}

proptest! {
    #![proptest_config(common::config(48))]

    #[test]
    fn no_placement_beats_a_bound(case in cases_of(plain_works(4), 4)) {
        let b = bounds(&case.work, &case.cluster, &case.times).unwrap();
        for contention in [None, Some(LinkOrder::Fifo), Some(LinkOrder::Priority)] {
            let best = best_of_all(&case, contention);
            for bound in [b.critical_path, b.work, b.forced_transfers, b.heads_and_tails, b.best] {
                prop_assert!(bound <= best, "{b:?} above {best}");
            }
        }
    }
}

proptest! {
    #![proptest_config(common::config(256))]

    #[test]
    fn the_work_bound_is_the_value_of_the_linear_program(case in cases_of(plain_works(14), 14)) {
        let b = bounds(&case.work, &case.cluster, &case.times).unwrap();
        let value = work_over_capacity(&case);
        prop_assert!(close(b.work, value), "{} against {value}", b.work);
    }

    #[test]
    fn the_best_is_the_largest_and_says_which(case in cases_of(plain_works(14), 14)) {
        let b = bounds(&case.work, &case.cluster, &case.times).unwrap();
        let parts = [b.critical_path, b.work, b.forced_transfers, b.heads_and_tails];
        prop_assert!(parts.iter().all(|&part| part <= b.best));
        prop_assert!(b.critical_path <= b.forced_transfers);
        let named = match b.source {
            Source::CriticalPath => b.critical_path,
            Source::Work => b.work,
            Source::ForcedTransfers => b.forced_transfers,
            Source::HeadsAndTails => b.heads_and_tails,
            Source::Launches => b.launches,
        };
        prop_assert_eq!(named, b.best);
        // With all heads and tails at 0 an interval is the whole: never below the plain work bound.
        prop_assert!(b.heads_and_tails >= b.work * (1.0 - 1e-9));
    }

    /// Any way to put whole ops on types is a solution of the program, so it is never below the bound.
    #[test]
    fn several_types_bound_every_assignment(
        seconds in vec(0u32..20, 3 * 6),
        masks in vec(1u64..8, 6),
        counts in vec(1usize..4, 3),
    ) {
        let seconds: Vec<f64> = seconds.into_iter().map(f64::from).collect();
        let (case, n) = (typed(&counts, seconds, &masks), 6);
        let b = bounds(&case.work, &case.cluster, &case.times).unwrap();
        for types in choices(n, 3).filter(|c| (0..n).all(|u| masks[u] >> c[u] & 1 == 1)) {
            let load = |k: usize| -> f64 {
                (0..n).filter(|&u| types[u] == k).map(|u| case.times.seconds(OpId::new(u), k)).sum()
            };
            let most = (0..3).map(|k| load(k) / counts[k] as f64).fold(0.0, f64::max);
            prop_assert!(b.work <= most, "{} above {most}", b.work);
        }
        // Any speeds bound the program from below: the best of a grid is no better.
        for i in 0..=10 {
            for j in 0..=10 - i {
                let shares = [i, j, 10 - i - j].map(|s| f64::from(s) / 10.0);
                let cost = |u: usize, k: usize| case.times.seconds(OpId::new(u), k) * shares[k] / counts[k] as f64;
                let least = |u: usize| {
                    (0..3).filter(|&k| masks[u] >> k & 1 == 1).map(|k| cost(u, k)).fold(f64::INFINITY, f64::min)
                };
                let value: f64 = (0..n).map(least).sum();
                prop_assert!(value <= b.work * (1.0 + 1e-6) + 1e-9, "{value} above {}", b.work);
            }
        }
    }
}

/// Ops without edges on a mesh of several types, `counts` devices of each.
fn typed(counts: &[usize], seconds: Vec<f64>, masks: &[u64]) -> Case {
    let n = masks.len();
    let of_type = counts.iter().enumerate().flat_map(|(k, &c)| std::iter::repeat_n(k, c));
    let devices: Vec<_> =
        of_type.enumerate().map(|(d, k)| common::device(d, &format!("type {k}"), 0)).collect();
    let links: Vec<_> = common::pairs(devices.len()).map(|(a, b)| common::link(a, b, 0.0, &[])).collect();
    let columns = Columns { allowed: masks, ..Columns::default() };
    Case {
        work: Workload::plain(graph(n, &[]), &columns).expect("valid"),
        cluster: Cluster::new(devices, &links).expect("valid"),
        times: Times::new(n, counts.len(), seconds).expect("valid"),
        placement: on(&vec![0; n]),
        priority: vec![0; n],
    }
}

#[test]
fn work_after_a_head_and_before_a_tail() {
    // 0 (10 us), then 1..=4 (5 us each) on two devices: 10 + 20 / 2.
    let work = plain(5, &[(0, 1), (0, 2), (0, 3), (0, 4)], &[]);
    let b = bounds(&work, &mesh(2, 0.0), &micros(&[10, 5, 5, 5, 5])).unwrap();
    assert!(close(b.critical_path, 15e-6) && close(b.work, 15e-6) && close(b.heads_and_tails, 20e-6));
    assert_eq!(b.source, Source::HeadsAndTails);
    // The other way round.
    let work = plain(5, &[(1, 0), (2, 0), (3, 0), (4, 0)], &[]);
    let b = bounds(&work, &mesh(2, 0.0), &micros(&[10, 5, 5, 5, 5])).unwrap();
    assert!(close(b.heads_and_tails, 20e-6));
}

/// Three ops of 5 us feed one of 1 us; a tensor takes 4 us.
fn join(devices: usize) -> f64 {
    let work = plain(4, &[(0, 3), (1, 3), (2, 3)], &[4; 4]);
    bounds(&work, &mesh(devices, 0.0), &micros(&[5, 5, 5, 1])).unwrap().forced_transfers
}

#[test]
fn a_join_waits_for_transfers_or_for_work() {
    // All on one device: 15 + 1. One away: max(10, 5 + 4) + 1; two away: max(5, 9) + 1.
    assert!(close(join(1), 16e-6));
    assert!(close(join(2), 10e-6));
    // The fork is the join with time reversed.
    let fork = plain(4, &[(3, 0), (3, 1), (3, 2)], &[4; 4]);
    let b = bounds(&fork, &mesh(2, 0.0), &micros(&[5, 5, 5, 1])).unwrap();
    assert!(close(b.forced_transfers, 10e-6) && close(b.critical_path, 6e-6), "{b:?}");
    // With a transfer that costs more than it saves everything stays: 1 + 15.
    let fork = plain(4, &[(3, 0), (3, 1), (3, 2)], &[90; 4]);
    let b = bounds(&fork, &mesh(2, 0.0), &micros(&[5, 5, 5, 1])).unwrap();
    assert!(close(b.forced_transfers, 16e-6), "{b:?}");
    // Ops of one set have no choice.
    let columns = Columns { tensor_bytes: &[4; 4], colocation: &[7; 4], ..Columns::default() };
    let together = Workload::plain(graph(4, &[(0, 3), (1, 3), (2, 3)]), &columns).unwrap();
    let b = bounds(&together, &mesh(2, 0.0), &micros(&[5, 5, 5, 1])).unwrap();
    assert!(close(b.forced_transfers, 16e-6), "{b:?}");
}

#[test]
fn the_least_transfer_is_over_devices_that_both_may_use() {
    // Types a, a, b. Ops 0 and 1 must be on a, op 2 on b; a tensor of 6 bytes takes 1 us from device 1 to
    // 2, 6 us from 0 to 2. By the fast link both arrive at 3 + 1; where the types allow no transfer
    // between two devices of type b, what b makes stays.
    let fast = |from: usize, to: usize| Links { bandwidth: 6e6, ..common::link(from, to, 0.0, &[]) };
    let links: Vec<Links> = common::pairs(3)
        .map(|(a, b)| if (a, b) == (1, 2) { fast(a, b) } else { common::link(a, b, 0.0, &[]) })
        .collect();
    let devices = vec![common::device(0, "a", 0), common::device(1, "a", 0), common::device(2, "b", 0)];
    let cluster = Cluster::new(devices, &links).unwrap();
    let columns = Columns { tensor_bytes: &[6; 3], allowed: &[1, 1, 2], ..Columns::default() };
    let work = Workload::plain(graph(3, &[(0, 2), (1, 2)]), &columns).unwrap();
    let times = Times::new(3, 2, [3e-6; 6].to_vec()).unwrap();
    let b = bounds(&work, &cluster, &times).unwrap();
    assert!(close(b.forced_transfers, 7e-6) && close(b.critical_path, 6e-6), "{b:?}");
    let columns = Columns { tensor_bytes: &[6; 3], allowed: &[2, 2, 2], ..Columns::default() };
    let work = Workload::plain(graph(3, &[(0, 2), (1, 2)]), &columns).unwrap();
    assert!(close(bounds(&work, &cluster, &times).unwrap().forced_transfers, 9e-6));
}

#[test]
fn an_op_that_reaches_into_a_window_counts_with_what_it_must_do_there() {
    // On two devices: 0 (4 us) before 1..=4 (4 us each); 5 (10 us) stands alone. After 4 us there are 16 us
    // of 1..=4, and at least 6 us of op 5 as well: 4 + (16 + 6) / 2.
    let work = plain(6, &[(0, 1), (0, 2), (0, 3), (0, 4)], &[]);
    let b = bounds(&work, &mesh(2, 0.0), &micros(&[4, 4, 4, 4, 4, 10])).unwrap();
    assert!(close(b.heads_and_tails, 15e-6) && close(b.work, 15e-6), "{b:?}");
    let b = bounds(&work, &mesh(2, 0.0), &micros(&[6, 4, 4, 4, 4, 10])).unwrap();
    assert!(close(b.heads_and_tails, 16e-6), "{b:?}");
}

#[test]
fn a_chain_is_its_critical_path_and_loose_ops_are_their_sum() {
    let chain = bounds(&plain(3, &[(0, 1), (1, 2)], &[]), &mesh(4, 0.0), &micros(&[3, 4, 5])).unwrap();
    assert!(close(chain.best, 12e-6));
    assert_eq!(chain.source, Source::CriticalPath);
    let loose = bounds(&plain(4, &[], &[]), &mesh(2, 0.0), &micros(&[3, 3, 3, 3])).unwrap();
    assert!(close(loose.best, 6e-6));
}

#[test]
fn two_types_share_the_work_as_the_program_says() {
    // One device each. Op 0 takes 2 or 6 s, op 1 takes 6 or 4 s. Op 0 on type 0, op 1 split: x of it on
    // type 0, 2 + 6 x = 4 (1 - x), x = 0.2: T = 3.2. (Critical path: max(2, 4) = 4.)
    let case = typed(&[1, 1], vec![2.0, 6.0, 6.0, 4.0], &[3, 3]);
    let b = bounds(&case.work, &case.cluster, &case.times).unwrap();
    assert!(close(b.work, 3.2) && close(b.critical_path, 4.0), "{b:?}");
    // Op 1 may use type 1 only: 4. With two devices of type 1: op 0 to type 0, 4 / 2 there.
    let case = typed(&[1, 1], vec![2.0, 6.0, 6.0, 4.0], &[3, 2]);
    assert!(close(bounds(&case.work, &case.cluster, &case.times).unwrap().work, 4.0));
    let case = typed(&[1, 2], vec![2.0, 6.0, 6.0, 4.0], &[3, 2]);
    assert!(close(bounds(&case.work, &case.cluster, &case.times).unwrap().work, 2.0));
}

#[test]
fn what_cannot_be_bounded_is_an_error() {
    let case = typed(&[1, 1], vec![1.0; 2], &[4]);
    let error = bounds(&case.work, &case.cluster, &case.times).expect_err("no type 2 in the cluster");
    assert!(matches!(error, Error::NoAllowedDevice { .. }), "{error}");
    let case = typed(&[1], vec![f64::MAX; 2], &[1, 1]);
    assert!(matches!(bounds(&case.work, &case.cluster, &case.times), Err(Error::HorizonTooLong { .. })));
}

#[test]
fn times_of_another_cluster_are_an_error() {
    let case = typed(&[1, 1], vec![1.0; 4], &[3, 3]);
    let one_column = Times::new(2, 1, vec![1.0; 2]).unwrap();
    assert!(bounds(&case.work, &case.cluster, &one_column).is_err());
}

#[test]
fn a_bound_and_a_schedule_count_on_the_same_clock() {
    // A tensor that nobody would send makes ticks of 10 ms; ops of 4 ms then count as nothing in every
    // schedule, so they must in the bounds.
    let work = plain(4, &[(0, 1)], &[u64::MAX]);
    let times = Times::new(4, 1, vec![4e-3; 4]).unwrap();
    let cluster = mesh(2, 0.0);
    let simulator = Simulator::new(&work, &cluster, &times).unwrap();
    let makespan = simulator.run(&on(&[0; 4]), &[0; 4], Options::default()).unwrap().makespan;
    let b = bounds(&work, &cluster, &times).unwrap();
    assert!(b.best <= simulator.clock().seconds(makespan), "{b:?}");
}
