//! Checks of values that come from a user.

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
