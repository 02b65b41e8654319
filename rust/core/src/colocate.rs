//! Which ops must share a device, and which op decides for each.
//!
//! Sets are what the user's rules force. *Leads* go one step further: the ops that update a
//! parameter should be placed where the parameter is read, or every step would send it there. So a
//! set that holds parameters follows the first op that reads one of them. Leads are advice: a
//! placement that ignores them is still valid.

use crate::csr::Csr;
use crate::error::Error;
use crate::graph::Graph;
use crate::ids::OpId;

/// Gives every member of a set the types that all of them allow.
///
/// # Errors
/// A set whose members allow no common type; both ops are named.
pub fn share_allowed(sets: &Csr<OpId>, allowed: &mut [u64]) -> Result<(), Error> {
    for s in 0..sets.n_rows() {
        let members = sets.row(s);
        if members.len() < 2 {
            continue;
        }
        let mut mask = allowed[members[0].ix()];
        for &op in &members[1..] {
            if mask & allowed[op.ix()] == 0 {
                let first = members.iter().copied().find(|m| allowed[m.ix()] & allowed[op.ix()] == 0);
                return Err(Error::NoCommonType {
                    first: first.unwrap_or(members[0]).into(),
                    second: op.into(),
                });
            }
            mask &= allowed[op.ix()];
        }
        members.iter().for_each(|op| allowed[op.ix()] = mask);
    }
    Ok(())
}

/// The deciding op of every op. `reader(set)` is the first op that reads a parameter of that set.
///
/// O(V): a set whose reader is in another set follows that one; a chain that comes round, or that
/// leads to an op with other allowed types, ends at the set's own first op in topological order.
pub fn leads(
    graph: &Graph,
    set_of: &[u32],
    sets: &Csr<OpId>,
    reader: impl Fn(usize) -> Option<OpId>,
    allowed: &[u64],
) -> Vec<OpId> {
    let mut first = vec![OpId::NONE; sets.n_rows()];
    for &u in graph.topo() {
        let f = &mut first[set_of[u.ix()] as usize];
        if f.is_none() {
            *f = u;
        }
    }
    let mut lead = vec![OpId::NONE; sets.n_rows()];
    let mut chain = Vec::new();
    let mut seen_from = vec![u32::MAX; sets.n_rows()];
    for start in 0..sets.n_rows() {
        let mut set = start;
        chain.clear();
        let end = loop {
            if !lead[set].is_none() {
                break lead[set];
            }
            chain.push(set);
            seen_from[set] = start as u32;
            match reader(set) {
                Some(op)
                    if allowed[op.ix()] == allowed[first[set].ix()]
                        && seen_from[set_of[op.ix()] as usize] != start as u32 =>
                {
                    set = set_of[op.ix()] as usize;
                }
                _ => break first[set],
            }
        };
        chain.iter().for_each(|&s| lead[s] = end);
    }
    set_of.iter().map(|&s| lead[s as usize]).collect()
}
