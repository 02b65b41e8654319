//! The time of a device as a list of idle slots, into which ops are inserted.
//!
//! Slots lie in blocks of bounded size, and a tree over the blocks knows the longest slot of each.
//! So finding a slot takes O(log slots + block), however many slots before it are too short.
//! Booking takes O(block). A plain list would scan and move everything.

use std::ops::RangeInclusive;

use crate::clock::Ticks;

/// Most slots in a block; a full one is split in two.
const BLOCK: usize = 16;

/// Idle slots, ascending, disjoint, none empty; the last one never ends.
#[derive(Clone, Debug, Default)]
pub struct Timeline {
    /// Where the idle time begins that never ends.
    open: Ticks,
    /// The finite slots. No block is empty.
    blocks: Vec<Vec<(Ticks, Ticks)>>,
    /// End of the last slot of each block.
    ends: Vec<Ticks>,
    /// Length of the longest slot in each block.
    longest: Longest,
}

impl Timeline {
    /// The time after which nothing is booked.
    #[inline(always)]
    pub fn open(&self) -> Ticks {
        self.open
    }

    /// The earliest start at or after `ready` of `length` idle ticks.
    #[inline(always)]
    pub fn earliest(&self, ready: Ticks, length: Ticks) -> Ticks {
        // Most often all slots end too early.
        let in_slot = match self.ends.last() {
            Some(&last) if ready.saturating_add(length) <= last => self.earliest_slot(ready, length),
            _ => None,
        };
        in_slot.unwrap_or(ready.max(self.open))
    }

    /// The earliest start in a finite slot. O(log slots + BLOCK).
    fn earliest_slot(&self, ready: Ticks, length: Ticks) -> Option<Ticks> {
        let fits = |&(start, end): &(Ticks, Ticks)| {
            let start = start.max(ready);
            (end >= start && end - start >= length).then_some(start)
        };
        let (block, slot) = self.first_ending_at(ready.saturating_add(length))?;
        if let Some(start) = self.blocks[block][slot..].iter().find_map(fits) {
            return Some(start);
        }
        // Slots of later blocks begin after `ready`: one that is long enough will do.
        let block = self.longest.first(block + 1, length)?;
        self.blocks[block].iter().find_map(fits)
    }

    /// The first slot that ends at `time` or later.
    fn first_ending_at(&self, time: Ticks) -> Option<(usize, usize)> {
        let block = self.ends.partition_point(|&end| end < time);
        let slots = self.blocks.get(block)?;
        // In so short a list counting is faster than bisection: no load waits for another.
        Some((block, slots.iter().filter(|&&(_, end)| end < time).count()))
    }

    /// Marks `length` ticks from `start` as busy; they lie in one idle slot. A booking of no length
    /// splits the slot, for nothing may run across it. Between two bookings that touch, it changes
    /// nothing.
    pub fn book(&mut self, start: Ticks, length: Ticks) {
        let finish = start + length;
        if start >= self.open {
            if start > self.open {
                self.append((self.open, start));
            }
            self.open = finish;
            return;
        }
        let Some((block, slot)) = self.first_ending_at(finish) else { return };
        let slots = &mut self.blocks[block];
        let (from, to) = slots[slot];
        if length == 0 && start < from {
            return;
        }
        debug_assert!(from <= start && finish <= to, "a booking lies in an idle slot");
        match (from < start, finish < to) {
            (true, true) => {
                slots[slot].1 = start;
                slots.insert(slot + 1, (finish, to));
            }
            (true, false) => slots[slot].1 = start,
            (false, true) => slots[slot].0 = finish,
            (false, false) => {
                slots.remove(slot);
            }
        }
        self.mend(block);
    }

    /// Adds the last finite slot.
    fn append(&mut self, slot: (Ticks, Ticks)) {
        match self.blocks.last_mut() {
            Some(last) if last.len() < BLOCK => {
                last.push(slot);
                self.ends.pop();
            }
            _ => {
                // Blocks that only grow at their end stay full.
                let mut block = Vec::with_capacity(BLOCK + 1);
                block.push(slot);
                self.blocks.push(block);
            }
        }
        self.ends.push(slot.1);
        let last = self.blocks.len() - 1;
        self.longest.set(last, longest(&self.blocks[last]));
    }

    /// Restores the invariants after a block has changed. O(BLOCK), or O(blocks) when it splits or goes.
    fn mend(&mut self, block: usize) {
        let slots = &mut self.blocks[block];
        if slots.is_empty() {
            self.blocks.remove(block);
            self.ends.remove(block);
            self.longest.splice(block..=block, &[]);
        } else if slots.len() > BLOCK {
            let rest = slots.split_off(BLOCK / 2);
            let lengths = [longest(slots), longest(&rest)];
            self.ends.splice(block..=block, [last_end(slots), last_end(&rest)]);
            self.blocks.insert(block + 1, rest);
            self.longest.splice(block..=block, &lengths);
        } else {
            self.ends[block] = last_end(slots);
            self.longest.set(block, longest(slots));
        }
    }
}

fn last_end(slots: &[(Ticks, Ticks)]) -> Ticks {
    slots.last().map_or(0, |slot| slot.1)
}

fn longest(slots: &[(Ticks, Ticks)]) -> Ticks {
    slots.iter().map(|&(start, end)| end - start).max().unwrap_or(0)
}

/// A maximum tree over block lengths: leaves in the second half, each node the larger of its children.
#[derive(Clone, Debug, Default)]
struct Longest {
    tree: Vec<Ticks>,
    /// How many leaves are values; the rest are 0.
    len: usize,
}

impl Longest {
    fn of(values: &[Ticks]) -> Self {
        let leaves = values.len().next_power_of_two();
        let mut tree = vec![0; 2 * leaves];
        tree[leaves..leaves + values.len()].copy_from_slice(values);
        for node in (1..leaves).rev() {
            tree[node] = tree[2 * node].max(tree[2 * node + 1]);
        }
        Self { tree, len: values.len() }
    }

    /// Replaces some values by others. O(values).
    fn splice(&mut self, range: RangeInclusive<usize>, with: &[Ticks]) {
        let leaves = self.tree.len() / 2;
        let mut values = self.tree[leaves..leaves + self.len].to_vec();
        values.splice(range, with.iter().copied());
        *self = Self::of(&values);
    }

    /// Sets one value, the one past the last too. O(log values), amortised.
    fn set(&mut self, i: usize, value: Ticks) {
        let leaves = self.tree.len() / 2;
        if i >= leaves {
            let mut values = self.tree[leaves..].to_vec();
            values.push(value);
            *self = Self::of(&values);
            return;
        }
        self.len = self.len.max(i + 1);
        let mut node = leaves + i;
        self.tree[node] = value;
        while node > 1 {
            node /= 2;
            let larger = self.tree[2 * node].max(self.tree[2 * node + 1]);
            if self.tree[node] == larger {
                return;
            }
            self.tree[node] = larger;
        }
    }

    /// The first index, from `from` on, whose value is at least `value` (and not nothing). O(log).
    fn first(&self, from: usize, value: Ticks) -> Option<usize> {
        let (leaves, wanted) = (self.tree.len() / 2, value.max(1));
        if from >= leaves {
            return None;
        }
        let mut node = leaves + from;
        while self.tree[node] < wanted {
            // The next subtree that was not looked at: up as long as the node is a right child,
            // then right.
            while node % 2 == 1 {
                node /= 2;
            }
            if node == 0 {
                return None;
            }
            node += 1;
        }
        while node < leaves {
            node = 2 * node + usize::from(self.tree[2 * node] < wanted);
        }
        Some(node - leaves)
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

    #[test]
    fn nothing_runs_across_what_takes_no_time() {
        let mut t = Timeline::default();
        t.book(20, 1);
        t.book(10, 0);
        assert_eq!(t.earliest(5, 6), 10);
        assert_eq!(t.earliest(5, 5), 5);
        assert_eq!(t.earliest(10, 0), 10);
    }

    /// A plain list of booked intervals, searched from the front.
    #[derive(Default)]
    struct Plain(Vec<(Ticks, Ticks)>);

    impl Plain {
        fn earliest(&self, ready: Ticks, length: Ticks) -> Ticks {
            let mut at = ready;
            loop {
                let clash = self.0.iter().find(|&&(s, e)| at < e && s < at + length);
                match clash {
                    Some(&(_, end)) => at = end,
                    None => return at,
                }
            }
        }
    }

    #[test]
    fn many_bookings_find_the_same_slots_as_a_plain_search() {
        let mut state = 1u64;
        let mut draw = |n: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % n
        };
        for horizon in [300, 30_000] {
            let (mut timeline, mut plain) = (Timeline::default(), Plain::default());
            for _ in 0..2000 {
                let (ready, length) = (draw(horizon), 1 + draw(12));
                let start = timeline.earliest(ready, length);
                assert_eq!(start, plain.earliest(ready, length));
                timeline.book(start, length);
                plain.0.push((start, start + length));
            }
        }
    }
}
