//! Compressed sparse rows: lists of items per row in two flat arrays.

/// Rows of items. Row `r` is `items[starts[r]..starts[r + 1]]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Csr<T> {
    starts: Vec<u32>,
    items: Vec<T>,
}

impl<T: Copy + Default> Csr<T> {
    /// Counting sort of `pairs` by row; items keep their order within a row. O(rows + pairs).
    pub fn from_pairs(n_rows: usize, pairs: impl Iterator<Item = (usize, T)> + Clone) -> Self {
        let mut starts = vec![0u32; n_rows + 1];
        for (row, _) in pairs.clone() {
            starts[row + 1] += 1;
        }
        for r in 0..n_rows {
            starts[r + 1] += starts[r];
        }
        let mut next = starts.clone();
        let mut items = vec![T::default(); starts[n_rows] as usize];
        for (row, item) in pairs {
            items[next[row] as usize] = item;
            next[row] += 1;
        }
        Self { starts, items }
    }

    /// From its two arrays: `starts` ascends from 0 to `items.len()`.
    pub(crate) fn from_parts(starts: Vec<u32>, items: Vec<T>) -> Self {
        debug_assert_eq!(starts.last().map(|&e| e as usize), Some(items.len()));
        debug_assert!(starts.is_sorted());
        Self { starts, items }
    }
}

impl<T> Csr<T> {
    /// The items of one row.
    #[inline(always)]
    pub fn row(&self, r: usize) -> &[T] {
        &self.items[self.starts[r] as usize..self.starts[r + 1] as usize]
    }

    /// The items of one row, to be reordered.
    pub fn row_mut(&mut self, r: usize) -> &mut [T] {
        &mut self.items[self.starts[r] as usize..self.starts[r + 1] as usize]
    }

    /// All items, to be replaced where they stand.
    pub fn items_mut(&mut self) -> &mut [T] {
        &mut self.items
    }

    /// Where row `r` lies in [`Self::items`].
    #[inline(always)]
    pub fn range(&self, r: usize) -> std::ops::Range<usize> {
        self.starts[r] as usize..self.starts[r + 1] as usize
    }

    /// The items of neighbouring rows, as one slice.
    #[inline(always)]
    pub fn rows(&self, rows: std::ops::Range<usize>) -> &[T] {
        &self.items[self.starts[rows.start] as usize..self.starts[rows.end] as usize]
    }

    /// All items, row after row.
    pub fn items(&self) -> &[T] {
        &self.items
    }

    /// How many rows there are.
    pub fn n_rows(&self) -> usize {
        self.starts.len() - 1
    }
}
