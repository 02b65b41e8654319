//! Block moves: many nodes take the labels that are best together, all others as they are.
//!
//! A move draws an induced forest: nodes are taken in order, from a drawn one on, if they have at most one
//! neighbour among those taken. On a forest the best labels are exact, by dynamic programming from the leaves
//! (Hamze and de Freitas, UAI 2004, use such blocks to sample). A move never raises the energy. It changes
//! whole chains of nodes at once, which no change of single nodes can reach.
//!
//! O(E L^2) a move, over the edges of the forest; O(E L) over the others.

use super::model::{Model, Side, first_least};
use super::trws::least_sums;
use crate::random::Random;

/// Moves on the labels of one model, with their memory.
#[derive(Debug)]
pub struct Forests {
    random: Random,
    /// Nodes of the forest as they were taken, each with the edge to its parent.
    taken: Vec<(u32, Option<Side>)>,
    is_taken: Vec<bool>,
    /// What each label of a node costs, with the best of all below it; where each node's labels start.
    costs: Vec<f64>,
    start: Vec<usize>,
    sent: Vec<f64>,
}

impl Forests {
    /// No forest yet.
    pub fn new(model: &Model) -> Self {
        let starts = (0..model.n_nodes()).scan(0, |sum, node| {
            let start = *sum;
            *sum += model.n_labels(node);
            Some(start)
        });
        let start: Vec<usize> = starts.collect();
        let n_labels = (0..model.n_nodes()).map(|node| model.n_labels(node)).sum();
        Self {
            random: Random::new(0, 0),
            taken: Vec::new(),
            is_taken: vec![false; model.n_nodes()],
            costs: vec![0.0; n_labels],
            start,
            sent: Vec::new(),
        }
    }

    /// Gives the nodes of a new forest their best labels. Returns whether any changed.
    pub fn improve(&mut self, model: &Model, labels: &mut [u32]) -> bool {
        if model.n_nodes() == 0 {
            return false;
        }
        self.take(model);
        self.surroundings(model, labels);
        for i in (0..self.taken.len()).rev() {
            if let (node, Some(side)) = self.taken[i] {
                self.send(model, node as usize, side);
            }
        }
        let mut changed = false;
        for i in 0..self.taken.len() {
            let (node, up) = (self.taken[i].0 as usize, self.taken[i].1);
            let best = self.best(model, node, up, labels);
            changed |= best != labels[node];
            labels[node] = best;
        }
        changed
    }

    /// Draws a forest.
    fn take(&mut self, model: &Model) {
        let n = model.n_nodes();
        self.taken.clear();
        self.is_taken.fill(false);
        let (first, is_backward) = (self.random.below(n), self.random.below(2) == 1);
        for i in 0..n {
            let at = (first + i) % n;
            let node = if is_backward { n - 1 - at } else { at };
            // One in four is left out, so that forests differ.
            if self.random.below(4) == 0 {
                continue;
            }
            let mut near = model.sides(node).filter(|side| self.is_taken[side.other as usize]);
            let up = near.next();
            if near.next().is_none() {
                self.is_taken[node] = true;
                self.taken.push((node as u32, up));
            }
        }
    }

    /// What the labels of the forest's nodes cost by themselves and beside nodes outside of it.
    fn surroundings(&mut self, model: &Model, labels: &[u32]) {
        for &(node, _) in &self.taken {
            let node = node as usize;
            let costs = &mut self.costs[self.start[node]..][..model.n_labels(node)];
            costs.copy_from_slice(model.unary(node));
            for side in model.sides(node).filter(|side| !self.is_taken[side.other as usize]) {
                let row = model.row(&side, labels[side.other as usize], costs.len());
                costs.iter_mut().zip(row).for_each(|(sum, cost)| *sum += cost);
            }
        }
    }

    /// Adds to a parent's costs what its child costs at best.
    fn send(&mut self, model: &Model, node: usize, side: Side) {
        let parent = side.other as usize;
        self.sent.clear();
        self.sent.resize(model.n_labels(parent), 0.0);
        let costs = &self.costs[self.start[node]..][..model.n_labels(node)];
        least_sums(costs, model.table(side.by_this), &mut self.sent);
        let above = &mut self.costs[self.start[parent]..];
        above.iter_mut().zip(&self.sent).for_each(|(sum, least)| *sum += least);
    }

    /// The best label of a node, given its parent's; the one that it has, unless another is better.
    fn best(&mut self, model: &Model, node: usize, up: Option<Side>, labels: &[u32]) -> u32 {
        let costs = &mut self.costs[self.start[node]..][..model.n_labels(node)];
        if let Some(side) = up {
            let row = model.row(&side, labels[side.other as usize], costs.len());
            costs.iter_mut().zip(row).for_each(|(sum, cost)| *sum += cost);
        }
        let (old, new) = (labels[node], first_least(costs));
        if costs[new] < costs[old as usize] { new as u32 } else { old }
    }
}
