//! `fast.Graph` and `fast.OpGraph`.

use std::sync::Arc;

use loadmaster_core::Error;
use loadmaster_core::coarsen::contract;
use loadmaster_core::graph::Graph as CoreGraph;
use loadmaster_core::ids::{OpId, TensorId};
use loadmaster_core::opgraph::{OpColumns, OpGraph as CoreOpGraph};
use loadmaster_core::workload::{Columns, Workload};
use loadmaster_core::{colocate, reduce};
use numpy::{IntoPyArray, PyArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::convert;
use crate::errors::Raised;

/// What the op of a user's index is called in messages.
pub type Names = Arc<dyn Fn(u32) -> Option<String> + Send + Sync>;

/// A validated directed acyclic graph of ops joined by tensors. Immutable.
///
/// O(V + E). Edges that repeat another (same ends, same tensor) count once.
///
/// Parameters
/// ----------
/// n_ops : int
/// src, dst : int [n_edges]
///     Producer and consumer per edge.
/// tensor : int [n_edges], optional
///     Id of the tensor an edge carries, -1 for a control edge. A tensor has one producer and is sent
///     once per device however many consumers it has there. Absent: each op has one output, whose id
///     is the op's number. For a tensor per edge give ``np.arange(n_edges)``.
/// tensor_bytes : uint64 [n_tensor_ids], optional
///     Zeros if absent, like the next three.
/// resident, workspace : uint64 [n_ops], optional
///     Bytes an op keeps for the whole step, and bytes it needs while it runs.
/// output_bytes : uint64 [n_ops], optional
///     Bytes an op allocates, if more than its tensors add up to.
/// colocation : int [n_ops], optional
///     Ops with the same number >= 0 share a device.
/// allowed : uint64 [n_ops], optional
///     Bit k: may run on device type k.
///
/// Raises
/// ------
/// ValueError
///     A wrong dtype, shape or length.
/// InputError
///     No ops, a dangling edge, a self loop, a tensor with two producers, a cycle (op by op).
///
/// Examples
/// --------
/// >>> import numpy as np
/// >>> from loadmaster import fast
/// >>> g = fast.Graph(3, np.array([0, 0]), np.array([1, 2]))
/// >>> g.n_ops, g.n_edges
/// (3, 2)
#[pyclass(frozen, module = "loadmaster.fast")]
pub struct Graph {
    /// Its ops are numbered as they run, not as the user numbers them: every column and every list of
    /// ops comes in through [`Graph::by_op`], [`Graph::op`] and goes out through [`Graph::by_index`],
    /// [`Graph::indices`].
    pub work: Arc<Workload>,
    pub names: Option<Names>,
}

/// Two int32 columns and two more: source, destination, tensors, bytes of each flow.
type Flows<'py> = (
    Bound<'py, PyArray1<i32>>,
    Bound<'py, PyArray1<i32>>,
    Bound<'py, PyArray1<u32>>,
    Bound<'py, PyArray1<u64>>,
);

#[pymethods]
impl Graph {
    #[new]
    #[pyo3(signature = (n_ops, src, dst, tensor=None, *, tensor_bytes=None, resident=None, workspace=None,
                        output_bytes=None, colocation=None, allowed=None))]
    #[expect(clippy::too_many_arguments, reason = "one per column")]
    fn new(
        py: Python<'_>,
        n_ops: &Bound<'_, PyAny>,
        src: &Bound<'_, PyAny>,
        dst: &Bound<'_, PyAny>,
        tensor: Option<&Bound<'_, PyAny>>,
        tensor_bytes: Option<&Bound<'_, PyAny>>,
        resident: Option<&Bound<'_, PyAny>>,
        workspace: Option<&Bound<'_, PyAny>>,
        output_bytes: Option<&Bound<'_, PyAny>>,
        colocation: Option<&Bound<'_, PyAny>>,
        allowed: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let n_ops = convert::count("n_ops", n_ops)?;
        let src = convert::integers("src", src)?;
        let dst = convert::integers("dst", dst)?;
        let tensor = tensor.map(|t| convert::integers("tensor", t)).transpose()?;
        let colocation =
            colocation.map(|c| convert::integers("colocation", c)).transpose()?.unwrap_or_default();
        let tensor_bytes = convert::optional_sizes("tensor_bytes", tensor_bytes)?;
        let resident = convert::optional_sizes("resident", resident)?;
        let workspace = convert::optional_sizes("workspace", workspace)?;
        let output_bytes = convert::optional_sizes("output_bytes", output_bytes)?;
        let allowed = convert::optional_sizes("allowed", allowed)?;
        let work = py.detach(|| {
            let graph = CoreGraph::numbered(n_ops, &src, &dst, tensor.as_deref())?;
            let columns = Columns {
                tensor_bytes: &tensor_bytes,
                resident: &resident,
                workspace: &workspace,
                output_bytes: &output_bytes,
                colocation: &colocation,
                allowed: &allowed,
            };
            Workload::plain(graph, &columns)
        });
        Ok(Self { work: Arc::new(work.map_err(Raised::from)?), names: None })
    }

    /// Number of ops.
    #[getter]
    fn n_ops(&self) -> usize {
        self.work.n_ops()
    }

    /// Number of edges: pairs of a tensor and an op that reads it.
    #[getter]
    fn n_edges(&self) -> usize {
        self.work.graph.n_edges()
    }

    /// One past the largest tensor id: how many values a column per tensor id needs.
    #[getter]
    fn n_tensor_ids(&self) -> usize {
        let graph = &self.work.graph;
        graph
            .tensors()
            .filter(|&t| !graph.is_control(t))
            .map(|t| graph.key(t) as usize + 1)
            .max()
            .unwrap_or(0)
    }

    /// Bytes per tensor id, uint64 [n_tensor_ids].
    #[getter]
    fn tensor_bytes<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<u64>> {
        let graph = &self.work.graph;
        let mut bytes = vec![0; self.n_tensor_ids()];
        for t in graph.tensors().filter(|&t| !graph.is_control(t)) {
            bytes[graph.key(t) as usize] = self.work.tensor_bytes[t.ix()];
        }
        bytes.into_pyarray(py)
    }

    /// Resident and output bytes per op, uint64 [n_ops].
    #[getter]
    fn static_bytes<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<u64>> {
        self.by_index(self.work.static_bytes()).into_pyarray(py)
    }

    /// Bytes per op that stay for the whole step, uint64 [n_ops].
    #[getter]
    fn resident<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<u64>> {
        self.by_index(self.work.resident.clone()).into_pyarray(py)
    }

    /// Bytes per op needed while it runs, uint64 [n_ops].
    #[getter]
    fn workspace<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<u64>> {
        self.by_index(self.work.workspace.clone()).into_pyarray(py)
    }

    /// Mask of the device types that each op may run on, uint64 [n_ops].
    #[getter]
    fn allowed<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<u64>> {
        self.by_index(self.work.allowed.clone()).into_pyarray(py)
    }

    /// The op that decides where each op goes, int32 [n_ops].
    #[getter]
    fn lead<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i32>> {
        ids(py, self.by_index(self.work.lead.clone()).into_iter().map(|lead| self.work.graph.index(lead)))
    }

    /// Number of the set of colocated ops that each op is in, int32 [n_ops].
    #[getter]
    fn colocation<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<i32>> {
        ids(py, self.by_index(self.work.set_of.clone()).into_iter())
    }

    /// The same graph with every op decided for by the first of its colocated set: without the advice
    /// to keep the update of a parameter where the parameter is read. O(V + E).
    fn without_advice(&self) -> Self {
        let work = &self.work;
        let lead = work.set_of.iter().map(|&s| work.sets.row(s as usize)[0]).collect();
        Self { work: Arc::new(Workload { lead, ..(**work).clone() }), names: self.names.clone() }
    }

    /// The same graph with ops kept to some of the device types they allow. Colocated ops keep to what
    /// all of them may use. O(V + E).
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
    ///     A wrong dtype or length; an op that is left without a type.
    fn restricted(&self, masks: &Bound<'_, PyAny>) -> PyResult<Self> {
        let work = &self.work;
        let masks = convert::sizes("masks", masks)?;
        if masks.len() != work.n_ops() {
            let wants = format!("{} (one per op)", work.n_ops());
            return Err(convert::wrong_length("masks", masks.len(), wants));
        }
        let mut allowed = self.by_op(masks, 1);
        allowed.iter_mut().zip(&work.allowed).for_each(|(mask, allowed)| *mask &= allowed);
        if let Some(op) = allowed.iter().position(|&mask| mask == 0) {
            let index = work.graph.index(OpId::new(op));
            return Err(PyValueError::new_err(format!("masks[{index}] leaves the op no device type")));
        }
        colocate::share_allowed(&work.sets, &mut allowed).map_err(|e| self.name(e))?;
        Ok(Self { work: Arc::new(Workload { allowed, ..(**work).clone() }), names: self.names.clone() })
    }

    /// The same graph with every op kept to a device, as if devices were types: no group that a
    /// coarsener makes has ops of two. O(V + E).
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
        let work = &self.work;
        let devices = convert::indices("devices", devices, work.n_ops(), u64::BITS as usize)?;
        let mut allowed: Vec<u64> = self.by_op(devices, 1).into_iter().map(|d| 1 << d).collect();
        colocate::share_allowed(&work.sets, &mut allowed).map_err(|e| self.name(e))?;
        Ok(Self { work: Arc::new(Workload { allowed, ..(**work).clone() }), names: self.names.clone() })
    }

    /// Source, destination, distinct tensors and bytes between each pair of ops.
    fn flows<'py>(&self, py: Python<'py>) -> Flows<'py> {
        let flows = py.detach(|| contract::flows(&self.work));
        (
            self.indices(py, flows.iter().map(|f| f.src)),
            self.indices(py, flows.iter().map(|f| f.dst)),
            flows.iter().map(|f| f.tensors).collect::<Vec<_>>().into_pyarray(py),
            flows.iter().map(|f| f.bytes).collect::<Vec<_>>().into_pyarray(py),
        )
    }
}

impl Graph {
    /// An error in which the core names this graph's ops, as the user calls them.
    pub fn name(&self, error: Error) -> Raised {
        self.name_indices(error.with_indices(|op| self.work.graph.index(op)))
    }

    /// An error that names ops by the user's index.
    pub fn name_indices(&self, error: Error) -> Raised {
        match &self.names {
            Some(names) => error.with_names(|index| names(index.0)).into(),
            None => error.into(),
        }
    }

    /// A column of the user's, `width` values per op, as the core numbers ops.
    pub fn by_op<T: Copy>(&self, column: Vec<T>, width: usize) -> Vec<T> {
        self.work.graph.numbering().by_op(column, width)
    }

    /// A column of the core's as the user numbers ops.
    pub fn by_index<T: Copy>(&self, column: Vec<T>) -> Vec<T> {
        self.work.graph.numbering().by_index(column)
    }

    /// The op of a user's index.
    pub fn op(&self, index: u32) -> OpId {
        self.work.graph.numbering().op(index)
    }

    /// The user's indices of ops.
    pub fn indices<'py>(
        &self,
        py: Python<'py>,
        ops: impl Iterator<Item = OpId>,
    ) -> Bound<'py, PyArray1<i32>> {
        ids(py, ops.map(|op| self.work.graph.index(op)))
    }

    /// Spreads a column given per tensor id over the graph's tensors; control messages cost `control`.
    pub fn by_tensor(&self, per_id: &[f64], control: f64) -> Vec<f64> {
        let graph = &self.work.graph;
        let of = |t: TensorId| if graph.is_control(t) { control } else { per_id[graph.key(t) as usize] };
        graph.tensors().map(of).collect()
    }

    /// Number of values a column per tensor id needs.
    pub fn tensor_ids(&self) -> usize {
        self.n_tensor_ids()
    }
}

/// A model's graph with all its columns; :class:`loadmaster.OpGraph` is its face.
///
/// Parameters
/// ----------
/// name : list of str
///     Unique.
/// src, dst, tensor, bytes
///     Per edge; ``tensor`` may be None.
/// view, placeholder, alias_of, colocation, output_bytes, resident, workspace
///     Per op.
///
/// Raises
/// ------
/// InputError
///     As :class:`loadmaster.OpGraph`.
///
/// Examples
/// --------
/// >>> import loadmaster as lm
/// >>> graph, *maps = lm.read("example:lenet")._core.reduce()
/// >>> graph.n_ops
/// 51
#[pyclass(frozen, module = "loadmaster.fast")]
pub struct OpGraph {
    core: Arc<CoreOpGraph>,
}

/// The reduced graph and int32 maps: to it per op of the model, back, and what each op of the model
/// shows.
type ReducedGraph<'py> =
    (Graph, Bound<'py, PyArray1<i32>>, Bound<'py, PyArray1<i32>>, Bound<'py, PyArray1<i32>>);

#[pymethods]
impl OpGraph {
    #[new]
    #[pyo3(signature = (name, src, dst, tensor, bytes, *, view, placeholder, alias_of, colocation,
                        output_bytes, resident, workspace))]
    #[expect(clippy::too_many_arguments, reason = "one per column")]
    fn new(
        py: Python<'_>,
        name: Vec<String>,
        src: &Bound<'_, PyAny>,
        dst: &Bound<'_, PyAny>,
        tensor: Option<&Bound<'_, PyAny>>,
        bytes: &Bound<'_, PyAny>,
        view: &Bound<'_, PyAny>,
        placeholder: &Bound<'_, PyAny>,
        alias_of: &Bound<'_, PyAny>,
        colocation: &Bound<'_, PyAny>,
        output_bytes: &Bound<'_, PyAny>,
        resident: &Bound<'_, PyAny>,
        workspace: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        let columns = OpColumns {
            name,
            src: convert::integers("src", src)?,
            dst: convert::integers("dst", dst)?,
            tensor: tensor.map(|t| convert::integers("tensor", t)).transpose()?,
            bytes: convert::sizes("bytes", bytes)?,
            view: convert::flags("view", view)?,
            placeholder: convert::flags("placeholder", placeholder)?,
            alias_of: convert::integers("alias_of", alias_of)?,
            colocation: convert::integers("colocation", colocation)?,
            output_bytes: convert::sizes("output_bytes", output_bytes)?,
            resident: convert::sizes("resident", resident)?,
            workspace: convert::sizes("workspace", workspace)?,
        };
        let core = py.detach(|| CoreOpGraph::new(columns)).map_err(Raised::from)?;
        Ok(Self { core: Arc::new(core) })
    }

    /// Number of ops.
    #[getter]
    fn n_ops(&self) -> usize {
        self.core.n_ops()
    }

    /// The graph that algorithms run on.
    #[pyo3(signature = (allowed=None))]
    fn reduce<'py>(
        &self,
        py: Python<'py>,
        allowed: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<ReducedGraph<'py>> {
        let allowed = convert::optional_sizes("allowed", allowed)?;
        let reduced = py.detach(|| reduce::reduce(&self.core, &allowed)).map_err(Raised::from)?;
        let op_of = Arc::new(reduced.work.graph.numbering().by_index(reduced.op_of));
        let back = ids(py, op_of.iter().map(|op| op.0));
        let shows = ids(py, reduced.shows.iter().map(|op| op.0));
        let core = Arc::clone(&self.core);
        let names: Names =
            Arc::new(move |index| op_of.get(index as usize).map(|&op| core.name(op).to_owned()));
        let graph = Graph { work: Arc::new(reduced.work), names: Some(names) };
        let map = graph.indices(py, reduced.map.into_iter());
        Ok((graph, map, back, shows))
    }
}

/// Indices as int32: graphs have fewer than 2^31 ops.
pub fn ids<'py>(py: Python<'py>, values: impl Iterator<Item = u32>) -> Bound<'py, PyArray1<i32>> {
    values.map(|v| v as i32).collect::<Vec<i32>>().into_pyarray(py)
}
