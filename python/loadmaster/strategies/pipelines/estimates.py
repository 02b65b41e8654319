"""The length of a pipeline's step, by its stages alone: quick enough to be asked thousands of
times.

An action of a schedule is one op, and the same simulator judges the graph of these as judges the
graph of all ops. Where a stage's ops run one after another, both see the same step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

import loadmaster.fast as fast
from loadmaster.base import checks
from loadmaster.base.errors import InputError
from loadmaster.strategies.pipelines.schedules import (
    Named,
    Windows,
    columns,
    waits,
    windows,
)

#: From which device to which, and the channels that this takes.
Wires = tuple[tuple[int, int, tuple[int, ...]], ...]

#: A link of the estimate carries a byte in a picosecond: seconds become bytes.
_BYTES_PER_SECOND = 1e12


@dataclass(frozen=True)
class StageTimes:
    """Seconds of each stage, for one micro-batch.

    Attributes
    ----------
    forward, backward, weight : float64 [n_stages]
        The forward pass; gradients of inputs; gradients of weights.
    update : float64 [n_stages]
        What is done once, after the last micro-batch.
    send, send_back : float64 [n_stages - 1]
        What transfers take from each stage to the next one, and back.
    wires : tuple of (int, int, tuple of int)
        From which device to which, and the channels that this takes, each of which carries one
        transfer at a time. What is not there has a channel of its own.
    """

    forward: NDArray[np.float64]
    backward: NDArray[np.float64]
    weight: NDArray[np.float64]
    update: NDArray[np.float64]
    send: NDArray[np.float64]
    send_back: NDArray[np.float64]
    wires: Wires = ()

    @classmethod
    def of(
        cls,
        forward: ArrayLike,
        backward: ArrayLike = 0.0,
        weight: ArrayLike = 0.0,
        *,
        update: ArrayLike = 0.0,
        send: ArrayLike = 0.0,
        send_back: ArrayLike = 0.0,
        wires: Wires = (),
    ) -> StageTimes:
        """From seconds per stage; a single number holds for every stage, or every two.

        Raises
        ------
        InputError
            Numbers below 0 or not finite, or more or fewer of them than stages.
        """
        stages = _column("forward", forward, np.size(forward))
        n = len(stages)
        return cls(
            stages,
            _column("backward", backward, n),
            _column("weight", weight, n),
            _column("update", update, n),
            _column("send", send, n - 1),
            _column("send_back", send_back, n - 1),
            wires,
        )

    def __len__(self) -> int:
        return len(self.forward)

    @property
    def together(self) -> StageTimes:
        """The same with gradients of weights as a part of the backward pass."""
        return replace(self, backward=self.backward + self.weight, weight=0 * self.weight)


def _column(name: str, values: ArrayLike, n: int) -> NDArray[np.float64]:
    column = np.asarray(values, dtype=np.float64)
    if column.ndim > 1 or (column.ndim == 1 and len(column) != n):
        raise InputError(f"{name} has shape {column.shape}: wants {n} numbers, or one for all")
    if not (np.isfinite(column) & (column >= 0)).all():
        raise InputError(f"{name} is {column.tolist()}: wants seconds >= 0")
    return np.broadcast_to(column, n).copy()


@dataclass(frozen=True, eq=False)
class PipelineEstimate:
    """The figures of a pipeline's stages, as simulated.

    Attributes
    ----------
    seconds : float
        Of the step.
    """

    seconds: float
    _frame: _ScheduleFrame
    _seen: fast.Schedule

    @cached_property
    def busy(self) -> NDArray[np.float64]:
        """Seconds for which each device computes, float64 [n_devices]."""
        return self._seen.device_busy

    @cached_property
    def in_flight(self) -> NDArray[np.int64]:
        """Micro-batches, of each virtual stage, that are alive at once at most: their forward pass
        has begun, and their backward pass, with gradients of weights, has not ended: int64
        [n_devices].
        """
        return self._frame.in_flight(self._seen)

    @property
    def idle(self) -> NDArray[np.float64]:
        """Share of the step for which each device computes nothing, float64 [n_devices]."""
        return 1 - self.busy / self.seconds if self.seconds else 0 * self.busy


def estimated(
    times: StageTimes, m: int, schedule: Named | Windows = "1f1b", virtual: int = 1
) -> PipelineEstimate:
    """The step of m micro-batches through stages, of which stage k is on device k mod p, or in
    a V.

    Parameters
    ----------
    times : StageTimes
        Of p x ``virtual`` stages.
    m : int
    schedule : a name, or Windows
    virtual : int
        Stages per device.

    Raises
    ------
    InputError
        What the schedule does not have; stages that are no multiple of ``virtual``.

    Notes
    -----
    O(n log n) for n = 3 m x stages.

    Examples
    --------
    >>> found = estimated(StageTimes.of([1.0] * 4, 2.0), 8)
    >>> found.seconds, found.in_flight.tolist(), round(float(found.idle[0]), 6)
    (33.0, [4, 3, 2, 1], 0.272727)
    """
    checks.integer("m", m)
    checks.integer("virtual", virtual)
    p, rest = divmod(len(times), virtual)
    if rest or not p:
        raise InputError(f"{len(times)} stages are not {virtual} per device")
    in_windows = windows(schedule, p, m, virtual) if isinstance(schedule, str) else schedule
    if in_windows.delay is None:
        times = times.together
    frame = _frame(in_windows, m, virtual)
    seen = frame.simulate(times)
    return PipelineEstimate(seen.makespan, frame, seen)


@dataclass(frozen=True)
class _ScheduleFrame:
    """The graph of a schedule, without its seconds.

    Ops are rows of (kind, stage, micro-batch): forward passes, backward passes, gradients of
    weights where they are apart; then an update per stage.
    """

    p: int
    m: int
    kinds: int
    n_stages: int
    src: NDArray[np.int64]
    dst: NDArray[np.int64]
    tensor: NDArray[np.int64]
    devices: NDArray[np.int32]
    priority: NDArray[np.int32]

    def simulate(self, times: StageTimes) -> fast.Schedule:
        """A step."""
        passes = [times.forward, times.backward, times.weight][: self.kinds]
        sent = [*times.send, 0.0, 0.0, *times.send_back, *(0 * times.weight)]
        seconds = np.append(np.repeat(np.concatenate(passes), self.m), times.update)
        bytes_ = np.repeat(sent[: self.kinds * self.n_stages], self.m) * _BYTES_PER_SECOND
        sizes = np.append(np.rint(bytes_), 0 * times.update).astype(np.uint64)
        graph = fast.Graph(len(seconds), self.src, self.dst, self.tensor, tensor_bytes=sizes)
        problem = fast.Problem(graph, _devices(self.p, times.wires), seconds)
        return fast.simulate(problem, self.devices, self.priority)

    def in_flight(self, seen: fast.Schedule) -> NDArray[np.int64]:
        """Most micro-batches alive at once, per device."""
        n = self.n_stages * self.m
        begin, on = seen.start[:n], self.devices[:n]
        end = seen.finish[(self.kinds - 1) * n : self.kinds * n]
        return np.array([most_at_once(begin[on == d], end[on == d]) for d in range(self.p)])


def most_at_once(begin: NDArray[np.float64], end: NDArray[np.float64]) -> int:
    """The most intervals, closed on the left, that overlap. O(n log n).

    >>> most_at_once(np.array([0.0, 1.0, 2.0]), np.array([2.0, 3.0, 4.0]))
    2
    """
    began = np.arange(1, len(begin) + 1)
    ended = np.searchsorted(np.sort(end), np.sort(begin), side="right")
    return int((began - ended).max(initial=0))


@lru_cache(maxsize=256)
def _frame(in_windows: Windows, m: int, virtual: int) -> _ScheduleFrame:
    p = len(in_windows.ahead)
    n_stages = p * virtual
    kinds = "FB" if in_windows.delay is None else "FBW"
    n = n_stages * m
    rows = np.arange(len(kinds) * n).reshape(len(kinds), n_stages, m)
    forward, backward, last = rows[0], rows[1], rows[-1]
    update = np.broadcast_to(rows.size + np.arange(n_stages)[:, None], (n_stages, m))
    edges = [
        (forward[:-1], forward[1:]),
        (forward, backward),
        (backward[1:], backward[:-1]),
        *([(backward, last)] if in_windows.delay is not None else []),
        (last, update),
    ]
    src = np.concatenate([a.ravel() for a, _ in edges])
    dst = np.concatenate([b.ravel() for _, b in edges])
    stage = np.append(np.repeat(np.tile(np.arange(n_stages), len(kinds)), m), np.arange(n_stages))
    priority = np.full(len(stage), rows.size)
    pairs = [np.empty((0, 2), dtype=np.int64)]
    for device in columns(in_windows, m, virtual):
        op = rows[device.passes, device.stages, device.micro]
        priority[op] = np.arange(len(op))
        pairs.append(op[waits(device.kinds, in_windows.in_order)])
    control = np.concatenate(pairs)
    return _ScheduleFrame(
        p,
        m,
        len(kinds),
        n_stages,
        np.concatenate([src, control[:, 0]]),
        np.concatenate([dst, control[:, 1]]),
        np.concatenate([src, np.full(len(control), -1)]),
        np.array([in_windows.device(k) for k in range(n_stages)], dtype=np.int32)[stage],
        priority.astype(np.int32),
    )


@lru_cache(maxsize=64)
def _devices(p: int, wires: Wires) -> fast.Cluster:
    """Devices of one type, with a link from each to each."""
    names = [str(d) for d in range(p)]
    shared = {(names[a], names[b]): [f"{c}" for c in channels] for a, b, channels in wires}
    links: list[tuple[str | list[str], str | list[str], float, float, list[str]]] = [
        (a, b, _BYTES_PER_SECOND, 0.0, shared.get((a, b), [f"{a}-{b}"]))
        for a in names
        for b in names
        if a != b
    ]
    return fast.Cluster([(name, "device", 0) for name in names], links)
