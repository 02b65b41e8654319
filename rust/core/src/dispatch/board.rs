//! What all devices of a run see: words that only grow, in memory that they share.
//!
//! A step has a number, from 1 on, and no word is ever set back: an arrival of a step is there once its
//! word holds the step's number. Whoever reads that word (Acquire) sees what the device that wrote it
//! (Release) had written before, the tensor that it sent too.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::border::check_room;
use crate::error::Error;
use crate::ids::DeviceId;

/// Words per arrival: the last step it came in, when that began to be sent, and from when on it counts.
pub const PER_ARRIVAL: usize = 3;

/// Words per task: its last start and finish.
pub const PER_TASK: usize = 2;

/// Words of the gates that are of no device: whether to stop, the last step that was opened, and when it
/// begins.
const OF_ALL: usize = 3;

/// Words of the gates per device: the steps it has come to, and has ended, and what was sent to it so far.
const PER_DEVICE: usize = 3;

/// Words that the gates of so many devices take.
pub fn gate_words(n_devices: usize) -> usize {
    OF_ALL + PER_DEVICE * n_devices
}

/// Words of gates, arrivals and tasks.
///
/// # Errors
/// More than there is room for.
pub fn words(n_devices: usize, n_arrivals: usize, n_tasks: usize) -> Result<[usize; 3], Error> {
    for (argument, count, per_one) in [
        ("n_devices", n_devices, PER_DEVICE),
        ("n_arrivals", n_arrivals, PER_ARRIVAL),
        ("n_tasks", n_tasks, PER_TASK),
    ] {
        check_room(argument, count, per_one * size_of::<AtomicU64>())?;
    }
    Ok([gate_words(n_devices), PER_ARRIVAL * n_arrivals, PER_TASK * n_tasks])
}

/// Words in shared memory; clocks are in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Board<'a> {
    gates: &'a [AtomicU64],
    arrivals: &'a [AtomicU64],
    tasks: &'a [AtomicU64],
}

impl<'a> Board<'a> {
    /// A board in memory that is all 0 at first.
    ///
    /// # Errors
    /// A part of the memory with a number of words that no board has.
    pub fn new(
        gates: &'a [AtomicU64],
        arrivals: &'a [AtomicU64],
        tasks: &'a [AtomicU64],
    ) -> Result<Self, Error> {
        let rest = gates.len().checked_sub(gate_words(1)).map(|over| over % PER_DEVICE);
        for (argument, is_right) in [
            ("gates", rest == Some(0)),
            ("arrivals", arrivals.len().is_multiple_of(PER_ARRIVAL)),
            ("tasks", tasks.len().is_multiple_of(PER_TASK)),
        ] {
            if !is_right {
                let reason = "a number of words that no board has".to_owned();
                return Err(Error::BadArgument { argument, reason });
            }
        }
        Ok(Self { gates, arrivals, tasks })
    }

    /// Number of devices.
    pub fn n_devices(&self) -> usize {
        (self.gates.len() - OF_ALL) / PER_DEVICE
    }

    /// Number of arrivals.
    pub fn n_arrivals(&self) -> usize {
        self.arrivals.len() / PER_ARRIVAL
    }

    /// Number of tasks.
    pub fn n_tasks(&self) -> usize {
        self.tasks.len() / PER_TASK
    }

    /// Has every device give up its step.
    pub fn stop(&self) {
        self.gates[0].store(1, Release);
    }

    /// Whether devices are to give up.
    pub fn is_stopped(&self) -> bool {
        self.gates[0].load(Acquire) != 0
    }

    fn device(&self, device: DeviceId, word: usize) -> &AtomicU64 {
        &self.gates[OF_ALL + PER_DEVICE * device.ix() + word]
    }

    fn all(&self, word: usize, step: u64) -> bool {
        let words = self.gates[OF_ALL + word..].iter().step_by(PER_DEVICE);
        words.into_iter().all(|reached| reached.load(Acquire) >= step)
    }

    /// Notes that a device has come to a step.
    pub(super) fn come(&self, device: DeviceId, step: u64) {
        self.device(device, 0).store(step, Release);
    }

    /// Whether all devices have come to a step.
    pub(super) fn all_came(&self, step: u64) -> bool {
        self.all(0, step)
    }

    /// Notes that a device has ended a step.
    pub(super) fn end(&self, device: DeviceId, step: u64) {
        self.device(device, 1).store(step, Release);
    }

    /// Whether all devices have ended a step.
    pub(super) fn all_ended(&self, step: u64) -> bool {
        self.all(1, step)
    }

    /// Opens a step for all devices.
    pub(super) fn open(&self, step: u64, clock: u64) {
        self.gates[2].store(clock, Relaxed);
        self.gates[1].store(step, Release);
    }

    /// When a step begins, once that is known.
    pub(super) fn opened(&self, step: u64) -> Option<u64> {
        (self.gates[1].load(Acquire) >= step).then(|| self.gates[2].load(Relaxed))
    }

    /// How much was sent to a device so far: it changes with every arrival.
    pub(super) fn sent_to(&self, device: DeviceId) -> u64 {
        self.device(device, 2).load(Acquire)
    }

    /// From when on an arrival of a step counts, once that is known.
    pub(super) fn arrival(&self, arrival: u32, step: u64) -> Option<u64> {
        let words = &self.arrivals[PER_ARRIVAL * arrival as usize..];
        (words[0].load(Acquire) >= step).then(|| words[2].load(Relaxed))
    }

    /// Tells some devices of an arrival.
    pub(super) fn post(&self, arrival: u32, step: u64, span: (u64, u64), to: &[u32]) {
        let words = &self.arrivals[PER_ARRIVAL * arrival as usize..];
        words[1].store(span.0, Relaxed);
        words[2].store(span.1, Relaxed);
        words[0].store(step, Release);
        for &device in to {
            self.device(DeviceId(device), 2).fetch_add(1, Release);
        }
    }

    /// Notes when a task started.
    pub(super) fn started(&self, task: u32, clock: u64) {
        self.tasks[PER_TASK * task as usize].store(clock, Relaxed);
    }

    /// Notes when a task ended.
    pub(super) fn finished(&self, task: u32, clock: u64) {
        self.tasks[PER_TASK * task as usize + 1].store(clock, Relaxed);
    }
}
