//! The input of a search, laid out as its inner loop reads it.

use crate::clock::{Clock, Ticks};
use crate::cluster::Cluster;
use crate::csr::Csr;
use crate::error::Error;
use crate::graph::Graph;
use crate::ids::{ChannelId, DeviceId, OpId, TensorId};
use crate::workload::Workload;
use std::collections::BTreeMap;
use std::ops::Range;

/// Devices are kept as bits of a word.
pub const MAX_DEVICES: usize = 64;

/// The validated input of a search. It is immutable, and all chains share it.
#[derive(Debug)]
pub struct Problem<'a> {
    pub(super) work: &'a Workload,
    pub(super) cluster: &'a Cluster,
    pub(super) n_devices: usize,
    /// Ticks per op and device, row-major.
    pub(super) time: Vec<Ticks>,
    /// Tensors that each op reads, home tensors included.
    pub(super) reads: Csr<TensorId>,
    /// Ticks per tensor and kind of route, row-major.
    pub(super) transfer: Vec<Ticks>,
    pub(super) n_routes: usize,
    /// The route per ordered pair of devices.
    pub(super) route: Vec<Route>,
    /// The devices whose tensors may use each channel, as bits.
    pub(super) senders: Vec<u64>,
    /// Home tensors in the order in which their channels serve them at time 0.
    pub(super) homes: Vec<TensorId>,
    /// Per home tensor, its position in `homes`, [`u32::MAX`] if it is not in it. Then, per op, the positions
    /// of the tensors whose home it is.
    pub(super) rank: Vec<u32>,
    pub(super) homes_at: Csr<u32>,
    /// Whether the op is the home of a tensor or reads a home tensor.
    pub(super) at_home: Vec<bool>,
    /// Per op, a lower bound on the time from its finish to the end: the longest path that begins there, with
    /// every op on its fastest device and transfers free.
    pub(super) tail: Vec<Ticks>,
    /// The unit each op moves with: a colocated set, or the ops that one op decides for.
    pub(super) unit_of: Vec<u32>,
    pub(super) units: Csr<OpId>,
    /// Devices each unit may use, as bits.
    pub(super) allowed: Vec<u64>,
    /// Bytes each unit is charged.
    pub(super) charge: Vec<u64>,
    pub(super) capacity: Vec<u64>,
    /// Ops that may be moved and shifted. Ops before and after this range stand for what surrounds a window.
    pub(super) open: Range<usize>,
    /// Per channel, when it can carry its first home tensor; then, per home tensor, when it can be sent.
    pub(super) channel_free: Vec<Ticks>,
    pub(super) made: Vec<Ticks>,
    /// Per channel, the time from when it is free to the end, for what follows the window.
    pub(super) channel_rest: Vec<Ticks>,
    /// Ticks for which sending keeps the sender busy, per tensor and device type, row-major; empty: none.
    pub(super) copy: Vec<Ticks>,
    /// Ticks that the launch of each op takes; empty: none. Then, per host, when it is free.
    pub(super) launch: Vec<Ticks>,
    pub(super) host_free: Vec<Ticks>,
    pub(super) surroundings: Surroundings,
}

/// The route from one device to another, in 64 bits. Few routes have more than one channel: the others are
/// looked up in the cluster.
#[derive(Clone, Copy, Debug)]
pub(super) struct Route {
    /// Column of [`Problem::transfer`].
    kind: u16,
    has_more: bool,
    /// The first channel; none from a device to itself.
    channel: ChannelId,
}

/// What a window of a longer order takes as given; empty for a whole graph.
///
/// What comes before the window stands in it as one op per device, which ends when the device is free, and as
/// home tensors. What follows stands in it as one op per device, which takes as long as the rest of the order
/// on the device.
#[derive(Debug, Default)]
pub(super) struct Surroundings {
    /// Per home tensor and device, when the tensor is on the device without being sent; [`Ticks::MAX`] where
    /// it must be sent.
    pub there: Vec<Ticks>,
    /// Per tensor and device, the time from its arrival there to the end, for ops outside the window that
    /// read it.
    pub rest: Vec<Ticks>,
    /// The time before the first op can start, plus the time after the last op ends.
    pub outside: Ticks,
}

/// Ticks per tensor and kind of route, row-major.
fn transfers(work: &Workload, cluster: &Cluster, clock: Clock, kinds: &[(DeviceId, DeviceId)]) -> Vec<Ticks> {
    let ticks =
        |t: TensorId, from, to| clock.ticks(cluster.transfer_seconds(from, to, work.tensor_bytes[t.ix()]));
    let all = |t| kinds.iter().map(move |&(from, to)| ticks(t, from, to));
    work.graph.tensors().flat_map(all).collect()
}

/// Ticks for which sending keeps the sender busy, per tensor and device type, row-major; empty: none.
fn copies(work: &Workload, cluster: &Cluster, clock: Clock) -> Vec<Ticks> {
    if !cluster.has_send_costs() {
        return Vec::new();
    }
    let types = cluster.device_ids().map(|d| (cluster.type_of(d), d)).collect::<BTreeMap<_, _>>();
    let copied =
        |t: TensorId, d| clock.ticks(cluster.send_seconds(d, work.tensor_bytes[t.ix()]).unwrap_or_default());
    work.graph.tensors().flat_map(|t| types.values().map(move |&d| copied(t, d))).collect()
}

impl<'a> Problem<'a> {
    /// `time` is ticks per op and device type, row-major. `bytes` is what each op is charged for the whole
    /// step; an empty column charges nothing. An op moves together with all ops of its `lead`; without leads
    /// it moves together with its colocated set. O(D (V + E)) for D devices.
    ///
    /// # Errors
    /// More than [`MAX_DEVICES`] devices.
    pub fn new(
        work: &'a Workload,
        cluster: &'a Cluster,
        clock: Clock,
        time: &[Ticks],
        bytes: &[u64],
        capacity: &[u64],
        lead: Option<&[OpId]>,
    ) -> Result<Self, Error> {
        let (graph, n, k) = (&work.graph, work.n_ops(), cluster.n_devices());
        if k > MAX_DEVICES {
            let reason = format!("{k} devices: the search takes at most {MAX_DEVICES}");
            return Err(Error::BadArgument { argument: "cluster", reason });
        }
        let n_types = cluster.types().len();
        let on = |u: OpId, d: DeviceId| time[u.ix() * n_types + cluster.type_of(d)];
        let time = graph.ops().flat_map(|u| cluster.device_ids().map(move |d| on(u, d))).collect();
        let (route, kinds) = routes(cluster);
        let transfer = transfers(work, cluster, clock, &kinds);
        let mut homes: Vec<TensorId> = graph.tensors().filter(|&t| graph.is_home(t)).collect();
        homes.sort_unstable_by_key(|&t| graph.key(t));
        let (rank, homes_at) = ranks(graph, &homes);
        let may = |u: OpId| cluster.device_ids().filter(move |&d| work.allows(u, cluster, d));
        let tail = tails(graph, |u| may(u).map(|d| on(u, d)).min().unwrap_or(0));
        let (unit_of, units) = units(work, lead);
        let first = |unit: usize| units.row(unit)[0];
        let allowed =
            (0..units.n_rows()).map(|unit| may(first(unit)).fold(0, |mask, d| mask | 1 << d.0)).collect();
        let charge = charges(&unit_of, units.n_rows(), bytes);
        Ok(Self {
            work,
            cluster,
            n_devices: k,
            time,
            reads: reads(graph),
            transfer,
            n_routes: kinds.len(),
            route,
            senders: senders(cluster),
            at_home: at_home(graph, &homes),
            homes,
            rank,
            homes_at,
            tail,
            unit_of,
            units,
            allowed,
            charge,
            capacity: capacity.to_vec(),
            open: 0..n,
            channel_free: vec![0; cluster.n_channels()],
            channel_rest: vec![0; cluster.n_channels()],
            copy: copies(work, cluster, clock),
            launch: Vec::new(),
            host_free: Vec::new(),
            made: vec![0; graph.n_tensors() - graph.n_produced()],
            surroundings: Surroundings::default(),
        })
    }

    /// The same problem where hosts launch the ops, in the order of a state. `launch` is ticks per op; empty: none.
    #[must_use]
    pub fn launching(self, launch: &[Ticks]) -> Self {
        let n_hosts = if launch.is_empty() { 0 } else { self.cluster.n_hosts() };
        Self { launch: launch.to_vec(), host_free: vec![0; n_hosts], ..self }
    }

    /// Whether the runtime costs something beside ops and links.
    pub(super) fn has_runtime_costs(&self) -> bool {
        !self.copy.is_empty() || !self.launch.is_empty()
    }

    /// Whether it is a whole graph, and no window of an order.
    pub(super) fn is_whole(&self) -> bool {
        self.open.start == 0
    }

    /// Ticks for which sending a tensor keeps its sender busy, where some device type pays for that.
    #[inline(always)]
    pub(super) fn copy(&self, t: TensorId, from: DeviceId) -> Ticks {
        self.copy[t.ix() * self.cluster.types().len() + self.cluster.type_of(from)]
    }

    /// Number of ops.
    pub fn n_ops(&self) -> usize {
        self.work.n_ops()
    }

    #[inline(always)]
    pub(super) fn length(&self, op: OpId, device: DeviceId) -> Ticks {
        self.time[op.ix() * self.n_devices + device.ix()]
    }

    #[inline(always)]
    pub(super) fn transfer(&self, t: TensorId, from: DeviceId, to: DeviceId) -> Ticks {
        let route = self.route[from.ix() * self.n_devices + to.ix()];
        self.transfer[t.ix() * self.n_routes + usize::from(route.kind)]
    }

    /// Books the transfer of a tensor: it starts at `when` or, if that is later, when all channels of its
    /// route are free. Returns its end, until which the channels are busy. Bottoms use it too, with time
    /// counted backwards from the end.
    #[inline(always)]
    pub(super) fn pass(
        &self,
        channels: &mut [Ticks],
        t: TensorId,
        from: DeviceId,
        to: DeviceId,
        when: Ticks,
    ) -> Ticks {
        let route = self.route[from.ix() * self.n_devices + to.ix()];
        let takes = self.transfer[t.ix() * self.n_routes + usize::from(route.kind)];
        let first = &mut channels[route.channel.ix()];
        let mut end = when.max(*first) + takes;
        *first = end;
        if route.has_more {
            let more = &self.cluster.route_channels(from, to)[1..];
            end = more.iter().map(|c| channels[c.ix()] + takes).fold(end, Ticks::max);
            self.cluster.route_channels(from, to).iter().for_each(|c| channels[c.ix()] = end);
        }
        end
    }

    /// When an op may start that reads a tensor, given the tensor's arrival `when`.
    ///
    /// An op that stands for what follows the window must only end late enough for the tensor's
    /// [`Surroundings::rest`], so it may start before the tensor arrives.
    #[inline(always)]
    pub(super) fn ready(&self, op: OpId, t: TensorId, device: DeviceId, when: Ticks) -> Ticks {
        if op.ix() < self.open.end {
            return when;
        }
        let rest = self.surroundings.rest[t.ix() * self.n_devices + device.ix()];
        (when + rest).saturating_sub(self.length(op, device))
    }

    /// The time from a tensor's arrival to the end through one of its readers, whose `bottom` is given.
    #[inline(always)]
    pub(super) fn rest(&self, op: OpId, t: TensorId, device: DeviceId, bottom: Ticks) -> Ticks {
        if op.ix() < self.open.end {
            return self.length(op, device) + bottom;
        }
        self.surroundings.rest[t.ix() * self.n_devices + device.ix()]
    }

    /// The unit of an op.
    #[inline(always)]
    pub(super) fn unit(&self, op: OpId) -> usize {
        self.unit_of[op.ix()] as usize
    }

    /// Bytes charged per device.
    pub fn charged(&self, placement: &[DeviceId]) -> Vec<u64> {
        let mut used = vec![0u64; self.n_devices];
        for (unit, &bytes) in self.charge.iter().enumerate() {
            let sum = &mut used[placement[self.units.row(unit)[0].ix()].ix()];
            *sum = sum.saturating_add(bytes);
        }
        used
    }

    /// Checks a state to start from.
    ///
    /// # Errors
    /// A placement that breaks a rule, parts ops that move together, or charges a device more than it may
    /// hold.
    pub fn check(&self, placement: &[DeviceId]) -> Result<(), Error> {
        self.work.check_placement(self.cluster, placement)?;
        let bad = |reason| Err(Error::BadArgument { argument: "devices", reason });
        for members in (0..self.units.n_rows()).map(|unit| self.units.row(unit)) {
            let first = members[0];
            if let Some(&u) = members.iter().find(|u| placement[u.ix()] != placement[first.ix()]) {
                let (u, first) = (self.work.graph.index(u), self.work.graph.index(first));
                return bad(format!("ops {first} and {u} move together, and are on two devices"));
            }
        }
        let used = self.charged(placement);
        match (0..self.n_devices).find(|&d| used[d] > self.capacity[d]) {
            None => Ok(()),
            Some(d) => {
                bad(format!("the ops on device {d} take {} bytes: it may hold {}", used[d], self.capacity[d]))
            }
        }
    }
}

/// Tensors that each op reads, home tensors last.
pub(super) fn reads(graph: &Graph) -> Csr<TensorId> {
    let of = |u: OpId| graph.inputs(u).iter().chain(graph.pulls(u)).map(move |&t| (u.ix(), t));
    Csr::from_pairs(graph.n_ops(), graph.ops().flat_map(of))
}

/// Per home tensor of the graph, its position in `homes`, [`u32::MAX`] if it is not in it. Then, per op, the
/// positions of the tensors whose home it is.
pub(super) fn ranks(graph: &Graph, homes: &[TensorId]) -> (Vec<u32>, Csr<u32>) {
    let mut rank = vec![u32::MAX; graph.n_tensors() - graph.n_produced()];
    for (i, t) in homes.iter().enumerate() {
        rank[t.ix() - graph.n_produced()] = i as u32;
    }
    let at = homes.iter().enumerate().map(|(i, &t)| (graph.source(t).ix(), i as u32));
    (rank, Csr::from_pairs(graph.n_ops(), at))
}

/// The route per ordered pair of devices, and two devices of each kind of route: routes of one kind have the
/// same latency and bandwidth.
fn routes(cluster: &Cluster) -> (Vec<Route>, Vec<(DeviceId, DeviceId)>) {
    let mut kinds: Vec<(DeviceId, DeviceId)> = Vec::new();
    let mut routes = Vec::with_capacity(cluster.n_devices() * cluster.n_devices());
    for from in cluster.device_ids() {
        for to in cluster.device_ids() {
            let figures = cluster.route(from, to);
            let known = kinds.iter().position(|&(a, b)| cluster.route(a, b) == figures);
            let channels = cluster.route_channels(from, to);
            routes.push(Route {
                kind: known.unwrap_or(kinds.len()) as u16,
                has_more: channels.len() > 1,
                channel: channels.first().copied().unwrap_or(ChannelId::NONE),
            });
            if known.is_none() {
                kinds.push((from, to));
            }
        }
    }
    (routes, kinds)
}

/// Per channel, the devices whose tensors may use it, as bits.
fn senders(cluster: &Cluster) -> Vec<u64> {
    let mut senders = vec![0; cluster.n_channels()];
    for from in cluster.device_ids() {
        for c in cluster.device_ids().flat_map(|to| cluster.route_channels(from, to)) {
            senders[c.ix()] |= 1 << from.0;
        }
    }
    senders
}

/// Per op, whether it is the home of one of `homes` or reads one.
fn at_home(graph: &Graph, homes: &[TensorId]) -> Vec<bool> {
    let mut at_home = vec![false; graph.n_ops()];
    for &t in homes {
        at_home[graph.source(t).ix()] = true;
        graph.consumers(t).iter().for_each(|u| at_home[u.ix()] = true);
    }
    at_home
}

/// The longest path from each op's finish to the end, each op as long as `least` says, transfers free.
fn tails(graph: &Graph, least: impl Fn(OpId) -> Ticks) -> Vec<Ticks> {
    let mut tail = vec![0; graph.n_ops()];
    for &u in graph.topo().iter().rev() {
        let from_start = tail[u.ix()] + least(u);
        for (_, source) in graph.inputs_with_ops(u) {
            tail[source.ix()] = tail[source.ix()].max(from_start);
        }
    }
    tail
}

/// The bytes of each unit's ops together.
fn charges(unit_of: &[u32], n_units: usize, bytes: &[u64]) -> Vec<u64> {
    let mut charge = vec![0u64; n_units];
    for (&unit, &b) in unit_of.iter().zip(bytes) {
        let c = &mut charge[unit as usize];
        *c = c.saturating_add(b);
    }
    charge
}

/// Which ops move together.
fn units(work: &Workload, lead: Option<&[OpId]>) -> (Vec<u32>, Csr<OpId>) {
    let Some(lead) = lead else { return (work.set_of.clone(), work.sets.clone()) };
    let mut number = vec![u32::MAX; work.n_ops()];
    let mut count = 0;
    for &l in lead {
        if number[l.ix()] == u32::MAX {
            number[l.ix()] = count;
            count += 1;
        }
    }
    let unit_of: Vec<u32> = lead.iter().map(|l| number[l.ix()]).collect();
    let units = Csr::from_pairs(count as usize, work.graph.ops().map(|u| (unit_of[u.ix()] as usize, u)));
    (unit_of, units)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{Device, Links};
    use crate::workload::Columns;

    /// A transfer over two channels starts when the later of them is free, and holds both.
    #[test]
    fn a_transfer_holds_its_whole_route() {
        let device = |name: &str| Device { name: name.into(), type_name: "gpu".into(), memory: 0 };
        let link = |from: &str, to: &str| Links {
            from: vec![from.into()],
            to: vec![to.into()],
            bandwidth: 1e9,
            latency: 3e-6,
            channels: vec![format!("{from}{to}")],
        };
        let links = [link("a", "b"), link("b", "c"), link("c", "b"), link("b", "a")];
        let cluster = Cluster::new(["a", "b", "c"].map(device).to_vec(), &links).expect("connected");
        let graph = Graph::new(2, &[0], &[1], None).expect("one edge");
        let work = Workload::plain(graph, &Columns::default()).expect("no columns");
        let clock = Clock::for_horizon(1.0).expect("a second");
        let problem = Problem::new(&work, &cluster, clock, &[1, 1], &[], &[0; 3], None).expect("few devices");
        let (t, [a, b, c]) = (TensorId::new(0), [0, 1, 2].map(DeviceId::new));
        let on = |from, to| cluster.route_channels(from, to)[0].ix();
        let mut channels = [5, 6, 7, 8];
        let (first, last) = (channels[on(a, b)], channels[on(b, c)]);
        let end = problem.pass(&mut channels, t, a, c, 1);
        assert_eq!(end, first.max(last) + clock.ticks(6e-6));
        assert_eq!([channels[on(a, b)], channels[on(b, c)]], [end; 2]);
        assert_eq!(channels.iter().filter(|&&free| free == end).count(), 2);
        assert_eq!(problem.pass(&mut channels, t, a, b, end + 1), end + 1 + clock.ticks(3e-6));
    }
}
