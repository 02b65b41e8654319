"""Sizes that PyTorch and JAX write as expressions: ``2*s0``, ``Add(Symbol('s0'), Integer(1))``.

Expressions have numbers, symbols and a few functions. They are evaluated without sympy, and
without running code.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

_LONGEST = 10_000  # characters of an expression; what PyTorch writes has a few hundred
_LARGEST = 2**63

_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: Fraction,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}  # fmt: skip


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if exponent.denominator != 1 or abs(exponent) * bits > 4096:
        raise ValueError(f"a power of {exponent}")
    return Fraction(base**exponent)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Add": lambda *terms: sum(terms),
    "Mul": lambda *factors: math.prod(factors),
    "Pow": _power,
    "Integer": lambda n: n,
    "Rational": Fraction,
    **dict.fromkeys(
        ("FloorDiv", "PythonFloorDiv", "CleanDiv", "IntFloorDiv", "floordiv"), operator.floordiv
    ),
    **dict.fromkeys(("CeilDiv", "CeilToIntDiv"), lambda a, b: -(-a // b)),
    **dict.fromkeys(("Mod", "PythonMod", "mod"), operator.mod),
    "ModularIndexing": lambda a, b, c: a // b % c,
    **dict.fromkeys(("IntTrueDiv", "FloatTrueDiv"), Fraction),
    **dict.fromkeys(("Max", "max"), max),
    **dict.fromkeys(("Min", "min"), min),
    **dict.fromkeys(("floor", "FloorToInt", "math.floor"), math.floor),
    **dict.fromkeys(("ceiling", "CeilToInt", "math.ceil"), math.ceil),
    **dict.fromkeys(("TruncToInt", "trunc"), math.trunc),
    **dict.fromkeys(("ToFloat", "Identity"), lambda n: n),
}


def symbols_of(text: str) -> set[str]:
    """The symbols of an expression.

    >>> sorted(symbols_of("Mul(Integer(2), Symbol('s77', positive=True), t0)"))
    ['s77', 't0']

    Raises
    ------
    ValueError
        It is no expression.
    """
    names = set()
    tree = _parsed(text)
    functions = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _is_symbol(node):
            names.add(_name(node))
        elif isinstance(node, ast.Name) and id(node) not in functions:
            names.add(node.id)
    return names


def evaluate(text: str, symbols: Mapping[str, int]) -> int:
    """The size that an expression stands for.

    >>> evaluate("FloorDiv(Add(Symbol('s0'), Integer(-1)), Integer(2)) + s1", {"s0": 9, "s1": 1})
    5

    Raises
    ------
    ValueError
        A function that is not known here, a result that is no size.
    KeyError
        A symbol has no size.
    """
    try:
        value = _value(_parsed(text).body, symbols)
        size = Fraction(value)
    except (ArithmeticError, TypeError, RecursionError) as error:
        raise ValueError(f"{text[:80]!r}: {error}") from None
    if size.denominator != 1 or not 0 <= size < _LARGEST:
        raise ValueError(f"{text[:80]!r} is {value}, no size")
    return int(size)


def _parsed(text: str) -> ast.Expression:
    try:
        if len(text) > _LONGEST:
            raise ValueError("too long")
        return ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"no expression of sizes: {text[:80]!r} ({error})") from None


def _is_symbol(call: ast.Call) -> bool:
    return _name_of(call.func) in ("Symbol", "Dummy")


def _name(call: ast.Call) -> str:
    argument = call.args[0] if call.args else None
    if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
        return argument.value
    raise ValueError("a symbol without a name")


def _name_of(node: ast.expr) -> str:
    return ast.unparse(node) if isinstance(node, (ast.Name, ast.Attribute)) else ""


def _value(node: ast.expr, symbols: Mapping[str, int]) -> Any:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return Fraction(number)
        case ast.Name(id=name):
            return Fraction(symbols[name])
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(operand, symbols))
        case ast.BinOp(op=ast.Pow(), left=left, right=right):
            return _power(_value(left, symbols), _value(right, symbols))
        case ast.BinOp(op=op, left=left, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(left, symbols), _value(right, symbols))
        case ast.Call() if _is_symbol(node):
            return Fraction(symbols[_name(node)])
        case ast.Call(func=function, args=arguments) if _name_of(function) in _FUNCTIONS:
            values = [_value(argument, symbols) for argument in arguments]
            return _FUNCTIONS[_name_of(function)](*values)
    raise ValueError(f"{ast.unparse(node)[:80]!r} is not known here")
