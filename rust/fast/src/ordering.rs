//! Orders and levels of a graph in `loadmaster.fast`.

use loadmaster_core::levels::Levels;
use loadmaster_core::schedule::order;
use loadmaster_core::schedule::placed::Paths;
use loadmaster_core::simulate::lifetime;
use loadmaster_core::topo;
use loadmaster_core::transitive::NeededControl;
use numpy::{IntoPyArray, PyArray1};
use pyo3::prelude::*;

use crate::convert;
use crate::graph::{Floats, Graph, Ids};
use crate::weights::Weights;

/// t-level and b-level of every op (Celeritas eq. (2), (3); b-level is HEFT's upward rank).
///
/// The t-level is the longest path to an op's start, the b-level the longest from its start to the end,
/// counting op times and the transfer time of each tensor followed. O(V + E).
///
/// Parameters
/// ----------
/// weights : Weights
///
/// Returns
/// -------
/// t_level, b_level : float64 [n_ops]
///     Seconds; the largest b-level is the critical path.
///
/// Examples
/// --------
/// >>> import numpy as np
/// >>> from loadmaster import fast
/// >>> g = fast.Graph(3, np.array([0, 1]), np.array([1, 2]))
/// >>> t, b = fast.levels(fast.Weights(g, np.ones(3), np.full(3, 0.5)))
/// >>> t.tolist(), b.tolist()
/// ([0.0, 1.5, 3.0], [4.0, 2.5, 1.0])
#[pyfunction]
pub fn levels<'py>(py: Python<'py>, weights: &Weights) -> (Floats<'py>, Floats<'py>) {
    let levels = compute_levels(py, weights);
    (weights.seconds(py, levels.top), weights.seconds(py, levels.bottom))
}

fn compute_levels(py: Python<'_>, weights: &Weights) -> Levels {
    py.detach(|| Levels::new(&weights.graph.work.graph, &weights.op_time, &weights.tensor_time))
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
/// smaller index. O(V + E) but for those small sorts.
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
/// >>> fast.cpd_topo(fast.Weights(g, np.array([1.0, 1.0, 5.0]))).tolist()
/// [0, 2, 1]
#[pyfunction]
pub fn cpd_topo<'py>(py: Python<'py>, weights: &Weights) -> Ids<'py> {
    let levels = compute_levels(py, weights);
    let order = py.detach(|| topo::cpd_topo(&weights.graph.work.graph, &levels));
    weights.graph.indices(py, order.into_iter())
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

/// The ops of a longest path, in order; of several paths the one of the smallest ops.
///
/// Paths count op times and the transfer time of each tensor followed, as in :func:`levels`. O(V + E).
///
/// Parameters
/// ----------
/// weights : Weights
///
/// Returns
/// -------
/// int32 [n_critical]
///
/// Examples
/// --------
/// >>> import numpy as np
/// >>> from loadmaster import fast
/// >>> g = fast.Graph(4, np.array([0, 0, 1, 2]), np.array([1, 2, 3, 3]))
/// >>> fast.critical_path(fast.Weights(g, np.array([1.0, 1.0, 5.0, 1.0]))).tolist()
/// [0, 2, 3]
#[pyfunction]
pub fn critical_path<'py>(py: Python<'py>, weights: &Weights) -> Ids<'py> {
    let paths = py.detach(|| {
        let sent = &weights.tensor_time;
        Paths::new(&weights.graph.work.graph, &weights.op_time, |t, _| sent[t.ix()])
    });
    weights.graph.indices(py, paths.critical.into_iter())
}

/// The control edges that no other path implies: their transitive reduction. Can be interrupted.
///
/// Edges that carry data always stay. An op reaches the same ops without the other control edges as
/// with them. O((V + E) D / 512) for D destinations of control edges, 64 bytes per op.
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

/// The bytes that one device would hold at the worst moment of running ops one after another.
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
///     Per op, its resident bytes and the bytes of its outputs that are alive at that moment.
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
    let order = order.map(|order| graph.topological(order)).transpose()?;
    let peak = py.detach(|| {
        let order = order.unwrap_or_else(|| topo::m_topo(&graph.work.graph));
        lifetime::peak(&graph.work, &order)
    });
    Ok((peak.bytes, graph.by_index(peak.held).into_pyarray(py)))
}
