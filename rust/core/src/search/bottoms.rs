//! Bottoms: the longest path from each op's finish to the end in a placement and order, over transfers, over
//! the ops that follow on the same device and over the transfers that follow on the same channel.
//!
//! Worked out anew where a change that is kept reaches, from the end backwards: rows that it touches and the
//! producers of what is read there, and on to where no bottom is another than before. O(V + E) at worst.

use crate::graph::Graph;
use crate::ids::{DeviceId, OpId};
use crate::search::problem::Problem;
use crate::search::state::{Change, State};

impl State<'_> {
    /// Works out the bottoms of the state that has just been kept.
    pub(super) fn renew_bottoms(&mut self) {
        let width = self.problem.n_devices + self.home_free.len();
        self.rows.copy_from(&self.touched);
        for i in 0..self.changes.len() {
            if let Change::Device(u, _) = self.changes[i] {
                self.mark_producers(u);
            }
        }
        let n_rows = self.n_rows();
        let Some(mut row) = self.rows.last_before(n_rows) else { return };
        self.now[..width].copy_from_slice(&self.next[(row + 1) * width..(row + 2) * width]);
        loop {
            self.renew_row(self.problem, &self.problem.work.graph, row);
            let next = &mut self.next[row * width..(row + 1) * width];
            let is_as_before = self.now.iter().zip(&*next).all(|(now, before)| now == before);
            if !is_as_before {
                next.copy_from_slice(&self.now[..width]);
            }
            let next = if is_as_before { self.rows.last_before(row) } else { row.checked_sub(1) };
            let Some(next) = next else { return };
            if next + 1 < row {
                self.now[..width].copy_from_slice(&self.next[(next + 1) * width..(next + 2) * width]);
            }
            row = next;
        }
    }

    /// The problem and its graph are arguments so that the compiler knows that no write changes them.
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

    fn mark_producers(&mut self, u: OpId) {
        for &source in self.problem.work.graph.input_ops(u) {
            self.rows.mark(self.row_of(self.position[source.ix()] as usize));
        }
    }
}
