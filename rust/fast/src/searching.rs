//! Local search in `loadmaster.fast`.

use std::time::{Duration, Instant};

use loadmaster_core::border::is_no_time;
use loadmaster_core::clock::Ticks;
use loadmaster_core::search::anneal::{Found, Stop as CoreStop};
use loadmaster_core::search::chains::Chains;
use loadmaster_core::search::problem::Problem as SearchProblem;
use loadmaster_core::search::refine;
use loadmaster_core::search::windows::Windows;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::convert;
use crate::errors::Raised;
use crate::graph::Ids;
use crate::problem::Problem;

/// Moves of each chain before their speed is known.
const FIRST_SLICE: u64 = 32;

/// Moves of each chain before the first report of a search that counts them.
const FIRST_REPORT: u64 = 4096;

/// How long the chains run before Ctrl-C and the clock are looked at.
const SLICE: Duration = Duration::from_millis(50);

/// Devices, order, makespan, moves or windows done, visits.
type Search<'py> = (Ids<'py>, Ids<'py>, f64, u64, u64);

/// When a search stops: at the first of these limits. At least one of `moves`, `visits` and
/// `time_limit` is needed.
///
/// Parameters
/// ----------
/// moves : int, optional
///     Moves that each chain makes.
/// visits : int, optional
///     Visits of ops by each chain: a measure of time that is the same on any machine.
/// time_limit : float, optional
///     Seconds on the clock.
/// patience : int, optional
///     Visits of ops without a better state.
/// target : float
///     A makespan, in seconds, that is short enough.
///
/// Raises
/// ------
/// ValueError
///     A bad value; nothing that stops the search.
///
/// Examples
/// --------
/// >>> from loadmaster import fast
/// >>> fast.Stop()
/// Traceback (most recent call last):
/// ValueError: moves, visits and time_limit are absent: the search would never stop
#[pyclass(frozen, module = "loadmaster.fast")]
pub struct Stop {
    moves: Option<u64>,
    visits: Option<u64>,
    time_limit: Option<Duration>,
    patience: Option<u64>,
    target: f64,
}

#[pymethods]
impl Stop {
    #[new]
    #[pyo3(signature = (*, moves=None, visits=None, time_limit=None, patience=None, target=0.0))]
    fn new(
        moves: Option<&Bound<'_, PyAny>>,
        visits: Option<&Bound<'_, PyAny>>,
        time_limit: Option<f64>,
        patience: Option<&Bound<'_, PyAny>>,
        target: f64,
    ) -> PyResult<Self> {
        let moves = moves.map(|moves| convert::unsigned("moves", moves)).transpose()?;
        let visits = visits.map(|visits| convert::unsigned("visits", visits)).transpose()?;
        let time_limit = time_limit.map(seconds).transpose()?;
        if moves.is_none() && visits.is_none() && time_limit.is_none() {
            let reason = "moves, visits and time_limit are absent: the search would never stop";
            return Err(PyValueError::new_err(reason));
        }
        let patience = patience.map(|patience| convert::unsigned("patience", patience)).transpose()?;
        if is_no_time(target) {
            let reason = format!("target is {target}: wants seconds, not negative");
            return Err(PyValueError::new_err(reason));
        }
        Ok(Self { moves, visits, time_limit, patience, target })
    }
}

impl Stop {
    fn counted(&self, problem: &Problem) -> CoreStop {
        CoreStop {
            visits: self.visits.unwrap_or(u64::MAX),
            patience: self.patience.unwrap_or(u64::MAX),
            target: problem.clock.ticks(self.target),
        }
    }
}

/// Local search from a placement and an order: annealing over both, never worse than the start.
///
/// The search shortens the makespan of :func:`schedule_placed`. Where every channel serves one pair
/// of devices, that is exactly the simulator's makespan by its policy "fixed". On shared channels
/// it is an estimate. Colocated sets stay together, and device types and capacities are obeyed, at
/// every step. Without a time limit the result depends on the input, `seed` and `chains` alone,
/// whatever the machine and the number of threads. O(V + E) per move at worst. Can be interrupted.
///
/// Parameters
/// ----------
/// problem : Problem
///     At most 64 devices.
/// start : (int [n_ops], int [n_ops])
///     The devices and the topological order to start from.
/// stop : Stop
/// seed : int
/// chains : int
///     Independent chains, which learn the best state found after every 16,384 moves.
/// threads : int
///     Chains that run at a time.
/// progress : callable, optional
///     Called with devices, order and makespan of the best state so far, if it is a new one: some
///     20 times a second. With `moves` or `visits`: after the 4,096th move of each chain, then
///     whenever the number of moves has doubled.
///
/// Returns
/// -------
/// devices, order : int32 [n_ops]
/// makespan : float
///     Seconds.
/// moves_done : int
///     Moves of all chains.
/// visits_done : int
///     Visits of ops by the chain with most visits.
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
/// >>> p = fast.Problem(g, c, np.ones(4))
/// >>> start = np.zeros(4, dtype=np.int32), fast.m_topo(g)
/// >>> devices, order, makespan, *_ = fast.search(p, start, fast.Stop(moves=10_000))
/// >>> makespan
/// 2.0
#[pyfunction]
#[pyo3(signature = (problem, start, stop, *, seed=None, chains=1, threads=1, progress=None))]
pub fn search<'py>(
    problem: &Bound<'py, Problem>,
    start: (Bound<'py, PyAny>, Bound<'py, PyAny>),
    stop: &Stop,
    seed: Option<&Bound<'_, PyAny>>,
    chains: usize,
    threads: usize,
    progress: Option<&Bound<'_, PyAny>>,
) -> PyResult<Search<'py>> {
    let (py, problem, began) = (problem.py(), problem.get(), Instant::now());
    let seed = seed.map_or(Ok(0), |seed| convert::unsigned("seed", seed))?;
    at_least_one(chains, threads)?;
    let (start, inner) = started(py, problem, &start)?;
    let is_counted = stop.moves.is_some() || stop.visits.is_some();
    let core_stop = stop.counted(problem);
    let search = py.detach(|| Chains::new(&inner, &start, seed, chains, threads, core_stop));
    let mut search = search.map_err(Raised::from)?;
    let (mut done, mut slice) = (0, FIRST_SLICE);
    let first = if is_counted { FIRST_REPORT } else { 0 };
    let mut news = News { progress, told: search.best().makespan, next: first };
    loop {
        let left = stop.time_limit.map_or(SLICE, |limit| limit.saturating_sub(began.elapsed()));
        let until = stop.moves.unwrap_or(u64::MAX).min(if is_counted { news.next } else { u64::MAX });
        let moves = slice.min(until - done);
        if left.is_zero() || moves == 0 || search.is_done() {
            break;
        }
        let from = Instant::now();
        py.detach(|| search.run(moves));
        done += moves;
        // As many moves as fit the next slice of time at the speed of the last.
        let per_move = from.elapsed().as_secs_f64().max(1e-9) / moves as f64;
        slice = (SLICE.min(left).as_secs_f64() / per_move).clamp(1.0, 4.0 * moves as f64) as u64;
        py.check_signals()?;
        news.tell(done, search.best().makespan, || out(py, problem, search.best()))?;
    }
    let (devices, order, makespan) = out(py, problem, search.best());
    Ok((devices, order, makespan, search.moves(), search.visits()))
}

/// Local search in windows: one stretch of the order after another, all else staying as it is.
///
/// For large graphs, where moves of all ops cost too much. What the search of a window finds is
/// taken over if the makespan of the whole, counted as :func:`search` does, gets no longer. After
/// many windows without a better state, one window is searched at a high temperature and taken over
/// even so. The best state is kept. Colocated sets stay together, device types and capacities are
/// obeyed. Without a time limit the result depends on the input and `seed` alone. O(V + E) per
/// window of some 300 ops at worst. Can be interrupted.
///
/// Parameters
/// ----------
/// problem : Problem
///     At most 64 devices.
/// start : (int [n_ops], int [n_ops])
///     The devices and the topological order to start from.
/// stop : Stop
///     Counts visits or seconds; a search in windows has no count of moves.
/// seed : int
/// chains : int
///     Windows searched at a time, each in its share of the order; fewer if the order is short.
/// threads : int
///     Windows that run at a time. The number changes no result.
/// progress : callable, optional
///     Called with devices, order and makespan of the best state so far, if it is a new one,
///     whenever the number of windows has doubled.
///
/// Returns
/// -------
/// devices, order : int32 [n_ops]
/// makespan : float
///     Seconds.
/// windows : int
///     Number of windows searched.
/// visits_done : int
///     Visits of ops by each of the windows searched at a time.
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
/// >>> p = fast.Problem(g, c, np.ones(4))
/// >>> start = np.zeros(4, dtype=np.int32), fast.m_topo(g)
/// >>> _, _, makespan, *_ = fast.search_windows(p, start, fast.Stop(visits=100_000))
/// >>> makespan
/// 2.0
#[pyfunction]
#[pyo3(signature = (problem, start, stop, *, seed=None, chains=1, threads=1, progress=None))]
pub fn search_windows<'py>(
    problem: &Bound<'py, Problem>,
    start: (Bound<'py, PyAny>, Bound<'py, PyAny>),
    stop: &Stop,
    seed: Option<&Bound<'_, PyAny>>,
    chains: usize,
    threads: usize,
    progress: Option<&Bound<'_, PyAny>>,
) -> PyResult<Search<'py>> {
    let (py, problem, began) = (problem.py(), problem.get(), Instant::now());
    let seed = seed.map_or(Ok(0), |seed| convert::unsigned("seed", seed))?;
    if stop.moves.is_some() {
        let reason = "stop has moves: a search in windows counts visits or seconds";
        return Err(PyValueError::new_err(reason));
    }
    at_least_one(chains, threads)?;
    let (start, inner) = started(py, problem, &start)?;
    let core_stop = stop.counted(problem);
    let search = py.detach(|| Windows::new(&inner, &start, seed, chains, threads, core_stop));
    let mut search = search.map_err(Raised::from)?;
    let mut done = 0;
    let mut news = News { progress, told: search.makespan(), next: 1 };
    while !search.is_done() && stop.time_limit.is_none_or(|limit| began.elapsed() < limit) {
        done += py.detach(|| search.run());
        py.check_signals()?;
        news.tell(done, search.makespan(), || out(py, problem, &search.best()))?;
    }
    let (devices, order, makespan) = out(py, problem, &search.best());
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

/// Tells a caller the best state so far, if it is a new one, whenever a count has doubled.
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

/// The devices and the order that a search starts from, checked.
fn started<'p>(
    py: Python<'_>,
    problem: &'p Problem,
    (devices, order): &(Bound<'_, PyAny>, Bound<'_, PyAny>),
) -> PyResult<(Found, SearchProblem<'p>)> {
    let device = problem.placement(devices)?;
    let start = Found { device, order: problem.graph.topological(order)?, makespan: 0 };
    let prepared = py.detach(|| {
        let inner = problem.searched()?;
        inner.check(&start.device)?;
        Ok(inner)
    });
    let inner = prepared.map_err(|e| problem.graph.name(e))?;
    Ok((start, inner))
}

fn out<'py>(py: Python<'py>, problem: &Problem, found: &Found) -> (Ids<'py>, Ids<'py>, f64) {
    let order = problem.graph.indices(py, found.order.iter().copied());
    (problem.devices(py, found.device.clone()), order, problem.clock.seconds(found.makespan))
}

fn seconds(limit: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(limit)
        .map_err(|_| PyValueError::new_err(format!("time_limit is {limit}: wants seconds, not negative")))
}

/// Moves groups of ops between devices where that shortens the step, level by level.
///
/// Every group is tried on the devices that it exchanges most bytes with and on the device with
/// least to do. It moves if that shortens the makespan of :func:`schedule_placed` in the given
/// order. A device that holds more than its capacity takes no more. O(V + E) per move at worst,
/// usually far less.
///
/// Parameters
/// ----------
/// problem : Problem
///     At most 64 devices.
/// order : int [n_ops]
///     A topological order; on a device, ops run in it.
/// devices : int [n_ops]
///     The placement to begin with.
/// levels : list of int [n_ops]
///     Group per op, coarse levels first.
/// budget : int
///     Most visits of ops, over all moves tried: a measure of time that is the same on any machine.
///
/// Returns
/// -------
/// devices : int32 [n_ops]
/// makespan : float
///     Estimated seconds of a step. The simulator has the last word.
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
/// >>> p = fast.Problem(g, c, np.ones(2))
/// >>> devices, makespan, _ = fast.refine_placement(p, both, one, [both])
/// >>> sorted(devices.tolist()), makespan
/// ([0, 1], 1.0)
#[pyfunction]
#[pyo3(signature = (problem, order, devices, levels, *, budget=100_000_000))]
pub fn refine_placement<'py>(
    py: Python<'py>,
    problem: &Problem,
    order: &Bound<'py, PyAny>,
    devices: &Bound<'py, PyAny>,
    levels: Vec<Bound<'py, PyAny>>,
    budget: u64,
) -> PyResult<(Ids<'py>, f64, u64)> {
    let (graph, n) = (&problem.graph, problem.work().n_ops());
    let order = graph.topological(order)?;
    let placement = problem.placement(devices)?;
    let levels: Vec<Vec<u32>> = levels
        .iter()
        .map(|level| Ok(graph.by_op(convert::indices("levels", level, n, n)?, 1)))
        .collect::<PyResult<_>>()?;
    let request = refine::Request { order: &order, placement: &placement, levels: &levels, budget };
    let refined = problem.run(py, |p| refine::refine(&p.searched()?, &request))?;
    let makespan = problem.clock.seconds(refined.makespan);
    Ok((problem.devices(py, refined.placement), makespan, refined.visits))
}
