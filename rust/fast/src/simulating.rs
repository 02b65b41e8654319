//! The simulator and lower bounds in `loadmaster.fast`.

use std::sync::Arc;

use loadmaster_core::bounds::{self as core_bounds, Source};
use loadmaster_core::clock::Ticks;
use loadmaster_core::simulate::{LinkOrder, Options, Policy, Simulator};
use numpy::{IntoPyArray, PyArray2, PyArrayMethods};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::convert;
use crate::problem::Problem;
use crate::schedule::Schedule;

type Matrix<'py> = Bound<'py, PyArray2<f64>>;

/// Simulates one step of a placed graph: the judge of every strategy.
///
/// O((V + E + T) log V) for T transfers.
///
/// Parameters
/// ----------
/// problem : Problem
/// devices : int [n_ops]
///     Device per op.
/// priority : int [n_ops], optional
///     Smaller runs first; the ops' numbering if absent.
/// policy : str
///     Which ready op a free device takes: "priority", "fifo" (ready longest), "random" (seeded) or
///     "fixed" (exactly the sequence of priorities).
/// link_order : str
///     How a channel serves its queue: "fifo" or "priority" (of the consumers).
/// seed : int, optional
///     For "random"; 0 if absent.
/// record_memory : bool
///     Keep every change of memory use for :meth:`Schedule.memory`, and all tensors that are alive at
///     the first overflow, not only the largest eight.
///
/// Returns
/// -------
/// Schedule
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
/// >>> p = fast.Problem(g, c, np.array([1.0, 2.0]))
/// >>> fast.simulate(p, np.array([0, 1])).makespan
/// 4.5
#[pyfunction]
#[pyo3(signature = (problem, devices, priority=None, *, policy="priority", link_order="fifo", seed=None,
                    record_memory=false))]
pub fn simulate(
    problem: &Bound<'_, Problem>,
    devices: &Bound<'_, PyAny>,
    priority: Option<&Bound<'_, PyAny>>,
    policy: &str,
    link_order: &str,
    seed: Option<&Bound<'_, PyAny>>,
    record_memory: bool,
) -> PyResult<Schedule> {
    let options = Options { record_memory, ..options(problem.get(), policy, link_order, seed)? };
    let schedule = simulated(problem, devices, priority, options, Ticks::MAX)?;
    Ok(schedule.expect("every makespan is below all ticks"))
}

/// Simulates one step as :func:`simulate`, unless the makespan is certain not to be below a limit.
///
/// The simulation stops once some device has at least as much left to compute as there is time
/// until the limit.
///
/// Parameters
/// ----------
/// problem : Problem
/// limit : float
///     Seconds.
/// devices, priority, policy, link_order, seed
///     See :func:`simulate`.
///
/// Returns
/// -------
/// Schedule or None
///
/// Raises
/// ------
/// ValueError
///     As :func:`simulate`.
///
/// Examples
/// --------
/// >>> import numpy as np
/// >>> from loadmaster import fast
/// >>> g = fast.Graph(2, np.array([0]), np.array([1]))
/// >>> p = fast.Problem(g, fast.Cluster([("a", "gpu", 1)], []), np.ones(2))
/// >>> fast.simulate_below(p, 1.5, np.array([0, 0])) is None
/// True
#[pyfunction]
#[pyo3(signature = (problem, limit, devices, priority=None, *, policy="priority", link_order="fifo",
                    seed=None))]
pub fn simulate_below(
    problem: &Bound<'_, Problem>,
    limit: f64,
    devices: &Bound<'_, PyAny>,
    priority: Option<&Bound<'_, PyAny>>,
    policy: &str,
    link_order: &str,
    seed: Option<&Bound<'_, PyAny>>,
) -> PyResult<Option<Schedule>> {
    convert::limit(limit)?;
    let options = options(problem.get(), policy, link_order, seed)?;
    simulated(problem, devices, priority, options, problem.get().clock.ticks(limit))
}

/// Options for the names of policies, without a record of memory.
fn options(
    problem: &Problem,
    policy: &str,
    link_order: &str,
    seed: Option<&Bound<'_, PyAny>>,
) -> PyResult<Options> {
    let seed = seed.map(|s| convert::unsigned("seed", s)).transpose()?.unwrap_or(0);
    let policies = Policy::named(seed);
    let Some(&(_, policy)) = policies.iter().find(|(name, _)| *name == policy) else {
        let names = policies.map(|(name, _)| format!("{name:?}"));
        let (last, others) = names.split_last().expect("there are policies");
        return Err(PyValueError::new_err(format!(
            "policy: got {policy:?}, wants {} or {last}",
            others.join(", ")
        )));
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
    Ok(Options { policy, contention: problem.rules.contention.then_some(link_order), record_memory: false })
}

/// Simulates a placement; none if the makespan is not below `limit`.
fn simulated(
    problem: &Bound<'_, Problem>,
    devices: &Bound<'_, PyAny>,
    priority: Option<&Bound<'_, PyAny>>,
    options: Options,
    limit: Ticks,
) -> PyResult<Option<Schedule>> {
    let (py, problem) = (problem.py(), problem.get());
    let n = problem.work().n_ops();
    let placement = problem.placement(devices)?;
    let priority = match priority {
        Some(priority) => convert::priorities(priority, n)?,
        None => (0..n as i32).collect(),
    };
    let priority = problem.graph.by_op(priority, 1);
    let core = problem.run(py, |p| {
        let simulator = Simulator::counted(p.work(), &p.cluster, p.clock, &p.ticks, &p.dispatch);
        simulator.run_below(&placement, &priority, options, limit)
    })?;
    let (clock, work) = (problem.clock, &problem.graph.work);
    Ok(core.map(|core| Schedule { core, clock, work: Arc::clone(work), placement }))
}

/// Lower bounds on the makespan of any placement.
///
/// ``critical_path`` (fastest allowed types, free transfers), ``work`` (over capacity, a linear program
/// over device types), ``forced_transfers`` (critical path with the transfers that joins and forks
/// force), ``heads_and_tails`` (work between them), ``launches`` (over hosts), ``best`` and its
/// ``source``. O((V + E log d) T^2) for T types and d neighbours, and a few hundred passes over the ops where there are several types.
///
/// Parameters
/// ----------
/// problem : Problem
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
/// >>> p = fast.Problem(g, c, np.ones(4))
/// >>> round(fast.bounds(p)["best"], 6)
/// 2.0
#[pyfunction]
pub fn bounds<'py>(py: Python<'py>, problem: &Problem) -> PyResult<Bound<'py, PyDict>> {
    let found = problem.run(py, |p| core_bounds::bounds(p.work(), &p.cluster, &p.times))?;
    let source = match found.source {
        Source::CriticalPath => "critical path",
        Source::Work => "work over capacity",
        Source::ForcedTransfers => "critical path with forced transfers",
        Source::HeadsAndTails => "work between heads and tails",
        Source::Launches => "launches over hosts",
    };
    let dict = PyDict::new(py);
    dict.set_item("critical_path", found.critical_path)?;
    dict.set_item("work", found.work)?;
    dict.set_item("forced_transfers", found.forced_transfers)?;
    dict.set_item("heads_and_tails", found.heads_and_tails)?;
    dict.set_item("launches", found.launches)?;
    dict.set_item("best", found.best)?;
    dict.set_item("source", source)?;
    Ok(dict)
}

/// Least times before each op starts and after it ends, in any placement and order.
///
/// Predecessors on the op's device run one after another, and the outputs of all others are sent.
/// The same holds for successors. O(E T^2 log d) for T types and d neighbours.
///
/// Parameters
/// ----------
/// problem : Problem
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
/// >>> p = fast.Problem(g, c, np.array([2.0, 3.0]))
/// >>> heads, tails = fast.heads_and_tails(p)
/// >>> heads.ravel().tolist(), tails.ravel().tolist()
/// ([0.0, 2.0], [3.0, 0.0])
#[pyfunction]
pub fn heads_and_tails<'py>(py: Python<'py>, problem: &Problem) -> PyResult<(Matrix<'py>, Matrix<'py>)> {
    let shape = [problem.work().n_ops(), problem.times.n_types()];
    let (heads, tails) = problem.run(py, |p| core_bounds::heads_and_tails(p.work(), &p.cluster, &p.times))?;
    Ok((heads.into_pyarray(py).reshape(shape)?, tails.into_pyarray(py).reshape(shape)?))
}
