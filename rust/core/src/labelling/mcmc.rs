//! FlexFlow's search over labels (Jia, Zaharia and Aiken, "Beyond Data and Model Parallelism for Deep Neural
//! Networks", MLSys 2019, section 6.2): a Metropolis walk.
//!
//! A step draws a node and another label for it, both uniformly. The proposal is symmetric, so labels that
//! cost c' are accepted over labels that cost c with probability min(1, exp(beta (c - c'))). The walk ends
//! early once half of its steps have passed since the best labels. O(degree) a step.
//!
//! Changed: costs are shares of what the first labels cost, so that beta has no unit. FlexFlow's simulator
//! tells what labels cost; here it is the problem's energy. A step to a forbidden choice is never accepted,
//! a step away from one always.

use super::model::{Energy, Model};
use crate::random::Random;

/// A walk over the labels of a model.
#[derive(Debug)]
pub struct Walk<'a> {
    model: &'a Model,
    /// Nodes that have a choice.
    free: Vec<u32>,
    labels: Vec<u32>,
    energy: Energy,
    best: Vec<u32>,
    best_energy: Energy,
    random: Random,
    /// Inverse temperature, per unit of cost.
    beta: f64,
    done: u64,
    found_at: u64,
    steps: u64,
}

impl<'a> Walk<'a> {
    /// Starts from labels. `beta` is the inverse temperature per share of what they cost.
    pub fn new(model: &'a Model, labels: Vec<u32>, beta: f64, steps: u64, seed: u64) -> Self {
        let energy = model.energy(&labels);
        Self {
            free: (0..model.n_nodes() as u32).filter(|&node| model.n_labels(node as usize) > 1).collect(),
            best: labels.clone(),
            best_energy: energy,
            beta: beta / energy.cost.abs().max(f64::MIN_POSITIVE),
            random: Random::new(seed, 0),
            done: 0,
            found_at: 0,
            model,
            labels,
            energy,
            steps,
        }
    }

    /// Whether it has ended.
    pub fn is_done(&self) -> bool {
        self.free.is_empty() || self.done >= self.steps || self.done - self.found_at > self.steps / 2
    }

    /// The best labels so far.
    pub fn best(&self) -> &[u32] {
        &self.best
    }

    /// Makes up to so many steps more.
    pub fn run(&mut self, steps: u64) {
        for _ in 0..steps {
            if self.is_done() {
                return;
            }
            self.step();
            self.done += 1;
        }
    }

    fn step(&mut self) {
        let node = self.free[self.random.below(self.free.len())] as usize;
        let old = self.labels[node];
        let others = self.model.n_labels(node) - 1;
        let drawn = self.random.below(others) as u32;
        let new = drawn + u32::from(drawn >= old);
        let sides = self.model.sides(node);
        let from = self.model.energy_on(sides.clone(), node, old, &self.labels);
        let to = self.model.energy_on(sides, node, new, &self.labels);
        if !self.accepts(from, to) {
            return;
        }
        self.labels[node] = new;
        self.energy.forbidden = self.energy.forbidden - from.forbidden + to.forbidden;
        self.energy.cost += to.cost - from.cost;
        if self.energy < self.best_energy {
            self.best_energy = self.energy;
            self.best.copy_from_slice(&self.labels);
            self.found_at = self.done;
        }
    }

    fn accepts(&mut self, from: Energy, to: Energy) -> bool {
        if from.forbidden != to.forbidden {
            return to.forbidden < from.forbidden;
        }
        let rise = to.cost - from.cost;
        rise <= 0.0 || self.random.unit() < (-self.beta * rise).exp()
    }
}
