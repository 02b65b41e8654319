"""JAX: jaxprs in memory, StableHLO, HLO, and the times that JAX's profiler measured."""

from __future__ import annotations

import re

from loadmaster.base.errors import InputError
from loadmaster.readers.registry import File, Later, profile_reader, reader

_MODULE = re.compile(rb"(?:(?:#|//)[^\n]*\n\s*)*(?:\"builtin\.module\"|module\b|func\.func\b)")


def _is_stablehlo(file: File) -> bool:
    if file.head.startswith(b"ML\xefR"):
        raise InputError("this is MLIR bytecode: write the module as text, lowered.as_text()")
    return _MODULE.match(file.text[: 1 << 16]) is not None


def _is_hlo(file: File) -> bool:
    return file.text.startswith(b"HloModule")


def _is_trace(file: File) -> bool:
    """True if a file is a trace and goes with HLO. PyTorch's traces have the same form."""
    graph = file.options.get("graph")
    return graph is not None and file.has_keys("traceEvents") and _is_hlo(File.of(graph))


reader(
    "jaxpr",
    "a jaxpr (jax.make_jaxpr(f)(*arguments))",
    accepts=lambda program: type(program).__name__ == "ClosedJaxpr",
)(Later("xla.jaxpr:read"))
reader("stablehlo", "StableHLO", recognises=_is_stablehlo)(Later("xla.stablehlo:read"))
reader("hlo", "HLO", recognises=_is_hlo)(Later("xla.hlo:read"))
profile_reader("jax-trace", "a profiler trace of JAX", recognises=_is_trace)(
    Later("xla.hlo:profile")
)
