//! Rows of positions that are still to be worked out: a set of small numbers, read in order.

/// A set of rows.
#[derive(Clone, Debug)]
pub struct Rows {
    words: Vec<u64>,
}

impl Rows {
    /// An empty set, for rows below `n`.
    pub fn new(n: usize) -> Self {
        Self { words: vec![0; n.div_ceil(64)] }
    }

    /// Puts a row in.
    #[inline(always)]
    pub fn mark(&mut self, row: usize) {
        self.words[row / 64] |= 1 << (row % 64);
    }

    /// Puts a row in if `is_in`, without a branch, which would be mispredicted where that is hard
    /// to foresee.
    #[inline(always)]
    pub fn mark_if(&mut self, is_in: bool, row: usize) {
        self.words[row / 64] |= u64::from(is_in) << (row % 64);
    }

    /// Puts a row in or takes it out.
    pub fn set(&mut self, row: usize, is_in: bool) {
        let word = &mut self.words[row / 64];
        *word = *word & !(1 << (row % 64)) | u64::from(is_in) << (row % 64);
    }

    /// Puts all rows from `first` to `last` in.
    pub fn mark_range(&mut self, first: usize, last: usize) {
        let (head, tail) = (u64::MAX << (first % 64), u64::MAX >> (63 - last % 64));
        let words = &mut self.words[first / 64..=last / 64];
        match words {
            [word] => *word |= head & tail,
            [from, between @ .., to] => {
                *from |= head;
                between.fill(u64::MAX);
                *to |= tail;
            }
            [] => {}
        }
    }

    /// Becomes a copy of a set for the same number of rows.
    pub fn copy_from(&mut self, other: &Self) {
        self.words.copy_from_slice(&other.words);
    }

    /// Puts in all rows of another set for the same number of rows.
    pub fn join(&mut self, other: &Self) {
        self.words.iter_mut().zip(&other.words).for_each(|(word, other)| *word |= other);
    }

    /// For every row of another set for the same number of rows: takes the row out if it is in,
    /// else puts it in.
    pub fn toggle(&mut self, other: &Self) {
        self.words.iter_mut().zip(&other.words).for_each(|(word, other)| *word ^= other);
    }

    /// Whether a row is in.
    #[inline(always)]
    pub fn has(&self, row: usize) -> bool {
        self.words[row / 64] >> (row % 64) & 1 == 1
    }

    /// The first row of the set from `row` on.
    pub fn first_from(&self, row: usize) -> Option<usize> {
        let mut at = row / 64;
        let mut word = *self.words.get(at)? & (u64::MAX << (row % 64));
        while word == 0 {
            at += 1;
            word = *self.words.get(at)?;
        }
        Some(at * 64 + word.trailing_zeros() as usize)
    }

    /// The last row of the set before `row`.
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
        self.words.fill(0);
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

    #[test]
    fn rows_come_and_go() {
        let (mut rows, mut other) = (Rows::new(100), Rows::new(100));
        rows.mark(3);
        rows.mark(70);
        other.mark(70);
        other.mark(99);
        rows.toggle(&other);
        assert!((0..100).all(|row| rows.has(row) == (row == 3 || row == 99)));
        rows.set(3, false);
        rows.set(64, true);
        rows.mark_if(false, 5);
        rows.mark_if(false, 64);
        rows.mark_if(true, 65);
        assert!((0..100).all(|row| rows.has(row) == [64, 65, 99].contains(&row)));
    }

    #[test]
    fn ranges_reach_over_words() {
        for (first, last) in [(0, 0), (3, 9), (63, 64), (5, 199), (64, 127)] {
            let mut rows = Rows::new(200);
            rows.mark_range(first, last);
            assert!((0..200).all(|row| rows.has(row) == (first..=last).contains(&row)));
        }
    }
}
