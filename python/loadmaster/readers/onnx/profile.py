"""Reads ONNX Runtime profiles: the times that its kernels took, joined with the optimised model.

A profile (``SessionOptions.enable_profiling``) speaks of the graph that ran, which is the optimised
one (``SessionOptions.optimized_model_filepath``): fused, laid out anew, with names of its own.
Where the model leaves sizes open, they are those that ran.
"""

from __future__ import annotations

import os
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from loadmaster.base.errors import InputError
from loadmaster.base.files import naming
from loadmaster.base.units import counted
from loadmaster.base.warnings import warn
from loadmaster.model.graph import PLACEHOLDERS, OpGraph
from loadmaster.model.profile import Profile
from loadmaster.readers.onnx import model as onnx
from loadmaster.readers.onnx.costs import ELEMENT_TYPES
from loadmaster.readers.onnx.nodes import declared_dims
from loadmaster.readers.onnx.ran import ops_by_kernel, types_that_ran
from loadmaster.readers.onnx.recording import RuntimeProfile, Typed
from loadmaster.readers.shared.measured import add_times, check_same

_NUMBERS = {name: number for number, name in ELEMENT_TYPES.items()}


def read(
    model: str | os.PathLike[str],
    *,
    profile: str | os.PathLike[str],
    device_type: str | None = None,
    batch: int | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> OpGraph:
    """Read an optimised ONNX model with the times of a profile, for inference.

    Parameters
    ----------
    model
        What the session ran: the file it wrote to ``SessionOptions.optimized_model_filepath``.
    profile
        The file that ``InferenceSession.end_profiling`` names, plain or gzipped.
    device_type
        Device type that the times are of; by default the execution provider's: "cpu", "gpu".
    batch, shapes
        As :func:`loadmaster.readers.onnx.model.read`; what they leave open, the profile says.

    Returns
    -------
    OpGraph
        With the median time of each op over the runs, in seconds.

    Raises
    ------
    InputError
        A damaged file; a profile of another model, or of other shapes; several execution providers
        and no ``device_type``; anything the ONNX reader refuses.
    MissingExtraError
        The package ``onnx`` is not installed.

    Warns
    -----
    UserWarning
        As the ONNX reader, and: ops without an event, events without an op, kernels whose times
        are not their own.

    Examples
    --------
    >>> graph = read("resnet18.optimized.onnx", profile="profile.json")     # doctest: +SKIP
    """
    recording = RuntimeProfile.read(profile)
    document = _document(model, recording, batch, shapes)
    with naming(profile):
        measured, renamed = _named_as(document, recording.profile(device_type))
        notes = [*recording.notes, *add_times(document, measured)]
    warn(*notes)
    document["meta"]["assumed"] += [recording.resolution, *renamed, *notes]
    return OpGraph.from_document(document)


def profile(
    path: str | os.PathLike[str],
    *,
    graph: str | os.PathLike[str] | None = None,
    device_type: str | None = None,
    batch: int | None = None,
) -> Profile:
    """The times in a profile, a step per run.

    Parameters
    ----------
    path
        As ``profile`` of :func:`read`.
    graph
        The optimised model. With it the ops are named as :func:`read` names them, which makes
        profiles of several sessions comparable; without it as in this session.
    device_type
        As for :func:`read`.
    batch
        Size of the batch that ran; by default as the model's inputs tell.

    Raises
    ------
    InputError, MissingExtraError
        As :func:`read`.

    Examples
    --------
    >>> import json
    >>> node = {"cat": "Node", "name": "conv_kernel_time", "args": {"op_name": "Conv"}}
    >>> run = {"cat": "Session", "name": "model_run", "dur": 9}
    >>> events = [{**node, "dur": 4}, run, {**node, "dur": 2}, run]
    >>> _ = Path("p.json").write_text(json.dumps(events))
    >>> p = profile("p.json")
    >>> p.names, p.kinds, p.device_type, (p.seconds * 1e6).round(1).tolist()
    (('conv',), ('Conv',), 'cpu', [[4.5, 2.5]])
    """
    recording = RuntimeProfile.read(path)
    if graph is None:
        measured = recording.profile(device_type)
    else:
        document = _document(graph, recording, batch, None)
        with naming(path):
            measured, _ = _named_as(document, recording.profile(device_type))
        batch = document["meta"]["batch"]
    warn(*recording.notes)
    return replace(measured, batch=batch)


def _document(
    model: str | os.PathLike[str],
    recording: RuntimeProfile,
    batch: int | None,
    shapes: Mapping[str, Sequence[int]] | None,
) -> dict[str, Any]:
    """The model as an opgraph document, with the sizes that ran where it leaves them open.

    Kernels of the recording take the names of ops.
    """
    with naming(model):
        loaded = onnx.load(model)
        onnx.check_whole(loaded)
        loaded = onnx.inlined(loaded)
        recording.rename(ops_by_kernel(loaded.graph, recording))
        ran = types_that_ran(loaded.graph, recording)
        sizes = {}
        for declared in loaded.graph.input:
            dims = declared_dims(declared.type) or [None]
            if declared.name in ran and not all(isinstance(d, int) for d in dims):
                sizes[declared.name] = ran[declared.name][1]
        _declare(loaded.graph, ran)
        if batch is not None:
            sizes = {name: shape for name, shape in sizes.items() if shape[:1] == [batch]}
        return onnx.to_columns(
            loaded, name=Path(model).stem, batch=batch, shapes={**sizes, **(shapes or {})}
        )


def _declare(graph: Any, types: Mapping[str, Typed]) -> None:
    """Gives the values of a graph the types that ran, for where inference cannot tell them."""
    outputs = {output.name: output for output in graph.output}
    for value, (dtype, shape) in types.items():
        if dtype in _NUMBERS:
            declared = outputs.get(value) or graph.value_info.add(name=value)
            declared.type.Clear()
            declared.type.tensor_type.elem_type = _NUMBERS[dtype]
            declared.type.tensor_type.shape.SetInParent()
            for size in shape:
                declared.type.tensor_type.shape.dim.add(dim_value=size)


def _named_as(document: Mapping[str, Any], measured: Profile) -> tuple[Profile, list[str]]:
    """The profile in the names and kinds of a model's ops, and a note on those that differed.

    Each session optimises anew, and numbers what it adds (``ReorderOutput_token_40``) as it comes:
    one name may stand for different ops. They show by the bytes they put out, and are matched
    again by kind and bytes, in the order of the model.

    Raises
    ------
    InputError
        The profile belongs to another graph, or most sizes differ: the times are of other shapes.
    """
    ops = document["ops"]
    check_same(ops, measured)
    kinds = dict(zip(ops["name"], ops["kind"], strict=True))
    renamed = {} if measured.output_bytes is None else _matched_anew(ops, measured)
    names = tuple(renamed.get(name, name) for name in measured.names)
    known = zip(names, measured.kinds, strict=True)
    measured = replace(measured, names=names, kinds=tuple(kinds.get(n, k) for n, k in known))
    if not renamed:
        return measured, []
    return measured, [
        f"{counted(len(renamed), 'op has', 'ops have')} other names in the profile "
        f"({next(iter(renamed))!r} first): matched by kind and size"
    ]


def _matched_anew(ops: Mapping[str, Any], measured: Profile) -> dict[str, str]:
    """Names in the model of measured ops that are not what their name says.

    An op whose size the model does not tell is what its name says, if its kind is.
    """
    views = {name for name, view in zip(ops["name"], ops["view"], strict=True) if view}
    assert measured.output_bytes is not None
    rows = zip(measured.names, measured.kinds, measured.output_bytes.tolist(), strict=True)
    there = {name: (kind, size) for name, kind, size in rows if name not in views}
    here = {}
    columns = zip(ops["name"], ops["kind"], ops["output_bytes"], ops["output"], strict=True)
    for name, kind, size, output in columns:
        if kind not in PLACEHOLDERS and name not in views:
            plain = kind.rpartition(".")[2]
            is_open = "?" in output or "..." in output or "none" in output
            measured_here = there.get(name, ("", 0))
            here[name] = measured_here if is_open and measured_here[0] == plain else (plain, size)
    both = [name for name in there if name in here and here[name][1]]
    other = [name for name in both if here[name] != there[name]]
    if 2 * len(other) > len(both):
        name = other[0]
        raise InputError(
            f"recorded with other shapes: {len(other)} of {len(both)} ops put out other sizes, "
            f"{name!r} {here[name][1]} bytes in the model and {there[name][1]} in the profile; "
            "give the batch= that ran"
        )
    waiting: dict[tuple[str, int], deque[str]] = defaultdict(deque)
    for name, fact in here.items():
        if there.get(name) != fact:
            waiting[fact].append(name)
    name_of = {}
    for name, fact in there.items():
        if here.get(name) != fact and waiting[fact]:
            name_of[name] = waiting[fact].popleft()
        elif name in here and here[name] != fact:
            name_of[name] = f"{name} (of other size)"
    return name_of
