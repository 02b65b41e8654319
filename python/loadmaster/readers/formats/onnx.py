"""ONNX models, and the times that ONNX Runtime measured of them."""

from __future__ import annotations

import re

from loadmaster.base.errors import InputError
from loadmaster.readers.registry import GRAPHS, PROFILES, File, Reader


def _is_profile(file: File) -> bool:
    return file.text[:1] == b"["


def _is_model(file: File) -> bool:
    """Whether a file is binary: ONNX is a protobuf without a magic number."""
    if _is_profile(file) and re.search(rb'"cat"\s*:\s*"(Session|Node)"', file.text):
        raise InputError(
            f"{file.path} is an ONNX Runtime profile, which has times and no graph: read the "
            "optimised model, and give this as profile= (--profile)"
        )
    return not file.is_text


def _is_measured_model(file: File) -> bool:
    return "profile" in file.options and _is_model(file)


GRAPHS["onnx-measured"] = Reader(
    "an ONNX model", "ort_profile:read", recognises=_is_measured_model, is_last=True
)
GRAPHS["onnx"] = Reader("an ONNX model", "onnx:read", recognises=_is_model, is_last=True)
PROFILES["onnx-runtime"] = Reader(
    "an ONNX Runtime profile", "ort_profile:profile", recognises=_is_profile
)
