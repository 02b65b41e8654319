"""Check that the sub-models of an export compute what the whole model does."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from loadmaster.base.errors import InputError, LoadmasterError, refusing
from loadmaster.base.quoting import command
from loadmaster.running.onnx.processes import OnnxProcesses
from loadmaster.running.onnx.segments import CPU, load, run
from loadmaster.systems.onnx.manifest import read_manifest


def check_onnx(
    folder: str | os.PathLike[str],
    model: str | os.PathLike[str],
    *,
    seed: int = 0,
    inputs: Mapping[str, Any] | None = None,
) -> float:
    """Runs the sub-models, in parallel, and the whole model on the same inputs, on the CPU.

    Parameters
    ----------
    folder, model : paths
        What :func:`onnx` wrote, and of what.
    seed : int
        For inputs that are not given: normal floats, integers that are 0 or 1, in the shapes that
        were planned.
    inputs : mapping, optional
        Inputs by name: an array, or a number for all elements.

    Returns
    -------
    float
        The largest difference of an output, relative to the largest value of that output.

    Raises
    ------
    LoadmasterError
        They differ by more than 1e-4, or one is not a number where the other is.
    InputError
        An input of a type or shape that is not known, one that the model does not have or cannot
        take, or what :class:`OnnxProcesses` raises.
    """
    # Each part runs on one core: more threads would sum in another order.
    whole = load(Path(model), [CPU], threads=1, optimize=False)
    manifest = read_manifest(folder)
    devices = {segment["device"]: [CPU] for segment in manifest["segments"]}
    random = np.random.default_rng(seed)
    feeds = {i["name"]: _random(i, random, inputs or {}) for i in manifest["inputs"]}
    if unknown := sorted((inputs or {}).keys() - feeds.keys()):
        raise InputError(
            f"the model has no input {unknown[0]!r}: its inputs are {', '.join(map(repr, feeds))}"
        )
    drawn = [name for name in feeds if name not in (inputs or {})]
    try:
        expected = run(whole, manifest["outputs"], feeds, os.fspath(model))
    except InputError as error:
        if not drawn:
            raise
        raise InputError(
            f"the whole model does not run on the values that were drawn for "
            f"{', '.join(map(repr, drawn))} ({str(error).partition(': ')[2]}), so nothing was "
            f"compared: give values that it takes, {command('--input', f'{drawn[0]}=FILE.npy')} or "
            f"{command('--input', f'{drawn[0]}=NUMBER')} (inputs= in Python)"
        ) from None
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
        differs = (
            float(np.nanmax(np.abs(mine - theirs), initial=0)) / scale if same_holes else np.inf
        )
        if not differs <= 1e-4:
            raise LoadmasterError(
                f"output {name!r} of {folder} differs from the model's by {differs}"
            )
        worst = max(worst, differs)
    return worst


_NUMPY = {"f16": "f2", "f32": "f4", "f64": "f8", "b8": "?"} | {
    f"{sign}{bits}": f"{sign}{bits // 8}" for sign in "iu" for bits in (8, 16, 32, 64)
}


def _random(
    described: Mapping[str, str], random: np.random.Generator, inputs: Mapping[str, Any]
) -> Any:
    """The value of an input: the one that was given, or one that is drawn."""
    name = described["name"]
    dtype, _, dims = described["type"].removesuffix("]").partition("[")
    value = np.asarray(inputs[name]) if name in inputs else None
    if value is not None and value.ndim:
        return value
    try:
        shape = [int(d) for d in dims.split(",") if d]
        kind = np.dtype(_NUMPY[dtype])
    except (KeyError, ValueError):
        raise InputError(
            f"cannot make up values for the input {name!r} of type {described['type']}: give "
            f"{command('--input', f'{name}=FILE.npy')} (inputs= in Python)"
        ) from None
    if value is not None:
        with refusing(f"{value} is no value of the input {name!r}", OverflowError, ValueError):
            return np.full(shape, value, kind)
    if kind.kind == "f":
        return random.standard_normal(shape).astype(kind)
    return random.integers(0, 2, shape).astype(kind)
