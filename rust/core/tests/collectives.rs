//! Collectives in the judge: held against their closed forms, and against the same collectives written
//! out as transfers of chunks; no mix of them with other traffic hangs.

use crate::common::{self, US, bridge, config, devices, link, mesh, micros, on, one_port, pairs};
use loadmaster_core::Error;
use loadmaster_core::bounds::bounds;
use loadmaster_core::clock::Ticks;
use loadmaster_core::cluster::{Cluster, Device, Links};
use loadmaster_core::collective::{Algorithm, Group, Kind, MemberColumns};
use loadmaster_core::collective_times::Table;
use loadmaster_core::graph::Graph;
use loadmaster_core::ids::{DeviceId, OpId};
use loadmaster_core::simulate::{Doing, Options, Policy, Schedule, Simulator, Waited};
use loadmaster_core::workload::{Columns, Times, Workload};
use proptest::collection::vec;
use proptest::prelude::*;

/// Each device sends over a port of its own and receives over another.
fn two_ports(k: usize, latency: f64) -> Cluster {
    let ports = |a: usize, b: usize| [format!("tx{a}"), format!("rx{b}")];
    let links: Vec<Links> = pairs(k).map(|(a, b)| link(a, b, latency, &ports(a, b))).collect();
    Cluster::new(devices(k), &links).expect("a valid cluster")
}

fn all(k: usize) -> Vec<DeviceId> {
    (0..k).map(DeviceId::new).collect()
}

/// `k` makers of a tensor of `bytes`, a member behind each and a reader behind that: op `i` makes, `k +
/// i` takes part, `2 k + i` reads.
fn collective(kind: u8, k: usize, bytes: u64, made: u64) -> Workload {
    repeated(kind, k, bytes, made, &[])
}

/// The same, with how often each op runs.
fn repeated(kind: u8, k: usize, bytes: u64, made: u64, runs: &[u64]) -> Workload {
    let ids = |from: usize| from as i64..(from + k) as i64;
    let src: Vec<i64> = ids(0).chain(ids(k)).collect();
    let dst: Vec<i64> = ids(k).chain(ids(2 * k)).collect();
    let graph = Graph::numbered(3 * k, &src, &dst, None).expect("a valid graph");
    let tensor_bytes: Vec<u64> = [vec![bytes; k], vec![made; k], vec![0; k]].concat();
    let group: Vec<i64> = (0..3 * k).map(|u| if (k..2 * k).contains(&u) { 0 } else { -1 }).collect();
    let kinds = vec![kind; 3 * k];
    let members = MemberColumns { group: &group, kind: &kinds, runs };
    let columns = Columns { tensor_bytes: &tensor_bytes, members, ..Columns::default() };
    Workload::plain(graph, &columns).expect("a valid workload")
}

/// Runs ops of device `i % k`; members and all others as long as `time` says.
fn judged(work: &Workload, cluster: &Cluster, time: &[u32], k: usize) -> (Schedule, f64) {
    let times = micros(time).numbered(work.graph.numbering());
    let simulator = Simulator::new(work, cluster, &times).expect("countable");
    let placement = on(&(0..work.n_ops()).map(|u| (u % k) as u32).collect::<Vec<_>>());
    let placement = work.graph.numbering().by_op(placement, 1);
    let priority: Vec<i32> = (0..work.n_ops() as i32).collect();
    let schedule = simulator.run(&placement, &priority, Options::default()).expect("it runs");
    let tick = simulator.clock().ticks(US) as f64;
    (schedule, tick)
}

/// Microseconds of the one collective of a schedule.
fn length(schedule: &Schedule, tick: f64) -> f64 {
    (schedule.together[0].finish - schedule.together[0].start) as f64 / tick
}

/// Measured times of all-reduces on one machine.
fn all_reduces(devices: usize, points: Vec<(u64, f64)>, busy: Vec<f64>) -> Table {
    Table { kind: Kind::AllReduce, machines: 1, devices, points, busy }
}

/// Alone on its channels, members arriving together, links of 1 byte per microsecond.
fn alone(cluster: &Cluster, kind: u8, k: usize, bytes: u64, made: u64) -> (f64, Algorithm) {
    let (schedule, tick) = judged(&collective(kind, k, bytes, made), cluster, &vec![0; 3 * k], k);
    (length(&schedule, tick), schedule.together[0].algorithm)
}

#[test]
fn a_collective_of_a_loop_takes_its_time_once_per_trip() {
    for (kind, _) in Kind::NAMED.iter().enumerate() {
        let (k, bytes, runs) = (4, 8 * 64, 7);
        let (cluster, time) = (two_ports(k, 3.0), vec![0; 3 * k]);
        let (once, tick) = judged(&collective(kind as u8, k, bytes, bytes), &cluster, &time, k);
        let work = repeated(kind as u8, k, bytes, bytes, &vec![runs; 3 * k]);
        let (often, same) = judged(&work, &cluster, &time, k);
        assert!((length(&often, same) - runs as f64 * length(&once, tick)).abs() < 1e-6);
    }
}

#[test]
fn closed_forms_hold_to_the_tick() {
    for k in 2..=9_usize {
        let (ports, n) = (two_ports(k, 3.0), 7 * 5 * 9 * 8 * 64);
        let (k_f, n_f, steps) = (k as f64, f64::from(n), (k as f64).log2().ceil());
        let part = (k_f - 1.0) / k_f * n_f;
        let n = u64::from(n as u32);
        let close =
            |(got, _): (f64, Algorithm), want: f64| assert!((got - want).abs() < 1e-3, "{got} {want}");
        // Halving and doubling sends as much as a ring, in fewer steps.
        close(alone(&ports, 0, k, n, n), 2.0 * steps * 3.0 + 2.0 * part);
        close(alone(&ports, 1, k, n, n / k as u64), steps * 3.0 + part);
        close(alone(&ports, 2, k, n / k as u64, n), steps * 3.0 + part);
        // Each device sends its pieces one after another, and they are under way together.
        let piece = n_f / (k_f * k_f);
        close(alone(&ports, 3, k, n / k as u64, n / k as u64), 3.0 + (k_f - 1.0) * piece);
        // A bridge carries every hop: a ring of k hops, 2 (k - 1) times. Latencies of a step are one.
        let least = alone(&bridge(k, 3.0), 0, k, n, n).0;
        close((least, Algorithm::Ring), 2.0 * steps * 3.0 + 2.0 * (k_f - 1.0) * n_f);
    }
}

#[test]
fn a_full_mesh_uses_every_link_at_once() {
    for k in 3..=9_usize {
        let (mesh, n) = (mesh(k, 3.0), 7 * 5 * 9 * 8 * 64_u64);
        let part = n as f64 / k as f64;
        let (small, pairs) = (n / k as u64, k * (k - 1));
        for (kind, read, made, want) in [
            (0, n, n, 2.0 * (3.0 + part)),
            (1, n, small, 3.0 + part),
            (2, small, n, 3.0 + part),
            (3, small, small, 3.0 + part / k as f64),
        ] {
            let (got, algorithm) = alone(&mesh, kind, k, read, made);
            assert!((got - want).abs() < 1e-3, "{kind} of {k}: {got} {want}");
            assert_eq!(algorithm, Algorithm::Direct);
            let way = Group::new(&mesh, Kind::NAMED[kind as usize].1, &all(k)).way(n);
            assert_eq!(way.channels.len(), pairs);
        }
        // The parts are handed out, and gathered.
        let way = Group::new(&mesh, Kind::Broadcast, &all(k)).way(n);
        assert_eq!((way.algorithm, way.channels.len()), (Algorithm::Direct, pairs));
        assert!((way.seconds / US - 2.0 * (3.0 + part)).abs() < 1e-6);
    }
}

#[test]
fn rings_are_packed_where_links_have_channels_of_their_own() {
    // Two lanes join 0 - 1 - 2 - 3 - 0 and one each of the pairs across: a ring takes one lane a direction.
    let wide = |a: usize, b: usize| a.abs_diff(b) % 2 == 1;
    let links: Vec<Links> = pairs(4)
        .map(|(a, b)| Links { bandwidth: if wide(a, b) { 2e6 } else { 1e6 }, ..link(a, b, 5.0, &[]) })
        .collect();
    let cluster = Cluster::new(devices(4), &links).expect("a cluster");
    let way = Group::new(&cluster, Kind::AllReduce, &all(4)).way(4_000_000);
    assert_eq!(way.algorithm, Algorithm::Rings);
    // Two rings of two lanes, there and back: 6 steps of a quarter at 4 bytes per microsecond.
    assert!((way.seconds / US - 6.0 * (5.0 + 250_000.0)).abs() < 1e-3, "{}", way.seconds / US);
    // Ports of one ring are ports of all: nothing is left for a second one.
    let ports = Group::new(&two_ports(4, 5.0), Kind::AllReduce, &all(4)).way(4_000_000);
    assert_ne!(ports.algorithm, Algorithm::Rings);
}

#[test]
fn what_has_no_bytes_is_not_sent() {
    let table = all_reduces(4, vec![(1000, 50e-6)], vec![20e-6]);
    for cluster in
        [mesh(4, 3.0), bridge(4, 3.0), mesh(4, 3.0).with_tables(vec![table]).expect("a good table")]
    {
        for (_, kind) in Kind::NAMED {
            let way = Group::new(&cluster, kind, &all(4)).way(0);
            assert_eq!((way.algorithm, way.seconds, way.busy), (Algorithm::Idle, 0.0, 0.0));
            assert!(way.channels.is_empty());
        }
    }
}

#[test]
fn a_ring_is_taken_where_only_neighbours_are_joined() {
    // 0 - 1 - 2 - 3 - 0: other pairs go by way of a neighbour.
    let k = 4;
    let ring: Vec<Links> =
        pairs(k).filter(|(a, b)| a.abs_diff(*b) % 2 == 1).map(|(a, b)| link(a, b, 1.0, &[])).collect();
    let cluster = Cluster::new(devices(k), &ring).expect("a ring");
    // A half of each part goes round one way, and a half the other.
    assert_eq!(alone(&cluster, 0, k, 4000, 4000), (2.0 * 3.0 * (1.0 + 500.0), Algorithm::Rings));
    let one_way: Vec<Links> = ring.into_iter().filter(|l| l.from[0] != "d3" || l.to[0] != "d2").collect();
    let cluster = Cluster::new(devices(k), &one_way).expect("a ring");
    assert_eq!(alone(&cluster, 0, k, 4000, 4000), (2.0 * 3.0 * (1.0 + 1000.0), Algorithm::Ring));
}

#[test]
fn a_ring_follows_the_wide_links() {
    // Wide links join 0 - 2 - 1 - 3 - 0; the links 0 - 1 and 2 - 3 are ten times narrower.
    let narrow = |a: usize, b: usize| (a.min(b), a.max(b)) == (0, 1) || (a.min(b), a.max(b)) == (2, 3);
    let links: Vec<Links> = pairs(4)
        .map(|(a, b)| Links { bandwidth: if narrow(a, b) { 1e5 } else { 1e6 }, ..link(a, b, 0.0, &[]) })
        .collect();
    let cluster = Cluster::new(devices(4), &links).expect("a cluster");
    let way = Group::new(&cluster, Kind::AllReduce, &all(4)).way(4000);
    assert_eq!((way.algorithm, way.channels.len()), (Algorithm::Rings, 8));
    assert!((way.seconds - 6.0 * 500.0 * US).abs() < 1e-12);
}

#[test]
fn machines_reduce_inside_before_they_send_across() {
    // Two machines of four; across, a device reaches only over a link twenty times narrower.
    let across = |a: usize, b: usize| a / 4 != b / 4;
    let links: Vec<Links> = pairs(8)
        .map(|(a, b)| Links {
            bandwidth: if across(a, b) { 1e6 } else { 20e6 },
            ..link(a, b, 1.0, &[format!("tx{a}{}", across(a, b)), format!("rx{b}{}", across(a, b))])
        })
        .collect();
    let cluster = Cluster::new(devices(8), &links).expect("two machines");
    let way = Group::new(&cluster, Kind::AllReduce, &all(8)).way(80_000);
    assert_eq!(way.algorithm, Algorithm::Hierarchical);
    // Inside 3/4 n twice over wide links, across n/4: one round to reduce and one to gather.
    let want = 2.0 * (2.0 + 60_000.0 / 20.0) + 2.0 * (1.0 + 10_000.0);
    assert!((way.seconds / US - want).abs() < 1e-6, "{} {want}", way.seconds / US);
}

/// Two machines of `each` devices, which names tell apart: inside two ports per device of 1 byte per
/// microsecond, across two more.
fn two_machines(each: usize, across: f64) -> Cluster {
    let name = |d: usize| format!("node{}.d{d}", d / each);
    let devices = devices(2 * each).into_iter().enumerate();
    let devices = devices.map(|(d, device)| Device { name: name(d), ..device }).collect();
    let links: Vec<Links> = pairs(2 * each)
        .map(|(a, b)| {
            let is_across = a / each != b / each;
            Links {
                from: vec![name(a)],
                to: vec![name(b)],
                bandwidth: if is_across { across } else { 1e6 },
                ..link(a, b, 10.0, &[format!("tx{a}{is_across}"), format!("rx{b}{is_across}")])
            }
        })
        .collect();
    Cluster::new(devices, &links).expect("two machines")
}

#[test]
fn a_table_is_of_a_shape_of_group() {
    let table = |kind, machines, devices, seconds| Table {
        kind,
        machines,
        devices,
        points: vec![(1000, seconds * US), (2000, 2.0 * seconds * US)],
        busy: vec![],
    };
    // Across is wider than inside, so that links do not tell machines.
    let cluster = two_machines(4, 2e6)
        .with_tables(vec![table(Kind::AllReduce, 1, 2, 7.0), table(Kind::AllReduce, 1, 4, 9.0)])
        .expect("good tables");
    let way = |devices: &[u32], kind| {
        let way = Group::new(&cluster, kind, &on(devices)).way(1000);
        (way.algorithm, (way.seconds / US * 1e6).round() / 1e6)
    };
    assert_eq!(way(&[0, 1], Kind::AllReduce), (Algorithm::Table, 7.0));
    assert_eq!(way(&[4, 5, 6, 7], Kind::AllReduce), (Algorithm::Table, 9.0));
    // One device of each machine: two steps of a half each over the link across.
    assert_eq!(way(&[0, 4], Kind::AllReduce), (Algorithm::Ring, 2.0 * (10.0 + 250.0)));
    // Levels: inside as measured, across as the links say.
    let levels = vec![table(Kind::ReduceScatter, 1, 2, 3.0), table(Kind::AllGather, 1, 2, 4.0)];
    let cluster = two_machines(4, 2e6).with_tables(levels).expect("good tables");
    let way = Group::new(&cluster, Kind::AllReduce, &on(&[0, 1, 4, 5])).way(1000);
    assert_eq!(way.algorithm, Algorithm::Hierarchical);
    assert!((way.seconds / US - (3.0 + 4.0 + 2.0 * (10.0 + 125.0))).abs() < 1e-6);
}

#[test]
fn over_machines_nothing_is_done_sooner_than_inside_of_one() {
    let table = |kind, machines, seconds| Table {
        kind,
        machines,
        devices: 4 * machines,
        points: vec![(0, seconds * US), (1000, 2.0 * seconds * US)],
        busy: vec![],
    };
    for (_, kind) in Kind::NAMED {
        let tables = vec![table(kind, 1, 40.0), table(kind, 2, 30.0)];
        let cluster = two_machines(4, 1e9).with_tables(tables).expect("good tables");
        let seconds = |k, bytes| Group::new(&cluster, kind, &all(k)).way(bytes).seconds / US;
        // The part of one machine: a half of what is gathered, a quarter of what is exchanged.
        let inside = match kind {
            Kind::AllReduce | Kind::Broadcast => 40.0 + 40.0 * 0.4,
            Kind::ReduceScatter | Kind::AllGather => 40.0 + 40.0 * 0.2,
            Kind::AllToAll => 40.0 + 40.0 * 0.1,
        };
        assert!((seconds(8, 400) - inside).abs() < 1e-6, "{kind:?} {}", seconds(8, 400));
        assert!(seconds(4, 400) >= inside - 1e-6);
    }
}

#[test]
fn noise_in_measured_times_makes_no_more_bytes_quicker() {
    let points = vec![(1000, 50e-6), (2000, 40e-6), (3000, 45e-6)];
    let cluster = mesh(2, 1.0).with_tables(vec![all_reduces(2, points, vec![])]).expect("a good table");
    for bytes in [1000, 1500, 2500, 3000, 1_000_000] {
        let way = Group::new(&cluster, Kind::AllReduce, &all(2)).way(bytes);
        assert!((way.seconds - 50e-6).abs() < 1e-12, "{bytes} {}", way.seconds);
    }
}

#[test]
fn a_broadcast_comes_from_the_member_that_has_the_tensor() {
    let (k, n) = (5, 10_000);
    // Only member 3 of 5 reads a tensor.
    let graph = Graph::numbered(k + 1, &[5], &[3], None).expect("a graph");
    let (group, kind) = ([0, 0, 0, 0, 0, -1], [4; 6]);
    let members = MemberColumns { group: &group, kind: &kind, runs: &[] };
    let bytes = [0, 0, 0, 0, 0, n];
    let columns =
        Columns { tensor_bytes: &bytes, output_bytes: &[n, n, n, n, n, n], members, ..Columns::default() };
    let work = Workload::plain(graph, &columns).expect("a workload");
    let index = work.graph.index(work.collectives.all()[0].root);
    assert_eq!((index, work.collectives.all()[0].bytes), (3, n));
    // Cut in five, handed down a tree (2, 1 and 1 parts), and gathered around a ring (4 times 1 part).
    let way = Group::new(&two_ports(k, 0.0), Kind::Broadcast, &all(k)).way(n);
    assert_eq!(way.algorithm, Algorithm::Scattered);
    assert!((way.seconds / US - 8.0 * 2000.0).abs() < 1e-6);
    assert_eq!(Group::new(&two_ports(k, 1e6), Kind::Broadcast, &all(k)).way(n).algorithm, Algorithm::Tree);
}

#[test]
fn a_table_stands_above_the_links() {
    let points = vec![(1000, 50e-6), (3000, 70e-6)];
    let table = |devices, points: Vec<(u64, f64)>| all_reduces(devices, points, vec![]);
    let slower = points.iter().map(|(bytes, seconds)| (*bytes, 2.0 * seconds)).collect();
    let tables = vec![table(2, points), table(4, slower)];
    let cluster = mesh(5, 1.0).with_tables(tables).expect("good tables");
    let seconds = |k: usize, bytes| Group::new(&cluster, Kind::AllReduce, &all(k)).way(bytes).seconds / US;
    let close = |got: f64, want: f64| assert!((got - want).abs() < 1e-9, "{got} {want}");
    close(seconds(2, 1000), 50.0);
    close(seconds(2, 2000), 60.0);
    close(seconds(2, 10), 50.0);
    close(seconds(2, 4000), 80.0);
    close(seconds(3, 1000), 75.0);
    close(seconds(4, 1000), 100.0);
    let way = |kind, k| Group::new(&cluster, kind, &all(k)).way(1000).algorithm;
    assert_eq!(way(Kind::AllReduce, 4), Algorithm::Table);
    assert_ne!(way(Kind::AllReduce, 5), Algorithm::Table);
    assert_ne!(way(Kind::AllGather, 4), Algorithm::Table);
    let bad = table(2, vec![(5, 1.0), (5, 2.0)]);
    assert!(mesh(2, 1.0).with_tables(vec![bad]).expect_err("a bad table").to_string().contains("ascend"));
}

#[test]
fn members_wait_for_the_last_and_take_no_device() {
    let (k, n) = (3, 3000);
    // The makers take 10, 20 and 30 microseconds, the readers 5; the members bring 7 of their own.
    let time = [10, 20, 30, 0, 0, 7, 5, 5, 5];
    let (schedule, tick) = judged(&collective(0, k, n, n), &mesh(k, 0.0), &time, k);
    let together = &schedule.together[0];
    assert_eq!((together.queued as f64 / tick, together.start as f64 / tick), (30.0, 30.0));
    assert_eq!(length(&schedule, tick), 2.0 * 1000.0 + 7.0);
    assert_eq!(schedule.makespan, together.finish + (5.0 * tick) as Ticks);
    assert_eq!(schedule.device_busy.iter().map(|t| *t as f64 / tick).collect::<Vec<_>>(), [15.0, 25.0, 35.0]);
    // Inputs stay until it ends, outputs are there from its start.
    assert_eq!(schedule.peak, [2 * n; 3]);
}

#[test]
fn the_chain_of_causes_passes_through_the_last_member() {
    let (k, n) = (3, 3000);
    let (schedule, _) = judged(&collective(0, k, n, n), &mesh(k, 0.0), &[10, 20, 30, 0, 0, 0, 5, 5, 5], k);
    let work = collective(0, k, n, n);
    let chain = schedule.blame(&work.graph);
    let numbering = work.graph.numbering();
    // The first reader, its member, and the maker that was last.
    let ran = [6, 3, 2].map(|index| Doing::Running(numbering.op(index)));
    assert_eq!(chain.iter().map(|b| b.doing).collect::<Vec<_>>(), ran);
    assert!(chain.windows(2).all(|pair| pair[0].start == pair[1].finish));
    assert_eq!(chain[2].waited, Waited::Nothing);
}

/// Two devices whose all-reduce of 1000 bytes takes 50 us, 30 of which are their own.
fn busy_pair() -> Cluster {
    let points = vec![(1000, 50.0 * US), (2000, 90.0 * US)];
    mesh(2, 0.0).with_tables(vec![all_reduces(2, points, vec![30.0 * US, 60.0 * US])]).expect("a good table")
}

#[test]
fn a_share_keeps_its_device_busy_before_the_member_has_arrived() {
    // Makers of 10 and 20 us, readers of 5: device 0 is done with its share at 40, device 1 at 50.
    let (schedule, tick) = judged(&collective(0, 2, 1000, 1000), &busy_pair(), &[10, 20, 0, 0, 5, 5], 2);
    let work = collective(0, 2, 1000, 1000);
    let op = |index| work.graph.numbering().op(index);
    let us = |ticks: Ticks| ticks as f64 / tick;
    let share = |index| {
        let share = schedule.shares[op(index).ix()];
        (us(share.start), us(share.finish), share.waited)
    };
    assert_eq!(share(2), (10.0, 40.0, Waited::Op(op(0))));
    assert_eq!(share(3), (20.0, 50.0, Waited::Op(op(1))));
    let together = &schedule.together[0];
    assert_eq!([together.busy, together.start, together.finish].map(us), [30.0, 50.0, 70.0]);
    assert_eq!((us(schedule.makespan), schedule.copies.len()), (75.0, 0));
    // Shares are no compute.
    assert_eq!(schedule.device_busy.iter().map(|&ticks| us(ticks)).collect::<Vec<_>>(), [15.0, 25.0]);
    let chain = schedule.blame(&work.graph);
    let doing = [Doing::Running(op(4)), Doing::Running(op(2)), Doing::Sharing(op(3)), Doing::Running(op(1))];
    assert_eq!(chain.iter().map(|b| b.doing).collect::<Vec<_>>(), doing);
    assert_eq!(chain.iter().map(|b| b.finish - b.start).sum::<Ticks>(), schedule.makespan);
}

#[test]
fn a_device_does_its_share_before_its_next_op() {
    // Ops 0 and 1 make what members 2 and 3 sum; op 4, of 100 us, is ready on device 0 all the time.
    let graph = Graph::numbered(5, &[0, 1], &[2, 3], None).expect("a graph");
    let (group, kind) = ([-1, -1, 0, 0, -1], [0; 5]);
    let members = MemberColumns { group: &group, kind: &kind, runs: &[] };
    let bytes = [1000, 1000, 0, 0, 0];
    let columns = Columns { tensor_bytes: &bytes, members, ..Columns::default() };
    let work = Workload::plain(graph, &columns).expect("a workload");
    let times = micros(&[10, 10, 0, 0, 100]).numbered(work.graph.numbering());
    let cluster = busy_pair();
    let simulator = Simulator::new(&work, &cluster, &times).expect("countable");
    let placement = work.graph.numbering().by_op(on(&[0, 1, 0, 1, 0]), 1);
    let schedule = simulator.run(&placement, &[0; 5], Options::default()).expect("it runs");
    let tick = simulator.clock().ticks(US) as f64;
    let op = |index| work.graph.numbering().op(index);
    assert_eq!(schedule.start[op(4).ix()] as f64 / tick, 40.0);
    assert_eq!(schedule.op_waited[op(4).ix()], Waited::Share(op(2)));
    assert_eq!(schedule.makespan as f64 / tick, 140.0);
    // Bounds count no shares, and stay below.
    let least = bounds(&work, &cluster, &times).expect("bounds");
    assert!(least.best <= 140.0 * US);
}

#[test]
fn what_devices_do_is_a_part_of_the_time() {
    let table = |busy: Vec<f64>| all_reduces(2, vec![(1000, 50e-6), (3000, 70e-6)], busy);
    let way = |bytes| {
        let cluster = mesh(2, 1.0).with_tables(vec![table(vec![10e-6, 60e-6])]).expect("good tables");
        let way = Group::new(&cluster, Kind::AllReduce, &all(2)).way(bytes);
        ((way.seconds / US).round(), (way.busy / US).round())
    };
    assert_eq!([way(500), way(2000), way(3000)], [(50.0, 10.0), (60.0, 35.0), (70.0, 60.0)]);
    // Beyond the last point the lines cross: no device is busy for longer than it takes.
    assert_eq!(way(30_000), (340.0, 340.0));
    for (busy, says) in [(vec![1e-6], "1 busy seconds"), (vec![1e-6, 80e-6], "busy for 0.00008 s")] {
        let refused = mesh(2, 1.0).with_tables(vec![table(busy)]).expect_err("a bad table").to_string();
        assert!(refused.contains(says), "{refused}");
    }
}

#[test]
fn channels_are_shared_with_other_traffic() {
    // Op 0 on d0 sends 1000 bytes to op 1 on d1; members 2 and 3 follow ops 4 and 5 of 500 us.
    let graph = Graph::numbered(6, &[0, 4, 5], &[1, 2, 3], None).expect("a graph");
    let (group, kind) = ([-1, -1, 0, 0, -1, -1], [0; 6]);
    let members = MemberColumns { group: &group, kind: &kind, runs: &[] };
    let bytes = [1000, 0, 0, 0, 200, 200];
    let columns = Columns { tensor_bytes: &bytes, members, ..Columns::default() };
    let work = Workload::plain(graph, &columns).expect("a workload");
    let times = micros(&[0, 0, 0, 0, 500, 500]).numbered(work.graph.numbering());
    let cluster = mesh(2, 0.0);
    let simulator = Simulator::new(&work, &cluster, &times).expect("countable");
    let placement = work.graph.numbering().by_op(on(&[0, 1, 0, 1, 0, 1]), 1);
    let schedule = simulator.run(&placement, &[0; 6], Options::default()).expect("it runs");
    let tick = simulator.clock().ticks(US) as f64;
    let together = &schedule.together[0];
    assert_eq!((together.queued as f64 / tick, together.start as f64 / tick), (500.0, 1000.0));
    let member = work.graph.numbering().op(2);
    assert_eq!(schedule.op_waited[member.ix()], Waited::Channel(0));
}

#[test]
fn members_on_one_device_do_nothing() {
    let (schedule, _) = judged(&collective(0, 3, 3000, 3000), &mesh(2, 1.0), &[5; 9], 1);
    assert_eq!(schedule.together[0].algorithm, Algorithm::Idle);
    assert!(schedule.together[0].channels.is_empty());
}

#[test]
fn bounds_count_no_work_of_members() {
    // All on one device, the members' 3 x 50 microseconds are the collective's, beside the makers.
    let (k, time) = (3, [10, 20, 30, 50, 50, 50, 5, 5, 5]);
    let work = collective(0, k, 3000, 3000);
    let times = micros(&time).numbered(work.graph.numbering());
    let least = bounds(&work, &mesh(1, 0.0), &times).expect("bounds");
    let micros = |seconds: f64| (seconds * 1e6).round();
    assert_eq!((micros(least.work), micros(least.critical_path)), (75.0, 35.0));
    let (schedule, tick) = judged(&work, &mesh(1, 0.0), &time, 1);
    assert!(micros(least.best) <= schedule.makespan as f64 / tick);
}

#[test]
fn what_can_never_run_is_refused() {
    let columns = |group: &'static [i64], kind: &'static [u8]| MemberColumns { group, kind, runs: &[] };
    let of = |edges: &[(i64, i64)], members| {
        let (src, dst): (Vec<i64>, Vec<i64>) = edges.iter().copied().unzip();
        let graph = Graph::numbered(4, &src, &dst, None).expect("a graph");
        Workload::plain(graph, &Columns { members, ..Columns::default() }).map(|_| ())
    };
    // 0 and 1 are of one collective, 2 and 3 of another; each waits for the other.
    let crossed = of(&[(0, 2), (3, 1)], columns(&[0, 0, 1, 1], &[0; 4]));
    assert!(matches!(crossed, Err(Error::CollectiveDeadlock(_))));
    // One member waits for another of the same collective.
    let within = of(&[(0, 2), (2, 1)], columns(&[0, 0, -1, -1], &[0; 4]));
    assert!(matches!(within, Err(Error::CollectiveDeadlock(_))));
    let kinds = of(&[], columns(&[0, 0, -1, -1], &[0, 1, 0, 0]));
    assert!(matches!(kinds, Err(Error::TwoKinds { .. })));
    assert!(matches!(of(&[], columns(&[0, 0, -1, -1], &[9; 4])), Err(Error::BadArgument { .. })));
    assert!(matches!(of(&[], columns(&[0], &[0])), Err(Error::WrongLength { .. })));
    assert!(of(&[(0, 2), (1, 3)], columns(&[0, 0, 1, 1], &[0; 4])).is_ok());
}

// -- written out as transfers of chunks ----------------------------------------------------------

/// A graph of steps: the ops of each device, and the chunks that they send.
#[derive(Default)]
struct Written {
    device: Vec<u32>,
    src: Vec<i64>,
    dst: Vec<i64>,
    bytes: Vec<u64>,
    /// Per device, its last op.
    last: Vec<usize>,
    rounds: u32,
}

impl Written {
    fn new(k: usize) -> Self {
        Self { device: (0..k as u32).collect(), last: (0..k).collect(), ..Self::default() }
    }

    /// All devices send at once; an op of the receiver waits for the chunk and for its own last op.
    fn round(&mut self, hops: &[(usize, usize)], bytes: u64) {
        self.rounds += 1;
        let before = self.last.clone();
        let mut received: Vec<Option<usize>> = vec![None; before.len()];
        for &(from, to) in hops {
            let op = *received[to].get_or_insert_with(|| {
                self.device.push(to as u32);
                self.device.len() - 1
            });
            self.edge(before[from], op, bytes);
        }
        for (device, op) in received.iter().enumerate() {
            if let Some(op) = *op {
                self.edge(before[device], op, 0);
                self.last[device] = op;
            }
        }
    }

    fn edge(&mut self, from: usize, to: usize, bytes: u64) {
        self.src.push(from as i64);
        self.dst.push(to as i64);
        self.bytes.push(bytes);
    }

    fn microseconds(&self, cluster: &Cluster) -> f64 {
        let n = self.device.len();
        let tensors: Vec<i64> = (0..self.src.len() as i64).collect();
        let graph = Graph::new(n, &self.src, &self.dst, Some(&tensors)).expect("a graph");
        let columns = Columns { tensor_bytes: &self.bytes, ..Columns::default() };
        let work = Workload::plain(graph, &columns).expect("a workload");
        let times = Times::new(n, 1, vec![0.0; n]).expect("times");
        let simulator = Simulator::new(&work, cluster, &times).expect("countable");
        let priority: Vec<i32> = (0..n as i32).collect();
        let schedule = simulator.run(&on(&self.device), &priority, Options::default()).expect("it runs");
        schedule.makespan as f64 / simulator.clock().ticks(US) as f64
    }
}

fn written_ring(kind: Kind, k: usize, bytes: u64) -> Written {
    let mut written = Written::new(k);
    let passes = if kind == Kind::AllReduce { 2 } else { 1 };
    let hops: Vec<(usize, usize)> = (0..k).map(|i| (i, (i + 1) % k)).collect();
    (0..passes * (k - 1)).for_each(|_| written.round(&hops, bytes.div_ceil(k as u64)));
    written
}

/// Halving: each device sends what others need of it, in rounds as far apart as half the parts left.
fn written_halving(kind: Kind, k: usize, bytes: u64) -> Written {
    let mut written = Written::new(k);
    let mut steps = Vec::new();
    let mut parts = k;
    while parts > 1 {
        let left = parts.div_ceil(2);
        steps.push((left, (parts - left) as u64 * bytes.div_ceil(k as u64)));
        parts = left;
    }
    let both: Vec<(usize, u64)> = match kind {
        Kind::ReduceScatter => steps,
        Kind::AllGather => steps.into_iter().rev().collect(),
        _ => steps.iter().copied().chain(steps.iter().rev().copied()).collect(),
    };
    for (skip, chunk) in both {
        let hops: Vec<(usize, usize)> = (0..k).map(|i| (i, (i + skip) % k)).collect();
        written.round(&hops, chunk);
    }
    written
}

fn written_direct(kind: Kind, k: usize, bytes: u64) -> Written {
    let mut written = Written::new(k);
    let hops: Vec<(usize, usize)> = (1..k).flat_map(|s| (0..k).map(move |i| (i, (i + s) % k))).collect();
    let pieces = if kind == Kind::AllToAll { k * k } else { k };
    let passes = if kind == Kind::AllReduce { 2 } else { 1 };
    (0..passes).for_each(|_| written.round(&hops, bytes.div_ceil(pieces as u64)));
    written
}

/// How many devices, what joins them, and the latency of all links.
fn clusters() -> impl Strategy<Value = (usize, usize, f64)> {
    (2..=9_usize, 0..3_usize, 0..40_u32).prop_map(|(k, which, latency)| (k, which, f64::from(latency)))
}

proptest! {
    #![proptest_config(config(96))]

    /// The judge's figure is that of the chunks, sent one by one, within 2 %. Chunks of a round are under way
    /// together: they are sent without a latency, and each round has it once.
    #[test]
    fn it_takes_as_long_as_its_chunks((k, joined, latency) in clusters(), which in 0..4_usize, bytes in 20_000..4_000_000_u64) {
        let kind = Kind::NAMED[which].1;
        let of = [mesh as fn(usize, f64) -> Cluster, two_ports, bridge][joined];
        let mut written = match kind {
            Kind::AllToAll => vec![],
            _ => vec![written_ring(kind, k, bytes), written_halving(kind, k, bytes)],
        };
        if kind == Kind::AllToAll || joined == 0 {
            written.push(written_direct(kind, k, bytes));
        }
        let free = of(k, 0.0);
        let takes = |w: &Written| w.microseconds(&free) + f64::from(w.rounds) * latency;
        let chunks = written.iter().map(takes).fold(f64::INFINITY, f64::min);
        let (read, made) = match kind {
            Kind::AllReduce => (bytes, bytes),
            Kind::ReduceScatter => (bytes, bytes / k as u64),
            Kind::AllGather => (bytes / k as u64, bytes),
            _ => (bytes / k as u64, bytes / k as u64),
        };
        let (judged, _) = alone(&of(k, latency), which as u8, k, read, made);
        prop_assert!((judged / chunks - 1.0).abs() < 0.02, "{kind:?} of {k}: {judged} against {chunks}");
    }

    /// Collectives of random groups among random ops end, whatever else is sent, under every policy.
    #[test]
    fn no_mix_hangs(
        k in 2..=5_usize,
        layers in 2..6_usize,
        which in vec((0..5_u8, vec(0..5_usize, 2..5)), 1..6),
        edges in vec((0..30_usize, 0..30_usize, 0..2000_u64), 0..60),
        seed in 0..u64::MAX,
        channels in 0..4_usize,
        shares in 0..3_u32,
    ) {
        // Ops in layers, one per device and layer. Between two layers stands at most one collective
        // per device, so no collective waits for itself.
        let n = layers * k;
        let mut device: Vec<u32> = (0..n).map(|u| (u % k) as u32).collect();
        let (mut src, mut dst, mut bytes) = (Vec::new(), Vec::new(), Vec::new());
        let mut add = |a: usize, b: usize, size: u64| { src.push(a as i64); dst.push(b as i64); bytes.push(size); };
        for (a, b, size) in edges {
            let (a, b) = (a % n, b % n);
            if a / k < b / k { add(a, b, size); }
        }
        let (mut group, mut kinds) = (vec![-1_i64; n], vec![0_u8; n]);
        for (c, (kind, members)) in which.iter().enumerate() {
            let layer = c % (layers - 1);
            let mut members: Vec<usize> = members.iter().map(|m| m % k).collect();
            members.sort_unstable();
            members.dedup();
            for member in members {
                let op = device.len();
                device.push(member as u32);
                group.push(c as i64);
                kinds.push(*kind);
                add(layer * k + member, op, 500);
                add(op, (layer + 1) * k + member, 500);
            }
        }
        let n = device.len();
        let tensors: Vec<i64> = (0..src.len() as i64).collect();
        let graph = Graph::numbered(n, &src, &dst, Some(&tensors)).expect("a graph");
        let members = MemberColumns { group: &group, kind: &kinds, runs: &[] };
        let work = Workload::plain(graph, &Columns { tensor_bytes: &bytes, members, ..Columns::default() });
        let work = work.expect("a workload");
        let cluster = [mesh as fn(usize, f64) -> Cluster, bridge, one_port, two_ports][channels](k, 1.0);
        // Where there are shares: 20 or 40 us of 50, of all-reduces among any number of devices.
        let busy = |devices| all_reduces(devices, vec![(0, 50.0 * US)], vec![f64::from(20 * shares) * US]);
        let tables = if shares > 0 { (2..=k).map(busy).collect() } else { Vec::new() };
        let cluster = cluster.with_tables(tables).expect("good tables");
        let time: Vec<u32> = (0..n).map(|u| (seed >> (u % 60)) as u32 % 50).collect();
        let times = micros(&time).numbered(work.graph.numbering());
        let simulator = Simulator::new(&work, &cluster, &times).expect("countable");
        let placement = work.graph.numbering().by_op(on(&device), 1);
        let priority: Vec<i32> = (0..n as i32).collect();
        {
            for options in common::all_options(&[Policy::Priority, Policy::Fifo, Policy::Random(seed), Policy::Fixed]) {
                let schedule = simulator.run(&placement, &priority, options).expect("it ends");
                prop_assert_eq!(&schedule, &simulator.run(&placement, &priority, options).expect("again"));
                for (c, together) in schedule.together.iter().enumerate() {
                    let members = work.collectives.members(c);
                    let inputs = members.iter().flat_map(|m| work.graph.input_ops(*m));
                    let ready = inputs.map(|op: &OpId| schedule.finish[op.ix()]).max().unwrap_or(0);
                    prop_assert!(together.queued >= ready && together.start >= together.queued);
                    prop_assert!(members.iter().all(|m| schedule.start[m.ix()] == together.start));
                    prop_assert!(members.iter().all(|m| schedule.finish[m.ix()] == together.finish));
                }
                // A device does one thing at a time, and each member's share before it arrives.
                prop_assert_eq!(schedule.shares.len(), if shares > 0 { n } else { 0 });
                for d in 0..k {
                    let mine = |op: &OpId| placement[op.ix()].ix() == d;
                    let (members, ops): (Vec<OpId>, Vec<OpId>) =
                        work.graph.ops().filter(mine).partition(|op| work.collectives.of_op(*op).is_some());
                    let mut spans: Vec<(Ticks, Ticks)> =
                        ops.iter().map(|op| (schedule.start[op.ix()], schedule.finish[op.ix()])).collect();
                    for op in members.iter().filter(|_| shares > 0) {
                        let (share, c) = (schedule.shares[op.ix()], work.collectives.of_op(*op).unwrap_or(0));
                        prop_assert_eq!(share.finish - share.start, schedule.together[c].busy);
                        prop_assert!(share.finish <= schedule.together[c].queued);
                        spans.push((share.start, share.finish));
                    }
                    spans.retain(|span| span.0 < span.1);
                    spans.sort_unstable();
                    prop_assert!(spans.windows(2).all(|w| w[0].1 <= w[1].0));
                }
                // Each channel carries one thing at a time.
                for c in 0..cluster.n_channels() {
                    let held = schedule.together.iter().filter(|t| t.channels.iter().any(|o| o.ix() == c));
                    let sent = schedule.transfers.iter().filter(|t| {
                        cluster.route_channels(t.src, t.dst).iter().any(|o| o.ix() == c)
                    });
                    let mut spans: Vec<(Ticks, Ticks)> = held.map(|t| (t.start, t.finish)).collect();
                    spans.extend(sent.map(|t| (t.start, t.finish)));
                    spans.sort_unstable();
                    if options.contention.is_some() {
                        prop_assert!(spans.windows(2).all(|w| w[0].1 <= w[1].0));
                    }
                }
                let chain = schedule.blame(&work.graph);
                prop_assert_eq!(chain.iter().map(|b| b.finish - b.start).sum::<Ticks>(), schedule.makespan);
            }
        }
    }
}
