//! Waiting: for a point in time, on a clock that all processes of a machine share, and for news.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

/// Nanoseconds before the end of a wait from which on a thread no longer sleeps: about what a machine takes
/// to wake it (measured: half of all wakes within 17 us, nine of ten within 35 us).
const WAKING: u64 = 30_000;

/// Nanoseconds for which a thread that nobody wakes looks for news again and again before it naps, where its
/// core may have other work. A nap is noticed: it ends later than the news came.
pub(super) const ALERT: u64 = 50_000;

/// Nanoseconds of a nap of a thread that nobody wakes.
const NAP: u64 = 20_000;

/// Nanoseconds of the longest sleep; then a thread looks whether it is to stop.
const DOZE: u64 = 50_000_000;

/// A clock that says what the machine's monotonic clock says, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Monotonic {
    base: Instant,
    at_base: u64,
}

impl Monotonic {
    /// From what the machine's clock says now.
    pub fn starting(nanoseconds: u64) -> Self {
        Self { base: Instant::now(), at_base: nanoseconds }
    }

    /// Nanoseconds.
    pub fn now(&self) -> u64 {
        self.at_base + self.base.elapsed().as_nanos() as u64
    }
}

/// The thread of a device, once it is known.
pub(super) type Bell = Mutex<Option<Thread>>;

/// The threads of devices that share a process, so that one can wake another.
#[derive(Debug)]
pub struct Bells(Vec<Bell>);

impl Bells {
    /// For so many devices.
    pub fn new(n_devices: usize) -> Self {
        Self((0..n_devices).map(|_| Mutex::new(None)).collect())
    }

    /// Notes that this thread is a device's.
    fn hung(&self, device: usize) {
        if let Some(bell) = self.0.get(device) {
            *bell.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread::current());
        }
    }

    fn ring(&self, device: usize) {
        if let Some(bell) = self.0.get(device)
            && let Some(thread) = &*bell.lock().unwrap_or_else(PoisonError::into_inner)
        {
            thread.unpark();
        }
    }
}

/// How a device waits.
#[derive(Clone, Debug)]
pub enum Waiting {
    /// It looks at the board again and again, for so many nanoseconds after the last news, then naps in between:
    /// processes cannot wake each other.
    Looking(u64),
    /// It sleeps until another thread of the process rings.
    Woken(Arc<Bells>),
}

impl Waiting {
    /// Notes that this thread is a device's.
    pub(super) fn here(&self, device: usize) {
        if let Self::Woken(bells) = self {
            bells.hung(device);
        }
    }

    /// Wakes some devices.
    pub(super) fn ring(&self, devices: impl Iterator<Item = usize>) {
        if let Self::Woken(bells) = self {
            devices.for_each(|device| bells.ring(device));
        }
    }

    /// Waits, at most until a point in time, and not always as long. The last news came at `heard`.
    pub(super) fn wait(&self, clock: Monotonic, until: u64, heard: u64) {
        let now = clock.now();
        let left = until.saturating_sub(now);
        match self {
            // A thread that yields its core on a busy machine does not get it back for milliseconds.
            _ if left <= WAKING => std::hint::spin_loop(),
            Self::Woken(_) => thread::park_timeout(Duration::from_nanos((left - WAKING).min(DOZE))),
            Self::Looking(alert) if now.saturating_sub(heard) < *alert => std::hint::spin_loop(),
            Self::Looking(_) => thread::sleep(Duration::from_nanos(NAP.min(left - WAKING))),
        }
    }
}
