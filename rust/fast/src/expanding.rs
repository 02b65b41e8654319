//! Roles of ops, copies on several devices, and a block of ops in the place of one.

use std::sync::Arc;

use loadmaster_core::Error;
use loadmaster_core::expand::block::{self, Block};
use loadmaster_core::expand::control;
use loadmaster_core::expand::copies::{Added, Copies, Home, Links, Terms, expand as expand_core};
use loadmaster_core::expand::ways::Way;
use loadmaster_core::graph::MAX_ITEMS;
use loadmaster_core::opgraph::OpGraph as CoreOpGraph;
use loadmaster_core::roles::{Facts, roles as core_roles, summed};
use numpy::{IntoPyArray, PyArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::convert;
use crate::errors::Raised;
use crate::graph::{GivenColumns, Ids, OpGraph, kinds};

/// Columns of [`expand`]: ways, homes, per op of the source, terms and per edge; per added op; per link.
const COPIES: &[&str] = &[
    "way_size",
    "way_start",
    "way_end",
    "homes",
    "home",
    "work",
    "resident",
    "accessed_first",
    "accessed_way",
    "accessed_bytes",
    "output_first",
    "output_way",
    "output_bytes",
    "stays",
    "edge",
    "together",
];
const ADDED: &[&str] = &[
    "place",
    "is_before",
    "serves",
    "device",
    "collective",
    "kind",
    "runs",
    "flops",
    "accessed",
    "output",
    "alias",
];
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

/// A column of so many values, from -1 to below `end`; empty where it is absent.
fn optional(given: &GivenColumns<'_, '_>, name: &str, n: usize, end: usize) -> PyResult<Vec<i64>> {
    let column = given.optional(name, convert::integers)?;
    let n = if column.is_empty() { 0 } else { n };
    ranged(name, column, n, -1, end)
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

/// A graph of copies; per op of it, int32: the op of the source that it is a copy of or serves, its
/// device (-1: none), and which of the added ops it is (-1: a copy).
type Placed<'py> = (OpGraph, Ids<'py>, Ids<'py>, Ids<'py>);

/// Copies the ops of a model to devices, with ops added between them.
///
/// O(k (V + E)) for k devices. Ops keep their order; the copies of an op are neighbours.
///
/// Parameters
/// ----------
/// graph : OpGraph
/// names
///     ``names[i]`` is what messages call the op ``i`` of the new graph. Asked for by messages alone.
/// k : int
///     Number of devices.
/// copies : mapping of columns
///     Ways to share an amount: ``way_size`` [w], ``way_start``, ``way_end`` [w * k]: device d has of
///     way i what lies between ``way_start[i * k + d]`` and ``way_end[i * k + d]`` of ``way_size[i]``;
///     an end past that is more than all of it.
///     ``homes`` [h * k]: per home and device, the device whose copies its ops read; one that reads its
///     own has copies. Per op: ``home`` (-1: there is one copy, on no device), ``together`` (the one
///     colocation set of its copies; -1: each device has its own of the sets of ``graph``), ``work`` and
///     ``resident`` (the ways of its FLOPs and workspace, and of what it keeps). What its copies access
///     and output are sums of terms: ``accessed_first`` [n_ops + 1], ``accessed_way`` and
///     ``accessed_bytes`` per term, and the same of ``output``. Per edge: ``stays`` (bool: is copied),
///     ``edge`` (the way of its bytes).
/// added : mapping of columns
///     Per added op: ``place`` (the op that it stands next to), ``is_before`` (bool), ``serves``,
///     ``device`` (-1: none), ``collective`` (-1: none), ``kind``, ``runs`` (optional), ``flops``, ``accessed``, ``output``.
///     Optional: ``alias`` (the op that it changes in place, an end as those of links; -1: none).
/// links : mapping of columns
///     Per edge that is no copy: ``place`` (the edge that it stands for, ascending; the number of
///     edges: none), ``src``, ``dst`` (``op * k + device``, or ``n_ops * k + i`` for the added op
///     ``i``), ``tensor`` (on device d the source's id plus d times one more than the largest; free
///     past k times that), ``bytes``.
///
/// Returns
/// -------
/// OpGraph, int32 [n], int32 [n], int32 [n]
///     Per op: the op of ``graph`` that it is a copy of or serves; its device, -1: none; which of the
///     added ops it is, -1: none.
///
/// Examples
/// --------
/// >>> import numpy as np, loadmaster as lm
/// >>> from loadmaster import fast
/// >>> g = lm.OpGraph({"name": ["a", "b"]}, {"src": [0], "dst": [1], "bytes": [8]})
/// >>> zeros, none, stays = np.zeros(2, dtype=np.int64), np.empty(0, dtype=np.int64), np.array([True])
/// >>> copies = {"way_size": zeros[:1] + 2, "way_start": np.array([0, 1]), "way_end": np.array([1, 2])}
/// >>> copies |= {"homes": np.array([0, 1]), "home": zeros, "together": zeros - 1}
/// >>> copies |= {"work": zeros, "resident": zeros}
/// >>> for amount in ("accessed", "output"):
/// ...     copies |= {f"{amount}_first": np.zeros(3, dtype=np.int64)}
/// ...     copies |= {f"{amount}_way": none, f"{amount}_bytes": none}
/// >>> copies |= {"stays": stays, "edge": zeros[:1]}
/// >>> added = {"is_before": stays[:0]} | dict.fromkeys(["place", "serves", "device"], none)
/// >>> added |= dict.fromkeys(["collective", "kind", "runs", "flops", "accessed", "output"], none)
/// >>> links = dict.fromkeys(["place", "src", "dst", "tensor", "bytes"], none)
/// >>> twice, serves, device, _ = fast.expand(g._core, ["a0", "a1", "b0", "b1"], 2, copies, added, links)
/// >>> twice.column("bytes").tolist(), serves.tolist(), device.tolist()
/// ([4, 4], [0, 0, 1, 1], [0, 1, 0, 1])
#[pyfunction]
pub fn expand<'py>(
    graph: &Bound<'py, OpGraph>,
    names: &Bound<'py, PyAny>,
    k: usize,
    copies: &Bound<'py, PyDict>,
    added: &Bound<'py, PyDict>,
    links: &Bound<'py, PyDict>,
) -> PyResult<Placed<'py>> {
    let (py, source) = (graph.py(), Arc::clone(&graph.get().core));
    let (n, m) = (source.n_ops(), source.columns().src.len());
    if k == 0 {
        return Err(PyValueError::new_err("k: wants at least one device"));
    }
    if k > MAX_ITEMS {
        return Err(Raised::from(Error::TooMany { what: "devices", count: k, limit: MAX_ITEMS }).into());
    }
    let copies = copies_of(copies, k, n, m)?;
    let added = added_of(added, k, n)?;
    let links = links_of(links, (n + m) * k, n * k + added.place.len(), m)?;
    let made = py.detach(|| expand_core(&source, &copies, &added, &links));
    let made = made.map_err(|error| graph.get().name(error))?;
    Ok((
        OpGraph::made(made.graph, names),
        made.serves.into_pyarray(py),
        made.device.into_pyarray(py),
        made.added.into_pyarray(py),
    ))
}

/// The columns of copies of `n` ops and `m` edges on `k` devices.
fn copies_of(columns: &Bound<'_, PyDict>, k: usize, n: usize, m: usize) -> PyResult<Copies> {
    let given = GivenColumns::new("copies", Some(columns), COPIES)?;
    let numbers = |name: &str| given.required(name, convert::integers);
    let ways = ways_of(&given, k)?;
    let way = |name: &str, n| Ok::<_, PyErr>(unsigned(ranged(name, numbers(name)?, n, 0, ways.len())?));
    let mut homes = homes_of(numbers("homes")?, k)?;
    let common = homes.len();
    homes.push(Home::common(k));
    let home = ranged("home", numbers("home")?, n, -1, common)?;
    Ok(Copies {
        k,
        home: home.into_iter().map(|code| u32::try_from(code).unwrap_or(common as u32)).collect(),
        homes,
        work: way("work", n)?,
        resident: way("resident", n)?,
        accessed: terms_of(&given, "accessed", n, ways.len())?,
        output: terms_of(&given, "output", n, ways.len())?,
        stays: sized("stays", given.required("stays", convert::flags)?, m)?,
        edge: way("edge", m)?,
        together: ranged("together", numbers("together")?, n, -1, MAX_ITEMS)?,
        ways,
    })
}

/// Ways to share something among `k` devices.
fn ways_of(given: &GivenColumns<'_, '_>, k: usize) -> PyResult<Vec<Way>> {
    let size = given.required("way_size", convert::sizes)?;
    let bound = |name: &str| sized(name, given.required(name, convert::sizes)?, size.len() * k);
    let (start, end) = (bound("way_start")?, bound("way_end")?);
    let parts = start.chunks(k).zip(end.chunks(k));
    let way = |(&size, (start, end)): (&u64, (&[u64], &[u64]))| {
        if size == 0 || start.iter().zip(end).any(|(start, end)| start > end) {
            return Err(PyValueError::new_err("way_start, way_end: want bounds that ascend"));
        }
        Ok(Way::new(size, start.to_vec(), end.to_vec()))
    };
    size.iter().zip(parts).map(way).collect()
}

/// Where the copies are that the ops of `k` devices read.
fn homes_of(at: Vec<i64>, k: usize) -> PyResult<Vec<Home>> {
    let n = at.len();
    if !n.is_multiple_of(k) {
        return Err(PyValueError::new_err(format!("homes: {n} values are no rows of {k}")));
    }
    let at = unsigned(ranged("homes", at, n, 0, k)?);
    let home = |row: &[u32]| {
        let has = row.iter().all(|&d| row[d as usize] == d);
        let reason = "homes: a device reads the copies of one that has none";
        if has { Ok(Home::new(row.to_vec())) } else { Err(PyValueError::new_err(reason)) }
    };
    at.chunks(k).map(home).collect()
}

/// The terms of `n` ops that are shared in `ways` ways.
fn terms_of(given: &GivenColumns<'_, '_>, name: &str, n: usize, ways: usize) -> PyResult<Terms> {
    let named = |column: &str| format!("{name}_{column}");
    let numbers = |name: &str| given.required(name, convert::integers);
    let way = numbers(&named("way"))?;
    let count = way.len();
    let first = ranged(&named("first"), numbers(&named("first"))?, n + 1, 0, count + 1)?;
    if first[0] != 0 || first[n] != count as i64 || first.windows(2).any(|pair| pair[0] > pair[1]) {
        let reason = format!("{name}_first: wants to ascend from 0 to the number of terms, {count}");
        return Err(PyValueError::new_err(reason));
    }
    Ok(Terms {
        first: unsigned(first),
        way: unsigned(ranged(&named("way"), way, count, 0, ways)?),
        bytes: sized(&named("bytes"), given.required(&named("bytes"), convert::sizes)?, count)?,
    })
}

/// The columns of ops that are added to `n` ops on `k` devices.
fn added_of(columns: &Bound<'_, PyDict>, k: usize, n: usize) -> PyResult<Added> {
    let given = GivenColumns::new("added", Some(columns), ADDED)?;
    let numbers = |name: &str| given.required(name, convert::integers);
    let place = numbers("place")?;
    let a = place.len();
    let sizes = |name: &str| sized(name, given.required(name, convert::sizes)?, a);
    let device = ranged("device", numbers("device")?, a, -1, k)?;
    let runs = given.optional("runs", convert::sizes)?;
    Ok(Added {
        place: unsigned(ranged("place", place, a, 0, n)?),
        is_before: sized("is_before", given.required("is_before", convert::flags)?, a)?,
        serves: unsigned(ranged("serves", numbers("serves")?, a, 0, n)?),
        device: device.into_iter().map(|d| d as i32).collect(),
        collective: ranged("collective", numbers("collective")?, a, -1, a)?,
        kind: sized("kind", given.required("kind", kinds)?, a)?,
        runs: if runs.is_empty() { runs } else { sized("runs", runs, a)? },
        flops: sizes("flops")?,
        accessed: sizes("accessed")?,
        output: sizes("output")?,
        alias: optional(&given, "alias", a, n * k + a)?,
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

/// Makes ops wait for others: the graph with a control edge from each of ``src`` to the op of ``dst`` at
/// the same place. O(V + E).
///
/// Examples
/// --------
/// >>> import numpy as np, loadmaster as lm
/// >>> from loadmaster import fast
/// >>> g = lm.OpGraph({"name": ["a", "b"]}, {"src": [], "dst": []})
/// >>> fast.with_control(g._core, np.array([1]), np.array([0])).column("tensor").tolist()
/// [-1]
#[pyfunction]
pub fn with_control(
    graph: &Bound<'_, OpGraph>,
    src: &Bound<'_, PyAny>,
    dst: &Bound<'_, PyAny>,
) -> PyResult<OpGraph> {
    let source = Arc::clone(&graph.get().core);
    let (src, dst) = (convert::integers("src", src)?, convert::integers("dst", dst)?);
    let (n, m) = (source.n_ops(), src.len());
    let (src, dst) = (ranged("src", src, m, 0, n)?, ranged("dst", dst, m, 0, n)?);
    let made = graph.py().detach(|| control::with_control(&source, &src, &dst));
    Ok(graph.get().rejoined(made.map_err(|error| graph.get().name(error))?))
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
