//! Pairwise labelling: one label per node, such that the costs of labels and of pairs of labels add up to
//! little.
//!
//! A [`Labelling`] is the problem. Nodes share tables of costs, and so do edges, because graphs repeat. A
//! cost has several components (such as seconds, seconds of gradient traffic, bytes). Weights turn them into
//! one number per solve, so that one problem is solved for several prices. A component of `+inf` forbids a
//! choice whatever the weights.
//!
//! * [`model`] holds the problem for one choice of weights, as the algorithms want it.
//! * [`tables`] weighs its tables.
//! * [`ties`] makes it, with nodes that are tied to one label made one.
//! * [`reduce`] takes out of it what need not be searched.
//! * [`trws`] finds labels and a lower bound by message passing; [`icm`] improves labels one by one,
//!   [`forest`] many at once.
//! * [`solve`] is these together. [`mcmc`] is FlexFlow's way, to be measured against.

pub mod forest;
pub mod icm;
pub mod mcmc;
pub mod model;
pub mod reduce;
pub mod solve;
pub mod tables;
pub mod ties;
pub mod trws;

use crate::border::first_wrong;
use crate::error::Error;

/// Most numbers in all tables of a model, and in all messages between its nodes: 2 GiB each (a table stands there twice).
pub const MOST: usize = 1 << 28;

/// Costs, and sums of weighted costs, have at most this size: sums of them are far from where numbers of 64 bits
/// overflow.
const LARGEST: f64 = 1e200;

/// What a problem is made of, as a caller gives it.
#[derive(Clone, Debug, Default)]
pub struct Columns {
    /// Table of unary costs per node.
    pub node_table: Vec<i64>,
    /// Where the labels of each unary table start in `unary`; one more at the end.
    pub unary_start: Vec<i64>,
    /// Costs per label, `components` numbers each.
    pub unary: Vec<f64>,
    /// The first end of each edge, whose label is the row of the edge's table.
    pub src: Vec<i64>,
    /// The second end of each edge, whose label is the column.
    pub dst: Vec<i64>,
    /// Table of pair costs per edge.
    pub edge_table: Vec<i64>,
    /// Where the pairs of each table start in `pair`; one more at the end.
    pub pair_start: Vec<i64>,
    /// Columns of each table.
    pub pair_columns: Vec<i64>,
    /// Costs per pair of labels, `components` numbers each.
    pub pair: Vec<f64>,
    /// Numbers per cost.
    pub components: usize,
}

/// A checked problem.
#[derive(Clone, Debug)]
pub struct Labelling {
    components: usize,
    node_table: Vec<u32>,
    unary_start: Vec<usize>,
    unary: Vec<f64>,
    src: Vec<u32>,
    dst: Vec<u32>,
    edge_table: Vec<u32>,
    pair_start: Vec<usize>,
    pair_columns: Vec<usize>,
    pair: Vec<f64>,
}

fn bad(argument: &'static str, reason: String) -> Error {
    Error::BadArgument { argument, reason }
}

impl Labelling {
    /// Checks the columns. O(n + m + numbers in tables).
    pub fn new(columns: Columns) -> Result<Self, Error> {
        let c = columns;
        if c.components == 0 {
            return Err(bad("unary", "costs without components: wants one column or more".to_owned()));
        }
        check_costs("unary", &c.unary, c.components)?;
        check_costs("pair", &c.pair, c.components)?;
        let unary_start = starts("unary_start", &c.unary_start, c.unary.len() / c.components)?;
        let pair_start = starts("pair_start", &c.pair_start, c.pair.len() / c.components)?;
        let (n_unary, n_pair) = (unary_start.len() - 1, pair_start.len() - 1);
        let m = c.src.len();
        for (argument, got, want, per) in [
            ("dst", c.dst.len(), m, "edge"),
            ("edge_table", c.edge_table.len(), m, "edge"),
            ("pair_columns", c.pair_columns.len(), n_pair, "table"),
        ] {
            if got != want {
                return Err(Error::WrongLength { argument, got, want, per });
            }
        }
        let pair_columns = columns_of(&c.pair_columns, &pair_start)?;
        let node_table = below("node_table", &c.node_table, n_unary)?;
        let n = node_table.len();
        let made = Self {
            components: c.components,
            node_table,
            unary_start,
            unary: c.unary,
            src: below("src", &c.src, n)?,
            dst: below("dst", &c.dst, n)?,
            edge_table: below("edge_table", &c.edge_table, n_pair)?,
            pair_start,
            pair_columns,
            pair: c.pair,
        };
        made.check_edges()?;
        Ok(made)
    }

    /// The table of each edge has a row per label of its first end and a column per label of its second.
    fn check_edges(&self) -> Result<(), Error> {
        for edge in 0..self.n_edges() {
            let (src, dst) = self.ends(edge);
            if src == dst {
                return Err(bad("dst", format!("edge {edge} joins node {src} to itself")));
            }
            let (rows, columns) = (self.n_labels(src), self.n_labels(dst));
            let table = self.edge_table[edge] as usize;
            let (pairs, given) = (self.pairs(table).len(), self.pair_columns[table]);
            if given != columns || pairs != rows * columns {
                return Err(bad(
                    "edge_table",
                    format!(
                        "edge {edge} from node {src} ({rows} labels) to node {dst} ({columns} labels) wants \
                         {} pairs in {columns} columns, but its table {table} has {pairs} in {given}",
                        rows * columns
                    ),
                ));
            }
        }
        Ok(())
    }

    /// Number of nodes.
    pub fn n_nodes(&self) -> usize {
        self.node_table.len()
    }

    /// Number of edges.
    pub fn n_edges(&self) -> usize {
        self.src.len()
    }

    /// Numbers per cost.
    pub fn n_components(&self) -> usize {
        self.components
    }

    /// Number of labels of a node.
    pub fn n_labels(&self, node: usize) -> usize {
        self.labels(self.node_table[node] as usize).len()
    }

    /// The ends of an edge.
    fn ends(&self, edge: usize) -> (usize, usize) {
        (self.src[edge] as usize, self.dst[edge] as usize)
    }

    /// The labels of a unary table, as positions in all tables.
    fn labels(&self, table: usize) -> std::ops::Range<usize> {
        self.unary_start[table]..self.unary_start[table + 1]
    }

    /// The pairs of a table, as positions in all tables.
    fn pairs(&self, table: usize) -> std::ops::Range<usize> {
        self.pair_start[table]..self.pair_start[table + 1]
    }

    /// Checks labels that a caller gives: one per node, each one that the node has.
    pub fn check_labels(&self, argument: &'static str, labels: &[i64]) -> Result<Vec<u32>, Error> {
        let (got, want) = (labels.len(), self.n_nodes());
        if got != want {
            return Err(Error::WrongLength { argument, got, want, per: "node" });
        }
        let wrong = |&node: &usize| labels[node] < 0 || labels[node] >= self.n_labels(node) as i64;
        match (0..want).find(wrong) {
            None => Ok(labels.iter().map(|&label| label as u32).collect()),
            Some(node) => Err(bad(
                argument,
                format!("node {node} has label {}: it has {} labels", labels[node], self.n_labels(node)),
            )),
        }
    }

    /// Checks that costs times weights, which are finite and not negative, can be added up. O(numbers in tables).
    pub fn check_weights(&self, weights: &[f64]) -> Result<(), Error> {
        let size = |cost: &[f64]| -> f64 { cost.iter().zip(weights).map(|(c, w)| (c * w).abs()).sum() };
        let largest = |costs: &[f64]| {
            let rows = costs.chunks_exact(self.components);
            rows.filter(|cost| !cost.contains(&f64::INFINITY)).map(size).fold(0.0, f64::max)
        };
        let sum = largest(&self.unary) * self.n_nodes() as f64 + largest(&self.pair) * self.n_edges() as f64;
        if sum <= LARGEST {
            return Ok(());
        }
        Err(bad(
            "weights",
            format!("costs times weights may add up to {sum:e}: at most {LARGEST:e} is counted"),
        ))
    }

    /// The costs of labels, added up by component; `+inf` where a choice is forbidden. O(n + m).
    pub fn components(&self, labels: &[u32]) -> Vec<f64> {
        let mut sum = vec![0.0; self.components];
        let mut add = |costs: &[f64], at: usize| {
            let cost = &costs[at * self.components..][..self.components];
            sum.iter_mut().zip(cost).for_each(|(sum, cost)| *sum += cost);
        };
        for (node, &label) in labels.iter().enumerate() {
            add(&self.unary, self.labels(self.node_table[node] as usize).start + label as usize);
        }
        for edge in 0..self.n_edges() {
            add(&self.pair, self.pair_at(edge, labels));
        }
        sum
    }

    /// Where the pair of labels of an edge's ends stands in all tables.
    fn pair_at(&self, edge: usize, labels: &[u32]) -> usize {
        let (src, dst) = self.ends(edge);
        let table = self.edge_table[edge] as usize;
        self.pair_start[table] + labels[src] as usize * self.pair_columns[table] + labels[dst] as usize
    }

    /// A forbidden choice among the labels: a node's or an edge's.
    fn forbidden(&self, labels: &[u32]) -> Option<String> {
        let is_forbidden = |costs: &[f64], at: usize| {
            costs[at * self.components..][..self.components].contains(&f64::INFINITY)
        };
        let node = (0..self.n_nodes()).find(|&node| {
            let table = self.labels(self.node_table[node] as usize);
            is_forbidden(&self.unary, table.start + labels[node] as usize)
        });
        if let Some(node) = node {
            return Some(format!("label {} of node {node}", labels[node]));
        }
        let edge = (0..self.n_edges()).find(|&edge| is_forbidden(&self.pair, self.pair_at(edge, labels)))?;
        let (src, dst) = self.ends(edge);
        Some(format!("labels {} of node {src} and {} of node {dst} on edge {edge}", labels[src], labels[dst]))
    }
}

/// The energy of components: their weighted sum, `+inf` where one of them is.
pub fn energy(components: &[f64], weights: &[f64]) -> f64 {
    if components.contains(&f64::INFINITY) {
        return f64::INFINITY;
    }
    components.iter().zip(weights).map(|(component, weight)| component * weight).sum()
}

fn check_costs(argument: &'static str, costs: &[f64], components: usize) -> Result<(), Error> {
    match first_wrong(costs, |cost| !(cost.abs() <= LARGEST || cost == f64::INFINITY)) {
        None => Ok(()),
        Some(i) => Err(bad(
            argument,
            format!(
                "component {} of row {} is {}: it must be a number of at most {LARGEST:e} in size, or +inf",
                i % components,
                i / components,
                costs[i]
            ),
        )),
    }
}

/// Positions that ascend from 0 to `rows`.
fn starts(argument: &'static str, given: &[i64], rows: usize) -> Result<Vec<usize>, Error> {
    if given.first() != Some(&0) || given.last() != Some(&(rows as i64)) {
        return Err(bad(
            argument,
            format!("wants to start with 0 and to end with the number of rows, {rows}"),
        ));
    }
    match given.windows(2).position(|pair| pair[0] >= pair[1]) {
        None => Ok(given.iter().map(|&start| start as usize).collect()),
        Some(table) => Err(bad(
            argument,
            format!(
                "table {table} goes from row {} to row {}: wants one row or more",
                given[table],
                given[table + 1]
            ),
        )),
    }
}

/// Columns that tables of pairs have whole rows of.
fn columns_of(given: &[i64], starts: &[usize]) -> Result<Vec<usize>, Error> {
    let of = |(table, &columns): (usize, &i64)| {
        let pairs = starts[table + 1] - starts[table];
        match usize::try_from(columns) {
            Ok(columns) if columns > 0 && pairs.is_multiple_of(columns) => Ok(columns),
            _ => Err(bad("pair_columns", format!("table {table} of {pairs} pairs has {columns} columns"))),
        }
    };
    given.iter().enumerate().map(of).collect()
}

/// Indices below `n`.
fn below(argument: &'static str, given: &[i64], n: usize) -> Result<Vec<u32>, Error> {
    let limit = u32::MAX as usize;
    if given.len() >= limit || n >= limit {
        return Err(Error::TooMany { what: argument, count: given.len().max(n), limit });
    }
    match first_wrong(given, |value| value as u64 >= n as u64) {
        None => Ok(given.iter().map(|&value| value as u32).collect()),
        Some(i) => Err(bad(argument, format!("value {i} is {}, but there are {n} to choose from", given[i]))),
    }
}
