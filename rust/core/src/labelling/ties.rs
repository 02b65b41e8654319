//! Nodes that are tied to one label, made one node: a model of eighty equal layers becomes a problem of one.
//!
//! Costs of tied nodes add up. Edges between the same two sets of tied nodes become one. An edge inside a set
//! costs what its two ends cost with one label, the diagonal of its table. Edges that join the same two nodes
//! without ties become one too: that makes bounds tighter. O((n + m) log + numbers in the merged tables).

use std::collections::BTreeMap;

use super::model::{Edge, Model, Node};
use super::tables::Tables;
use super::{Labelling, MOST, bad};
use crate::csr::Csr;
use crate::error::Error;

/// An edge as the model has it: between the sets of its ends, or inside one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Joined {
    /// The smaller set.
    pub low: u32,
    /// The larger set, or the same.
    pub high: u32,
    /// The edge.
    pub edge: u32,
    /// Whether it goes from the larger set to the smaller.
    pub is_turned: bool,
}

fn same_ends(a: &Joined, b: &Joined) -> bool {
    (a.low, a.high) == (b.low, b.high)
}

/// Sets of nodes that take one label, numbered by smallest member.
#[derive(Clone, Debug)]
pub struct Ties {
    set_of: Vec<u32>,
    members: Csr<u32>,
}

impl Ties {
    /// Nodes of one number are tied; a negative number ties to nothing. None: nothing is tied.
    pub fn new(problem: &Labelling, tied: Option<&[i64]>) -> Result<Self, Error> {
        let n = problem.n_nodes();
        if let Some(tied) = tied
            && tied.len() != n
        {
            return Err(Error::WrongLength { argument: "tied", got: tied.len(), want: n, per: "node" });
        }
        let (mut sets, mut n_sets) = (BTreeMap::new(), 0);
        let mut set_of = Vec::with_capacity(n);
        for node in 0..n {
            let number = tied.map_or(-1, |tied| tied[node]);
            let (set, first) =
                if number < 0 { (n_sets, node) } else { *sets.entry(number).or_insert((n_sets, node)) };
            let (labels, others) = (problem.n_labels(node), problem.n_labels(first));
            if labels != others {
                let reason = format!(
                    "nodes {first} and {node} are tied, but have {others} and {labels} labels: wants equally many"
                );
                return Err(bad("tied", reason));
            }
            n_sets += u32::from(set == n_sets);
            set_of.push(set);
        }
        let pairs = set_of.iter().enumerate().map(|(node, &set)| (set as usize, node as u32));
        Ok(Self { members: Csr::from_pairs(n_sets as usize, pairs), set_of })
    }

    /// Number of sets.
    pub fn n_sets(&self) -> usize {
        self.members.n_rows()
    }

    /// The nodes of a set, ascending.
    pub fn members(&self, set: usize) -> &[u32] {
        self.members.row(set)
    }

    /// Labels per node from labels per set.
    pub fn per_node(&self, labels: &[u32]) -> Vec<u32> {
        self.set_of.iter().map(|&set| labels[set as usize]).collect()
    }

    /// Labels per set from labels per node, or two nodes of one set that differ.
    pub fn per_set(&self, labels: &[u32]) -> Result<Vec<u32>, Error> {
        (0..self.n_sets())
            .map(|set| {
                let (members, label) = (self.members(set), labels[self.members(set)[0] as usize]);
                match members.iter().find(|&&node| labels[node as usize] != label) {
                    None => Ok(label),
                    Some(other) => {
                        let reason = format!("nodes {} and {other} are tied, but differ", members[0]);
                        Err(bad("start", reason))
                    }
                }
            })
            .collect()
    }

    /// An edge between the members of two sets, for messages.
    pub fn edge_between(&self, problem: &Labelling, a: usize, b: usize) -> Option<usize> {
        let of = |edge| {
            let (src, dst) = problem.ends(edge);
            (self.set_of[src] as usize, self.set_of[dst] as usize)
        };
        (0..problem.n_edges()).find(|&edge| of(edge) == (a, b) || of(edge) == (b, a))
    }

    /// The weighted problem, a node per set.
    pub fn model(&self, problem: &Labelling, weights: &[f64]) -> Result<Model, Error> {
        let (inside, between) = self.edges(problem);
        self.check_sizes(problem, &between)?;
        let mut tables = Tables::new(problem, weights);
        let nodes = self.nodes(problem, &inside, &mut tables);
        let edges: Vec<Edge> = between.chunk_by(same_ends).map(|run| tables.edge(problem, run)).collect();
        Ok(Model::new(nodes, tables.unary, &edges, tables.pair))
    }

    /// Edges inside sets, by set, and edges between sets, by smaller set and larger one.
    fn edges(&self, problem: &Labelling) -> (Vec<Joined>, Vec<Joined>) {
        let joined = (0..problem.n_edges()).map(|edge| {
            let (src, dst) = problem.ends(edge);
            let (a, b) = (self.set_of[src], self.set_of[dst]);
            Joined { low: a.min(b), high: a.max(b), edge: edge as u32, is_turned: a > b }
        });
        let (mut inside, mut between): (Vec<_>, Vec<_>) =
            joined.partition(|joined| joined.low == joined.high);
        inside.sort_unstable();
        between.sort_unstable();
        (inside, between)
    }

    /// Whether all that a model needs has a bearable size.
    fn check_sizes(&self, problem: &Labelling, between: &[Joined]) -> Result<(), Error> {
        let labels = |set: usize| problem.n_labels(self.members(set)[0] as usize);
        let is_sum = |&set: &usize| self.members(set).len() > 1;
        let mut unary = problem.unary.len() / problem.components;
        unary = (0..self.n_sets()).filter(is_sum).map(labels).fold(unary, usize::saturating_add);
        let (mut pair, mut messages) = (problem.pair.len() / problem.components, 0usize);
        for run in between.chunk_by(same_ends) {
            let (low, high) = (labels(run[0].low as usize), labels(run[0].high as usize));
            messages = messages.saturating_add(low.max(high));
            pair = pair.saturating_add(if run.len() > 1 { low * high } else { 0 });
        }
        let sizes = [("labels", unary), ("pairs of labels", pair), ("labels at ends of edges", messages)];
        match sizes.into_iter().find(|&(_, count)| count > MOST) {
            None => Ok(()),
            Some((what, count)) => Err(Error::TooMany { what, count, limit: MOST }),
        }
    }

    /// Each set's costs: those of its only member, or a sum of their own.
    fn nodes(&self, problem: &Labelling, mut inside: &[Joined], tables: &mut Tables) -> Vec<Node> {
        let mut nodes = Vec::with_capacity(self.n_sets());
        for set in 0..self.n_sets() {
            let members = self.members(set);
            let (edges, rest) = inside.split_at(inside.partition_point(|joined| joined.low as usize == set));
            inside = rest;
            let own = problem.labels(problem.node_table[members[0] as usize] as usize);
            let start = if let [_] = members { own.start } else { tables.add_node(problem, members, edges) };
            nodes.push(Node { start: start as u32, labels: own.len() as u32 });
        }
        nodes
    }
}
