"""Reads optimized HLO text (``compiled.as_text()``) and joins it with a profiler trace.

This is what XLA runs: an op is one of its instructions, mostly a fusion. The trace that
``jax.profiler`` writes names the instruction of every execution (``hlo_op``), its module and the
run, so the join is exact. Tuples are no ops: they and their elements are looked through.
"""

from __future__ import annotations

import os
import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.errors import InputError
from loadmaster.files import parse_json, read_bytes
from loadmaster.graph import ANY_TYPE, OpGraph
from loadmaster.profile import Profile
from loadmaster.readers.xla_costs import Axis, Op, cost, is_elementwise, plain
from loadmaster.readers.xla_graph import stacklevel_outside, to_graph
from loadmaster.readers.xla_program import (
    Computation,
    Constant,
    Instruction,
    Loop,
    Operand,
    Program,
    Type,
    Walk,
    at,
    decoded,
    drive,
)

_COMPUTATION = re.compile(r"(ENTRY\s+)?%?(?P<name>[\w.$-]+)\s*\(.*\{$")
_INSTRUCTION = re.compile(r"(?P<root>ROOT\s+)?%?(?P<name>[\w.$-]+)\s*=\s*(?P<rest>.*)$")
_SHAPE = re.compile(r"(?P<dtype>\w+)\[(?P<dims>[^\]]*)\](?:\{[^}]*\})?")
_NUMBER = re.compile(r"/\*[^*]*\*/")
_MARK = re.compile(r"\"(?:[^\"\\]|\\.)*\"|[()\[\]{},]")
_CALLEES = re.compile(
    r"\b(calls|to_apply|condition|body|true_computation|false_computation|branch_computations"
    r"|select|scatter|called_computations)=(\{[^}]*\}|%?[\w.$-]+)"
)

#: Operations that give what they are given, or a part of it, or put it together.
_TUPLES = frozenset(("tuple", "get-tuple-element"))
_SLICES = frozenset(("dynamic-slice", "slice", "gather"))


def is_hlo(text: str) -> bool:
    """Whether a text begins like a module of HLO.

    >>> is_hlo("HloModule jit_step, is_scheduled=true"), is_hlo("module @jit_step {")
    (True, False)
    """
    return text.lstrip().startswith("HloModule")


def read(
    path: str | os.PathLike[str],
    *,
    trace: str | os.PathLike[str] | None = None,
    device_type: str = ANY_TYPE,
) -> OpGraph:
    """Read the text of an HLO module as an op graph, with measured times where a trace is given.

    Parameters
    ----------
    path
        HLO text, plain or gzipped: ``jax.jit(f).lower(x).compile().as_text()``.
    trace
        The ``*.trace.json.gz`` that ``jax.profiler.trace`` wrote while the module ran. An op in a
        loop takes what all of its executions took; over several runs, the median.
    device_type
        Where it was measured.

    Raises
    ------
    InputError
        The text is not a whole module (the line is named), or the trace has no run of it.

    Warns
    -----
    UserWarning
        Ops that the trace does not have: their time is filled in by the bytes that they move, at
        the rate of the measured ones. Kinds of op without known costs.

    Example
    -------
    >>> graph = read("step.optimized_hlo.txt.gz", trace="step.trace.json.gz")   # doctest: +SKIP
    """
    try:
        program = from_text(decoded(read_bytes(path)))
        graph = to_graph(program, Path(path).name.split(".")[0])
    except InputError as error:
        raise InputError(f"{os.fspath(path)}: {error}") from None
    if trace is None:
        return graph
    measured = _measured(trace, program.name, graph)
    document = graph.to_document()
    document["ops"]["time"] = {device_type: _filled(graph, measured).tolist()}
    return OpGraph.from_document(document)


def profile(
    path: str | os.PathLike[str],
    trace: str | os.PathLike[str],
    *,
    device_type: str = ANY_TYPE,
    batch: int | None = None,
) -> Profile:
    """What a profiler trace measured of the ops of a module, run by run.

    Parameters, errors and names of ops are those of :func:`read`.

    Example
    -------
    >>> measured = profile("step.optimized_hlo.txt.gz", "step.trace.json.gz")   # doctest: +SKIP
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of costs, which a profile has not
        graph = read(path)
    seconds = _measured(trace, graph.meta["model"], graph)
    rows = np.flatnonzero(~np.isnan(seconds).all(axis=1))
    return Profile(
        tuple(graph.names[i] for i in rows),
        tuple(graph.kinds[i] for i in rows),
        seconds[rows],
        device_type,
        batch,
        graph.output_bytes[rows],
    )


# ---- times --------------------------------------------------------------------------------------


def _measured(
    trace: str | os.PathLike[str], module: str, graph: OpGraph
) -> NDArray[np.float64]:
    """Seconds per op and run, float64 [n_ops, n_runs]; NaN: not in the trace."""
    events = _events(trace, module)
    runs = {run: i for i, run in enumerate(dict.fromkeys(e.run for e in events))}
    index = {name: i for i, name in enumerate(graph.names)}
    seconds = np.full((graph.n_ops, len(runs)), np.nan)
    strangers: Counter[str] = Counter()
    for event in events:
        op = index.get(event.op)
        if op is None:
            strangers[event.op] += 1
            continue
        before = seconds[op, runs[event.run]]
        seconds[op, runs[event.run]] = event.own + (0.0 if np.isnan(before) else before)
    if len(strangers) == len({e.op for e in events}):
        raise InputError(
            f"{os.fspath(trace)} has runs of {module!r}, but of none of this text's instructions: "
            "it was compiled otherwise"
        )
    if strangers:
        warnings.warn(
            f"{sum(strangers.values())} events of {len(strangers)} instructions that the text does "
            f"not have, {next(iter(strangers))!r} first, are left out",
            stacklevel=stacklevel_outside(),
        )
    return seconds


@dataclass(slots=True)
class _Event:
    """One execution of an instruction, in seconds; ``own`` is without what ran within it."""

    op: str
    run: str
    start: float
    end: float
    own: float


def _events(trace: str | os.PathLike[str], module: str) -> list[_Event]:
    """The executions of a module's instructions, each without those nested in it."""
    document = parse_json(read_bytes(trace), trace)
    rows = document.get("traceEvents") if isinstance(document, Mapping) else None
    if not isinstance(rows, list):
        raise InputError(f"{os.fspath(trace)} is no profiler trace: it has no list 'traceEvents'")
    threads: dict[tuple[Any, Any], list[_Event]] = defaultdict(list)
    modules: Counter[str] = Counter()
    for row in rows:
        args = row.get("args") if isinstance(row, Mapping) else None
        if not isinstance(args, Mapping) or row.get("ph") != "X" or "hlo_op" not in args:
            continue
        modules[str(args.get("hlo_module", ""))] += 1
        if not _same_module(str(args.get("hlo_module", "")), module):
            continue
        start, length = row.get("ts"), row.get("dur")
        if not (_is_time(start) and _is_time(length)):
            raise InputError(
                f"{os.fspath(trace)}: {args['hlo_op']!r} has ts {start!r} and dur {length!r}: wants "
                "microseconds, not negative"
            )
        event = _Event(
            str(args["hlo_op"]),
            str(args.get("run_id", "")),
            start * 1e-6,
            (start + length) * 1e-6,
            length * 1e-6,
        )
        threads[str(row.get("pid")), str(row.get("tid"))].append(event)
    if not threads:
        others = ", ".join(sorted(filter(None, modules)))
        raise InputError(
            f"{os.fspath(trace)} has no execution of module {module!r}"
            + (f"; it has {others}" if others else ": no event names an hlo_op")
        )
    for events in threads.values():
        _take_nested_out(events)
    return [event for key in sorted(threads) for event in threads[key]]


def _take_nested_out(events: list[_Event]) -> None:
    """Each second of a thread belongs to the innermost event that spans it. O(n log n)."""
    events.sort(key=lambda e: (e.start, -e.end))
    open_: list[_Event] = []
    for event in events:
        while open_ and open_[-1].end < event.end:
            open_.pop()
        if open_:
            open_[-1].own = max(open_[-1].own - (event.end - event.start), 0.0)
        open_.append(event)


def _same_module(name: str, module: str) -> bool:
    """Traces may add the program's number: ``jit_step(123)``."""
    return name.partition("(")[0] == module


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e18


def _filled(graph: OpGraph, seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """A time for every op: the median of its runs, none for what makes no data, or by its bytes."""
    measured = ~np.isnan(seconds).all(axis=1)
    times = np.zeros(graph.n_ops)
    times[measured] = np.nanmedian(seconds[measured], axis=1)
    free = graph.view | graph.placeholder | (graph.bytes_accessed == 0)
    missing = ~measured & ~free
    moved = int(graph.bytes_accessed[measured].sum())
    rate = float(times[measured].sum()) / moved if moved else 0.0
    times[missing] = graph.bytes_accessed[missing] * rate
    if missing.any():
        names = [graph.names[i] for i in np.flatnonzero(missing)[:3]]
        note = (
            f"{int(missing.sum())} ops are not in the trace ({', '.join(names)}, ...): their time is "
            "filled in by the bytes they move, at the rate of the measured ones"
        )
        warnings.warn(note, stacklevel=stacklevel_outside())
        graph.meta["assumed"].append(note)
    return times


# ---- text ---------------------------------------------------------------------------------------

#: A value's type: a tuple's is a list.
_Tree = Type | list["_Tree"]


@dataclass(slots=True)
class _Row:
    """An instruction as it stands."""

    name: str
    opcode: str
    type: Any
    operands: list[str]
    inside: str
    attributes: str
    line: int


@dataclass(slots=True)
class _Text:
    """A computation as it stands."""

    name: str
    rows: list[_Row] = field(default_factory=list)
    root: str = ""
    made: Computation | None = None


def from_text(text: str) -> Program:
    """The program of a module's text. O(length)."""
    reader = _Reader()
    for number, line in enumerate(text.splitlines(), 1):
        reader.line = number
        reader.read(_NUMBER.sub("", line.strip()))
    return reader.program()


class _Reader:
    """Reads line by line, then makes computations of what it has read."""

    def __init__(self) -> None:
        self.line = 0
        self.module = ""
        self.texts: dict[str, _Text] = {}
        self.entry = ""
        self.donated: set[int] = set()
        self._open: _Text | None = None

    def _error(self, problem: str, line: int = 0) -> InputError:
        return InputError(f"{at(line or self.line)}{problem}")

    # -- lines -----------------------------------------------------------------------------------

    def read(self, line: str) -> None:
        if line.startswith("HloModule"):
            self.module = line.split()[1].rstrip(",") if len(line.split()) > 1 else ""
            alias = re.search(r"input_output_alias=\{(.*?\))?\s*\}", line)
            if alias:
                self.donated = {int(n) for n in re.findall(r"\((\d+),", alias[0])}
        elif self._open is None:
            found = _COMPUTATION.match(line)
            if found:
                name = found["name"]
                if name in self.texts:
                    raise self._error(f"computation {name!r} is defined twice")
                self._open = self.texts[name] = _Text(name)
                if found[1]:
                    self.entry = name
        elif line.startswith("}"):
            self._open = None
        elif line:
            self._instruction(self._open, line)

    def _instruction(self, text: _Text, line: str) -> None:
        found = _INSTRUCTION.match(line)
        if found is None:
            raise self._error(f"an instruction expected, found {line[:40]!r}")
        rest = found["rest"]
        type_, end = self._type(rest, 0)
        word = re.match(r"\s*([\w-]+)\(", rest[end:])
        if word is None:
            raise self._error(f"{found['name']} has no operation: the line is not whole")
        start = end + word.end() - 1
        stop = _closing(rest, start)
        if stop < 0:
            raise self._error(f"the operands of {found['name']} are not closed")
        inside = rest[start + 1 : stop]
        operands = []
        if word[1] not in ("constant", "parameter", "iota"):
            operands = [part.split()[-1].lstrip("%") for part in _split(inside)]
        row = _Row(found["name"], word[1], type_, operands, inside, rest[stop + 1 :], self.line)
        text.rows.append(row)
        if found["root"] or not text.root:
            text.root = row.name

    def _type(self, text: str, start: int) -> tuple[_Tree, int]:
        """A type and where it ends. Tuples nest as deep as programs' arguments do."""
        while text[start : start + 1] == " ":
            start += 1
        if text[start : start + 1] == "(":
            end = _closing(text, start)
            if end < 0:
                raise self._error("a tuple's type is not closed")
            if text.count("(", start, end) > 64:
                raise self._error("tuples nested too deep")
            return [self._type(part, 0)[0] for part in _split(text[start + 1 : end])], end + 1
        found = _SHAPE.match(text, start)
        if found is None:
            raise self._error(f"a type like f32[8,128] expected, found {text[start:][:40]!r}")
        dims = [d.strip().removeprefix("<=") for d in found["dims"].split(",") if d.strip()]
        if not all(d.isdecimal() for d in dims):
            raise self._error(f"{found[0]} has a dimension that is no number")
        return Type.of(found["dtype"], [int(d) for d in dims], self.line), found.end()

    # -- computations ----------------------------------------------------------------------------

    def program(self) -> Program:
        if self._open is not None:
            raise self._error(f"the text ends within computation {self._open.name!r}")
        if not self.entry:
            raise InputError("the module has no ENTRY computation")
        entry = drive(self._computation(self.entry, 0))
        names, donated = [], []
        for row in self.texts[self.entry].rows:
            if row.opcode == "parameter":
                leaves = len(_leaves(row.type))
                path = _metadata(row.attributes).replace("\\", "")
                names += [path if leaves == 1 else "" for _ in range(leaves)]
                donated += [int(row.inside) in self.donated] * leaves
        told = any("op_name=" in row.attributes for t in self.texts.values() for row in t.rows)
        return Program(
            self.module,
            "hlo",
            entry,
            names if any(names) else [],
            [],
            donated,
            [] if told else ["the text has no op_name: modules are not known"],
            stacks_are_whole=True,
            folds=False,
        )

    def _computation(self, name: str, line: int) -> Walk:
        text = self.texts.get(name)
        if text is None:
            raise self._error(f"computation {name!r} is used, but the text does not have it", line)
        if text.made is not None:
            return text.made
        text.made = made = Computation(name, [], [], [])
        #: Leaves of every value, by its name: what they are called, and their types.
        values: dict[str, list[tuple[Operand, Type]]] = {}
        trees: dict[str, Any] = {}
        parameters: dict[int, list[tuple[str, Type]]] = {}
        for row in text.rows:
            if row.name in values:
                raise self._error(f"{row.name!r} is defined twice", row.line)
            leaves = _leaves(row.type)
            names = [row.name] if len(leaves) == 1 else [f"{row.name}#{i}" for i in range(len(leaves))]
            trees[row.name] = row.type
            values[row.name] = list(zip(names, leaves, strict=True))
            if row.opcode == "parameter":
                if not row.inside.isdecimal():
                    raise self._error(f"parameter({row.inside}) has no number", row.line)
                parameters[int(row.inside)] = list(zip(names, leaves, strict=True))
                continue
            read = []
            for operand in row.operands:
                if operand not in values:
                    raise self._error(
                        f"{operand!r} is read, but nothing before defines it", row.line
                    )
                read.append(values[operand])
            if row.opcode == "tuple":
                values[row.name] = [leaf for part in read for leaf in part]
            elif row.opcode == "get-tuple-element":
                values[row.name] = self._element(row, read, trees)
            elif row.opcode == "constant" and len(leaves) == 1 and not row.inside.startswith("{"):
                values[row.name] = [(Constant(leaves[0], _number(row.inside)), leaves[0])]
            else:
                instruction = yield self._made(row, read, list(zip(names, leaves, strict=True)))
                made.instructions.append(instruction)
            if len(values[row.name]) != len(leaves):
                raise self._error(f"{row.name!r} is of another type than its parts", row.line)
        made.inputs = [leaf for number in sorted(parameters) for leaf in parameters[number]]
        made.outputs = [name for name, _ in values.get(text.root, [])]
        return made

    def _element(
        self, row: _Row, read: Sequence[Any], trees: Mapping[str, Any]
    ) -> list[tuple[Operand, Type]]:
        index = re.search(r"index=(\d+)", row.attributes)
        tree = trees.get(row.operands[0]) if row.operands else None
        if index is None or not isinstance(tree, list) or int(index[1]) >= len(tree):
            raise self._error(f"{row.name!r} is an element of what has none", row.line)
        sizes = [len(_leaves(part)) for part in tree]
        start = sum(sizes[: int(index[1])])
        return list(read[0][start : start + sizes[int(index[1])]])

    def _made(
        self, row: _Row, read: list[list[tuple[Operand, Type]]], results: list[tuple[str, Type]]
    ) -> Walk:
        bodies: dict[str, list[Computation]] = {}
        for key, names in _CALLEES.findall(row.attributes):
            for name in re.findall(r"%?([\w.$-]+)", names):
                bodies.setdefault(key, []).append((yield self._computation(name, row.line)))
        every = [body for part in bodies.values() for body in part]
        stack, _, label = _metadata(row.attributes).rpartition("/")
        instruction = Instruction(
            row.opcode,
            [name for part in read for name, _ in part],
            results,
            bodies=tuple(every),
            stack=stack,
            label=label,
            name=row.name,
            line=row.line,
            effect="custom_call_has_side_effect=true" in row.attributes
            or row.opcode in ("infeed", "outfeed", "send", "recv"),
        )
        kind = plain(row.opcode)
        if kind == "while" and bodies.get("condition") and bodies.get("body"):
            instruction.flow = "while"
            instruction.bodies = (bodies["condition"][0], bodies["body"][0])
            trips = re.search(r"\"known_trip_count\":\{\"n\":\"(\d+)\"", row.attributes)
            instruction.loop = Loop(
                n_carried=len(results), trips=int(trips[1]) if trips else None
            )
        elif kind == "call" and len(every) == 1:
            instruction.flow, instruction.stack = "call", ""
        elif kind == "conditional" and every:
            instruction.flow = "branch"
            instruction.bodies = _branches(every, read[1:])
            if "true_computation" in bodies:  # which stands first, and is number 1
                both = (bodies["false_computation"][0], bodies["true_computation"][0])
                instruction.bodies = _branches(both, read[2:0:-1])
                instruction.operands = [
                    name for part in (read[0], *read[2:0:-1]) for name, _ in part
                ]
        elif kind == "fusion" and every:
            instruction.bodies = ()
            instruction.attributes = _fused(every[0], [t for part in read for _, t in part])
        else:
            if kind == "custom_call":
                target = re.search(r"custom_call_target=\"([^\"]*)\"", row.attributes)
                instruction.kind = f"custom-call@{target[1]}" if target else row.opcode
            types = [t for part in read for _, t in part]
            instruction.attributes = self._attributes(row, types, results)
        return instruction

    def _attributes(
        self, row: _Row, ins: Sequence[Type], results: Sequence[tuple[str, Type]]
    ) -> dict[str, Any]:
        """What costs depend on, under their names there."""
        text = row.attributes
        match plain(row.opcode):
            case "dot":
                return {"contracting": _numbers(text, "lhs_contracting_dims")}
            case "convolution":
                return self._convolution(row, ins, results)
            case "reduce_window" | "select_and_scatter":
                return {"window": _window(text).get("size", ())}
            case "sort":
                return {"axis": next(iter(_numbers(text, "dimensions")), -1)}
            case "fft":
                return {"lengths": _numbers(text, "fft_length")}
            case "compare":
                direction = re.search(r"direction=(\w+)", text)
                return {"direction": direction[1] if direction else ""}
        return {}

    def _convolution(
        self, row: _Row, ins: Sequence[Type], results: Sequence[tuple[str, Type]]
    ) -> dict[str, Any]:
        labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", row.attributes)
        window = _window(row.attributes)
        try:
            assert labels is not None
            lhs, rhs, out = labels.groups()
            data, kernel, made = ins[0].shape, ins[1].shape, results[0][1].shape
            n = len(out) - 2
            axes = tuple(
                Axis(
                    data[lhs.index(str(i))],
                    made[out.index(str(i))],
                    kernel[rhs.index(str(i))],
                    window.get("stride", (1,) * n)[i],
                    window.get("pad", (0,) * n)[i],
                    window.get("lhs_dilate", (1,) * n)[i],
                    window.get("rhs_dilate", (1,) * n)[i],
                )
                for i in range(n)
            )
            features = kernel[rhs.index("i")] * made[out.index("b")] * made[out.index("f")]
        except (AssertionError, LookupError, ValueError):
            raise self._error(
                f"{row.name!r} has labels or a window that do not fit its operands", row.line
            ) from None
        return {"axes": axes, "features": features}


# ---- parts --------------------------------------------------------------------------------------


def _branches(
    bodies: Sequence[Computation], read: Sequence[Sequence[tuple[Operand, Type]]]
) -> tuple[Computation, ...]:
    """Branches that take all operands each, though each reads its own only."""
    made, skipped = [], 0
    for body, own in zip(bodies, read, strict=False):
        unread = [(f"\0{i}", Type("token")) for i in range(skipped)]
        made.append(
            Computation(body.name, [*unread, *body.inputs], body.instructions, body.outputs)
        )
        skipped += len(own)
    return tuple(made)


def _fused(body: Computation, ins: Sequence[Type]) -> dict[str, Any]:
    """What a fusion does: FLOPs of all of it, bytes of what it reads and writes.

    Of an input that is only sliced the slices count, of an output that is updated the update.
    """
    types = dict(body.inputs)
    source: dict[Operand, Operand] = {}
    maker: dict[Operand, Instruction] = {}
    flops = 0
    known = True
    part: dict[Operand, int] = defaultdict(int)
    whole: set[Operand] = set()
    written: dict[Operand, Operand] = {}
    for instruction in body.instructions:
        types.update(instruction.results)
        own = [source.get(o, o) for o in instruction.operands]
        work = cost(
            Op(
                instruction.kind,
                [o.type if isinstance(o, Constant) else types[o] for o in instruction.operands],
                [t for _, t in instruction.results],
                instruction.attributes,
                instruction.bodies,
            )
        )
        flops += work.flops
        known = known and work.known
        for name, _ in instruction.results:
            maker[name] = instruction
        kind = instruction.kind
        if kind in ("bitcast", "reshape") and own:
            source[instruction.results[0][0]] = own[0]
            continue
        if kind in _SLICES:
            part[own[0]] += instruction.results[0][1].nbytes
            own = own[1:]
        elif kind == "dynamic-update-slice":
            written[instruction.results[0][0]] = own[0]
            own = own[1:]
        whole.update(own)
    outputs = [source.get(o, o) for o in body.outputs]
    moved, in_place = 0, None
    for name in outputs:
        if name in written:
            update = maker[name].operands[1]
            size = update.type if isinstance(update, Constant) else types[update]
            moved += size.nbytes
        else:
            whole.add(name)
            if not isinstance(name, Constant):
                moved += types[name].nbytes
    for position, (name, type_) in enumerate(body.inputs):
        if name in whole:
            moved += type_.nbytes
        elif name in part:
            moved += min(part[name], type_.nbytes)
        if len(outputs) == 1 and written.get(outputs[0]) == name:
            in_place = position
    simple = all(
        is_elementwise(i.kind) or plain(i.kind) in ("broadcast", "bitcast", "reshape", "constant")
        for i in body.instructions
    )
    return {
        "flops": flops, "bytes": moved, "known": known, "in_place": in_place, "elementwise": simple
    }  # fmt: skip


def _leaves(tree: Any) -> list[Type]:
    if isinstance(tree, Type):
        return [tree]
    return [leaf for part in tree for leaf in _leaves(part)]


def _closing(text: str, start: int) -> int:
    """Where the bracket at ``start`` closes; -1 if nowhere."""
    depth = 0
    for mark in _MARK.finditer(text, start):
        if mark[0] in "([{":
            depth += 1
        elif mark[0] in ")]}":
            depth -= 1
            if depth == 0:
                return mark.start()
    return -1


def _split(text: str) -> list[str]:
    """Parts between commas that stand in no brackets."""
    parts, depth, last = [], 0, 0
    for mark in _MARK.finditer(text):
        if mark[0] in "([{":
            depth += 1
        elif mark[0] in ")]}":
            depth -= 1
        elif mark[0] == "," and depth == 0:
            parts.append(text[last : mark.start()].strip())
            last = mark.end()
    return [part for part in (*parts, text[last:].strip()) if part]


def _metadata(attributes: str) -> str:
    """Where in the traced program an instruction comes from."""
    found = re.search(r"metadata=\{[^}]*?op_name=\"((?:[^\"\\]|\\.)*)\"", attributes)
    return found[1] if found else ""


def _numbers(text: str, name: str) -> tuple[int, ...]:
    found = re.search(rf"\b{name}=\{{([\d, ]*)\}}", text)
    return tuple(int(n) for n in found[1].split(",") if n.strip()) if found else ()


def _window(text: str) -> dict[str, tuple[int, ...]]:
    """``window={size=3x3 stride=2x2 pad=0_1x0_1}``; of padding, what stands before."""
    found = re.search(r"window=\{([^}]*)\}", text)
    fields = re.findall(r"(\w+)=([\d_x-]+)", found[1]) if found else ()
    return {name: tuple(int(n.split("_")[0]) for n in value.split("x")) for name, value in fields}


def _number(text: str) -> complex | None:
    if text in ("true", "false"):
        return int(text == "true")
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return None
