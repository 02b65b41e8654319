"""Readers: from files to :class:`~loadmaster.graph.OpGraph`, told apart by content."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from typing import Any

from loadmaster import examples
from loadmaster.errors import InputError
from loadmaster.files import BYTE_ORDER_MARK, parse_json, read_bytes
from loadmaster.graph import OpGraph
from loadmaster.readers import tensorflow_protos

__all__ = ["read"]

_EXAMPLE = "example:"


def read(path: str | os.PathLike[str], **options: Any) -> OpGraph:
    """The graph in a file, or an example (``"example:inception-v3"``).

    The kind is told by content: opgraph JSON (plain or gzipped), ONNX, a TensorFlow GraphDef, the
    msr-fiddle benchmark. ``options`` go to the reader of that kind (ONNX: ``batch``, ``shapes``,
    and ``profile``, ``device_type`` for an ONNX Runtime profile; TensorFlow: ``profile``,
    ``fetches``, ``device_type``; msr-fiddle: ``time_unit``, ``size_unit``, ``cost_unit``).

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
    data = read_bytes(path)
    if tensorflow_protos.may_be_graph(data):
        from loadmaster.readers import tensorflow

        return _with(tensorflow.read, path, options, "a TensorFlow graph")
    if data.removeprefix(BYTE_ORDER_MARK).lstrip()[:1] in (b"{", b"["):
        return _from_json(parse_json(data, path), path, options)
    if not data.strip():
        raise InputError(f"{name} is empty")
    # ONNX is a protobuf without a magic number: whatever is not JSON is tried as one.
    from loadmaster.readers import onnx, ort_profile

    reader = ort_profile.read if "profile" in options else onnx.read
    return _with(reader, path, options, "an ONNX model")


def _from_json(document: Any, path: str | os.PathLike[str], options: dict[str, Any]) -> OpGraph:
    from loadmaster.readers import msr, ort_profile

    if msr.is_benchmark(document):
        return _with(msr.read, path, options, "the msr-fiddle benchmark")
    if ort_profile.is_profile(document):
        raise InputError(
            f"{os.fspath(path)} is an ONNX Runtime profile, which has times and no graph: read the "
            "optimised model, and give this as profile="
        )
    _refuse(options, "opgraph JSON")
    return OpGraph.from_document(document, os.fspath(path))


def _with(
    reader: Callable[..., OpGraph],
    path: str | os.PathLike[str],
    options: dict[str, Any],
    kind: str,
) -> OpGraph:
    """Reads with options that the reader takes."""
    known = list(inspect.signature(reader).parameters)[1:]
    for option in options:
        if option not in known:
            raise InputError(f"{kind} takes no option {option!r}, but {', '.join(known)}")
    return reader(path, **options)


def _refuse(options: dict[str, Any], kind: str) -> None:
    for option in options:
        raise InputError(f"{kind} takes no option {option!r}: its shapes are fixed")
