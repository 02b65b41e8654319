"""Reads TensorFlow graphs (GraphDef, MetaGraphDef) and what session runs measured of them.

With RunMetadata the graph is what ran: nodes that an optimiser folded, merged or forwarded are
bridged (:mod:`~loadmaster.readers.tensorflow_nodes`), shapes are those of the run, and the times
are measured. Without, all nodes are read, or those that ``fetches`` need, and shapes are what
``_output_shapes`` says (``Graph.as_graph_def(add_shapes=True)``).

Variables are parameters: ``ReadVariableOp`` and ``Identity`` show them, optimizers change them in
place. What ``_class`` colocates stays together.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from loadmaster.errors import InputError
from loadmaster.graph import PLACEHOLDERS, OpGraph
from loadmaster.profile import Profile
from loadmaster.readers.measured import add_times
from loadmaster.readers.onnx_costs import Cost, Op, Tensor
from loadmaster.readers.tensorflow_costs import (
    ELEMENT_TYPES,
    HANDLES,
    INPUTS,
    NEXT_ITERATIONS,
    VARIABLES,
    VIEWS,
    cost,
    is_known,
    is_optimizer,
    is_update,
)
from loadmaster.readers.tensorflow_nodes import (
    Bridges,
    Loops,
    Node,
    Port,
    ancestors,
    cut_loops,
    parse,
)
from loadmaster.readers.tensorflow_protos import load_graph
from loadmaster.readers.tensorflow_run import Execution, Run, profile_of, tensor
from loadmaster.transforms.transitive import reduce_control
from loadmaster.warning import warn

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

_LOCATION = "loc:@"
_GRADIENTS = re.compile(r"(?:^|/)(?:gradients(?:_\d+)?|gradient_tape)/")
_UPDATE = "/update_"
_FED = "_arg_"
#: Kinds that a whole training graph has for its first and last steps.
_SESSION_ENDS = ("Assign", "AssignVariableOp", "VarIsInitializedOp", "SaveV2", "RestoreV2")
_OP_COLUMNS = (
    "name kind module phase flops bytes_accessed output_bytes param_bytes view alias_of colocation "
    "output workspace"
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
        A binary GraphDef or MetaGraphDef, plain or gzipped. TensorFlow is not needed.
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
    runs = [Run.read(p) for p in _listed(profile)]
    reading = _read(path, runs, fetches)
    document = reading.document(Path(path).name.partition(".")[0])
    notes = reading.notes()
    if runs:
        notes += add_times(document, profile_of(runs, device_type))
        if not all(run.measured for run in runs):
            notes.append("times are the cost graph's estimates: there are no step stats")
    for note in notes:
        warn(note)
    document["meta"]["assumed"] = notes
    try:
        graph = OpGraph.from_document(document)
    except InputError as error:
        raise InputError(f"{os.fspath(path)}: {error}") from None
    reduced = reduce_control(graph)
    reduced.meta["control_edges"] = {"read": _n_control(graph), "needed": _n_control(reduced)}
    return reduced


def _read(
    path: str | os.PathLike[str], runs: list[Run], fetches: Iterable[str] | None = None
) -> _Reading:
    message = load_graph(path)
    try:
        return _Reading(message, runs[0] if runs else None, fetches)
    except InputError as error:
        raise InputError(f"{os.fspath(path)}: {error}") from None


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
    runs = [Run.read(p) for p in _listed(paths)]
    if not runs:
        raise InputError("paths: wants at least one file of RunMetadata")
    measured = profile_of(runs, device_type, batch)
    if graph is None:
        return measured
    reading = _read(graph, runs)
    rows = [row for row, name in enumerate(measured.names) if name in reading.index]
    assert measured.output_bytes is not None
    return Profile(
        tuple(measured.names[row] for row in rows),
        tuple(reading.kinds[measured.names[row]] for row in rows),
        measured.seconds[rows],
        measured.device_type,
        reading.batch() if batch is None else batch,
        measured.output_bytes[rows],
    )


def _listed(paths: Paths | None) -> list[str | os.PathLike[str]]:
    if paths is None:
        return []
    return [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)


class _Reading:
    """A GraphDef as it becomes columns."""

    def __init__(self, message: Any, run: Run | None, fetches: Iterable[str] | None) -> None:
        self._message = message
        self._run = run.executions if run is not None else {}
        self._nodes = parse(message)
        self._loops: Loops = cut_loops(self._nodes)
        kept = self._chosen(run, fetches)
        self._bridges = Bridges(self._nodes, kept)
        self._fed = _fed(self._run, self._nodes)
        self._tensors: dict[Port, Tensor] = {}
        reads, waits = self._inputs(kept)
        self._reads, self._waits = reads, waits
        #: Indices of the ops, by name, in the order of the graph.
        self.index = {n: i for i, n in enumerate(n for n in self._nodes if n in reads)}
        self._writers = _writers(self._nodes.values())
        self._optimizers = _optimizer_scopes(self._nodes.values())
        self._groups = _colocated(self._nodes)
        #: The kind of each op.
        self.kinds = {name: self._kind(self._nodes[name]) for name in self.index}
        self._unknown_kinds: Counter[str] = Counter()
        self._unknown_sizes: Counter[str] = Counter()

    def _chosen(self, run: Run | None, fetches: Iterable[str] | None) -> set[str]:
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
        """What each op reads, by input, and waits for; inputs and variables are ops as well."""
        reads: dict[str, list[list[Port]]] = {}
        waits: dict[str, list[str]] = {}
        todo = [name for name in self._nodes if name in kept]
        while todo:
            for name in todo:
                node = self._nodes[name]
                folded = self._run.get(name, Execution("")).kind == "Const"
                found = [] if folded else [self._bridges.data(port) for port in node.data]
                reads[name] = [ports for ports, _ in found]
                waits[name] = [
                    *self._bridges.control(node.control),
                    *(s for f in found for s in f[1]),
                ]
            todo = [name for name in self._bridges.added if name not in reads]
        return reads, waits

    # ---- what an op is ------------------------------------------------------------------------

    def _kind(self, node: Node) -> str:
        execution = self._run.get(node.name)
        kind = (execution.kind if execution is not None else "") or node.kind
        if kind in INPUTS:
            return "input"
        if kind == "Const":
            return "constant"
        if kind in VARIABLES:
            own = self._writers.get(node.name, ())
            trained = any(is_optimizer(k) for k in own)
            moved = any("AssignSub" in k or "AssignAdd" in k for k in own)
            slot = self._variable(node) != node.name
            return "buffer" if slot or (moved and not trained) else "parameter"
        return kind

    def _variable(self, node: Node) -> str:
        """The variable that an op changes or is made for; its own name if there is none."""
        if is_update(node.kind) and node.data and self._nodes[node.data[0][0]].kind in VARIABLES:
            return node.data[0][0]
        for other in _companions(node):
            if other in self._nodes and self._nodes[other].kind in VARIABLES:
                return other
        return node.name

    def _phase(self, node: Node) -> str:
        if is_optimizer(node.kind) or node.name.startswith(self._optimizers):
            return "o"
        if node.kind in VARIABLES:
            return "o" if self._variable(node) != node.name else "f"
        return "b" if _GRADIENTS.search(node.name) else "f"

    def _module(self, node: Node) -> str:
        """The name scope; that of the variable, behind ``optim``, for what an optimizer adds."""
        name, prefix = node.name, ""
        if self._phase(node) == "o":
            name, prefix = self._variable(node), "optim."
        return prefix + name.rpartition("/")[0].replace("/", ".")

    # ---- tensors ------------------------------------------------------------------------------

    def _tensor(self, port: Port) -> Tensor:
        """What is known of an output: as it ran, else as the graph declares it; of what only
        forwards and did not run, what is known of its input.
        """
        path: dict[Port, None] = {}
        while port not in self._tensors and port not in path:
            path[port] = None
            node = self._nodes[port[0]]
            if self._tells(node, port) or node.kind not in VIEWS or not node.data:
                self._tensors[port] = self._told(node, port)
            else:
                port = node.data[0]
        found = self._tensors.get(port, Tensor())
        self._tensors.update(dict.fromkeys(path, found))
        return found

    def _tells(self, node: Node, port: Port) -> bool:
        """Whether an output is known better than its node's input."""
        return not self._run or node.name in self._run or port in self._fed

    def _told(self, node: Node, port: Port) -> Tensor:
        name, number = port
        if node.kind in VARIABLES:
            return tensor(_type(node, "dtype"), node.proto.attr["shape"].shape)
        ran = self._run.get(name)
        if ran is not None and number in ran.outputs:
            return ran.outputs[number]
        if port in self._fed:
            return self._fed[port]
        dtype, shapes = _output_type(node, number), node.proto.attr["_output_shapes"].list.shape
        if number < len(shapes):
            return tensor(dtype, shapes[number])
        return Tensor(ELEMENT_TYPES.get(dtype % 100, ""))

    def _ports(self, name: str) -> int:
        """How many outputs are known of an op."""
        node, ran = self._nodes[name], self._run.get(name)
        if node.kind in VARIABLES or node.kind in INPUTS:
            return 1
        if ran is not None:
            return min(1 + max(ran.outputs, default=-1), len(ran.outputs) + 64)
        return len(node.proto.attr["_output_shapes"].list.shape)

    def batch(self) -> int | None:
        """The first dimension of the first input."""
        for name in self.index:
            if self.kinds[name] == "input":
                shape = self._tensor((name, 0)).shape
                if shape and shape[0]:
                    return shape[0]
        return None

    # ---- columns ------------------------------------------------------------------------------

    def document(self, name: str) -> dict[str, Any]:
        """The graph as an opgraph v1 document."""
        ops: dict[str, list[Any]] = {column: [] for column in _OP_COLUMNS.split()}
        edges = _Edges()
        labels = self._labels()
        for op in self.index:
            row = self._row(op)
            row["colocation"] = labels.get(op, "")
            for column, entry in row.items():
                ops[column].append(entry)
        # Owners may stand behind what shows them.
        ops["alias_of"] = _owners(ops["alias_of"])
        for op, at in self.index.items():
            self._connect(op, at, bool(ops["view"][at]), edges)
        phases = set(ops["phase"])
        meta = {
            "framework": f"tensorflow (GraphDef version {self._message.versions.producer})",
            "batch": self.batch(),
            "mode": "train" if phases & {"b", "o"} else "infer",
            "loops": self._loop_rounds(),
            "devices": self._devices(),
        }
        return {
            "format": "opgraph",
            "version": 1,
            "name": name,
            "meta": meta,
            "ops": ops,
            "edges": edges.columns,
        }

    def _row(self, op: str) -> dict[str, Any]:
        node, kind, ran = self._nodes[op], self.kinds[op], self._run.get(op)
        outs = [self._tensor((op, port)) for port in range(self._ports(op))]
        placeholder = kind in PLACEHOLDERS
        view = self._is_view(op)
        changes = is_update(kind) and bool(self._reads[op]) and bool(self._reads[op][0])
        size = sum(t.nbytes or 0 for t in outs if t.dtype not in HANDLES)
        work = Cost() if placeholder or view else self._work(op, kind, outs)
        variable = node.kind in VARIABLES
        return {
            "name": op,
            "kind": kind,
            "module": self._module(node),
            "phase": self._phase(node),
            "flops": work.flops,
            "bytes_accessed": work.bytes,
            "output_bytes": 0 if view or changes else size,
            "param_bytes": size if variable else 0,
            "view": int(view),
            "alias_of": self.index[self._reads[op][0][0][0]] if view or changes else -1,
            "output": ";".join(map(str, outs)),
            "workspace": ran.workspace if ran is not None and not placeholder else 0,
        }

    def _is_view(self, op: str) -> bool:
        """Views of one storage: a ``Merge`` of two branches is none."""
        reads = self._reads[op]
        kind = self.kinds[op]
        if kind not in VIEWS or not reads or len(reads[0]) != 1:
            return False
        return kind not in ("Merge", "RefMerge", "IdentityN") or len(reads) == 1

    def _work(self, op: str, kind: str, outs: list[Tensor]) -> Cost:
        """FLOPs and bytes, as often as the op ran."""
        ran = self._run.get(op)
        if self._run and ran is None:
            return Cost()  # it only joins what ran
        ins: list[Tensor] = []
        for port, sources in zip(self._nodes[op].data, self._reads[op], strict=False):
            ins += [self._tensor(s) for s in sources] or [self._tensor(port)]
        found = cost(Op(kind, ins, outs, _attributes(self._nodes[op])))
        if not is_known(kind):
            self._unknown_kinds[kind] += 1
        elif not found.complete:
            self._unknown_sizes[kind] += 1
        return found.times(ran.runs if ran is not None else 1)

    def _connect(self, op: str, at: int, view: bool, edges: _Edges) -> None:
        data = [port for sources in self._reads[op] for port in sources]
        order = list(self._waits[op])
        if view:  # the rest says where, when or how, not what
            order += [source for source, _ in data[1:]]
            data = data[:1]
        for port in dict.fromkeys(data):
            size = self._tensor(port)
            edges.add(
                self.index[port[0]], at, port, 0 if size.dtype in HANDLES else size.nbytes or 0
            )
        sources = {source for source, _ in data}
        edges.order([self.index[s] for s in dict.fromkeys(order) if s not in sources], at)

    def _labels(self) -> dict[str, str]:
        """The colocation group of each op in one."""
        members = Counter(self._groups[op] for op in self.index if op in self._groups)
        return {
            op: self._groups[op]
            for op in self.index
            if op in self._groups and members[self._groups[op]] > 1
        }

    # ---- what to say --------------------------------------------------------------------------

    def _devices(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for op in self.index:
            ran = self._run.get(op)
            device = ran.device if ran is not None else self._nodes[op].proto.device
            if device:
                found.setdefault(device, []).append(op)
        return found

    def _loop_rounds(self) -> list[dict[str, Any]]:
        """Each loop with how many ops it has and how many rounds it took; None: not known."""
        inside: dict[str, list[str]] = {}
        for op in self.index:
            if op in self._loops.frame_of:
                inside.setdefault(self._loops.frame_of[op], []).append(op)
        found = []
        for frame, ops in inside.items():
            rounds = [
                self._run[op].runs
                for op in ops
                if op in self._run and self._nodes[op].kind in NEXT_ITERATIONS
            ]
            found.append({"loop": frame, "ops": len(ops), "rounds": max(rounds, default=None)})
        return found

    def notes(self) -> list[str]:
        """What the graph leaves out or assumes, one sentence each."""
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
            notes.append(
                f"no FLOPs are known for {_counts(self._unknown_kinds)}: these ops are costed by "
                "the bytes they move"
            )
        if self._unknown_sizes:
            notes.append(
                "ops that cost less here than they will, for want of shapes: "
                + _counts(self._unknown_sizes)
            )
        ends = Counter(self._nodes[op].kind for op in self.index)
        ends = Counter({kind: ends[kind] for kind in _SESSION_ENDS if ends[kind]})
        if ends and not self._run:
            notes.append(
                f"nodes that initialise or save variables are read as ops of the step "
                f"({_counts(ends)}): give fetches=, or profile="
            )
        return notes


class _Edges:
    """Edge columns as they grow; tensors are numbered as they come."""

    def __init__(self) -> None:
        self.columns: dict[str, list[int]] = {"src": [], "dst": [], "tensor": [], "bytes": []}
        self._ids: dict[Port, int] = {}

    def add(self, src: int, dst: int, port: Port, size: int) -> None:
        """An edge that carries an output."""
        entry = (src, dst, self._ids.setdefault(port, len(self._ids)), size)
        for column, number in zip(self.columns.values(), entry, strict=True):
            column.append(number)

    def order(self, sources: list[int], dst: int) -> None:
        """Control edges to an op."""
        n = len(sources)
        entries = (sources, [dst] * n, [-1] * n, [0] * n)
        for column, numbers in zip(self.columns.values(), entries, strict=True):
            column += numbers


def _owners(aliases: list[int]) -> list[int]:
    """The op whose storage each op shows or changes at last, from the one that it does first; O(V).

    On a cycle any of its ops: it is refused when the graph is made.
    """
    found: list[int | None] = [None] * len(aliases)
    for op in range(len(aliases)):
        path: list[int] = []
        at = op
        while found[at] is None and aliases[at] >= 0:
            found[at] = at
            path.append(at)
            at = aliases[at]
        owner = at if aliases[at] < 0 else found[at]
        for passed in path:
            found[passed] = owner
    return [-1 if owner is None else owner for owner in found]


# ---- attributes -------------------------------------------------------------------------------


def _type(node: Node, attribute: str) -> int:
    return int(node.proto.attr[attribute].type) if attribute in node.proto.attr else 0


#: Attributes that name the element type of outputs, by kind; T and dtype elsewhere.
_TYPE_OF = {
    "Cast": "DstT",
    "Bitcast": "type",
    "Shape": "out_type",
    "ShapeN": "out_type",
    "Size": "out_type",
    "ArgMax": "output_type",
    "ArgMin": "output_type",
    "GatherV2": "Tparams",
    "Gather": "Tparams",
    "GatherNd": "Tparams",
    "TensorArrayReadV3": "dtype",
    "TensorArrayGatherV3": "dtype",
    "StackPopV2": "elem_type",
    "OneHot": "T",
}
_BOOLEANS = frozenset(
    (
        *("Equal", "NotEqual", "Less", "LessEqual", "Greater", "GreaterEqual", "LogicalAnd"),
        *("LogicalOr", "LogicalNot", "LoopCond", "VarIsInitializedOp", "IsFinite", "IsInf"),
        *("IsNan", "All", "Any", "IsVariableInitialized"),
    )
)
_BOOL, _INT32, _RESOURCE = 10, 3, 20


def _output_type(node: Node, port: int) -> int:
    """The number of an output's element type, as far as attributes tell; 0: unknown."""
    kind = node.kind
    if kind in _BOOLEANS:
        return _BOOL
    if kind in ("Rank", "ConcatOffset", "InvertPermutation", "BroadcastGradientArgs"):
        return _type(node, "T") or _INT32
    if kind in ("Shape", "ShapeN", "Size", "ArgMax", "ArgMin", "VariableShape"):
        return _type(node, _TYPE_OF.get(kind, "out_type")) or _INT32
    if kind in ("TensorArrayV3", "StackV2", "VarHandleOp") and port == 0:
        return _RESOURCE
    if kind.startswith("FusedBatchNorm") and port > 0:
        return _type(node, "U") or _type(node, "T")
    if kind in ("Unique", "UniqueV2", "TopKV2", "Merge") and port > 0:
        return _type(node, "out_idx") or _INT32
    wanted = (_TYPE_OF[kind],) if kind in _TYPE_OF else ("T", "dtype")
    return next((found for name in wanted if (found := _type(node, name))), 0)


def _attributes(node: Node) -> dict[str, Any]:
    """What cost rules ask for."""
    found: dict[str, Any] = {}
    if "ksize" in node.proto.attr:
        found["ksize"] = list(node.proto.attr["ksize"].list.i)
    if "fused_ops" in node.proto.attr:
        found["fused_ops"] = list(node.proto.attr["fused_ops"].list.s)
    return found


def _fed(run: Mapping[str, Execution], nodes: Mapping[str, Node]) -> dict[Port, Tensor]:
    """Tensors that were fed, by the output that they stand in for: ``_arg_NAME_PORT_NUMBER``."""
    found = {}
    for name, execution in run.items():
        if name.startswith(_FED) and execution.outputs:
            head, _, port = name.removeprefix(_FED).rpartition("_")[0].rpartition("_")
            if head in nodes and port.isascii() and port.isdigit():
                found[head, int(port)] = next(iter(execution.outputs.values()))
    return found


# ---- roles ------------------------------------------------------------------------------------


def _writers(nodes: Iterable[Node]) -> dict[str, set[str]]:
    """Kinds of the ops that change each variable."""
    found: dict[str, set[str]] = {}
    for node in nodes:
        if is_update(node.kind) and node.data:
            found.setdefault(node.data[0][0], set()).add(node.kind)
    return found


def _optimizer_scopes(nodes: Iterable[Node]) -> tuple[str, ...]:
    """Name scopes of optimizers: what stands before ``/update_`` in the names of their ops."""
    scopes = {
        node.name.partition(_UPDATE)[0] + "/"
        for node in nodes
        if is_optimizer(node.kind) and _UPDATE in node.name
    }
    return tuple(sorted(scopes))


def _companions(node: Node) -> list[str]:
    """The nodes that ``_class`` puts a node with."""
    if "_class" not in node.proto.attr:
        return []
    texts = [text.decode(errors="replace") for text in node.proto.attr["_class"].list.s]
    return [text.removeprefix(_LOCATION) for text in texts if text.startswith(_LOCATION)]


def _colocated(nodes: Mapping[str, Node]) -> dict[str, str]:
    """For each node that ``_class`` puts with others, what its set is called after: its first
    variable, or else its first node.
    """
    parent: dict[str, str] = {}

    def find(name: str) -> str:
        root = name
        while parent.setdefault(root, root) != root:
            root = parent[root]
        while parent[name] != root:
            parent[name], name = root, parent[name]
        return root

    for node in nodes.values():
        for other in _companions(node):
            parent[find(node.name)] = find(other)
    members = [node for node in nodes.values() if node.name in parent]
    members.sort(key=lambda node: node.kind not in VARIABLES)
    called: dict[str, str] = {}
    for node in members:
        called.setdefault(find(node.name), node.name)
    return {node.name: called[find(node.name)] for node in members}


def _counts(kinds: Counter[str]) -> str:
    return ", ".join(f"{kind} ({n})" for kind, n in kinds.most_common())
