"""Parses HLO text: computations of instructions, one to a line.

Tuples are no ops: their readers read the elements. A tuple is known by the names of its leaves,
``name#0``, ``name#1`` and so on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from loadmaster.base.errors import InputError, malformed
from loadmaster.readers.xla.calls import of_hlo
from loadmaster.readers.xla.costs import Axis, plain
from loadmaster.readers.xla.hlo_fusion import fusion
from loadmaster.readers.xla.program import (
    TOKEN,
    Binder,
    Computation,
    Constant,
    Instruction,
    Loop,
    Operand,
    Type,
    Walk,
    XlaProgram,
    at,
    drive,
)
from loadmaster.readers.xla.text import closing, split

_COMPUTATION = re.compile(r"(ENTRY\s+)?%?(?P<name>[A-Za-z_][\w.$-]*)\s*(?:\(.*)?\{$")
_INSTRUCTION = re.compile(r"(?P<root>ROOT\s+)?%?(?P<name>[\w.$-]+)\s*=\s*(?P<rest>.*)$")
_SHAPE = re.compile(r"(?P<dtype>\w+)\[(?P<dims>[^\]]*)\](?:\{[^}]*\})?")
_NUMBER = re.compile(r"/\*[^*]*\*/")
_CALLEES = re.compile(
    r"\b(calls|to_apply|condition|body|true_computation|false_computation|branch_computations"
    r"|select|scatter|called_computations)=(\{[^}]*\}|%?[\w.$-]+)"
)

#: A value's type: a tuple's is a list.
_Tree = Type | list["_Tree"]


@dataclass(slots=True)
class _InstructionRow:
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
    rows: list[_InstructionRow] = field(default_factory=list)
    root: str = ""
    computation: Computation | None = None
    is_done: bool = False


def from_text(text: str) -> XlaProgram:
    """The program of a module's text. O(length)."""
    reader = _HloReader()
    with malformed(lambda: f"line {reader.line} is malformed"):
        for number, line in enumerate(text.splitlines(), 1):
            reader.line = number
            reader.read(_NUMBER.sub("", line.strip()))
        return reader.program()


class _Leaf(NamedTuple):
    """A part of a value: what it is called, and its type."""

    operand: Operand
    type: Type


class _HloReader:
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
            match = _COMPUTATION.match(line)
            if match:
                name = match["name"]
                if name in self.texts:
                    raise self._error(f"computation {name!r} is defined twice")
                self._open = self.texts[name] = _Text(name)
                if match[1]:
                    self.entry = name
        elif line.startswith("}"):
            self._open = None
        elif line:
            self._instruction(self._open, line)

    def _instruction(self, text: _Text, line: str) -> None:
        match = _INSTRUCTION.match(line)
        if match is None:
            raise self._error(f"an instruction expected, found {line[:40]!r}")
        rest = match["rest"]
        type_, end = self._type(rest, 0)
        word = re.match(r"\s*([\w-]+)\(", rest[end:])
        if word is None:
            raise self._error(f"{match['name']} has no operation: the line is not whole")
        start = end + word.end() - 1
        stop = closing(rest, start)
        if stop < 0:
            raise self._error(f"the operands of {match['name']} are not closed")
        inside = rest[start + 1 : stop]
        operands = []
        if word[1] not in ("constant", "parameter", "iota"):
            operands = [part.split()[-1].lstrip("%") for part in split(inside)]
        row = _InstructionRow(
            match["name"], word[1], type_, operands, inside, rest[stop + 1 :], self.line
        )
        text.rows.append(row)
        if match["root"] or not text.root:
            text.root = row.name

    def _type(self, text: str, start: int, depth: int = 0) -> tuple[_Tree, int]:
        """A type and where it ends."""
        while text[start : start + 1] == " ":
            start += 1
        if text[start : start + 1] == "(":
            end = closing(text, start)
            if end < 0:
                raise self._error("a tuple's type is not closed")
            if depth > 16:
                raise self._error("tuples nest more than 16 deep")
            parts = split(text[start + 1 : end])
            return [self._type(part, 0, depth + 1)[0] for part in parts], end + 1
        match = _SHAPE.match(text, start)
        if match is None:
            raise self._error(f"a type like f32[8,128] expected, found {text[start:][:40]!r}")
        dims = [d.strip().removeprefix("<=") for d in match["dims"].split(",") if d.strip()]
        if not all(d.isdecimal() for d in dims):
            raise self._error(f"{match[0]} has a dimension that is no number")
        return Type.of(match["dtype"], [int(d) for d in dims], self.line), match.end()

    # -- computations ----------------------------------------------------------------------------

    def program(self) -> XlaProgram:
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
        has_paths = any("op_name=" in row.attributes for t in self.texts.values() for row in t.rows)
        return XlaProgram(
            self.module,
            "hlo",
            entry,
            names if any(names) else [],
            [],
            donated,
            [] if has_paths else ["the text has no op_name: modules are not known"],
            stacks_are_whole=True,
            is_compiled=True,
        )

    def _computation(self, name: str, line: int) -> Walk:
        text = self.texts.get(name)
        if text is None:
            raise self._error(f"computation {name!r} is used, but the text does not have it", line)
        if text.computation is not None:
            if not text.is_done:
                raise self._error(f"computation {name!r} calls itself", line)
            return text.computation
        text.computation = computation = Computation(name, [], [], [])
        #: Leaves of every value, by its name: what they are called, and their types.
        values: dict[str, list[_Leaf]] = {}
        trees: dict[str, Any] = {}
        parameters: dict[int, list[Binder]] = {}
        for row in text.rows:
            self.line = row.line
            if row.name in values:
                raise self._error(f"{row.name!r} is defined twice", row.line)
            leaves = _leaves(row.type)
            names = (
                [row.name] if len(leaves) == 1 else [f"{row.name}#{i}" for i in range(len(leaves))]
            )
            trees[row.name] = row.type
            values[row.name] = list(map(_Leaf, names, leaves))
            binders = list(map(Binder, names, leaves))
            if row.opcode == "parameter":
                if not row.inside.isdecimal():
                    raise self._error(f"parameter({row.inside}) has no number", row.line)
                if int(row.inside) in parameters:
                    raise self._error(f"parameter({row.inside}) stands twice", row.line)
                parameters[int(row.inside)] = binders
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
                values[row.name] = [_Leaf(Constant(leaves[0], _number(row.inside)), leaves[0])]
            else:
                instruction = yield self._made(row, read, binders)
                computation.instructions.append(instruction)
            if len(values[row.name]) != len(leaves):
                raise self._error(f"{row.name!r} is of another type than its parts", row.line)
        computation.inputs = [leaf for number in sorted(parameters) for leaf in parameters[number]]
        computation.outputs = [name for name, _ in values.get(text.root, [])]
        text.is_done = True
        return computation

    def _element(
        self, row: _InstructionRow, read: Sequence[Any], trees: Mapping[str, Any]
    ) -> list[_Leaf]:
        index = re.search(r"index=(\d+)", row.attributes)
        tree = trees.get(row.operands[0]) if row.operands else None
        if index is None or not isinstance(tree, list) or int(index[1]) >= len(tree):
            raise self._error(f"{row.name!r} is an element of what has none", row.line)
        sizes = [len(_leaves(part)) for part in tree]
        start = sum(sizes[: int(index[1])])
        return list(read[0][start : start + sizes[int(index[1])]])

    def _made(
        self,
        row: _InstructionRow,
        read: list[list[_Leaf]],
        results: list[Binder],
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
            instruction.loop = Loop(n_carried=len(results), trips=int(trips[1]) if trips else None)
        elif kind == "call" and len(every) == 1:
            instruction.flow, instruction.stack = "call", ""
        elif kind == "conditional" and every:
            instruction.flow = "branch"
            instruction.bodies = _branches(every, read[1:])
            if "true_computation" in bodies and len(read) == 3:  # it stands first, but is number 1
                both = (bodies["false_computation"][0], bodies["true_computation"][0])
                instruction.bodies = _branches(both, read[2:0:-1])
                instruction.operands = [
                    name for part in (read[0], *read[2:0:-1]) for name, _ in part
                ]
        elif kind == "fusion" and every:
            instruction.bodies = ()
            instruction.attributes = fusion(every[0])
        else:
            if kind == "custom_call":
                target = re.search(r"custom_call_target=\"([^\"]*)\"", row.attributes)
                instruction.kind = f"custom-call@{target[1]}" if target else row.opcode
            types = [t for part in read for _, t in part]
            instruction.attributes = self._attributes(row, types, results)
            instruction.keywords = of_hlo(row.attributes)
        return instruction

    def _attributes(
        self, row: _InstructionRow, ins: Sequence[Type], results: Sequence[Binder]
    ) -> dict[str, Any]:
        """Attributes that costs depend on, as :mod:`loadmaster.readers.xla.costs` names them."""
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
        self, row: _InstructionRow, ins: Sequence[Type], results: Sequence[Binder]
    ) -> dict[str, Any]:
        labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", row.attributes)
        window = _window(row.attributes)
        try:
            assert labels is not None
            lhs, rhs, out = labels.groups()
            data, kernel, result = ins[0].shape, ins[1].shape, results[0].type.shape
            n = len(out) - 2
            axes = tuple(
                Axis(
                    data[lhs.index(str(i))],
                    result[out.index(str(i))],
                    kernel[rhs.index(str(i))],
                    window.get("stride", (1,) * n)[i],
                    window.get("pad", (0,) * n)[i],
                    window.get("lhs_dilate", (1,) * n)[i],
                    window.get("rhs_dilate", (1,) * n)[i],
                )
                for i in range(n)
            )
            features = kernel[rhs.index("i")] * result[out.index("b")] * result[out.index("f")]
        except (AssertionError, LookupError, ValueError):
            raise self._error(
                f"{row.name!r} has labels or a window that do not fit its operands", row.line
            ) from None
        return {"axes": axes, "features": features}


# ---- parts --------------------------------------------------------------------------------------


def _branches(
    bodies: Sequence[Computation], read: Sequence[Sequence[_Leaf]]
) -> tuple[Computation, ...]:
    """Branches that take all operands each, though each reads only its own."""
    branches, skipped = [], 0
    for body, own in zip(bodies, read, strict=False):
        unread = [Binder(f"\0{i}", TOKEN) for i in range(skipped)]
        branches.append(
            Computation(body.name, [*unread, *body.inputs], body.instructions, body.outputs)
        )
        skipped += len(own)
    return tuple(branches)


def _leaves(tree: Any) -> list[Type]:
    if isinstance(tree, Type):
        return [tree]
    return [leaf for part in tree for leaf in _leaves(part)]


def _metadata(attributes: str) -> str:
    """The path in the traced program from which an instruction comes."""
    match = re.search(r"metadata=\{[^}]*?op_name=\"((?:[^\"\\]|\\.)*)\"", attributes)
    return match[1] if match else ""


def _numbers(text: str, name: str) -> tuple[int, ...]:
    match = re.search(rf"\b{name}=\{{([\d, ]*)\}}", text)
    return tuple(int(n) for n in match[1].split(",") if n.strip()) if match else ()


def _window(text: str) -> dict[str, tuple[int, ...]]:
    """``window={size=3x3 stride=2x2 pad=0_1x0_1}``; of a padding only the part in front."""
    match = re.search(r"window=\{([^}]*)\}", text)
    fields = re.findall(r"(\w+)=([\d_x-]+)", match[1]) if match else ()
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
