//! A device's time as a list of idle slots, into which ops are inserted.

use crate::clock::Ticks;

/// Idle slots, ascending and disjoint; the last one never ends.
#[derive(Clone, Debug)]
pub struct Timeline {
    idle: Vec<(Ticks, Ticks)>,
}

impl Default for Timeline {
    fn default() -> Self {
        Self { idle: vec![(0, Ticks::MAX)] }
    }
}

impl Timeline {
    /// The earliest start at or after `ready` of `length` idle ticks. O(log slots) to the first slot
    /// that ends late enough, then one step per slot too short.
    pub fn earliest(&self, ready: Ticks, length: Ticks) -> Ticks {
        let first = self.idle.partition_point(|&(_, end)| end < ready.saturating_add(length));
        self.idle[first..]
            .iter()
            .map(|&(start, end)| (start.max(ready), end))
            .find(|&(start, end)| end - start >= length)
            .map_or(ready, |(start, _)| start)
    }

    /// Marks `length` ticks from `start` as busy; they lie in one idle slot. An op of no time takes its
    /// turn too: nothing may run across it.
    pub fn book(&mut self, start: Ticks, length: Ticks) {
        let i = self.idle.partition_point(|&(_, end)| end < start + length);
        let (from, to) = self.idle[i];
        debug_assert!(from <= start && start + length <= to, "a booking lies in an idle slot");
        let rest = (start + length, to);
        match (from < start, rest.0 < rest.1) {
            (true, true) => {
                self.idle[i].1 = start;
                self.idle.insert(i + 1, rest);
            }
            (true, false) => self.idle[i].1 = start,
            (false, true) => self.idle[i] = rest,
            (false, false) => {
                self.idle.remove(i);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_op_goes_into_the_first_gap_that_holds_it_after_it_is_ready() {
        let mut t = Timeline::default();
        t.book(0, 10);
        t.book(12, 8);
        t.book(30, 5);
        assert_eq!(t.earliest(0, 2), 10);
        assert_eq!(t.earliest(0, 3), 20);
        assert_eq!(t.earliest(11, 2), 20);
        assert_eq!(t.earliest(25, 5), 25);
        assert_eq!(t.earliest(26, 5), 35);
        assert_eq!(t.earliest(100, 1), 100);
        t.book(10, 2);
        assert_eq!(t.earliest(0, 1), 20);
    }
}
