"""Search inside replicas: on their graph, as on the user's, or on one that stands for all of them.

Replicas with parameter servers send from op to op, as whole ops do, so the search that places whole
ops (:mod:`.search`) takes their graph as it is.

With collectives what is left to find is the order in which replicas run their ops. A collective
waits for the last of its members, so the order of one replica alone changes nothing. All replicas
follow one order here, and one of them stands for all: the *representative* has each op of the
user's graph once, on a device, and each collective once, on a network that does one at a time. Its
ops take what they take on the average device. So the same search, with every op bound to where it
is, finds an order, on a graph that is as many times smaller as there are replicas. What it finds is
judged on all replicas before it counts.

Where the search starts, an op comes before another if an earlier collective waits for it: the
gradient of a layer's weights before that of its inputs.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.base.effort import Budget
from loadmaster.costs import Costs
from loadmaster.judge.assignment import Assignment
from loadmaster.judge.coarse import CoarseProblem
from loadmaster.judge.problem import Problem, ranks
from loadmaster.model.cluster import Cluster
from loadmaster.model.clusters.devices import Device
from loadmaster.model.clusters.links import Link
from loadmaster.model.graph import OpGraph
from loadmaster.strategies.auto.pace import Pace
from loadmaster.strategies.auto.passes import MOST_DEVICES
from loadmaster.strategies.auto.run import Run
from loadmaster.strategies.auto.search import Search
from loadmaster.strategies.candidate import Candidate, judged

#: The device of every replica for the representative, and all channels together. What an op
#: reads is there at once.
_DEVICE, _NETWORK = "device", "network"
_MIRROR = Cluster(
    [Device(_DEVICE, _DEVICE, 1), Device(_NETWORK, _NETWORK, 1)],
    [Link(_DEVICE, _NETWORK, 1.0, 0.0), Link(_NETWORK, _DEVICE, 1.0, 0.0)],
    name="representative",
)


@dataclass(frozen=True)
class Representative:
    """One replica that stands for all.

    Attributes
    ----------
    candidate : Candidate
        Replicas, with their collectives.
    coarse : CoarseProblem
        The ops of all replicas, those that play the same part in one group.
    is_network : bool [n_groups]
        Whether each group is a collective.
    """

    candidate: Candidate
    coarse: CoarseProblem
    is_network: NDArray[np.bool_]

    @classmethod
    def of(cls, candidate: Candidate) -> Representative:
        """The representative of replicas. O(V + E), and sorting."""
        problem = candidate.problem
        op, program = problem.reduced.op_of, problem.program
        # What is done again in the backward pass is apart from what was done first, and what comes
        # after collectives from what they wait for.
        is_late = np.fromiter(map("b".__eq__, program.graph.phases), bool, program.graph.n_ops)
        is_member = program.graph.is_member[op]
        ahead, _ = fast.levels(fast.Weights(problem.graph, is_member.astype(np.float64)))
        n = 2 * program.source.n_ops
        part = 2 * program.serves[op].astype(np.int64) + is_late[op] + n * ahead.astype(np.int64)
        member = np.flatnonzero(is_member)
        names = [program.graph.collectives[i] for i in op[member].tolist()]
        part[member] = part.max(initial=0) + 1 + np.unique(names, return_inverse=True)[1]
        coarse = CoarseProblem(problem, np.unique(part, return_inverse=True)[1].astype(np.int32))
        is_network = np.zeros(coarse.n_groups, dtype=bool)
        is_network[coarse.group[member]] = True
        return cls(candidate, coarse, is_network)

    @cached_property
    def edges(self) -> NDArray[np.int32]:
        """Pairs of groups, source and reader, each once, int32 [n, 2]."""
        src, dst, _, _, is_home = fast.edges(self.coarse.problem.graph)
        src, dst = self.coarse.group[src[~is_home]], self.coarse.group[dst[~is_home]]
        n = self.coarse.n_groups
        pairs = np.unique((src.astype(np.int64) * n + dst)[src != dst])
        return np.stack(np.divmod(pairs, n), axis=1).astype(np.int32)

    @cached_property
    def order(self) -> NDArray[np.int32]:
        """The groups by their start in the candidate's schedule: int32 [n_groups]."""
        n, group, schedule = self.coarse.n_groups, self.coarse.group, self.candidate.schedule
        start, finish, place = np.full(n, np.inf), np.zeros(n), np.full(n, len(group))
        np.minimum.at(start, group, schedule.start)
        np.maximum.at(finish, group, schedule.finish)
        np.minimum.at(place, group, ranks(fast.m_topo(self.coarse.problem.graph)))
        return np.lexsort((place, finish, start)).astype(np.int32)

    def in_time(self) -> NDArray[np.int32]:
        """The groups by the first collective that waits for each, in the order of the collectives;
        of those for the same one, by their start. Ops that none waits for come last. O(V + E), and
        sorting.
        """
        rank, n = ranks(self.order), self.coarse.n_groups
        first = np.where(self.is_network, rank, n).tolist()
        backwards = np.argsort(-rank[self.edges[:, 0]], kind="stable")
        for a, b in self.edges[backwards].tolist():
            if first[b] < first[a]:
                first[a] = first[b]
        return np.lexsort((rank, first)).astype(np.int32)

    def problem(self) -> Problem:
        """The problem of the groups, each bound to where it is on :data:`_MIRROR`. A group takes
        what it takes on the average device.
        """
        coarse, schedule = self.coarse, self.candidate.schedule
        copies = np.bincount(coarse.group)
        program = coarse.problem.program
        replicas = int(max(program.replica.max(), program.rank.max())) + 1
        seconds = coarse.sum(schedule.finish - schedule.start)
        seconds /= np.where(self.is_network, copies, replicas)
        graph = OpGraph(
            {
                "name": [str(group) for group in range(coarse.n_groups)],
                "device_types": np.where(self.is_network, _NETWORK, _DEVICE).tolist(),
            },
            {"src": self.edges[:, 0], "dst": self.edges[:, 1]},
        )
        costs = Costs.given(seconds, graph, _MIRROR)
        return Problem.make(graph, _MIRROR, costs, seed=coarse.problem.seed)

    def judged(self, order: NDArray[np.int32]) -> Candidate:
        """The candidate, or that with its ops in an order of the groups if that is better."""
        outer = self.candidate
        priority = self.coarse.expanded(np.zeros_like(order), order).priority
        inner = judged(outer.problem, Assignment(outer.assignment.devices, priority), outer.notes)
        inner = replace(inner, parallelism=outer.parallelism)
        return outer.problem.objective.better(outer, inner)


def in_time_for_collectives(replicas: Candidate) -> Candidate:
    """The replicas in the order of :meth:`Representative.in_time`, if that is better.

    Examples
    --------
    >>> import loadmaster as lm
    >>> from loadmaster.strategies.candidate import judged
    >>> cluster = lm.Cluster.preset("4xV100-PCIe")
    >>> plan = lm.place(lm.read("example:vgg19"), cluster, "data-parallel")
    >>> before = judged(plan.problem, plan.assignment)
    >>> after = in_time_for_collectives(before)
    >>> plan.problem.objective.gain(before.verdict, after.verdict) >= 0
    True
    """
    if not replicas.problem.has_collectives:
        return replicas
    representative = Representative.of(replicas)
    return representative.judged(representative.in_time())


def searched_inside(run: Run, replicas: Candidate, budget: Budget) -> Candidate:
    """The replicas, or better ones that a search finds: with collectives for the order of ops, else
    for places, too.

    Parameters
    ----------
    run : Run
        Says how many chains and threads search.
    replicas : Candidate
    budget : Budget
        How far the search goes.
    """
    problem = replicas.problem
    if problem.has_collectives:
        return _ordered(run, replicas, budget)
    if problem.cluster.n_devices > MOST_DEVICES:
        return replicas
    candidate = _best(Search(_inner(run, problem, budget)), replicas)
    return replicas if candidate is replicas else replace(candidate, notes=replicas.notes)


def _ordered(run: Run, replicas: Candidate, budget: Budget) -> Candidate:
    """The replicas, or better ones that a search for an order finds on the representative."""
    representative = Representative.of(replicas)
    problem = representative.problem()
    start = judged(
        problem, Assignment(representative.is_network.astype(np.int32), ranks(representative.order))
    )
    search = _RepresentativeSearch(
        _inner(run, problem, budget), representative=representative, replicas=replicas
    )
    _best(search, start)
    return search.replicas


def _inner(run: Run, problem: Problem, budget: Budget) -> Run:
    """A run of its own for a search inside."""
    return Run(problem, budget, chains=run.chains, threads=run.threads, tuning=run.tuning)


def _best(search: Search, start: Candidate) -> Candidate:
    """The best of a candidate and of what a search from it finds."""
    search.run.offer(start, "replicas")
    search.exhausted(start, 0.0)
    assert search.run.best is not None
    return search.run.best


@dataclass
class _RepresentativeSearch(Search):
    """A search on a representative, whose states are judged on all replicas too.

    Attributes
    ----------
    representative : Representative
    replicas : Candidate
        The best replicas.
    """

    representative: Representative = field(kw_only=True)
    replicas: Candidate = field(kw_only=True)

    def judge(self, devices: NDArray[np.int32], order: NDArray[np.int32]) -> Candidate:
        """A state on the representative."""
        real = self.replicas.problem
        self.run.budget.spend(Pace.of(real, self.run.tuning).simulation)
        self.replicas = real.objective.better(self.replicas, self.representative.judged(order))
        return super().judge(devices, order)
