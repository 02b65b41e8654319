//! The `loadmaster.fast` extension: numpy arrays in, numpy arrays out, errors across, GIL released.
//! Types stand in `loadmaster/fast.pyi`; no algorithm lives here.
#![allow(missing_docs, reason = "what Python sees is documented in loadmaster/fast.pyi")]

mod board;
mod cluster;
mod coarsening;
mod convert;
mod dispatching;
mod errors;
mod expanding;
mod filling;
mod graph;
mod labelling;
mod ordering;
mod partitioning;
mod patterns;
mod piper;
mod problem;
mod schedule;
mod scheduling;
mod searching;
mod simulating;
mod staging;
mod weights;

use pyo3::prelude::*;

/// The hot paths over numpy arrays, for people who have their own graph.
///
/// Build a validated `Graph` once, then call functions on it. Ids are int32 or int64, times float64
/// seconds, sizes uint64 or int64 bytes; results are new arrays. A wrong dtype, shape or length is a
/// ValueError that says which argument, what it got and what it wants; a bad graph is an InputError (a
/// ValueError too). The GIL is released; everything is safe from several threads.
///
/// `tensor_time` has one value per tensor id (without `tensor`: per op, since then each op has one
/// output); messages without data take `control_time`.
#[pymodule]
mod fast {
    use pyo3::prelude::*;
    use pyo3::types::PyTuple;

    #[pymodule_export]
    use super::board::Board;
    #[pymodule_export]
    use super::cluster::Cluster;
    #[pymodule_export]
    use super::coarsening::{
        batch_merge, breakpoints, contract, dominant_sequences, edges, exact_breakpoints, fuse,
        linear_clusters, multilevel_partition, parallel_merge, repeated_groups, segments,
    };
    #[pymodule_export]
    use super::dispatching::{Dispatcher, Emulated, Links, Part};
    #[pymodule_export]
    use super::expanding::{expand, replace_op, roles, summed_edges, with_control};
    #[pymodule_export]
    use super::filling::{fill_in_order, follow_bytes, round_robin};
    #[pymodule_export]
    use super::graph::{Graph, OpGraph};
    #[pymodule_export]
    use super::labelling::{Labelling, Labels};
    #[pymodule_export]
    use super::ordering::{
        cpd_topo, critical_path, dfs_topo, levels, m_topo, needed_control, peak_bytes, priority_order,
    };
    #[pymodule_export]
    use super::partitioning::partition;
    #[pymodule_export]
    use super::patterns::Pattern;
    #[pymodule_export]
    use super::piper::piper_stages;
    #[pymodule_export]
    use super::problem::Problem;
    #[pymodule_export]
    use super::schedule::Schedule;
    #[pymodule_export]
    use super::scheduling::{
        adjusting_placement, optimistic_costs, placed_paths, schedule, schedule_below, schedule_earliest,
        schedule_placed,
    };
    #[pymodule_export]
    use super::searching::{Stop, refine_placement, search, search_windows};
    #[pymodule_export]
    use super::simulating::{bounds, heads_and_tails, simulate, simulate_below};
    #[pymodule_export]
    use super::staging::{best_stages, split_max_load};
    #[pymodule_export]
    use super::weights::Weights;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        super::keep_freed_memory();
        let names = loadmaster_core::collective::Kind::NAMED.map(|(name, _)| name);
        module.add("COLLECTIVES", PyTuple::new(module.py(), names)?)
    }
}

/// Has glibc keep up to 16 MiB of freed memory. One stage of a plan frees memory that the next
/// stage asks for again, and every page given back in between is cleared and mapped anew. glibc
/// keeps twice the largest block freed so far (mallopt(3), the dynamic thresholds). The block freed
/// here is never touched, so it costs no memory. Limits that a user has set stand.
fn keep_freed_memory() {
    const BLOCK_BYTES: usize = 8 << 20;
    if cfg!(all(target_os = "linux", target_env = "gnu")) {
        drop(std::hint::black_box(Vec::<u8>::with_capacity(BLOCK_BYTES)));
    }
}
