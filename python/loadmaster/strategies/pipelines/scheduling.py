"""A schedule on a micro-batched program with stages: priorities, and control edges.

The judge knows nothing of pipelines. It runs what is ready in the order of priorities, and so runs
ahead: it keeps more micro-batches alive than a schedule would. Control edges hold it back.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import compress
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.errors import InputError
from loadmaster.base.units import counted
from loadmaster.judge.assignment import Assignment
from loadmaster.judge.problem import ranks
from loadmaster.strategies.candidate import Candidate, judged
from loadmaster.strategies.pipelines.backtracking import came_back
from loadmaster.strategies.pipelines.phases import BACKWARD, FORWARD, ONCE, PASSES, WEIGHT
from loadmaster.strategies.pipelines.schedules import (
    ActionColumns,
    Named,
    Windows,
    columns,
    named_for,
    waits,
    windows,
)
from loadmaster.strategies.pipelines.searching import searched
from loadmaster.strategies.pipelines.staged import Staged, most_alive, stage_times
from loadmaster.transforms.control_edges import with_control

#: The names of schedules, and the one that is searched for.
Schedule = Named | Literal["searched"]


def scheduled(staged: Staged, schedule: Schedule | Windows) -> Candidate:
    """The pipeline by a schedule, judged.

    Parameters
    ----------
    staged : Staged
    schedule : a name, "searched", or Windows
        Of "searched", the best of the named ones and of windows that are searched for.

    Raises
    ------
    InputError
        A schedule that does not have this number of stages per device; stages along which ops would
        wait for each other.

    Notes
    -----
    O((V + E) log V) for a schedule; a few times that for "searched".
    """
    if schedule != "searched":
        return _judged(staged, _windows(staged, schedule))
    candidates = [scheduled(staged, name) for name in named_for(staged.virtual)]
    most = most_alive(staged, candidates[0])
    searched_windows = searched(stage_times(staged), staged.m, staged.virtual, most_alive=most)
    tried = dict.fromkeys([searched_windows, replace(searched_windows, in_order=False)])
    return staged.problem.objective.best([*candidates, *(_judged(staged, some) for some in tried)])


def _windows(staged: Staged, schedule: Named | Windows) -> Windows:
    if isinstance(schedule, str):
        return windows(schedule, staged.p, staged.m, staged.virtual)
    return schedule


def _judged(staged: Staged, in_windows: Windows) -> Candidate:
    if [in_windows.device(stage) for stage in range(len(staged.devices))] != staged.set_of.tolist():
        way = "through the devices and back" if in_windows.in_v else "through the devices in turn"
        raise InputError(
            f"stages are on the sets of devices {staged.set_of.tolist()}, and the schedule has "
            f"them go {way}"
        )
    plan = _Turns.of(staged, in_windows)
    src, dst = plan.control()
    op_of = staged.problem.reduced.op_of
    try:
        waiting = with_control(staged.problem.model, op_of[src], op_of[dst])
    except InputError as error:
        raise came_back(staged) or error from error
    problem = staged.problem.transformed(waiting, staged.problem.costs)
    stages = counted(staged.p * staged.virtual, "stage")
    note = f"{stages}, {counted(staged.m, 'micro-batch', 'micro-batches')}: {in_windows}"
    return judged(problem, Assignment(staged.placed, plan.priority), (note,))


@dataclass(frozen=True)
class _Turns:
    """The turn of each op.

    Attributes
    ----------
    does : tuple of Columns
        What each set of devices does.
    numbers : list of int64 columns
        The number of each of its actions, by stage, pass, micro-batch and rank, for the first rank.
    action : int64 [n_reduced]
        The number of the action that each op is a part of; -1: none.
    priority : int32 [n_reduced]
    sent_last : int64 column
        Ops that make gradients for updates on other devices, such as those of tied weights. They
        wait for the last backward pass: a large tensor would keep those of micro-batches from
        their channel.
    """

    staged: Staged
    windows: Windows
    does: tuple[ActionColumns, ...]
    numbers: list[NDArray[np.int64]]
    action: NDArray[np.int64]
    priority: NDArray[np.int32]
    sent_last: NDArray[np.int64]

    @classmethod
    def of(cls, staged: Staged, in_windows: Windows) -> _Turns:
        """The turns by some windows."""
        does = columns(in_windows, staged.m, staged.virtual)
        numbers = [
            np.ravel_multi_index((some.stages, some.passes, some.micro, 0), _shape(staged))
            for some in does
        ]
        turn = np.zeros(np.prod(_shape(staged)), dtype=np.int64)
        for some in numbers:
            of_ranks = some[:, None] + np.arange(staged.devices.shape[1])
            turn[of_ranks] = 2 * np.arange(len(some))[:, None]
        part = staged.passes.astype(np.int64)
        if in_windows.delay is None:
            part = np.where(part == WEIGHT, BACKWARD, part)
        sent_last = _sent_last(staged)
        many = part != ONCE
        many[sent_last] = False
        where = [column[many] for column in (staged.of_op, part, staged.micro, staged.rank)]
        action = np.full(len(many), -1)
        action[many] = np.ravel_multi_index(where, _shape(staged))
        # What is done once comes first in the forward pass, and last otherwise.
        turns = np.where(staged.batched.is_late, 2 * turn.size, -1)
        turns[many] = turn[action[many]]
        last = np.array([np.flatnonzero(some.passes == BACKWARD)[-1] for some in does])
        turns[sent_last] = 2 * last[staged.set_of[staged.of_op[sent_last]]] + 1
        order = np.lexsort((staged.batched.program_rank, turns))
        priority = ranks(order.astype(np.int32))
        return cls(staged, in_windows, does, numbers, action, priority, sent_last)

    def control(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The reduced ops at the ends of control edges: from the last op of an action to the ops
        of a later one of the same device which read nothing of that action.
        """
        tail = self._tails()
        heads, first = self._heads(len(tail))
        from_, to = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.int64)]
        for s, does in enumerate(self.does):
            for r in range(self.staged.devices.shape[1]):
                number = self.numbers[s] + r
                has_ops = tail[number] >= 0
                number, some = number[has_ops], list(compress(does.kinds, has_ops))
                before, after = number[waits(some, self.windows.in_order)].T
                n_heads = first[after + 1] - first[after]
                # The heads of each action follow each other.
                skipped = np.repeat(first[after] - (np.cumsum(n_heads) - n_heads), n_heads)
                to.append(heads[skipped + np.arange(len(skipped))])
                from_.append(np.repeat(tail[before], n_heads))
                passed = number[does.passes[has_ops] == BACKWARD]
                if len(passed):
                    to.append(self._sent_last_of(s, r))
                    from_.append(np.full(len(to[-1]), tail[passed[-1]]))
        return np.concatenate(from_), np.concatenate(to)

    def _sent_last_of(self, s: int, rank: int) -> NDArray[np.int64]:
        """Those of the s-th set of devices, and one of its ranks."""
        some, staged = self.sent_last, self.staged
        here = (staged.set_of[staged.of_op[some]] == s) & (staged.rank[some] == rank)
        return np.asarray(some[here])

    def _tails(self) -> NDArray[np.int64]:
        """The last op of each action; -1: it has none."""
        tail = np.full(np.prod(_shape(self.staged)), -1, dtype=np.int64)
        in_turn = np.argsort(self.priority)
        in_turn = in_turn[self.action[in_turn] >= 0]
        tail[self.action[in_turn]] = in_turn
        return tail

    def _heads(self, n: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Ops that read nothing of their own action, by action, and where each action's begin."""
        src, dst, _, _ = self.staged.batched.flows
        is_head = self.action >= 0
        is_head[dst[self.action[src] == self.action[dst]]] = False
        heads = np.flatnonzero(is_head)
        heads = heads[np.argsort(self.action[heads], kind="stable")]
        return heads, np.searchsorted(self.action[heads], np.arange(n + 1))


def _sent_last(staged: Staged) -> NDArray[np.int64]:
    """Ops of micro-batches that others read once, on another device, and nobody else does."""
    src, dst, _, _ = staged.batched.flows
    many = staged.passes != ONCE
    leaves = (
        many[src] & ~many[dst] & ~staged.aside[dst] & (staged.placed[src] != staged.placed[dst])
    )
    is_last = np.zeros(len(many), dtype=bool)
    is_last[src[leaves]] = True
    is_last[src[many[src] & many[dst]]] = False
    return np.flatnonzero(is_last & (staged.passes > FORWARD))


def _shape(staged: Staged) -> tuple[int, int, int, int]:
    """Numbers of stages, passes, micro-batches and ranks: actions are numbered by these."""
    return len(staged.devices), len(PASSES), staged.m, staged.devices.shape[1]
