"""Readers and writers of data, from the tensors and storages of calls in their order.

A tensor has a number, and its storage has one. PyTorch uses numbers again once they are free. So a
storage is followed from the op that made it. What an op reads comes from the later of two ops: the
one that gave out that very tensor, and the one that last changed the storage in place.

A tensor that is read before it is written was there when the step began: it is a placeholder. A
tensor is a placeholder, too, if the storage of its number cannot hold it: no op gave it out, and no
tensor of its size and type lies there. Then the storage was freed, and no recorded op made what has
its number now.

O(ops + tensors read), and a control edge per op that read a storage before it was changed in place.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from loadmaster.readers.pytorch.aten_costs import AtenTensor


@dataclass(frozen=True, slots=True)
class TensorRef:
    """A tensor that an op reads or gives out.

    Attributes
    ----------
    tensor, storage : int
        Numbers of the tensor and of its storage.
    bytes : int
        Bytes of the storage that the tensor shows.
    reaches : int
        Bytes from the start of the storage to its end.
    value : Tensor
        Type and shape.
    """

    tensor: int
    storage: int
    bytes: int
    reaches: int
    value: AtenTensor


@dataclass(frozen=True, slots=True)
class NamedRef:
    """A tensor that an op reads, with the names of the arguments it stands for."""

    ref: TensorRef
    names: Sequence[str]


@dataclass(slots=True)
class FlowRow:
    """An op or a placeholder as it comes out, with the edges into it.

    Attributes
    ----------
    alias_of : int
        The row that owns the storage that a view shows, or that is changed in place; -1: none.
    output_bytes : int
        Bytes of new storage.
    edges : list of (source row, tensor id or -1)
    """

    view: bool = False
    alias_of: int = -1
    output_bytes: int = 0
    edges: list[tuple[int, int]] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Storage:
    """Memory that an op made, or that was there when the step began.

    Attributes
    ----------
    owner : int
        The row that made it.
    bytes : int
        From its start to the furthest end of a tensor in it.
    phase : str
        The phase of the op that made it, or else of the first op that read it.
    preset : TensorRef or None
        The first tensor seen in it, if it was there before the step.
    reader : int
        The op that read it first, if it was there before the step.
    arguments : dict of str
        The names of the arguments as which ops read it, in order.
    changed : set of str
        Phases in which it was changed in place.
    """

    owner: int
    bytes: int
    phase: str
    preset: TensorRef | None = None
    reader: int = -1
    arguments: dict[str, None] = field(default_factory=dict)
    changed: set[str] = field(default_factory=set)
    # Edges: from the op that last wrote all or part, and per tensor from the op that gave it out.
    latest: tuple[int, int] = (-1, -1)
    tensors: dict[int, tuple[int, int]] = field(default_factory=dict)
    readers: list[int] = field(default_factory=list)
    _forms: set[tuple[str, int]] = field(default_factory=set)

    def give(self, ref: TensorRef, edge: tuple[int, int]) -> None:
        """Files a tensor that an op gave out, with the edge that carries it."""
        self.tensors[ref.tensor] = edge
        self._forms.add((ref.value.dtype, ref.value.numel))

    def has(self, ref: TensorRef) -> bool:
        """True if a tensor with the storage's number can lie in it.

        Autograd and Python make tensors in a storage that no op gave out. They have the type and
        size of one that an op gave out.
        """
        if self.preset is not None or ref.tensor in self.tensors:
            return True
        return (ref.value.dtype, ref.value.numel) in self._forms

    def source(self, tensor: int) -> tuple[int, int]:
        """The edge that carries a tensor of the storage."""
        return max(self.tensors.get(tensor, self.latest), self.latest)


class Dataflow:
    """The rows of a graph as its ops come in, in the order in which they ran."""

    def __init__(self) -> None:
        self.rows: list[FlowRow] = []
        #: Bytes per tensor id.
        self.sizes: list[int] = []
        #: Storages that were there before, by the row of their placeholder.
        self.preset: dict[int, Storage] = {}
        #: Per op of an optimizer, the storages that it reads, and those it changes or gives out.
        self.updates: list[tuple[int, list[Storage], list[Storage]]] = []
        #: Ops that change more than one storage in place.
        self.several: list[int] = []
        self._now: dict[int, Storage] = {}

    def add(
        self,
        inputs: Sequence[NamedRef],
        outputs: Sequence[TensorRef],
        written: Iterable[TensorRef],
        phase: str,
    ) -> int:
        """Adds an op: what it reads, under which names, gives out and changes. Gives its row.

        Every tensor that the op changes must be among those that it reads.
        """
        read = [(each.ref, self._at(each.ref, each.names, phase)) for each in inputs]
        op = self._row()
        edges = dict.fromkeys(storage.source(ref.tensor) for ref, storage in read)
        changed = list({id(s): s for s in (self._now[ref.storage] for ref in written)}.values())
        waits = {reader for storage in changed for reader in storage.readers}
        waits -= {source for source, _ in edges}
        self.rows[op].edges = [*edges, *((reader, -1) for reader in sorted(waits))]
        for storage in changed:
            storage.changed.add(phase)
            storage.latest = (op, self._tensor(storage.bytes))
            storage.readers = []
        for _, storage in read:
            storage.readers.append(op)
            if storage.reader < 0:
                storage.reader = op
        self._give_out(op, outputs, [storage for _, storage in read], changed, phase)
        if phase == "o":
            own = [*changed, *(self._now[ref.storage] for ref in outputs)]
            self.updates.append((op, [storage for _, storage in read], own))
        return op

    def _give_out(
        self,
        op: int,
        outputs: Sequence[TensorRef],
        read: Sequence[Storage],
        changed: Sequence[Storage],
        phase: str,
    ) -> None:
        """Files what an op gives out: new storage, what it changed, or a view of what it read."""
        row = self.rows[op]
        shown: list[Storage] = []
        results: list[Storage] = []
        for ref in outputs:
            storage = self._now.get(ref.storage)
            if storage is not None and any(storage is each for each in changed):
                storage.give(ref, storage.latest)
                continue
            edge = (op, self._tensor(ref.bytes))
            if storage is None or not any(storage is each for each in (*read, *results)):
                storage = Storage(op, ref.reaches, phase, latest=edge)
                self._now[ref.storage] = storage
                row.output_bytes += ref.reaches
                results.append(storage)
            elif not any(storage is each for each in results):
                shown.append(storage)
            storage.give(ref, edge)
        if changed and not results:
            row.alias_of = changed[0].owner
            if len(changed) > 1:
                self.several.append(op)
        elif shown and not results:
            row.view, row.alias_of = True, shown[0].owner

    def _at(self, ref: TensorRef, names: Sequence[str], phase: str) -> Storage:
        """The storage of a tensor that is read."""
        storage = self._now.get(ref.storage)
        if storage is None or not storage.has(ref):
            owner = self._row()
            edge = (owner, self._tensor(ref.reaches))
            storage = Storage(owner, ref.reaches, phase, preset=ref, latest=edge)
            self._now[ref.storage] = self.preset[owner] = storage
            self.rows[owner].output_bytes = ref.reaches
        elif storage.preset is not None and ref.reaches > storage.bytes:
            storage.bytes = self.rows[storage.owner].output_bytes = ref.reaches
            if storage.latest[0] == storage.owner:
                self.sizes[storage.latest[1]] = ref.reaches
        storage.arguments.update(dict.fromkeys(names))
        return storage

    def _row(self) -> int:
        self.rows.append(FlowRow())
        return len(self.rows) - 1

    def _tensor(self, size: int) -> int:
        self.sizes.append(size)
        return len(self.sizes) - 1


# ---- schemas ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Schema:
    """An op's arguments by its schema.

    Attributes
    ----------
    names : tuple of str
    changed : frozenset of int
        Positions of the arguments that it changes in place.
    shows : bool
        Whether a result lies in the storage of an argument that is not changed.
    """

    names: tuple[str, ...] = ()
    changed: frozenset[int] = frozenset()
    shows: bool = False


_ARGUMENT = re.compile(r"(?P<type>.+?) (?P<name>\w+)(=.*)?$")


@lru_cache(maxsize=4096)
def schema_of(text: str) -> Schema:
    """Reads an op's schema; an empty or odd one says nothing.

    >>> schema_of("aten::add_(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)")
    Schema(names=('self', 'other', 'alpha'), changed=frozenset({0}), shows=False)
    >>> schema_of("aten::t(Tensor(a) self) -> Tensor(a)").shows
    True
    """
    call, _, result = text.rpartition(" -> ")
    _, _, arguments = call.partition("(")
    parts = [_ARGUMENT.match(part) for part in _parted(arguments.removesuffix(")")) if part != "*"]
    matched = [each for each in parts if each is not None]
    if len(matched) < len(parts):
        return Schema()
    changed = frozenset(i for i, each in enumerate(matched) if "!" in each["type"])
    shows = re.search(r"\([a-z]+( -> \*)?\)", result) is not None
    return Schema(tuple(each["name"] for each in matched), changed, shows)


def _parted(text: str) -> Iterator[str]:
    """The parts between commas that stand in no brackets."""
    depth, begin = 0, 0
    for at, letter in enumerate(text):
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and depth == 0:
            yield text[begin:at].strip()
            begin = at + 1
    if text[begin:].strip():
        yield text[begin:].strip()
