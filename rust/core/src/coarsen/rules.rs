//! Fusion by rules: chains of op kinds that one kernel runs become one group.
//!
//! Moirai (Zhang et al. 2023), section III-B, Algorithm 1 (GCOF). A rule is an ordered list of kinds;
//! ops that follow each other and match it fuse if every one but the last has one successor (a direct
//! or a multi-input connection). Changed from the paper:
//! * `dfs(v_next)` stands outside the loop there, so that only the last branch would be visited, and
//!   the graph is changed while it is walked. Here ops are taken in topological order, and from each
//!   the only chain there is (sole successor after sole successor) is followed as far as the longest
//!   rule: no recursion, no visited set.
//! * Ops that match only the beginning of a rule ("bound" in the paper) stay free for other rules.
//! * Of the rules that match at an op the longest wins; of equally long rules, the first. An op is
//!   fused once.
//!
//! No cycle: every edge that leaves a group leaves its last op. O(V + E + V R L) for R rules of at
//! most L kinds.

use crate::coarsen::{Coarsening, Limits, Obstacles, Quotient, Weights};
use crate::error::Error;
use crate::graph::Graph;
use crate::ids::OpId;

/// A rule: per position, the kinds that match there.
pub type Rule = Vec<Vec<u32>>;

/// Fuses what rules match, down to `limits.groups` groups at most.
///
/// `kind` is a number per op. The obstacles are those of chains that matched.
///
/// # Errors
/// Weights or kinds of the wrong length.
pub fn fuse(
    graph: &Graph,
    weights: &Weights<'_>,
    limits: &Limits,
    kind: &[u32],
    rules: &[Rule],
) -> Result<Coarsening, Error> {
    weights.check(graph)?;
    if kind.len() != graph.n_ops() {
        let (got, want) = (kind.len(), graph.n_ops());
        return Err(Error::WrongLength { argument: "kind", got, want, per: "op" });
    }
    // Longest first; a stable sort keeps the given order of equals.
    let mut by_length: Vec<&Rule> = rules.iter().filter(|rule| rule.len() > 1).collect();
    by_length.sort_by_key(|rule| std::cmp::Reverse(rule.len()));
    let longest = by_length.first().map_or(0, |rule| rule.len());

    let mut head: Vec<OpId> = graph.ops().collect();
    let mut taken = vec![false; graph.n_ops()];
    let mut left = graph.n_ops();
    let mut obstacles = Obstacles::default();
    let mut chain = Vec::with_capacity(longest);
    for &first in graph.topo() {
        if left <= limits.groups {
            obstacles = Obstacles::default();
            break;
        }
        follow(graph, &taken, first, longest, &mut chain);
        let matches = |rule: &&&Rule| {
            rule.len() <= chain.len()
                && rule.iter().zip(&chain).all(|(kinds, op)| kinds.contains(&kind[op.ix()]))
        };
        let Some(rule) = by_length.iter().find(matches) else { continue };
        let members = &chain[..rule.len()];
        // A rule that would leave fewer groups than wanted is passed over.
        if members.len() <= left - limits.groups + 1 && within(members, weights, limits, &mut obstacles) {
            for op in members {
                head[op.ix()] = first;
                taken[op.ix()] = true;
            }
            left -= members.len() - 1;
        }
    }

    let mut number = vec![u32::MAX; graph.n_ops()];
    let mut count = 0;
    let mut map = Vec::with_capacity(graph.n_ops());
    for &u in graph.topo() {
        let slot = &mut number[head[u.ix()].ix()];
        if *slot == u32::MAX {
            *slot = count;
            count += 1;
        }
        map.push(*slot);
    }
    let nodes = Quotient::new(graph, weights).merged(&map, count as usize);
    Ok(nodes.groups(graph, obstacles))
}

/// The ops that follow `first`, each the only successor of the one before and not taken.
fn follow(graph: &Graph, taken: &[bool], first: OpId, longest: usize, chain: &mut Vec<OpId>) {
    chain.clear();
    let mut next = Some(first);
    while let Some(op) = next.filter(|op| !taken[op.ix()] && chain.len() < longest) {
        chain.push(op);
        let successors = graph.successors(op);
        next = successors.first().copied().filter(|s| successors.iter().all(|other| other == s));
    }
}

/// Whether limits allow a group; counts why not.
fn within(members: &[OpId], weights: &Weights<'_>, limits: &Limits, obstacles: &mut Obstacles) -> bool {
    let first = members[0].ix();
    let time: u64 = members.iter().map(|u| weights.op_time[u.ix()]).sum();
    let bytes = members.iter().fold(0u64, |sum, u| sum.saturating_add(weights.op_bytes[u.ix()]));
    if members.iter().any(|u| weights.class[u.ix()] != weights.class[first]) {
        obstacles.types += 1;
    } else if time > limits.max_time {
        obstacles.max_time += 1;
    } else if bytes > limits.max_bytes {
        obstacles.max_bytes += 1;
    } else {
        return true;
    }
    false
}
