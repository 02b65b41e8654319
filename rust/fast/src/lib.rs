//! The `loadmaster.fast` extension: numpy arrays in, numpy arrays out, errors across, GIL released.
//! Signatures and documentation stand in `fast.pyi` and `fast.py`'s docstrings; no algorithm lives here.
#![allow(missing_docs, reason = "what Python sees is documented in loadmaster/fast.pyi")]

mod cluster;
mod convert;
mod errors;
mod functions;
mod graph;
mod schedule;

use pyo3::prelude::*;

#[pymodule]
mod fast {
    #[pymodule_export]
    use super::cluster::Cluster;
    #[pymodule_export]
    use super::functions::{
        adjusting_placement, bounds, breakpoints, contract, cpd_topo, dfs_topo, fill_in_order, follow_bytes,
        levels, m_topo, mean_time, peak_bytes, round_robin, segments, simulate,
    };
    #[pymodule_export]
    use super::graph::{Graph, OpGraph};
    #[pymodule_export]
    use super::schedule::Schedule;
}
