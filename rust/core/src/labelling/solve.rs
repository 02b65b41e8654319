//! A labelling by TRW-S and ICM: in every other sweep labels are read off the messages and improved one by one. The best
//! labels of all count, and each such sweep tries to improve them by a move of many nodes.
//!
//! What need not be searched is taken out first.
//!
//! A sweep is a pass in each direction; labels are read before one of them, by turns. Sweeps end once the bound proves the labels best, or once neither has
//! improved for a while. No sweep makes the labels or the bound worse.

use super::forest::Forests;
use super::icm::descend;
use super::model::{Energy, Model};
use super::reduce::{Back, Reduced};
use super::ties::Ties;
use super::trws::{Direction, Messages, NoChoice, Sent};
use super::{Labelling, energy};
use crate::error::Error;

/// Labels that are within this share of the bound are the best.
const TOLERANCE: f64 = 1e-4;

/// Sweeps in which nothing improves, before the last. The bound has improved once this share of what was between it
/// and the energy is gone, in however many of them.
const PATIENCE: u32 = 20;
const PROGRESS: f64 = 1e-2;

/// Passes over a problem without labels, at most, to name what has no choice.
const REFUSAL: usize = 100;

/// Labels are read in each sweep of so many. Moves of many nodes then, at most.
const READ: u32 = 2;
const MOVES: u32 = 2;

/// Labels, and how good they are.
#[derive(Clone, Debug, PartialEq)]
pub struct Labels {
    /// A label per node.
    pub labels: Vec<u32>,
    /// Weighted sum of their costs.
    pub energy: f64,
    /// No labels have less.
    pub bound: f64,
    /// Sweeps made.
    pub sweeps: u32,
    /// What the bound stands on.
    pub sent: Sent,
}

impl Labels {
    /// What is between energy and bound, as a share of the energy's size.
    pub fn gap(&self) -> f64 {
        if self.energy > self.bound { (self.energy - self.bound) / self.energy.abs() } else { 0.0 }
    }
}

/// The search for labels of one problem, for one choice of weights.
#[derive(Debug)]
pub struct Solver<'a> {
    problem: &'a Labelling,
    weights: &'a [f64],
    ties: Ties,
    /// What is left of the problem, and the way back from there.
    model: Model,
    back: Back,
    /// What all labels of the model cost besides.
    constant: f64,
    messages: Messages,
    forests: Forests,
    /// Labels that were read last, per node of what is left of the model.
    read: Vec<u32>,
    best: Vec<u32>,
    best_energy: Energy,
    bound: f64,
    sweeps: u32,
    /// Sweeps since the last improvement; what was between energy and bound then.
    idle: u32,
    gap_then: f64,
}

impl<'a> Solver<'a> {
    /// Prepares a search; from labels to improve, where some are given. Labels and weights are checked already.
    pub fn new(
        problem: &'a Labelling,
        weights: &'a [f64],
        tied: Option<&[i64]>,
        start: Option<&[u32]>,
    ) -> Result<Self, Error> {
        let ties = Ties::new(problem, tied)?;
        let start = start.map(|labels| ties.per_set(labels)).transpose()?;
        let model = ties.model(problem, weights)?;
        let mut start = start.unwrap_or_else(|| vec![0; ties.n_sets()]);
        descend(&model, &mut start);
        let Reduced { model, constant, back } = Reduced::of(&model);
        let mut solver = Self {
            problem,
            weights,
            messages: Messages::new(&model),
            forests: Forests::new(&model),
            read: back.restricted(&start),
            best: vec![0; model.n_nodes()],
            best_energy: Energy { forbidden: u32::MAX, cost: 0.0 },
            bound: f64::NEG_INFINITY,
            sweeps: 0,
            idle: 0,
            gap_then: f64::INFINITY,
            ties,
            model,
            constant,
            back,
        };
        solver.keep();
        Ok(solver)
    }

    /// Begins with the messages that were found for a problem with other costs.
    pub fn after(mut self, sent: &Sent) -> Self {
        self.messages.receive(&self.model, &self.back.names, sent);
        self
    }

    /// Whether more sweeps are of no use.
    pub fn is_done(&self) -> bool {
        let cost = self.best_energy.cost + self.constant;
        self.idle >= PATIENCE || (cost < f64::INFINITY && self.gap() <= TOLERANCE * cost.abs())
    }

    /// What is between the best energy and the bound.
    fn gap(&self) -> f64 {
        if self.best_energy.forbidden > 0 {
            f64::INFINITY
        } else {
            self.best_energy.cost + self.constant - self.bound
        }
    }

    /// A pass in each direction.
    pub fn sweep(&mut self) -> Result<(), Error> {
        if self.constant == f64::INFINITY {
            return Err(self.refusal()?);
        }
        let before = self.best_energy;
        let reads = self.sweeps.is_multiple_of(READ);
        for (turn, direction) in [Direction::Forward, Direction::Backward].into_iter().enumerate() {
            if reads && self.sweeps / READ % 2 == turn as u32 {
                self.messages.labels(&self.model, direction, &mut self.read);
                self.keep();
            }
            let pass = self.messages.pass(&self.model, direction);
            let bound = pass.or_else(|_| Err(self.refusal()?))?;
            self.bound = self.bound.max(bound + self.constant);
        }
        if reads {
            self.improve();
        }
        self.sweeps += 1;
        self.idle += 1;
        if self.best_energy < before || self.gap() < (1.0 - PROGRESS) * self.gap_then {
            (self.idle, self.gap_then) = (0, self.gap());
        }
        Ok(())
    }

    /// Improves the labels read last, and keeps them if they are the best.
    fn keep(&mut self) {
        descend(&self.model, &mut self.read);
        let energy = self.model.energy(&self.read);
        if energy < self.best_energy {
            self.best_energy = energy;
            self.best.copy_from_slice(&self.read);
        }
    }

    /// Tries moves of many nodes on the best labels, until one changes nothing.
    fn improve(&mut self) {
        self.read.copy_from_slice(&self.best);
        for _ in 0..MOVES {
            if !self.forests.improve(&self.model, &mut self.read) {
                break;
            }
            self.keep();
        }
    }

    /// The best labels so far, or which of their choices is forbidden.
    pub fn labels(&self) -> Result<Labels, Error> {
        let labels = self.ties.per_node(&self.back.whole(&self.best));
        if let Some(choice) = self.problem.forbidden(&labels) {
            let reason = format!(
                "none was found without a forbidden choice in {} sweeps; the best chooses {choice}",
                self.sweeps
            );
            return Err(Error::NoLabelling(reason));
        }
        let energy = energy(&self.problem.components(&labels), self.weights);
        let sent = self.messages.sent(&self.model, &self.back.names);
        Ok(Labels { labels, energy, bound: self.bound.min(energy), sweeps: self.sweeps, sent })
    }

    /// Why there are no labels without a forbidden choice: what messages of the whole model find.
    fn refusal(&self) -> Result<Error, Error> {
        let model = self.ties.model(self.problem, self.weights)?;
        let mut messages = Messages::new(&model);
        let turns = [Direction::Forward, Direction::Backward].into_iter().cycle().take(REFUSAL);
        let found = turns.map(|direction| messages.pass(&model, direction)).find_map(Result::err);
        Ok(Error::NoLabelling(match found {
            None => "each choice of labels has a forbidden one".to_owned(),
            Some(NoChoice::Node(set)) => {
                let (n, node) = (model.n_labels(set), self.words(set));
                format!("each of {n} labels of {node} is forbidden, by itself or by what neighbours allow")
            }
            Some(NoChoice::Edge(a, b)) => {
                let edge = self.ties.edge_between(self.problem, a, b).unwrap_or(0);
                let (a, b) = (self.words(a), self.words(b));
                format!(
                    "each pair of labels on edge {edge} is forbidden, between {a} and {b}, given what their neighbours \
                     allow"
                )
            }
        }))
    }

    /// A set of tied nodes in words.
    fn words(&self, set: usize) -> String {
        let members = self.ties.members(set);
        let tied = members.len() - 1;
        let others = if tied > 0 { format!(" (with {tied} tied to it)") } else { String::new() };
        format!("node {}{others}", members[0])
    }
}
