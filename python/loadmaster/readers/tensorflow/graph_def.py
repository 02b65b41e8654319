"""Reads TensorFlow graphs (GraphDef, MetaGraphDef) and what session runs measured of them.

With RunMetadata the graph is what ran: nodes that an optimiser folded, merged or forwarded are
bridged (:mod:`~loadmaster.readers.tensorflow.nodes`), shapes are those of the run, and the times
are measured. Without, all nodes are read, or those that ``fetches`` need, and shapes are what
``_output_shapes`` says (``Graph.as_graph_def(add_shapes=True)``).

Variables are parameters: ``ReadVariableOp`` and ``Identity`` show them, optimizers change them in
place. What ``_class`` colocates stays together.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from loadmaster.base.errors import InputError
from loadmaster.base.files import naming
from loadmaster.base.warnings import warn
from loadmaster.model.graph import PLACEHOLDERS, UNSIZED, OpGraph
from loadmaster.model.profile import Profile
from loadmaster.readers.shared.columns import GraphColumns, without_flops
from loadmaster.readers.shared.formulas import Cost
from loadmaster.readers.shared.measured import add_times, only
from loadmaster.readers.shared.ops import Op, Tensor
from loadmaster.readers.tensorflow.calls import call_of
from loadmaster.readers.tensorflow.costs import (
    HANDLES,
    NEXT_ITERATIONS,
    VARIABLES,
    VIEWS,
    cost,
    is_known,
    is_update,
)
from loadmaster.readers.tensorflow.nodes import (
    Bridges,
    GraphNode,
    Loops,
    Port,
    ancestors,
    cut_loops,
    parse,
)
from loadmaster.readers.tensorflow.protos import load_graph
from loadmaster.readers.tensorflow.roles import NodeRoles
from loadmaster.readers.tensorflow.run import Execution, SessionRun, profile_of
from loadmaster.readers.tensorflow.tensors import OutputTensors
from loadmaster.transforms.transitive import reduce_control

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

#: Kinds that a training graph has for what comes before the first step and after the last.
_SESSION_ENDS = ("Assign", "AssignVariableOp", "VarIsInitializedOp", "SaveV2", "RestoreV2")
_OP_COLUMNS = (
    "name kind module phase flops bytes_accessed output_bytes param_bytes view alias_of colocation "
    "output workspace args"
)


def read(
    path: str | os.PathLike[str],
    *,
    profile: Paths | None = None,
    fetches: Iterable[str] | None = None,
    device_type: str | None = None,
) -> OpGraph:
    """Read a TensorFlow graph, with the times of session runs where they are given.

    Parameters
    ----------
    path
        A GraphDef or MetaGraphDef, binary or text, plain or gzipped. TensorFlow is not needed.
    profile
        RunMetadata (``trace_level=FULL_TRACE``), or several of the same batch: times are medians.
    fetches
        Names of the nodes to be computed (as for ``Session.run``): only what they need is read.
    device_type
        Device type that the times are of; by default the one that all ops ran on: "cpu", "gpu".

    Returns
    -------
    OpGraph
        Ops are named as the nodes. ``meta["devices"]`` has the nodes of each device string,
        ``meta["loops"]`` the loops with the rounds they took, ``meta["control_edges"]`` how many
        there were and how many are left: those that others imply are not needed.

    Raises
    ------
    InputError
        A damaged file; RunMetadata of another graph; ops that ran on several kinds of devices and
        no ``device_type``; an unknown fetch; a cycle that is no loop.
    MissingExtraError
        The package ``protobuf`` is not installed.

    Warns
    -----
    UserWarning
        What the costs leave out: ops of unknown kind or size, ops that ran and are not in the
        graph, loops, and nodes that only start or end a session. ``graph.meta["assumed"]`` keeps
        the same.

    Examples
    --------
    >>> graph = read("graph.pb", profile="run_metadata.pb")         # doctest: +SKIP
    >>> graph = read("graph.pb", fetches=["train_op"])              # doctest: +SKIP
    """
    runs = [SessionRun.read(p) for p in _listed(profile)]
    reading = _read(path, runs, fetches)
    document = reading.document(Path(path).name.partition(".")[0])
    notes = reading.notes()
    if runs:
        notes += add_times(document, profile_of(runs, device_type), reading.idle())
        if not all(run.measured for run in runs):
            notes.append("times are the cost graph's estimates: there are no step stats")
    warn(*notes)
    document["meta"]["assumed"] = notes
    with naming(path):
        graph = OpGraph.from_document(document)
    reduced = reduce_control(graph)
    reduced.meta["control_edges"] = {"read": _n_control(graph), "needed": _n_control(reduced)}
    return reduced


def _read(
    path: str | os.PathLike[str], runs: list[SessionRun], fetches: Iterable[str] | None = None
) -> _GraphDefReading:
    message = load_graph(path)
    with naming(path):
        return _GraphDefReading(message, runs[0] if runs else None, fetches)


def _n_control(graph: OpGraph) -> int:
    return 0 if graph.tensor is None else int((graph.tensor < 0).sum())


def profile(
    paths: Paths,
    *,
    graph: str | os.PathLike[str] | None = None,
    device_type: str | None = None,
    batch: int | None = None,
) -> Profile:
    """The times in RunMetadata, a step per file.

    Parameters
    ----------
    paths
        RunMetadata of one session run, or of several of the same batch.
    graph
        The GraphDef. With it the ops are those that :func:`read` gives of the same files; without
        it all that ran, some under names that TensorFlow's optimiser made.
    device_type
        As for :func:`read`.
    batch
        Size of the batch; by default, where there is a ``graph``, as its inputs tell.

    Raises
    ------
    InputError, MissingExtraError
        As :func:`read`.

    Examples
    --------
    >>> sweep = [profile(f"b{n}.pb", graph="g.pb") for n in (2, 4, 8)]      # doctest: +SKIP
    """
    runs = [SessionRun.read(p) for p in _listed(paths)]
    if not runs:
        raise InputError("paths: wants at least one file of RunMetadata")
    measured = profile_of(runs, device_type, batch)
    if graph is None:
        return measured
    reading = _read(graph, runs)
    rows = [row for row, name in enumerate(measured.names) if name in reading.index]
    times = only(measured, rows)
    kinds = tuple(reading.kinds[name] for name in times.names)
    return replace(times, kinds=kinds, batch=reading.batch() if batch is None else batch)


def _listed(paths: Paths | None) -> list[str | os.PathLike[str]]:
    if paths is None:
        return []
    return [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)


class _GraphDefReading:
    """A GraphDef as it becomes columns."""

    def __init__(self, message: Any, run: SessionRun | None, fetches: Iterable[str] | None) -> None:
        self._message = message
        self._run = run.executions if run is not None else {}
        self._nodes = parse(message)
        self._loops: Loops = cut_loops(self._nodes)
        kept = self._chosen(run, fetches)
        self._bridges = Bridges(self._nodes, kept)
        self._reads, self._waits = self._inputs(kept)
        #: Indices of the ops, by name, in the order of the graph.
        self.index = {n: i for i, n in enumerate(n for n in self._nodes if n in self._reads)}
        self._tensors = OutputTensors(self._nodes, self._run)
        self._roles = NodeRoles(self._nodes, self._run)
        #: The kind of each op.
        self.kinds = {name: self._roles.kind(self._nodes[name]) for name in self.index}
        #: Tensors, numbered in the order of their first edge.
        self._ids: dict[Port, int] = {}
        self._unknown_kinds: Counter[str] = Counter()
        self._unknown_sizes: Counter[str] = Counter()
        self._n_working = 0

    def _chosen(self, run: SessionRun | None, fetches: Iterable[str] | None) -> set[str]:
        """The nodes that are to be ops."""
        wanted = set(self._nodes) if fetches is None else ancestors(self._nodes, fetches)
        if run is None:
            return wanted
        known = run.executions.keys() & self._nodes.keys()
        if 2 * len(known) < len(run.executions):
            raise InputError(
                f"the RunMetadata is of another graph: {len(known)} of the {len(run.executions)} "
                f"ops that ran ({next(iter(run.executions))!r} first) are nodes of this one"
            )
        ran = wanted & known
        if not ran:
            raise InputError("none of the nodes that the fetches need ran")
        return ran

    def _inputs(self, kept: set[str]) -> tuple[dict[str, list[list[Port]]], dict[str, list[str]]]:
        """Ops that each op reads, by input, and waits for; inputs and variables are ops as well."""
        reads: dict[str, list[list[Port]]] = {}
        waits: dict[str, list[str]] = {}
        todo = [name for name in self._nodes if name in kept]
        while todo:
            for name in todo:
                node = self._nodes[name]
                folded = self._run.get(name, Execution("")).kind == "Const"
                sources = [] if folded else [self._bridges.data(port) for port in node.data]
                reads[name] = [ports for ports, _ in sources]
                waits[name] = [
                    *self._bridges.control(node.control),
                    *(s for f in sources for s in f[1]),
                ]
            todo = [name for name in self._bridges.added if name not in reads]
        return reads, waits

    def idle(self) -> list[str]:
        """Ops that did not run: inputs, and ops that only join others."""
        return [op for op in self.index if op not in self._run]

    def batch(self) -> int | None:
        """The first dimension of the first input."""
        for name in self.index:
            if self.kinds[name] == "input":
                shape = self._tensors.of((name, 0)).shape
                if shape and shape[0]:
                    return shape[0]
        return None

    # ---- columns ------------------------------------------------------------------------------

    def document(self, name: str) -> dict[str, Any]:
        """The graph as an opgraph v1 document."""
        columns = GraphColumns(_OP_COLUMNS)
        ops = columns.ops
        labels = self._roles.colocation(self.index)
        for op in self.index:
            row = self._row(op)
            row["colocation"] = labels.get(op, "")
            for column, entry in row.items():
                ops[column].append(entry)
        # An owner may come after its views.
        ops["alias_of"] = _owners(ops["alias_of"])
        for op, at in self.index.items():
            self._connect(op, at, bool(ops["view"][at]), columns)
        phases = set(ops["phase"])
        meta: dict[str, Any] = {
            "framework": f"tensorflow (GraphDef version {self._message.versions.producer})",
            "batch": self.batch(),
            "mode": "train" if phases & {"b", "o"} else "infer",
            "loops": self._loop_rounds(),
            "devices": self._devices(),
        }
        if unsized := sum(self._unknown_sizes.values()):
            meta[UNSIZED] = {"ops": unsized, "of": self._n_working, "way": self._way()}
        return columns.document(name, meta)

    def _way(self) -> str:
        """The way to have sizes known, for a file that does not tell them all."""
        profile = "or give the RunMetadata of a step: profile= (--profile)"
        if any(node.proto.attr["_output_shapes"].list.shape for node in self._nodes.values()):
            return (
                "give the function inputs of fixed sizes, such as tf.TensorSpec((8, 224, 224, 3)), "
                f"and write its graph with as_graph_def(add_shapes=True), {profile}"
            )
        return f"write the graph with as_graph_def(add_shapes=True), {profile}"

    def _row(self, op: str) -> dict[str, Any]:
        node, kind, ran = self._nodes[op], self.kinds[op], self._run.get(op)
        outs = [self._tensors.of((op, port)) for port in range(self._tensors.ports(op))]
        placeholder = kind in PLACEHOLDERS
        view = self._is_view(op)
        changes = is_update(kind) and bool(self._reads[op]) and bool(self._reads[op][0])
        with naming(f"op {op!r}"):
            size = sum(t.nbytes or 0 for t in outs if t.dtype not in HANDLES)
        work = Cost() if placeholder or view else self._work(op, kind, outs)
        variable = node.kind in VARIABLES
        return {
            "name": op,
            "kind": kind,
            "module": self._roles.module(node),
            "phase": self._roles.phase(node),
            "flops": work.flops,
            "bytes_accessed": work.bytes,
            "output_bytes": 0 if view or changes else size,
            "param_bytes": size if variable else 0,
            "view": int(view),
            "alias_of": self.index[self._reads[op][0][0][0]] if view or changes else -1,
            "output": ";".join(map(str, outs)),
            "workspace": ran.workspace if ran is not None and not placeholder else 0,
            "args": None if placeholder else call_of(node, self._nodes, self._sources(op)),
        }

    def _sources(self, op: str) -> list[list[int]]:
        """The ops that made each input."""
        return [[self.index[source] for source, _ in ports] for ports in self._reads[op]]

    def _is_view(self, op: str) -> bool:
        """True if an op shows one storage: a ``Merge`` of two branches shows two."""
        reads = self._reads[op]
        kind = self.kinds[op]
        if kind not in VIEWS or not reads or len(reads[0]) != 1:
            return False
        return kind not in ("Merge", "RefMerge", "IdentityN") or len(reads) == 1

    def _work(self, op: str, kind: str, outs: list[Tensor]) -> Cost:
        """FLOPs and bytes, as often as the op ran."""
        ran = self._run.get(op)
        if self._run and ran is None:
            return Cost()  # it only joins ops that ran
        ins: list[Tensor] = []
        for port, sources in zip(self._nodes[op].data, self._reads[op], strict=False):
            ins += [self._tensors.of(s) for s in sources] or [self._tensors.of(port)]
        work = cost(Op(kind, ins, outs, _attributes(self._nodes[op])))
        self._n_working += not work.known or bool(work.flops or work.bytes)
        if not is_known(kind):
            self._unknown_kinds[kind] += 1
        elif not work.known:
            self._unknown_sizes[kind] += 1
        return work.times(ran.runs if ran is not None else 1)

    def _connect(self, op: str, at: int, view: bool, columns: GraphColumns) -> None:
        data = [port for sources in self._reads[op] for port in sources]
        order = list(self._waits[op])
        if view:  # later inputs say where, when or how
            order += [source for source, _ in data[1:]]
            data = data[:1]
        for port in dict.fromkeys(data):
            tensor = self._tensors.of(port)
            size = 0 if tensor.dtype in HANDLES else tensor.nbytes or 0
            columns.draw(self.index[port[0]], at, self._ids.setdefault(port, len(self._ids)), size)
        sources = {source for source, _ in data}
        for source in dict.fromkeys(order):
            if source not in sources:
                columns.draw(self.index[source], at)

    # ---- what to say --------------------------------------------------------------------------

    def _devices(self) -> dict[str, list[str]]:
        ops_of: dict[str, list[str]] = {}
        for op in self.index:
            ran = self._run.get(op)
            device = ran.device if ran is not None else self._nodes[op].proto.device
            if device:
                ops_of.setdefault(device, []).append(op)
        return ops_of

    def _loop_rounds(self) -> list[dict[str, Any]]:
        """Each loop with how many ops it has and how many rounds it took; None: not known."""
        inside: dict[str, list[str]] = {}
        for op in self.index:
            if op in self._loops.frame_of:
                inside.setdefault(self._loops.frame_of[op], []).append(op)
        loops = []
        for frame, ops in inside.items():
            rounds = [
                self._run[op].runs
                for op in ops
                if op in self._run and self._nodes[op].kind in NEXT_ITERATIONS
            ]
            loops.append({"loop": frame, "ops": len(ops), "rounds": max(rounds, default=None)})
        return loops

    def notes(self) -> list[str]:
        """Notes on what the graph leaves out or assumes, one sentence each."""
        notes = []
        loops = self._loop_rounds()
        if loops:
            texts = ", ".join(
                f"{entry['loop']!r} ({entry['ops']} ops, {entry['rounds'] or 'unknown'} rounds)"
                for entry in loops
            )
            counted = "once, since no run says how often" if not self._run else "all their rounds"
            notes.append(
                f"{len(loops)} loops: {texts}. Each op of a loop counts as one that takes "
                f"{counted}, and memory is that of one round; {self._loops.n_cut} back edges are "
                "cut: what comes after a loop waits for its last round"
            )
        if self._unknown_kinds:
            notes.append(without_flops(_counts(self._unknown_kinds)))
        if self._unknown_sizes:
            notes.append(
                "ops that cost less here than they will, for want of shapes: "
                + f"{_counts(self._unknown_sizes)}: {self._way()}"
            )
        ends = Counter(self._nodes[op].kind for op in self.index)
        ends = Counter({kind: ends[kind] for kind in _SESSION_ENDS if ends[kind]})
        if ends and not self._run:
            notes.append(
                f"nodes that initialise or save variables are read as ops of the step "
                f"({_counts(ends)}): give fetches= or profile= (--fetch, --profile)"
            )
        return notes


def _owners(aliases: list[int]) -> list[int]:
    """The op that owns the storage that each op shows or changes, through any views between. O(V).

    On a cycle it is any of the cycle's ops: the graph's constructor refuses the cycle.
    """
    owners: list[int | None] = [None] * len(aliases)
    for op in range(len(aliases)):
        path: list[int] = []
        at = op
        while owners[at] is None and aliases[at] >= 0:
            owners[at] = at
            path.append(at)
            at = aliases[at]
        owner = at if aliases[at] < 0 else owners[at]
        for passed in path:
            owners[passed] = owner
    return [-1 if owner is None else owner for owner in owners]


def _attributes(node: GraphNode) -> dict[str, Any]:
    """The attributes of a node that the cost rules need."""
    values: dict[str, Any] = {}
    if "ksize" in node.proto.attr:
        values["ksize"] = list(node.proto.attr["ksize"].list.i)
    if "fused_ops" in node.proto.attr:
        values["fused_ops"] = list(node.proto.attr["fused_ops"].list.s)
    if "equation" in node.proto.attr:
        values["equation"] = bytes(node.proto.attr["equation"].s).decode(errors="replace")
    return values


def _counts(kinds: Counter[str]) -> str:
    return ", ".join(f"{kind} ({n})" for kind, n in kinds.most_common())
