//! `fast.Cluster`.

use std::sync::Arc;

use loadmaster_core::cluster::{Cluster as Core, Device, Links, SendCost};
use loadmaster_core::collective::{Group, Kind};
use loadmaster_core::collective_times::Table;
use loadmaster_core::ids::{ChannelId, DeviceId};
use pyo3::exceptions::{PyIndexError, PyValueError};
use pyo3::prelude::*;

use crate::errors::Raised;

/// Devices joined by channels, with a route for every pair; :class:`loadmaster.Cluster` is its face.
///
/// Parameters
/// ----------
/// devices : list of (name, type, bytes of memory)
/// links : list of (from, to, bandwidth in B/s, latency in s, list of channel names)
///     Directed. Where an end is a list of devices, one link joins every device of `from` and every other of
///     `to`. In names of channels, `{from}` and `{to}` stand for the ends. Without names, each link has a
///     channel of its own.
/// tables : list of (kind, machines, devices, list of (bytes, seconds), list of seconds), optional
///     Measured times of collectives, which stand above what the links say. ``kind`` is one of
///     :data:`COLLECTIVES`; ``machines`` hold as many of the ``devices`` each. Last, for each number of
///     bytes, for how many of the seconds every member keeps its device busy; empty: for none.
/// send_costs : list of (type, latency in s, bandwidth in B/s), optional
///     The time of its own that a device of this type pays for a copy of every message that it sends.
/// host_each : bool
///     Whether every device has a host of its own, which launches its ops; else one launches all.
///
/// Raises
/// ------
/// InputError
///     Duplicate names or links, unknown ends, bad figures, unreachable pairs; each named.
/// ValueError
///     An unknown kind of collective.
///
/// Examples
/// --------
/// >>> from loadmaster import fast
/// >>> both = [("a", "b", 1e9, 1e-6, []), ("b", "a", 1e9, 1e-6, [])]
/// >>> fast.Cluster([("a", "gpu", 1), ("b", "gpu", 1)], both).channels
/// ['a->b', 'b->a']
#[pyclass(frozen, module = "loadmaster.fast")]
pub struct Cluster {
    pub core: Arc<Core>,
}

type DeviceRow = (String, String, u64);
type LinkRow = (End, End, f64, f64, Vec<String>);
type TableRow = (String, usize, usize, Vec<(u64, f64)>, Vec<f64>);

/// One end of a row of links.
#[derive(FromPyObject)]
enum End {
    One(String),
    Many(Vec<String>),
}

impl From<End> for Vec<String> {
    fn from(end: End) -> Self {
        match end {
            End::One(name) => vec![name],
            End::Many(names) => names,
        }
    }
}

/// The kind of a collective that is called so.
fn kind_named(name: &str) -> PyResult<Kind> {
    let found = Kind::NAMED.iter().find(|(known, _)| *known == name);
    found.map(|(_, kind)| *kind).ok_or_else(|| {
        let known = Kind::NAMED.map(|(name, _)| name).join(", ");
        PyValueError::new_err(format!("collective {name:?}: known are {known}"))
    })
}

#[pymethods]
impl Cluster {
    #[new]
    #[pyo3(signature = (devices, links, tables=Vec::new(), send_costs=Vec::new(), host_each=false))]
    fn new(
        devices: Vec<DeviceRow>,
        links: Vec<LinkRow>,
        tables: Vec<TableRow>,
        send_costs: Vec<(String, f64, f64)>,
        host_each: bool,
    ) -> PyResult<Self> {
        let devices =
            devices.into_iter().map(|(name, type_name, memory)| Device { name, type_name, memory }).collect();
        let links: Vec<Links> = links
            .into_iter()
            .map(|(from, to, bandwidth, latency, channels)| Links {
                from: from.into(),
                to: to.into(),
                bandwidth,
                latency,
                channels,
            })
            .collect();
        let table = |(kind, machines, devices, points, busy): TableRow| {
            Ok(Table { kind: kind_named(&kind)?, machines, devices, points, busy })
        };
        let tables = tables.into_iter().map(table).collect::<PyResult<_>>()?;
        let cost = |(type_name, latency, bandwidth)| SendCost { type_name, latency, bandwidth };
        let send_costs: Vec<SendCost> = send_costs.into_iter().map(cost).collect();
        let core = Core::new(devices, &links)
            .and_then(|core| core.with_tables(tables))
            .and_then(|core| core.with_send_costs(&send_costs));
        Ok(Self { core: Arc::new(core.map_err(Raised::from)?.with_host_each(host_each)) })
    }

    /// Number of devices.
    #[getter]
    fn n_devices(&self) -> usize {
        self.core.n_devices()
    }

    /// Names of the device types, in order of first use.
    #[getter]
    fn types(&self) -> Vec<String> {
        self.core.types().to_vec()
    }

    /// Index into `types` per device.
    #[getter]
    fn device_types(&self) -> Vec<usize> {
        self.core.device_ids().map(|d| self.core.type_of(d)).collect()
    }

    /// The number of each device's machine: what stands before the last point of its name; where no name
    /// has a point, the widest links join devices of one machine.
    #[getter]
    fn machines(&self) -> Vec<u32> {
        self.core.device_ids().map(|device| self.core.machine_of(device)).collect()
    }

    /// Names of the channels.
    #[getter]
    fn channels(&self) -> Vec<String> {
        (0..self.core.n_channels()).map(|c| self.core.channel_name(ChannelId::new(c))).collect()
    }

    /// Number of channels.
    #[getter]
    fn n_channels(&self) -> usize {
        self.core.n_channels()
    }

    /// Name of a channel.
    fn channel_name(&self, channel: usize) -> PyResult<String> {
        let n = self.core.n_channels();
        if channel < n {
            Ok(self.core.channel_name(ChannelId::new(channel)))
        } else {
            Err(PyIndexError::new_err(format!("channel {channel} of {n}")))
        }
    }

    /// Mean latency (s) and mean seconds per byte, over ordered pairs of devices.
    #[getter]
    fn mean_link(&self) -> (f64, f64) {
        self.core.mean_link()
    }

    /// Largest latency (s) and seconds per byte of any ordered pair of devices.
    #[getter]
    fn slowest_link(&self) -> (f64, f64) {
        self.core.slowest_link()
    }

    /// Latency (s), bandwidth (B/s), channels and devices passed from one device to another.
    fn route(&self, src: usize, dst: usize) -> PyResult<(f64, f64, Vec<usize>, Vec<usize>)> {
        let (src, dst) = (self.device(src)?, self.device(dst)?);
        let (latency, bandwidth) = self.core.route(src, dst);
        let channels = self.core.route_channels(src, dst).iter().map(|c| c.ix()).collect();
        let hops = self.core.route_hops(src, dst).iter().map(|d| d.ix()).collect();
        Ok((latency, bandwidth, channels, hops))
    }

    /// How a collective among some devices is done: the algorithm, seconds, and channels that it holds.
    ///
    /// ``kind`` is one of :data:`COLLECTIVES`, ``bytes`` are those of the whole tensor. A broadcast comes
    /// from the first device.
    fn collective(
        &self,
        kind: &str,
        devices: Vec<usize>,
        bytes: u64,
    ) -> PyResult<(&'static str, f64, Vec<usize>)> {
        let mut members = Vec::with_capacity(devices.len());
        for index in devices {
            let device = self.device(index)?;
            if !members.contains(&device) {
                members.push(device);
            }
        }
        let way = Group::new(&self.core, kind_named(kind)?, &members).way(bytes);
        Ok((way.algorithm.name(), way.seconds, way.channels.iter().map(|c| c.ix()).collect()))
    }

    /// Seconds that some bytes take from one device to another.
    fn transfer_time(&self, src: usize, dst: usize, bytes: u64) -> PyResult<f64> {
        Ok(self.core.transfer_seconds(self.device(src)?, self.device(dst)?, bytes))
    }
}

impl Cluster {
    fn device(&self, index: usize) -> PyResult<DeviceId> {
        if index < self.core.n_devices() {
            Ok(DeviceId::new(index))
        } else {
            Err(PyIndexError::new_err(format!("device {index} of {}", self.core.n_devices())))
        }
    }
}
