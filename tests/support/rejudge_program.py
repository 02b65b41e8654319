"""A step of a program judged again: its devices, transfers, collectives and memory. Plain Python,
for programs of some hundred ops without views.

The simulator counts whole ticks, so that what happens at one instant has the same time to the last
bit: times are compared as they are. How long something takes is compared to within a billionth of
the step. Memory is a sum over half-open spans of time; where spans have no length, peaks lie
between the sums without and with them.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import numpy as np
from rejudge import claim, disjoint

import loadmaster as lm
from loadmaster.model.graph import PLACEHOLDERS
from loadmaster.model.program import Program


@dataclass
class Tensor:
    """What edges of one tensor say: the op that makes it, its size, the ops that read it."""

    source: int
    bytes: int
    readers: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class ProgramStep:
    """A step of a placed program, as it was seen, judged again.

    ``time`` are the seconds of each op on each device type.
    """

    program: Program
    cluster: lm.Cluster
    time: list[list[float]]
    seen: lm.Simulation

    def check(self) -> None:
        """Raises where the step did not run as it must, or where other peaks were said."""
        self._ops()
        self._collectives()
        self._transfers()
        self._channels()
        self._launches()
        for d, (least, most) in enumerate(self.peaks):
            peak = int(self.seen.memory.peak[d])
            claim(least <= peak <= most, "the peak of", d, "is", least, most, "not", peak)
        ends = [self.finish[u] for u in self.running]
        claim(max(ends) == self.seen.makespan, "the step ends at", max(ends))

    # -- what there is ---------------------------------------------------------------------------

    @cached_property
    def start(self) -> list[float]:
        """Seconds, per op."""
        return self.seen.start.tolist()

    @cached_property
    def finish(self) -> list[float]:
        """Seconds, per op."""
        return self.seen.finish.tolist()

    @cached_property
    def devices(self) -> list[int]:
        return self.seen.devices.tolist()

    @cached_property
    def running(self) -> list[int]:
        """The ops that are no placeholders."""
        kinds = self.program.graph.kinds
        return [u for u, kind in enumerate(kinds) if kind not in PLACEHOLDERS]

    @cached_property
    def members(self) -> dict[str, list[int]]:
        """The members of each collective, by its label."""
        found = defaultdict(list)
        for u, label in enumerate(self.program.graph.collectives):
            if label:
                found[label].append(u)
        return dict(found)

    @cached_property
    def tensors(self) -> dict[int, Tensor]:
        """By id."""
        graph = self.program.graph
        found: dict[int, Tensor] = {}
        columns = (graph.src, graph.dst, graph.tensor, graph.bytes)
        for s, d, t, size in zip(*(column.tolist() for column in columns), strict=True):
            if t >= 0:
                found.setdefault(t, Tensor(s, size)).readers.append(d)
        return found

    @cached_property
    def waits(self) -> list[tuple[int, int]]:
        """Pairs of ops that run, of which the second waits for the first and gets no data."""
        graph = self.program.graph
        pairs = zip(graph.src.tolist(), graph.dst.tolist(), graph.tensor.tolist(), strict=True)
        return [(s, d) for s, d, t in pairs if t < 0 and s in set(self.running)]

    @cached_property
    def sent(self) -> dict[tuple[int, int], tuple[int, float, float]]:
        """Source device, start and finish of each transfer of data, by tensor and device."""
        return {(tensor, dst): rest for tensor, _, dst, *rest in self._rows if tensor >= 0}  # type: ignore[misc]

    @cached_property
    def told(self) -> dict[tuple[int, int], tuple[int, float, float]]:
        """The same of each message without data, by op and device."""
        return {(op, dst): rest for t, op, dst, *rest in self._rows if t < 0}  # type: ignore[misc]

    @cached_property
    def _rows(self) -> list[tuple[int, int, int, int, float, float]]:
        sent = self.seen.transfers
        columns = (sent.tensor, sent.op, sent.dst, sent.src, sent.start, sent.finish)
        rows = list(zip(*(column.tolist() for column in columns), strict=True))
        keys = [row[:3] if row[0] < 0 else (row[0], row[2]) for row in rows]
        claim(len(set(keys)) == len(keys), "something is sent twice to a device")
        return rows

    def _alone(self, u: int) -> float:
        """Seconds of an op on its device."""
        return self.time[u][self.cluster.device_types[self.devices[u]]]

    def takes(self, seconds: float, wanted: float, *what: object) -> None:
        """Claims that something takes as long as it must."""
        near = 1e-9 * self.seen.makespan
        claim(abs(seconds - wanted) <= near, *what, "takes", seconds, "not", wanted)

    # -- what must hold --------------------------------------------------------------------------

    def _ops(self) -> None:
        """Each op takes its time, and no device runs two at once."""
        spans = defaultdict(list)
        together = {u for members in self.members.values() for u in members}
        for u in set(self.running) - together:
            d = self.devices[u]
            self.takes(self.finish[u] - self.start[u], self._alone(u), "op", u)
            spans[d].append((self.start[u], self.finish[u]))
        for op, start, finish in self.shares:
            spans[self.devices[op]].append((start, finish))
        for d, of_device in spans.items():
            disjoint(of_device, f"two ops at once on device {d}")

    def _collectives(self) -> None:
        """Members run together, as long as the cluster says for their devices and bytes."""
        seen = self.seen.collectives
        labels = [self.program.graph.collectives[members[0]] for members in seen.members]
        odd = sorted(set(labels) ^ set(self.members))
        claim(not odd and len(labels) == len(self.members), "other collectives ran:", odd)
        for i, label in enumerate(labels):
            members = self.members[label]
            kind, where = label.split("/")[0], sorted({self.devices[u] for u in members})
            claim(kind == seen.kind[i] and where == list(seen.devices[i]), label, "of", where)
            for u in members:
                same = self.start[u] == seen.start[i] and self.finish[u] == seen.finish[i]
                claim(same, "member", u, "of", label, "runs apart")
            way = self.cluster.collective(kind, where, int(seen.bytes[i]))
            busy = self._busy(kind, where, int(seen.bytes[i])) if way.algorithm == "table" else 0.0
            shares = [(op, start, finish) for op, start, finish in self.shares if op in members]
            claim(len(shares) == len(members) * (busy > 0), label, "has shares of", shares)
            for op, start, finish in shares:
                self.takes(finish - start, busy, "the share of", op)
                claim(finish <= seen.queued[i], "the share of", op, "is late")
            links = way.seconds if len(where) > 1 else 0.0
            wanted = links - busy + max(map(self._alone, members))
            self.takes(float(seen.finish[i] - seen.start[i]), wanted, label)

    def _busy(self, kind: str, where: list[int], size: int) -> float:
        """For how long a collective keeps each of its devices busy, by the cluster's tables."""
        for one in self.cluster.collectives:
            if one.kind == kind and one.devices == len(where) > 1 and one.busy:
                return float(np.interp(size, one.bytes, one.busy))
        return 0.0

    @cached_property
    def shares(self) -> list[tuple[int, float, float]]:
        """Op, start and finish of what devices do of collectives before they have arrived."""
        seen = self.seen.timeline.shares
        return list(zip(*(c.tolist() for c in (seen.op, seen.start, seen.finish)), strict=True))

    def _launches(self) -> None:
        """Hosts launch one op at a time, makers first; ops start after, in that order."""
        host = self.cluster.dispatch
        claim((self.seen.timeline.launched is None) == (host is None), "launches, or none")
        if host is None:
            return
        at = self.seen.timeline.launched.tolist()
        hosts = defaultdict(list)
        for u in self.running:
            claim(at[u] <= self.start[u], "op", u, "starts before its launch")
            hosts[0 if host.one_host else self.devices[u]].append((at[u], u))
        for launched in hosts.values():
            # An op without work, such as one whose device has no part of it, is not launched.
            costing = sorted((when, u) for when, u in launched if self._alone(u) > 0)
            for i, (when, u) in enumerate(costing):
                self.takes(when, host.launch * (i + 1), "the launch of", u, "and those before it")
        self._launched_in_order(at, {u: h for h, ops in hosts.items() for _, u in ops})

    def _launched_in_order(self, at: list[float], host: dict[int, int]) -> None:
        """An op is launched after what it reads, and runs after what its device launched before."""
        members = {u: of for of in self.members.values() for u in of}
        for tensor in self.tensors.values():
            makers = members.get(tensor.source, [tensor.source])
            for reader in tensor.readers:
                for u in [u for u in makers if u in host and host[u] == host[reader]]:
                    claim(at[u] <= at[reader], reader, "is launched before", u)
        alone = sorted((at[u], u) for u in self.running if u not in members and self._alone(u) > 0)
        for d in range(len(self.cluster.devices)):
            for (_, before), (_, after) in pairwise(w for w in alone if self.devices[w[1]] == d):
                claim(self.finish[before] <= self.start[after], after, "overtakes", before)

    def _transfers(self) -> None:
        """Whatever an op needs was there before it, and nothing else was sent."""
        needed = set()
        for t, tensor in self.tensors.items():
            for reader in tensor.readers:
                if self._arrives(tensor.source, reader, self.sent, t, tensor.bytes):
                    needed.add((t, self.devices[reader]))
        claim(needed == set(self.sent), "sent though nobody needs it:", set(self.sent) - needed)
        awaited = set()
        for before, after in self.waits:
            if self._arrives(before, after, self.told, before, 0):
                awaited.add((before, self.devices[after]))
        claim(awaited == set(self.told), "told though nobody waits:", set(self.told) - awaited)

    def _arrives(self, source: int, reader: int, sent: dict, key: int, size: int) -> bool:
        """Claims that an op starts after what it needs is there; whether that was sent."""
        at, made = self.devices[reader], self.finish[source]
        if self.program.graph.kinds[source] in PLACEHOLDERS:
            made = 0.0
        if self.devices[source] == at:
            claim(made <= self.start[reader], "op", reader, "starts before", source, "is done")
            return False
        claim((key, at) in sent, "never sent:", key, "to", at)
        src, start, finish = sent[key, at]
        claim(src == self.devices[source], key, "is sent from", src)
        claim(made <= start and finish <= self.start[reader], key, "is late for", reader)
        route = self.cluster.route(src, at)
        self.takes(finish - start, route.latency + size / route.bandwidth, "transfer", key)
        return True

    def _channels(self) -> None:
        """No channel carries two transfers or collectives at once."""
        held = defaultdict(list)
        for _, _, dst, src, start, finish in self._rows:
            for channel in self.cluster.route(src, dst).channels:
                held[channel].append((start, finish))
        seen = self.seen.collectives
        for i, members in enumerate(seen.members):
            where = sorted({self.devices[u] for u in members})
            if len(where) > 1:
                way = self.cluster.collective(seen.kind[i], where, int(seen.bytes[i]))
                for channel in way.channels:
                    held[channel].append((float(seen.start[i]), float(seen.finish[i])))
        for channel, spans in held.items():
            disjoint(spans, f"two transfers at once on {channel}")

    # -- memory ----------------------------------------------------------------------------------

    @cached_property
    def peaks(self) -> list[tuple[int, int]]:
        """The most bytes that each device holds at any time: at least, and at most."""
        graph, end = self.program.graph, self.seen.makespan * 2 + 1
        kept = [0] * len(self.cluster.devices)
        for u, size in enumerate(graph.resident.tolist()):
            kept[self.devices[u]] += size
        held: list[list[tuple[float, float, int]]] = [[] for _ in kept]
        for u in self.running:
            spans = held[self.devices[u]]
            spans.append((self.start[u], self.finish[u], int(graph.workspace[u])))
            spans += [(self.start[u], *rest) for rest in self._allocated(u, end)]
        for (t, dst), (_, start, _) in self.sent.items():
            tensor = self.tensors[t]
            held[dst].append((start, max(self._read(tensor, dst)), tensor.bytes))
        return [(base + _most(spans, 0), base + _most(spans, 1))
                for base, spans in zip(kept, held, strict=True)]  # fmt: skip

    def _allocated(self, u: int, end: float) -> list[tuple[float, int]]:
        """Until when what an op allocates lives, and its bytes: its tensors, and the rest."""
        graph, total = self.program.graph, int(self.program.graph.output_bytes[u])
        own = [t for t, tensor in self.tensors.items() if tensor.source == u]
        last = self.finish[u] if own else end
        if int(graph.alias_of[u]) >= 0:
            return [(last, total)]
        lives = [(self._until(t, end), self.tensors[t].bytes) for t in own]
        return [*lives, (last, max(total - sum(size for _, size in lives), 0))]

    def _until(self, t: int, end: float) -> float:
        """When the memory of a tensor is free: it is read, and so is what was written into it."""
        tensor = self.tensors[t]
        here = self.devices[tensor.source]
        until = [self.finish[tensor.source], *self._read(tensor, here)]
        until += [finish for (key, _), (*_, finish) in self.sent.items() if key == t]
        for reader in tensor.readers:
            if self._owner(reader) == self._owner(tensor.source):
                later = [s for s, other in self.tensors.items() if other.source == reader]
                until += [self._until(s, end) for s in later] or [end]
        return max(until)

    def _owner(self, u: int) -> int:
        """The op whose memory an op writes into; itself, if it allocates its own."""
        alias = int(self.program.graph.alias_of[u])
        return u if alias < 0 else self._owner(alias)

    def _read(self, tensor: Tensor, device: int) -> list[float]:
        """When each op on a device that reads a tensor is done."""
        return [self.finish[r] for r in tensor.readers if self.devices[r] == device]


def _most(spans: list[tuple[float, float, int]], instants: bool) -> int:
    """The largest sum over spans at any time, with or without those of no length."""

    def holds(start: float, end: float, now: float) -> bool:
        return start <= now < end or (instants and start <= now <= end)

    return max((sum(b for s, e, b in spans if holds(s, e, now)) for now, *_ in spans), default=0)
