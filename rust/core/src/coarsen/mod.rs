//! Coarsening: which ops become one group, so that what follows has fewer things to place.
//!
//! * [`batch`]: rounds of conflict-free merges, heaviest edge first (Pesto).
//! * [`rules`]: chains of op kinds that one kernel runs (Moirai).
//! * [`parallel`]: merges that do not lengthen the critical path.
//! * [`multilevel`]: the least cut for a number of groups of about equal time.
//! * [`fusion`]: segments of an order (Celeritas).
//!
//! Each gives a group per op, numbered in a topological order of the quotient, which has no cycle.
//! A group runs as one op; [`contract`] makes the coarse graph. [`repeats`] finds groups of another
//! kind, which are only moved together: ops that play the same part in every layer.

pub mod batch;
mod boundary;
pub mod contract;
pub mod fusion;
pub mod multilevel;
pub mod parallel;
mod quotient;
pub mod repeats;
pub mod rules;

pub use quotient::Quotient;

use crate::clock::Ticks;
use crate::error::Error;
use crate::graph::Graph;

/// What merging weighs, per op or per tensor.
#[derive(Clone, Copy, Debug)]
pub struct Weights<'a> {
    /// Compute time per op.
    pub op_time: &'a [Ticks],
    /// Transfer time per tensor.
    pub tensor_time: &'a [Ticks],
    /// Bytes per op.
    pub op_bytes: &'a [u64],
    /// Ops of different class (the device types they allow) never share a group.
    pub class: &'a [u64],
}

impl Weights<'_> {
    /// # Errors
    /// A column that does not have one value per op or tensor of `graph`.
    pub fn check(&self, graph: &Graph) -> Result<(), Error> {
        let columns = [
            ("op_time", self.op_time.len(), graph.n_ops(), "op"),
            ("tensor_time", self.tensor_time.len(), graph.n_tensors(), "tensor"),
            ("op_bytes", self.op_bytes.len(), graph.n_ops(), "op"),
            ("class", self.class.len(), graph.n_ops(), "op"),
        ];
        match columns.into_iter().find(|&(_, got, want, _)| got != want) {
            Some((argument, got, want, per)) => Err(Error::WrongLength { argument, got, want, per }),
            None => Ok(()),
        }
    }
}

/// How far to merge, and what no group may exceed. An op that exceeds a limit is a group of its
/// own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Stop at this many groups.
    pub groups: usize,
    /// Most compute time in a group.
    pub max_time: Ticks,
    /// Most bytes in a group.
    pub max_bytes: u64,
}

/// Pairs that were looked at last and not merged, counted by what forbade the merge.
///
/// All zero where the wanted number was reached, and where no pair was left to look at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Obstacles {
    /// They allow different device types.
    pub types: u64,
    /// Together they would exceed the time of a group.
    pub max_time: u64,
    /// Together they would exceed the bytes of a group.
    pub max_bytes: u64,
    /// Another path joins them: merging would close a cycle, or might together with other merges.
    pub cycle: u64,
    /// Merging went so slowly that it was stopped.
    pub slow: bool,
}

impl Obstacles {
    /// Whether two nodes may share a group as far as limits go; counts why not.
    fn allow(&mut self, nodes: &Quotient, a: usize, b: usize, limits: &Limits) -> bool {
        if nodes.class[a] != nodes.class[b] {
            self.types += 1;
        } else if nodes.time[a] + nodes.time[b] > limits.max_time {
            self.max_time += 1;
        } else if nodes.bytes[a].saturating_add(nodes.bytes[b]) > limits.max_bytes {
            self.max_bytes += 1;
        } else {
            return true;
        }
        false
    }
}

/// Groups of ops.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Coarsening {
    /// Group per op, numbered in a topological order of the quotient.
    pub group: Vec<u32>,
    /// Number of groups.
    pub n_groups: usize,
    /// Why there are not fewer groups, where fewer were wanted.
    pub obstacles: Obstacles,
}
