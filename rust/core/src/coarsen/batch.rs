//! Batch merging: rounds of merges that close no cycle together, heaviest edge first (or by another
//! [`Rank`]).
//!
//! Pesto (Hafeez et al. 2021), section 3.3, Theorem 3.5. H(v) is the height of v: ops on the longest
//! path that ends there. An edge (u, v) may merge in a round if
//! * u has no other successor, or every other successor of u is higher than v (*in*); or
//! * v has no other predecessor (*out*); or
//! * H(v) = H(u) + 1 (*step*), and no other step (u', v') of the round with H(u') = H(u) has an edge
//!   (u, v') or (u', v).
//!
//! Changed from the paper:
//! * Condition (iii) is void as printed (`h(u_i) != h(v_j) + d_j` always holds where (u_i, v_j) is an
//!   edge): both diagonals of K(2,2) would merge. It reads `h(v_j) - d_j`, and is needed between
//!   *steps* only.
//! * The edges of a round need not be a matching: any number of *in* edges may share their head,
//!   and any number of *out* edges their tail. Else a star of n leaves would take n rounds.
//! * Of equally heavy edges, such as those to the readers of one tensor, the edge whose ends take
//!   least time goes first.
//! * Corollary 3.6 (any number of groups can be reached) is false for disconnected graphs, device
//!   types and limits: merging stops when nothing merges.
//!
//! Why no cycle: every group gets a level. A group of *in* edges or of a *step* has the level H(v)
//! of its head, a group of *out* edges the level H(u) of its tail, and an op its own height.
//! * An edge that leaves a group of *in* edges ends above v. An edge that leaves a group of *out*
//!   edges ends above u. An edge that leaves a *step* ends above u, hence not below v.
//! * No edge enters a group above its level, since *out* edges are the only ones into their heads.
//!
//! So levels never fall along an edge between groups. They stay the same only if the edge leaves
//! the tail of a *step* and ends at the level of the group that it enters. Around a cycle all
//! levels are the same. So all its groups are *steps* of one height, each left at its tail and
//! entered at its head. The last condition forbids that.
//!
//! A round is O(V + E log E). In practice a round halves the number of nodes. Rounds that merge
//! next to nothing are cut off.

use std::cmp::Reverse;

use crate::clock::Ticks;
use crate::coarsen::quotient::Arc;
use crate::coarsen::{Coarsening, Limits, Obstacles, Quotient, Weights};
use crate::error::Error;
use crate::graph::Graph;

/// Rounds may look at this many times the size of the graph in all.
const PATIENCE: usize = 400;

/// Merges to `limits.groups` groups, or as far as limits and structure allow.
///
/// # Errors
/// Weights of the wrong length.
pub fn merge(graph: &Graph, weights: &Weights<'_>, limits: &Limits) -> Result<Coarsening, Error> {
    weights.check(graph)?;
    let (nodes, obstacles) = rounds(Quotient::new(graph, weights), limits, |_, _| Heaviest, |_, _| {});
    Ok(nodes.groups(graph, obstacles))
}

/// What a round merges first.
pub(crate) trait Rank {
    /// What merges are compared by. The least comes first.
    type Key: Ord + Copy;

    /// The key of merging the ends of an arc of `u`.
    fn key(&self, nodes: &Quotient, u: usize, arc: &Arc) -> Self::Key;

    /// A number that grows with the key and tells most keys apart: candidates are sorted by it first.
    fn leading(key: Self::Key) -> u64;

    /// Most merges in a round on `n` nodes.
    fn most(&self, n: usize) -> usize {
        n
    }
}

/// Heaviest edge first. Of equal edges (an op sends many ops one tensor) the edge whose ends take
/// least time.
pub(crate) struct Heaviest;

impl Rank for Heaviest {
    type Key = (Reverse<Ticks>, Ticks);

    fn key(&self, nodes: &Quotient, u: usize, arc: &Arc) -> Self::Key {
        (Reverse(arc.cost), nodes.time[u] + nodes.time[arc.node as usize])
    }

    fn leading((Reverse(cost), _): Self::Key) -> u64 {
        !cost
    }
}

/// Merges nodes in rounds until there are few enough. Before each round `rank` is called with the graph and a
/// topological order of it. After each round `finer` is called with the graph before the round and, per node
/// of it, the node that it became part of.
pub(crate) fn rounds<R: Rank>(
    mut nodes: Quotient,
    limits: &Limits,
    rank: impl Fn(&Quotient, &[u32]) -> R,
    mut finer: impl FnMut(Quotient, Vec<u32>),
) -> (Quotient, Obstacles) {
    let mut patience = nodes.size().saturating_mul(PATIENCE);
    while nodes.len() > limits.groups {
        if patience < nodes.size() {
            return (nodes, Obstacles { slow: true, ..Obstacles::default() });
        }
        patience -= nodes.size();
        let order = nodes.topo();
        let round = Round::run(&nodes, &order, limits, &rank(&nodes, &order));
        if round.merges == 0 {
            return (nodes, round.obstacles);
        }
        let (map, n) = round.numbered();
        let coarser = nodes.merged(&map, n);
        finer(std::mem::replace(&mut nodes, coarser), map);
    }
    (nodes, Obstacles::default())
}

/// The part that a node plays in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Free,
    /// Head of *in* edges.
    In,
    /// Tail of *out* edges.
    Out,
    /// Tail of a *step*.
    Tail,
    /// Head of a *step*.
    Head,
    /// The other end of an *in* or *out* edge.
    Member,
}

/// How an edge may merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    In,
    Out,
    Step,
}

/// One round: which nodes merge.
struct Round {
    role: Vec<Role>,
    /// The node that each node is merged into, often itself.
    into: Vec<u32>,
    merges: usize,
    obstacles: Obstacles,
}

/// An edge whose heights allow a merge.
struct Candidate {
    /// [`Rank::leading`] of its key.
    leading: u64,
    tail: u32,
    head: u32,
    /// Its place among all arcs.
    arc: u32,
    way: Way,
}

impl Round {
    fn run<R: Rank>(nodes: &Quotient, order: &[u32], limits: &Limits, rank: &R) -> Self {
        let n = nodes.len();
        let height = heights(nodes, order);
        let mut obstacles = Obstacles::default();
        let candidates = candidates(nodes, &height, limits, rank, &mut obstacles);
        let mut round =
            Self { role: vec![Role::Free; n], into: (0..n as u32).collect(), merges: 0, obstacles };
        let mut time = nodes.time.clone();
        let mut bytes = nodes.bytes.clone();
        // Nodes with an edge to the head of a step, or from the tail of one, that no other step may cross.
        let (mut no_tail, mut no_head) = (vec![false; n], vec![false; n]);
        let wanted = (n - limits.groups).min(rank.most(n));
        for c in &candidates {
            if round.merges == wanted {
                break;
            }
            let (u, v) = (c.tail as usize, c.head as usize);
            let (tail, head) = (round.role[u], round.role[v]);
            let (hub, leaf, roles) = match (c.way, tail, head) {
                (Way::In, Role::Free, Role::Free | Role::In) => (v, u, (Role::Member, Role::In)),
                (Way::Out, Role::Free | Role::Out, Role::Free) => (u, v, (Role::Out, Role::Member)),
                (Way::Step, Role::Free, Role::Free) => {
                    if no_tail[u] || no_head[v] {
                        round.obstacles.cycle += 1;
                        continue;
                    }
                    (u, v, (Role::Tail, Role::Head))
                }
                _ => continue,
            };
            if time[hub] + time[leaf] > limits.max_time {
                round.obstacles.max_time += 1;
                continue;
            }
            if bytes[hub].saturating_add(bytes[leaf]) > limits.max_bytes {
                round.obstacles.max_bytes += 1;
                continue;
            }
            time[hub] += time[leaf];
            bytes[hub] = bytes[hub].saturating_add(bytes[leaf]);
            (round.role[u], round.role[v]) = roles;
            if c.way == Way::Step {
                let tails = nodes.pred.row(v).iter().filter(|&&w| height[w as usize] == height[u]);
                tails.for_each(|&w| no_tail[w as usize] = true);
                let heads = nodes.succ.row(u).iter().filter(|a| height[a.node as usize] == height[v]);
                heads.for_each(|a| no_head[a.node as usize] = true);
            }
            round.into[leaf] = hub as u32;
            round.merges += 1;
        }
        round
    }

    /// The new node of each node, numbered by first member, and the number of new nodes.
    fn numbered(&self) -> (Vec<u32>, usize) {
        let n = self.into.len();
        let mut number = vec![u32::MAX; n];
        let mut count = 0;
        let mut map = vec![0; n];
        for (u, slot) in map.iter_mut().enumerate() {
            let hub = self.into[u] as usize;
            if number[hub] == u32::MAX {
                number[hub] = count;
                count += 1;
            }
            *slot = number[hub];
        }
        (map, count as usize)
    }
}

/// Per node, the number of nodes on the longest path that ends there. `order` is topological.
fn heights(nodes: &Quotient, order: &[u32]) -> Vec<u32> {
    let mut height = vec![1u32; nodes.len()];
    for &u in order {
        let above = height[u as usize] + 1;
        for arc in nodes.succ.row(u as usize) {
            let h = &mut height[arc.node as usize];
            *h = (*h).max(above);
        }
    }
    height
}

/// Edges that may merge within limits, by rank. Edges of equal rank are sorted by the user's index
/// of the tail, then of the head.
fn candidates<R: Rank>(
    nodes: &Quotient,
    height: &[u32],
    limits: &Limits,
    rank: &R,
    obstacles: &mut Obstacles,
) -> Vec<Candidate> {
    let mut found = Vec::with_capacity(nodes.succ.items().len());
    for u in 0..nodes.len() {
        let successors = nodes.succ.row(u);
        let lowest = successors.iter().map(|a| height[a.node as usize]).min().unwrap_or(0);
        let alone = successors.iter().filter(|a| height[a.node as usize] == lowest).count() == 1;
        for (at, arc) in nodes.succ.range(u).zip(successors) {
            let v = arc.node as usize;
            let way = if alone && height[v] == lowest {
                Way::In
            } else if nodes.pred.row(v).len() == 1 {
                Way::Out
            } else if height[v] == height[u] + 1 {
                Way::Step
            } else {
                obstacles.cycle += 1;
                continue;
            };
            if obstacles.allow(nodes, u, v, limits) {
                let leading = R::leading(rank.key(nodes, u, arc));
                found.push(Candidate { leading, tail: u as u32, head: arc.node, arc: at as u32, way });
            }
        }
    }
    found.sort_unstable_by_key(|c| c.leading);
    for equal in found.chunk_by_mut(|a, b| a.leading == b.leading).filter(|equal| equal.len() > 1) {
        equal.sort_by_cached_key(|c| {
            let (u, arc) = (c.tail as usize, &nodes.succ.items()[c.arc as usize]);
            (rank.key(nodes, u, arc), nodes.index[u], nodes.index[c.head as usize])
        });
    }
    found
}
