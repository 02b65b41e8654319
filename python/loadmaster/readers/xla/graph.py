"""The graph of a program for XLA: calls inlined, loops counted, costs and edges per op.

How control flow is shown, and why:

* A *call* disappears. Its body stands where it was called, and its name goes into the ops' paths.
* A *loop* (scan, while) stands for all of its trips: one op per op of its body, which ``runs`` once
  a trip and costs what all trips cost. Tensors inside have the size of one trip, as they have in
  memory. A value that the loop carries, or stacks, has three ops and one storage: ``loop.carry``
  begins it, ``loop.next`` takes what a trip makes of it, and ``loop.result`` is what ops after the
  loop read. Their layouts are one: that of the value in every trip. The back edge, from one trip to
  the next, is left out. A first op waits for all that the loop takes, a last one for its body. A
  loop is not taken apart over devices, so its ops are colocated; but devices may share all of them.
* A *counter* (a carried number that begins and steps by a literal) is known on every device and is
  no tensor. A comparison of a counter with a literal tells the number of trips.
* Of a *branch* only the dearest way is shown, colocated, behind an op that waits for what the
  branch takes.
* *Literals*, and what is made elementwise of literals alone, are part of the ops that read them.
* *Views*: reshape, broadcast and their like make no data; XLA computes them where they are read. A
  view passes on the tensor that it shows, so a broadcast travels at its size before broadcasting.
* What neither an output nor an effect needs is left out, as XLA leaves it out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from loadmaster.base.checks import product
from loadmaster.base.errors import InputError, malformed
from loadmaster.base.units import counted
from loadmaster.base.warnings import warn
from loadmaster.dimensions.calls import MAPPED, SENDS
from loadmaster.model.arguments import Call
from loadmaster.model.graph import OpGraph
from loadmaster.readers.shared.arguments import told
from loadmaster.readers.xla import training as xla_training
from loadmaster.readers.xla.columns import XlaColumns, XlaValue
from loadmaster.readers.xla.costs import COLLECTIVES, VIEWS, XlaOp, cost, is_elementwise, plain
from loadmaster.readers.xla.loops import counters_of, folded, trips_of
from loadmaster.readers.xla.manual import Manual, Step
from loadmaster.readers.xla.program import (
    TOKEN,
    Binder,
    Computation,
    Constant,
    Instruction,
    Operand,
    Type,
    Walk,
    XlaProgram,
    at,
    drive,
)
from loadmaster.readers.xla.served import with_batch, with_parameters

#: Kinds that read all places of their operands together: a literal is an array for them.
_PRODUCTS = ("conv_general_dilated", "convolution", "dot", "dot_general")

#: The most instructions of a program, calls inlined; a larger program is refused.
LIMIT = 500_000

#: Collectives of what is mapped by hand: they sum, join parts, sum and hand parts out, or exchange
#: pieces.
_OF_PARTS = {
    **dict.fromkeys(("all_reduce", "psum", "psum2", "psum_invariant"), "sum"),
    **dict.fromkeys(("all_gather", "all_gather_invariant"), "gather"),
    "reduce_scatter": "scatter",
    "all_to_all": "exchange",
}
#: Their keywords for the axis of the parts.
_EXCHANGED = (("split_dimension", "split_axis"), ("concat_dimension", "concat_axis"))
_ALONG = ("all_gather_dim", "all_gather_dimension", "scatter_dimension")


#: Those that send from each device to at most one other.
_SENDS = ("collective_permute", "ppermute")


def to_graph(program: XlaProgram, name: str, parameters: Sequence[str] = ()) -> OpGraph:
    """The op graph of a program. O(instructions after inlining + edges).

    Parameters
    ----------
    program : XlaProgram
    name : str
    parameters : sequence of str
        Arguments, or arrays in their trees, that are parameters of a program without training.

    Raises
    ------
    InputError
        More than `LIMIT` instructions after inlining, a function that calls itself, a value that
        nothing defines; ``parameters`` of a training step, or of no known name.

    Warns
    -----
    UserWarning
        What the costs leave out: kinds that they do not know, loops whose trips are not written.
    """
    inliner = _Inliner(program)
    inliner.run()
    warnings = inliner.warnings()
    warn(*warnings)
    notes = [*program.assumed, *inliner.notes(), *warnings]
    columns = inliner.columns
    of_training = xla_training.assign(columns, program, inliner.outputs)
    notes += of_training or []
    before = len(columns)
    outputs = columns.drop_unread(inliner.outputs)
    if dropped := before - len(columns):
        notes.append(f"left out, as XLA does: {counted(dropped, 'op')} that no output needs")
    meta = {
        "model": program.name,
        "framework": program.framework,
        "loops": columns.trips(),
        "assumed": notes,
    }
    document = columns.document(name, meta)
    if of_training is None:
        return with_parameters(document, outputs, parameters, is_named=bool(program.names))
    if parameters:
        raise InputError("parameters: a training step shows its own, which come back updated")
    return with_batch(document)


@dataclass(frozen=True, slots=True)
class _Scope:
    """The place of an instruction: its path, and the loops and branches around it."""

    path: str = ""
    trips: int = 1
    #: The op that opened the innermost loop or branch, and the outermost; -1: none.
    region: int = -1
    group: int = -1
    #: Ops with effects in the innermost loop or branch.
    effects: list[int] = field(default_factory=list)
    #: What is mapped by hand around it, if anything is.
    manual: Manual | None = None

    @property
    def lead(self) -> tuple[int, ...]:
        """Sizes of the axes of a mesh that arrays begin with."""
        return self.manual.sizes if self.manual else ()

    def lifted(self, type_: Type) -> Type:
        """The type of an array of all devices."""
        return replace(type_, shape=(*self.lead, *type_.shape)) if self.lead else type_

    def enter(self, path: str) -> _Scope:
        return replace(self, path=path)

    def region_at(self, begin: int, path: str, trips: int = 1) -> _Scope:
        group = begin if self.group < 0 else self.group
        return replace(
            self, path=path, trips=self.trips * trips, region=begin, group=group, effects=[]
        )


@dataclass(frozen=True, slots=True)
class _Running:
    """A loop that is being read: the scopes around and within it, and what it will return."""

    instruction: Instruction
    name: str
    scope: _Scope
    inner: _Scope
    begin: int
    outs: list[XlaValue | None]


class _Inliner:
    """Walks a program once and fills the columns of its graph."""

    def __init__(self, program: XlaProgram) -> None:
        self.program = program
        self.columns = XlaColumns()
        self.outputs: list[XlaValue] = []
        self._left = LIMIT
        self._line = 0
        self._running: set[int] = set()
        self._last_effect = -1
        self._unknown: Counter[str] = Counter()
        self._collectives: Counter[str] = Counter()
        self._branches = 0
        self._constraints = 0
        self._weights: dict[int, int] = {}
        self._constants: dict[tuple[int, str], XlaValue] = {}

    def run(self) -> None:
        entry = self.program.entry
        inputs = []
        for position, (label, type_) in enumerate(entry.inputs):
            names = self.program.names
            name = names[position] if position < len(names) else label
            inputs.append(self.columns.placeholder(name or f"input{position}", "input", type_))
        with malformed(lambda: f"{at(self._line)}an instruction is malformed"):
            self.outputs = drive(self._computation(entry, inputs, _Scope()))

    # -- what is said of it --------------------------------------------------------------------

    def notes(self) -> list[str]:
        notes = []
        if self._constraints:
            notes.append(
                f"{counted(self._constraints, 'sharding constraint')} in the program: they change "
                "no number, and a plan says anew how arrays lie, unless it is asked to keep them"
            )
        known = sum(trips is not None for trips in self.columns.loops.values())
        if known:
            notes.append(
                f"{counted(known, 'loop counts', 'loops count')} the work and the kernel launches "
                "of all trips"
            )
        if self._branches:
            notes.append(f"{self._branches} branches are the dearest of theirs each")
        if self._collectives:
            kinds = ", ".join(f"{n} x {kind}" for kind, n in sorted(self._collectives.items()))
            notes.append(f"collectives count the bytes they touch, not the network: {kinds}")
        return notes

    def warnings(self) -> list[str]:
        texts = []
        if self._unknown:
            kinds = ", ".join(f"{kind} ({n})" for kind, n in sorted(self._unknown.items()))
            texts.append(f"FLOPs unknown, costed by the bytes they move: {kinds}")
        once = sum(trips is None for trips in self.columns.loops.values())
        if once:
            texts.append(
                f"{counted(once, 'loop does', 'loops do')} not say how often: "
                "each counts as one trip"
            )
        return texts

    # -- computations and calls ----------------------------------------------------------------

    def _computation(self, body: Computation, args: Sequence[XlaValue], scope: _Scope) -> Walk:
        if id(body) in self._running:
            raise InputError(f"{body.name!r} calls itself: its ops cannot be counted")
        if len(args) != len(body.inputs):
            raise InputError(
                f"{body.name!r} takes {counted(len(body.inputs), 'value')} and is given {len(args)}"
            )
        self._running.add(id(body))
        env = {name: value for (name, _), value in zip(body.inputs, args, strict=True)}
        for name, type_ in body.constants:
            key = id(body), name
            if key not in self._constants:
                self._constants[key] = self.columns.placeholder(name, "constant", type_)
            env[name] = self._constants[key]
        for instruction in body.instructions:
            self._left -= 1
            self._line = instruction.line
            if self._left < 0:
                raise InputError(
                    f"more than {LIMIT} instructions once its calls are inlined: too large to read"
                )
            values = [self._value(o, env, instruction.line) for o in instruction.operands]
            match instruction.flow:
                case "op":
                    results = self._op(instruction, values, scope)
                case "call":
                    path = _join(scope.path, instruction.stack, instruction.scope)
                    results = yield self._computation(
                        instruction.bodies[0], values, scope.enter(path)
                    )
                case "branch":
                    results = yield self._branch(instruction, values, scope)
                case "manual":
                    results = yield self._manual(instruction, values, scope)
                case "scan":
                    results = yield self._scan(instruction, values, scope)
                case "while":
                    results = yield self._while(instruction, values, scope)
            if len(results) < len(instruction.results):
                raise InputError(
                    f"{at(instruction.line)}{instruction.kind} gives {len(results)} values, its "
                    f"text names {len(instruction.results)}"
                )
            for (name, _), value in zip(instruction.results, results, strict=False):
                if name:
                    env[name] = value
        self._running.discard(id(body))
        return [self._value(o, env, 0) for o in body.outputs]

    def _value(self, operand: Operand, env: dict[str, XlaValue], line: int) -> XlaValue:
        if isinstance(operand, Constant):
            return XlaValue(operand.type, number=operand.number)
        value = env.get(operand)
        if value is None:
            raise InputError(f"{at(line)}{operand!r} is read, but nothing defines it")
        return value

    # -- ops -----------------------------------------------------------------------------------

    def _op(
        self, instruction: Instruction, values: list[XlaValue], scope: _Scope
    ) -> list[XlaValue]:
        kind = plain(instruction.kind)
        types = [type_ for _, type_ in instruction.results]
        if kind == "constant":
            return self._constant(instruction, types, scope)
        literal = all(v.op < 0 for v in values)
        self._constraints += kind in ("sharding_constraint", "reshard")
        if kind in VIEWS:
            if literal and values:
                return [replace(v, type=t) for v, t in zip(values, types, strict=False)]
            if len(types) == len(values) > 1:
                return values
            if values:
                return [self._view(instruction, values[0], types[0], scope)]
        folds = not self.program.is_compiled and is_elementwise(kind) and not instruction.effect
        if literal and values and folds:
            return [XlaValue(t, number=folded(kind, values)) for t in types]
        return self._costed(instruction, values, types, scope)

    def _constant(
        self, instruction: Instruction, types: list[Type], scope: _Scope
    ) -> list[XlaValue]:
        if "number" in instruction.attributes:
            return [XlaValue(t, number=instruction.attributes["number"]) for t in types]
        name = self._name(instruction, scope)
        return [
            replace(self.columns.placeholder(name, "constant", scope.lifted(t)), type=t)
            for t in types
        ]

    def _view(
        self, instruction: Instruction, shown: XlaValue, type_: Type, scope: _Scope
    ) -> XlaValue:
        op = self._add(
            instruction,
            scope,
            output=str(scope.lifted(type_)),
            alias_of=shown.owner,
            view=True,
            args=_call(instruction, [shown], scope),
        )
        self._connect([shown], op, scope)
        return replace(shown, type=type_, op=op)

    def _filled(self, value: XlaValue, product: Instruction, scope: _Scope) -> XlaValue:
        """An operand of a product; of a literal the array that has it in every place."""
        if value.op >= 0 or not value.type.shape:
            return value
        whole, instruction = scope.lifted(value.type), replace(product, kind="fill", label="fill")
        instruction = replace(instruction, name="", keywords={})
        fill = self._add(
            instruction,
            scope,
            bytes_accessed=value.type.nbytes,
            output_bytes=whole.nbytes,
            output=str(whole),
            args=_call(instruction, [], scope),
        )
        return replace(self.columns.value(fill, whole), type=value.type)

    def _costed(
        self, instruction: Instruction, values: list[XlaValue], types: list[Type], scope: _Scope
    ) -> list[XlaValue]:
        kind = plain(instruction.kind)
        if kind in _PRODUCTS and not self.program.is_compiled:
            values = [self._filled(v, instruction, scope) for v in values]
        is_whole = kind != "all_to_all" or instruction.keywords.get("tiled") is not False
        is_mapped = kind in _OF_PARTS and is_whole
        if scope.manual and is_mapped and (along := _along(instruction, scope.manual)):
            parts = zip(values, types, strict=True)
            return [self._collective(instruction, v, t, along, scope) for v, t in parts]
        if scope.manual and kind in _SENDS and (sends := _sends(instruction, scope.manual)):
            instruction = replace(instruction, keywords={SENDS: sends})
        elif kind in COLLECTIVES:
            self._collectives[kind] += 1
        devices = product(scope.lead)
        read = {v.tensor: v.size // devices for v in values if v.op >= 0}
        work = cost(
            XlaOp(
                instruction.kind,
                [v.type for v in values],
                types,
                instruction.attributes,
                instruction.bodies,
                sum(read.values()),
            )
        )
        if not work.known:
            self._unknown[instruction.kind] += 1
        kept = [t for name, t in instruction.results if name]
        changed = _changed_in_place(instruction, values)
        op = self._add(
            instruction,
            scope,
            flops=work.flops,
            bytes_accessed=work.bytes,
            output_bytes=sum(scope.lifted(t).nbytes for t in kept) if changed is None else 0,
            output=";".join(str(scope.lifted(t)) for t in types),
            alias_of=-1 if changed is None else changed.owner,
            args=_call(instruction, values, scope),
        )
        if is_elementwise(kind) or instruction.attributes.get("elementwise"):
            self.columns.elementwise.add(op)
        self._connect(values, op, scope)
        if instruction.effect:
            if self._last_effect >= 0:
                self.columns.edge(self._last_effect, op)
            self._last_effect = op
            scope.effects.append(op)
            self.columns.keep.add(op)
        results = [replace(self.columns.value(op, scope.lifted(t)), type=t) for t in types]
        if changed is not None:
            results[0] = replace(results[0], owner=changed.owner, carried=True)
        return results

    def _add(
        self,
        instruction: Instruction,
        scope: _Scope,
        *,
        name: str = "",
        flops: int = 0,
        bytes_accessed: int = 0,
        **row: Any,
    ) -> int:
        return self.columns.add(
            name=name or self._name(instruction, scope),
            kind=instruction.kind,
            path=_join(scope.path, instruction.stack),
            flops=flops * scope.trips * product(scope.lead),
            bytes_accessed=bytes_accessed * scope.trips * product(scope.lead),
            runs=max(scope.trips, 1),
            group=scope.group,
            **row,
        )

    def _name(self, instruction: Instruction, scope: _Scope) -> str:
        return instruction.name or _join(scope.path, instruction.stack, _short(instruction))

    def _inside(self, instruction: Instruction, scope: _Scope, part: str = "") -> str:
        """The path of what stands in a loop or a branch."""
        if instruction.stack is not None and self.program.stacks_are_whole:
            return scope.path
        return _join(scope.path, instruction.stack, _short(instruction), part)

    def _connect(self, values: Sequence[XlaValue], op: int, scope: _Scope) -> None:
        """Edges to an op from what it reads; from the loop around it, if it reads nothing there."""
        for source in self.columns.read(values, op):
            if source >= scope.region:
                return
        if scope.region >= 0:
            self.columns.edge(scope.region, op)

    # -- what is mapped by hand ----------------------------------------------------------------

    def _manual(self, instruction: Instruction, values: list[XlaValue], scope: _Scope) -> Walk:
        manual, body = instruction.manual, instruction.bodies[0]
        assert manual is not None
        path = _join(scope.path, instruction.stack, instruction.scope)
        if scope.manual is not None or not manual.names:
            # Inside of another, the arrays begin with its axes, and these count once.
            results = yield self._computation(body, values, scope.enter(path))
            return results
        # What the body reads from around it comes before its arguments.
        ways = [*[[]] * (len(values) - len(manual.inputs)), *manual.inputs]
        entered = []
        for value, way, (_, type_) in zip(values, ways, body.inputs, strict=True):
            way = way or [[] for _ in value.type.shape]
            steps = manual.entering(value.type.shape, way) if value.op >= 0 else ()
            entered.append(
                replace(self._views(instruction, value, type_, steps, scope), type=type_)
            )
        inner = replace(scope.enter(path), manual=manual)
        results = yield self._computation(body, entered, inner)
        left = []
        for value, way, (_, type_) in zip(
            results, manual.outputs, instruction.results, strict=True
        ):
            steps = manual.leaving(type_.shape, way) if value.op >= 0 else ()
            left.append(replace(self._views(instruction, value, type_, steps, scope), type=type_))
        return left

    def _views(
        self,
        instruction: Instruction,
        value: XlaValue,
        type_: Type,
        steps: Iterable[Step],
        scope: _Scope,
    ) -> XlaValue:
        """Views one after the other, of arrays of all devices."""
        outside = replace(scope, manual=None)
        for kind, keywords, shape in steps:
            view = replace(instruction, kind=f"stablehlo.{kind}", keywords=keywords, name="")
            value = self._view(view, value, replace(type_, shape=shape), outside)
        return value

    def _collective(
        self,
        instruction: Instruction,
        value: XlaValue,
        type_: Type,
        along: tuple[int, ...],
        scope: _Scope,
    ) -> XlaValue:
        """The result of a collective along axes of the mesh, on every device."""
        if value.op < 0:
            return XlaValue(type_)
        manual, keywords, parts = scope.manual, instruction.keywords, value.type.shape
        assert manual is not None
        way = _OF_PARTS[plain(instruction.kind)]
        dim = int(next((keywords[name] for name in _ALONG if name in keywords), 0))
        if way == "gather":
            steps = manual.gathering(parts, along, dim)
        elif way == "exchange":
            dims = (int(keywords[a] if a in keywords else keywords[b]) for a, b in _EXCHANGED)
            steps = manual.exchanging(parts, along, *dims)
        else:
            value = self._summed(instruction, value, along, scope)
            steps = manual.spreading(parts, along)
            if way == "scatter":
                steps = manual.scattering(parts, along, dim)
        return replace(self._views(instruction, value, type_, steps, scope), type=type_)

    def _summed(
        self, instruction: Instruction, value: XlaValue, along: tuple[int, ...], scope: _Scope
    ) -> XlaValue:
        """A sum along axes of the mesh, without these axes."""
        whole = scope.lifted(value.type)
        left = [size for i, size in enumerate(whole.shape) if i not in along]
        once = replace(value.type, shape=tuple(left))
        outside = replace(scope, manual=None)
        add = replace(
            instruction,
            kind="stablehlo.reduce",
            keywords={"dimensions": list(along)},
            results=[Binder("sum", once)],
            bodies=(),
            attributes={},
            name="",
        )
        return self._costed(add, [replace(value, type=whole)], [once], outside)[0]

    # -- loops and branches --------------------------------------------------------------------

    def _branch(self, instruction: Instruction, values: list[XlaValue], scope: _Scope) -> Walk:
        predicate, args = values[0], values[1:]
        taken = predicate.number
        if taken is None or not 0 <= taken.real < len(instruction.bodies):
            weights = []
            for body in instruction.bodies:
                weights.append((yield self._weight(body)))
            taken = weights.index(max(weights))
            self._branches += 1
        taken = int(taken.real)
        begin = self._begin(instruction, values, scope)
        inner = scope.region_at(begin, self._inside(instruction, scope, f"branch_{taken}"))
        body = instruction.bodies[taken]
        # A branch may take all operands, or (in StableHLO) read what encloses it.
        results = yield self._computation(body, args[: len(body.inputs)], inner)
        scope.effects.extend(inner.effects)
        return results

    def _scan(self, instruction: Instruction, values: list[XlaValue], scope: _Scope) -> Walk:
        loop, body = instruction.loop, instruction.bodies[0]
        assert loop is not None
        n, k = loop.n_constants, loop.n_constants + loop.n_carried
        constants, initial, stacks = values[:n], values[n:k], values[k:]
        counters = counters_of(body, n, initial)
        types = [t for _, t in instruction.results]
        # A stack that nothing reads is not kept; a carried value always is.
        first: list[XlaValue | None] = [
            None if i in counters else value for i, value in enumerate(initial)
        ]
        first += [
            XlaValue(t) if name else None for name, t in instruction.results[loop.n_carried :]
        ]
        running = self._open(instruction, values, scope, loop.trips, first)
        slices = []
        for position, stack in enumerate(stacks, k):
            if position >= len(body.inputs):
                raise InputError(f"{at(instruction.line)}the scan's body takes fewer values")
            taken = body.inputs[position]
            slices.append(self._slice(stack, taken, running.inner, instruction))
        carried = [out or XlaValue(t) for out, t in zip(running.outs, types, strict=True)]
        results = yield self._computation(
            body, [*constants, *carried[: len(initial)], *slices], running.inner
        )
        outs = self._close(running, results)
        return _counted(outs, counters, initial, loop.trips)

    def _slice(self, stack: XlaValue, taken: Binder, scope: _Scope, scan: Instruction) -> XlaValue:
        """The part of a stacked input that one trip takes."""
        label, type_ = taken
        if stack.op < 0:
            return replace(stack, type=type_)
        named = scan.stack is not None
        instruction = Instruction(
            "dynamic_slice",
            [],
            [taken],
            stack="" if named else None,
            label="" if named else label,
            line=scan.line,
        )
        return self._costed(instruction, [stack], [type_], scope)[0]

    def _while(self, instruction: Instruction, values: list[XlaValue], scope: _Scope) -> Walk:
        loop = instruction.loop
        assert loop is not None
        condition, body = instruction.bodies
        c, b = loop.n_condition_constants, loop.n_constants
        initial = values[c + b :]
        if not len(initial) == len(instruction.results) == len(body.inputs) - b:
            raise InputError(
                f"{at(instruction.line)}{instruction.kind} carries {len(initial)} values, gives "
                f"{len(instruction.results)}, and its body takes {len(body.inputs) - b}"
            )
        counters = counters_of(body, b, initial)
        trips = loop.trips
        if trips is None:
            trips = trips_of(condition, body, values, loop, counters)
        names = [name for name, _ in body.inputs[b:]]
        fixed = {
            i for i, (name, out) in enumerate(zip(names, body.outputs, strict=False)) if name == out
        }
        first = [None if i in fixed or i in counters else v for i, v in enumerate(initial)]
        running = self._open(instruction, values, scope, trips, first)
        state = [
            initial[i] if i in fixed else out or XlaValue(initial[i].type)
            for i, out in enumerate(running.outs)
        ]
        inner = running.inner
        again = yield self._computation(condition, [*values[:c], *state], inner)
        results = yield self._computation(body, [*values[c : c + b], *state], inner)
        outs = self._close(running, results, again)
        for i in fixed:
            outs[i] = initial[i]
        return _counted(outs, counters, initial, trips)

    def _begin(self, instruction: Instruction, values: list[XlaValue], scope: _Scope) -> int:
        """The op that begins a loop or a branch, when all that it takes is there."""
        begin = self._add(instruction, scope)
        for before in dict.fromkeys(v.op for v in values if v.op >= 0):
            self.columns.edge(before, begin)
        if scope.region >= 0:
            self.columns.edge(scope.region, begin)
        if scope.group < 0:
            self.columns.groups[begin] = begin
        return begin

    def _open(
        self,
        instruction: Instruction,
        values: list[XlaValue],
        scope: _Scope,
        trips: int | None,
        first: Sequence[XlaValue | None],
    ) -> _Running:
        """The ops that begin a loop. ``first`` are the values with which its carried values and
        stacks begin; None: there is nothing to carry.
        """
        begin = self._begin(instruction, values, scope)
        self.columns.loops[begin] = trips
        path = self._inside(instruction, scope)
        inner = scope.region_at(begin, path, 1 if trips is None else trips)
        running = _Running(instruction, self._name(instruction, scope), scope, inner, begin, [])
        for i, value in enumerate(first):
            if value is None:
                running.outs.append(None)
                continue
            # What is compiled has copied what it must: a loop works on its operands' own memory.
            owner = value.owner if self.program.is_compiled and value.op >= 0 else -1
            out = self._kept(running, inner, "carry", i, [value], alias_of=owner)
            self.columns.edge(begin, out.op)
            running.outs.append(replace(out, carried=True))
        return running

    def _close(
        self, running: _Running, results: Sequence[XlaValue], again: Sequence[XlaValue] = ()
    ) -> list[XlaValue]:
        """The ops that end a loop, and what it returns. They wait for ``again``, too."""
        instruction, scope, inner = running.instruction, running.scope, running.inner
        waits = [v.op for v in again if v.op >= 0] + inner.effects
        ends: dict[int, XlaValue] = {}
        for i, out in enumerate(running.outs):
            if out is None or i >= len(results):
                continue
            # A stack takes the result of each trip at its place.
            moved = 2 * results[i].type.nbytes if results[i].type != out.type else 0
            read = [out, results[i]]
            ends[i] = self._kept(running, inner, "next", i, read, moved, alias_of=out.owner)
            waits.append(ends[i].op)
        ending = replace(scope, group=inner.group)
        end = self._add(instruction, ending, name=f"{running.name}.end")
        for op in dict.fromkeys([running.begin, *waits]):
            self.columns.edge(op, end)
        if inner.effects:
            scope.effects.append(end)
            self.columns.keep.add(end)
        returned = []
        for i, (_, type_) in enumerate(instruction.results):
            out = running.outs[i]
            if out is None or i not in ends:
                returned.append(XlaValue(type_))
                continue
            result = self._kept(running, scope, "result", i, [ends[i]], alias_of=out.owner)
            self.columns.edge(end, result.op)
            returned.append(result)
        return returned

    def _kept(
        self,
        running: _Running,
        scope: _Scope,
        part: str,
        position: int,
        read: list[XlaValue],
        moved: int = 0,
        *,
        alias_of: int = -1,
    ) -> XlaValue:
        """An op for a value that a loop keeps from trip to trip: ``loop.carry`` begins it,
        ``loop.next`` hands it on, ``loop.result`` is what is left of it. All have one storage.
        """
        type_ = running.instruction.results[position].type
        op = self._add(
            replace(running.instruction, kind=f"loop.{part}"),
            scope,
            name=f"{running.name}{'' if part == 'result' else '.' + part}#{position}",
            bytes_accessed=moved,
            output=str(scope.lifted(type_)),
            output_bytes=scope.lifted(type_).nbytes if alias_of < 0 else 0,
            alias_of=alias_of,
            args=_call(Instruction("", [], []), read, scope),
        )
        self.columns.read(read, op)
        value = replace(self.columns.value(op, scope.lifted(type_)), type=type_)
        return value if alias_of < 0 else replace(value, owner=alias_of)

    def _weight(self, body: Computation) -> Walk:
        """FLOPs and bytes of a computation, all trips counted; the dearest branch has the most."""
        known = self._weights.get(id(body))
        if known is not None:
            return known
        self._weights[id(body)] = 0
        types = dict([*body.inputs, *body.constants])
        total = 0
        for instruction in body.instructions:
            types.update(instruction.results)
            if instruction.flow == "op":
                ins = [
                    o.type if isinstance(o, Constant) else types.get(o, TOKEN)
                    for o in instruction.operands
                ]
                outs = [t for _, t in instruction.results]
                work = cost(
                    XlaOp(instruction.kind, ins, outs, instruction.attributes, instruction.bodies)
                )
                total += work.flops + work.bytes
                continue
            inner = []
            for nested in instruction.bodies:
                inner.append((yield self._weight(nested)))
            trips = instruction.loop.trips if instruction.loop else 1
            heaviest = max(inner, default=0) if instruction.flow == "branch" else sum(inner)
            total += heaviest * (1 if trips is None else trips)
        self._weights[id(body)] = total
        return total


def _along(instruction: Instruction, manual: Manual) -> tuple[int, ...] | None:
    """The axes of a mesh along which a collective of what is mapped over it goes."""
    keywords = instruction.keywords
    if "replica_groups" in keywords:
        return manual.axes_of(keywords["replica_groups"] or [[]])
    names = keywords.get("axes", keywords.get("axis_name", ()))
    names = [names] if isinstance(names, str) else [str(name) for name in names]
    return tuple(manual.names.index(n) for n in manual.names if n in names)


def _sends(instruction: Instruction, manual: Manual) -> list[Any] | None:
    """The axis of a mesh along which a call sends, and between which places, or how far round;
    None: it sends along several.
    """
    keywords = instruction.keywords
    if "source_target_pairs" in keywords:
        along = manual.places_of(keywords["source_target_pairs"] or [])
    else:
        axes = _along(instruction, manual)
        along = (axes[0], keywords.get("perm") or []) if axes and len(axes) == 1 else None
    if along is None or not along[1]:
        return None
    axis, pairs = along
    size = manual.sizes[axis]
    steps = {(target - source) % size for source, target in pairs}
    return [axis, steps.pop() if len(pairs) == size and len(steps) == 1 else sorted(pairs)]


def _call(instruction: Instruction, values: Sequence[XlaValue], scope: _Scope) -> Call:
    """The arguments of an op; literals are numbers, where these are known."""
    positional = [value.number if value.op < 0 else value for value in values]
    mapped = {MAPPED: len(scope.lead)} if scope.lead else {}
    return told(
        positional,
        {**instruction.keywords, **mapped},
        lambda v: v.op if isinstance(v, XlaValue) else None,
    )


def _changed_in_place(instruction: Instruction, values: Sequence[XlaValue]) -> XlaValue | None:
    """The operand of which an op updates a slice in place: one that the loop around it carries."""
    position: int | None = instruction.attributes.get("in_place")
    if plain(instruction.kind) == "dynamic_update_slice":
        position = 0
    changed = values[position : position + 1] if position is not None else ()
    return next((value for value in changed if value.carried), None)


def _counted(
    views: list[XlaValue],
    counters: Mapping[int, float],
    initial: Sequence[XlaValue],
    trips: int | None,
) -> list[XlaValue]:
    """The results of a loop, its counters as the numbers that they have reached."""
    for i, step in counters.items():
        start = initial[i].number
        final = None if trips is None or start is None else start + trips * step
        views[i] = XlaValue(initial[i].type, number=final)
    return views


def _short(instruction: Instruction) -> str:
    """The name of an op without its path, as the traced program has it where that is known."""
    short, label = instruction.kind.rpartition(".")[2], instruction.label
    if instruction.stack is not None:
        return label or short
    return f"{short}.{label}" if label and label != short else short


def _join(*parts: str | None) -> str:
    return "/".join(part for part in parts if part)
