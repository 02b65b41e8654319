//! One chain of moves: simulated annealing (Kirkpatrick, Gelatt, Vecchi 1983) in cycles.
//!
//! The limit that a move must keep to is drawn before it is evaluated, which lets the evaluation stop
//! early: a move that lengthens the makespan by x is accepted with probability exp(-x / temperature), so the
//! limit is the makespan plus temperature times an exponential variate. A cycle cools geometrically from one
//! of a portfolio of temperatures; the next starts from the best state known and takes longer.

use crate::clock::Ticks;
use crate::ids::{DeviceId, OpId};
use crate::random::Random;
use crate::search::moves::Moves;
use crate::search::problem::Problem;
use crate::search::state::State;

/// Numbers of ops from which on a graph counts as middling and as large. The more moves there are to choose
/// from, the lower the temperatures that pay.
const MIDDLING: usize = 1000;
const LARGE: usize = 2000;

/// On a graph of up to this many ops a cycle may start from any state: there are few moves to choose from.
const TINY: usize = 50;

/// How the cycles of a chain are cooled.
#[derive(Clone, Copy, Debug)]
pub struct Cooling {
    /// First temperatures of a cycle, as shares of the makespan (in a window: of the time that the window
    /// spans). The search of a small graph can be stuck in a state where most ops would have to change
    /// devices at once. Only a cycle that is hot enough to forget its first state leaves it.
    pub portfolio: &'static [f64],
    /// One move of this many may leave the makespan as it is or lengthen it; the others must shorten it. On
    /// all but small graphs most moves are of ops that nothing waits for. Two thirds of these would be
    /// accepted without any gain, and to accept a move takes far longer than to refuse it.
    pub patience: usize,
}

const TINY_COOLING: Cooling = Cooling { portfolio: &[0.01, 0.3, 0.03, 1.0, 0.1, 3.0], patience: 1 };
const SMALL_COOLING: Cooling = Cooling { portfolio: &[0.01, 0.3, 0.002, 0.1, 0.01, 0.002], patience: 2 };
const MIDDLING_COOLING: Cooling = Cooling { portfolio: &[0.001, 0.003, 0.01], patience: 2 };
const LARGE_COOLING: Cooling = Cooling { portfolio: &[0.0005, 0.003], patience: 16 };

/// Moves after which the critical ops are found anew, in searches that accept many moves.
const REFRESH: u64 = 48;

/// Last temperature of a cycle, as a share of its first.
const COOLING: f64 = 0.02;

/// Moves between changes of temperature.
const STEP: u64 = 256;

/// What a move takes beside its visits, in visits of ops.
pub(super) const MOVE: u64 = 8;

/// When a chain stops; each can be counted, so that a chain stops at the same move on every machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stop {
    /// Visits of ops.
    pub visits: u64,
    /// Visits of ops since the last better state.
    pub patience: u64,
    /// A makespan that is short enough.
    pub target: Ticks,
}

impl Stop {
    /// Never.
    pub const NEVER: Self = Self { visits: u64::MAX, patience: u64::MAX, target: 0 };
}

/// A placement, an order and their makespan.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// Device per op.
    pub device: Vec<DeviceId>,
    /// Ops in order.
    pub order: Vec<OpId>,
    /// Their makespan.
    pub makespan: Ticks,
}

/// One chain of moves, with its state.
#[derive(Clone, Debug)]
pub struct Chain<'a> {
    state: State<'a>,
    moves: Moves,
    /// Moves after which the critical ops are found anew, if one of these moves was accepted. It is one move
    /// where few moves are accepted: then every accepted move is followed by a look at the critical ops.
    refresh: u64,
    random: Random,
    best: Found,
    temperature: f64,
    cooling: Cooling,
    cycle: usize,
    /// Moves made in this cycle, and moves of the whole cycle.
    done: u64,
    length: u64,
    stop: Stop,
    /// Moves made so far; visits of ops at the time of the last better state.
    made: u64,
    found_at: u64,
}

impl<'a> Chain<'a> {
    /// The chain with this number, from a state that [`Problem::check`] has passed.
    pub fn new(problem: &'a Problem<'a>, start: &Found, seed: u64, number: usize, stop: Stop) -> Self {
        let cooling = match problem.n_ops() {
            ..TINY => TINY_COOLING,
            TINY..MIDDLING => SMALL_COOLING,
            MIDDLING..LARGE => MIDDLING_COOLING,
            _ => LARGE_COOLING,
        };
        Self::cooled(problem, start, seed, number, stop, cooling)
    }

    /// The chain with this number, with another cooling than the default of its graph's size.
    pub fn cooled(
        problem: &'a Problem<'a>,
        start: &Found,
        seed: u64,
        number: usize,
        stop: Stop,
        cooling: Cooling,
    ) -> Self {
        let state = State::new(problem, &start.device, &start.order);
        let n = problem.n_ops() as u64;
        let best = Found { makespan: state.makespan(), ..start.clone() };
        Self {
            moves: Moves::new(problem.units.n_rows()),
            refresh: if cooling.patience < LARGE_COOLING.patience { REFRESH } else { 1 },
            random: Random::new(seed, number as u64),
            best,
            temperature: 0.0,
            cooling,
            cycle: number,
            done: 0,
            length: (100 * n).max(10_000).next_multiple_of(STEP),
            stop,
            made: 0,
            found_at: state.visits(),
            state,
        }
    }

    /// The best state so far.
    pub fn best(&self) -> &Found {
        &self.best
    }

    /// The present state.
    pub fn last(&self) -> Found {
        let state = &self.state;
        Found { device: state.device().to_vec(), order: state.order().to_vec(), makespan: state.makespan() }
    }

    /// Takes over a better state; the next cycle starts from it.
    pub fn learn(&mut self, found: &Found) {
        if found.makespan < self.best.makespan {
            self.best.clone_from(found);
            self.found_at = self.visits();
        }
    }

    /// Moves made.
    pub fn moves(&self) -> u64 {
        self.made
    }

    /// Visits of ops, and what else takes time counted as visits of ops.
    pub fn visits(&self) -> u64 {
        self.state.visits() + MOVE * self.made
    }

    /// Whether the chain has stopped.
    pub fn is_done(&self) -> bool {
        let visits = self.visits();
        visits >= self.stop.visits
            || visits - self.found_at >= self.stop.patience
            || self.best.makespan <= self.stop.target
    }

    /// Makes a number of moves, fewer if it stops. Many calls are the same as one.
    pub fn run(&mut self, moves: u64) {
        for _ in 0..moves {
            if self.is_done() {
                return;
            }
            if self.done == self.length {
                self.next_cycle();
            }
            if self.done.is_multiple_of(STEP) {
                self.temperature = self.temperature();
            }
            if self.done.is_multiple_of(self.refresh) {
                self.state.find_critical();
            }
            self.done += 1;
            self.made += 1;
            self.step();
        }
    }

    fn next_cycle(&mut self) {
        self.state.set(&self.best.device, &self.best.order);
        self.cycle += 1;
        self.done = 0;
        self.length = (self.length * 5 / 4).next_multiple_of(STEP);
    }

    fn temperature(&self) -> f64 {
        let share = self.cooling.portfolio[self.cycle % self.cooling.portfolio.len()];
        let progress = self.done as f64 / self.length as f64;
        (self.best.makespan - self.state.problem.surroundings.outside) as f64 * share * COOLING.powf(progress)
    }

    fn step(&mut self) {
        let critical = self.state.critical_ops();
        let u = if self.random.below(2) == 0 && !critical.is_empty() {
            critical[self.random.below(critical.len())]
        } else {
            let open = &self.state.problem.open;
            OpId::new(open.start + self.random.below(open.len()))
        };
        self.moves.draw(&mut self.state, u, &mut self.random);
        if !self.state.is_changed() {
            return;
        }
        let limit = if self.random.below(self.cooling.patience) > 0 {
            self.state.makespan().saturating_sub(1)
        } else {
            self.state.makespan() + (-self.random.unit().ln() * self.temperature) as Ticks
        };
        match self.state.evaluate(limit) {
            None => self.state.undo(),
            Some(makespan) => {
                self.state.keep();
                if makespan < self.best.makespan {
                    self.found_at = self.visits();
                    self.best.makespan = makespan;
                    self.best.device.copy_from_slice(self.state.device());
                    self.best.order.copy_from_slice(self.state.order());
                }
            }
        }
    }
}
