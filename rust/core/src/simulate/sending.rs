//! Devices that copy out what they send, where their type has a cost of sending.
//!
//! A message waits for its sender from the moment its tensor is there (home tensors: from 0). A free device
//! first copies what waits, first come, first served, and then takes an op. Messages of one instant go by
//! tensor, then destination. When its copy is done, a message enters the queues of its channels.

use std::collections::VecDeque;

use crate::clock::Ticks;
use crate::ids::DeviceId;
use crate::simulate::{Simulator, Transfer, Waited};

/// The copy that a sender made of what it sent; of no length where its type has no cost of sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copied {
    /// When the sender began.
    pub start: Ticks,
    /// When it was done, and the transfer entered its queues.
    pub finish: Ticks,
    /// What the copy waited for.
    pub waited: Waited,
}

/// The copies of a run.
#[derive(Clone, Debug)]
pub(super) struct Sending {
    /// Per message. Until a copy begins, its start is when the tensor was there, and it waited for that.
    copies: Vec<Copied>,
    /// Ticks per message; none where the sender's type has no cost.
    length: Vec<Option<Ticks>>,
    /// Messages that wait for each device.
    waiting: Vec<VecDeque<u32>>,
    /// Messages whose copies ended in this round.
    done: Vec<u32>,
}

impl Sending {
    /// None where no device pays for sending.
    pub fn new(sim: &Simulator<'_>, transfers: &[Transfer]) -> Option<Self> {
        if !sim.cluster.has_send_costs() {
            return None;
        }
        let length = |t: &Transfer| {
            let seconds = sim.cluster.send_seconds(t.src, sim.work.tensor_bytes[t.tensor.ix()])?;
            Some(sim.clock.ticks(seconds))
        };
        Some(Self {
            copies: vec![Copied { start: 0, finish: 0, waited: Waited::Nothing }; transfers.len()],
            length: transfers.iter().map(length).collect(),
            waiting: vec![VecDeque::new(); sim.cluster.n_devices()],
            done: Vec::new(),
        })
    }

    /// Takes a message whose tensor is there since now, because of `cause`. Whether it must wait for a copy.
    pub fn holds(&mut self, message: u32, src: DeviceId, now: Ticks, cause: Waited) -> bool {
        self.copies[message as usize] = Copied { start: now, finish: now, waited: cause };
        let must_wait = self.length[message as usize].is_some();
        if must_wait {
            self.waiting[src.ix()].push_back(message);
        }
        must_wait
    }

    /// Begins the next copy of a free device that did `before` last: its message, and when it will be done.
    pub fn begin(&mut self, device: DeviceId, now: Ticks, before: Waited) -> Option<(u32, Ticks)> {
        let message = self.waiting[device.ix()].pop_front()?;
        let copy = &mut self.copies[message as usize];
        if copy.start < now {
            (copy.start, copy.waited) = (now, before);
        }
        copy.finish = now + self.length[message as usize].unwrap_or(0);
        Some((message, copy.finish))
    }

    /// Ends a copy.
    pub fn end(&mut self, message: u32) {
        self.done.push(message);
    }

    /// The messages whose copies have ended since this was asked last.
    pub fn take_done(&mut self) -> impl Iterator<Item = u32> + '_ {
        self.done.drain(..)
    }

    /// What brought a message into its queues: its copy, or without one what made its tensor.
    pub fn cause(&self, message: u32) -> Waited {
        match self.length[message as usize] {
            Some(_) => Waited::Copy(message),
            None => self.copies[message as usize].waited,
        }
    }

    pub fn into_copies(self) -> Vec<Copied> {
        self.copies
    }
}
