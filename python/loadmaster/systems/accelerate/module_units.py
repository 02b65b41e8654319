"""Units of placement where only modules are moved: what must be on one device, for every op.

A system that moves the arguments of a module to the module's device, and nothing else, runs code
between modules wherever its operands happen to be. So a module is divided into the modules below it
only where its own code reads nothing from two places. A module whose code joins what it is given
with what the modules in it make (a residual connection) stays whole, as its caller's tensors can be
anywhere. Where code joins only what is made inside of it, those modules share a device.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from loadmaster.judge.problem import Problem
from loadmaster.model.graph import BUFFER, CONSTANT, INPUT, PARAMETER, OpGraph
from loadmaster.transforms.base import ranks
from loadmaster.transforms.weight_streaming import above

#: Beginning of the module path of an optimizer's op in a traced graph.
_OPTIMIZER = "optim."


@dataclass
class _ModuleOps:
    """A module's own ops of the forward pass, other ops, and what it holds."""

    forward: list[int] = field(default_factory=list)
    other: list[int] = field(default_factory=list)
    stored: list[int] = field(default_factory=list)
    children: dict[str, None] = field(default_factory=dict)


@dataclass(frozen=True)
class Units:
    """The ops of the reduced graph by unit.

    Attributes
    ----------
    of_op : int32 [n_reduced]
        The unit of each op; units are numbered in the order in which their first ops run.
    n : int
        How many there are.
    whole : tuple of str
        Modules that are not divided, in the model's order.
    with_inputs : int
        The unit of the model's own code that reads its inputs or what the model itself holds; -1:
        there is none.
    """

    of_op: NDArray[np.int32]
    n: int
    whole: tuple[str, ...]
    with_inputs: int

    def sums(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Values per reduced op, summed per unit: [n] or [n, columns]."""
        total = np.zeros((self.n, *values.shape[1:]))
        np.add.at(total, self.of_op, values)
        return total


def units_of(problem: Problem, root: str) -> Units:
    """The units of a problem's model. O(V log V + E x depth of modules).

    Parameters
    ----------
    problem : Problem
        Of the user's own ops.
    root : str
        What the model is called in the module paths; empty: paths are the model's own.
    """
    return _Tree(problem, root).units()


class _Tree:
    """The modules of a graph, and the sets of ops that share a device, as a union of sets."""

    def __init__(self, problem: Problem, root: str) -> None:
        self.problem = problem
        self.graph: OpGraph = problem.model
        self.reduced = problem.reduced
        self.parent = list(range(self.graph.n_ops + 1))
        #: Stands for the device of the model's inputs.
        self.inputs = self.graph.n_ops
        stored = np.isin(self.graph.stands_for, (PARAMETER, BUFFER))
        by_name = {self.graph.names[i]: self.graph.modules[i] for i in np.flatnonzero(stored)}
        #: Module of every op, as the model names it; None outside of it.
        self.of: list[str | None] = []
        for module in self.graph.modules:
            inside = by_name.get(module.removeprefix(_OPTIMIZER), module)
            self.of.append(_below(inside, root))
        self.modules: dict[str, _ModuleOps] = {"": _ModuleOps()}
        rank, runs = ranks(self.graph), self.reduced.runs
        self.order = [int(op) for op in np.argsort(rank, kind="stable")]
        for op in self.order:
            self._file(op, is_stored=bool(stored[op]), runs=bool(runs[op]))
        self.reads: dict[int, list[int]] = {}
        self.read_by: dict[int, list[int]] = {}
        owner = self.reduced.shows[self.graph.src].tolist()
        carries = np.ones(self.graph.n_edges, dtype=bool)
        if self.graph.tensor is not None:
            carries = self.graph.tensor >= 0
        for a, b, data in zip(owner, self.graph.dst.tolist(), carries.tolist(), strict=True):
            if data and runs[b]:
                self.reads.setdefault(b, []).append(a)
                self.read_by.setdefault(a, []).append(b)

    def _file(self, op: int, *, is_stored: bool, runs: bool) -> None:
        path = self.of[op]
        if path is None or not (is_stored or runs):
            return
        paths = above(path)
        for outer, inner in pairwise(paths):
            self.modules.setdefault(outer, _ModuleOps()).children.setdefault(inner)
        module = self.modules.setdefault(path, _ModuleOps())
        if is_stored:
            module.stored.append(op)
        elif self.graph.phases[op] in ("", "f"):
            module.forward.append(op)
        else:
            module.other.append(op)

    def is_of_optimizer(self, op: int) -> bool:
        """True if an op is the optimizer's, or a slot of it."""
        return self.graph.modules[op].startswith(_OPTIMIZER)

    # -- sets of ops ---------------------------------------------------------------------------

    def find(self, op: int) -> int:
        """The representative of the set of an op."""
        while self.parent[op] != op:
            self.parent[op] = self.parent[self.parent[op]]
            op = self.parent[op]
        return op

    def join(self, a: int, b: int) -> None:
        """Two ops share a device."""
        a, b = self.find(a), self.find(b)
        self.parent[max(a, b)] = min(a, b)

    # -- what is divided -------------------------------------------------------------------------

    def units(self) -> Units:
        """Divides from the top, and joins what cannot be apart."""
        whole = tuple(self._divide(""))
        self._join_parameters()
        sets = self.problem.graph.colocation.tolist()
        first: dict[int, int] = {}
        for reduced, op in enumerate(self.reduced.op_of.tolist()):
            self.join(first.setdefault(sets[reduced], op), op)
        self._join_what_is_outside()
        number: dict[int, int] = {}
        runs = self.reduced.runs
        for op in self.order:
            if runs[op]:
                number.setdefault(self.find(op), len(number))
        of_op = [number[self.find(op)] for op in self.reduced.op_of.tolist()]
        return Units(
            np.array(of_op, dtype=np.int32),
            len(number),
            whole,
            number.get(self.find(self.inputs), -1),
        )

    def _divide(self, path: str) -> Iterator[str]:
        """Divides a module if it can be; those that stay whole."""
        module = self.modules[path]
        has_parts = any(self._runs_below(child) for child in module.children)
        if path and not (has_parts and self._is_divisible(path)):
            self._join_all(path)
            yield path
            return
        self._join_own(path)
        for child in module.children:
            yield from self._divide(child)

    def _runs_below(self, path: str) -> bool:
        module = self.modules[path]
        return bool(module.forward) or any(self._runs_below(child) for child in module.children)

    def _join_all(self, path: str) -> None:
        """A module with all below it on one device."""
        ops = list(self._below(path))
        for op in ops[1:]:
            self.join(ops[0], op)

    def _below(self, path: str) -> Iterator[int]:
        module = self.modules[path]
        yield from (*module.stored, *module.forward, *module.other)
        for child in module.children:
            yield from self._below(child)

    def _is_divisible(self, path: str) -> bool:
        """True if a module's own code never joins what it is given with anything else, unless the
        model itself is given it: that is where its inputs are.
        """
        own = self.modules[path].forward
        # Own ops that read each other are one piece of code.
        piece = {op: op for op in own}

        def of(op: int) -> int:
            while piece[op] != op:
                piece[op] = piece[piece[op]]
                op = piece[op]
            return op

        for op in own:
            for source in self.reads.get(op, []):
                if source in piece:
                    piece[of(op)] = of(source)
        sources: dict[int, set[str | int]] = {}
        for op in own:
            sources_of = {self._source(source, path) for source in self.reads.get(op, [])}
            sources.setdefault(of(op), set()).update(one for one in sources_of if one is not None)
        return all(
            len(sources_of) < 2
            or not any(isinstance(one, int) for one in sources_of - {self.inputs})
            for sources_of in sources.values()
        )

    def _source(self, op: int, path: str) -> str | int | None:
        """The source that a module's code reads from: a module below it, or an op that is not in
        it.
        """
        if self.graph.stands_for[op] == INPUT:
            return self.inputs
        if self.graph.stands_for[op] == CONSTANT:
            return None
        holder = self.of[op]
        if holder == path:
            return None
        if holder is not None and path in above(holder):
            return holder
        return op

    def _join_own(self, path: str) -> None:
        """The code of a divided module runs where what it reads is; backward, where it is read."""
        module = self.modules[path]
        for op in module.forward:
            reads = [r for r in self.reads.get(op, []) if self.graph.stands_for[r] != CONSTANT]
            for source in reads:
                is_input = self.graph.stands_for[source] == INPUT
                self.join(op, self.inputs if is_input else source)
            for reader in () if reads else self.read_by.get(op, [])[:1]:
                self.join(op, reader)
        for op in reversed(module.other):
            readers = [r for r in self.read_by.get(op, []) if self.of[r] is not None]
            for near in (readers or self.reads.get(op, []))[:1]:
                self.join(op, near)

    def _join_parameters(self) -> None:
        """Joins each stored tensor with its readers, unless it is handed down as an argument."""
        runs_at = self.reduced.op_of[self.reduced.map]
        for op in range(self.graph.n_ops):
            if self.graph.stands_for[op] not in (PARAMETER, BUFFER) or self.of[op] is None:
                continue
            readers = self.read_by.get(op, [])
            for reader in readers:
                where = self.of[reader]
                if where is not None and self.of[op] not in above(where):
                    self.join(op, reader)
            if readers:
                self.join(op, int(runs_at[op]))
            # The hook of the model itself puts what the model itself holds where its inputs are.
            if readers and self.of[op] == "" and not self.is_of_optimizer(op):
                self.join(op, self.inputs)

    def _join_what_is_outside(self) -> None:
        """Joins each op outside of the model with the last op that it reads, or with a reader."""
        for op in self.order:
            if self.of[op] is None and self.reduced.runs[op]:
                near = [a for a in self.reads.get(op, []) if not self.graph.placeholder[a]]
                near = near[-1:] or self.read_by.get(op, [])[:1]
                for other in near:
                    self.join(op, other)


def _below(path: str, root: str) -> str | None:
    """A module's path below the root; None: it is outside."""
    if not root:
        return path
    if path == root:
        return ""
    return path[len(root) + 1 :] if path.startswith(f"{root}.") else None
