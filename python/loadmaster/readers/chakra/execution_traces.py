"""Reads execution traces of MLCommons Chakra: what each rank of a step computes, sends and is sent.

A file is a rank (:mod:`loadmaster.readers.chakra.protos`). ``NAME.0.et`` stands for all of
``NAME.RANK.et`` beside it: a send and its receive become a tensor between two ops, and the nodes of
a collective its members. ``loadmaster export --target chakra`` writes such files. Traces that
PyTorch writes as JSON are read by :mod:`loadmaster.readers.pytorch.execution_trace`.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadmaster.base.checks import not_negative
from loadmaster.base.errors import InputError
from loadmaster.base.files import system_errors
from loadmaster.base.units import counted
from loadmaster.base.warnings import warn
from loadmaster.model.graph import OpGraph
from loadmaster.readers.chakra.protos import (
    COLLECTIVE_TYPES,
    LAUNCH,
    NANOSECONDS,
    NODE_TYPES,
    attributes,
    load,
)
from loadmaster.readers.shared.names import unique

_FILE = re.compile(r"(?P<name>.*)\.(?P<rank>\d{1,6})\.et(?P<packed>\.gz)?")

_KINDS = {number: name for name, number in NODE_TYPES.items()}
_COLLECTIVES = {number: name for name, number in COLLECTIVE_TYPES.items()}

#: The most ranks.
_MOST = 2**20

_ASSUMED = (
    "ctrl_deps are the order in which ops were launched, and bind nothing",
    "what ops and weights take of memory is not in the file",
)


@dataclass(eq=False)
class _RankNode:
    """A node of a rank. ``reads`` and ``makes``: bytes by tensor, as far as they are told."""

    rank: int
    id: int
    kind: str
    name: str
    seconds: float
    attributes: dict[str, Any]
    reads: dict[int, int]
    makes: dict[int, int]
    deps: list[_RankNode] = field(default_factory=list)
    partner: _RankNode | None = None
    collective: str = ""
    index: int = -1

    @property
    def is_op(self) -> bool:
        """True if it is an op of the graph: all but what hands on from rank to rank. A send of what
        no node made is one.
        """
        return self.partner is None or (self.kind == "COMM_SEND_NODE" and not self.deps)

    @property
    def takes(self) -> float:
        """Seconds on its device: of what is simulated as a message, those of its launch."""
        if not self.collective and self.partner is None:
            return self.seconds
        return not_negative(f"{self}: {LAUNCH}", self.attributes.get(LAUNCH, 0.0)) / 1e9

    def number(self, name: str, default: int | None = None) -> int:
        """An attribute that is a whole number, at least 0."""
        value = self.attributes.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise InputError(f"{self}: {name} is {value!r}: wants a whole number")
        return value

    def __str__(self) -> str:
        return f"rank {self.rank}, node {self.id} ({self.name!r})"


def read(path: str | os.PathLike[str], *, device_type: str | None = None) -> OpGraph:
    """The graph of a step: an op per node that computes, its module being its rank.

    Parameters
    ----------
    path
        ``NAME.RANK.et``, which stands for the files of all ranks, or a file of any other name,
        which is one rank; plain or gzipped.
    device_type
        What to call the device that the times are of; they hold for every type if absent.

    Returns
    -------
    OpGraph
        Ops by rank, in the order of their ids. What is sent without being made (a weight) is an op
        that takes no time, before the others of its rank. Where nodes do not say which tensors pass
        between them, what they depend on is order alone. Sends and receives without a partner, and
        collectives of a single rank, are ops that take the time they took.

    Raises
    ------
    InputError
        A damaged file; an id given twice; a dependency that is not there; a receive of another size
        than its send; members of a collective that differ; a cycle.
    MissingExtraError
        The package ``protobuf`` is not installed.

    Warns
    -----
    UserWarning
        Sends or receives without a partner, collectives that are simulated as ops.

    Examples
    --------
    >>> import loadmaster as lm, pathlib, tempfile
    >>> plan = lm.place("example:lenet", "2xV100-NVLink", "heft")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = lm.writers.chakra(plan, pathlib.Path(folder, "step"))
    ...     found = read(pathlib.Path(folder, "step.0.et"))
    >>> sorted(set(found.modules))
    ['rank0', 'rank1']
    """
    ranks, version = _ranks(Path(path))
    nodes = [node for rank in ranks for node in rank]
    notes = [*_pair(nodes), *_join(ranks)]
    ops = [node for node in nodes if node.is_op]
    if not ops:
        raise InputError(f"{os.fspath(path)} has no nodes that compute")
    graph = _Graph(ops, device_type or "*")
    for node in ops:
        graph.add_edges(node)
    notes += graph.notes() if len(ranks) == 1 else []
    warn(*notes)
    meta = {"framework": f"Chakra {version}", "ranks": len(ranks), "assumed": [*_ASSUMED, *notes]}
    return graph.made(Path(path).name.partition(".")[0], meta)


def _ranks(path: Path) -> tuple[list[list[_RankNode]], str]:
    """The nodes of every rank, and the version of the format.

    Files may lie beside each other that are not of one step: how many ranks there are is what the
    file says, and else what lies there.
    """
    metadata, messages = load(path)
    named = _FILE.fullmatch(path.name)
    if named is None:
        return [_nodes(messages, 0, os.fspath(path))], str(metadata.version)
    said = attributes(metadata).get("ranks")
    files = {}
    with system_errors(f"cannot read the folder of {path}"):
        beside = list(path.parent.iterdir())
    for file in beside:
        other = _FILE.fullmatch(file.name)
        if other is not None and other["name"] == named["name"]:
            files[int(other["rank"])] = file
    files[int(named["rank"])] = path
    wanted = range(said) if isinstance(said, int) and 0 < said <= _MOST else sorted(files)
    for rank in wanted:
        if rank not in files:
            raise InputError(f"{path} is of {said} ranks, and rank {rank} is not beside it")
    of_ranks = [_nodes(load(files[rank])[1], rank, os.fspath(files[rank])) for rank in wanted]
    return of_ranks, str(metadata.version)


def _nodes(messages: list[Any], rank: int, source: str) -> list[_RankNode]:
    """The nodes of a rank, by their ids, with what each depends on."""
    nodes: dict[int, _RankNode] = {}
    for message in messages:
        said = attributes(message)
        place = f"{source}: node {message.id}"
        nanos = said.get(NANOSECONDS, message.duration_micros * 1000)
        node = _RankNode(
            rank,
            message.id,
            _KINDS.get(message.type, "INVALID_NODE"),
            message.name,
            not_negative(f"{place}: {NANOSECONDS}", nanos) / 1e9,
            said,
            _tensors(message.inputs.values),
            _tensors(message.outputs.values),
        )
        if nodes.setdefault(node.id, node) is not node:
            raise InputError(f"{source}: two nodes have the id {node.id}")
    for message in messages:
        for other in message.data_deps:
            if other not in nodes:
                raise InputError(
                    f"{source}: node {message.id}: data_deps has {other}, and no node has that id"
                )
            nodes[message.id].deps.append(nodes[other])
    in_order = [nodes[number] for number in sorted(nodes)]
    # What is sent at once, such as a weight, is there before anything runs.
    return sorted(in_order, key=lambda node: bool(node.deps) or node.kind != "COMM_SEND_NODE")


def _tensors(text: str) -> dict[int, int]:
    """Bytes by tensor in what ``IOInfo.values`` says; nothing where it says something else."""
    if not text:
        return {}
    try:
        values = json.loads(text.replace("'", '"'))
    except (ValueError, RecursionError):
        return {}
    sizes = {}
    rows = values if isinstance(values, list) else []
    # A list of tensors is a list within the list.
    for row in [r for each in rows for r in (each if _is_list_of_lists(each) else [each])]:
        if isinstance(row, list) and len(row) >= 5 and all(type(v) is int for v in row[:5]):
            sizes[row[0]] = min(max(row[3] * row[4], 0), 2**62)
    return sizes


def _is_list_of_lists(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(v, list) for v in value)


def _pair(nodes: list[_RankNode]) -> Iterator[str]:
    """Gives sends and receives their partners: the n-th of the same ranks and tag each."""
    waiting: dict[tuple[int, int, int] | None, deque[_RankNode]] = defaultdict(deque)
    sends, receives = (
        [node for node in nodes if node.kind == f"COMM_{kind}_NODE"] for kind in ("SEND", "RECV")
    )
    for node in sends:
        waiting[_key(node)].append(node)
    alone = 0
    for node in receives:
        key = _key(node)
        sent = waiting[key]
        if key is None or not sent:
            alone += 1
            continue
        other = sent.popleft()
        if other.number("comm_size", 0) != node.number("comm_size", 0):
            raise InputError(f"{node}: comm_size is not that of {other}, which sends it")
        node.partner, other.partner = other, node
    alone += sum(map(len, waiting.values()))
    if alone:
        yield (
            f"{counted(alone, 'send or receive has', 'sends and receives have')} no partner: they "
            "are ops that take the time they took"
        )


def _key(node: _RankNode) -> tuple[int, int, int] | None:
    """Sender, receiver and tag; None: the file does not say who is at the other end."""
    is_send = node.kind == "COMM_SEND_NODE"
    if ("comm_dst" if is_send else "comm_src") not in node.attributes:
        return None
    src = node.number("comm_src", node.rank if is_send else None)
    dst = node.number("comm_dst", None if is_send else node.rank)
    return src, dst, node.number("comm_tag", 0)


def _join(ranks: list[list[_RankNode]]) -> Iterator[str]:
    """Names the collectives: the n-th of a process group on every rank is one."""
    collectives: dict[tuple[str, int], list[_RankNode]] = defaultdict(list)
    for rank in ranks:
        count: dict[str, int] = defaultdict(int)
        for node in rank:
            if node.kind == "COMM_COLL_NODE":
                group = str(node.attributes.get("pg_name", ""))
                collectives[group, count[group]].append(node)
                count[group] += 1
    alone = 0
    for (group, number), members in collectives.items():
        kinds = [_collective(node) for node in members]
        for node, kind in zip(members, kinds, strict=True):
            if kind != kinds[0]:
                raise InputError(
                    f"{node}: comm_type is not that of {members[0]}, of the same group"
                )
        kind = kinds[0]
        if len(members) < 2 or kind is None:
            alone += len(members)
            continue
        for node in members:
            node.collective = f"{kind}/group {group or 'all'}, {number}"
    if alone:
        yield (
            f"{counted(alone, 'collective is', 'collectives are')} of one rank or of a kind that "
            "is not simulated: they are ops that take the time they took"
        )


def _collective(node: _RankNode) -> str | None:
    """The kind of a collective; None: the file does not say, or it is none that is simulated."""
    if "comm_type" not in node.attributes:
        return None
    return _COLLECTIVES.get(node.number("comm_type"))


class _Graph:
    """Ops and edges as they grow."""

    def __init__(self, ops: list[_RankNode], device_type: str) -> None:
        self.names = [node.name or f"node {node.id}" for node in ops]
        self.kinds = [node.kind for node in ops]
        self.modules = [f"rank{node.rank}" for node in ops]
        self.collectives = [node.collective for node in ops]
        self.seconds = [node.takes for node in ops]
        members = Counter(self.collectives)
        self.outputs = [_made(node, members[node.collective]) for node in ops]
        self.flops = [_whole(node, "num_ops") for node in ops]
        self.moved = [_whole(node, "tensor_size") for node in ops]
        self._type = device_type
        self._ids: dict[tuple[int, Any], int] = {}
        self._edges: dict[tuple[int, int, int], int] = {}
        for index, node in enumerate(ops):
            node.index = index

    def add_edges(self, node: _RankNode) -> None:
        """The nodes that a node depends on."""
        for other in node.deps:
            if other.is_op:
                shared = sorted(other.makes.keys() & node.reads.keys())
                for tensor in shared:
                    self._edge(other.index, node.index, tensor, other.makes[tensor])
                if not shared:
                    self._edges.setdefault((other.index, node.index, -1), 0)
            elif other.kind == "COMM_RECV_NODE":
                self._arrives(other, node)

    def _arrives(self, recv: _RankNode, node: _RankNode) -> None:
        """An edge from whoever made what a receive brings; all else it waited for is order."""
        sources, sent = _made_by(recv)
        size = recv.number("comm_size", 0)
        tensors = sources[0].makes.keys() & sent.reads.keys()
        # What is sent on to several ranks is one tensor.
        key = next(iter(tensors)) if len(tensors) == 1 else ("sent", sent.id)
        self._edge(sources[0].index, node.index, key, size)
        for other in sources[1:]:
            self._edges.setdefault((other.index, node.index, -1), 0)

    def _edge(self, src: int, dst: int, tensor: Any, size: int) -> None:
        if not size:
            self._edges.setdefault((src, dst, -1), 0)
            return
        number = self._ids.setdefault((src, tensor), len(self._ids))
        self._edges.setdefault((src, dst, number), size)

    def notes(self) -> list[str]:
        """A note on dependencies that carry nothing, as far as the file says."""
        order = sum(tensor < 0 for _, _, tensor in self._edges)
        if not order:
            return []
        return [
            f"dependencies for which the file says no tensor: {order} of {len(self._edges)}, whose "
            "transfers count as free; a plan on several devices is not to be trusted for them"
        ]

    def made(self, name: str, meta: dict[str, Any]) -> OpGraph:
        """The graph."""
        rows = [(*key, size) for key, size in self._edges.items()]
        src, dst, tensor, size = zip(*rows, strict=True) if rows else ((), (), (), ())
        return OpGraph(
            {
                "name": unique(self.names),
                "kind": self.kinds,
                "module": self.modules,
                "collective": self.collectives,
                "flops": self.flops,
                "bytes_accessed": self.moved,
                "output_bytes": self.outputs,
                "time": {self._type: self.seconds},
            },
            {"src": src, "dst": dst, "tensor": tensor, "bytes": size},
            name=name,
            meta=meta,
        )


def _made_by(recv: _RankNode) -> tuple[list[_RankNode], _RankNode]:
    """The ops that made what a receive brings, and the send that first had it, over all ranks that
    hand it on.
    """
    seen = set()
    node = recv
    while True:
        sent = node.partner
        assert sent is not None
        if id(sent) in seen:
            raise InputError(f"{recv} waits for itself")
        seen.add(id(sent))
        ops = [sent] if sent.is_op else [other for other in sent.deps if other.is_op]
        relayed = [other for other in sent.deps if other.kind == "COMM_RECV_NODE" and other.partner]
        if ops or not relayed:
            return ops, sent
        node = relayed[0]


def _made(node: _RankNode, members: int) -> int:
    """Bytes that one of so many members of a collective makes, where nothing says what it reads."""
    if not node.collective or node.reads:
        return 0
    size = node.number("comm_size", 0)
    if node.collective.startswith(("reduce_scatter", "all_to_all")):
        return size // members
    return size


def _whole(node: _RankNode, name: str) -> int:
    """A number that a trace may say of an op."""
    value = node.attributes.get(name, 0)
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return value if is_number and 0 <= value < 2**62 else 0
