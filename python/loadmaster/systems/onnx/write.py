"""ONNX: a model cut into one sub-model per segment of a device, with a manifest that re-runs it."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loadmaster.base.errors import InputError
from loadmaster.base.files import TEMPORARY, system_errors, write_json
from loadmaster.model.families import families
from loadmaster.plans.plan import Plan
from loadmaster.systems.onnx.manifest import FORMAT, MANIFEST, VERSION, read_manifest
from loadmaster.systems.onnx.parts import PREFIX, ModelSegment, PlacedModel, save, without_facts

#: Characters of a device's name in that of a file.
_LONGEST = 100

#: ONNX Runtime's execution provider and its option for the number of the device, by family.
_PROVIDERS = {"gpu": ("CUDAExecutionProvider", "device_id"), "cpu": ("CPUExecutionProvider", "")}


def onnx(
    plan: Plan, path: str | os.PathLike[str] | None = None, *, model: str | os.PathLike[str]
) -> dict[str, Any]:
    """The model as sub-models, each for one device, and the manifest of how they run.

    The plan is cut where it sends or waits (:mod:`loadmaster.plans.segments`). Weights stand in
    every sub-model that reads them; nodes that no output needs are left out. Sub-models keep the
    values' names, and are annotated with their device.

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
        The manifest: ``inputs`` (name, type and shape as planned) and ``outputs`` of the whole;
        ``step``, its seconds as planned, as exported, and on one device
        (:class:`~loadmaster.plans.segments.Exported`); ``segments`` in the order in which they run,
        with ``file``, ``device``, ``provider``, ``inputs``, ``outputs`` and number of ``ops``.

    Raises
    ------
    InputError
        Not the plan's model, weights that are not there, a value of unknown type between devices,
        or something else at ``path``.

    Examples
    --------
    >>> manifest = lm.writers.onnx(plan, "parts", model="model.onnx")      # doctest: +SKIP
    >>> with lm.writers.OnnxProcesses("parts", {"x": x}) as placed:        # doctest: +SKIP
    ...     outputs = placed.run({"x": x})
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
        "step": placed.segments.exported.to_document(),
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
    return re.sub(r"[^A-Za-z0-9.-]", "_", name[:_LONGEST])


def _provider(family: str, number: int) -> list[Any]:
    name, option = _PROVIDERS.get(family, _PROVIDERS["cpu"])
    return [name, {option: number} if option else {}]


def _refuse_other(folder: Path) -> None:
    """Refuses to replace anything that is no export."""
    with system_errors(f"cannot write {folder}"):
        if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
            return
    try:
        read_manifest(folder)
    except InputError:
        raise InputError(
            f"{folder} exists and is no export of a model: name a new folder"
        ) from None


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


def _sub_model(placed: PlacedModel, part: ModelSegment, file: str) -> Any:
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
