"""ONNX models, and the times that ONNX Runtime measured of them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from loadmaster.base.errors import InputError
from loadmaster.model.graph import OpGraph
from loadmaster.model.profile import Profile
from loadmaster.readers.registry import File, profile_reader, reader


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


@reader("onnx-measured", "an ONNX model", recognises=_is_measured_model, is_last=True)
def read_measured(
    path: str | os.PathLike[str],
    *,
    profile: str | os.PathLike[str],
    device_type: str | None = None,
    batch: int | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> OpGraph:
    """As :func:`loadmaster.readers.ort_profile.read`."""
    from loadmaster.readers import ort_profile

    return ort_profile.read(
        path, profile=profile, device_type=device_type, batch=batch, shapes=shapes
    )


@reader("onnx", "an ONNX model", recognises=_is_model, is_last=True)
def read(
    path: str | os.PathLike[str],
    *,
    batch: int | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> OpGraph:
    """As :func:`loadmaster.readers.onnx.read`."""
    from loadmaster.readers import onnx

    return onnx.read(path, batch=batch, shapes=shapes)


@profile_reader("onnx-runtime", "an ONNX Runtime profile", recognises=_is_profile)
def read_profile(
    path: str | os.PathLike[str],
    *,
    graph: str | os.PathLike[str] | None = None,
    device_type: str | None = None,
    batch: int | None = None,
) -> Profile:
    """As :func:`loadmaster.readers.ort_profile.profile`."""
    from loadmaster.readers import ort_profile

    return ort_profile.profile(path, graph=graph, device_type=device_type, batch=batch)
