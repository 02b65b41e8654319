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

/// What nodes and labels of a model are called elsewhere. Nodes ascend there, too.
#[derive(Debug)]
pub struct Names {
    /// Per node.
    pub nodes: Vec<u32>,
    /// Per node, of each of its labels.
    pub labels: Vec<Vec<u32>>,
    /// How many labels each has there.
    pub n_labels: Vec<usize>,
}

/// Messages of later nodes to earlier ones, by the names of nodes and labels. All are finite: whatever they say, a
/// search that begins with them finds valid bounds, since messages change no energy.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sent {
    /// The ends of edges, ascending.
    ends: Vec<(u32, u32)>,
    /// Where the numbers of each start, one per label of the smaller node.
    start: Vec<usize>,
    values: Vec<f64>,
}

impl Sent {
    fn between(&self, ends: (u32, u32)) -> Option<&[f64]> {
        let edge = self.ends.binary_search(&ends).ok()?;
        let end = self.start.get(edge + 1).copied().unwrap_or(self.values.len());
        Some(&self.values[self.start[edge]..end])
    }
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

    /// What later nodes sent last, as nodes and labels are numbered there.
    pub fn sent(&self, model: &Model, names: &Names) -> Sent {
        let mut sent = Sent::default();
        for node in 0..model.n_nodes() {
            for side in model.later(node) {
                let message = &self.messages[side.message as usize..][..model.n_labels(node)];
                let finite = message.iter().copied().filter(|value| value.is_finite());
                let most = finite.fold(0.0, f64::max);
                let start = sent.values.len();
                sent.values.resize(start + names.n_labels[node], most);
                for (&label, &value) in names.labels[node].iter().zip(message) {
                    sent.values[start + label as usize] = value.min(most);
                }
                sent.ends.push((names.nodes[node], names.nodes[side.other as usize]));
                sent.start.push(start);
            }
        }
        sent
    }

    /// Begins with what was sent in another problem, on the edges that both have.
    pub fn receive(&mut self, model: &Model, names: &Names, sent: &Sent) {
        for node in 0..model.n_nodes() {
            for side in model.later(node) {
                let ends = (names.nodes[node], names.nodes[side.other as usize]);
                let Some(values) = sent.between(ends).filter(|known| known.len() == names.n_labels[node])
                else {
                    continue;
                };
                let message = &mut self.messages[side.message as usize..];
                for (&label, value) in names.labels[node].iter().zip(message) {
                    *value = values[label as usize];
                }
            }
        }
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
    let mut least = f64::INFINITY;
    for &value in values.iter() {
        least = if value < least { value } else { least };
    }
    values.iter_mut().for_each(|value| *value -= least);
    (least < f64::INFINITY).then_some(least)
}

/// Per column of a table, the least of its entries with a number added per row.
pub(super) fn least_sums(rows: &[f64], table: &[f64], out: &mut [f64]) {
    match out.len() {
        1 => least_of_width::<1>(rows, table, out),
        2 => least_of_width::<2>(rows, table, out),
        3 => least_of_width::<3>(rows, table, out),
        4 => least_of_width::<4>(rows, table, out),
        5 => least_of_width::<5>(rows, table, out),
        6 => least_of_width::<6>(rows, table, out),
        7 => least_of_width::<7>(rows, table, out),
        8 => least_of_width::<8>(rows, table, out),
        9 => least_of_width::<9>(rows, table, out),
        10 => least_of_width::<10>(rows, table, out),
        11 => least_of_width::<11>(rows, table, out),
        12 => least_of_width::<12>(rows, table, out),
        _ => {
            out.fill(f64::INFINITY);
            for (row, costs) in rows.iter().zip(table.chunks_exact(out.len())) {
                lower(*row, costs, out);
            }
        }
    }
}

/// The same for tables of one width: what is least so far stays in registers.
#[inline(always)]
fn least_of_width<const N: usize>(rows: &[f64], table: &[f64], out: &mut [f64]) {
    let mut least = [f64::INFINITY; N];
    for (row, costs) in rows.iter().zip(table.as_chunks::<N>().0) {
        lower(*row, costs, &mut least);
    }
    out.copy_from_slice(&least);
}

#[inline(always)]
fn lower(row: f64, costs: &[f64], least: &mut [f64]) {
    for (least, cost) in least.iter_mut().zip(costs) {
        let sum = row + cost;
        *least = if sum < *least { sum } else { *least };
    }
}
