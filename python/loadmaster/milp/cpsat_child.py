"""The constraint program of :mod:`~loadmaster.milp.cpsat`, built and solved with CP-SAT.

    python -m loadmaster.milp.cpsat_child FOLDER STARTED

Every better solution is written to a file at once, so that it survives this process.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from ortools.sat.python import cp_model

from loadmaster.milp.cpsat import CpsatTask, report, report_size
from loadmaster.milp.instance import Message, MilpInstance
from loadmaster.milp.process import keep, left, serve


def work(task: CpsatTask, folder: Path, began: float) -> dict[str, Any]:
    """The answer to a task; see :func:`loadmaster.milp.cpsat.solve`."""
    program = CpsatModel(task)
    report_size(*program.size)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = task.workers
    solver.parameters.random_seed = task.seed
    solver.parameters.log_search_progress = True
    solver.parameters.max_time_in_seconds = left(task.time_limit, began)
    watch = _SolutionWatch(program, folder, task.start.makespan)
    solver.best_bound_callback = watch.bound_rose
    status = solver.solve(program.model, watch)
    has_values = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    return {
        "status": solver.status_name(status).lower(),
        "bound": None if status == cp_model.INFEASIBLE else float(solver.best_objective_bound),
        "values": program.read(solver.value) if has_values else None,
    }


class _SolutionWatch(cp_model.CpSolverSolutionCallback):
    """Keeps each solution, and prints the best and the bound."""

    def __init__(self, program: CpsatModel, folder: Path, best: int) -> None:
        super().__init__()
        self.program = program
        self.folder = folder
        self.best: float = best
        self.bound = 0.0

    def on_solution_callback(self) -> None:
        self.best = self.objective_value
        keep(self.folder, self.program.read(self.value))
        report(self.best, self.bound)

    def bound_rose(self, bound: float) -> None:
        self.bound = bound
        report(self.best, self.bound)


class CpsatModel:
    """The variables and constraints; every method adds one family."""

    def __init__(self, task: CpsatTask) -> None:
        self.task = task
        self.instance: MilpInstance = task.instance
        self.model = cp_model.CpModel()
        self.limit = task.start.makespan
        self.yes = self.model.new_constant(1)
        self.hints: dict[int, tuple[Any, int]] = {}
        self._place()
        self._start_ops()
        self._share_devices()
        self._send()
        self.earlier: dict[tuple[int, int], Any] = {}
        self._share_channels()
        self._bound()
        for variable, value in self.hints.values():
            self.model.add_hint(variable, value)

    @property
    def size(self) -> tuple[int, int]:
        """Constraints and variables."""
        return len(self.model.proto.constraints), len(self.model.proto.variables)

    def read(self, value: Any) -> tuple[list[int], list[int]]:
        """Device and start per op of a solution."""
        instance = self.instance
        devices = [
            next(d for d, x in enumerate(row) if x is not None and value(x)) for row in self.on
        ]
        return (
            [devices[unit] for unit in instance.unit],
            [int(value(start)) for start in self.start],
        )

    def _hint(self, variable: Any, value: int) -> Any:
        self.hints[variable.index] = (variable, value)
        return variable

    def _literal(self, value: bool) -> Any:
        return self._hint(self.model.new_bool_var(""), int(value))

    def _x(self, op: int, device: int) -> Any:
        """True if an op is on a device; None: it may not be."""
        return self.on[self.instance.unit[op]][device]

    def _place(self) -> None:
        """Each unit is on one device and fits; exchangeable devices are used in order."""
        instance, model, start = self.instance, self.model, self.task.start
        at = start.devices[instance.first_of_units]
        self.on: list[list[Any]] = []
        for unit, allowed in enumerate(instance.unit_allowed):
            row: list[Any] = [None] * instance.n_devices
            for device in np.flatnonzero(allowed).tolist():
                if self.task.is_fixed and device != at[unit]:
                    continue
                row[device] = self._literal(device == at[unit])
            model.add_exactly_one(x for x in row if x is not None)
            self.on.append(row)
        for device, capacity in enumerate(instance.capacity.tolist()):
            here = [
                (row[device], int(charge))
                for row, charge in zip(self.on, instance.unit_charge, strict=True)
                if row[device] is not None
            ]
            if not self.task.is_fixed and sum(charge for _, charge in here) > capacity:
                model.add(sum(charge * x for x, charge in here) <= capacity)
        if not self.task.is_fixed:
            self._break_symmetry()

    def _break_symmetry(self) -> None:
        for members in self.instance.twins:
            for first, second in itertools.pairwise(members):
                for unit, row in enumerate(self.on):
                    if row[second] is not None:
                        before = [r[first] for r in self.on[:unit] if r[first] is not None]
                        self.model.add_bool_or([*before, row[second].negated()])

    def _start_ops(self) -> None:
        """Starts within heads and tails, and after all that an op waits for."""
        instance, model, start = self.instance, self.model, self.task.start
        self.start: list[Any] = []
        self.length: list[Any] = []
        for op in range(instance.n_ops):
            may = [d for d in range(instance.n_devices) if self._x(op, d) is not None]
            head, tail, time = (c[op] for c in (instance.head, instance.tail, instance.time))
            latest = max(self.limit - int(tail[d] + time[d]) for d in may)
            begin = model.new_int_var(min(int(head[d]) for d in may), latest, "")
            self.start.append(self._hint(begin, start.start[op]))
            lengths = {int(time[d]) for d in may}
            self.length.append(
                lengths.pop()
                if len(lengths) == 1
                else sum(int(time[d]) * self._x(op, d) for d in may)
            )
            for d in may:
                late = self.limit - int(tail[d] + time[d])
                if late < latest:
                    model.add(begin <= late).only_enforce_if(self._x(op, d))
                if head[d] > min(int(head[e]) for e in may):
                    model.add(begin >= int(head[d])).only_enforce_if(self._x(op, d))
        for source, reader in instance.edges:
            model.add(self.start[reader] >= self._finish(source))

    def _finish(self, op: int) -> Any:
        return self.start[op] + self.length[op]

    def _share_devices(self) -> None:
        """A device runs one op at a time: an order for every pair that could meet on a device."""
        instance, model = self.instance, self.model
        for device in range(instance.n_devices):
            model.add_no_overlap(
                model.new_optional_fixed_size_interval_var(
                    self.start[op], int(instance.time[op, device]), self._x(op, device), ""
                )
                for op in range(instance.n_ops)
                if self._x(op, device) is not None
            )
        self.meets: dict[tuple[frozenset[tuple[int, int]], int, int], Any] = {}
        self.before: dict[tuple[int, int], Any] = {}
        same = frozenset((d, d) for d in range(instance.n_devices))
        for u, v in instance.loose_pairs:
            together = self._meet(same, u, v)
            if together is None:
                continue
            self.before[u, v] = self._literal(self._comes_first(u, v))
            self.before[v, u] = self.before[u, v].negated()
            for a, b in ((u, v), (v, u)):
                model.add(self.start[b] >= self._finish(a)).only_enforce_if(
                    *_true(together), self.before[a, b]
                )

    def _comes_first(self, u: int, v: int) -> bool:
        start = self.task.start
        return (start.finish[u], start.start[u], u) < (start.finish[v], start.start[v], v)

    def _meet(self, pairs: frozenset[tuple[int, int]], u: int, v: int) -> Any:
        """A literal that is true if two ops are on one of these pairs of devices; True where
        they always are; None where they never can be.
        """
        rows = [self.on[self.instance.unit[op]] for op in (u, v)]
        may = [(s, r) for s, row in enumerate(rows[0]) if row is not None for r in _given(rows[1])]
        if self.instance.unit[u] == self.instance.unit[v]:
            may = [(s, r) for s, r in may if s == r]
        within = [pair for pair in may if pair in pairs]
        if not within:
            return None
        if len(within) == len(may):
            return True
        key = (pairs, u, v)
        if key not in self.meets:
            at = tuple(self.task.start.devices[[u, v]].tolist())
            meets = self.meets[key] = self._literal(at in pairs)
            for s, r in within:
                self.model.add_bool_or([meets, rows[0][s].negated(), rows[1][r].negated()])
        return self.meets[key]

    def _send(self) -> None:
        """A tensor is sent to each device that reads it and does not make it; readers wait."""
        instance, model, start = self.instance, self.model, self.task.start
        self.sent: dict[Message, Any] = {}
        self.leaves: dict[Message, Any] = {}
        self.takes: dict[Message, Any] = {}
        #: True if a message comes from a device.
        self.comes: dict[tuple[Message, int], Any] = {}
        for message in instance.messages:
            tensor, device = instance.tensors[message.tensor], message.device
            readers = [r for r in tensor.readers if self._x(r, device) is not None]
            senders = [
                s for s in instance.senders(message) if self._x(tensor.source, s) is not None
            ]
            if not readers or not senders:
                continue
            made_here = self._x(tensor.source, device)
            sent = self.sent[message] = self._literal(message in start.sent)
            for reader in readers:
                clause = [sent, self._x(reader, device).negated()]
                model.add_bool_or(clause if made_here is None else [*clause, made_here])
            if made_here is not None:
                model.add_implication(sent, made_here.negated())
            model.add_bool_or([sent.negated(), *(self._x(r, device) for r in readers)])
            leaves = model.new_int_var(0, self.limit, "")
            took = start.sent.get(message)
            ready = 0 if tensor.home else start.finish[tensor.source]
            self.leaves[message] = self._hint(leaves, took[0] if took else ready)
            if not tensor.home:
                model.add(leaves >= self._finish(tensor.source)).only_enforce_if(sent)
            self._time(message, senders)
            for reader in readers:
                model.add(self.start[reader] >= leaves + self.takes[message]).only_enforce_if(
                    sent, self._x(reader, device)
                )

    def _time(self, message: Message, senders: list[int]) -> None:
        """Ticks that a message takes, and the device that it comes from."""
        instance = self.instance
        tensor, sent = instance.tensors[message.tensor], self.sent[message]
        at = int(self.task.start.devices[tensor.source])
        for s in senders:
            comes = sent
            if len(senders) > 1:
                comes = self._literal(message in self.task.start.sent and s == at)
                made_there = self._x(tensor.source, s)
                self.model.add_bool_or([comes, sent.negated(), made_there.negated()])
                self.model.add_implication(comes, sent)
                self.model.add_implication(comes, made_there)
            self.comes[message, s] = comes
        times = {s: int(tensor.time[s, message.device]) for s in senders}
        if len(set(times.values())) == 1:
            self.takes[message] = times[senders[0]]
        else:
            self.takes[message] = sum(times[s] * self.comes[message, s] for s in senders)

    def _share_channels(self) -> None:
        """A channel carries one transfer at a time, first come, first served unless the link order
        is free.
        """
        by_pair: dict[tuple[int, int], list[Any]] = {}
        for (message, s), comes in self.comes.items():
            tensor = self.instance.tensors[message.tensor]
            interval = self.model.new_optional_fixed_size_interval_var(
                self.leaves[message], int(tensor.time[s, message.device]), comes, ""
            )
            by_pair.setdefault((s, message.device), []).append(interval)
        for channel in self.instance.channels:
            pairs = sorted(channel & by_pair.keys())
            self.model.add_no_overlap([i for pair in pairs for i in by_pair[pair]])
        if self.task.is_fcfs:
            for a, b in itertools.combinations(self.sent, 2):
                self._queue(a, b)

    def _queue(self, a: Message, b: Message) -> None:
        """Of two messages that may share a channel, the one that is made first is sent first."""
        instance, model = self.instance, self.model
        first, second = (instance.tensors[m.tensor] for m in (a, b))
        pairs = instance.sharing[a.device, b.device]
        if not pairs:
            return
        meet = self._meet(pairs, first.source, second.source)
        if meet is None:
            return
        both = [self.sent[a], self.sent[b], *_true(meet)]

        def after(early: Message, late: Message, *when: Any) -> None:
            model.add(self.leaves[late] >= self.leaves[early] + self.takes[early]).only_enforce_if(
                *both, *when
            )

        u, v = first.source, second.source
        if first.home or (not second.home and (u == v or instance.precedes[u, v])):
            after(a, b)
        elif second.home or instance.precedes[v, u]:
            after(b, a)
        elif all(s == r for s, r in pairs) and (u, v) in self.before:
            after(a, b, self.before[u, v])
            after(b, a, self.before[v, u])
        else:
            self._by_finish(a, b, both, after)

    def _by_finish(self, a: Message, b: Message, both: list[Any], after: Any) -> None:
        """As :meth:`_queue`, for messages from two devices: by ends of ops, ties by tensor."""
        instance, model = self.instance, self.model
        u, v = (instance.tensors[m.tensor].source for m in (a, b))
        start = self.task.start
        key = (a.tensor, b.tensor)
        if key not in self.earlier:
            earlier = self.earlier[key] = self._literal(start.finish[u] <= start.finish[v])
            # An op that takes no time may end in a later round of the same instant.
            least = min(int(instance.time[op][instance.allowed[op]].min()) for op in (u, v))
            step = int(instance.exact and least > 0)
            model.add(self._finish(u) <= self._finish(v)).only_enforce_if(*both, earlier)
            model.add(self._finish(v) + step <= self._finish(u)).only_enforce_if(
                *both, earlier.negated()
            )
        after(a, b, self.earlier[key])
        after(b, a, self.earlier[key].negated())

    def _bound(self) -> None:
        """The makespan and its lower bounds."""
        instance, model, limit = self.instance, self.model, self.limit
        end = self._hint(model.new_int_var(min(instance.lower, limit), limit, "end"), limit)
        for op in range(instance.n_ops):
            may = [d for d in range(instance.n_devices) if self._x(op, d) is not None]
            model.add(end >= self._finish(op) + min(int(instance.tail[op, d]) for d in may))
        for device in range(instance.n_devices):
            model.add(
                end
                >= sum(
                    int(instance.time[op, device]) * self._x(op, device)
                    for op in range(instance.n_ops)
                    if self._x(op, device) is not None
                )
            )
        model.minimize(end)


def _given(row: Iterable[Any]) -> list[int]:
    return [i for i, x in enumerate(row) if x is not None]


def _true(meet: Any) -> list[Any]:
    """The literals of a condition; none where the condition always holds."""
    return [] if meet is True else [meet]


if __name__ == "__main__":
    serve(work)
