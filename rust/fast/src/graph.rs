//! `fast.Graph` and `fast.OpGraph`.

use std::sync::Arc;

use loadmaster_core::Error;
use loadmaster_core::coarsen::contract;
use loadmaster_core::collective::MemberColumns;
use loadmaster_core::graph::Graph as CoreGraph;
use loadmaster_core::ids::{OpId, TensorId};
use loadmaster_core::opgraph::{OpColumns, OpGraph as CoreOpGraph};
use loadmaster_core::workload::{Columns, Workload};
use loadmaster_core::{reduce, topo};
use numpy::{IntoPyArray, PyArray1};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::convert;
use crate::errors::Raised;

pub type Ids<'py> = Bound<'py, PyArray1<i32>>;
pub type Floats<'py> = Bound<'py, PyArray1<f64>>;

/// Columns that [`Graph`] and [`OpGraph`] take by keyword.
const GRAPH_COLUMNS: &[&str] = &[
    "tensor_bytes",
    "resident",
    "workspace",
    "output_bytes",
    "colocation",
    "allowed",
    "collective",
    "collective_kind",
    "runs",
];
const OP_COLUMNS: &[&str] = &[
    "view",
    "placeholder",
    "alias_of",
    "near",
    "colocation",
    "flops",
    "accessed",
    "output_bytes",
    "resident",
    "workspace",
    "collective",
    "collective_kind",
    "runs",
];

/// Columns that [`OpGraph::changed`] takes by keyword.
const CHANGED: &[&str] =
    &["src", "dst", "tensor", "bytes", "flops", "accessed", "output_bytes", "resident", "workspace"];

/// Codes of kinds of collectives; a number that is no code becomes one that is none.
pub fn kinds(name: &str, values: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    let codes = convert::integers(name, values)?;
    Ok(codes.into_iter().map(|code| u8::try_from(code).unwrap_or(u8::MAX)).collect())
}

/// Columns given by keyword, each taken out by its name.
pub struct GivenColumns<'a, 'py> {
    class: &'static str,
    columns: Option<&'a Bound<'py, PyDict>>,
}

impl<'a, 'py> GivenColumns<'a, 'py> {
    /// Checks that every keyword is one of `names`.
    pub fn new(
        class: &'static str,
        columns: Option<&'a Bound<'py, PyDict>>,
        names: &[&str],
    ) -> PyResult<Self> {
        for key in columns.iter().flat_map(|columns| columns.keys()) {
            let key: String = key.extract()?;
            if !names.contains(&key.as_str()) {
                let reason = format!("{class}() got an unexpected keyword argument {key:?}");
                return Err(PyTypeError::new_err(reason));
            }
        }
        Ok(Self { class, columns })
    }

    /// A column, or none where it is absent or None.
    fn get<T>(&self, name: &str, convert: fn(&str, &Bound<'_, PyAny>) -> PyResult<T>) -> PyResult<Option<T>> {
        let Some(columns) = self.columns else { return Ok(None) };
        let column = columns.get_item(name)?.filter(|column| !column.is_none());
        column.map(|column| convert(name, &column)).transpose()
    }

    /// A column; empty where it is absent.
    pub fn optional<T>(
        &self,
        name: &str,
        convert: fn(&str, &Bound<'_, PyAny>) -> PyResult<Vec<T>>,
    ) -> PyResult<Vec<T>> {
        Ok(self.get(name, convert)?.unwrap_or_default())
    }

    /// A column that must be given.
    pub fn required<T>(
        &self,
        name: &str,
        convert: fn(&str, &Bound<'_, PyAny>) -> PyResult<T>,
    ) -> PyResult<T> {
        let missing =
            || PyTypeError::new_err(format!("{}() wants the keyword argument {name:?}", self.class));
        self.get(name, convert)?.ok_or_else(missing)
    }
}

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
/// collective : int [n_ops], optional
///     Ops with the same number >= 0 are the members of one collective.
/// collective_kind : int [n_ops], optional
///     What each member's collective does: an index into :data:`COLLECTIVES`. Wanted with
///     ``collective``.
/// runs : uint64 [n_ops], optional
///     How often each op runs in a step; once if absent.
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
#[pyclass(frozen, skip_from_py_object, module = "loadmaster.fast")]
#[derive(Clone)]
pub struct Graph {
    /// Its ops are numbered as they run, not as the user numbers them: every column and every list of
    /// ops comes in through [`Graph::by_op`], [`Graph::op`] and goes out through [`Graph::by_index`],
    /// [`Graph::indices`].
    pub work: Arc<Workload>,
    pub names: Option<Names>,
}

/// Columns with the source, destination, tensors and bytes of each flow.
type Flows<'py> = (
    Bound<'py, PyArray1<i32>>,
    Bound<'py, PyArray1<i32>>,
    Bound<'py, PyArray1<u32>>,
    Bound<'py, PyArray1<u64>>,
);

#[pymethods]
impl Graph {
    #[new]
    #[pyo3(signature = (n_ops, src, dst, tensor=None, **columns))]
    fn new(
        py: Python<'_>,
        n_ops: &Bound<'_, PyAny>,
        src: &Bound<'_, PyAny>,
        dst: &Bound<'_, PyAny>,
        tensor: Option<&Bound<'_, PyAny>>,
        columns: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let given = GivenColumns::new("Graph", columns, GRAPH_COLUMNS)?;
        let n_ops = convert::count("n_ops", n_ops)?;
        let src = convert::integers("src", src)?;
        let dst = convert::integers("dst", dst)?;
        let tensor = tensor.map(|t| convert::integers("tensor", t)).transpose()?;
        let colocation = given.optional("colocation", convert::integers)?;
        let tensor_bytes = given.optional("tensor_bytes", convert::sizes)?;
        let resident = given.optional("resident", convert::sizes)?;
        let workspace = given.optional("workspace", convert::sizes)?;
        let output_bytes = given.optional("output_bytes", convert::sizes)?;
        let allowed = given.optional("allowed", convert::sizes)?;
        let group = given.optional("collective", convert::integers)?;
        let kind = given.optional("collective_kind", kinds)?;
        let runs = given.optional("runs", convert::sizes)?;
        let work = py.detach(|| {
            let graph = CoreGraph::numbered(n_ops, &src, &dst, tensor.as_deref())?;
            let columns = Columns {
                tensor_bytes: &tensor_bytes,
                resident: &resident,
                workspace: &workspace,
                output_bytes: &output_bytes,
                colocation: &colocation,
                allowed: &allowed,
                members: MemberColumns { group: &group, kind: &kind, runs: &runs },
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
    /// An error of the core with this graph's ops named as the user names them.
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

    /// Brings a column of `width` values per op from the user's indices into the core's order of
    /// ops.
    pub fn by_op<T: Copy>(&self, column: Vec<T>, width: usize) -> Vec<T> {
        self.work.graph.numbering().by_op(column, width)
    }

    /// Brings a column from the core's order of ops into that of the user's indices.
    pub fn by_index<T: Copy>(&self, column: Vec<T>) -> Vec<T> {
        self.work.graph.numbering().by_index(column)
    }

    /// The op of a user's index.
    pub fn op(&self, index: u32) -> OpId {
        self.work.graph.numbering().op(index)
    }

    /// An order, checked to be topological.
    pub fn topological(&self, order: &Bound<'_, PyAny>) -> PyResult<Vec<OpId>> {
        let n = self.work.n_ops();
        let order: Vec<OpId> =
            convert::indices("order", order, n, n)?.into_iter().map(|index| self.op(index)).collect();
        if topo::is_topological(&self.work.graph, &order) {
            return Ok(order);
        }
        let reason = "order: must list every op once, producers before consumers";
        Err(PyValueError::new_err(format!("{reason} (see m_topo, dfs_topo, cpd_topo)")))
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
/// view, placeholder, alias_of, near, colocation, flops, accessed, output_bytes, resident, workspace
///     Per op.
/// collective, collective_kind, runs : optional
///     Per op, as of :class:`Graph`.
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
    pub core: Arc<CoreOpGraph>,
    /// What ops are called, where the core does not know.
    pub names: Option<Names>,
}

/// The reduced graph, and three int32 maps. Per op of the model: its op of the reduced graph. Per
/// op of the reduced graph: its op of the model. Per op of the model: the op whose data it shows.
type ReducedGraph<'py> =
    (Graph, Bound<'py, PyArray1<i32>>, Bound<'py, PyArray1<i32>>, Bound<'py, PyArray1<i32>>);

#[pymethods]
impl OpGraph {
    #[new]
    #[pyo3(signature = (name, src, dst, tensor, bytes, **columns))]
    fn new(
        py: Python<'_>,
        name: Vec<String>,
        src: &Bound<'_, PyAny>,
        dst: &Bound<'_, PyAny>,
        tensor: Option<&Bound<'_, PyAny>>,
        bytes: &Bound<'_, PyAny>,
        columns: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let given = GivenColumns::new("OpGraph", columns, OP_COLUMNS)?;
        let columns = OpColumns {
            name,
            src: convert::integers("src", src)?,
            dst: convert::integers("dst", dst)?,
            tensor: tensor.map(|t| convert::integers("tensor", t)).transpose()?,
            bytes: convert::sizes("bytes", bytes)?,
            view: given.required("view", convert::flags)?,
            placeholder: given.required("placeholder", convert::flags)?,
            alias_of: given.required("alias_of", convert::integers)?,
            near: given.required("near", convert::integers)?,
            colocation: given.required("colocation", convert::integers)?,
            flops: given.required("flops", convert::sizes)?,
            accessed: given.required("accessed", convert::sizes)?,
            output_bytes: given.required("output_bytes", convert::sizes)?,
            resident: given.required("resident", convert::sizes)?,
            workspace: given.required("workspace", convert::sizes)?,
            collective: given.optional("collective", convert::integers)?,
            collective_kind: given.optional("collective_kind", kinds)?,
            runs: given.optional("runs", convert::sizes)?,
        };
        let core = py.detach(|| CoreOpGraph::new(columns)).map_err(Raised::from)?;
        Ok(Self { core: Arc::new(core), names: None })
    }

    /// The graph with some columns of sizes and of edges in the place of its own, all of it checked
    /// again.
    #[pyo3(signature = (**columns))]
    fn changed(&self, py: Python<'_>, columns: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let given = GivenColumns::new("changed", columns, CHANGED)?;
        let numbers = |name: &str| given.get(name, convert::integers);
        let sizes = |name: &str| given.get(name, convert::sizes);
        let (src, dst, tensor) = (numbers("src")?, numbers("dst")?, numbers("tensor")?);
        let (bytes, flops, accessed) = (sizes("bytes")?, sizes("flops")?, sizes("accessed")?);
        let (output, resident) = (sizes("output_bytes")?, sizes("resident")?);
        let workspace = sizes("workspace")?;
        let made = py.detach(|| {
            self.core.changed(|own| {
                put(&mut own.src, src);
                put(&mut own.dst, dst);
                own.tensor = tensor.or(own.tensor.take());
                put(&mut own.bytes, bytes);
                put(&mut own.flops, flops);
                put(&mut own.accessed, accessed);
                put(&mut own.output_bytes, output);
                put(&mut own.resident, resident);
                put(&mut own.workspace, workspace);
            })
        });
        Ok(self.rejoined(made.map_err(|error| self.name(error))?))
    }

    /// Number of ops.
    #[getter]
    fn n_ops(&self) -> usize {
        self.core.n_ops()
    }

    /// How tensors are sent: per tensor id, the id of the tensor whose data it is, int32, -1: none; and per
    /// op, the tensor that it shows, int32, -1: it is no view.
    fn sent<'py>(&self, py: Python<'py>) -> PyResult<(Ids<'py>, Ids<'py>)> {
        let sent = py.detach(|| reduce::sent(&self.core)).map_err(Raised::from)?;
        let n_tensors = sent.as_tensor.iter().map(|pair| pair.0 as usize + 1).max().unwrap_or(0);
        let mut as_tensor = vec![u32::MAX; n_tensors];
        sent.as_tensor.iter().for_each(|&(tensor, of)| as_tensor[tensor as usize] = of);
        let mut shown = vec![u32::MAX; self.core.n_ops()];
        sent.shown.iter().for_each(|&(op, tensor)| shown[op.ix()] = tensor);
        Ok((ids(py, as_tensor.into_iter()), ids(py, shown.into_iter())))
    }

    /// Number of edges as given.
    #[getter]
    fn n_edges(&self) -> usize {
        self.core.columns().src.len()
    }

    /// A column of numbers by its name; a column that the graph was made without is one of its
    /// default.
    fn column<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        let c = self.core.columns();
        Ok(match name {
            "src" => PyArray1::from_slice(py, &c.src).into_any(),
            "dst" => PyArray1::from_slice(py, &c.dst).into_any(),
            "tensor" => PyArray1::from_slice(py, c.tensor.as_deref().unwrap_or(&c.src)).into_any(),
            "bytes" => PyArray1::from_slice(py, &c.bytes).into_any(),
            "view" => PyArray1::from_slice(py, &c.view).into_any(),
            "placeholder" => PyArray1::from_slice(py, &c.placeholder).into_any(),
            "alias_of" => PyArray1::from_slice(py, &c.alias_of).into_any(),
            "colocation" => PyArray1::from_slice(py, &c.colocation).into_any(),
            "collective" => PyArray1::from_slice(py, &c.collective).into_any(),
            "runs" => {
                let once = if c.runs.is_empty() { self.core.n_ops() } else { 0 };
                PyArray1::from_vec(py, [c.runs.as_slice(), &vec![1; once]].concat()).into_any()
            }
            "is_member" => self.core.is_member().into_pyarray(py).into_any(),
            "flops" => PyArray1::from_slice(py, &c.flops).into_any(),
            "accessed" => PyArray1::from_slice(py, &c.accessed).into_any(),
            "output_bytes" => PyArray1::from_slice(py, &c.output_bytes).into_any(),
            "resident" => PyArray1::from_slice(py, &c.resident).into_any(),
            "workspace" => PyArray1::from_slice(py, &c.workspace).into_any(),
            _ => return Err(PyValueError::new_err(format!("a graph has no column of numbers {name:?}"))),
        })
    }

    /// The graph that algorithms run on.
    #[pyo3(signature = (allowed=None))]
    fn reduce<'py>(
        &self,
        py: Python<'py>,
        allowed: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<ReducedGraph<'py>> {
        let allowed = convert::optional_sizes("allowed", allowed)?;
        let reduced = py.detach(|| reduce::reduce(&self.core, &allowed)).map_err(|e| self.name(e))?;
        let op_of = Arc::new(reduced.work.graph.numbering().by_index(reduced.op_of));
        let back = ids(py, op_of.iter().map(|op| op.0));
        let shows = ids(py, reduced.shows.iter().map(|op| op.0));
        let (core, given) = (Arc::clone(&self.core), self.names.clone());
        let names: Names = Arc::new(move |index| {
            let op = *op_of.get(index as usize)?;
            core.name(op).map(str::to_owned).or_else(|| given.as_ref()?(op.0))
        });
        let graph = Graph { work: Arc::new(reduced.work), names: Some(names) };
        let map = graph.indices(py, reduced.map.into_iter());
        Ok((graph, map, back, shows))
    }
}

impl OpGraph {
    /// A graph that a transform made. `names` gives the name of an op by its number.
    pub fn made(core: CoreOpGraph, names: &Bound<'_, PyAny>) -> Self {
        let names = names.clone().unbind();
        let name =
            move |op: u32| Python::attach(|py| names.bind(py).get_item(op).ok()?.extract::<String>().ok());
        Self { core: Arc::new(core), names: Some(Arc::new(name)) }
    }

    /// A graph of the same ops with other numbers or edges.
    pub fn rejoined(&self, core: CoreOpGraph) -> Self {
        Self { core: Arc::new(core), names: self.names.clone() }
    }

    /// An error of the core with this graph's ops named.
    pub fn name(&self, error: Error) -> Raised {
        match &self.names {
            Some(names) => error.with_names(|op| names(op.0)).into(),
            None => error.into(),
        }
    }
}

/// Puts a column in the place of another, if there is one.
fn put<T>(own: &mut Vec<T>, column: Option<Vec<T>>) {
    if let Some(column) = column {
        *own = column;
    }
}

/// Indices as int32: graphs have fewer than 2^31 ops.
pub fn ids<'py>(py: Python<'py>, values: impl Iterator<Item = u32>) -> Bound<'py, PyArray1<i32>> {
    values.map(|v| v as i32).collect::<Vec<i32>>().into_pyarray(py)
}
