"""Timeline: when and where every op ran, and every transfer, simulated or measured."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

import loadmaster.fast as fast
from loadmaster.base.errors import InputError
from loadmaster.judge.problem import Problem
from loadmaster.model.graph import OpGraph
from loadmaster.model.program import Program


@dataclass(frozen=True)
class Transfers:
    """Every transfer, as columns of one length.

    Attributes
    ----------
    tensor : int32
        The tensor's id in the graph that runs; -1 for a message without data.
    op : int32
        The op that produced it (a placeholder's first reader stands for its home).
    src, dst : int32
        Devices.
    bytes : uint64
    queued, start, finish : float64
        Seconds.
    """

    tensor: NDArray[np.int32]
    op: NDArray[np.int32]
    src: NDArray[np.int32]
    dst: NDArray[np.int32]
    bytes: NDArray[np.uint64]
    queued: NDArray[np.float64]
    start: NDArray[np.float64]
    finish: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.tensor)

    @classmethod
    def none(cls) -> Transfers:
        """No transfer at all."""
        index, seconds = np.empty(0, dtype=np.int32), np.empty(0)
        sizes = np.empty(0, dtype=np.uint64)
        return cls(index, index, index, index, sizes, seconds, seconds, seconds)


@dataclass(frozen=True)
class Timeline:
    """When every op of the graph that runs ran, and where.

    Attributes
    ----------
    device : int32 [n_ops]
        A view is where the op is whose data it shows, a placeholder at home.
    start, finish : float64 [n_ops]
        Seconds. A view starts and ends when its data is there, a placeholder at 0.
    transfers : Transfers
    """

    device: NDArray[np.int32]
    start: NDArray[np.float64]
    finish: NDArray[np.float64]
    transfers: Transfers

    @classmethod
    def simulated(
        cls, problem: Problem, schedule: fast.Schedule, devices: NDArray[np.int32]
    ) -> Timeline:
        """The timeline of a simulation of reduced ops on these devices. O(V + T), T transfers."""
        reduced = problem.reduced
        start, finish = schedule.start[reduced.map], schedule.finish[reduced.map]
        shows_one_that_runs = reduced.runs[reduced.shows]
        views = ~reduced.runs & shows_one_that_runs
        start[views] = finish[views]
        there_at_0 = ~shows_one_that_runs
        start[there_at_0] = finish[there_at_0] = 0.0
        columns = schedule.transfers()
        sent = Transfers(**{**columns, "op": reduced.op_of[columns["op"]]})
        return cls(devices[reduced.map], start, finish, sent)

    @classmethod
    def measured(
        cls,
        ran: OpGraph | Program,
        device: ArrayLike,
        start: ArrayLike,
        finish: ArrayLike,
        transfers: Transfers | None = None,
    ) -> Timeline:
        """The timeline of a step that ran on real devices.

        Parameters
        ----------
        ran : OpGraph or Program
            The graph, or the program whose graph, ran.
        device : int [n_ops]
            Index of the device that each op ran on.
        start, finish : float [n_ops]
            Seconds since the step began.
        transfers : Transfers, optional
            None if absent.

        Raises
        ------
        InputError
            A column of another length, a device below 0, an op that ends before it starts; the op
            is named.

        Examples
        --------
        >>> import loadmaster as lm
        >>> graph = lm.OpGraph({"name": ["a", "b"]}, {"src": [0], "dst": [1]})
        >>> Timeline.measured(graph, [0, 0], [0.0, 0.5], [0.5, 0.75]).makespan
        0.75
        """
        graph = ran.graph if isinstance(ran, Program) else ran
        where, began, ended = np.asarray(device), np.asarray(start), np.asarray(finish)
        for name, column, kinds in (
            ("device", where, "iu"),
            ("start", began, "iuf"),
            ("finish", ended, "iuf"),
        ):
            if column.shape != (graph.n_ops,) or column.dtype.kind not in kinds:
                raise InputError(
                    f"{name} has shape {column.shape} ({column.dtype}), wants {graph.n_ops} numbers"
                )
        bad = np.flatnonzero(~((began >= 0) & (ended >= began) & (ended < np.inf)) | (where < 0))
        if len(bad):
            at = int(bad[0])
            raise InputError(
                f"op {graph.names[at]!r} ran on device {where[at]} from {began[at]} to "
                f"{ended[at]} s: wants a device, and seconds >= 0 in order"
            )
        columns = where.astype(np.int32), began.astype(np.float64), ended.astype(np.float64)
        return cls(*columns, transfers or Transfers.none())

    @property
    def makespan(self) -> float:
        """Seconds until the last op ended."""
        return float(self.finish.max(initial=0.0))
