//! Local search in `loadmaster.fast`.

use std::time::{Duration, Instant};

use loadmaster_core::Error;
use loadmaster_core::border::is_no_time;
use loadmaster_core::clock::{Clock, Ticks};
use loadmaster_core::ids::{DeviceId, OpId};
use loadmaster_core::search::anneal::{Found, Stop};
use loadmaster_core::search::chains::Chains;
use loadmaster_core::search::problem::Problem;
use loadmaster_core::search::refine;
use loadmaster_core::search::windows::Windows;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::cluster::Cluster;
use crate::convert;
use crate::functions::{Ids, MemoryRules, device_ids, memory_rules, times, topological};
use crate::graph::Graph;
use crate::scheduling::{leads, placement};

/// Moves of each chain before their speed is known.
const FIRST_SLICE: u64 = 32;

/// Moves of each chain before the first report of a search that counts them.
const FIRST_REPORT: u64 = 4096;

/// How long the chains run before Ctrl-C and the clock are looked at.
const SLICE: Duration = Duration::from_millis(50);

/// Devices, order, makespan, moves or windows done, visits.
type Search<'py> = (Ids<'py>, Ids<'py>, f64, u64, u64);

/// Local search from a placement and an order: annealing over both, never worse than the start.
///
/// What is searched for is the makespan of :func:`schedule_placed`, which is exactly the simulator's (policy
/// "fixed") where every channel serves one pair of devices, and an estimate on shared channels. Colocated
/// sets stay together, device types and capacities are obeyed at every step. Without `time_limit` the result
/// depends on the input, `seed` and `chains` alone, whatever the machine and the number of threads.
/// O(V + E) per move at worst. Can be interrupted.
///
/// Parameters
/// ----------
/// graph : Graph
/// cluster : Cluster
///     At most 64 devices.
/// time : float64 [n_ops, n_types]
///     Seconds per op and device type.
/// devices : int [n_ops]
///     The placement to start from.
/// order : int [n_ops]
///     The topological order to start from.
/// op_bytes : uint64 [n_ops], optional
///     Bytes each op is charged for the whole step; if absent, residents and outputs.
/// capacity : uint64 [n_devices], optional
///     Bytes to fill; the devices' memory if absent.
/// lead : int [n_ops], optional
///     The op with which each op moves; its colocated set's first if absent.
/// seed : int
/// moves : int, optional
///     Moves that each chain makes.
/// visits : int, optional
///     Visits of ops after which a chain stops: the time it takes, but the same on any machine.
/// time_limit : float, optional
///     Seconds after which the search stops. Of `moves`, `visits` and this at least one is needed.
/// patience : int, optional
///     Visits of ops without a better state after which a chain stops.
/// target : float
///     A makespan, in seconds, that is short enough to stop at.
/// chains : int
///     Independent chains, which learn the best state found after every 16,384 moves.
/// threads : int
///     How many run at a time.
/// progress : callable, optional
///     Called with devices, order and makespan of what is best so far, if there is news: some 20 times a
///     second, or, where `moves` or `visits` are given, after the 4,096th move of each chain and then
///     whenever the number of moves has doubled.
///
/// Returns
/// -------
/// devices, order : int32 [n_ops]
/// makespan : float
///     Seconds.
/// moves_done : int
///     Of all chains.
/// visits_done : int
///     Of the chain with most.
///
/// Raises
/// ------
/// ValueError
///     A wrong dtype, shape or value; a start that breaks a rule or overfills a device.
/// InputError
///     Ops of the start on devices they may not use.
///
/// Examples
/// --------
/// >>> import numpy as np
/// >>> from loadmaster import fast
/// >>> g = fast.Graph(4, np.array([0, 2]), np.array([1, 3]))
/// >>> both = [("a", "b", 1e9, 0.5, []), ("b", "a", 1e9, 0.5, [])]
/// >>> c = fast.Cluster([("a", "gpu", 12), ("b", "gpu", 12)], both)
/// >>> start = np.zeros(4, dtype=np.int32)
/// >>> devices, order, makespan, *_ = fast.search(g, c, np.ones(4), start, fast.m_topo(g), moves=10_000)
/// >>> makespan
/// 2.0
#[pyfunction]
#[pyo3(signature = (graph, cluster, time, devices, order, *, op_bytes=None, capacity=None, lead=None, seed=None,
                    moves=None, visits=None, time_limit=None, patience=None, target=0.0, chains=1, threads=1, progress=None))]
#[expect(clippy::too_many_arguments, reason = "a search's whole input")]
pub fn search<'py>(
    py: Python<'py>,
    graph: &Graph,
    cluster: &Cluster,
    time: &Bound<'_, PyAny>,
    devices: &Bound<'_, PyAny>,
    order: &Bound<'_, PyAny>,
    op_bytes: Option<&Bound<'_, PyAny>>,
    capacity: Option<&Bound<'_, PyAny>>,
    lead: Option<&Bound<'_, PyAny>>,
    seed: Option<&Bound<'_, PyAny>>,
    moves: Option<&Bound<'_, PyAny>>,
    visits: Option<&Bound<'_, PyAny>>,
    time_limit: Option<f64>,
    patience: Option<&Bound<'_, PyAny>>,
    target: f64,
    chains: usize,
    threads: usize,
    progress: Option<&Bound<'_, PyAny>>,
) -> PyResult<Search<'py>> {
    let began = Instant::now();
    let seed = seed.map_or(Ok(0), |seed| convert::unsigned("seed", seed))?;
    let budget = moves.map(|moves| convert::unsigned("moves", moves)).transpose()?;
    let limit = time_limit.map(seconds).transpose()?;
    if budget.is_none() && visits.is_none() && limit.is_none() {
        let reason = "moves, visits and time_limit are absent: the search would never stop";
        return Err(PyValueError::new_err(reason));
    }
    at_least_one(chains, threads)?;
    let (start, clock, problem) = start(py, graph, cluster, time, devices, order, op_bytes, capacity, lead)?;
    let is_counted = budget.is_some() || visits.is_some();
    let stop = stop(clock, visits, patience, target)?;
    let mut search = py.detach(|| Chains::new(&problem, &start, seed, chains, threads, stop));
    let (mut done, mut slice) = (0, FIRST_SLICE);
    let first = if is_counted { FIRST_REPORT } else { 0 };
    let mut news = News { progress, told: search.best().makespan, next: first };
    loop {
        let left = limit.map_or(SLICE, |limit| limit.saturating_sub(began.elapsed()));
        let until = budget.unwrap_or(u64::MAX).min(if is_counted { news.next } else { u64::MAX });
        let moves = slice.min(until - done);
        if left.is_zero() || moves == 0 || search.is_done() {
            break;
        }
        let from = Instant::now();
        py.detach(|| search.run(moves));
        done += moves;
        // As many as fit the next slice, were they as fast.
        let per_move = from.elapsed().as_secs_f64().max(1e-9) / moves as f64;
        slice = (SLICE.min(left).as_secs_f64() / per_move).clamp(1.0, 4.0 * moves as f64) as u64;
        py.check_signals()?;
        news.tell(done, search.best().makespan, || out(py, graph, clock, search.best()))?;
    }
    let (devices, order, makespan) = out(py, graph, clock, search.best());
    Ok((devices, order, makespan, search.moves(), search.visits()))
}

/// Local search in windows: stretches of the order, one after another, each with all else as it is.
///
/// For large graphs, where moves of all ops cost too much. What a window finds is taken over where the makespan
/// of the whole, which is that of :func:`search`, gets no longer; where many have found nothing better, one is
/// searched hot and taken over even so, and the best is kept. Colocated sets stay together, device types and
/// capacities are obeyed. Without `time_limit` the result depends on the input and `seed` alone. O(V + E)
/// per window of some 300 ops at worst. Can be interrupted.
///
/// Parameters
/// ----------
/// graph : Graph
/// cluster : Cluster
///     At most 64 devices.
/// time : float64 [n_ops, n_types]
///     Seconds per op and device type.
/// devices : int [n_ops]
///     The placement to start from.
/// order : int [n_ops]
///     The topological order to start from.
/// op_bytes : uint64 [n_ops], optional
///     Bytes each op is charged for the whole step; if absent, residents and outputs.
/// capacity : uint64 [n_devices], optional
///     Bytes to fill; the devices' memory if absent.
/// lead : int [n_ops], optional
///     The op with which each op moves; its colocated set's first if absent.
/// seed : int
/// visits : int, optional
///     Visits of ops by each chain after which the search stops: the time it takes, but the same on any
///     machine.
/// time_limit : float, optional
///     Seconds after which the search stops. Of `visits` and this at least one is needed.
/// patience : int, optional
///     Visits of ops without a better state after which it stops.
/// target : float
///     A makespan, in seconds, that is short enough to stop at.
/// chains : int
///     Windows searched at a time, each in its part of the order; fewer if the order is shorter.
/// threads : int
///     How many of them run at a time; changes no result.
/// progress : callable, optional
///     Called with devices, order and makespan of what is best so far, if there is news, whenever the number
///     of windows has doubled.
///
/// Returns
/// -------
/// devices, order : int32 [n_ops]
/// makespan : float
///     Seconds.
/// windows : int
///     How many were searched.
/// visits_done : int
///     By each chain.
///
/// Raises
/// ------
/// ValueError
///     A wrong dtype, shape or value; a start that breaks a rule or overfills a device.
/// InputError
///     Ops of the start on devices they may not use.
///
/// Examples
/// --------
/// >>> import numpy as np
/// >>> from loadmaster import fast
/// >>> g = fast.Graph(4, np.array([0, 2]), np.array([1, 3]))
/// >>> both = [("a", "b", 1e9, 0.5, []), ("b", "a", 1e9, 0.5, [])]
/// >>> c = fast.Cluster([("a", "gpu", 12), ("b", "gpu", 12)], both)
/// >>> start = np.zeros(4, dtype=np.int32)
/// >>> _, _, makespan, *_ = fast.search_windows(g, c, np.ones(4), start, fast.m_topo(g), visits=100_000)
/// >>> makespan
/// 2.0
#[pyfunction]
#[pyo3(signature = (graph, cluster, time, devices, order, *, op_bytes=None, capacity=None, lead=None, seed=None,
                    visits=None, time_limit=None, patience=None, target=0.0, chains=1, threads=1, progress=None))]
#[expect(clippy::too_many_arguments, reason = "a search's whole input")]
pub fn search_windows<'py>(
    py: Python<'py>,
    graph: &Graph,
    cluster: &Cluster,
    time: &Bound<'_, PyAny>,
    devices: &Bound<'_, PyAny>,
    order: &Bound<'_, PyAny>,
    op_bytes: Option<&Bound<'_, PyAny>>,
    capacity: Option<&Bound<'_, PyAny>>,
    lead: Option<&Bound<'_, PyAny>>,
    seed: Option<&Bound<'_, PyAny>>,
    visits: Option<&Bound<'_, PyAny>>,
    time_limit: Option<f64>,
    patience: Option<&Bound<'_, PyAny>>,
    target: f64,
    chains: usize,
    threads: usize,
    progress: Option<&Bound<'_, PyAny>>,
) -> PyResult<Search<'py>> {
    let began = Instant::now();
    let seed = seed.map_or(Ok(0), |seed| convert::unsigned("seed", seed))?;
    let limit = time_limit.map(seconds).transpose()?;
    if visits.is_none() && limit.is_none() {
        let reason = "visits and time_limit are absent: the search would never stop";
        return Err(PyValueError::new_err(reason));
    }
    at_least_one(chains, threads)?;
    let (start, clock, problem) = start(py, graph, cluster, time, devices, order, op_bytes, capacity, lead)?;
    let stop = stop(clock, visits, patience, target)?;
    let mut search = py.detach(|| Windows::new(&problem, &start, seed, chains, threads, stop));
    let mut done = 0;
    let mut news = News { progress, told: search.makespan(), next: 1 };
    while !search.is_done() && limit.is_none_or(|limit| began.elapsed() < limit) {
        done += py.detach(|| search.run());
        py.check_signals()?;
        news.tell(done, search.makespan(), || out(py, graph, clock, &search.best()))?;
    }
    let (devices, order, makespan) = out(py, graph, clock, &search.best());
    Ok((devices, order, makespan, done, search.visits_each()))
}

fn at_least_one(chains: usize, threads: usize) -> PyResult<()> {
    for (argument, count) in [("chains", chains), ("threads", threads)] {
        if count == 0 {
            return Err(PyValueError::new_err(format!("{argument} is 0: wants at least 1")));
        }
    }
    Ok(())
}

/// Tells a caller what is best so far, if that is news, whenever a count has doubled.
struct News<'a, 'py> {
    progress: Option<&'a Bound<'py, PyAny>>,
    told: Ticks,
    /// The count at which it tells next.
    next: u64,
}

impl<'py> News<'_, 'py> {
    fn tell(
        &mut self,
        count: u64,
        makespan: Ticks,
        best: impl FnOnce() -> (Ids<'py>, Ids<'py>, f64),
    ) -> PyResult<()> {
        if count < self.next {
            return Ok(());
        }
        self.next *= 2;
        if let Some(progress) = self.progress
            && makespan < self.told
        {
            self.told = makespan;
            progress.call1(best())?;
        }
        Ok(())
    }
}

/// What a search starts from.
#[expect(clippy::too_many_arguments, reason = "a search's whole input")]
fn start<'g>(
    py: Python<'_>,
    graph: &'g Graph,
    cluster: &'g Cluster,
    time: &Bound<'_, PyAny>,
    devices: &Bound<'_, PyAny>,
    order: &Bound<'_, PyAny>,
    op_bytes: Option<&Bound<'_, PyAny>>,
    capacity: Option<&Bound<'_, PyAny>>,
    lead: Option<&Bound<'_, PyAny>>,
) -> PyResult<(Found, Clock, Problem<'g>)> {
    let MemoryRules { bytes, capacity, .. } = memory_rules(graph, cluster, op_bytes, capacity, false)?;
    let lead = lead.map(|lead| leads(graph, Some(lead))).transpose()?;
    let start = Found {
        device: placement(graph, cluster, devices)?,
        order: topological("order", graph, order)?,
        makespan: 0,
    };
    let time = times(graph, cluster, time)?;
    let prepared = py.detach(|| -> Result<(Clock, Problem<'_>), Error> {
        let (work, cluster) = (&*graph.work, &cluster.core);
        let clock = work.clock(&time, cluster)?;
        let ticks = time.ticks(clock);
        let problem = Problem::new(work, cluster, clock, &ticks, &bytes, &capacity, lead.as_deref())?;
        problem.check(&start.device)?;
        Ok((clock, problem))
    });
    let (clock, problem) = prepared.map_err(|e| graph.name(e))?;
    Ok((start, clock, problem))
}

/// When a search stops.
fn stop(
    clock: Clock,
    visits: Option<&Bound<'_, PyAny>>,
    patience: Option<&Bound<'_, PyAny>>,
    target: f64,
) -> PyResult<Stop> {
    if is_no_time(target) {
        return Err(PyValueError::new_err(format!("target is {target}: wants seconds, not negative")));
    }
    let visits = visits.map_or(Ok(u64::MAX), |visits| convert::unsigned("visits", visits))?;
    let patience = patience.map_or(Ok(u64::MAX), |patience| convert::unsigned("patience", patience))?;
    Ok(Stop { visits, patience, target: clock.ticks(target) })
}

fn out<'py>(py: Python<'py>, graph: &Graph, clock: Clock, found: &Found) -> (Ids<'py>, Ids<'py>, f64) {
    let (device, order): (Vec<DeviceId>, &[OpId]) = (found.device.clone(), &found.order);
    (device_ids(py, graph, device), graph.indices(py, order.iter().copied()), clock.seconds(found.makespan))
}

fn seconds(limit: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(limit)
        .map_err(|_| PyValueError::new_err(format!("time_limit is {limit}: wants seconds, not negative")))
}

/// Moves groups of ops between devices where that shortens the step, level by level.
///
/// Every group is offered the devices it exchanges most with and the one with least to do; the makespan of
/// :func:`schedule_placed` in the given order judges. O(V + E) per move at worst, usually far less.
///
/// Parameters
/// ----------
/// graph : Graph
/// cluster : Cluster
///     At most 64 devices.
/// time : float64 [n_ops, n_types]
///     Seconds.
/// order : int [n_ops]
///     A topological order; on a device, ops run in it.
/// devices : int [n_ops]
///     The placement to begin with.
/// levels : list of int [n_ops]
///     Group per op, coarse levels first.
/// op_bytes : uint64 [n_ops], optional
///     Bytes each op counts on its device; resident and output bytes if absent.
/// capacity : uint64 [n_devices], optional
///     Bytes per device; its memory if absent. A device that holds more takes no more.
/// budget : int
///     Most visits of ops, over all moves tried: the time it takes, but the same on any machine.
///
/// Returns
/// -------
/// devices : int32 [n_ops]
/// makespan : float
///     Seconds of a step, by the estimate; the simulator has the last word.
/// visits : int
///     Visits of ops, over all moves tried.
///
/// Raises
/// ------
/// ValueError
///     A wrong dtype, shape or value; an order that is not topological; a placement that breaks a rule.
///
/// Examples
/// --------
/// >>> import numpy as np
/// >>> from loadmaster import fast
/// >>> g = fast.Graph(2, np.array([], dtype=int), np.array([], dtype=int))
/// >>> link = ("b", "a", 1e9, 0.0, [])
/// >>> c = fast.Cluster([("a", "gpu", 9), ("b", "gpu", 9)], [link, ("a", "b", 1e9, 0.0, [])])
/// >>> both, one = np.array([0, 1]), np.array([0, 0])
/// >>> devices, makespan, _ = fast.refine_placement(g, c, np.ones(2), both, one, [both])
/// >>> sorted(devices.tolist()), makespan
/// ([0, 1], 1.0)
#[pyfunction]
#[pyo3(signature = (graph, cluster, time, order, devices, levels, *, op_bytes=None, capacity=None,
                    budget=100_000_000))]
#[expect(clippy::too_many_arguments, reason = "a problem and a placement")]
pub fn refine_placement<'py>(
    py: Python<'py>,
    graph: &Graph,
    cluster: &Cluster,
    time: &Bound<'py, PyAny>,
    order: &Bound<'py, PyAny>,
    devices: &Bound<'py, PyAny>,
    levels: Vec<Bound<'py, PyAny>>,
    op_bytes: Option<&Bound<'py, PyAny>>,
    capacity: Option<&Bound<'py, PyAny>>,
    budget: u64,
) -> PyResult<(Ids<'py>, f64, u64)> {
    let n = graph.work.n_ops();
    let order = topological("order", graph, order)?;
    let rules = memory_rules(graph, cluster, op_bytes, capacity, false)?;
    let time = times(graph, cluster, time)?;
    let placement = placement(graph, cluster, devices)?;
    let levels: Vec<Vec<u32>> = levels
        .iter()
        .map(|level| Ok(graph.by_op(convert::indices("levels", level, n, n)?, 1)))
        .collect::<PyResult<_>>()?;
    let refined = py.detach(|| {
        let request = refine::Request {
            order: &order,
            placement: &placement,
            levels: &levels,
            op_bytes: &rules.bytes,
            capacity: &rules.capacity,
            budget,
        };
        refine::refine(&graph.work, &cluster.core, &time, &request)
    });
    let refined = refined.map_err(|e| graph.name(e))?;
    Ok((device_ids(py, graph, refined.placement), refined.makespan, refined.visits))
}
