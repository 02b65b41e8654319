"""Formats of others that are known and not read, each with what is read instead."""

from __future__ import annotations

import os
import re

from loadmaster.base.errors import InputError
from loadmaster.readers.registry import File
from loadmaster.readers.shared.varint import varint

_CAPTURE = "capture the model itself, lm.capture(model, inputs) or MODULE:NAME on the command line"

#: Nodes of Chakra as its tools write them in JSON: of its feeder, and of protobuf's own printer.
_CHAKRA_NODE = re.compile(rb'"(?:ctrl_?[dD]eps|data_?[dD]eps)"\s*:')

#: Fields of Core ML's Model that hold a network, a pipeline or a program; ONNX has none as high.
_CORE_ML = range(200, 4000)


def refuse_foreign(file: File) -> None:
    """Refuses a file of a format that is known and not read.

    Raises
    ------
    InputError
        The file is of one; the message says what can be read instead.
    """
    if said := _said(file):
        raise InputError(f"{file.path} is {said}")


def refuse_folder(path: str | os.PathLike[str]) -> None:
    """Refuses a folder, and names the file in it that is read, if there is one.

    Raises
    ------
    InputError
        The path is a folder.
    """
    if not os.path.isdir(path):
        return
    name = os.fspath(path)
    inside = sorted(os.listdir(path))
    graphs = [file for file in inside if file.endswith((".pb", ".onnx", ".pt2", ".xml", ".mlir"))]
    if "saved_model.pb" in inside:
        file = os.path.join(name, "saved_model.pb")
        raise InputError(f"{name} is a SavedModel folder: its graph is read from {file}")
    if name.rstrip("/").endswith(".mlpackage"):
        raise InputError(f"{name} is {_core_ml()}")
    if any(file.endswith((".safetensors", ".bin")) for file in inside) and not graphs:
        raise InputError(f"{name} is a folder of weights, without a graph: {_CAPTURE}")
    hint = f"; did you mean {os.path.join(name, graphs[0])}?" if graphs else ""
    raise InputError(f"cannot read {name}: Is a directory{hint}")


def _said(file: File) -> str:
    """The format of a file and what to read instead; empty: none of these."""
    head = file.head
    if head[4:8] == b"TFL3":
        return (
            "a model of TensorFlow Lite (.tflite), which is not read: read the SavedModel or the "
            "GraphDef that it was converted from, or make ONNX of it, tf2onnx --tflite"
        )
    if head[8:9] == b"{" and 2 <= int.from_bytes(head[:8], "little") < 2**32 and not file.is_text:
        return f"weights in safetensors, which have no graph: {_CAPTURE}"
    if _is_core_ml(head):
        return _core_ml()
    if file.has_keys("workload_graph") or (
        file.text[:1] in (b"{", b"[") and not file.has_keys("schema") and _CHAKRA_NODE.search(head)
    ):
        return (
            "a trace of Chakra as JSON, as its feeder and jsonizer have it: read the traces in "
            "protobuf that it is of, NAME.RANK.et"
        )
    return ""


def _core_ml() -> str:
    return (
        "a model of Core ML, which is not read: read what it was converted from, a PyTorch "
        f"program (.pt2), a SavedModel or ONNX, or {_CAPTURE}"
    )


def _is_core_ml(head: bytes) -> bool:
    """True if a file is a protobuf with a version, a description and a network of Core ML."""
    at, fields = 0, list[int]()
    if head[:1] != b"\x08":
        return False
    while at < len(head) and len(fields) < 8:
        tag, at = varint(head, at)
        fields.append(tag >> 3)
        if tag >> 3 in _CORE_ML and tag & 7 == 2 and fields[:2] == [1, 2]:
            return True
        if tag & 7 not in (0, 2):
            return False
        size, at = varint(head, at)
        at += size if tag & 7 == 2 else 0
    return False
