//! Rows of positions that are still to be worked out: a set of small numbers, read in order.

/// A set of rows.
#[derive(Clone, Debug)]
pub struct Rows {
    words: Vec<u64>,
    /// All that have been in it since it was last empty.
    marked: Vec<u32>,
}

impl Rows {
    /// None of `n`.
    pub fn new(n: usize) -> Self {
        Self { words: vec![0; n.div_ceil(64)], marked: Vec::with_capacity(n) }
    }

    /// Puts a row in.
    #[inline(always)]
    pub fn mark(&mut self, row: usize) {
        let (word, bit) = (&mut self.words[row / 64], 1 << (row % 64));
        if *word & bit == 0 {
            *word |= bit;
            self.marked.push(row as u32);
        }
    }

    /// Whether a row is in.
    #[inline(always)]
    pub fn has(&self, row: usize) -> bool {
        self.words[row / 64] >> (row % 64) & 1 == 1
    }

    /// The first from a row on.
    pub fn first_from(&self, row: usize) -> Option<usize> {
        let mut at = row / 64;
        let mut word = *self.words.get(at)? & (u64::MAX << (row % 64));
        while word == 0 {
            at += 1;
            word = *self.words.get(at)?;
        }
        Some(at * 64 + word.trailing_zeros() as usize)
    }

    /// The last before a row.
    pub fn last_before(&self, row: usize) -> Option<usize> {
        let last = row.checked_sub(1)?;
        let mut at = last / 64;
        let mut word = self.words[at] & (u64::MAX >> (63 - last % 64));
        while word == 0 {
            at = at.checked_sub(1)?;
            word = self.words[at];
        }
        Some(at * 64 + 63 - word.leading_zeros() as usize)
    }

    /// Takes all out.
    pub fn clear(&mut self) {
        for row in self.marked.drain(..) {
            self.words[row as usize / 64] &= !(1 << (row % 64));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Rows;

    #[test]
    fn rows_are_found_both_ways() {
        let mut rows = Rows::new(200);
        for row in [0, 63, 64, 199, 64] {
            rows.mark(row);
        }
        assert_eq!(rows.first_from(0), Some(0));
        assert_eq!(rows.first_from(1), Some(63));
        assert_eq!(rows.first_from(65), Some(199));
        assert_eq!(rows.first_from(200), None);
        assert_eq!(rows.last_before(200), Some(199));
        assert_eq!(rows.last_before(199), Some(64));
        assert_eq!(rows.last_before(63), Some(0));
        assert_eq!(rows.last_before(0), None);
        assert!(rows.has(64) && !rows.has(65));
        rows.clear();
        assert_eq!(rows.first_from(0), None);
    }
}
