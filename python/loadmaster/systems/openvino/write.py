"""OpenVINO: a plan as the affinities that its HETERO plugin reads.

OpenVINO turns a node of an ONNX model into one or more ops of its own; the last of them has the
node's name. Other ops (constants, shapes, the first ops of a node) go to the device of their first
reader, or of their first source where nothing reads them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from loadmaster.base.errors import InputError, importing
from loadmaster.base.files import written
from loadmaster.model.families import families
from loadmaster.plans.plan import Plan
from loadmaster.readers.onnx.nodes import library_errors
from loadmaster.systems.shared.names import device_names, refuse_parts

#: Key of an op's runtime info that HETERO reads.
_KEY = "affinity"


def openvino(
    plan: Plan,
    path: str | os.PathLike[str] | None = None,
    *,
    model: Any,
    names: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The plan as affinities, set on the model; those of its own names are returned.

    Parameters
    ----------
    plan : Plan
        Of the same ONNX model.
    path : optional
        Where to write them as JSON.
    model : openvino.Model, or path
        What ``Core.read_model`` makes of the ONNX file; its ops get their affinity. Compile it for
        ``HETERO:`` and the devices.
    names : mapping, optional
        Device names to OpenVINO's; ``CPU``, ``NPU``, and ``GPU`` if there is one, else ``GPU.0``,
        ``GPU.1``, ... if absent.

    Returns
    -------
    dict
        Device by friendly name, for ops that have their name from the ONNX file. OpenVINO numbers
        the others (constants, the first ops of a node) anew whenever it reads a model, even within
        a process. Each is where its first reader is: to set them, too, call this for the model that
        is compiled.

    Raises
    ------
    InputError
        No OpenVINO model, or no op of it has a name of the plan.

    Examples
    --------
    >>> model = openvino.Core().read_model("model.onnx")                       # doctest: +SKIP
    >>> lm.writers.openvino(plan, model=model)                                 # doctest: +SKIP
    >>> compiled = openvino.Core().compile_model(model, "HETERO:GPU,CPU")      # doctest: +SKIP
    """
    refuse_parts(plan, "OpenVINO")
    if isinstance(model, (str, os.PathLike)):
        model = _load(model)
    if not hasattr(model, "get_ordered_ops"):
        raise InputError(f"model: wants an openvino.Model, got {type(model).__name__}")
    spelled = device_names(plan, _spelled(plan), names)
    ops = model.get_ordered_ops()
    device_of = dict(zip(plan.graph.names, plan.devices.tolist(), strict=True))
    devices: dict[str, str] = {}
    for op in ops:
        name = op.get_friendly_name()
        if name in device_of:
            devices[name] = spelled[device_of[name]]
    if not devices:
        raise InputError("the OpenVINO model is not the one that the plan is for: no name matches")
    named = dict(devices)
    _spread(ops, devices)
    for op in ops:
        op.get_rt_info()[_KEY] = devices[op.get_friendly_name()]
    return written(named, path)


def _load(path: str | os.PathLike[str]) -> Any:
    with importing("openvino", "openvino", "setting affinities"):
        import openvino as ov
    with library_errors(f"OpenVINO cannot read {os.fspath(path)}", RuntimeError):
        return ov.Core().read_model(os.fspath(path))


def _spelled(plan: Plan) -> Any:
    several = sum(family == "gpu" for family, _ in families(plan.cluster)) > 1
    return lambda f, n: f"GPU.{n}" if f == "gpu" and several else f.upper()


def _spread(ops: list[Any], devices: dict[str, str]) -> None:
    """Gives every op a device: its first reader's, else its first source's."""
    for op in reversed(ops):
        for output in op.outputs():
            for reader in output.get_target_inputs():
                device = devices.get(reader.get_node().get_friendly_name())
                if device is not None:
                    devices.setdefault(op.get_friendly_name(), device)
    for op in ops:
        for source in op.input_values():
            device = devices.get(source.get_node().get_friendly_name())
            if device is not None:
                devices.setdefault(op.get_friendly_name(), device)
    first = next(iter(devices.values()))
    for op in ops:
        devices.setdefault(op.get_friendly_name(), first)
