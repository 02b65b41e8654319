//! The moves of the search: re-place a unit, re-place a connected part of one device, swap two
//! units (always where memory is full), shift an op within its topological window, or re-place a
//! unit and shift an op at once.
//!
//! A unit is a colocated set, or the ops that one op decides for, so that no move parts them. The
//! device that a unit goes to is drawn from those of an op's neighbours as often as from all
//! devices.

use crate::ids::{DeviceId, OpId};
use crate::random::Random;
use crate::search::state::State;

/// Most units of a connected part.
const PART: usize = 12;

/// Longest shift: moves of ops that are far apart in the order seldom help, and cost time to make.
const REACH: usize = 256;

/// Draws to find a partner for a swap.
const PARTNERS: usize = 8;

/// Draws moves; owns the room they need.
#[derive(Clone, Debug)]
pub struct Moves {
    part: Vec<u32>,
    /// The last draw at which each unit was taken into a part.
    taken: Vec<u64>,
    draw: u64,
}

impl Moves {
    /// Moves for a number of units.
    pub fn new(n_units: usize) -> Self {
        Self { part: Vec::with_capacity(PART), taken: vec![0; n_units], draw: 0 }
    }

    /// Changes the state by a random move that starts from an op. The move may change nothing.
    pub fn draw(&mut self, state: &mut State<'_>, u: OpId, random: &mut Random) {
        match random.below(16) {
            0..5 => replace(state, u, random),
            5..8 => self.replace_part(state, u, random),
            8..14 => shift(state, u, random),
            _ => {
                replace(state, u, random);
                shift(state, u, random);
            }
        }
    }

    /// Re-places a connected part of the op's device.
    fn replace_part(&mut self, state: &mut State<'_>, u: OpId, random: &mut Random) {
        let unit = state.problem.unit(u);
        let Some(to) = target(state, u, random) else { return };
        let from = state.device_of(unit);
        let size = 2 + random.below(PART - 1);
        self.draw += 1;
        self.part.clear();
        self.part.push(unit as u32);
        self.taken[unit] = self.draw;
        let mut next = 0;
        while next < self.part.len() && self.part.len() < size {
            let unit = self.part[next] as usize;
            next += 1;
            for &v in state.problem.units.row(unit) {
                for w in neighbours(state, v).take(2 * PART) {
                    let other = state.problem.unit(w);
                    let is_new = self.taken[other] != self.draw && state.device[w.ix()] == from;
                    if is_new && self.part.len() < size && random.below(4) > 0 {
                        self.taken[other] = self.draw;
                        self.part.push(other as u32);
                    }
                }
            }
        }
        for &unit in &self.part {
            if state.fits(unit as usize, to) {
                state.place(unit as usize, to);
            }
        }
    }
}

/// Re-places the unit of an op. If the unit finds no room, and now and then to keep loads level, it
/// is exchanged for another unit.
fn replace(state: &mut State<'_>, u: OpId, random: &mut Random) {
    let Some(to) = target(state, u, random) else { return };
    let problem = state.problem;
    let unit = problem.unit(u);
    if state.fits(unit, to) && random.below(8) > 0 {
        state.place(unit, to);
        return;
    }
    let from = state.device_of(unit);
    for _ in 0..PARTNERS {
        let other = random.below(problem.units.n_rows());
        if state.device_of(other) != to || problem.allowed[other] >> from.0 & 1 == 0 {
            continue;
        }
        let (mine, theirs) = (problem.charge[unit], problem.charge[other]);
        let here = (state.used[from.ix()] - mine).saturating_add(theirs) <= problem.capacity[from.ix()];
        let there = (state.used[to.ix()] - theirs).saturating_add(mine) <= problem.capacity[to.ix()];
        if here && there {
            state.place(other, from);
            state.place(unit, to);
            return;
        }
    }
}

/// Moves an op to another position of its window.
fn shift(state: &mut State<'_>, u: OpId, random: &mut Random) {
    let (first, last) = state.window(u);
    let at = state.position[u.ix()] as usize;
    let first = first.max(at.saturating_sub(REACH));
    let last = last.min(at + REACH);
    if first == last {
        return;
    }
    // Any position but its own.
    let to = first + random.below(last - first);
    state.shift(u, if to < at { to } else { to + 1 });
}

/// Another device for the unit of an op, if it may use one.
fn target(state: &State<'_>, u: OpId, random: &mut Random) -> Option<DeviceId> {
    let problem = state.problem;
    let from = state.device[u.ix()];
    let others = problem.allowed[problem.unit(u)] & !(1 << from.0);
    if others == 0 {
        return None;
    }
    if random.below(2) == 0
        && let Some(v) = neighbour(state, u, random)
    {
        let device = state.device[v.ix()];
        if others >> device.0 & 1 == 1 {
            return Some(device);
        }
    }
    let mut rest = others;
    for _ in 0..random.below(others.count_ones() as usize) {
        rest &= rest - 1;
    }
    Some(DeviceId(rest.trailing_zeros()))
}

/// The ops that an op reads from, then those that read from it.
fn neighbours<'s>(state: &'s State<'_>, u: OpId) -> impl Iterator<Item = OpId> + use<'s> {
    let graph = &state.problem.work.graph;
    let reads = state.problem.reads.row(u.ix());
    reads.iter().map(|&t| graph.source(t)).chain(graph.successors(u).iter().copied())
}

fn neighbour(state: &State<'_>, u: OpId, random: &mut Random) -> Option<OpId> {
    let graph = &state.problem.work.graph;
    let (reads, readers) = (state.problem.reads.row(u.ix()), graph.successors(u));
    let n = reads.len() + readers.len();
    if n == 0 {
        return None;
    }
    let i = random.below(n);
    Some(if i < reads.len() { graph.source(reads[i]) } else { readers[i - reads.len()] })
}
