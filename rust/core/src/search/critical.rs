//! The critical chain: the ops that the makespan waits for, as [`causes`](super::causes) finds them.
//!
//! Steps of the chain are counted from its end: the last op is step 0. A change leaves the chain intact up to
//! the first step that it touches. While the op of an intact step starts no sooner than before, the makespan
//! is no shorter than before.

use crate::ids::OpId;
use crate::search::rows::Rows;

/// A step that does not exist: further from the end than any.
pub(super) const FAR: u32 = u32::MAX;

/// The chain that was found last.
#[derive(Clone, Debug)]
pub(super) struct Critical {
    /// Last op first.
    pub ops: Vec<OpId>,
    /// The step of each op: 0 the last.
    pub step: Vec<u32>,
    /// Steps before which all is as it was after a change of the op.
    pub reach: Vec<u32>,
    reached: Vec<OpId>,
    /// The same after a change of what is sent at time 0.
    pub home_reach: u32,
    /// Rows with an op of the chain.
    pub rows: Rows,
    /// Whether it is the chain of what was last kept.
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

    /// Notes that a change of an op touches the chain before so many steps from the end; the least counts.
    pub fn note(&mut self, u: OpId, steps: u32) {
        if self.reach[u.ix()] == FAR {
            self.reach[u.ix()] = steps;
            self.reached.push(u);
        }
    }
}
