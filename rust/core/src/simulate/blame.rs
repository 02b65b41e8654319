//! Why the makespan is what it is: from the last op back to time 0, what each start waited for.

use std::cmp::Reverse;

use crate::clock::Ticks;
use crate::graph::Graph;
use crate::ids::OpId;
use crate::simulate::Schedule;

/// What a start waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// Nothing: it could start at time 0.
    Nothing,
    /// The output of an op on the same device.
    Op(OpId),
    /// The arrival of a transfer (its index).
    Transfer(u32),
    /// The op that kept the device busy.
    Device(OpId),
    /// The transfer that kept a channel busy; past the last transfer, the collective that did.
    Channel(u32),
}

/// One link of the blame chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blame {
    /// The op that ran, or none.
    pub op: Option<OpId>,
    /// The transfer that was under way, or none.
    pub transfer: Option<u32>,
    /// When it started.
    pub start: Ticks,
    /// When it finished.
    pub finish: Ticks,
    /// Why it did not start earlier.
    pub waited: Waited,
}

impl Schedule {
    /// The chain of causes, last op first. Each link ends when the one before it starts, so the
    /// lengths add up to the makespan. O(V + chain).
    pub fn blame(&self, graph: &Graph) -> Vec<Blame> {
        let last = graph.ops().max_by_key(|&op| (self.finish[op.ix()], Reverse(graph.index(op))));
        let mut chain = Vec::new();
        let mut next = last.map_or(Waited::Nothing, Waited::Op);
        loop {
            let link = match next {
                Waited::Nothing => return chain,
                Waited::Op(op) | Waited::Device(op) => Blame {
                    op: Some(op),
                    transfer: None,
                    start: self.start[op.ix()],
                    finish: self.finish[op.ix()],
                    waited: self.op_waited[op.ix()],
                },
                Waited::Channel(t) if t as usize >= self.transfers.len() => {
                    // All members of a collective start, wait and end alike.
                    next = Waited::Op(self.together[t as usize - self.transfers.len()].last);
                    continue;
                }
                Waited::Transfer(t) | Waited::Channel(t) => Blame {
                    op: None,
                    transfer: Some(t),
                    start: self.transfers[t as usize].start,
                    finish: self.transfers[t as usize].finish,
                    waited: self.transfer_waited[t as usize],
                },
            };
            chain.push(link);
            next = link.waited;
        }
    }
}
