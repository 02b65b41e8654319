"""ONNX: the whole model with its plan written into it, in two ways that runtimes may read.

Every node has ``metadata_props`` ``loadmaster.device``, ``loadmaster.segment`` and
``loadmaster.priority``; and, as of IR version 11, the model has a device configuration that every
node refers to, with its pipeline stage and the device of its outputs.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from loadmaster.base.errors import InputError
from loadmaster.base.files import system_errors
from loadmaster.plans.plan import Plan
from loadmaster.systems.onnx.parts import PREFIX, PlacedModel, keep_of, save, without_facts

#: Name of the device configuration.
CONFIGURATION = "loadmaster"

#: The first version of ONNX's format with device configurations.
_IR_VERSION = 11


def onnx_annotated(
    plan: Plan, path: str | os.PathLike[str] | None = None, *, model: str | os.PathLike[str]
) -> Any:
    """The model with the plan written into it.

    Parameters
    ----------
    plan : Plan
    path : optional
        Where to write the ``.onnx`` file; weights that lay outside go beside it, as ``.data``.
    model : path
        The ``.onnx`` file that the plan's graph was read from.

    Returns
    -------
    onnx.ModelProto
        With weights that lie outside still there, if no path is given.

    Raises
    ------
    InputError
        Not the plan's model, an ``onnx`` package older than 1.18, weights that are not there.

    Examples
    --------
    >>> placed = lm.writers.onnx_annotated(plan, model="model.onnx")            # doctest: +SKIP
    >>> placed.configuration[0].device                                          # doctest: +SKIP
    ['gpu0', 'gpu1']
    """
    placed = PlacedModel(plan, model)
    if not hasattr(placed.model, "configuration"):
        raise InputError("device configurations need the package onnx 1.18 or later")
    whole = type(placed.model)()
    whole.CopyFrom(placed.model)
    del whole.graph.node[:]
    # Nodes in an order in which they can run, which the file's own may not be.
    whole.graph.node.extend(placed.nodes)
    names = [d.name for d in plan.cluster.devices]
    whole.ir_version = max(whole.ir_version, _IR_VERSION)
    keep_of(whole.configuration, lambda c: c.name != CONFIGURATION)
    whole.configuration.add(name=CONFIGURATION, num_devices=len(names), device=names)
    segment_of = {i: k for k, part in enumerate(placed.parts) for i in part.nodes}
    for i, node in enumerate(whole.graph.node):
        device = placed.device[i]
        _annotate(node, names[device], device, segment_of.get(i), placed.priority(i))
    if path is not None:
        _write(whole, Path(path), placed.source)
    return whole


def _annotate(node: Any, name: str, device: int, segment: int | None, priority: int) -> None:
    facts = {"device": name, "segment": segment, "priority": priority}
    without_facts(node)
    for key, value in facts.items():
        if value is not None:
            node.metadata_props.add(key=f"{PREFIX}{key}", value=str(value))
    keep_of(node.device_configurations, lambda c: c.configuration_id != CONFIGURATION)
    placed = node.device_configurations.add(configuration_id=CONFIGURATION)
    if segment is not None:
        placed.pipeline_stage = segment
    for value in filter(None, node.output):
        placed.sharding_spec.add(tensor_name=value, device=[device])


def _write(model: Any, path: Path, source: Path) -> None:
    """Writes model and data to a folder beside the target, then moves the data, then the model."""
    with system_errors(f"cannot write {path}"):
        folder = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
        try:
            save(model, folder / path.name, source)
            for file in sorted(folder.iterdir(), key=lambda f: f.name == path.name):
                os.replace(file, path.parent / file.name)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
