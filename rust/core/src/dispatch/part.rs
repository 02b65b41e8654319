//! The part of a plan that one device runs.

use crate::csr::Csr;
use crate::error::Error;
use crate::ids::DeviceId;

/// What a device has to do, as columns. Tasks, arrivals and devices have their numbers on the board.
#[derive(Clone, Debug, Default)]
pub struct Columns {
    /// The tasks of the device.
    pub tasks: Vec<u32>,
    /// Per task of the device: smaller runs first, ties by number.
    pub priority: Vec<i32>,
    /// Per task of the device: whether it takes no time of the device, so that it runs as soon as it can.
    pub at_once: Vec<bool>,
    /// Pairs of tasks of the device, of which the second waits for the first.
    pub order: Vec<(u32, u32)>,
    /// Pairs of an arrival and a task of the device that waits for it.
    pub waits: Vec<(u32, u32)>,
    /// Pairs of an arrival that the device sends and a device that it tells of it.
    pub sends: Vec<(u32, u32)>,
}

/// The tasks of a device, in the order in which it takes those that are ready.
#[derive(Clone, Debug)]
pub struct Part {
    /// The device.
    pub device: DeviceId,
    /// Whether tasks run exactly in their order, those that run at once aside.
    pub is_fixed: bool,
    /// The number of each task on the board. Those that run at once come first.
    pub(super) tasks: Vec<u32>,
    /// How many run at once.
    pub(super) n_at_once: usize,
    /// Per task, how many tasks and arrivals it waits for.
    pub(super) missing: Vec<u32>,
    /// Tasks that wait for each task.
    pub(super) next: Csr<u32>,
    /// The number on the board of each arrival that is waited for.
    pub(super) arrivals: Vec<u32>,
    /// Tasks that wait for each of them.
    pub(super) waiting: Csr<u32>,
    /// The arrivals that the device sends, ascending, and whom it tells.
    pub(super) sends: Vec<u32>,
    pub(super) told: Csr<u32>,
    /// Tasks by number, with their places.
    places: Vec<(u32, u32)>,
}

/// The distinct first numbers of pairs, ascending, and the second ones of each.
fn grouped(mut pairs: Vec<(u32, u32)>) -> (Vec<u32>, Csr<u32>) {
    pairs.sort_unstable();
    pairs.dedup();
    let mut firsts: Vec<u32> = pairs.iter().map(|pair| pair.0).collect();
    firsts.dedup();
    let mut row = 0;
    let mut rows = Vec::with_capacity(pairs.len());
    for (first, second) in pairs {
        row += usize::from(firsts[row] != first);
        rows.push((row, second));
    }
    let csr = Csr::from_pairs(firsts.len(), rows.iter().copied());
    (firsts, csr)
}

impl Part {
    /// Checks columns. O(n log n).
    ///
    /// # Errors
    /// Columns of different length; a task twice; a pair with a task of another device; tasks that wait for
    /// each other.
    pub fn new(device: DeviceId, is_fixed: bool, columns: Columns) -> Result<Self, Error> {
        let n = columns.tasks.len();
        for (argument, got) in [("priority", columns.priority.len()), ("at_once", columns.at_once.len())] {
            if got != n {
                return Err(Error::WrongLength { argument, got, want: n, per: "task" });
            }
        }
        let mut ranked: Vec<usize> = (0..n).collect();
        ranked.sort_by_key(|&i| (!columns.at_once[i], columns.priority[i], columns.tasks[i]));
        let tasks: Vec<u32> = ranked.iter().map(|&i| columns.tasks[i]).collect();
        let mut places: Vec<(u32, u32)> = tasks.iter().copied().zip(0..).collect();
        places.sort_unstable();
        if let Some(pair) = places.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(wrong("tasks", format!("task {} comes twice", pair[0].0)));
        }
        let mut part = Self {
            device,
            is_fixed,
            n_at_once: columns.at_once.iter().filter(|&&at_once| at_once).count(),
            tasks,
            missing: vec![0; n],
            next: Csr::from_pairs(n, std::iter::empty()),
            arrivals: Vec::new(),
            waiting: Csr::from_pairs(0, std::iter::empty()),
            sends: Vec::new(),
            told: Csr::from_pairs(0, std::iter::empty()),
            places,
        };
        let mut order = columns.order;
        order.sort_unstable();
        order.dedup();
        let of_two = |&(a, b): &(u32, u32)| Ok((part.place("order", a)? as usize, part.place("order", b)?));
        let order = order.iter().map(of_two).collect::<Result<Vec<_>, Error>>()?;
        let of_one = |&(a, b): &(u32, u32)| Ok((a, part.place("waits", b)?));
        let waits = columns.waits.iter().map(of_one).collect::<Result<Vec<_>, Error>>()?;
        part.next = Csr::from_pairs(n, order.iter().copied());
        (part.arrivals, part.waiting) = grouped(waits);
        (part.sends, part.told) = grouped(columns.sends);
        part.next.items().iter().chain(part.waiting.items()).for_each(|&t| part.missing[t as usize] += 1);
        part.check_order()?;
        Ok(part)
    }

    /// The place of a task in the order of the device.
    pub(super) fn place(&self, argument: &'static str, task: u32) -> Result<u32, Error> {
        let found = self.places.binary_search_by_key(&task, |place| place.0);
        let elsewhere = |_| wrong(argument, format!("task {task} is none of device {}", self.device.0));
        found.map(|i| self.places[i].1).map_err(elsewhere)
    }

    /// The devices to tell of an arrival that this one sends.
    pub(super) fn tells(&self, arrival: u32) -> Result<&[u32], Error> {
        let found = self.sends.binary_search(&arrival);
        let other = |_| wrong("arrival", format!("device {} does not send arrival {arrival}", self.device.0));
        found.map(|row| self.told.row(row)).map_err(other)
    }

    /// Checks that tasks can run one after another once all arrivals are there.
    fn check_order(&self) -> Result<(), Error> {
        let mut missing = vec![0u32; self.tasks.len()];
        self.next.items().iter().for_each(|&t| missing[t as usize] += 1);
        let mut ready: Vec<usize> = (0..missing.len()).filter(|&t| missing[t] == 0).collect();
        let mut done = 0;
        while let Some(task) = ready.pop() {
            done += 1;
            for &t in self.next.row(task) {
                missing[t as usize] -= 1;
                if missing[t as usize] == 0 {
                    ready.push(t as usize);
                }
            }
        }
        match missing.iter().position(|&m| m > 0) {
            Some(t) if done < missing.len() => {
                Err(wrong("order", format!("task {} waits for itself", self.tasks[t])))
            }
            _ => Ok(()),
        }
    }
}

pub(super) fn wrong(argument: &'static str, reason: String) -> Error {
    Error::BadArgument { argument, reason }
}
