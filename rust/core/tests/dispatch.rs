//! The dispatcher: devices run every task once and in order, and never hang.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread;

use loadmaster_core::dispatch::emulate::{Device, Links};
use loadmaster_core::dispatch::{
    Board, Columns, Dispatcher, Ended, Monotonic, PER_ARRIVAL, PER_TASK, Part, gate_words,
};
use loadmaster_core::ids::DeviceId;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

const PATIENCE: u64 = 5_000_000_000;

/// The memory of a board.
struct Memory {
    gates: Vec<AtomicU64>,
    arrivals: Vec<AtomicU64>,
    tasks: Vec<AtomicU64>,
}

fn zeros(n: usize) -> Vec<AtomicU64> {
    (0..n).map(|_| AtomicU64::new(0)).collect()
}

impl Memory {
    fn of(n_devices: usize, n_arrivals: usize, n_tasks: usize) -> Self {
        Self {
            gates: zeros(gate_words(n_devices)),
            arrivals: zeros(PER_ARRIVAL * n_arrivals),
            tasks: zeros(PER_TASK * n_tasks),
        }
    }

    fn board(&self) -> Board<'_> {
        Board::new(&self.gates, &self.arrivals, &self.tasks).expect("lengths of a board")
    }

    fn word(words: &[AtomicU64], at: usize) -> u64 {
        words[at].load(std::sync::atomic::Ordering::Relaxed)
    }

    fn span(&self, task: usize) -> (u64, u64) {
        (Self::word(&self.tasks, PER_TASK * task), Self::word(&self.tasks, PER_TASK * task + 1))
    }
}

/// Tasks on devices; a task waits for some before it, by an arrival each where the devices differ.
#[derive(Clone, Debug)]
struct Case {
    device: Vec<u32>,
    at_once: Vec<bool>,
    waits: Vec<(usize, usize)>,
    is_fixed: bool,
}

impl Case {
    fn arrivals(&self) -> Vec<(usize, usize)> {
        self.waits.iter().copied().filter(|&(a, b)| self.device[a] != self.device[b]).collect()
    }

    fn n_devices(&self) -> usize {
        1 + *self.device.iter().max().expect("a task") as usize
    }

    fn columns(&self, device: u32) -> Columns {
        let tasks: Vec<u32> =
            (0..self.device.len() as u32).filter(|&t| self.device[t as usize] == device).collect();
        let here = |t: usize| self.device[t] == device;
        let arrivals = self.arrivals();
        let numbered = || (0u32..).zip(&arrivals);
        Columns {
            priority: tasks.iter().map(|&t| t as i32).collect(),
            at_once: tasks.iter().map(|&t| self.at_once[t as usize]).collect(),
            order: self
                .waits
                .iter()
                .filter(|&&(a, b)| here(a) && here(b))
                .map(|&(a, b)| (a as u32, b as u32))
                .collect(),
            waits: numbered().filter(|(_, w)| here(w.1)).map(|(i, w)| (i, w.1 as u32)).collect(),
            sends: numbered().filter(|(_, w)| here(w.0)).map(|(i, w)| (i, self.device[w.1])).collect(),
            tasks,
        }
    }

    fn dispatcher(&self, device: u32, board: &Board<'_>, patience: u64) -> Dispatcher {
        let part = Part::new(DeviceId(device), self.is_fixed, self.columns(device)).expect("a part");
        Dispatcher::new(Arc::new(part), board, Monotonic::starting(0), patience)
            .expect("numbers of the board")
    }

    fn sent_by(&self, task: usize) -> impl Iterator<Item = u32> {
        let arrivals = self.arrivals();
        (0u32..).zip(arrivals).filter(move |(_, w)| w.0 == task).map(|(i, _)| i)
    }
}

prop_compose! {
    fn cases()(n in 1usize..24, k in 1u32..4)(
        device in vec(0..k, n),
        at_once in vec(prop::bool::weighted(0.2), n),
        pairs in vec((0..n, 0..n), 0..3 * n),
        is_fixed in any::<bool>(),
    ) -> Case {
        let mut waits: Vec<_> = pairs.into_iter().filter(|(a, b)| a != b).map(|(a, b)| (a.min(b), a.max(b))).collect();
        waits.sort_unstable();
        waits.dedup();
        Case { device, at_once, waits, is_fixed }
    }
}

/// One step of one device, by hand: the tasks in their order.
fn stepped(case: &Case, dispatcher: &mut Dispatcher, board: &Board<'_>) -> Result<Vec<u32>, Ended> {
    let mut ran = Vec::new();
    dispatcher.begin(board)?;
    while let Some(task) = dispatcher.next(board)? {
        ran.push(task);
        dispatcher.done(board, task).expect("it runs");
        for arrival in case.sent_by(task as usize) {
            let now = dispatcher.clock().now();
            dispatcher.arrive(board, arrival, (now, now)).expect("its own");
        }
    }
    dispatcher.end(board)?;
    Ok(ran)
}

/// Runs all devices, each in a thread of its own, on clocks that start together.
fn all<T: Send>(case: &Case, board: &Board<'_>, run: impl Fn(Dispatcher) -> T + Sync) -> Vec<T> {
    let run = &run;
    thread::scope(|scope| {
        let made: Vec<Dispatcher> =
            (0..case.n_devices() as u32).map(|d| case.dispatcher(d, board, PATIENCE)).collect();
        let threads: Vec<_> = made.into_iter().map(|d| scope.spawn(move || run(d))).collect();
        threads.into_iter().map(|t| t.join().expect("no panic")).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Every task runs once, on its device, in each of two steps; a fixed order is kept.
    #[test]
    fn every_task_runs_once(case in cases()) {
        let memory = Memory::of(case.n_devices(), case.arrivals().len(), case.device.len());
        let board = memory.board();
        let ran = all(&case, &board, |mut dispatcher| {
            let first = stepped(&case, &mut dispatcher, &board);
            (first, stepped(&case, &mut dispatcher, &board))
        });
        for (device, (first, second)) in (0u32..).zip(ran) {
            let check = |ran: Vec<u32>| -> TestCaseResult {
                let mut sorted = ran.clone();
                sorted.sort_unstable();
                prop_assert_eq!(sorted, case.columns(device).tasks);
                let timed: Vec<u32> = ran.into_iter().filter(|&t| !case.at_once[t as usize]).collect();
                prop_assert!(!case.is_fixed || timed.is_sorted());
                Ok(())
            };
            check(first.expect("no deadlock"))?;
            check(second.expect("no deadlock"))?;
        }
    }

    /// On emulated devices no task starts before what it waits for is done, and ops take their time.
    #[test]
    fn emulated_tasks_wait(case in cases()) {
        let arrivals = case.arrivals();
        let memory = Memory::of(case.n_devices(), arrivals.len(), case.device.len());
        let board = memory.board();
        let told: Vec<(u32, u32)> = (0u32..).zip(&arrivals).map(|(i, w)| (i, case.device[w.1])).collect();
        let holds: Vec<(u32, u32)> = (0..arrivals.len() as u32).map(|i| (i, 0)).collect();
        let links = Links::new((case.n_devices(), 1), &holds, vec![2_000; arrivals.len()], &vec![-1; arrivals.len()], &told, Vec::new()).expect("links");
        let clock = Monotonic::starting(0);
        let ended = all(&case, &board, |dispatcher| {
            // One clock for all, to compare what they note.
            let part = Arc::new(dispatcher.part().clone());
            let mut dispatcher = Dispatcher::new(part, &board, clock, PATIENCE).expect("numbers of the board");
            let columns = case.columns(dispatcher.part().device.0);
            let length: Vec<(u32, u64)> =
                columns.tasks.iter().map(|&t| (t, if case.at_once[t as usize] { 0 } else { 5_000 })).collect();
            let after: Vec<(u32, u32)> =
                columns.tasks.iter().flat_map(|&t| case.sent_by(t as usize).map(move |i| (t, i))).collect();
            let device = Device::new(&dispatcher, &links, &length, &after).expect("a device");
            device.step(&mut dispatcher, &board, &links)
        });
        prop_assert!(ended.iter().all(Result::is_ok));
        for &(before, after) in &case.waits {
            let apart = if case.device[before] == case.device[after] { 0 } else { 2_000 };
            prop_assert!(memory.span(before).1 + apart <= memory.span(after).0);
        }
        for task in (0..case.device.len()).filter(|&t| !case.at_once[t]) {
            prop_assert!(memory.span(task).0 + 5_000 <= memory.span(task).1);
        }
    }
}

fn two_apart() -> Case {
    Case { device: vec![0, 1], at_once: vec![false; 2], waits: vec![(0, 1)], is_fixed: false }
}

#[test]
fn a_wait_without_news_ends_and_says_what_it_waits_for() {
    let case = two_apart();
    let memory = Memory::of(2, 1, 2);
    let board = memory.board();
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut first = case.dispatcher(0, &board, PATIENCE);
            first.begin(&board).expect("both come");
        });
        let mut second = case.dispatcher(1, &board, 300_000_000);
        second.begin(&board).expect("both come");
        assert_eq!(second.next(&board), Err(Ended::Overdue));
        let missing = second.missing();
        assert_eq!((missing[0].task, &missing[0].arrivals[..]), (1, &[0][..]));
    });
}

#[test]
fn a_device_that_never_comes_is_not_waited_for_long() {
    let memory = Memory::of(2, 1, 2);
    let board = memory.board();
    assert_eq!(two_apart().dispatcher(0, &board, 2_000_000).begin(&board), Err(Ended::Overdue));
}

#[test]
fn a_stopped_board_ends_every_wait() {
    let memory = Memory::of(2, 1, 2);
    let board = memory.board();
    board.stop();
    assert_eq!(two_apart().dispatcher(1, &board, PATIENCE).begin(&board), Err(Ended::Stopped));
}

#[test]
fn wrong_columns_are_refused() {
    let of = |columns: Columns| Part::new(DeviceId(0), false, columns).map(|_| ()).map_err(|e| e.to_string());
    let two =
        Columns { tasks: vec![0, 1], priority: vec![0; 2], at_once: vec![false; 2], ..Columns::default() };
    let circle = Columns { order: vec![(0, 1), (1, 0)], ..two.clone() };
    assert_eq!(of(circle), Err("order: task 0 waits for itself".to_owned()));
    let elsewhere = Columns { waits: vec![(0, 7)], ..two.clone() };
    assert_eq!(of(elsewhere), Err("waits: task 7 is none of device 0".to_owned()));
    let twice = Columns { tasks: vec![1, 1], ..two.clone() };
    assert_eq!(of(twice), Err("tasks: task 1 comes twice".to_owned()));
    let memory = Memory::of(1, 0, 1);
    let part = Arc::new(Part::new(DeviceId(0), false, two).expect("a part"));
    assert!(Dispatcher::new(part, &memory.board(), Monotonic::starting(0), 1).is_err());
}

#[test]
fn only_what_runs_can_end() {
    let memory = Memory::of(2, 1, 2);
    let board = memory.board();
    let mut dispatcher = two_apart().dispatcher(0, &board, PATIENCE);
    assert!(dispatcher.done(&board, 0).is_err());
    assert!(dispatcher.done(&board, 1).is_err());
    assert!(dispatcher.arrive(&board, 7, (0, 0)).is_err());
}

/// Two members, whose shares are tasks 0 and 1, and who wait for both shares as tasks 2 and 3.
#[test]
fn members_of_a_collective_end_together_and_hold_its_channels() {
    let memory = Memory::of(2, 2, 4);
    let board = memory.board();
    let told = [(0, 0), (0, 1), (1, 0), (1, 1)];
    let holds = [(0, 0), (1, 0)];
    let links = Links::new((2, 1), &holds, vec![40_000; 2], &[7, 7], &told, Vec::new()).expect("links");
    let clock = Monotonic::starting(0);
    thread::scope(|scope| {
        for device in 0..2u32 {
            let (board, links) = (&board, &links);
            scope.spawn(move || {
                let columns = Columns {
                    tasks: vec![device, device + 2],
                    priority: vec![0; 2],
                    at_once: vec![true; 2],
                    waits: vec![(0, device + 2), (1, device + 2)],
                    sends: vec![(device, 0), (device, 1)],
                    ..Columns::default()
                };
                let part = Arc::new(Part::new(DeviceId(device), false, columns).expect("a part"));
                let mut dispatcher =
                    Dispatcher::new(part, board, clock, PATIENCE).expect("numbers of the board");
                let one = Device::new(&dispatcher, links, &[], &[(device, device)]).expect("a device");
                for _ in 0..3 {
                    one.step(&mut dispatcher, board, links).expect("no deadlock");
                }
            });
        }
    });
    let both = [0, 1].map(|a| {
        let words = &memory.arrivals[PER_ARRIVAL * a..PER_ARRIVAL * (a + 1)];
        (Memory::word(words, 0), Memory::word(words, 1), Memory::word(words, 2))
    });
    assert_eq!(both[0], both[1]);
    assert_eq!((both[0].0, both[0].2 - both[0].1), (3, 40_000));
    let shares = memory.span(0).1.max(memory.span(1).1);
    assert!(shares <= both[0].1 && both[0].2 <= memory.span(2).0.min(memory.span(3).0));
}

#[test]
fn links_refuse_what_is_not_there() {
    let links = |holds: &[(u32, u32)], told: &[(u32, u32)], first: Vec<u32>| {
        Links::new((1, 1), holds, vec![1], &[-1], told, first).map(|_| ()).map_err(|e| e.to_string())
    };
    assert_eq!(links(&[(0, 1)], &[], vec![]), Err("holds: arrival 0 holds channel 1".to_owned()));
    assert_eq!(links(&[], &[(0, 3)], vec![]), Err("told: device 3 of arrival 0".to_owned()));
    assert_eq!(links(&[], &[], vec![9]), Err("first: arrival 9 of 1".to_owned()));
}
