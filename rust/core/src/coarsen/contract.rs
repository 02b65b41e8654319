//! The quotient of a graph by groups of ops, with the mapping back.
//!
//! Resident bytes and workspace peaks of a group come from its members. A tensor that crosses
//! groups stays a tensor of its own, read once per group. So the coarse graph still sends it once
//! per destination device. Tensors that stay inside a group vanish from the edges but not from
//! memory. O(V + E).

use crate::collective::Collectives;
use crate::colocate;
use crate::csr::Csr;
use crate::error::Error;
use crate::graph::{Edge, Graph, HomeTensor};
use crate::ids::{OpId, StorageId};
use crate::union::Union;
use crate::workload::{Lifetime, Storage, Workload};

/// What flows between two groups.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Flow {
    /// Producing group.
    pub src: OpId,
    /// Consuming group.
    pub dst: OpId,
    /// Distinct tensors with data.
    pub tensors: u32,
    /// Their bytes.
    pub bytes: u64,
}

/// Merges each group of ops into one.
///
/// Every group is a set of its own, since ops that must follow an op of another group are bound to
/// its device one by one ([`Workload::lead`] of the fine graph). A group allows the device types
/// that all its members allow.
///
/// # Errors
/// `group` of the wrong length or with numbers missing; a quotient with a cycle; a group whose
/// members allow no common device type.
pub fn contract(work: &Workload, group: &[u32]) -> Result<Workload, Error> {
    let n_groups = check_groups(work.n_ops(), group)?;
    let members = Csr::from_pairs(n_groups, work.graph.ops().map(|u| (group[u.ix()] as usize, u)));
    let graph = quotient(&work.graph, group, &members)?;

    let bytes_of_key = key_bytes(work);
    let bytes = |t| if graph.is_control(t) { 0 } else { bytes_of_key[graph.key(t) as usize] };
    let storage_of = |t| if graph.is_home(t) { StorageId::NONE } else { StorageId(graph.source(t).0) };
    let workspace = |u: &OpId| work.workspace[u.ix()];
    let (set_of, sets) = Union::new(n_groups).sets(n_groups);
    Ok(Workload {
        tensor_bytes: graph.tensors().map(bytes).collect(),
        tensor_storage: graph.tensors().map(storage_of).collect(),
        storages: (0..n_groups).map(|g| storage(work, &graph, g, members.row(g))).collect(),
        op_storages: (0..=n_groups as u32).collect(),
        resident: (0..n_groups).map(|g| sum(members.row(g), |u| work.resident[u.ix()])).collect(),
        workspace: (0..n_groups).map(|g| members.row(g).iter().map(workspace).max().unwrap_or(0)).collect(),
        set_of,
        sets,
        allowed: (0..n_groups).map(|g| allowed(work, members.row(g))).collect::<Result<_, _>>()?,
        lead: graph.ops().collect(),
        // A group of ops does more than take part in a collective.
        collectives: Collectives::default(),
        graph,
    })
}

/// The graph of groups, with the tensors that cross from one group to another.
fn quotient(graph: &Graph, group: &[u32], members: &Csr<OpId>) -> Result<Graph, Error> {
    let of = |op: OpId| OpId(group[op.ix()]);
    let mut edges = Vec::new();
    let mut homes = Vec::new();
    for t in graph.tensors() {
        let from = of(graph.source(t));
        let readers = graph.consumers(t).iter().map(|&c| of(c)).filter(|&g| g != from);
        if graph.is_home(t) {
            let mut consumers: Vec<OpId> = readers.collect();
            consumers.sort_unstable();
            consumers.dedup();
            if !consumers.is_empty() {
                homes.push(HomeTensor { home: from, consumers, key: graph.key(t) });
            }
        } else {
            // A tensor that several ops of a group read gives equal edges, which the graph counts once.
            let tensor = if graph.is_control(t) { Edge::CONTROL } else { graph.key(t) };
            edges.extend(readers.map(|dst| Edge { src: from, dst, tensor }));
        }
    }
    let member = |g: OpId| first_of(graph, members.row(g.ix()).iter().copied());
    Graph::with_homes(members.n_rows(), edges.iter().copied(), &homes).map_err(|error| match error {
        Error::Cycle(groups) => Error::CyclicGroups(groups.0.iter().filter_map(|g| member(g.id)).collect()),
        other => other,
    })
}

/// The op of the smallest index.
fn first_of(graph: &Graph, ops: impl Iterator<Item = OpId>) -> Option<OpId> {
    ops.min_by_key(|&u| graph.index(u))
}

/// Bytes of several ops together.
fn sum(ops: &[OpId], bytes: impl Fn(OpId) -> u64) -> u64 {
    ops.iter().fold(0, |sum, &u| sum.saturating_add(bytes(u)))
}

/// The one storage of a group: all that its members allocate.
///
/// Only the fine graph says how long each member's part lives. A group that no other group reads
/// makes an output of the graph, which lives to the end.
fn storage(work: &Workload, quotient: &Graph, group: usize, members: &[OpId]) -> Storage {
    let op = OpId::new(group);
    let unread = quotient.successors(op).is_empty();
    let lifetime = if unread { Lifetime::UntilEnd } else { Lifetime::UntilUsed };
    Storage { op, bytes: sum(members, |u| work.output_bytes(u)), lifetime }
}

/// The device types that all members of a group allow.
fn allowed(work: &Workload, members: &[OpId]) -> Result<u64, Error> {
    let mask = members.iter().fold(u64::MAX, |mask, u| mask & work.allowed[u.ix()]);
    if mask > 0 {
        return Ok(mask);
    }
    let one = first_of(&work.graph, members.iter().copied()).unwrap_or_default();
    let others = members.iter().copied().filter(|u| work.allowed[u.ix()] != work.allowed[one.ix()]);
    match first_of(&work.graph, others) {
        Some(other) => Err(Error::NoCommonType { first: one.into(), second: other.into() }),
        None => Ok(mask),
    }
}

/// Merges each group of ops into one, for a search that moves groups while the fine graph is judged.
///
/// Two groups share a device where an op of one must share a device with an op of the other. Groups
/// hold no memory: only the fine graph says how long each tensor lives.
///
/// # Errors
/// As [`contract`]; a set of groups that allow no common device type.
pub fn contract_colocated(work: &Workload, group: &[u32]) -> Result<Workload, Error> {
    let coarse = contract(work, group)?;
    let n_groups = coarse.n_ops();
    let mut union = Union::new(n_groups);
    for set in 0..work.sets.n_rows() {
        let groups = work.sets.row(set).iter().map(|u| group[u.ix()] as usize);
        groups.reduce(|a, b| {
            union.join(a, b);
            b
        });
    }
    let (set_of, sets) = union.sets(n_groups);
    let mut allowed = coarse.allowed;
    colocate::share_allowed(&sets, &mut allowed).map_err(|error| match error {
        Error::NoCommonType { first, second } => {
            let member = |g: OpId| {
                let members = work.graph.ops().filter(|u| group[u.ix()] == g.0);
                first_of(&work.graph, members).unwrap_or_default()
            };
            Error::NoCommonType { first: member(first.id).into(), second: member(second.id).into() }
        }
        other => other,
    })?;
    let lead = colocate::leads(&coarse.graph, &set_of, &sets, |_| None, &allowed);
    let storages = coarse.storages.into_iter().map(|storage| Storage { bytes: 0, ..storage }).collect();
    let (resident, workspace) = (vec![0; n_groups], vec![0; n_groups]);
    Ok(Workload { set_of, sets, lead, allowed, storages, resident, workspace, ..coarse })
}

/// Bytes per tensor id of the user. Tensors of one id have the same bytes.
fn key_bytes(work: &Workload) -> Vec<u64> {
    let graph = &work.graph;
    let data = || graph.tensors().filter(|&t| !graph.is_control(t));
    let mut bytes = vec![0; data().map(|t| graph.key(t) as usize + 1).max().unwrap_or(0)];
    data().for_each(|t| bytes[graph.key(t) as usize] = work.tensor_bytes[t.ix()]);
    bytes
}

/// Number of groups, after checking that they are numbered without gaps.
fn check_groups(n_ops: usize, group: &[u32]) -> Result<usize, Error> {
    if group.len() != n_ops {
        return Err(Error::WrongLength { argument: "group", got: group.len(), want: n_ops, per: "op" });
    }
    let n_groups = group.iter().copied().max().map_or(0, |g| g as usize + 1);
    let bad = |reason| Err(Error::BadArgument { argument: "group", reason });
    if n_groups > n_ops {
        return bad(format!("group {} of {n_ops} ops: number groups from 0 without gaps", n_groups - 1));
    }
    let mut seen = vec![false; n_groups];
    group.iter().for_each(|&g| seen[g as usize] = true);
    match seen.iter().position(|s| !s) {
        Some(g) => bad(format!("no op is in group {g}: number groups from 0 without gaps")),
        None => Ok(n_groups),
    }
}

/// What flows between each pair of ops. Pairs are sorted by source, then destination, by the user's
/// index. A tensor counts once per op that reads it. O(V + E log E).
pub fn flows(work: &Workload) -> Vec<Flow> {
    let graph = &work.graph;
    let mut flows: Vec<Flow> = Vec::new();
    let mut at = vec![usize::MAX; graph.n_ops()];
    for src in graph.ops_by_index() {
        let from = flows.len();
        for t in graph.outputs(src) {
            for &dst in graph.consumers(t) {
                // An index below `from` was left there by another source.
                let known = at[dst.ix()];
                let i = if known >= from && known < flows.len() { known } else { flows.len() };
                if i == flows.len() {
                    at[dst.ix()] = i;
                    flows.push(Flow { src, dst, tensors: 0, bytes: 0 });
                }
                flows[i].tensors += u32::from(!graph.is_control(t));
                flows[i].bytes = flows[i].bytes.saturating_add(work.tensor_bytes[t.ix()]);
            }
        }
        flows[from..].sort_unstable_by_key(|f| graph.index(f.dst));
    }
    flows
}
