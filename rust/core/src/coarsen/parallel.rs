//! Merging that keeps parallelism: the merge that lengthens paths least goes first.
//!
//! Ours. A group runs as one: it starts when all its members' inputs are there, and what reads any
//! of them waits for all. So merging ops of parallel branches serialises them, and no measure of cut
//! sees it. Here every merge is judged by the longest path through the merged group, transfers free:
//! top + time + tail, where top is the longest path to the group's start and tail the longest from its
//! end. Pairs are merged in this order:
//! * pairs whose path is no longer than the critical path, by how much longer it is than the
//!   longest path through each of the two ops, summed. The sum is 0 for a chain, and small for
//!   small ops of branches of equal length;
//! * then pairs that lengthen the critical path, by how much they lengthen it;
//! * of equal pairs, those first that save most transfer time, then those that take least time.
//!
//! Levels are brought up to date after every merge. Pairs are an edge's two ends, and neighbours in
//! time: ops that read the same op, are read by the same op, or start at about the same time.
//! Merging a pair closes a cycle if a path other than the edge leads from one op to the other. The
//! search for such a path visits only ops between the two in a topological order, which is updated
//! after every merge as well (Pearce and Kelly 2006).
//!
//! While merges delay nothing this is O((V + E) log V). A merge that delays half of the graph costs O(V + E)
//! to bring the levels up to date. So a large graph is first merged in rounds ([`super::batch`]), the least
//! harmful merges first, with levels as they are when the round begins; the number of nodes left for single
//! merges then grows with the number of groups only. The steps of single merges are bounded too, against
//! hubs; past the bound more rounds follow.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::clock::Ticks;
use crate::coarsen::quotient::Arc;
use crate::coarsen::{Coarsening, Limits, Obstacles, Quotient, Weights, batch};
use crate::error::Error;
use crate::graph::Graph;

/// Most steps in all, per node and arc of the graph.
const BUDGET: usize = 2_000;

/// Most steps in all, whatever the graph.
const MOST: usize = 200_000_000;

/// A graph of more than twice this many ops is first merged in rounds, to this many nodes or
/// [`CORE_PER_GROUP`] per group.
const CORE: usize = 1 << 12;

/// The fewest nodes per group after the first rounds.
const CORE_PER_GROUP: usize = 8;

/// In a graph of up to this many nodes a round makes merges of at most a quarter of them, so that the levels
/// by which it ranks stay about true.
const LARGE: usize = 1 << 16;

/// Neighbours in time are looked at again after one node in this many has gone.
const REFILL: usize = 32;

/// Nodes between two that a search for a path may visit.
const REACH: usize = 4_096;

/// Siblings that a node is compared with, per op that joins them.
const SIBLINGS: usize = 32;

/// Ops that join a node with siblings.
const JOINTS: usize = 8;

/// Merges to `limits.groups` groups, or as far as limits and structure allow.
///
/// # Errors
/// Weights of the wrong length.
pub fn merge(graph: &Graph, weights: &Weights<'_>, limits: &Limits) -> Result<Coarsening, Error> {
    weights.check(graph)?;
    let mut base = Quotient::new(graph, weights);
    let core = limits.groups.saturating_mul(CORE_PER_GROUP).max(CORE);
    if base.len() > core.saturating_mul(2) {
        let some = Limits { groups: core, ..*limits };
        (base, _) = batch::rounds(base, &some, LeastHarm::new, |_, _| {});
    }
    let mut merging = Merging::new(&base, limits);
    merging.run();
    let (map, n) = merging.numbered();
    let (nodes, obstacles) = (base.merged(&map, n), merging.obstacles);
    if nodes.len() <= limits.groups {
        return Ok(nodes.groups(graph, Obstacles::default()));
    }
    if merging.budget > 0 {
        return Ok(nodes.groups(graph, obstacles));
    }
    let (nodes, obstacles) = batch::rounds(nodes, limits, LeastHarm::new, |_, _| {});
    Ok(nodes.groups(graph, obstacles))
}

/// How harmful a merge is: by how much the critical path gets longer, by how much its own path is longer than
/// the paths through its two nodes, the transfer time that it saves, its compute time.
type Harm = (Ticks, Ticks, Reverse<Ticks>, Ticks);

/// More ticks than there are (see [`crate::clock`]).
const ROOM: Ticks = 1 << 60;

/// Ranks merges of a round by harm, with levels as they are when the round begins.
struct LeastHarm {
    /// Longest path to each node's start.
    top: Vec<Longest>,
    /// Longest path from each node's end.
    tail: Vec<Longest>,
    critical: Ticks,
}

/// The longest path, the neighbour through which it leads, and the longest path through any other neighbour.
#[derive(Clone, Copy, Default)]
struct Longest {
    path: Ticks,
    by: u32,
    other: Ticks,
}

impl Longest {
    fn take(&mut self, path: Ticks, by: u32) {
        if path > self.path {
            *self = Self { path, by, other: self.path };
        } else {
            self.other = self.other.max(path);
        }
    }

    fn without(self, node: usize) -> Ticks {
        if self.by as usize == node { self.other } else { self.path }
    }
}

impl LeastHarm {
    /// Of nodes in a topological order.
    fn new(nodes: &Quotient, order: &[u32]) -> Self {
        let n = nodes.len();
        let (mut top, mut tail) = (vec![Longest::default(); n], vec![Longest::default(); n]);
        let mut critical = 0;
        for &u in order {
            let finish = top[u as usize].path + nodes.time[u as usize];
            critical = critical.max(finish);
            nodes.succ.row(u as usize).iter().for_each(|arc| top[arc.node as usize].take(finish, u));
        }
        for &u in order.iter().rev() {
            let rest = tail[u as usize].path + nodes.time[u as usize];
            nodes.pred.row(u as usize).iter().for_each(|&p| tail[p as usize].take(rest, u));
        }
        Self { top, tail, critical }
    }
}

impl batch::Rank for LeastHarm {
    type Key = Harm;

    fn most(&self, n: usize) -> usize {
        if n > LARGE { n } else { n.div_ceil(4) }
    }

    fn key(&self, nodes: &Quotient, u: usize, arc: &Arc) -> Harm {
        let v = arc.node as usize;
        let top = self.top[u].path.max(self.top[v].without(u));
        let tail = self.tail[v].path.max(self.tail[u].without(v));
        let time = nodes.time[u] + nodes.time[v];
        let path = top + time + tail;
        let own = |w: usize| self.top[w].path + nodes.time[w] + self.tail[w].path;
        let growth = path.saturating_sub(own(u)) + path.saturating_sub(own(v));
        (path.saturating_sub(self.critical), growth, Reverse(arc.cost), time)
    }

    /// Ticks stay below [`ROOM`], so that the three cases have ranges of their own.
    fn leading((delay, growth, Reverse(saved), _): Harm) -> u64 {
        if delay > 0 {
            2 * ROOM + delay
        } else if growth > 0 {
            ROOM + growth
        } else {
            ROOM - saved
        }
    }
}

/// Nodes being merged.
///
/// Nodes are numbered by the user's index, by which ties break. A group has the number of one of its members.
///
/// Invariants: arcs join live nodes, one per pair and direction; `top` and `tail` are exact; `place`
/// orders live nodes topologically.
struct Merging<'a> {
    limits: &'a Limits,
    /// The number here of each node of the first graph.
    number: Vec<u32>,
    live: usize,
    /// The node that each node was merged into; itself while it lives.
    into: Vec<u32>,
    time: Vec<Ticks>,
    bytes: Vec<u64>,
    class: Vec<u64>,
    succ: Vec<Vec<Arc>>,
    pred: Vec<Vec<Arc>>,
    top: Vec<Ticks>,
    tail: Vec<Ticks>,
    critical: Ticks,
    place: Vec<u32>,
    heap: BinaryHeap<Reverse<(Harm, u32, u32)>>,
    /// Per node, the last search that visited it.
    seen: Vec<u32>,
    searches: u32,
    budget: usize,
    obstacles: Obstacles,
}

impl<'a> Merging<'a> {
    fn new(base: &Quotient, limits: &'a Limits) -> Self {
        let n = base.len();
        let mut by_index: Vec<u32> = (0..n as u32).collect();
        by_index.sort_unstable_by_key(|&u| base.index[u as usize]);
        let mut number = vec![0u32; n];
        by_index.iter().enumerate().for_each(|(i, &u)| number[u as usize] = i as u32);
        let column = |values: &[u64]| by_index.iter().map(|&u| values[u as usize]).collect::<Vec<_>>();
        let (mut succ, mut pred) = (vec![Vec::new(); n], vec![Vec::new(); n]);
        for (u, &old) in by_index.iter().enumerate() {
            let row: &mut Vec<Arc> = &mut succ[u];
            row.extend(
                base.succ.row(old as usize).iter().map(|a| Arc { node: number[a.node as usize], ..*a }),
            );
            row.sort_unstable_by_key(|a| a.node);
            row.iter().for_each(|a| pred[a.node as usize].push(Arc { node: u as u32, cost: a.cost }));
        }
        let mut merging = Self {
            limits,
            live: n,
            into: (0..n as u32).collect(),
            time: column(&base.time),
            bytes: column(&base.bytes),
            class: column(&base.class),
            succ,
            pred,
            top: vec![0; n],
            tail: vec![0; n],
            critical: 0,
            place: vec![0; n],
            heap: BinaryHeap::new(),
            seen: vec![0; n],
            searches: 0,
            budget: base.size().saturating_mul(BUDGET).min(MOST),
            obstacles: Obstacles::default(),
            number: Vec::new(),
        };
        let mut order: Vec<u32> = base.topo().into_iter().map(|u| number[u as usize]).collect();
        for &u in &order {
            merging.top[u as usize] = merging.top_of(u);
        }
        for &u in order.iter().rev() {
            merging.tail[u as usize] = merging.tail_of(u);
            merging.critical = merging.critical.max(merging.path(u));
        }
        // Stable: ops that take no time stay in topological order.
        order.sort_by_key(|&u| merging.top[u as usize]);
        order.iter().enumerate().for_each(|(i, &u)| merging.place[u as usize] = i as u32);
        merging.number = number;
        merging
    }

    /// Merges until there are few enough nodes, no pair is left, or the budget is spent.
    fn run(&mut self) {
        for u in 0..self.into.len() as u32 {
            if self.budget == 0 {
                return;
            }
            for i in 0..self.succ[u as usize].len() {
                self.consider(u, self.succ[u as usize][i].node);
            }
        }
        let mut filled = usize::MAX;
        let mut last = None;
        while self.live > self.limits.groups && self.budget > 0 {
            let next = self.heap.pop();
            let harmless = next.is_some_and(|Reverse((harm, _, _))| harm.0 == 0);
            if !harmless && filled - self.live > self.live / REFILL {
                // Before a merge delays anything, and when no pair is left: look at neighbours in time.
                filled = self.live;
                self.heap.extend(next);
                self.obstacles = Obstacles::default();
                for pair in self.by_start().windows(2) {
                    self.consider(pair[0], pair[1]);
                }
                continue;
            }
            let Some(Reverse(pair)) = next else { break };
            // A pair that was considered several times is on the heap several times, one entry after another.
            if last.replace(pair) == Some(pair) {
                continue;
            }
            let (harm, a, b) = pair;
            if !self.lives(a) || !self.lives(b) {
                continue;
            }
            let now = self.harm(a, b);
            if now > harm {
                self.heap.push(Reverse((now, a, b)));
            } else if self.allows(a, b) {
                self.merge(a, b);
            }
        }
        debug_assert!(self.levels_are_exact());
    }

    /// Whether all levels are what their definition says, as [`Self::update_levels`] must keep them.
    fn levels_are_exact(&self) -> bool {
        let mut live = (0..self.into.len() as u32).filter(|&u| self.lives(u));
        live.all(|u| self.top[u as usize] == self.top_of(u) && self.tail[u as usize] == self.tail_of(u))
    }

    fn lives(&self, u: u32) -> bool {
        self.into[u as usize] == u
    }

    /// Live nodes by when they can start.
    fn by_start(&self) -> Vec<u32> {
        let mut nodes: Vec<u32> = (0..self.into.len() as u32).filter(|&u| self.lives(u)).collect();
        nodes.sort_unstable_by_key(|&u| (self.top[u as usize], u));
        nodes
    }

    /// Length of the longest path through a node.
    fn path(&self, u: u32) -> Ticks {
        self.top[u as usize] + self.time[u as usize] + self.tail[u as usize]
    }

    fn finish(&self, u: u32) -> Ticks {
        self.top[u as usize] + self.time[u as usize]
    }

    fn rest(&self, u: u32) -> Ticks {
        self.time[u as usize] + self.tail[u as usize]
    }

    fn top_of(&self, u: u32) -> Ticks {
        self.pred[u as usize].iter().map(|a| self.finish(a.node)).max().unwrap_or(0)
    }

    fn tail_of(&self, u: u32) -> Ticks {
        self.succ[u as usize].iter().map(|a| self.rest(a.node)).max().unwrap_or(0)
    }

    fn degree(&self, u: u32) -> usize {
        self.pred[u as usize].len() + self.succ[u as usize].len()
    }

    fn spend(&mut self, steps: usize) {
        self.budget = self.budget.saturating_sub(steps);
    }

    /// How harmful merging two live nodes would be.
    fn harm(&mut self, a: u32, b: u32) -> Harm {
        let (a, b) = if self.place[a as usize] < self.place[b as usize] { (a, b) } else { (b, a) };
        let (x, y) = (a as usize, b as usize);
        let joining = self.joining(a, b);
        let (mut top, mut tail) = (self.top[y], self.tail[x]);
        // The arc between the two disappears, and with it, perhaps, the longest path.
        if joining.is_some() && self.finish(a) == top {
            top = longest(&self.pred[y], a, |u| self.finish(u));
            self.spend(self.pred[y].len());
        }
        if joining.is_some() && self.rest(b) == tail {
            tail = longest(&self.succ[x], b, |u| self.rest(u));
            self.spend(self.succ[x].len());
        }
        let time = self.time[x] + self.time[y];
        let path = top.max(self.top[x]) + time + tail.max(self.tail[y]);
        (
            path.saturating_sub(self.critical),
            path.saturating_sub(self.path(a)) + path.saturating_sub(self.path(b)),
            Reverse(joining.unwrap_or(0)),
            time,
        )
    }

    /// The cost of the arc from one node to another, if there is one.
    fn joining(&mut self, from: u32, to: u32) -> Option<Ticks> {
        let (there, back) = (&self.succ[from as usize], &self.pred[to as usize]);
        let (arcs, end) = if there.len() < back.len() { (there, to) } else { (back, from) };
        let cost = arcs.iter().find(|arc| arc.node == end).map(|arc| arc.cost);
        let steps = arcs.len() + 1;
        self.spend(steps);
        cost
    }

    fn consider(&mut self, a: u32, b: u32) {
        let harm = self.harm(a, b);
        self.heap.push(Reverse((harm, a.min(b), a.max(b))));
    }

    /// Whether limits allow a merge; counts why not.
    fn allows(&mut self, a: u32, b: u32) -> bool {
        let (x, y) = (a as usize, b as usize);
        if self.class[x] != self.class[y] {
            self.obstacles.types += 1;
        } else if self.time[x] + self.time[y] > self.limits.max_time {
            self.obstacles.max_time += 1;
        } else if self.bytes[x].saturating_add(self.bytes[y]) > self.limits.max_bytes {
            self.obstacles.max_bytes += 1;
        } else {
            return true;
        }
        false
    }

    /// Forward: the nodes that paths from `from` reach and whose place is before that of `to`. Backward: the
    /// nodes from which paths reach `from` and whose place is after that of `to`. In order of place. None if
    /// such a path of more than one arc reaches `to`, or if the search takes too long.
    fn between(&mut self, from: u32, to: u32, forward: bool) -> Option<Vec<u32>> {
        self.searches += 1;
        let end = self.place[to as usize];
        let mut found = Vec::new();
        let mut next = 0;
        let mut node = from;
        loop {
            let arcs = if forward { &self.succ[node as usize] } else { &self.pred[node as usize] };
            for arc in arcs {
                let v = arc.node;
                if v == to {
                    if node != from {
                        return None;
                    }
                    continue;
                }
                let place = self.place[v as usize];
                let inside = if forward { place < end } else { place > end };
                if inside && self.seen[v as usize] != self.searches {
                    self.seen[v as usize] = self.searches;
                    found.push(v);
                }
            }
            let steps = arcs.len() + 1;
            self.spend(steps);
            if found.len() > REACH {
                return None;
            }
            let Some(&following) = found.get(next) else { break };
            node = following;
            next += 1;
        }
        found.sort_unstable_by_key(|&u| self.place[u as usize]);
        Some(found)
    }

    /// Merges two nodes, unless that closes a cycle (or it takes too long to find out).
    fn merge(&mut self, a: u32, b: u32) {
        let (a, b) = if self.place[a as usize] < self.place[b as usize] { (a, b) } else { (b, a) };
        let (Some(after), Some(before)) = (self.between(a, b, true), self.between(b, a, false)) else {
            self.obstacles.cycle += 1;
            return;
        };
        // The places of these nodes are dealt out anew: first what must come before the group, then the
        // group, then what must come after it.
        let mut places: Vec<u32> =
            before.iter().chain(&after).chain(&[a, b]).map(|&u| self.place[u as usize]).collect();
        places.sort_unstable();
        let (early, late) = (&places[..before.len()], &places[before.len() + 2..]);
        before.iter().zip(early).for_each(|(&u, &p)| self.place[u as usize] = p);
        after.iter().zip(late).for_each(|(&u, &p)| self.place[u as usize] = p);
        let place = places[before.len()];

        // The one with fewer arcs is renamed.
        let (keep, gone) = if self.degree(a) < self.degree(b) { (b, a) } else { (a, b) };
        self.place[keep as usize] = place;
        self.rename(gone, keep);
        let (k, g) = (keep as usize, gone as usize);
        self.into[g] = keep;
        self.live -= 1;
        self.time[k] += self.time[g];
        self.bytes[k] = self.bytes[k].saturating_add(self.bytes[g]);
        self.update_levels(keep);
        self.consider_around(keep);
    }

    /// Hands the arcs of a node on to another.
    fn rename(&mut self, gone: u32, keep: u32) {
        let (g, k) = (gone as usize, keep as usize);
        for forward in [true, false] {
            let (there, back) =
                if forward { (&mut self.succ, &mut self.pred) } else { (&mut self.pred, &mut self.succ) };
            let arcs = std::mem::take(&mut there[g]);
            let mut steps = there[k].len();
            there[k].retain(|arc| arc.node != gone);
            for arc in arcs {
                if arc.node == keep {
                    continue;
                }
                steps += there[k].len() + back[arc.node as usize].len();
                join(&mut there[k], arc);
                let list = &mut back[arc.node as usize];
                list.retain(|other| other.node != gone);
                join(list, Arc { node: keep, cost: arc.cost });
            }
            self.spend(steps);
        }
    }

    /// Brings levels up to date after a merge: the group's own, then those of all nodes whose level rises
    /// with it. A merge makes no path shorter, so no level falls.
    fn update_levels(&mut self, group: u32) {
        let g = group as usize;
        (self.top[g], self.tail[g]) = (self.top_of(group), self.tail_of(group));
        let mut waiting = BinaryHeap::from([Reverse((self.place[g], group))]);
        while let Some(Reverse((_, u))) = waiting.pop() {
            let finish = self.finish(u);
            for arc in &self.succ[u as usize] {
                let v = arc.node as usize;
                if self.top[v] < finish {
                    self.top[v] = finish;
                    waiting.push(Reverse((self.place[v], arc.node)));
                }
            }
            self.spend(self.succ[u as usize].len() + 1);
        }
        let mut waiting = BinaryHeap::from([(self.place[g], group)]);
        while let Some((_, u)) = waiting.pop() {
            let rest = self.rest(u);
            for arc in &self.pred[u as usize] {
                let v = arc.node as usize;
                if self.tail[v] < rest {
                    self.tail[v] = rest;
                    waiting.push((self.place[v], arc.node));
                }
            }
            self.spend(self.pred[u as usize].len() + 1);
        }
        self.spend(self.degree(group));
        self.critical = self.critical.max(self.path(group));
    }

    /// Considers the pairs of a new group with its neighbours and siblings.
    fn consider_around(&mut self, group: u32) {
        for i in 0..self.succ[group as usize].len() {
            self.consider(group, self.succ[group as usize][i].node);
        }
        for i in 0..self.pred[group as usize].len() {
            self.consider(group, self.pred[group as usize][i].node);
        }
        for forward in [true, false] {
            for i in 0..JOINTS {
                let Some(sibling) = self.nearest_sibling(group, i, forward) else { continue };
                self.consider(group, sibling);
            }
        }
    }

    /// The sibling with which the group makes the shortest path. Siblings are the nodes that read from the
    /// group's i-th predecessor or, backward, from which its i-th successor reads.
    fn nearest_sibling(&self, group: u32, i: usize, forward: bool) -> Option<u32> {
        let (there, back) = if forward { (&self.pred, &self.succ) } else { (&self.succ, &self.pred) };
        let joint = there[group as usize].get(i)?.node;
        let siblings = back[joint as usize].iter().take(SIBLINGS).map(|a| a.node).filter(|&v| v != group);
        let g = group as usize;
        siblings.min_by_key(|&v| {
            let top = self.top[g].max(self.top[v as usize]);
            let tail = self.tail[g].max(self.tail[v as usize]);
            (top + tail + self.time[v as usize], v)
        })
    }

    /// The new node of each node of the first graph, numbered by first member.
    fn numbered(&mut self) -> (Vec<u32>, usize) {
        let mut new = vec![u32::MAX; self.into.len()];
        let mut count = 0;
        let mut map = Vec::with_capacity(self.number.len());
        for u in std::mem::take(&mut self.number) {
            let mut root = u as usize;
            while self.into[root] as usize != root {
                let grand = self.into[self.into[root] as usize];
                self.into[root] = grand;
                root = grand as usize;
            }
            if new[root] == u32::MAX {
                new[root] = count;
                count += 1;
            }
            map.push(new[root]);
        }
        (map, count as usize)
    }
}

/// The longest of the paths through the other ends of arcs, the node `without` left out.
fn longest(arcs: &[Arc], without: u32, path: impl Fn(u32) -> Ticks) -> Ticks {
    arcs.iter().filter(|arc| arc.node != without).map(|arc| path(arc.node)).max().unwrap_or(0)
}

/// Adds an arc, or its cost where there is one to that node.
fn join(list: &mut Vec<Arc>, arc: Arc) {
    match list.iter_mut().find(|other| other.node == arc.node) {
        Some(other) => other.cost += arc.cost,
        None => list.push(arc),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coarsen::batch::Rank;

    #[test]
    fn the_leading_number_never_contradicts_the_harm() {
        let few = [0, 1, 7, 1 << 52];
        let some = |delay| few.map(|growth| few.map(|saved| (delay, growth, Reverse(saved), 3)));
        let mut harms: Vec<Harm> = few.into_iter().flat_map(some).flatten().collect();
        harms.sort_unstable();
        assert!(harms.windows(2).all(|w| LeastHarm::leading(w[0]) <= LeastHarm::leading(w[1])));
    }
}
