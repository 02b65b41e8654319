//! Ways to share an amount among devices: whole numbers that add up to it.

/// A way to share: device `d` has what lies between `start[d]` and `end[d]` of `size`. Devices may have the
/// same, a device nothing, and a device more than all there is: `end[d]` may be past `size`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Way {
    size: u64,
    start: Vec<u64>,
    end: Vec<u64>,
}

impl Way {
    /// From the bounds of each device's part.
    ///
    /// # Panics
    /// Columns of two lengths; bounds that are not ascending; a size of 0.
    pub fn new(size: u64, start: Vec<u64>, end: Vec<u64>) -> Self {
        assert!(size > 0 && start.len() == end.len(), "a way has a size, and two bounds per device");
        assert!(start.iter().zip(&end).all(|(start, end)| start <= end), "bounds ascend");
        Self { size, start, end }
    }

    /// In proportion to `rows`, one part after another.
    pub fn of_rows(rows: &[u64]) -> Self {
        let sums = |sum: &mut u64, row: &u64| {
            *sum = sum.saturating_add(*row);
            Some(*sum)
        };
        let end: Vec<u64> = rows.iter().scan(0u64, sums).collect();
        let start = std::iter::once(0).chain(end[..end.len() - 1].iter().copied()).collect();
        Self { size: end[end.len() - 1], start, end }
    }

    /// The part of `total` up to a bound, rounded up.
    fn up_to(&self, total: u64, bound: u64) -> u64 {
        let (whole, rest) = (total / self.size, total % self.size);
        // In two steps, so that most products fit in 64 bits.
        let product = rest.checked_mul(bound).and_then(|product| product.checked_add(self.size - 1));
        let more = match product {
            Some(product) => product / self.size,
            None => ((u128::from(rest) * u128::from(bound)).div_ceil(u128::from(self.size))) as u64,
        };
        whole.saturating_mul(bound).saturating_add(more)
    }

    /// What a device has of `total`.
    pub fn of(&self, total: u64, device: usize) -> u64 {
        let (start, end) = (self.start[device], self.end[device]);
        if total == 0 || end - start == self.size {
            return total * u64::from(end > start);
        }
        self.up_to(total, end) - self.up_to(total, start)
    }
}
