//! The functions of `loadmaster.fast`. Each checks its arrays, releases the GIL and calls the core.

use std::sync::Arc;

use loadmaster_core::border::is_no_time;
use loadmaster_core::clock::{Clock, Ticks};
use loadmaster_core::cluster::Cluster as CoreCluster;
use loadmaster_core::coarsen::{Weights, contract as core_contract, fusion};
use loadmaster_core::free_memory::OnOom;
use loadmaster_core::ids::{DeviceId, OpId};
use loadmaster_core::levels::Levels;
use loadmaster_core::place;
use loadmaster_core::simulate::lifetime;
use loadmaster_core::simulate::{LinkOrder, Options, Policy, Simulator};
use loadmaster_core::transitive::NeededControl;
use loadmaster_core::workload::{Times, Workload};
use loadmaster_core::{Error, bounds as core_bounds, topo};
use numpy::{IntoPyArray, PyArray1, PyArray2, PyArrayMethods};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::cluster::Cluster;
use crate::convert;
use crate::graph::{Graph, Names, ids};
use crate::schedule::Schedule;

/// The paper's R.
const MAX_OPS: usize = 200;

pub(crate) type Ids<'py> = Bound<'py, PyArray1<i32>>;
pub(crate) type Floats<'py> = Bound<'py, PyArray1<f64>>;
type Matrix<'py> = Bound<'py, PyArray2<f64>>;

/// Ticks of op and tensor times on a clock that no sum of them overflows.
pub(crate) fn ticks(
    graph: &Graph,
    op_time: &[f64],
    tensor_time: &[f64],
    control: f64,
) -> Result<(Clock, Vec<Ticks>, Vec<Ticks>), Error> {
    let tensor_time = graph.by_tensor(tensor_time, control);
    let inner = &graph.work.graph;
    let sent = inner.tensors().map(|t| tensor_time[t.ix()] * inner.consumers(t).len() as f64);
    let spent: f64 = inner.ops_by_index().map(|u| op_time[u.ix()]).sum();
    let clock = Clock::for_horizon(spent + sent.sum::<f64>())?;
    Ok((clock, clock.ticks_of(op_time), clock.ticks_of(&tensor_time)))
}

pub(crate) fn control_seconds(control: f64) -> PyResult<f64> {
    if !is_no_time(control) {
        Ok(control)
    } else {
        Err(PyValueError::new_err(format!("control_time is {control}: it must be finite and not negative")))
    }
}

/// t-level and b-level of every op (Celeritas eq. (2), (3); b-level is HEFT's upward rank).
///
/// The t-level is the longest path to an op's start, the b-level the longest from its start to the end,
/// counting op times and the transfer time of each tensor followed. O(V + E).
///
/// Parameters
/// ----------
/// graph : Graph
/// op_time : float64 [n_ops]
///     Seconds.
/// tensor_time : float64 [n_tensor_ids]
///     Seconds a transfer takes, by tensor id.
/// control_time : float
///     Seconds a message without data takes.
///
/// Returns
/// -------
/// t_level, b_level : float64 [n_ops]
///     Seconds; the largest b-level is the critical path.
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
/// >>> g = fast.Graph(3, np.array([0, 1]), np.array([1, 2]))
/// >>> t, b = fast.levels(g, np.ones(3), np.full(3, 0.5))
/// >>> t.tolist(), b.tolist()
/// ([0.0, 1.5, 3.0], [4.0, 2.5, 1.0])
#[pyfunction]
#[pyo3(signature = (graph, op_time, tensor_time, *, control_time=0.0))]
pub fn levels<'py>(
    py: Python<'py>,
    graph: &Graph,
    op_time: &Bound<'_, PyAny>,
    tensor_time: &Bound<'_, PyAny>,
    control_time: f64,
) -> PyResult<(Floats<'py>, Floats<'py>)> {
    let (clock, levels) = compute_levels(py, graph, op_time, tensor_time, control_time)?;
    Ok((seconds(py, graph, clock, levels.top), seconds(py, graph, clock, levels.bottom)))
}

/// A column of ticks per op, out.
pub(crate) fn seconds<'py>(py: Python<'py>, graph: &Graph, clock: Clock, ticks: Vec<Ticks>) -> Floats<'py> {
    clock.seconds_of(&graph.by_index(ticks)).into_pyarray(py)
}

fn compute_levels(
    py: Python<'_>,
    graph: &Graph,
    op_time: &Bound<'_, PyAny>,
    tensor_time: &Bound<'_, PyAny>,
    control_time: f64,
) -> PyResult<(Clock, Levels)> {
    let op_time = graph.by_op(convert::seconds("op_time", op_time, graph.work.n_ops(), false)?, 1);
    let tensor_time = convert::seconds("tensor_time", tensor_time, graph.tensor_ids(), true)?;
    let control = control_seconds(control_time)?;
    let result = py.detach(|| -> Result<(Clock, Levels), Error> {
        let (clock, op_time, tensor_time) = ticks(graph, &op_time, &tensor_time, control)?;
        Ok((clock, Levels::new(&graph.work.graph, &op_time, &tensor_time)))
    });
    Ok(result.map_err(|e| graph.name(e))?)
}

/// Kahn's topological order, first in first out (Baechi's m-TOPO). O(V + E).
///
/// Returns
/// -------
/// int32 [n_ops]
///
/// Examples
/// --------
/// >>> import numpy as np
/// >>> from loadmaster import fast
/// >>> g = fast.Graph(4, np.array([0, 1]), np.array([2, 3]))
/// >>> fast.m_topo(g).tolist()
/// [0, 1, 2, 3]
#[pyfunction]
pub fn m_topo<'py>(py: Python<'py>, graph: &Graph) -> Ids<'py> {
    let order = py.detach(|| topo::m_topo(&graph.work.graph));
    graph.indices(py, order.into_iter())
}

/// Depth-first topological order (Celeritas 4.2.2): an op is followed by the ops it makes ready.
///
/// Ties: smaller index first. O(V + E) but for sorting ops that become ready together.
///
/// Returns
/// -------
/// int32 [n_ops]
///
/// Examples
/// --------
/// >>> import numpy as np
/// >>> from loadmaster import fast
/// >>> g = fast.Graph(4, np.array([0, 1]), np.array([2, 3]))
/// >>> fast.dfs_topo(g).tolist()
/// [0, 2, 1, 3]
#[pyfunction]
pub fn dfs_topo<'py>(py: Python<'py>, graph: &Graph) -> Ids<'py> {
    let order = py.detach(|| topo::dfs_topo(&graph.work.graph));
    graph.indices(py, order.into_iter())
}

/// CPD-TOPO (Celeritas 5.1.3): depth first, children on the longest path first.
///
/// Of the ops that become ready together, the one with the largest t-level + b-level comes first; ties:
/// smaller index. Arguments as for :func:`levels`. O(V + E) but for those small sorts.
///
/// Returns
/// -------
/// int32 [n_ops]
///
/// Examples
/// --------
/// >>> import numpy as np
/// >>> from loadmaster import fast
/// >>> g = fast.Graph(3, np.array([0, 0]), np.array([1, 2]))
/// >>> fast.cpd_topo(g, np.array([1.0, 1.0, 5.0]), np.zeros(3)).tolist()
/// [0, 2, 1]
#[pyfunction]
#[pyo3(signature = (graph, op_time, tensor_time, *, control_time=0.0))]
pub fn cpd_topo<'py>(
    py: Python<'py>,
    graph: &Graph,
    op_time: &Bound<'_, PyAny>,
    tensor_time: &Bound<'_, PyAny>,
    control_time: f64,
) -> PyResult<Ids<'py>> {
    let (_, levels) = compute_levels(py, graph, op_time, tensor_time, control_time)?;
    let order = py.detach(|| topo::cpd_topo(&graph.work.graph, &levels));
    Ok(graph.indices(py, order.into_iter()))
}

/// The cuts of an order that send least (Celeritas eq. (4)-(6); Kernighan 1971).
///
/// A tensor is charged once to every segment that reads it and did not make it. Equal costs take the
/// longer segment; an op over a limit is a segment of its own. O((V + E) sqrt(max_ops)) at worst.
///
/// Parameters
/// ----------
/// graph : Graph
/// order : int [n_ops]
///     A topological order.
/// tensor_time : float64 [n_tensor_ids]
///     Seconds a transfer takes, by tensor id.
/// control_time : float
///     Seconds a message without data takes.
/// op_time : float64 [n_ops], optional
///     Seconds, for ``max_time``.
/// op_bytes : uint64 [n_ops], optional
///     For ``max_bytes``; resident and output bytes if absent.
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
/// >>> sending = np.array([5.0, 1.0, 5.0, 0.0])
/// >>> fast.breakpoints(g, fast.m_topo(g), sending, max_ops=2).tolist()
/// [2]
#[pyfunction]
#[pyo3(signature = (graph, order, tensor_time, *, control_time=0.0, op_time=None, op_bytes=None,
                    max_ops=None, max_bytes=None, max_time=None))]
#[expect(clippy::too_many_arguments, reason = "the knobs of the paper and two more")]
pub fn breakpoints<'py>(
    py: Python<'py>,
    graph: &Graph,
    order: &Bound<'_, PyAny>,
    tensor_time: &Bound<'_, PyAny>,
    control_time: f64,
    op_time: Option<&Bound<'_, PyAny>>,
    op_bytes: Option<&Bound<'_, PyAny>>,
    max_ops: Option<&Bound<'_, PyAny>>,
    max_bytes: Option<&Bound<'_, PyAny>>,
    max_time: Option<f64>,
) -> PyResult<Ids<'py>> {
    let n = graph.work.n_ops();
    let order = topological("order", graph, order)?;
    let tensor_time = convert::seconds("tensor_time", tensor_time, graph.tensor_ids(), true)?;
    let control = control_seconds(control_time)?;
    let op_time = op_time
        .map(|t| convert::seconds("op_time", t, n, false))
        .transpose()?
        .map_or_else(|| vec![0.0; n], |t| graph.by_op(t, 1));
    let op_bytes = bytes_per_op(graph, op_bytes)?;
    let max_ops = max_ops.map(|n| convert::count("max_ops", n)).transpose()?.unwrap_or(MAX_OPS);
    let max_bytes = max_bytes.map(|b| convert::unsigned("max_bytes", b)).transpose()?;
    if max_ops == 0 {
        return Err(PyValueError::new_err("max_ops is 0: a segment has at least one op"));
    }
    if let Some(seconds) = max_time.filter(|s| s.is_nan() || *s < 0.0) {
        return Err(PyValueError::new_err(format!("max_time is {seconds}: it must be a number >= 0")));
    }
    let cuts = py.detach(|| -> Result<Vec<u32>, Error> {
        let (clock, op_time, tensor_time) = ticks(graph, &op_time, &tensor_time, control)?;
        let limits = fusion::Limits {
            max_ops,
            max_bytes: max_bytes.unwrap_or(u64::MAX),
            max_time: max_time.map_or(Ticks::MAX, |s| clock.ticks(s)),
        };
        let class = &graph.work.allowed;
        let weights = Weights { op_time: &op_time, tensor_time: &tensor_time, op_bytes: &op_bytes, class };
        Ok(fusion::breakpoints(&graph.work.graph, &order, &weights, limits))
    });
    Ok(ids(py, cuts.map_err(|e| graph.name(e))?.into_iter()))
}

/// An order checked to be topological.
pub(crate) fn topological(argument: &str, graph: &Graph, order: &Bound<'_, PyAny>) -> PyResult<Vec<OpId>> {
    let n = graph.work.n_ops();
    let order: Vec<OpId> =
        convert::indices("order", order, n, n)?.into_iter().map(|index| graph.op(index)).collect();
    if topo::is_topological(&graph.work.graph, &order) {
        Ok(order)
    } else {
        Err(PyValueError::new_err(format!(
            "{argument}: must list every op once, producers before consumers (see m_topo, dfs_topo, cpd_topo)"
        )))
    }
}

pub(crate) fn bytes_per_op(graph: &Graph, bytes: Option<&Bound<'_, PyAny>>) -> PyResult<Vec<u64>> {
    let Some(bytes) = bytes else { return Ok(graph.work.static_bytes()) };
    let bytes = convert::sizes("op_bytes", bytes)?;
    if bytes.len() == graph.work.n_ops() {
        Ok(graph.by_op(bytes, 1))
    } else {
        let wants = format!("{} (one per op)", graph.work.n_ops());
        Err(convert::wrong_length("op_bytes", bytes.len(), wants))
    }
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
    // What has no length is no array, as `indices` says.
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

/// The control edges that no other path implies: their transitive reduction. Can be interrupted.
///
/// Edges that carry data stay whatever they imply. What an op reaches without the other control edges is
/// what it reached with them. O((V + E) D / 512) for D destinations of control edges, 64 bytes per op.
///
/// Returns
/// -------
/// src, dst : int32
///     Ends of each needed control edge, once each.
///
/// Examples
/// --------
/// >>> import numpy as np
/// >>> from loadmaster import fast
/// >>> control = np.full(3, -1)
/// >>> g = fast.Graph(3, np.array([0, 1, 0]), np.array([1, 2, 2]), control)
/// >>> src, dst = fast.needed_control(g)
/// >>> src.tolist(), dst.tolist()
/// ([0, 1], [1, 2])
#[pyfunction]
pub fn needed_control<'py>(py: Python<'py>, graph: &Graph) -> PyResult<(Ids<'py>, Ids<'py>)> {
    let mut blocks = NeededControl::of(&graph.work.graph);
    let mut needed = Vec::new();
    while let Some(edges) = py.detach(|| blocks.next()) {
        needed.extend(edges);
        py.check_signals()?;
    }
    needed.sort_unstable_by_key(|&(u, v)| (graph.work.graph.index(u), graph.work.graph.index(v)));
    let src = graph.indices(py, needed.iter().map(|edge| edge.0));
    Ok((src, graph.indices(py, needed.iter().map(|edge| edge.1))))
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
///     Whether groups share a device where ops of theirs have to, and hold no memory: for moving ops
///     group by group. If not, each is placed for itself, and holds what its ops allocate.
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

/// Memory rules shared by the placing functions.
pub(crate) struct MemoryRules {
    pub bytes: Vec<u64>,
    pub capacity: Vec<u64>,
    pub on_oom: OnOom,
}

pub(crate) fn memory_rules(
    graph: &Graph,
    cluster: &Cluster,
    op_bytes: Option<&Bound<'_, PyAny>>,
    capacity: Option<&Bound<'_, PyAny>>,
    best_effort: bool,
) -> PyResult<MemoryRules> {
    let capacity = match capacity {
        None => cluster.core.devices().iter().map(|d| d.memory).collect(),
        Some(c) => convert::sizes("capacity", c)?,
    };
    if capacity.len() != cluster.core.n_devices() {
        let n = cluster.core.n_devices();
        return Err(convert::wrong_length("capacity", capacity.len(), format!("{n} (one per device)")));
    }
    let on_oom = if best_effort { OnOom::BestEffort } else { OnOom::Fail };
    Ok(MemoryRules { bytes: bytes_per_op(graph, op_bytes)?, capacity, on_oom })
}

/// Runs a strategy that places ops in a topological order.
fn place_ops<'py>(
    py: Python<'py>,
    graph: &Graph,
    cluster: &Cluster,
    order: &Bound<'_, PyAny>,
    strategy: impl FnOnce(&Workload, &CoreCluster, &[OpId]) -> Result<Vec<DeviceId>, Error> + Send,
) -> PyResult<Ids<'py>> {
    let order = topological("order", graph, order)?;
    let placement = py.detach(|| strategy(&graph.work, &cluster.core, &order));
    Ok(device_ids(py, graph, placement.map_err(|e| graph.name(e))?))
}

/// The devices in the order in which they are filled: all of them, once each.
fn device_order(cluster: &Cluster, devices: Option<&Bound<'_, PyAny>>) -> PyResult<Vec<DeviceId>> {
    let n = cluster.core.n_devices();
    let Some(devices) = devices else { return Ok(cluster.core.device_ids().collect()) };
    let order = convert::indices("devices", devices, n, n)?;
    let mut seen = order.clone();
    seen.sort_unstable();
    if seen.iter().enumerate().any(|(i, &d)| d as usize != i) {
        return Err(PyValueError::new_err("devices: must list every device once"));
    }
    Ok(order.into_iter().map(DeviceId).collect())
}

pub(crate) fn device_ids<'py>(py: Python<'py>, graph: &Graph, placement: Vec<DeviceId>) -> Ids<'py> {
    ids(py, graph.by_index(placement).into_iter().map(|d| d.0))
}

/// Ops in order on one device until it is full, then the next (Order-Place, m-TOPO).
///
/// Colocated ops go together, when the first of them comes up. O(V D) at worst.
///
/// Parameters
/// ----------
/// graph : Graph
/// cluster : Cluster
/// order : int [n_ops]
///     A topological order.
/// devices : int [n_devices], optional
///     The order in which devices are filled; by index if absent.
/// op_bytes : uint64 [n_ops], optional
///     Bytes each op takes; resident and output bytes if absent.
/// capacity : uint64 [n_devices], optional
///     Bytes to fill; the devices' memory if absent.
/// best_effort : bool
///     Put an op that fits nowhere where most memory is free, instead of raising.
///
/// Returns
/// -------
/// int32 [n_ops]
///     Device per op.
///
/// Raises
/// ------
/// InfeasibleError
///     An op that fits on no device it may use.
/// ValueError
///     A wrong dtype, shape or value.
///
/// Examples
/// --------
/// >>> import numpy as np
/// >>> from loadmaster import fast
/// >>> g = fast.Graph(3, np.array([0, 1]), np.array([1, 2]), resident=np.array([6, 6, 6]))
/// >>> both = [("a", "b", 1e9, 0.0, []), ("b", "a", 1e9, 0.0, [])]
/// >>> c = fast.Cluster([("a", "gpu", 12), ("b", "gpu", 12)], both)
/// >>> fast.fill_in_order(g, c, fast.m_topo(g)).tolist()
/// [0, 0, 1]
#[pyfunction]
#[pyo3(signature = (graph, cluster, order, *, devices=None, op_bytes=None, capacity=None, best_effort=false))]
#[expect(clippy::too_many_arguments, reason = "a strategy's whole input")]
pub fn fill_in_order<'py>(
    py: Python<'py>,
    graph: &Graph,
    cluster: &Cluster,
    order: &Bound<'_, PyAny>,
    devices: Option<&Bound<'_, PyAny>>,
    op_bytes: Option<&Bound<'_, PyAny>>,
    capacity: Option<&Bound<'_, PyAny>>,
    best_effort: bool,
) -> PyResult<Ids<'py>> {
    let sequence = device_order(cluster, devices)?;
    let rules = memory_rules(graph, cluster, op_bytes, capacity, best_effort)?;
    place_ops(py, graph, cluster, order, |work, cluster, order| {
        place::fill::in_order(work, cluster, order, &sequence, &rules.bytes, &rules.capacity, rules.on_oom)
    })
}

/// The i-th op on device i mod k, or the next one that has room. O(V D) at worst.
///
/// Parameters
/// ----------
/// graph : Graph
/// cluster : Cluster
/// order : int [n_ops]
///     A topological order.
/// op_bytes : uint64 [n_ops], optional
///     Bytes each op takes; resident and output bytes if absent.
/// capacity : uint64 [n_devices], optional
///     Bytes to fill; the devices' memory if absent.
/// best_effort : bool
///     Put an op that fits nowhere where most memory is free, instead of raising.
///
/// Returns
/// -------
/// int32 [n_ops]
///     Device per op.
///
/// Raises
/// ------
/// InfeasibleError
///     An op that fits on no device it may use.
/// ValueError
///     A wrong dtype, shape or value.
///
/// Examples
/// --------
/// >>> import numpy as np
/// >>> from loadmaster import fast
/// >>> g = fast.Graph(3, np.array([0, 1]), np.array([1, 2]), resident=np.array([6, 6, 6]))
/// >>> both = [("a", "b", 1e9, 0.0, []), ("b", "a", 1e9, 0.0, [])]
/// >>> c = fast.Cluster([("a", "gpu", 12), ("b", "gpu", 12)], both)
/// >>> fast.round_robin(g, c, fast.m_topo(g)).tolist()
/// [0, 1, 0]
#[pyfunction]
#[pyo3(signature = (graph, cluster, order, *, op_bytes=None, capacity=None, best_effort=false))]
pub fn round_robin<'py>(
    py: Python<'py>,
    graph: &Graph,
    cluster: &Cluster,
    order: &Bound<'_, PyAny>,
    op_bytes: Option<&Bound<'_, PyAny>>,
    capacity: Option<&Bound<'_, PyAny>>,
    best_effort: bool,
) -> PyResult<Ids<'py>> {
    let rules = memory_rules(graph, cluster, op_bytes, capacity, best_effort)?;
    place_ops(py, graph, cluster, order, |work, cluster, order| {
        place::fill::round_robin(work, cluster, order, &rules.bytes, &rules.capacity, rules.on_oom)
    })
}

/// Each op on the device, of those with room, that holds most of the bytes it reads.
///
/// Keeps the backward pass with the activations it needs. O(D (V + E)).
///
/// Parameters
/// ----------
/// graph : Graph
/// cluster : Cluster
/// order : int [n_ops]
///     A topological order.
/// op_bytes : uint64 [n_ops], optional
///     Bytes each op takes; resident and output bytes if absent.
/// capacity : uint64 [n_devices], optional
///     Bytes to fill; the devices' memory if absent.
/// best_effort : bool
///     Put an op that fits nowhere where most memory is free, instead of raising.
///
/// Returns
/// -------
/// int32 [n_ops]
///     Device per op.
///
/// Raises
/// ------
/// InfeasibleError
///     An op that fits on no device it may use.
/// ValueError
///     A wrong dtype, shape or value.
///
/// Examples
/// --------
/// >>> import numpy as np
/// >>> from loadmaster import fast
/// >>> g = fast.Graph(3, np.array([0, 1]), np.array([1, 2]), resident=np.array([6, 6, 6]))
/// >>> both = [("a", "b", 1e9, 0.0, []), ("b", "a", 1e9, 0.0, [])]
/// >>> c = fast.Cluster([("a", "gpu", 12), ("b", "gpu", 12)], both)
/// >>> fast.follow_bytes(g, c, fast.m_topo(g)).tolist()
/// [0, 0, 1]
#[pyfunction]
#[pyo3(signature = (graph, cluster, order, *, op_bytes=None, capacity=None, best_effort=false))]
pub fn follow_bytes<'py>(
    py: Python<'py>,
    graph: &Graph,
    cluster: &Cluster,
    order: &Bound<'_, PyAny>,
    op_bytes: Option<&Bound<'_, PyAny>>,
    capacity: Option<&Bound<'_, PyAny>>,
    best_effort: bool,
) -> PyResult<Ids<'py>> {
    let rules = memory_rules(graph, cluster, op_bytes, capacity, best_effort)?;
    place_ops(py, graph, cluster, order, |work, cluster, order| {
        place::locality::follow_bytes(work, cluster, order, &rules.bytes, &rules.capacity, rules.on_oom)
    })
}

pub(crate) fn times(graph: &Graph, cluster: &Cluster, time: &Bound<'_, PyAny>) -> PyResult<Times> {
    let (n, k) = (graph.work.n_ops(), cluster.core.types().len());
    let seconds = convert::time_matrix("time", time, n, k)?;
    let times = Times::new(n, k, seconds).map_err(|e| graph.name_indices(e))?;
    Ok(times.numbered(graph.work.graph.numbering()))
}

/// Simulates one step of a placed graph: the judge of every strategy.
///
/// O((V + E + T) log V) for T transfers.
///
/// Parameters
/// ----------
/// graph : Graph
/// cluster : Cluster
/// time : float64 [n_ops, n_types] (or [n_ops] where there is one type)
///     Seconds.
/// devices : int [n_ops]
///     Device per op.
/// priority : int [n_ops], optional
///     Smaller runs first; the ops' numbering if absent.
/// policy : str
///     Which ready op a free device takes: "priority", "fifo" (ready longest), "random" (seeded) or
///     "fixed" (exactly the sequence of priorities).
/// contention : bool
///     False: unlimited channels, the classic model.
/// link_order : str
///     How a channel serves its queue: "fifo" or "priority" (of the consumers).
/// seed : int, optional
///     For "random"; 0 if absent.
/// record_memory : bool
///     Keep every change of memory use for :meth:`Schedule.memory`, and all tensors that are alive at
///     the first overflow, not only the largest eight.
/// below : float, optional
///     Seconds. Once some device has as much left to compute as time until then, the simulation stops.
///
/// Returns
/// -------
/// Schedule
///     None where ``below`` stopped it: the makespan is not below that.
///
/// Raises
/// ------
/// ValueError
///     A wrong dtype, shape or value; a placement that breaks a rule; a sequence that can never run.
///
/// Examples
/// --------
/// >>> import numpy as np
/// >>> from loadmaster import fast
/// >>> g = fast.Graph(2, np.array([0]), np.array([1]), tensor_bytes=np.array([1000, 0]))
/// >>> both = [("a", "b", 1e3, 0.5, []), ("b", "a", 1e3, 0.5, [])]
/// >>> c = fast.Cluster([("a", "gpu", 10**6), ("b", "gpu", 10**6)], both)
/// >>> fast.simulate(g, c, np.array([1.0, 2.0]), np.array([0, 1])).makespan
/// 4.5
#[pyfunction]
#[pyo3(signature = (graph, cluster, time, devices, priority=None, *, policy="priority", contention=true,
                    link_order="fifo", seed=None, record_memory=false, below=None))]
#[expect(clippy::too_many_arguments, reason = "a simulation's whole input")]
pub fn simulate(
    py: Python<'_>,
    graph: &Graph,
    cluster: &Cluster,
    time: &Bound<'_, PyAny>,
    devices: &Bound<'_, PyAny>,
    priority: Option<&Bound<'_, PyAny>>,
    policy: &str,
    contention: bool,
    link_order: &str,
    seed: Option<&Bound<'_, PyAny>>,
    record_memory: bool,
    below: Option<f64>,
) -> PyResult<Option<Schedule>> {
    let n = graph.work.n_ops();
    let seed = seed.map(|s| convert::unsigned("seed", s)).transpose()?.unwrap_or(0);
    let policy = match policy {
        "priority" => Policy::Priority,
        "fifo" => Policy::Fifo,
        "random" => Policy::Random(seed),
        "fixed" => Policy::Fixed,
        other => {
            return Err(PyValueError::new_err(format!(
                "policy: got {other:?}, wants \"priority\", \"fifo\", \"random\" or \"fixed\""
            )));
        }
    };
    let link_order = match link_order {
        "fifo" => LinkOrder::Fifo,
        "priority" => LinkOrder::Priority,
        other => {
            return Err(PyValueError::new_err(format!(
                "link_order: got {other:?}, wants \"fifo\" or \"priority\""
            )));
        }
    };
    if below.is_some_and(|seconds| seconds.is_nan() || seconds < 0.0) {
        return Err(PyValueError::new_err(format!(
            "below is {}: it must be a number >= 0",
            below.unwrap_or_default()
        )));
    }
    let options = Options { policy, contention: contention.then_some(link_order), record_memory };
    let time = times(graph, cluster, time)?;
    let placement = convert::indices("devices", devices, n, cluster.core.n_devices())?;
    let placement = graph.by_op(placement.into_iter().map(DeviceId).collect(), 1);
    let priority = match priority {
        Some(priority) => convert::priorities(priority, n)?,
        None => (0..n as i32).collect(),
    };
    let priority = graph.by_op(priority, 1);
    let result = py.detach(|| {
        let simulator = Simulator::new(&graph.work, &cluster.core, &time)?;
        let clock = simulator.clock();
        let limit = below.map_or(Ticks::MAX, |seconds| clock.ticks(seconds));
        Ok::<_, Error>((clock, simulator.run_below(&placement, &priority, options, limit)?))
    });
    let (clock, core) = result.map_err(|e| graph.name(e))?;
    Ok(core.map(|core| Schedule { core, clock, work: Arc::clone(&graph.work), placement }))
}

/// Lower bounds on the makespan of any placement.
///
/// ``critical_path`` (fastest allowed types, free transfers), ``work`` (over capacity, a linear program
/// over device types), ``forced_transfers`` (critical path with the transfers that joins and forks
/// force), ``heads_and_tails`` (work between them), ``best`` and its ``source``. O((V + E log d) T^2)
/// for T types and d neighbours, and a few hundred passes over the ops where there are several types.
///
/// Parameters
/// ----------
/// graph : Graph
/// cluster : Cluster
/// time : float64 [n_ops, n_types] (or [n_ops] where there is one type)
///     Seconds.
///
/// Returns
/// -------
/// dict
///     Seconds by name.
///
/// Examples
/// --------
/// >>> import numpy as np
/// >>> from loadmaster import fast
/// >>> g = fast.Graph(4, np.array([], dtype=int), np.array([], dtype=int))
/// >>> both = [("a", "b", 1e9, 0.0, []), ("b", "a", 1e9, 0.0, [])]
/// >>> c = fast.Cluster([("a", "gpu", 1), ("b", "gpu", 1)], both)
/// >>> round(fast.bounds(g, c, np.ones(4))["best"], 6)
/// 2.0
#[pyfunction]
pub fn bounds<'py>(
    py: Python<'py>,
    graph: &Graph,
    cluster: &Cluster,
    time: &Bound<'_, PyAny>,
) -> PyResult<Bound<'py, PyDict>> {
    let time = times(graph, cluster, time)?;
    let found =
        py.detach(|| core_bounds::bounds(&graph.work, &cluster.core, &time)).map_err(|e| graph.name(e))?;
    let source = match found.source {
        core_bounds::Source::CriticalPath => "critical path",
        core_bounds::Source::Work => "work over capacity",
        core_bounds::Source::ForcedTransfers => "critical path with forced transfers",
        core_bounds::Source::HeadsAndTails => "work between heads and tails",
    };
    let dict = PyDict::new(py);
    dict.set_item("critical_path", found.critical_path)?;
    dict.set_item("work", found.work)?;
    dict.set_item("forced_transfers", found.forced_transfers)?;
    dict.set_item("heads_and_tails", found.heads_and_tails)?;
    dict.set_item("best", found.best)?;
    dict.set_item("source", source)?;
    Ok(dict)
}

/// Least times before each op starts and after it ends, in any placement and order.
///
/// Predecessors on the same device run one after another, the others' outputs are sent; so with
/// successors. O(E T^2 log d) for T types and d neighbours.
///
/// Parameters
/// ----------
/// graph : Graph
/// cluster : Cluster
/// time : float64 [n_ops, n_types] (or [n_ops] where there is one type)
///     Seconds.
///
/// Returns
/// -------
/// heads, tails : float64 [n_ops, n_types]
///     Seconds if the op runs on a device of that type; infinite where it may not.
///
/// Examples
/// --------
/// >>> import numpy as np
/// >>> from loadmaster import fast
/// >>> g = fast.Graph(2, np.array([0]), np.array([1]))
/// >>> c = fast.Cluster([("a", "gpu", 1)], [])
/// >>> heads, tails = fast.heads_and_tails(g, c, np.array([2.0, 3.0]))
/// >>> heads.ravel().tolist(), tails.ravel().tolist()
/// ([0.0, 2.0], [3.0, 0.0])
#[pyfunction]
pub fn heads_and_tails<'py>(
    py: Python<'py>,
    graph: &Graph,
    cluster: &Cluster,
    time: &Bound<'_, PyAny>,
) -> PyResult<(Matrix<'py>, Matrix<'py>)> {
    let time = times(graph, cluster, time)?;
    let shape = [graph.work.n_ops(), time.n_types()];
    let (heads, tails) = py
        .detach(|| core_bounds::heads_and_tails(&graph.work, &cluster.core, &time))
        .map_err(|e| graph.name(e))?;
    Ok((heads.into_pyarray(py).reshape(shape)?, tails.into_pyarray(py).reshape(shape)?))
}

/// What one device would hold at the worst moment of running ops one after another.
///
/// O(V + E).
///
/// Parameters
/// ----------
/// graph : Graph
/// order : int [n_ops], optional
///     A topological order; that of :func:`m_topo` if absent.
///
/// Returns
/// -------
/// peak : int
///     Bytes.
/// held : uint64 [n_ops]
///     Each op's part at that moment: resident bytes, and outputs that are alive then.
///
/// Raises
/// ------
/// ValueError
///     An order that is not topological.
///
/// Examples
/// --------
/// >>> import numpy as np
/// >>> from loadmaster import fast
/// >>> g = fast.Graph(3, np.array([0, 1]), np.array([1, 2]), tensor_bytes=np.array([8, 4, 0]))
/// >>> fast.peak_bytes(g)[0]
/// 12
#[pyfunction]
#[pyo3(signature = (graph, order=None))]
pub fn peak_bytes<'py>(
    py: Python<'py>,
    graph: &Graph,
    order: Option<&Bound<'_, PyAny>>,
) -> PyResult<(u64, Bound<'py, PyArray1<u64>>)> {
    let order = order.map(|order| topological("order", graph, order)).transpose()?;
    let peak = py.detach(|| {
        let order = order.unwrap_or_else(|| topo::m_topo(&graph.work.graph));
        lifetime::peak(&graph.work, &order)
    });
    Ok((peak.bytes, graph.by_index(peak.held).into_pyarray(py)))
}

/// Mean seconds of each op over the devices it may run on: what orders and levels count.
///
/// Parameters
/// ----------
/// graph : Graph
/// cluster : Cluster
/// time : float64 [n_ops, n_types]
///     Seconds.
///
/// Returns
/// -------
/// float64 [n_ops]
///
/// Examples
/// --------
/// >>> import numpy as np
/// >>> from loadmaster import fast
/// >>> g = fast.Graph(1, np.array([], dtype=int), np.array([], dtype=int))
/// >>> both = [("a", "b", 1e9, 0.0, []), ("b", "a", 1e9, 0.0, [])]
/// >>> c = fast.Cluster([("a", "gpu", 1), ("b", "cpu", 1)], both)
/// >>> fast.mean_time(g, c, np.array([[1.0, 3.0]])).tolist()
/// [2.0]
#[pyfunction]
pub fn mean_time<'py>(
    py: Python<'py>,
    graph: &Graph,
    cluster: &Cluster,
    time: &Bound<'_, PyAny>,
) -> PyResult<Floats<'py>> {
    let time = times(graph, cluster, time)?;
    Ok(graph.by_index(time.mean(&graph.work, &cluster.core)).into_pyarray(py))
}
