"""MLCommons Chakra: the simulated step of a plan as an execution trace per rank, for ASTRA-sim and
others.

A rank is a device, by its index. Its nodes: an op that ran (COMP_NODE), what it sent and was sent
(COMM_SEND_NODE, COMM_RECV_NODE), and the collectives that it took part in (COMM_COLL_NODE).
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from loadmaster.base.files import write_bytes, write_json
from loadmaster.plans.plan import Plan
from loadmaster.readers.chakra.protos import (
    COLLECTIVE_TYPES,
    LAUNCH,
    NANOSECONDS,
    NODE_TYPES,
    classes,
    dump,
)

#: The version of Chakra's schema that is written.
_VERSION = "0.0.4"

#: The process group of all ranks; others are numbered from 1.
EVERYONE = "0"

#: Ending of the names of the files, behind a dot and the rank.
SUFFIX = ".et"


def chakra(plan: Plan, path: str | os.PathLike[str] | None = None) -> dict[str, Any]:
    """Writes ``PATH.RANK.et`` for every device, and ``PATH.groups.json`` with the process groups.

    * Every node has a start and a duration in whole microseconds, as simulated, and the attribute
      ``duration_nanos``, which is exact.
    * ``data_deps`` are what a node reads: an op, or what it was sent. ``ctrl_deps`` are the op that
      ran before on the same device, so that whoever follows both runs the plan's sequence.
    * Sends and receives have ``comm_size`` (bytes), ``comm_src``, ``comm_dst`` and ``comm_tag``,
      which is the same on both sides and on no other transfer between the two.
    * Collectives have ``comm_type``, ``comm_size`` (bytes of the whole tensor that is summed,
      gathered or handed round) and ``pg_name``: ``"0"`` is all ranks, others are in the file of
      groups, which ASTRA-sim takes as its communicator groups.
    * ``inputs`` and ``outputs`` name tensors as PyTorch's traces do: id, storage, offset, elements,
      bytes of one, device.

    Returns
    -------
    dict
        ``ranks``: number of nodes per rank; ``groups``: ranks by the name of the process group.

    Raises
    ------
    InputError
        A file that cannot be written.
    MissingExtraError
        The package ``protobuf`` is not installed.

    Examples
    --------
    >>> import loadmaster as lm
    >>> plan = lm.place("example:lenet", "2xV100-NVLink", "data-parallel")
    >>> chakra(plan)["groups"]
    {'0': [0, 1]}
    """
    step = _WrittenStep(plan)
    if path is not None:
        prefix = os.fspath(path).removesuffix(SUFFIX)
        for rank in range(plan.cluster.n_devices):
            messages = [_metadata(plan, rank), *map(step.message, step.nodes[rank])]
            write_bytes(f"{prefix}.{rank}{SUFFIX}", dump(messages))
        write_json(f"{prefix}.groups.json", step.groups)
    return {"ranks": [len(nodes) for nodes in step.nodes], "groups": step.groups}


@dataclass(eq=False)
class _TraceNode:
    """A node before it has its id. Tensors: id and bytes."""

    kind: str
    name: str
    start: float
    finish: float
    order: int
    attributes: dict[str, tuple[str, Any]] = field(default_factory=dict)
    reads: dict[int, _TraceNode] = field(default_factory=dict)
    after: _TraceNode | None = None
    inputs: dict[int, int] = field(default_factory=dict)
    outputs: dict[int, int] = field(default_factory=dict)
    device: str = ""
    id: int = 0

    def depends_on(self, other: _TraceNode) -> None:
        """Adds a dependency, once."""
        self.reads.setdefault(id(other), other)


class _WrittenStep:
    """The nodes of every rank, in the order of their start."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.seen = plan, plan.schedule
        self.graph, self.reduced = plan.program.graph, plan.problem.reduced
        self.device = self.seen.devices
        self.groups: dict[str, list[int]] = {}
        self.nodes: list[list[_TraceNode]] = [[] for _ in plan.cluster.devices]
        self._of_op = {op: self._op(at, op) for at, op in enumerate(self.reduced.op_of.tolist())}
        self._collectives()
        self._received = self._transfers()
        self._data()
        self._in_order()

    def _op(self, at: int, op: int) -> _TraceNode:
        graph, rank = self.graph, int(self.device[op])
        node = _TraceNode(
            "COMP_NODE",
            graph.names[op],
            float(self.seen.start[op]),
            float(self.seen.finish[op]),
            at,
            {"num_ops": ("int64_val", min(int(graph.flops[op]), 2**63 - 1))},
            device=self.plan.cluster.devices[rank].name,
        )
        moved = min(int(graph.bytes_accessed[op]), 2**63 - 1)
        node.attributes["tensor_size"] = ("uint64_val", moved)
        self.nodes[rank].append(node)
        return node

    def _collectives(self) -> None:
        """Makes nodes of collectives of those of their members."""
        together, everyone = self.seen.collectives, range(self.plan.cluster.n_devices)
        names: dict[tuple[int, ...], str] = {tuple(everyone): EVERYONE}
        for i, members in enumerate(together.members):
            ranks = together.devices[i]
            group = names.setdefault(ranks, str(len(names)))
            self.groups[group] = list(ranks)
            for op in members:
                node = self._of_op[op]
                node.kind = "COMM_COLL_NODE"
                node.start, node.finish = float(together.start[i]), float(together.finish[i])
                node.attributes = {
                    "comm_type": ("int64_val", COLLECTIVE_TYPES[together.kind[i]]),
                    "comm_size": ("int64_val", int(together.bytes[i])),
                    "pg_name": ("string_val", group),
                    LAUNCH: ("double_val", self._takes(op) * 1e9),
                }

    def _takes(self, op: int) -> float:
        """Seconds of an op on its device."""
        kind = self.plan.cluster.device_types[int(self.device[op])]
        return float(self.plan.problem.time[int(self.reduced.map[op]), kind])

    def _transfers(self) -> dict[tuple[int, int], list[tuple[int, _TraceNode]]]:
        """Makes a send and a receive of every transfer. By the op or placeholder that owns what is
        sent and the device that it is sent to: tensor and receive.
        """
        sent, names = self.seen.transfers, [d.name for d in self.plan.cluster.devices]
        owner = self._owners()
        nodes: dict[tuple[int, int], list[tuple[int, _TraceNode]]] = defaultdict(list)
        for i, (tensor, op) in enumerate(zip(sent.tensor.tolist(), sent.op.tolist(), strict=True)):
            at_home = bool(self.seen.sent_from_home[i])
            source = owner.get(tensor, op) if at_home else op
            src, dst, size = int(sent.src[i]), int(sent.dst[i]), int(sent.bytes[i])
            pair = []
            for kind, rank in (("SEND", src), ("RECV", dst)):
                name = f"{kind.lower()} {self.graph.names[source]}"
                span = float(sent.start[i]), float(sent.finish[i])
                node = _TraceNode(f"COMM_{kind}_NODE", name, *span, i, device=names[rank])
                node.attributes = {
                    "comm_size": ("int64_val", size),
                    "comm_src": ("int32_val", src),
                    "comm_dst": ("int32_val", dst),
                    "comm_tag": ("int32_val", i),
                }
                self.nodes[rank].append(node)
                pair.append(node)
            if tensor >= 0:
                pair[0].inputs[tensor] = pair[1].outputs[tensor] = size
            if not at_home:
                pair[0].depends_on(self._of_op[source])
                if tensor >= 0:
                    self._of_op[source].outputs[tensor] = size
            nodes[source, dst].append((tensor, pair[1]))
        return nodes

    def _owners(self) -> dict[int, int]:
        """The placeholder that owns each tensor that none of the ops makes."""
        graph, shows = self.graph, self.reduced.shows[self.graph.src]
        tensors = graph.src if graph.tensor is None else graph.tensor
        held = graph.placeholder[shows] & (tensors >= 0)
        return dict(zip(tensors[held].tolist(), shows[held].tolist(), strict=True))

    def _data(self) -> None:
        """Inputs of every op, made on its device or sent there."""
        graph, reduced = self.graph, self.reduced
        tensors = (graph.src if graph.tensor is None else graph.tensor).tolist()
        owners, readers = reduced.shows[graph.src].tolist(), graph.dst.tolist()
        sizes, runs = graph.bytes.tolist(), reduced.runs
        for owner, reader, tensor, size in zip(owners, readers, tensors, sizes, strict=True):
            if not runs[reader] or owner == reader:
                continue
            node, maker = self._of_op[reader], self._of_op.get(owner)
            rank = int(self.device[reader])
            came = self._received.get((owner, rank), [])
            of_tensor = [recv for t, recv in came if t == tensor] or [recv for _, recv in came]
            if tensor >= 0:
                node.inputs[tensor] = size
            if maker is not None and int(self.device[owner]) == rank:
                node.depends_on(maker)
                if tensor >= 0:
                    maker.outputs[tensor] = size
            else:
                for recv in of_tensor:
                    node.depends_on(recv)

    def _in_order(self) -> None:
        for nodes in self.nodes:
            nodes.sort(key=lambda node: (node.start, node.finish, node.order))
            before: _TraceNode | None = None
            for number, node in enumerate(nodes):
                node.id = number
                if node.kind == "COMP_NODE":
                    node.after, before = before, node

    def message(self, node: _TraceNode) -> Any:
        """A node as Chakra has it."""
        messages = classes()
        node_message = messages["Node"](
            id=node.id,
            name=node.name,
            type=NODE_TYPES[node.kind],
            ctrl_deps=[node.after.id] if node.after else [],
            data_deps=sorted(other.id for other in node.reads.values()),
            start_time_micros=round(node.start * 1e6),
            duration_micros=round((node.finish - node.start) * 1e6),
            inputs=_tensors(node.inputs, node.device),
            outputs=_tensors(node.outputs, node.device),
        )
        attributes = {
            "is_cpu_op": ("bool_val", False),
            **node.attributes,
            NANOSECONDS: ("double_val", (node.finish - node.start) * 1e9),
        }
        for name, (kind, value) in attributes.items():
            node_message.attr.append(messages["AttributeProto"](name=name, **{kind: value}))
        return node_message


def _metadata(plan: Plan, rank: int) -> Any:
    messages = classes()
    metadata = messages["GlobalMetadata"](version=_VERSION)
    for name, kind, value in (
        ("graph", "string_val", plan.graph.name),
        ("device", "string_val", plan.cluster.devices[rank].name),
        ("rank", "int64_val", rank),
        ("ranks", "int64_val", plan.cluster.n_devices),
        ("method", "string_val", plan.made_by),
    ):
        metadata.attr.append(messages["AttributeProto"](name=name, **{kind: value}))
    return metadata


def _tensors(tensors: dict[int, int], device: str) -> Any:
    """Tensors as PyTorch's traces write them, a byte an element."""
    rows = [[t, t, 0, size, 1, device] for t, size in sorted(tensors.items())]
    return classes()["IOInfo"](
        values=json.dumps(rows),
        shapes=json.dumps([[row[3]] for row in rows]),
        types=json.dumps(["Tensor(unsigned char)" for _ in rows]),
    )
