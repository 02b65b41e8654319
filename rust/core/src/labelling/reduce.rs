//! What need not be searched is taken out of a model: labels that another beats, and nodes of few neighbours.
//!
//! * A label that costs no less than another of its node, whatever labels the neighbours have, is dropped
//!   (dead-end elimination: Desmet, De Maeyer, Hazes and Lasters, Nature 356, 1992; in the form of Goldstein, 1994).
//! * A node of at most two neighbours is eliminated: what it costs at best, for each pair of their labels, is the
//!   cost of an edge between them (Bertele and Brioschi 1972).
//!
//! Each makes room for the other, until neither finds more. The least energy stays what it was: labels of what is
//! left give labels of all. Where nodes are left, a bound on what is left is tighter than one on all.
//!
//! O(E L^3) where no label is dropped; each that is has its neighbours looked at again.

use std::collections::VecDeque;

use super::model::{Edge, Model, Node, Side};
use super::trws::Names;

/// A neighbour, and where the table starts whose rows are this node's labels.
#[derive(Clone, Copy, Debug)]
struct Near {
    other: u32,
    by_this: u32,
}

/// What was done, in order.
#[derive(Debug)]
enum Step {
    /// A label of a node was dropped, for which another stands.
    Dropped { node: u32, label: u32, instead: u32 },
    /// A node was eliminated, with these neighbours.
    Eliminated { node: u32, near: Vec<Near> },
}

/// A model as it becomes smaller. Labels keep their numbers.
#[derive(Debug)]
struct Work {
    unary: Vec<Vec<f64>>,
    /// Labels that are left.
    labels: Vec<Vec<u32>>,
    near: Vec<Vec<Near>>,
    is_left: Vec<bool>,
    /// All tables, as a model has them.
    pair: Vec<f64>,
    due: VecDeque<u32>,
    is_due: Vec<bool>,
    steps: Vec<Step>,
    /// What nodes cost that have no neighbour left.
    constant: f64,
}

/// A smaller model, and the way back.
#[derive(Debug)]
pub struct Reduced {
    /// What is left.
    pub model: Model,
    /// What all else costs at best; `+inf`: no labels are without a forbidden choice.
    pub constant: f64,
    /// From labels of the one model to labels of the other.
    pub back: Back,
}

/// The way between labels of the whole model and of what is left.
#[derive(Debug)]
pub struct Back {
    /// The node of the whole model that each node is, and the labels that its labels are.
    pub names: Names,
    work: Work,
}

impl Reduced {
    /// Reduces a model.
    pub fn of(model: &Model) -> Self {
        let mut work = Work::of(model);
        while let Some(node) = work.due.pop_front() {
            let node = node as usize;
            work.is_due[node] = false;
            if work.is_left[node] {
                work.drop_labels(node);
                work.eliminate(node);
            }
        }
        let nodes: Vec<u32> = (0..work.unary.len() as u32).filter(|&v| work.is_left[v as usize]).collect();
        let labels = nodes.iter().map(|&v| work.labels[v as usize].clone()).collect();
        let n_labels = nodes.iter().map(|&v| work.unary[v as usize].len()).collect();
        let (model, constant) = (work.model(&nodes), work.constant);
        Self { model, constant, back: Back { names: Names { nodes, labels, n_labels }, work } }
    }
}

impl Back {
    /// Labels of what is left that are no worse than labels of the whole model.
    pub fn restricted(&self, labels: &[u32]) -> Vec<u32> {
        let mut labels = labels.to_vec();
        for step in &self.work.steps {
            if let &Step::Dropped { node, label, instead } = step
                && labels[node as usize] == label
            {
                labels[node as usize] = instead;
            }
        }
        let place =
            |(i, &v): (usize, &u32)| self.names.labels[i].iter().position(|&l| l == labels[v as usize]);
        self.names.nodes.iter().enumerate().map(|one| place(one).unwrap_or(0) as u32).collect()
    }

    /// Labels of the whole model, from those of what is left: the best for all else.
    pub fn whole(&self, labels: &[u32]) -> Vec<u32> {
        let mut found = vec![0; self.work.unary.len()];
        for (i, &label) in labels.iter().enumerate() {
            found[self.names.nodes[i] as usize] = self.names.labels[i][label as usize];
        }
        for step in self.work.steps.iter().rev() {
            if let Step::Eliminated { node, near } = step {
                found[*node as usize] = self.work.best(*node as usize, near, &found);
            }
        }
        found
    }
}

impl Work {
    fn of(model: &Model) -> Self {
        let n = model.n_nodes();
        let near = |Side { other, by_this, .. }: Side| Near { other, by_this };
        Self {
            unary: (0..n).map(|node| model.unary(node).to_vec()).collect(),
            labels: (0..n).map(|node| (0..model.n_labels(node) as u32).collect()).collect(),
            near: (0..n).map(|node| model.sides(node).map(near).collect()).collect(),
            is_left: vec![true; n],
            pair: model.table(0).to_vec(),
            due: (0..n as u32).collect(),
            is_due: vec![true; n],
            steps: Vec::new(),
            constant: 0.0,
        }
    }

    /// The cost of a pair: a node's label, and its neighbour's.
    #[inline(always)]
    fn of_pair(&self, near: Near, label: u32, of_other: u32) -> f64 {
        let columns = self.unary[near.other as usize].len();
        self.pair[near.by_this as usize + label as usize * columns + of_other as usize]
    }

    /// What a label costs by itself and beside neighbours of these labels.
    fn cost(&self, node: usize, near: &[Near], label: u32, labels: &[u32]) -> f64 {
        let beside = near.iter().map(|&one| self.of_pair(one, label, labels[one.other as usize]));
        self.unary[node][label as usize] + beside.sum::<f64>()
    }

    /// The best label of a node beside these neighbours.
    fn best(&self, node: usize, near: &[Near], labels: &[u32]) -> u32 {
        let of = |&label: &u32| (label, self.cost(node, near, label, labels));
        let mut costs = self.labels[node].iter().map(of);
        let first = costs.next().unwrap_or((0, 0.0));
        costs.fold(first, |best, new| if new.1 < best.1 { new } else { best }).0
    }

    /// A node is looked at again.
    fn wake(&mut self, node: u32) {
        if self.is_left[node as usize] && !std::mem::replace(&mut self.is_due[node as usize], true) {
            self.due.push_back(node);
        }
    }

    /// Drops labels that another beats.
    fn drop_labels(&mut self, node: usize) {
        let mut left = self.labels[node].clone();
        let mut at = 0;
        while at < left.len() && left.len() > 1 {
            let label = left[at];
            let better = left.iter().copied().find(|&other| other != label && self.beats(node, other, label));
            match better {
                None => at += 1,
                Some(instead) => {
                    left.remove(at);
                    self.steps.push(Step::Dropped { node: node as u32, label, instead });
                }
            }
        }
        if left.len() < self.labels[node].len() {
            self.labels[node] = left;
            for i in 0..self.near[node].len() {
                self.wake(self.near[node][i].other);
            }
        }
    }

    /// Whether a label costs no more than another, whatever the neighbours' labels.
    fn beats(&self, node: usize, label: u32, other: u32) -> bool {
        let worst = self.unary[node][other as usize];
        if worst == f64::INFINITY {
            return true;
        }
        let mut sum = self.unary[node][label as usize] - worst;
        for &near in &self.near[node] {
            let mut most = f64::NEG_INFINITY;
            for &of_other in &self.labels[near.other as usize] {
                let than = self.of_pair(near, other, of_other);
                if than < f64::INFINITY {
                    most = most.max(self.of_pair(near, label, of_other) - than);
                }
            }
            if most == f64::NEG_INFINITY {
                return true;
            }
            sum += most;
        }
        sum <= 0.0
    }

    /// Eliminates a node that has two neighbours or fewer.
    fn eliminate(&mut self, node: usize) {
        if self.near[node].len() > 2 {
            return;
        }
        let near = std::mem::take(&mut self.near[node]);
        self.is_left[node] = false;
        for one in &near {
            self.near[one.other as usize].retain(|back| back.other as usize != node);
        }
        match near[..] {
            [] => self.constant += self.least(node, &[], &[]),
            [one] => {
                let mut costs = std::mem::take(&mut self.unary[one.other as usize]);
                self.unary[one.other as usize].resize(costs.len(), 0.0);
                for (label, cost) in costs.iter_mut().enumerate() {
                    *cost += self.least(node, &near, &[label as u32]);
                }
                self.unary[one.other as usize] = costs;
            }
            [low, high] => self.join(node, low, high),
            _ => {}
        }
        near.iter().for_each(|one| self.wake(one.other));
        self.steps.push(Step::Eliminated { node: node as u32, near });
    }

    /// What a node costs at best beside neighbours of these labels.
    fn least(&self, node: usize, near: &[Near], labels: &[u32]) -> f64 {
        let of = |&label: &u32| {
            let beside = near.iter().zip(labels).map(|(&one, &of)| self.of_pair(one, label, of));
            self.unary[node][label as usize] + beside.sum::<f64>()
        };
        self.labels[node].iter().map(of).fold(f64::INFINITY, f64::min)
    }

    /// What a node costs at best goes to the edge between its two neighbours.
    fn join(&mut self, node: usize, low: Near, high: Near) {
        let (a, b) = (low.other as usize, high.other as usize);
        let joined = self.near[a].iter().copied().find(|near| near.other as usize == b);
        let (rows, columns) = (self.unary[a].len(), self.unary[b].len());
        let (by_low, by_high) = (self.pair.len(), self.pair.len() + rows * columns);
        self.pair.resize(by_low + 2 * rows * columns, f64::INFINITY);
        for i in 0..self.labels[a].len() {
            for j in 0..self.labels[b].len() {
                let (row, column) = (self.labels[a][i], self.labels[b][j]);
                let own = joined.map_or(0.0, |near| self.of_pair(near, row, column));
                let cost = own + self.least(node, &[low, high], &[row, column]);
                self.pair[by_low + row as usize * columns + column as usize] = cost;
                self.pair[by_high + column as usize * rows + row as usize] = cost;
            }
        }
        let (by_low, by_high) = (by_low as u32, by_high as u32);
        self.near[a].retain(|near| near.other as usize != b);
        self.near[b].retain(|near| near.other as usize != a);
        self.near[a].push(Near { other: b as u32, by_this: by_low });
        self.near[b].push(Near { other: a as u32, by_this: by_high });
    }

    /// The model of some nodes, with the labels that are left.
    fn model(&self, nodes: &[u32]) -> Model {
        let mut number = vec![0; self.unary.len()];
        let (mut made, mut unary) = (Vec::with_capacity(nodes.len()), Vec::new());
        for (i, &node) in nodes.iter().enumerate() {
            number[node as usize] = i as u32;
            let labels = &self.labels[node as usize];
            made.push(Node { start: unary.len() as u32, labels: labels.len() as u32 });
            unary.extend(labels.iter().map(|&label| self.unary[node as usize][label as usize]));
        }
        let (mut edges, mut pair) = (Vec::new(), Vec::new());
        for &node in nodes {
            let is_later = |near: &&Near| near.other > node;
            let mut later: Vec<Near> = self.near[node as usize].iter().filter(is_later).copied().collect();
            later.sort_unstable_by_key(|near| near.other);
            for near in later {
                let start = pair.len();
                self.copy(node, near, &mut pair);
                let size = (pair.len() - start) / 2;
                let (low, high) = (number[node as usize], number[near.other as usize]);
                edges.push(Edge { low, high, by_low: start as u32, by_high: (start + size) as u32 });
            }
        }
        Model::new(made, unary, &edges, pair)
    }

    /// Appends an edge's costs of the labels that are left, by rows and by columns.
    fn copy(&self, node: u32, near: Near, out: &mut Vec<f64>) {
        let (rows, columns) = (&self.labels[node as usize], &self.labels[near.other as usize]);
        let of = |row: u32, column: u32| self.of_pair(near, row, column);
        out.extend(rows.iter().flat_map(|&row| columns.iter().map(move |&column| of(row, column))));
        out.extend(columns.iter().flat_map(|&column| rows.iter().map(move |&row| of(row, column))));
    }
}
