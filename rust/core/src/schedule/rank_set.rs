//! A set of small numbers whose smallest member is found in three steps: words of bits, and above them
//! words that say which of those are not empty.
//!
//! O(log64 n) to insert, remove and find the smallest.

/// A set of numbers below a limit.
#[derive(Clone, Debug)]
pub struct RankSet {
    /// Bits of members, then per level one bit for each word below that is not empty.
    levels: Vec<Vec<u64>>,
    /// The same of the last level: a set is empty if this is.
    root: u64,
}

impl RankSet {
    /// Empty, for numbers below `limit`.
    pub fn new(limit: usize) -> Self {
        let mut levels = vec![vec![0u64; limit.div_ceil(64)]];
        while levels[levels.len() - 1].len() > 64 {
            let words = levels[levels.len() - 1].len().div_ceil(64);
            levels.push(vec![0; words]);
        }
        Self { levels, root: 0 }
    }

    /// Adds a number.
    #[inline(always)]
    pub fn insert(&mut self, number: u32) {
        let mut at = number as usize;
        for level in &mut self.levels {
            let word = &mut level[at / 64];
            let was_empty = *word == 0;
            *word |= 1 << (at % 64);
            if !was_empty {
                return;
            }
            at /= 64;
        }
        self.root |= 1 << at;
    }

    /// Takes a number out, if it is in.
    #[inline(always)]
    pub fn remove(&mut self, number: u32) {
        if self.is_empty() {
            return;
        }
        let mut at = number as usize;
        for level in &mut self.levels {
            let word = &mut level[at / 64];
            let bit = 1 << (at % 64);
            if *word & bit == 0 {
                return;
            }
            *word ^= bit;
            if *word != 0 {
                return;
            }
            at /= 64;
        }
        self.root ^= 1 << at;
    }

    /// Whether it has no number.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.root == 0
    }

    /// The smallest number.
    #[inline(always)]
    pub fn first(&self) -> Option<u32> {
        if self.is_empty() {
            return None;
        }
        let words = self.levels.iter().rev();
        let first =
            words.fold(self.root.trailing_zeros(), |at, level| at * 64 + level[at as usize].trailing_zeros());
        Some(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn behaves_as_a_sorted_set() {
        for limit in [1u32, 64, 65, 4096, 4097, 300_000] {
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
                assert_eq!((set.first(), set.is_empty()), (plain.first().copied(), plain.is_empty()));
            }
        }
    }
}
