//! Devices and the channels that join them.
//!
//! A link leads from one device to another and holds one or more *channels*, each of which carries
//! one transfer at a time. If every link has a channel of its own, the cluster is a full mesh. A
//! channel that several links name is a shared PCIe bridge. A channel that all links of one device
//! name is a one-port NIC.

use std::collections::BTreeMap;

use crate::collective::Kind;
use crate::collective::table::{self, Table};
use crate::csr::Csr;
use crate::error::ClusterError;
use crate::ids::{ChannelId, DeviceId};

/// Most devices of a cluster: it keeps a route for every pair.
pub const MAX_DEVICES: usize = 256;

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

/// A directed link as given.
#[derive(Clone, Debug, PartialEq)]
pub struct Link {
    /// Name of the source device.
    pub from: String,
    /// Name of the destination device.
    pub to: String,
    /// Bytes per second.
    pub bandwidth: f64,
    /// Seconds.
    pub latency: f64,
    /// Names of the channels that a transfer holds; empty: the link has a channel of its own.
    pub channels: Vec<String>,
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
    channels: Vec<String>,
    /// Per ordered pair of devices, row-major.
    routes: Vec<Route>,
    /// The kind of each route: routes of equal latency and bandwidth have one kind.
    route_kinds: Vec<u32>,
    /// Whether all routes between two devices are of one kind.
    is_uniform: bool,
    route_channels: Csr<ChannelId>,
    route_hops: Csr<DeviceId>,
    /// Measured times of collectives.
    tables: Vec<Table>,
}

impl Cluster {
    /// Validates devices and links and finds every route.
    ///
    /// A direct link is the route. Otherwise the route is the widest path: largest bottleneck
    /// bandwidth, then fewest hops, then smallest device indices. Latencies add up, the bottleneck
    /// sets the speed, and every channel on the way is held. O(D^2 (D + L)) for D devices, L links
    /// and few distinct bandwidths.
    ///
    /// # Errors
    /// No or too many devices, duplicate names or links, unknown ends, bad figures, unreachable
    /// pairs; each named.
    pub fn new(devices: Vec<Device>, links: &[Link]) -> Result<Self, ClusterError> {
        check_devices(&devices)?;
        let mut types: Vec<String> = Vec::new();
        let device_type = devices.iter().map(|d| index_of(&mut types, &d.type_name)).collect();
        if types.len() > MAX_TYPES {
            return Err(ClusterError::TooManyTypes(types.len()));
        }

        let mut channels = Vec::new();
        let mesh = Mesh::new(&devices, links, &mut channels)?;
        let n = devices.len();
        let mut routes = Vec::with_capacity(n * n);
        let (mut channel_starts, mut channel_items) = (vec![0u32], Vec::new());
        let (mut hop_starts, mut hop_items) = (vec![0u32], Vec::new());
        for from in 0..n {
            for (to, path) in mesh.widest_paths(from).into_iter().enumerate() {
                let path = path.ok_or_else(|| ClusterError::Unreachable {
                    from: devices[from].name.clone(),
                    to: devices[to].name.clone(),
                })?;
                routes.push(mesh.route(&path, &mut channel_items));
                hop_items.extend(path.into_iter().map(DeviceId::new));
                channel_starts.push(channel_items.len() as u32);
                hop_starts.push(hop_items.len() as u32);
            }
        }
        let kinds = kinds(&routes);
        Ok(Self {
            devices,
            types,
            device_type,
            channels,
            is_uniform: is_uniform(&kinds, n),
            route_kinds: kinds,
            routes,
            route_channels: Csr::from_parts(channel_starts, channel_items),
            route_hops: Csr::from_parts(hop_starts, hop_items),
            tables: Vec::new(),
        })
    }

    /// The same cluster with measured times of collectives, which stand above what links say.
    ///
    /// # Errors
    /// A table that cannot be used.
    pub fn with_tables(self, tables: Vec<Table>) -> Result<Self, ClusterError> {
        match tables.iter().find_map(|table| Some((table.kind, table.fault()?))) {
            Some((kind, reason)) => Err(ClusterError::BadTable { kind: kind.name(), reason }),
            None => Ok(Self { tables, ..self }),
        }
    }

    /// Measured seconds of a collective among these devices, given by machine; none if no table speaks
    /// of it.
    pub fn collective_seconds(&self, kind: Kind, machines: &[Vec<DeviceId>], bytes: u64) -> Option<f64> {
        let each = machines.first()?.len();
        let is_even = machines.iter().all(|machine| machine.len() == each);
        let (n, devices) = (machines.len(), machines.len() * each);
        is_even.then(|| table::seconds(&self.tables, kind, n, devices, bytes)).flatten()
    }

    /// The most seconds that a collective of so many bytes may take among so many devices, whatever
    /// algorithm does it.
    pub fn longest_collective(&self, devices: usize, bytes: u64) -> f64 {
        let ((latency, inverse), k) = (self.slowest_link(), devices as f64);
        // A ring's hops may share one channel, and so may all pairs of a direct exchange.
        let by_links = 2.0 * k * k * latency + 2.0 * k * bytes as f64 * inverse;
        self.tables.iter().map(|table| table.seconds(bytes)).fold(by_links, f64::max)
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

    /// Names of the channels.
    pub fn channels(&self) -> &[String] {
        &self.channels
    }

    /// Seconds that `bytes` take from one device to another: `t = k d + b`. 0 within a device.
    #[inline(always)]
    pub fn transfer_seconds(&self, from: DeviceId, to: DeviceId, bytes: u64) -> f64 {
        let route = self.routes[self.pair(from, to)];
        route.latency + bytes as f64 / route.bandwidth
    }

    /// Latency in seconds and bandwidth in bytes per second of a route.
    #[inline(always)]
    pub fn route(&self, from: DeviceId, to: DeviceId) -> (f64, f64) {
        let route = self.routes[self.pair(from, to)];
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
    pub fn route_hops(&self, from: DeviceId, to: DeviceId) -> &[DeviceId] {
        self.route_hops.row(self.pair(from, to))
    }

    /// Mean latency (s) and mean seconds per byte, over ordered pairs of devices.
    pub fn mean_link(&self) -> (f64, f64) {
        let n = self.n_devices();
        if n == 1 {
            return (0.0, 0.0);
        }
        let pairs = (n * (n - 1)) as f64;
        let off_diagonal = || (0..n * n).filter(move |i| i / n != i % n).map(|i| self.routes[i]);
        let latency: f64 = off_diagonal().map(|r| r.latency).sum();
        let inverse: f64 = off_diagonal().map(|r| r.bandwidth.recip()).sum();
        (latency / pairs, inverse / pairs)
    }

    /// Largest latency (s) and largest seconds per byte of any route.
    pub fn slowest_link(&self) -> (f64, f64) {
        self.routes.iter().fold((0.0, 0.0), |(latency, inverse): (f64, f64), r| {
            (latency.max(r.latency), inverse.max(r.bandwidth.recip()))
        })
    }

    #[inline(always)]
    fn pair(&self, from: DeviceId, to: DeviceId) -> usize {
        from.ix() * self.devices.len() + to.ix()
    }
}

/// Numbers the routes; routes of equal latency and bandwidth have the same number.
fn kinds(routes: &[Route]) -> Vec<u32> {
    let mut numbers = BTreeMap::new();
    let bits = |r: &Route| (r.latency.to_bits(), r.bandwidth.to_bits());
    let number_of = |r: &Route| {
        let next = numbers.len() as u32;
        *numbers.entry(bits(r)).or_insert(next)
    };
    routes.iter().map(number_of).collect()
}

/// Whether all routes between different devices of `n` are of one kind; false if `n` is 1.
fn is_uniform(kinds: &[u32], n: usize) -> bool {
    let mut between = (0..n * n).filter(|i| i / n != i % n).map(|i| kinds[i]);
    between.next().is_some_and(|first| between.all(|kind| kind == first))
}

/// Checks that there are devices, but not too many, and that no two have one name.
fn check_devices(devices: &[Device]) -> Result<(), ClusterError> {
    if devices.is_empty() {
        return Err(ClusterError::Empty);
    }
    if devices.len() > MAX_DEVICES {
        return Err(ClusterError::TooManyDevices { count: devices.len(), limit: MAX_DEVICES });
    }
    let is_known = |i: usize| devices[..i].iter().any(|other| other.name == devices[i].name);
    match (0..devices.len()).find(|&i| is_known(i)) {
        Some(i) => Err(ClusterError::DuplicateDevice(devices[i].name.clone())),
        None => Ok(()),
    }
}

/// Position of `name`, appended if new. Lists are short (types, channels of a cluster).
fn index_of(names: &mut Vec<String>, name: &str) -> u32 {
    let found = names.iter().position(|n| n == name);
    found.unwrap_or_else(|| {
        names.push(name.to_owned());
        names.len() - 1
    }) as u32
}

struct MeshLink {
    bandwidth: f64,
    latency: f64,
    channels: Vec<ChannelId>,
}

/// The direct links as an adjacency matrix.
struct Mesh {
    n: usize,
    links: Vec<Option<MeshLink>>,
}

impl Mesh {
    fn new(devices: &[Device], links: &[Link], names: &mut Vec<String>) -> Result<Self, ClusterError> {
        let n = devices.len();
        let mut mesh = Self { n, links: (0..n * n).map(|_| None).collect() };
        for (i, link) in links.iter().enumerate() {
            let find = |end: &'static str, name: &String| {
                devices.iter().position(|d| d.name == *name).ok_or_else(|| ClusterError::UnknownDevice {
                    link: i,
                    end,
                    name: name.clone(),
                })
            };
            let (from, to) = (find("from", &link.from)?, find("to", &link.to)?);
            let ends = || (link.from.clone(), link.to.clone());
            if from == to {
                return Err(ClusterError::SelfLink(link.from.clone()));
            }
            // 1 / bandwidth is infinite for a subnormal bandwidth.
            if !(link.bandwidth > 0.0 && link.bandwidth.is_normal()) {
                let (from, to) = ends();
                return Err(ClusterError::BadBandwidth { from, to, bandwidth: link.bandwidth });
            }
            if !(link.latency >= 0.0 && link.latency.is_finite()) {
                let (from, to) = ends();
                return Err(ClusterError::BadLatency { from, to, latency: link.latency });
            }
            if mesh.link(from, to).is_some() {
                let (from, to) = ends();
                return Err(ClusterError::DuplicateLink { from, to });
            }
            let own = [format!("{}->{}", link.from, link.to)];
            let used: &[String] = if link.channels.is_empty() { &own } else { &link.channels };
            let mut channels: Vec<ChannelId> = Vec::with_capacity(used.len());
            for name in used {
                let c = ChannelId(index_of(names, name));
                if !channels.contains(&c) {
                    channels.push(c);
                }
            }
            mesh.links[from * n + to] =
                Some(MeshLink { bandwidth: link.bandwidth, latency: link.latency, channels });
        }
        Ok(mesh)
    }

    fn link(&self, from: usize, to: usize) -> Option<&MeshLink> {
        self.links[from * self.n + to].as_ref()
    }

    /// The route along a path of devices. Appends the channels on the path, each once, to
    /// `channels`.
    fn route(&self, path: &[usize], channels: &mut Vec<ChannelId>) -> Route {
        let mut route = Route { latency: 0.0, bandwidth: f64::INFINITY };
        let first = channels.len();
        for hop in path.windows(2) {
            let link = self.link(hop[0], hop[1]).expect("a path follows links");
            route.latency += link.latency;
            route.bandwidth = route.bandwidth.min(link.bandwidth);
            for &c in &link.channels {
                if !channels[first..].contains(&c) {
                    channels.push(c);
                }
            }
        }
        route
    }

    /// The path from one device to each device, itself included; none where no links lead.
    fn widest_paths(&self, from: usize) -> Vec<Option<Vec<usize>>> {
        let width = self.widths(from);
        // One breadth-first search serves all targets of one width.
        let mut searched: Vec<(f64, Vec<usize>)> = Vec::new();
        (0..self.n)
            .map(|to| {
                if to == from {
                    return Some(vec![from]);
                }
                if self.link(from, to).is_some() {
                    return Some(vec![from, to]);
                }
                let width = width[to];
                if width == 0.0 {
                    return None;
                }
                if !searched.iter().any(|(w, _)| *w == width) {
                    searched.push((width, self.parents(from, width)));
                }
                let (_, parents) = searched.iter().find(|(w, _)| *w == width)?;
                let mut path = vec![to];
                let mut at = to;
                while at != from {
                    at = parents[at];
                    path.push(at);
                }
                path.reverse();
                Some(path)
            })
            .collect()
    }

    /// Largest bottleneck bandwidth from one device to each; 0 where no links lead. O(D^2).
    fn widths(&self, from: usize) -> Vec<f64> {
        let mut width = vec![0.0; self.n];
        let mut done = vec![false; self.n];
        width[from] = f64::INFINITY;
        loop {
            let mut best: Option<usize> = None;
            for d in 0..self.n {
                if !done[d] && width[d] > 0.0 && best.is_none_or(|b| width[d] > width[b]) {
                    best = Some(d);
                }
            }
            let Some(u) = best else { return width };
            done[u] = true;
            for v in 0..self.n {
                if let Some(link) = self.link(u, v) {
                    width[v] = width[v].max(width[u].min(link.bandwidth));
                }
            }
        }
    }

    /// Breadth-first parents over links at least `width` wide; smaller indices are found first.
    fn parents(&self, from: usize, width: f64) -> Vec<usize> {
        let mut parent = vec![usize::MAX; self.n];
        parent[from] = from;
        let mut queue = vec![from];
        let mut head = 0;
        while let Some(&u) = queue.get(head) {
            head += 1;
            for (v, parent) in parent.iter_mut().enumerate() {
                if *parent == usize::MAX && self.link(u, v).is_some_and(|l| l.bandwidth >= width) {
                    *parent = u;
                    queue.push(v);
                }
            }
        }
        parent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn devices(n: usize) -> Vec<Device> {
        (0..n).map(|i| Device { name: format!("d{i}"), type_name: "gpu".into(), memory: 1 << 30 }).collect()
    }

    fn link(from: usize, to: usize, bandwidth: f64, channels: &[&str]) -> Link {
        Link {
            from: format!("d{from}"),
            to: format!("d{to}"),
            bandwidth,
            latency: 1e-6,
            channels: channels.iter().map(|c| (*c).to_owned()).collect(),
        }
    }

    fn both(a: usize, b: usize, bandwidth: f64) -> [Link; 2] {
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
        assert_eq!(bridge.channels(), ["pcie"]);
        let ports = Cluster::new(devices(3), &ports).unwrap();
        assert_eq!(ports.channels().len(), 3);
        assert_eq!(ports.route_channels(DeviceId(0), DeviceId(2)).len(), 2);
    }

    #[test]
    fn errors_name_the_culprit() {
        let message = |devices: Vec<Device>, links: &[Link]| {
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
