"""Measured: the steps of a plan that ran, beside what was predicted of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.errors import InputError
from loadmaster.base.files import write_json
from loadmaster.base.text import Printed
from loadmaster.base.units import counted
from loadmaster.judge.simulation import Memory, Simulation
from loadmaster.judge.timeline import Timeline
from loadmaster.model.profile import Profile
from loadmaster.plans.plan import Plan

if TYPE_CHECKING:
    from loadmaster.plans.comparison import Comparison
    from loadmaster.running.measured.account import Account
    from loadmaster.running.measured.explained import Explained
    from loadmaster.running.measured.ratios import Ratios

Floats = NDArray[np.float64]

#: From so many steps on, the 10th percentile stands for them; of fewer, the least does.
ENOUGH_STEPS = 24

#: The share of a step that workers may wait for a core; beyond it, the machine is too busy.
MOST_DELAY = 0.02


@dataclass(frozen=True, eq=False)
class Steps:
    """Begin and end of everything in each step that was measured, by the clock.

    Times are seconds since the step began, as they passed on the machine: of a run that was
    stretched, they are longer than the plan's.

    Attributes
    ----------
    start, finish : float64 [n_steps, n_ops]
        Of the ops of the graph that runs. A placeholder is there at 0. A member of a collective
        starts when it has arrived, and ends with the collective.
    sent_start, sent_finish : float64 [n_steps, n_transfers]
        Of the transfers, in the order of those that the plan's simulation has
        (``plan.schedule.transfers``).
    gathered_start, gathered_finish : float64 [n_steps, n_collectives]
        Of the collectives, in the order of ``plan.schedule.collectives``.
    seconds : float64 [n_steps]
        Of the whole step.
    delay : float64 [n_steps]
        Seconds for which workers were ready and had no core, the longest of all workers.
    peaks : uint64 [n_devices] or None
        Most bytes that each device held; None: not measured.

    Raises
    ------
    InputError
        Columns of different lengths, a time that is negative, infinite or no number, an end before
        its begin; the column and the step are named.
    """

    start: Floats
    finish: Floats
    sent_start: Floats
    sent_finish: Floats
    gathered_start: Floats
    gathered_finish: Floats
    seconds: Floats
    delay: Floats
    peaks: NDArray[np.uint64] | None = None

    def __post_init__(self) -> None:
        n = len(self.seconds)
        if not n:
            raise InputError("no step was measured: run at least one")
        for column in _TIMES:
            values = getattr(self, column)
            wanted = 1 if column in ("seconds", "delay") else 2
            if values.ndim != wanted or len(values) != n or values.dtype != np.float64:
                raise InputError(
                    f"{column} has shape {values.shape} ({values.dtype}): wants seconds of "
                    f"{counted(n, 'step')}, as float64"
                )
            bad = np.argwhere(~((values >= 0) & (values < np.inf)))
            if len(bad):
                at = tuple(bad[0].tolist())
                raise InputError(f"{column} of step {at[0]} has {values[at]}: wants seconds >= 0")
        for begin, end in _PAIRS:
            first, last = getattr(self, begin), getattr(self, end)
            if first.shape != last.shape:
                raise InputError(f"{begin} has shape {first.shape}, {end} {last.shape}")
            bad = np.argwhere(last < first)
            if len(bad):
                step, at = bad[0].tolist()
                raise InputError(
                    f"{end}[{at}] of step {step} is {last[step, at]} s, before {begin}: "
                    f"{first[step, at]} s"
                )

    def __len__(self) -> int:
        return len(self.seconds)

    def some(self, which: NDArray[np.int64]) -> Steps:
        """Those of these indices, in their order."""
        return replace(self, **{column: getattr(self, column)[which] for column in _TIMES})

    def joined(self, others: Sequence[Steps]) -> Steps:
        """These steps and others, in turn; of peaks the largest."""
        every = [self, *others]
        columns = {name: np.concatenate([getattr(one, name) for one in every]) for name in _TIMES}
        peaks = [one.peaks for one in every if one.peaks is not None]
        most = np.max(peaks, axis=0) if len(peaks) == len(every) else None
        return Steps(**columns, peaks=most)


_PAIRS = (
    ("start", "finish"),
    ("sent_start", "sent_finish"),
    ("gathered_start", "gathered_finish"),
)
_TIMES = tuple(column.name for column in fields(Steps) if column.name != "peaks")


@dataclass(frozen=True, eq=False)
class Measured(Printed):
    """A plan, and the steps of it that ran.

    Attributes
    ----------
    plan : Plan
        As it was predicted.
    steps : Steps
        As they passed on the machine.
    on : tuple of str
        What each device of the plan's cluster was: ``"emulated"``, ``"cpu:0"``, ...
    stretch : float
        How many times longer than the plan's times everything was made to take, so that it can be
        told from what the machine adds. All that is said of a run is in the plan's seconds.

    Raises
    ------
    InputError
        Steps of another number of ops, transfers, collectives or devices than the plan's.

    Examples
    --------
    >>> import loadmaster as lm
    >>> plan = lm.place(lm.read("example:lenet"), lm.Cluster.preset("2xV100-NVLink"), "heft")
    >>> seen = lm.emulate(plan, 2, seconds=0.02)
    >>> seen.step_is, seen.on
    ('least', ('emulated', 'emulated'))
    >>> abs(sum(seen.causes().parts.values()) - (seen.step - plan.makespan)) < 1e-12
    True
    """

    plan: Plan
    steps: Steps
    on: tuple[str, ...]
    stretch: float = 1.0

    def __post_init__(self) -> None:
        schedule, n_devices = self.plan.schedule, self.plan.cluster.n_devices
        for name, column, wanted in (
            ("op", self.steps.start, len(schedule.start)),
            ("transfer", self.steps.sent_start, len(schedule.transfers)),
            ("collective", self.steps.gathered_start, len(schedule.collectives)),
        ):
            if column.shape[1] != wanted:
                raise InputError(
                    f"the steps are of {counted(column.shape[1], name)}, the plan has {wanted}"
                )
        if len(self.on) != n_devices:
            raise InputError(
                f"{counted(len(self.on), 'device')} measured: the plan's cluster has {n_devices}"
            )
        if self.steps.peaks is not None and self.steps.peaks.shape != (n_devices,):
            raise InputError(f"peaks has shape {self.steps.peaks.shape}, wants ({n_devices},)")
        if not 0 < self.stretch < float("inf"):
            raise InputError(f"stretch is {self.stretch}: wants a number above 0")

    @cached_property
    def step(self) -> float:
        """Seconds per step: the 10th percentile of 24 steps and more, the least of fewer.

        :attr:`step_is` says which.
        """
        return float(typical(self.steps.seconds)) / self.stretch

    @property
    def step_is(self) -> str:
        """The words "10th percentile" or "least"."""
        return "10th percentile" if len(self.steps) >= ENOUGH_STEPS else "least"

    @property
    def error(self) -> float:
        """Predicted over measured step time, minus 1."""
        return self.plan.makespan / self.step - 1 if self.step else 0.0

    # -- was the machine quiet -------------------------------------------------------------------

    @property
    def delay(self) -> float:
        """The share of the time of all steps for which workers were ready and had no core."""
        total = float(self.steps.seconds.sum())
        return float(self.steps.delay.sum()) / total if total else 0.0

    @property
    def is_busy(self) -> bool:
        """True if that is more than 2 %: the machine had other work, and times are too long."""
        return self.delay > MOST_DELAY

    @property
    def busy(self) -> str:
        """Words on a machine that was too busy, with the way out; empty where it was not."""
        if not self.is_busy:
            return ""
        return (
            f"the machine was too busy: workers were ready and waited for a core for "
            f"{self.delay:.1%} of the time, more than {MOST_DELAY:.0%}. Measure again when nothing "
            "else runs, or on other cores"
        )

    # -- the step that stands for all ------------------------------------------------------------

    @cached_property
    def _begun(self) -> Floats:
        """Time at which each op was taken up in each step, by the clock."""
        from loadmaster.running.measured.taking_up import taken_up

        return taken_up(self.plan, self.steps)

    @cached_property
    def timeline(self) -> Timeline:
        """The step that took :attr:`step`, in the plan's seconds."""
        return self.timeline_of(
            int(np.abs(self.steps.seconds - typical(self.steps.seconds)).argmin())
        )

    def timeline_of(self, step: int) -> Timeline:
        """One of the steps, in the plan's seconds.

        An op starts once its device was free for it and its inputs were there: what the device does
        between two ops belongs to the second of them.
        """
        plan, graph = self.plan, self.plan.program.graph
        start, finish, sent_start, sent_finish, began, ended = (
            getattr(self.steps, column)[step] / self.stretch for pair in _PAIRS for column in pair
        )
        start = np.where(graph.is_member, start, self._begun[step] / self.stretch)
        sent, together = plan.schedule.transfers, plan.schedule.collectives
        ready = np.where(graph.placeholder[sent.op], 0.0, finish[sent.op])
        # A home tensor is there at 0, whatever its first reader does.
        ready = np.where(plan.schedule.sent_from_home, 0.0, np.minimum(ready, sent_start))
        sent = replace(sent, queued=ready, copied=ready, start=sent_start, finish=sent_finish)
        if len(together):
            last = [max(members, key=lambda op: start[op]) for members in together.members]
            arrived = np.minimum(start[last], began)
            for i, members in enumerate(together.members):
                start[list(members)], finish[list(members)] = began[i], ended[i]
            together = replace(
                together,
                op=np.array(last, dtype=np.int32),
                queued=arrived,
                start=began,
                finish=ended,
            )
        return Timeline.measured(plan.program, plan.running_devices, start, finish, sent, together)

    @cached_property
    def seen(self) -> Plan:
        """The plan with :attr:`timeline` in the place of its simulation: what pictures, traces and
        differences are made of.
        """
        plan, memory = self.plan, Memory.unknown(self.plan.problem.capacity)
        if self.steps.peaks is not None:
            memory = replace(memory, peak=self.steps.peaks, is_known=True)
        return plan.measured(Simulation(plan.problem, self.timeline, memory))

    # -- what it tells ---------------------------------------------------------------------------

    @cached_property
    def op_seconds(self) -> Floats:
        """Seconds of each op of the graph that runs in each step, float64 [n_steps, n_ops].

        They count from when its device was free for it, as in :attr:`timeline`.
        """
        return (self.steps.finish - self._begun) / self.stretch

    def part_seconds(self, begin: str, end: str) -> Floats:
        """Seconds between two columns of :attr:`steps`, as they stand for all steps, float64 [n].

        >>> import loadmaster as lm
        >>> plan = lm.place(lm.read("example:lenet"), lm.Cluster.preset("2xV100-NVLink"), "random")
        >>> seen = lm.emulate(plan, 2, seconds=0.02)
        >>> len(seen.part_seconds("sent_start", "sent_finish")) == len(plan.schedule.transfers)
        True
        """
        taken = getattr(self.steps, end) - getattr(self.steps, begin)
        seconds: Floats = taken[fastest(self.steps.seconds)].mean(axis=0) / self.stretch
        return seconds

    def profile(self, device_type: str | None = None) -> Profile:
        """Times of the ops of the user's graph in every step, for cost models.

        An op that has parts takes what its parts took, each without its launch and divided by its
        share, on average: so :func:`loadmaster.costs.program.program_costs` gets back to the parts.

        Parameters
        ----------
        device_type : str, optional
            Of which ops ran on several types, the one to tell of.

        Raises
        ------
        InputError
            Ops ran on several device types, and none is chosen; none ran on the one that is.
        """
        from loadmaster.running.measured.profiled import profile

        return profile(self, device_type)

    def ratios(self) -> Ratios:
        """Predicted over measured seconds of the step, each kind of op and each link."""
        from loadmaster.running.measured.ratios import ratios

        return ratios(self)

    def causes(self) -> Account:
        """The ops, transfers and waits that the difference to the prediction is made of."""
        from loadmaster.running.measured.account import account

        return account(self)

    def explain(self, op: str | int) -> Explained:
        """Start of an op and the cause that it waited for, measured beside predicted.

        Raises
        ------
        InputError
            No op has that name.
        """
        from loadmaster.running.measured.explained import explained

        return explained(self, op)

    def report(self, path: str | os.PathLike[str], *, comparison: Comparison | None = None) -> None:
        """Writes the run beside its prediction as one HTML page; see
        :func:`~loadmaster.writers.report.write_report`.
        """
        from loadmaster.writers.report import write_report

        write_report(self, path, comparison=comparison)

    def __str__(self) -> str:
        return self.summary()

    def summary(self) -> str:
        """A summary for a person: the step beside its prediction, peaks, ratios, causes."""
        from loadmaster.running.measured.summary import summary

        return summary(self)

    def to_document(self) -> dict[str, Any]:
        """As the JSON document that :meth:`save` writes."""
        from loadmaster.running.measured.document import measured_document

        return measured_document(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the plan and its steps as JSON, gzipped if the path ends in ``.gz``."""
        write_json(path, self.to_document())

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, max_input: int | str | None = None) -> Measured:
        """Reads what :meth:`save` wrote.

        Raises
        ------
        InputError
            Not a measured run, another version, damaged, or steps that are not those of its plan.
        """
        from loadmaster.running.measured.document import read_measured

        return read_measured(path, max_input=max_input)


def typical(seconds: Floats) -> Floats:
    """A typical value of these steps: of 24 and more the 10th percentile, a value that was
    measured; of fewer the least. Further axes are kept.

    Noise only adds time, so the low end repeats from run to run. With many steps a percentile is
    steadier than the least.

    >>> typical(np.arange(1.0, 31.0)).tolist(), typical(np.array([3.0, 2.0])).tolist()
    (3.0, 2.0)
    """
    share = 0.1 if len(seconds) >= ENOUGH_STEPS else 0.0
    return np.asarray(np.quantile(seconds, share, axis=0, method="inverted_cdf"))


def fastest(seconds: Floats) -> NDArray[np.int64]:
    """Steps whose mean stands for the parts of a step: of 24 and more the fastest fifth, of fewer
    the fastest. int64, by index.

    What parts took in them adds up to about :func:`typical`. The sum of each part's own 10th
    percentile would be less: parts are not all fast in the same step.

    >>> fastest(np.array([3.0, 2.0, 4.0])).tolist()
    [1]
    """
    n = len(seconds) // 5 if len(seconds) >= ENOUGH_STEPS else 1
    return np.sort(np.argsort(seconds, kind="stable")[:n])
