"""Jaxprs as JAX has them in memory, made of their printed text: no JAX needed.

The objects have the attributes that the reader looks at. The text is what
``jaxpr.pretty_print(name_stack=True)`` gives, or ``print(jaxpr)``, whose name stacks are empty.
"""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple

_TOKEN = re.compile(
    r"(?P<comment>\#[^\n]*)|(?P<newline>\n)|(?P<space>[^\S\n]+)"
    r"|(?P<format>(?<=\s)fmt=[^\n]*)"  # free text, whatever brackets it has
    r"|(?P<string>'(?:[^'\\\n]|\\.)*'|\"(?:[^\"\\\n]|\\.)*\")"
    r"|(?P<word>[^\s\[\](){},;:='\"\#]+)|(?P<mark>[^\s])"
)
_STACK = re.compile(r"\[([^\[\]]*)\]\s*$")
_OPENING, _CLOSING = frozenset("([{"), frozenset(")]}")
_TYPE = re.compile(r"(?P<dtype>[\w<>]+)\[(?P<dims>[^\]]*)\]")


@dataclass(eq=False)
class Var:
    aval: Any


class DropVar(Var):
    pass


@dataclass(eq=False)
class Literal:
    val: Any
    aval: Any


@dataclass(eq=False)
class Equation:
    primitive: SimpleNamespace
    invars: list[Var | Literal]
    outvars: list[Var]
    params: dict[str, Any] = field(default_factory=dict)
    source_info: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(name_stack=""))
    effects: frozenset[str] = frozenset()


@dataclass(eq=False)
class Jaxpr:
    invars: list[Var]
    constvars: list[Var] = field(default_factory=list)
    eqns: list[Equation] = field(default_factory=list)
    outvars: list[Var | Literal] = field(default_factory=list)
    debug_info: Any = None


class ClosedJaxpr(NamedTuple):
    jaxpr: Jaxpr


def closed_jaxpr(text: str) -> ClosedJaxpr:
    """The jaxpr that a text is of; its inputs are named by their variables."""
    return ClosedJaxpr(_Parser(text).program())


def _aval(text: str) -> Any:
    """An abstract value; a dimension that is no number stays text, as JAX's symbols do."""
    found = _TYPE.fullmatch(text)
    if not found:
        return text
    dims = [d.partition("@")[0].strip() for d in found["dims"].split(",") if d.strip()]
    shape = tuple(int(d) if d.isdecimal() else d for d in dims)
    return SimpleNamespace(dtype=found["dtype"], shape=shape)


def _value(text: str) -> Any:
    """What a parameter is: numbers, tuples, dimension numbers of a convolution, or text."""
    specs = re.findall(r"(\w+_spec)=(\([\d, ]*\))", text)
    if specs:
        return SimpleNamespace(**{name: ast.literal_eval(numbers) for name, numbers in specs})
    try:
        return ast.literal_eval(re.sub(r"\bnp\.\w+\((-?\w+)\)", r"\1", text))
    except (ValueError, SyntaxError):
        return text


def _number(text: str) -> Any:
    """The number that a literal is; its text if it is none."""
    if text in ("True", "False"):
        return text == "True"
    for kind in (int, float, complex):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text


class _Token(NamedTuple):
    kind: str
    text: str
    start: int
    end: int
    #: Column of what begins a line; -1 within one.
    column: int


def _tokens(text: str) -> Iterator[_Token]:
    line_start, fresh = 0, True
    for found in _TOKEN.finditer(text):
        kind = str(found.lastgroup)
        if kind == "newline":
            line_start, fresh = found.end(), True
        elif kind != "space":
            column = found.start() - line_start if fresh else -1
            yield _Token(kind, found.group(), found.start(), found.end(), column)
            fresh = False
    while True:
        yield _Token("end", "", len(text), len(text), 0)


class _Parser:
    """Reads the text token by token. ``names`` are the variables of the innermost jaxpr."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.named: dict[str, ClosedJaxpr] = {}
        self.names: dict[str, Var] = {}
        self.equations: list[Equation] = []
        self.tokens = _tokens(text)
        self.stacks: list[str] = []
        self.next = self._read()
        self.after = self._read()

    def _read(self) -> _Token:
        for token in self.tokens:
            if token.kind != "comment":
                return token
            # A comment stands on the first line of what it is about, which is read before it.
            found = _STACK.search(token.text)
            if found:
                self.stacks.append(found.group(1))
        raise AssertionError

    def _take(self, text: str | None = None) -> _Token:
        token = self.next
        assert token.kind != "end", f"the text ends where {text!r} is expected"
        assert text is None or token.text == text, self.text[token.start : token.start + 60]
        self.next, self.after = self.after, self._read()
        return token

    def program(self) -> Jaxpr:
        while self.next.text == "let":
            self._take()
            name = self._take().text
            self._take("=")
            self.named[name] = self._jaxpr()
            self._take("in")
        jaxpr = self._jaxpr().jaxpr
        assert self.next.kind == "end"
        for equation in self.equations:
            for key, value in equation.params.items():
                if key == "branches":
                    equation.params[key] = tuple(map(self._resolved, value))
                elif key.endswith("jaxpr"):
                    equation.params[key] = self._resolved(value)
        return jaxpr

    def _resolved(self, value: Any) -> Any:
        return self.named.get(value, value) if isinstance(value, str) else value

    def _jaxpr(self) -> ClosedJaxpr:
        outer, self.names = self.names, {}
        self._take("{")
        self._take("lambda")
        constants = self._binders(";")
        inputs = self._binders(".")
        self._take("let")
        jaxpr = Jaxpr(inputs, constants)
        jaxpr.debug_info = SimpleNamespace(
            arg_names=[n for n, v in self.names.items() if v in inputs], result_paths=None
        )
        # An equation begins a line, as far left as the first one; what is further right goes on.
        column = self.next.column
        while not self._at_outputs():
            jaxpr.eqns.append(self._equation(column))
            if self.next.text == ";":
                self._take()
        self._take("in")
        self._take("(")
        while self.next.text != ")":
            jaxpr.outvars.append(self._atom())
            if self.next.text == ",":
                self._take()
        self._take(")")
        self._take("}")
        self.names = outer
        return ClosedJaxpr(jaxpr)

    def _at_outputs(self) -> bool:
        return self.next.text == "in" and self.after.text == "("

    def _binders(self, end: str) -> list[Var]:
        binders = []
        while self.next.text != end:
            binders.append(self._binder())
        self._take(end)
        return binders

    def _binder(self) -> Var:
        name = self._take().text
        if name == "_":
            return DropVar(self._typed())
        self.names[name] = Var(self._typed())
        return self.names[name]

    def _typed(self) -> Any:
        """What follows a colon: a word, and brackets that touch it."""
        self._take(":")
        first = last = self._take()
        while self.next.text in _OPENING and self.next.start == last.end:
            last = self._skip_brackets()
        return _aval(self.text[first.start : last.end])

    def _skip_brackets(self, depth: int = 0) -> _Token:
        while True:
            token = self._take()
            if token.kind == "mark":
                depth += (token.text in _OPENING) - (token.text in _CLOSING)
            if depth <= 0:
                return token

    def _equation(self, column: int) -> Equation:
        self.stacks.clear()
        results = []
        if self.after.text == ":":
            while self.next.text not in ("=", "<-", ","):
                results.append(self._binder())
        mark = self._take().text if self.next.text in ("=", "<-", ",") else "="
        equation = Equation(SimpleNamespace(name=self._take().text), [], results)
        self.equations.append(equation)
        stack = None
        if self.next.text == "[" and self.next.start == self.tokens_end:
            stack = self._parameters(equation)
        if mark != "=" or self.next.text == "<-" or self._adds():
            self._reference(equation, mark)
        while not self._ends(column):
            equation.invars.append(self._atom())
        stack = stack if stack is not None else (self.stacks or [""])[0]
        equation.source_info.name_stack = stack
        return equation

    def _reference(self, equation: Equation, mark: str) -> None:
        """A reference read, written or added to; its name stood where primitives stand.

        ``a:f32[] <- x[0]``, ``x[0] <- a``, ``x[0] += a``, and ``b:f32[], x[0] <- x[0], a``, which
        writes and gives what was there.
        """
        equation.invars.append(self.names[equation.primitive.name])
        if mark == "<-":
            equation.primitive.name = "get"
            return
        equation.primitive.name = "addupdate" if self._adds() else "swap"
        if self._take().text == "+":
            self._take()
        if mark == ",":
            self._take()
            self._skip_brackets()
            self._take(",")
        equation.invars.append(self._atom())

    def _adds(self) -> bool:
        return self.next.text == "+" and self.after.text == "="

    def _ends(self, column: int) -> bool:
        token = self.next
        if token.kind == "end" or token.text in ("}", ";", ")", "]") or self._at_outputs():
            return True
        return column >= 0 and 0 <= token.column <= column

    @property
    def tokens_end(self) -> int:
        """Where the token that was taken last ends, if what follows touches it."""
        start = self.next.start
        return start if start and not self.text[start - 1].isspace() else -1

    def _parameters(self, equation: Equation) -> str | None:
        """Reads what is in brackets; the name stack, where it stands on their first line."""
        self._take("[")
        stack = self.stacks[0] if self.stacks else None
        n_within = 0
        if self.next.text != "]" and not self._at_parameter():
            self._skip_brackets(depth=1)  # an index of a reference
            return stack
        while self.next.text != "]":
            name = self._take()
            if name.kind != "format":
                self._take("=")
                equation.params[name.text] = value = self._parameter(name.text)
                n_within += isinstance(value, ClosedJaxpr) or name.text.endswith(
                    ("jaxpr", "branches")
                )
        self._take("]")
        if n_within and stack is None:
            self.stacks.clear()  # they are of what is within
        return stack

    def _parameter(self, name: str) -> Any:
        """A value, up to the next ``name=`` or the end of the brackets around it."""
        first, last = self.next, self.next
        bodies: list[ClosedJaxpr | str] = []  # names of jaxprs are resolved when all is read
        depth = 0
        while depth or not (self.next.text == "]" or self._at_parameter()):
            token = self.next
            if token.text == "{" and self.after.text == "lambda":
                bodies.append(self._jaxpr())
                continue
            if token.kind == "mark":
                depth += (token.text in _OPENING) - (token.text in _CLOSING)
            last = self._take()
            if last.kind == "word" and name.endswith(("jaxpr", "branches")):
                bodies.append(last.text)
        if bodies:
            return tuple(bodies) if name == "branches" else bodies[0]
        return _value(self.text[first.start : last.end].strip())

    def _at_parameter(self) -> bool:
        return (
            self.next.kind == "word"
            and self.after.text == "="
            and self.after.start == self.next.end
        ) or self.next.kind == "format"

    def _atom(self) -> Var | Literal:
        """A variable, or a literal with its type."""
        first = self.next
        last = self._skip_brackets() if first.text in _OPENING else self._take()
        text = self.text[first.start : last.end]
        if self.next.text == ":":
            return Literal(_number(text), self._typed())
        return self.names[text]
