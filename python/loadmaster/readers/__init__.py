"""Readers: from files to :class:`~loadmaster.graph.OpGraph`, told apart by content."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from loadmaster import examples
from loadmaster.errors import InputError
from loadmaster.files import BYTE_ORDER_MARK, parse_json, read_bytes
from loadmaster.graph import OpGraph

__all__ = ["read"]

_EXAMPLE = "example:"


def read(path: str | os.PathLike[str], **options: Any) -> OpGraph:
    """The graph in a file, or an example (``"example:inception-v3"``).

    The kind is told by content: opgraph JSON (plain or gzipped), ONNX, the text of a jaxpr, of
    StableHLO or of HLO. ``options`` go to the reader of that kind (ONNX: ``batch``, ``shapes``;
    jaxpr: ``sizes``; HLO: ``trace``, ``device_type``).

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
    if name.startswith(_EXAMPLE):
        _refuse(options, "an example")
        return examples.load(name.removeprefix(_EXAMPLE))
    data = read_bytes(path)
    found = _text_reader(data)
    if found is not None:
        reader, kind, taken = found
        _refuse({o: v for o, v in options.items() if o not in taken}, kind)
        return reader(path, **{o: v for o, v in options.items() if o in taken})
    if data.removeprefix(BYTE_ORDER_MARK).lstrip()[:1] in (b"{", b"["):
        _refuse(options, "opgraph JSON")
        return OpGraph.from_document(parse_json(data, path), name)
    if not data.strip():
        raise InputError(f"{name} is empty")
    # ONNX is a protobuf without a magic number: whatever is not JSON is tried as one.
    from loadmaster.readers import onnx

    return onnx.read(path, **options)


def _text_reader(data: bytes) -> tuple[Callable[..., OpGraph], str, tuple[str, ...]] | None:
    """The reader of a program's text, told by how it begins; what it is called, and its options."""
    if data.startswith(b"ML\xefR"):
        raise InputError("this is MLIR bytecode: write the module as text, lowered.as_text()")
    head = data[: 1 << 16].decode("utf-8-sig", "replace")
    if not any(word in head for word in ("lambda", "module", "func.func", "HloModule")):
        return None
    from loadmaster.readers import hlo, jaxpr, stablehlo

    if jaxpr.is_jaxpr(head):
        return jaxpr.read, "a jaxpr", ("sizes",)
    if stablehlo.is_stablehlo(head):
        return stablehlo.read, "StableHLO", ()
    if hlo.is_hlo(head):
        return hlo.read, "HLO", ("trace", "device_type")
    return None


def _refuse(options: dict[str, Any], kind: str) -> None:
    given = [option for option, value in options.items() if value is not None]
    if given:
        raise InputError(f"{kind} takes no option {given[0]!r}: its shapes are fixed")
