"""The columns of a graph as they grow, one entry per op and per edge, in program order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from loadmaster.base.reached import reached
from loadmaster.model.arguments import renumbered
from loadmaster.readers.shared.columns import OPS, GraphColumns
from loadmaster.readers.shared.names import unique
from loadmaster.readers.xla.program import Type


@dataclass(frozen=True, slots=True)
class XlaValue:
    """A value of the program: its type, the op that gives it, and the tensor that carries it.

    ``op`` is -1 for a value that needs no op: a literal or a counter. ``number`` is the number that
    a literal is, where that is known. ``size`` is the bytes of the tensor; a view has the bytes of
    the tensor that it shows. ``owner`` is the op in whose storage the value lies. ``carried`` says
    that the loop around the value keeps this storage from trip to trip.
    """

    type: Type
    op: int = -1
    tensor: int = -1
    size: int = 0
    owner: int = -1
    number: complex | None = None
    carried: bool = False


class XlaColumns(GraphColumns):
    """Ops and edges, appended."""

    def __init__(self) -> None:
        super().__init__(f"{OPS} runs args")
        self.paths: list[str] = []
        #: The op that opens the outermost loop or branch around each op; -1: none.
        self.groups: list[int] = []
        #: Elementwise ops: an element of the result needs only the same element of the operands.
        self.elementwise: set[int] = set()
        #: Ops that stay though nothing reads them: they have effects.
        self.keep: set[int] = set()
        self.colocation: dict[int, str] = {}
        #: Trips of each loop, by the op that opens it; None: not known.
        self.loops: dict[int, int | None] = {}
        self._n_tensors = 0
        self._drawn: set[tuple[int, int]] = set()

    def __len__(self) -> int:
        return len(self.paths)

    def add(self, *, name: str, kind: str, path: str = "", group: int = -1, **row: Any) -> int:
        """Append an op; its index. Columns that are not given say nothing."""
        filled = {
            "name": name,
            "kind": kind,
            "module": "",
            "phase": "f",
            "flops": 0,
            "bytes_accessed": 0,
            "output_bytes": 0,
            "param_bytes": 0,
            "alias_of": -1,
            "runs": 1,
            "output": "",
            "args": None,
            **row,
            "view": int(row.get("view", False)),
        }
        for column, value in filled.items():
            self.ops[column].append(value)
        self.paths.append(path)
        self.groups.append(group)
        return len(self.paths) - 1

    def placeholder(self, name: str, kind: str, type_: Type) -> XlaValue:
        """Append an op for a tensor that is there before the step."""
        op = self.add(name=name, kind=kind, output_bytes=type_.nbytes, output=str(type_))
        return self.value(op, type_)

    def value(self, op: int, type_: Type) -> XlaValue:
        """A new tensor of an op."""
        self._n_tensors += 1
        return XlaValue(type_, op, self._n_tensors - 1, type_.nbytes, op)

    def edge(self, src: int, dst: int, tensor: int = -1, size: int = 0) -> None:
        """Append an edge, unless it is there; a control edge if it has no tensor."""
        if tensor < 0 and (src, dst) in self._drawn:
            return
        self._drawn.add((src, dst))
        self.draw(src, dst, tensor, size)

    def read(self, values: Sequence[XlaValue], op: int) -> list[int]:
        """Append edges that carry values to an op, each tensor once. Gives the ops before it."""
        tensors = {(v.op, v.tensor): v for v in values if v.op >= 0}
        for v in tensors.values():
            self.edge(v.op, op, v.tensor, v.size)
        return [v.op for v in tensors.values()]

    def drop_unread(self, outputs: Sequence[XlaValue]) -> list[int]:
        """Leaves out the ops that neither an output nor an effect needs. Gives the ops of outputs,
        as they are then.
        """
        n = len(self)
        alias_of = self.ops["alias_of"]
        before: list[list[int]] = [[] for _ in range(n)]
        for src, dst in zip(self.edges["src"], self.edges["dst"], strict=True):
            before[dst].append(src)
        alive = [kind in ("input", "parameter", "buffer") for kind in self.ops["kind"]]

        def needs(op: int) -> list[int]:
            homes = (alias_of[op], self.groups[op])
            return [*before[op], *(home for home in homes if home >= 0)]

        ends = [v.op for v in outputs if v.op >= 0]
        needed = reached([*ends, *self.keep], needs)
        rows = [op for op in range(n) if alive[op] or op in needed]
        self._take(rows)
        at = {op: i for i, op in enumerate(rows)}
        return [at[op] for op in ends]

    def _take(self, rows: list[int]) -> None:
        index = {op: i for i, op in enumerate(rows)}
        index[-1] = -1
        for column, values in self.ops.items():
            self.ops[column] = [values[op] for op in rows]
        self.ops["alias_of"] = [index[op] for op in self.ops["alias_of"]]
        self.ops["args"] = [
            None if call is None else renumbered(call, index.__getitem__)
            for call in self.ops["args"]
        ]
        self.paths = [self.paths[op] for op in rows]
        self.groups = [index[self.groups[op]] for op in rows]
        self.colocation = {index[op]: text for op, text in self.colocation.items() if op in index}
        self.loops = {index[op]: trips for op, trips in self.loops.items() if op in index}
        kept = [
            (index[src], index[dst], tensor, size)
            for src, dst, tensor, size in zip(*self.edges.values(), strict=True)
            if src in index and dst in index
        ]
        for position, column in enumerate(self.edges):
            self.edges[column] = [edge[position] for edge in kept]

    def trips(self) -> dict[str, int | None]:
        """Trips of each loop, by the name of the op that opens it."""
        names = unique(self.ops["name"])
        return {names[op]: trips for op, trips in self.loops.items()}

    def colocated(self, names: list[str]) -> dict[str, list[str]]:
        """The column of ops that stay together."""
        colocation = [
            self.colocation.get(op, names[group] if group >= 0 else "")
            for op, group in enumerate(self.groups)
        ]
        return {"colocation": colocation}
