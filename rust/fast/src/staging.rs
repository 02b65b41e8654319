//! Stages of pipelines in `loadmaster.fast`.

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
