//! `fast.Schedule`: the simulator's result.

use std::sync::Arc;

use loadmaster_core::clock::{Clock, Ticks};
use loadmaster_core::ids::{DeviceId, OpId};
use loadmaster_core::simulate::{Blame, Copied, Doing, Schedule as Core, Together, Transfer, Waited};
use loadmaster_core::workload::Workload;
use numpy::{IntoPyArray, PyArray1};
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::graph::{Floats, Ids, ids};

/// The result of :func:`simulate`. Times are in seconds, sizes in bytes.
///
/// ``start`` and ``finish`` per op, ``device_busy`` per device, ``channel_busy`` per channel, ``peak``
/// and ``static_bytes`` per device. ``transfers()`` has columns tensor (-1: no data), op, src, dst,
/// bytes, queued, start, finish, and copied: when the sender began to copy it out, which ends as it is
/// queued. ``launched`` is when each op was launched, None where launches take no time. ``collectives()`` has
/// columns op (the member that arrived last), kind, algorithm, bytes, busy, queued, start, finish, channels.
/// ``shares()`` has columns op, start, finish: what devices did of collectives. ``blame()`` is the chain of
/// causes, last first: (what happened: "run", "transfer", "copy", "share" or "launch"; its op or transfer;
/// start, finish, what it waited for). ``overflow`` is None or (device, time, op or -1, bytes over,
/// largest tensors alive as (op, bytes, is a copy)).
///
/// Examples
/// --------
/// >>> import numpy as np
/// >>> from loadmaster import fast
/// >>> g = fast.Graph(2, np.array([0]), np.array([1]))
/// >>> c = fast.Cluster([("a", "gpu", 1)], [])
/// >>> p = fast.Problem(g, c, np.ones(2))
/// >>> fast.simulate(p, np.zeros(2, dtype=int)).finish.tolist()
/// [1.0, 2.0]
#[pyclass(frozen, module = "loadmaster.fast")]
pub struct Schedule {
    pub core: Core,
    pub clock: Clock,
    pub work: Arc<Workload>,
    pub placement: Vec<DeviceId>,
}

/// Device, time, op or -1, bytes over, and tensors alive as (op, bytes, is a copy).
type OverflowRow = (usize, f64, i64, u64, Vec<(u32, u64, bool)>);

#[pymethods]
impl Schedule {
    /// Finish of the last op, in seconds.
    #[getter]
    fn makespan(&self) -> f64 {
        self.clock.seconds(self.core.makespan)
    }

    /// Start per op, in seconds.
    #[getter]
    fn start<'py>(&self, py: Python<'py>) -> Floats<'py> {
        self.seconds(py, &self.by_index(&self.core.start))
    }

    /// Finish per op, in seconds.
    #[getter]
    fn finish<'py>(&self, py: Python<'py>) -> Floats<'py> {
        self.seconds(py, &self.by_index(&self.core.finish))
    }

    /// Seconds that each device computes.
    #[getter]
    fn device_busy<'py>(&self, py: Python<'py>) -> Floats<'py> {
        self.seconds(py, &self.core.device_busy)
    }

    /// Seconds that each channel carries a transfer or a collective.
    #[getter]
    fn channel_busy<'py>(&self, py: Python<'py>) -> Floats<'py> {
        self.seconds(py, &self.core.channel_busy)
    }

    /// Most bytes that each device ever holds.
    #[getter]
    fn peak<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<u64>> {
        PyArray1::from_slice(py, &self.core.peak)
    }

    /// Resident and output bytes of the ops on each device.
    #[getter]
    fn static_bytes<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<u64>> {
        let sums = self.work.static_per_device(&self.placement, self.core.peak.len());
        sums.into_pyarray(py)
    }

    /// Bytes that transfers send between devices.
    #[getter]
    fn bytes_moved(&self) -> u64 {
        self.core.bytes_moved
    }

    /// Number of transfers.
    #[getter]
    fn n_transfers(&self) -> usize {
        self.core.transfers.len()
    }

    /// Columns of the transfers.
    fn transfers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let all = &self.core.transfers;
        let graph = &self.work.graph;
        let column = |of: fn(&Transfer) -> Ticks| {
            all.iter().map(|t| self.clock.seconds(of(t))).collect::<Vec<f64>>().into_pyarray(py)
        };
        let tensor_id =
            |t: &Transfer| if graph.is_control(t.tensor) { -1 } else { graph.key(t.tensor) as i32 };
        let columns = PyDict::new(py);
        columns.set_item("tensor", all.iter().map(tensor_id).collect::<Vec<i32>>().into_pyarray(py))?;
        columns.set_item("op", ids(py, all.iter().map(|t| graph.index(graph.source(t.tensor)))))?;
        columns.set_item("src", ids(py, all.iter().map(|t| t.src.0)))?;
        columns.set_item("dst", ids(py, all.iter().map(|t| t.dst.0)))?;
        let bytes: Vec<u64> = all.iter().map(|t| self.work.tensor_bytes[t.tensor.ix()]).collect();
        columns.set_item("bytes", bytes.into_pyarray(py))?;
        columns.set_item("queued", column(|t| t.queued))?;
        columns.set_item("start", column(|t| t.start))?;
        columns.set_item("finish", column(|t| t.finish))?;
        let copies = &self.core.copies;
        let copied: Vec<Ticks> = match copies.len() {
            0 => all.iter().map(|t| t.queued).collect(),
            _ => copies.iter().map(|copy| copy.start).collect(),
        };
        columns.set_item("copied", self.seconds(py, &copied))?;
        Ok(columns)
    }

    /// When each op was launched, in seconds; None where launches take no time.
    #[getter]
    fn launched<'py>(&self, py: Python<'py>) -> Option<Floats<'py>> {
        let launched = &self.core.launched;
        (!launched.is_empty()).then(|| self.seconds(py, &self.by_index(launched)))
    }

    /// Number of collectives.
    #[getter]
    fn n_collectives(&self) -> usize {
        self.core.together.len()
    }

    /// Columns of the collectives.
    fn collectives<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (all, facts) = (&self.core.together, self.work.collectives.all());
        let column = |of: fn(&Together) -> Ticks| {
            all.iter().map(|t| self.clock.seconds(of(t))).collect::<Vec<f64>>().into_pyarray(py)
        };
        let channels = |t: &Together| t.channels.iter().map(|c| c.ix()).collect::<Vec<usize>>();
        let columns = PyDict::new(py);
        columns.set_item("op", ids(py, all.iter().map(|t| self.work.graph.index(t.last))))?;
        columns.set_item("kind", facts.iter().map(|c| c.kind.name()).collect::<Vec<_>>())?;
        columns.set_item("algorithm", all.iter().map(|t| t.algorithm.name()).collect::<Vec<_>>())?;
        let bytes: Vec<u64> = facts.iter().map(|c| c.bytes).collect();
        columns.set_item("bytes", bytes.into_pyarray(py))?;
        columns.set_item("busy", column(|t| t.busy))?;
        columns.set_item("queued", column(|t| t.queued))?;
        columns.set_item("start", column(|t| t.start))?;
        columns.set_item("finish", column(|t| t.finish))?;
        columns.set_item("channels", all.iter().map(channels).collect::<Vec<_>>())?;
        Ok(columns)
    }

    /// Columns of what devices did of collectives, by member.
    fn shares<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let numbering = self.work.graph.numbering();
        let members = self.work.graph.ops_by_index().filter(|op| {
            let share = self.core.shares.get(op.ix());
            share.is_some_and(|share| share.finish > share.start)
        });
        let members: Vec<OpId> = members.collect();
        let column = |of: fn(&Copied) -> Ticks| {
            let ticks: Vec<Ticks> = members.iter().map(|op| of(&self.core.shares[op.ix()])).collect();
            self.seconds(py, &ticks)
        };
        let columns = PyDict::new(py);
        columns.set_item("op", ids(py, members.iter().map(|op| numbering.index(*op))))?;
        columns.set_item("start", column(|share| share.start))?;
        columns.set_item("finish", column(|share| share.finish))?;
        Ok(columns)
    }

    /// The chain of causes, last first: what happened, its op or transfer, start, finish, what it waited
    /// for.
    fn blame(&self) -> Vec<(&'static str, i64, f64, f64, &'static str)> {
        let row = |b: Blame| {
            let (word, index) = match b.doing {
                Doing::Running(op) => ("run", self.index(op)),
                Doing::Moving(t) => ("transfer", i64::from(t)),
                Doing::Copying(t) => ("copy", i64::from(t)),
                Doing::Sharing(op) => ("share", self.index(op)),
                Doing::Launching(op) => ("launch", self.index(op)),
            };
            let (start, finish) = (self.clock.seconds(b.start), self.clock.seconds(b.finish));
            (word, index, start, finish, self.word(b.waited))
        };
        self.core.blame(&self.work.graph).into_iter().map(row).collect()
    }

    /// What one op's start waited for: a word, and the op or transfer; of a collective, the member that
    /// arrived last.
    fn waited(&self, op: u32) -> PyResult<(&'static str, i64)> {
        if op as usize >= self.work.n_ops() {
            return Err(PyIndexError::new_err(format!("op {op}")));
        }
        let waited = self.core.op_waited[self.work.graph.numbering().op(op).ix()];
        let index = match waited {
            Waited::Nothing => -1,
            Waited::Op(op) | Waited::Device(op) | Waited::Share(op) | Waited::Launch(op) => self.index(op),
            Waited::Copy(t) => i64::from(t),
            Waited::Transfer(t) | Waited::Channel(t) => match self.collective(t) {
                Some(collective) => self.index(collective.last),
                None => i64::from(t),
            },
        };
        Ok((self.word(waited), index))
    }

    /// Memory in use over time: when, on which device, how many bytes from then on.
    fn memory<'py>(&self, py: Python<'py>) -> (Floats<'py>, Ids<'py>, Bound<'py, PyArray1<u64>>) {
        let samples = &self.core.memory;
        let times: Vec<Ticks> = samples.iter().map(|s| s.time).collect();
        (
            self.seconds(py, &times),
            ids(py, samples.iter().map(|s| s.device.0)),
            samples.iter().map(|s| s.bytes).collect::<Vec<u64>>().into_pyarray(py),
        )
    }

    /// The first overflow: device, time, op or -1, bytes over, and the largest tensors alive there
    /// as (op, bytes, whether it is a copy).
    #[getter]
    fn overflow(&self) -> Option<OverflowRow> {
        self.core.overflow.as_ref().map(|o| {
            (
                o.device.ix(),
                self.clock.seconds(o.time),
                o.op.map_or(-1, |op| self.index(op)),
                o.over,
                o.alive.iter().map(|a| (self.work.graph.index(a.op), a.bytes, a.copy)).collect(),
            )
        })
    }
}

impl Schedule {
    fn index(&self, op: OpId) -> i64 {
        i64::from(self.work.graph.index(op))
    }

    /// A column per op as the user numbers ops.
    fn by_index(&self, column: &[Ticks]) -> Vec<Ticks> {
        self.work.graph.numbering().by_index(column.to_vec())
    }

    fn seconds<'py>(&self, py: Python<'py>, ticks: &[Ticks]) -> Floats<'py> {
        self.clock.seconds_of(ticks).into_pyarray(py)
    }

    /// The collective that a message is of, if it is of no transfer.
    fn collective(&self, message: u32) -> Option<&Together> {
        self.core.together.get((message as usize).checked_sub(self.core.transfers.len())?)
    }

    fn word(&self, waited: Waited) -> &'static str {
        match waited {
            Waited::Nothing => "nothing",
            Waited::Op(_) => "op",
            Waited::Transfer(_) => "transfer",
            Waited::Device(_) => "device",
            Waited::Copy(_) => "copy",
            Waited::Share(_) => "share",
            Waited::Launch(_) => "launch",
            Waited::Channel(t) if self.collective(t).is_some() => "collective",
            Waited::Channel(_) => "channel",
        }
    }
}
