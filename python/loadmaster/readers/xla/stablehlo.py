"""Reads StableHLO: the MLIR text that ``jax.jit(f).lower(x).as_text()`` gives.

With ``as_text(debug_info=True)`` it has locations, which give the names of inputs, module paths and
phases. Without locations ops are named by their function and their number in it. The text is read
line by line: MLIR's printer begins a line for every operation.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import starmap
from pathlib import Path
from typing import Any

from loadmaster.base.errors import InputError, malformed
from loadmaster.base.files import naming, read_bytes
from loadmaster.base.units import counted
from loadmaster.dimensions.calls import LIES, OPEN
from loadmaster.model.graph import OpGraph
from loadmaster.readers.xla.calls import of_mlir
from loadmaster.readers.xla.costs import Axis, plain
from loadmaster.readers.xla.graph import to_graph
from loadmaster.readers.xla.manual import Manual
from loadmaster.readers.xla.program import (
    TOKEN,
    Binder,
    Computation,
    Constant,
    Instruction,
    Loop,
    Operand,
    Type,
    XlaProgram,
    at,
)
from loadmaster.readers.xla.text import closing, decoded, groups, split

_RESULTS = re.compile(r"(%[^=\"]*?)\s*=\s+(?=[\"\w])")
_NAME = re.compile(r"\"(?P<quoted>[^\"]*)\"|(?P<bare>[A-Za-z_][\w.$-]*)")
_VALUE = re.compile(r"%[\w$.-]+(?:#\d+)?")
_PAIR = re.compile(r"(%[\w$.-]+)\s*=\s*(%[\w$.-]+(?:#\d+)?)")
_SYMBOL = re.compile(r"@(?:\"([^\"]*)\"|([\w$.-]+))")
_ALIAS = re.compile(r"#(loc\d*)\s*=\s*loc\((.*)\)$")
_MESH = re.compile(r"sdy\.mesh @(?:\"([^\"]*)\"|([\w$.-]+)) = <\[([^\]]*)\]")
_SHARDING = re.compile(r"<@(?:\"[^\"]*\"|[\w$.-]+), \[([^\]]*)\]")
_RETURNS = ("sdy.return", "return", "func.return", "stablehlo.return", "mhlo.return")
_CALLS = ("call", "func.call", "stablehlo.composite")


def read(path: str | os.PathLike[str], *, parameters: Sequence[str] | None = None) -> OpGraph:
    """Read StableHLO text as an op graph.

    Parameters
    ----------
    path
        MLIR text, plain or gzipped: ``jax.jit(f).lower(x).as_text(debug_info=True)``.
    parameters
        Arguments that are parameters, or arrays in their trees (``"model.layers"``), of a program
        without training. If absent: those that :mod:`loadmaster.readers.xla.served` tells.

    Raises
    ------
    InputError
        The text is not a whole module (the line is named), a dimension is dynamic, an element type
        is unknown, or the program is too large once its calls are inlined.

    Warns
    -----
    UserWarning
        What the costs leave out: kinds that they do not know, loops whose trips are not written.
        ``graph.meta["assumed"]`` keeps the same and more.

    Example
    -------
    >>> graph = read("step.stablehlo.mlir.gz")                        # doctest: +SKIP
    """
    with naming(path):
        program = from_text(decoded(read_bytes(path)))
        return to_graph(program, Path(path).name.split(".")[0], parameters or ())


def from_text(text: str) -> XlaProgram:
    """The program of a module's text: its public function, or the first. O(length)."""
    reader = _StablehloReader()
    with malformed(lambda: f"line {reader.line} is malformed"):
        for number, line in enumerate(text.splitlines(), 1):
            line = line.strip()
            if line.startswith("{-#"):  # contents of large constants follow
                break
            if line and not line.startswith("//"):
                reader.line = number
                reader.read(line)
        return reader.program()


# ---- regions and functions ----------------------------------------------------------------------


@dataclass(slots=True)
class _Region:
    """A region while it is read: the values that it defines, and those from around it."""

    inputs: list[Binder]
    types: dict[str, Type]
    isolated: bool = False
    instructions: list[Instruction] = field(default_factory=list)
    outputs: list[Operand] = field(default_factory=list)
    captured: dict[str, Type] = field(default_factory=dict)
    #: The operation whose regions are being read, if one is.
    pending: _Pending | None = None


@dataclass(slots=True)
class _Pending:
    """An operation whose regions are being read."""

    instruction: Instruction
    head: str
    regions: list[_Region] = field(default_factory=list)
    #: The types, which the pretty form writes before the regions.
    pretty: bool = False


@dataclass(slots=True)
class _Function:
    """A function: its computation is filled when its end is read."""

    computation: Computation
    public: bool
    defined: bool = False
    names: list[str] = field(default_factory=list)
    result_names: list[str] = field(default_factory=list)
    donated: list[bool] = field(default_factory=list)


class _StablehloReader:
    """Reads a module line by line. Open regions are a list, so nesting may be deep."""

    def __init__(self) -> None:
        self.line = 0
        self.module = ""
        self.functions: dict[str, _Function] = {}
        self._open: list[_Region] = []
        self._function: _Function | None = None
        self._modules = 0
        self._meshes: dict[str, dict[str, int]] = {}
        self._locations: dict[str, str] = {}
        self._calls: list[tuple[Instruction, str]] = []
        self._located: list[tuple[Instruction, str]] = []

    # -- lines -----------------------------------------------------------------------------------

    def read(self, line: str) -> None:
        if line.startswith("#"):
            alias = _ALIAS.match(line)
            if alias:
                self._locations[alias[1]] = alias[2]
        elif line.startswith("}"):
            self._close(line)
        elif line.startswith("^"):
            self._block(line)
        elif self._open:
            self._statement(line)
        elif line.startswith(("module", '"builtin.module"')):
            self._modules += 1
            name = _SYMBOL.search(line.partition("attributes")[0])
            self.module = self.module or ((name[1] or name[2]) if name else "")
            if not line.endswith("{"):
                raise self._error("'{' expected at the end of the module's line")
        elif line.startswith("func.func"):
            self._signature(line)
        elif mesh := _MESH.match(line):
            sizes = (one.partition("=") for one in split(mesh[3]))
            self._meshes[mesh[1] or mesh[2]] = {
                name.strip(' "'): int(size) for name, _, size in sizes
            }
        # Else another declaration of the module's own.

    def _error(self, problem: str) -> InputError:
        return InputError(f"{at(self.line)}{problem}")

    def _signature(self, line: str) -> None:
        symbol = _SYMBOL.search(line)
        start = line.find("(", symbol.end()) if symbol else -1
        if symbol is None or start < 0:
            raise self._error("func.func without a name or arguments")
        name = symbol[1] or symbol[2]
        end = closing(line, start)
        if end < 0:
            raise self._error(f"the arguments of @{name} are not closed")
        function = _Function(Computation(name, [], [], []), " private " not in line[:start])
        for argument in split(line[start + 1 : end]):
            label, _, rest = argument.partition(":")
            if label.strip().startswith("%"):
                function.computation.inputs.append(Binder(label.strip(), self._type(rest.strip())))
                function.names.append(_quoted(r"loc\(\"([^\"]*)\"\)", rest))
                function.donated.append("tf.aliasing_output" in rest or "jax.buffer_donor" in rest)
        results = line[end + 1 :].strip().removeprefix("->").strip()
        if results.startswith("("):
            inside = results[1 : closing(results, 0)]
            function.result_names = [
                _quoted(r"jax\.result_info = \"([^\"]*)\"", r) for r in split(inside)
            ]
        else:
            function.result_names = [_quoted(r"jax\.result_info = \"([^\"]*)\"", results)]
        if name in self.functions:
            raise self._error(f"function @{name} is defined twice")
        self.functions[name] = function
        if line.endswith("{"):
            self._function = function
            inputs = function.computation.inputs
            self._open.append(_Region(inputs, dict(inputs), isolated=True))

    def _block(self, line: str) -> None:
        """``^bb0(%a: tensor<f32>):`` gives a region its arguments."""
        start = line.find("(")
        if not self._open or (self._open[-1].instructions and start >= 0):
            raise self._error("a block where none can be: only regions of one block are read")
        if start < 0:
            return
        self._open[-1].inputs += self._arguments(line[start + 1 : closing(line, start)])
        self._open[-1].types.update(self._open[-1].inputs)

    def _arguments(self, text: str) -> list[Binder]:
        parted = (argument.partition(":") for argument in split(text))
        return [Binder(label.strip(), self._type(rest.strip())) for label, _, rest in parted]

    # -- regions ---------------------------------------------------------------------------------

    def _statement(self, line: str) -> None:
        region = self._open[-1]
        pending = region.pending
        if pending is not None and pending.pretty:
            word = line.partition(" ")[0].partition("(")[0].rstrip("{").strip()
            if line.endswith("{") and word in ("cond", "reducer", "do"):
                inputs = list(pending.instruction.attributes.get("arguments", ()))
                for group in groups(line) if word == "reducer" else ():
                    inputs += self._arguments(group)
                self._begin(pending, inputs)
                return
            # The operation is whole: the body of such a reduction is its kind.
            self._finish(region)
        self._operation(line)

    def _begin(self, pending: _Pending, inputs: list[Binder]) -> None:
        inner = _Region(list(inputs), dict(inputs))
        pending.regions.append(inner)
        self._open.append(inner)

    def _close(self, line: str) -> None:
        if not self._open:
            self._modules -= 1
            if self._modules < 0:
                raise self._error("'}' closes nothing")
            return
        region = self._open[-1]
        if region.pending is not None:
            self._finish(region)
        self._open.pop()
        rest = line[1:].strip()
        if not self._open:
            assert self._function is not None
            computation = self._function.computation
            computation.instructions, computation.outputs = region.instructions, region.outputs
            self._function.defined = True
            return
        outer = self._open[-1]
        pending = outer.pending
        if pending is None:
            raise self._error("'}' closes a region of no operation")
        if rest.startswith("do"):
            self._begin(pending, list(pending.instruction.attributes.get("arguments", ())))
        elif rest.startswith(","):
            self._begin(pending, [])
        elif rest.startswith((")", ":")):
            self._generic_end(outer, pending, rest.removeprefix(")"))
        elif pending.pretty:
            if rest.startswith("loc("):
                self._located.append((pending.instruction, rest[4:-1]))
            self._finish(outer)
        else:
            raise self._error("the operation that this region belongs to goes on in no way known")

    def _generic_end(self, outer: _Region, pending: _Pending, rest: str) -> None:
        rest, location = _without_location(rest)
        attributes, _, types = f" {rest}".rpartition(" : ")
        pending.head += f" {attributes}"
        if not types.strip():
            raise self._error(f"{pending.instruction.kind} has no types")
        self._set_results(pending.instruction, types.strip())
        if location:
            self._located.append((pending.instruction, location))
        self._finish(outer)

    def _finish(self, region: _Region) -> None:
        """Makes the instruction of an operation whose regions are all read."""
        pending = region.pending
        assert pending is not None
        region.pending = None
        instruction = pending.instruction
        kind = plain(instruction.kind)
        bodies = [
            Computation(
                f"{instruction.kind} of line {instruction.line}",
                r.inputs,
                r.instructions,
                r.outputs,
            )
            for r in pending.regions
        ]
        if instruction.flow == "manual":
            captured = pending.regions[0].captured
            bodies[0].inputs = [*starmap(Binder, captured.items()), *bodies[0].inputs]
            instruction.operands = [*captured, *instruction.operands]
        elif kind == "while":
            if len(bodies) != 2:
                raise self._error(f"{instruction.kind} has {len(bodies)} regions, wants 2")
            self._while(instruction, pending, bodies)
        elif kind in ("case", "if"):
            captured = {n: t for r in pending.regions for n, t in r.captured.items()}
            for body in bodies:
                body.inputs = [*body.inputs, *starmap(Binder, captured.items())]
            instruction.operands = [*instruction.operands[:1], *captured]
            instruction.flow = "branch"
            if kind == "if":  # the first region is for true, which is number 1
                bodies.reverse()
        else:
            instruction.attributes = self._attributes(instruction, pending.head, region)
            instruction.keywords = of_mlir(pending.head)
        instruction.bodies = tuple(bodies)
        self._add(region, instruction)

    def _while(
        self, instruction: Instruction, pending: _Pending, bodies: list[Computation]
    ) -> None:
        condition, body = pending.regions
        instruction.flow = "while"
        instruction.loop = Loop(
            n_constants=len(body.captured),
            n_condition_constants=len(condition.captured),
            n_carried=len(instruction.operands),
        )
        instruction.operands = [*condition.captured, *body.captured, *instruction.operands]
        instruction.attributes = {}
        for computation, region in zip(bodies, pending.regions, strict=True):
            computation.inputs = [*starmap(Binder, region.captured.items()), *region.inputs]

    # -- operations ------------------------------------------------------------------------------

    def _operation(self, line: str) -> None:
        region = self._open[-1]
        line, location = _without_location(line)
        match = _RESULTS.match(line)
        names = _result_names(match[1]) if match else []
        text = line[match.end() :] if match else line
        name = _NAME.match(text)
        if name is None:
            raise self._error(f"an operation expected, found {line[:40]!r}")
        kind, text = name["quoted"] or name["bare"] or "", text[name.end() :]
        opens = text.endswith("{")
        head, _, types = ("", "", "") if opens else text.rpartition(" : ")
        if opens:
            head = text
        if kind in _RETURNS:
            region.outputs = [self._operand(v, region) for v in _VALUE.findall(head or text)]
            return
        if not opens and not types:
            raise self._error(f"{kind} has no types: the line is not whole")
        instruction = Instruction(
            kind,
            [],
            [Binder(n, TOKEN) for n in names],
            label=names[0].lstrip("%").partition("#")[0] if names else "",
            line=self.line,
        )
        if location:
            self._located.append((instruction, location))
        pending = _Pending(instruction, head, pretty=not opens)
        if plain(kind) == "manual_computation" and opens:
            self._manual(instruction, pending)
            return
        if plain(kind) == "while" and not opens:
            self._carry(instruction, names, head, types)
            region.pending = pending
            return
        instruction.operands = [self._operand(v, region) for v in _VALUE.findall(head)]
        if opens:
            region.pending = pending
            self._begin(pending, [])
            return
        self._set_results(instruction, types.strip())
        if plain(kind) == "reduce" and " applies " not in head:
            region.pending = pending
            return
        if kind in _CALLS:
            instruction.flow = "call"
            callee = _symbol(head, "decomposition" if "composite" in kind else "")
            self._calls.append((instruction, callee))
        else:
            instruction.attributes = self._attributes(instruction, head, region)
            if plain(kind) == "sharding_constraint":
                instruction.keywords = self._lies(head)
            elif plain(kind) != "constant":
                instruction.keywords = of_mlir(head)
        self._add(region, instruction)

    def _manual(self, instruction: Instruction, pending: _Pending) -> None:
        """A computation that is mapped by hand: operands, then how arrays lie, then arguments."""
        region, head = self._open[-1], pending.head.removesuffix("{").rstrip()
        end = closing(head, head.find("("))
        operands, rest = head[: end + 1], head[end + 1 :]
        inputs, _, rest = rest.partition("out_shardings=")
        outputs, _, rest = rest.partition("manual_axes={")
        names, _, arguments = rest.partition("}")
        mesh = self._meshes.get(_symbol(inputs, "") or _symbol(outputs, ""), {})
        manual = [name for name in mesh if f'"{name}"' in names]
        if len(manual) < names.count('"') // 2 or '":(' in inputs + outputs:
            raise self._error(f"{instruction.kind} cuts parts of axes, or is of no mesh before it")
        instruction.operands = [self._operand(v, region) for v in _VALUE.findall(operands)]
        instruction.flow = "manual"
        instruction.manual = Manual(
            mesh, manual, _shardings(inputs, manual), _shardings(outputs, manual)
        )
        pending.head, region.pending = "", pending
        start = arguments.find("(")
        self._begin(pending, self._arguments(arguments[start + 1 : closing(arguments, start)]))

    def _lies(self, head: str) -> dict[str, Any]:
        """The keyword of a constraint; none, where it cuts by parts of axes, or says no mesh."""
        mesh = self._meshes.get(_symbol(head, ""), {})
        match = _SHARDING.search(head)
        if match is None or not mesh or '":(' in head:
            return {}
        cuts = [
            re.findall(r"\"([^\"]*)\"|(\?)", axis) for axis in re.findall(r"\{([^{}]*)\}", match[1])
        ]
        replicated = re.search(r"replicated=\{([^{}]*)\}", head)
        return {
            LIES: [
                [[name, size] for name, size in mesh.items()],
                [[name or OPEN for name, _ in cut] for cut in cuts],
                re.findall(r"\"([^\"]*)\"", replicated[1]) if replicated else [],
            ]
        }

    def _carry(self, loop: Instruction, names: list[str], head: str, types: str) -> None:
        """The operands of a loop, the values that it hands on and its results."""
        pairs, region = _PAIR.findall(head), self._open[-1]
        loop.operands = [self._operand(value, region) for _, value in pairs]
        parts = [self._type(t) for t in split(types)]
        if len(parts) != len(pairs):
            raise self._error(
                f"{loop.kind} carries {counted(len(pairs), 'value')} and has "
                f"{counted(len(parts), 'type')}"
            )
        loop.attributes = {
            "arguments": [Binder(n, t) for (n, _), t in zip(pairs, parts, strict=True)]
        }
        loop.results = list(map(Binder, names, parts))

    def _add(self, region: _Region, instruction: Instruction) -> None:
        region.instructions.append(instruction)
        region.types.update(instruction.results)

    def _operand(self, name: str, region: _Region) -> str:
        """The name of a value. Regions between the value and its reader capture it."""
        index = len(self._open) - 1
        while index >= 0 and name not in self._open[index].types:
            if self._open[index].isolated:
                break
            index -= 1
        text = self._open[index].types.get(name) if index >= 0 else None
        if text is None:
            base = name.removesuffix("#0")
            if base != name:
                return self._operand(base, region)
            raise self._error(f"{name} is read, but nothing before defines it")
        for inner in self._open[index + 1 :]:
            inner.captured[name] = inner.types[name] = text
        return name

    def _set_results(self, instruction: Instruction, types: str) -> None:
        _, arrow, right = types.rpartition("->")
        right = right.strip() if arrow else types
        if right.startswith("(") and right.endswith(")"):
            right = right[1:-1]
        parts = [self._type(t) for t in split(right)]
        names = [n for n, _ in instruction.results]
        if len(parts) < len(names):
            raise self._error(
                f"{instruction.kind} gives {counted(len(names), 'value')} of "
                f"{counted(len(parts), 'type')}"
            )
        # Without an arrow, types of operands may stand first: the last types are the results'.
        instruction.results = list(map(Binder, names, parts[len(parts) - len(names) :]))

    def _type(self, text: str) -> Type:
        if text.startswith("tensor<"):
            end = closing(text, 6)
            if end < 0:
                raise self._error(f"type {text[:40]!r} is not whole")
            inside = split(text[7:end])
            dims, dtype = _dims(inside[0] if inside else "")
            if "?" in dims:
                raise self._error(
                    f"{text[: end + 1]} has a dynamic dimension: its sizes must be known. Lower "
                    "the function with arrays of fixed shape (jax.jit(f).lower(*arguments)), or "
                    "refine the module's shapes first"
                )
            return Type.of(dtype, [int(d) for d in dims], self.line)
        if "token" in text[:20]:
            return TOKEN
        word = re.match(r"[!\w.]+", text)
        return Type.of(word[0] if word else text, (), self.line)

    def _attributes(self, instruction: Instruction, head: str, region: _Region) -> dict[str, Any]:
        """Attributes that costs depend on, as :mod:`loadmaster.readers.xla.costs` names them."""
        kind = plain(instruction.kind)
        ins = [self._known(o, region) for o in instruction.operands]
        if kind == "constant":
            return _constant(head)
        if kind == "dot_general":
            return {"contracting": _list(head, r"(?:lhs_contracting_dimensions|contracting_dims)")}
        if kind == "dot":
            return {"contracting": (max(len(ins[0].shape) - 1, 0),) if ins else ()}
        if kind == "convolution":
            return self._convolution(instruction, head, ins)
        if kind in ("reduce_window", "select_and_scatter"):
            return {"window": _list(head, "window_dimensions")}
        if kind == "fft":
            return {"lengths": _list(head, "(?:fft_)?length")}
        if kind == "sort":
            axis = re.search(r"dimension = (-?\d+)", head)
            return {"axis": int(axis[1]) if axis else -1}
        if kind == "compare":
            direction = re.search(r"\b(EQ|NE|LT|LE|GT|GE)\b", head)
            return {"direction": direction[1] if direction else ""}
        if kind == "custom_call":
            instruction.effect = bool(re.search(r"has_side_effect = true", head))
            target = _symbol(head, "call_target_name")
            if target in ("Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape"):
                instruction.kind = "stablehlo.sharding_constraint"
            elif target:
                instruction.kind = f"{instruction.kind}@{target}"
        return {}

    def _known(self, operand: Operand, region: _Region) -> Type:
        return operand.type if isinstance(operand, Constant) else region.types[operand]

    def _convolution(
        self, instruction: Instruction, head: str, ins: Sequence[Type]
    ) -> dict[str, Any]:
        numbers = re.search(r"\[([^\]]*)\]x\[([^\]]*)\]->\[([^\]]*)\]", head)
        try:
            assert numbers is not None
            lhs, rhs, out = ([w.strip() for w in part.split(",")] for part in numbers.groups())
            n = len(out) - 2
            strides = _list(head, "(?:window_strides|stride)") or (1,) * n
            padding = _list(head, "(?:padding|pad)") or ((0, 0),) * n
            if isinstance(padding[0], int):
                padding = (padding * 2,) * n
            input_dilation = _list(head, "lhs_dilat(?:e|ion)") or (1,) * n
            kernel_dilation = _list(head, "rhs_dilat(?:e|ion)") or (1,) * n
            data, kernel, result = ins[0].shape, ins[1].shape, instruction.results[0].type.shape
            axes = tuple(
                Axis(
                    data[lhs.index(str(i))],
                    result[out.index(str(i))],
                    kernel[rhs.index(str(i))],
                    strides[i],
                    padding[i][0],
                    input_dilation[i],
                    kernel_dilation[i],
                )
                for i in range(n)
            )
            features = kernel[rhs.index("i")] * result[out.index("b")] * result[out.index("f")]
        except (AssertionError, LookupError, TypeError, ValueError):
            raise self._error(
                f"{instruction.kind} has dimension numbers or a window that do not fit its operands"
            ) from None
        return {"axes": axes, "features": features}

    # -- the whole -------------------------------------------------------------------------------

    def program(self) -> XlaProgram:
        if self._open or self._modules > 0:
            raise self._error("the text ends within a module, a function or a region")
        if not self.functions:
            raise InputError("the module has no function")
        public = [f for f in self.functions.values() if f.public]
        entry = self.functions.get("main") or next(iter([*public, *self.functions.values()]))
        if not entry.defined:
            raise InputError(f"function @{entry.computation.name} has no body")
        self._locate()
        for instruction, callee in self._calls:
            function = self.functions.get(callee)
            if function is None:
                raise InputError(
                    f"{at(instruction.line)}@{callee} is called, but the module does not have it"
                )
            if function.defined:
                instruction.bodies = (function.computation,)
                instruction.scope = (
                    callee if instruction.stack is None else instruction.label or callee
                )
            else:
                instruction.flow, instruction.kind = "op", f"call@{callee}"
        assumed = [] if self._located else ["the text has no locations: modules are not known"]
        named = entry.names if any(entry.names) else []
        name = self.module.removeprefix("jit_") or entry.computation.name
        return XlaProgram(
            name,
            "stablehlo",
            entry.computation,
            named,
            entry.result_names if any(entry.result_names) else [],
            entry.donated,
            assumed,
            stacks_are_whole=True,
        )

    def _locate(self) -> None:
        """Name stacks from locations: ``jit(f)/jvp(MLP)/up/dot_general`` is stack and name."""
        for instruction, location in self._located:
            if location.startswith("#"):
                location = self._locations.get(location[1:], "")
            path = re.match(r"\"([^\"]*)\"(?!:)", location)
            if path and path[1]:
                stack, _, instruction.label = path[1].rstrip(":").rpartition("/")
                instruction.stack = stack


# ---- text ---------------------------------------------------------------------------------------


def _without_location(line: str) -> tuple[str, str]:
    """A line without the location at its end, and that location, in which may stand others."""
    start = line.find(" loc(") if line.endswith(")") else -1
    while start >= 0:
        if closing(line, start + 4) == len(line) - 1:
            return line[:start].rstrip(), line[start + 5 : -1]
        start = line.find(" loc(", start + 1)
    return line, ""


def _result_names(text: str) -> list[str]:
    """``%3:2`` is two values, named ``%3#0`` and ``%3#1`` where they are read."""
    names = []
    for part in text.split(","):
        name, _, count = part.strip().partition(":")
        if count.isdecimal() and int(count) > 1:
            names += [f"{name}#{i}" for i in range(min(int(count), 1 << 16))]
        else:
            names.append(name)
    return names


def _shardings(text: str, names: Sequence[str]) -> list[list[list[str]]]:
    """Per array and axis, those of the axes of a mesh that cut it.

    >>> _shardings('[<@mesh, [{"x"}, {}]>, <@mesh, []>]', ["x"])
    [[['x'], []], []]
    """
    every = []
    for axes in _SHARDING.findall(text):
        quoted = (re.findall(r"\"([^\"]*)\"", axis) for axis in re.findall(r"\{[^{}]*\}", axes))
        every.append([[name for name in cut if name in names] for cut in quoted])
    return every


def _dims(text: str) -> tuple[list[str], str]:
    """``8x128xf32``: dimensions and element type."""
    dims = []
    while match := re.match(r"(\d+|\?)x", text):
        dims.append(match[1])
        text = text[match.end() :]
    return dims, text


def _symbol(text: str, attribute: str) -> str:
    """The first symbol of a text, or of an attribute of it."""
    if attribute:
        value = re.search(rf"{attribute}\s*=\s*@?\"?([\w$.-]+)", text)
        if value:
            return value[1]
    symbol = _SYMBOL.search(text)
    return (symbol[1] or symbol[2]) if symbol else ""


def _quoted(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    return match[1] if match else ""


def _list(text: str, name: str) -> Any:
    """A list of numbers by its name, in any of MLIR's forms; empty if it is not there."""
    match = re.search(
        rf"\b{name}\s*=\s*(?:array<i64:?\s*([^>]*)>|dense<([^>]*)>|(\[[\[\]\d, -]*\]))", text
    )
    if not match:
        return ()
    content = next(group for group in match.groups() if group is not None)
    if match[3] is None and not content.startswith("["):
        content = f"[{content}]"
    try:
        value = ast.literal_eval(content)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return ()
    return tuple(tuple(v) if isinstance(v, list) else v for v in value)


def _constant(head: str) -> dict[str, Any]:
    """The number that all elements of a constant are, where the text has one number."""
    match = re.search(r"dense(?:_resource)?<([^\[\]\"<>]{0,64})>", head)
    if not match or "dense_resource" in head:
        return {}
    text = match[1].strip()
    if text in ("true", "false"):
        return {"number": int(text == "true")}
    for kind in (int, float):
        try:
            return {"number": kind(text)}
        except ValueError:
            continue
    return {"number": None}  # a hexadecimal or complex number: its value does not matter
