//! Coarsening over numpy arrays: groups of ops, and why there are not fewer.

use loadmaster_core::Error;
use loadmaster_core::clock::Ticks;
use loadmaster_core::coarsen::fusion;
use loadmaster_core::coarsen::{
    Coarsening, Limits, Obstacles, Weights, batch, multilevel, parallel, repeats, rules,
};
use loadmaster_core::graph::Graph as CoreGraph;
use numpy::{IntoPyArray, PyArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::convert;
use crate::functions::{bytes_per_op, control_seconds, ticks, topological};
use crate::graph::{Graph, ids};

type Ids<'py> = Bound<'py, PyArray1<i32>>;
type Groups<'py> = (Ids<'py>, Bound<'py, PyDict>);

/// Arrays and limits as a caller gives them.
struct Request<'a, 'py> {
    graph: &'a Graph,
    op_time: &'a Bound<'py, PyAny>,
    tensor_time: &'a Bound<'py, PyAny>,
    groups: &'a Bound<'py, PyAny>,
    control_time: f64,
    op_bytes: Option<&'a Bound<'py, PyAny>>,
    max_time: Option<f64>,
    max_bytes: Option<&'a Bound<'py, PyAny>>,
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
    request: &Request<'_, 'py>,
    algorithm: impl FnOnce(&CoreGraph, &Weights<'_>, &Limits) -> Result<Coarsening, Error> + Send,
) -> PyResult<Groups<'py>> {
    let graph = request.graph;
    let op_time = graph.by_op(convert::seconds("op_time", request.op_time, graph.work.n_ops(), false)?, 1);
    let tensor_time = convert::seconds("tensor_time", request.tensor_time, graph.tensor_ids(), true)?;
    let control = control_seconds(request.control_time)?;
    let op_bytes = bytes_per_op(graph, request.op_bytes)?;
    let groups = at_least_one("groups", request.groups)?;
    let max_time = most_seconds(request.max_time)?;
    let max_bytes = request.max_bytes.map(|b| convert::unsigned("max_bytes", b)).transpose()?;
    let merged = py.detach(|| -> Result<Coarsening, Error> {
        let (clock, op_time, tensor_time) = ticks(graph, &op_time, &tensor_time, control)?;
        let weights = Weights {
            op_time: &op_time,
            tensor_time: &tensor_time,
            op_bytes: &op_bytes,
            class: &graph.work.allowed,
        };
        let limits = Limits {
            groups,
            max_time: max_time.map_or(Ticks::MAX, |s| clock.ticks(s)),
            max_bytes: max_bytes.unwrap_or(u64::MAX),
        };
        algorithm(&graph.work.graph, &weights, &limits)
    });
    let merged = merged.map_err(|e| graph.name(e))?;
    Ok((ids(py, graph.by_index(merged.group).into_iter()), obstacles(py, merged.obstacles)?))
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
/// Color refinement (Weisfeiler and Leman 1968) by time, allowed types, inputs and readers; colors that
/// exchange most for the time they take then join. For moving ops together (:func:`refine_placement`), not for
/// placing: groups are neither connected nor acyclic. O(rounds (V + E) + E log E) per limit.
///
/// Parameters
/// ----------
/// graph : Graph
/// op_time : float64 [n_ops]
///     Seconds.
/// tensor_time : float64 [n_tensor_ids]
///     Seconds a transfer takes, by tensor id.
/// rounds : int
///     How many steps around itself an op is compared by; fewer where more tell no ops apart.
/// max_times : list of float
///     Most seconds of compute in a group, for each result; what takes longer alone stays alone.
/// control_time : float
///     Seconds a message without data takes.
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
/// >>> op_time, tensor_time = np.array([1.0, 2.0, 1.0, 2.0]), np.ones(4)
/// >>> [level.tolist() for level in fast.repeated_groups(chain, op_time, tensor_time, 0, [6.0])]
/// [[0, 0, 0, 0], [0, 1, 0, 1]]
#[pyfunction]
#[pyo3(signature = (graph, op_time, tensor_time, rounds, max_times, *, control_time=0.0))]
pub fn repeated_groups<'py>(
    py: Python<'py>,
    graph: &Graph,
    op_time: &Bound<'py, PyAny>,
    tensor_time: &Bound<'py, PyAny>,
    rounds: &Bound<'py, PyAny>,
    max_times: Vec<f64>,
    control_time: f64,
) -> PyResult<Vec<Ids<'py>>> {
    let op_time = graph.by_op(convert::seconds("op_time", op_time, graph.work.n_ops(), false)?, 1);
    let tensor_time = convert::seconds("tensor_time", tensor_time, graph.tensor_ids(), true)?;
    let control = control_seconds(control_time)?;
    // As many rounds as there are ops tell all apart that can be.
    let rounds = convert::count("rounds", rounds)?.min(graph.work.n_ops());
    max_times.iter().try_for_each(|s| most_seconds(Some(*s)).map(|_| ()))?;
    let levels = py.detach(|| -> Result<Vec<Vec<u32>>, Error> {
        let (clock, op_time, tensor_time) = ticks(graph, &op_time, &tensor_time, control)?;
        let (op_bytes, class) = (&graph.work.static_bytes(), &graph.work.allowed);
        let weights = Weights { op_time: &op_time, tensor_time: &tensor_time, op_bytes, class };
        let graph = &graph.work.graph;
        let colors = repeats::colors(graph, &weights, rounds)?;
        let joined = max_times.iter().map(|s| repeats::joined(graph, &weights, &colors, clock.ticks(*s)));
        Ok(joined.chain([colors.clone()]).collect())
    });
    let levels = levels.map_err(|e| graph.name(e))?;
    Ok(levels.into_iter().map(|level| ids(py, graph.by_index(level).into_iter())).collect())
}

/// Batch merging (Pesto 3.3): rounds of conflict-free merges, heaviest edge first.
///
/// The quotient never has a cycle (the corrected Theorem 3.5). Stops at ``groups`` groups, or where
/// limits, device types or structure allow no merge. O(V + E log E) a round; rounds about halve what
/// is left.
///
/// Parameters
/// ----------
/// graph : Graph
/// op_time : float64 [n_ops]
///     Seconds.
/// tensor_time : float64 [n_tensor_ids]
///     Seconds a transfer takes, by tensor id.
/// groups : int
///     How many groups to stop at.
/// control_time : float
///     Seconds a message without data takes.
/// op_bytes : uint64 [n_ops], optional
///     For ``max_bytes``; resident and output bytes if absent.
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
///     Pairs that could not merge in the last round, by what forbade it (``types``, ``max_time``,
///     ``max_bytes``, ``cycle``), and whether merging was cut off for going slowly (``slow``). All
///     zero where ``groups`` was reached, or nothing was left to merge.
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
/// >>> fast.batch_merge(g, np.ones(4), np.array([5.0, 1.0, 5.0, 0.0]), 2)[0].tolist()
/// [0, 0, 1, 1]
#[pyfunction]
#[pyo3(signature = (graph, op_time, tensor_time, groups, *, control_time=0.0, op_bytes=None,
                    max_time=None, max_bytes=None))]
#[expect(clippy::too_many_arguments, reason = "one per limit")]
pub fn batch_merge<'py>(
    py: Python<'py>,
    graph: &Graph,
    op_time: &Bound<'py, PyAny>,
    tensor_time: &Bound<'py, PyAny>,
    groups: &Bound<'py, PyAny>,
    control_time: f64,
    op_bytes: Option<&Bound<'py, PyAny>>,
    max_time: Option<f64>,
    max_bytes: Option<&Bound<'py, PyAny>>,
) -> PyResult<Groups<'py>> {
    let request =
        Request { graph, op_time, tensor_time, groups, control_time, op_bytes, max_time, max_bytes };
    merge(py, &request, batch::merge)
}

/// Groups of about equal time between which the least data flows: a multilevel acyclic partition.
///
/// The best of several orders, each cut into segments where that costs least, then V-cycles of local
/// search (dagP's and Moreira's manner) that count a tensor once per group that reads it. Without
/// ``max_time`` nothing keeps groups even. Exactly ``groups`` groups, or the fewest that an order can be
/// cut into within limits. Arguments, results and errors as for :func:`batch_merge`.
///
/// Examples
/// --------
/// >>> import numpy as np
/// >>> from loadmaster import fast
/// >>> g = fast.Graph(4, np.array([0, 1, 2]), np.array([1, 2, 3]))
/// >>> sending = np.array([5.0, 1.0, 5.0, 0.0])
/// >>> fast.multilevel_partition(g, np.ones(4), sending, 2, max_time=2.0)[0].tolist()
/// [0, 0, 1, 1]
#[pyfunction]
#[pyo3(signature = (graph, op_time, tensor_time, groups, *, control_time=0.0, op_bytes=None,
                    max_time=None, max_bytes=None))]
#[expect(clippy::too_many_arguments, reason = "one per limit")]
pub fn multilevel_partition<'py>(
    py: Python<'py>,
    graph: &Graph,
    op_time: &Bound<'py, PyAny>,
    tensor_time: &Bound<'py, PyAny>,
    groups: &Bound<'py, PyAny>,
    control_time: f64,
    op_bytes: Option<&Bound<'py, PyAny>>,
    max_time: Option<f64>,
    max_bytes: Option<&Bound<'py, PyAny>>,
) -> PyResult<Groups<'py>> {
    let request =
        Request { graph, op_time, tensor_time, groups, control_time, op_bytes, max_time, max_bytes };
    merge(py, &request, multilevel::partition)
}

/// Merging that keeps parallelism: the merge that lengthens paths least goes first.
///
/// A group runs as one, so merging ops of parallel branches serialises them. Pairs that lengthen no
/// path go first (chains), then by how much they eat of the slack, then by how much they lengthen the
/// critical path; of equals, those that save most transfer time. Pairs are an edge's ends, and ops that
/// run at about the same time. Typically O((V + E) log V). Arguments, results and errors as for
/// :func:`batch_merge`.
///
/// Examples
/// --------
/// >>> import numpy as np
/// >>> from loadmaster import fast
/// >>> g = fast.Graph(6, np.array([0, 0, 1, 2, 3, 4]), np.array([1, 2, 3, 4, 5, 5]))
/// >>> fast.parallel_merge(g, np.ones(6), np.zeros(6), 4)[0].tolist()
/// [0, 1, 2, 1, 2, 3]
#[pyfunction]
#[pyo3(signature = (graph, op_time, tensor_time, groups, *, control_time=0.0, op_bytes=None,
                    max_time=None, max_bytes=None))]
#[expect(clippy::too_many_arguments, reason = "one per limit")]
pub fn parallel_merge<'py>(
    py: Python<'py>,
    graph: &Graph,
    op_time: &Bound<'py, PyAny>,
    tensor_time: &Bound<'py, PyAny>,
    groups: &Bound<'py, PyAny>,
    control_time: f64,
    op_bytes: Option<&Bound<'py, PyAny>>,
    max_time: Option<f64>,
    max_bytes: Option<&Bound<'py, PyAny>>,
) -> PyResult<Groups<'py>> {
    let request =
        Request { graph, op_time, tensor_time, groups, control_time, op_bytes, max_time, max_bytes };
    merge(py, &request, parallel::merge)
}

/// Fusion by rules (Moirai's GCOF): chains of op kinds that one kernel runs become one group.
///
/// Ops that follow each other and match a rule fuse if every one but the last has one successor. Of the
/// rules that match at an op the longest wins, of these the first. O(V + E + V R L) for R rules of at
/// most L kinds.
///
/// Parameters
/// ----------
/// graph : Graph
/// op_time : float64 [n_ops]
///     Seconds, for ``max_time``.
/// kind : int [n_ops]
///     A number per kind of op, 0 to 2^32 - 2.
/// rules : list of list of list of int
///     Per rule and position in it, the kinds that match there.
/// groups : int
///     How many groups to stop at.
/// op_bytes, max_time, max_bytes
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
/// >>> fast.fuse(g, np.ones(4), kind, [[[conv], [norm]], [[conv], [norm], [relu]]], 1)[0].tolist()
/// [0, 0, 0, 1]
#[pyfunction]
#[pyo3(signature = (graph, op_time, kind, rules, groups, *, op_bytes=None, max_time=None, max_bytes=None))]
#[expect(clippy::too_many_arguments, reason = "one per limit")]
pub fn fuse<'py>(
    py: Python<'py>,
    graph: &Graph,
    op_time: &Bound<'py, PyAny>,
    kind: &Bound<'py, PyAny>,
    rules: &Bound<'py, PyAny>,
    groups: &Bound<'py, PyAny>,
    op_bytes: Option<&Bound<'py, PyAny>>,
    max_time: Option<f64>,
    max_bytes: Option<&Bound<'py, PyAny>>,
) -> PyResult<Groups<'py>> {
    let kind = graph.by_op(convert::indices("kind", kind, graph.work.n_ops(), u32::MAX as usize)?, 1);
    let rules: Vec<rules::Rule> = rules.extract().map_err(|_| {
        PyValueError::new_err("rules: wants a list of rules, each a list of lists of kinds (integers)")
    })?;
    let tensor_time = PyArray1::<f64>::zeros(py, graph.tensor_ids(), false);
    let tensor_time = tensor_time.as_any();
    let request =
        Request { graph, op_time, tensor_time, groups, control_time: 0.0, op_bytes, max_time, max_bytes };
    merge(py, &request, |graph, weights, limits| rules::fuse(graph, weights, limits, &kind, &rules))
}

/// The cuts of an order into a given number of segments that send about least.
///
/// As :func:`breakpoints`, with a price per segment (Lagrange) that steers their number. Optimal where the
/// number is a corner of the lower hull of least cost over number, or comes out of the two corners next
/// to it put together; else what is missing is split off where that costs least. O((V + E) α(V)) a price,
/// about six prices.
///
/// Parameters
/// ----------
/// graph, order, tensor_time, control_time, op_time, op_bytes, max_bytes, max_time
///     As for :func:`breakpoints`.
/// segments : int
///     How many; the fewest that limits and device types allow, if those are more.
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
/// >>> cuts, cost = fast.exact_breakpoints(g, fast.m_topo(g), np.array([5.0, 1.0, 2.0, 0.0]), 3)
/// >>> cuts.tolist(), cost
/// ([2, 3], 3.0)
#[pyfunction]
#[pyo3(signature = (graph, order, tensor_time, segments, *, control_time=0.0, op_time=None,
                    op_bytes=None, max_bytes=None, max_time=None))]
#[expect(clippy::too_many_arguments, reason = "those of breakpoints")]
pub fn exact_breakpoints<'py>(
    py: Python<'py>,
    graph: &Graph,
    order: &Bound<'py, PyAny>,
    tensor_time: &Bound<'py, PyAny>,
    segments: &Bound<'py, PyAny>,
    control_time: f64,
    op_time: Option<&Bound<'py, PyAny>>,
    op_bytes: Option<&Bound<'py, PyAny>>,
    max_bytes: Option<&Bound<'py, PyAny>>,
    max_time: Option<f64>,
) -> PyResult<(Ids<'py>, f64)> {
    let n = graph.work.n_ops();
    let order = topological("order", graph, order)?;
    let tensor_time = convert::seconds("tensor_time", tensor_time, graph.tensor_ids(), true)?;
    let control = control_seconds(control_time)?;
    let op_time = op_time.map(|t| convert::seconds("op_time", t, n, false)).transpose()?;
    let op_time = op_time.map_or_else(|| vec![0.0; n], |t| graph.by_op(t, 1));
    let op_bytes = bytes_per_op(graph, op_bytes)?;
    let max_bytes = max_bytes.map(|b| convert::unsigned("max_bytes", b)).transpose()?;
    let max_time = most_seconds(max_time)?;
    let segments = at_least_one("segments", segments)?;
    let found = py.detach(|| -> Result<(Vec<u32>, f64), Error> {
        let (clock, op_time, tensor_time) = ticks(graph, &op_time, &tensor_time, control)?;
        let limits = fusion::Limits {
            max_ops: usize::MAX,
            max_bytes: max_bytes.unwrap_or(u64::MAX),
            max_time: max_time.map_or(Ticks::MAX, |s| clock.ticks(s)),
        };
        let class = &graph.work.allowed;
        let weights = Weights { op_time: &op_time, tensor_time: &tensor_time, op_bytes: &op_bytes, class };
        let exact = fusion::exactly(&graph.work.graph, &order, &weights, limits, segments);
        Ok((exact.cuts, clock.seconds(exact.cost)))
    });
    let (cuts, cost) = found.map_err(|e| graph.name(e))?;
    Ok((ids(py, cuts.into_iter()), cost))
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
