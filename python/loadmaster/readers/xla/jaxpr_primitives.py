"""The meaning of the primitives of JAX: loops, branches, calls, and ops with the attributes that
costs depend on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadmaster.base.checks import is_integer
from loadmaster.base.errors import InputError
from loadmaster.readers.xla.costs import Axis
from loadmaster.readers.xla.manual import Manual
from loadmaster.readers.xla.program import Binder, Computation, Instruction, Loop, Operand, Type

#: Primitives whose jaxpr says how they combine elements, or that run it in another way than once.
_NO_CALLS = re.compile(
    r"scatter|reduce|sort|select_and|pallas_call|custom_root|custom_lin|run_state"
)
_EFFECTS = re.compile(
    r"(debug_callback|debug_print|io_callback|infeed|outfeed|send|recv|get|swap|addupdate)$"
)


@dataclass(slots=True)
class Equation:
    """One equation of a jaxpr.

    Attributes
    ----------
    ins
        The types of the operands.
    results
        Names and types; an empty name for what is dropped.
    params
        The parameters as JAX has them.
    bodies
        The jaxprs among the parameters, by the parameter's name.
    stack
        The name stack: ``jvp(MLP)/Dense_0``.
    """

    primitive: str
    operands: list[Operand]
    ins: Sequence[Type]
    results: list[Binder]
    params: Mapping[str, Any]
    bodies: Mapping[str, list[Computation]]
    stack: str
    effect: bool


def instruction(equation: Equation) -> Instruction:
    """An equation with what its primitive means: a loop, a branch, a call, or an op."""
    primitive, bodies = equation.primitive, equation.bodies
    result = Instruction(
        primitive,
        equation.operands,
        equation.results,
        stack=equation.stack,
        effect=equation.effect or bool(_EFFECTS.match(primitive)),
    )
    every = [body for values in bodies.values() for body in values]
    if primitive == "scan" and bodies.get("jaxpr"):
        result.flow, result.bodies = "scan", (bodies["jaxpr"][0],)
        result.loop = Loop(
            n_constants=_count(equation, "num_consts"),
            n_carried=_count(equation, "num_carry"),
            trips=_count(equation, "length"),
        )
    elif primitive == "while" and bodies.get("cond_jaxpr") and bodies.get("body_jaxpr"):
        result.flow = "while"
        result.bodies = (bodies["cond_jaxpr"][0], bodies["body_jaxpr"][0])
        result.loop = Loop(
            n_constants=_count(equation, "body_nconsts"),
            n_condition_constants=_count(equation, "cond_nconsts"),
            n_carried=len(equation.results),
        )
    elif primitive == "shard_map" and len(every) == 1:
        result.flow, result.bodies = "manual", (every[0],)
        result.scope, result.manual = "shard_map", _manual(equation, every[0])
    elif primitive == "cond" and bodies.get("branches"):
        result.flow, result.bodies = "branch", tuple(bodies["branches"])
    elif (
        len(every) == 1
        and len(every[0].inputs) == len(equation.operands)
        and not _NO_CALLS.search(primitive)
    ):
        result.flow, result.bodies = "call", (every[0],)
        result.scope = _scope(primitive, equation.params.get("name"))
    else:
        result.bodies = tuple(every)
        result.attributes = _attributes(equation)
        result.keywords = dict(_keywords(equation))
    return result


def _manual(equation: Equation, body: Computation) -> Manual:
    """The mesh of a ``shard_map``, and the layouts of its arrays."""
    params = equation.params
    mesh = {str(name): int(size) for name, size in dict(params["mesh"].shape).items()}
    manual = [name for name in mesh if name in map(str, params.get("newly_manual_axes") or mesh)]

    def shardings(specs: Any, types: Sequence[Type]) -> list[list[list[str]]]:
        every = []
        for spec, type_ in zip(specs, types, strict=True):
            cuts = [cut if isinstance(cut, tuple) else (cut,) for cut in spec]
            cuts += [()] * (len(type_.shape) - len(cuts))
            every.append([[str(n) for n in cut if str(n) in manual] for cut in cuts])
        return every

    results = [t for _, t in equation.results]
    try:
        ways = shardings(params["in_specs"], equation.ins), shardings(params["out_specs"], results)
    except (KeyError, TypeError, ValueError):
        raise InputError("shard_map has specs that do not fit its operands") from None
    return Manual(mesh, manual, *ways)


def _keywords(equation: Equation) -> Iterator[tuple[str, Any]]:
    """The parameters but jaxprs; each field of dimension numbers is one of its own."""
    for name, value in equation.params.items():
        if hasattr(value, "_fields"):
            yield from zip(value._fields, value, strict=True)
        elif name not in equation.bodies:
            yield name, value


def _scope(primitive: str, name: Any) -> str:
    """The part that a call adds to the path of its ops, as XLA's own names have it."""
    if primitive in ("jit", "pjit", "xla_call", "core_call"):
        return f"jit({name})" if name else "jit"
    if primitive in ("remat", "remat2", "checkpoint"):
        return "checkpoint"
    return "" if primitive.startswith("custom_") else primitive


def _count(equation: Equation, name: str) -> int:
    value = equation.params.get(name)
    if not is_integer(value) or value < 0:
        raise InputError(f"{equation.primitive} has no whole number for {name!r}")
    return value


def _numbers(value: Any) -> Any:
    """A parameter that is made of whole numbers and tuples; None for any other."""
    if isinstance(value, tuple | list):
        return None if any(_numbers(part) is None for part in value) else value
    return value if isinstance(value, int) else None


def _attributes(equation: Equation) -> dict[str, Any]:
    """Attributes that costs depend on, as :mod:`loadmaster.readers.xla.costs` names them."""
    params = equation.params
    match equation.primitive:
        case "dot_general":
            try:
                return {"contracting": tuple(int(d) for d in params["dimension_numbers"][0][0])}
            except (TypeError, ValueError, LookupError):
                raise InputError("dot_general has no dimension_numbers") from None
        case "conv_general_dilated":
            return _convolution(equation)
        case "integer_pow":
            return {"y": _numbers(params.get("y"))}
        case "sort":
            return {"axis": _numbers(params.get("dimension"))}
        case "fft":
            return {"lengths": _numbers(params.get("fft_lengths"))}
        case (
            "select_and_scatter_add"
            | "select_and_gather_add"
            | "reduce_window"
            | ("reduce_window_sum" | "reduce_window_max" | "reduce_window_min")
        ):
            return {"window": _numbers(params.get("window_dimensions"))}
    return {}


def _convolution(equation: Equation) -> dict[str, Any]:
    params = equation.params
    try:
        numbers = params["dimension_numbers"]
        lhs_spec, rhs_spec, out_spec = numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec
        n = len(out_spec) - 2

        def row(name: str, default: Any) -> Sequence[Any]:
            return params.get(name) or (default,) * n

        padding, strides = row("padding", (0, 0)), row("window_strides", 1)
        input_dilation, kernel_dilation = row("lhs_dilation", 1), row("rhs_dilation", 1)
        lhs, rhs, out = (t.shape for t in (*equation.ins[:2], equation.results[0].type))
        axes = tuple(
            Axis(
                lhs[lhs_spec[2 + i]],
                out[out_spec[2 + i]],
                rhs[rhs_spec[2 + i]],
                int(strides[i]),
                int(padding[i][0]),
                int(input_dilation[i]),
                int(kernel_dilation[i]),
            )
            for i in range(n)
        )
        features = rhs[rhs_spec[1]] * out[out_spec[0]] * out[out_spec[1]]
        return {"axes": axes, "features": features}
    except (AttributeError, TypeError, ValueError, LookupError):
        raise InputError(
            "conv_general_dilated has dimension numbers, padding or dilations that do not fit its "
            "operands"
        ) from None
