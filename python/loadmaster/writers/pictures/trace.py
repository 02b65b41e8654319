"""A plan's simulated step as Chrome trace events, for ui.perfetto.dev and chrome://tracing.

Viewers want more than the format says. `X` slices of one thread must nest or be disjoint, so every
device and every channel is a process with one thread. A flow's ends must lie inside slices. Times
are floats of microseconds. Conversions are by column: 50,000 ops are written
in about a second.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.files import uncollected, write_json
from loadmaster.base.units import format_bytes
from loadmaster.plans.plan import Plan
from loadmaster.writers.pictures.bars import Bars, Floats, Ints, of_messages, of_ops
from loadmaster.writers.pictures.messages import Messages

Event = dict[str, Any]
T = TypeVar("T")

PHASES = {"f": "forward", "b": "backward", "o": "optimizer"}

# Microseconds in steps of 2^-20: sums and differences of such floats are exact up to 2 h 23 min, so
# that a slice never reaches into the next one by a rounding error.
_STEPS_PER_US = float(1 << 20)


def write_trace(plan: Plan, path: str | os.PathLike[str]) -> None:
    """Writes :func:`trace_document` as JSON, gzipped if the path ends in ``.gz``.

    Raises
    ------
    InputError
        The file cannot be written.

    Examples
    --------
    >>> import loadmaster as lm, pathlib, tempfile
    >>> plan = lm.place(lm.read("example:lenet"), lm.Cluster.preset("2xV100-NVLink"), "celeritas")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "step.json.gz")
    ...     write_trace(plan, path)
    ...     path.exists()
    True
    """
    write_json(path, trace_document(plan))


def trace_document(plan: Plan) -> dict[str, Any]:
    """The step that the simulator saw, as a Chrome trace document; times in microseconds.

    * A process per device and per channel, in the cluster's order, with one thread each.
    * An ``X`` slice per op that ran (views and placeholders did not), named as the op. One that
      took no time is an ``i`` instant: a slice of no length could not be told from a child of its
      neighbour. ``cat`` is the phase, or the kind where the graph has no phases. Where the graph
      was transformed, ``origin`` names the user's op that the op serves.
    * A member of a collective, which does not compute, is an instant where the collective begins.
    * An ``X`` slice per transfer and per collective on every channel it holds. A collective's name
      says kind, bytes, devices and algorithm.
    * A flow per transfer (``s``, ``t``, ``f``): from the slice of the op that made the tensor, by
      the transfer, to the first op of the destination that reads from that op after the arrival.
      Ops that took no time, and weights and inputs, which no op made, are left out of it.
    * A flow per member of a collective: from the op that ended last of those that it reads, by the
      collective, to the first op that reads the member.
    * Where sending costs devices time, an ``X`` slice (``cat`` is ``copy``) on the sender for what
      it copies out; where collectives keep devices busy, one (``share``) for what each does of it,
      named as the collective; where launches cost a host time, a process for it, with a slice per
      launch.
    * A ``C`` counter per device: bytes in use.

    Notes
    -----
    O(V + E + T log T) for T transfers.

    Examples
    --------
    >>> import loadmaster as lm
    >>> plan = lm.place(lm.read("example:lenet"), lm.Cluster.preset("2xV100-NVLink"), "celeritas")
    >>> sorted({event["ph"] for event in trace_document(plan)["traceEvents"]})
    ['C', 'M', 'X']
    """
    with uncollected():
        events = _events(plan)
    return {
        "displayTimeUnit": "ms",
        "otherData": {
            "method": plan.method,
            "makespan": plan.makespan,
            "lower_bound": plan.lower_bound,
            "graph": plan.graph.name,
            "cluster": plan.cluster.name,
        },
        "traceEvents": events,
    }


def _events(plan: Plan) -> list[Event]:
    messages = Messages(plan)
    ops, held = _slices(of_ops(plan), 1), of_messages(messages)
    sent = _slices(held, plan.cluster.n_devices + 1)
    # The first bar of each message, on the first channel that it holds.
    first = np.searchsorted(held.item, np.arange(len(messages)))
    return [
        *_metadata(plan),
        *_op_events(plan, ops, messages),
        *_message_events(plan, sent, held.item, messages),
        *_copy_events(plan, messages),
        *_share_events(plan, messages),
        *_launch_events(plan),
        *_transfer_flows(plan, ops, sent.at(first[: messages.n_transfers])),
        *_member_flows(plan, ops, sent, first),
        *_counters(plan),
    ]


# -- columns ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Slices:
    """Begin and length in microseconds, and the process, of ops or messages."""

    begin: Floats
    length: Floats
    process: Ints

    def at(self, index: Ints | NDArray[np.bool_]) -> _Slices:
        """The slices at the indices, or where it is true."""
        return _Slices(self.begin[index], self.length[index], self.process[index])

    @property
    def middle(self) -> Floats:
        """Within the slice even if that is a single step long."""
        return np.floor((self.begin + self.length / 2) * _STEPS_PER_US) / _STEPS_PER_US


def _on_grid(microseconds: Floats) -> Floats:
    return np.rint(microseconds * _STEPS_PER_US) / _STEPS_PER_US


def _slices(bars: Bars, first: int) -> _Slices:
    """Bars as slices; ``first`` is the process of row 0. Process 0 would be the idle one."""
    begin, end = _on_grid(bars.start * 1e6), _on_grid(bars.finish * 1e6)
    return _Slices(begin, end - begin, bars.row + first)


def _pick(values: Sequence[T], index: NDArray[Any]) -> list[T]:
    return [values[i] for i in index.tolist()]


# -- events ----------------------------------------------------------------------------------


def _metadata(plan: Plan) -> list[Event]:
    cluster = plan.cluster
    names = [d.name for d in cluster.devices] + [f"channel {name}" for name in cluster.channels]
    carried = "transfers and collectives" if len(plan.schedule.collectives) else "transfers"
    threads = ["ops"] * cluster.n_devices + [carried] * len(cluster.channels)
    if cluster.dispatch is not None:
        hosts = _hosts(plan)
        names, threads = names + hosts, threads + ["launches"] * len(hosts)
    labels = [f"{d.type}, {format_bytes(d.memory)}" for d in cluster.devices]
    events = []
    for i, (name, thread) in enumerate(zip(names, threads, strict=True)):
        facts = {
            "process_name": {"name": name},
            "process_sort_index": {"sort_index": i},
            "thread_name": {"name": thread},
        }
        if i < len(labels):
            facts["process_labels"] = {"labels": labels[i]}
        events += [
            {"ph": "M", "name": fact, "pid": i + 1, "tid": i + 1, "args": args}
            for fact, args in facts.items()
        ]
    return events


def _op_events(plan: Plan, ops: _Slices, messages: Messages) -> list[Event]:
    program, op_of = plan.program, plan.problem.reduced.op_of
    graph = program.graph
    devices = [d.name for d in plan.cluster.devices]
    order = np.lexsort((ops.begin, ops.process))
    model = op_of[order]
    args = [
        {
            "module": module,
            "kind": kind,
            "output_bytes": size,
            "device": device,
            "priority": priority,
            "waited_for": waited,
        }
        for module, kind, size, device, priority, waited in zip(
            _pick(graph.modules, model),
            _pick(graph.kinds, model),
            graph.output_bytes[model].tolist(),
            _pick(devices, ops.process[order] - 1),
            plan.assignment.priority[order].tolist(),
            _waits(plan, order, messages),
            strict=True,
        )
    ]
    if not program.is_plain:
        for said, origin in zip(args, program.serves[model].tolist(), strict=True):
            said["origin"] = program.source.names[origin]
    return _drawn(_pick(graph.names, model), _categories(plan, model), ops, order, args)


def _categories(plan: Plan, model: NDArray[np.int32]) -> list[str]:
    phases, kinds = _pick(plan.program.graph.phases, model), _pick(plan.program.graph.kinds, model)
    return [PHASES.get(p) or p or k or "op" for p, k in zip(phases, kinds, strict=True)]


def _waits(plan: Plan, order: Ints, messages: Messages) -> list[str]:
    """The cause that kept each op from starting earlier, as a person would say it."""
    waited = plan.schedule.waited
    names, op_of = plan.program.graph.names, plan.problem.reduced.op_of.tolist()
    message_of = messages.of_op[plan.problem.reduced.op_of].tolist()
    said = []
    for op in order.tolist():
        word, index = waited(op)
        if word in ("op", "device", "collective") and message_of[index] >= 0:
            title = messages.title(message_of[index])
            said.append(f"channel: {title}" if word == "collective" else title)
        elif word in ("op", "device"):
            said.append(f"{word}: {names[op_of[index]]}")
        elif word == "share":
            said.append(f"share: {messages.title(message_of[index])}")
        elif word in ("transfer", "channel", "copy"):
            said.append(("" if word == "transfer" else f"{word}: ") + messages.title(index))
        else:
            said.append(word)
    return said


def _message_events(plan: Plan, held: _Slices, message: Ints, messages: Messages) -> list[Event]:
    """Messages on every channel that they hold; ``message`` is the message of each slice."""
    order = np.lexsort((held.begin, held.process))
    of = message[order]
    tensors = plan.schedule.transfers.tensor.tolist()
    kinds = ["control" if tensor < 0 else "transfer" for tensor in tensors]
    kinds += ["collective"] * len(plan.schedule.collectives)
    args = _pick(_message_args(plan, messages), of)
    return _drawn(_pick(messages.names, of), _pick(kinds, of), held, order, args)


def _copy_events(plan: Plan, messages: Messages) -> list[Event]:
    """Copies that devices make before they send, on the device that sends."""
    sent = plan.schedule.transfers
    which = np.flatnonzero(sent.copying > 0)
    order = which[np.lexsort((sent.copied[which], sent.src[which]))]
    bars = Bars(sent.copied, sent.queued, sent.src.astype(np.int64), np.arange(len(sent)))
    devices = [device.name for device in plan.cluster.devices]
    sizes = zip(sent.bytes[order].tolist(), _pick(devices, sent.dst[order]), strict=True)
    args: list[Event] = [{"bytes": size, "to": device} for size, device in sizes]
    names = _pick(messages.names, order)
    return _drawn(names, ["copy"] * len(order), _slices(bars, 1), order, args)


def _share_events(plan: Plan, messages: Messages) -> list[Event]:
    """Parts that devices do of collectives before their member has arrived."""
    shares, graph = plan.schedule.timeline.shares, plan.program.graph
    device = plan.schedule.devices[shares.op].astype(np.int64)
    order = np.lexsort((shares.start, device))
    bars = Bars(shares.start, shares.finish, device, np.arange(len(shares)))
    args: list[Event] = [{"member": graph.names[op]} for op in shares.op[order].tolist()]
    names = _pick(messages.names, messages.of_op[shares.op[order]])
    return _drawn(names, ["share"] * len(order), _slices(bars, 1), order, args)


def _hosts(plan: Plan) -> list[str]:
    """Names of the hosts that launch ops, in the order of the devices that they serve."""
    dispatch = plan.cluster.dispatch
    is_one = dispatch is None or dispatch.one_host
    return ["host"] if is_one else [f"host of {device.name}" for device in plan.cluster.devices]


def _launch_events(plan: Plan) -> list[Event]:
    """The launch of every op, on its host."""
    launched, problem = plan.schedule.timeline.launched, plan.problem
    if launched is None or problem.dispatch is None:
        return []
    op_of, cluster = problem.reduced.op_of, plan.cluster
    end = launched[op_of]
    host: Ints = np.zeros(len(op_of), dtype=np.int64)
    if len(_hosts(plan)) > 1:
        host[:] = plan.schedule.devices[op_of]
    which = np.flatnonzero(problem.dispatch > 0)
    order = which[np.lexsort((end[which], host[which]))]
    bars = Bars(end - problem.dispatch, end, host, np.arange(len(op_of)))
    names = _pick(plan.program.graph.names, op_of[order])
    first = cluster.n_devices + cluster.n_channels + 1
    args: list[Event] = [{} for _ in names]
    return _drawn(names, ["launch"] * len(names), _slices(bars, first), order, args)


def _message_args(plan: Plan, messages: Messages) -> list[Event]:
    names, together = plan.program.graph.names, plan.schedule.collectives
    args = [
        {"bytes": size, "route": place, "queued_us": wait}
        for size, place, wait in zip(
            messages.bytes.tolist(),
            messages.places,
            np.round((messages.start - messages.queued) * 1e6, 3).tolist(),
            strict=True,
        )
    ]
    for i, said in enumerate(args[messages.n_transfers :]):
        devices = [plan.cluster.devices[d].name for d in together.devices[i]]
        del said["route"]
        said |= {
            "collective": plan.program.graph.collectives[together.op[i]],
            "algorithm": together.algorithm[i],
            "devices": ", ".join(devices),
            "members": ", ".join(names[op] for op in together.members[i]),
            "arrived_last": names[together.op[i]],
        }
    return args


def _drawn(
    names: list[str], categories: list[str], slices: _Slices, order: Ints, args: list[Event]
) -> list[Event]:
    """Slices, and instants for those of no length; ``names`` and the like are in ``order``."""
    begin, length = slices.begin[order].tolist(), slices.length[order].tolist()
    process = slices.process[order].tolist()
    return [
        {"ph": "X", "name": n, "cat": c, "pid": p, "tid": p, "ts": t, "dur": d, "args": a}
        if d > 0
        else {"ph": "i", "name": n, "cat": c, "pid": p, "tid": p, "ts": t, "s": "t", "args": a}
        for n, c, p, t, d, a in zip(names, categories, process, begin, length, args, strict=True)
    ]


def _transfer_flows(plan: Plan, ops: _Slices, sent: _Slices) -> list[Event]:
    maker, reader = _makers(plan, ops, sent), _readers(plan, ops, sent)
    return _flow_events("transfer", np.arange(len(maker)), ops, sent, (maker, reader))


def _member_flows(plan: Plan, ops: _Slices, sent: _Slices, first: Ints) -> list[Event]:
    """``first`` is the first slice of each message."""
    transfers, together = len(plan.schedule.transfers), plan.schedule.collectives
    held = [i for i, channels in enumerate(together.channels) if channels]
    of = np.repeat(held, [len(together.members[i]) for i in held]).astype(np.int64)
    if not len(of):
        return []
    members = np.concatenate([together.members[i] for i in held])
    member = plan.problem.reduced.map[members].astype(np.int64)
    src, dst, _, _ = plan.problem.reduced.graph.flows()
    end = ops.begin + ops.length
    # Of the ops around each member that took time: the last before it, and the first after it.
    maker = _best_neighbour(member, dst, src, end, ops)
    reader = _best_neighbour(member, src, dst, -ops.begin, ops)
    within = sent.at(first[transfers + of])
    # A measured op may have begun before what it reads was there.
    maker = np.where(end[maker] <= within.begin, maker, -1)
    reader = np.where(ops.begin[reader] >= within.begin + within.length, reader, -1)
    number = transfers + np.arange(len(of))
    return _flow_events("collective", number, ops, within, (maker, reader))


def _best_neighbour(
    member: Ints, at: NDArray[np.int32], other: NDArray[np.int32], key: Floats, ops: _Slices
) -> Ints:
    """For each member, the op at the other end of its edges that takes time and has the largest
    key; -1: none.
    """
    timed = ops.length[other] > 0
    at, other = at[timed], other[timed]
    best = np.full(len(ops.begin), -1, dtype=np.int64)
    order = np.argsort(key[other], kind="stable")
    best[at[order]] = other[order]
    return best[member]


def _flow_events(
    name: str, number: Ints, ops: _Slices, sent: _Slices, ends: tuple[Ints, Ints]
) -> list[Event]:
    """Flows from the first op of ``ends`` by what was sent to the second; -1: no op there."""
    maker, reader = ends
    # An arrow needs two ends besides the message's own slice, or that slice for one of them.
    real = (sent.length > 0) & ((maker >= 0) | (reader >= 0))
    is_sent, read = real & (maker >= 0), real & (reader >= 0)
    first, last = real & ~is_sent, real & ~read
    return [
        *_flow("s", name, number[is_sent], ops.at(maker[is_sent])),
        *_flow("s", name, number[first], sent.at(first)),
        *_flow("t", name, number[is_sent & read], sent.at(is_sent & read)),
        *_flow("f", name, number[read], ops.at(reader[read])),
        *_flow("f", name, number[last], sent.at(last)),
    ]


def _flow(phase: str, name: str, number: Ints, ends: _Slices) -> Iterable[Event]:
    # Without "bp" a flow would end at the next slice instead of the one that its end lies in.
    head = {"ph": phase, "name": name, "cat": "flow"} | ({"bp": "e"} if phase == "f" else {})
    rows = zip(number.tolist(), ends.process.tolist(), ends.middle.tolist(), strict=True)
    return ({**head, "id": i, "pid": p, "tid": p, "ts": t} for i, p, t in rows)


def _makers(plan: Plan, ops: _Slices, sent: _Slices) -> Ints:
    """The reduced op whose slice each transfer comes from; -1: none."""
    transfers, reduced = plan.schedule.transfers, plan.problem.reduced
    maker = reduced.map[transfers.op].astype(np.int64)
    is_op = ~plan.schedule.sent_from_home & (ops.length[maker] > 0)
    is_op &= ops.begin[maker] + ops.length[maker] <= sent.begin
    return np.where(is_op, maker, -1)


def _readers(plan: Plan, ops: _Slices, sent: _Slices) -> Ints:
    """The first reduced op of the destination that reads what each transfer brings; -1: none."""
    transfers, reduced = plan.schedule.transfers, plan.problem.reduced
    src, dst, tensors, _ = reduced.graph.flows()
    home = plan.schedule.sent_from_home
    control = transfers.tensor < 0
    source = reduced.map[transfers.op].astype(np.int64)
    reader = np.full(len(source), -1, dtype=np.int64)
    for kind, edges in ((~home & ~control, tensors > 0), (~home & control, tensors >= 0)):
        pairs = src[edges].astype(np.int64), dst[edges].astype(np.int64)
        reader[kind] = _first_after(plan, ops, sent, pairs, source, np.flatnonzero(kind))
    pairs = _pulls(plan)
    tensor = transfers.tensor.astype(np.int64)
    reader[home] = _first_after(plan, ops, sent, pairs, tensor, np.flatnonzero(home))
    return reader


def _pulls(plan: Plan) -> tuple[Ints, Ints]:
    """Tensors of the graph that runs and the reduced ops that read them, not through views."""
    graph, reduced = plan.program.graph, plan.problem.reduced
    direct = reduced.runs[graph.dst]
    tensors = graph.src if graph.tensor is None else graph.tensor
    return tensors[direct], reduced.map[graph.dst[direct]].astype(np.int64)


def _first_after(
    plan: Plan, ops: _Slices, sent: _Slices, pairs: tuple[Ints, Ints], key: Ints, which: Ints
) -> Ints:
    """Per transfer of ``which``: the first op that is paired with its key, runs on its destination
    and starts when it has arrived; -1: none.
    """
    keys, readers = pairs
    timed = ops.length[readers] > 0
    keys, readers = keys[timed], readers[timed]
    n = plan.cluster.n_devices
    arrived = (sent.begin + sent.length)[which]
    instants, rank = np.unique(np.concatenate([ops.begin[readers], arrived]), return_inverse=True)
    step = len(instants) + 1
    place = (keys * n + ops.process[readers] - 1) * step + rank[: len(readers)]
    order = np.argsort(place, kind="stable")
    place = np.append(place[order], np.iinfo(np.int64).max)
    group = key[which] * n + plan.schedule.transfers.dst[which]
    position = np.searchsorted(place, group * step + rank[len(readers) :])
    candidate = np.append(readers[order], -1)[position]
    return np.where(place[position] // step == group, candidate, -1)


def _counters(plan: Plan) -> list[Event]:
    """Bytes in use per device, from 0 to the end of the step."""
    events: list[Event] = []
    for device in range(plan.cluster.n_devices):
        times, used = plan.memory.profile(device)
        if not len(times) or times[0] > 0:
            times, used = np.append(0.0, times), np.append(np.uint64(0), used)
        begin = _on_grid(np.append(times, plan.makespan) * 1e6)
        used = np.append(used, used[-1])
        # Values that lasted some time, and the peak even if it did not.
        kept = np.append(np.diff(begin) > 0, True) | (used == used.max())
        p = device + 1
        events += [
            {"ph": "C", "name": "memory", "pid": p, "tid": p, "ts": t, "args": {"bytes": b}}
            for t, b in zip(begin[kept].tolist(), used[kept].tolist(), strict=True)
        ]
    return events
