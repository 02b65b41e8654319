//! `fast.Problem`: a graph, a cluster and times, with the rules that strategies obey.

use std::sync::Arc;

use loadmaster_core::Error;
use loadmaster_core::clock::{Clock, Ticks};
use loadmaster_core::cluster::Cluster as CoreCluster;
use loadmaster_core::free_memory::OnOom;
use loadmaster_core::ids::{DeviceId, OpId};
use loadmaster_core::rules::Rules;
use loadmaster_core::search::problem::Problem as SearchProblem;
use loadmaster_core::workload::{Times, Workload};
use numpy::{IntoPyArray, PyArray1};
use pyo3::prelude::*;

use crate::cluster::Cluster;
use crate::convert;
use crate::graph::{Floats, Graph, Ids, ids};
use crate::scheduling::matrix;
use crate::weights::{Weights, bytes_per_op};

/// A graph to place on a cluster, and the rules to obey; checked once, used by many functions.
///
/// :meth:`within`, :meth:`led_by` and :meth:`without_contention` give the same problem under other
/// rules, which costs next to nothing: all share the graph, the cluster and the times.
///
/// Parameters
/// ----------
/// graph : Graph
/// cluster : Cluster
/// time : float64 [n_ops, n_types] (or [n_ops] where there is one type)
///     Seconds per op and device type.
/// dispatch : float64 [n_ops], optional
///     Seconds that the launch of each op keeps its host. None, or all 0: launches take no time.
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
/// >>> g = fast.Graph(1, np.array([], dtype=int), np.array([], dtype=int))
/// >>> both = [("a", "b", 1e9, 0.0, []), ("b", "a", 1e9, 0.0, [])]
/// >>> c = fast.Cluster([("a", "gpu", 8), ("b", "cpu", 9)], both)
/// >>> p = fast.Problem(g, c, np.array([[1.0, 3.0]]))
/// >>> p.mean_time.tolist(), p.within(capacity=np.array([4, 4])).capacity.tolist()
/// ([2.0], [4, 4])
#[pyclass(frozen, skip_from_py_object, module = "loadmaster.fast")]
#[derive(Clone)]
pub struct Problem {
    pub graph: Graph,
    pub cluster: Arc<CoreCluster>,
    pub times: Arc<Times>,
    pub clock: Clock,
    /// Ticks per op and device type, row-major.
    pub ticks: Arc<[Ticks]>,
    /// Ticks that the launch of each op takes; empty: none.
    pub dispatch: Arc<[Ticks]>,
    pub rules: Rules,
}

#[pymethods]
impl Problem {
    #[new]
    #[pyo3(signature = (graph, cluster, time, dispatch=None))]
    fn new(
        py: Python<'_>,
        graph: &Graph,
        cluster: &Cluster,
        time: &Bound<'_, PyAny>,
        dispatch: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let times = times(graph, &cluster.core, time, dispatch)?;
        let counted = py.detach(|| Self::counted(graph.clone(), &cluster.core, Arc::new(times)));
        Ok(counted.map_err(|e| graph.name(e))?)
    }

    /// The same problem with other limits on memory. Limits that are absent stay as they are.
    ///
    /// Parameters
    /// ----------
    /// capacity : uint64 [n_devices], optional
    ///     Bytes to fill; the devices' memory at first.
    /// op_bytes : uint64 [n_ops], optional
    ///     Bytes that each op is charged for the whole step. At first none are given. Then list
    ///     scheduling counts resident bytes, and tensors while they live. Other strategies charge
    ///     resident and output bytes.
    /// best_effort : bool, optional
    ///     Whether an op that fits nowhere goes where most memory is free, instead of raising; False at
    ///     first.
    ///
    /// Raises
    /// ------
    /// ValueError
    ///     A wrong dtype, shape or value.
    #[pyo3(signature = (*, capacity=None, op_bytes=None, best_effort=None))]
    fn within(
        &self,
        capacity: Option<&Bound<'_, PyAny>>,
        op_bytes: Option<&Bound<'_, PyAny>>,
        best_effort: Option<bool>,
    ) -> PyResult<Self> {
        let mut same = self.clone();
        if let Some(capacity) = capacity {
            let (bytes, n) = (convert::sizes("capacity", capacity)?, self.cluster.n_devices());
            if bytes.len() != n {
                return Err(convert::wrong_length("capacity", bytes.len(), format!("{n} (one per device)")));
            }
            same.rules.capacity = Arc::from(bytes);
        }
        if let Some(bytes) = op_bytes {
            same.rules.op_bytes = Some(Arc::from(bytes_per_op(&self.graph, bytes)?));
        }
        if let Some(is_best_effort) = best_effort {
            same.rules.on_oom = if is_best_effort { OnOom::BestEffort } else { OnOom::Fail };
        }
        Ok(same)
    }

    /// The same problem with other ops deciding where each op goes. O(V).
    ///
    /// Parameters
    /// ----------
    /// lead : int [n_ops]
    ///     The op whose device each op takes; an op that decides for itself has its own number. At
    ///     first list scheduling and filling follow the graph's ``lead``, and the search moves
    ///     colocated sets.
    ///
    /// Raises
    /// ------
    /// ValueError
    ///     A wrong dtype or length; a lead that follows another op, parts a colocated set, or may run on
    ///     other device types.
    fn led_by(&self, lead: &Bound<'_, PyAny>) -> PyResult<Self> {
        let (graph, n) = (&self.graph, self.graph.work.n_ops());
        let lead = convert::indices("lead", lead, n, n)?.into_iter().map(|index| graph.op(index)).collect();
        let lead: Vec<OpId> = graph.by_op(lead, 1);
        let rules = self.rules.led_by(&graph.work, lead).map_err(|e| graph.name(e))?;
        Ok(Self { rules, ..self.clone() })
    }

    /// The same problem with unlimited channels: the classic model, any number of transfers at once.
    fn without_contention(&self) -> Self {
        let mut same = self.clone();
        same.rules.contention = false;
        same
    }

    /// The same problem with ops kept to some of the device types that they allow. Colocated ops
    /// keep to the types that all of them may use. O(V + E).
    ///
    /// Parameters
    /// ----------
    /// masks : uint64 [n_ops]
    ///     Bit k: may run on device type k, if the graph allows it.
    ///
    /// Raises
    /// ------
    /// InputError
    ///     Colocated ops that are left without a type in common.
    /// ValueError
    ///     A wrong dtype or length; an op that is left without a type; a lead that may run on other types.
    fn restricted(&self, py: Python<'_>, masks: &Bound<'_, PyAny>) -> PyResult<Self> {
        let work = &self.graph.work;
        let masks = convert::sizes("masks", masks)?;
        if masks.len() != work.n_ops() {
            let wants = format!("{} (one per op)", work.n_ops());
            return Err(convert::wrong_length("masks", masks.len(), wants));
        }
        let work =
            self.rules.restricted(work, &self.graph.by_op(masks, 1)).map_err(|e| self.graph.name(e))?;
        let graph = Graph { work: Arc::new(work), names: self.graph.names.clone() };
        let counted = py.detach(|| Self::counted(graph, &self.cluster, Arc::clone(&self.times)));
        let Self { graph, clock, ticks, dispatch, .. } = counted.map_err(|e| self.graph.name(e))?;
        Ok(Self { graph, clock, ticks, dispatch, ..self.clone() })
    }

    /// Mean over the devices that each op may run on, of a value per op and device type.
    ///
    /// Parameters
    /// ----------
    /// values : float64 [n_ops, n_types]
    ///     Finite, not negative.
    ///
    /// Returns
    /// -------
    /// float64 [n_ops]
    ///
    /// Raises
    /// ------
    /// ValueError
    ///     A wrong dtype, shape or value.
    fn mean<'py>(&self, py: Python<'py>, values: &Bound<'py, PyAny>) -> PyResult<Floats<'py>> {
        let (n, k) = (self.graph.work.n_ops(), self.times.n_types());
        let values = matrix("values", &self.graph, values, k)?;
        let values = Times::new(n, k, values).map_err(|e| self.graph.name(e))?;
        Ok(self.graph.by_index(values.mean(&self.graph.work, &self.cluster)).into_pyarray(py))
    }

    /// The graph.
    #[getter]
    fn graph(&self) -> Graph {
        self.graph.clone()
    }

    /// Mean seconds per op over the devices that it may run on, float64 [n_ops].
    #[getter]
    fn mean_time<'py>(&self, py: Python<'py>) -> Floats<'py> {
        self.graph.by_index(self.times.mean(&self.graph.work, &self.cluster)).into_pyarray(py)
    }

    /// The weights that orders, levels and groups count: mean op times, and transfer times between
    /// an average pair of devices. O(V + E).
    #[getter]
    fn weights(&self, py: Python<'_>) -> PyResult<Weights> {
        let work = &self.graph.work;
        let counted = py.detach(|| {
            let tensor_time = work.mean_transfers(&self.cluster);
            Weights::counted(&self.graph, &self.times.mean(work, &self.cluster), &tensor_time)
        });
        Ok(counted.map_err(|e| self.graph.name(e))?)
    }

    /// Bytes to fill, uint64 [n_devices].
    #[getter]
    fn capacity<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<u64>> {
        PyArray1::from_slice(py, &self.rules.capacity)
    }

    /// Bytes that each op is charged for the whole step, uint64 [n_ops]; None if none are given.
    #[getter]
    fn op_bytes<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyArray1<u64>>> {
        let bytes = self.rules.op_bytes.as_ref()?;
        Some(self.graph.by_index(bytes.to_vec()).into_pyarray(py))
    }

    /// The op that decides where each op goes, int32 [n_ops].
    #[getter]
    fn lead<'py>(&self, py: Python<'py>) -> Ids<'py> {
        let lead = self.graph.by_index(self.leads().to_vec());
        ids(py, lead.into_iter().map(|lead| self.graph.work.graph.index(lead)))
    }
}

impl Problem {
    /// The problem by its graph's own rules. Times are counted on a clock that no schedule overflows.
    fn counted(graph: Graph, cluster: &Arc<CoreCluster>, times: Arc<Times>) -> Result<Self, Error> {
        let clock = graph.work.clock(&times, cluster)?;
        Ok(Self {
            ticks: Arc::from(times.ticks(clock)),
            dispatch: Arc::from(clock.ticks_of(times.dispatch())),
            rules: Rules::of(cluster),
            graph,
            cluster: Arc::clone(cluster),
            times,
            clock,
        })
    }

    pub fn work(&self) -> &Workload {
        &self.graph.work
    }

    /// Per op, the op that decides where it goes.
    pub fn leads(&self) -> &[OpId] {
        self.rules.leads(self.work())
    }

    /// The problem as the search has it.
    pub fn searched(&self) -> Result<SearchProblem<'_>, Error> {
        let (work, rules) = (self.work(), &self.rules);
        let searched = SearchProblem::new(
            work,
            &self.cluster,
            self.clock,
            &self.ticks,
            &rules.charges(work),
            &rules.capacity,
            rules.own_leads(),
        )?;
        Ok(searched.launching(&self.dispatch))
    }

    /// A device per op, in.
    pub fn placement(&self, devices: &Bound<'_, PyAny>) -> PyResult<Vec<DeviceId>> {
        let (n, k) = (self.work().n_ops(), self.cluster.n_devices());
        let devices = convert::indices("devices", devices, n, k)?;
        Ok(self.graph.by_op(devices.into_iter().map(DeviceId).collect(), 1))
    }

    /// A device per op, out.
    pub fn devices<'py>(&self, py: Python<'py>, placement: Vec<DeviceId>) -> Ids<'py> {
        ids(py, self.graph.by_index(placement).into_iter().map(|d| d.0))
    }

    /// A column of ticks per op, out.
    pub fn seconds<'py>(&self, py: Python<'py>, ticks: Vec<Ticks>) -> Floats<'py> {
        self.clock.seconds_of(&self.graph.by_index(ticks)).into_pyarray(py)
    }

    /// Runs on the problem without the GIL; an error calls ops as the user does.
    pub fn run<T: Send>(
        &self,
        py: Python<'_>,
        algorithm: impl FnOnce(&Self) -> Result<T, Error> + Send,
    ) -> PyResult<T> {
        Ok(py.detach(|| algorithm(self)).map_err(|e| self.graph.name(e))?)
    }
}

/// Seconds per op and device type, and of launches.
fn times(
    graph: &Graph,
    cluster: &CoreCluster,
    time: &Bound<'_, PyAny>,
    dispatch: Option<&Bound<'_, PyAny>>,
) -> PyResult<Times> {
    let (n, k) = (graph.work.n_ops(), cluster.types().len());
    let seconds = convert::time_matrix("time", time, n, k)?;
    let mut times = Times::new(n, k, seconds).map_err(|e| graph.name_indices(e))?;
    if let Some(dispatch) = dispatch {
        let dispatch = convert::time_matrix("dispatch", dispatch, n, 1)?;
        times = times.with_dispatch(dispatch).map_err(|e| graph.name_indices(e))?;
    }
    Ok(times.numbered(graph.work.graph.numbering()))
}
