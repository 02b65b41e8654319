"""The manifest of an exported ONNX model: which sub-model runs where, in which order."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from loadmaster.base.files import check_format, parse_json, read_bytes

FORMAT = "loadmaster-onnx"
VERSION = 1
MANIFEST = "manifest.json"


def read_manifest(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """The manifest of an export.

    Raises
    ------
    InputError
        There is none in the folder.
    """
    path = Path(folder) / MANIFEST
    manifest: dict[str, Any] = parse_json(read_bytes(path), path)
    check_format(manifest, FORMAT, VERSION, "an export of a model", str(path))
    return manifest
