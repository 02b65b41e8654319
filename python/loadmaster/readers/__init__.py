"""Readers: from files to :class:`~loadmaster.graph.OpGraph`, told apart by content."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable
from typing import Any

from loadmaster import examples
from loadmaster.errors import InputError
from loadmaster.files import BYTE_ORDER_MARK, parse_json, read_bytes, read_head
from loadmaster.graph import OpGraph

__all__ = ["read"]

_EXAMPLE = "example:"


def read(path: str | os.PathLike[str], **options: Any) -> OpGraph:
    """The graph in a file, or an example (``"example:inception-v3"``).

    The kind is told by content: opgraph JSON (plain or gzipped), ONNX, PyTorch's execution traces
    (Chakra) and profiler traces (Kineto). ``options`` go to the reader of that kind (ONNX:
    ``batch``, ``shapes``; both traces: ``step``, ``device_type``; execution traces: ``kineto``).

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
    name = os.fspath(path)
    options = {option: value for option, value in options.items() if value is not None}
    if name.startswith(_EXAMPLE):
        _refuse(options, "an example")
        return examples.load(name.removeprefix(_EXAMPLE))
    head = read_head(path).removeprefix(BYTE_ORDER_MARK).lstrip()
    if head[:1] in (b"{", b"["):
        if _has_key(head, b"traceEvents"):
            from loadmaster.readers import kineto

            return _call(kineto.read, path, options, "a Kineto trace")
        if _has_key(head, b"schema") and _has_key(head, b"nodes"):
            from loadmaster.readers import chakra

            return _call(chakra.read, path, options, "an execution trace")
        _refuse(options, "opgraph JSON")
        return OpGraph.from_document(parse_json(read_bytes(path), path), name)
    if not head:
        raise InputError(f"{name} is empty")
    # ONNX is a protobuf without a magic number: whatever is not JSON is tried as one.
    from loadmaster.readers import onnx

    return onnx.read(path, **options)


def _has_key(data: bytes, key: bytes) -> bool:
    """Whether JSON has a key, told without parsing it."""
    return re.search(rb'"%s"\s*:' % key, data) is not None


def _call(
    reader: Callable[..., OpGraph],
    path: str | os.PathLike[str],
    options: dict[str, Any],
    kind: str,
) -> OpGraph:
    known = inspect.signature(reader).parameters.keys() - {"path"}
    if unknown := sorted(options.keys() - known):
        raise InputError(
            f"{kind} takes no option {unknown[0]!r}; it takes {', '.join(sorted(known))}"
        )
    return reader(path, **options)


def _refuse(options: dict[str, Any], kind: str) -> None:
    if options:
        raise InputError(f"{kind} takes no option {next(iter(options))!r}")
