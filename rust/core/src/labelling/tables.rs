//! The tables of a problem for one choice of weights, each made once however many nodes and edges share it.

use super::model::Edge;
use super::ties::Joined;
use super::{Labelling, energy};

/// Weighted tables. Each table of pairs stands there by rows and then by columns.
#[derive(Debug)]
pub struct Tables {
    /// A number per label of each unary table, and of each sum of some.
    pub unary: Vec<f64>,
    /// A number per pair of labels of each table, and of each sum of some.
    pub pair: Vec<f64>,
}

impl Tables {
    /// The problem's own. O(numbers in tables).
    pub fn new(problem: &Labelling, weights: &[f64]) -> Self {
        let of = |costs: &[f64]| {
            costs.chunks_exact(problem.components).map(|cost| energy(cost, weights)).collect()
        };
        let (unary, by_rows): (Vec<f64>, Vec<f64>) = (of(&problem.unary), of(&problem.pair));
        let mut pair = Vec::with_capacity(2 * by_rows.len());
        for (table, &columns) in problem.pair_columns.iter().enumerate() {
            push_both(&mut pair, &by_rows[problem.pairs(table)], columns);
        }
        Self { unary, pair }
    }

    /// Adds the sum of some nodes' costs, and of the diagonals of edges between them. Returns where it starts.
    pub fn add_node(&mut self, problem: &Labelling, members: &[u32], inside: &[Joined]) -> usize {
        let start = self.unary.len();
        let labels = problem.n_labels(members[0] as usize);
        self.unary.resize(start + labels, 0.0);
        let (own, sum) = self.unary.split_at_mut(start);
        for &node in members {
            let table = &own[problem.labels(problem.node_table[node as usize] as usize)];
            sum.iter_mut().zip(table).for_each(|(sum, cost)| *sum += cost);
        }
        for joined in inside {
            let table = &self.pair[problem.by_rows(joined.edge)..];
            let diagonal = table.iter().step_by(labels + 1);
            sum.iter_mut().zip(diagonal).for_each(|(sum, cost)| *sum += cost);
        }
        start
    }

    /// One edge for all those between the same two nodes: the only one's table, or a sum.
    pub fn edge(&mut self, problem: &Labelling, run: &[Joined]) -> Edge {
        let Joined { low, high, edge, .. } = run[0];
        let size = problem.pairs(problem.edge_table[edge as usize] as usize).len();
        let from = |joined: &Joined| {
            let by_rows = problem.by_rows(joined.edge);
            if joined.is_turned { (by_rows + size, by_rows) } else { (by_rows, by_rows + size) }
        };
        let (mut by_low, mut by_high) = from(&run[0]);
        if run.len() > 1 {
            let start = self.pair.len();
            self.pair.resize(start + 2 * size, 0.0);
            let (own, sum) = self.pair.split_at_mut(start);
            for joined in run {
                let (by_low, by_high) = from(joined);
                let both = own[by_low..][..size].iter().chain(&own[by_high..][..size]);
                sum.iter_mut().zip(both).for_each(|(sum, cost)| *sum += cost);
            }
            (by_low, by_high) = (start, start + size);
        }
        Edge { low, high, by_low: by_low as u32, by_high: by_high as u32 }
    }
}

impl Labelling {
    /// Where the weighted table of an edge starts, by rows.
    fn by_rows(&self, edge: u32) -> usize {
        2 * self.pair_start[self.edge_table[edge as usize] as usize]
    }
}

/// Appends a table by rows and by columns.
fn push_both(out: &mut Vec<f64>, by_rows: &[f64], columns: usize) {
    out.extend_from_slice(by_rows);
    for column in 0..columns {
        out.extend(by_rows.iter().skip(column).step_by(columns));
    }
}
