"""Labels as a program that runs, placed and judged."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.dimensions.dimensions import Dimensions
from loadmaster.dimensions.form import FLAT
from loadmaster.judge.assignment import Assignment
from loadmaster.judge.problem import Problem, ranks
from loadmaster.model.graph import PARAMETER
from loadmaster.strategies.auto.inside import in_time_for_collectives
from loadmaster.strategies.candidate import Candidate, judged
from loadmaster.strategies.sharding.degrees import degrees
from loadmaster.strategies.sharding.ranking import Ranked
from loadmaster.strategies.sharding.space import Space
from loadmaster.strategies.simple.homes import where_allowed
from loadmaster.transforms.layout import Layout
from loadmaster.transforms.shards import shard


def expanded(space: Space, ranked: Ranked, *, is_near: bool = True) -> Candidate:
    """The parts of ranked labels on the devices of their mesh, judged in the best order known."""
    problem = space.source
    program = shard(problem.model, layout(space, ranked), space.recompute)
    placed = problem.transformed(program)
    device = ranked.mesh.on(problem.cluster)
    at = device[np.maximum(program.rank, 0)[placed.reduced.op_of]]
    best = in_best_order(placed, at, is_near=is_near).noted(*program.notes)
    estimate = ranked.labels.estimate.step_time
    return replace(best, assignment=replace(best.assignment, estimate=estimate))


def in_best_order(
    placed: Problem, devices: NDArray[np.int32], *, is_near: bool = True
) -> Candidate:
    """Ops on these devices, int32 [n_reduced], or where they are allowed, judged in the best order
    known.

    Orders are Kahn's and the program's own; where ``is_near``, also that in which what collectives
    wait for comes first.
    """
    at = where_allowed(placed, devices)
    orders = ranks(fast.m_topo(placed.graph)), np.arange(placed.graph.n_ops, dtype=np.int32)
    best = placed.objective.best(judged(placed, Assignment(at, order)) for order in orders)
    return in_time_for_collectives(best) if is_near and best.fits else best


def layout(space: Space, ranked: Ranked) -> Layout:
    """Ranked labels as a layout of the graph in which nothing is recomputed yet."""
    labels = space.structure.labels(ranked.labels.columns)
    problem = space.problem
    imbalance = problem.expert_imbalance
    labelled = Layout(
        Dimensions.of(problem.model),
        ranked.mesh,
        labels,
        batch_norm=space.batch_norm,
        expert_imbalance=imbalance,
        units=ranked.units,
    )
    if (said := space.recipe) is not None:
        labelled = replace(labelled, bucket_bytes=said.bucket_bytes)
    if ranked.units:
        labelled = _with_frozen_in_parts(labelled)
    return (
        labelled
        if space.again is None
        else labelled.of_graph(space.source.model, space.again.first.tolist())
    )


def _with_frozen_in_parts(layout: Layout) -> Layout:
    """The layout with parameters that nothing updates in parts, too, where others are: units have
    all of theirs in parts.
    """
    is_parameter = layout.graph.stands_for == PARAMETER
    axes = np.flatnonzero((layout.labels[:, is_parameter] == FLAT).any(axis=1)).tolist()
    is_frozen = is_parameter & (layout.set_of < 0)
    return layout.with_sharded_state(np.where(is_frozen, "parameters", "none").tolist(), axes)


def with_recipe(space: Space, ranked: Ranked, candidate: Candidate) -> Candidate:
    """The candidate that ranked labels became, with their recipe in its program, and its degrees of
    parallelism.
    """
    problem = candidate.problem
    name = space.recipe.name if space.recipe else ""
    labels = layout(space, ranked)
    recipe = replace(labels.recipe(), recompute=space.recompute, name=name)
    program = replace(problem.program, recipe=recipe)
    noted = replace(
        candidate,
        problem=replace(problem, program=program),
        parallelism=degrees(labels, space.recompute),
    )
    return noted.noted(*without_rule(space.source))


def without_rule(problem: Problem) -> tuple[str, ...]:
    """The ops that are whole because no rule says how they are cut, for the user to know."""
    graph, dimensions = problem.model, Dimensions.of(problem.model)
    if not dimensions.unknown:
        return ()
    has_cuts = np.array([bool(form.cuts) for form in dimensions.forms] + [False])
    kinds = np.fromiter(map(dimensions.unknown.__contains__, graph.kinds), bool, graph.n_ops)
    is_whole = kinds & ~has_cuts[dimensions.form_of]
    share = float(problem.op_time[is_whole[problem.reduced.op_of]].sum() / problem.op_time.sum())
    named = ", ".join(f"{kind} ({n})" for kind, n in sorted(dimensions.unknown.items()))
    return (
        f"no rule says how these are cut, so they are whole ({share:.1%} of all time): {named}",
    )


def notes(ranked: Ranked, candidate: Candidate) -> tuple[str, ...]:
    """Notes on labels that were judged."""
    labels = ranked.labels
    gap = (
        f"labelling gap {labels.gap:.2%}: with equal layers cut alike, other cuts along an axis "
        "lower the search's sum of times by no more; the sum does not know what overlaps"
    )
    ratio = labels.estimate.step_time / candidate.verdict.step_time - 1
    side = "above" if ratio > 0 else "below"
    off = f"{abs(ratio):.1%} {side}"
    return f"on {ranked.words}; the search's own estimate is {off} the simulation", gap
