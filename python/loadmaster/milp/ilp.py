"""Loadmaster's own mixed-integer program: strengthened in every way that paid (design section 8).

For ops i, j on devices k, tensors t sent to devices d, with x_ik = 1 where i is on k, S starts,
F = S + sum_k p_ik x_ik finishes, W the makespan, and U that of the schedule it starts from:

1. windows: S_i >= sum_k head_ik x_ik and W >= F_i + sum_k tail_ik x_ik, from levels; W <= U, so
   that each op starts in a window of its own, and every big-M below is what the pair's own windows
   leave, not the horizon;
2. S_j >= F_i + c_ij d_ij without any big-M, where d_ij >= |x_ik - x_jk| for all k says that i and
   its reader j are apart, and c_ij is the least time that what j reads takes between two devices;
3. a message (t, d) exists, a_td = 1, where a reader is on d and the source is not:
   a_td >= x_rd - x_sd; it comes from k, y_tkd = 1, where the source is there; it leaves at
   T_td >= F_s and takes sum_k c_tkd y_tkd; a reader on d starts after;
4. an order, one binary per pair of ops that could meet on a device: none for those that a path
   joins, and none for those whose windows leave one order;
5. channels first come, first served with the same binaries: on channels of a sender's own, messages
   leave in the order of the ops that made them. Only messages that meet on a shared channel and
   come from two devices need a binary of their own, per pair of tensors;
6. load: for windows (h, q) of heads and tails, W >= h + q + the work that ops on k must do in
   between (as in the bounds); and W >= the seconds that a channel carries;
7. exchangeable devices are used in order.

The starting point satisfies all of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from loadmaster.milp.formulation import Formulation, ModelRows, Term, negative, readers_on
from loadmaster.milp.instance import Message, MilpInstance
from loadmaster.milp.timing import Timed

#: Number of thresholds on heads, and on tails, that have load rows.
THRESHOLDS = 5

_Pairs = frozenset[tuple[int, int]]


def formulate(instance: MilpInstance, start: Timed) -> Formulation:
    """The program; see the module."""
    return _IlpProgram(instance, start).formulation()


def estimated_rows(instance: MilpInstance) -> int:
    """About the number of rows of the program, without building it. O(V^2 + messages)."""
    k = instance.n_devices
    by_source: dict[int, int] = {}
    for message in instance.messages:
        source = instance.tensors[message.tensor].source
        by_source[source] = by_source.get(source, 0) + 1
    sent = np.zeros(instance.n_ops)
    sent[list(by_source)] = list(by_source.values())
    # Two messages share a channel if they go to one device; on shared channels, any two do.
    share = 1 / k if instance.is_private else 1.0
    loose = 0.0
    for u, v in instance.loose_pairs:
        loose += k + 2 + 2 * share * sent[u] * sent[v]
    order = 0.0
    for u, v in np.argwhere(instance.precedes).tolist():
        order += share * sent[u] * sent[v] + k * (sent[u] > 0 and sent[v] > 0)
    readers = sum(len(readers_on(instance, m)) for m in instance.messages)
    own = 5 * instance.n_ops + 2 * k * len(instance.edges) + (k + 1) * readers
    return int(own + loose + order + 3 * len(instance.messages))


class _IlpProgram(ModelRows):
    """Each method adds one family of rows, by its number in the module's list."""

    def __init__(self, instance: MilpInstance, start: Timed) -> None:
        super().__init__(instance, start)
        # In ticks, so that the end of one window compares exactly with the begin of another.
        time, head, tail = (
            np.where(instance.allowed, column, np.iinfo(np.int64).max // 4)
            for column in (instance.time, instance.head, instance.tail)
        )
        self.earliest = head.min(axis=1)
        self.latest = start.makespan - (time + tail).min(axis=1)
        self.first_end = (head + time).min(axis=1)
        self.last_end = start.makespan - tail.min(axis=1)
        self.window()
        self.apart()
        self.send()
        self.order()
        self.queue()
        self.load()
        self.symmetry()

    def window(self) -> None:
        """1."""
        instance = self.instance
        for op in range(instance.n_ops):
            devices = instance.devices_of[op]
            on = [int(self.on[op, d]) for d in devices]
            heads = [float(instance.head[op, d]) * self.scale for d in devices]
            tails = [float(instance.tail[op, d]) * self.scale for d in devices]
            begin = [(self.start[op], 1.0)]
            self.at_least(0.0, begin, negative(list(zip(on, heads, strict=True))))
            ends = [*self.finish(op), *zip(on, tails, strict=True)]
            self.at_least(0.0, [(self.end, 1.0)], negative(ends))

    def apart(self) -> None:
        """2."""
        at = self.from_.devices
        for (i, j), least in self.instance.edges.items():
            wait: list[Term] = []
            if self.instance.unit[i] != self.instance.unit[j] and least:
                apart = self.variable(float(at[i] != at[j]))
                for a, b in zip(self.on[i].tolist(), self.on[j].tolist(), strict=True):
                    self.at_least(0.0, [(apart, 1.0), (a, -1.0), (b, 1.0)])
                    self.at_least(0.0, [(apart, 1.0), (a, 1.0), (b, -1.0)])
                wait = [(apart, -least * self.scale)]
            self.at_least(0.0, [(self.start[j], 1.0)], negative(self.finish(i)), wait)

    def send(self) -> None:
        """3."""
        instance, start, scale = self.instance, self.from_, self.scale
        self.sent: dict[Message, int] = {}
        self.comes: dict[tuple[Message, int], int] = {}
        self.leaves: dict[Message, int] = {}
        self.carries: dict[Message, list[Term]] = {}
        self.last_arrival: dict[Message, int] = {}
        for message in instance.messages:
            tensor, d = instance.tensors[message.tensor], message.device
            readers = readers_on(instance, message)
            source = self.on[tensor.source]
            happens = message in start.sent
            sent = self.sent[message] = self.variable(float(happens))
            for r in readers:
                on = int(self.on[r, d])
                self.at_least(0.0, [(sent, 1.0), (on, -1.0), (int(source[d]), 1.0)])
            ready = 0 if tensor.home else start.finish[tensor.source]
            at = start.sent[message][0] if happens else ready
            last = self.last_arrival[message] = max(int(self.latest[r]) for r in readers)
            leaves = self.leaves[message] = self.variable(at * scale, upper=self.limit)
            if not tensor.home:
                self.at_least(0.0, [(leaves, 1.0)], negative(self.finish(tensor.source)))
            carries = self.carries[message] = self._comes_from(message, readers, sent)
            for r in readers:
                slack = (last - int(self.earliest[r])) * scale
                self.at_least(
                    -slack,
                    [(self.start[r], 1.0), (leaves, -1.0)],
                    negative(carries),
                    [(int(self.on[r, d]), -slack)],
                )

    def _comes_from(self, message: Message, readers: list[int], sent: int) -> list[Term]:
        """Time of a message, as terms; a variable per device that the message may come from."""
        tensor, d = self.instance.tensors[message.tensor], message.device
        at = int(self.from_.devices[tensor.source])
        senders = self.instance.senders(message)
        for s in senders:
            if len(senders) == 1:
                self.comes[message, s] = sent
                continue
            comes = self.comes[message, s] = self.variable(
                float(message in self.from_.sent and at == s)
            )
            for r in readers:
                on = int(self.on[r, d])
                self.at_least(
                    -1.0, [(comes, 1.0), (int(self.on[tensor.source, s]), -1.0), (on, -1.0)]
                )
        if len(senders) > 1:
            whole = [(self.comes[message, s], 1.0) for s in senders]
            self.at_least(0.0, whole, [(sent, -1.0)])
        return [(self.comes[message, s], float(tensor.time[s, d]) * self.scale) for s in senders]

    def order(self) -> None:
        """4."""
        instance, start = self.instance, self.from_
        self.meets: dict[tuple[_Pairs, int, int], int | None] = {}
        self.first: dict[tuple[int, int], int | bool] = {}
        same = frozenset((d, d) for d in range(instance.n_devices))
        for u, v in instance.loose_pairs:
            if not (instance.unit_allowed[instance.unit[[u, v]]].all(axis=0)).any():
                continue
            if self.last_end[u] <= self.earliest[v]:
                self.first[u, v] = True
                continue
            if self.last_end[v] <= self.earliest[u]:
                self.first[u, v] = False
                continue
            together = self.meet(same, u, v)
            if self.first_end[u] > self.latest[v]:
                self.first[u, v] = False
            elif self.first_end[v] > self.latest[u]:
                self.first[u, v] = True
            else:
                comes = (start.finish[u], start.start[u]) < (start.finish[v], start.start[v])
                self.first[u, v] = self.binary(comes)
            self._one_after_another(u, v, together)

    def _one_after_another(self, u: int, v: int, together: list[Term]) -> None:
        """S_b >= F_a if a comes first and both are on one device."""
        for a, b in ((u, v), (v, u)):
            when = self._when(u, v, a == u)
            if when is None:
                continue
            slack = max(int(self.last_end[a] - self.earliest[b]), 0)
            self._after(
                [(self.start[b], 1.0), *negative(self.finish(a))], slack, [when, _all(together)]
            )

    def _when(self, u: int, v: int, forward: bool) -> tuple[list[Term], float] | None:
        """An expression that is 1 if u comes before v (backward: after v); None: it never is 1."""
        first = self.first[u, v]
        if isinstance(first, bool):
            return ([], 1.0) if first == forward else None
        return ([(first, 1.0)], 0.0) if forward else ([(first, -1.0)], 1.0)

    def _after(
        self, difference: list[Term], slack: int, conditions: list[tuple[list[Term], float]]
    ) -> None:
        """A difference that is >= 0 if all conditions are 1.

        A condition is an expression from 0 to 1; each that is 0 allows ``slack`` ticks less.
        """
        most = slack * self.scale
        constant = sum(c for _, c in conditions) - len(conditions)
        terms = [(column, -most * value) for part, _ in conditions for column, value in part]
        self.at_least(most * constant, difference, terms)

    def meet(self, pairs: _Pairs, u: int, v: int) -> list[Term]:
        """An expression that is at least 1 if u and v are on one of these pairs of devices."""
        key = (pairs, u, v)
        if key not in self.meets:
            may = set(itertools.product(self.instance.devices_of[u], self.instance.devices_of[v]))
            if self.instance.unit_of[u] == self.instance.unit_of[v]:
                may = {(s, r) for s, r in may if s == r}
            if may <= pairs:
                self.meets[key] = None
            else:
                at = tuple(self.from_.devices[[u, v]].tolist())
                meets = self.meets[key] = self.variable(float(at in pairs))
                for s in sorted({s for s, _ in may & pairs}):
                    others = sorted({r for t, r in may & pairs if t == s})
                    self.at_least(
                        -1.0,
                        [(meets, 1.0), (int(self.on[u, s]), -1.0)],
                        [(int(self.on[v, r]), -1.0) for r in others],
                    )
        variable = self.meets[key]
        return [] if variable is None else [(variable, 1.0)]

    def queue(self) -> None:
        """5."""
        instance = self.instance
        self.earlier: dict[tuple[int, int], int] = {}
        self._shared: dict[tuple[int, ...], _Pairs] = {}
        for a, b in itertools.combinations(self.sent, 2):
            first, second = (instance.tensors[m.tensor] for m in (a, b))
            u, v = first.source, second.source
            pairs = self._sharing(a, b)
            if not pairs:
                continue
            if first.home or (not second.home and (u == v or instance.precedes[u, v])):
                self._leave(a, b, pairs, [])
            elif second.home or instance.precedes[v, u]:
                self._leave(b, a, pairs, [])
            elif all(s == r for s, r in pairs):
                low, high = min(u, v), max(u, v)
                for early, late, forward in ((a, b, u == low), (b, a, u != low)):
                    when = self._when(low, high, forward)
                    if when is not None:
                        self._leave(early, late, pairs, [when])
            else:
                self._by_finish(a, b, pairs)

    def _sharing(self, a: Message, b: Message) -> _Pairs:
        """Pairs of senders from which two messages would share a channel."""
        instance = self.instance
        sources = tuple(instance.tensors[m.tensor].source for m in (a, b))
        units = tuple(instance.unit_of[op] for op in sources)
        key = (a.device, b.device, *units)
        if key not in self._shared:
            pairs = instance.sharing[a.device, b.device]
            if pairs:
                first, second = (set(instance.senders(m)) for m in (a, b))
                together = units[0] == units[1]
                pairs = frozenset(
                    (s, r)
                    for s, r in pairs
                    if s in first and r in second and (s == r or not together)
                )
            self._shared[key] = pairs
        return self._shared[key]

    def _leave(
        self, early: Message, late: Message, pairs: _Pairs, when: list[tuple[list[Term], float]]
    ) -> None:
        """The late message leaves after the early one has come, if one channel carries both."""
        tensors = self.instance.tensors
        u, v = tensors[early.tensor].source, tensors[late.tensor].source
        ready = 0 if tensors[late.tensor].home else int(self.first_end[v])
        slack = self.last_arrival[early] - ready
        if slack <= 0:
            return
        on_channel = self.meet(pairs, u, v)
        difference = [
            (self.leaves[late], 1.0),
            (self.leaves[early], -1.0),
            *negative(self.carries[early]),
        ]
        both = [([(self.sent[m], 1.0)], 0.0) for m in (early, late)]
        self._after(difference, slack, [*both, _all(on_channel), *when])

    def _by_finish(self, a: Message, b: Message, pairs: _Pairs) -> None:
        """Messages of two devices on one channel leave in the order in which they are made."""
        u, v = (self.instance.tensors[m.tensor].source for m in (a, b))
        start = self.from_
        key = (a.tensor, b.tensor)
        if key not in self.earlier:
            self.earlier[key] = self.binary(start.finish[u] <= start.finish[v])
        earlier = self.earlier[key]
        whens: list[tuple[list[Term], float]] = [([(earlier, 1.0)], 0.0), ([(earlier, -1.0)], 1.0)]
        on_channel = _all(self.meet(pairs, u, v))
        both = [([(self.sent[m], 1.0)], 0.0) for m in (a, b)]
        for (first, then), when in zip(((u, v), (v, u)), whens, strict=True):
            slack = max(int(self.last_end[first] - self.first_end[then]), 0)
            difference = [*self.finish(then), *negative(self.finish(first))]
            self._after(difference, slack, [*both, on_channel, when])
        for (early, late), when in zip(((a, b), (b, a)), whens, strict=True):
            self._leave(early, late, pairs, [when])

    def load(self) -> None:
        """6."""
        instance = self.instance
        head = np.where(instance.allowed, instance.head * self.scale, np.inf)
        tail = np.where(instance.allowed, instance.tail * self.scale, np.inf)
        lower = instance.lower * self.scale
        for h, q in itertools.product(_thresholds(head), _thresholds(tail)):
            if h + q > lower:
                continue
            inside = instance.time * self.scale - np.maximum(h - head, 0) - np.maximum(q - tail, 0)
            for d in range(instance.n_devices):
                ops = np.flatnonzero(instance.allowed[:, d] & (inside[:, d] > 0))
                work = [(int(self.on[op, d]), -float(inside[op, d])) for op in ops]
                if work:
                    self.at_least(h + q, [(self.end, 1.0)], work)
        for channel in instance.channels:
            carried = [
                (comes, -float(instance.tensors[m.tensor].time[s, m.device]) * self.scale)
                for (m, s), comes in self.comes.items()
                if (s, m.device) in channel
            ]
            if carried:
                self.at_least(0.0, [(self.end, 1.0)], carried)

    def symmetry(self) -> None:
        """7."""
        of_unit = self.on[self.instance.first_of_units]
        for members in self.instance.twins:
            for first, second in itertools.pairwise(members):
                for unit in range(len(of_unit)):
                    before: Iterable[Term] = ((int(x), 1.0) for x in of_unit[:unit, first])
                    self.at_least(0.0, before, [(int(of_unit[unit, second]), -1.0)])


def _all(terms: list[Term]) -> tuple[list[Term], float]:
    """A condition as terms; without terms it always holds."""
    return (terms, 0.0) if terms else ([], 1.0)


def _thresholds(levels: NDArray[np.float64]) -> list[float]:
    """A few levels from the least to the largest."""
    least = levels.min(axis=1)
    chosen = np.quantile(least, np.linspace(0, 1, THRESHOLDS), method="lower")
    return [float(level) for level in np.unique(chosen)]
