//! Seconds outside, whole ticks inside.
//!
//! Sums of floats depend on the order of addition, so two finishes that are equal on paper differ
//! in the last bit and ties break by noise. Every algorithm here counts in integer ticks instead.
//! The clock picks the finest decimal tick for which the whole problem still fits in 2^53 ticks. So
//! ticks convert to `f64` seconds and back exactly, and times given in whole microseconds stay
//! whole.

use crate::error::Error;

/// A point in time or a duration, in ticks of some [`Clock`].
pub type Ticks = u64;

/// The largest number of ticks a problem may span: exact in `f64`.
const LIMIT: f64 = 9_007_199_254_740_992.0;

/// Finest tick: 10^-15 s.
const FINEST: i32 = 15;

/// Converts between seconds and ticks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Clock {
    ticks_per_second: f64,
}

impl Clock {
    /// The clock for a problem in which no sum of times exceeds `horizon` seconds.
    pub fn for_horizon(horizon: f64) -> Result<Self, Error> {
        if !(0.0..=1e290).contains(&horizon) {
            return Err(Error::HorizonTooLong { seconds: horizon });
        }
        let exponent =
            if horizon > 0.0 { ((LIMIT / horizon).log10().floor() as i32).min(FINEST) } else { FINEST };
        Ok(Self { ticks_per_second: 10f64.powi(exponent) })
    }

    /// Seconds to the nearest tick.
    #[inline(always)]
    pub fn ticks(self, seconds: f64) -> Ticks {
        // Through a signed integer, to which processors convert floats in one instruction.
        ((seconds * self.ticks_per_second + 0.5) as i64).max(0) as Ticks
    }

    /// Ticks to seconds.
    #[inline(always)]
    pub fn seconds(self, ticks: Ticks) -> f64 {
        ticks as i64 as f64 / self.ticks_per_second
    }

    /// A whole column of seconds.
    pub fn ticks_of(self, seconds: &[f64]) -> Vec<Ticks> {
        seconds.iter().map(|&s| self.ticks(s)).collect()
    }

    /// A whole column of ticks.
    pub fn seconds_of(self, ticks: &[Ticks]) -> Vec<f64> {
        ticks.iter().map(|&t| self.seconds(t)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimal_times_stay_exact() {
        let clock = Clock::for_horizon(1.0).unwrap();
        assert_eq!(clock.ticks(0.1) + clock.ticks(0.2), clock.ticks(0.3));
        assert_eq!(clock.seconds(clock.ticks(0.3)), 0.3);
    }

    #[test]
    fn long_horizons_get_coarser_ticks() {
        let clock = Clock::for_horizon(5e8).unwrap();
        assert_eq!(clock.seconds(clock.ticks(123_456.0)), 123_456.0);
        assert!(Clock::for_horizon(f64::INFINITY).is_err());
        assert!(Clock::for_horizon(1e280).is_ok());
    }
}
