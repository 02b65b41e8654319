"""ONNX: a model cut into one sub-model per segment of a device, with a manifest that re-runs it."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from loadmaster.base.errors import InputError, LoadmasterError, importing
from loadmaster.base.files import (
    TEMPORARY,
    check_format,
    parse_json,
    read_bytes,
    system_errors,
    write_json,
)
from loadmaster.plans.plan import Plan
from loadmaster.readers.onnx_shapes import library_errors
from loadmaster.writers.targets.names import families
from loadmaster.writers.targets.onnx_parts import PREFIX, Part, PlacedModel, save, without_facts

FORMAT = "loadmaster-onnx"
VERSION = 1
MANIFEST = "manifest.json"

#: ONNX Runtime's execution provider and its option for the number of the device, by family.
_PROVIDERS = {"gpu": ("CUDAExecutionProvider", "device_id"), "cpu": ("CPUExecutionProvider", "")}


def onnx(
    plan: Plan, path: str | os.PathLike[str] | None = None, *, model: str | os.PathLike[str]
) -> dict[str, Any]:
    """The model as sub-models, each for one device, and the manifest of how they run.

    A device has one sub-model where that is possible, and several where it needs another's results
    in between (:func:`~loadmaster.plans.segments.segments`). Weights stand in every sub-model
    that reads them; nodes that no output needs are left out. Sub-models keep the values' names,
    and are annotated with their device.

    Parameters
    ----------
    plan : Plan
    path : optional
        Folder to write ``manifest.json`` and the sub-models to; an older export there is replaced.
    model : path
        The ``.onnx`` file that the plan's graph was read from, with its weights.

    Returns
    -------
    dict
        The manifest: ``inputs`` (name, type and shape as planned) and ``outputs`` of the whole,
        ``segments`` in the order in which they run, with ``file``, ``device``, ``provider``,
        ``inputs``, ``outputs`` and number of ``ops``.

    Raises
    ------
    InputError
        Not the plan's model, weights that are not there, a value of unknown type between devices,
        or something else at ``path``.

    Examples
    --------
    >>> manifest = lm.writers.onnx(plan, "parts", model="model.onnx")      # doctest: +SKIP
    >>> outputs = lm.writers.OnnxSegments("parts").run({"x": x})           # doctest: +SKIP
    """
    placed = PlacedModel(plan, model)
    if path is not None:
        _refuse_other(Path(path))
    names = [d.name for d in plan.cluster.devices]
    kinds = families(plan.cluster)
    files = [f"{i:03d}_{_plain(names[part.device])}.onnx" for i, part in enumerate(placed.parts)]
    manifest = {
        "format": FORMAT,
        "version": VERSION,
        "model": placed.model.graph.name,
        "graph_sha256": plan.graph.digest,
        "cluster_sha256": plan.cluster.digest,
        "inputs": [
            {"name": name, "type": plan.graph.outputs[plan.graph.index(name)]}
            for name in placed.inputs
        ],
        "outputs": placed.outputs,
        "segments": [
            {
                "file": file,
                "device": names[part.device],
                "provider": _provider(*kinds[part.device]),
                "inputs": part.inputs,
                "outputs": part.outputs,
                "ops": len(part.nodes),
            }
            for file, part in zip(files, placed.parts, strict=True)
        ],
    }
    for part in placed.parts:
        for value in (*part.inputs, *part.outputs):
            placed.type(value)
    if path is not None:
        _write(placed, manifest, files, Path(path))
    return manifest


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9.-]", "_", name)


def _provider(family: str, number: int) -> list[Any]:
    name, option = _PROVIDERS.get(family, _PROVIDERS["cpu"])
    return [name, {option: number} if option else {}]


def _refuse_other(folder: Path) -> None:
    """Refuses to replace anything that is no export."""
    with system_errors(f"cannot write {folder}"):
        if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
            return
    try:
        _manifest(folder)
    except InputError:
        raise InputError(
            f"{folder} exists and is no export of a model: name a new folder"
        ) from None


def _manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    manifest: dict[str, Any] = parse_json(read_bytes(path), path)
    check_format(manifest, FORMAT, VERSION, "an export of a model", str(path))
    return manifest


def _write(placed: PlacedModel, manifest: Any, files: Sequence[str], folder: Path) -> None:
    with system_errors(f"cannot write {folder}"):
        temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=TEMPORARY))
        try:
            for part, file in zip(placed.parts, files, strict=True):
                save(_sub_model(placed, part, file), temporary / file, placed.source)
            write_json(temporary / MANIFEST, manifest)
            temporary.chmod(0o755)
            if folder.exists():
                older = Path(tempfile.mkdtemp(dir=folder.parent, prefix=TEMPORARY))
                folder.rename(older / folder.name)
                shutil.rmtree(older)
            temporary.rename(folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _sub_model(placed: PlacedModel, part: Part, file: str) -> Any:
    whole = placed.model
    sub = type(whole)(
        # Before version 4 every weight had to be an input as well.
        ir_version=max(whole.ir_version, 4),
        producer_name=whole.producer_name,
        producer_version=whole.producer_version,
        domain=whole.domain,
        model_version=whole.model_version,
    )
    sub.opset_import.extend(whole.opset_import)
    sub.metadata_props.extend(whole.metadata_props)
    device = placed.plan.cluster.devices[part.device].name
    without_facts(sub)
    sub.metadata_props.add(key=f"{PREFIX}device", value=device)
    graph = sub.graph
    graph.name = f"{whole.graph.name}:{file.removesuffix('.onnx')}"
    graph.input.extend(placed.type(value) for value in part.inputs)
    for value in part.stored:
        if value in placed.constants:
            graph.node.append(placed.nodes[placed.constants[value]])
        elif hasattr(placed.weights[value], "values"):
            graph.sparse_initializer.append(placed.weights[value])
        else:
            graph.initializer.append(placed.weights[value])
    graph.node.extend(placed.nodes[i] for i in part.nodes)
    graph.output.extend(placed.type(value) for value in part.outputs)
    inside = {v for node in graph.node for v in (*node.input, *node.output)}
    graph.quantization_annotation.extend(
        a for a in whole.graph.quantization_annotation if a.tensor_name in inside
    )
    return sub


# -- running -----------------------------------------------------------------------------------


class OnnxSegments:
    """Runs what :func:`onnx` wrote, with ONNX Runtime, one sub-model after the other.

    Parameters
    ----------
    folder : path
    providers : mapping, optional
        Device name to ONNX Runtime's execution providers; else the manifest's where they are
        installed, and the CPU.
    optimize : bool
        Whether ONNX Runtime may rewrite each sub-model.

    Raises
    ------
    InputError
        No export in the folder, or a sub-model that ONNX Runtime cannot load.
    MissingExtraError
        The package ``onnxruntime`` is not installed.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        providers: Mapping[str, Sequence[Any]] | None = None,
        *,
        optimize: bool = True,
    ) -> None:
        self.folder = Path(folder)
        #: The manifest.
        self.manifest = _manifest(self.folder)
        installed = _runtime().get_available_providers()
        self._sessions = []
        for segment in self.manifest["segments"]:
            wanted = (providers or {}).get(segment["device"])
            if wanted is None:
                name, options = segment["provider"]
                wanted = [(name, options)] if name in installed else []
                wanted += [] if name == "CPUExecutionProvider" else ["CPUExecutionProvider"]
            self._sessions.append(_session(self.folder / segment["file"], wanted, optimize))

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """The outputs of the whole model, by name.

        Raises
        ------
        InputError
            An input is missing.
        """
        missing = [i["name"] for i in self.manifest["inputs"] if i["name"] not in feeds]
        if missing:
            raise InputError(f"no value for the input {missing[0]!r}")
        values = dict(feeds)
        segments = self.manifest["segments"]
        last = {v: i for i, segment in enumerate(segments) for v in segment["inputs"]}
        kept = set(self.manifest["outputs"])
        for i, (segment, session) in enumerate(zip(segments, self._sessions, strict=True)):
            given = {name: values[name] for name in segment["inputs"]}
            made = _run(session, segment["outputs"], given, segment["file"])
            values |= zip(segment["outputs"], made, strict=True)
            for name in segment["inputs"]:
                if last[name] == i and name not in kept:
                    del values[name]
        return {name: values[name] for name in self.manifest["outputs"]}


def check_onnx(
    folder: str | os.PathLike[str], model: str | os.PathLike[str], *, seed: int = 0
) -> float:
    """Runs the sub-models and the whole model on the same random inputs, on the CPU.

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
        An input of a type or shape that is not known, or what :class:`OnnxSegments` raises.
    """
    cpu = ["CPUExecutionProvider"]
    whole = _session(Path(model), cpu, optimize=False)
    manifest = _manifest(Path(folder))
    devices = {segment["device"]: cpu for segment in manifest["segments"]}
    random = np.random.default_rng(seed)
    feeds = {i["name"]: _random(i, random) for i in manifest["inputs"]}
    expected = _run(whole, manifest["outputs"], feeds, os.fspath(model))
    found = OnnxSegments(folder, devices, optimize=False).run(feeds)
    worst = 0.0
    for name, value in zip(manifest["outputs"], expected, strict=True):
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "fiub":
            continue
        mine = np.asarray(found[name]).astype(np.float64)
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


def _runtime() -> Any:
    with importing("onnxruntime", "onnxruntime", "running ONNX models"):
        import onnxruntime
    return onnxruntime


def _session(path: Path, providers: Sequence[Any], optimize: bool) -> Any:
    runtime = _runtime()
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    if not optimize:
        options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    with library_errors(f"ONNX Runtime cannot load {path}", Exception):
        return runtime.InferenceSession(str(path), options, providers=list(providers))


def _run(session: Any, outputs: Sequence[str], feeds: Mapping[str, Any], what: str) -> Any:
    with library_errors(f"ONNX Runtime cannot run {what}", Exception):
        return session.run(outputs, feeds)
