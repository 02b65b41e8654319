//! The ops that the makespan waits for: from the last op back, what each start and each transfer waited
//! for, be it an input, a device or a channel. O(V + E + T).

use crate::clock::Ticks;
use crate::ids::{OpId, TensorId};
use crate::search::state::State;

/// Finds critical ops; owns the room it needs.
#[derive(Clone, Debug)]
pub struct Critical {
    /// The ops found last, last op first.
    ops: Vec<OpId>,
    finish: Vec<Ticks>,
    /// The op before each on its device.
    before: Vec<OpId>,
    last_op: Vec<OpId>,
    /// The tensor that each channel carried before a transfer, per tensor and device.
    queued: Vec<TensorId>,
    last_tensor: Vec<TensorId>,
}

impl Critical {
    /// For the problem of a state.
    pub fn new(state: &State<'_>) -> Self {
        let (n, k) = (state.problem.n_ops(), state.problem.n_devices);
        Self {
            ops: Vec::with_capacity(n),
            finish: vec![0; n],
            before: vec![OpId::NONE; n],
            last_op: vec![OpId::NONE; k],
            queued: vec![TensorId::NONE; state.problem.work.graph.n_tensors() * k],
            last_tensor: vec![TensorId::NONE; state.problem.cluster.channels().len()],
        }
    }

    /// The ops found last.
    pub fn ops(&self) -> &[OpId] {
        &self.ops
    }

    /// Finds them in a state without pending changes.
    pub fn find(&mut self, state: &State<'_>) {
        let problem = state.problem;
        let (graph, k) = (&problem.work.graph, problem.n_devices);
        self.last_op.fill(OpId::NONE);
        self.last_tensor.fill(TensorId::NONE);
        let mut last = OpId::NONE;
        for &u in &state.order {
            let d = state.device[u.ix()];
            let before = std::mem::replace(&mut self.last_op[d.ix()], u);
            self.before[u.ix()] = before;
            let free = if before.is_none() { 0 } else { self.finish[before.ix()] };
            let inputs = problem.reads.row(u.ix()).iter().map(|&t| state.arrival(t, d));
            let end = inputs.fold(free, Ticks::max) + problem.length(u, d);
            self.finish[u.ix()] = end;
            if last.is_none() || end > self.finish[last.ix()] {
                last = u;
            }
            for t in graph.outputs(u) {
                for to in state.sent_to(t, d) {
                    for c in problem.cluster.route_channels(d, to) {
                        let previous = std::mem::replace(&mut self.last_tensor[c.ix()], t);
                        self.queued[t.ix() * k + to.ix()] = previous;
                    }
                }
            }
        }
        self.ops.clear();
        let mut at = last;
        while !at.is_none() {
            self.ops.push(at);
            at = self.cause(state, at);
        }
    }

    /// The op that an op's start waited for.
    fn cause(&self, state: &State<'_>, u: OpId) -> OpId {
        let problem = state.problem;
        let (graph, d) = (&problem.work.graph, state.device[u.ix()]);
        let begin = self.finish[u.ix()] - problem.length(u, d);
        let before = self.before[u.ix()];
        if !before.is_none() && self.finish[before.ix()] == begin {
            return before;
        }
        let is_last = |t: &&TensorId| !graph.is_home(**t) && state.arrival(**t, d) == begin;
        let Some(&t) = problem.reads.row(u.ix()).iter().find(is_last) else { return OpId::NONE };
        let source = graph.source(t);
        let from = state.device[source.ix()];
        if from == d {
            return source;
        }
        let queued = self.queued[t.ix() * problem.n_devices + d.ix()];
        let waited = begin - problem.transfer(t, from, d) > self.finish[source.ix()];
        if waited && !queued.is_none() { graph.source(queued) } else { source }
    }
}
