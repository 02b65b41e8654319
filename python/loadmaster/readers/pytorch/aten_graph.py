"""A graph of ATen ops as it grows, op by op in the program's order: for readers of PyTorch.

A value knows the op that owns its storage. So views and in-place ops are told apart from ops that
make something new, and control edges keep a write behind the reads before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from loadmaster.base.disjoint_sets import DisjointSets
from loadmaster.readers.pytorch.aten_costs import ITEM_BYTES, AtenTensor, bare, cost
from loadmaster.readers.shared.arguments import told
from loadmaster.readers.shared.columns import FLOAT_NAMES, OPS, GraphColumns, counts, without_flops
from loadmaster.readers.shared.formulas import Cost


@dataclass(frozen=True, slots=True)
class CallArguments:
    """The arguments of a call: values, lists of them, plain ones."""

    positional: Sequence[Any]
    keywords: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class GraphValue:
    """A tensor of the graph.

    ``op`` gives the value out. ``owner`` made the ``storage`` that it shows; an op with several
    results has several storages. ``written`` is the last in-place op whose result it shows (-1:
    none). ``id`` is its tensor's number among the edges.
    """

    op: int
    tensor: AtenTensor
    owner: int
    storage: int
    written: int = -1
    id: int = -1


@dataclass(frozen=True, slots=True)
class OpPlace:
    """The place of an op in the model: its name (empty: that of its kind), module and phase."""

    name: str = ""
    module: str = ""
    phase: str = "f"


@dataclass(frozen=True, slots=True)
class Effects:
    """The storage of an op's results.

    ``view_of`` is the value whose storage the results show. ``writes`` are the values that the op
    changes; with ``in_place`` it returns the first of them.
    """

    view_of: GraphValue | None = None
    writes: Sequence[GraphValue] = ()
    in_place: bool = False


class AtenGraph(GraphColumns):
    """Columns of an opgraph document.

    >>> graph = AtenGraph()
    >>> x = graph.placeholder("x", "input", AtenTensor("f32", (2, 3)))
    >>> [y] = graph.op("aten.t.default", [x], [AtenTensor("f32", (3, 2))], effects=Effects(x))
    >>> _ = graph.op("aten.mm.default", [x, y], [AtenTensor("f32", (2, 2))])
    >>> graph.document("products", {})["ops"]["flops"]
    [0, 0, 24]
    """

    def __init__(self) -> None:
        super().__init__(f"{OPS} args")
        self.unknown: Counter[str] = Counter()  # kinds
        self._sizeless: Counter[str] = Counter()  # element types
        self._n_tensors = self._n_storages = 0
        self._last_write: dict[int, int] = {}  # the op, by storage
        self._reads: dict[int, dict[int, None]] = {}  # the ops since that write
        self._together = DisjointSets[int]()  # ops that share a device
        self._float_bytes: Counter[str] = Counter()

    @property
    def n_ops(self) -> int:
        """Ops so far."""
        return len(self.ops["name"])

    # -- ops -------------------------------------------------------------------------------------

    def placeholder(self, name: str, kind: str, tensor: AtenTensor, module: str = "") -> GraphValue:
        """A tensor that is there when the step begins: parameter, buffer, input, constant."""
        stored = tensor.nbytes if kind in ("parameter", "buffer") else 0
        op = self._add(
            name=name,
            kind=kind,
            module=module,
            output_bytes=tensor.nbytes,
            param_bytes=stored,
            output=str(tensor),
        )
        self._float_bytes[tensor.dtype] += tensor.nbytes
        self._look_at(tensor)
        return self._new(op, tensor)

    def op(
        self,
        kind: str,
        inputs: Sequence[Any],
        outputs: Sequence[AtenTensor | None],
        *,
        place: OpPlace = OpPlace(),
        effects: Effects = Effects(),
        work: Cost | None = None,
        call: CallArguments | None = None,
    ) -> list[GraphValue | None]:
        """An op, and its results.

        ``inputs`` are the arguments of its schema in order: values, lists of them, plain ones.
        ``work``, where given, is the op's cost instead of its kind's. ``call`` is how the op was
        called, if not by ``inputs``.
        """
        call = call or CallArguments(inputs)
        view_of, writes, in_place = effects.view_of, effects.writes, effects.in_place
        read = list(_values(inputs))
        shared = view_of or (writes[0] if in_place else None)
        if view_of is not None:
            work = Cost(0, 0, True)
        elif work is None:
            work = cost(kind, [tensor_of(argument) for argument in inputs], outputs)
        if not work.known:
            self.unknown[kind] += 1
        results = [tensor for tensor in outputs if tensor is not None]
        for tensor in results:
            self._look_at(tensor)
        op = self._add(
            name=place.name or bare(kind),
            kind=kind,
            module=place.module,
            phase=place.phase,
            flops=work.flops,
            bytes_accessed=work.bytes,
            output_bytes=0 if shared else sum(t.nbytes for t in results),
            view=int(view_of is not None),
            alias_of=shared.owner if shared else -1,
            output=";".join("none" if tensor is None else str(tensor) for tensor in outputs),
            args=told(call.positional, call.keywords, _op_of),
        )
        before = {op for value in read for op in (value.op, value.owner, value.written)}
        for value in read:
            self._connect(value, op)
        if view_of is None:
            self._order(op, read, writes, before)
        if shared is None:
            return [tensor if tensor is None else self._new(op, tensor) for tensor in outputs]
        written = op if in_place else shared.written
        return [
            t if t is None else GraphValue(op, t, shared.owner, shared.storage, written)
            for t in outputs
        ]

    def getitem(
        self, value: GraphValue, index: int, *, name: str, module: str = "", phase: str = "f"
    ) -> GraphValue:
        """Takes one result, by its index, out of several: it forwards its producer's tensor."""
        op = self._add(
            name=name,
            kind="getitem",
            module=module,
            phase=phase,
            view=1,
            alias_of=value.owner,
            output=str(value.tensor),
            args=told([value, index], {}, _op_of),
        )
        self._connect(value, op)
        return replace(value, op=op)

    def share_device(self, a: int, b: int) -> None:
        """Keep two ops on one device: a parameter and its update, say."""
        a, b = self._together.find(a), self._together.find(b)
        self._together[max(a, b)] = min(a, b)

    def _new(self, op: int, tensor: AtenTensor) -> GraphValue:
        """A value in a storage of its own."""
        self._n_storages += 1
        return GraphValue(op, tensor, op, self._n_storages - 1)

    def _look_at(self, tensor: AtenTensor) -> None:
        if tensor.dtype not in ITEM_BYTES:
            self._sizeless[tensor.dtype] += 1

    def _add(self, **row: Any) -> int:
        for column, values in self.ops.items():
            values.append(row.get(column, _DEFAULTS[column]))
        return self.n_ops - 1

    # -- edges -----------------------------------------------------------------------------------

    def _connect(self, value: GraphValue, op: int) -> None:
        if value.id < 0:
            value.id = self._n_tensors
            self._n_tensors += 1
        self.draw(value.op, op, value.id, value.tensor.shown_bytes)

    def _order(
        self, op: int, read: Sequence[GraphValue], writes: Sequence[GraphValue], before: set[int]
    ) -> None:
        """Control edges: a read follows the last write of an alias, a write the reads before it."""
        for value in read:
            last = self._last_write.get(value.storage, -1)
            if last not in (-1, value.written):
                self._control(last, op, before)
        for value in writes:
            for reader in self._reads.pop(value.storage, ()):
                self._control(reader, op, before)
            self._last_write[value.storage] = op
            if self.ops["kind"][value.owner] in ("parameter", "buffer"):
                self.share_device(value.owner, op)
        changed = {value.storage for value in writes}
        for value in read:
            if value.storage not in changed:
                self._reads.setdefault(value.storage, {})[op] = None

    def _control(self, source: int, op: int, before: set[int]) -> None:
        if source not in before:
            before.add(source)
            self.draw(source, op)

    # -- the whole -------------------------------------------------------------------------------

    def notes(self) -> list[str]:
        """Notes on what the costs leave out, one sentence each."""
        notes = []
        if self.unknown:
            notes.append(without_flops(counts(self.unknown)))
        if self._sizeless:
            notes.append(
                "tensors of an element type of unknown size count as 0 bytes: "
                + counts(self._sizeless)
            )
        return notes

    def float_type(self) -> str:
        """The floating-point type with the most bytes of placeholders; empty if none has any."""
        by_bytes = [(n, t) for t, n in self._float_bytes.items() if t in FLOAT_NAMES]
        return FLOAT_NAMES[max(by_bytes)[1]] if by_bytes else ""

    def colocated(self, names: list[str]) -> dict[str, list[str]]:
        """The column of ops that stay together."""
        colocation = [""] * self.n_ops
        for op in self._together:
            colocation[op] = names[self._together.find(op)]
        return {"colocation": colocation}


_DEFAULTS: dict[str, Any] = {
    **dict.fromkeys(OPS.split(), 0), "module": "", "phase": "f", "alias_of": -1, "args": None,
}  # fmt: skip


def _values(arguments: Sequence[Any]) -> Iterator[GraphValue]:
    """The distinct values among arguments, those in lists too."""
    seen = set()
    for argument in arguments:
        for each in argument if isinstance(argument, (list, tuple)) else (argument,):
            if isinstance(each, GraphValue) and each not in seen:
                seen.add(each)
                yield each


def _op_of(argument: Any) -> int | None:
    return argument.op if isinstance(argument, GraphValue) else None


def tensor_of(argument: Any) -> Any:
    """An argument with the tensors of values for these, in a list too."""
    if isinstance(argument, GraphValue):
        return argument.tensor
    if isinstance(argument, (list, tuple)):
        return [each.tensor if isinstance(each, GraphValue) else each for each in argument]
    return argument
