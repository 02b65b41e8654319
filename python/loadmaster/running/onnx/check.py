"""Check that the sub-models of an export compute what the whole model does."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from loadmaster.base.errors import InputError, LoadmasterError
from loadmaster.running.onnx.processes import OnnxProcesses
from loadmaster.running.onnx.segments import CPU, load, run
from loadmaster.systems.onnx.manifest import read_manifest


def check_onnx(
    folder: str | os.PathLike[str], model: str | os.PathLike[str], *, seed: int = 0
) -> float:
    """Runs the sub-models, in parallel, and the whole model on the same random inputs, on the CPU.

    Parameters
    ----------
    folder, model : paths
        What :func:`onnx` wrote, and of what.
    seed : int
        For the inputs: normal floats, integers that are 0 or 1, in the shapes that were planned.

    Returns
    -------
    float
        The largest difference of an output, relative to the largest value of that output.

    Raises
    ------
    LoadmasterError
        They differ by more than 1e-4, or one is not a number where the other is.
    InputError
        An input of a type or shape that is not known, or what :class:`OnnxProcesses` raises.
    """
    whole = load(Path(model), [CPU], optimize=False)
    manifest = read_manifest(folder)
    devices = {segment["device"]: [CPU] for segment in manifest["segments"]}
    random = np.random.default_rng(seed)
    feeds = {i["name"]: _random(i, random) for i in manifest["inputs"]}
    expected = run(whole, manifest["outputs"], feeds, os.fspath(model))
    with OnnxProcesses(folder, feeds, devices, optimize=False) as placed:
        outputs = placed.run(feeds)
    worst = 0.0
    for name, value in zip(manifest["outputs"], expected, strict=True):
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "fiub":
            continue
        mine = np.asarray(outputs[name]).astype(np.float64)
        theirs = value.astype(np.float64)
        same_holes = mine.shape == theirs.shape and bool((np.isnan(mine) == np.isnan(theirs)).all())
        scale = max(float(np.nanmax(np.abs(theirs), initial=0)), 1e-30)
        error = float(np.nanmax(np.abs(mine - theirs), initial=0)) / scale if same_holes else np.inf
        if not error <= 1e-4:
            raise LoadmasterError(
                f"output {name!r} of {folder} differs from the model's by {error}"
            )
        worst = max(worst, error)
    return worst


_NUMPY = {"f16": "f2", "f32": "f4", "f64": "f8", "b8": "?"} | {
    f"{sign}{bits}": f"{sign}{bits // 8}" for sign in "iu" for bits in (8, 16, 32, 64)
}


def _random(described: Mapping[str, str], random: np.random.Generator) -> Any:
    dtype, _, dims = described["type"].removesuffix("]").partition("[")
    try:
        shape = [int(d) for d in dims.split(",") if d]
        kind = np.dtype(_NUMPY[dtype])
    except (KeyError, ValueError):
        raise InputError(
            f"cannot make up values for the input {described['name']!r} of type {described['type']}"
        ) from None
    if kind.kind == "f":
        return random.standard_normal(shape).astype(kind)
    return random.integers(0, 2, shape).astype(kind)
