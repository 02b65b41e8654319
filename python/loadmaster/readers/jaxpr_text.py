"""Parses the text of jaxprs: equations as they stand, types and literals."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from loadmaster.base.errors import InputError
from loadmaster.readers.symbolic import evaluate
from loadmaster.readers.xla_program import TOKEN, Computation, Constant, Operand, Type, Walk, at

_TOKEN = re.compile(
    r"(?P<comment>\#[^\n]*)|(?P<newline>\n)|(?P<space>[^\S\n]+)"
    r"|(?P<format>(?<=\s)fmt=[^\n]*)"  # free text, whatever brackets it has
    r"|(?P<string>'(?:[^'\\\n]|\\.)*'|\"(?:[^\"\\\n]|\\.)*\")"
    r"|(?P<word>[^\s\[\](){},;:='\"\#]+)|(?P<mark>[^\s])"
)
_STACK = re.compile(r"\[([^\[\]]*)\]\s*$")
_OPENING, _CLOSING = frozenset("([{"), frozenset(")]}")


@dataclass(slots=True)
class Equation:
    """One equation: parameters as text, the jaxprs among them apart."""

    primitive: str
    args: list[Operand]
    results: list[tuple[str, Type]]
    params: dict[str, str]
    bodies: dict[str, list[Jaxpr | str]]
    stack: str | None = None
    line: int = 0
    effect: bool = False


@dataclass(slots=True)
class Jaxpr:
    """A jaxpr, and the computation that is made of it when all are read."""

    made: Computation
    equations: list[Equation] = field(default_factory=list)


# ---- types and literals- -------------------------------------------------------------------------

_TYPE = re.compile(r"(?:Ref(?:<\w+>)?\{)?(?P<dtype>[\w<>]+)\[(?P<dims>[^\]]*)\]")


def parsed_type(text: str, sizes: Mapping[str, int], line: int) -> Type:
    found = _TYPE.match(text)
    if not found:
        if text.startswith("Token") or text.startswith("token"):
            return TOKEN
        raise InputError(f"{at(line)}{text!r} is no type like f32[8,128]")
    dims = [d.partition("@")[0].strip() for d in found["dims"].split(",") if d.strip()]
    return Type.of(found["dtype"], [parsed_dim(d, sizes, line) for d in dims], line)


def parsed_dim(text: str, sizes: Mapping[str, int], line: int) -> int:
    """A dimension, or a symbolic one (``2*b``) where the sizes of its names are given."""
    if text.isdecimal():
        return int(text)
    try:
        return evaluate(text, sizes)
    except KeyError as missing:
        raise InputError(
            f"{at(line)}dimension {text!r} is symbolic: give sizes={{{missing}: ...}}, or trace "
            "with arrays of fixed shape"
        ) from None
    except ValueError as error:
        raise InputError(f"{at(line)}no dimension: {error}") from None


def parsed_number(text: str) -> complex | None:
    if text in ("True", "False"):
        return int(text == "True")
    for kind in (int, float, complex):
        try:
            return kind(text)
        except ValueError:
            continue
    return None


# ---- text ----------------------------------------------------------------------------------------


class _Token(NamedTuple):
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


class Parser:
    """Reads the text token by token; nested jaxprs are walks that `drive` runs."""

    def __init__(self, text: str, sizes: Mapping[str, int]) -> None:
        self.text = text
        self.sizes = sizes
        self.all: list[Jaxpr] = []
        self.named: dict[str, Jaxpr] = {}
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
        jaxpr = Jaxpr(Computation(f"jaxpr of line {line}", inputs, [], [], constants))
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
        return parsed_type(self.text[first.start : last.end], self.sizes, first.line)

    def _skip_brackets(self, depth: int = 0) -> _Token:
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
            while self._next.text not in ("=", "<-", ","):
                results.append(self._binder())
        mark = self._take().text if self._next.text in ("=", "<-", ",") else "="
        primitive = self._take()
        if primitive.kind != "word":
            raise self._error("a primitive expected")
        equation = Equation(primitive.text, [], results, {}, {}, line=line)
        if self._next.text == "[" and self._next.start == primitive.end:
            yield self._parameters(equation)
        if mark != "=" or self._next.text == "<-" or self._adds():
            self._reference(equation, mark)
        while not self._ends(column):
            equation.args.append(self._atom())
        if self._stacks and equation.stack is None:
            equation.stack = self._stacks[0]
        return equation

    def _reference(self, equation: Equation, mark: str) -> None:
        """A reference read, written or added to; its name stood where primitives stand.

        ``a:f32[] <- x[0]``, ``x[0] <- a``, ``x[0] += a``, and ``b:f32[], x[0] <- x[0], a``, which
        writes and gives what was there.
        """
        equation.args.append(equation.primitive)
        if mark == "<-":
            equation.primitive = "get"
            return
        equation.primitive = "addupdate" if self._adds() else "swap"
        if self._take().text == "+":
            self._take()
        if mark == ",":
            self._take()
            self._skip_brackets()
            self._want(",")
        equation.args.append(self._atom())

    def _adds(self) -> bool:
        return self._next.text == "+" and self._after.text == "="

    def _ends(self, column: int) -> bool:
        token = self._next
        if token.kind == "end" or token.text in ("}", ";", ")", "]") or self._at_outputs():
            return True
        return column >= 0 and 0 <= token.column <= column

    def _parameters(self, equation: Equation) -> Walk:
        self._want("[")
        if self._stacks:
            equation.stack = self._stacks[0]
        if self._next.text != "]" and not self._at_parameter():
            self._skip_brackets(depth=1)  # an index of a reference
            return
        while self._next.text != "]":
            name = self._take()
            if name.kind == "format":
                continue
            if name.kind != "word":
                raise self._error("a parameter expected")
            self._want("=")
            yield self._parameter(equation, name.text)
        self._want("]")
        if equation.bodies and equation.stack is None:
            self._stacks.clear()  # they are of what is within

    def _parameter(self, equation: Equation, name: str) -> Walk:
        """A value, up to the next ``name=`` or the end of the brackets around it."""
        first, last = self._next, self._next
        bodies: list[Jaxpr | str] = []
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
        if self._next.text == ":":
            return Constant(self._typed(), parsed_number(text))
        if (text[0].isalpha() or text[0] == "_") and text not in ("True", "False"):
            return text
        # Older versions of JAX print scalars without their types.
        return Constant(Type("f32"), parsed_number(text))
