//! Runs a plan: the loop of one device, and the board on which devices tell each other what has arrived.
//!
//! A *task* is what a device does in one go: an op, or the share of a member in a collective. An *arrival*
//! is what one device tells others: a transfer, a message, or that a member has brought its share. Every
//! device has a [`Part`] of the plan and a [`Dispatcher`] that says which task comes next. Devices share
//! nothing but a [`Board`]. They can be threads, processes, or clocks that only wait ([`emulate`]).

mod board;
mod dispatcher;
pub mod emulate;
mod part;
mod waiting;

pub use board::{Board, PER_ARRIVAL, PER_TASK, gate_words, words};
pub use dispatcher::{Dispatcher, Ended, Missing};
pub use part::{Columns, Part};
pub use waiting::{Bells, Monotonic};
