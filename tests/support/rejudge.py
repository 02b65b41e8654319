"""A step judged again, from the user's graph alone: what must have run before what, what was sent,
what each device held, and which constraints hold. Plain Python, for graphs of a few ops.

Times are whole milliseconds, every op that runs takes at least one, and an op has one tensor, whose
id is the number of the op. Then memory in use is a sum over half-open intervals of time.
"""

from __future__ import annotations

import fnmatch
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, product

from strategies import in_ms

import loadmaster as lm
from loadmaster.model.graph import PLACEHOLDERS


class WrongError(AssertionError):
    """What Loadmaster said is not so."""


def claim(holds: bool, what: str, *facts: object) -> None:
    """Raises where something does not hold."""
    if not holds:
        raise WrongError(" ".join(map(str, (what, *facts))))


@dataclass(frozen=True)
class Value:
    """Data that is sent as a whole: an op's tensor, or the part of it that a view shows."""

    key: int
    source: int
    bytes: int
    #: The op that allocated the memory in which it lies; None: a placeholder's.
    owner: int | None


class Meaning:
    """What a user's graph means: which ops run, what they read and wait for, and who stays
    together.
    """

    def __init__(self, graph: lm.OpGraph) -> None:
        self.graph, n = graph, graph.n_ops
        self.view = [bool(v) for v in graph.view]
        self.placeholder = [kind in PLACEHOLDERS for kind in graph.kinds]
        self.runs = [not v and not p for v, p in zip(self.view, self.placeholder, strict=True)]
        self.alias = graph.alias_of.tolist()
        self.out = [0] * n
        self.inputs: list[list[tuple[int, bool]]] = [[] for _ in range(n)]
        columns = (graph.src, graph.dst, graph.tensor, graph.bytes)
        for s, d, t, size in zip(*(column.tolist() for column in columns), strict=True):
            self.inputs[d].append((s, t >= 0))
            if t >= 0:
                self.out[s] = size
        self.values: list[Value] = []
        #: Ops that whoever reads a view waits for besides the op that made its data.
        self.pending: list[set[int]] = [set() for _ in range(n)]
        #: Values read and ops waited for, by each op that runs.
        self.reads: list[list[Value]] = [[] for _ in range(n)]
        self.waits: list[set[int]] = [set() for _ in range(n)]
        for u in range(n):
            self._walk(u)
        self.used = {v.source for reads in self.reads for v in reads}

    def _walk(self, u: int) -> None:
        if self.view[u]:
            base = next(s for s, is_data in self.inputs[u] if is_data)
            shown = self.values[base]
            own = Value(u, shown.source, self.out[u], shown.owner)
            self.values.append(shown if self.out[u] >= shown.bytes else own)
        elif self.placeholder[u] or self.alias[u] >= 0:
            self.values.append(Value(u, u, self.out[u], self._owner(self.alias[u])))
        else:
            self.values.append(Value(u, u, self.out[u], u))
        for s, is_data in self.inputs[u]:
            real = self.real(s)
            if self.view[u]:
                if not is_data and not self.placeholder[real]:
                    self.pending[u].add(real)
                self.pending[u] |= self.pending[s]
            elif self.runs[u]:
                self.waits[u] |= self.pending[s]
                if is_data:
                    self.reads[u] += [self.values[s]] * (self.values[s] not in self.reads[u])
                elif not self.placeholder[real]:
                    self.waits[u].add(real)

    def _owner(self, alias: int) -> int | None:
        return None if alias < 0 else self.values[alias].owner

    def real(self, u: int) -> int:
        """The op or placeholder whose data an op shows; itself, if it is no view."""
        return self.values[u].source if self.view[u] else u

    def sets(self, modules: Sequence[Sequence[int]] = ()) -> list[int]:
        """A number per op. Ops of one number share a device."""
        root = list(range(self.graph.n_ops))

        def join(a: int, b: int) -> None:
            old, new = root[a], root[b]
            root[:] = [new if r == old else r for r in root]

        first: dict[str, int] = {}
        for u, label in enumerate(self.graph.colocation):
            join(u, self.real(u))
            if label:
                join(u, first.setdefault(label, u))
            if self.alias[u] >= 0:
                join(u, self.real(self.alias[u]))
        for inside in modules:
            for u in inside:
                join(u, inside[0])
        return root

    @cached_property
    def flows(self) -> list[tuple[int, int]]:
        """Pairs of ops that run, of which the second waits for the first."""
        return [
            (s, u)
            for u in range(self.graph.n_ops)
            for s in {v.source for v in self.reads[u] if self.runs[v.source]} | self.waits[u]
        ]


@dataclass(frozen=True)
class Asked:
    """Constraints, and what they mean for the devices of a graph's ops."""

    meaning: Meaning
    cluster: lm.Cluster
    rules: lm.Constraints

    @cached_property
    def modules(self) -> list[list[int]]:
        """The ops and placeholders of each module that must stay whole."""
        graph, view = self.meaning.graph, self.meaning.view
        return [
            [u for u, module in enumerate(graph.modules) if module == pattern and not view[u]]
            for pattern in self.rules.no_split
        ]

    @cached_property
    def choices(self) -> list[set[int]]:
        """The devices that pins, kinds and types leave each op and placeholder."""
        graph, runs, view = self.meaning.graph, self.meaning.runs, self.meaning.view
        names = [device.name for device in self.cluster.devices]
        left = [set(range(len(names))) for _ in runs]
        for u in [u for u, shows in enumerate(view) if not shows]:
            types = graph.device_types[u].split(",") if graph.device_types[u] else None
            for d, device in enumerate(self.cluster.devices):
                only = self.rules.kinds.get(device.name) if runs[u] else None
                if (types and device.type not in types) or (only and graph.kinds[u] not in only):
                    left[u].discard(d)
        for pattern, to in self.rules.pin.items():
            hit = [
                u
                for u, (name, module) in enumerate(zip(graph.names, graph.modules, strict=True))
                if fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(module, pattern)
            ]
            for u in [u for u in hit if not view[u]] or [self.meaning.real(u) for u in hit]:
                left[u] &= {names.index(name) for name in to}
        return left

    @property
    def home(self) -> list[int]:
        """The op that runs with which each op sits; :class:`Step` checks what that says."""
        graph = self.meaning.graph
        return [int(graph.reduced.op_of[at]) for at in graph.reduced.map]

    @cached_property
    def room(self) -> list[int]:
        """Bytes per device that a plan may use."""
        kept = self.rules.reserve
        return [d.memory - kept.get(d.name, kept.get("*", 0)) for d in self.cluster.devices]

    def broken(self, devices: Sequence[int]) -> str:
        """What a placement of the user's ops breaks; "" if nothing."""
        meaning, phases = self.meaning, self.meaning.graph.phases
        where: dict[int, int] = {}
        for u, root in enumerate(meaning.sets(self.modules)):
            if where.setdefault(root, devices[u]) != devices[u]:
                return f"op {u} is not where its set is"
        for u, left in enumerate(self.choices):
            if devices[u] not in left:
                return f"op {u} is on {devices[u]}, not on one of {left}"
        if self.rules.contiguous:
            for s, u in meaning.flows:
                if phases[u] in ("", "f") and devices[s] > devices[u]:
                    return f"op {s} feeds the earlier stage of {u}"
                if phases[s] == phases[u] == "b" and devices[s] < devices[u]:
                    return f"backward op {s} feeds the later stage of {u}"
        return ""

    @cached_property
    def placements(self) -> list[list[int]]:
        """Every placement that obeys the constraints beside memory: a device per op."""
        sets, runs = self.meaning.sets(self.modules), self.meaning.runs
        left: dict[int, set[int]] = {}
        for u, choice in enumerate(self.choices):
            if runs[u]:
                left[sets[u]] = left.get(sets[u], choice) & choice
        found = []
        for chosen in product(*map(sorted, left.values())):
            at = dict(zip(left, chosen, strict=True))
            devices = [at[sets[home]] for home in self.home]
            if not self.broken(devices):
                found.append(devices)
        return found


@dataclass(frozen=True)
class Step:
    """A step of a placed graph, as it was seen, judged again."""

    meaning: Meaning
    cluster: lm.Cluster
    seen: lm.Simulation

    def check(self) -> None:
        """Raises where the step did not run as it must, or where other peaks were said."""
        self._ops()
        self._transfers()
        self._channels()
        self._launches()
        claim(self.peaks == self.seen.memory.peak.tolist(), "peaks are", self.peaks, "not",
              self.seen.memory.peak.tolist())  # fmt: skip
        ends = [self.finish[u] for u, runs in enumerate(self.meaning.runs) if runs]
        claim([max(ends)] == in_ms([self.seen.makespan]), "the step ends at", max(ends))

    @cached_property
    def devices(self) -> list[int]:
        """Device per op of the user's graph."""
        return self.seen.devices.tolist()

    @cached_property
    def start(self) -> list[int]:
        """Milliseconds, per op."""
        return in_ms(self.seen.start)

    @cached_property
    def finish(self) -> list[int]:
        """Milliseconds, per op."""
        return in_ms(self.seen.finish)

    @cached_property
    def sent(self) -> dict[tuple[bool, int, int], tuple[int, int, int]]:
        """Source device, start and finish of each transfer, by whether it carries data, by the
        value's key or the op, and by the device that it goes to.
        """
        columns = self.seen.transfers
        found = {}
        rows = zip(self.keys, columns.src.tolist(), in_ms(columns.start), in_ms(columns.finish),
                   strict=True)  # fmt: skip
        for key, *row in rows:
            claim(key not in found, "sent twice:", key)
            found[key] = tuple(row)
        return found

    @cached_property
    def keys(self) -> list[tuple[bool, int, int]]:
        """What each transfer is of: whether it carries data, of what, and to which device."""
        columns = self.seen.transfers
        rows = zip(*(c.tolist() for c in (columns.tensor, columns.op, columns.dst)), strict=True)
        return [(tensor >= 0, tensor if tensor >= 0 else op, dst) for tensor, op, dst in rows]

    @cached_property
    def copied(self) -> dict[tuple[bool, int, int], tuple[int, int]]:
        """When its sender began to copy each transfer out, and was done."""
        columns = self.seen.transfers
        spans = zip(in_ms(columns.copied), in_ms(columns.queued), strict=True)
        return dict(zip(self.keys, spans, strict=True))

    def _ops(self) -> None:
        """Each op takes its time, no device runs two at once, placeholders are at home."""
        meaning, graph, types = self.meaning, self.meaning.graph, self.cluster.types
        intervals = defaultdict(list)
        for u in range(graph.n_ops):
            d = self.devices[u]
            if meaning.runs[u]:
                kind = types[self.cluster.device_types[d]].name
                time = in_ms(graph.time.get(kind, graph.time.get("*")))[u]
                claim(self.finish[u] - self.start[u] == time, "op", u, "does not take", time)
                intervals[d].append((self.start[u], self.finish[u]))
            elif meaning.view[u]:
                claim(d == self.devices[meaning.real(u)], "view", u, "is not with its data")
            else:
                sets = meaning.sets()
                mates = [m for m in range(len(sets)) if sets[m] == sets[u]]
                read = {
                    self.devices[r]
                    for r, reads in enumerate(meaning.reads)
                    if any(v.source in mates for v in reads)
                }
                ran = {self.devices[m] for m in mates if meaning.runs[m]}
                claim(d in (ran or read or {d}), "placeholder", u, "is with none of its readers")
        for key, (src, *_) in self.sent.items():
            copied, queued = self.copied[key]
            intervals[src] += [(copied, queued)] if copied < queued else []
        for d, spans in intervals.items():
            disjoint(spans, f"two ops at once on device {d}")

    def _launches(self) -> None:
        """Hosts launch one op at a time, makers first; ops start after, in that order."""
        meaning, host = self.meaning, self.cluster.dispatch
        claim((self.seen.timeline.launched is None) == (host is None), "launches, or none")
        if host is None:
            return
        at, takes = in_ms(self.seen.timeline.launched), in_ms([host.launch])[0]
        ran = [u for u, runs in enumerate(meaning.runs) if runs]
        for u, v in product(ran, ran):
            same_device = self.devices[u] == self.devices[v]
            if u == v or not (host.one_host or same_device):
                continue
            claim(abs(at[u] - at[v]) >= takes, u, "and", v, "are launched at once")
            if same_device and at[u] < at[v]:
                claim(self.finish[u] <= self.start[v], v, "overtakes", u)
            claim((u, v) not in meaning.flows or at[u] < at[v], v, "is launched before", u)
        for u in ran:
            claim(takes <= at[u] <= self.start[u], "op", u, "starts before its launch")
            launched = [v for v in ran if host.one_host or self.devices[u] == self.devices[v]]
            claim(at[u] <= takes * len(launched), "the host of", u, "waits")

    def _transfers(self) -> None:
        """Whatever an op needs was there before it, and nothing else was sent."""
        meaning, needed = self.meaning, set()
        for u in range(meaning.graph.n_ops):
            d = self.devices[u]
            wants = [(True, v.key, v.source, v.bytes) for v in meaning.reads[u]]
            wants += [(False, s, s, 0) for s in meaning.waits[u]]
            for is_data, key, source, size in wants:
                made = self.finish[source] if meaning.runs[source] else 0
                if self.devices[source] == d:
                    claim(made <= self.start[u], "op", u, "starts before", source, "is done")
                    continue
                needed.add((is_data, key, d))
                claim((is_data, key, d) in self.sent, "never sent:", (is_data, key, d))
                src, start, finish = self.sent[is_data, key, d]
                route = self.cluster.route(src, d)
                takes = in_ms([route.latency + size / route.bandwidth])[0]
                claim(src == self.devices[source], key, "is sent from", src)
                claim(made <= start and finish <= self.start[u], "late:", (is_data, key, d))
                copied, queued = self.copied[is_data, key, d]
                claim(made <= copied and queued <= start, "not copied in time:", (is_data, key, d))
                claim(queued - copied == self._cost(src, size), "copied in", queued - copied)
                claim(finish - start == takes, "transfer", (is_data, key, d), "wants", takes)
        claim(needed == set(self.sent), "sent though nobody needs it:", set(self.sent) - needed)

    def _cost(self, src: int, size: int) -> int:
        """Milliseconds for which sending some bytes keeps a device."""
        cost = self.cluster.types[self.cluster.device_types[src]].send_cost
        return in_ms([cost.latency + size / cost.bandwidth])[0] if cost else 0

    def _channels(self) -> None:
        held = defaultdict(list)
        for (_, _, dst), (src, start, finish) in self.sent.items():
            for channel in self.cluster.route(src, dst).channels:
                held[channel].append((start, finish))
        for channel, spans in held.items():
            disjoint(spans, f"two transfers at once on {channel}")

    @cached_property
    def peaks(self) -> list[int]:
        """Most bytes that each device holds at any time."""
        end = max(self.finish) + 1
        kept = [0] * len(self.cluster.devices)
        for u, size in enumerate(self.meaning.graph.resident.tolist()):
            kept[self.devices[u]] += size
        held: list[list[tuple[int, int, int]]] = [[] for _ in kept]
        for u, runs in enumerate(self.meaning.runs):
            if runs:
                at = held[self.devices[u]]
                span = self.start[u], self.finish[u]
                at.append((*span, int(self.meaning.graph.workspace[u])))
                at += [(span[0], *rest) for rest in self._allocated(u, end)]
        for (is_data, key, dst), (_, start, _) in self.sent.items():
            if is_data:
                value = next(v for reads in self.meaning.reads for v in reads if v.key == key)
                held[dst].append((start, max(self._read_by(value, dst)), value.bytes))
        return [
            base
            + max((sum(b for s, e, b in spans if s <= now < e) for now, *_ in spans), default=0)
            for base, spans in zip(kept, held, strict=True)
        ]

    def _allocated(self, u: int, end: int) -> list[tuple[int, int]]:
        """Until when what an op allocates lives, and its bytes: its tensor, and the rest."""
        meaning, here = self.meaning, self.devices[u]
        total, is_read = int(meaning.graph.output_bytes[u]), u in meaning.used
        if meaning.alias[u] >= 0:
            return [(self.finish[u] if is_read else end, total)]
        tensor = meaning.out[u]
        rest = (self.finish[u] if is_read else end, max(total - tensor, 0))
        lying = {v for v in meaning.values if v.owner == u}
        until = [self.finish[u]]
        for value in lying:
            until += self._read_by(value, here)
            until += [f for (is_data, key, _), (*_, f) in self.sent.items()
                      if is_data and key == value.key]  # fmt: skip
        sources = {v.source for v in lying}
        is_output = any(s not in meaning.used for s in sources)
        return [(end if is_output else max(until), tensor), rest]

    def _read_by(self, value: Value, device: int) -> list[int]:
        """When each op on a device that reads a value is done."""
        return [self.finish[r] for r, reads in enumerate(self.meaning.reads)
                if value in reads and self.devices[r] == device]  # fmt: skip


def disjoint(spans: list[tuple[int, int]], what: str) -> None:
    """Raises where two spans of time overlap."""
    ordered = sorted(spans)
    for (_, before), (after, _) in pairwise(ordered):
        claim(before <= after, what, "at", after)
