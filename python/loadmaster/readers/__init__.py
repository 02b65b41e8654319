"""Readers: from files to :class:`~loadmaster.graph.OpGraph`, told apart by content."""

from __future__ import annotations

import os
from typing import Any

from loadmaster import examples
from loadmaster.errors import InputError
from loadmaster.files import BYTE_ORDER_MARK, ZIP_MAGIC, begins_with, parse_json, read_bytes
from loadmaster.graph import OpGraph

__all__ = ["read"]

_EXAMPLE = "example:"


def read(path: Any, **options: Any) -> OpGraph:
    """The graph in a file, an example (``"example:inception-v3"``), or a program in memory.

    In memory: a ``torch.fx.GraphModule`` or a ``torch.export.ExportedProgram``.

    The kind is told by content: opgraph JSON (plain or gzipped), ONNX, a program of
    ``torch.export`` (``.pt2``). ``options`` go to the reader of that kind (ONNX: ``batch``,
    ``shapes``; torch.export: these and ``sizes``).

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
    if not isinstance(path, (str, os.PathLike)):
        from loadmaster.readers import torch_fx

        return torch_fx.read(path, **options)
    name = os.fspath(path)
    if name.startswith(_EXAMPLE):
        _refuse(options, "an example")
        return examples.load(name.removeprefix(_EXAMPLE))
    if begins_with(path, ZIP_MAGIC):
        from loadmaster.readers import torch_export

        return torch_export.read(path, **options)
    data = read_bytes(path)
    if data.removeprefix(BYTE_ORDER_MARK).lstrip()[:1] in (b"{", b"["):
        _refuse(options, "opgraph JSON")
        return OpGraph.from_document(parse_json(data, path), name)
    if not data.strip():
        raise InputError(f"{name} is empty")
    # ONNX is a protobuf without a magic number: whatever is not JSON is tried as one.
    from loadmaster.readers import onnx

    return onnx.read(path, **options)


def _refuse(options: dict[str, Any], kind: str) -> None:
    given = [option for option, value in options.items() if value is not None]
    if given:
        raise InputError(f"{kind} takes no option {given[0]!r}: its shapes are fixed")
