"""Walks jaxprs in memory. Their classes are known by their attributes: JAX is not imported."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from loadmaster.base.errors import InputError
from loadmaster.readers.shared.symbolic import evaluate
from loadmaster.readers.xla.jaxpr_primitives import Equation, instruction
from loadmaster.readers.xla.program import TOKEN, Binder, Computation, Constant, Operand, Type, Walk

#: The type of what has no shape and element type of its own, such as ``Ref{float32[8]}``.
_TYPE = re.compile(r"(?:Ref(?:<\w+>)?\{)?(?P<dtype>[\w<>]+)\[(?P<dims>[^\]]*)\]")


class JaxprWalker:
    """Makes computations of jaxprs.

    Attributes
    ----------
    primitives
        The names of all primitives in the jaxprs walked so far.
    """

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.sizes = sizes
        self.primitives: set[str] = set()
        #: The jaxpr, kept so that its id stays its own, and its computation, by that id.
        self._made: dict[int, tuple[Any, Computation]] = {}
        self._names: dict[Any, str] = {}

    def jaxpr(self, closed: Any) -> Walk:
        """The computation of a jaxpr. A jaxpr that stands in several places is walked once."""
        jaxpr = getattr(closed, "jaxpr", closed)
        known = self._made.get(id(jaxpr))
        if known is not None:
            return known[1]
        inputs, constants = (
            [self._binder(v) for v in vs] for vs in (jaxpr.invars, jaxpr.constvars)
        )
        computation = Computation(f"jaxpr {len(self._made)}", inputs, [], [], constants)
        self._made[id(jaxpr)] = jaxpr, computation
        for eqn in jaxpr.eqns:
            computation.instructions.append(instruction((yield self._equation(eqn))))
        computation.outputs.extend(self._atom(v) for v in jaxpr.outvars)
        return computation

    def _equation(self, eqn: Any) -> Walk:
        operands = [self._atom(v) for v in eqn.invars]
        binders = [(v, self._binder(v)) for v in eqn.outvars]
        bodies: dict[str, list[Computation]] = {}
        for name, value in eqn.params.items():
            inner = value if isinstance(value, tuple | list) else (value,)
            for jaxpr in inner:
                if hasattr(getattr(jaxpr, "jaxpr", jaxpr), "eqns"):
                    bodies.setdefault(name, []).append((yield self.jaxpr(jaxpr)))
        primitive = str(eqn.primitive.name)
        self.primitives.add(primitive)
        return Equation(
            primitive,
            operands,
            [self._type(v.aval) for v in eqn.invars],
            [Binder("" if type(v).__name__ == "DropVar" else name, t) for v, (name, t) in binders],
            eqn.params,
            bodies,
            str(eqn.source_info.name_stack),
            bool(eqn.effects),
        )

    def _binder(self, var: Any) -> Binder:
        name = self._names.setdefault(var, f"v{len(self._names)}")
        return Binder(name, self._type(var.aval))

    def _atom(self, atom: Any) -> Operand:
        if hasattr(atom, "val"):
            return Constant(self._type(atom.aval), _number_of(atom.val))
        return self._names.get(atom, str(atom))

    def _type(self, aval: Any) -> Type:
        if hasattr(aval, "dtype") and hasattr(aval, "shape"):
            return Type.of(str(aval.dtype), [self._dim(str(d)) for d in aval.shape])
        text = str(aval)
        if text.startswith(("Token", "token")):
            return TOKEN
        match = _TYPE.match(text)
        if not match:
            raise InputError(f"{text!r} is no type like f32[8,128]")
        dims = [d.partition("@")[0].strip() for d in match["dims"].split(",") if d.strip()]
        return Type.of(match["dtype"], [self._dim(d) for d in dims])

    def _dim(self, text: str) -> int:
        """A dimension, or a symbolic one (``2*b``) where the sizes of its names are given."""
        if text.isdecimal():
            return int(text)
        try:
            return evaluate(text, self.sizes)
        except KeyError as missing:
            raise InputError(
                f"dimension {text!r} is symbolic: give sizes={{{missing}: ...}}, or trace with "
                "arrays of fixed shape"
            ) from None
        except ValueError as error:
            raise InputError(f"no dimension: {error}") from None


def _number_of(value: Any) -> complex | None:
    """The number that a literal is, if it is one: JAX's, NumPy's or Python's."""
    for kind in (int, float, complex):
        try:
            number = kind(value)
        except (TypeError, ValueError, OverflowError):
            continue
        if number == value:
            return number
    return None
