//! Stages of pipelines in `loadmaster.fast`.

use loadmaster_core::pipeline::chain::{Way, best_chain};
use loadmaster_core::pipeline::max_load::split;
use loadmaster_core::pipeline::{Devices, Groups};
use numpy::PyArray1;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::convert;
use crate::errors::Raised;
use crate::graph::Ids;

/// A number per group and device type, and whether a CPU core has each stage.
type Stages<'py> = (Ids<'py>, Bound<'py, PyArray1<bool>>);

/// Two columns of indices, of one length.
pub fn pairs(
    argument: &str,
    columns: &(Bound<'_, PyAny>, Bound<'_, PyAny>),
    below: (usize, usize),
) -> PyResult<Vec<(u32, u32)>> {
    let n = convert::integers(argument, &columns.0)?.len();
    let first = convert::indices(argument, &columns.0, n, below.0)?;
    Ok(first.into_iter().zip(convert::indices(argument, &columns.1, n, below.1)?).collect())
}

/// Stages of a pipeline with the smallest largest load.
///
/// Tarnawski et al., "Efficient Algorithms for Device Placement of DNN Graph Operators" (NeurIPS
/// 2020). A stage is a contiguous set of groups on a device of its own. An accelerator takes the
/// times of its groups, and the cost of each tensor that joins one of them to a group elsewhere. A
/// CPU core takes the times of its groups.
///
/// Parameters
/// ----------
/// times : float64 [n_groups, 2]
///     Time on an accelerator (infinite: not allowed there), and on a CPU core.
/// bytes : uint64 or int64 [n_groups]
///     What each group holds on an accelerator.
/// edges : (int [m], int [m])
///     The second group of a pair is in the stage of the first or in a later one.
/// tensors : (int [p], int [p], float64 [n_tensors])
///     Tensors, and the groups that make or read them; the time of each tensor between an
///     accelerator and the host.
/// orders : list of int [n_groups]
///     Topological orders of the groups, one at least.
/// devices : (int, int, int)
///     Accelerators, bytes of each, CPU cores.
///
/// Returns
/// -------
/// stages : (int32 [n_groups], bool [n_stages]), optional
///     The stage of each group, and whether a CPU core has each stage. None where nothing fits.
/// downsets : int, optional
///     How many downsets there are: then the stages are optimal. None where they were too many to
///     be listed: then the stages are at least as good as the best of each order.
///
/// Raises
/// ------
/// InputError
///     No groups, an order that is none, too many groups and devices.
/// ValueError
///     A wrong dtype, shape or value.
///
/// Examples
/// --------
/// >>> import numpy as np
/// >>> from loadmaster import fast
/// >>> times = np.array([[2.0, 20.0], [3.0, 30.0], [2.0, 20.0]])
/// >>> chain = (np.array([0, 1]), np.array([1, 2]))
/// >>> sent = np.array([0, 0, 1, 1]), np.array([0, 1, 1, 2]), np.array([0.5, 0.1])
/// >>> none, orders = np.zeros(3, dtype=np.int64), [np.arange(3)]
/// >>> (stage, on_cpu), downsets = fast.split_max_load(times, none, chain, sent, orders, (2, 1, 0))
/// >>> stage.tolist(), on_cpu.tolist(), downsets
/// ([0, 0, 1], [False, False], 4)
#[pyfunction]
#[pyo3(signature = (times, bytes, edges, tensors, orders, devices))]
pub fn split_max_load<'py>(
    py: Python<'py>,
    times: &Bound<'_, PyAny>,
    bytes: &Bound<'_, PyAny>,
    edges: (Bound<'_, PyAny>, Bound<'_, PyAny>),
    tensors: (Bound<'_, PyAny>, Bound<'_, PyAny>, Bound<'_, PyAny>),
    orders: Vec<Bound<'_, PyAny>>,
    devices: (usize, u64, usize),
) -> PyResult<(Option<Stages<'py>>, Option<usize>)> {
    let bytes = convert::sizes("bytes", bytes)?;
    let (tensor, group, cost) = tensors;
    let (n, cost) = (bytes.len(), convert::seconds("tensors", &cost, 0, true)?);
    let times = convert::time_matrix("times", times, n, 2)?;
    let cpu: Vec<f64> = times.iter().copied().skip(1).step_by(2).collect();
    if times.iter().any(|&t| t.is_nan() || t < 0.0) || cpu.contains(&f64::INFINITY) {
        return Err(PyValueError::new_err("times: wants no negative number; finite ones for CPU cores"));
    }
    let accelerator = times.iter().step_by(2).map(|&t| t.is_finite().then_some(t)).collect();
    let edges = pairs("edges", &edges, (n, n))?;
    let pins = pairs("tensors", &(tensor, group), (cost.len(), n))?;
    let orders: Vec<Vec<u32>> =
        orders.iter().map(|o| convert::indices("orders", o, n, n)).collect::<PyResult<_>>()?;
    let devices = Devices { accelerators: devices.0, memory: devices.1, cpus: devices.2 };
    let found = py.detach(|| {
        let groups = Groups::new(accelerator, cpu, bytes, &edges, &pins, cost)?;
        split(&groups, devices, &orders.iter().map(Vec::as_slice).collect::<Vec<_>>())
    });
    let (stages, downsets) = found.map_err(Raised::from)?;
    let stages = stages.map(|stages| {
        let mut of = vec![0i32; n];
        for (s, stage) in stages.iter().enumerate() {
            stage.groups.iter().for_each(|&g| of[g as usize] = s as i32);
        }
        (PyArray1::from_vec(py, of), PyArray1::from_iter(py, stages.iter().map(|s| s.on_cpu)))
    });
    Ok((stages, downsets))
}

/// Ways to run stages: pools, widths, bytes of a device, and micro-batches in flight.
type Ways<'py> = (Bound<'py, PyAny>, Bound<'py, PyAny>, Bound<'py, PyAny>, Bound<'py, PyAny>);

/// Contiguous stages of one linear order with the shortest step of several micro-batches.
///
/// The least sum of the stages' paths plus `weight` times the largest load of a stage: with m
/// micro-batches the weight is m - 1. Stages may be run in several ways: on devices of different
/// pools, on several devices, with activations kept or made anew. Devices come in any order.
///
/// Parameters
/// ----------
/// load : float64 [n_ways * n_cuts, n_cuts]
///     A matrix per way: seconds per micro-batch that a stage from one cut (row) to a later one
///     (column) keeps its busiest device or channel. Infinite: not allowed.
/// path : float64 [n_ways * n_cuts, n_cuts]
///     The same for the seconds that a micro-batch takes through a stage.
/// bytes : (uint64 or int64 [n_ways * n_cuts * n_cuts], the same)
///     The same, row-major, for bytes on a device: for the whole step, and per micro-batch in flight.
/// ways : (int [n_ways], int [n_ways], uint64 [n_ways], uint64 [n_ways * devices])
///     The pool and number of devices of each way, bytes of a device, and how many micro-batches
///     are in flight, by the number of devices before the stage.
/// devices : (list of int, int)
///     Devices of each pool, and how many are used in all.
/// weight : float
///     What the largest load counts.
///
/// Returns
/// -------
/// end, way : int32 [n_stages]
///     The cut at the end of each stage and its way; None where no stages are allowed and fit.
///
/// Raises
/// ------
/// InputError
///     More cuts and sets of devices than the table has room for.
/// ValueError
///     A wrong dtype, shape or value.
///
/// Notes
/// -----
/// Exact. O(cuts^2 x sets of devices x ways) for each pair of a sum of paths and a largest load that
/// no other is better than in both.
///
/// Examples
/// --------
/// >>> import numpy as np
/// >>> from loadmaster import fast
/// >>> until = np.array([0.0, 2.0, 3.0, 5.0])
/// >>> seconds = np.maximum(until[None, :] - until[:, None], 0.0)
/// >>> none = np.zeros(16, dtype=np.uint64)
/// >>> one = np.ones(2, dtype=np.uint64)
/// >>> ways = np.array([0]), np.array([1]), one[:1], one
/// >>> end, way = fast.best_stages(seconds, seconds, (none, none), ways, ([2], 2), 7.0)
/// >>> end.tolist()
/// [1, 3]
#[pyfunction]
#[pyo3(signature = (load, path, bytes, ways, devices, weight))]
pub fn best_stages<'py>(
    py: Python<'py>,
    load: &Bound<'_, PyAny>,
    path: &Bound<'_, PyAny>,
    bytes: (Bound<'_, PyAny>, Bound<'_, PyAny>),
    ways: Ways<'_>,
    devices: (Vec<usize>, usize),
    weight: f64,
) -> PyResult<Option<(Ids<'py>, Ids<'py>)>> {
    let (pools, used) = devices;
    let memory = convert::sizes("ways", &ways.2)?;
    let k = memory.len();
    let pool = convert::indices("ways", &ways.0, k, pools.len())?;
    let width = convert::indices("ways", &ways.1, k, used.saturating_add(1))?;
    let in_flight = convert::sizes("ways", &ways.3)?;
    let ((load, n), (path, columns)) = (convert::rows("load", load)?, convert::rows("path", path)?);
    let (fixed, held) = (convert::sizes("bytes", &bytes.0)?, convert::sizes("bytes", &bytes.1)?);
    let size = n.saturating_mul(n);
    let lengths = [load.len(), path.len(), fixed.len(), held.len()];
    let wanted = [k.saturating_mul(size); 4];
    if n == 0 || columns != n || k == 0 || lengths != wanted || in_flight.len() != k.saturating_mul(used) {
        let what = "load, path, bytes, ways: want a matrix of all cuts per way, and micro-batches \
                    in flight per way and device";
        return Err(PyValueError::new_err(what));
    }
    if width.contains(&0) || !(0.0..f64::INFINITY).contains(&weight) {
        return Err(PyValueError::new_err("wants a device per way at least, and a weight >= 0"));
    }
    if load.iter().any(|&s| s.is_nan() || s < 0.0) || path.iter().any(|&s| !s.is_finite() || s < 0.0) {
        return Err(PyValueError::new_err(
            "load, path: want numbers that are not negative; path finite ones",
        ));
    }
    let ways: Vec<Way> = (0..k)
        .map(|w| Way {
            pool: pool[w] as usize,
            width: width[w] as usize,
            memory: memory[w],
            in_flight: &in_flight[w * used..][..used],
            load: &load[w * size..][..size],
            path: &path[w * size..][..size],
            fixed: &fixed[w * size..][..size],
            held: &held[w * size..][..size],
        })
        .collect();
    let found = py.detach(|| best_chain(n, &pools, used, &ways, weight)).map_err(Raised::from)?;
    Ok(found.map(|chain| {
        let (end, way): (Vec<i32>, Vec<i32>) =
            chain.stages.iter().map(|&(e, w)| (e as i32, w as i32)).unzip();
        (PyArray1::from_vec(py, end), PyArray1::from_vec(py, way))
    }))
}
