"""Reads jaxprs: their text, as ``print(jax.make_jaxpr(f)(x))`` gives it, or the object itself.

Neither needs JAX. The text may have name stacks (``jaxpr.pretty_print(name_stack=True)``), which
give module paths and tell backward from forward ops; without them ops are named by their variable.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadmaster.errors import InputError
from loadmaster.files import read_bytes
from loadmaster.graph import OpGraph
from loadmaster.readers.xla_costs import Axis
from loadmaster.readers.xla_graph import to_graph
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
    drive,
)
from loadmaster.readers.xla_text import decoded

_START = re.compile(r"\s*(let\s+[^\s=]+\s*=\s*)?\{\s*lambda\b")

_TOKEN = re.compile(
    r"(?P<comment>\#[^\n]*)|(?P<newline>\n)|(?P<space>[^\S\n]+)"
    r"|(?P<format>(?<=\s)fmt=[^\n]*)"  # free text, whatever brackets it has
    r"|(?P<string>'(?:[^'\\\n]|\\.)*'|\"(?:[^\"\\\n]|\\.)*\")"
    r"|(?P<word>[^\s\[\](){},;:='\"\#]+)|(?P<mark>[^\s])"
)
_STACK = re.compile(r"\[([^\[\]]*)\]\s*$")
_OPENING, _CLOSING = frozenset("([{"), frozenset(")]}")

#: Primitives whose jaxpr says how they combine elements, or that run it in another way than once.
_NO_CALLS = re.compile(
    r"scatter|reduce|sort|select_and|pallas_call|custom_root|custom_lin|run_state"
)
_EFFECTS = re.compile(
    r"(debug_callback|debug_print|io_callback|infeed|outfeed|send|recv|get|swap|addupdate)$"
)


def is_jaxpr(text: str) -> bool:
    """Whether a text begins like a jaxpr.

    >>> is_jaxpr("{ lambda ; a:f32[]. let b:f32[] = sin a in (b,) }")
    True
    """
    return bool(_START.match(text))


def read(
    source: str | os.PathLike[str] | Any, *, sizes: Mapping[str, int] | None = None
) -> OpGraph:
    """Read a jaxpr as an op graph.

    Parameters
    ----------
    source
        A file with the text of a jaxpr, plain or gzipped, or a ``jax.core.ClosedJaxpr`` in memory:
        ``jax.make_jaxpr(step)(params, batch)``.
    sizes
        What symbolic dimensions are (``{"b": 8}``), where there are any.

    Raises
    ------
    InputError
        The text is not a whole jaxpr (the line is named), a dimension is symbolic and not in
        ``sizes``, or the program is too large once its calls are inlined.

    Warns
    -----
    UserWarning
        What the costs leave out: primitives that they do not know, loops whose trips are not
        written. ``graph.meta["assumed"]`` keeps the same and more.

    Example
    -------
    >>> graph = read("step.jaxpr.txt.gz")                             # doctest: +SKIP
    >>> graph = read(jax.make_jaxpr(step)(params, batch))             # doctest: +SKIP
    """
    if not isinstance(source, str | os.PathLike):
        name = str(getattr(source, "name", "")) or "jaxpr"
        return to_graph(from_object(source, sizes or {}), name)
    try:
        text = decoded(read_bytes(source))
        return to_graph(from_text(text, sizes or {}), Path(source).name.split(".")[0])
    except InputError as error:
        raise InputError(f"{os.fspath(source)}: {error}") from None


def from_text(text: str, sizes: Mapping[str, int] | None = None) -> Program:
    """The program of a jaxpr's text. O(length).

    >>> program = from_text("{ lambda ; a:f32[2]. let b:f32[2] = sin a in (b,) }")
    >>> [(i.kind, i.operands) for i in program.entry.instructions]
    [('sin', ['a'])]
    """
    parser = _Parser(text, sizes or {})
    jaxpr = drive(parser.program())
    return _program(jaxpr, parser.all, parser.named, [])


def from_object(closed: Any, sizes: Mapping[str, int] | None = None) -> Program:
    """The program of a ``ClosedJaxpr`` (or a ``Jaxpr``) in memory."""
    if not hasattr(getattr(closed, "jaxpr", closed), "eqns"):
        raise InputError(
            f"{type(closed).__name__} is no jaxpr: give a file name, or what "
            "jax.make_jaxpr(f)(*arguments) returns"
        )
    walker = _Walker(sizes or {})
    jaxpr = drive(walker.jaxpr(closed))
    info = getattr(getattr(closed, "jaxpr", closed), "debug_info", None)
    names = [str(n or "") for n in getattr(info, "arg_names", None) or ()]
    results = [str(n or "") for n in getattr(info, "result_paths", None) or ()]
    return _program(jaxpr, walker.all, {}, names, results)


# ---- jaxprs as they stand -----------------------------------------------------------------------


@dataclass(slots=True)
class _Equation:
    """One equation: parameters as text, the jaxprs among them apart."""

    primitive: str
    args: list[Operand]
    results: list[tuple[str, Type]]
    params: dict[str, str]
    bodies: dict[str, list[_Jaxpr | str]]
    stack: str | None = None
    line: int = 0
    effect: bool = False


@dataclass(slots=True)
class _Jaxpr:
    """A jaxpr, and the computation that is made of it when all are read."""

    made: Computation
    equations: list[_Equation] = field(default_factory=list)


def _program(
    entry: _Jaxpr,
    jaxprs: Sequence[_Jaxpr],
    named: Mapping[str, _Jaxpr],
    names: list[str],
    results: list[str] | None = None,
) -> Program:
    for jaxpr in jaxprs:
        types = dict([*jaxpr.made.inputs, *jaxpr.made.constants])
        for equation in jaxpr.equations:
            jaxpr.made.instructions.append(_instruction(equation, types, named))
            types.update(equation.results)
    # What is run is mostly one call of a jitted function.
    name, donated = "jaxpr", [False] * len(entry.made.inputs)
    if len(entry.equations) == 1 and entry.equations[0].args == [n for n, _ in entry.made.inputs]:
        params = entry.equations[0].params
        name = params.get("name", name)
        flags = _literal(params.get("donated_invars", "()"))
        if isinstance(flags, tuple) and len(flags) == len(donated):
            donated = [bool(flag) for flag in flags]
    stacked = any(e.stack is not None for j in jaxprs for e in j.equations)
    assumed = [] if stacked else ["the text has no name stacks: modules are not known"]
    return Program(name, "jax", entry.made, names, results or [], donated, assumed)


def _instruction(
    equation: _Equation, types: Mapping[str, Type], named: Mapping[str, _Jaxpr]
) -> Instruction:
    """An equation with what its primitive means: a loop, a call, an op with attributes."""
    primitive, params = equation.primitive, equation.params
    bodies: dict[str, list[Computation]] = {}
    for key, values in equation.bodies.items():
        found = [named.get(v) if isinstance(v, str) else v for v in values]
        bodies[key] = [jaxpr.made for jaxpr in found if jaxpr is not None]
    result = Instruction(
        primitive,
        equation.args,
        equation.results,
        stack=equation.stack,
        label=next((name for name, _ in equation.results if name), "")
        if equation.stack is None
        else "",
        line=equation.line,
        effect=equation.effect or bool(_EFFECTS.match(primitive)),
    )
    every = [body for values in bodies.values() for body in values]
    if primitive == "scan" and bodies.get("jaxpr"):
        result.flow, result.bodies = "scan", (bodies["jaxpr"][0],)
        result.loop = Loop(
            n_constants=_integer(equation, "num_consts"),
            n_carried=_integer(equation, "num_carry"),
            trips=_integer(equation, "length"),
        )
    elif primitive == "while" and bodies.get("cond_jaxpr") and bodies.get("body_jaxpr"):
        result.flow = "while"
        result.bodies = (bodies["cond_jaxpr"][0], bodies["body_jaxpr"][0])
        result.loop = Loop(
            n_constants=_integer(equation, "body_nconsts"),
            n_condition_constants=_integer(equation, "cond_nconsts"),
            n_carried=len(equation.results),
        )
    elif primitive == "cond" and bodies.get("branches"):
        result.flow, result.bodies = "branch", tuple(bodies["branches"])
    elif (
        len(every) == 1
        and len(every[0].inputs) == len(equation.args)
        and not _NO_CALLS.search(primitive)
    ):
        result.flow, result.bodies = "call", (every[0],)
        result.scope = _scope(primitive, params.get("name", ""))
    else:
        result.bodies = tuple(every)
        operands = [o.type if isinstance(o, Constant) else types.get(o) for o in equation.args]
        result.attributes = _attributes(equation, operands)
    return result


def _scope(primitive: str, name: str) -> str:
    """What a call adds to the path of its ops, as XLA's own names have it."""
    if primitive in ("jit", "pjit", "xla_call", "core_call"):
        return f"jit({name})" if name else "jit"
    if primitive in ("remat", "remat2", "checkpoint"):
        return "checkpoint"
    return "" if primitive.startswith("custom_") else primitive


def _integer(equation: _Equation, name: str) -> int:
    value = _literal(equation.params.get(name, ""))
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InputError(
            f"{at(equation.line)}{equation.primitive} has no whole number for {name!r}"
        )
    return value


def _literal(text: str) -> Any:
    """What a parameter is, if it is made of numbers and tuples; None otherwise."""
    try:
        return ast.literal_eval(re.sub(r"\bnp\.\w+\((-?\w+)\)", r"\1", text))
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None


def _attributes(equation: _Equation, ins: Sequence[Type | None]) -> dict[str, Any]:
    """What costs depend on, under their names there."""
    params = equation.params
    match equation.primitive:
        case "dot_general":
            dimensions = _literal(params.get("dimension_numbers", ""))
            try:
                return {"contracting": tuple(int(d) for d in dimensions[0][0])}
            except (TypeError, ValueError, IndexError, KeyError):
                raise InputError(
                    f"{at(equation.line)}dot_general has no dimension_numbers"
                ) from None
        case "conv_general_dilated":
            return _convolution(equation, ins)
        case "integer_pow":
            return {"y": _literal(params.get("y", ""))}
        case "sort":
            return {"axis": _literal(params.get("dimension", ""))}
        case "fft":
            return {"lengths": _literal(params.get("fft_lengths", ""))}
        case (
            "select_and_scatter_add"
            | "select_and_gather_add"
            | "reduce_window"
            | ("reduce_window_sum" | "reduce_window_max" | "reduce_window_min")
        ):
            return {"window": _literal(params.get("window_dimensions", ""))}
    return {}


def _convolution(equation: _Equation, ins: Sequence[Type | None]) -> dict[str, Any]:
    params = equation.params
    spec = {
        name: _literal(numbers)
        for name, numbers in re.findall(
            r"(\w+)_spec=(\([\d, ]*\))", params.get("dimension_numbers", "")
        )
    }
    n = len(spec.get("out") or "12") - 2

    def row(name: str, default: Any) -> Sequence[Any]:
        return _literal(params.get(name, "")) or (default,) * n

    padding, strides = row("padding", (0, 0)), row("window_strides", 1)
    input_dilation, kernel_dilation = row("lhs_dilation", 1), row("rhs_dilation", 1)
    try:
        lhs, rhs, out = (t.shape for t in (*ins[:2], equation.results[0][1]) if t is not None)
        axes = tuple(
            Axis(
                lhs[spec["lhs"][2 + i]],
                out[spec["out"][2 + i]],
                rhs[spec["rhs"][2 + i]],
                int(strides[i]),
                int(padding[i][0]),
                int(input_dilation[i]),
                int(kernel_dilation[i]),
            )
            for i in range(n)
        )
        features = rhs[spec["rhs"][1]] * out[spec["out"][0]] * out[spec["out"][1]]
        return {"axes": axes, "features": features}
    except (TypeError, ValueError, LookupError):
        raise InputError(
            f"{at(equation.line)}conv_general_dilated has dimension numbers, padding or dilations "
            "that do not fit its operands"
        ) from None


# ---- types and literals -------------------------------------------------------------------------

_TYPE = re.compile(r"(?:Ref(?:<\w+>)?\{)?(?P<dtype>[\w<>]+)\[(?P<dims>[^\]]*)\]")


def _type(text: str, sizes: Mapping[str, int], line: int) -> Type:
    found = _TYPE.match(text)
    if not found:
        if text.startswith("Token") or text.startswith("token"):
            return Type("token")
        raise InputError(f"{at(line)}{text!r} is no type like f32[8,128]")
    dims = [d.partition("@")[0].strip() for d in found["dims"].split(",") if d.strip()]
    return Type.of(found["dtype"], [_dim(d, sizes, line) for d in dims], line)


def _dim(text: str, sizes: Mapping[str, int], line: int) -> int:
    """A dimension, or a symbolic one (``2*b``) where the sizes of its names are given."""
    if text.isdecimal():
        return int(text)
    try:
        value = _evaluated(ast.parse(text, mode="eval").body, sizes)
    except KeyError as missing:
        raise InputError(
            f"{at(line)}dimension {text!r} is symbolic: give sizes={{{missing}: ...}}, or trace "
            "with arrays of fixed shape"
        ) from None
    except (SyntaxError, ValueError, ArithmeticError, RecursionError):
        raise InputError(f"{at(line)}{text!r} is no dimension") from None
    if not isinstance(value, int) or value < 0:
        raise InputError(f"{at(line)}dimension {text!r} is {value}")
    return value


def _evaluated(node: ast.AST, sizes: Mapping[str, int]) -> int:
    match node:
        case ast.Constant(value=int(value)):
            return value
        case ast.Name(id=name):
            return int(sizes[name])
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_evaluated(operand, sizes)
        case ast.BinOp(left=left, op=op, right=right):
            a, b = _evaluated(left, sizes), _evaluated(right, sizes)
            match op:
                case ast.Add():
                    return a + b
                case ast.Sub():
                    return a - b
                case ast.Mult():
                    return a * b
        case ast.Call(func=ast.Name(id=name), args=[left, right]):
            a, b = _evaluated(left, sizes), _evaluated(right, sizes)
            match name:
                case "floordiv":
                    return a // b
                case "mod":
                    return a % b
                case "max":
                    return max(a, b)
                case "min":
                    return min(a, b)
    raise ValueError(ast.dump(node))


def _number(text: str) -> complex | None:
    if text in ("True", "False"):
        return int(text == "True")
    for kind in (int, float, complex):
        try:
            return kind(text)
        except ValueError:
            continue
    return None


# ---- text ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    start: int
    end: int
    line: int
    #: Column of what begins a line; -1 within one.
    column: int


def _tokens(text: str) -> Iterator[_Token]:
    line, line_start, fresh = 1, 0, True
    for found in _TOKEN.finditer(text):
        kind = str(found.lastgroup)
        if kind == "newline":
            line, line_start, fresh = line + 1, found.end(), True
        elif kind != "space":
            column = found.start() - line_start if fresh else -1
            yield _Token(kind, found.group(), found.start(), found.end(), line, column)
            fresh = False
    yield _Token("end", "", len(text), len(text), line, 0)


class _Parser:
    """Reads the text token by token; nested jaxprs are walks that `drive` runs."""

    def __init__(self, text: str, sizes: Mapping[str, int]) -> None:
        self.text = text
        self.sizes = sizes
        self.all: list[_Jaxpr] = []
        self.named: dict[str, _Jaxpr] = {}
        self._tokens = _tokens(text)
        self._stacks: list[str] = []
        self._next = self._read()
        self._after = self._read()

    # -- tokens ----------------------------------------------------------------------------------

    def _read(self) -> _Token:
        for token in self._tokens:
            if token.kind != "comment":
                return token
            # A comment stands on the first line of what it is about, which is read before it.
            found = _STACK.search(token.text)
            if found:
                self._stacks.append(found.group(1))
        return _Token("end", "", len(self.text), len(self.text), self._next.line, 0)

    def _take(self) -> _Token:
        token = self._next
        self._next, self._after = self._after, self._read()
        return token

    def _want(self, text: str) -> _Token:
        if self._next.text != text or self._next.kind == "string":
            raise self._error(f"{text!r} expected")
        return self._take()

    def _error(self, problem: str) -> InputError:
        token = self._next
        if token.kind == "end":
            return InputError(f"line {token.line}: the text ends within a jaxpr ({problem})")
        return InputError(f"line {token.line}: {problem}, found {token.text[:40]!r}")

    # -- jaxprs ----------------------------------------------------------------------------------

    def program(self) -> Walk:
        while self._next.text == "let":
            self._take()
            name = self._take().text
            self._want("=")
            self.named[name] = yield self._jaxpr()
            self._want("in")
        entry = yield self._jaxpr()
        if self._next.kind != "end":
            raise self._error("the end of the text expected")
        return entry

    def _jaxpr(self) -> Walk:
        line = self._want("{").line
        self._want("lambda")
        constants = self._binders(";")
        self._want(";")
        inputs = self._binders(".")
        self._want(".")
        self._want("let")
        jaxpr = _Jaxpr(Computation(f"jaxpr of line {line}", inputs, [], [], constants))
        self.all.append(jaxpr)
        # An equation begins a line, as far left as the first one; what is further right goes on.
        column = self._next.column
        while not self._at_outputs():
            jaxpr.equations.append((yield self._equation(column)))
            if self._next.text == ";":
                self._take()
        self._want("in")
        self._want("(")
        while self._next.text != ")":
            jaxpr.made.outputs.append(self._atom())
            if self._next.text == ",":
                self._take()
        self._want(")")
        self._want("}")
        return jaxpr

    def _at_outputs(self) -> bool:
        return self._next.text == "in" and self._after.text == "("

    def _binders(self, end: str) -> list[tuple[str, Type]]:
        binders = []
        while self._next.text != end:
            binders.append(self._binder())
        return binders

    def _binder(self) -> tuple[str, Type]:
        name = self._take()
        if name.kind != "word" or self._next.text != ":":
            raise self._error("a variable with its type expected")
        type_ = self._typed()
        return ("" if name.text == "_" else name.text), type_

    def _typed(self) -> Type:
        """What follows a colon: a word, and brackets that touch it."""
        self._want(":")
        first = last = self._take()
        if first.kind != "word":
            raise self._error("a type expected")
        while self._next.text in ("[", "{", "(") and self._next.start == last.end:
            last = self._skip_brackets()
        return _type(self.text[first.start : last.end], self.sizes, first.line)

    def _skip_brackets(self) -> _Token:
        depth = 0
        while True:
            token = self._take()
            if token.kind == "end":
                raise self._error("a bracket is not closed")
            if token.kind == "mark":
                depth += (token.text in _OPENING) - (token.text in _CLOSING)
            if depth <= 0:
                return token

    def _equation(self, column: int) -> Walk:
        self._stacks.clear()
        line = self._next.line
        results = []
        if self._after.text == ":":
            while self._next.text != "=":
                results.append(self._binder())
            self._take()
        elif self._next.text == "=":
            self._take()
        primitive = self._take()
        if primitive.kind != "word":
            raise self._error("a primitive expected")
        equation = _Equation(primitive.text, [], results, {}, {}, line=line)
        if self._next.text == "[" and self._next.start == primitive.end:
            yield self._parameters(equation)
        while not self._ends(column):
            equation.args.append(self._atom())
        if self._stacks and equation.stack is None:
            equation.stack = self._stacks[0]
        return equation

    def _ends(self, column: int) -> bool:
        token = self._next
        if token.kind == "end" or token.text in ("}", ";", ")", "]") or self._at_outputs():
            return True
        return column >= 0 and 0 <= token.column <= column

    def _parameters(self, equation: _Equation) -> Walk:
        self._want("[")
        if self._stacks:
            equation.stack = self._stacks[0]
        while self._next.text != "]":
            name = self._take()
            if name.kind == "format":
                continue
            if name.kind != "word":
                raise self._error("a parameter expected")
            self._want("=")
            yield self._parameter(equation, name.text)
        self._want("]")
        if equation.bodies and self._stacks and equation.stack is None:
            self._stacks.clear()
        return None

    def _parameter(self, equation: _Equation, name: str) -> Walk:
        """A value, up to the next ``name=`` or the end of the brackets around it."""
        first, last = self._next, self._next
        bodies: list[_Jaxpr | str] = []
        depth = 0
        while depth or not (self._next.text == "]" or self._at_parameter()):
            token = self._next
            if token.kind == "end":
                raise self._error("brackets are not closed")
            if token.text == "{" and self._after.text == "lambda":
                bodies.append((yield self._jaxpr()))
                last = self._next
                continue
            if token.kind == "mark":
                depth += (token.text in _OPENING) - (token.text in _CLOSING)
                if depth < 0:
                    raise self._error("']' expected")
            last = self._take()
            if last.kind == "word" and name.endswith(("jaxpr", "branches")):
                bodies.append(last.text)
        if bodies:
            equation.bodies[name] = bodies
        else:
            equation.params[name] = self.text[first.start : last.end].strip()
        return None

    def _at_parameter(self) -> bool:
        return (
            self._next.kind == "word"
            and self._after.text == "="
            and self._after.start == self._next.end
        ) or self._next.kind == "format"

    def _atom(self) -> Operand:
        """A variable, or a literal with its type."""
        first = self._next
        if first.kind == "word":
            last = self._take()
        elif first.text in _OPENING:
            last = self._skip_brackets()
        else:
            raise self._error("a variable or a literal expected")
        text = self.text[first.start : last.end]
        if self._next.text != ":":
            return text
        return Constant(self._typed(), _number(text))


# ---- objects ------------------------------------------------------------------------------------


class _Walker:
    """Walks jaxprs in memory."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.sizes = sizes
        self.all: list[_Jaxpr] = []
        self._made: dict[int, tuple[Any, _Jaxpr]] = {}
        self._names: dict[Any, str] = {}

    def jaxpr(self, closed: Any) -> Walk:
        """A jaxpr; one that stands in several places is walked once."""
        jaxpr = getattr(closed, "jaxpr", closed)
        known = self._made.get(id(jaxpr))
        if known is not None:
            return known[1]
        made = _Jaxpr(
            Computation(
                f"jaxpr {len(self.all)}",
                [self._binder(v) for v in jaxpr.invars],
                [],
                [],
                [self._binder(v) for v in jaxpr.constvars],
            )
        )
        self.all.append(made)
        self._made[id(jaxpr)] = (jaxpr, made)
        for eqn in jaxpr.eqns:
            made.equations.append((yield self._equation(eqn)))
        made.made.outputs.extend(self._atom(v) for v in jaxpr.outvars)
        return made

    def _equation(self, eqn: Any) -> Walk:
        results = [
            ("", t) if type(v).__name__ == "DropVar" else (n, t)
            for v, (n, t) in ((v, self._binder(v)) for v in eqn.outvars)
        ]
        equation = _Equation(
            str(eqn.primitive.name),
            [self._atom(v) for v in eqn.invars],
            results,
            {},
            {},
            stack=str(eqn.source_info.name_stack),
            effect=bool(eqn.effects),
        )
        for name, value in eqn.params.items():
            inner = value if isinstance(value, tuple | list) else (value,)
            jaxprs = [v for v in inner if hasattr(getattr(v, "jaxpr", v), "eqns")]
            if jaxprs:
                bodies: list[_Jaxpr | str] = []
                for v in jaxprs:
                    bodies.append((yield self.jaxpr(v)))
                equation.bodies[name] = bodies
            elif isinstance(value, str | int | float | tuple | list | type(None)):
                equation.params[name] = str(value)
        return equation

    def _binder(self, var: Any) -> tuple[str, Type]:
        name = self._names.setdefault(var, f"v{len(self._names)}")
        return name, self._type(var.aval)

    def _atom(self, atom: Any) -> Operand:
        if hasattr(atom, "val"):
            return Constant(self._type(atom.aval), _number_of(atom.val))
        return self._names.get(atom, str(atom))

    def _type(self, aval: Any) -> Type:
        if hasattr(aval, "dtype") and hasattr(aval, "shape"):
            dims = [_dim(str(d), self.sizes, 0) for d in aval.shape]
            return Type.of(str(aval.dtype), dims)
        return _type(str(aval), self.sizes, 0)


def _number_of(value: Any) -> complex | None:
    """What number a literal is, if it is one: JAX's, NumPy's or Python's."""
    for kind in (int, float, complex):
        try:
            number = kind(value)
        except (TypeError, ValueError, OverflowError):
            continue
        if number == value:
            return number
    return None
