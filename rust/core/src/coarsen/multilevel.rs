//! Groups of about equal time between which the least data flows, by multilevel refinement.
//!
//! An acyclic partition: groups stand in a row and data only flows forward. In the manner of Herrmann
//! et al. (dagP, 2017) and Moreira, Popp and Schulz (2017):
//! 1. *Start*: several topological orders, each cut into the wanted number of segments where that
//!    costs least ([`fusion::exactly`]); the cheapest order and the order that is cheapest after a
//!    V-cycle go on. In one of the orders each group of batch merging is an interval.
//! 2. *V-cycle*: batch merging within groups gives a hierarchy of ever coarser graphs; from the
//!    coarsest to the finest, nodes on the boundary move between groups ([`super::boundary`]).
//!    Moving a coarse node moves many ops at once, which can succeed where moving one of them alone
//!    would make the cut dearer.
//! 3. *Cutting again*: each order, with the groups one after the other, is a topological order in which
//!    the cuts can only get cheaper; where they do, the next V-cycle begins there.
//!
//! A large graph is merged in batches first, the result is cut once, and local search follows level by level
//! back to the ops. There is no time for V-cycles.
//!
//! The cut is the transfer time of each tensor, counted once per group that reads it and did not
//! make it. O(V + E) memory; a V-cycle takes about ten sweeps over the graph, more on hubs, up to a
//! budget.

use crate::clock::Ticks;
use crate::coarsen::boundary::{Groups, search};
use crate::coarsen::fusion;
use crate::coarsen::{Coarsening, Limits, Obstacles, Quotient, Weights, batch};
use crate::csr::Csr;
use crate::error::Error;
use crate::graph::{Edge, Graph, HomeTensor};
use crate::ids::OpId;
use crate::levels::Levels;
use crate::topo;

/// Most V-cycles; they end when one gains next to nothing.
const CYCLES: usize = 6;

/// A V-cycle is followed by another one if it gains at least one part in this many.
const WORTHWHILE: u64 = 400;

/// Hierarchies end at this many nodes per group.
const NODES_PER_GROUP: usize = 4;

/// Steps of local search per reader and node of the graph, over all levels of a V-cycle.
const BUDGET: usize = 300;

/// Steps of local search in a V-cycle, whatever the graph.
const MOST: usize = 100_000_000;

/// A graph of more than twice this many ops is first merged to this many nodes, or to a number of nodes per
/// group.
const CORE: usize = 1 << 16;

/// Nodes per group of such a graph, at least.
const CORE_PER_GROUP: usize = 16;

/// Partitions into `limits.groups` groups, none over the limits (an op that is stands alone).
///
/// # Errors
/// Weights of the wrong length; a merged graph that cannot be sorted, which would be a bug.
pub fn partition(graph: &Graph, weights: &Weights<'_>, limits: &Limits) -> Result<Coarsening, Error> {
    weights.check(graph)?;
    let base = Quotient::new(graph, weights);
    let core = limits.groups.saturating_mul(CORE_PER_GROUP).max(CORE);
    let (base, group) = if base.len() > core.saturating_mul(2) {
        from_core(base, core, limits)?
    } else {
        let group = from_orders(&Cutter::new(graph, weights, limits, &base));
        (base, group)
    };
    let n_groups = size(&group);
    let mut by_op = vec![0; graph.n_ops()];
    graph.topo().iter().zip(&group).for_each(|(u, &g)| by_op[u.ix()] = g);
    let obstacles = obstacles(&base, &group, n_groups, limits);
    Ok(Coarsening { group: by_op, n_groups, obstacles })
}

/// The best segments of several orders, refined.
fn from_orders(cutter: &Cutter<'_>) -> Vec<u32> {
    let starts = cutter.starts();
    let rank = |group: &Vec<u32>| cutter.rank(group);
    // The order that is cut best, and the order that is best after a V-cycle. Neither is always the
    // better one in the end.
    let cycled = starts.iter().map(|group| v_cycle(cutter.base, group, cutter.limits)).min_by_key(&rank);
    let cheapest = starts.into_iter().min_by_key(&rank);
    let settled = cycled.into_iter().chain(cheapest).map(|group| cutter.settle(group));
    settled.min_by_key(&rank).unwrap_or_default()
}

/// The best segments of orders of a merged graph, refined level by level; and the graph it was given.
fn from_core(base: Quotient, core: usize, limits: &Limits) -> Result<(Quotient, Vec<u32>), Error> {
    let within = limits.with_room(core);
    let mut finer = Vec::new();
    let (top, _) =
        batch::rounds(base, &within, |_, _| batch::Heaviest, |nodes, map| finer.push((nodes, map)));
    let mut group = Core::new(&top)?.cut(limits);
    let mut groups = Groups::new(&top, &group, size(&group));
    let mut budget = MOST;
    let mut refined = top.len();
    let mut finest = top;
    while let Some((nodes, map)) = finer.pop() {
        group = map.iter().map(|&m| group[m as usize]).collect();
        // Levels that differ little need not both be searched.
        if nodes.len() >= 2 * refined || finer.is_empty() {
            refined = nodes.len();
            search(&nodes, &mut group, &mut groups, limits, &mut budget);
        }
        finest = nodes;
    }
    Ok((finest, group))
}

/// Number of groups.
fn size(group: &[u32]) -> usize {
    group.iter().max().map_or(0, |&g| g as usize + 1)
}

/// A merged graph as fusion and the orders know graphs: an op per node, ties by the user's index.
struct Core {
    graph: Graph,
    time: Vec<Ticks>,
    bytes: Vec<u64>,
    class: Vec<u64>,
    tensor_time: Vec<Ticks>,
    /// Op of each node.
    op: Vec<OpId>,
}

impl Core {
    fn new(nodes: &Quotient) -> Result<Self, Error> {
        let n = nodes.len();
        let mut by_index: Vec<u32> = (0..n as u32).collect();
        by_index.sort_unstable_by_key(|&u| nodes.index[u as usize]);
        let mut number = vec![0u32; n];
        by_index.iter().enumerate().for_each(|(i, &u)| number[u as usize] = i as u32);
        let op = |u: usize| OpId(number[u]);
        let tensors = || nodes.tensors().enumerate();
        let edges = tensors().filter(|&(t, _)| !nodes.is_home(t)).flat_map(|(t, (src, _, readers))| {
            readers.iter().map(move |&r| Edge { src: op(src), dst: op(r as usize), tensor: t as u32 })
        });
        let home = |(t, (src, _, readers)): (usize, (usize, Ticks, &[u32]))| HomeTensor {
            home: op(src),
            consumers: readers.iter().map(|&r| op(r as usize)).collect(),
            key: t as u32,
        };
        let homes: Vec<HomeTensor> = tensors().filter(|&(t, _)| nodes.is_home(t)).map(home).collect();
        let graph = Graph::numbered_with_homes(n, edges, &homes)?;
        let by_op = |column: &[u64]| {
            let by_index = by_index.iter().map(|&u| column[u as usize]).collect();
            graph.numbering().by_op(by_index, 1)
        };
        Ok(Self {
            time: by_op(&nodes.time),
            bytes: by_op(&nodes.bytes),
            class: by_op(&nodes.class),
            tensor_time: graph.tensors().map(|t| nodes.cost(graph.key(t) as usize)).collect(),
            op: number.iter().map(|&index| graph.numbering().op(index)).collect(),
            graph,
        })
    }

    /// The best segments of several orders, as group per node.
    fn cut(&self, limits: &Limits) -> Vec<u32> {
        let weights = Weights {
            op_time: &self.time,
            tensor_time: &self.tensor_time,
            op_bytes: &self.bytes,
            class: &self.class,
        };
        let base = Quotient::new(&self.graph, &weights);
        let cutter = Cutter::new(&self.graph, &weights, limits, &base);
        let best = cutter.starts().into_iter().min_by_key(|group| cutter.rank(group)).unwrap_or_default();
        let by_op = cutter.by_op(&best);
        self.op.iter().map(|u| by_op[u.ix()]).collect()
    }
}

/// Transfer time between groups, each tensor once per group that reads it and did not make it.
pub fn cut(nodes: &Quotient, group: &[u32]) -> Ticks {
    let mut seen: Vec<u32> = Vec::new();
    let mut sum = 0;
    for (source, cost, readers) in nodes.tensors() {
        seen.clear();
        seen.extend(readers.iter().map(|&r| group[r as usize]).filter(|&g| g != group[source]));
        seen.sort_unstable();
        seen.dedup();
        sum += cost * seen.len() as Ticks;
    }
    sum
}

/// Cuts orders of a graph into segments.
struct Cutter<'a> {
    graph: &'a Graph,
    weights: &'a Weights<'a>,
    limits: &'a Limits,
    base: &'a Quotient,
    orders: Vec<Vec<OpId>>,
}

impl<'a> Cutter<'a> {
    fn new(graph: &'a Graph, weights: &'a Weights<'a>, limits: &'a Limits, base: &'a Quotient) -> Self {
        let levels = Levels::new(graph, weights.op_time, weights.tensor_time);
        let orders = vec![
            graph.topo().to_vec(),
            topo::m_topo(graph),
            topo::dfs_topo(graph),
            topo::cpd_topo(graph, &levels),
            merging_order(graph, base, limits),
        ];
        Self { graph, weights, limits, base, orders }
    }

    /// Groups, then what they cut.
    fn rank(&self, group: &[u32]) -> (usize, Ticks) {
        (size(group), cut(self.base, group))
    }

    /// The segments of each order, as group per node.
    fn starts(&self) -> Vec<Vec<u32>> {
        self.orders.iter().map(|order| self.segments(order)).collect()
    }

    fn segments(&self, order: &[OpId]) -> Vec<u32> {
        let Limits { groups, max_time, max_bytes } = *self.limits;
        let segment = fusion::Limits { max_ops: usize::MAX, max_bytes, max_time };
        let found = fusion::exactly(self.graph, order, self.weights, segment, groups);
        let by_op = fusion::segments(order, &found.cuts);
        self.graph.topo().iter().map(|u| by_op[u.ix()]).collect()
    }

    fn by_op(&self, group: &[u32]) -> Vec<u32> {
        let mut by_op = vec![0; group.len()];
        self.graph.topo().iter().zip(group).for_each(|(u, &g)| by_op[u.ix()] = g);
        by_op
    }

    /// The best segments of the orders with the groups one after the other.
    fn cut_again(&self, group: &[u32]) -> Option<Vec<u32>> {
        let by_op = self.by_op(group);
        let again = self.orders.iter().map(|order| {
            let in_groups = Csr::from_pairs(size(group), order.iter().map(|u| (by_op[u.ix()] as usize, *u)));
            self.segments(in_groups.items())
        });
        again.min_by_key(|group| self.rank(group))
    }

    /// V-cycles, each followed by cutting again, until that gains next to nothing.
    fn settle(&self, mut group: Vec<u32>) -> Vec<u32> {
        let (n_groups, mut cost) = self.rank(&group);
        for _ in 0..CYCLES {
            let before = cost;
            let moved = v_cycle(self.base, &group, self.limits);
            let again = self.cut_again(&moved);
            for found in [Some(moved), again].into_iter().flatten() {
                let rank = self.rank(&found);
                if rank < (n_groups, cost) {
                    (group, cost) = (found, rank.1);
                }
            }
            if before - cost < cost / WORTHWHILE {
                break;
            }
        }
        group
    }
}

/// A topological order in which every group of every round of batch merging is an interval.
fn merging_order(graph: &Graph, base: &Quotient, limits: &Limits) -> Vec<OpId> {
    let limits = Limits { groups: 1, ..*limits };
    let mut finer = Vec::new();
    let (top, _) = batch::rounds(
        base.clone(),
        &limits,
        |_, _| batch::Heaviest,
        |nodes, map| finer.push((nodes.topo(), map)),
    );
    let mut order = top.topo();
    for (inner, map) in finer.into_iter().rev() {
        // By node of the coarser graph, members in topological order.
        let members = Csr::from_pairs(order.len(), inner.iter().map(|&u| (map[u as usize] as usize, u)));
        order = order.iter().flat_map(|&m| members.row(m as usize).iter().copied()).collect();
    }
    order.into_iter().map(|u| graph.topo()[u as usize]).collect()
}

/// One pass down a hierarchy of graphs that were merged within groups only.
fn v_cycle(base: &Quotient, group: &[u32], limits: &Limits) -> Vec<u32> {
    let mut start = base.clone();
    start.class = group.iter().map(|&g| u64::from(g)).collect();
    let n_groups = size(group);
    let within = limits.with_room(n_groups.saturating_mul(NODES_PER_GROUP));
    let mut hierarchy = Vec::new();
    let (top, _) =
        batch::rounds(start, &within, |_, _| batch::Heaviest, |nodes, map| hierarchy.push((nodes, map)));
    let mut groups = Groups::new(base, group, n_groups);
    let mut budget = base.size().saturating_mul(BUDGET).min(MOST);
    let mut of: Vec<u32> = top.class.iter().map(|&g| g as u32).collect();
    search(&top, &mut of, &mut groups, limits, &mut budget);
    for (nodes, map) in hierarchy.into_iter().rev() {
        of = map.iter().map(|&m| of[m as usize]).collect();
        search(&nodes, &mut of, &mut groups, limits, &mut budget);
    }
    of
}

impl Limits {
    /// Limits for merging to `nodes` nodes, each so small that several fit in a group.
    fn with_room(&self, nodes: usize) -> Self {
        let few = NODES_PER_GROUP as u64;
        Self { groups: nodes, max_time: self.max_time / few, max_bytes: self.max_bytes / few }
    }
}

/// Why neighbouring groups cannot be one, where there are more groups than were wanted.
fn obstacles(base: &Quotient, group: &[u32], n_groups: usize, limits: &Limits) -> Obstacles {
    let mut found = Obstacles::default();
    if n_groups > limits.groups {
        let groups = Groups::new(base, group, n_groups);
        for g in 1..n_groups {
            if groups.class[g - 1] != groups.class[g] {
                found.types += 1;
            } else if groups.time[g - 1] + groups.time[g] > limits.max_time {
                found.max_time += 1;
            } else if groups.bytes[g - 1] + groups.bytes[g] > u128::from(limits.max_bytes) {
                found.max_bytes += 1;
            }
        }
    }
    found
}
