"""Reading a graph: from a file by its content, an example, an instance, or a program in memory."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from loadmaster.base.errors import InputError
from loadmaster.base.files import limited_input
from loadmaster.model.graph import OpGraph
from loadmaster.readers import examples, registry
from loadmaster.readers.foreign import refuse_folder, refuse_foreign
from loadmaster.readers.registry import File

_EXAMPLE = "example:"

#: The word before the name of an instance where a graph or a cluster is wanted.
INSTANCE = "instance:"

#: The format that files of ours name at their start, and those that are no graphs.
_OURS = re.compile(rb'"format"\s*:\s*"(loadmaster-[a-z-]+)"')
_WHERE_FORMATS_ARE = 200
_NO_GRAPHS = {
    b"loadmaster-plan": "a plan, which `loadmaster explain`, `report`, `simulate`, `run` and "
    "`export` take",
    b"loadmaster-measured": "a measured run, which `loadmaster explain`, `report` and `diff` take",
    b"loadmaster-costs": "a cost model, which --costs takes",
}


def read(source: Any, *, max_input: int | str | None = None, **options: Any) -> OpGraph:
    """The graph in a file, an example (``"example:inception-v3"``), an instance
    (``"instance:planted/100x4-ccr1-0"``), or a program in memory.

    The kind of a file, plain or gzipped, is told by content, and ``options`` go to its reader:

    * opgraph JSON, and examples: none
    * ONNX: ``batch``, ``shapes``; with ``profile`` (ONNX Runtime's): ``device_type``, too
    * ``torch.export`` (.pt2): ``batch``, ``shapes``, ``sizes``
    * PyTorch's execution traces (Chakra): ``profile`` (the Kineto trace of the same step),
      ``step``, ``device_type``
    * PyTorch's profiler traces (Kineto): ``step``, ``device_type``
    * TensorFlow's GraphDef: ``profile`` (RunMetadata), ``fetches``, ``device_type``
    * OpenVINO's XML: none
    * text of JAX: ``parameters``; HLO, too: ``profile`` (the profiler's trace), ``device_type``
    * the msr-fiddle benchmark: ``time_unit``, ``size_unit``, ``cost_unit``

    In memory: a ``torch.fx.GraphModule`` or a ``torch.export.ExportedProgram`` (``example_inputs``
    and the options of ``.pt2``), a ``jax.core.ClosedJaxpr`` (``sizes``,
    ``parameters``).

    Formats of your own are added by :func:`loadmaster.reader`.

    Parameters
    ----------
    source : path, str or program
    max_input : int or str, optional
        Bytes that each file may take unpacked and parsed, as ``"8GiB"``; 2 GiB if absent.
    options
        Of the format's reader, as above.

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
    with limited_input(max_input):
        return _read(source, options)


def _read(source: Any, options: Mapping[str, Any]) -> OpGraph:
    options = {option: value for option, value in options.items() if value is not None}
    if isinstance(source, str) and source.startswith(INSTANCE):
        from loadmaster.readers.instances import builtin

        registry.refuse(source, options, [])
        return builtin.load(source.removeprefix(INSTANCE)).graph
    if isinstance(source, str) and source.casefold().startswith(_EXAMPLE):
        registry.refuse(source, options, [])
        return examples.load(source[len(_EXAMPLE) :].casefold())
    is_file = isinstance(source, str | os.PathLike)
    reader = _of_file(source, options) if is_file else _of_program(source)
    graph = reader.read(source, options)
    if not isinstance(graph, OpGraph):
        raise InputError(f"the reader of {reader.summary} returned {graph!r}: wants an OpGraph")
    return graph


def _of_file(path: str | os.PathLike[str], options: dict[str, Any]) -> registry.Reader:
    name = os.fspath(path)
    if name.casefold() in examples.EXAMPLES and not os.path.exists(name):
        raise InputError(
            f"cannot read {name}: there is no such file; {_EXAMPLE}{name.casefold()} comes along"
        )
    refuse_folder(path)
    file = File.of(path, options)
    if not file.text:
        raise InputError(f"{file.path} is empty")
    if ours := _OURS.search(file.text[:_WHERE_FORMATS_ARE]):
        raise InputError(
            f"{file.path} is {_NO_GRAPHS.get(ours[1], 'a file of Loadmaster')}, not a graph"
        )
    reader = registry.of_file(registry.GRAPHS, file)
    if reader is None or reader.is_ours:
        refuse_foreign(file)
    if reader is None:
        raise InputError(
            f"{file.path} is a text of no graph: graphs are read from "
            f"{registry.known(registry.GRAPHS.values())}; measured times go with a graph, as "
            "profile="
        )
    return reader


def _of_program(program: Any) -> registry.Reader:
    reader = registry.of_program(program)
    if reader is None:
        programs = [known for known in registry.GRAPHS.values() if known.accepts is not None]
        raise InputError(
            f"a graph is read from a path, {registry.known(programs)}, not from "
            f"{type(program).__name__}; lm.capture takes a PyTorch model"
        )
    return reader
