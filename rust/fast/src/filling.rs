//! Strategies that fill devices in a given order, in `loadmaster.fast`.

use loadmaster_core::Error;
use loadmaster_core::free_memory::Memory;
use loadmaster_core::ids::{DeviceId, OpId};
use loadmaster_core::place::{fill, locality};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::convert;
use crate::graph::Ids;
use crate::problem::Problem;

/// Runs a strategy that places ops in a topological order.
fn place_ops<'py>(
    py: Python<'py>,
    problem: &Problem,
    order: &Bound<'_, PyAny>,
    strategy: impl FnOnce(Memory<'_>, &[OpId]) -> Result<Vec<DeviceId>, Error> + Send,
) -> PyResult<Ids<'py>> {
    let order = problem.graph.topological(order)?;
    let placement = problem.run(py, |p| {
        strategy(p.rules.memory(p.work(), &p.cluster, &p.rules.charges_of_leads(p.work())), &order)
    })?;
    Ok(problem.devices(py, placement))
}

/// The devices in the order in which they are filled: all of them, once each.
fn device_order(problem: &Problem, devices: Option<&Bound<'_, PyAny>>) -> PyResult<Vec<DeviceId>> {
    let n = problem.cluster.n_devices();
    let Some(devices) = devices else { return Ok(problem.cluster.device_ids().collect()) };
    let order = convert::indices("devices", devices, n, n)?;
    let mut seen = order.clone();
    seen.sort_unstable();
    if seen.iter().enumerate().any(|(i, &d)| d as usize != i) {
        return Err(PyValueError::new_err("devices: must list every device once"));
    }
    Ok(order.into_iter().map(DeviceId).collect())
}

/// Places ops in order on one device until it is full, then on the next (Order-Place, m-TOPO).
///
/// Colocated ops are placed together, when the first of them comes up. O(V D) at worst.
///
/// Parameters
/// ----------
/// problem : Problem
/// order : int [n_ops]
///     A topological order.
/// devices : int [n_devices], optional
///     The order in which devices are filled; by index if absent.
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
/// >>> p = fast.Problem(g, c, np.ones(3))
/// >>> fast.fill_in_order(p, fast.m_topo(g)).tolist()
/// [0, 0, 1]
#[pyfunction]
#[pyo3(signature = (problem, order, *, devices=None))]
pub fn fill_in_order<'py>(
    py: Python<'py>,
    problem: &Problem,
    order: &Bound<'_, PyAny>,
    devices: Option<&Bound<'_, PyAny>>,
) -> PyResult<Ids<'py>> {
    let sequence = device_order(problem, devices)?;
    place_ops(py, problem, order, |memory, order| fill::in_order(memory, order, &sequence))
}

/// Places the i-th op on device i mod k, or on the next device that has room. O(V D) at worst.
///
/// Parameters
/// ----------
/// problem : Problem
/// order : int [n_ops]
///     A topological order.
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
/// >>> p = fast.Problem(g, c, np.ones(3))
/// >>> fast.round_robin(p, fast.m_topo(g)).tolist()
/// [0, 1, 0]
#[pyfunction]
pub fn round_robin<'py>(py: Python<'py>, problem: &Problem, order: &Bound<'_, PyAny>) -> PyResult<Ids<'py>> {
    place_ops(py, problem, order, fill::round_robin)
}

/// Places each op on the device, of those with room, that holds most of the bytes it reads.
///
/// So the backward pass stays with the activations that it needs. O(D (V + E)).
///
/// Parameters
/// ----------
/// problem : Problem
/// order : int [n_ops]
///     A topological order.
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
/// >>> p = fast.Problem(g, c, np.ones(3))
/// >>> fast.follow_bytes(p, fast.m_topo(g)).tolist()
/// [0, 0, 1]
#[pyfunction]
pub fn follow_bytes<'py>(py: Python<'py>, problem: &Problem, order: &Bound<'_, PyAny>) -> PyResult<Ids<'py>> {
    place_ops(py, problem, order, locality::follow_bytes)
}
