//! Boundary refinement of a placement: groups of ops move between devices where that shortens the step.
//!
//! The uncoarsening half of a multilevel placement: on each of several levels, coarse to fine, every
//! group is offered the devices it exchanges most with and the one with least to do, and moves
//! where the schedule gets shorter, or as long with less sent. Moving a coarse group moves what moving its
//! ops one by one would never get across a worse placement.
//!
//! The judge is a push-list schedule: ops run in a given topological order on their devices; a
//! tensor is sent once to each device that reads it, when it is made, and holds every channel of its
//! route. With first-come-first-served channels that is the simulator's schedule but for ties and for
//! ops that would overtake others; the simulator has the last word (in Python). An evaluation ends as
//! soon as an op's finish and the work that must follow it exceed the best. O(V + E) each.
//!
//! Whole sets of colocated ops move; memory is counted statically, per op as given.

use crate::clock::Ticks;
use crate::cluster::Cluster;
use crate::csr::Csr;
use crate::error::Error;
use crate::ids::{DeviceId, OpId, TensorId};
use crate::schedule::push::Push;
use crate::topo;
use crate::workload::{Times, Workload};

/// Sweeps over the groups of one level; they end when one gains nothing.
const SWEEPS: usize = 3;

/// Devices that a group is offered for what it exchanges with them.
const OFFERS: usize = 3;

/// Where and when ops run, as it is refined.
#[derive(Clone, Debug, PartialEq)]
pub struct Refined {
    /// Device per op.
    pub placement: Vec<DeviceId>,
    /// Estimated seconds of a step.
    pub makespan: f64,
    /// Visits of ops over all schedules that were tried.
    pub visits: u64,
}

/// What is refined, and within what.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// A topological order: on a device, ops run in it.
    pub order: &'a [OpId],
    /// The placement to begin with.
    pub placement: &'a [DeviceId],
    /// Group per op, level by level, coarse to fine.
    pub levels: &'a [Vec<u32>],
    /// Bytes per op, and per device at most.
    pub op_bytes: &'a [u64],
    /// Bytes per device at most; one that holds more already takes no more.
    pub capacity: &'a [u64],
    /// Most visits of ops, over all schedules.
    pub budget: u64,
}

/// Moves groups between devices while that shortens the schedule.
///
/// # Errors
/// An order that is not topological, a placement that breaks a rule, columns of the wrong length,
/// times that cannot be counted.
pub fn refine(
    work: &Workload,
    cluster: &Cluster,
    times: &Times,
    request: &Request<'_>,
) -> Result<Refined, Error> {
    let n = work.n_ops();
    times.check_types(cluster)?;
    work.check_placement(cluster, request.placement)?;
    if !topo::is_topological(&work.graph, request.order) {
        let reason = "must list every op once, producers before consumers".into();
        return Err(Error::BadArgument { argument: "order", reason });
    }
    let wrong = |argument, got, want, per| Err(Error::WrongLength { argument, got, want, per });
    if let Some(level) = request.levels.iter().find(|level| level.len() != n) {
        return wrong("level", level.len(), n, "op");
    }
    if request.op_bytes.len() != n {
        return wrong("op_bytes", request.op_bytes.len(), n, "op");
    }
    if request.capacity.len() != cluster.n_devices() {
        return wrong("capacity", request.capacity.len(), cluster.n_devices(), "device");
    }
    let mut search = Search::new(work, cluster, times, request)?;
    for level in request.levels {
        search.level(level);
    }
    Ok(Refined {
        makespan: search.judge.clock.seconds(search.best.0),
        placement: search.placement,
        visits: search.visits,
    })
}

/// Makespan, then time of all transfers.
type Cost = (Ticks, Ticks);

/// Evaluates placements of one order.
struct Judge<'a> {
    work: &'a Workload,
    cluster: &'a Cluster,
    order: &'a [OpId],
    clock: crate::clock::Clock,
    ticks: Vec<Ticks>,
    n_types: usize,
    /// Least time from an op's finish to the end, wherever what follows runs.
    tail: Vec<Ticks>,
    push: Push<'a>,
    device_free: Vec<Ticks>,
}

impl<'a> Judge<'a> {
    fn new(
        work: &'a Workload,
        cluster: &'a Cluster,
        times: &Times,
        order: &'a [OpId],
    ) -> Result<Self, Error> {
        let clock = work.clock(times, cluster)?;
        let ticks = times.ticks(clock);
        let n_types = times.n_types();
        let fastest = |u: OpId| {
            let allowed = (0..n_types).filter(|k| work.allowed[u.ix()] >> k & 1 == 1);
            allowed.map(|k| ticks[u.ix() * n_types + k]).min().unwrap_or(0)
        };
        let mut tail = vec![0; work.n_ops()];
        for &u in order.iter().rev() {
            let after = |v: &OpId| tail[v.ix()] + fastest(*v);
            tail[u.ix()] = work.graph.successors(u).iter().map(after).max().unwrap_or(0);
        }
        Ok(Self {
            work,
            cluster,
            order,
            clock,
            tail,
            n_types,
            push: Push::new(work, cluster, clock, true),
            device_free: vec![0; cluster.n_devices()],
            ticks,
        })
    }

    /// Cost of a placement, unless it is no better than `limit`; and how many ops were visited.
    fn cost(&mut self, placement: &[DeviceId], limit: Cost) -> (Option<Cost>, u64) {
        self.push.clear();
        self.device_free.fill(0);
        let work = self.work;
        let graph = &work.graph;
        let (mut makespan, mut sent) = (0, 0);
        for t in (graph.n_produced()..graph.n_tensors()).map(TensorId::new) {
            sent += self.push.send(t, 0, placement);
        }
        for (visited, &u) in self.order.iter().enumerate() {
            let device = placement[u.ix()];
            let free = &mut self.device_free[device.ix()];
            let time = self.ticks[u.ix() * self.n_types + self.cluster.type_of(device)];
            let finish = (*free).max(self.push.ready[u.ix()]) + time;
            *free = finish;
            makespan = makespan.max(finish);
            if finish + self.tail[u.ix()] > limit.0 {
                return (None, visited as u64 + 1);
            }
            for t in graph.outputs(u) {
                sent += self.push.send(t, finish, placement);
            }
        }
        let cost = (makespan, sent);
        ((cost < limit).then_some(cost), self.order.len() as u64)
    }
}

/// The placement being refined.
struct Search<'a> {
    judge: Judge<'a>,
    request: &'a Request<'a>,
    placement: Vec<DeviceId>,
    /// Bytes per device.
    held: Vec<u128>,
    best: Cost,
    visits: u64,
}

impl<'a> Search<'a> {
    fn new(
        work: &'a Workload,
        cluster: &'a Cluster,
        times: &Times,
        request: &'a Request<'a>,
    ) -> Result<Self, Error> {
        let mut judge = Judge::new(work, cluster, times, request.order)?;
        let (cost, visited) = judge.cost(request.placement, (Ticks::MAX, Ticks::MAX));
        let mut held = vec![0; cluster.n_devices()];
        for (device, &bytes) in request.placement.iter().zip(request.op_bytes) {
            held[device.ix()] += u128::from(bytes);
        }
        Ok(Self {
            judge,
            request,
            placement: request.placement.to_vec(),
            held,
            best: cost.unwrap_or((Ticks::MAX, Ticks::MAX)),
            visits: visited,
        })
    }

    fn is_spent(&self) -> bool {
        self.visits >= self.request.budget
    }

    /// Sweeps over the groups of a level until one gains nothing.
    fn level(&mut self, group: &[u32]) {
        let mut numbers = group.to_vec();
        numbers.sort_unstable();
        numbers.dedup();
        let dense = |g: u32| numbers.binary_search(&g).unwrap_or(0);
        // By first op in the order, so that a sweep follows the schedule.
        let in_order = self.request.order.iter().map(|u| (dense(group[u.ix()]), *u));
        let members = Csr::from_pairs(numbers.len(), in_order);
        let mut rows: Vec<usize> = (0..members.n_rows()).collect();
        let mut place = vec![0u32; group.len()];
        self.request.order.iter().enumerate().for_each(|(i, u)| place[u.ix()] = i as u32);
        rows.sort_by_key(|&g| members.row(g).first().map_or(0, |u| place[u.ix()]));
        let mut ops = Vec::new();
        for _ in 0..SWEEPS {
            let before = self.best;
            for &g in &rows {
                if self.is_spent() {
                    return;
                }
                self.with_sets(members.row(g), &mut ops);
                self.offer(&ops);
            }
            if self.best == before {
                return;
            }
        }
    }

    /// Ops with all that are colocated with one of them, ascending.
    fn with_sets(&self, group: &[OpId], ops: &mut Vec<OpId>) {
        let work = self.judge.work;
        ops.clear();
        ops.extend(group.iter().flat_map(|u| work.sets.row(work.set_of[u.ix()] as usize)));
        ops.sort_unstable();
        ops.dedup();
    }

    /// Moves ops to the device that shortens the schedule most, of those they exchange most with and
    /// the one with least to do.
    fn offer(&mut self, ops: &[OpId]) {
        for device in self.candidates(ops) {
            if self.is_spent() || !self.has_room(ops, device) {
                continue;
            }
            let back: Vec<DeviceId> = ops.iter().map(|u| self.placement[u.ix()]).collect();
            ops.iter().for_each(|u| self.placement[u.ix()] = device);
            let (cost, visited) = self.judge.cost(&self.placement, self.best);
            self.visits += visited;
            match cost {
                Some(cost) => {
                    self.best = cost;
                    for (u, from) in ops.iter().zip(back) {
                        self.held[from.ix()] -= u128::from(self.request.op_bytes[u.ix()]);
                        self.held[device.ix()] += u128::from(self.request.op_bytes[u.ix()]);
                    }
                }
                None => ops.iter().zip(back).for_each(|(u, from)| self.placement[u.ix()] = from),
            }
        }
    }

    /// Devices to try, most promising first: those of ops that these exchange tensors with, then
    /// the one that is free first in the last schedule.
    fn candidates(&self, ops: &[OpId]) -> Vec<DeviceId> {
        let (work, cluster) = (self.judge.work, self.judge.cluster);
        let mut bytes = vec![0u128; cluster.n_devices()];
        for &u in ops {
            for &t in work.graph.inputs(u).iter().chain(work.graph.pulls(u)) {
                let device = self.placement[work.graph.source(t).ix()];
                bytes[device.ix()] += u128::from(work.tensor_bytes[t.ix()]) + 1;
            }
            for t in work.graph.outputs(u) {
                for c in work.graph.consumers(t) {
                    bytes[self.placement[c.ix()].ix()] += u128::from(work.tensor_bytes[t.ix()]) + 1;
                }
            }
        }
        let mut devices: Vec<DeviceId> = cluster.device_ids().collect();
        let idle = devices.iter().copied().min_by_key(|d| (self.judge.device_free[d.ix()], *d));
        devices.sort_by_key(|d| (std::cmp::Reverse(bytes[d.ix()]), *d));
        devices.retain(|d| bytes[d.ix()] > 0);
        devices.truncate(OFFERS);
        devices.extend(idle.filter(|d| !devices.contains(d)));
        let allowed = |d: &DeviceId| ops.iter().all(|u| work.allows(*u, cluster, *d));
        let moves = |d: &DeviceId| ops.iter().any(|u| self.placement[u.ix()] != *d);
        devices.retain(|d| moves(d) && allowed(d));
        devices
    }

    fn has_room(&self, ops: &[OpId], device: DeviceId) -> bool {
        let comes = ops.iter().filter(|u| self.placement[u.ix()] != device);
        let bytes: u128 = comes.map(|u| u128::from(self.request.op_bytes[u.ix()])).sum();
        bytes == 0 || self.held[device.ix()] + bytes <= u128::from(self.request.capacity[device.ix()])
    }
}
