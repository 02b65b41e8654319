"""Buckets: the collectives that run, each of which takes one tensor or several.

An activation has a collective of its own. Gradients on their way to the optimizer, parameters that
are gathered where they are used, and parameters that were updated share collectives of one kind on
one axis, up to ``bucket_bytes``; or, where the layout has units as FSDP has them, those of a unit.
Activations that the same op of every expert of a layer makes or reads go together.

A bucket of gradients, or of updated parameters, runs right after the last of them is there; any
other right before the first op that reads from it. Gathers are held back so that their results do
not take memory early: one of parameters begins when the second bucket of parameters before it is in
use, and one in the backward pass of an activation that the forward pass has kept begins when the
other arguments of its reader are nearly there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadmaster.transforms.conversions import (
    ACTIVATION,
    EXPERT,
    GRADIENT,
    UPDATED,
    WEIGHT,
    Conversions,
    served_by,
)
from loadmaster.transforms.gradients import Reducer, filled, turns

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class CollectiveBuckets:
    """The collectives of conversions that run on each group of devices, a row each.

    Rows are in the order of their first steps; those of a reducer are in the order of its buckets.

    Attributes
    ----------
    of_step : int64 [n_steps]
        The bucket that each step of a conversion is in.
    lead : int64 [n]
        The first step that is in each bucket.
    axis, kind, traffic : int64 [n]
        The axis; the collective; the traffic, which all its conversions have in common.
    place : int64 [n]
        The op that the collective comes right before or right after.
    is_before : bool [n]
    waits_for : int64 [n]
        The op after which the collective may begin at the earliest; -1: as soon as it can.
    runs : uint64 [n]
        How often the collective runs in a step.
    """

    of_step: Ints
    lead: Ints
    axis: Ints
    kind: Ints
    traffic: Ints
    place: Ints
    is_before: NDArray[np.bool_]
    waits_for: Ints
    runs: NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.lead)

    @classmethod
    def of(cls, conversions: Conversions, bucket: Ints) -> CollectiveBuckets:
        """The collectives of conversions; ``bucket``: a number per step, int64 [n_steps].

        O(steps), and sorting.
        """
        c, steps = conversions, conversions.steps
        _, first, of_step = np.unique(bucket, return_index=True, return_inverse=True)
        traffic, order = c.traffic[steps.conversion], np.argsort(first, kind="stable")
        if c.layout.reducer is not None:
            numbers = _of_reducer(c, c.layout.reducer)[steps.conversion[first]]
            order = np.lexsort((first, numbers, traffic[first]))
        number = np.empty(len(first), dtype=np.int64)
        number[order] = np.arange(len(first))
        of_step, lead = number[of_step], first[order]
        made_by = c.layout.maker[c.tensor[steps.conversion]]
        earliest = np.full(len(lead), c.layout.graph.n_ops)
        latest = np.zeros(len(lead), dtype=np.int64)
        reads = c.first[steps.conversion]
        if c.layout.reducer is not None:
            made_by = np.maximum(made_by, _handed_on(c, c.layout.reducer)[steps.conversion])
        np.minimum.at(earliest, of_step, reads)
        np.maximum.at(latest, of_step, np.where(traffic == UPDATED, reads, made_by))
        traffic = traffic[lead]
        is_after = np.isin(traffic, (GRADIENT, UPDATED, EXPERT))
        place = np.where(is_after, latest, earliest)
        held_back = _held_back(c, traffic, lead, place)
        axis, kind = steps.axis[lead], steps.kind[lead]
        runs = c.runs[steps.conversion[lead]]
        return cls(of_step, lead, axis, kind, traffic, place, ~is_after, held_back, runs)


def served_in(bucket: Ints, c: Conversions) -> Ints:
    """The conversion whose result each conversion of a parameter can be taken from, of those that
    begin in the same bucket: itself, if there is no other. ``bucket``: the bucket of each step.
    """
    by = np.arange(len(c))
    begins = np.flatnonzero(c.steps.is_first & (c.traffic[c.steps.conversion] == WEIGHT))
    begins = begins[np.lexsort((c.tensor[c.steps.conversion[begins]], bucket[begins]))]
    of = c.steps.conversion[begins]
    together = np.stack([bucket[begins], c.tensor[of]])
    by[of] = of[served_by(together, c.want[:, of], c.owner[:, of])]
    return by


def filled_buckets(c: Conversions) -> Ints:
    """The bucket of each step, as some number: int64 [n_steps]."""
    layout, steps = c.layout, c.steps
    tensor, traffic = c.tensor[steps.conversion], c.traffic[steps.conversion]
    maker = layout.maker[tensor]
    size = c.bytes[steps.conversion]
    ways = layout.ways.ways
    largest = np.maximum(ways.amounts(steps.before, size), ways.amounts(steps.after, size))
    largest = largest.max(axis=0)
    place = np.where(traffic == WEIGHT, c.first[steps.conversion], maker)
    turn = _turns(c, traffic, maker)
    bucket = np.empty(len(traffic), dtype=np.int64)
    alone = np.flatnonzero(traffic == ACTIVATION)
    bucket[alone] = np.arange(len(alone))
    count = len(alone)
    group = (traffic * 8 + steps.axis) * 8 + steps.kind
    apart = np.unique(c.runs[steps.conversion], return_inverse=True)[1]
    if layout.stage is not None:
        apart += (int(apart.max(initial=0)) + 1) * layout.stage[maker]
    group += 64 * (EXPERT + 1) * apart
    group = np.where(traffic == ACTIVATION, -1, group)
    expert_op = c.expert_op[steps.conversion]
    # Tensors that share a bucket in one step share it in the next: otherwise two buckets could each
    # wait for the other.
    before = np.full(len(c), -1, dtype=np.int64)
    numbers = None if layout.reducer is None else _of_reducer(c, layout.reducer)
    begins = np.unique(group, return_index=True)[1]
    for one in group[np.sort(begins)].tolist():
        if one < 0:
            continue
        of = np.flatnonzero(group == one)
        came = before[steps.conversion[of]]
        order = np.lexsort((place[of], came, turn[of]))
        of, came = of[order], came[order]
        batch = np.unique(np.stack([turn[of], came]), axis=1, return_inverse=True)[1]
        if one // 64 % (EXPERT + 1) == EXPERT:
            number = np.unique(np.stack([expert_op[of], came]), axis=1, return_inverse=True)[1]
        elif numbers is not None and one // 64 % (EXPERT + 1) in (GRADIENT, UPDATED):
            together = np.vstack([numbers[steps.conversion[of]], batch])
            number = np.unique(together, axis=1, return_inverse=True)[1]
        elif layout.units:
            together = np.vstack([_unit(c, steps.conversion[of]), batch])
            number = np.unique(together, axis=1, return_inverse=True)[1]
        else:
            number = filled(largest[of], batch, layout.bucket_bytes)
        bucket[of] = count + number
        before[steps.conversion[of]] = bucket[of]
        count += int(number.max()) + 1
    return bucket


def _of_reducer(c: Conversions, reducer: Reducer) -> Ints:
    """The bucket of each conversion that is a gradient, and of each updated parameter the first
    bucket that has a gradient which its update reads: parameters are gathered as their gradients
    were summed.
    """
    layout, d = c.layout, c.layout.dimensions
    at, row = _gradients(c, reducer)
    bucket, reader = reducer.bucket[row], layout.set_of[d.reader[at]]
    number = np.full(len(c), len(reducer.is_whole))
    np.minimum.at(number, c.of_argument[at], bucket)
    of_set = np.full(layout.updates.n + 1, len(reducer.is_whole))
    np.minimum.at(of_set, reader, bucket)
    updated = np.flatnonzero(c.traffic == UPDATED)
    number[updated] = of_set[layout.set_of[layout.maker[c.tensor[updated]]]]
    return number


def _handed_on(c: Conversions, reducer: Reducer) -> Ints:
    """The op after which the bucket of each conversion that is a gradient is complete; -1: none."""
    at, row = _gradients(c, reducer)
    last = np.full(len(c), -1)
    np.maximum.at(last, c.of_argument[at], reducer.last[row])
    return last


def _gradients(c: Conversions, reducer: Reducer) -> tuple[Ints, Ints]:
    """Arguments that read sums of gradients, and the row in the reducer of each."""
    row = np.where(c.of_argument >= 0, reducer.of_edge(c.layout.dimensions.edge), -1)
    at = np.flatnonzero(row >= 0)
    return at, row[at]


def _turns(c: Conversions, traffic: Ints, maker: Ints) -> Ints:
    """The number of updates that come before each gradient: a graph may have several in a row."""
    turn = np.zeros(len(traffic), dtype=np.int64)
    of_gradients = np.flatnonzero((traffic == GRADIENT) & c.layout.columns.is_after_update[maker])
    if len(of_gradients):
        d = c.layout.dimensions
        is_gradient = (c.of_argument >= 0) & (c.traffic[c.of_argument] == GRADIENT)
        is_gradient &= c.layout.graph.updates[d.reader]
        level = turns(c.layout.graph, d.edge[is_gradient])
        turn[of_gradients] = level[maker[of_gradients]]
    return turn


def _unit(c: Conversions, of: Ints) -> Ints:
    """The unit of the parameter that each conversion is of, and whether it is gathered for the
    backward pass: [2, n].
    """
    layout = c.layout
    first = c.first[of]
    op = np.where(c.traffic[of] == GRADIENT, first, layout.maker[c.tensor[of]])
    is_late = (c.traffic[of] == WEIGHT) & layout.columns.is_backward[first] & ~layout.is_kept[op]
    return np.stack([layout.unit[op], is_late])


def _held_back(c: Conversions, traffic: Ints, lead: Ints, place: Ints) -> Ints:
    """The op that each collective has to wait for; -1: none.

    Of a graph with ops before what they read, nothing is held back: waits could close a circle.
    """
    graph, layout, steps = c.layout.graph, c.layout, c.steps
    wait = np.full(len(lead), -1, dtype=np.int64)
    if not (graph.src < graph.dst).all():
        return wait
    is_first = steps.is_first[lead]
    of_weights = np.flatnonzero((traffic == WEIGHT) & is_first)
    of_weights = of_weights[np.argsort(place[of_weights], kind="stable")]
    places = place[of_weights]
    for i, at in enumerate(of_weights.tolist()):
        # The last op that begins the use of a bucket, two or more before this one.
        before = int(np.searchsorted(places[: max(i - 1, 0)], places[i])) - 1
        wait[at] = places[before] if before >= 0 else -1
    phase = layout.columns.phase
    maker = layout.maker[c.tensor[steps.conversion[lead]]]
    late = np.flatnonzero((traffic == ACTIVATION) & is_first)
    late = late[phase[maker[late]] != phase[place[late]]]
    newest = layout.columns.newest_read
    trigger = newest[newest[place[late]]]
    wait[late] = np.where(trigger > maker[late], trigger, -1)
    return wait
