"""Replicas among the plans of ``auto``: whole, with sharded optimizers or parameter servers, and on
fewer devices.

Each is judged in the orders of ``data-parallel`` and, if it is near the best, in that of
:mod:`.inside`. Replicas with collectives are left out where shards that are whole replicas are far
from the best plan that is there, by their estimates; those on fewer devices where their work alone
takes longer, and parameter servers where their traffic alone does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from loadmaster.judge.problem import Problem
from loadmaster.strategies.auto.inside import in_time_for_collectives
from loadmaster.strategies.auto.run import Run
from loadmaster.strategies.candidate import Best, Candidate
from loadmaster.strategies.kinds import Kind, Request, replicas_in_words
from loadmaster.strategies.simple import data_parallel
from loadmaster.transforms.samples import samples_to_share
from loadmaster.transforms.shares import batch_size

#: Ways to add up gradients, by collectives and by servers: the options of ``data-parallel``, and
#: how a person would say it.
Way: TypeAlias = tuple[dict[str, Any], str]
WAYS: tuple[Way, ...] = (
    ({"aggregation": "all-reduce"}, "gradients all-reduced"),
    ({"aggregation": "reduce-scatter", "shards": "flat"}, "optimizer sharded flat"),
    ({"aggregation": "reduce-scatter", "shards": "parameters"}, "optimizer sharded by parameters"),
)
SERVERS: Way = ({"aggregation": "parameter-server"}, "parameter servers")


def can_be_replicated(problem: Problem) -> bool:
    """True if there are samples to share out, as far as the graph says, and devices for them."""
    several = problem.cluster.n_devices > 1 and (samples_to_share(problem.model) or 1) > 1
    return several and problem.program.is_plain


def replicas(run: Run, best: Candidate | None) -> Iterator[tuple[Candidate, Best]]:
    """Replicas on all devices that fit, with collectives, each with what it offers, until a time
    limit is over; those that may be better than the best plan that is there.
    """
    problem, n = run.problem, run.problem.cluster.n_devices
    ways = WAYS if problem.model.updates.any() else WAYS[:1]
    return _judged(run, ((n, way, run.seen_of_replicas(n)) for way in ways), best)


def other_replicas(run: Run, best: Candidate | None) -> Iterator[tuple[Candidate, Best]]:
    """Replicas on fewer devices, and with parameter servers: those that fit and may be better than
    the best plan that is there, each with what it offers, until a time limit is over.
    """
    return _judged(run, _others(run), best)


def _judged(
    run: Run, asked: Iterable[tuple[int, Way, float]], best: Candidate | None
) -> Iterator[tuple[Candidate, Best]]:
    """Candidates for the asked replicas, without those that cannot be better than the best."""
    problem, objective, near = run.problem, run.problem.objective, 1 + run.tuning.inside_near
    for n, (options, words), least in asked:
        if best is not None and run.budget.lacks(0.0):
            return
        if best is not None and objective.reaches(best.verdict, least):
            continue
        make = partial(data_parallel.place, problem, replicas=n, **options)
        candidate = run.tried(Kind.REPLICAS, f"{n} replicas, {words}", make)
        if candidate is None or candidate.problem.program.is_plain:
            continue
        if best is None or not objective.reaches(best.verdict, candidate.verdict.step_time / near):
            candidate = in_time_for_collectives(candidate)
        fewer = {"replicas": n} if n < problem.cluster.n_devices else {}
        request = Request("data-parallel", tuple({**options, **fewer}.items()))
        words = replicas_in_words(candidate.problem.program)
        yield candidate, Best.of(Kind.REPLICAS, words, candidate, request)
        best = candidate if best is None else objective.better(best, candidate)


def _others(run: Run) -> Iterator[tuple[int, Way, float]]:
    """Numbers of replicas, options, and seconds that no step of them can be below. More replicas
    than samples are as many as there are samples.
    """
    problem = run.problem
    is_trained, n_devices = problem.model.updates.any(), problem.cluster.n_devices
    work = float(problem.time[:, problem.cluster.device_types].sum(axis=0).min())
    most = min(n_devices, batch_size(problem.model) or n_devices)
    numbers = [n_devices >> i for i in range(n_devices.bit_length() - 1)]
    fewer = [n for n in numbers[1:] if n < most]
    for n in fewer:
        for way in WAYS if is_trained else WAYS[:1]:
            yield n, way, max(work / n, run.seen_of_replicas(n))
    for n in [most, *fewer] if is_trained else ():
        servers = seconds_of_servers(problem, data_parallel.usable(problem)[:n])
        yield n, SERVERS, max(work / n, servers)


def seconds_of_servers(problem: Problem, devices: list[int]) -> float:
    """Seconds that the channels need for what replicas on some devices pull from parameter servers
    and push to them: no step with servers is shorter.

    A parameter goes to every device but its own, and so does a gradient the other way. A transfer
    holds every channel of its route, and all channels between the devices carry some all the time
    at best.
    """
    graph, roles = problem.model, problem.model.roles
    root = np.arange(graph.n_ops)
    shows = graph.view & (graph.alias_of >= 0)
    while shows.any():
        root[shows] = graph.alias_of[root[shows]]
        shows = graph.view[root] & (graph.alias_of[root] >= 0)
    crosses = (roles.tensor >= 0) & (roles.many[graph.src] != roles.many[graph.dst])
    size = np.zeros(graph.n_ops)
    np.maximum.at(size, root[graph.src[crosses]], graph.bytes[crosses].astype(np.float64))
    routes = [problem.links.route(a, b) for a in devices for b in devices if a != b]
    if not routes:
        return 0.0
    latency = min(seconds * len(channels) for seconds, _, channels, _ in routes)
    per_byte = min(len(channels) / bandwidth for _, bandwidth, channels, _ in routes)
    busy = int((size > 0).sum()) * latency + float(size.sum()) * per_byte
    return (len(devices) - 1) * busy / len({c for _, _, channels, _ in routes for c in channels})
