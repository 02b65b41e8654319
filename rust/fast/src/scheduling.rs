//! List scheduling in `loadmaster.fast`.

use loadmaster_core::Error;
use loadmaster_core::border::{first_wrong, is_no_time};
use loadmaster_core::clock::Ticks;
use loadmaster_core::ids::{DeviceId, OpId};
use loadmaster_core::place::adjusting::adjusting;
use loadmaster_core::schedule::admission::Admission;
use loadmaster_core::schedule::list::{self, Choice, Limit};
use loadmaster_core::schedule::placed::Paths;
use loadmaster_core::schedule::queues::DELAY_WEIGHT;
use loadmaster_core::schedule::{Engine, append, earliest, optimistic};
use numpy::{IntoPyArray, PyArray2, PyArrayMethods};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::convert;
use crate::graph::{Floats, Graph, Ids};
use crate::problem::Problem;
use crate::weights::{Weights, control_seconds};

type Schedules<'py> = (Ids<'py>, Floats<'py>, Floats<'py>);

/// Seconds per op and device type, any finite ones >= 0.
pub fn matrix(argument: &str, graph: &Graph, values: &Bound<'_, PyAny>, k: usize) -> PyResult<Vec<f64>> {
    let values = convert::time_matrix(argument, values, graph.work.n_ops(), k)?;
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

/// An index below `limit` per op, -1 for none. Empty if the argument is absent.
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

/// Runs a list scheduler on a fresh engine; none if it gives up.
fn scheduled<'py>(
    py: Python<'py>,
    problem: &Problem,
    run: impl FnOnce(&mut Engine<'_>) -> PyResult<bool>,
) -> PyResult<Option<Schedules<'py>>> {
    let (p, work, lead) = (problem, problem.work(), problem.leads());
    let charge = p.rules.op_bytes.as_ref().map(|_| p.rules.charges_of_leads(work));
    let mut engine = py.detach(|| {
        let admission = match &charge {
            Some(charge) => Admission::Charged(p.rules.memory(work, &p.cluster, charge)),
            None => Admission::by_lifetimes(work, &p.cluster, lead, &p.rules.capacity, p.rules.on_oom),
        };
        let engine = Engine::new(work, &p.cluster, p.clock, &p.ticks, lead, p.rules.contention, admission);
        engine.launching(&p.dispatch)
    });
    if !run(&mut engine)? {
        return Ok(None);
    }
    let s = engine.into_scheduled();
    Ok(Some((p.devices(py, s.device), p.seconds(py, s.start), p.seconds(py, s.finish))))
}

/// Runs a list scheduler that is not interrupted.
fn scheduled_whole<'py>(
    py: Python<'py>,
    problem: &Problem,
    run: impl FnOnce(&mut Engine<'_>) -> Result<(), Error> + Send,
) -> PyResult<Schedules<'py>> {
    let schedules = scheduled(py, problem, |engine| {
        py.detach(|| run(engine)).map_err(|e| problem.graph.name(e))?;
        Ok(true)
    })?;
    Ok(schedules.expect("it does not give up"))
}

/// Ops scheduled between two looks at signals: some milliseconds where channels are congested.
const PART: usize = 512;

/// Runs the scheduler of [`list`], and now and then lets Python interrupt it. None as soon as the makespan is
/// certain not to be below the limit.
fn listed<'py>(
    py: Python<'py>,
    problem: &Problem,
    order: &Bound<'_, PyAny>,
    columns: (Option<&Bound<'_, PyAny>>, Option<&Bound<'_, PyAny>>),
    delay_weight: i64,
    (limit, progress): (Option<f64>, Option<&Bound<'_, PyAny>>),
) -> PyResult<Option<Schedules<'py>>> {
    let graph = &problem.graph;
    let order = graph.topological(order)?;
    let pinned = optional_ids("pinned", graph, columns.0, problem.cluster.n_devices())?;
    let pinned: Vec<DeviceId> = pinned.into_iter().map(DeviceId).collect();
    let k = problem.times.n_types();
    let bias = columns.1.map(|bias| matrix("bias", graph, bias, k)).transpose()?.unwrap_or_default();
    let bias: Vec<Ticks> = problem.clock.ticks_of(&bias);
    let choice = Choice { pinned: &pinned, bias: &bias };
    let Ok(weight) = Ticks::try_from(delay_weight) else {
        return Err(PyValueError::new_err(format!(
            "delay_weight is {delay_weight}: wants an integer, at least 0"
        )));
    };
    let limit = limit.map(|limit| Limit::new(problem.work(), &problem.ticks, k, problem.clock.ticks(limit)));
    scheduled(py, problem, |engine| {
        engine.weigh_delays(weight);
        let mut done = 0;
        for part in order.chunks(PART) {
            let below = py.detach(|| list::list(engine, part, choice, limit.as_ref()));
            if !below.map_err(|e| graph.name(e))? {
                return Ok(false);
            }
            done += part.len();
            py.check_signals()?;
            if let Some(progress) = progress {
                progress.call1((done, engine.pushed_back()))?;
            }
        }
        Ok(true)
    })
}

/// List scheduling: puts ops in order where they finish earliest, in an idle slot or at the end.
///
/// With descending upward ranks for `order` (see :func:`priority_order`) it is HEFT; with `pinned`
/// or `bias` it is CPoP, DPOS or PEFT. Ties go to the smaller device. O(D (E + V log V)); with
/// contention, plus the transfers that are pushed back.
///
/// With contention a transfer stands in its queue where first come, first served puts it. An op's transfers
/// can delay other ops: `delay_weight` times that delay is added to the op's finish when devices are
/// compared. As long as no op is delayed, the simulator finds the same schedule when it runs ops in the
/// order of their starts. Without contention it always does.
///
/// Memory counts resident bytes, and tensors from their producer to their last reader. If the
/// problem has `op_bytes`, these are charged for the whole step instead.
///
/// Parameters
/// ----------
/// problem : Problem
/// order : int [n_ops]
///     A topological order.
/// pinned : int [n_ops], optional
///     Device that an op takes if it has room there; -1: free to choose.
/// bias : float64 [n_ops, n_types], optional
///     Seconds added to an op's finish on a device of each type when devices are compared.
/// delay_weight : int
///     Weight of a second of delay of other ops against a second of the op's own, not negative. It
///     has no effect without contention.
/// progress : callable, optional
///     Called now and then with the number of ops scheduled so far, and how often a booked transfer was
///     worked out to be pushed back. What it raises ends the work, and so does Ctrl-C.
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
/// >>> p = fast.Problem(g, c, np.ones(4))
/// >>> devices, start, finish = fast.schedule(p, fast.m_topo(g))
/// >>> devices.tolist(), finish.tolist()
/// ([0, 0, 1, 1], [1.0, 2.0, 2.5, 3.5])
#[pyfunction]
#[pyo3(signature = (problem, order, *, pinned=None, bias=None, delay_weight=2, progress=None))]
pub fn schedule<'py>(
    py: Python<'py>,
    problem: &Problem,
    order: &Bound<'_, PyAny>,
    pinned: Option<&Bound<'_, PyAny>>,
    bias: Option<&Bound<'_, PyAny>>,
    delay_weight: i64,
    progress: Option<&Bound<'_, PyAny>>,
) -> PyResult<Schedules<'py>> {
    let schedules = listed(py, problem, order, (pinned, bias), delay_weight, (None, progress))?;
    Ok(schedules.expect("there is no limit"))
}

/// The same as :func:`schedule`; none, and sooner, where the makespan is certain not to be below a limit.
///
/// That is so once an op ends so late that what must run after it, each op on the fastest device type and no
/// transfer on the way, ends no earlier than the limit.
///
/// Parameters
/// ----------
/// problem : Problem
/// limit : float
///     Seconds, at least 0.
/// order, pinned, progress
///     As for :func:`schedule`.
///
/// Returns
/// -------
/// devices : int32 [n_ops]
/// start, finish : float64 [n_ops]
///     Seconds, as expected. Or None.
///
/// Raises
/// ------
/// InfeasibleError
///     An op that fits on no device it may use, before it is certain.
/// ValueError
///     A wrong dtype, shape or value.
///
/// Examples
/// --------
/// >>> import numpy as np
/// >>> from loadmaster import fast
/// >>> g = fast.Graph(2, np.array([0]), np.array([1]))
/// >>> p = fast.Problem(g, fast.Cluster([("a", "gpu", 12)], []), np.ones(2))
/// >>> fast.schedule_below(p, 2.0, fast.m_topo(g)) is None
/// True
#[pyfunction]
#[pyo3(signature = (problem, limit, order, *, pinned=None, progress=None))]
pub fn schedule_below<'py>(
    py: Python<'py>,
    problem: &Problem,
    limit: f64,
    order: &Bound<'_, PyAny>,
    pinned: Option<&Bound<'_, PyAny>>,
    progress: Option<&Bound<'_, PyAny>>,
) -> PyResult<Option<Schedules<'py>>> {
    convert::limit(limit)?;
    let weight = DELAY_WEIGHT as i64;
    listed(py, problem, order, (pinned, None), weight, (Some(limit), progress))
}

/// Adjusting Placement (Celeritas Algorithm 2).
///
/// An op stays on its predecessor's device in the order, unless another device lets it start earlier by
/// more than sending its output back costs. Starts are estimated on the engine's timelines (eq. (7)-(9)).
/// The paper's starts are those of a problem without contention. O(D (E + V log V)).
///
/// Parameters
/// ----------
/// problem : Problem
/// order : int [n_ops]
///     A topological order.
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
/// >>> p = fast.Problem(g, c, np.ones(3))
/// >>> fast.adjusting_placement(p, fast.m_topo(g))[0].tolist()
/// [0, 0, 1]
#[pyfunction]
pub fn adjusting_placement<'py>(
    py: Python<'py>,
    problem: &Problem,
    order: &Bound<'_, PyAny>,
) -> PyResult<Schedules<'py>> {
    let order = problem.graph.topological(order)?;
    scheduled_whole(py, problem, |engine| adjusting(engine, problem.clock, &order))
}

/// When ops of a given placement and order run: each at the end of its device, every tensor sent the moment
/// it is produced.
///
/// If every channel serves one pair of devices, or channels are unlimited, this is exactly what
/// :func:`simulate` finds by its policy "fixed". On shared channels it is an estimate. Memory is
/// not counted. O(V + E + transfers).
///
/// Parameters
/// ----------
/// problem : Problem
/// order : int [n_ops]
///     A topological order.
/// devices : int [n_ops]
///     Device per op.
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
/// >>> p = fast.Problem(g, c, np.ones(3))
/// >>> start, finish = fast.schedule_placed(p, fast.m_topo(g), np.array([0, 0, 1]))
/// >>> finish.tolist()
/// [1.0, 2.0, 2.5]
#[pyfunction]
pub fn schedule_placed<'py>(
    py: Python<'py>,
    problem: &Problem,
    order: &Bound<'_, PyAny>,
    devices: &Bound<'_, PyAny>,
) -> PyResult<(Floats<'py>, Floats<'py>)> {
    let order = problem.graph.topological(order)?;
    let placement = problem.placement(devices)?;
    let s = problem.run(py, |p| {
        let (work, cluster) = (p.work(), &p.cluster);
        work.check_placement(cluster, &placement)?;
        Ok(append::append(work, cluster, p.clock, &p.ticks, &placement, &order, p.rules.contention))
    })?;
    Ok((problem.seconds(py, s.start), problem.seconds(py, s.finish)))
}

/// Earliest time first (ETF): of all ready ops and devices, again and again the pair that starts first.
///
/// Ops are appended to a device. With `favourite` it is Baechi's m-SCT: a device whose last op has a
/// favourite child that is ready, or waits for its inputs to arrive, takes nothing that would delay it.
/// O(D (E + V log V)) without contention.
///
/// Parameters
/// ----------
/// problem : Problem
/// ties : int [n_ops]
///     Every op once: of pairs that start together, the op that stands first here goes first, then the
///     smaller device.
/// favourite : int [n_ops], optional
///     The favourite child of each op, -1 for none.
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
/// >>> p = fast.Problem(g, c, np.ones(3))
/// >>> devices, start, finish = fast.schedule_earliest(p, np.array([0, 1, 2]))
/// >>> devices.tolist(), start.tolist()
/// ([0, 0, 1], [0.0, 1.0, 0.0])
#[pyfunction]
#[pyo3(signature = (problem, ties, *, favourite=None))]
pub fn schedule_earliest<'py>(
    py: Python<'py>,
    problem: &Problem,
    ties: &Bound<'_, PyAny>,
    favourite: Option<&Bound<'_, PyAny>>,
) -> PyResult<Schedules<'py>> {
    let (graph, n) = (&problem.graph, problem.work().n_ops());
    let ties: Vec<OpId> =
        convert::indices("ties", ties, n, n)?.into_iter().map(|index| graph.op(index)).collect();
    let mut seen = vec![false; n];
    if ties.iter().any(|u| std::mem::replace(&mut seen[u.ix()], true)) {
        return Err(PyValueError::new_err("ties: must list every op once"));
    }
    let favourite = optional_ids("favourite", graph, favourite, n)?;
    let none_or_op = |index: u32| if index == u32::MAX { OpId::NONE } else { graph.op(index) };
    let favourite: Vec<OpId> = favourite.into_iter().map(none_or_op).collect();
    scheduled_whole(py, problem, |engine| earliest::earliest(engine, &ties, &favourite))
}

/// PEFT's optimistic cost table (Arabnejad and Barbosa 2014, eq. (1)).
///
/// The least seconds from an op's finish on a device of each type to the end, if every later op had its
/// best device for itself. O(E K^2) for K device types.
///
/// Parameters
/// ----------
/// problem : Problem
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
/// >>> p = fast.Problem(g, c, np.array([[1.0, 1.0], [4.0, 1.0]]))
/// >>> fast.optimistic_costs(p, np.ones(2)).tolist()
/// [[2.0, 1.0], [0.0, 0.0]]
#[pyfunction]
#[pyo3(signature = (problem, tensor_time, *, control_time=0.0))]
pub fn optimistic_costs<'py>(
    py: Python<'py>,
    problem: &Problem,
    tensor_time: &Bound<'_, PyAny>,
    control_time: f64,
) -> PyResult<Bound<'py, PyArray2<f64>>> {
    let (graph, n, k) = (&problem.graph, problem.work().n_ops(), problem.times.n_types());
    let tensor_time = convert::seconds("tensor_time", tensor_time, graph.tensor_ids(), true)?;
    let control = control_seconds(control_time)?;
    let table = problem.run(py, |p| {
        // A clock for ops that run on every type in turn. No path is longer than that.
        let time = p.times.matrix();
        let slowest: Vec<f64> = time.chunks(k).map(|row| row.iter().sum()).collect();
        let counted = Weights::counted(graph, &slowest, &graph.by_tensor(&tensor_time, control))?;
        let clock = counted.clock;
        let costs = optimistic::optimistic_costs(p.work(), k, &clock.ticks_of(time), &counted.tensor_time);
        Ok(clock.seconds_of(&costs))
    })?;
    graph.work.graph.numbering().rows_by_index(table, k).into_pyarray(py).reshape([n, k])
}

/// b-levels and a critical path of a placed graph: only tensors that change devices take time. O(V + E).
///
/// Parameters
/// ----------
/// problem : Problem
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
/// >>> p = fast.Problem(g, c, np.ones(3))
/// >>> b_level, critical = fast.placed_paths(p, np.array([0, 0, 1]))
/// >>> b_level.tolist(), critical.tolist()
/// ([2.5, 1.0, 1.0], [0, 2])
#[pyfunction]
pub fn placed_paths<'py>(
    py: Python<'py>,
    problem: &Problem,
    devices: &Bound<'_, PyAny>,
) -> PyResult<(Floats<'py>, Ids<'py>)> {
    let placement = problem.placement(devices)?;
    let paths = problem.run(py, |p| {
        p.work().check_placement(&p.cluster, &placement)?;
        Ok(Paths::placed(p.work(), &p.cluster, p.clock, &p.ticks, &placement))
    })?;
    let critical = problem.graph.indices(py, paths.critical.into_iter());
    Ok((problem.seconds(py, paths.bottom), critical))
}
