"""Reads ONNX Runtime profiles: the times that its kernels took, joined with the optimised model.

A profile (``SessionOptions.enable_profiling``) speaks of the graph that ran, which is the optimised
one (``SessionOptions.optimized_model_filepath``): fused, laid out anew, with names of its own. The
session's runs are the steps; a run is what stands before its ``model_run`` event.

Durations are whole microseconds, cut off, not rounded. So a duration of d us is counted as
d + 0.5 us, which is what it is on average, give or take 0.29: a duration of 0 was less than a
microsecond, not nothing.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from loadmaster.base.checks import not_negative
from loadmaster.base.errors import InputError
from loadmaster.base.files import naming, parse_json, read_bytes
from loadmaster.base.units import counted
from loadmaster.base.warnings import warn
from loadmaster.model.graph import PLACEHOLDERS, OpGraph
from loadmaster.model.profile import Profile
from loadmaster.readers.onnx import model as onnx
from loadmaster.readers.onnx.costs import ELEMENT_TYPES
from loadmaster.readers.onnx.nodes import initializer_name, initializers
from loadmaster.readers.shared.measured import add_times, check_same

#: Suffix that ONNX Runtime appends to the name of a node whose kernel ran.
_KERNEL = "_kernel_time"
_MICROSECOND = 1e-6
#: Loss by truncation to whole microseconds, on average.
_CUT_OFF = 0.5
_CPU = "CPUExecutionProvider"
#: Device types by execution provider; others go by their own name.
_DEVICE_TYPES = {
    _CPU: "cpu",
    "CUDAExecutionProvider": "gpu",
    "TensorrtExecutionProvider": "gpu",
    "ROCMExecutionProvider": "gpu",
    "MIGraphXExecutionProvider": "gpu",
    "DmlExecutionProvider": "gpu",
}


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
    recording = _Recording.read(profile)
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
    recording = _Recording.read(path)
    measured = recording.profile(device_type)
    if graph is not None:
        document = _document(graph, recording, batch, None)
        with naming(path):
            measured = _named_as(document, measured)[0]
        batch = document["meta"]["batch"]
    warn(*recording.notes)
    return replace(measured, batch=batch)


def _document(
    model: str | os.PathLike[str],
    recording: _Recording,
    batch: int | None,
    shapes: Mapping[str, Sequence[int]] | None,
) -> dict[str, Any]:
    """The model as an opgraph document, with the shapes that ran where none are given."""
    with naming(model):
        loaded = onnx.load(model)
        onnx.check_whole(loaded)
        ran = _input_shapes(loaded.graph, recording)
        if batch is not None:
            ran = {name: shape for name, shape in ran.items() if shape[:1] == [batch]}
        return onnx.to_columns(
            loaded, name=Path(model).stem, batch=batch, shapes={**ran, **(shapes or {})}
        )


def is_profile(document: Any) -> bool:
    """True if parsed JSON is an ONNX Runtime profile: a list of events, some of them its own."""
    return isinstance(document, list) and any(
        isinstance(event, dict) and event.get("cat") in ("Session", "Node") for event in document
    )


@dataclass
class _Recording:
    """The contents of a profile: microseconds of each kernel in each run, and what it worked on."""

    n_runs: int
    #: Microseconds by name and run.
    micros: dict[str, dict[int, float]] = field(default_factory=lambda: defaultdict(dict))
    kinds: dict[str, str] = field(default_factory=dict)
    output_bytes: dict[str, int] = field(default_factory=dict)
    providers: dict[str, str] = field(default_factory=dict)
    #: Types and shapes of the inputs by name: as ``[{"float": [4, 32]}]``.
    inputs: dict[str, list[Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> _Recording:
        """From a file; the error names it."""
        document = parse_json(read_bytes(path), path)
        with naming(path):
            return cls.of(document)

    @classmethod
    def of(cls, document: Any) -> _Recording:
        """From the events of a profile."""
        if not is_profile(document):
            raise InputError("no ONNX Runtime profile: wants a list of its events")
        ends = [at for at, event in enumerate(document) if _is_run(event)]
        recording = cls(max(len(ends), 1))
        repeated: Counter[str] = Counter()
        run, late = 0, 0
        for at, event in enumerate(document):
            if _is_run(event):
                run += 1
            elif _is_kernel(event) and run < recording.n_runs:
                recording._add(at, event, run, repeated)
            else:
                late += _is_kernel(event)
        if not recording.micros:
            raise InputError(
                "the profile has no kernel that ran: it was ended before the first run"
            )
        recording._note(len(ends), late, repeated, document)
        return recording

    def _add(self, at: int, event: Mapping[str, Any], run: int, repeated: Counter[str]) -> None:
        name = event["name"].removesuffix(_KERNEL)
        micros = not_negative(f"event {at} ({name!r}): dur", event.get("dur"))
        args = event.get("args")
        args = args if isinstance(args, dict) else {}
        self.kinds.setdefault(name, str(args.get("op_name", "")))
        self.providers.setdefault(name, str(args.get("provider", _CPU)))
        size = args.get("output_size")
        if isinstance(size, str) and size.isascii() and size.isdigit() and len(size) < 19:
            self.output_bytes.setdefault(name, int(size))
        inputs = args.get("input_type_shape")
        if isinstance(inputs, list):
            self.inputs.setdefault(name, inputs)
        if run in self.micros[name]:
            repeated[name] += 1
        self.micros[name][run] = self.micros[name].get(run, 0.0) + micros + _CUT_OFF

    def _note(self, ends: int, late: int, repeated: Counter[str], document: list[Any]) -> None:
        if not ends:
            self.notes.append("no run is marked as complete: all kernels count as one run")
        if late:
            self.notes.append(f"left out: {counted(late, 'kernel')} of a last run that did not end")
        if repeated:
            self.notes.append(
                f"{counted(len(repeated), 'op')} ({next(iter(repeated))!r} first) ran several "
                "times in a run, in a loop or under one name: times are sums"
            )
        kernels = sum(isinstance(e, dict) and e.get("cat") == "Kernel" for e in document)
        device = counted(kernels, "device kernel")
        hosts = sorted(set(self.providers.values()) - {_CPU})
        if hosts:
            self.notes.append(
                f"times of {', '.join(hosts)} are what the host saw of each op, not what the "
                f"device took{f'; left out: {device}' if kernels else ''}"
            )

    @property
    def resolution(self) -> str:
        """The accuracy of the times, in words."""
        durations = [micros for runs in self.micros.values() for micros in runs.values()]
        short = sum(micros < 1 for micros in durations)
        return (
            f"times are medians of {self.n_runs} runs, counted in whole microseconds and taken "
            f"half of one longer; {short} of {len(durations)} durations were under 1 us"
        )

    def profile(self, device_type: str | None, batch: int | None = None) -> Profile:
        """As a profile of one device type."""
        used = Counter(_DEVICE_TYPES.get(p, p) for p in self.providers.values())
        if device_type is None and len(used) > 1:
            counts = ", ".join(f"{count} on {name}" for name, count in used.most_common())
            raise InputError(f"ops ran on several kinds of devices ({counts}): give device_type=")
        names = tuple(self.micros)
        seconds = np.full((len(names), self.n_runs), np.nan)
        for row, name in enumerate(names):
            for run, micros in self.micros[name].items():
                seconds[row, run] = micros * _MICROSECOND
        sizes = [self.output_bytes.get(name) for name in names]
        return Profile(
            names,
            tuple(self.kinds[name] for name in names),
            seconds,
            next(iter(used)) if device_type is None else device_type,
            batch,
            None if None in sizes else np.array(sizes, dtype=np.uint64),
        )


def _is_run(event: Any) -> bool:
    return (
        isinstance(event, dict)
        and event.get("cat") == "Session"
        and event.get("name") == "model_run"
    )


def _is_kernel(event: Any) -> bool:
    return (
        isinstance(event, dict)
        and event.get("cat") == "Node"
        and isinstance(event.get("name"), str)
        and event["name"].endswith(_KERNEL)
    )


def _input_shapes(graph: Any, recording: _Recording) -> dict[str, list[int]]:
    """Shapes of the model's inputs that have open dimensions, as the kernels that read them saw.

    Where several inputs of a kernel could be it, or none, the shape stays open.
    """
    stored = {initializer_name(i) for i in initializers(graph)}
    open_inputs = {
        i.name: i.type.tensor_type
        for i in graph.input
        if i.name not in stored and any(not d.HasField("dim_value") for d in _dims(i))
    }
    shapes: dict[str, list[int]] = {}
    for node in graph.node:
        for value in set(node.input) & open_inputs.keys() - shapes.keys():
            declared = open_inputs[value]
            seen = [
                shape
                for dtype, shape in _typed(recording.inputs.get(node.name, ()))
                if _fits(declared, dtype, shape)
            ]
            if len(seen) == 1:
                shapes[value] = seen[0]
    return shapes


def _dims(value: Any) -> Any:
    return value.type.tensor_type.shape.dim


def _typed(inputs: Iterable[Any]) -> Iterable[tuple[str, list[int]]]:
    """Element type, in ONNX Runtime's words, and shape of each input that is spelled as such."""
    for entry in inputs:
        for dtype, shape in entry.items() if isinstance(entry, dict) else ():
            if isinstance(shape, list) and all(type(d) is int and d >= 0 for d in shape):
                yield dtype, shape


#: Element types that ONNX Runtime calls otherwise than by its bits.
_SPELLED = {"float": "f32", "double": "f64", "float16": "f16", "bfloat16": "bf16", "bool": "b8"}


def _fits(declared: Any, dtype: str, shape: list[int]) -> bool:
    """True if a kernel's input can be the model's."""
    name = _SPELLED.get(dtype, dtype.replace("uint", "u").replace("int", "i"))
    dims = declared.shape.dim
    return (
        ELEMENT_TYPES.get(declared.elem_type, "") == name
        and len(dims) == len(shape)
        and all(
            not d.HasField("dim_value") or d.dim_value == s
            for d, s in zip(dims, shape, strict=True)
        )
    )


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
    """Names in the model of measured ops that are not what their name says."""
    columns = zip(ops["name"], ops["kind"], ops["output_bytes"], ops["view"], strict=True)
    here = {
        name: (kind.rpartition(".")[2], size)
        for name, kind, size, view in columns
        if kind not in PLACEHOLDERS and not view
    }
    views = {name for name, view in zip(ops["name"], ops["view"], strict=True) if view}
    assert measured.output_bytes is not None
    rows = zip(measured.names, measured.kinds, measured.output_bytes.tolist(), strict=True)
    there = {name: (kind, size) for name, kind, size in rows if name not in views}
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
