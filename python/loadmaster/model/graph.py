"""OpGraph: a model's dataflow graph as its user knows it, one column per fact.

Validated once, in Rust, and immutable afterwards. Strategies run on :attr:`OpGraph.reduced`.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.base import checks
from loadmaster.base.errors import InputError, importing, malformed, refusing
from loadmaster.base.files import check_format, naming, write_json
from loadmaster.base.text import shown
from loadmaster.base.units import counted
from loadmaster.model import arguments
from loadmaster.model.module_paths import check_levels, module_path
from loadmaster.model.orders import ORDERS

if TYPE_CHECKING:
    import networkx as nx

    from loadmaster.model.roles import Roles

FORMAT = "opgraph"
VERSION = 1

#: Kinds that cost nothing: they stand for tensors that are there when the step begins. A graph's
#: ``stands_for`` is an index into them.
PLACEHOLDERS = ("parameter", "buffer", "input", "constant")
PARAMETER, BUFFER, INPUT, CONSTANT = range(len(PLACEHOLDERS))

#: Key of ``time`` for a figure that holds on every device type.
ANY_TYPE = "*"

#: Key of ``meta``: by provenance, the names of ops whose ``time`` was not measured.
TIME_SOURCES = "time_sources"

#: Key of ``meta``: ops that work and whose sizes are not known, as ``ops`` of so many (``of``), and
#: the ``way`` to have them known.
UNSIZED = "unsized"

#: Key of ``meta``: "roofline" where ops without measured times keep those of data sheets, so that
#: what is known of a benchmark's plans stays comparable.
ESTIMATED_BY = "estimated_by"

#: Key of ``meta``: True where one kernel does all of a parameter's update (``fused=True``).
FUSED_UPDATES = "fused_updates"

#: Key of ``meta``: how many kernels an op launches, by the names of those that launch several.
LAUNCHES = "launches"

#: Attributes with the columns of texts, by the names that documents have for them.
TEXTS = {
    "name": "names",
    "kind": "kinds",
    "module": "modules",
    "phase": "phases",
    "colocation": "colocation",
    "output": "outputs",
    "device_types": "device_types",
    "collective": "collectives",
}
SIZE_COLUMNS = ("flops", "bytes_accessed", "output_bytes", "param_bytes", "workspace")
_OP_COLUMNS = (*TEXTS, *SIZE_COLUMNS, "runs", "view", "alias_of", "time", "args")
_EDGE_COLUMNS = ("src", "dst", "tensor", "bytes")

#: Attributes with columns of numbers that the core keeps, by the names that it has for them.
_CORE_COLUMNS = {
    **{column: column for column in (*_EDGE_COLUMNS, "view", "alias_of")},
    **{column: column for column in ("placeholder", "is_member")},
    **{column: column for column in ("flops", "output_bytes", "workspace", "runs")},
    "bytes_accessed": "accessed",
    "param_bytes": "resident",
}


@dataclass(frozen=True)
class Reduced:
    """The graph that algorithms run on, without views and placeholders (design section 4).

    Attributes
    ----------
    graph : fast.Graph
        What is placed and simulated.
    map : int32 [n_ops]
        The op of the reduced graph on whose device each op of the model sits.
    op_of : int32 [graph.n_ops]
        The op of the model that each op of the reduced graph is.
    shows : int32 [n_ops]
        The op or placeholder of the model whose data each op shows; itself, if it is no view.
    """

    graph: fast.Graph
    map: NDArray[np.int32]
    op_of: NDArray[np.int32]
    shows: NDArray[np.int32]

    @cached_property
    def held_at_peak(self) -> NDArray[np.uint64]:
        """Bytes that each reduced op holds at the peak of a sequential run in Kahn order."""
        return fast.peak_bytes(self.graph)[1]

    @cached_property
    def _orders(self) -> list[tuple[int, NDArray[np.int32]]]:
        """Orders for one device that were asked for, each with its peak in bytes."""
        return []

    def order_within(self, memory: int) -> NDArray[np.int32]:
        """The first of :data:`~loadmaster.model.orders.ORDERS` in which one device of so many bytes
        holds the graph; else the one that holds least.
        """
        known = self._orders
        for i, make in enumerate(ORDERS):
            if i == len(known):
                order = make(self.graph)
                known.append((fast.peak_bytes(self.graph, order)[0], order))
            # What stays for the whole step is more than that in every order.
            if known[i][0] <= memory or int(self.graph.resident.sum()) > memory:
                return known[i][1]
        return min(known, key=lambda one: one[0])[1]

    @cached_property
    def runs(self) -> NDArray[np.bool_]:
        """Mask of the ops of the model that run: bool [n_ops]."""
        runs = np.zeros(len(self.map), dtype=bool)
        runs[self.op_of] = True
        return runs

    def sum(self, per_op: NDArray[np.float64]) -> NDArray[np.float64]:
        """Sums a float64 column, or each column of a matrix, of the model over the reduced ops."""
        if per_op.ndim == 1:
            sums = np.bincount(self.map, weights=per_op, minlength=self.graph.n_ops)
            return sums.astype(np.float64, copy=False)
        return np.stack([self.sum(column) for column in per_op.T], axis=1)


class Texts:
    """A column of texts, made when one of them is first asked for."""

    def __init__(self, make: Callable[[], list[str]]) -> None:
        self._make = make

    @cached_property
    def all(self) -> list[str]:
        """The text of every op."""
        return self._make()

    def __getitem__(self, op: int) -> str:
        return self.all[op]


class OpGraph:
    """A validated, immutable dataflow graph.

    Parameters
    ----------
    ops : mapping of columns, one value per op
        ``name`` (unique str; the only required one), ``kind``, ``module``, ``phase`` ("f", "b" or
        "o"), ``colocation`` (ops with the same non-empty string share a device), ``output`` (dtype
        and shape, as ``"f32[8,16]"``), ``device_types`` (comma-separated types an op may run on;
        empty: all), ``collective`` (the collective that an op is a member of: its kind, one of
        ``all_reduce``, ``reduce_scatter``, ``all_gather``, ``all_to_all``, ``broadcast``, a slash,
        and any name; empty: none), ``flops``, ``bytes_accessed``, ``output_bytes``,
        ``param_bytes``, ``workspace`` (bytes needed while the op runs), ``runs`` (how often the op
        runs in a step, such as once per trip of a loop; 1 if absent; FLOPs, bytes accessed and
        times are of all runs together, all other bytes of one), ``view`` (0 or 1),
        ``alias_of`` (op index or -1), ``time`` (mapping of device type, or "*" for every type, to
        seconds per op), ``args`` (what the framework called the op with: None, ``[positional]`` or
        ``[positional, keywords]`` in the types of JSON, a tensor being ``{"op": index}``).
    edges : mapping of columns, one value per edge
        ``src``, ``dst`` (op indices), ``tensor`` (id; -1: control edge; absent: one tensor per
        op), ``bytes``.
    name, meta : what the model is called, and anything else worth keeping.

    Raises
    ------
    InputError
        A cycle, a dangling edge, a duplicate name, a bad value or length; the culprit is named.

    Examples
    --------
    >>> import loadmaster as lm
    >>> g = lm.OpGraph({"name": ["a", "b"], "time": {"*": [1e-3, 2e-3]}},
    ...                {"src": [0], "dst": [1], "bytes": [4096]})
    >>> g.n_ops, g.n_edges
    (2, 1)
    """

    def __init__(
        self,
        ops: Mapping[str, Any],
        edges: Mapping[str, Any],
        *,
        name: str = "",
        meta: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = checks.text("the name of a graph", name)
        self.meta: dict[str, Any] = dict(meta or {})
        _refuse_unknown("ops", ops, _OP_COLUMNS)
        _refuse_unknown("edges", edges, _EDGE_COLUMNS)
        if ops.get("name") is None:
            raise InputError("ops.name is missing: every op needs a unique name")
        #: Unique op names.
        self.names: list[str] = _texts("ops.name", ops["name"], None)
        n = len(self.names)

        def texts(column: str) -> list[str]:
            return _texts(f"ops.{column}", ops.get(column), n)

        def sizes(column: str) -> NDArray[np.uint64]:
            return _sizes(f"ops.{column}", ops.get(column), n, self.names)

        self.kinds = texts("kind")
        self.modules = texts("module")
        check_levels(self.modules)
        self.phases = texts("phase")
        self.colocation = texts("colocation")
        self.outputs = texts("output")
        self.device_types = texts("device_types")
        self.collectives = texts("collective")
        self.flops = sizes("flops")
        self.bytes_accessed = sizes("bytes_accessed")
        self.output_bytes = sizes("output_bytes")
        self.param_bytes = sizes("param_bytes")
        self.workspace = sizes("workspace")
        self.runs = _runs(ops.get("runs"), n, self.names)
        self.view = _integers("ops.view", ops.get("view"), n, 0) != 0
        self.alias_of = _integers("ops.alias_of", ops.get("alias_of"), n, -1)
        self.time = _times(ops.get("time"), n, self.names)
        #: Arguments of each op's call (:mod:`~loadmaster.model.arguments`); None: nobody says.
        self.args = arguments.checked(ops.get("args"), self.names)

        for column in ("src", "dst"):
            if edges.get(column) is None:
                raise InputError(f"edges.{column} is missing")
        self.src = _integers("edges.src", edges["src"], None, 0)
        m = len(self.src)
        self.dst = _integers("edges.dst", edges["dst"], m, 0)
        tensor = edges.get("tensor")
        self.tensor = None if tensor is None else _integers("edges.tensor", tensor, m, 0)
        self.bytes = _sizes("edges.bytes", edges.get("bytes"), m, None)
        #: Index into :data:`PLACEHOLDERS` per op, int8 [n_ops]; -1: an op that computes, or a view.
        self.stands_for = _standing(self.kinds)
        #: True where an op is a parameter, buffer, input or constant, bool [n_ops].
        self.placeholder = self.stands_for >= 0
        #: True where an op is a member of a collective, bool [n_ops]. Members do not compute.
        self.is_member = np.fromiter(map(bool, self.collectives), bool, n)
        self._core = self._validated()
        for column in (*vars(self).values(), *self.time.values()):
            _freeze(column)

    @classmethod
    def made(
        cls, core: fast.OpGraph, columns: Mapping[str, Any], *, name: str, meta: Mapping[str, Any]
    ) -> OpGraph:
        """A graph that a transform made in Rust, valid by construction.

        ``columns`` are attributes that Rust does not keep. Texts and what a function makes are
        there when they are first asked for, as are the columns that Rust keeps. Arguments of calls
        are gone: a part of an op was not called with what the op was.
        """
        graph = cls.__new__(cls)
        graph.name, graph.meta, graph._core, graph.args = name, dict(meta), core, None
        later: dict[str, Any] = {}
        for column, inside in _CORE_COLUMNS.items():
            later[column] = partial(core.column, inside)
        vars(graph)["_later"] = later
        for column, value in columns.items():
            if isinstance(value, Texts) or callable(value):
                later[column] = value
            else:
                vars(graph)[column] = _freeze(value)
        return graph

    if not TYPE_CHECKING:

        def __getattr__(self, attribute: str) -> Any:
            make = self.__dict__.get("_later", {}).get(attribute)
            if make is None:
                raise AttributeError(f"an OpGraph has no attribute {attribute!r}", name=attribute)
            column = make.all if isinstance(make, Texts) else _freeze(make())
            self.__dict__[attribute] = column
            return column

    @property
    def resident(self) -> NDArray[np.uint64]:
        """Bytes that each op keeps for the whole step, uint64 [n_ops]."""
        inputs = np.where(self.placeholder, self.output_bytes, np.uint64(0))
        return np.maximum(self.param_bytes, inputs)

    def _validated(self) -> fast.OpGraph:
        return fast.OpGraph(
            self.names, self.src, self.dst, self.tensor, self.bytes, **self.core_columns()
        )

    def core_columns(self) -> dict[str, Any]:
        """The columns of numbers per op that the core is made of, by the names it has for them."""
        return {
            "view": self.view,
            "placeholder": self.placeholder,
            "alias_of": self.alias_of,
            "near": self._near(),
            "colocation": _codes(self.colocation),
            "flops": self.flops,
            "accessed": self.bytes_accessed,
            "output_bytes": self.output_bytes,
            "resident": self.param_bytes,
            "workspace": self.workspace,
            **({"runs": self.runs} if (self.runs > 1).any() else {}),
            **(_members(self.collectives, self.names) if self.is_member.any() else {}),
        }

    def _near(self) -> NDArray[np.int64]:
        """Per placeholder, the first op that runs of its module, or else of the closest module
        around it; -1 if there is none, and for ops.
        """
        runs = ~(self.placeholder | self.view)
        first: dict[str, int] = {}
        for op in np.flatnonzero(runs).tolist():
            first.setdefault(self.modules[op], op)
        within: dict[tuple[str, ...], int] = {}
        for module, op in first.items():
            path = module_path(module)
            for depth in range(1, len(path) + 1):
                within.setdefault(path[:depth], op)
        near = np.full(len(self.names), -1, dtype=np.int64)
        for op in np.flatnonzero(self.placeholder).tolist():
            path = module_path(self.modules[op])
            around = (path[:depth] for depth in range(len(path), 0, -1))
            near[op] = next((within[some] for some in around if some in within), -1)
        return near

    # -- size and lookup ---------------------------------------------------------------------

    @property
    def n_ops(self) -> int:
        """Number of ops, views and placeholders included."""
        return self._core.n_ops

    @property
    def n_edges(self) -> int:
        """Number of edges as given."""
        return self._core.n_edges

    def __repr__(self) -> str:
        label = f"{self.name!r}, " if self.name else ""
        return f"OpGraph({label}{counted(self.n_ops, 'op')}, {counted(self.n_edges, 'edge')})"

    @cached_property
    def _index(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.names)}

    def index(self, op: str | int) -> int:
        """Index of an op given by name or index.

        Raises
        ------
        InputError
            No op has that name; names that look like it are suggested.
        """
        if not isinstance(op, str):
            if 0 <= op < self.n_ops:
                return int(op)
            raise InputError(f"op {op}: the graph has ops 0 to {self.n_ops - 1}")
        number = self._index.get(op)
        if number is None:
            import difflib

            near = difflib.get_close_matches(op, self.names, n=3, cutoff=0.5)
            hint = f"; did you mean {', '.join(map(repr, near))}?" if near else ""
            raise InputError(f"no op is named {op!r}{hint}")
        return number

    @cached_property
    def digest(self) -> str:
        """SHA-256 of everything in the graph but its name and meta."""
        document = self.to_document()
        return _sha256([document["ops"], document["edges"]])

    def is_same(self, other: OpGraph) -> bool:
        """True if both are one graph; if one of them has no :attr:`args`, these do not count.

        >>> import loadmaster as lm
        >>> graph = lm.OpGraph({"name": ["a", "b"]}, {"src": [0], "dst": [1]})
        >>> graph.is_same(graph.with_columns({"args": [None, [[{"op": 0}]]]}))
        True
        """
        one, two = self, other
        if (self.args is None) != (other.args is None):
            one, two = (graph.with_columns({"args": None}) for graph in (self, other))
        return one.digest == two.digest

    # -- what algorithms run on --------------------------------------------------------------

    @cached_property
    def reduced(self) -> Reduced:
        """The reduced graph when every device type is allowed everywhere."""
        return Reduced(*self._core.reduce())

    @cached_property
    def launches(self) -> NDArray[np.int64]:
        """Kernels that each op launches: as ``meta`` counts them, else one a run. int64 [n_ops].
        An op that is part of another's kernel launches none.

        >>> import loadmaster as lm
        >>> ops = {"name": ["loop", "relu"]}
        >>> lm.OpGraph(ops, {"src": [], "dst": []}, meta={LAUNCHES: {"loop": 20}}).launches.tolist()
        [20, 1]
        """
        counted, runs = self.meta.get(LAUNCHES), self.runs.astype(np.int64)
        if not isinstance(counted, Mapping):
            return runs
        kernels = zip(map(counted.get, self.names), runs.tolist(), strict=True)
        known = (n if checks.is_integer(n) and 0 <= n < 2**63 else once for n, once in kernels)
        return np.fromiter(known, np.int64, self.n_ops)

    @cached_property
    def updates(self) -> NDArray[np.bool_]:
        """Mask of the optimizer's ops, by their phase."""
        return np.fromiter(map("o".__eq__, self.phases), bool, self.n_ops)

    @cached_property
    def roles(self) -> Roles:
        """The ops that data parallelism replicates, and the tensors that are weight gradients."""
        from loadmaster.model.roles import Roles

        return Roles.of(self)

    @property
    def texts(self) -> dict[str, list[str]]:
        """The columns of texts, by the names that documents have for them."""
        return {column: getattr(self, attribute) for column, attribute in TEXTS.items()}

    def column_of_texts(self, column: str) -> Texts:
        """A column of texts by the name that documents have for it; it need not be made yet."""
        attribute = TEXTS[column]
        later = vars(self).get("_later", {}).get(attribute)
        if isinstance(later, Texts):
            return later
        values = getattr(self, attribute)
        return Texts(lambda: values)

    @cached_property
    def has_marked_names(self) -> bool:
        """True if a name that the user gave has an ``@``, which marks what transforms make."""
        return "@" in "".join(self.names)

    @cached_property
    def is_restricted(self) -> bool:
        """True if some op names the device types it may run on."""
        return any(self.device_types)

    def reduced_for(self, types: Sequence[str]) -> Reduced:
        """The reduced graph with ``device_types`` as masks over a cluster's types.

        Raises
        ------
        InfeasibleError
            An op that allows none of the types (raised where it is placed).
        """
        if not self.is_restricted:
            return self.reduced
        masks: dict[str, int] = {"": 2**64 - 1}
        for allowed in set(self.device_types) - {""}:
            wanted = {word.strip() for word in allowed.split(",")}
            masks[allowed] = sum(1 << k for k, name in enumerate(types) if name in wanted)
        column = np.array([masks[allowed] for allowed in self.device_types], dtype=np.uint64)
        return Reduced(*self._core.reduce(column))

    # -- opgraph JSON ------------------------------------------------------------------------

    @classmethod
    def from_document(cls, document: Any, source: str = "document") -> OpGraph:
        """From a parsed opgraph v1 document.

        Raises
        ------
        InputError
            Another format or version, missing or bad columns; ``source`` is named.
        """
        check_format(document, FORMAT, VERSION, "an opgraph document", source)
        for part in ("ops", "edges"):
            if not isinstance(document.get(part), Mapping):
                raise InputError(f"{source} has no object {part!r}")
        if not isinstance(document.get("meta") or {}, Mapping):
            raise InputError(f"{source}: meta is no object")
        with refusing(f"{source}: meta has a value that JSON cannot hold", ValueError):
            json.dumps(document.get("meta"), allow_nan=False)
        with naming(source):
            return cls(
                document["ops"],
                document["edges"],
                name=str(document.get("name", "")),
                meta=document.get("meta") or {},
            )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the graph as opgraph JSON, gzipped if the path ends in ``.gz``; ``lm.read`` reads
        it.
        """
        write_json(path, self.to_document())

    def to_document(self) -> dict[str, Any]:
        """As an opgraph v1 document; columns that say nothing are left out.

        Columns are copies; the entries of ``args`` are the graph's own, and not to be changed.
        """
        ops: dict[str, Any] = {"name": list(self.names)}
        ops |= {column: list(values) for column, values in self.texts.items() if any(values)}
        for column in SIZE_COLUMNS:
            values = getattr(self, column)
            if values.any():
                ops[column] = values.tolist()
        if (self.runs > 1).any():
            ops["runs"] = self.runs.tolist()
        if self.view.any():
            ops["view"] = self.view.astype(int).tolist()
        if (self.alias_of >= 0).any():
            ops["alias_of"] = self.alias_of.tolist()
        if self.time:
            ops["time"] = {name: seconds.tolist() for name, seconds in self.time.items()}
        if self.args is not None:
            ops["args"] = list(self.args)
        edges: dict[str, Any] = {"src": self.src.tolist(), "dst": self.dst.tolist()}
        if self.tensor is not None:
            edges["tensor"] = self.tensor.tolist()
        if self.bytes.any():
            edges["bytes"] = self.bytes.tolist()
        return {
            "format": FORMAT,
            "version": VERSION,
            "name": self.name,
            "meta": dict(self.meta),
            "ops": ops,
            "edges": edges,
        }

    def with_columns(
        self,
        ops: Mapping[str, Any],
        edges: Mapping[str, Any] | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> OpGraph:
        """The graph with some columns replaced, and with more of ``meta``.

        >>> import loadmaster as lm
        >>> g = lm.OpGraph({"name": ["a", "b"]}, {"src": [0], "dst": [1]})
        >>> g.with_columns({"device_types": ["gpu", ""]}).device_types
        ['gpu', '']
        """
        edges = edges or {}
        merged = {k: v for k, v in self.meta.items() if k != TIME_SOURCES or "time" not in ops}
        merged |= meta or {}
        is_known = self.tensor is not None and all(column is not None for column in edges.values())
        if is_known and set(ops) <= set(SIZE_COLUMNS):
            return self.of_same_ops(self._core.changed(**self._checked(ops, edges)), merged)
        own_ops = {
            **self.texts,
            **{
                column: getattr(self, column)
                for column in (*SIZE_COLUMNS, "runs", "view", "alias_of")
            },
            "time": self.time,
            "args": self.args,
        }
        own = {"src": self.src, "dst": self.dst, "tensor": self.tensor, "bytes": self.bytes}
        return OpGraph({**own_ops, **ops}, {**own, **edges}, name=self.name, meta=merged)

    def _checked(self, ops: Mapping[str, Any], edges: Mapping[str, Any]) -> fast._Changed:
        """Columns of sizes and of edges, by the names that the core has for them."""
        _refuse_unknown("edges", edges, _EDGE_COLUMNS)
        names = self.column_of_texts("name")
        checked: dict[str, NDArray[Any]] = {
            _CORE_COLUMNS[column]: _sizes(f"ops.{column}", values, self.n_ops, names)
            for column, values in ops.items()
        }
        m = None if "src" in edges else self.n_edges
        for column in (column for column in ("src", "dst", "tensor") if column in edges):
            checked[column] = _integers(f"edges.{column}", edges[column], m, 0)
            m = len(checked[column])
        if "bytes" in edges:
            checked["bytes"] = _sizes("edges.bytes", edges["bytes"], m or 0, None)
        return cast("fast._Changed", checked)

    def of_same_ops(self, core: fast.OpGraph, meta: Mapping[str, Any]) -> OpGraph:
        """The graph with the numbers and edges of a core that was made of its own."""
        kept = ("args", "stands_for", "updates", "is_restricted", "has_marked_names", "time")
        columns = {name: getattr(self, name) for name in kept} | {
            attribute: self.column_of_texts(column) for column, attribute in TEXTS.items()
        }
        return OpGraph.made(core, columns, name=self.name, meta=meta)

    # -- networkx ----------------------------------------------------------------------------

    @classmethod
    def from_networkx(
        cls,
        graph: nx.DiGraph[Any] | nx.MultiDiGraph[Any],
        *,
        time: str = "time",
        bytes: str = "bytes",
        tensor: str = "tensor",
        **columns: str,
    ) -> OpGraph:
        """From a networkx graph whose attributes carry the columns' names, or the names given.

        A node's ``time`` is seconds (on every device type) or a mapping of device type to seconds.
        Edges without ``tensor`` carry their source's one output if they agree on ``bytes``, and
        tensors of their own if not. ``alias_of`` is a node, and so is ``op`` of a tensor in
        ``args``; where the node of a tensor is gone, nobody knows any more what the op was called
        with. Nodes are named ``str(node)``.

        Raises
        ------
        InputError
            An undirected graph, or anything :class:`OpGraph` refuses.

        Examples
        --------
        >>> import networkx as nx, loadmaster as lm
        >>> g = nx.DiGraph()
        >>> g.add_node("a", cost=1e-3); g.add_node("b", cost=2e-3)
        >>> g.add_edge("a", "b", bytes=4096)
        >>> lm.OpGraph.from_networkx(g, time="cost").time["*"].tolist()
        [0.001, 0.002]
        """
        if not graph.is_directed():
            raise InputError("the networkx graph is undirected: dataflow needs a DiGraph")
        attribute = {c: c for c in _OP_COLUMNS} | columns
        _refuse_unknown("from_networkx", columns, _OP_COLUMNS)
        nodes = list(graph.nodes)
        position = {node: i for i, node in enumerate(nodes)}
        data = [graph.nodes[node] for node in nodes]
        ops: dict[str, Any] = {"name": [str(node) for node in nodes]}
        for column in (*list(TEXTS)[1:], *SIZE_COLUMNS, "runs", "view"):
            key = attribute[column]
            if any(key in d for d in data):
                empty: Any = "" if column in TEXTS else int(column == "runs")
                ops[column] = [d.get(key, empty) for d in data]
        if any(attribute["alias_of"] in d for d in data):
            ops["alias_of"] = _node_aliases(nodes, data, attribute["alias_of"], position)
        if any(attribute["args"] in d for d in data):
            ops["args"] = _node_args(nodes, data, attribute["args"], position)
        ops["time"] = _node_times(nodes, data, time)
        if not ops["time"]:
            del ops["time"]
        return cls(ops, _networkx_edges(graph, position, bytes, tensor), name=str(graph.name or ""))

    def to_networkx(self) -> nx.MultiDiGraph[Any]:
        """As a ``networkx.MultiDiGraph``: nodes are op names, edges carry ``tensor`` and ``bytes``.

        Raises
        ------
        MissingExtraError
            networkx is not installed.
        """
        with importing("networkx", "networkx", "to_networkx"):
            import networkx as nx
        graph: nx.MultiDiGraph[Any] = nx.MultiDiGraph(name=self.name)
        columns = self.to_document()["ops"]
        times = columns.pop("time", {})
        names = columns.pop("name")
        for i, name in enumerate(names):
            attributes = {column: values[i] for column, values in columns.items()}
            if "alias_of" in attributes:
                alias = attributes.pop("alias_of")
                if alias >= 0:
                    attributes["alias_of"] = names[alias]
            if (call := attributes.pop("args", None)) is not None:
                attributes["args"] = arguments.renumbered(call, names.__getitem__)
            if times:
                attributes["time"] = {kind: seconds[i] for kind, seconds in times.items()}
            graph.add_node(name, **attributes)
        tensors = self.src if self.tensor is None else self.tensor
        for s, d, t, b in zip(
            self.src.tolist(), self.dst.tolist(), tensors.tolist(), self.bytes.tolist(), strict=True
        ):
            graph.add_edge(names[s], names[d], tensor=t, bytes=b)
        return graph


def _sha256(document: Any) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


# -- columns ---------------------------------------------------------------------------------


def _refuse_unknown(table: str, names: Iterable[str], known: Sequence[str]) -> None:
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise InputError(f"{table}: unknown column {unknown[0]!r}; known are {', '.join(known)}")


def _check_length(column: str, got: int, want: int | None) -> None:
    if want is not None and got != want:
        raise InputError(f"{column} has {counted(got, 'value')} where {want} are wanted")


def _texts(column: str, values: Any, n: int | None) -> list[str]:
    if values is None:
        return [""] * (n or 0)
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise InputError(f"{column} is {values!r}: wants a list of strings")
    result = list(values)
    _check_length(column, len(result), n)
    try:
        "".join(result).encode()
    except TypeError:
        at = next(i for i, value in enumerate(result) if not isinstance(value, str))
        raise InputError(f"{column}[{at}] is {result[at]!r}: it must be a string") from None
    except UnicodeEncodeError as error:
        raise InputError(f"{column} has text that is no Unicode: {error}") from error
    return result


def _numbers(column: str, values: Any, n: int | None) -> NDArray[Any]:
    """One-dimensional numbers; mixed or missing values are told by position."""
    try:
        array = np.asarray(values)
    except (ValueError, TypeError, OverflowError):
        array = np.empty((0, 0))
    if array.size == 0 and array.ndim == 1:
        array = array.astype(np.int64)
    if array.ndim != 1 or array.dtype.kind not in "biuf":
        culprit = _first_bad(values)
        raise InputError(f"{column}{culprit}: wants a list of numbers")
    _check_length(column, len(array), n)
    return array


def _first_bad(values: Any) -> str:
    if not isinstance(values, Sequence):
        return f" is {type(values).__name__}"
    for i, value in enumerate(values):
        if isinstance(value, (int, float)) and not -(2**63) <= value < 2**64:
            return f"[{i}] is {shown(value)}: out of range"
        if not isinstance(value, (int, float, np.number)):
            return f"[{i}] is {shown(value)}"
    return ""


def _integers(column: str, values: Any, n: int | None, default: int) -> NDArray[np.int64]:
    if values is None:
        return np.full(n or 0, default, dtype=np.int64)
    array = _numbers(column, values, n)
    if array.dtype.kind == "f":
        bad = np.flatnonzero(array != np.floor(array))
        at = int(bad[0]) if len(bad) else 0
        raise InputError(f"{column}[{at}] is {array[at]}: it must be an integer")
    if array.dtype == np.uint64 and len(array) and array.max() >= 2**63:
        at = int(array.argmax())
        raise InputError(f"{column}[{at}] is {array[at]}: out of range")
    return array.astype(np.int64)


def _sizes(
    column: str, values: Any, n: int, names: Sequence[str] | Texts | None
) -> NDArray[np.uint64]:
    if values is None:
        return np.zeros(n, dtype=np.uint64)
    array = _numbers(column, values, n)
    bad = np.flatnonzero(~((array >= 0) & np.isfinite(array)))
    if len(bad):
        at = int(bad[0])
        of = f" of {names[at]!r}" if names else f"[{at}]"
        raise InputError(f"{column}{of} is {array[at]}: it must be finite and not negative")
    large = np.flatnonzero(array >= 2.0**63)
    if len(large):
        at = int(large[0])
        of = f" of {names[at]!r}" if names else f"[{at}]"
        raise InputError(f"{column}{of} is {array[at]}: out of range, at most 2^63")
    if array.dtype.kind == "f":
        array = np.rint(array)
    return array.astype(np.uint64)


def _runs(values: Any, n: int, names: Sequence[str]) -> NDArray[np.uint64]:
    runs = np.ones(n, dtype=np.uint64) if values is None else _sizes("ops.runs", values, n, names)
    if (runs < 1).any():
        op = names[int(runs.argmin())]
        raise InputError(f"ops.runs of {op!r} is 0: an op runs once or more often")
    return runs


def _times(values: Any, n: int, names: Sequence[str]) -> dict[str, NDArray[np.float64]]:
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        raise InputError("ops.time must map device types to lists of seconds")
    times = {}
    for device_type, column in values.items():
        subject = f"ops.time[{device_type!r}]"
        array = _numbers(subject, column, n).astype(np.float64)
        bad = np.flatnonzero(~((array >= 0) & np.isfinite(array)))
        if len(bad):
            at = int(bad[0])
            raise InputError(
                f"{subject} of {names[at]!r} is {array[at]}: a time must be finite and not negative"
            )
        times[str(device_type)] = array + 0.0  # -0.0 is 0.0
    return times


def _standing(kinds: Sequence[str]) -> NDArray[np.int8]:
    """Index into :data:`PLACEHOLDERS` per kind; -1: none of them."""
    code = {kind: at for at, kind in enumerate(PLACEHOLDERS)}
    return np.fromiter((code.get(kind, -1) for kind in kinds), np.int8, len(kinds))


def _freeze(column: Any) -> Any:
    """The column; if it is an array, nobody can change it from now on."""
    if isinstance(column, np.ndarray):
        column.flags.writeable = False
    return column


def _codes(labels: Sequence[str]) -> NDArray[np.int64]:
    """A number per distinct non-empty label; -1 for the empty one."""
    distinct = dict.fromkeys(labels)
    distinct.pop("", None)
    numbers = {"": -1} | {label: number for number, label in enumerate(distinct)}
    return np.fromiter(map(numbers.__getitem__, labels), np.int64, len(labels))


def _members(labels: Sequence[str], names: Sequence[str]) -> dict[str, NDArray[np.int64]]:
    """The columns that say which ops are members of which collective."""
    kinds = {kind: number for number, kind in enumerate(fast.COLLECTIVES)}
    codes = np.zeros(len(labels), dtype=np.int64)
    for at, label in enumerate(labels):
        kind, slash, name = label.partition("/")
        if label and not (slash and name and kind in kinds):
            raise InputError(
                f"ops.collective of {names[at]!r} is {label!r}: wants one of "
                f"{', '.join(kinds)}, a slash and a name"
            )
        codes[at] = kinds.get(kind, 0)
    return {"collective": _codes(labels), "collective_kind": codes}


def _node_aliases(
    nodes: Sequence[Any], data: Sequence[Mapping[str, Any]], key: str, position: Mapping[Any, int]
) -> list[int]:
    aliases = []
    for node, d in zip(nodes, data, strict=True):
        owner = d.get(key)
        if owner is not None and owner not in position:
            raise InputError(f"node {node!r} has {key} {owner!r}, which is no node of the graph")
        aliases.append(-1 if owner is None else position[owner])
    return aliases


def _node_args(
    nodes: Sequence[Any], data: Sequence[Mapping[str, Any]], key: str, position: Mapping[Any, int]
) -> list[arguments.Call | None]:
    args: list[arguments.Call | None] = []
    for node, d in zip(nodes, data, strict=True):
        call: Any = d.get(key)
        with malformed(f"node {node!r} has {key} {shown(call)}, which is no call"):
            known = call is not None and all(op in position for op in arguments.tensors(call))
            args.append(arguments.renumbered(call, position.__getitem__) if known else None)
    return args


def _node_times(
    nodes: Sequence[Any], data: Sequence[Mapping[str, Any]], key: str
) -> dict[str, list[float]]:
    types: dict[str, None] = {}
    for d in data:
        value = d.get(key)
        types |= dict.fromkeys(map(str, value) if isinstance(value, Mapping) else ())
        if value is not None and not isinstance(value, Mapping):
            types |= {ANY_TYPE: None}
    times: dict[str, list[float]] = {t: [] for t in types}
    for node, d in zip(nodes, data, strict=True):
        value = d.get(key, 0.0)
        for t, column in times.items():
            if isinstance(value, Mapping):
                if t not in value:
                    raise InputError(f"node {node!r} has no time for device type {t!r}")
                column.append(value[t])
            else:
                column.append(value)
    return times


def _networkx_edges(
    graph: Any, position: Mapping[Any, int], bytes_key: str, tensor_key: str
) -> dict[str, list[int]]:
    rows = [
        (position[s], position[d], data.get(tensor_key), data.get(bytes_key, 0))
        for s, d, data in graph.edges(data=True)
    ]
    ids = [t for _, _, t, _ in rows if t is not None and t >= 0]
    first_free = max(ids, default=-1) + 1
    sizes: dict[int, set[int]] = {}
    for s, _, t, b in rows:
        if t is None:
            sizes.setdefault(s, set()).add(b)
    shared: dict[int, int] = {}
    tensors = []
    for s, _, t, _ in rows:
        if t is None and len(sizes[s]) == 1 and s in shared:
            t = shared[s]
        elif t is None:
            t = shared[s] = first_free
            first_free += 1
        tensors.append(t)
    return {
        "src": [r[0] for r in rows],
        "dst": [r[1] for r in rows],
        "tensor": tensors,
        "bytes": [r[3] for r in rows],
    }
