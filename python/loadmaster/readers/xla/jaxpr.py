"""Reads jaxprs in memory: what ``jax.make_jaxpr(f)(x)`` returns. JAX itself is not imported.

Name stacks give module paths, and tell backward from forward ops.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from loadmaster.base.errors import InputError
from loadmaster.model.graph import OpGraph
from loadmaster.readers.xla.graph import to_graph
from loadmaster.readers.xla.jaxpr_object import JaxprWalker
from loadmaster.readers.xla.program import XlaProgram, drive


def read(
    program: Any,
    *,
    sizes: Mapping[str, int] | None = None,
    parameters: Sequence[str] | None = None,
) -> OpGraph:
    """Read a jaxpr as an op graph.

    Parameters
    ----------
    program
        A ``jax.core.ClosedJaxpr``: ``jax.make_jaxpr(step)(params, batch)``.
    sizes
        The sizes of symbolic dimensions (``{"b": 8}``), where there are any.
    parameters
        Arguments that are parameters, or arrays in their trees (``"model.layers"``), of a program
        without training. If absent: those that :mod:`loadmaster.readers.xla.served` tells.

    Raises
    ------
    InputError
        The object is no jaxpr, a dimension is symbolic and not in ``sizes``, or the program is too
        large once its calls are inlined.

    Warns
    -----
    UserWarning
        What the costs leave out: primitives that they do not know, loops whose trips are not
        known. ``graph.meta["assumed"]`` keeps the same and more.

    Example
    -------
    >>> graph = read(jax.make_jaxpr(step)(params, batch))             # doctest: +SKIP
    """
    flat = to_program(program, sizes or {})
    return to_graph(flat, flat.name, parameters or ())


def to_program(closed: Any, sizes: Mapping[str, int] | None = None) -> XlaProgram:
    """The program of a ``ClosedJaxpr`` (or a ``Jaxpr``). O(equations)."""
    jaxpr = getattr(closed, "jaxpr", closed)
    if not hasattr(jaxpr, "eqns"):
        raise InputError(
            f"{type(closed).__name__} is no jaxpr: give what jax.make_jaxpr(f)(*arguments) returns"
        )
    walker = JaxprWalker(sizes or {})
    entry = drive(walker.jaxpr(closed))
    name, donated = _called(jaxpr)
    info = getattr(jaxpr, "debug_info", None)
    names, results = (
        [str(n or "") for n in getattr(info, attribute, None) or ()]
        for attribute in ("arg_names", "result_paths")
    )
    assumed = []
    if "xla_pmap" in walker.primitives:
        assumed.append("what is mapped over devices counts as one of them runs it")
    return XlaProgram(name, "jax", entry, names, results, donated, assumed)


def _called(jaxpr: Any) -> tuple[str, list[bool]]:
    """The name of what is run, and which inputs it may overwrite.

    What is run is mostly one call of a jitted function, and only the call says these.
    """
    inputs, calls = list(jaxpr.invars), list(jaxpr.eqns)
    params = calls[0].params if len(calls) == 1 and list(calls[0].invars) == inputs else {}
    flags = params.get("donated_invars", ())
    donated = [bool(f) for f in flags] if len(flags) == len(inputs) else [False] * len(inputs)
    return str(params.get("name", "jaxpr")), donated
