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
        Filling::new(n_rows, pairs.clone().map(|(row, _)| row)).filled(pairs)
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

    /// All items, without their rows.
    pub fn into_items(self) -> Vec<T> {
        self.items
    }

    /// How many rows there are.
    pub fn n_rows(&self) -> usize {
        self.starts.len() - 1
    }
}

/// Where the next item of each row goes, while rows are filled.
pub(crate) struct Filling {
    /// `next[r + 1]` is where the next item of row `r` goes: its start at first, its end when it is full.
    next: Vec<u32>,
}

impl Filling {
    /// Room in each row for one item per time that `rows` names it.
    pub fn new(n_rows: usize, rows: impl Iterator<Item = usize>) -> Self {
        let mut next = vec![0u32; n_rows + 2];
        rows.for_each(|row| next[row + 2] += 1);
        let mut sum = 0;
        for n in &mut next {
            sum += *n;
            *n = sum;
        }
        Self { next }
    }

    /// How many items there will be.
    pub fn n_items(&self) -> usize {
        self.next[self.next.len() - 1] as usize
    }

    /// The place of a row's next item.
    #[inline(always)]
    pub fn next(&mut self, row: usize) -> usize {
        let next = &mut self.next[row + 1];
        *next += 1;
        *next as usize - 1
    }

    /// Rows of the items, each given with its row.
    pub fn filled<T: Copy + Default>(mut self, pairs: impl Iterator<Item = (usize, T)>) -> Csr<T> {
        let mut items = vec![T::default(); self.n_items()];
        for (row, item) in pairs {
            items[self.next(row)] = item;
        }
        Csr { starts: self.into_starts(), items }
    }

    /// Where each row starts, once all are full.
    pub fn into_starts(mut self) -> Vec<u32> {
        self.next.pop();
        self.next
    }
}
