//! Refinement of a placement: groups of ops move between devices where that shortens the step.
//!
//! The uncoarsening half of a multilevel placement. On each of several levels, coarse to fine, every group is
//! tried on the devices that it exchanges most bytes with and on the device with least to do, and moves if
//! the makespan gets shorter. Moving a coarse group at once can succeed where its first op, moved alone,
//! would make the placement worse.
//!
//! The judge is a [`State`] whose order stays as it is, so that a move costs only the rows that it reaches. A
//! sweep follows the order, so that rows before a group are worked out once. Where every channel serves one
//! pair of devices, the state's makespan is the simulator's for the fixed order; elsewhere it is an estimate,
//! and the caller simulates the result. O(V + E) per move at worst.
//!
//! Whole sets of colocated ops move; memory is counted statically, per op as given.

use crate::clock::Ticks;
use crate::csr::Csr;
use crate::error::Error;
use crate::ids::{DeviceId, OpId};
use crate::search::anneal::MOVE;
use crate::search::problem::Problem;
use crate::search::state::State;
use crate::topo;

/// A sweep over the groups of one level that gains no more than this share of the makespan is the level's
/// last.
const SWEEPS: usize = 5;
const PART: Ticks = 100;

/// What moving a unit there and back takes, in visits of ops.
const UNIT: u64 = 4;

/// Most devices that a group is tried on for the bytes that it exchanges with them.
const OFFERS: usize = 3;

/// The refined placement.
#[derive(Clone, Debug, PartialEq)]
pub struct Refined {
    /// Device per op.
    pub placement: Vec<DeviceId>,
    /// Estimated ticks of a step.
    pub makespan: Ticks,
    /// Visits of ops over all moves that were tried, and what else takes time counted as visits of ops.
    pub visits: u64,
}

/// What is refined, and within which limits.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// A topological order: on a device, ops run in it.
    pub order: &'a [OpId],
    /// The placement to begin with.
    pub placement: &'a [DeviceId],
    /// Group per op, level by level, coarse to fine.
    pub levels: &'a [Vec<u32>],
    /// Most visits of ops, over all moves.
    pub budget: u64,
}

/// Moves groups between devices while that shortens the schedule.
///
/// A device that is charged more than its room in `problem` from the start is given nothing more.
///
/// # Errors
/// An order that is not topological, a placement that breaks a rule, a level of the wrong length.
pub fn refine(problem: &Problem<'_>, request: &Request<'_>) -> Result<Refined, Error> {
    let n = problem.n_ops();
    problem.work.check_placement(problem.cluster, request.placement)?;
    if !topo::is_topological(&problem.work.graph, request.order) {
        let reason = "must list every op once, producers before consumers".into();
        return Err(Error::BadArgument { argument: "order", reason });
    }
    if let Some(level) = request.levels.iter().find(|level| level.len() != n) {
        return Err(Error::WrongLength { argument: "level", got: level.len(), want: n, per: "op" });
    }
    let mut search = Search::new(problem, request);
    for level in request.levels {
        search.level(level);
    }
    Ok(Refined {
        makespan: search.state.makespan(),
        placement: search.state.device().to_vec(),
        visits: search.visits(),
    })
}

/// The placement being refined.
struct Search<'a> {
    request: &'a Request<'a>,
    state: State<'a>,
    /// Moves tried, and units that they moved.
    moves: u64,
    moved: u64,
    /// The units of the group under consideration, which move together.
    units: Vec<u32>,
}

impl<'a> Search<'a> {
    fn new(problem: &'a Problem<'a>, request: &'a Request<'a>) -> Self {
        let state = State::new(problem, request.placement, request.order);
        Self { request, state, moves: 0, moved: 0, units: Vec::new() }
    }

    fn visits(&self) -> u64 {
        self.state.visits() + MOVE * self.moves + UNIT * self.moved
    }

    fn is_spent(&self) -> bool {
        self.visits() >= self.request.budget
    }

    /// Sweeps over the groups of a level until one gains little.
    fn level(&mut self, group: &[u32]) {
        let mut numbers = group.to_vec();
        numbers.sort_unstable();
        numbers.dedup();
        let dense = |g: u32| numbers.binary_search(&g).unwrap_or(0);
        // By first op in the order, so that a sweep follows the schedule.
        let in_order = self.request.order.iter().map(|u| (dense(group[u.ix()]), *u));
        let members = Csr::from_pairs(numbers.len(), in_order);
        let mut place = vec![0u32; group.len()];
        self.request.order.iter().enumerate().for_each(|(i, u)| place[u.ix()] = i as u32);
        let mut rows: Vec<usize> = (0..members.n_rows()).collect();
        rows.sort_by_key(|&g| members.row(g).first().map_or(0, |u| place[u.ix()]));
        for _ in 0..SWEEPS {
            let before = self.state.makespan();
            for &g in &rows {
                if self.is_spent() {
                    return;
                }
                self.offer(members.row(g));
            }
            if before - self.state.makespan() <= before / PART {
                return;
            }
        }
    }

    /// Moves a group to each of [`Self::candidates`] in turn, and keeps each move that shortens the
    /// schedule.
    fn offer(&mut self, group: &[OpId]) {
        self.take_up(group);
        for device in self.candidates() {
            if self.is_spent() {
                return;
            }
            if self.has_room(device) {
                self.try_move(device);
            }
        }
    }

    /// Takes up the units of a group.
    fn take_up(&mut self, group: &[OpId]) {
        let problem = self.state.problem;
        self.units.clear();
        self.units.extend(group.iter().map(|u| problem.unit_of[u.ix()]));
        self.units.sort_unstable();
        self.units.dedup();
    }

    /// Devices to try, most promising first: those that the units exchange most bytes with, then
    /// the device with least to do.
    fn candidates(&self) -> Vec<DeviceId> {
        let (state, problem) = (&self.state, self.state.problem);
        let (graph, bytes_of) = (&problem.work.graph, &problem.work.tensor_bytes);
        let mut bytes = vec![0u128; problem.n_devices];
        for u in self.units.iter().flat_map(|unit| problem.units.row(*unit as usize)) {
            for t in problem.reads.row(u.ix()) {
                bytes[state.device[graph.source(*t).ix()].ix()] += u128::from(bytes_of[t.ix()]) + 1;
            }
            for t in graph.outputs(*u) {
                for c in graph.consumers(t) {
                    bytes[state.device[c.ix()].ix()] += u128::from(bytes_of[t.ix()]) + 1;
                }
            }
        }
        let mut devices: Vec<DeviceId> = problem.cluster.device_ids().collect();
        let idle = devices.iter().copied().min_by_key(|d| (state.load[d.ix()], *d));
        devices.sort_by_key(|d| (std::cmp::Reverse(bytes[d.ix()]), *d));
        devices.retain(|d| bytes[d.ix()] > 0);
        devices.truncate(OFFERS);
        devices.extend(idle.filter(|d| !devices.contains(d)));
        let allowed = |d: &DeviceId| self.units.iter().all(|&u| problem.allowed[u as usize] >> d.0 & 1 == 1);
        devices.retain(|d| allowed(d));
        devices
    }

    /// Units that are not on a device.
    fn coming(&self, device: DeviceId) -> impl Iterator<Item = usize> {
        let units = self.units.iter().map(|&unit| unit as usize);
        units.filter(move |&unit| self.state.device_of(unit) != device)
    }

    fn has_room(&self, device: DeviceId) -> bool {
        let problem = self.state.problem;
        let bytes: u128 = self.coming(device).map(|unit| u128::from(problem.charge[unit])).sum();
        let held = u128::from(self.state.used[device.ix()]);
        bytes == 0 || held + bytes <= u128::from(problem.capacity[device.ix()])
    }

    /// Moves the units to a device if that is better.
    fn try_move(&mut self, device: DeviceId) {
        let units: Vec<usize> = self.coming(device).collect();
        if units.is_empty() {
            return;
        }
        self.state.find_critical();
        self.moves += 1;
        self.moved += units.len() as u64;
        let shorter = self.state.makespan().checked_sub(1);
        units.into_iter().for_each(|unit| self.state.place(unit, device));
        if shorter.is_some_and(|limit| self.state.evaluate(limit).is_some()) {
            self.state.keep();
        } else {
            self.state.undo();
        }
    }
}
