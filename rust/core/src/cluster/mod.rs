//! Devices and the channels that join them.
//!
//! A link leads from one device to another and holds one or more *channels*, each of which carries
//! one transfer at a time. If every link has a channel of its own, the cluster is a full mesh. A
//! channel that several links name is a shared PCIe bridge. A channel that all links of one device
//! name is a one-port NIC.

pub(crate) mod machines;
mod wiring;

use std::collections::BTreeMap;

use crate::collective_times::{self, Kind, Table, Taken};
use crate::csr::Csr;
use crate::error::ClusterError;
use crate::ids::{ChannelId, DeviceId};
use wiring::{Names, Paths, Wiring};

/// Most devices of a cluster: it keeps a route for every pair.
pub const MAX_DEVICES: usize = 1024;

/// Most channels that all routes of a cluster hold together: 256 MiB. Only long chains of links come near.
const MAX_HELD: usize = 1 << 26;

/// Most device types: allowed types are a 64-bit mask.
pub const MAX_TYPES: usize = 64;

/// A device as given.
#[derive(Clone, Debug, PartialEq)]
pub struct Device {
    /// Unique name.
    pub name: String,
    /// Name of its type; devices of one type run every op in the same time.
    pub type_name: String,
    /// Bytes of memory.
    pub memory: u64,
}

/// Directed links as given: one from every device of `from` to every other of `to`.
#[derive(Clone, Debug, PartialEq)]
pub struct Links {
    /// Names of the source devices.
    pub from: Vec<String>,
    /// Names of the destination devices.
    pub to: Vec<String>,
    /// Bytes per second.
    pub bandwidth: f64,
    /// Seconds.
    pub latency: f64,
    /// Names of the channels that a transfer holds, with `{from}` and `{to}` for the ends of its link;
    /// empty: each link has a channel of its own.
    pub channels: Vec<String>,
}

/// What a message costs a device of some type that sends it: time of its own, for a copy.
#[derive(Clone, Debug, PartialEq)]
pub struct SendCost {
    /// Name of the type.
    pub type_name: String,
    /// Seconds per message.
    pub latency: f64,
    /// Bytes per second of the copy.
    pub bandwidth: f64,
}

/// How bytes get from one device to another.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Route {
    latency: f64,
    bandwidth: f64,
}

/// A validated cluster with a route for every pair of devices.
#[derive(Clone, Debug, PartialEq)]
pub struct Cluster {
    devices: Vec<Device>,
    types: Vec<String>,
    device_type: Vec<u32>,
    names: Names,
    /// The kinds of routes: routes of equal latency and bandwidth are of one kind.
    kinds: Vec<Route>,
    /// Per ordered pair of devices, row-major, the kind of its route.
    route_kinds: Vec<u32>,
    /// Whether all routes between two devices are of one kind.
    is_uniform: bool,
    route_channels: Csr<ChannelId>,
    /// The devices between the ends of a route.
    passed: Csr<DeviceId>,
    /// Measured times of collectives.
    tables: Vec<Table>,
    /// Per type, what a message costs its sender; empty where it costs none anything.
    send_costs: Vec<Option<Route>>,
    /// Whether every device has a host of its own, instead of all sharing one.
    has_host_each: bool,
    /// Per device, the number of its machine.
    machines: Vec<u32>,
}

impl Cluster {
    /// Validates devices and links and finds every route.
    ///
    /// A direct link is the route. Otherwise the route is the widest path: largest bottleneck
    /// bandwidth, then fewest hops, then smallest device indices. Latencies add up, the bottleneck
    /// sets the speed, and every channel on the way is held. O(D^2) for D devices if a link joins every
    /// pair, else O(D^3) with few distinct bandwidths.
    ///
    /// # Errors
    /// No or too many devices, duplicate names or links, unknown ends, bad figures, unreachable
    /// pairs, routes over too many links; each named.
    pub fn new(devices: Vec<Device>, links: &[Links]) -> Result<Self, ClusterError> {
        let index = indices(&devices)?;
        let mut types: Vec<&str> = Vec::new();
        let device_type = devices.iter().map(|d| index_of(&mut types, &d.type_name)).collect();
        let types: Vec<String> = types.into_iter().map(str::to_owned).collect();
        if types.len() > MAX_TYPES {
            return Err(ClusterError::TooManyTypes(types.len()));
        }
        let (wiring, names) = Wiring::new(&devices, &index, links)?;
        let mut routes = Routes::new(devices.len(), names.len());
        for from in 0..devices.len() {
            routes.extend(&wiring, from).map_err(|to| ClusterError::Unreachable {
                from: devices[from].name.clone(),
                to: devices[to].name.clone(),
            })?;
            if routes.channels.len() > MAX_HELD {
                return Err(ClusterError::LongRoutes { devices: devices.len(), limit: MAX_HELD });
            }
        }
        let n = devices.len();
        let width = |a: usize, b: usize| routes.kinds[routes.kind[a * n + b] as usize].bandwidth;
        Ok(Self {
            machines: machines::machines(&devices, width),
            is_uniform: is_uniform(&routes.kind, n),
            devices,
            types,
            device_type,
            names,
            kinds: routes.kinds,
            route_kinds: routes.kind,
            route_channels: Csr::from_parts(routes.channel_starts, routes.channels),
            passed: Csr::from_parts(routes.passed_starts, routes.passed),
            tables: Vec::new(),
            send_costs: Vec::new(),
            has_host_each: false,
        })
    }

    /// The same cluster where sending costs devices of some types time.
    ///
    /// # Errors
    /// A type that no device has; a latency or bandwidth out of range.
    pub fn with_send_costs(self, costs: &[SendCost]) -> Result<Self, ClusterError> {
        let mut send_costs = vec![None; if costs.is_empty() { 0 } else { self.types.len() }];
        for SendCost { type_name, latency, bandwidth } in costs {
            let found = self.types.iter().position(|name| name == type_name);
            let is_cost = bandwidth.is_normal() && *bandwidth > 0.0 && (0.0..=f64::MAX).contains(latency);
            let Some(k) = found.filter(|_| is_cost) else {
                return Err(ClusterError::BadSendCost {
                    type_name: type_name.clone(),
                    latency: *latency,
                    bandwidth: *bandwidth,
                });
            };
            send_costs[k] = Some(Route { latency: *latency, bandwidth: *bandwidth });
        }
        Ok(Self { send_costs, ..self })
    }

    /// The same cluster with a host for each device, which launches its ops, or one for all.
    #[must_use]
    pub fn with_host_each(self, has_host_each: bool) -> Self {
        Self { has_host_each, ..self }
    }

    /// The host that launches the ops of a device: less than the number of devices.
    pub fn host_of(&self, device: DeviceId) -> usize {
        if self.has_host_each { device.ix() } else { 0 }
    }

    /// How many hosts there are.
    pub fn n_hosts(&self) -> usize {
        if self.has_host_each { self.n_devices() } else { 1 }
    }

    /// Whether sending costs some device time.
    pub fn has_send_costs(&self) -> bool {
        !self.send_costs.is_empty()
    }

    /// Seconds for which sending some bytes keeps their sender busy; none if it costs nothing.
    pub fn send_seconds(&self, from: DeviceId, bytes: u64) -> Option<f64> {
        let cost = (*self.send_costs.get(self.type_of(from))?)?;
        Some(cost.latency + bytes as f64 / cost.bandwidth)
    }

    /// The most seconds, and seconds per byte, that a message takes: its copy, then the slowest route.
    pub fn slowest_send(&self) -> (f64, f64) {
        let (mut latency, mut inverse) = (0.0f64, 0.0f64);
        for cost in self.send_costs.iter().flatten() {
            (latency, inverse) = (latency.max(cost.latency), inverse.max(cost.bandwidth.recip()));
        }
        let link = self.slowest_link();
        (latency + link.0, inverse + link.1)
    }

    /// The same cluster with measured times of collectives, which stand above what links say.
    ///
    /// # Errors
    /// A table that cannot be used.
    pub fn with_tables(self, mut tables: Vec<Table>) -> Result<Self, ClusterError> {
        if let Some((kind, reason)) = tables.iter().find_map(|table| Some((table.kind, table.fault()?))) {
            return Err(ClusterError::BadTable { kind: kind.name(), reason });
        }
        tables.iter_mut().for_each(Table::rise);
        Ok(Self { tables, ..self })
    }

    /// What a collective takes by measured times among so many devices, as many of each of so many
    /// machines; none if no table speaks of it.
    pub fn collective_taken(&self, kind: Kind, machines: usize, devices: usize, bytes: u64) -> Option<Taken> {
        collective_times::taken(&self.tables, kind, machines, devices, bytes)
    }

    /// The number of a device's machine.
    pub fn machine_of(&self, device: DeviceId) -> u32 {
        self.machines[device.ix()]
    }

    /// Whether collectives keep some device busy.
    pub fn has_busy_collectives(&self) -> bool {
        self.tables.iter().any(|table| !table.busy.is_empty())
    }

    /// The most seconds that a collective of so many bytes may take among so many devices, whatever
    /// algorithm does it, the members' own time one after another.
    pub fn longest_collective(&self, devices: usize, bytes: u64) -> f64 {
        let ((latency, inverse), k) = (self.slowest_link(), devices as f64);
        // A ring's hops may share one channel, and so may all pairs of a direct exchange.
        let by_links = 2.0 * k * k * latency + 2.0 * k * bytes as f64 * inverse;
        let by_table = |table: &Table| {
            let Taken { seconds, busy } = table.taken(bytes);
            seconds + k * busy
        };
        self.tables.iter().map(by_table).fold(by_links, f64::max)
    }

    /// Number of devices.
    pub fn n_devices(&self) -> usize {
        self.devices.len()
    }

    /// All devices' indices.
    pub fn device_ids(&self) -> impl Iterator<Item = DeviceId> + use<> {
        (0..self.devices.len()).map(DeviceId::new)
    }

    /// The devices.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// A device's name.
    pub fn name(&self, device: DeviceId) -> &str {
        &self.devices[device.ix()].name
    }

    /// A device's bytes of memory.
    pub fn memory(&self, device: DeviceId) -> u64 {
        self.devices[device.ix()].memory
    }

    /// Device types, in order of first use.
    pub fn types(&self) -> &[String] {
        &self.types
    }

    /// Index of a device's type.
    #[inline(always)]
    pub fn type_of(&self, device: DeviceId) -> usize {
        self.device_type[device.ix()] as usize
    }

    /// How many devices each type has.
    pub fn type_counts(&self) -> Vec<usize> {
        let mut counts = vec![0; self.types.len()];
        self.device_type.iter().for_each(|&t| counts[t as usize] += 1);
        counts
    }

    /// Number of channels.
    pub fn n_channels(&self) -> usize {
        self.names.len()
    }

    /// A channel's name; that of a link's own channel is `from->to`.
    pub fn channel_name(&self, channel: ChannelId) -> String {
        self.names.text(channel, &self.devices)
    }

    /// Seconds that `bytes` take from one device to another: `t = k d + b`. 0 within a device.
    #[inline(always)]
    pub fn transfer_seconds(&self, from: DeviceId, to: DeviceId, bytes: u64) -> f64 {
        let (latency, bandwidth) = self.route(from, to);
        latency + bytes as f64 / bandwidth
    }

    /// Latency in seconds and bandwidth in bytes per second of a route.
    #[inline(always)]
    pub fn route(&self, from: DeviceId, to: DeviceId) -> (f64, f64) {
        let route = self.kinds[self.route_kind(from, to) as usize];
        (route.latency, route.bandwidth)
    }

    /// A number that routes of the same latency and bandwidth share.
    #[inline(always)]
    pub fn route_kind(&self, from: DeviceId, to: DeviceId) -> u32 {
        self.route_kinds[self.pair(from, to)]
    }

    /// Whether there are two devices, and a transfer takes the same time between any two.
    #[inline(always)]
    pub fn is_uniform(&self) -> bool {
        self.is_uniform
    }

    /// The channels that a transfer holds.
    #[inline(always)]
    pub fn route_channels(&self, from: DeviceId, to: DeviceId) -> &[ChannelId] {
        self.route_channels.row(self.pair(from, to))
    }

    /// The devices a route passes, both ends included.
    pub fn route_hops(&self, from: DeviceId, to: DeviceId) -> Vec<DeviceId> {
        let last = (from != to).then_some(to);
        let between = self.passed.row(self.pair(from, to)).iter().copied();
        std::iter::once(from).chain(between).chain(last).collect()
    }

    /// Mean latency (s) and mean seconds per byte, over ordered pairs of devices.
    pub fn mean_link(&self) -> (f64, f64) {
        let n = self.n_devices();
        if n == 1 {
            return (0.0, 0.0);
        }
        let pairs = (n * (n - 1)) as f64;
        let off_diagonal =
            || (0..n * n).filter(move |i| i / n != i % n).map(|i| self.kinds[self.route_kinds[i] as usize]);
        let latency: f64 = off_diagonal().map(|r| r.latency).sum();
        let inverse: f64 = off_diagonal().map(|r| r.bandwidth.recip()).sum();
        (latency / pairs, inverse / pairs)
    }

    /// Largest latency (s) and largest seconds per byte of any route.
    pub fn slowest_link(&self) -> (f64, f64) {
        self.kinds.iter().fold((0.0, 0.0), |(latency, inverse): (f64, f64), r| {
            (latency.max(r.latency), inverse.max(r.bandwidth.recip()))
        })
    }

    #[inline(always)]
    fn pair(&self, from: DeviceId, to: DeviceId) -> usize {
        from.ix() * self.devices.len() + to.ix()
    }
}

/// Routes while they are found, device by device.
struct Routes {
    kinds: Vec<Route>,
    numbers: BTreeMap<(u64, u64), u32>,
    kind: Vec<u32>,
    channel_starts: Vec<u32>,
    channels: Vec<ChannelId>,
    /// Per channel, 1 + the last route that it was met on.
    met: Vec<u32>,
    passed_starts: Vec<u32>,
    passed: Vec<DeviceId>,
}

impl Routes {
    fn new(n_devices: usize, n_channels: usize) -> Self {
        let pairs = n_devices * n_devices;
        let starts = || {
            let mut starts = Vec::with_capacity(pairs + 1);
            starts.push(0);
            starts
        };
        Self {
            kinds: Vec::new(),
            numbers: BTreeMap::new(),
            kind: Vec::with_capacity(pairs),
            channel_starts: starts(),
            channels: Vec::with_capacity(pairs),
            met: vec![0; n_channels],
            passed_starts: starts(),
            passed: Vec::new(),
        }
    }

    /// Appends the routes from one device to each. The error is a device that no links lead to.
    fn extend(&mut self, wiring: &Wiring<'_>, from: usize) -> Result<(), usize> {
        let mut paths = Paths::new(wiring, from);
        let mut path = Vec::new();
        for to in 0..wiring.n_devices() {
            if !paths.find(to, &mut path) {
                return Err(to);
            }
            let this = self.kind.len() as u32 + 1;
            let is_new = |c: ChannelId| std::mem::replace(&mut self.met[c.ix()], this) != this;
            let route = wiring.route(&path, &mut self.channels, is_new);
            let kind = self.kind_of(route);
            self.kind.push(kind);
            self.channel_starts.push(self.channels.len() as u32);
            let end = path.len().saturating_sub(1).max(1);
            self.passed.extend(path[1..end].iter().copied().map(DeviceId::new));
            self.passed_starts.push(self.passed.len() as u32);
        }
        Ok(())
    }

    /// The number of a route's kind.
    fn kind_of(&mut self, route: Route) -> u32 {
        // Neighbours are mostly of one kind.
        if let Some(&last) = self.kind.last().filter(|&&kind| self.kinds[kind as usize] == route) {
            return last;
        }
        let next = self.kinds.len() as u32;
        let kind = *self.numbers.entry((route.latency.to_bits(), route.bandwidth.to_bits())).or_insert(next);
        if kind == next {
            self.kinds.push(route);
        }
        kind
    }
}

/// Whether all routes between different devices of `n` are of one kind; false if `n` is 1.
fn is_uniform(kinds: &[u32], n: usize) -> bool {
    let mut between = (0..n * n).filter(|i| i / n != i % n).map(|i| kinds[i]);
    between.next().is_some_and(|first| between.all(|kind| kind == first))
}

/// The devices' indices by name. Checks that there are devices, but not too many, and that no two have
/// one name.
fn indices(devices: &[Device]) -> Result<BTreeMap<&str, u32>, ClusterError> {
    if devices.is_empty() {
        return Err(ClusterError::Empty);
    }
    if devices.len() > MAX_DEVICES {
        return Err(ClusterError::TooManyDevices { count: devices.len(), limit: MAX_DEVICES });
    }
    let mut index = BTreeMap::new();
    for (i, device) in devices.iter().enumerate() {
        if index.insert(device.name.as_str(), i as u32).is_some() {
            return Err(ClusterError::DuplicateDevice(device.name.clone()));
        }
    }
    Ok(index)
}

/// Position of `name`, appended if new. The list is short.
fn index_of<'a>(names: &mut Vec<&'a str>, name: &'a str) -> u32 {
    let found = names.iter().position(|n| *n == name);
    found.unwrap_or_else(|| {
        names.push(name);
        names.len() - 1
    }) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn devices(n: usize) -> Vec<Device> {
        (0..n).map(|i| Device { name: format!("d{i}"), type_name: "gpu".into(), memory: 1 << 30 }).collect()
    }

    fn link(from: usize, to: usize, bandwidth: f64, channels: &[&str]) -> Links {
        Links {
            from: vec![format!("d{from}")],
            to: vec![format!("d{to}")],
            bandwidth,
            latency: 1e-6,
            channels: channels.iter().map(|c| (*c).to_owned()).collect(),
        }
    }

    fn both(a: usize, b: usize, bandwidth: f64) -> [Links; 2] {
        [link(a, b, bandwidth, &[]), link(b, a, bandwidth, &[])]
    }

    #[test]
    fn a_route_without_a_link_is_the_widest_then_the_shortest() {
        // 0 -> 3 by way of 1 (10 GB/s), of 2 (5 GB/s), or of 4 and 1 (10 GB/s, one hop more).
        let mut links = Vec::new();
        for (a, b, w) in [(0, 1, 10e9), (1, 3, 10e9), (0, 2, 5e9), (2, 3, 5e9), (0, 4, 20e9), (4, 1, 20e9)] {
            links.extend(both(a, b, w));
        }
        let cluster = Cluster::new(devices(5), &links).unwrap();
        let hops: Vec<u32> = cluster.route_hops(DeviceId(0), DeviceId(3)).iter().map(|d| d.0).collect();
        assert_eq!(hops, [0, 1, 3]);
        let (latency, bandwidth) = cluster.route(DeviceId(0), DeviceId(3));
        assert_eq!((latency, bandwidth), (2e-6, 10e9));
        assert_eq!(cluster.route_channels(DeviceId(0), DeviceId(3)).len(), 2);
    }

    #[test]
    fn a_direct_link_is_the_route_even_where_a_detour_is_wider() {
        let mut links = Vec::from(both(0, 1, 1e9));
        links.extend(both(0, 2, 50e9));
        links.extend(both(2, 1, 50e9));
        let cluster = Cluster::new(devices(3), &links).unwrap();
        assert_eq!(cluster.route(DeviceId(0), DeviceId(1)).1, 1e9);
    }

    #[test]
    fn a_bridge_is_one_channel_and_a_port_is_one_per_device() {
        let mut bridge = Vec::new();
        let mut ports = Vec::new();
        for a in 0..3 {
            for b in (0..3).filter(|&b| b != a) {
                bridge.push(link(a, b, 1e9, &["pcie"]));
                ports.push(link(a, b, 1e9, &[&format!("port{a}"), &format!("port{b}")]));
            }
        }
        let bridge = Cluster::new(devices(3), &bridge).unwrap();
        assert_eq!((bridge.n_channels(), bridge.channel_name(ChannelId(0))), (1, "pcie".into()));
        let ports = Cluster::new(devices(3), &ports).unwrap();
        assert_eq!(ports.n_channels(), 3);
        assert_eq!(ports.route_channels(DeviceId(0), DeviceId(2)).len(), 2);
    }

    #[test]
    fn errors_name_the_culprit() {
        let message = |devices: Vec<Device>, links: &[Links]| {
            Cluster::new(devices, links).expect_err("bad cluster").to_string()
        };
        assert!(message(vec![], &[]).contains("no devices"));
        assert!(message(devices(2), &[link(0, 1, 1e9, &[])]).contains("from \"d1\" to \"d0\""));
        assert!(message(devices(2), &[link(0, 1, 0.0, &[])]).contains("bandwidth 0"));
        assert!(message(devices(2), &[link(0, 7, 1.0, &[])]).contains("\"d7\""));
        assert!(message(devices(1), &[link(0, 0, 1.0, &[])]).contains("itself"));
        assert!(message([devices(1), devices(1)].concat(), &[]).contains("two devices are named"));
    }
}
