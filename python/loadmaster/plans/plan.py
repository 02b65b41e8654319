"""Plan: what runs where and when, why, and how good that is. Saved and loaded as JSON.

A saved plan holds the graph, the cluster and the costs it was made for, so that it can be explained
and simulated anywhere, and hashes of them, so that it cannot be taken for another graph's.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import metadata
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
from numpy.typing import NDArray

from loadmaster.base import checks
from loadmaster.base.errors import InfeasibleError, InputError
from loadmaster.base.files import check_format, parse_json, read_bytes, write_json
from loadmaster.base.units import counted
from loadmaster.costs import PROVENANCES, Costs
from loadmaster.judge.assignment import Assignment, PlanPolicy
from loadmaster.judge.bounds import bound
from loadmaster.judge.problem import Problem
from loadmaster.judge.simulation import (
    Memory,
    Simulation,
    as_costs,
    reduced_assignment,
    run,
)
from loadmaster.judge.verdict import Verdict
from loadmaster.model.cluster import Cluster
from loadmaster.model.graph import OpGraph
from loadmaster.rules.binding import Binding, bind
from loadmaster.rules.constraints import Constraints
from loadmaster.transforms.base import Split

if TYPE_CHECKING:
    from loadmaster.plans.comparison import Comparison
    from loadmaster.plans.difference import Difference
    from loadmaster.plans.explain import Explanation

FORMAT = "loadmaster-plan"
VERSION = 1

#: How devices may follow a plan's priorities.
PLAN_POLICIES = get_args(PlanPolicy)


@dataclass(frozen=True)
class Plan:
    """A placement and an order, judged by the simulator.

    Attributes
    ----------
    makespan : float
        Simulated seconds per step.
    lower_bound : float
        Seconds below which no placement of the full graph that obeys the constraints can go.
    bound_source : str
        The argument behind the bound.
    method, options
        How it was made.
    notes : tuple of str
        What came up on the way.
    planning_seconds : float
        Wall time it took to make.
    splits : tuple of Split
        Ops that were split (name, dimension, number of parts), in this order.
    original_sha256 : str or None
        Where the plan is for a transformed graph, the digest of the user's; :attr:`graph`, the
        bound and everything else speak of the transformed one.
    constraints : Constraints
        What it was made to obey. Capacities are the cluster's all the same.
    """

    problem: Problem = field(repr=False)
    assignment: Assignment = field(repr=False)
    makespan: float
    method: str
    options: Mapping[str, Any]
    lower_bound: float
    bound_source: str
    notes: tuple[str, ...] = ()
    planning_seconds: float = 0.0
    splits: tuple[Split, ...] = ()
    original_sha256: str | None = None
    constraints: Constraints = field(default_factory=Constraints)

    # -- what was decided --------------------------------------------------------------------

    @property
    def graph(self) -> OpGraph:
        """The graph that is placed: the user's, or what it was transformed into."""
        return self.problem.model

    @property
    def cluster(self) -> Cluster:
        """The cluster it is for."""
        return self.problem.cluster

    @property
    def costs(self) -> Costs:
        """The times it was made with."""
        return self.problem.costs

    @property
    def seed(self) -> int:
        """The seed it was made with."""
        return self.problem.seed

    @cached_property
    def devices(self) -> NDArray[np.int32]:
        """Device index per op, int32 [n_ops]."""
        return _frozen(self.assignment.devices[self.problem.reduced.map])

    @cached_property
    def priority(self) -> NDArray[np.int32]:
        """Priority per op, int32 [n_ops]: smaller runs first."""
        return _frozen(self.assignment.priority[self.problem.reduced.map])

    @property
    def policy(self) -> PlanPolicy:
        """How a device heeds priorities: ``"priority"``, the first of the ops that are ready, or
        ``"fixed"``, exactly in this order, waiting where the next op is not ready.
        """
        return self.assignment.policy

    @property
    def estimate(self) -> float | None:
        """Seconds per step that the strategy itself expected, where it does."""
        return self.assignment.estimate

    def device(self, op: str | int) -> str:
        """Name of the device an op is on."""
        return self.cluster.devices[int(self.devices[self.graph.index(op)])].name

    @cached_property
    def binding(self) -> Binding:
        """What the constraints come to for each op. The sets of a transformed graph are its own:
        of replicated modules each replica is whole.
        """
        transformed = self.original_sha256 is not None
        asked = replace(self.constraints, no_split=()) if transformed else self.constraints
        return bind(self.problem, asked)

    # -- how good it is ----------------------------------------------------------------------

    @property
    def gap(self) -> float:
        """(makespan - lower bound) / makespan: no placement can be faster by more than this."""
        return (self.makespan - self.lower_bound) / self.makespan if self.makespan else 0.0

    @cached_property
    def schedule(self) -> Simulation:
        """What the simulator saw."""
        return run(self.problem, self.assignment)

    @cached_property
    def verdict(self) -> Verdict:
        """What plans are compared by."""
        return self.problem.verdict(self.assignment)

    @property
    def memory(self) -> Memory:
        """Memory of every device."""
        return self.schedule.memory

    @property
    def fits(self) -> bool:
        """Whether no device ever holds more than it can."""
        return self.memory.fits

    @cached_property
    def single(self) -> float | None:
        """Seconds per step on the fastest single device that holds the graph; None: none does."""
        from loadmaster.strategies.simple import single

        try:
            alone = Problem(
                self.graph, self.cluster, self.costs, self.problem.reduced, self.problem.time
            )
            return single.place(alone).verdict.step_time
        except InfeasibleError:
            return None

    @property
    def provenance(self) -> dict[str, float]:
        """Share of the time by where it comes from (``measured``, ``roofline``, ...)."""
        return self.costs.shares()

    def explain(self, op: str | int) -> Explanation:
        """Why an op is where it is; see :class:`~loadmaster.plans.explain.Explanation`.

        Examples
        --------
        >>> import loadmaster as lm
        >>> plan = lm.place(lm.read("example:lenet"), lm.Cluster.preset("2xV100-NVLink"))
        >>> plan.explain("convolution").device
        'gpu0'
        """
        from loadmaster.plans.explain import explain

        return explain(self, op)

    def diff(self, other: Plan) -> Difference:
        """What another plan for the same ops does differently, and what that gains; see
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

    def summary(self) -> str:
        """What a person wants to know, in ten lines or fewer."""
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
        used = int(self.assignment.devices.max()) + 1
        if used > cluster.n_devices:
            raise InputError(
                f"the plan uses {counted(used, 'device')}, but {cluster!r} has only "
                f"{cluster.n_devices}"
            )
        types = tuple(t.name for t in cluster.types)
        same = types == self.costs.types
        costs = self.costs if same else as_costs(None, self.graph, cluster)
        problem = Problem.make(self.graph, cluster, costs, seed=self.seed)
        found = bound(problem)
        return replace(
            self,
            problem=problem,
            makespan=problem.verdict(self.assignment).step_time,
            lower_bound=found.seconds,
            bound_source=found.source,
            constraints=Constraints(),
        )

    # -- on disk -----------------------------------------------------------------------------

    def to_document(self) -> dict[str, Any]:
        """As the JSON document that :meth:`save` writes."""
        transformed = {
            "original_sha256": self.original_sha256,
            "splits": [[split.op, split.dimension, split.n] for split in self.splits],
        }
        asked = self.constraints.to_document()
        return {
            "format": FORMAT,
            "version": VERSION,
            "loadmaster": metadata.version("loadmaster"),
            "method": self.method,
            "options": dict(self.options),
            "seed": self.seed,
            "makespan": self.makespan,
            "lower_bound": self.lower_bound,
            "bound_source": self.bound_source,
            "notes": list(self.notes),
            "planning_seconds": self.planning_seconds,
            "estimate": self.estimate,
            "graph_sha256": self.graph.digest,
            **(transformed if self.original_sha256 is not None else {}),
            **({} if self.constraints.is_empty else {"constraints": asked}),
            "cluster_sha256": self.cluster.digest,
            "policy": self.policy,
            "devices": self.devices.tolist(),
            "priority": self.priority.tolist(),
            "costs": {
                "types": list(self.costs.types),
                "time": self.costs.time.tolist(),
                "provenance": self.costs.provenance.tolist(),
                "provenances": list(PROVENANCES),
            },
            "cluster": self.cluster.to_toml(),
            "graph": self.graph.to_document(),
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the plan as JSON, gzipped if the path ends in ``.gz``."""
        write_json(path, self.to_document())

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        graph: OpGraph | None = None,
        cluster: Cluster | None = None,
    ) -> Plan:
        """Reads a saved plan, and simulates it again.

        Parameters
        ----------
        path
        graph, cluster : optional
            What the plan should be for; if it is not, that is an error. A plan for a transformed
            graph is also for the graph that it was made from.

        Raises
        ------
        InputError
            Not a plan, another version, damaged, or a plan for another graph or cluster.
        """
        source = os.fspath(path)
        return cls.from_document(parse_json(read_bytes(path), path), source, graph, cluster)

    @classmethod
    def from_document(
        cls,
        document: Any,
        source: str = "plan",
        graph: OpGraph | None = None,
        cluster: Cluster | None = None,
    ) -> Plan:
        """What :meth:`to_document` gave, simulated again; ``source`` is named in errors, which are
        those of :meth:`load`.
        """
        check_format(document, FORMAT, VERSION, "a plan", source)
        try:
            return cls._from_document(document, source, graph, cluster)
        except InputError:
            raise
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
            raise InputError(f"{source} is a damaged plan: {error!r}") from error

    @classmethod
    def _from_document(
        cls,
        document: Mapping[str, Any],
        source: str,
        graph: OpGraph | None,
        cluster: Cluster | None,
    ) -> Plan:
        own_graph = OpGraph.from_document(document["graph"], source)
        own_cluster = Cluster.from_toml(document["cluster"], source)
        original = document.get("original_sha256")
        if graph is not None and original is not None and graph.digest == original:
            graph = own_graph
        pairs = (
            ("graph", own_graph, graph, document["graph_sha256"]),
            ("cluster", own_cluster, cluster, document["cluster_sha256"]),
        )
        for what, own, wanted, digest in pairs:
            if own.digest != digest:
                raise InputError(f"{source} is damaged: its {what} does not match its hash")
            if wanted is not None and wanted.digest != digest:
                made = f", made from the one with hash {original}" if original else ""
                made = made if what == "graph" else ""
                raise InputError(
                    f"{source} is a plan for another {what}: {own!r}{made}, not {wanted!r}"
                )
        costs = document["costs"]

        def expect(holds: bool, what: str) -> None:
            if not holds:
                raise InputError(f"{source} is damaged: {what}")

        given = Costs.given(np.array(costs["time"], dtype=np.float64), own_graph, own_cluster)
        expect(tuple(costs["types"]) == given.types, "costs.types are not the cluster's")
        expect(set(costs["provenances"]) <= set(PROVENANCES), "an unknown word in provenances")
        words = np.array([PROVENANCES.index(word) for word in costs["provenances"]], dtype=np.uint8)
        sources = np.array(costs["provenance"], dtype=np.int64)
        expect(sources.shape == (own_graph.n_ops,), "costs.provenance has the wrong length")
        expect(
            not len(sources) or (sources.min() >= 0 and sources.max() < len(words)),
            "costs.provenance is out of range",
        )
        expect(isinstance(document["priority"], list), "priority is no list")
        expect(isinstance(document["options"], Mapping), "options are no object")
        expect(isinstance(document["method"], str), "method is no text")
        expect(original is None or isinstance(original, str), "original_sha256 is no text")
        splits = tuple(Split(*row) for row in document.get("splits", ()))
        expect(
            all(
                isinstance(split.op, str) and isinstance(split.dimension, str) and split.n >= 2
                for split in splits
            ),
            "splits are no list of op, dimension and number",
        )
        problem = Problem.make(
            own_graph,
            own_cluster,
            Costs(given.time, given.types, words[sources]),
            seed=checks.seed(document["seed"]),
        )
        policy = document["policy"]
        expect(policy in PLAN_POLICIES, f"policy is {policy!r}: wants one of {PLAN_POLICIES}")
        lower_bound, estimate = document["lower_bound"], document["estimate"]
        assignment = replace(
            reduced_assignment(problem, document["devices"], document["priority"]), policy=policy
        )
        makespan = problem.verdict(assignment).step_time
        expect(
            checks.is_number(lower_bound) and 0 <= lower_bound <= makespan * (1 + 1e-9),
            f"lower_bound is {lower_bound!r} where the plan takes {makespan} s",
        )
        expect(
            estimate is None or (checks.is_number(estimate) and estimate >= 0),
            f"estimate is {estimate!r}: wants seconds >= 0, or null",
        )
        return cls(
            problem=problem,
            assignment=replace(assignment, estimate=None if estimate is None else float(estimate)),
            makespan=makespan,
            method=document["method"],
            options=document["options"],
            lower_bound=float(lower_bound),
            bound_source=document["bound_source"],
            notes=tuple(document["notes"]),
            planning_seconds=float(document["planning_seconds"]),
            splits=splits,
            original_sha256=original,
            constraints=Constraints.from_document(document.get("constraints", {}), source),
        )


def _frozen(column: NDArray[np.int32]) -> NDArray[np.int32]:
    column.flags.writeable = False
    return column
