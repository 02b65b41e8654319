//! The loop of one device: which task comes next, and what it waits for.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use crate::dispatch::board::Board;
use crate::dispatch::part::{Part, wrong};
use crate::dispatch::waiting::{ALERT, Bells, Monotonic, Waiting};
use crate::error::Error;

/// Nanoseconds between the moment when all devices have come to a step and its begin, so that all of them
/// know of it before.
const LEAD: u64 = 300_000;

/// Why a device gave up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Nothing happened for as long as it has patience.
    Overdue,
    /// It was told to stop.
    Stopped,
}

/// A task that has not started, and what it still waits for, by the board's numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// The task.
    pub task: u32,
    /// Arrivals that are not there.
    pub arrivals: Vec<u32>,
    /// Tasks of the same device that are not done.
    pub tasks: Vec<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waits,
    Runs,
    Done,
}

/// Says which task of a device comes next.
#[derive(Clone, Debug)]
pub struct Dispatcher {
    part: Arc<Part>,
    clock: Monotonic,
    waiting: Waiting,
    /// Nanoseconds without news after which it gives up.
    patience: u64,
    step: u64,
    state: Vec<State>,
    missing: Vec<u32>,
    ready: BinaryHeap<Reverse<u32>>,
    /// Of a fixed order, the next task.
    next_fixed: usize,
    left: usize,
    /// Arrivals of which the board does not say when they count.
    outstanding: Vec<u32>,
    /// Those of which it does.
    known: BinaryHeap<Reverse<(u64, u32)>>,
    seen: u64,
    /// When it last had news.
    heard: u64,
}

impl Dispatcher {
    /// A dispatcher of a part, which gives up after so many nanoseconds without news.
    ///
    /// # Errors
    /// A part with numbers that the board does not have.
    pub fn new(part: Arc<Part>, board: &Board<'_>, clock: Monotonic, patience: u64) -> Result<Self, Error> {
        let devices = [part.device.0].into_iter().chain(part.told.items().iter().copied());
        let arrivals = part.arrivals.iter().chain(&part.sends).copied();
        for (argument, most, n) in [
            ("device", devices.max(), board.n_devices()),
            ("arrivals", arrivals.max(), board.n_arrivals()),
            ("tasks", part.tasks.iter().copied().max(), board.n_tasks()),
        ] {
            if most.is_some_and(|number| number as usize >= n) {
                return Err(wrong(argument, format!("{} of {n} on the board", most.unwrap_or(0))));
            }
        }
        Ok(Self {
            clock,
            waiting: Waiting::Looking(ALERT),
            patience,
            step: 0,
            state: vec![State::Done; part.tasks.len()],
            missing: vec![0; part.tasks.len()],
            ready: BinaryHeap::new(),
            next_fixed: 0,
            left: 0,
            outstanding: Vec::new(),
            known: BinaryHeap::new(),
            seen: 0,
            heard: 0,
            part,
        })
    }

    /// Has other threads of the process wake the device, instead of looking for news again and again.
    pub fn wake_by(&mut self, bells: Arc<Bells>) {
        self.waiting = Waiting::Woken(bells);
    }

    /// Has it look for news for so many nanoseconds after the last before it naps: it may do so for long where
    /// the core is its own.
    pub fn stay_alert(&mut self, nanoseconds: u64) {
        self.waiting = Waiting::Looking(nanoseconds);
    }

    /// The part that it runs.
    pub fn part(&self) -> &Part {
        &self.part
    }

    /// Its clock.
    pub fn clock(&self) -> Monotonic {
        self.clock
    }

    /// Comes to the next step, and waits until it begins for all devices; when that is.
    pub fn begin(&mut self, board: &Board<'_>) -> Result<u64, Ended> {
        self.reset();
        let (device, step, clock) = (self.part.device, self.step, self.clock);
        self.waiting.here(device.ix());
        board.come(device, step);
        self.waiting.ring(0..1);
        let begins = loop {
            if let Some(begins) = board.opened(step) {
                break begins;
            }
            if device.0 == 0 && board.all_came(step) {
                board.open(step, clock.now() + LEAD);
                self.waiting.ring(0..board.n_devices());
                continue;
            }
            self.check(board, clock.now())?;
            self.wait(u64::MAX);
        };
        while clock.now() < begins {
            self.wait(begins);
        }
        self.heard = begins;
        Ok(begins)
    }

    /// Waits until all devices have ended the step.
    pub fn end(&mut self, board: &Board<'_>) -> Result<(), Ended> {
        board.end(self.part.device, self.step);
        self.waiting.ring(0..board.n_devices());
        while !board.all_ended(self.step) {
            self.check(board, self.clock.now())?;
            self.wait(u64::MAX);
        }
        Ok(())
    }

    /// Waits for news, at most until a point in time.
    pub(super) fn wait(&self, until: u64) {
        self.waiting.wait(self.clock, until, self.heard);
    }

    fn reset(&mut self) {
        self.step += 1;
        self.state.fill(State::Waits);
        self.missing.copy_from_slice(&self.part.missing);
        self.ready.clear();
        let ready = (0..).zip(&self.missing).filter(|(_, missing)| **missing == 0);
        self.ready.extend(ready.map(|(task, _)| Reverse(task)));
        self.next_fixed = self.part.n_at_once;
        self.left = self.part.tasks.len();
        self.outstanding = (0..self.part.arrivals.len() as u32).collect();
        self.known.clear();
        self.seen = u64::MAX;
        self.heard = self.clock.now();
    }

    /// Whether to give up.
    pub(super) fn check(&self, board: &Board<'_>, now: u64) -> Result<(), Ended> {
        if board.is_stopped() {
            return Err(Ended::Stopped);
        }
        if now > self.heard.saturating_add(self.patience) { Err(Ended::Overdue) } else { Ok(()) }
    }

    /// Whether all tasks are done.
    pub fn is_done(&self) -> bool {
        self.left == 0
    }

    /// Takes up what has arrived by now.
    pub(super) fn look(&mut self, board: &Board<'_>, now: u64) {
        let sent = board.sent_to(self.part.device);
        if sent != self.seen {
            self.seen = sent;
            let (part, step, known) = (&self.part, self.step, &mut self.known);
            self.outstanding.retain(|&i| match board.arrival(part.arrivals[i as usize], step) {
                None => true,
                Some(clock) => {
                    known.push(Reverse((clock, i)));
                    false
                }
            });
        }
        while let Some(&Reverse((clock, arrival))) = self.known.peek()
            && clock <= now
        {
            self.known.pop();
            self.heard = now;
            let part = Arc::clone(&self.part);
            part.waiting.row(arrival as usize).iter().for_each(|&task| self.release(task));
        }
    }

    fn release(&mut self, task: u32) {
        self.missing[task as usize] -= 1;
        if self.missing[task as usize] == 0 {
            self.ready.push(Reverse(task));
        }
    }

    /// The next point in time that it knows something will arrive at.
    pub(super) fn due(&self) -> Option<u64> {
        self.known.peek().map(|known| known.0.0)
    }

    /// Starts the next task that can start, if one can: one that runs at once, or any.
    pub(super) fn take(&mut self, at_once: bool) -> Option<u32> {
        let n_at_once = self.part.n_at_once as u32;
        let first = self.ready.peek().map(|first| first.0);
        let task = match first {
            Some(task) if task < n_at_once => task,
            _ if at_once => return None,
            _ if self.part.is_fixed => {
                let task = self.next_fixed;
                if self.missing.get(task) != Some(&0) {
                    return None;
                }
                self.next_fixed += 1;
                task as u32
            }
            first => first?,
        };
        // The others of a fixed order are taken by their places, and stay in the heap.
        if !self.part.is_fixed || task < n_at_once {
            self.ready.pop();
        }
        self.state[task as usize] = State::Runs;
        Some(task)
    }

    /// Starts the next task, and waits until one can start; its number on the board, or none once all are
    /// done.
    pub fn next(&mut self, board: &Board<'_>) -> Result<Option<u32>, Ended> {
        loop {
            let now = self.clock.now();
            self.look(board, now);
            if let Some(task) = self.take(false) {
                let number = self.part.tasks[task as usize];
                board.started(number, now);
                return Ok(Some(number));
            }
            if self.left == 0 {
                return Ok(None);
            }
            self.check(board, now)?;
            self.wait(self.due().unwrap_or(u64::MAX));
        }
    }

    /// Ends a task, given by its number on the board.
    ///
    /// # Errors
    /// A task of another device, or one that does not run.
    pub fn done(&mut self, board: &Board<'_>, task: u32) -> Result<(), Error> {
        let place = self.part.place("task", task)?;
        if self.state[place as usize] != State::Runs {
            return Err(wrong("task", format!("task {task} does not run")));
        }
        self.finish(board, place, self.clock.now());
        Ok(())
    }

    /// Ends a task, given by its place.
    pub(super) fn finish(&mut self, board: &Board<'_>, task: u32, now: u64) {
        board.finished(self.part.tasks[task as usize], now);
        self.state[task as usize] = State::Done;
        self.left -= 1;
        self.heard = now;
        let part = Arc::clone(&self.part);
        part.next.row(task as usize).iter().for_each(|&later| self.release(later));
    }

    /// Tells those who wait for an arrival of it: when it began to be sent, and from when on it counts.
    ///
    /// # Errors
    /// An arrival that another device sends.
    pub fn arrive(&self, board: &Board<'_>, arrival: u32, span: (u64, u64)) -> Result<(), Error> {
        self.post(board, arrival, span, self.part.tells(arrival)?);
        Ok(())
    }

    /// Tells some devices of an arrival.
    pub(super) fn post(&self, board: &Board<'_>, arrival: u32, span: (u64, u64), told: &[u32]) {
        board.post(arrival, self.step, span, told);
        self.waiting.ring(told.iter().map(|&device| device as usize));
    }

    /// The tasks that have not started, and what they wait for, in the order of the device.
    pub fn missing(&self) -> Vec<Missing> {
        let (part, n) = (&self.part, self.part.tasks.len());
        let mut missing: Vec<Missing> = part
            .tasks
            .iter()
            .map(|&task| Missing { task, arrivals: Vec::new(), tasks: Vec::new() })
            .collect();
        for &i in self.outstanding.iter().chain(self.known.iter().map(|known| &known.0.1)) {
            let waiting = part.waiting.row(i as usize).iter();
            waiting.for_each(|&task| missing[task as usize].arrivals.push(part.arrivals[i as usize]));
        }
        for before in (0..n).filter(|&task| self.state[task] != State::Done) {
            let later = part.next.row(before).iter();
            later.for_each(|&task| missing[task as usize].tasks.push(part.tasks[before]));
        }
        let waits = missing.into_iter().zip(&self.state).filter(|(_, state)| **state == State::Waits);
        waits.map(|(missing, _)| missing).collect()
    }
}
