"""The bytes that fill a device's memory at the moment when it holds most.

Parameters, gradients and optimizer state, activations, workspace.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from loadmaster.judge.simulation import run
from loadmaster.model.cluster import Cluster
from loadmaster.model.graph import OpGraph
from loadmaster.model.program import COLLECTIVE, Program
from loadmaster.plans.plan import Plan

#: More bytes than any plan needs.
_ENDLESS = 2**62

#: Purposes of bytes: attributes of a footprint.
USES = ("parameters", "gradients", "state", "activations", "collectives", "workspace")

#: The first part of the module path of an optimizer's state.
_OPTIMIZER = "optim"


@dataclass(frozen=True)
class Footprint:
    """Bytes in a device's memory when it holds most.

    Attributes
    ----------
    device : str
    capacity : int
        What it has, less what is reserved.
    parameters : int
        Parameters, buffers and constants, with copies that are sent here.
    gradients : int
        Of weights.
    state : int
        Of the optimizer, and what it computes.
    activations : int
        Inputs, and all other tensors; of a plan for throughput those of all batches under way.
    collectives : int
        What collectives put out: buffers of gradients that are summed, of parameters gathered.
    workspace : int
        Of the ops that run then.
    """

    device: str
    capacity: int
    parameters: int
    gradients: int
    state: int
    activations: int
    collectives: int
    workspace: int

    @property
    def used(self) -> int:
        """All of it: the peak."""
        return sum(getattr(self, use) for use in USES)

    @property
    def optimizer(self) -> int:
        """Gradients of weights, and the optimizer's state."""
        return self.gradients + self.state

    @property
    def free(self) -> int:
        """Bytes that are left; negative: bytes that are missing."""
        return self.capacity - self.used

    def to_document(self) -> dict[str, Any]:
        """As plain data for JSON."""
        more = {"optimizer": self.optimizer, "used": self.used, "free": self.free}
        return {**asdict(self), **more}


def footprints(plan: Plan) -> tuple[Footprint, ...]:
    """The footprint of every device of a plan. A simulation per device that holds anything.

    The graph tells what a tensor is for. Placeholders are state, the optimizer's where their module
    path is under ``optim``. Gradients of weights are found as in
    :func:`loadmaster.transforms.data_parallel`. Ops of the optimizer have ``phase`` "o".

    Examples
    --------
    >>> import loadmaster as lm
    >>> plan = lm.place(lm.read("example:lenet"), lm.Cluster.preset("2xV100-NVLink"), "single")
    >>> first, second = footprints(plan)
    >>> bool(first.used == plan.memory.peak[0]), second.used
    (True, 0)
    """
    uses = _Uses(plan.program)
    return tuple(_footprint(plan, uses, d) for d in range(plan.cluster.n_devices))


class _Uses:
    """Masks of a graph's tensors: those that are state, and those that are the optimizer's."""

    def __init__(self, program: Program) -> None:
        graph = program.graph
        roles = graph.roles
        # What is summed over replicas is gradients.
        gradients = roles.gradient | (program.role[graph.dst] == COLLECTIVE)
        slot = [m.split(".")[0] == _OPTIMIZER for m in graph.modules]
        self.state = graph.placeholder & np.array([kind != "input" for kind in graph.kinds])
        #: True where an op's state or result is the optimizer's.
        self.optimizer = np.where(graph.placeholder, slot, graph.updates).astype(bool)
        self.collective = graph.is_member
        self.source: dict[int, int] = {}
        #: Sizes of the weight gradients that an op makes.
        self.gradients: dict[int, set[int]] = defaultdict(set)
        shows = graph.reduced.shows
        rows = (roles.tensor, graph.src, graph.bytes, gradients)
        for tensor, src, size, gradient in zip(*(row.tolist() for row in rows), strict=True):
            made_by = int(shows[src])
            self.source.setdefault(tensor, made_by)
            if gradient:
                self.gradients[made_by].add(size)

    def kind(self, op: int, size: int) -> str:
        """The use of a tensor of some size that an op makes or keeps."""
        if self.collective[op]:
            return "collectives"
        if size in self.gradients[op]:
            return "gradients"
        if self.optimizer[op]:
            return "state"
        return "parameters" if self.state[op] else "activations"


def _footprint(plan: Plan, uses: _Uses, device: int) -> Footprint:
    graph = plan.program.graph
    held = dict.fromkeys(USES, 0)
    kept = graph.resident
    for op in np.flatnonzero((plan.running_devices == device) & (kept > 0)).tolist():
        # An op that is no placeholder keeps weights of its own.
        is_input = graph.kinds[op] == "input"
        kind = "state" if uses.optimizer[op] else "activations" if is_input else "parameters"
        held[kind] += int(kept[op])
    is_stream = plan.verdict.steady is not None
    peak = int((plan.schedule.memory if is_stream else plan.memory).peak[device])
    if peak > sum(held.values()):
        for kind, size in _alive(plan, uses, device, peak):
            held[kind] += size
        held["workspace"] = peak - sum(held.values())
    if is_stream:
        # A step alone is taken apart; what a stream holds besides is of other batches under way.
        held["activations"] += int(plan.memory.peak[device]) - sum(held.values())
    name = plan.cluster.devices[device].name
    return Footprint(name, plan.binding.room[device], **held)


def _alive(plan: Plan, uses: _Uses, device: int, peak: int) -> list[tuple[str, int]]:
    """The use and the bytes of each tensor that is alive when a device first holds its peak.

    The simulator lists the tensors that are alive when a device first overflows. So the device is
    simulated with one byte less than its peak.
    """
    cluster = plan.cluster
    devices = [
        replace(d, memory=peak - 1 if i == device else _ENDLESS)
        for i, d in enumerate(cluster.devices)
    ]
    small = Cluster(
        devices,
        cluster.wiring,
        cluster.types,
        collectives=cluster.collectives,
        dispatch=cluster.dispatch,
    )
    seen = run(replace(plan.problem, cluster=small), plan.assignment)
    assert seen.memory.overflow is not None
    sent = seen.transfers
    here = sent.dst == device
    of_copy = {
        (op, size): uses.source[tensor]
        for op, size, tensor in zip(
            sent.op[here].tolist(),
            sent.bytes[here].tolist(),
            sent.tensor[here].tolist(),
            strict=True,
        )
        if tensor >= 0
    }
    return [
        (uses.kind(of_copy[t.op, t.bytes] if t.copy else t.op, t.bytes), t.bytes)
        for t in seen.memory.overflow.alive
        if t.bytes
    ]


def largest_op(graph: OpGraph) -> tuple[int, int]:
    """The op that needs most memory by itself, and how many bytes it needs.

    The tensors that an op reads and makes, and its workspace, must be on its device at once. Of the
    tensors that it reads from one storage, only the largest counts. O(E log E).

    >>> import loadmaster as lm
    >>> graph = lm.OpGraph({"name": ["a", "b"], "output_bytes": [3, 4], "workspace": [0, 5]},
    ...                    {"src": [0], "dst": [1], "bytes": [3]})
    >>> largest_op(graph)
    (1, 12)
    """
    shows = graph.reduced.shows
    changed = (graph.alias_of >= 0) & ~graph.view
    # An op that works in place stands for the storage that it works on.
    root = np.where(changed, graph.alias_of, shows)
    for _ in range(graph.n_ops.bit_length()):
        root = root[root]
    need = np.where(changed | graph.view, np.uint64(0), graph.output_bytes) + graph.workspace
    data = np.flatnonzero((graph.src if graph.tensor is None else graph.tensor) >= 0)
    owner, reader, size = root[graph.src[data]], graph.dst[data], graph.bytes[data]
    rows = np.lexsort((size, reader, owner))
    is_largest = np.ones(len(rows), dtype=bool)
    is_largest[:-1] = (np.diff(owner[rows]) != 0) | (np.diff(reader[rows]) != 0)
    largest = rows[is_largest]
    np.add.at(need, reader[largest], size[largest])
    need[graph.view | graph.placeholder] = 0
    op = int(np.argmax(need))
    return op, int(need[op])
