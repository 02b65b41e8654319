"""Plan: what runs where and when, and how good that is. Saved and loaded as JSON.

What is said of a plan, drawn of it or written from it are functions of their own, which the methods
here only call: ``explain``, ``diff``, ``summary``, ``report``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.files import write_json
from loadmaster.base.text import Printed, escaped
from loadmaster.base.units import format_seconds
from loadmaster.costs import Costs
from loadmaster.costs.runtimes.priced import runtime_of
from loadmaster.judge.assignment import Assignment
from loadmaster.judge.bounds import WHOLE_OPS
from loadmaster.judge.objective import Objective
from loadmaster.judge.policies import PlanPolicy
from loadmaster.judge.problem import Problem
from loadmaster.judge.simulation import Memory, Simulation, run
from loadmaster.judge.streaming import judge
from loadmaster.judge.verdict import Verdict
from loadmaster.model.cluster import Cluster
from loadmaster.model.graph import OpGraph
from loadmaster.model.parallelism import Parallelism
from loadmaster.model.program import Program, Split
from loadmaster.model.recipe import Recipe
from loadmaster.plans.planner import Planner
from loadmaster.rules.binding import Binding, bind
from loadmaster.rules.constraints import Constraints
from loadmaster.strategies.candidate import Best
from loadmaster.transforms.layout import Layout
from loadmaster.transforms.shares import batch_size

if TYPE_CHECKING:
    from loadmaster.plans.comparison import Comparison
    from loadmaster.plans.difference import Difference
    from loadmaster.plans.explain import Explanation
    from loadmaster.plans.parts import OpPart
    from loadmaster.systems.registry import Checked


@dataclass(frozen=True, kw_only=True)
class Plan(Printed):
    """A program, an assignment of its ops, the judge's verdict on it, and how it was made.

    Attributes
    ----------
    problem : Problem
        The program, the cluster and the costs that it is for.
    assignment : Assignment
        Device and priority of every op that runs.
    verdict : Verdict
        What the simulator, or a real run, saw of it.
    method, options
        How it was made.
    lower_bound : float
        Seconds below which no plan of the space that its method searched can go, if it obeys the
        constraints.
    bound_source : str
        The argument behind the bound.
    space : str
        That space: one of :data:`loadmaster.judge.bounds.SPACES`.
    bounds : mapping of space to seconds
        The bound of every space.
    offers : tuple of Best
        What each space had to offer, the best of each first, where its method searched several.
    left_out : tuple of (str, str)
        Kinds of plans of which its method has none to show, each with why.
    notes : tuple of str
        What came up on the way.
    planning_seconds : float
        Wall time it took to make.
    constraints : Constraints
        What it was made to obey. Capacities are the cluster's all the same.
    target : str or None
        The system that it was made for, by a name in :data:`loadmaster.systems.SYSTEMS`.
    parallelism : Parallelism or None
        How many devices share what of a step. None: no degrees say that, as where whole ops are
        placed freely.
    for_writer : mapping of str to value
        Facts that the planner of the target leaves to its writer, as values of JSON.
    observed : Simulation or None
        What was measured of it; None: it was simulated.
    checked : dict of str to Checked
        By target, what came of the check of the file that it was last exported to.
    """

    problem: Problem = field(repr=False)
    assignment: Assignment = field(repr=False)
    verdict: Verdict = field(repr=False)
    method: str
    options: Mapping[str, Any]
    lower_bound: float
    bound_source: str
    space: str = WHOLE_OPS
    bounds: Mapping[str, float] = field(default_factory=dict)
    offers: tuple[Best, ...] = ()
    left_out: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    planning_seconds: float = 0.0
    constraints: Constraints = field(default_factory=Constraints)
    target: str | None = None
    parallelism: Parallelism | None = None
    for_writer: Mapping[str, Any] = field(default_factory=dict, repr=False)
    observed: Simulation | None = field(default=None, repr=False)
    checked: dict[str, Checked] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __str__(self) -> str:
        return self.summary()

    def __repr__(self) -> str:
        names = f"{self.graph.name or 'graph'} on {self.cluster.name or 'cluster'}"
        of = escaped(f"{names} by {self.made_by}")
        return f"Plan({of}: {format_seconds(self.makespan)} per step)"

    # -- what was decided --------------------------------------------------------------------

    @property
    def program(self) -> Program:
        """The user's graph, the graph that runs, and which op of the one each of the other is."""
        return self.problem.program

    @property
    def graph(self) -> OpGraph:
        """The user's graph."""
        return self.program.source

    @property
    def cluster(self) -> Cluster:
        """The cluster it is for."""
        return self.problem.cluster

    @property
    def costs(self) -> Costs:
        """The times of the user's ops that it was made with."""
        return self.problem.user_costs

    @property
    def seed(self) -> int:
        """The seed it was made with."""
        return self.problem.seed

    @property
    def splits(self) -> tuple[Split, ...]:
        """Ops that were split (name, dimension, number of parts), in this order."""
        return self.program.splits

    @property
    def recipe(self) -> Recipe | None:
        """The splits in terms of modules; None: no recipe says them."""
        return self.program.recipe

    @cached_property
    def layout(self) -> Layout | None:
        """The specs of every tensor by the recipe, of a pipeline inside of its stage. None: there
        is no recipe, or it has stages of one device.
        """
        if self.recipe is None or self.recipe.inside is None:
            return None
        return Layout.of(self.graph, self.recipe)

    @cached_property
    def running_devices(self) -> NDArray[np.int32]:
        """Device index per op of the graph that runs, int32 [program.graph.n_ops]."""
        return _frozen(self.assignment.devices[self.problem.reduced.map])

    @cached_property
    def running_priority(self) -> NDArray[np.int32]:
        """Priority per op of the graph that runs, int32 [program.graph.n_ops]."""
        return _frozen(self.assignment.priority[self.problem.reduced.map])

    @cached_property
    def devices(self) -> NDArray[np.int32]:
        """Device index per op of the user's graph, int32 [n_ops]; -1: the op has parts, which
        :meth:`parts` lists.
        """
        return self._per_user_op(self.running_devices)

    @cached_property
    def priority(self) -> NDArray[np.int32]:
        """Priority per op of the user's graph, int32 [n_ops]: smaller runs first; -1: the op has
        parts.
        """
        return self._per_user_op(self.running_priority)

    def _per_user_op(self, column: NDArray[np.int32]) -> NDArray[np.int32]:
        if self.program.is_plain:
            return column
        whole = self.program.whole
        return _frozen(np.where(whole >= 0, column[whole], -1).astype(np.int32))

    @property
    def policy(self) -> PlanPolicy:
        """The way that a device heeds priorities: ``"priority"``, the first of the ready ops, or
        ``"fixed"``, exactly in this order, waiting where the next op is not ready.
        """
        return self.assignment.policy

    @property
    def estimate(self) -> float | None:
        """Seconds per step that the strategy itself expected, where it does."""
        return self.assignment.estimate

    def parts(self, op: str | int) -> tuple[OpPart, ...]:
        """The ops that do the work of an op of the user's graph: the op itself, or its parts.

        Raises
        ------
        InputError
            No op has that name.

        Examples
        --------
        >>> import loadmaster as lm
        >>> graph, cluster = lm.read("example:lenet"), lm.Cluster.preset("2xV100-NVLink")
        >>> for part in lm.place(graph, cluster, "data-parallel").parts("convolution"):
        ...     print(*part)
        convolution@r0 gpu0 0.5 0
        convolution@r1 gpu1 0.5 1
        """
        from loadmaster.plans.parts import parts

        return parts(self, op)

    def device(self, op: str | int) -> str:
        """Name of the device an op is on.

        Raises
        ------
        InputError
            No op has that name, or its parts are on several devices.
        """
        from loadmaster.plans.parts import device

        return device(self, op)

    @cached_property
    def binding(self) -> Binding:
        """The constraints as they bind each op that runs."""
        return bind(self.problem, self.constraints)

    # -- how good it is ----------------------------------------------------------------------

    @property
    def gap(self) -> float:
        """1 - lower bound / seconds: no plan of its space can be faster by more.

        The seconds are those of a step as it is run, or where it was made for throughput, of its
        period.
        """
        verdict = replace(self.verdict, step_time=self.as_run)
        return self.objective.gap(verdict, self.lower_bound)

    @property
    def objective(self) -> Objective:
        """The objective that it was made for."""
        return self.problem.objective

    @property
    def runtime(self) -> str | None:
        """The runtime that it was made for, of
        :data:`loadmaster.costs.runtimes.priced.RUNTIMES`; None: nobody asked for one.
        """
        return runtime_of(self.graph)

    @property
    def makespan(self) -> float:
        """Seconds per step, as simulated or measured."""
        return self.verdict.step_time

    @cached_property
    def as_run(self) -> float:
        """Seconds per step as its target runs it: of sub-models, with what each one's run costs.

        Of other targets and methods the same as :attr:`makespan`.
        """
        from loadmaster.plans.as_run import as_run

        return as_run(self)

    @property
    def period(self) -> float:
        """Seconds between batches that follow each other without a pause.

        Of a plan made for throughput: what a simulated stream came to. Of another plan: those of
        its busiest device or channel, which no stream can beat.
        """
        return self.verdict.period

    @property
    def latency(self) -> float:
        """Seconds from a batch's first op to its last: in a stream, or of a step alone."""
        steady = self.verdict.steady
        return self.makespan if steady is None else steady.latency

    @property
    def in_flight(self) -> int:
        """Batches that are under way at a time: 1, unless it was made for throughput."""
        steady = self.verdict.steady
        return 1 if steady is None else steady.in_flight

    @property
    def limit(self) -> str | None:
        """The resource that keeps the period from being shorter: a device, a channel, or memory.

        None: it was not made for throughput.
        """
        steady = self.verdict.steady
        return None if steady is None else str(steady.limit)

    @property
    def rate(self) -> float:
        """Samples per second; batches, where the graph does not say how many samples one has."""
        return (batch_size(self.graph) or 1) / self.period if self.period else float("inf")

    @cached_property
    def schedule(self) -> Simulation:
        """The step as simulated, or as measured."""
        return self.observed or run(self.problem, self.assignment)

    @cached_property
    def memory(self) -> Memory:
        """Memory of every device; of a run that did not measure it, what was predicted.

        Of a plan made for throughput the peaks are those with all batches under way.
        """
        seen = self.schedule.memory
        if self.verdict.steady is not None:
            return replace(seen, peak=self.verdict.peak)
        return seen if seen.is_known else replace(self.predicted.memory, is_predicted=True)

    @property
    def fits(self) -> bool:
        """True if no device ever holds more than it can."""
        return self.verdict.fits

    @cached_property
    def single(self) -> float | None:
        """Seconds per step of the user's graph on the fastest single device that holds it, as the
        target would run it; None: none does.
        """
        from loadmaster.plans.rejudged import single

        return single(self)

    def measured(self, seen: Simulation) -> Plan:
        """The same plan with what was measured of it, instead of what was simulated.

        Pictures and tables then show the measured step.
        """
        from loadmaster.plans.rejudged import measured

        return measured(self, seen)

    @property
    def made_by(self) -> str:
        """Its method or its target in words, and that it was measured, where it was."""
        planner = Planner(self.target or self.method, is_target=self.target is not None)
        return str(planner) if self.observed is None else f"{planner}, measured"

    @cached_property
    def predicted(self) -> Plan:
        """The plan as the simulator sees it: itself, if it is not :meth:`measured`."""
        if self.observed is None:
            return self
        return replace(self, verdict=judge(self.problem, self.assignment), observed=None)

    @property
    def provenance(self) -> dict[str, float]:
        """Share of the time by where it comes from (``measured``, ``roofline``, ...)."""
        return self.problem.costs.shares()

    def explain(self, op: str | int) -> Explanation:
        """Why an op is where it is; see :class:`~loadmaster.plans.explain.Explanation`.

        Examples
        --------
        >>> import loadmaster as lm
        >>> plan = lm.place(lm.read("example:lenet"), lm.Cluster.preset("2xV100-NVLink"), "heft")
        >>> plan.explain("convolution").device
        'gpu0'
        """
        from loadmaster.plans.explain import explain

        return explain(self, op)

    def diff(self, other: Plan) -> Difference:
        """The difference that another plan for the same ops makes, and what that gains; see
        :class:`~loadmaster.plans.difference.Difference`.

        Examples
        --------
        >>> import loadmaster as lm
        >>> graph, cluster = lm.read("example:lenet"), lm.Cluster.preset("2xV100-NVLink")
        >>> plans = lm.compare(graph, cluster, ["random", "heft"]).plans
        >>> plans["random"].diff(plans["heft"]).speedup > 1
        True
        """
        from loadmaster.plans.difference import difference

        return difference(self, other)

    def report(self, path: str | os.PathLike[str], *, comparison: Comparison | None = None) -> None:
        """Writes the plan as one HTML page; see :func:`~loadmaster.writers.report.write_report`."""
        from loadmaster.writers.report import write_report

        write_report(self, path, comparison=comparison)

    def export(
        self,
        target: str | None = None,
        path: str | os.PathLike[str] | None = None,
        *,
        check: bool = True,
        **options: Any,
    ) -> Any:
        """Writes the plan for another system, and checks the file.

        See :func:`~loadmaster.writers.export.export`.

        Examples
        --------
        >>> import loadmaster as lm
        >>> plan = lm.place("example:lenet", "2xV100-NVLink", "heft")
        >>> plan.export("tensorflow")["convolution"]
        '/device:GPU:0'
        """
        from loadmaster.writers.export import export

        return export(self, target, path, check=check, **options)

    def summary(self) -> str:
        """The plan for a person, in a dozen lines or fewer."""
        from loadmaster.plans.summary import summary

        return summary(self)

    def on(self, cluster: Cluster) -> Plan:
        """The same placement and order on another cluster, by device index, judged anew.

        Costs given by hand are kept where the device types are the same; else times are estimated
        for the other cluster's types. Constraints are not carried over.

        Raises
        ------
        InputError
            The cluster has fewer devices than the plan uses.
        """
        from loadmaster.plans.rejudged import on

        return on(self, cluster)

    # -- on disk -----------------------------------------------------------------------------

    def to_document(self) -> dict[str, Any]:
        """As the JSON document that :meth:`save` writes."""
        from loadmaster.plans.document import plan_document

        return plan_document(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the plan as JSON, gzipped if the path ends in ``.gz``."""
        write_json(path, self.to_document())

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        graph: OpGraph | None = None,
        cluster: Cluster | None = None,
        *,
        max_input: int | str | None = None,
    ) -> Plan:
        """Reads a saved plan, and simulates it again.

        Parameters
        ----------
        path
        graph, cluster : optional
            What the plan should be for; if it is not, that is an error.
        max_input : int or str, optional
            As for :func:`loadmaster.read`.

        Raises
        ------
        InputError
            Not a plan, another version, damaged, or a plan for another graph or cluster.
        """
        from loadmaster.plans.document import read_plan

        return read_plan(path, graph, cluster, max_input=max_input)

    @classmethod
    def from_document(
        cls,
        document: Any,
        source: str = "plan",
        graph: OpGraph | None = None,
        cluster: Cluster | None = None,
    ) -> Plan:
        """The plan of a document of :meth:`to_document`, simulated again.

        Errors name ``source`` and are those of :meth:`load`.
        """
        from loadmaster.plans.document import plan_of_document

        return plan_of_document(document, source, graph, cluster)


def _frozen(column: NDArray[np.int32]) -> NDArray[np.int32]:
    column.flags.writeable = False
    return column
