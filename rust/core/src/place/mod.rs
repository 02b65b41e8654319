//! Strategies: from a workload and a cluster to a device per op.

pub mod adjusting;
pub mod fill;
pub mod locality;
pub mod partition;
