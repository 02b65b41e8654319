//! From a model's graph to one that does the same work in more ops.
//!
//! A transform decides in terms of the user's ops: what is replicated, what is added where, what is
//! cut. Here that becomes the columns of a graph. [`copies`] puts copies of ops on several devices, which
//! share what there is in [`ways`]. [`block`] puts several ops in the place of one. [`control`] makes ops
//! wait for others. What comes out is valid because its source is; a debug build checks.

pub mod block;
pub mod control;
pub mod copies;
pub mod ways;
