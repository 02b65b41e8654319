"""Recordings of ONNX Runtime: the kernels in a profile, how long they took, and what they had.

A profile is a list of events. The session's runs are the steps; a run is what stands before its
``model_run`` event.

Durations are whole microseconds, cut off, not rounded. So a duration of d us is counted as
d + 0.5 us, which is what it is on average, give or take 0.29: a duration of 0 was less than a
microsecond, not nothing.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from loadmaster.base.checks import not_negative
from loadmaster.base.errors import InputError
from loadmaster.base.files import naming, parse_json, read_bytes
from loadmaster.base.units import counted
from loadmaster.model.profile import Profile

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

#: Element type, as graphs spell it, and shape of a tensor.
Typed = tuple[str, list[int]]

#: Element types that ONNX Runtime calls otherwise than by its bits.
_SPELLED = {"float": "f32", "double": "f64", "float16": "f16", "bfloat16": "bf16", "bool": "b8"}


def _is_profile(document: Any) -> bool:
    """True if parsed JSON is an ONNX Runtime profile: a list of events, some of them its own."""
    return isinstance(document, list) and any(
        isinstance(event, dict) and event.get("cat") in ("Session", "Node") for event in document
    )


@dataclass
class RuntimeProfile:
    """The contents of a profile: microseconds of each kernel in each run, and what it worked on."""

    n_runs: int
    #: Microseconds by name and run.
    micros: dict[str, dict[int, float]] = field(default_factory=lambda: defaultdict(dict))
    kinds: dict[str, str] = field(default_factory=dict)
    output_bytes: dict[str, int] = field(default_factory=dict)
    providers: dict[str, str] = field(default_factory=dict)
    #: Tensors that each kernel read and wrote, by name, in their order.
    inputs: dict[str, list[Typed]] = field(default_factory=dict)
    outputs: dict[str, list[Typed]] = field(default_factory=dict)
    #: Tensors that each kernel inside of a body read, by name.
    read_inside: dict[str, list[Typed]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> RuntimeProfile:
        """From a file; the error names it."""
        document = parse_json(read_bytes(path), path)
        with naming(path):
            return cls.of(document)

    @classmethod
    def of(cls, document: Any) -> RuntimeProfile:
        """From the events of a profile."""
        if not _is_profile(document):
            raise InputError("no ONNX Runtime profile: wants a list of its events")
        ends = [at for at, event in enumerate(document) if _is_run(event)]
        recording = cls(max(len(ends), 1))
        repeated: Counter[str] = Counter()
        run, late, inside = 0, 0, _inside(document)
        for at, event in enumerate(document):
            if _is_run(event):
                run += 1
            elif at in inside:
                recording._add_inside(event)
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
        self.inputs.setdefault(name, _typed(args.get("input_type_shape")))
        self.outputs.setdefault(name, _typed(args.get("output_type_shape")))
        if run in self.micros[name]:
            repeated[name] += 1
        self.micros[name][run] = self.micros[name].get(run, 0.0) + micros + _CUT_OFF

    def _add_inside(self, event: Mapping[str, Any]) -> None:
        name, args = event["name"].removesuffix(_KERNEL), event.get("args")
        read = args.get("input_type_shape") if isinstance(args, dict) else None
        self.read_inside.setdefault(name, _typed(read))

    def _note(self, ends: int, late: int, repeated: Counter[str], document: list[Any]) -> None:
        if not ends:
            self.notes.append("no run is marked as complete: all kernels count as one run")
        if late:
            self.notes.append(f"left out: {counted(late, 'kernel')} of a last run that did not end")
        if repeated:
            self.notes.append(
                f"{counted(len(repeated), 'op')} ({next(iter(repeated))!r} first) ran several "
                "times in a run, under one name: times are sums"
            )
        kernels = sum(isinstance(e, dict) and e.get("cat") == "Kernel" for e in document)
        device = counted(kernels, "device kernel")
        hosts = sorted(set(self.providers.values()) - {_CPU})
        if hosts:
            self.notes.append(
                f"times of {', '.join(hosts)} are what the host saw of each op, not what the "
                f"device took{f'; left out: {device}' if kernels else ''}"
            )

    def rename(self, names: Mapping[str, str]) -> None:
        """Gives kernels other names, in place."""
        sizes = self.output_bytes, self.inputs, self.outputs
        columns: tuple[dict[str, Any], ...] = (self.micros, self.kinds, self.providers, *sizes)
        for column in columns:
            entries = [(names.get(name, name), entry) for name, entry in column.items()]
            column.clear()
            column.update(entries)

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


def _inside(document: list[Any]) -> set[int]:
    """Positions of the kernels inside of bodies: what has the body took their time, too.

    Bodies are executed within the run. The last execution before the end of a run is the run's own.
    """
    inside: set[int] = set()
    waiting: list[tuple[float, int]] = []
    last: list[int] = []
    for at, event in enumerate(document):
        begins = event.get("ts") if isinstance(event, dict) else None
        if _is_run(event):
            waiting, last = [], []
        elif not isinstance(begins, int | float):
            continue
        elif _is_kernel(event):
            waiting.append((begins, at))
        elif event.get("cat") == "Session" and str(event.get("name")).endswith("Executor::Execute"):
            inside.update(last)
            last = []
            while waiting and waiting[-1][0] >= begins:
                last.append(waiting.pop()[1])
    return inside


def _typed(tensors: Any) -> list[Typed]:
    """Tensors as an event has them, ``[{"float": [4, 32]}]``; none where one is otherwise."""
    typed = []
    for tensor in tensors if isinstance(tensors, list) else ():
        if not (isinstance(tensor, dict) and len(tensor) == 1):
            return []
        ((dtype, shape),) = tensor.items()
        if not (isinstance(shape, list) and all(type(d) is int and d >= 0 for d in shape)):
            return []
        plain = str(dtype).replace("uint", "u").replace("int", "i")
        typed.append((_SPELLED.get(str(dtype), plain), shape))
    return typed
