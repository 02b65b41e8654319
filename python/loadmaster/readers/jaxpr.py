"""Reads jaxprs: their text, as ``print(jax.make_jaxpr(f)(x))`` gives it, or the object itself.

Neither needs JAX. The text may have name stacks (``jaxpr.pretty_print(name_stack=True)``), which
give module paths and tell backward from forward ops; without them ops are named by their variable.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loadmaster.base.errors import InputError
from loadmaster.base.files import read_bytes
from loadmaster.model.graph import OpGraph
from loadmaster.readers.jaxpr_object import Walker
from loadmaster.readers.jaxpr_text import Equation, Jaxpr, Parser
from loadmaster.readers.xla_costs import Axis
from loadmaster.readers.xla_graph import to_graph
from loadmaster.readers.xla_program import (
    Computation,
    Constant,
    Instruction,
    Loop,
    Program,
    Type,
    at,
    drive,
)
from loadmaster.readers.xla_text import decoded

_START = re.compile(r"\s*(let\s+[^\s=]+\s*=\s*)?\{\s*lambda\b")

#: Primitives whose jaxpr says how they combine elements, or that run it in another way than once.
_NO_CALLS = re.compile(
    r"scatter|reduce|sort|select_and|pallas_call|custom_root|custom_lin|run_state"
)
_EFFECTS = re.compile(
    r"(debug_callback|debug_print|io_callback|infeed|outfeed|send|recv|get|swap|addupdate)$"
)


def begins(text: str) -> bool:
    """Whether a text begins like a jaxpr.

    >>> begins("{ lambda ; a:f32[]. let b:f32[] = sin a in (b,) }")
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
        program = from_object(source, sizes or {})
        return to_graph(program, program.name)
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
    parser = Parser(text, sizes or {})
    jaxpr = drive(parser.program())
    return _program(jaxpr, parser.all, parser.named, [])


def from_object(closed: Any, sizes: Mapping[str, int] | None = None) -> Program:
    """The program of a ``ClosedJaxpr`` (or a ``Jaxpr``) in memory."""
    if not hasattr(getattr(closed, "jaxpr", closed), "eqns"):
        raise InputError(
            f"{type(closed).__name__} is no jaxpr: give a file name, or what "
            "jax.make_jaxpr(f)(*arguments) returns"
        )
    walker = Walker(sizes or {})
    jaxpr = drive(walker.jaxpr(closed))
    info = getattr(getattr(closed, "jaxpr", closed), "debug_info", None)
    names = [str(n or "") for n in getattr(info, "arg_names", None) or ()]
    results = [str(n or "") for n in getattr(info, "result_paths", None) or ()]
    return _program(jaxpr, walker.all, {}, names, results)


def _program(
    entry: Jaxpr,
    jaxprs: Sequence[Jaxpr],
    named: Mapping[str, Jaxpr],
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
    if any(e.primitive in ("shard_map", "xla_pmap") for j in jaxprs for e in j.equations):
        assumed.append("what is mapped over devices counts as one of them runs it")
    return Program(name, "jax", entry.made, names, results or [], donated, assumed)


def _instruction(
    equation: Equation, types: Mapping[str, Type], named: Mapping[str, Jaxpr]
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


def _integer(equation: Equation, name: str) -> int:
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


def _attributes(equation: Equation, ins: Sequence[Type | None]) -> dict[str, Any]:
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


def _convolution(equation: Equation, ins: Sequence[Type | None]) -> dict[str, Any]:
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
