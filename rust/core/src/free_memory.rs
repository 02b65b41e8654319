//! Memory that fills up as a strategy places ops, and what happens to an op that fits nowhere.

use crate::cluster::Cluster;
use crate::error::Error;
use crate::ids::{DeviceId, OpId};
use crate::workload::Workload;

/// What to do with an op that fits on no device it may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnOom {
    /// Report it.
    Fail,
    /// Put it where most memory is free (Celeritas' best effort).
    BestEffort,
}

/// Free memory per device, as ops are placed.
#[derive(Clone, Debug)]
pub struct Memory<'a> {
    pub(crate) work: &'a Workload,
    pub(crate) cluster: &'a Cluster,
    /// Per op, the op that decides where it goes.
    pub(crate) lead: &'a [OpId],
    /// Bytes that placing each op takes: its own and those of the ops it decides for.
    pub(crate) charge: &'a [u64],
    free: Vec<u64>,
    on_oom: OnOom,
}

impl<'a> Memory<'a> {
    /// Nothing placed yet. `capacity` is bytes per device.
    pub fn new(
        work: &'a Workload,
        cluster: &'a Cluster,
        lead: &'a [OpId],
        charge: &'a [u64],
        capacity: &[u64],
        on_oom: OnOom,
    ) -> Self {
        Self { work, cluster, lead, charge, free: capacity.to_vec(), on_oom }
    }

    /// Bytes still free on a device.
    pub fn free(&self, device: DeviceId) -> u64 {
        self.free[device.ix()]
    }

    /// Whether the op is allowed on the device and fits there.
    pub fn fits(&self, op: OpId, device: DeviceId) -> bool {
        self.work.allows(op, self.cluster, device) && self.charge[op.ix()] <= self.free[device.ix()]
    }

    /// Takes the op's bytes from a device.
    pub fn take(&mut self, op: OpId, device: DeviceId) {
        let free = &mut self.free[device.ix()];
        *free = free.saturating_sub(self.charge[op.ix()]);
    }

    /// The device for an op that fits nowhere: an error, or the allowed one with most memory free.
    pub fn nowhere(&self, op: OpId) -> Result<DeviceId, Error> {
        let allowed = self.cluster.device_ids().filter(|&d| self.work.allows(op, self.cluster, d));
        let best = allowed.max_by(|&a, &b| self.free(a).cmp(&self.free(b)).then(b.cmp(&a)));
        let Some(device_id) = best else { return Err(Error::NoAllowedDevice { op: op.into() }) };
        match self.on_oom {
            OnOom::BestEffort => Ok(device_id),
            OnOom::Fail => Err(Error::DoesNotFit {
                op: op.into(),
                members: self.lead.iter().filter(|&&l| l == op).count(),
                needed: self.charge[op.ix()],
                free: self.free(device_id),
                device: self.cluster.name(device_id).to_owned(),
                device_id,
            }),
        }
    }
}

/// Adds each op's bytes to those of the op that decides for it.
pub fn charge_to_leads(lead: &[OpId], bytes: &[u64]) -> Vec<u64> {
    let mut charge = vec![0u64; lead.len()];
    for (op, &b) in bytes.iter().enumerate() {
        let c = &mut charge[lead[op].ix()];
        *c = c.saturating_add(b);
    }
    charge
}
