"""A session run, as its RunMetadata tells it: which ops ran, how often, how long, where.

Durations are those of the kernels (``op_end_rel - op_start_rel``), in nanoseconds where the file
has them: half of a graph's ops take less than a microsecond. On a GPU an op's duration is the sum
of the device's own kernels (``/stream:all``), where they were traced, else what the host spent on
it. Where there are no step stats, the cost graph's ``compute_cost`` is taken, TensorFlow's own
estimate in whole microseconds; its other times are always zero.
"""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from loadmaster.base.errors import InputError
from loadmaster.base.files import naming
from loadmaster.model.profile import Profile
from loadmaster.readers.shared.ops import Tensor
from loadmaster.readers.tensorflow.costs import ELEMENT_TYPES, HANDLES, plain_kind
from loadmaster.readers.tensorflow.protos import load_run

#: Loss by truncation to whole microseconds on average, in seconds.
_CUT_OFF = 5e-7
_DEVICE = re.compile(r"(?:device:|/)([A-Za-z_]+):(?:\d+|\*)")
_LABEL = re.compile(r" = (\w+)\(")
#: Devices of GPU kernels: all streams. The devices of single streams repeat these kernels.
_ALL_STREAMS, _STREAM = "/stream:all", ("/stream:", "/memcpy")


@dataclass
class Execution:
    """The run of an op in one session run."""

    device: str
    #: The kind that ran, which an optimiser may have changed; empty: not told.
    kind: str = ""
    runs: int = 0
    seconds: float = 0.0
    #: Bytes of scratch memory.
    workspace: int = 0
    #: By port, as the last time the op ran.
    outputs: dict[int, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class SessionRun:
    """One session run: what ran, by name."""

    executions: dict[str, Execution]
    #: True if times are measurements of this run; else they are the cost graph's estimates.
    measured: bool

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> SessionRun:
        """From a file of RunMetadata.

        Raises
        ------
        InputError
            A damaged file, one without ops, a duration or size that is negative; the op is named.
        MissingExtraError
            The package ``protobuf`` is not installed.
        """
        message = load_run(path)
        with naming(path):
            return cls.of(message)

    @classmethod
    def of(cls, message: Any) -> SessionRun:
        """From a RunMetadata message."""
        if any(device.node_stats for device in message.step_stats.dev_stats):
            return cls(_from_stats(message.step_stats), True)
        return cls(_from_cost_graph(message.cost_graph), False)


def device_kind(device: str) -> str:
    """The device type of a device string, in lower case; empty if it names none.

    >>> device_kind("/job:localhost/replica:0/task:0/device:GPU:0"), device_kind("/cpu:1")
    ('gpu', 'cpu')
    """
    kinds = _DEVICE.findall(device)
    return str(kinds[-1]).lower() if kinds and kinds[-1] not in ("job", "replica", "task") else ""


def profile_of(
    runs: Sequence[SessionRun], device_type: str | None = None, batch: int | None = None
) -> Profile:
    """Session runs of the same graph and batch as a profile, a step each.

    Raises
    ------
    InputError
        Ops ran on several kinds of devices, and ``device_type`` is not given.
    """
    names = list(dict.fromkeys(name for run in runs for name in run.executions))
    seconds = np.full((len(names), len(runs)), np.nan)
    kinds: dict[str, str] = {}
    where: dict[str, str] = {}
    sizes: dict[str, int] = {}
    rows = {name: row for row, name in enumerate(names)}
    for step, run in enumerate(runs):
        for name, execution in run.executions.items():
            seconds[rows[name], step] = execution.seconds
            kinds.setdefault(name, execution.kind)
            where.setdefault(name, device_kind(execution.device))
            size = sum(t.nbytes or 0 for t in execution.outputs.values())
            if size >= 2**63:
                raise InputError(f"op {name!r} puts out more than 2^63 bytes")
            sizes.setdefault(name, size)
    used = Counter(kind for kind in where.values() if kind)
    if device_type is None and len(used) > 1:
        counts = ", ".join(f"{count} on {name}" for name, count in used.most_common())
        raise InputError(f"ops ran on several kinds of devices ({counts}): give device_type=")
    if device_type is None:
        device_type = next(iter(used), "*")
    return Profile(
        tuple(names),
        tuple(kinds[name] for name in names),
        seconds,
        device_type,
        batch,
        np.array([sizes[name] for name in names], dtype=np.uint64),
    )


def _from_stats(stats: Any) -> dict[str, Execution]:
    """Each op as the host saw it. Times of kernels that a device recorded replace the host's."""
    executions: dict[str, Execution] = {}
    kernels: defaultdict[str, float] = defaultdict(float)
    in_nanos = any(n.op_end_rel_nanos for d in stats.dev_stats for n in d.node_stats)
    for device in stats.dev_stats:
        is_all = device.device.endswith(_ALL_STREAMS)
        if not is_all and any(mark in device.device for mark in _STREAM):
            continue
        for node in device.node_stats:
            took = _duration(node, in_nanos)
            if is_all:
                kernels[node.node_name.partition(":")[0]] += took
            else:
                execution = executions.setdefault(node.node_name, Execution(device.device))
                _add(execution, node, took)
    for name, took in kernels.items():
        if name in executions:
            executions[name].seconds = took
    return executions


def _duration(node: Any, in_nanos: bool) -> float:
    if in_nanos:
        seconds = 1e-9 * int(node.op_end_rel_nanos - node.op_start_rel_nanos)
    else:
        seconds = 1e-6 * int(node.op_end_rel_micros - node.op_start_rel_micros)
    if seconds < 0:
        raise InputError(f"op {node.node_name!r} ends {-seconds:.9f} s before it starts")
    return seconds if in_nanos else seconds + _CUT_OFF


def _add(execution: Execution, node: Any, seconds: float) -> None:
    execution.runs += 1
    execution.seconds += seconds
    execution.workspace = max(execution.workspace, node.memory_stats.temp_memory_size)
    kind = _LABEL.search(node.timeline_label)
    if kind:
        execution.kind = plain_kind(kind[1])
    for output in node.output:
        described = output.tensor_description
        size = described.allocation_description.requested_bytes
        if min(output.slot, size) < 0:
            raise InputError(f"op {node.node_name!r} has output {output.slot} of {size} bytes")
        with naming(f"op {node.node_name!r}"):
            execution.outputs[output.slot] = tensor(described.dtype, described.shape, size)


def _from_cost_graph(graph: Any) -> dict[str, Execution]:
    executions = {}
    for node in graph.node:
        if node.compute_cost < 0:
            raise InputError(f"op {node.name!r} has the compute_cost {node.compute_cost}")
        execution = Execution(node.device, "", 1, node.compute_cost * 1e-6)
        for port, output in enumerate(node.output_info):
            if output.size >= 0:
                with naming(f"op {node.name!r}"):
                    execution.outputs[port] = tensor(output.dtype, output.shape, output.size)
        executions[node.name] = execution
    return executions


def tensor(dtype: int, shape: Any, requested: int | None = None) -> Tensor:
    """A tensor from its type's number and its shape message.

    ``requested`` are the bytes that were allocated. They count where the type has no size of its
    own. Else the shape counts: a slice shares the bytes that its source allocated.
    """
    name = ELEMENT_TYPES.get(dtype % 100, "")
    sizes = (
        None if shape.unknown_rank else tuple(d.size if d.size >= 0 else None for d in shape.dim)
    )
    sized = Tensor(name, sizes)
    if sized.nbytes is None and name not in HANDLES:
        return Tensor(name, sizes, stored=requested)
    return sized
