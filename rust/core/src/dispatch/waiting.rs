//! Waiting for a point in time, on a clock that all processes of a machine share.

use std::time::{Duration, Instant};

/// Nanoseconds before the end of a wait from which on a thread no longer sleeps: about what the kernel
/// takes to wake it.
const WAKING: u64 = 60_000;

/// Nanoseconds of the longest sleep of a thread that waits for news from other devices.
const NAP: u64 = 20_000;

/// Nanoseconds of the longest sleep of a thread that waits for a point in time; then it looks whether it
/// is to stop.
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

    /// Waits for a point in time, or for part of the way there.
    pub(super) fn wait_towards(&self, clock: u64) {
        let left = clock.saturating_sub(self.now());
        if left > WAKING {
            std::thread::sleep(Duration::from_nanos((left - WAKING).min(DOZE)));
        } else {
            std::thread::yield_now();
        }
    }

    /// Waits for news, at most until a point in time.
    pub(super) fn wait_for_news(&self, clock: u64) {
        let left = clock.saturating_sub(self.now());
        if left > WAKING {
            std::thread::sleep(Duration::from_nanos(NAP));
        } else {
            std::thread::yield_now();
        }
    }
}
