//! Graphs, schedules and the simulator behind Loadmaster.
//!
//! Data moves one way. An [`opgraph`] (a model as its user knows it) is reduced ([`reduce`]) to a
//! [`workload`], which is ordered ([`topo`]), coarsened ([`coarsen`]), placed ([`place`]) on a
//! [`cluster`], improved ([`search`]), and judged ([`simulate`], [`bounds`]). Nothing here reads
//! files, prints, or keeps state between calls.

#![forbid(unsafe_code)]

pub mod border;
pub mod bounds;
pub mod clock;
pub mod cluster;
pub mod coarsen;
pub mod collective;
pub mod collective_times;
pub mod colocate;
pub mod csr;
pub mod dispatch;
pub mod error;
pub mod expand;
pub mod free_memory;
pub mod graph;
pub mod ids;
mod kahn;
pub mod labelling;
pub mod levels;
pub mod numbering;
pub mod opgraph;
pub mod pipeline;
pub mod place;
pub mod random;
pub mod reduce;
pub mod roles;
pub mod rules;
pub mod schedule;
pub mod search;
pub mod simulate;
pub mod topo;
pub mod transitive;
pub mod union;
pub mod workload;

pub use error::{ClusterError, Error};
