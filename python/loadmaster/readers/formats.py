"""What kinds of files and programs hold graphs, and how each is told from the others.

Files are told apart by how they begin: few formats have a magic number, and names lie.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from loadmaster.base.errors import InputError
from loadmaster.base.files import BYTE_ORDER_MARK, ZIP_MAGIC, read_bytes, read_head

#: Texts have no control characters; the fields of a protobuf begin with some.
_TEXT = re.compile(rb"[\t\n\f\r -\x7e\x80-\xff]*")


class Format(NamedTuple):
    """A kind of file or program: what messages call it, and the module here that reads it."""

    name: str
    module: str


def of_program(program: Any) -> Format:
    """The kind of a program in memory.

    Raises
    ------
    InputError
        None that is known.
    """
    kind = type(program).__name__
    if any(base.__module__.startswith("torch.") for base in type(program).__mro__):
        return Format("a program of PyTorch", "torch_fx")
    if kind == "ClosedJaxpr":
        return Format("a jaxpr", "jaxpr")
    raise InputError(
        f"a graph is read from a path, a torch.fx.GraphModule, a torch.export.ExportedProgram or a "
        f"jax.core.ClosedJaxpr, not from {kind}; lm.capture takes a PyTorch model"
    )


def of_file(path: str | os.PathLike[str], has_profile: bool) -> Format:
    """The kind of a file.

    ``has_profile``: times that were measured come along, which only some readers take.

    Raises
    ------
    InputError
        The file cannot be read, is empty, or is none of a graph.
    """
    head = read_head(path)
    text = head.removeprefix(BYTE_ORDER_MARK).lstrip()
    if not text:
        raise InputError(f"{os.fspath(path)} is empty")
    if head[:1] == b"\n" and text[:1] in (b"{", b"["):
        # JSON, or a GraphDef whose first size is a brace: only all of it tells.
        head = read_bytes(path)
    for format_, begins in _KINDS:
        if begins(head):
            return format_
    if text[:1] == b"[" and re.search(rb'"cat"\s*:\s*"(Session|Node)"', text):
        raise InputError(
            f"{os.fspath(path)} is an ONNX Runtime profile, which has times and no graph: read the "
            "optimised model, and give this as profile= (--profile)"
        )
    if text[:1] in (b"{", b"["):
        return Format("opgraph JSON", "opgraph")
    if _TEXT.fullmatch(head[: 1 << 12]):
        raise InputError(
            f"{os.fspath(path)} is a text of no graph: graphs are read from {known()}; measured "
            "times go with a graph, as profile="
        )
    # ONNX is a protobuf without a magic number: whatever is nothing else is tried as one.
    return Format("an ONNX model", "ort_profile" if has_profile else "onnx")


def known() -> str:
    """The formats of graphs, listed."""
    named = [format_.name for format_, _ in _KINDS if format_.module]
    return f"opgraph JSON, an ONNX model, {', '.join(named[:-1])} or {named[-1]}"


def _zip(head: bytes) -> bool:
    return head.startswith(ZIP_MAGIC)


def _bytecode(head: bytes) -> bool:
    if head.startswith(b"ML\xefR"):
        raise InputError("this is MLIR bytecode: write the module as text, lowered.as_text()")
    return False


def _tensorflow(head: bytes) -> bool:
    from loadmaster.readers.tensorflow_protos import may_be_graph, may_be_saved_model, may_be_text

    return may_be_graph(head) or may_be_text(head) or may_be_saved_model(head)


def _text(module: str, *words: bytes) -> Callable[[bytes], bool]:
    """Whether a file begins like the text that a module reads; imported only where a word of such
    texts is there.
    """

    def begins(head: bytes) -> bool:
        start = head[: 1 << 16]
        if not any(word in start for word in words):
            return False
        from importlib import import_module

        reader = import_module(f"loadmaster.readers.{module}")
        return bool(reader.begins(start.decode("utf-8-sig", "replace")))

    return begins


def _json(*keys: bytes) -> Callable[[bytes], bool]:
    """Whether a file begins like a JSON object with these keys, told without parsing it."""

    def begins(head: bytes) -> bool:
        if head.removeprefix(BYTE_ORDER_MARK).lstrip()[:1] != b"{":
            return False
        return all(re.search(rb'"%s"\s*:' % key, head) for key in keys)

    return begins


#: In the order in which they are tried.
_KINDS: tuple[tuple[Format, Callable[[bytes], bool]], ...] = (
    (Format("a program of torch.export", "torch_export"), _zip),
    (Format("MLIR bytecode", ""), _bytecode),
    (Format("a TensorFlow graph", "tensorflow"), _tensorflow),
    (Format("a jaxpr", "jaxpr"), _text("jaxpr", b"lambda")),
    (Format("StableHLO", "stablehlo"), _text("stablehlo", b"module", b"func.func")),
    (Format("HLO", "hlo"), _text("hlo", b"HloModule")),
    (Format("a Kineto trace", "kineto"), _json(b"traceEvents")),
    (Format("an execution trace", "chakra"), _json(b"schema", b"nodes")),
    (Format("the msr-fiddle benchmark", "msr"), _json(b"maxFPGAs", b"nodes")),
)
