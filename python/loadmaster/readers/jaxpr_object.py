"""Walks jaxprs in memory, whose classes it knows by their attributes: JAX is not imported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loadmaster.readers.jaxpr_text import Equation, Jaxpr, parsed_dim, parsed_type
from loadmaster.readers.xla_program import Computation, Constant, Operand, Type, Walk


class Walker:
    """Walks jaxprs in memory."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.sizes = sizes
        self.all: list[Jaxpr] = []
        self._made: dict[int, tuple[Any, Jaxpr]] = {}
        self._names: dict[Any, str] = {}

    def jaxpr(self, closed: Any) -> Walk:
        """A jaxpr; one that stands in several places is walked once."""
        jaxpr = getattr(closed, "jaxpr", closed)
        known = self._made.get(id(jaxpr))
        if known is not None:
            return known[1]
        made = Jaxpr(
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
        equation = Equation(
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
                bodies: list[Jaxpr | str] = []
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
            dims = [parsed_dim(str(d), self.sizes, 0) for d in aval.shape]
            return Type.of(str(aval.dtype), dims)
        return parsed_type(str(aval), self.sizes, 0)


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
