//! Emulated devices: an op is a wait, a link is a clock that all senders share.
//!
//! What an emulated device does and when is decided by the same dispatcher as on a real one, on the
//! machine's own clock. A transfer starts once every channel of its route is free, in the order in which
//! transfers are asked for; those that are asked for as the step begins, at one instant, go by their
//! numbers. A collective starts once its last member has come. Both hold their channels until they end, as
//! in the judge ([`crate::simulate`]).

use std::sync::{Arc, Mutex, PoisonError};

use crate::border::check_room;
use crate::csr::Csr;
use crate::dispatch::board::Board;
use crate::dispatch::dispatcher::{Dispatcher, Ended};
use crate::dispatch::part::wrong;
use crate::dispatch::waiting::{Bell, Bells};
use crate::error::Error;

/// The channels of all links, and how long arrivals take on them.
#[derive(Debug)]
pub struct Links {
    /// Channels that each arrival holds.
    channels: Csr<u32>,
    /// Nanoseconds that each arrival holds them.
    length: Vec<u64>,
    /// The first arrival of the collective of each; itself of one that comes alone.
    group: Vec<u32>,
    /// The arrivals that come together, in the row of the first.
    members: Csr<u32>,
    /// Devices that are told of each arrival.
    told: Csr<u32>,
    /// Arrivals that are sent as the step begins.
    first: Vec<u32>,
    held: Mutex<Held>,
    /// By which devices that wait for each other wake each other.
    pub bells: Arc<Bells>,
}

#[derive(Debug)]
struct Held {
    /// When each channel is free.
    free: Vec<u64>,
    /// By the first arrival of each collective, how many of its members have come.
    came: Vec<u32>,
}

impl Links {
    /// `holds` are pairs of an arrival and a channel, `told` of an arrival and a device. `collective` is a
    /// number per arrival that is the same for the members of a collective, negative for transfers. `first`
    /// are those that are sent as the step begins.
    ///
    /// # Errors
    /// Columns of different length; numbers out of range; more devices or channels than there is room for.
    pub fn new(
        (n_devices, n_channels): (usize, usize),
        holds: &[(u32, u32)],
        length: Vec<u64>,
        collective: &[i64],
        told: &[(u32, u32)],
        first: Vec<u32>,
    ) -> Result<Self, Error> {
        let n = length.len();
        check_room("n_devices", n_devices, size_of::<Bell>())?;
        check_room("n_channels", n_channels, size_of::<u64>())?;
        if collective.len() != n {
            let got = collective.len();
            return Err(Error::WrongLength { argument: "collective", got, want: n, per: "arrival" });
        }
        if let Some((arrival, channel)) =
            holds.iter().find(|(a, c)| *a as usize >= n || *c as usize >= n_channels)
        {
            return Err(wrong("holds", format!("arrival {arrival} holds channel {channel}")));
        }
        if let Some((arrival, device)) =
            told.iter().find(|(a, d)| *a as usize >= n || *d as usize >= n_devices)
        {
            return Err(wrong("told", format!("device {device} of arrival {arrival}")));
        }
        if let Some(arrival) = first.iter().find(|arrival| **arrival as usize >= n) {
            return Err(wrong("first", format!("arrival {arrival} of {n}")));
        }
        let mut group: Vec<u32> = (0..n as u32).collect();
        let mut of_number = std::collections::BTreeMap::new();
        for (arrival, &number) in (0..).zip(collective) {
            if number >= 0 {
                group[arrival as usize] = *of_number.entry(number).or_insert(arrival);
            }
        }
        let members = Csr::from_pairs(n, group.iter().map(|&g| g as usize).zip(0u32..));
        Ok(Self {
            channels: Csr::from_pairs(n, holds.iter().map(|&(a, c)| (a as usize, c))),
            told: Csr::from_pairs(n, told.iter().map(|&(a, d)| (a as usize, d))),
            first,
            length,
            group,
            members,
            bells: Arc::new(Bells::new(n_devices)),
            held: Mutex::new(Held { free: vec![0; n_channels], came: vec![0; n] }),
        })
    }

    /// That a board has all arrivals, and all devices that are told of one.
    ///
    /// # Errors
    /// One that it does not have.
    pub fn check(&self, board: &Board<'_>) -> Result<(), Error> {
        let (n, arrivals, devices) = (self.length.len(), board.n_arrivals(), board.n_devices());
        if n > arrivals {
            return Err(wrong("links", format!("{n} arrivals, of which the board has {arrivals}")));
        }
        match self.told.items().iter().find(|device| **device as usize >= devices) {
            Some(device) => Err(wrong("links", format!("device {device} of {devices} on the board"))),
            None => Ok(()),
        }
    }

    /// Sends an arrival; what comes in with it, and from when to when it is under way. A member of a
    /// collective brings nothing before the last one has come.
    fn send(&self, arrival: u32, now: u64) -> (&[u32], (u64, u64)) {
        let first = self.group[arrival as usize] as usize;
        let together = self.members.row(first);
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let came = &mut held.came[first];
        *came += 1;
        if (*came as usize) < together.len() {
            return (&[], (now, now));
        }
        *came = 0;
        let channels = self.channels.row(arrival as usize);
        let start = channels.iter().map(|&c| held.free[c as usize]).fold(now, u64::max);
        let finish = start.saturating_add(self.length[arrival as usize]);
        channels.iter().for_each(|&c| held.free[c as usize] = finish);
        (together, (start, finish))
    }
}

/// What an emulated device needs to know of its tasks, in the order in which they were given.
#[derive(Debug)]
pub struct Device {
    /// Nanoseconds per task, by its place.
    length: Vec<u64>,
    /// Arrivals that are sent once a task is done, by its place.
    after: Csr<u32>,
}

impl Device {
    /// `length` are pairs of a task and its nanoseconds, `after` pairs of a task and an arrival that is sent
    /// once the task is done, in this order.
    ///
    /// # Errors
    /// A task or an arrival of another device, or an arrival that the links do not have.
    pub fn new(
        dispatcher: &Dispatcher,
        links: &Links,
        length: &[(u32, u64)],
        after: &[(u32, u32)],
    ) -> Result<Self, Error> {
        let part = dispatcher.part();
        let mut by_place = vec![0; part.tasks.len()];
        for &(task, nanoseconds) in length {
            by_place[part.place("length", task)? as usize] = nanoseconds;
        }
        let placed = |&(task, arrival): &(u32, u32)| Ok((part.place("after", task)? as usize, arrival));
        let after = after.iter().map(placed).collect::<Result<Vec<_>, Error>>()?;
        for &(_, arrival) in &after {
            part.tells(arrival)?;
            if arrival as usize >= links.length.len() {
                return Err(wrong("after", format!("arrival {arrival} of {}", links.length.len())));
            }
        }
        let after = Csr::from_pairs(part.tasks.len(), after.iter().copied());
        Ok(Self { length: by_place, after })
    }

    /// Runs a step; when it began.
    pub fn step(&self, dispatcher: &mut Dispatcher, board: &Board<'_>, links: &Links) -> Result<u64, Ended> {
        let begins = dispatcher.begin(board)?;
        let clock = dispatcher.clock();
        if dispatcher.part().device.0 == 0 {
            send(dispatcher, board, links, &links.first, begins);
        }
        let mut running: Option<(u32, u64)> = None;
        while !dispatcher.is_done() {
            let now = clock.now();
            dispatcher.look(board, now);
            while let Some(task) = dispatcher.take(true) {
                board.started(dispatcher.part().tasks[task as usize], now);
                self.finish(dispatcher, board, links, (task, now));
            }
            match running {
                Some((task, end)) if end <= now => {
                    self.finish(dispatcher, board, links, (task, now));
                    running = None;
                    continue;
                }
                None => {
                    if let Some(task) = dispatcher.take(false) {
                        board.started(dispatcher.part().tasks[task as usize], now);
                        running = Some((task, now.saturating_add(self.length[task as usize])));
                        continue;
                    }
                    if dispatcher.is_done() {
                        break;
                    }
                    dispatcher.check(board, now)?;
                    dispatcher.wait(dispatcher.due().unwrap_or(u64::MAX));
                }
                Some((_, end)) => {
                    if board.is_stopped() {
                        return Err(Ended::Stopped);
                    }
                    dispatcher.wait(end.min(dispatcher.due().unwrap_or(u64::MAX)));
                }
            }
        }
        dispatcher.end(board)?;
        Ok(begins)
    }

    /// Ends a task, and sends what is to be sent then.
    fn finish(&self, dispatcher: &mut Dispatcher, board: &Board<'_>, links: &Links, (task, now): (u32, u64)) {
        dispatcher.finish(board, task, now);
        send(dispatcher, board, links, self.after.row(task as usize), now);
    }
}

fn send(dispatcher: &Dispatcher, board: &Board<'_>, links: &Links, arrivals: &[u32], now: u64) {
    for &arrival in arrivals {
        let (come, span) = links.send(arrival, now);
        for &arrival in come {
            dispatcher.post(board, arrival, span, links.told.row(arrival as usize));
        }
    }
}
