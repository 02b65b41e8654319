//! A set of small numbers whose smallest member is found in four steps. It has words of bits, and
//! above them words that say which of the words below are not empty.
//!
//! O(1) to insert, to remove and to find the smallest. The only branch is on whether the set is
//! empty. Branches on which words are empty would be mispredicted.

/// Levels of words of 64 bits: enough for numbers below 2^24,
/// [`MAX_ITEMS`](crate::graph::MAX_ITEMS).
const LEVELS: usize = 4;

/// A set of numbers below a limit.
#[derive(Clone, Debug)]
pub struct RankSet {
    /// Bits of members, then per level one bit for each word below that is not empty.
    levels: [Vec<u64>; LEVELS],
}

impl RankSet {
    /// An empty set for numbers below `limit`, which is 2^24 at most.
    pub fn new(limit: usize) -> Self {
        let mut words = limit;
        let level = |_| {
            words = words.div_ceil(64).max(1);
            vec![0; words]
        };
        let levels = std::array::from_fn(level);
        debug_assert_eq!(words, 1, "the last level is one word");
        Self { levels }
    }

    /// Adds a number.
    #[inline(always)]
    pub fn insert(&mut self, number: u32) {
        let mut at = number as usize;
        for level in &mut self.levels {
            level[at / 64] |= 1 << (at % 64);
            at /= 64;
        }
    }

    /// Takes a number out, if it is in.
    #[inline(always)]
    pub fn remove(&mut self, number: u32) {
        if self.is_empty() {
            return;
        }
        let mut at = number as usize;
        let mut is_gone = true;
        for level in &mut self.levels {
            let word = &mut level[at / 64];
            *word &= !(u64::from(is_gone) << (at % 64));
            is_gone = *word == 0;
            at /= 64;
        }
    }

    /// Whether it has no number.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.levels[LEVELS - 1][0] == 0
    }

    /// Takes the smallest number out.
    #[inline(always)]
    pub fn take_first(&mut self) -> Option<u32> {
        let number = self.first()?;
        self.remove(number);
        Some(number)
    }

    /// The smallest number.
    #[inline(always)]
    pub fn first(&self) -> Option<u32> {
        if self.is_empty() {
            return None;
        }
        let mut at = self.levels[LEVELS - 1][0].trailing_zeros() as usize;
        for level in self.levels[..LEVELS - 1].iter().rev() {
            at = at * 64 + level[at].trailing_zeros() as usize;
        }
        Some(at as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn behaves_as_a_sorted_set() {
        for limit in [1u32, 64, 65, 5000] {
            let (mut set, mut plain) = (RankSet::new(limit as usize), BTreeSet::new());
            let mut state = 7u32;
            for _ in 0..3000 {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let number = (state >> 8) % limit;
                if state >> 31 == 0 {
                    set.insert(number);
                    plain.insert(number);
                } else {
                    set.remove(number);
                    plain.remove(&number);
                }
                assert_eq!(set.first(), plain.first().copied());
            }
        }
    }
}
