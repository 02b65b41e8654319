//! A labelling problem for one choice of weights: one number per label and per pair of labels.
//!
//! Every table stands there twice, by rows and by columns, so that either end of an edge reads it row by row.

use crate::csr::Csr;

/// A node's costs in [`Model::unary`]: where they start and how many labels there are.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Node {
    /// Where its costs start.
    pub start: u32,
    /// Number of labels.
    pub labels: u32,
}

impl Node {
    /// The number of labels, as a length.
    #[inline(always)]
    pub fn n(self) -> usize {
        self.labels as usize
    }
}

/// An edge of the model; at most one joins two nodes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Edge {
    /// The smaller node.
    pub low: u32,
    /// The larger node.
    pub high: u32,
    /// Where the table starts in [`Model::pair`] whose rows are the smaller node's labels.
    pub by_low: u32,
    /// Where the table starts whose rows are the larger node's labels.
    pub by_high: u32,
}

/// An edge as one of its ends sees it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Side {
    /// The node at the other end.
    pub other: u32,
    /// Where the edge's message starts among all messages.
    pub message: u32,
    /// The table whose rows are this end's labels.
    pub by_this: u32,
    /// The table whose rows are the other end's labels.
    pub by_other: u32,
}

/// What labels cost: first the number of forbidden choices, then the sum of the others' costs.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Energy {
    /// Number of forbidden choices.
    pub forbidden: u32,
    /// Sum of all other costs.
    pub cost: f64,
}

impl Energy {
    /// No choice.
    pub const ZERO: Self = Self { forbidden: 0, cost: 0.0 };

    fn add(&mut self, cost: f64) {
        if cost < f64::INFINITY { self.cost += cost } else { self.forbidden += 1 }
    }
}

/// A weighted problem. Nodes are processed in the order of their numbers.
#[derive(Clone, Debug)]
pub struct Model {
    nodes: Vec<Node>,
    unary: Vec<f64>,
    pair: Vec<f64>,
    /// Edges to smaller nodes, and to larger ones, per node.
    earlier: Csr<Side>,
    later: Csr<Side>,
    /// Numbers in all messages.
    n_messages: usize,
}

impl Model {
    /// From nodes, their costs, edges that ascend by ends, and the edges' costs. All numbers of all messages
    /// fit in 32 bits.
    pub fn new(nodes: Vec<Node>, unary: Vec<f64>, edges: &[Edge], pair: Vec<f64>) -> Self {
        let mut n_messages = 0;
        let sides: Vec<(Side, Side)> = edges
            .iter()
            .map(|edge| {
                let message = n_messages as u32;
                n_messages += longest(&nodes, edge);
                let &Edge { low, high, by_low, by_high } = edge;
                let of_low = Side { other: high, message, by_this: by_low, by_other: by_high };
                (of_low, Side { other: low, message, by_this: by_high, by_other: by_low })
            })
            .collect();
        let later = sides.iter().map(|&(of_low, of_high)| (of_high.other as usize, of_low));
        let earlier = sides.iter().map(|&(of_low, of_high)| (of_low.other as usize, of_high));
        Self {
            earlier: Csr::from_pairs(nodes.len(), earlier),
            later: Csr::from_pairs(nodes.len(), later),
            nodes,
            unary,
            pair,
            n_messages,
        }
    }

    /// Number of nodes.
    pub fn n_nodes(&self) -> usize {
        self.nodes.len()
    }

    /// Numbers in all messages.
    pub fn n_messages(&self) -> usize {
        self.n_messages
    }

    /// The most labels of a node.
    pub fn most_labels(&self) -> usize {
        self.nodes.iter().map(|node| node.n()).max().unwrap_or(0)
    }

    /// A node's own costs.
    #[inline(always)]
    pub fn unary(&self, node: usize) -> &[f64] {
        let Node { start, labels } = self.nodes[node];
        &self.unary[start as usize..][..labels as usize]
    }

    /// Number of labels of a node.
    #[inline(always)]
    pub fn n_labels(&self, node: usize) -> usize {
        self.nodes[node].n()
    }

    /// Edges to smaller nodes.
    #[inline(always)]
    pub fn earlier(&self, node: usize) -> &[Side] {
        self.earlier.row(node)
    }

    /// Edges to larger nodes.
    #[inline(always)]
    pub fn later(&self, node: usize) -> &[Side] {
        self.later.row(node)
    }

    /// All edges of a node.
    pub fn sides(&self, node: usize) -> impl Iterator<Item = Side> + Clone {
        self.earlier(node).iter().chain(self.later(node)).copied()
    }

    /// A table from where it starts on.
    #[inline(always)]
    pub fn table(&self, start: u32) -> &[f64] {
        &self.pair[start as usize..]
    }

    /// What a node's labels cost on an edge whose other end has this label.
    #[inline(always)]
    pub fn row(&self, side: &Side, label: u32, labels: usize) -> &[f64] {
        &self.table(side.by_other)[label as usize * labels..][..labels]
    }

    /// What each label of a node costs, all others' labels as they are; `+inf`: forbidden.
    pub fn local(&self, node: usize, labels: &[u32], out: &mut Vec<f64>) {
        out.clear();
        out.extend_from_slice(self.unary(node));
        for side in self.sides(node) {
            let row = self.row(&side, labels[side.other as usize], out.len());
            out.iter_mut().zip(row).for_each(|(out, cost)| *out += cost);
        }
    }

    /// What a label of a node costs by itself and on some of the node's edges, others' labels as they are.
    pub fn energy_on(
        &self,
        sides: impl Iterator<Item = Side>,
        node: usize,
        label: u32,
        labels: &[u32],
    ) -> Energy {
        let (n, label) = (self.n_labels(node), label as usize);
        let mut energy = Energy::ZERO;
        energy.add(self.unary(node)[label]);
        sides.for_each(|side| energy.add(self.row(&side, labels[side.other as usize], n)[label]));
        energy
    }

    /// The label of least energy of a node on some of its edges: `label`, unless another is better. For nodes
    /// whose labels all have a forbidden choice.
    pub fn least_forbidden(
        &self,
        sides: impl Iterator<Item = Side> + Clone,
        node: usize,
        label: u32,
        labels: &[u32],
    ) -> u32 {
        let of = |label| (label, self.energy_on(sides.clone(), node, label, labels));
        let all = (0..self.n_labels(node) as u32).map(of);
        all.fold(of(label), |best, new| if new.1 < best.1 { new } else { best }).0
    }

    /// The energy of labels. O(n + m).
    pub fn energy(&self, labels: &[u32]) -> Energy {
        let mut energy = Energy::ZERO;
        for (node, &label) in labels.iter().enumerate() {
            energy.add(self.unary(node)[label as usize]);
            for side in self.earlier(node) {
                let row = self.row(side, labels[side.other as usize], self.n_labels(node));
                energy.add(row[label as usize]);
            }
        }
        energy
    }
}

/// Labels of that end of an edge that has more: the room of a message.
pub fn longest(nodes: &[Node], edge: &Edge) -> usize {
    nodes[edge.low as usize].n().max(nodes[edge.high as usize].n())
}

/// The first of the least values.
#[inline(always)]
pub fn first_least(values: &[f64]) -> usize {
    let mut best = 0;
    for (i, &value) in values.iter().enumerate() {
        if value < values[best] {
            best = i;
        }
    }
    best
}
