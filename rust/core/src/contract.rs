//! The quotient of a graph by groups of ops, with the mapping back.
//!
//! Resident bytes, workspace peaks and times of a group come from its members; a tensor that crosses
//! groups stays a tensor of its own, read once per group, so the coarse graph still sends it once per
//! destination device; tensors that stay inside vanish from the edges but not from memory. O(V + E).

use crate::colocate;
use crate::csr::Csr;
use crate::error::Error;
use crate::graph::{Edge, Graph, HomeTensor};
use crate::ids::{OpId, StorageId};
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
/// A group is placed by the ops that decide for themselves: the set of a coarse op is the group
/// alone, since ops bound to another group's device are bound one by one ([`Workload::lead`]). A
/// group allows the device types that all its members allow.
///
/// # Errors
/// `group` of the wrong length or with numbers missing; a quotient with a cycle; a group whose
/// members allow no common device type.
pub fn contract(work: &Workload, group: &[u32]) -> Result<Workload, Error> {
    let graph = &work.graph;
    let n_groups = check_groups(graph.n_ops(), group)?;
    let of = |op: OpId| OpId(group[op.ix()]);
    let members = Csr::from_pairs(n_groups, graph.ops().map(|u| (group[u.ix()] as usize, u)));
    let first = |ops: &[OpId]| ops.iter().copied().min_by_key(|&u| graph.index(u));

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
            // Edges of one tensor meet again in sort_edges, which drops repeated ones.
            let tensor = if graph.is_control(t) { Edge::CONTROL } else { graph.key(t) };
            edges.extend(readers.map(|dst| Edge { src: from, dst, tensor }));
        }
    }
    let quotient =
        Graph::with_homes(n_groups, edges.iter().copied(), &homes).map_err(|error| match error {
            Error::Cycle(groups) => {
                Error::CyclicGroups(groups.0.iter().filter_map(|g| first(members.row(g.id.ix()))).collect())
            }
            other => other,
        })?;

    let bytes_of_key = key_bytes(work);
    let bytes = |g: &Graph, t| if g.is_control(t) { 0 } else { bytes_of_key[g.key(t) as usize] };
    let tensor_bytes: Vec<u64> = quotient.tensors().map(|t| bytes(&quotient, t)).collect();
    let sum =
        |column: &[u64], g: usize| members.row(g).iter().fold(0u64, |s, u| s.saturating_add(column[u.ix()]));
    let resident = (0..n_groups).map(|g| sum(&work.resident, g)).collect();
    let most = |g: usize| members.row(g).iter().map(|u| work.workspace[u.ix()]).max().unwrap_or(0);
    let workspace = (0..n_groups).map(most).collect();
    // One storage per group: what its members allocate. Their lifetimes are the fine graph's matter;
    // what nobody reads is the graph's output.
    let storages: Vec<Storage> = (0..n_groups)
        .map(|g| {
            let outputs = members.row(g).iter().fold(0u64, |s, &u| s.saturating_add(work.output_bytes(u)));
            let unread = quotient.successors(OpId::new(g)).is_empty();
            let lifetime = if unread { Lifetime::UntilEnd } else { Lifetime::UntilUsed };
            Storage { op: OpId::new(g), bytes: outputs, lifetime }
        })
        .collect();
    let tensor_storage = quotient
        .tensors()
        .map(|t| if quotient.is_home(t) { StorageId::NONE } else { StorageId(quotient.source(t).0) })
        .collect();

    let allowed = (0..n_groups)
        .map(|g| {
            let ops = members.row(g);
            let mask = ops.iter().fold(u64::MAX, |m, u| m & work.allowed[u.ix()]);
            if mask > 0 {
                return Ok(mask);
            }
            let first = first(ops).unwrap_or_default();
            let others = ops.iter().copied().filter(|u| work.allowed[u.ix()] != work.allowed[first.ix()]);
            match others.min_by_key(|&u| graph.index(u)) {
                Some(second) => Err(Error::NoCommonType { first: first.into(), second: second.into() }),
                None => Ok(mask),
            }
        })
        .collect::<Result<Vec<u64>, Error>>()?;
    let (set_of, sets) = colocate::Union::new(n_groups).sets(n_groups);
    let lead = quotient.ops().collect();
    let op_storages = (0..=n_groups as u32).collect();
    Ok(Workload {
        graph: quotient,
        tensor_bytes,
        tensor_storage,
        storages,
        op_storages,
        resident,
        workspace,
        set_of,
        sets,
        allowed,
        lead,
    })
}

/// The same for moving ops group by group: groups share a device where ops of theirs have to, and hold no
/// memory, for when they would hold it is the fine graph's matter.
///
/// # Errors
/// As [`contract`]; a set of groups that allow no common device type.
pub fn contract_colocated(work: &Workload, group: &[u32]) -> Result<Workload, Error> {
    let coarse = contract(work, group)?;
    let n_groups = coarse.n_ops();
    let mut union = colocate::Union::new(n_groups);
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
                let ops = work.graph.ops().filter(|u| group[u.ix()] == g.0);
                ops.min_by_key(|&u| work.graph.index(u)).unwrap_or_default()
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

/// Bytes per user's tensor id. Several tensors of one id (a plain tensor and none else) agree.
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

/// What flows between each pair of ops, by source, then destination, as the user numbers them. Each tensor counts once per op
/// that reads it. O(V + E log E).
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
