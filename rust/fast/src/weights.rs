//! `fast.Weights`: the times of ops and transfers that orders, levels and groups count.

use std::sync::Arc;

use loadmaster_core::Error;
use loadmaster_core::border::is_no_time;
use loadmaster_core::clock::{Clock, Ticks};
use loadmaster_core::coarsen::Weights as CoreWeights;
use loadmaster_core::colocate;
use loadmaster_core::graph::Graph as CoreGraph;
use numpy::{IntoPyArray, PyArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::convert;
use crate::graph::Graph;

/// Times of ops and of transfers, for levels, orders and groups; checked once, used by many functions.
///
/// Parameters
/// ----------
/// graph : Graph
/// op_time : float64 [n_ops]
///     Seconds.
/// tensor_time : float64 [n_tensor_ids], optional
///     Seconds a transfer takes, by tensor id; zeros if absent.
/// control_time : float
///     Seconds a message without data takes.
/// op_bytes : uint64 [n_ops], optional
///     Bytes that each op adds to a group; resident and output bytes if absent.
///
/// Raises
/// ------
/// ValueError
///     A wrong dtype, shape or value.
///
/// Examples
/// --------
/// >>> import numpy as np
/// >>> from loadmaster import fast
/// >>> g = fast.Graph(3, np.array([0, 1]), np.array([1, 2]))
/// >>> w = fast.Weights(g, np.ones(3), np.full(3, 0.5))
/// >>> fast.levels(w)[1].tolist()
/// [4.0, 2.5, 1.0]
#[pyclass(frozen, module = "loadmaster.fast")]
pub struct Weights {
    pub graph: Graph,
    pub clock: Clock,
    /// Ticks per op and per tensor, as the core numbers them.
    pub op_time: Arc<[Ticks]>,
    pub tensor_time: Arc<[Ticks]>,
    /// Bytes per op; none: resident and output bytes.
    op_bytes: Option<Arc<[u64]>>,
    /// Class per op; ops of different classes never share a group. None: the device types that each
    /// op allows.
    class: Option<Arc<[u64]>>,
}

#[pymethods]
impl Weights {
    #[new]
    #[pyo3(signature = (graph, op_time, tensor_time=None, *, control_time=0.0, op_bytes=None))]
    fn new(
        py: Python<'_>,
        graph: &Graph,
        op_time: &Bound<'_, PyAny>,
        tensor_time: Option<&Bound<'_, PyAny>>,
        control_time: f64,
        op_bytes: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let op_time = graph.by_op(convert::seconds("op_time", op_time, graph.work.n_ops(), false)?, 1);
        let n_ids = graph.tensor_ids();
        let tensor_time = tensor_time.map(|t| convert::seconds("tensor_time", t, n_ids, true)).transpose()?;
        control_seconds(control_time)?;
        let op_bytes = op_bytes.map(|bytes| bytes_per_op(graph, bytes)).transpose()?;
        let counted = py.detach(|| {
            let tensor_time = tensor_time.unwrap_or_else(|| vec![0.0; n_ids]);
            Self::counted(graph, &op_time, &graph.by_tensor(&tensor_time, control_time))
        });
        let weights = counted.map_err(|e| graph.name(e))?;
        Ok(Self { op_bytes: op_bytes.map(Arc::from), ..weights })
    }

    /// The same weights with every op kept to a device, as if devices were types: no group that a
    /// coarsener makes has ops of two devices. O(V).
    ///
    /// Parameters
    /// ----------
    /// devices : int32 [n_ops]
    ///     Below 64, the same for colocated ops.
    ///
    /// Raises
    /// ------
    /// InputError
    ///     Colocated ops on two devices.
    /// ValueError
    ///     A wrong dtype or length; a device out of range.
    fn kept_to(&self, devices: &Bound<'_, PyAny>) -> PyResult<Self> {
        let work = &self.graph.work;
        let devices = convert::indices("devices", devices, work.n_ops(), u64::BITS as usize)?;
        let mut class: Vec<u64> = self.graph.by_op(devices, 1).into_iter().map(|d| 1 << d).collect();
        colocate::share_allowed(&work.sets, &mut class).map_err(|e| self.graph.name(e))?;
        Ok(Self {
            graph: self.graph.clone(),
            clock: self.clock,
            op_time: Arc::clone(&self.op_time),
            tensor_time: Arc::clone(&self.tensor_time),
            op_bytes: self.op_bytes.clone(),
            class: Some(Arc::from(class)),
        })
    }
}

impl Weights {
    /// From seconds per op and per tensor, as the core numbers them, on a clock that no sum of them
    /// overflows.
    pub fn counted(graph: &Graph, op_time: &[f64], tensor_time: &[f64]) -> Result<Self, Error> {
        let inner = &graph.work.graph;
        let sent = inner.tensors().map(|t| tensor_time[t.ix()] * inner.consumers(t).len() as f64);
        let spent: f64 = inner.ops_by_index().map(|u| op_time[u.ix()]).sum();
        let clock = Clock::for_horizon(spent + sent.sum::<f64>())?;
        Ok(Self {
            graph: graph.clone(),
            clock,
            op_time: Arc::from(clock.ticks_of(op_time)),
            tensor_time: Arc::from(clock.ticks_of(tensor_time)),
            op_bytes: None,
            class: None,
        })
    }

    /// Runs a coarsener without the GIL.
    pub fn run<T: Send>(
        &self,
        py: Python<'_>,
        coarsener: impl FnOnce(&CoreGraph, &CoreWeights<'_>) -> Result<T, Error> + Send,
    ) -> PyResult<T> {
        let work = &self.graph.work;
        let found = py.detach(|| {
            let given = self.op_bytes.clone();
            let op_bytes = given.unwrap_or_else(|| Arc::from(work.static_bytes()));
            let weights = CoreWeights {
                op_time: &self.op_time,
                tensor_time: &self.tensor_time,
                op_bytes: &op_bytes,
                class: self.class.as_deref().unwrap_or(&work.allowed),
            };
            coarsener(&work.graph, &weights)
        });
        Ok(found.map_err(|e| self.graph.name(e))?)
    }

    /// A column of ticks per op, out.
    pub fn seconds<'py>(&self, py: Python<'py>, ticks: Vec<Ticks>) -> Bound<'py, PyArray1<f64>> {
        self.clock.seconds_of(&self.graph.by_index(ticks)).into_pyarray(py)
    }
}

pub fn control_seconds(control: f64) -> PyResult<f64> {
    if is_no_time(control) {
        let reason = format!("control_time is {control}: it must be finite and not negative");
        return Err(PyValueError::new_err(reason));
    }
    Ok(control)
}

/// Bytes per op as given, as the core numbers ops.
pub fn bytes_per_op(graph: &Graph, bytes: &Bound<'_, PyAny>) -> PyResult<Vec<u64>> {
    let bytes = convert::sizes("op_bytes", bytes)?;
    if bytes.len() == graph.work.n_ops() {
        Ok(graph.by_op(bytes, 1))
    } else {
        let wants = format!("{} (one per op)", graph.work.n_ops());
        Err(convert::wrong_length("op_bytes", bytes.len(), wants))
    }
}
