"""Program: the user's graph, the graph that runs, and which of the user's ops each op serves.

Transforms (:mod:`loadmaster.transforms`) make programs, and programs compose. Columns of the
program say where an op came from; names of ops do not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.model.graph import OpGraph
from loadmaster.model.recipe import Recipe

#: The roles of the ops of a graph that runs; a program's ``role`` is an index into them. "compute"
#: and "update" (the optimizer's) do the user's work. A "slice" hands parts of a tensor to the parts
#: of an op. A "join" puts the results of parts together. A "collective" sums over replicas.
ROLES = ("compute", "slice", "join", "collective", "update")
COMPUTE, SLICE, JOIN, COLLECTIVE, UPDATE = range(len(ROLES))

#: The columns of a program, one value per op of the graph that runs.
COLUMNS = ("serves", "part", "parts", "replica", "micro", "share", "role", "rank")


@dataclass(frozen=True)
class Split:
    """An op that was split: its name ``op``, along which ``dimension``, into how many (``n``)."""

    op: str
    dimension: str
    n: int

    def __str__(self) -> str:
        return f"{self.op} along {self.dimension} into {self.n}"


@dataclass(frozen=True, eq=False)
class Program:
    """The user's graph, the graph that runs, and columns that say what each op that runs is.

    Attributes
    ----------
    source : OpGraph
        The user's graph.
    graph : OpGraph
        The graph that runs: ``source`` itself where nothing was transformed.
    serves : int32 [graph.n_ops]
        The op of ``source`` that each op is, is a part of, or was added for.
    part, parts : int32 [graph.n_ops]
        Which part of a split op each op is, from 0, and of how many; 0 of 1: the op is whole.
    replica : int32 [graph.n_ops]
        The data-parallel replica that each op is in; -1: none.
    micro : int32 [graph.n_ops]
        The micro-batch that each op works on; -1: the whole batch.
    share : float64 [graph.n_ops]
        Part of its origin's work that each op does; 1 for added ops.
    role : uint8 [graph.n_ops]
        What each op is there for: an index into :data:`ROLES`.
    rank : int32 [graph.n_ops]
        The device of the recipe's mesh that each op is on, row-major, of a pipeline of the mesh
        inside of its stage; -1: any device.
    splits : tuple of Split
        Ops that were split, in this order.
    notes : tuple of str
        What the user should know.
    recipe : Recipe or None
        What was split how, where a recipe says it.
    batches : int
        Batches of the user's graph that a step of the graph that runs works on.
    """

    source: OpGraph
    graph: OpGraph
    serves: NDArray[np.int32]
    part: NDArray[np.int32]
    parts: NDArray[np.int32]
    replica: NDArray[np.int32]
    micro: NDArray[np.int32]
    share: NDArray[np.float64]
    role: NDArray[np.uint8]
    rank: NDArray[np.int32]
    splits: tuple[Split, ...] = ()
    notes: tuple[str, ...] = ()
    recipe: Recipe | None = None
    batches: int = 1

    def __repr__(self) -> str:
        return f"Program({self.graph!r} of {self.source!r})"

    @classmethod
    def of(cls, graph: OpGraph) -> Program:
        """The graph as it is. O(V).

        >>> import loadmaster as lm
        >>> graph = lm.read("example:lenet")
        >>> Program.of(graph).graph is graph
        True
        """
        return cls.made(graph, graph, np.arange(graph.n_ops, dtype=np.int32))

    @classmethod
    def made(cls, source: OpGraph, graph: OpGraph, serves: NDArray[Any], **columns: Any) -> Program:
        """A program from some of its columns; an absent column is that of ops that are whole."""
        all_columns = {**_of_whole_ops(graph.n_ops), **columns}
        if "role" not in all_columns:
            all_columns["role"] = user_roles(source)[serves]
        return cls(source, graph, serves.astype(np.int32, copy=False), **all_columns)

    def then(self, later: Program) -> Program:
        """The program and a later one as one; the later one's source is :attr:`graph`. O(V)."""
        of, own = later.serves, later.own
        before = {name: getattr(self, name)[of] for name in ("part", "parts", "replica", "micro")}
        return Program(
            self.source,
            later.graph,
            self.serves[of],
            np.where(own, 0, before["part"] * later.parts + later.part).astype(np.int32),
            np.where(own, 1, before["parts"] * later.parts).astype(np.int32),
            np.where(later.replica >= 0, later.replica, before["replica"]).astype(np.int32),
            np.where(later.micro >= 0, later.micro, before["micro"]).astype(np.int32),
            np.where(own, 1.0, self.share[of] * later.share),
            np.where(own | ~self.own[of], later.role, self.role[of]).astype(np.uint8),
            np.where(later.rank >= 0, later.rank, self.rank[of]).astype(np.int32),
            self.splits + later.splits,
            self.notes + later.notes,
            later.recipe or self.recipe,
            self.batches * later.batches,
        )

    def with_graph(self, source: OpGraph, graph: OpGraph) -> Program:
        """The same program, of graphs with the same ops and other columns."""
        return replace(self, source=source, graph=graph)

    @property
    def is_plain(self) -> bool:
        """True if the user's graph runs as it is."""
        return self.graph is self.source

    @cached_property
    def own(self) -> NDArray[np.bool_]:
        """Mask of the ops that the program adds to the user's, bool [graph.n_ops]."""
        return is_added(self.role)

    @cached_property
    def origin(self) -> NDArray[np.int32]:
        """The op of ``source`` that each op is or is a part of; -1: the program's own."""
        return np.where(self.own, -1, self.serves).astype(np.int32)

    @cached_property
    def _by_origin(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Ops of the graph that runs by origin, and where each origin's begin."""
        order = np.argsort(self.origin, kind="stable")
        return order, np.searchsorted(self.origin[order], np.arange(self.source.n_ops + 1))

    def parts_of(self, op: int) -> NDArray[np.intp]:
        """The ops of the graph that runs which do the work of a user's op, in their order."""
        order, start = self._by_origin
        return order[start[op] : start[op + 1]]

    @cached_property
    def first(self) -> NDArray[np.intp]:
        """For each of the user's ops, the op of the graph that runs which has its name, or else the
        first that does its work; -1: none. intp [source.n_ops].
        """
        order, start = self._by_origin
        first = np.append(order, -1)[np.where(np.diff(start) > 0, start[:-1], len(order))]
        position = {name: at for at, name in enumerate(self.graph.names)}
        named = np.array([position.get(name, -1) for name in self.source.names], dtype=np.intp)
        return np.where(named >= 0, named, first)

    @cached_property
    def whole(self) -> NDArray[np.int32]:
        """For each of the user's ops, the one op that does all its work; -1: several ops do.

        int32 [source.n_ops].
        """
        order, start = self._by_origin
        return np.where(np.diff(start) == 1, order[start[:-1]], -1).astype(np.int32)

    @property
    def changes(self) -> str:
        """The words "replicated", "split" or both; empty where the user's graph runs as it is."""
        applied = {"replicated": (self.replica >= 0).any(), "split": (self.parts > 1).any()}
        return " and ".join(word for word, holds in applied.items() if holds)

    def label(self, op: int) -> str:
        """The name of an op of the graph that runs in messages, in terms of the user's ops.

        >>> import loadmaster as lm
        >>> twice = lm.transforms.replicate(lm.read("example:lenet"), 2)
        >>> twice.label(twice.graph.index("convolution@r1"))
        "'convolution', replica 1"
        """
        name = repr(self.source.names[self.serves[op]])
        words = [f"the {ROLES[self.role[op]]} for {name}" if self.own[op] else name]
        is_placed = self.rank[op] >= 0
        words += [f"replica {self.replica[op]}"] if self.replica[op] >= 0 and not is_placed else []
        words += [f"micro-batch {self.micro[op]}"] if self.micro[op] >= 0 else []
        words += [f"part {self.part[op]}"] if self.parts[op] > 1 and not is_placed else []
        return ", ".join(words) + (f" ({self.place_of(op)})" if is_placed else "")

    def place_of(self, op: int) -> str:
        """The place of an op on the mesh, in words: of a pipeline, on that of its stage."""
        is_pipeline = self.recipe is not None and self.recipe.micro is not None
        return f"device {self.rank[op]} of {'its stage' if is_pipeline else 'the mesh'}"


@lru_cache(maxsize=16)
def _of_whole_ops(n: int) -> Mapping[str, Any]:
    """The columns of ``n`` ops that are whole, but for what each op serves and is there for."""
    none = np.broadcast_to(np.int32(-1), n)
    return {
        "part": np.broadcast_to(np.int32(0), n),
        "parts": np.broadcast_to(np.int32(1), n),
        "replica": none,
        "micro": none,
        "rank": none,
        "share": np.broadcast_to(np.float64(1.0), n),
    }


def user_roles(graph: OpGraph) -> NDArray[np.uint8]:
    """The roles of a user's own ops: the optimizer's update, the others compute."""
    return np.where(graph.updates, np.uint8(UPDATE), np.uint8(COMPUTE))


def is_added(role: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """True for each role that is of an op which a transform adds."""
    return np.isin(role, (SLICE, JOIN, COLLECTIVE))
