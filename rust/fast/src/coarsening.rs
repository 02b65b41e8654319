//! Coarsening over numpy arrays: groups of ops, and why there are not fewer.

use loadmaster_core::Error;
use loadmaster_core::clock::Ticks;
use loadmaster_core::coarsen::{Coarsening, Limits, Obstacles, Weights, batch, multilevel, parallel};
use loadmaster_core::graph::Graph as CoreGraph;
use numpy::PyArray1;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::convert;
use crate::functions::{bytes_per_op, control_seconds, ticks};
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
fn at_least_one(groups: &Bound<'_, PyAny>) -> PyResult<usize> {
    match convert::count("groups", groups)? {
        0 => Err(PyValueError::new_err("groups is 0: there is at least one group")),
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
    let op_time = convert::seconds("op_time", request.op_time, graph.work.n_ops(), false)?;
    let tensor_time = convert::seconds("tensor_time", request.tensor_time, graph.tensor_ids(), true)?;
    let control = control_seconds(request.control_time)?;
    let op_bytes = bytes_per_op(graph, request.op_bytes)?;
    let groups = at_least_one(request.groups)?;
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
    Ok((ids(py, merged.group.into_iter()), obstacles(py, merged.obstacles)?))
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
