//! Local search over placements and orders (Loadmaster's own; the moves are in [`moves`]).
//!
//! A state is a device per op and one topological permutation of the ops. Its makespan is that of
//! [`append`](crate::schedule::append): what the simulator finds for the fixed sequence where each
//! channel serves one pair of devices, an estimate on shared channels. It leaves out the costs of a runtime
//! (copies that senders make, launches by hosts): whoever searches has the simulator judge what is found.
//!
//! * [`state`] holds the state, and [`evaluate`] works its makespan out anew where a change
//!   reaches.
//! * [`causes`] finds the ops that the makespan waits for.
//! * [`anneal`] is one chain of accepted and rejected moves. [`chains`] runs several chains that
//!   exchange what they find.
//! * [`windows`] searches a large graph stretch by stretch.
//! * [`refine`] moves groups of ops to other devices.
//!
//! Colocated sets and allowed device types are obeyed at every step, and no device is ever charged
//! more than it may hold.

pub mod anneal;
pub mod bottoms;
pub mod causes;
pub mod chains;
pub mod critical;
pub mod evaluate;
pub mod moves;
pub mod problem;
pub mod refine;
pub mod rows;
pub mod state;
pub mod windows;

/// Threads for some tasks: no more than were asked for, than there are tasks, and than there are cores.
fn n_threads(asked: usize, tasks: usize) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    asked.min(tasks).min(cores).max(1)
}
