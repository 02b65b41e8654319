//! Groups of ops in `loadmaster.fast`: how they are found, and the graph of groups.

use std::sync::Arc;

use loadmaster_core::Error;
use loadmaster_core::clock::Ticks;
use loadmaster_core::coarsen::{
    Coarsening, Limits, Obstacles, Weights as CoreWeights, batch, contract as core_contract, fusion,
    multilevel, parallel, repeats, rules,
};
use loadmaster_core::graph::Graph as CoreGraph;
use loadmaster_core::ids::OpId;
use loadmaster_core::schedule::{dominant, linear};
use numpy::{IntoPyArray, PyArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::convert;
use crate::graph::{Graph, Ids, Names, ids};
use crate::weights::Weights;

type Groups<'py> = (Ids<'py>, Bound<'py, PyDict>);

/// The paper's R.
const MAX_OPS: usize = 200;

/// Most seconds and bytes in a group, as a caller gives them.
struct Most<'a, 'py> {
    max_time: Option<f64>,
    max_bytes: Option<&'a Bound<'py, PyAny>>,
}

impl Most<'_, '_> {
    /// As ticks and bytes; absent ones allow everything.
    fn counted(&self, weights: &Weights) -> PyResult<(Ticks, u64)> {
        let max_time = most_seconds(self.max_time)?.map_or(Ticks::MAX, |s| weights.clock.ticks(s));
        let max_bytes = self.max_bytes.map(|b| convert::unsigned("max_bytes", b)).transpose()?;
        Ok((max_time, max_bytes.unwrap_or(u64::MAX)))
    }
}

/// Most seconds in a group: none, or a number >= 0.
fn most_seconds(max_time: Option<f64>) -> PyResult<Option<f64>> {
    match max_time {
        Some(s) if s.is_nan() || s < 0.0 => {
            Err(PyValueError::new_err(format!("max_time is {s}: it must be a number >= 0")))
        }
        other => Ok(other),
    }
}

/// A number of groups, at least one.
fn at_least_one(argument: &str, number: &Bound<'_, PyAny>) -> PyResult<usize> {
    match convert::count(argument, number)? {
        0 => Err(PyValueError::new_err(format!("{argument} is 0: there is at least one"))),
        n => Ok(n),
    }
}

/// Runs a merging algorithm without the GIL.
fn merge<'py>(
    py: Python<'py>,
    weights: &Weights,
    groups: &Bound<'py, PyAny>,
    most: &Most<'_, 'py>,
    algorithm: impl FnOnce(&CoreGraph, &CoreWeights<'_>, &Limits) -> Result<Coarsening, Error> + Send,
) -> PyResult<Groups<'py>> {
    let groups = at_least_one("groups", groups)?;
    let (max_time, max_bytes) = most.counted(weights)?;
    let limits = Limits { groups, max_time, max_bytes };
    let merged = weights.run(py, |graph, weights| algorithm(graph, weights, &limits))?;
    Ok((by_index(py, weights, merged.group), obstacles(py, merged.obstacles)?))
}

/// A coarsener of the core as a function of `loadmaster.fast`.
macro_rules! merging {
    ($(#[$doc:meta])* $name:ident, $algorithm:path) => {
        $(#[$doc])*
        #[pyfunction]
        #[pyo3(signature = (weights, groups, *, max_time=None, max_bytes=None))]
        pub fn $name<'py>(
            py: Python<'py>,
            weights: &Weights,
            groups: &Bound<'py, PyAny>,
            max_time: Option<f64>,
            max_bytes: Option<&Bound<'py, PyAny>>,
        ) -> PyResult<Groups<'py>> {
            merge(py, weights, groups, &Most { max_time, max_bytes }, $algorithm)
        }
    };
}

/// A group per op, out.
fn by_index<'py>(py: Python<'py>, weights: &Weights, group: Vec<u32>) -> Ids<'py> {
    ids(py, weights.graph.by_index(group).into_iter())
}

fn obstacles(py: Python<'_>, found: Obstacles) -> PyResult<Bound<'_, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("types", found.types)?;
    dict.set_item("max_time", found.max_time)?;
    dict.set_item("max_bytes", found.max_bytes)?;
    dict.set_item("cycle", found.cycle)?;
    dict.set_item("slow", found.slow)?;
    Ok(dict)
}

/// Groups of ops that play the same part wherever a graph repeats itself, in every layer and step.
///
/// Color refinement (Weisfeiler and Leman 1968) by time, allowed types, inputs and readers. Then
/// colors that exchange most for the time that they take join. The groups are for moving ops
/// together (:func:`refine_placement`), not for placing: they are neither connected nor acyclic.
/// O(rounds (V + E) + E log E) per limit.
///
/// Parameters
/// ----------
/// weights : Weights
/// rounds : int
///     Ops are compared by their neighbours up to this many steps away, fewer if more steps tell no
///     ops apart.
/// max_times : list of float
///     Most seconds of compute in a group, for each result. A color that takes longer stays alone.
///
/// Returns
/// -------
/// levels : list of int32 [n_ops]
///     Group per op for each of the limits, then the colors themselves.
///
/// Raises
/// ------
/// ValueError
///     A wrong dtype, shape or value.
///
/// Examples
/// --------
/// >>> import numpy as np
/// >>> from loadmaster import fast
/// >>> chain = fast.Graph(4, np.array([0, 1, 2]), np.array([1, 2, 3]))
/// >>> weights = fast.Weights(chain, np.array([1.0, 2.0, 1.0, 2.0]), np.ones(4))
/// >>> [level.tolist() for level in fast.repeated_groups(weights, 0, [6.0])]
/// [[0, 0, 0, 0], [0, 1, 0, 1]]
#[pyfunction]
pub fn repeated_groups<'py>(
    py: Python<'py>,
    weights: &Weights,
    rounds: &Bound<'py, PyAny>,
    max_times: Vec<f64>,
) -> PyResult<Vec<Ids<'py>>> {
    // No more rounds than there are ops are needed to tell apart all ops that differ.
    let rounds = convert::count("rounds", rounds)?.min(weights.graph.work.n_ops());
    max_times.iter().try_for_each(|s| most_seconds(Some(*s)).map(|_| ()))?;
    let clock = weights.clock;
    let levels = weights.run(py, |graph, weights| {
        let colors = repeats::colors(graph, weights, rounds)?;
        let joined = max_times.iter().map(|s| repeats::joined(graph, weights, &colors, clock.ticks(*s)));
        Ok(joined.chain([colors.clone()]).collect::<Vec<_>>())
    })?;
    Ok(levels.into_iter().map(|level| by_index(py, weights, level)).collect())
}

merging! {
    /// Batch merging (Pesto 3.3): rounds of conflict-free merges, heaviest edge first.
    ///
    /// The quotient never has a cycle (the corrected Theorem 3.5). Stops at ``groups`` groups, or where
    /// limits, device types or structure allow no merge. O(V + E log E) a round; rounds about halve what
    /// is left.
    ///
    /// Parameters
    /// ----------
    /// weights : Weights
    /// groups : int
    ///     How many groups to stop at.
    /// max_time : float, optional
    ///     Most seconds of compute in a group.
    /// max_bytes : int, optional
    ///     Most bytes in a group.
    ///
    /// Returns
    /// -------
    /// group : int32 [n_ops]
    ///     Group per op, numbered in a topological order of the quotient.
    /// obstacles : dict
    ///     Pairs that could not merge in the last round, counted by what forbade the merge (``types``,
    ///     ``max_time``, ``max_bytes``, ``cycle``), and whether merging was cut off for going slowly
    ///     (``slow``). All zero where ``groups`` was reached, or nothing was left to merge.
    ///
    /// Raises
    /// ------
    /// ValueError
    ///     A wrong dtype, shape or value.
    ///
    /// Examples
    /// --------
    /// >>> import numpy as np
    /// >>> from loadmaster import fast
    /// >>> g = fast.Graph(4, np.array([0, 1, 2]), np.array([1, 2, 3]))
    /// >>> fast.batch_merge(fast.Weights(g, np.ones(4), np.array([5.0, 1.0, 5.0, 0.0])), 2)[0].tolist()
    /// [0, 0, 1, 1]
    batch_merge, batch::merge
}

merging! {
    /// Groups of about equal time between which the least data flows: a multilevel acyclic partition.
    ///
    /// Several orders are cut into segments where that costs least. The best are improved by V-cycles
    /// of local search (after dagP and Moreira). The cut counts a tensor once per group that reads it.
    /// Without ``max_time`` nothing keeps groups even. There are exactly ``groups`` groups, or the
    /// fewest that an order can be cut into within limits. Arguments, results and errors as for
    /// :func:`batch_merge`.
    ///
    /// Examples
    /// --------
    /// >>> import numpy as np
    /// >>> from loadmaster import fast
    /// >>> g = fast.Graph(4, np.array([0, 1, 2]), np.array([1, 2, 3]))
    /// >>> weights = fast.Weights(g, np.ones(4), np.array([5.0, 1.0, 5.0, 0.0]))
    /// >>> fast.multilevel_partition(weights, 2, max_time=2.0)[0].tolist()
    /// [0, 0, 1, 1]
    multilevel_partition, multilevel::partition
}

merging! {
    /// Merging that keeps parallelism: the merge that lengthens paths least goes first.
    ///
    /// A group runs as one, so merging ops of parallel branches serialises them. Pairs that lengthen no
    /// path (chains) go first. Then come pairs that stay within the critical path, by how much they
    /// lengthen the paths through them, then pairs that lengthen the critical path, by how much. Of
    /// equal pairs, the one that saves most transfer time goes first. Pairs are an edge's ends, and ops
    /// that run at about the same time. Typically O((V + E) log V). Arguments, results and errors as
    /// for :func:`batch_merge`.
    ///
    /// Examples
    /// --------
    /// >>> import numpy as np
    /// >>> from loadmaster import fast
    /// >>> g = fast.Graph(6, np.array([0, 0, 1, 2, 3, 4]), np.array([1, 2, 3, 4, 5, 5]))
    /// >>> fast.parallel_merge(fast.Weights(g, np.ones(6)), 4)[0].tolist()
    /// [0, 1, 2, 1, 2, 3]
    parallel_merge, parallel::merge
}

/// Fusion by rules (Moirai's GCOF): chains of op kinds that one kernel runs become one group.
///
/// Ops that follow each other and match a rule fuse if every one but the last has one successor. Of
/// the rules that match at an op the longest wins; of equally long rules, the first.
/// O(V + E + V R L) for R rules of at most L kinds.
///
/// Parameters
/// ----------
/// weights : Weights
/// kind : int [n_ops]
///     A number per kind of op, 0 to 2^32 - 2.
/// rules : list of list of list of int
///     Per rule and position in it, the kinds that match there.
/// groups : int
///     How many groups to stop at.
/// max_time, max_bytes
///     As for :func:`batch_merge`.
///
/// Returns
/// -------
/// group, obstacles
///     As for :func:`batch_merge`; obstacles are those of chains that matched a rule.
///
/// Raises
/// ------
/// ValueError
///     A wrong dtype, shape or value.
///
/// Examples
/// --------
/// >>> import numpy as np
/// >>> from loadmaster import fast
/// >>> g = fast.Graph(4, np.array([0, 1, 2]), np.array([1, 2, 3]))
/// >>> conv, norm, relu = 0, 1, 2
/// >>> kind = np.array([conv, norm, relu, conv])
/// >>> rules = [[[conv], [norm]], [[conv], [norm], [relu]]]
/// >>> fast.fuse(fast.Weights(g, np.ones(4)), kind, rules, 1)[0].tolist()
/// [0, 0, 0, 1]
#[pyfunction]
#[pyo3(signature = (weights, kind, rules, groups, *, max_time=None, max_bytes=None))]
pub fn fuse<'py>(
    py: Python<'py>,
    weights: &Weights,
    kind: &Bound<'py, PyAny>,
    rules: &Bound<'py, PyAny>,
    groups: &Bound<'py, PyAny>,
    max_time: Option<f64>,
    max_bytes: Option<&Bound<'py, PyAny>>,
) -> PyResult<Groups<'py>> {
    let graph = &weights.graph;
    let kind = graph.by_op(convert::indices("kind", kind, graph.work.n_ops(), u32::MAX as usize)?, 1);
    let rules: Vec<rules::Rule> = rules.extract().map_err(|_| {
        PyValueError::new_err("rules: wants a list of rules, each a list of lists of kinds (integers)")
    })?;
    merge(py, weights, groups, &Most { max_time, max_bytes }, |graph, weights, limits| {
        rules::fuse(graph, weights, limits, &kind, &rules)
    })
}

/// The cuts of an order that cost least transfer time (Celeritas eq. (4)-(6); Kernighan 1971).
///
/// A tensor is charged once to every segment that reads it and did not make it. Of equal costs the
/// longer segment wins. An op over a limit is a segment of its own. O((V + E) α(V)).
///
/// Parameters
/// ----------
/// weights : Weights
/// order : int [n_ops]
///     A topological order.
/// max_ops : int, optional
///     Most ops in a segment (the paper's R); 200 if absent.
/// max_bytes : int, optional
///     Most bytes in a segment (the paper's M).
/// max_time : float, optional
///     Most seconds of compute in a segment.
///
/// Returns
/// -------
/// int32
///     First positions of the segments after the first, ascending.
///
/// Raises
/// ------
/// ValueError
///     A wrong dtype, shape or value; an order that is not topological.
///
/// Examples
/// --------
/// >>> import numpy as np
/// >>> from loadmaster import fast
/// >>> g = fast.Graph(4, np.array([0, 1, 2]), np.array([1, 2, 3]))
/// >>> weights = fast.Weights(g, np.zeros(4), np.array([5.0, 1.0, 5.0, 0.0]))
/// >>> fast.breakpoints(weights, fast.m_topo(g), max_ops=2).tolist()
/// [2]
#[pyfunction]
#[pyo3(signature = (weights, order, *, max_ops=None, max_bytes=None, max_time=None))]
pub fn breakpoints<'py>(
    py: Python<'py>,
    weights: &Weights,
    order: &Bound<'py, PyAny>,
    max_ops: Option<&Bound<'py, PyAny>>,
    max_bytes: Option<&Bound<'py, PyAny>>,
    max_time: Option<f64>,
) -> PyResult<Ids<'py>> {
    let order = weights.graph.topological(order)?;
    let max_ops = max_ops.map(|n| convert::count("max_ops", n)).transpose()?.unwrap_or(MAX_OPS);
    if max_ops == 0 {
        return Err(PyValueError::new_err("max_ops is 0: a segment has at least one op"));
    }
    let (max_time, max_bytes) = Most { max_time, max_bytes }.counted(weights)?;
    let limits = fusion::Limits { max_ops, max_bytes, max_time };
    let cuts = weights.run(py, |graph, weights| Ok(fusion::breakpoints(graph, &order, weights, limits)))?;
    Ok(ids(py, cuts.into_iter()))
}

/// The cuts of an order into a given number of segments that cost about least transfer time.
///
/// As :func:`breakpoints`, with a price per segment (a Lagrange multiplier) that steers their
/// number. The cuts are optimal if the number is a corner of the lower hull of least cost over
/// number, or if cuts of the two corners next to it together give the number. Else the segments
/// that are missing are split off where that costs least. O((V + E) α(V)) a price, about six
/// prices.
///
/// Parameters
/// ----------
/// weights, order, max_bytes, max_time
///     As for :func:`breakpoints`.
/// segments : int
///     The number of segments; if limits and device types allow none so small, the fewest that they
///     allow.
///
/// Returns
/// -------
/// cuts : int32
///     First positions of the segments after the first, ascending.
/// cost : float
///     Seconds of transfer of the tensors that segments read and did not make, once per segment.
///
/// Raises
/// ------
/// ValueError
///     A wrong dtype, shape or value; an order that is not topological.
///
/// Examples
/// --------
/// >>> import numpy as np
/// >>> from loadmaster import fast
/// >>> g = fast.Graph(4, np.array([0, 1, 2]), np.array([1, 2, 3]))
/// >>> weights = fast.Weights(g, np.zeros(4), np.array([5.0, 1.0, 2.0, 0.0]))
/// >>> cuts, cost = fast.exact_breakpoints(weights, fast.m_topo(g), 3)
/// >>> cuts.tolist(), cost
/// ([2, 3], 3.0)
#[pyfunction]
#[pyo3(signature = (weights, order, segments, *, max_bytes=None, max_time=None))]
pub fn exact_breakpoints<'py>(
    py: Python<'py>,
    weights: &Weights,
    order: &Bound<'py, PyAny>,
    segments: &Bound<'py, PyAny>,
    max_bytes: Option<&Bound<'py, PyAny>>,
    max_time: Option<f64>,
) -> PyResult<(Ids<'py>, f64)> {
    let order = weights.graph.topological(order)?;
    let (max_time, max_bytes) = Most { max_time, max_bytes }.counted(weights)?;
    let limits = fusion::Limits { max_ops: usize::MAX, max_bytes, max_time };
    let segments = at_least_one("segments", segments)?;
    let found =
        weights.run(py, |graph, weights| Ok(fusion::exactly(graph, &order, weights, limits, segments)))?;
    Ok((ids(py, found.cuts.into_iter()), weights.clock.seconds(found.cost)))
}

/// Number of the segment that each op of an order is in.
///
/// Parameters
/// ----------
/// order : int [n_ops]
/// cuts : int
///     As :func:`breakpoints` gives them.
///
/// Returns
/// -------
/// int32 [n_ops]
///
/// Raises
/// ------
/// ValueError
///     Cuts that do not ascend or lie outside the order.
///
/// Examples
/// --------
/// >>> import numpy as np
/// >>> from loadmaster import fast
/// >>> fast.segments(np.array([2, 0, 1]), np.array([1])).tolist()
/// [1, 1, 0]
#[pyfunction]
pub fn segments<'py>(
    py: Python<'py>,
    order: &Bound<'_, PyAny>,
    cuts: &Bound<'_, PyAny>,
) -> PyResult<Ids<'py>> {
    // A value without a length is no array. `indices` refuses it.
    let n = order.len().unwrap_or(0);
    let order: Vec<OpId> = convert::indices("order", order, n, n)?.into_iter().map(OpId).collect();
    let mut seen = vec![false; n];
    if let Some(op) = order.iter().find(|op| std::mem::replace(&mut seen[op.ix()], true)) {
        return Err(PyValueError::new_err(format!("order: op {} comes twice", op.0)));
    }
    let cuts = convert::integers("cuts", cuts)?;
    let ascending = cuts.windows(2).all(|w| w[0] < w[1]);
    if !ascending || cuts.iter().any(|&c| c < 1 || c >= n.max(1) as i64) {
        return Err(PyValueError::new_err(format!(
            "cuts: must ascend strictly from 1 to {} at most",
            n.max(1) - 1
        )));
    }
    let cuts: Vec<u32> = cuts.into_iter().map(|c| c as u32).collect();
    Ok(ids(py, fusion::segments(&order, &cuts).into_iter()))
}

/// The coarse graph: one op per group, tensors between groups counted once per reading group.
///
/// Resident and output bytes add up, workspace is the largest. O(V + E).
///
/// Parameters
/// ----------
/// graph : Graph
/// group : int [n_ops]
///     Group per op, numbered from 0 without gaps.
/// colocated : bool
///     If true, two groups share a device if an op of one must share a device with an op of the
///     other, and groups hold no memory. This is for moving ops group by group. If false, each
///     group is placed on its own, and holds what its ops allocate.
///
/// Returns
/// -------
/// Graph
///     Its op g is group g; tensor ids are those of ``graph``.
///
/// Raises
/// ------
/// ValueError
///     Groups with gaps, or whose quotient has a cycle (a member of each group on it is named).
///
/// Examples
/// --------
/// >>> import numpy as np
/// >>> from loadmaster import fast
/// >>> g = fast.Graph(4, np.array([0, 1, 2]), np.array([1, 2, 3]))
/// >>> fast.contract(g, np.array([0, 0, 1, 1])).n_ops
/// 2
#[pyfunction]
#[pyo3(signature = (graph, group, *, colocated=false))]
pub fn contract(py: Python<'_>, graph: &Graph, group: &Bound<'_, PyAny>, colocated: bool) -> PyResult<Graph> {
    let n = graph.work.n_ops();
    let group = convert::indices("group", group, n, n)?;
    let mut first = vec![u32::MAX; n];
    for (index, &g) in group.iter().enumerate().rev() {
        first[g as usize] = index as u32;
    }
    let group = graph.by_op(group, 1);
    let contract = if colocated { core_contract::contract_colocated } else { core_contract::contract };
    let work = py.detach(|| contract(&graph.work, &group)).map_err(|e| graph.name(e))?;
    let fine = graph.names.clone();
    let names: Names = Arc::new(move |g| {
        let index = *first.get(g as usize)?;
        let name = fine.as_ref().and_then(|names| names(index)).unwrap_or_else(|| format!("op {index}"));
        Some(format!("group {g} (with {name})"))
    });
    Ok(Graph { work: Arc::new(work), names: Some(names) })
}

/// Groups of ops from their times, as whole ticks.
fn clustered<'py>(
    py: Python<'py>,
    weights: &Weights,
    cluster: impl FnOnce(&CoreGraph, &[Ticks], &[Ticks]) -> Vec<u32> + Send,
) -> Ids<'py> {
    let group = py.detach(|| cluster(&weights.graph.work.graph, &weights.op_time, &weights.tensor_time));
    by_index(py, weights, group)
}

/// Linear clustering (LC, Kim and Browne 1988).
///
/// The critical path becomes a group, then the critical path of the ops left over, and so on.
/// O((V + E) log V) where few levels change per path; O(V (V + E)) at worst.
///
/// Parameters
/// ----------
/// weights : Weights
///
/// Returns
/// -------
/// int32 [n_ops]
///     Group per op. The groups may depend on each other in a circle: they say what goes together, and are
///     not for :func:`contract`.
///
/// Examples
/// --------
/// >>> import numpy as np
/// >>> from loadmaster import fast
/// >>> g = fast.Graph(3, np.array([0, 0]), np.array([1, 2]))
/// >>> fast.linear_clusters(fast.Weights(g, np.ones(3), np.full(3, 1.0))).tolist()
/// [0, 0, 1]
#[pyfunction]
pub fn linear_clusters<'py>(py: Python<'py>, weights: &Weights) -> Ids<'py> {
    clustered(py, weights, linear::linear)
}

/// Dominant sequence clustering (DSC, Yang and Gerasoulis 1994).
///
/// Ops are taken by t-level + b-level. Each goes to the end of the producer's group that lets it
/// start earliest, or into a group of its own. O((V + E) log V).
///
/// Parameters
/// ----------
/// weights : Weights
///
/// Returns
/// -------
/// int32 [n_ops]
///     Group per op. The groups may depend on each other in a circle: they say what goes together, and are
///     not for :func:`contract`.
///
/// Examples
/// --------
/// >>> import numpy as np
/// >>> from loadmaster import fast
/// >>> g = fast.Graph(3, np.array([0, 0]), np.array([1, 2]))
/// >>> fast.dominant_sequences(fast.Weights(g, np.ones(3), np.full(3, 0.5))).tolist()
/// [0, 0, 1]
#[pyfunction]
pub fn dominant_sequences<'py>(py: Python<'py>, weights: &Weights) -> Ids<'py> {
    clustered(py, weights, dominant::dominant)
}

/// Source, destination, tensor id (-1: no data), bytes, and whether the tensor is there at time 0.
type Edges<'py> = (Ids<'py>, Ids<'py>, Ids<'py>, Bound<'py, PyArray1<u64>>, Bound<'py, PyArray1<bool>>);

/// The edges of a graph, home tensors (there at time 0) included; their source is their home. O(E).
///
/// Returns
/// -------
/// src, dst : int32 [n]
/// tensor : int32 [n]
///     The tensor's id, -1 for an edge without data.
/// bytes : uint64 [n]
/// home : bool [n]
///     Whether the tensor is there at time 0, and so orders nothing.
///
/// Examples
/// --------
/// >>> import numpy as np
/// >>> from loadmaster import fast
/// >>> g = fast.Graph(2, np.array([0]), np.array([1]), tensor_bytes=np.array([7, 0]))
/// >>> [column.tolist() for column in fast.edges(g)]
/// [[0], [1], [0], [7], [False]]
#[pyfunction]
pub fn edges<'py>(py: Python<'py>, graph: &Graph) -> Edges<'py> {
    let inner = &graph.work.graph;
    let edges: Vec<_> =
        inner.tensors().flat_map(|t| inner.consumers(t).iter().map(move |&dst| (t, dst))).collect();
    let id = |t| if inner.is_control(t) { u32::MAX } else { inner.key(t) };
    (
        graph.indices(py, edges.iter().map(|e| inner.source(e.0))),
        graph.indices(py, edges.iter().map(|e| e.1)),
        ids(py, edges.iter().map(|e| id(e.0))),
        edges.iter().map(|e| graph.work.tensor_bytes[e.0.ix()]).collect::<Vec<_>>().into_pyarray(py),
        edges.iter().map(|e| inner.is_home(e.0)).collect::<Vec<_>>().into_pyarray(py),
    )
}
