//! List scheduling in `loadmaster.fast`.

use loadmaster_core::Error;
use loadmaster_core::border::{first_wrong, is_no_time};
use loadmaster_core::clock::{Clock, Ticks};
use loadmaster_core::free_memory::{Memory, charge_to_leads};
use loadmaster_core::graph::Graph as CoreGraph;
use loadmaster_core::ids::{DeviceId, OpId};
use loadmaster_core::place::adjusting::adjusting;
use loadmaster_core::schedule::admission::Admission;
use loadmaster_core::schedule::list::{self, Choice};
use loadmaster_core::schedule::placed::Paths;
use loadmaster_core::schedule::{Engine, Scheduled, append, dominant, earliest, linear, optimistic, order};
use numpy::{IntoPyArray, PyArray1, PyArray2, PyArrayMethods};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::cluster::Cluster;
use crate::convert;
use crate::functions::{
    Floats, Ids, MemoryRules, control_seconds, device_ids, memory_rules, seconds, ticks, times, topological,
};
use crate::graph::{Graph, ids};

type Schedules<'py> = (Ids<'py>, Floats<'py>, Floats<'py>);

/// How memory and contention are counted while ops are scheduled.
struct Rules {
    memory: MemoryRules,
    /// Whether ops are charged given bytes, not tensors by their lifetimes.
    charged: bool,
    lead: Vec<OpId>,
    contention: bool,
}

fn rules(
    graph: &Graph,
    cluster: &Cluster,
    lead: Option<&Bound<'_, PyAny>>,
    op_bytes: Option<&Bound<'_, PyAny>>,
    capacity: Option<&Bound<'_, PyAny>>,
    best_effort: bool,
    contention: bool,
) -> PyResult<Rules> {
    let memory = memory_rules(graph, cluster, op_bytes, capacity, best_effort)?;
    Ok(Rules { memory, charged: op_bytes.is_some(), lead: leads(graph, lead)?, contention })
}

/// The op that decides for each: a member of its set, or one that stands for a whole set.
pub(crate) fn leads(graph: &Graph, lead: Option<&Bound<'_, PyAny>>) -> PyResult<Vec<OpId>> {
    let work = &graph.work;
    let Some(lead) = lead else { return Ok(work.lead.clone()) };
    let n = work.n_ops();
    let lead = convert::indices("lead", lead, n, n)?.into_iter().map(|index| graph.op(index)).collect();
    let lead: Vec<OpId> = graph.by_op(lead, 1);
    for u in work.graph.ops() {
        let l = lead[u.ix()];
        let first = work.sets.row(work.set_of[u.ix()] as usize)[0];
        let reason = if lead[l.ix()] != l {
            "that op follows another one"
        } else if lead[first.ix()] != l {
            "other ops of its colocation set follow another one"
        } else if work.allowed[l.ix()] != work.allowed[u.ix()] {
            "that op may run on other device types"
        } else {
            continue;
        };
        let (op, follows) = (work.graph.index(u), work.graph.index(l));
        return Err(PyValueError::new_err(format!("lead[{op}] is {follows}: {reason}")));
    }
    Ok(lead)
}

/// Seconds per op and device type, any finite ones >= 0; empty where absent.
fn optional_matrix(
    argument: &str,
    graph: &Graph,
    matrix: Option<&Bound<'_, PyAny>>,
    k: usize,
) -> PyResult<Vec<f64>> {
    let Some(matrix) = matrix else { return Ok(Vec::new()) };
    let n = graph.work.n_ops();
    let values = convert::time_matrix(argument, matrix, n, k)?;
    match first_wrong(&values, is_no_time) {
        None => Ok(graph.by_op(values, k)),
        Some(i) => Err(PyValueError::new_err(format!(
            "{argument}[{}, {}] is {}: it must be finite and not negative",
            i / k,
            i % k,
            values[i]
        ))),
    }
}

/// An index below `limit` per op, -1 for none; empty where absent.
fn optional_ids(
    argument: &str,
    graph: &Graph,
    values: Option<&Bound<'_, PyAny>>,
    limit: usize,
) -> PyResult<Vec<u32>> {
    let Some(values) = values else { return Ok(Vec::new()) };
    let n = graph.work.n_ops();
    let values = convert::integers(argument, values)?;
    if values.len() != n {
        return Err(convert::wrong_length(argument, values.len(), n));
    }
    match values.iter().position(|&v| v < -1 || v >= limit as i64) {
        // -1 as 32 bits is "none".
        None => Ok(graph.by_op(values.into_iter().map(|v| v as u32).collect(), 1)),
        Some(i) => Err(PyValueError::new_err(format!(
            "{argument}[{i}] is {}: it must be -1 to {}",
            values[i],
            limit - 1
        ))),
    }
}

/// A device per op.
pub(crate) fn placement(
    graph: &Graph,
    cluster: &Cluster,
    devices: &Bound<'_, PyAny>,
) -> PyResult<Vec<DeviceId>> {
    let devices = convert::indices("devices", devices, graph.work.n_ops(), cluster.core.n_devices())?;
    Ok(graph.by_op(devices.into_iter().map(DeviceId).collect(), 1))
}

/// Runs a list scheduler on a fresh engine.
fn scheduled<'py>(
    py: Python<'py>,
    graph: &Graph,
    cluster: &Cluster,
    time: &Bound<'_, PyAny>,
    rules: &Rules,
    run: impl FnOnce(&mut Engine<'_>, Clock) -> Result<(), Error> + Send,
) -> PyResult<Schedules<'py>> {
    let time = times(graph, cluster, time)?;
    let result = py.detach(|| -> Result<(Clock, Scheduled), Error> {
        let (work, cluster) = (&*graph.work, &cluster.core);
        let clock = work.clock(&time, cluster)?;
        let ticks = time.ticks(clock);
        let MemoryRules { bytes, capacity, on_oom } = &rules.memory;
        let charge = if rules.charged { charge_to_leads(&rules.lead, bytes) } else { Vec::new() };
        let admission = if rules.charged {
            Admission::Charged(Memory::new(work, cluster, &rules.lead, &charge, capacity, *on_oom))
        } else {
            Admission::by_lifetimes(work, cluster, &rules.lead, capacity, *on_oom)
        };
        let mut engine = Engine::new(work, cluster, clock, &ticks, &rules.lead, rules.contention, admission);
        run(&mut engine, clock)?;
        Ok((clock, engine.into_scheduled()))
    });
    let (clock, s) = result.map_err(|e| graph.name(e))?;
    Ok((
        device_ids(py, graph, s.device),
        seconds(py, graph, clock, s.start),
        seconds(py, graph, clock, s.finish),
    ))
}

/// List scheduling: ops in order, each where it finishes earliest, in an idle slot or at the end.
///
/// HEFT with descending upward ranks for `order` (see :func:`priority_order`); CPoP, DPOS and PEFT with
/// `pinned` or `bias`. With `contention` a transfer stands where first come, first served puts it, and to an
/// op's finish on a device is added `delay_weight` times the time by which its transfers make others come later
/// than they are wanted; as long as none does, the simulator finds the same schedule when it runs ops in the
/// order of their starts. Without it channels are unlimited, and the simulator always does. Ties: smaller device.
/// O(D (E + V log V)), and with contention the transfers pushed back.
///
/// Parameters
/// ----------
/// graph : Graph
/// cluster : Cluster
/// order : int [n_ops]
///     A topological order.
/// time : float64 [n_ops, n_types]
///     Seconds per op and device type.
/// pinned : int [n_ops], optional
///     Device that an op takes if it has room there; -1: free to choose.
/// bias : float64 [n_ops, n_types], optional
///     Seconds added to an op's finish on a device of each type when devices are compared.
/// lead : int [n_ops], optional
///     The op whose device each op takes (itself: decides alone); the graph's `lead` if absent.
/// op_bytes : uint64 [n_ops], optional
///     Bytes each op is charged for the whole step; if absent, residents count, and tensors from their
///     producer to their last reader.
/// capacity : uint64 [n_devices], optional
///     Bytes to fill; the devices' memory if absent.
/// best_effort : bool
///     Put an op that fits nowhere where most memory is free, instead of raising.
/// contention : bool
///     Whether channels carry one transfer at a time.
/// delay_weight : int
///     What a second by which others are delayed counts against one of the op's own, not negative; means
///     nothing without contention.
///
/// Returns
/// -------
/// devices : int32 [n_ops]
/// start, finish : float64 [n_ops]
///     Seconds, as expected.
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
/// >>> g = fast.Graph(4, np.array([0, 0, 1, 2]), np.array([1, 2, 3, 3]))
/// >>> both = [("a", "b", 1e9, 0.5, []), ("b", "a", 1e9, 0.5, [])]
/// >>> c = fast.Cluster([("a", "gpu", 12), ("b", "gpu", 12)], both)
/// >>> devices, start, finish = fast.schedule(g, c, fast.m_topo(g), np.ones(4))
/// >>> devices.tolist(), finish.tolist()
/// ([0, 0, 1, 1], [1.0, 2.0, 2.5, 3.5])
#[pyfunction]
#[pyo3(signature = (graph, cluster, order, time, *, pinned=None, bias=None, lead=None, op_bytes=None,
                    capacity=None, best_effort=false, contention=true, delay_weight=2))]
#[expect(clippy::too_many_arguments, reason = "a strategy's whole input")]
pub fn schedule<'py>(
    py: Python<'py>,
    graph: &Graph,
    cluster: &Cluster,
    order: &Bound<'_, PyAny>,
    time: &Bound<'_, PyAny>,
    pinned: Option<&Bound<'_, PyAny>>,
    bias: Option<&Bound<'_, PyAny>>,
    lead: Option<&Bound<'_, PyAny>>,
    op_bytes: Option<&Bound<'_, PyAny>>,
    capacity: Option<&Bound<'_, PyAny>>,
    best_effort: bool,
    contention: bool,
    delay_weight: i64,
) -> PyResult<Schedules<'py>> {
    let order = topological("order", graph, order)?;
    let k = cluster.core.types().len();
    let pinned = optional_ids("pinned", graph, pinned, cluster.core.n_devices())?;
    let pinned: Vec<DeviceId> = pinned.into_iter().map(DeviceId).collect();
    let bias = optional_matrix("bias", graph, bias, k)?;
    let Ok(weight) = Ticks::try_from(delay_weight) else {
        return Err(PyValueError::new_err(format!(
            "delay_weight is {delay_weight}: wants an integer, at least 0"
        )));
    };
    let rules = rules(graph, cluster, lead, op_bytes, capacity, best_effort, contention)?;
    scheduled(py, graph, cluster, time, &rules, |engine, clock| {
        engine.weigh_delays(weight);
        let bias: Vec<Ticks> = clock.ticks_of(&bias);
        list::list(engine, &order, Choice { pinned: &pinned, bias: &bias })
    })
}

/// Adjusting Placement (Celeritas Algorithm 2).
///
/// An op stays on its predecessor's device in the order, unless another one lets it start earlier by
/// more than sending its output back costs. Starts are estimated on the engine's timelines (eq. (7)-(9));
/// the paper's are those without contention. O(D (E + V log V)).
///
/// Parameters
/// ----------
/// graph : Graph
/// cluster : Cluster
/// order : int [n_ops]
///     A topological order.
/// time : float64 [n_ops, n_types] (or [n_ops] where there is one type)
///     Seconds.
/// op_bytes : uint64 [n_ops], optional
///     Bytes each op is charged for the whole step; if absent, residents count, and tensors from their
///     producer to their last reader.
/// capacity : uint64 [n_devices], optional
///     Bytes to fill; the devices' memory if absent.
/// best_effort : bool
///     Put an op that fits nowhere where most memory is free, instead of raising.
/// contention : bool
///     Whether channels carry one transfer at a time.
///
/// Returns
/// -------
/// devices : int32 [n_ops]
/// start, finish : float64 [n_ops]
///     Estimated seconds.
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
/// >>> fast.adjusting_placement(g, c, fast.m_topo(g), np.ones(3))[0].tolist()
/// [0, 0, 1]
#[pyfunction]
#[pyo3(signature = (graph, cluster, order, time, *, op_bytes=None, capacity=None, best_effort=false,
                    contention=true))]
#[expect(clippy::too_many_arguments, reason = "a strategy's whole input")]
pub fn adjusting_placement<'py>(
    py: Python<'py>,
    graph: &Graph,
    cluster: &Cluster,
    order: &Bound<'_, PyAny>,
    time: &Bound<'_, PyAny>,
    op_bytes: Option<&Bound<'_, PyAny>>,
    capacity: Option<&Bound<'_, PyAny>>,
    best_effort: bool,
    contention: bool,
) -> PyResult<Schedules<'py>> {
    let order = topological("order", graph, order)?;
    let rules = rules(graph, cluster, None, op_bytes, capacity, best_effort, contention)?;
    scheduled(py, graph, cluster, time, &rules, |engine, clock| adjusting(engine, clock, &order))
}

/// When ops of a given placement and order run: each at the end of its device, every tensor sent the moment
/// it is produced.
///
/// Exactly what :func:`simulate` finds by its policy "fixed", where every channel serves one pair of devices
/// (or `contention` is off); an estimate on shared channels. Memory is not counted. O(V + E + transfers).
///
/// Parameters
/// ----------
/// graph : Graph
/// cluster : Cluster
/// order : int [n_ops]
///     A topological order.
/// time : float64 [n_ops, n_types]
///     Seconds per op and device type.
/// devices : int [n_ops]
///     Device per op.
/// contention : bool
///     Whether channels carry one transfer at a time.
///
/// Returns
/// -------
/// start, finish : float64 [n_ops]
///     Seconds.
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
/// >>> g = fast.Graph(3, np.array([0, 0]), np.array([1, 2]))
/// >>> both = [("a", "b", 1e9, 0.5, []), ("b", "a", 1e9, 0.5, [])]
/// >>> c = fast.Cluster([("a", "gpu", 12), ("b", "gpu", 12)], both)
/// >>> start, finish = fast.schedule_placed(g, c, fast.m_topo(g), np.ones(3), np.array([0, 0, 1]))
/// >>> finish.tolist()
/// [1.0, 2.0, 2.5]
#[pyfunction]
#[pyo3(signature = (graph, cluster, order, time, devices, *, contention=true))]
pub fn schedule_placed<'py>(
    py: Python<'py>,
    graph: &Graph,
    cluster: &Cluster,
    order: &Bound<'_, PyAny>,
    time: &Bound<'_, PyAny>,
    devices: &Bound<'_, PyAny>,
    contention: bool,
) -> PyResult<(Floats<'py>, Floats<'py>)> {
    let order = topological("order", graph, order)?;
    let time = times(graph, cluster, time)?;
    let placement = placement(graph, cluster, devices)?;
    let result = py.detach(|| -> Result<(Clock, Scheduled), Error> {
        let (work, cluster) = (&*graph.work, &cluster.core);
        work.check_placement(cluster, &placement)?;
        let clock = work.clock(&time, cluster)?;
        let ticks = time.ticks(clock);
        Ok((clock, append::append(work, cluster, clock, &ticks, &placement, &order, contention)))
    });
    let (clock, s) = result.map_err(|e| graph.name(e))?;
    Ok((seconds(py, graph, clock, s.start), seconds(py, graph, clock, s.finish)))
}

/// Earliest time first (ETF): of all ready ops and devices, again and again the pair that starts first.
///
/// Ops are appended to a device. With `favourite` it is Baechi's m-SCT: a device whose last op has a
/// favourite child that is ready, or waits for its inputs to arrive, takes nothing that would delay it.
/// Memory, leads and contention as in :func:`schedule`. O(D (E + V log V)) without contention.
///
/// Parameters
/// ----------
/// graph : Graph
/// cluster : Cluster
/// time : float64 [n_ops, n_types]
///     Seconds per op and device type.
/// ties : int [n_ops]
///     Every op once: of pairs that start together, the op that stands first here goes first, then the
///     smaller device.
/// favourite : int [n_ops], optional
///     The favourite child of each op, -1 for none.
/// lead, op_bytes, capacity, best_effort, contention
///     See :func:`schedule`.
///
/// Returns
/// -------
/// devices : int32 [n_ops]
/// start, finish : float64 [n_ops]
///     Seconds, as expected.
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
/// >>> g = fast.Graph(3, np.array([0]), np.array([1]))
/// >>> both = [("a", "b", 1e9, 0.5, []), ("b", "a", 1e9, 0.5, [])]
/// >>> c = fast.Cluster([("a", "gpu", 12), ("b", "gpu", 12)], both)
/// >>> devices, start, finish = fast.schedule_earliest(g, c, np.ones(3), np.array([0, 1, 2]))
/// >>> devices.tolist(), start.tolist()
/// ([0, 0, 1], [0.0, 1.0, 0.0])
#[pyfunction]
#[pyo3(signature = (graph, cluster, time, ties, *, favourite=None, lead=None, op_bytes=None, capacity=None,
                    best_effort=false, contention=true))]
#[expect(clippy::too_many_arguments, reason = "a strategy's whole input")]
pub fn schedule_earliest<'py>(
    py: Python<'py>,
    graph: &Graph,
    cluster: &Cluster,
    time: &Bound<'_, PyAny>,
    ties: &Bound<'_, PyAny>,
    favourite: Option<&Bound<'_, PyAny>>,
    lead: Option<&Bound<'_, PyAny>>,
    op_bytes: Option<&Bound<'_, PyAny>>,
    capacity: Option<&Bound<'_, PyAny>>,
    best_effort: bool,
    contention: bool,
) -> PyResult<Schedules<'py>> {
    let n = graph.work.n_ops();
    let ties: Vec<OpId> =
        convert::indices("ties", ties, n, n)?.into_iter().map(|index| graph.op(index)).collect();
    let mut seen = vec![false; n];
    if ties.iter().any(|u| std::mem::replace(&mut seen[u.ix()], true)) {
        return Err(PyValueError::new_err("ties: must list every op once"));
    }
    let favourite = optional_ids("favourite", graph, favourite, n)?;
    let none_or_op = |index: u32| if index == u32::MAX { OpId::NONE } else { graph.op(index) };
    let favourite: Vec<OpId> = favourite.into_iter().map(none_or_op).collect();
    let rules = rules(graph, cluster, lead, op_bytes, capacity, best_effort, contention)?;
    scheduled(py, graph, cluster, time, &rules, |engine, _| earliest::earliest(engine, &ties, &favourite))
}

/// The topological order that always takes the ready op of highest priority.
///
/// With b-levels (upward ranks) it is HEFT's list. Ties: smaller op. O(E + V log V).
///
/// Parameters
/// ----------
/// graph : Graph
/// priority : float64 [n_ops]
///     Not NaN.
///
/// Returns
/// -------
/// int32 [n_ops]
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
/// >>> g = fast.Graph(3, np.array([0]), np.array([2]))
/// >>> fast.priority_order(g, np.array([1.0, 2.0, 9.0])).tolist()
/// [1, 0, 2]
#[pyfunction]
pub fn priority_order<'py>(
    py: Python<'py>,
    graph: &Graph,
    priority: &Bound<'_, PyAny>,
) -> PyResult<Ids<'py>> {
    let priority = graph.by_op(convert::seconds("priority", priority, graph.work.n_ops(), false)?, 1);
    // Floats that are not negative compare as their bits do.
    let bits: Vec<u64> = priority.iter().map(|p| (p + 0.0).to_bits()).collect();
    let order = py.detach(|| order::by_priority(&graph.work.graph, &bits));
    Ok(graph.indices(py, order.into_iter()))
}

/// PEFT's optimistic cost table (Arabnejad and Barbosa 2014, eq. (1)).
///
/// The least seconds from an op's finish on a device of each type to the end, if every later op had its
/// best device for itself. O(E K^2) for K device types.
///
/// Parameters
/// ----------
/// graph : Graph
/// cluster : Cluster
/// time : float64 [n_ops, n_types]
///     Seconds per op and device type.
/// tensor_time : float64 [n_tensor_ids]
///     Seconds a transfer takes between an average pair of devices, by tensor id.
/// control_time : float
///     Seconds a message without data takes.
///
/// Returns
/// -------
/// float64 [n_ops, n_types]
///     Seconds.
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
/// >>> g = fast.Graph(2, np.array([0]), np.array([1]))
/// >>> both = [("a", "b", 1e9, 0.5, []), ("b", "a", 1e9, 0.5, [])]
/// >>> c = fast.Cluster([("a", "cpu", 12), ("b", "gpu", 12)], both)
/// >>> fast.optimistic_costs(g, c, np.array([[1.0, 1.0], [4.0, 1.0]]), np.ones(2)).tolist()
/// [[2.0, 1.0], [0.0, 0.0]]
#[pyfunction]
#[pyo3(signature = (graph, cluster, time, tensor_time, *, control_time=0.0))]
pub fn optimistic_costs<'py>(
    py: Python<'py>,
    graph: &Graph,
    cluster: &Cluster,
    time: &Bound<'_, PyAny>,
    tensor_time: &Bound<'_, PyAny>,
    control_time: f64,
) -> PyResult<Bound<'py, PyArray2<f64>>> {
    let (n, k) = (graph.work.n_ops(), cluster.core.types().len());
    let time = optional_matrix("time", graph, Some(time), k)?;
    let tensor_time = convert::seconds("tensor_time", tensor_time, graph.tensor_ids(), true)?;
    let control = control_seconds(control_time)?;
    let result = py.detach(|| -> Result<Vec<f64>, Error> {
        // The clock of ops that take their time on every type in turn: no path is longer.
        let slowest: Vec<f64> = time.chunks(k).map(|row| row.iter().sum()).collect();
        let (clock, _, tensors) = ticks(graph, &slowest, &tensor_time, control)?;
        let table = optimistic::optimistic_costs(&graph.work, k, &clock.ticks_of(&time), &tensors);
        Ok(clock.seconds_of(&table))
    });
    let table = graph.work.graph.numbering().rows_by_index(result.map_err(|e| graph.name(e))?, k);
    table.into_pyarray(py).reshape([n, k])
}

/// The ops of a longest path, in order; of several paths the one of the smallest ops.
///
/// Paths count op times and the transfer time of each tensor followed, as in :func:`levels`. O(V + E).
///
/// Parameters
/// ----------
/// graph, op_time, tensor_time, control_time
///     See :func:`levels`.
///
/// Returns
/// -------
/// int32 [n_critical]
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
/// >>> g = fast.Graph(4, np.array([0, 0, 1, 2]), np.array([1, 2, 3, 3]))
/// >>> fast.critical_path(g, np.array([1.0, 1.0, 5.0, 1.0]), np.zeros(4)).tolist()
/// [0, 2, 3]
#[pyfunction]
#[pyo3(signature = (graph, op_time, tensor_time, *, control_time=0.0))]
pub fn critical_path<'py>(
    py: Python<'py>,
    graph: &Graph,
    op_time: &Bound<'_, PyAny>,
    tensor_time: &Bound<'_, PyAny>,
    control_time: f64,
) -> PyResult<Ids<'py>> {
    let op_time = graph.by_op(convert::seconds("op_time", op_time, graph.work.n_ops(), false)?, 1);
    let tensor_time = convert::seconds("tensor_time", tensor_time, graph.tensor_ids(), true)?;
    let control = control_seconds(control_time)?;
    let result = py.detach(|| -> Result<Paths, Error> {
        let (_, op_time, tensor_time) = ticks(graph, &op_time, &tensor_time, control)?;
        Ok(Paths::new(&graph.work.graph, &op_time, |t, _| tensor_time[t.ix()]))
    });
    let paths = result.map_err(|e| graph.name(e))?;
    Ok(graph.indices(py, paths.critical.into_iter()))
}

/// b-levels and a critical path of a placed graph: only tensors that change devices take time. O(V + E).
///
/// Parameters
/// ----------
/// graph : Graph
/// cluster : Cluster
/// time : float64 [n_ops, n_types]
///     Seconds per op and device type.
/// devices : int [n_ops]
///     Device per op.
///
/// Returns
/// -------
/// b_level : float64 [n_ops]
///     Seconds; the largest is the length of the critical path.
/// critical : int32 [n_critical]
///     Its ops, in order; of several paths the one of the smallest ops.
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
/// >>> g = fast.Graph(3, np.array([0, 0]), np.array([1, 2]))
/// >>> both = [("a", "b", 1e9, 0.5, []), ("b", "a", 1e9, 0.5, [])]
/// >>> c = fast.Cluster([("a", "gpu", 12), ("b", "gpu", 12)], both)
/// >>> b_level, critical = fast.placed_paths(g, c, np.ones(3), np.array([0, 0, 1]))
/// >>> b_level.tolist(), critical.tolist()
/// ([2.5, 1.0, 1.0], [0, 2])
#[pyfunction]
pub fn placed_paths<'py>(
    py: Python<'py>,
    graph: &Graph,
    cluster: &Cluster,
    time: &Bound<'_, PyAny>,
    devices: &Bound<'_, PyAny>,
) -> PyResult<(Floats<'py>, Bound<'py, PyArray1<i32>>)> {
    let time = times(graph, cluster, time)?;
    let placement = placement(graph, cluster, devices)?;
    let result = py.detach(|| -> Result<(Clock, Paths), Error> {
        let (work, cluster) = (&*graph.work, &cluster.core);
        work.check_placement(cluster, &placement)?;
        let clock = work.clock(&time, cluster)?;
        Ok((clock, Paths::placed(work, cluster, clock, &time.ticks(clock), &placement)))
    });
    let (clock, paths) = result.map_err(|e| graph.name(e))?;
    Ok((seconds(py, graph, clock, paths.bottom), graph.indices(py, paths.critical.into_iter())))
}

/// Groups of ops from their times, as whole ticks.
fn clustered<'py>(
    py: Python<'py>,
    graph: &Graph,
    op_time: &Bound<'_, PyAny>,
    tensor_time: &Bound<'_, PyAny>,
    control_time: f64,
    cluster: impl FnOnce(&CoreGraph, &[Ticks], &[Ticks]) -> Vec<u32> + Send,
) -> PyResult<Ids<'py>> {
    let op_time = graph.by_op(convert::seconds("op_time", op_time, graph.work.n_ops(), false)?, 1);
    let tensor_time = convert::seconds("tensor_time", tensor_time, graph.tensor_ids(), true)?;
    let control = control_seconds(control_time)?;
    let result = py.detach(|| -> Result<Vec<u32>, Error> {
        let (_, op_time, tensor_time) = ticks(graph, &op_time, &tensor_time, control)?;
        Ok(cluster(&graph.work.graph, &op_time, &tensor_time))
    });
    Ok(ids(py, graph.by_index(result.map_err(|e| graph.name(e))?).into_iter()))
}

/// Linear clustering (LC, Kim and Browne 1988).
///
/// The critical path becomes a group, then that of the ops left over, and so on. O((V + E) log V) where few
/// levels change per path; O(V (V + E)) at worst.
///
/// Parameters
/// ----------
/// graph, op_time, tensor_time, control_time
///     See :func:`levels`.
///
/// Returns
/// -------
/// int32 [n_ops]
///     Group per op. The groups may depend on each other in a circle: they say what goes together, and are
///     not for :func:`contract`.
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
/// >>> g = fast.Graph(3, np.array([0, 0]), np.array([1, 2]))
/// >>> fast.linear_clusters(g, np.ones(3), np.full(3, 1.0)).tolist()
/// [0, 0, 1]
#[pyfunction]
#[pyo3(signature = (graph, op_time, tensor_time, *, control_time=0.0))]
pub fn linear_clusters<'py>(
    py: Python<'py>,
    graph: &Graph,
    op_time: &Bound<'_, PyAny>,
    tensor_time: &Bound<'_, PyAny>,
    control_time: f64,
) -> PyResult<Ids<'py>> {
    clustered(py, graph, op_time, tensor_time, control_time, linear::linear)
}

/// Dominant sequence clustering (DSC, Yang and Gerasoulis 1994).
///
/// Ops by t-level + b-level, each at the end of the producer's group that lets it start earliest, or in a
/// group of its own. O((V + E) log V).
///
/// Parameters
/// ----------
/// graph, op_time, tensor_time, control_time
///     See :func:`levels`.
///
/// Returns
/// -------
/// int32 [n_ops]
///     Group per op. The groups may depend on each other in a circle: they say what goes together, and are
///     not for :func:`contract`.
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
/// >>> g = fast.Graph(3, np.array([0, 0]), np.array([1, 2]))
/// >>> fast.dominant_sequences(g, np.ones(3), np.full(3, 0.5)).tolist()
/// [0, 0, 1]
#[pyfunction]
#[pyo3(signature = (graph, op_time, tensor_time, *, control_time=0.0))]
pub fn dominant_sequences<'py>(
    py: Python<'py>,
    graph: &Graph,
    op_time: &Bound<'_, PyAny>,
    tensor_time: &Bound<'_, PyAny>,
    control_time: f64,
) -> PyResult<Ids<'py>> {
    clustered(py, graph, op_time, tensor_time, control_time, dominant::dominant)
}
