"""The cause of each start of a measured step: the event that it waited for, from begins and ends
alone.

The simulator notes why an op starts when it does. A measured step has only times; of all that had
to end before an op could start (its inputs, what its device ran before, what its channels carried
before), the one that ended last is what it waited for. Between that end and the start, time can
pass that nothing accounts for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.judge.problem import Problem, ranks
from loadmaster.judge.timeline import Timeline

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

#: Reasons why something did not start earlier; on equal times, the first of these counts.
_INPUT, _DEVICE, _CHANNEL, _COPY = range(4)


class Cause(NamedTuple):
    """An op or a transfer, and the event that its start waited for.

    Attributes
    ----------
    doing : str
        "run" or "transfer".
    item : int
        The reduced op (of a collective, the member that arrived last), or the transfer.
    start, finish : float
        Seconds.
    waited : str
        As :class:`~loadmaster.judge.simulation.Blame` has it.
    """

    doing: str
    item: int
    start: float
    finish: float
    waited: str


class Causes:
    """The causes of every start in a measured step.

    Nodes are reduced ops, then transfers, then collectives; a member stands for its collective.

    Notes
    -----
    O((E + M c) log) for M messages that hold c channels each.
    """

    def __init__(self, problem: Problem, timeline: Timeline) -> None:
        reduced, sent, together = problem.reduced, timeline.transfers, timeline.collectives
        self._n_ops, self._n_sent = reduced.graph.n_ops, len(sent)
        self._node = np.arange(self._n_ops, dtype=np.int64)
        for i, members in enumerate(together.members):
            self._node[reduced.map[list(members)]] = self._n_ops + self._n_sent + i
        self._last = reduced.map[together.op].astype(np.int64)
        columns = (
            (timeline.start[reduced.op_of], sent.start, together.start),
            (timeline.finish[reduced.op_of], sent.finish, together.finish),
        )
        self._start, self._finish = (np.concatenate(parts) for parts in columns)
        # Among what takes no time, an op comes after what it reads.
        self._turn = np.arange(len(self._start), dtype=np.int64)
        self._turn[: self._n_ops] = ranks(fast.m_topo(reduced.graph))
        causes = [
            *self._inputs(problem, timeline),
            self._before_on_devices(timeline.device[reduced.op_of]),
            *self._before_on_channels(problem, timeline),
            self._copies(timeline, timeline.device[reduced.op_of]),
        ]
        self._cause, self._why = self._latest(causes)

    def waited(self, reduced_op: int) -> tuple[str, int]:
        """As :meth:`loadmaster.judge.simulation.Simulation.waited`."""
        return self._said(int(self._node[reduced_op]))

    def chain(self) -> Iterator[Cause]:
        """The last event, then the event that each start waited for, back to the first."""
        ran = self._node[np.argsort(-self._finish[self._node], kind="stable")[:1]].tolist()
        node = ran[0] if ran else -1
        seen: set[int] = set()
        while node >= 0 and node not in seen:
            seen.add(node)
            start, finish = float(self._start[node]), float(self._finish[node])
            if self._is_transfer(node):
                yield Cause("transfer", node - self._n_ops, start, finish, self._said(node)[0])
            else:
                yield Cause("run", self._op_of(node), start, finish, self._said(node)[0])
            node = int(self._cause[node])

    # -- nodes -----------------------------------------------------------------------------------

    def _is_transfer(self, node: int) -> bool:
        return 0 <= node - self._n_ops < self._n_sent

    def _op_of(self, node: int) -> int:
        """The reduced op that a node is; of a collective, the member that arrived last."""
        return node if node < self._n_ops else int(self._last[node - self._n_ops - self._n_sent])

    def _said(self, node: int) -> tuple[str, int]:
        cause, why = int(self._cause[node]), int(self._why[node])
        if cause < 0:
            return "nothing", -1
        if self._is_transfer(cause):
            word = {_CHANNEL: "channel", _COPY: "copy"}.get(why, "transfer")
            return word, cause - self._n_ops
        return ("op", "device", "collective")[why], self._op_of(cause)

    # -- all that had to end before each node ----------------------------------------------------

    def _inputs(self, problem: Problem, timeline: Timeline) -> Iterator[tuple[Ints, Ints, int]]:
        """The events that brought the inputs of ops, and the ops that made the tensors of
        transfers.
        """
        sent, device = timeline.transfers, timeline.device[problem.reduced.op_of]
        src, dst, tensor, _, home = fast.edges(problem.graph)
        source = problem.reduced.map[sent.op]
        n = problem.cluster.n_devices
        # A message by what it is of, and where it goes.
        wanted = _key(src, tensor, device[dst], n)
        known = _key(source, sent.tensor, sent.dst, n)
        order = np.argsort(known, kind="stable")
        at = np.searchsorted(known[order], wanted)
        message = np.append(order, -1)[at]
        is_sent = (device[src] != device[dst]) & (np.append(known[order], -1)[at] == wanted)
        yield self._node[dst[is_sent]], self._n_ops + message[is_sent], _INPUT
        here = ~is_sent & ~home
        yield self._node[dst[here]], self._node[src[here]], _INPUT
        of_home = np.zeros(len(sent), dtype=bool)
        of_home[message[is_sent & home]] = True
        computed = np.flatnonzero(~of_home)
        yield self._n_ops + computed, self._node[source[computed]], _INPUT

    def _before_on_devices(self, device: NDArray[np.int32]) -> tuple[Ints, Ints, int]:
        computes = np.flatnonzero(self._node < self._n_ops)
        return (*self._one_after_another(device[computes], computes), _DEVICE)

    def _copies(self, timeline: Timeline, device: NDArray[np.int32]) -> tuple[Ints, Ints, int]:
        """The last transfer that each op's device sent before the op, where devices send by
        copying: a device that sends computes nothing meanwhile.
        """
        src = timeline.transfers.src
        computes = np.flatnonzero((self._node < self._n_ops) & (self._finish[: self._n_ops] > 0))
        pairs = [(np.empty(0, dtype=np.int64),) * 2]
        for sender in np.unique(src).tolist():
            ops = computes[device[computes] == sender]
            ops = ops[np.argsort(self._start[ops], kind="stable")]
            sent = self._n_ops + np.flatnonzero(src == sender)
            sent = sent[np.argsort(self._finish[sent], kind="stable")]
            if not self._overlap(ops, sent):
                last = np.searchsorted(self._finish[sent], self._start[ops], side="right") - 1
                pairs.append((ops[last >= 0], sent[last[last >= 0]]))
        after, before = (np.concatenate(columns) for columns in zip(*pairs, strict=True))
        return after, before, _COPY

    def _overlap(self, ops: Ints, sent: Ints) -> bool:
        """True if some transfer was under way while one of these ops, by start, ran."""
        begun = np.searchsorted(self._start[ops], self._finish[sent], side="left") - 1
        ends = np.append(np.maximum.accumulate(self._finish[ops]), -np.inf)
        return bool((ends[begun] > self._start[sent]).any())

    def _before_on_channels(
        self, problem: Problem, timeline: Timeline
    ) -> Iterator[tuple[Ints, Ints, int]]:
        sent = timeline.transfers
        ends = zip(sent.src.tolist(), sent.dst.tolist(), strict=True)
        held = [problem.links.route(*pair)[2] for pair in ends] + list(
            timeline.collectives.channels
        )
        nodes = np.repeat(np.arange(len(held)), [len(channels) for channels in held])
        channels = np.array([c for channels in held for c in channels], dtype=np.int64)
        yield (*self._one_after_another(channels, self._n_ops + nodes), _CHANNEL)

    def _one_after_another(self, place: NDArray[np.integer], nodes: Ints) -> tuple[Ints, Ints]:
        """Each node that begins once another in the same place has ended, and that other."""
        order = np.lexsort((self._turn[nodes], self._finish[nodes], self._start[nodes], place))
        place, nodes = place[order], nodes[order]
        before, after = nodes[:-1], nodes[1:]
        held = (place[1:] == place[:-1]) & (self._finish[before] <= self._start[after])
        return after[held], before[held]

    def _latest(self, groups: Iterable[tuple[Ints, Ints, int]]) -> tuple[Ints, Ints]:
        """The cause of each node that ended last, and why it had to end; -1: none."""
        parts = list(groups)
        node = np.concatenate([after for after, _, _ in parts])
        cause = np.concatenate([before for _, before, _ in parts])
        why = np.repeat([word for *_, word in parts], [len(after) for after, _, _ in parts])
        order = np.lexsort((-cause, -why, self._finish[cause], node))
        latest, chosen = np.full((2, len(self._start)), -1, dtype=np.int64)
        latest[node[order]], chosen[node[order]] = cause[order], why[order]
        return latest, chosen


def _key(
    source: NDArray[np.integer], tensor: NDArray[np.integer], dst: NDArray[np.integer], n: int
) -> Ints:
    """A number for a tensor (-1: none) of an op that goes to one of ``n`` devices."""
    # A tensor has one source, a message without data none of its own.
    of = np.where(tensor >= 0, 2 * tensor.astype(np.int64) + 1, 2 * source.astype(np.int64))
    return of * np.int64(n) + dst.astype(np.int64)
