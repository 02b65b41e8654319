//! A labelling by TRW-S and ICM: in each sweep labels are read off the messages and improved one by one. The best
//! labels of all count, and each sweep tries to improve them by a move of many nodes.
//!
//! A sweep is a pass in each direction; labels are read before one of them, by turns. Sweeps end once the bound proves the labels best, or once neither has
//! improved for a while. No sweep makes the labels or the bound worse.

use super::forest::Forests;
use super::icm::descend;
use super::model::{Energy, Model};
use super::ties::Ties;
use super::trws::{Direction, Messages, NoChoice};
use super::{Labelling, energy};
use crate::error::Error;

/// Labels that are within this share of the bound are the best.
const TOLERANCE: f64 = 1e-6;

/// Sweeps in which nothing improves, before the last; the bound improves when it comes nearer to the energy by
/// this share of what is between them.
const PATIENCE: u32 = 5;
const PROGRESS: f64 = 1e-3;

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
    model: Model,
    messages: Messages,
    forests: Forests,
    /// Labels that were read last, per node of the model.
    read: Vec<u32>,
    best: Vec<u32>,
    best_energy: Energy,
    bound: f64,
    sweeps: u32,
    idle: u32,
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
        let mut solver = Self {
            problem,
            weights,
            messages: Messages::new(&model),
            forests: Forests::new(&model),
            read: vec![0; ties.n_sets()],
            best: vec![0; ties.n_sets()],
            best_energy: Energy { forbidden: u32::MAX, cost: 0.0 },
            bound: f64::NEG_INFINITY,
            sweeps: 0,
            idle: 0,
            ties,
            model,
        };
        solver.read.copy_from_slice(start.as_deref().unwrap_or(&solver.best));
        solver.keep();
        Ok(solver)
    }

    /// Whether more sweeps are of no use.
    pub fn is_done(&self) -> bool {
        self.idle >= PATIENCE || self.gap() <= TOLERANCE * self.best_energy.cost.abs()
    }

    /// What is between the best energy and the bound.
    fn gap(&self) -> f64 {
        if self.best_energy.forbidden > 0 { f64::INFINITY } else { self.best_energy.cost - self.bound }
    }

    /// A pass in each direction.
    pub fn sweep(&mut self) -> Result<(), Error> {
        let (gap, energy) = (self.gap(), self.best_energy);
        for (turn, direction) in [Direction::Forward, Direction::Backward].into_iter().enumerate() {
            if self.sweeps % 2 == turn as u32 {
                self.messages.labels(&self.model, direction, &mut self.read);
                self.keep();
            }
            let bound = self.messages.pass(&self.model, direction).map_err(|none| self.refusal(none))?;
            self.bound = self.bound.max(bound);
        }
        self.improve();
        self.sweeps += 1;
        let is_better = self.best_energy < energy || self.gap() < (1.0 - PROGRESS) * gap;
        self.idle = if is_better { 0 } else { self.idle + 1 };
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

    /// Tries a move of many nodes on the best labels.
    fn improve(&mut self) {
        self.read.copy_from_slice(&self.best);
        if self.forests.improve(&self.model, &mut self.read) {
            self.keep();
        }
    }

    /// The best labels so far, or which of their choices is forbidden.
    pub fn labels(&self) -> Result<Labels, Error> {
        let labels = self.ties.per_node(&self.best);
        if let Some(choice) = self.problem.forbidden(&labels) {
            let reason = format!(
                "none was found without a forbidden choice in {} sweeps; the best chooses {choice}",
                self.sweeps
            );
            return Err(Error::NoLabelling(reason));
        }
        let energy = energy(&self.problem.components(&labels), self.weights);
        Ok(Labels { labels, energy, bound: self.bound.min(energy), sweeps: self.sweeps })
    }

    fn refusal(&self, none: NoChoice) -> Error {
        let among = |set: usize| {
            let members = self.ties.members(set);
            let tied = members.len() - 1;
            let others = if tied > 0 { format!(" (with {tied} tied to it)") } else { String::new() };
            format!("node {}{others}", members[0])
        };
        Error::NoLabelling(match none {
            NoChoice::Node(set) => {
                let n = self.model.n_labels(set);
                format!(
                    "each of {n} labels of {} is forbidden, by itself or by what neighbours allow",
                    among(set)
                )
            }
            NoChoice::Edge(a, b) => {
                let edge = self.ties.edge_between(self.problem, a, b).unwrap_or(0);
                format!(
                    "each pair of labels on edge {edge} is forbidden, between {} and {}, given what their neighbours \
                     allow",
                    among(a),
                    among(b)
                )
            }
        })
    }
}
