"""JAX: jaxprs in memory, StableHLO, HLO, and the times that JAX's profiler measured."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from loadmaster.base.errors import InputError
from loadmaster.model.graph import OpGraph
from loadmaster.model.profile import Profile
from loadmaster.readers.registry import File, profile_reader, reader

_MODULE = re.compile(rb"(?:(?:#|//)[^\n]*\n\s*)*(?:\"builtin\.module\"|module\b|func\.func\b)")


def _is_stablehlo(file: File) -> bool:
    if file.head.startswith(b"ML\xefR"):
        raise InputError("this is MLIR bytecode: write the module as text, lowered.as_text()")
    return _MODULE.match(file.text[: 1 << 16]) is not None


def _is_hlo(file: File) -> bool:
    return file.text.startswith(b"HloModule")


def _is_trace(file: File) -> bool:
    """Whether a file is a trace and goes with HLO. PyTorch's traces have the same form."""
    graph = file.options.get("graph")
    return graph is not None and file.has_keys("traceEvents") and _is_hlo(File.of(graph))


@reader(
    "jaxpr",
    "a jaxpr (jax.make_jaxpr(f)(*arguments))",
    accepts=lambda program: type(program).__name__ == "ClosedJaxpr",
)
def read_jaxpr(program: Any, *, sizes: Mapping[str, int] | None = None) -> OpGraph:
    """As :func:`loadmaster.readers.jaxpr.read`."""
    from loadmaster.readers import jaxpr

    return jaxpr.read(program, sizes=sizes)


@reader("stablehlo", "StableHLO", recognises=_is_stablehlo)
def read_stablehlo(path: str | os.PathLike[str]) -> OpGraph:
    """As :func:`loadmaster.readers.stablehlo.read`."""
    from loadmaster.readers import stablehlo

    return stablehlo.read(path)


@reader("hlo", "HLO", recognises=_is_hlo)
def read_hlo(
    path: str | os.PathLike[str],
    *,
    profile: str | os.PathLike[str] | None = None,
    device_type: str | None = None,
) -> OpGraph:
    """As :func:`loadmaster.readers.hlo.read`."""
    from loadmaster.readers import hlo

    return hlo.read(path, profile=profile, device_type=device_type)


@profile_reader("jax-trace", "a profiler trace of JAX", recognises=_is_trace)
def read_trace(
    path: str | os.PathLike[str],
    *,
    graph: str | os.PathLike[str],
    device_type: str | None = None,
    batch: int | None = None,
) -> Profile:
    """As :func:`loadmaster.readers.hlo.profile`."""
    from loadmaster.readers import hlo

    return hlo.profile(path, graph=graph, device_type=device_type, batch=batch)
