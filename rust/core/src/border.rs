//! Checks of values that come from a user.

use std::hint::black_box;

use crate::error::Error;

/// The most bytes that a number which a caller gives may ask for.
const MOST_BYTES: usize = 1 << 34;

/// Refuses a number of things, of so many bytes each, for which there is no room. It is asked before
/// they are allocated: an allocation that fails ends the process.
///
/// # Errors
/// More bytes than are supported, or than the system gives.
pub fn check_room(argument: &'static str, count: usize, bytes_each: usize) -> Result<(), Error> {
    let bytes = count.saturating_mul(bytes_each);
    let mut room = Vec::<u8>::new();
    if bytes <= MOST_BYTES && black_box(&mut room).try_reserve_exact(bytes).is_ok() {
        return Ok(());
    }
    Err(Error::NoRoom { argument, count, bytes: bytes as u64 })
}

/// Position of the first wrong value. A pass without branches looks for any first, since wrong
/// values are rare.
pub fn first_wrong<T: Copy>(values: &[T], is_wrong: impl Fn(T) -> bool) -> Option<usize> {
    let any = values.iter().fold(false, |any, &value| any | is_wrong(value));
    any.then(|| values.iter().position(|&value| is_wrong(value))).flatten()
}

/// Whether seconds are not finite or negative.
#[inline(always)]
pub fn is_no_time(seconds: f64) -> bool {
    !(0.0..=f64::MAX).contains(&seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_there_is_no_room_for_is_refused_before_it_is_allocated() {
        assert_eq!(check_room("n", 1 << 20, 8), Ok(()));
        for (count, each) in [(1 << 32, 1048), (usize::MAX, usize::MAX), (MOST_BYTES + 1, 1)] {
            let error = check_room("n", count, each).expect_err("no room").to_string();
            assert!(error.starts_with(&format!("n is {count}: that would take ")), "{error}");
        }
    }
}
