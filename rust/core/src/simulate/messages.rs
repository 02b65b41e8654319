//! Which tensor goes to which devices under a placement.

use crate::ids::{DeviceId, TensorId};
use crate::workload::Workload;

/// A tensor to be sent to a device, and how many ops read it there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub tensor: TensorId,
    pub dst: DeviceId,
    pub readers: u32,
}

/// Messages by tensor, then destination.
#[derive(Clone, Debug)]
pub(super) struct Messages {
    all: Vec<Message>,
    starts: Vec<u32>,
}

impl Messages {
    /// O(E + messages).
    pub fn new(work: &Workload, placement: &[DeviceId], n_devices: usize) -> Self {
        let graph = &work.graph;
        let mut all: Vec<Message> = Vec::new();
        let mut starts = Vec::with_capacity(graph.n_tensors() + 1);
        starts.push(0);
        let mut at = vec![u32::MAX; n_devices];
        for t in graph.tensors() {
            let here = placement[graph.source(t).ix()];
            let from = all.len();
            for c in graph.consumers(t) {
                let dst = placement[c.ix()];
                if dst == here {
                    continue;
                }
                let i = at[dst.ix()] as usize;
                if i >= from && i < all.len() && all[i].dst == dst {
                    all[i].readers += 1;
                } else {
                    at[dst.ix()] = all.len() as u32;
                    all.push(Message { tensor: t, dst, readers: 1 });
                }
            }
            if all.len() > from + 1 {
                all[from..].sort_unstable_by_key(|m| m.dst);
            }
            starts.push(all.len() as u32);
        }
        Self { all, starts }
    }

    pub fn len(&self) -> usize {
        self.all.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Message> {
        self.all.iter()
    }

    #[inline(always)]
    pub fn get(&self, message: u32) -> Message {
        self.all[message as usize]
    }

    /// The messages of one tensor.
    #[inline(always)]
    pub fn of(&self, tensor: TensorId) -> std::ops::Range<u32> {
        self.starts[tensor.ix()]..self.starts[tensor.ix() + 1]
    }

    /// The message that brings a tensor to a device.
    #[inline(always)]
    pub fn to(&self, tensor: TensorId, device: DeviceId) -> Option<u32> {
        self.of(tensor).find(|&m| self.all[m as usize].dst == device)
    }
}
