//! Bottoms: the longest path from each op's finish to the end in a placement and order, over transfers, over
//! the ops that follow on the same device and over the transfers that follow on the same channel.
//!
//! After changes are kept, bottoms are worked out anew from the end backwards: in the rows that the changes
//! touch, in the rows of the producers that these read from, and so on until no bottom changes any more. This
//! is put off as long as possible: a move needs only the bottoms of rows past all that it touches, so the
//! rows before wait. O(V + E) at worst.

use crate::graph::Graph;
use crate::ids::{DeviceId, OpId};
use crate::search::problem::Problem;
use crate::search::state::State;

impl State<'_> {
    /// Works out the bottoms of the state last kept in all rows from `first` on. Changes that are not kept
    /// yet may touch none of these rows.
    pub(super) fn renew_bottoms(&mut self, first: usize) {
        let width = self.problem.n_devices + self.home_free.len();
        let mut row = self.n_rows();
        while let Some(before) = self.stale.last_before(row)
            && before >= first
        {
            row = before;
            self.now[..width].copy_from_slice(&self.next[(row + 1) * width..(row + 2) * width]);
            self.renew_row(self.problem, &self.problem.work.graph, row);
            self.stale.set(row, false);
            let next = &mut self.next[row * width..(row + 1) * width];
            if self.now[..width] != *next {
                next.copy_from_slice(&self.now[..width]);
                if row > 0 {
                    self.stale.mark(row - 1);
                }
            }
        }
    }

    /// Works out the bottoms of one row. The problem and its graph are arguments so that the compiler knows
    /// that no write changes them.
    fn renew_row(&mut self, problem: &Problem<'_>, graph: &Graph, row: usize) {
        let k = problem.n_devices;
        let end = self.order.len().min((row + 1) * self.stride);
        for i in (row * self.stride..end).rev() {
            self.visits += 1;
            let u = self.order[i];
            let d = self.device[u.ix()];
            let mut bottom = self.now[d.ix()];
            for t in graph.outputs(u).rev() {
                let needed = &mut self.needed[t.ix() * k..(t.ix() + 1) * k];
                needed.fill((0, OpId::NONE));
                for &v in graph.consumers(t) {
                    let to = self.device[v.ix()];
                    let rest = problem.rest(v, t, to, self.bottom[v.ix()]);
                    if needed[to.ix()].1.is_none() || rest > needed[to.ix()].0 {
                        needed[to.ix()] = (rest, v);
                    }
                }
                bottom = bottom.max(self.needed[t.ix() * k + d.ix()].0);
                let mut sent = self.reader_mask[t.ix()] & !(1 << d.0);
                while sent != 0 {
                    let to = DeviceId(sent.ilog2());
                    sent &= !(1 << to.0);
                    let needed = self.needed[t.ix() * k + to.ix()].0;
                    bottom = bottom.max(problem.pass(&mut self.now[k..], t, d, to, needed));
                }
            }
            if self.bottom[u.ix()] != bottom {
                self.bottom[u.ix()] = bottom;
                self.mark_producers(u);
            }
            self.now[d.ix()] = bottom + problem.length(u, d);
        }
    }

    pub(super) fn mark_producers(&mut self, u: OpId) {
        for &source in self.problem.work.graph.input_ops(u) {
            self.stale.mark(self.row_of(self.position[source.ix()] as usize));
        }
    }
}
