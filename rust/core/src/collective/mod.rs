//! Collectives: what several devices do together with one tensor.
//!
//! A collective has one member op per device of its group. A member takes no compute: it has arrived
//! once its inputs are there. When all members have arrived, the collective waits for every channel
//! of its algorithm, like a transfer over several channels; it holds them all until it ends, and
//! then all members end ([`crate::simulate`]).
//!
//! [`Collectives`] says which ops are members of what. [`Group`] says how long a collective of a
//! group of devices takes, and which channels it holds. A cluster may have measured times
//! ([`crate::collective_times`]), which stand above what its links say.

mod group;
mod machines;
mod ring;
mod rounds;

pub use crate::collective_times::Kind;
pub use group::{Algorithm, Group, Way};

use crate::csr::Csr;
use crate::error::Error;
use crate::graph::Graph;
use crate::ids::{OpId, TensorId};
use crate::kahn::kahn;
use crate::numbering::Numbering;

/// One collective.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collective {
    /// What it does.
    pub kind: Kind,
    /// Bytes of the whole tensor (see [`Kind`]).
    pub bytes: u64,
    /// How often it runs, one time after another: once per trip of the loop that it stands in.
    pub runs: u64,
    /// The member whose tensor a broadcast sends; of the others the first member.
    pub root: OpId,
}

/// The columns that say which ops are members of which collective, per op as the user numbers ops.
#[derive(Clone, Copy, Debug, Default)]
pub struct MemberColumns<'a> {
    /// The number of the collective that each op is a member of, negative: none. Empty: there are no
    /// collectives.
    pub group: &'a [i64],
    /// What each op's collective does: an index into [`Kind::NAMED`]. Only those of members are read.
    pub kind: &'a [u8],
    /// How often each op runs. Empty: once.
    pub runs: &'a [u64],
}

/// The collectives of a workload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Collectives {
    all: Vec<Collective>,
    members: Option<Members>,
}

/// The collective of each op ([`NONE`]: of none), and the members of each collective.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Members {
    of: Vec<u32>,
    of_each: Vec<Vec<OpId>>,
}

const NONE: u32 = u32::MAX;

impl Collectives {
    /// Groups members. The columns number the ops of `graph` by index. `bytes` are those of the tensors
    /// with data that an op reads, each once, and those of the tensors that it makes.
    ///
    /// # Errors
    /// Columns of the wrong length; an unknown kind; members of one collective of two kinds; a
    /// collective that waits for itself, directly or through others.
    pub fn of(
        graph: &Graph,
        columns: MemberColumns<'_>,
        bytes: impl Fn(OpId) -> (u64, u64),
    ) -> Result<Self, Error> {
        if columns.group.iter().all(|&group| group < 0) {
            return Ok(Self::default());
        }
        let n = graph.n_ops();
        for (argument, got) in [("collective", columns.group.len()), ("collective_kind", columns.kind.len())]
        {
            if got != n {
                return Err(Error::WrongLength { argument, got, want: n, per: "op" });
            }
        }
        let numbering = graph.numbering();
        let mut number_of = std::collections::BTreeMap::new();
        let mut of = vec![NONE; n];
        let mut of_each: Vec<Vec<OpId>> = Vec::new();
        for (index, &group) in columns.group.iter().enumerate().filter(|(_, group)| **group >= 0) {
            let number = *number_of.entry(group).or_insert(of_each.len());
            if number == of_each.len() {
                of_each.push(Vec::new());
            }
            let op = numbering.op(index as u32);
            of[op.ix()] = number as u32;
            of_each[number].push(op);
        }
        let kinds = of_each.iter().map(|members| kind_of(members, columns.kind, numbering));
        let kinds: Vec<Kind> = kinds.collect::<Result<_, _>>()?;
        check_waiting(graph, &of, &of_each)?;
        let runs_of = |op: &OpId| columns.runs.get(numbering.index(*op) as usize).copied().unwrap_or(1);
        let all = kinds.iter().zip(&of_each).map(|(&kind, members)| {
            let runs = members.iter().map(runs_of).max().unwrap_or(1);
            collective(kind, members, runs, &bytes)
        });
        Ok(Self { all: all.collect(), members: Some(Members { of, of_each }) })
    }

    /// Whether there are none.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// All of them.
    pub fn all(&self) -> &[Collective] {
        &self.all
    }

    /// The collective that an op is a member of.
    #[inline(always)]
    pub fn of_op(&self, op: OpId) -> Option<usize> {
        let members = self.members.as_ref()?;
        let at = members.of[op.ix()];
        (at != NONE).then_some(at as usize)
    }

    /// The members of all collectives.
    pub fn all_members(&self) -> impl Iterator<Item = &OpId> {
        self.members.iter().flat_map(|members| members.of_each.iter().flatten())
    }

    /// The members of a collective, by the user's index.
    pub fn members(&self, collective: usize) -> &[OpId] {
        self.members.as_ref().map_or(&[], |members| &members.of_each[collective])
    }
}

/// The kind of a collective, which all its members must agree on.
fn kind_of(members: &[OpId], kinds: &[u8], numbering: &Numbering) -> Result<Kind, Error> {
    let kind = |op: &OpId| {
        let index = numbering.index(*op);
        let code = kinds[index as usize] as usize;
        Kind::NAMED.get(code).map(|(_, kind)| *kind).ok_or(Error::BadArgument {
            argument: "collective_kind",
            reason: format!("op {index} has {code}: kinds are 0 to {}", Kind::NAMED.len() - 1),
        })
    };
    let first = kind(&members[0])?;
    for other in &members[1..] {
        if kind(other)? != first {
            let index = |op: OpId| OpId(numbering.index(op)).into();
            return Err(Error::TwoKinds { first: index(members[0]), second: index(*other) });
        }
    }
    Ok(first)
}

/// A collective that runs so often: its bytes and its root.
fn collective(kind: Kind, members: &[OpId], runs: u64, bytes_of: &impl Fn(OpId) -> (u64, u64)) -> Collective {
    let each = || members.iter().map(|op| bytes_of(*op));
    let largest = || each().map(|(read, made)| read.max(made)).max().unwrap_or(0);
    let all_read = || each().fold(0u64, |sum, (read, _)| sum.saturating_add(read));
    let all_made = || each().fold(0u64, |sum, (_, made)| sum.saturating_add(made));
    // What a member gets may lie in memory that is there already, so it may make nothing.
    let bytes = match kind {
        Kind::AllReduce | Kind::Broadcast => largest(),
        Kind::AllGather => largest().max(all_read()),
        Kind::ReduceScatter => largest().max(all_made()),
        Kind::AllToAll => all_read().max(all_made()),
    };
    let sender = members.iter().find(|op| bytes_of(**op).0 > 0);
    Collective { kind, bytes, runs, root: *sender.unwrap_or(&members[0]) }
}

/// Checks that no collective waits for itself: that the graph in which the members of each
/// collective are one op has no cycle. O(V + E).
fn check_waiting(graph: &Graph, of: &[u32], of_each: &[Vec<OpId>]) -> Result<(), Error> {
    let together = |op: OpId| match of[op.ix()] {
        NONE => op,
        collective => of_each[collective as usize][0],
    };
    let edges = graph.tensors().take(graph.n_produced()).flat_map(|t: TensorId| {
        let from = together(graph.source(t));
        graph.consumers(t).iter().map(move |&to| (from.ix(), together(to)))
    });
    let rows = Csr::from_pairs(graph.n_ops(), edges);
    let order = kahn(&rows, |to| *to);
    let cycle = |ops: Vec<OpId>| ops.into_iter().map(|op| OpId(graph.index(op))).collect();
    order.map(drop).map_err(|ops| Error::CollectiveDeadlock(cycle(ops)))
}
