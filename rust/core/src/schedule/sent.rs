//! What has been sent where while ops are being placed: each tensor once per device.
//!
//! A tensor goes to at most as many devices as it has consumers, so this takes O(E) memory, not one
//! cell per tensor and device.

use crate::graph::Graph;
use crate::ids::{DeviceId, TensorId};

/// Devices that tensors have been sent to, each with a value (when it arrives, say).
#[derive(Clone, Debug)]
pub struct Sent<T> {
    /// Room for the consumers of each tensor, tensor after tensor.
    entries: Vec<(DeviceId, T)>,
    starts: Vec<u32>,
    used: Vec<u32>,
}

impl<T: Copy + Default> Sent<T> {
    /// Nothing sent yet.
    pub fn new(graph: &Graph) -> Self {
        let mut starts = Vec::with_capacity(graph.n_tensors());
        let mut total = 0;
        for t in graph.tensors() {
            starts.push(total);
            total += graph.consumers(t).len() as u32;
        }
        Self {
            entries: vec![(DeviceId::NONE, T::default()); total as usize],
            starts,
            used: vec![0; graph.n_tensors()],
        }
    }

    /// The devices that a tensor has been sent to. O(1) per device.
    pub fn of(&self, t: TensorId) -> &[(DeviceId, T)] {
        let from = self.starts[t.ix()] as usize;
        &self.entries[from..from + self.used[t.ix()] as usize]
    }

    /// The value noted when the tensor was sent to the device, if it was.
    pub fn to(&self, t: TensorId, device: DeviceId) -> Option<T> {
        self.of(t).iter().find(|(d, _)| *d == device).map(|&(_, value)| value)
    }

    /// Notes that a tensor goes to a device for one of its consumers. Only the first time counts;
    /// says whether this is it.
    pub fn note(&mut self, t: TensorId, device: DeviceId, value: T) -> bool {
        let is_first = self.to(t, device).is_none();
        if is_first {
            self.entries[(self.starts[t.ix()] + self.used[t.ix()]) as usize] = (device, value);
            self.used[t.ix()] += 1;
        }
        is_first
    }
}
