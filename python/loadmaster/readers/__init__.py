"""Readers: from files to :class:`~loadmaster.model.graph.OpGraph`, told apart by content."""

from __future__ import annotations

import inspect
import os
from importlib import import_module
from typing import Any

from loadmaster.base.errors import InputError
from loadmaster.model.graph import OpGraph
from loadmaster.readers import examples

__all__ = ["read"]

_EXAMPLE = "example:"


def read(source: Any, **options: Any) -> OpGraph:
    """The graph in a file, an example (``"example:inception-v3"``), or a program in memory.

    The kind of a file, plain or gzipped, is told by content, and ``options`` go to its reader:

    * opgraph JSON, and examples: none
    * ONNX: ``batch``, ``shapes``; with ``profile`` (ONNX Runtime's): ``device_type``, too
    * ``torch.export`` (.pt2): ``batch``, ``shapes``, ``sizes``
    * PyTorch's execution traces (Chakra): ``profile`` (the Kineto trace of the same step),
      ``step``, ``device_type``
    * PyTorch's profiler traces (Kineto): ``step``, ``device_type``
    * TensorFlow's GraphDef: ``profile`` (RunMetadata), ``fetches``, ``device_type``
    * text of JAX: jaxpr (``sizes``), StableHLO, HLO (``profile``: the profiler's trace,
      ``device_type``)
    * the msr-fiddle benchmark: ``time_unit``, ``size_unit``, ``cost_unit``

    In memory: a ``torch.fx.GraphModule`` or a ``torch.export.ExportedProgram`` (``example_inputs``
    and the options of ``.pt2``), a ``jax.core.ClosedJaxpr``.

    Raises
    ------
    InputError
        A file of no known kind, options that its reader does not take, or anything the reader
        refuses.

    Examples
    --------
    >>> import loadmaster as lm
    >>> lm.read("example:lenet").n_ops
    104
    """
    from loadmaster.readers.formats import Format, of_file, of_program

    given = {option: value for option, value in options.items() if value is not None}
    if isinstance(source, str) and source.startswith(_EXAMPLE):
        _refuse(Format("an example", ""), given, [])
        return examples.load(source.removeprefix(_EXAMPLE))
    is_file = isinstance(source, (str, os.PathLike))
    found = of_file(source, "profile" in given) if is_file else of_program(source)
    reader = import_module(f"loadmaster.readers.{found.module}").read
    _refuse(found, given, list(inspect.signature(reader).parameters)[1:])
    graph: OpGraph = reader(source, **given)
    return graph


def _refuse(format_: Any, options: dict[str, Any], known: list[str]) -> None:
    """Raises for an option that a reader does not take."""
    for option in options:
        if option not in known:
            takes = f"it takes {', '.join(known)}" if known else "it takes none"
            raise InputError(f"{format_.name} takes no option {option!r}: {takes}")
