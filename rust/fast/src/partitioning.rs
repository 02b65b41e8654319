//! Partitions of undirected graphs in `loadmaster.fast`.

use loadmaster_core::place::partition::{Weighted, partition as parts};
use numpy::PyArray1;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::convert;
use crate::graph::Ids;

/// The largest sum of all weights.
const MOST: u64 = 1 << 60;

/// Splits an undirected graph into parts of given weights, with light edges between parts.
///
/// Multilevel k-way partitioning (Karypis and Kumar 1998): coarsen by matching along heavy edges,
/// grow parts, refine on every level. Each part keeps within 5 % of its share, if the vertices'
/// weights allow that. O((V + E) log V).
///
/// Parameters
/// ----------
/// weight : uint64 or int64 [n]
///     Weights of the vertices.
/// src, dst : int [m]
///     The ends of the edges, each edge once. Edges between the same ends add up.
/// edge : uint64 or int64 [m]
///     Weights of the edges.
/// share : float64 [n_parts]
///     What each part should weigh, in any unit.
///
/// Returns
/// -------
/// int32 [n]
///     The part of each vertex.
///
/// Raises
/// ------
/// ValueError
///     A wrong dtype, shape or value; an edge from a vertex to itself.
///
/// Examples
/// --------
/// >>> import numpy as np
/// >>> from loadmaster import fast
/// >>> ones = np.ones(4, dtype=np.uint64)
/// >>> part = fast.partition(ones, np.array([0, 2]), np.array([1, 3]), ones[:2], np.ones(2))
/// >>> bool(part[0] == part[1]), bool(part[0] == part[2])
/// (True, False)
#[pyfunction]
#[pyo3(signature = (weight, src, dst, edge, share))]
pub fn partition<'py>(
    py: Python<'py>,
    weight: &Bound<'_, PyAny>,
    src: &Bound<'_, PyAny>,
    dst: &Bound<'_, PyAny>,
    edge: &Bound<'_, PyAny>,
    share: &Bound<'_, PyAny>,
) -> PyResult<Ids<'py>> {
    let (weight, edge) = (convert::sizes("weight", weight)?, convert::sizes("edge", edge)?);
    let src = convert::indices("src", src, edge.len(), weight.len())?;
    let dst = convert::indices("dst", dst, edge.len(), weight.len())?;
    if let Some(i) = (0..edge.len()).find(|&i| src[i] == dst[i]) {
        return Err(PyValueError::new_err(format!("src[{i}] and dst[{i}] are both {}", src[i])));
    }
    let sum = |column: &[u64]| column.iter().fold(0u64, |sum, &w| sum.saturating_add(w));
    for (argument, column) in [("weight", &weight), ("edge", &edge)] {
        if sum(column) > MOST {
            return Err(PyValueError::new_err(format!(
                "{argument} adds up to {}: at most 2^60",
                sum(column)
            )));
        }
    }
    let share = convert::seconds("share", share, 1, true)?;
    if share.is_empty() || share.contains(&0.0) {
        return Err(PyValueError::new_err("share: wants a positive number per part, for one part or more"));
    }
    let part = py.detach(|| {
        let edges = (0..edge.len()).map(|i| (src[i], dst[i], edge[i]));
        parts(&Weighted::new(weight, edges), &share)
    });
    Ok(PyArray1::from_iter(py, part.into_iter().map(|p| p as i32)))
}
