//! The rules of a problem beside its graph and its cluster: memory to fill, what each op is charged
//! of it, which op decides for which, and whether channels are limited.
//!
//! Rules are cheap to copy: a problem under other rules shares the columns that stay.

use std::borrow::Cow;
use std::sync::Arc;

use crate::cluster::Cluster;
use crate::colocate;
use crate::error::Error;
use crate::free_memory::{Memory, OnOom, charge_to_leads};
use crate::ids::OpId;
use crate::workload::Workload;

/// What strategies obey.
#[derive(Clone, Debug)]
pub struct Rules {
    /// Bytes to fill, per device.
    pub capacity: Arc<[u64]>,
    /// Bytes that each op is charged for the whole step, if they are given.
    pub op_bytes: Option<Arc<[u64]>>,
    /// What happens to an op that fits nowhere.
    pub on_oom: OnOom,
    /// Whether a channel carries one transfer at a time.
    pub contention: bool,
    lead: Option<Arc<[OpId]>>,
}

impl Rules {
    /// The rules at first: all of the devices' memory, and the graph's own leads.
    pub fn of(cluster: &Cluster) -> Self {
        let capacity = cluster.devices().iter().map(|d| d.memory).collect();
        Self { capacity, op_bytes: None, on_oom: OnOom::Fail, contention: true, lead: None }
    }

    /// The same rules with other ops deciding where each op goes. O(V).
    ///
    /// # Errors
    /// A lead that [`check_leads`] refuses.
    pub fn led_by(&self, work: &Workload, lead: Vec<OpId>) -> Result<Self, Error> {
        check_leads(work, &lead)?;
        Ok(Self { lead: Some(Arc::from(lead)), ..self.clone() })
    }

    /// The work with ops kept to some of the device types that they allow. Colocated ops keep to the
    /// types that all of them may use. O(V + E).
    ///
    /// # Errors
    /// An op without a type, colocated ops without one in common, a lead that may run on other types.
    pub fn restricted(&self, work: &Workload, masks: &[u64]) -> Result<Workload, Error> {
        let allowed = work.allowed.iter().zip(masks).map(|(allowed, mask)| allowed & mask);
        let mut allowed: Vec<u64> = allowed.collect();
        // The user's first one, whatever the order of the core.
        if let Some(op) = work.graph.ops_by_index().find(|op| allowed[op.ix()] == 0) {
            return Err(Error::NoTypeLeft { op: op.into() });
        }
        colocate::share_allowed(&work.sets, &mut allowed)?;
        let work = Workload { allowed, ..work.clone() };
        if let Some(lead) = &self.lead {
            check_leads(&work, lead)?;
        }
        Ok(work)
    }

    /// Per op, the op that decides where it goes, if that is not the graph's own.
    pub fn own_leads(&self) -> Option<&[OpId]> {
        self.lead.as_deref()
    }

    /// Per op, the op that decides where it goes.
    pub fn leads<'a>(&'a self, work: &'a Workload) -> &'a [OpId] {
        self.own_leads().unwrap_or(&work.lead)
    }

    /// Bytes that each op is charged: as given, or its resident and output bytes.
    pub fn charges(&self, work: &Workload) -> Cow<'_, [u64]> {
        match &self.op_bytes {
            Some(bytes) => Cow::Borrowed(bytes),
            None => Cow::Owned(work.static_bytes()),
        }
    }

    /// Bytes that each op is charged, with those of the ops it decides for.
    pub fn charges_of_leads(&self, work: &Workload) -> Vec<u64> {
        charge_to_leads(self.leads(work), &self.charges(work))
    }

    /// The memory to fill, given [`Rules::charges_of_leads`].
    pub fn memory<'a>(&'a self, work: &'a Workload, cluster: &'a Cluster, charge: &'a [u64]) -> Memory<'a> {
        Memory::new(work, cluster, self.leads(work), charge, &self.capacity, self.on_oom)
    }
}

/// Checks the op that decides for each op: a member of its set, or an op that stands for a whole set.
///
/// # Errors
/// An op that follows one which follows another, parts its set, or may run on other device types.
pub fn check_leads(work: &Workload, lead: &[OpId]) -> Result<(), Error> {
    for op in work.graph.ops() {
        let follows = lead[op.ix()];
        let first = work.sets.row(work.set_of[op.ix()] as usize)[0];
        let reason = if lead[follows.ix()] != follows {
            "that op follows another one"
        } else if lead[first.ix()] != follows {
            "other ops of its colocation set follow another one"
        } else if work.allowed[follows.ix()] != work.allowed[op.ix()] {
            "that op may run on other device types"
        } else {
            continue;
        };
        return Err(Error::BadLead { op: op.into(), follows: follows.into(), reason });
    }
    Ok(())
}
