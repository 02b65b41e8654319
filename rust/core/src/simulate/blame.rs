//! Why the makespan is what it is: from the last op back to time 0, what each start waited for.

use std::cmp::Reverse;

use crate::clock::Ticks;
use crate::graph::Graph;
use crate::ids::OpId;
use crate::simulate::{Copied, Schedule, Transfer};

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
    /// The copy of what the device sends (the index of its transfer).
    Copy(u32),
    /// The device's share of a collective, as this member's.
    Share(OpId),
    /// The launch of an op by its host: of this one or, of a member, of the last to arrive.
    Launch(OpId),
    /// The transfer that kept a channel busy; past the last transfer, the collective that did.
    Channel(u32),
}

/// What happens during one link of the blame chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// An op runs.
    Running(OpId),
    /// A transfer is under way.
    Moving(u32),
    /// The sender copies out what a transfer sends.
    Copying(u32),
    /// A device does its share of a collective, as this member's.
    Sharing(OpId),
    /// A host launches ops, the last of them this one.
    Launching(OpId),
}

/// One link of the blame chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blame {
    /// What happened.
    pub doing: Doing,
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
                Waited::Op(op) | Waited::Device(op) => self.run_of(op),
                Waited::Channel(t) if t as usize >= self.transfers.len() => {
                    // All members of a collective start, wait and end alike.
                    self.run_of(self.together[t as usize - self.transfers.len()].last)
                }
                Waited::Transfer(t) | Waited::Channel(t) => {
                    let Transfer { start, finish, .. } = self.transfers[t as usize];
                    let waited = self.transfer_waited[t as usize];
                    Blame { doing: Doing::Moving(t), start, finish, waited }
                }
                Waited::Copy(t) => {
                    let Copied { start, finish, waited } = self.copies[t as usize];
                    Blame { doing: Doing::Copying(t), start, finish, waited }
                }
                Waited::Share(op) => {
                    let Copied { start, finish, waited } = self.shares[op.ix()];
                    Blame { doing: Doing::Sharing(op), start, finish, waited }
                }
                Waited::Launch(op) => {
                    // A host never waits.
                    let finish = self.launched[op.ix()];
                    Blame { doing: Doing::Launching(op), start: 0, finish, waited: Waited::Nothing }
                }
            };
            chain.push(link);
            next = link.waited;
        }
    }

    fn run_of(&self, op: OpId) -> Blame {
        let (start, finish) = (self.start[op.ix()], self.finish[op.ix()]);
        Blame { doing: Doing::Running(op), start, finish, waited: self.op_waited[op.ix()] }
    }
}
