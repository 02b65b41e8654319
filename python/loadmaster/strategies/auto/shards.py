"""Sharded plans among those of ``auto``: the best labels of the best meshes, judged.

Labels that share the batch alone are a plan of replicas, and named so.

Their recipe takes as long as a judgement or two to write down, so the best plan of all has one, if
it is sharded, and no other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from loadmaster.strategies.auto.run import Run
from loadmaster.strategies.candidate import Best, Candidate
from loadmaster.strategies.kinds import REQUESTS, Kind, Request, replicas_in_words
from loadmaster.strategies.sharding import megatron
from loadmaster.strategies.sharding.judging import with_recipe
from loadmaster.strategies.sharding.processes import equal_groups
from loadmaster.strategies.sharding.ranking import Ranked
from loadmaster.strategies.sharding.recomputing import layers
from loadmaster.strategies.sharding.sharded import in_all_spaces
from loadmaster.strategies.sharding.space import Space, can_be_sharded, has_shapes
from loadmaster.strategies.sharding.units import ShardSizes, fastest, modules_of
from loadmaster.transforms.shares import batch_size


def shards(run: Run) -> Iterator[tuple[Candidate, Best]]:
    """The best sharded plan that fits, with what it offers; until a time limit is over."""
    problem = run.problem
    if not can_be_sharded(problem):
        return
    space = Space.of(problem)
    best: tuple[Candidate, Ranked, Space] | None = None
    for candidate, labels, of in in_all_spaces(space, run.budget):
        if labels is None:
            continue
        if not candidate.fits:
            words = f"shards on {labels.words}"
            run.lack(candidate.kind, words, problem.cluster.shortfall(candidate.verdict.peak))
        elif best is None or problem.objective.better(best[0], candidate) is candidate:
            best = candidate, labels, of
    samples = batch_size(problem.model) or 0
    run.replicas.update({n: step for n, step in space.of_batch.items() if n <= samples})
    if best is None:
        return
    candidate, labels, space = best
    again = ", layers recomputed" if space.recompute else ""
    program, kind = candidate.problem.program, candidate.kind
    words = replicas_in_words(program) if kind is Kind.REPLICAS else f"sharded on {labels.words}"
    offer = Best.of(kind, f"{words}{again}", candidate, REQUESTS[Kind.SHARDS])
    run.writes = lambda one: (
        with_recipe(space, labels, one) if one.problem.program is program else one
    )
    yield candidate, offer


def tensor_parallel(run: Run) -> Iterator[tuple[Candidate, Best]]:
    """Every layer by columns, then by rows: its devices have more equal parts than labels that cost
    least, which counts where memory is short or where the busiest device is what a period is.
    """
    problem = run.problem
    if can_be_sharded(problem):
        words = "columns, then rows"
        candidate = run.tried(Kind.SHARDS, words, partial(megatron.place, problem))
        if candidate is not None:
            yield candidate, Best.of(Kind.SHARDS, words, candidate, Request("megatron"))


def sharded_by_units(run: Run, known: Sequence[Candidate]) -> Iterator[tuple[Candidate, Best]]:
    """The batch shared, with the parameters of each layer gathered together when they are used,
    where memory is short.
    """
    problem, graph = run.problem, run.problem.model
    is_step = "b" in graph.phases and bool(graph.updates.any()) and problem.program.is_plain
    if not (is_step and has_shapes(graph) and any(graph.modules) and run.is_short(known)):
        return
    groups = [devices for devices in equal_groups(problem) if len(devices) > 1]
    again = layers(modules_of(graph), 1)
    best = fastest(problem, groups, ((), again) if again else ((),), ShardSizes(), run.progress)
    if best is None:
        return
    if best.fits:
        yield best, replace(Best.of(best.kind, str(best.parallelism), best), request=None)
    else:
        run.lack(best.kind, str(best.parallelism), problem.cluster.shortfall(best.verdict.peak))
