//! Bottoms: the longest path from each op's finish to the end in a placement and order, over transfers, and
//! over the ops that follow on the same device; channels are free.
//!
//! Worked out anew where a change that is kept reaches, from the end backwards: rows that it touches and the
//! producers of what is read there, and on to where no bottom is another than before. O(V + E) at worst.

use crate::ids::OpId;
use crate::search::state::{Change, State};

impl State<'_> {
    /// Works out the bottoms of the state that has just been kept.
    pub(super) fn renew_bottoms(&mut self) {
        let k = self.problem.n_devices;
        self.rows.copy_from(&self.touched);
        for i in 0..self.changes.len() {
            if let Change::Device(u, _) = self.changes[i] {
                self.mark_producers(u);
            }
        }
        let n_rows = self.order.len().div_ceil(self.stride);
        let Some(mut row) = self.rows.last_before(n_rows) else { return };
        loop {
            self.now[..k].copy_from_slice(&self.next[(row + 1) * k..(row + 2) * k]);
            self.renew_row(row);
            let is_as_before = self.now[..k] == self.next[row * k..(row + 1) * k];
            self.next[row * k..(row + 1) * k].copy_from_slice(&self.now[..k]);
            let next = if is_as_before { self.rows.last_before(row) } else { row.checked_sub(1) };
            let Some(next) = next else { return };
            row = next;
        }
    }

    fn renew_row(&mut self, row: usize) {
        let (problem, k) = (self.problem, self.problem.n_devices);
        let graph = &problem.work.graph;
        let end = self.order.len().min((row + 1) * self.stride);
        for i in (row * self.stride..end).rev() {
            self.visits += 1;
            let u = self.order[i];
            let d = self.device[u.ix()];
            let mut bottom = self.now[d.ix()];
            for t in graph.outputs(u) {
                let needed = &mut self.needed[t.ix() * k..(t.ix() + 1) * k];
                needed.fill((0, OpId::NONE));
                for &v in graph.consumers(t) {
                    let to = self.device[v.ix()];
                    let rest = problem.length(v, to) + self.bottom[v.ix()];
                    if needed[to.ix()].1.is_none() || rest > needed[to.ix()].0 {
                        needed[to.ix()] = (rest, v);
                    }
                    let sent = if to == d { 0 } else { problem.transfer(t, d, to) };
                    bottom = bottom.max(sent + rest);
                }
            }
            if self.bottom[u.ix()] != bottom {
                self.bottom[u.ix()] = bottom;
                self.mark_producers(u);
            }
            self.now[d.ix()] = bottom + problem.length(u, d);
        }
    }

    fn mark_producers(&mut self, u: OpId) {
        for &source in self.problem.work.graph.input_ops(u) {
            self.rows.mark(self.row_of(self.position[source.ix()] as usize));
        }
    }
}
