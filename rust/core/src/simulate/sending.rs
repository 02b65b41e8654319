//! Devices that copy out what they send, where their type has a cost of sending, and that do their shares
//! of collectives, where measured times say that members keep their devices busy.
//!
//! A message waits for its sender from the moment its tensor is there (home tensors: from 0), and a member's
//! share for its device from the moment its inputs are there. A free device first does what waits, first
//! come, first served, and then takes an op. At one instant shares go before messages, and messages go by
//! tensor, then destination. When its copy is done, a message enters the queues of its channels; when its
//! share is done, a member has arrived.

use std::collections::VecDeque;

use crate::clock::Ticks;
use crate::ids::{DeviceId, OpId};
use crate::simulate::gathering::Gathering;
use crate::simulate::{Simulator, Transfer, Waited};

/// The copy that a sender made of what it sent, or the share of a member in a collective; of no length
/// where that costs a device nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copied {
    /// When the device began.
    pub start: Ticks,
    /// When it was done, and the transfer entered its queues, or the member had arrived.
    pub finish: Ticks,
    /// What it waited for.
    pub waited: Waited,
}

const NONE: Copied = Copied { start: 0, finish: 0, waited: Waited::Nothing };

/// The copies and shares of a run.
#[derive(Clone, Debug)]
pub(super) struct Sending {
    /// Per message, then per op by the user's index. Until one begins, its start is when it could have, and it waited for that.
    copies: Vec<Copied>,
    /// Ticks for each of them; none where it costs the device nothing.
    length: Vec<Option<Ticks>>,
    n_messages: u32,
    /// What waits for each device.
    waiting: Vec<VecDeque<u32>>,
    /// Messages whose copies ended in this round.
    done: Vec<u32>,
}

impl Sending {
    /// None where no device pays for sending or for collectives.
    pub fn new(sim: &Simulator<'_>, transfers: &[Transfer], gathering: &Gathering) -> Option<Self> {
        if !sim.cluster.has_send_costs() && !sim.cluster.has_busy_collectives() {
            return None;
        }
        let of_message = |t: &Transfer| {
            let seconds = sim.cluster.send_seconds(t.src, sim.work.tensor_bytes[t.tensor.ix()])?;
            Some(sim.clock.ticks(seconds))
        };
        let mut length: Vec<Option<Ticks>> = transfers.iter().map(of_message).collect();
        if sim.cluster.has_busy_collectives() {
            let of_op = |op: OpId| sim.work.collectives.of_op(op).map(|c| gathering.share(c));
            length.extend(sim.work.graph.ops_by_index().map(|op| of_op(op).filter(|&ticks| ticks > 0)));
        }
        Some(Self {
            copies: vec![NONE; length.len()],
            length,
            n_messages: transfers.len() as u32,
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

    /// Takes a member, by the user's index, whose inputs are there since now. Whether it must wait for its
    /// share to be done.
    pub fn holds_member(&mut self, index: u32, device: DeviceId, now: Ticks, cause: Waited) -> bool {
        let share = self.n_messages + index;
        (share as usize) < self.length.len() && self.holds(share, device, now, cause)
    }

    /// The index of the op whose share it is, if it is no copy.
    pub fn member(&self, what: u32) -> Option<u32> {
        what.checked_sub(self.n_messages)
    }

    /// Begins what waits for a free device that did `before` last: the copy or share, and when it is done.
    pub fn begin(&mut self, device: DeviceId, now: Ticks, before: Waited) -> Option<(u32, Ticks)> {
        let next = self.waiting[device.ix()].pop_front()?;
        let copy = &mut self.copies[next as usize];
        if copy.start < now {
            (copy.start, copy.waited) = (now, before);
        }
        copy.finish = now + self.length[next as usize].unwrap_or(0);
        Some((next, copy.finish))
    }

    /// Ends the copy of a message.
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

    /// The copies of messages, and the shares of ops by index; either is empty where it costs no device
    /// anything.
    pub fn into_parts(mut self, pays_for_sending: bool) -> (Vec<Copied>, Vec<Copied>) {
        let shares = self.copies.split_off(self.n_messages as usize);
        (if pays_for_sending { self.copies } else { Vec::new() }, shares)
    }
}
