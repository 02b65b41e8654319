"""A program of ATen ops as PyTorch exports it, in memory or in a file, and its graph.

`torch_export` and `torch_fx` bring what they read into this form; sizes may still be expressions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from loadmaster.base.errors import InputError
from loadmaster.base.warnings import warn
from loadmaster.model.graph import LAUNCHES, OpGraph
from loadmaster.readers.pytorch.aten_costs import (
    AtenTensor,
    is_in_place,
    is_known,
    is_view,
    written,
)
from loadmaster.readers.pytorch.aten_graph import (
    AtenGraph,
    CallArguments,
    Effects,
    GraphValue,
    OpPlace,
)
from loadmaster.readers.shared.formulas import Cost
from loadmaster.readers.shared.open_dims import Dim, close, size_of
from loadmaster.readers.shared.symbolic import evaluate, symbols_of

Size = int | str  # a number, or an expression of symbols


@dataclass(frozen=True, slots=True)
class Sized:
    """A tensor before its symbols have numbers; strides None where they are not told."""

    dtype: str
    sizes: tuple[Size, ...]
    strides: tuple[Size, ...] | None = None


@dataclass(frozen=True, slots=True)
class ValueRef:
    """An argument that is a value of the program."""

    name: str


@dataclass(frozen=True, slots=True)
class Open:
    """An argument that is a size of the program, which may be an expression."""

    size: Size


@dataclass(frozen=True, slots=True)
class AtenPlaceholder:
    """A value that is there at the start; ``tied_to`` names another with the same storage."""

    value: str
    name: str
    kind: str
    meta: Sized
    module: str = ""
    tied_to: str = ""


@dataclass(frozen=True, slots=True)
class AtenNode:
    """An op. ``arguments`` stand in its schema's order: `ValueRef`, lists, `AtenProgram`, plain
    values. ``call`` has them as positional ones and keywords, with `Open` for sizes.

    ``results`` are the values it gives out, by name; a value that nothing reads has no name.
    ``several`` says that they come as a tuple or list, and a ``getitem`` takes each out. ``work``
    and ``shares`` ("view", "in_place" or "") are for kinds that are not ATen's.
    """

    name: str
    kind: str
    arguments: Sequence[Any]
    results: Sequence[tuple[str, Sized | None]]
    call: CallArguments
    several: bool = False
    module: str = ""
    phase: str = "f"
    work: Cost | None = None
    shares: str | None = None


@dataclass(slots=True)
class AtenProgram:
    """Placeholders, nodes in order, and which values are copied back at the end.

    ``ranges`` are the least and the largest size of each symbol; None: unbounded. ``copies`` are
    pairs of a value and the placeholder that it is copied into.
    """

    placeholders: list[AtenPlaceholder] = field(default_factory=list)
    nodes: list[AtenNode] = field(default_factory=list)
    copies: list[tuple[str, str]] = field(default_factory=list)
    ranges: Mapping[str, tuple[int | None, int | None]] = field(default_factory=dict)


@dataclass(slots=True)
class Lowered:
    """The place of a program's nodes and values in its graph.

    ``ops`` are those of nodes, by name; ``changed`` the values that each op writes into, by its
    index; ``copies`` the ops that copy a value back, in the order of the program's copies, -1 where
    nothing is to copy.
    """

    values: dict[str, GraphValue] = field(default_factory=dict)
    ops: dict[str, int] = field(default_factory=dict)
    changed: dict[int, Sequence[GraphValue]] = field(default_factory=dict)
    copies: list[int] = field(default_factory=list)


def to_graph(
    program: AtenProgram,
    *,
    name: str,
    framework: str,
    batch: int | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    sizes: Mapping[str, int] | None = None,
    lowered: Lowered | None = None,
) -> OpGraph:
    """The graph of a program; ``framework`` wrote it.

    ``batch`` closes open first dimensions of inputs, ``shapes`` whole inputs, ``sizes`` symbols.
    ``lowered`` is filled in. Warns of what the costs leave out.

    Raises
    ------
    InputError
        A size stays open, or what was given contradicts the program; a value that nothing makes.
    """
    symbols = _resolve(program, batch, shapes or {}, sizes or {})
    lowering = _Lowering(symbols, lowered)
    for placeholder in program.placeholders:
        lowering.place(placeholder)
    for node in program.nodes:
        lowering.lower(node)
    for value, target in program.copies:
        lowering.copy_back(value, target)
    notes = lowering.notes()
    warn(*notes)
    graph = lowering.graph
    inputs = (lowering.sized(p.meta).shape for p in program.placeholders if p.kind == "input")
    meta = {
        "framework": framework,
        "batch": batch if batch is not None else next((s[0] for s in inputs if s), None),
        "dtype": graph.float_type(),
        "mode": "train" if "b" in graph.ops["phase"] else "infer",
        "assumed": [f"{symbol} = {size}" for symbol, size in sorted(symbols.items())] + notes,
    }
    document = graph.document(name, meta)
    if lowering.launches:
        names = document["ops"]["name"]
        document["meta"][LAUNCHES] = {names[op]: n for op, n in lowering.launches.items()}
    return OpGraph.from_document(document, name)


@dataclass(frozen=True, slots=True)
class Stored:
    """A placeholder that a signature names; those with the same ``storage`` and sizes are tied."""

    kind: str
    name: str
    storage: Any


def sign(
    program: AtenProgram,
    stored: Mapping[str, Stored],
    outputs: Sequence[tuple[str, str, str]],
) -> None:
    """Sets what a program's inputs are, what is written back to them, and which ops are backward.

    ``stored`` are placeholders by value; ``outputs`` the role of each output as PyTorch's schema
    spells it, its value, and the name of what it stands for.
    """
    first: dict[Any, str] = {}
    for i, p in enumerate(program.placeholders):
        entry = stored.get(p.value)
        if entry is not None:
            tied_to = first.setdefault((entry.storage, p.meta), p.value)
            program.placeholders[i] = replace(
                p,
                name=entry.name,
                kind=entry.kind,
                module=entry.name.rpartition(".")[0],
                tied_to="" if tied_to == p.value else tied_to,
            )
    values = {entry.name: value for value, entry in stored.items()}
    program.copies += [
        (value, values.get(target, target))
        for role, value, target in outputs
        if role.endswith("_mutation")
    ]
    if any(role.startswith("gradient_") for role, _, _ in outputs):
        forward = ("user_output", "loss_output", "buffer_mutation")
        _set_phases(program, {value for role, value, _ in outputs if role in forward})


def _set_phases(program: AtenProgram, needed: set[str]) -> None:
    """Backward ops are those that the outputs of the forward part do not need."""
    for i in reversed(range(len(program.nodes))):
        node = program.nodes[i]
        if needed.isdisjoint(result for result, _ in node.results):
            program.nodes[i] = replace(node, phase="b")
        else:
            needed.update(names_in(node.arguments))


def names_in(arguments: Sequence[Any]) -> Iterator[str]:
    """The values among arguments, by name."""
    for argument in arguments:
        if isinstance(argument, ValueRef):
            yield argument.name
        elif isinstance(argument, (list, tuple)):
            yield from names_in(argument)


# ---- sizes ------------------------------------------------------------------------------------


def _resolve(
    program: AtenProgram,
    batch: int | None,
    shapes: Mapping[str, Sequence[int]],
    sizes: Mapping[str, int],
) -> dict[str, int]:
    """Sizes of the inputs' symbols, and of given symbols that are known only at run time."""
    inputs = {p.name: p.meta.sizes for p in program.placeholders if p.kind == "input"}
    declared = {name: [_dim(size) for size in dims] for name, dims in inputs.items()}
    named = {s for dims in inputs.values() for d in dims if isinstance(d, str) for s in _symbols(d)}
    symbols: dict[str, int] = {}
    for symbol, size in sizes.items():
        if symbol not in named and symbol not in program.ranges:
            there = ", ".join(map(repr, sorted(named | set(program.ranges)))) or "none at all"
            raise InputError(f"size given for {symbol!r}, which is not open; open are {there}")
        symbols[symbol] = size_of(size, f"size of {symbol!r}", least=0)
    missing = ", ".join(f"{symbol!r}: N" for symbol in sorted(named - set(symbols)))
    closed = close(
        dict(declared),
        symbols,
        batch=batch,
        shapes=shapes,
        sized=[name for name, dims in declared.items() if None not in dims],
        other_way=f"; or sizes={{{missing}}}",
    )
    for symbol, size in symbols.items():
        _check_range(symbol, size, program.ranges.get(symbol, (None, None)))
    for name, dims in inputs.items():
        for written_as, closed_to in zip(dims, closed[name] or (), strict=True):
            resolved = _size(written_as, symbols, f"input {name!r}")
            if closed_to is not None and resolved != closed_to:
                raise InputError(
                    f"input {name!r} cannot have size {closed_to} where the program has "
                    f"{written_as}"
                )
    return symbols


def _dim(size: Size) -> Dim:
    """A number, a symbol's name, or None: the dimension follows from other inputs' symbols."""
    if isinstance(size, int):
        return size
    names = _symbols(size)
    symbol = next(iter(names), "")
    return symbol if size == symbol or size.startswith(f"Symbol({symbol!r}") else None


def _symbols(text: str) -> set[str]:
    try:
        return symbols_of(text)
    except ValueError as error:
        raise InputError(str(error)) from None


def _size(size: Size, symbols: Mapping[str, int], subject: str) -> int:
    if isinstance(size, int):
        return size
    try:
        return evaluate(size, symbols)
    except KeyError as error:
        raise InputError(
            f"{subject} depends on the size {error}, which is open: give sizes={{{error}: N}}"
        ) from None
    except ValueError as error:
        raise InputError(f"{subject} has a size that cannot be told: {error}") from None


def _check_range(symbol: str, size: int, bounds: tuple[int | None, int | None]) -> None:
    least, most = bounds
    # Export writes a least size of 2 for any open size: sizes 0 and 1 run as well.
    low = least if least is not None and least > 2 else 0
    if size < low or (most is not None and size > most):
        raise InputError(
            f"{symbol} = {size}, but the program was exported for {symbol} from {low} to "
            f"{'any size' if most is None else most}"
        )


# ---- ops --------------------------------------------------------------------------------------

_BRANCHES = frozenset(("cond", "switch"))
_LOOPS = frozenset(("while_loop", "while_loop_stack_output"))
_OVER_ROWS = {"map_impl": 1, "map": 1, "scan": 2, "associative_scan": 1}


class _Lowering:
    """Puts a program's ops into a graph, sizes as the symbols have them."""

    def __init__(self, symbols: Mapping[str, int], lowered: Lowered | None = None) -> None:
        self.graph = AtenGraph()
        self._lowered = lowered or Lowered()
        self._symbols = dict(symbols)
        self._values = self._lowered.values
        self._sizes: dict[str, int] = {}
        self._at_run_time: Counter[str] = Counter()
        self._control: Counter[str] = Counter()
        #: Kernels of ops that run programs, where these are several.
        self.launches: dict[int, int] = {}

    def place(self, placeholder: AtenPlaceholder) -> None:
        if placeholder.tied_to in self._values:
            self._values[placeholder.value] = self._values[placeholder.tied_to]
            return
        self._bind(
            placeholder.value,
            self.graph.placeholder(
                placeholder.name, placeholder.kind, self.sized(placeholder.meta), placeholder.module
            ),
        )

    def lower(self, node: AtenNode) -> None:
        inputs = [self._argument(argument, node.name) for argument in node.arguments]
        outputs = [None if meta is None else self.sized(meta) for _, meta in node.results]
        first = next(iter(_all(inputs[0])), None) if inputs else None
        changed = self._changed(node, inputs, first)
        if not changed and not any(outputs):
            return  # a check, or arithmetic on sizes: done by the host
        if node.shares is None:
            view = is_view(node.kind, [_plain(argument) for argument in inputs], outputs)
            in_place = is_in_place(node.kind) and bool(changed)
        else:
            view, in_place = node.shares == "view", bool(changed)
        work = node.work or self._work(node, inputs)
        results = self.graph.op(
            node.kind,
            inputs,
            outputs,
            place=OpPlace(
                node.name,
                node.module or self._module_of(changed),
                "o" if node.phase == "b" and self._updates(changed) else node.phase,
            ),
            effects=Effects(first if view else None, changed, in_place),
            work=work,
            call=self._call(node),
        )
        op = self.graph.n_ops - 1
        if work is not None and work.launches > 1:
            self.launches[op] = work.launches
        self._lowered.ops[node.name], self._lowered.changed[op] = op, changed
        for index, ((name, _), value) in enumerate(zip(node.results, results, strict=True)):
            if name and value is not None:
                if node.several:
                    value = self.graph.getitem(
                        value, index, name=name, module=node.module, phase=node.phase
                    )
                self._bind(name, value)

    def _changed(
        self, node: AtenNode, inputs: Sequence[Any], first: GraphValue | None
    ) -> list[GraphValue]:
        """The values that an op writes into."""
        if node.shares is not None:
            return [first] if first is not None and node.shares == "in_place" else []
        positions = written(node.kind, [_plain(argument) for argument in inputs])
        return [value for position in positions for value in _all(inputs[position])]

    def _module_of(self, changed: Sequence[GraphValue]) -> str:
        """The module of a buffer that an op without one writes."""
        ops, owner = self.graph.ops, changed[0].owner if changed else -1
        held = changed and ops["kind"][owner] in ("parameter", "buffer")
        return ops["module"][owner] if held else ""

    def _updates(self, changed: Sequence[GraphValue]) -> bool:
        return any(self.graph.ops["kind"][value.owner] == "parameter" for value in changed)

    def copy_back(self, value: str, target: str) -> None:
        """Adds a copy that the signature asks for at the end of a program without in-place ops."""
        source, buffer = self._value(value, "the output"), self._value(target, "the output")
        if source.storage == buffer.storage:
            self._lowered.copies.append(-1)
            return
        ops = self.graph.ops
        self._lowered.copies.append(self.graph.n_ops)
        self.graph.op(
            "aten.copy_.default",
            [buffer, source],
            [buffer.tensor],
            # The name is that of ExportedProgram.module().
            place=OpPlace("copy__default", ops["module"][buffer.op], ops["phase"][source.op]),
            effects=Effects(writes=[buffer], in_place=True),
        )

    def notes(self) -> list[str]:
        notes = self.graph.notes()
        if self._at_run_time:
            names = ", ".join(self._at_run_time)
            example = next(iter(self._at_run_time))
            notes.append(
                f"sizes known only at run time count as 0: {names} (sizes={{{example!r}: N}} "
                "gives them)"
            )
        if self._control:
            kinds = ", ".join(f"{kind} ({n})" for kind, n in sorted(self._control.items()))
            notes.append(f"control flow counts as one op, with the kernels of its bodies: {kinds}")
        return notes

    # -- values

    def _bind(self, name: str, value: GraphValue) -> None:
        if name in self._values:
            raise InputError(f"the value {name!r} is defined twice")
        self._values[name] = value

    def _value(self, name: str, where: str) -> GraphValue:
        if name not in self._values:
            raise InputError(f"{where} reads {name!r}, which nothing produces")
        return self._values[name]

    def _argument(self, argument: Any, op: str) -> Any:
        """The argument with its values; None for a size or a flag, which are no tensors."""
        if isinstance(argument, ValueRef):
            return self._value(argument.name, f"op {op!r}")
        if isinstance(argument, (list, tuple)):
            return [self._argument(each, op) for each in argument]
        return argument

    def _call(self, node: AtenNode) -> CallArguments:
        """The call of a node, values and sizes in place."""
        keywords = node.call.keywords.items()
        return CallArguments(
            [self._given(argument, node.name) for argument in node.call.positional],
            {name: self._given(argument, node.name) for name, argument in keywords},
        )

    def _given(self, argument: Any, op: str) -> Any:
        if isinstance(argument, (list, tuple)):
            return [self._given(each, op) for each in argument]
        if isinstance(argument, Open):
            return self._told(argument.size)
        return self._argument(argument, op)

    def _told(self, size: Size) -> int | None:
        """A size among arguments; None if it is known only at run time."""
        known = {s: n for s, n in self._symbols.items() if s not in self._at_run_time}
        try:
            return evaluate(str(size), known)
        except (KeyError, ValueError):
            return None

    def sized(self, meta: Sized) -> AtenTensor:
        """The tensor, with numbers for its symbols."""
        strides = meta.strides
        return AtenTensor(
            meta.dtype,
            tuple(self._size(size) for size in meta.sizes),
            None if strides is None else tuple(self._size(stride) for stride in strides),
        )

    def _size(self, size: Size) -> int:
        if isinstance(size, int):
            return size
        if size not in self._sizes:
            for symbol in sorted(_symbols(size) - set(self._symbols)):
                self._symbols[symbol] = 0
                self._at_run_time[symbol] += 1
            self._sizes[size] = _size(size, self._symbols, "a value")
        return self._sizes[size]

    # -- ops that hold programs

    def _work(self, node: AtenNode, inputs: Sequence[Any]) -> Cost | None:
        """The cost of an op that runs programs; None for all other ops."""
        if is_known(node.kind):
            return None
        bodies = [self._body(a) for a in node.arguments if isinstance(a, AtenProgram)]
        if not bodies:
            return None
        name = node.kind.rpartition(".")[2]
        if name in _BRANCHES:
            self._control[f"{name}, its larger branch"] += 1
            return max(bodies, key=lambda body: (body.flops, body.bytes))
        total = sum(bodies, Cost())
        if name in _LOOPS:
            self._control[f"{name}, its body once"] += 1
            return total
        if name in _OVER_ROWS:
            over = inputs[_OVER_ROWS[name] :][:1]
            shapes = [v.tensor.shape for each in over for v in _all(each)]
            rows = next((shape[0] for shape in shapes if shape), 1)
            self._control[f"{name}, its body {rows} times"] += 1
            return total.times(rows)
        return total

    def _body(self, program: AtenProgram) -> Cost:
        """The cost of one run of a program inside an op."""
        inner = _Lowering(self._symbols)
        for placeholder in program.placeholders:
            inner.place(placeholder)
        for node in program.nodes:
            inner.lower(node)
        self.graph.unknown += inner.graph.unknown
        self._at_run_time |= inner._at_run_time
        self._control += inner._control
        each = zip(inner.graph.ops["flops"], inner.graph.ops["bytes_accessed"], strict=True)
        return sum(
            (
                Cost(flops, moved, True, inner.launches.get(op, int(bool(flops or moved))))
                for op, (flops, moved) in enumerate(each)
            ),
            Cost(),
        )


def _all(argument: Any) -> Iterator[GraphValue]:
    for each in argument if isinstance(argument, list) else [argument]:
        if isinstance(each, GraphValue):
            yield each


def _plain(argument: Any) -> Any:
    if isinstance(argument, list):
        return [_plain(each) for each in argument]
    return argument.tensor if isinstance(argument, GraphValue) else argument
