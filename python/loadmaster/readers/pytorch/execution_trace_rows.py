"""Rows of a graph from the ops of an execution trace: ops, placeholders, and their names."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from loadmaster.base.disjoint_sets import DisjointSets
from loadmaster.readers.pytorch.aten_costs import bare, is_view
from loadmaster.readers.pytorch.execution_trace_nodes import RecordedTrace, TraceArgument
from loadmaster.readers.shared.dataflow import Dataflow, NamedRef, Storage, TensorRef

_T = TypeVar("_T")

#: Names of arguments: PyTorch's ops call their weights and their statistics so.
_WEIGHT = re.compile(r"weight|bias|params$|[wb]_[ih]h")
_STATISTICS = frozenset({"running_mean", "running_var"})

#: Bytes of one number.
_NUMBER = 8


@dataclass(frozen=True, eq=False)
class TraceOp:
    """An op, or one of those that a list op stands for, as a row of the graph.

    ``position`` is the call's among the ops of a step, ``share`` the part of the call's time.
    """

    name: str
    call: int
    position: int
    share: float
    inputs: list[TraceArgument]
    outputs: list[TraceArgument]


def _parted(recorded: RecordedTrace, name: str, call: int, position: int) -> list[TraceOp]:
    """The op of a call; of a list op, one per tensor of its lists."""
    inputs, outputs = recorded.arguments(call), recorded.results(call)
    kind = bare(recorded.calls.names[call])
    lengths = {len(each.refs) for each in (*inputs, *outputs) if each.is_list and each.refs}
    n = lengths.pop() if len(lengths) == 1 else 1
    if n < 2 or not ("_foreach_" in kind or kind.startswith("_fused_")):
        return [TraceOp(name, call, position, 1.0, inputs, outputs)]
    parts = [([a.part(i) for a in inputs], [a.part(i) for a in outputs]) for i in range(n)]
    sizes = [sum(r.bytes for each in (*ins, *outs) for r in each.refs) for ins, outs in parts]
    total = sum(sizes)
    return [
        TraceOp(f"{name}[{i}]", call, position, size / total if total else 1 / n, ins, outs)
        for i, ((ins, outs), size) in enumerate(zip(parts, sizes, strict=True))
    ]


def _changed(recorded: RecordedTrace, op: TraceOp) -> list[TensorRef]:
    """Tensors that an op changes in place: by its schema, or else by its name and results."""
    schema = recorded.schema_of(op.call)
    kind = recorded.calls.names[op.call]
    if schema.changed:
        refs = [each.refs for i, each in enumerate(op.inputs) if i in schema.changed]
        return [ref for each in refs for ref in each]
    if schema.shows or is_view(kind):
        return []
    results = [ref for each in op.outputs for ref in each.refs]
    stored = {ref.storage for ref in results}
    back = [ref for each in op.inputs for ref in each.refs if ref.storage in stored]
    first = op.inputs[0].refs if op.inputs and kind.endswith("_") else ()
    return [*back, *(ref for ref in first if not results)]


class TraceRows:
    """A graph of a step: rows of ops and of placeholders, and the edges between them."""

    def __init__(self, recorded: RecordedTrace, names: Sequence[str], ops: Sequence[int]) -> None:
        self.recorded = recorded
        self.flow = Dataflow()
        self.ops: dict[int, TraceOp] = {}
        phases = recorded.calls.phases
        for position, (name, call) in enumerate(zip(names, ops, strict=True)):
            words = recorded.argument_names(call)
            for op in _parted(recorded, name, call, position):
                read = [ref for each in op.inputs for ref in each.refs]
                row = self.flow.add(
                    [NamedRef(ref, words.get((ref.tensor, ref.storage), ())) for ref in read],
                    [ref for each in op.outputs for ref in each.refs],
                    _changed(recorded, op),
                    phases[call],
                )
                self.ops[row] = op

    def __len__(self) -> int:
        return len(self.flow.rows)

    def column(self, of_op: Callable[[int, TraceOp], _T], default: _T) -> list[_T]:
        """A value per row, from the op of each; placeholders have the default."""
        rows = ((row, self.ops.get(row)) for row in range(len(self)))
        return [default if op is None else of_op(row, op) for row, op in rows]


# ---- placeholders -----------------------------------------------------------------------------


def kind_of(storage: Storage) -> str:
    """The kind of a placeholder, told by the ops that change it and by its argument names."""
    ref, words = storage.preset, storage.arguments
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


def _sets(rows: TraceRows) -> dict[int, int]:
    """The parameter that each placeholder of an optimizer's state and each update belongs to.

    Tensors that an optimizer's ops read and make on the way belong to the same parameter. There are
    exceptions: gradients, tensors that are never changed, and single numbers, such as a norm over
    all parameters.
    """
    flow = rows.flow
    sets = DisjointSets[int]()

    def belongs(storage: Storage) -> bool:
        own = bool(storage.changed) if storage.preset else storage.phase == "o"
        return own and storage.bytes > _NUMBER

    for _, read, written in flow.updates:
        targets = list(filter(belongs, written))
        for storage in filter(belongs, (*targets[1:], *read) if targets else ()):
            sets[sets.find(id(storage))] = sets.find(id(targets[0]))
    parameter = {
        sets.find(id(storage)): row
        for row, storage in flow.preset.items()
        if kind_of(storage) == "parameter"
    }
    members = {row: parameter.get(sets.find(id(s)), -1) for row, s in flow.preset.items()}
    for op, _, _ in flow.updates:
        members[op] = members.get(flow.rows[op].alias_of, -1)
    return {row: owner for row, owner in members.items() if owner >= 0}


@dataclass(frozen=True)
class RowLabels:
    """Name, kind and module of each row, and the parameter whose set it is in."""

    names: list[str]
    kinds: list[str]
    modules: list[str]
    colocation: list[str]


def labels_of(rows: TraceRows, modules: Sequence[str]) -> RowLabels:
    """Names and kinds of all rows; ``modules`` are the paths of all calls."""
    calls = rows.recorded.calls
    names = rows.column(lambda _, op: op.name, "")
    kinds = rows.column(lambda _, op: calls.names[op.call], "")
    paths = rows.column(lambda _, op: modules[op.call], "")
    sets = _sets(rows)
    taken = set(names)
    slots: Counter[int] = Counter()
    for row, storage in sorted(rows.flow.preset.items(), key=lambda item: item[1].phase == "o"):
        kinds[row] = kind_of(storage)
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
    return RowLabels(names, kinds, paths, colocation)


def _unused(base: str, taken: set[str]) -> str:
    name, n = base, 1
    while name in taken:
        n += 1
        name = f"{base}#{n}"
    taken.add(name)
    return name
