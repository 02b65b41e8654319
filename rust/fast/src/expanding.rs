//! Roles of ops, replicas, and a block of ops in the place of one.

use std::sync::Arc;

use loadmaster_core::expand::block::{self, Block};
use loadmaster_core::expand::replicas::{Added, Copies, Home, Links, expand as expand_core};
use loadmaster_core::opgraph::OpGraph as CoreOpGraph;
use loadmaster_core::roles::{Facts, roles as core_roles, summed};
use numpy::{IntoPyArray, PyArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::convert;
use crate::graph::{GivenColumns, Ids, OpGraph, kinds};

/// Columns of [`expand`] per op of the source, per edge, per added op and per link.
const COPIES: &[&str] =
    &["home", "by_rows", "even", "whole_accessed", "whole_output", "whole_resident", "stays", "along"];
const ADDED: &[&str] =
    &["place", "is_before", "serves", "replica", "collective", "kind", "flops", "accessed", "output"];
const LINKS: &[&str] = &["place", "src", "dst", "tensor", "bytes"];

/// Columns of [`replace_op`].
const BLOCK: &[&str] = &[
    "flops",
    "accessed",
    "output_bytes",
    "workspace",
    "dropped",
    "leaving",
    "leaving_src",
    "src",
    "dst",
    "tensor",
    "bytes",
    "shows",
    "shown",
];

/// Checks that a column has so many values.
fn sized<T>(name: &str, column: Vec<T>, n: usize) -> PyResult<Vec<T>> {
    if column.len() == n { Ok(column) } else { Err(convert::wrong_length(name, column.len(), n)) }
}

/// Checks that a column has so many values, from `low` to below `end`.
fn ranged(name: &str, column: Vec<i64>, n: usize, low: i64, end: usize) -> PyResult<Vec<i64>> {
    match column.iter().find(|&&value| value < low || value >= end as i64) {
        None => sized(name, column, n),
        Some(value) => Err(PyValueError::new_err(format!(
            "{name}: got {value}, wants values of at least {low} and below {end}"
        ))),
    }
}

fn unsigned(values: Vec<i64>) -> Vec<u32> {
    values.into_iter().map(|value| value as u32).collect()
}

type Flags<'py> = Bound<'py, PyArray1<bool>>;

/// Which ops of a model data parallelism replicates, and which edges carry weight gradients.
///
/// O(V + E).
///
/// Parameters
/// ----------
/// graph : OpGraph
/// state, input, update : bool [n_ops]
///     Parameters, buffers and constants; inputs; the optimizer's ops.
///
/// Returns
/// -------
/// bool [n_ops], bool [n_edges]
///
/// Examples
/// --------
/// >>> import numpy as np, loadmaster as lm
/// >>> from loadmaster import fast
/// >>> g = lm.read("example:lenet")
/// >>> kinds = np.array(g.kinds)
/// >>> state = np.isin(kinds, ["parameter", "buffer", "constant"])
/// >>> many, gradient = fast.roles(g._core, state, kinds == "input", g.updates)
/// >>> int(many.sum()), int(gradient.sum()), g.n_ops
/// (60, 18, 104)
#[pyfunction]
pub fn roles<'py>(
    py: Python<'py>,
    graph: &OpGraph,
    state: &Bound<'py, PyAny>,
    input: &Bound<'py, PyAny>,
    update: &Bound<'py, PyAny>,
) -> PyResult<(Flags<'py>, Flags<'py>)> {
    let flags = |name, column| sized(name, convert::flags(name, column)?, graph.core.n_ops());
    let (state, input, update) = (flags("state", state)?, flags("input", input)?, flags("update", update)?);
    let facts = Facts { state: &state, input: &input, update: &update };
    let (many, gradient) = py.detach(|| core_roles(&graph.core, facts));
    Ok((many.into_pyarray(py), gradient.into_pyarray(py)))
}

/// Which edges carry what must be summed over replicas, from the model to the optimizer.
///
/// O(V + E).
///
/// Parameters
/// ----------
/// graph : OpGraph
/// many, parameter, update : bool [n_ops]
///     Replicated ops; parameters; the optimizer's ops.
///
/// Returns
/// -------
/// bool [n_edges]
///
/// Examples
/// --------
/// >>> import numpy as np, loadmaster as lm
/// >>> from loadmaster import fast
/// >>> g = lm.read("example:lenet")
/// >>> kinds = np.array(g.kinds)
/// >>> state = np.isin(kinds, ["parameter", "buffer", "constant"])
/// >>> many, gradient = fast.roles(g._core, state, kinds == "input", g.updates)
/// >>> int(fast.summed_edges(g._core, many, kinds == "parameter", g.updates).sum())
/// 8
#[pyfunction]
pub fn summed_edges<'py>(
    py: Python<'py>,
    graph: &OpGraph,
    many: &Bound<'py, PyAny>,
    parameter: &Bound<'py, PyAny>,
    update: &Bound<'py, PyAny>,
) -> PyResult<Flags<'py>> {
    let flags = |name, column| sized(name, convert::flags(name, column)?, graph.core.n_ops());
    let (many, parameter, update) =
        (flags("many", many)?, flags("parameter", parameter)?, flags("update", update)?);
    let found = py.detach(|| summed(&graph.core, &many, &parameter, &update));
    Ok(found.into_pyarray(py))
}

/// A graph of replicas; per op of it, int32: the op of the source that it is a copy of or serves, its
/// replica (-1: none), and which of the added ops it is (-1: a copy).
type Replicated<'py> = (OpGraph, Ids<'py>, Ids<'py>, Ids<'py>);

/// Copies the ops of a model into replicas, with ops added between them.
///
/// O(k (V + E)) for k replicas. Ops keep their order; the copies of an op are neighbours.
///
/// Parameters
/// ----------
/// graph : OpGraph
/// names
///     ``names[i]`` is what messages call the op ``i`` of the new graph. Asked for by messages alone.
/// rows : uint64 [k]
///     Parts of the batch that each replica works on.
/// copies : mapping of columns
///     Per op: ``home`` (-1: each replica has a copy, -2: there is one copy, in no replica; else the
///     only replica that has it), ``by_rows`` and ``even`` (bool: shared by rows, or evenly),
///     ``whole_accessed``, ``whole_output``, ``whole_resident`` (bytes that each share by rows has
///     whole). Per edge: ``stays`` (bool: is copied), ``along`` (bool: its bytes go by rows).
/// added : mapping of columns
///     Per added op: ``place`` (the op that it stands next to), ``is_before`` (bool), ``serves``,
///     ``replica``, ``collective`` (-1: none), ``kind``, ``flops``, ``accessed``, ``output``.
/// links : mapping of columns
///     Per edge that is no copy: ``place`` (the edge that it stands for, ascending; the number of
///     edges: none), ``src``, ``dst`` (``op * k + replica``, or ``n_ops * k + i`` for the added op
///     ``i``), ``tensor`` (in replica r the source's id plus r times one more than the largest; free
///     past k times that), ``bytes``.
///
/// Returns
/// -------
/// OpGraph, int32 [n], int32 [n], int32 [n]
///     Per op: the op of ``graph`` that it is a copy of or serves; its replica, -1: none; which of the
///     added ops it is, -1: none.
///
/// Examples
/// --------
/// >>> import numpy as np, loadmaster as lm
/// >>> from loadmaster import fast
/// >>> g = lm.OpGraph({"name": ["a", "b"]}, {"src": [0], "dst": [1], "bytes": [8]})
/// >>> each, none = np.ones(2, dtype=bool), np.empty(0, dtype=np.int64)
/// >>> copies = {"home": np.array([-1, -1]), "by_rows": each, "even": ~each}
/// >>> copies |= {"stays": each[:1], "along": each[:1]}
/// >>> whole = ["whole_accessed", "whole_output", "whole_resident"]
/// >>> copies |= dict.fromkeys(whole, np.zeros(2, dtype=np.uint64))
/// >>> added = {"is_before": each[:0]} | dict.fromkeys(["place", "serves", "replica"], none)
/// >>> added |= dict.fromkeys(["collective", "kind", "flops", "accessed", "output"], none)
/// >>> links = dict.fromkeys(["place", "src", "dst", "tensor", "bytes"], none)
/// >>> names, rows = ["a0", "a1", "b0", "b1"], np.array([4, 4])
/// >>> twice, serves, replica, _ = fast.expand(g._core, names, rows, copies, added, links)
/// >>> twice.column("bytes").tolist(), serves.tolist(), replica.tolist()
/// ([4, 4], [0, 0, 1, 1], [0, 1, 0, 1])
#[pyfunction]
pub fn expand<'py>(
    graph: &Bound<'py, OpGraph>,
    names: &Bound<'py, PyAny>,
    rows: &Bound<'py, PyAny>,
    copies: &Bound<'py, PyDict>,
    added: &Bound<'py, PyDict>,
    links: &Bound<'py, PyDict>,
) -> PyResult<Replicated<'py>> {
    let (py, source) = (graph.py(), Arc::clone(&graph.get().core));
    let (n, m) = (source.n_ops(), source.columns().src.len());
    let rows = convert::sizes("rows", rows)?;
    if rows.is_empty() || rows.contains(&0) {
        return Err(PyValueError::new_err("rows: wants at least one value, each at least 1"));
    }
    let copies = copies_of(copies, rows, n, m)?;
    let added = added_of(added, copies.rows.len(), n)?;
    let links = links_of(links, (n + m) * copies.rows.len(), n * copies.rows.len() + added.place.len(), m)?;
    let made = py.detach(|| expand_core(&source, &copies, &added, &links));
    let made = made.map_err(|error| graph.get().name(error))?;
    Ok((
        OpGraph::made(made.graph, names),
        made.serves.into_pyarray(py),
        made.replica.into_pyarray(py),
        made.added.into_pyarray(py),
    ))
}

/// The columns of copies of `n` ops and `m` edges.
fn copies_of(columns: &Bound<'_, PyDict>, rows: Vec<u64>, n: usize, m: usize) -> PyResult<Copies> {
    let given = GivenColumns::new("copies", Some(columns), COPIES)?;
    let flags = |name: &str, n| sized(name, given.required(name, convert::flags)?, n);
    let bytes = |name: &str| sized(name, given.required(name, convert::sizes)?, n);
    let home = ranged("home", given.required("home", convert::integers)?, n, -2, rows.len())?;
    Ok(Copies {
        rows,
        home: home.into_iter().map(home_of).collect(),
        by_rows: flags("by_rows", n)?,
        even: flags("even", n)?,
        whole_accessed: bytes("whole_accessed")?,
        whole_output: bytes("whole_output")?,
        whole_resident: bytes("whole_resident")?,
        stays: flags("stays", m)?,
        along: flags("along", m)?,
    })
}

/// The columns of ops that are added to `n` ops in `k` replicas.
fn added_of(columns: &Bound<'_, PyDict>, k: usize, n: usize) -> PyResult<Added> {
    let given = GivenColumns::new("added", Some(columns), ADDED)?;
    let numbers = |name: &str| given.required(name, convert::integers);
    let place = numbers("place")?;
    let a = place.len();
    let sizes = |name: &str| sized(name, given.required(name, convert::sizes)?, a);
    let replica = ranged("replica", numbers("replica")?, a, -1, k)?;
    Ok(Added {
        place: unsigned(ranged("place", place, a, 0, n)?),
        is_before: sized("is_before", given.required("is_before", convert::flags)?, a)?,
        serves: unsigned(ranged("serves", numbers("serves")?, a, 0, n)?),
        replica: replica.into_iter().map(|r| r as i32).collect(),
        collective: ranged("collective", numbers("collective")?, a, -1, a)?,
        kind: sized("kind", given.required("kind", kinds)?, a)?,
        flops: sizes("flops")?,
        accessed: sizes("accessed")?,
        output: sizes("output")?,
    })
}

/// The columns of links, with ends below `ends` and tensor ids below `ids`, past `m` edges.
fn links_of(columns: &Bound<'_, PyDict>, ids: usize, ends: usize, m: usize) -> PyResult<Links> {
    let given = GivenColumns::new("links", Some(columns), LINKS)?;
    let numbers = |name: &str| given.required(name, convert::integers);
    let place = numbers("place")?;
    let l = place.len();
    let end = |name: &str| -> PyResult<Vec<u64>> {
        let found = ranged(name, numbers(name)?, l, 0, ends)?;
        Ok(found.into_iter().map(|end| end as u64).collect())
    };
    Ok(Links {
        place: unsigned(ranged("place", place, l, 0, m + 1)?),
        src: end("src")?,
        dst: end("dst")?,
        tensor: ranged("tensor", numbers("tensor")?, l, -1, ids + l)?,
        bytes: sized("bytes", given.required("bytes", convert::sizes)?, l)?,
    })
}

fn home_of(code: i64) -> Home {
    match code {
        -2 => Home::Common,
        -1 => Home::Each,
        replica => Home::Only(replica as u32),
    }
}

/// Puts a block of ops in the place of an op.
///
/// O(V + E), in copies of whole columns.
///
/// Parameters
/// ----------
/// graph : OpGraph
/// names
///     ``names[i]`` is what messages call the op ``i`` of the new graph. Asked for by messages alone.
/// at : int
///     The op. The block's ops take its place in the order of ops.
/// columns
///     Per op of the block: ``flops``, ``accessed``, ``output_bytes``, ``workspace``. ``dropped``: the
///     edges that enter the op. ``leaving``, ``leaving_src``: edges that leave it, and the op of the
///     new graph that each leaves now. ``src``, ``dst``, ``tensor``, ``bytes``: new edges, in ops of
///     the new graph. ``shows``, ``shown``: ops whose storage the op owned, and the op of the new graph
///     that owns it now.
///
/// Examples
/// --------
/// >>> import numpy as np, loadmaster as lm
/// >>> from loadmaster import fast
/// >>> g = lm.OpGraph({"name": ["a", "b"]}, {"src": [0], "dst": [1], "bytes": [8]})
/// >>> one, two, none = np.array([0]), np.array([1, 1]), np.empty(0, dtype=np.int64)
/// >>> block = dict.fromkeys(["flops", "accessed", "output_bytes", "workspace"], two)
/// >>> block |= {"src": one, "dst": one + 1, "tensor": one - 1, "bytes": one}
/// >>> block |= {"leaving": one, "leaving_src": one + 1}
/// >>> block |= dict.fromkeys(["dropped", "shows", "shown"], none)
/// >>> made = fast.replace_op(g._core, ["a0", "a1", "b"], 0, **block)
/// >>> made.n_ops, made.column("src").tolist(), made.column("dst").tolist()
/// (3, [1, 0], [2, 1])
#[pyfunction]
#[pyo3(signature = (graph, names, at, **columns))]
pub fn replace_op(
    graph: &Bound<'_, OpGraph>,
    names: &Bound<'_, PyAny>,
    at: usize,
    columns: Option<&Bound<'_, PyDict>>,
) -> PyResult<OpGraph> {
    let source = Arc::clone(&graph.get().core);
    let block = block_of(columns, at, &source)?;
    let made = graph.py().detach(|| block::replace(&source, &block));
    Ok(OpGraph::made(made.map_err(|error| graph.get().name(error))?, names))
}

fn block_of(columns: Option<&Bound<'_, PyDict>>, at: usize, source: &CoreOpGraph) -> PyResult<Block> {
    let given = GivenColumns::new("replace_op", columns, BLOCK)?;
    let numbers = |name: &str| given.required(name, convert::integers);
    let flops = given.required("flops", convert::sizes)?;
    let (n, m, b) = (source.n_ops(), source.columns().src.len(), flops.len());
    if at >= n || b == 0 {
        return Err(PyValueError::new_err(format!("at: op {at} of {n} is replaced by {b} ops")));
    }
    let sizes = |name: &str| sized(name, given.required(name, convert::sizes)?, b);
    let all = |name: &str, end: usize| -> PyResult<Vec<u32>> {
        let found = numbers(name)?;
        let length = found.len();
        Ok(unsigned(ranged(name, found, length, 0, end)?))
    };
    let (leaving, shows, bytes) =
        (all("leaving", m)?, all("shows", n)?, given.required("bytes", convert::sizes)?);
    let edges = |name: &str, low, end| ranged(name, numbers(name)?, bytes.len(), low, end);
    let (src, dst) = (edges("src", 0, n + b - 1)?, edges("dst", 0, n + b - 1)?);
    let tensor = edges("tensor", -1, n + m + bytes.len())?;
    Ok(Block {
        at,
        accessed: sizes("accessed")?,
        output_bytes: sizes("output_bytes")?,
        workspace: sizes("workspace")?,
        flops,
        dropped: all("dropped", m)?,
        leaving_src: sized("leaving_src", all("leaving_src", n + b - 1)?, leaving.len())?,
        leaving,
        src,
        dst,
        tensor,
        bytes,
        shown: sized("shown", all("shown", n + b - 1)?, shows.len())?,
        shows,
    })
}
