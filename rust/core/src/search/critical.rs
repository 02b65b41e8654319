//! The critical chain: the ops that the makespan waits for, as [`causes`](super::causes) finds them.
//!
//! Steps of the chain are counted from its end: the last op is step 0. A change leaves the chain intact up to
//! the first step that it touches. While the op of an intact step starts no sooner than before, the makespan
//! is no shorter than before.

use crate::ids::OpId;
use crate::search::rows::Rows;

/// Further from the end than any step of a chain.
pub(super) const FAR: u32 = u32::MAX;

/// The chain found last, and what a change of each op leaves of it.
#[derive(Clone, Debug)]
pub(super) struct Critical {
    /// Last op first.
    pub ops: Vec<OpId>,
    /// The step of each op of the chain; [`FAR`] of an op outside it.
    pub step: Vec<u32>,
    /// Per op, how many steps from the end stay as they are when the op changes.
    pub reach: Vec<u32>,
    reached: Vec<OpId>,
    /// How many steps from the end stay as they are when a transfer at time 0 changes.
    pub home_reach: u32,
    /// Rows that hold an op of the chain.
    pub rows: Rows,
    /// Whether the chain is that of the state last kept.
    pub is_known: bool,
}

impl Critical {
    pub fn new(n: usize, n_rows: usize) -> Self {
        Self {
            ops: Vec::with_capacity(n),
            step: vec![FAR; n],
            reach: vec![FAR; n],
            reached: Vec::with_capacity(n),
            home_reach: FAR,
            rows: Rows::new(n_rows),
            is_known: false,
        }
    }

    pub fn clear(&mut self) {
        for u in self.ops.drain(..) {
            self.step[u.ix()] = FAR;
        }
        for u in self.reached.drain(..) {
            self.reach[u.ix()] = FAR;
        }
        self.home_reach = FAR;
        self.rows.clear();
    }

    /// Notes that a change of the op leaves the last `steps` steps of the chain as they are. The first call
    /// for an op counts: it has the fewest steps.
    pub fn note(&mut self, u: OpId, steps: u32) {
        if self.reach[u.ix()] == FAR {
            self.reach[u.ix()] = steps;
            self.reached.push(u);
        }
    }
}
