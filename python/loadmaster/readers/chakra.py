"""Reads PyTorch's execution traces (Chakra), alone or joined with a Kineto trace of the same step.

``torch.profiler.ExecutionTraceObserver`` records every call with the tensors it reads and gives
out, and no times; Kineto records the times, and no tensors. Recorded together, their calls have the
same record function ids.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from loadmaster.errors import InputError
from loadmaster.files import parse_json, read_bytes
from loadmaster.graph import OpGraph
from loadmaster.profile import Profile
from loadmaster.readers import kineto
from loadmaster.readers.aten_costs import Cost, Tensor, bare, cost, is_view
from loadmaster.readers.dataflow import Dataflow, Ref, Schema, Storage, schema_of
from loadmaster.readers.kineto import Trace
from loadmaster.readers.notes import warn
from loadmaster.readers.torch_calls import (
    OP,
    TENSOR_TYPE,
    WRAPPER,
    Calls,
    chosen,
    role_of,
    tensor_of,
)

_T = TypeVar("_T")
_Steps = list[tuple[list[str], NDArray[np.int32]]]

#: What PyTorch's ops call the weights that they read, and the statistics.
_WEIGHT = re.compile(r"weight|bias|params$|[wb]_[ih]h")
_STATISTICS = frozenset({"running_mean", "running_var"})

#: Bytes of one number.
_NUMBER = 8


def read(
    path: str | os.PathLike[str],
    *,
    profile: str | os.PathLike[str] | None = None,
    step: int | None = None,
    device_type: str | None = None,
) -> OpGraph:
    """Reads the graph of a step; with a Kineto trace of the same step, its times too.

    Parameters
    ----------
    path
        What ``torch.profiler.ExecutionTraceObserver`` wrote, plain or gzipped.
    profile
        What ``prof.export_chrome_trace`` wrote of the same step.
    step
        The ``ProfilerStep`` to read. If absent the first one is the graph, all must have the same
        ops, and times are medians over them.
    device_type
        What to call the device that the times are of: its name in the Kineto trace if absent.

    Returns
    -------
    OpGraph
        Ops as the dispatcher handed them to a backend (:mod:`loadmaster.readers.torch_calls`) and
        the tensors between them (:mod:`loadmaster.readers.dataflow`). Tensors read before they are
        written are parameters (changed by the optimizer, or read as weights), buffers (changed
        otherwise, or first read by the optimizer), constants (of one element) or inputs. A list op
        (``_foreach_add_``) is an op per tensor, its time shared out by bytes. FLOPs and bytes are
        those of :mod:`loadmaster.readers.aten_costs`. Views take no time.

    Raises
    ------
    InputError
        No whole trace, no ops in it, steps that differ, or a Kineto trace of another step.

    Warns
    -----
    UserWarning
        Kinds of ops whose FLOPs are not known; ops that the Kineto trace lacks, whose time is then
        guessed by their bytes. ``graph.meta["assumed"]`` keeps the same.

    Examples
    --------
    >>> import json, tempfile
    >>> x, y = [1, 11, 0, 6, 4, "cpu"], [2, 12, 0, 6, 4, "cpu"]  # tensor, storage, ...
    >>> side = {"shapes": [[2, 3]], "types": ["Tensor(float)"], "strides": [[3, 1]]}
    >>> call = {"id": 2, "name": "aten::relu", "ctrl_deps": 1, "attrs": [],
    ...         "inputs": {"values": [x], **side}, "outputs": {"values": [y], **side}}
    >>> with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
    ...     json.dump({"schema": "1.1.1-chakra.0.0.4", "nodes": [call]}, file)
    ...     file.flush()
    ...     graph = read(file.name)
    >>> graph.kinds, graph.bytes.tolist()
    (['input', 'aten::relu'], [24])
    """
    recorded, joined = load(path), None
    if profile is not None:
        joined = _Joined(recorded, kineto.load(profile))
        recorded = joined.recorded
    name = Path(path).name.partition(".")[0]
    return _graph(recorded, joined, name, step, device_type)


def profile(
    path: str | os.PathLike[str],
    *,
    graph: str | os.PathLike[str],
    step: int | None = None,
    device_type: str | None = None,
    batch: int | None = None,
) -> Profile:
    """The times of two traces joined: a row per measured op that is no view, a column per step.

    Arguments and errors are those of :func:`read`; ``batch`` is kept.

    Examples
    --------
    >>> import json, pathlib, tempfile
    >>> call = {"id": 2, "name": "aten::rand", "attrs": [{"name": "rf_id", "value": 9}]}
    >>> timed = {"ph": "X", "cat": "cpu_op", "name": "aten::rand", "pid": 1, "tid": 1, "ts": 0,
    ...          "dur": 5, "args": {"Record function id": 9}}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     one, other = pathlib.Path(folder, "et.json"), pathlib.Path(folder, "kineto.json")
    ...     _ = one.write_text(json.dumps({"schema": "1.1.1-chakra.0.0.4", "nodes": [call]}))
    ...     _ = other.write_text(json.dumps({"traceEvents": [timed]}))
    ...     profile(other, graph=one).median().tolist()
    [5e-06]
    """
    joined = _Joined(load(graph), kineto.load(path))
    recorded = joined.recorded
    modules = joined.modules()
    steps = chosen(recorded.calls, step, recorded.source, modules)
    names, ops = steps[0]
    rows = _Rows(recorded, names, ops.tolist())
    labels = _labels(rows, modules)
    seconds = rows.seconds(joined, steps)
    view = np.array([row.view for row in rows.flow.rows])
    measured = np.flatnonzero(~view & ~np.isnan(seconds).all(axis=1))
    for note in joined.notes():
        warn(note)
    return Profile(
        tuple(labels.names[i] for i in measured.tolist()),
        tuple(labels.kinds[i] for i in measured.tolist()),
        seconds[measured],
        device_type or joined.trace.device_type,
        batch,
        np.array([rows.flow.rows[i].output_bytes for i in measured.tolist()], dtype=np.uint64),
    )


# ---- nodes ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Argument:
    """An argument or result: the tensors in it, and how the tables of costs see it."""

    refs: tuple[Ref, ...]
    value: Any
    is_list: bool = False

    def part(self, i: int) -> _Argument:
        """What the i-th op of a list op has of it."""
        if not self.is_list:
            return self
        return _Argument(self.refs[i : i + 1], self.value[i]) if self.refs else self


@dataclass(frozen=True, eq=False)
class Recorded:
    """An execution trace: its calls in the order in which they were made.

    Attributes
    ----------
    source, schema : str
        The file, and the version of the format.
    calls : Calls
        Start and end are node ids, which grow with time.
    record : int64 [n_calls]
        Record function ids; 0: none.
    nodes, attributes : list of dict
        As in the file.
    """

    source: str
    schema: str
    calls: Calls
    record: NDArray[np.int64]
    nodes: list[dict[str, Any]]
    attributes: list[dict[str, Any]]
    _given: dict[int, list[_Argument]] = field(default_factory=dict, repr=False)

    def arguments(self, call: int) -> list[_Argument]:
        """What a call was given."""
        if call not in self._given:
            self._given[call] = _arguments(self.nodes[call].get("inputs"))
        return self._given[call]

    def results(self, call: int) -> list[_Argument]:
        """What a call gave back."""
        return _arguments(self.nodes[call].get("outputs"))

    def argument_names(self, call: int) -> dict[tuple[int, int], tuple[str, ...]]:
        """What an op and the ops that made it call each tensor that they are given."""
        names: dict[tuple[int, int], tuple[str, ...]] = {}
        while call >= 0 and self.calls.roles[call] in (OP, WRAPPER):
            words = self.schema_of(call).names
            for word, argument in zip(words, self.arguments(call), strict=False):
                for ref in argument.refs:
                    key = (ref.tensor, ref.storage)
                    names[key] = (*names.get(key, ()), word)
            call = int(self.calls.parent[call])
        return names

    def schema_of(self, call: int) -> Schema:
        """The schema of a call's op, as far as it is recorded."""
        text = self.attributes[call].get("op_schema")
        return schema_of(text if isinstance(text, str) else "")


def load(path: str | os.PathLike[str]) -> Recorded:
    """The calls of an execution trace.

    Raises
    ------
    InputError
        The file cannot be read or unpacked, is cut off, or is no execution trace of a version that
        names its tensors' storages; the node is named.
    """
    source = os.fspath(path)
    document = parse_json(read_bytes(path), path)
    schema = document.get("schema") if isinstance(document, dict) else None
    nodes = document.get("nodes") if isinstance(document, dict) else None
    if not isinstance(schema, str) or not isinstance(nodes, list):
        raise InputError(f"{source} is no execution trace: it has no schema and nodes")
    if "chakra" not in schema:
        raise InputError(
            f"{source} has schema {schema}; versions named 'chakra' are read: record it with "
            "PyTorch 2.2 or later"
        )
    nodes = sorted(_checked(nodes, source), key=lambda node: int(node["id"]))
    position = {node["id"]: i for i, node in enumerate(nodes)}
    if len(position) < len(nodes):
        twice = next(i for i, n in Counter(node["id"] for node in nodes).items() if n > 1)
        raise InputError(f"{source} has two nodes with id {twice}")
    # The root is its own parent; a parent that is not there was called before the recording.
    above = [position.get(node.get("ctrl_deps"), -1) for node in nodes]
    parent = [p if p < i else -1 for i, p in enumerate(above)]
    late = next((i for i, p in enumerate(above) if p > i), None)
    if late is not None:
        raise InputError(
            f"{source}: node {nodes[late]['id']} ({nodes[late]['name']!r}) is called by a later one"
        )
    attributes = list(map(_attributes, nodes))
    calls = _calls(nodes, attributes, parent)
    return Recorded(source, schema, calls, _numbers(attributes, "rf_id", 0), nodes, attributes)


def _checked(nodes: Sequence[Any], source: str) -> Iterator[dict[str, Any]]:
    for i, node in enumerate(nodes):
        number, name = (
            (node.get("id"), node.get("name")) if isinstance(node, dict) else (None, None)
        )
        if type(number) is not int or not 0 <= number < 2**53 or not isinstance(name, str):
            raise InputError(f"{source}: node {i} of the list has id {number!r} and name {name!r}")
        if type(node.get("ctrl_deps")) not in (int, type(None)):
            raise InputError(f"{source}: node {number} has ctrl_deps {node['ctrl_deps']!r}")
        yield node


def _attributes(node: dict[str, Any]) -> dict[str, Any]:
    attributes = node.get("attrs")
    rows = attributes if isinstance(attributes, list) else ()
    return {str(row.get("name")): row.get("value") for row in rows if isinstance(row, dict)}


def _numbers(attributes: Sequence[dict[str, Any]], name: str, default: int) -> NDArray[np.int64]:
    values = [each.get(name) for each in attributes]
    whole = [v if type(v) is int and -(2**62) < v < 2**62 else default for v in values]
    return np.array(whole, dtype=np.int64)


def _calls(
    nodes: Sequence[dict[str, Any]], attributes: Sequence[dict[str, Any]], parent: list[int]
) -> Calls:
    names = [str(node["name"]) for node in nodes]
    start = [int(node["id"]) for node in nodes]
    end = [number + 0.5 for number in start]
    for call in range(len(nodes) - 1, -1, -1):
        if parent[call] >= 0:
            end[parent[call]] = max(end[parent[call]], end[call])
    # Scope 7 is what users mark, and the process and its threads.
    marked = (_numbers(attributes, "scope", 0) == 7).tolist()
    roles = [role_of(name, annotation=mark) for name, mark in zip(names, marked, strict=True)]
    return Calls(
        names,
        np.array(roles, dtype=np.uint8),
        np.array(parent, dtype=np.int32),
        np.array(start, dtype=np.float64),
        np.array(end, dtype=np.float64),
        _numbers(attributes, "seq_id", -1),
        np.zeros(len(nodes), dtype=bool),
    )


# ---- arguments --------------------------------------------------------------------------------


def _arguments(side: Any) -> list[_Argument]:
    """The arguments on one side of a node."""
    side = side if isinstance(side, dict) else {}
    values, types = side.get("values"), side.get("types")
    if not isinstance(values, list) or not isinstance(types, list):
        return []
    shapes, strides = (_padded(side.get(key), len(values)) for key in ("shapes", "strides"))
    rows = zip(values, _padded(types, len(values)), shapes, strides, strict=True)
    seen: dict[tuple[Any, ...], Ref] = {}
    return [_argument(*row, seen) for row in rows]


def _padded(values: Any, n: int) -> list[Any]:
    values = values if isinstance(values, list) else []
    return [*values[:n], *[None] * (n - len(values))]


def _argument(
    value: Any, kind: Any, shape: Any, strides: Any, seen: dict[tuple[Any, ...], Ref]
) -> _Argument:
    """An argument; a tensor among ``seen`` is the same object again."""
    types = TENSOR_TYPE.findall(kind) if isinstance(kind, str) else []
    if types and kind.startswith("GenericList") and isinstance(value, list):
        n = len(value)
        rows = zip(value, _padded(types, n), _padded(shape, n), _padded(strides, n), strict=True)
        refs = tuple(ref for row in rows if (ref := _ref(*row, seen)) is not None)
        return _Argument(refs, [ref.value for ref in refs], is_list=True)
    if types:
        ref = _ref(value, types[0], shape, strides, seen)
        return _Argument((), None) if ref is None else _Argument((ref,), ref.value)
    return _Argument((), None if value == "<None>" else value)


def _ref(
    value: Any, dtype: Any, shape: Any, strides: Any, seen: dict[tuple[Any, ...], Ref]
) -> Ref | None:
    """A tensor from ``[tensor id, storage id, offset, elements, bytes of one, device]``."""
    if not isinstance(value, list) or len(value) < 5:
        return None
    if any(type(v) is not int or not 0 <= v < 2**48 for v in value[:5]) or not value[1]:
        return None
    number, storage, offset, elements, width = value[:5]
    known = tensor_of(shape, dtype, strides)
    if known is None:
        known = Tensor(f"u{8 * width}", (elements,))
    reach = elements
    if known.strides is not None and elements:
        reach = 1 + sum((n - 1) * s for n, s in zip(known.shape, known.strides, strict=True))
    bytes_ = min(known.shown_bytes or elements * width, 2**62)
    ref = Ref(number, storage, bytes_, min((offset + reach) * width, 2**62), known)
    return seen.setdefault((number, storage, known.shape), ref)


# ---- joined with times ------------------------------------------------------------------------


class _Joined:
    """A Kineto trace, and which of its calls each call of the execution trace is.

    Raises
    ------
    InputError
        The two are not of one step.
    """

    def __init__(self, recorded: Recorded, trace: Trace) -> None:
        self.trace = trace
        timed = {number: call for call, number in enumerate(trace.record.tolist()) if number > 0}
        if not timed:
            raise InputError(
                f"{trace.source} has no record function ids: it was not recorded together with "
                f"{recorded.source}. Record both in one step: torch.profiler.profile(..., "
                "execution_trace_observer=ExecutionTraceObserver().register_callback('step.json'))"
            )
        found = [timed.get(number, -1) if number > 0 else -1 for number in recorded.record.tolist()]
        #: The call of the trace per call of the execution trace, int32; -1: none.
        self.call = np.array(found, dtype=np.int32)
        launches = (self.call >= 0) & np.append(trace.calls.launches, False)[self.call]
        #: The execution trace, which now knows which of its calls launch kernels.
        self.recorded = replace(recorded, calls=replace(recorded.calls, launches=launches))
        ops = recorded.calls.ops.tolist()
        pairs = [
            (recorded.calls.names[c], trace.calls.names[found[c]]) for c in ops if found[c] >= 0
        ]
        other = [f"{a!r} in one is {b!r} in the other" for a, b in pairs if a != b]
        if other or 2 * len(pairs) < len(ops):
            why = other[0] if other else f"{len(pairs)} of {len(ops)} ops are in both"
            raise InputError(f"{recorded.source} and {trace.source} are not of one step: {why}")

    def notes(self) -> list[str]:
        """What is wrong with the trace, or left out of its times."""
        ops = self.call[self.recorded.calls.ops]
        return self.trace.notes(ops[ops >= 0])

    def modules(self) -> list[str]:
        """Module paths per call of the execution trace."""
        paths = self.trace.calls.modules
        return [paths[call] if call >= 0 else "" for call in self.call.tolist()]

    def elapsed(self, steps: _Steps) -> float:
        """Seconds from the start of the first op of a step to the end of the last one, median."""
        calls = [self.call[ops] for _, ops in steps]
        return self.trace.elapsed([each[each >= 0] for each in calls])

    def seconds(self, ops: NDArray[np.int32]) -> NDArray[np.float64]:
        """Measured time of ops of the execution trace; NaN: not in the other."""
        calls = self.call[ops]
        seconds = np.full(len(ops), np.nan)
        known = calls >= 0
        if not known.any():
            raise InputError(f"{self.trace.source} has no op of the step that is asked for")
        seconds[known] = self.trace.seconds(calls[known])
        return seconds


# ---- rows -------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Op:
    """An op, or one of those that a list op stands for, as a row of the graph.

    ``position`` is that of the call among the ops of a step, ``share`` the part of its time.
    """

    name: str
    call: int
    position: int
    share: float
    inputs: list[_Argument]
    outputs: list[_Argument]


def _parted(recorded: Recorded, name: str, call: int, position: int) -> list[_Op]:
    """The op of a call; of a list op, one per tensor of its lists."""
    inputs, outputs = recorded.arguments(call), recorded.results(call)
    kind = bare(recorded.calls.names[call])
    lengths = {len(each.refs) for each in (*inputs, *outputs) if each.is_list and each.refs}
    n = lengths.pop() if len(lengths) == 1 else 1
    if n < 2 or not ("_foreach_" in kind or kind.startswith("_fused_")):
        return [_Op(name, call, position, 1.0, inputs, outputs)]
    parts = [([a.part(i) for a in inputs], [a.part(i) for a in outputs]) for i in range(n)]
    sizes = [sum(r.bytes for each in (*ins, *outs) for r in each.refs) for ins, outs in parts]
    total = sum(sizes)
    return [
        _Op(f"{name}[{i}]", call, position, size / total if total else 1 / n, ins, outs)
        for i, ((ins, outs), size) in enumerate(zip(parts, sizes, strict=True))
    ]


def _changed(recorded: Recorded, op: _Op) -> list[Ref]:
    """What an op changes in place: by its schema, or else by its name and its results."""
    schema = recorded.schema_of(op.call)
    kind = recorded.calls.names[op.call]
    if schema.changed:
        refs = [each.refs for i, each in enumerate(op.inputs) if i in schema.changed]
        return [ref for each in refs for ref in each]
    if schema.shows or is_view(kind):
        return []
    given = [ref for each in op.outputs for ref in each.refs]
    stored = {ref.storage for ref in given}
    back = [ref for each in op.inputs for ref in each.refs if ref.storage in stored]
    first = op.inputs[0].refs if op.inputs and kind.endswith("_") else ()
    return [*back, *(ref for ref in first if not given)]


class _Rows:
    """A graph of a step: rows of ops and of placeholders, and the edges between them."""

    def __init__(self, recorded: Recorded, names: Sequence[str], ops: Sequence[int]) -> None:
        self.recorded = recorded
        self.flow = Dataflow()
        self.ops: dict[int, _Op] = {}
        phases = recorded.calls.phases
        for position, (name, call) in enumerate(zip(names, ops, strict=True)):
            words = recorded.argument_names(call)
            for op in _parted(recorded, name, call, position):
                read = [ref for each in op.inputs for ref in each.refs]
                row = self.flow.add(
                    [(ref, words.get((ref.tensor, ref.storage), ())) for ref in read],
                    [ref for each in op.outputs for ref in each.refs],
                    _changed(recorded, op),
                    phases[call],
                )
                self.ops[row] = op

    def __len__(self) -> int:
        return len(self.flow.rows)

    def column(self, of_op: Callable[[int, _Op], _T], default: _T) -> list[_T]:
        """A value per row, from the op of each; placeholders have the default."""
        rows = ((row, self.ops.get(row)) for row in range(len(self)))
        return [default if op is None else of_op(row, op) for row, op in rows]

    def seconds(self, joined: _Joined, steps: _Steps) -> NDArray[np.float64]:
        """Measured times, float64 [n_rows, n_steps]; NaN: a placeholder, or not measured."""
        measured = np.stack([joined.seconds(ops) for _, ops in steps], axis=1)
        seconds = np.full((len(self), len(steps)), np.nan)
        for row, op in self.ops.items():
            seconds[row] = measured[op.position] * op.share
        return seconds


# ---- placeholders -----------------------------------------------------------------------------


def _kind_of(storage: Storage) -> str:
    """What was there before the step: told by who changes it, and by what it is called."""
    ref, words = storage.given, storage.arguments
    assert ref is not None
    if "o" in storage.changed and storage.phase != "o":
        return "parameter"
    if storage.changed:
        return "buffer"
    if ref.value.numel == 1:
        return "constant"
    if any(word in _STATISTICS for word in words):
        return "buffer"
    return "parameter" if any(_WEIGHT.match(word) for word in words) else "input"


def _sets(rows: _Rows) -> dict[int, int]:
    """The parameter that each placeholder of an optimizer's state and each update belongs to.

    What an optimizer's ops read and make on the way belongs together, but for gradients, for what
    is never changed, and for single numbers, such as a norm over all parameters.
    """
    flow = rows.flow
    leader: dict[int, int] = {}

    def find(key: int) -> int:
        while leader.setdefault(key, key) != key:
            leader[key] = key = leader[leader[key]]
        return key

    def belongs(storage: Storage) -> bool:
        own = bool(storage.changed) if storage.given else storage.phase == "o"
        return own and storage.bytes > _NUMBER

    for _, read, written in flow.updates:
        targets = list(filter(belongs, written))
        for storage in filter(belongs, (*targets[1:], *read) if targets else ()):
            leader[find(id(storage))] = find(id(targets[0]))
    parameter = {
        find(id(storage)): row
        for row, storage in flow.given.items()
        if _kind_of(storage) == "parameter"
    }
    members = {row: parameter.get(find(id(s)), -1) for row, s in flow.given.items()}
    for op, _, _ in flow.updates:
        members[op] = members.get(flow.rows[op].alias_of, -1)
    return {row: owner for row, owner in members.items() if owner >= 0}


@dataclass(frozen=True)
class _Labels:
    """Name, kind and module of each row, and the parameter whose set it is in."""

    names: list[str]
    kinds: list[str]
    modules: list[str]
    colocation: list[str]


def _labels(rows: _Rows, modules: Sequence[str]) -> _Labels:
    calls = rows.recorded.calls
    names = rows.column(lambda _, op: op.name, "")
    kinds = rows.column(lambda _, op: calls.names[op.call], "")
    paths = rows.column(lambda _, op: modules[op.call], "")
    sets = _sets(rows)
    taken = set(names)
    slots: Counter[int] = Counter()
    for row, storage in sorted(rows.flow.given.items(), key=lambda item: item[1].phase == "o"):
        kinds[row] = _kind_of(storage)
        paths[row] = paths[storage.reader]
        owner = sets.get(row, row)
        if owner != row:
            base = f"optim.slot{slots[owner]}.{names[owner]}"
            slots[owner] += 1
            paths[row] = f"optim.{paths[owner]}".rstrip(".")
        else:
            words = sorted(storage.arguments, key=lambda word: not _WEIGHT.match(word))
            base = f"{names[storage.reader]}.{(words or kinds[row : row + 1])[0]}"
            if storage.phase == "o" and kinds[row] == "buffer":
                base, paths[row] = f"optim.{base}", f"optim.{paths[row]}".rstrip(".")
        names[row] = _unused(base, taken)
    colocation = [names[sets[row]] if row in sets else "" for row in range(len(rows))]
    return _Labels(names, kinds, paths, colocation)


def _unused(base: str, taken: set[str]) -> str:
    name, n = base, 1
    while name in taken:
        n += 1
        name = f"{base}#{n}"
    taken.add(name)
    return name


# ---- the graph --------------------------------------------------------------------------------

_ASSUMED = (
    "tensors that are read before they are written: parameters where the optimizer changes them or "
    "an op calls them weight or bias, buffers where they are changed otherwise, constants where "
    "they have one element, else inputs",
    "edges: what calls outside of PyTorch's dispatcher read and write is not recorded",
)

_VIEWS_FREE = "views take no time, whatever was measured of them"


def _graph(
    recorded: Recorded,
    joined: _Joined | None,
    name: str,
    step: int | None,
    device_type: str | None,
) -> OpGraph:
    """The graph of a step; warns of what its figures leave out."""
    modules = recorded.calls.modules if joined is None else joined.modules()
    steps = chosen(recorded.calls, step, recorded.source, modules)
    names, ops = steps[0]
    rows = _Rows(recorded, names, ops.tolist())
    labels = _labels(rows, modules)
    view = [row.view for row in rows.flow.rows]
    costs = rows.column(lambda row, op: _cost(recorded, op, view[row]), Cost(0, 0, True))
    notes = _unknown(labels.kinds, costs)
    if rows.flow.several:
        first = labels.names[rows.flow.several[0]]
        notes.append(
            f"{len(rows.flow.several)} ops change several tensors in place, {first!r} first: each "
            "is bound to the device of the first that it changes"
        )
    columns: dict[str, Any] = {
        "name": labels.names,
        "kind": labels.kinds,
        "module": labels.modules,
        "phase": rows.column(lambda _, op: recorded.calls.phases[op.call], "f"),
        "colocation": labels.colocation,
        "output": [_output(rows, row) for row in range(len(rows))],
        "flops": [min(each.flops, 2**62) for each in costs],
        "bytes_accessed": [min(each.bytes, 2**62) for each in costs],
        "output_bytes": [min(row.output_bytes, 2**62) for row in rows.flow.rows],
        "param_bytes": _resident(rows, labels.kinds),
        "view": view,
        "alias_of": [row.alias_of for row in rows.flow.rows],
    }
    meta: dict[str, Any] = {"framework": f"torch execution trace {recorded.schema}"}
    timed = []
    if joined is not None:
        seconds, more = _times(rows, joined, steps, np.array(view), columns["bytes_accessed"])
        columns["time"] = {device_type or joined.trace.device_type: seconds}
        notes += more
        timed = [_VIEWS_FREE]
        meta["steps"] = len(steps)
        meta["step_seconds"] = joined.elapsed(steps)
    meta["mode"] = "train" if "b" in columns["phase"] else "infer"
    for note in notes:
        warn(note)
    meta["assumed"] = [*_ASSUMED, *timed, *notes]
    edges = [(src, dst, t) for dst, row in enumerate(rows.flow.rows) for src, t in row.edges]
    src, dst, tensor = np.array(edges, dtype=np.int64).reshape(-1, 3).T
    sizes = np.array([*rows.flow.sizes, 0], dtype=np.int64)
    return OpGraph(
        columns,
        {"src": src, "dst": dst, "tensor": tensor, "bytes": np.where(tensor < 0, 0, sizes[tensor])},
        name=name,
        meta=meta,
    )


def _cost(recorded: Recorded, op: _Op, view: bool) -> Cost:
    if view:
        return Cost(0, 0, True)
    inputs = [each.value for each in op.inputs]
    return cost(recorded.calls.names[op.call], inputs, [each.value for each in op.outputs])


def _unknown(kinds: Sequence[str], costs: Sequence[Cost]) -> list[str]:
    counts = Counter(kind for kind, each in zip(kinds, costs, strict=True) if not each.known)
    if not counts:
        return []
    listed = ", ".join(f"{kind} ({n})" for kind, n in sorted(counts.items()))
    return [f"FLOPs of {counts.total()} ops are not known, they count by their bytes: {listed}"]


def _output(rows: _Rows, row: int) -> str:
    given = rows.flow.given.get(row)
    if given is not None:
        return str(given.given.value) if given.given else ""
    refs = [ref for each in rows.ops[row].outputs for ref in each.refs]
    return ";".join(str(ref.value) for ref in refs)


def _resident(rows: _Rows, kinds: Sequence[str]) -> list[int]:
    kept = ("parameter", "buffer")
    return [
        row.output_bytes if kind in kept else 0
        for row, kind in zip(rows.flow.rows, kinds, strict=True)
    ]


def _times(
    rows: _Rows,
    joined: _Joined,
    steps: _Steps,
    view: NDArray[np.bool_],
    moved: Sequence[int],
) -> tuple[NDArray[np.float64], list[str]]:
    """Seconds per row, and what to say of them. What was not measured has its bytes' share."""
    notes = joined.notes()
    measured = rows.seconds(joined, steps)
    runs = np.zeros(len(rows), dtype=bool)
    runs[list(rows.ops)] = True
    known = ~np.isnan(measured).all(axis=1)
    seconds = np.zeros(len(rows))
    seconds[known] = np.nanmedian(measured[known], axis=1)
    seconds[view] = 0.0
    lacking = runs & ~known & ~view
    if lacking.any():
        work = np.array(moved, dtype=np.float64)
        rate = seconds.sum() / max(float(work[known].sum()), 1.0)
        seconds[lacking] = work[lacking] * rate
        notes.append(
            f"{int(lacking.sum())} of {len(rows.ops)} ops are not in {joined.trace.source}: their "
            f"times are by their bytes, at the {rate * 1e9:.3g} s/GB of the others"
        )
    return seconds, notes
