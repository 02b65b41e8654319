"""ONNX models, and the times that ONNX Runtime measured of them."""

from __future__ import annotations

import re

from loadmaster.base.errors import InputError
from loadmaster.readers.registry import File, Later, profile_reader, reader


def _is_profile(file: File) -> bool:
    return file.text[:1] == b"["


def _is_model(file: File) -> bool:
    """True if a file is binary: ONNX is a protobuf without a magic number."""
    if _is_profile(file) and re.search(rb'"cat"\s*:\s*"(Session|Node)"', file.text):
        raise InputError(
            f"{file.path} is an ONNX Runtime profile, which has times and no graph: read the "
            "optimised model, and give this as profile= (--profile)"
        )
    return not file.is_text


def _is_measured_model(file: File) -> bool:
    return "profile" in file.options and _is_model(file)


reader("onnx-measured", "an ONNX model", recognises=_is_measured_model, is_last=True)(
    Later("onnx.profile:read")
)
reader("onnx", "an ONNX model", recognises=_is_model, is_last=True)(Later("onnx.model:read"))
profile_reader("onnx-runtime", "an ONNX Runtime profile", recognises=_is_profile)(
    Later("onnx.profile:profile")
)
