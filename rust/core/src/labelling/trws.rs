//! Sequential tree-reweighted message passing, TRW-S (Kolmogorov, IEEE PAMI 28(10), 2006, section 3).
//!
//! The dual: costs are moved between nodes and edges by messages, which changes the energy of no labelling. The
//! sum of what each chain of nodes costs at least is then a lower bound on every energy. A pass visits the
//! nodes in order, forwards or backwards; each averages what the chains through it know and sends that on. No
//! pass lowers the bound. One message is kept per edge: the one towards the end that is visited next.
//!
//! O(E L^2) a pass, O(E L) memory. Changed: a cost of `+inf` forbids a choice. A message of `+inf` then means
//! that no allowed choice on that side goes with the label; it is never subtracted from another.

use self::Direction::{Backward, Forward};
use super::model::{Model, Side, first_least};

/// No choice is left: the problem has no labelling without a forbidden choice.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum NoChoice {
    /// At this node.
    Node(usize),
    /// At the edge between these two nodes.
    Edge(usize, usize),
}

/// The direction of a pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Direction {
    /// From the first node to the last.
    Forward,
    /// From the last to the first.
    Backward,
}

/// The messages of a model.
#[derive(Debug)]
pub struct Messages {
    messages: Vec<f64>,
    /// Per label of the node that is visited: its costs with all messages to it; what it sends.
    belief: Vec<f64>,
    sent: Vec<f64>,
}

impl Messages {
    /// Messages that say nothing.
    pub fn new(model: &Model) -> Self {
        Self { messages: vec![0.0; model.n_messages()], belief: Vec::new(), sent: Vec::new() }
    }

    /// Visits all nodes. Returns a lower bound on the energy.
    pub fn pass(&mut self, model: &Model, direction: Direction) -> Result<f64, NoChoice> {
        let mut bound = 0.0;
        for node in order(model, direction) {
            bound += self.visit(model, node, ahead(model, node, direction))?;
        }
        Ok(bound)
    }

    /// Sends a node's messages to the nodes that are visited after it. Returns what that adds to the bound.
    fn visit(&mut self, model: &Model, node: usize, ahead: &[Side]) -> Result<f64, NoChoice> {
        self.belief.clear();
        self.belief.extend_from_slice(model.unary(node));
        for side in model.sides(node) {
            let message = &self.messages[side.message as usize..];
            self.belief.iter_mut().zip(message).for_each(|(belief, message)| *belief += message);
        }
        let mut bound = lowered(&mut self.belief).ok_or(NoChoice::Node(node))?;
        let chains = model.earlier(node).len().max(model.later(node).len()).max(1);
        let share = 1.0 / chains as f64;
        for side in ahead {
            let n = model.n_labels(side.other as usize);
            let message = &mut self.messages[side.message as usize..];
            self.sent.clear();
            let known = self.belief.iter().zip(message.iter());
            self.sent.extend(known.map(|(&belief, &message)| {
                if belief < f64::INFINITY { share * belief - message } else { f64::INFINITY }
            }));
            let message = &mut message[..n];
            least_sums(&self.sent, model.table(side.by_this), message);
            bound += lowered(message).ok_or(NoChoice::Edge(node, side.other as usize))?;
        }
        Ok(bound)
    }

    /// Labels for all nodes, chosen one after another: each by its own costs, the labels chosen before, and the
    /// messages of those that are still to choose. Comes before a pass in the same direction. O(E L).
    pub fn labels(&mut self, model: &Model, direction: Direction, labels: &mut [u32]) {
        let costs = &mut self.belief;
        for node in order(model, direction) {
            costs.clear();
            costs.extend_from_slice(model.unary(node));
            for side in ahead(model, node, direction) {
                let message = &self.messages[side.message as usize..];
                costs.iter_mut().zip(message).for_each(|(cost, message)| *cost += message);
            }
            let behind = behind(model, node, direction);
            for side in behind {
                let row = model.row(side, labels[side.other as usize], costs.len());
                costs.iter_mut().zip(row).for_each(|(cost, pair)| *cost += pair);
            }
            let best = first_least(costs);
            labels[node] = if costs[best] < f64::INFINITY {
                best as u32
            } else {
                model.least_forbidden(behind.iter().copied(), node, 0, labels)
            };
        }
    }
}

fn order(model: &Model, direction: Direction) -> impl Iterator<Item = usize> + use<> {
    let n = model.n_nodes();
    (0..n).map(move |i| if direction == Forward { i } else { n - 1 - i })
}

/// Edges to the nodes that are visited after a node.
fn ahead(model: &Model, node: usize, direction: Direction) -> &[Side] {
    match direction {
        Forward => model.later(node),
        Backward => model.earlier(node),
    }
}

/// Edges to the nodes that are visited before it.
fn behind(model: &Model, node: usize, direction: Direction) -> &[Side] {
    match direction {
        Forward => model.earlier(node),
        Backward => model.later(node),
    }
}

/// Subtracts the least of values from all, and returns it; none where all are `+inf`.
#[inline(always)]
fn lowered(values: &mut [f64]) -> Option<f64> {
    let least = values[first_least(values)];
    values.iter_mut().for_each(|value| *value -= least);
    (least < f64::INFINITY).then_some(least)
}

/// Per column of a table, the least of its entries with a number added per row.
pub(super) fn least_sums(rows: &[f64], table: &[f64], out: &mut [f64]) {
    out.fill(f64::INFINITY);
    for (row, costs) in rows.iter().zip(table.chunks_exact(out.len())) {
        for (least, cost) in out.iter_mut().zip(costs) {
            let sum = row + cost;
            *least = if sum < *least { sum } else { *least };
        }
    }
}
