//! Dominant sequence clustering (DSC, Yang and Gerasoulis 1994).
//!
//! Ops are examined by t-level + b-level, producers first. An op joins the end of the producer's
//! group that lets it start earliest, if that is earlier than on its own. An op may not join the
//! group of the latest input of an op that lies on a longer path and still waits for producers (the
//! "dominant sequence reduction warranty"). The paper's minimisation procedure may move several
//! producers into one group. Here an op only joins the group of one producer. O((V + E) log V).

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::clock::Ticks;
use crate::graph::Graph;
use crate::ids::OpId;

/// An op by priority; of equal priorities the smaller index first.
type Entry = (Ticks, Reverse<(u32, OpId)>);

/// Group per op, numbered by first op examined.
pub fn dominant(graph: &Graph, op_time: &[Ticks], tensor_time: &[Ticks]) -> Vec<u32> {
    let bottom = crate::schedule::placed::Paths::new(graph, op_time, |t, _| tensor_time[t.ix()]).bottom;
    let n = graph.n_ops();
    let mut state = State {
        graph,
        op_time,
        tensor_time,
        group: vec![u32::MAX; n],
        finish: vec![0; n],
        group_end: Vec::new(),
        arrival: vec![(0, u32::MAX); n],
    };
    let mut missing: Vec<u32> = graph.ops().map(|u| graph.in_degree(u)).collect();
    let entry = |priority, u: OpId| -> Entry { (priority, Reverse((graph.index(u), u))) };
    let mut free: BinaryHeap<Entry> =
        graph.ops().filter(|u| missing[u.ix()] == 0).map(|u| entry(bottom[u.ix()], u)).collect();
    // Ops some of whose producers have been examined. Entries of an op only ever grow: its largest
    // is the valid one.
    let mut partly: BinaryHeap<Entry> = BinaryHeap::new();
    while let Some((priority, Reverse((_, op)))) = free.pop() {
        while let Some(&(noted, Reverse((_, p)))) = partly.peek()
            && (missing[p.ix()] == 0 || noted < state.arrival[p.ix()].0 + bottom[p.ix()])
        {
            partly.pop();
        }
        let kept = partly.peek().filter(|(noted, _)| *noted > priority).map(|&(_, Reverse((_, p)))| p);
        state.examine(op, kept.and_then(|p| state.group_of_latest(p)));
        let finish = state.finish[op.ix()];
        for t in graph.outputs(op) {
            for &v in graph.consumers(t) {
                let arrival = (finish + tensor_time[t.ix()], graph.index(op));
                let latest = &mut state.arrival[v.ix()];
                *latest = (*latest).max(arrival);
                missing[v.ix()] -= 1;
                let next = entry(state.arrival[v.ix()].0 + bottom[v.ix()], v);
                if missing[v.ix()] == 0 { free.push(next) } else { partly.push(next) }
            }
        }
    }
    state.group
}

struct State<'a> {
    graph: &'a Graph,
    op_time: &'a [Ticks],
    tensor_time: &'a [Ticks],
    group: Vec<u32>,
    finish: Vec<Ticks>,
    /// When the last op of each group finishes.
    group_end: Vec<Ticks>,
    /// When the latest input arrives from another group, and the index of the op it comes from.
    arrival: Vec<(Ticks, u32)>,
}

impl State<'_> {
    /// The group of the op's latest input, if joining it lets the op start earlier.
    fn group_of_latest(&self, op: OpId) -> Option<u32> {
        let (arrival, from) = self.arrival[op.ix()];
        if from == u32::MAX {
            return None;
        }
        let group = self.group[self.graph.numbering().op(from).ix()];
        (self.group_end[group as usize] < arrival).then_some(group)
    }

    /// Puts an op into the group where it starts earliest: a producer's (but for the one kept), or its own.
    fn examine(&mut self, op: OpId, kept: Option<u32>) {
        let mut best = (self.arrival[op.ix()].0, None);
        for (_, producer) in self.graph.inputs_with_ops(op) {
            let group = self.group[producer.ix()];
            if kept == Some(group) {
                continue;
            }
            let start = self.start_in(op, group);
            if start < best.0 {
                best = (start, Some(group));
            }
        }
        let (start, joined) = best;
        let group = joined.unwrap_or(self.group_end.len() as u32);
        let finish = start + self.op_time[op.ix()];
        match joined {
            Some(g) => self.group_end[g as usize] = finish,
            None => self.group_end.push(finish),
        }
        self.group[op.ix()] = group;
        self.finish[op.ix()] = finish;
    }

    /// When an op would start at the end of a group.
    fn start_in(&self, op: OpId, group: u32) -> Ticks {
        let arrivals = self.graph.inputs_with_ops(op).map(|(t, u)| {
            let sent = if self.group[u.ix()] == group { 0 } else { self.tensor_time[t.ix()] };
            self.finish[u.ix()] + sent
        });
        arrivals.fold(self.group_end[group as usize], Ticks::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fork_is_split_where_sending_is_cheap_and_kept_where_it_is_dear() {
        let graph = Graph::new(3, &[0, 0], &[1, 2], None).unwrap();
        assert_eq!(dominant(&graph, &[1, 9, 9], &[2; 3]), [0, 0, 1]);
        assert_eq!(dominant(&graph, &[1, 9, 9], &[20; 3]), [0, 0, 0]);
    }
}
