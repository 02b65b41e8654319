"""The integer program of labellings: held to all labellings, and TRW-S held to it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from exact_labels import exact_labels
from labellings import energy, least_energy, random_costs, tied_by_labels

from loadmaster.base.errors import InfeasibleError, InputError

WEIGHTS = np.array([1.0, 0.5])

#: Solvers end once the bound is so near, as a share.
GAP = 1e-4


@pytest.mark.parametrize("is_tied", [False, True])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_it_finds_the_least_energy_of_all_labellings(seed, is_tied):
    costs = random_costs(seed, n=6, m=9, forbidden=0.1)
    tied = tied_by_labels(costs, seed) if is_tied else None
    best = least_energy(costs, WEIGHTS, tied)
    if best == np.inf:
        with pytest.raises(InfeasibleError):
            exact_labels(costs, WEIGHTS, tied=tied)
        return
    found = exact_labels(costs, WEIGHTS, tied=tied)
    assert best * (1 - 1e-9) <= found.energy <= best * (1 + GAP)
    assert found.bound <= best * (1 + 1e-9)
    assert found.energy == pytest.approx(energy(costs, found.labels, WEIGHTS))


@pytest.mark.parametrize("is_tied", [False, True])
@pytest.mark.parametrize("seed", [3, 4])
def test_it_is_never_worse_than_trws_nor_below_its_bound(seed, is_tied):
    costs = random_costs(seed, n=40, m=90, labels=4)
    tied = tied_by_labels(costs, seed) if is_tied else None
    by_messages = costs.problem.solve(WEIGHTS, tied=tied)
    found = exact_labels(costs, WEIGHTS, tied=tied, start=by_messages.labels)
    assert found.status == "optimal"
    assert found.energy <= by_messages.energy
    assert by_messages.bound <= found.energy
    assert found.bound >= by_messages.bound * (1 - GAP)
    for number in [] if tied is None else np.unique(tied[tied >= 0]):
        assert len(set(found.labels[tied == number].tolist())) == 1


def test_without_time_the_start_is_the_answer_and_nothing_is_proved():
    costs = random_costs(5, n=8, m=12)
    start = np.zeros(8, dtype=np.int32)
    found = exact_labels(costs, WEIGHTS, start=start, time_limit=0)
    assert found.labels.tolist() == start.tolist()
    assert found.energy == costs.problem.energy(start, WEIGHTS)
    assert found.bound == -np.inf
    without = exact_labels(costs, WEIGHTS, time_limit=0)
    assert (without.labels, without.energy) == (None, np.inf)


def test_it_tells_its_progress_in_units_of_energy():
    costs = random_costs(6, n=30, m=60, labels=4)
    told: list[tuple[float | None, float | None, float]] = []
    found = exact_labels(costs, WEIGHTS, progress=lambda *best: told.append(best))
    assert told[-1][0] == pytest.approx(found.energy)


def test_what_a_descent_cannot_reach_is_found():
    costs = replace(
        random_costs(8, n=2, m=0),
        node_table=np.array([2, 2], dtype=np.int32),
        unary=np.zeros((12, 2)),
        src=np.array([0, 0], dtype=np.int32),
        dst=np.array([1, 1], dtype=np.int32),
        edge_table=np.array([8, 9], dtype=np.int32),
    )
    pair = np.full(costs.pair.shape, np.inf)
    first, second = costs.pair_start[[8, 9]]
    pair[[first, first + 3, second, second + 3]] = [[3, 0], [1, 0], [0, 0], [0, 0]]
    costs = replace(costs, pair=pair)
    found = exact_labels(costs, WEIGHTS)
    assert (found.labels.tolist(), found.energy) == ([1, 1], 1.0)
    assert costs.problem.solve(WEIGHTS).energy == 1.0


def test_without_nodes_there_is_nothing_to_pay():
    costs = random_costs(0, n=1, m=0)
    found = exact_labels(replace(costs, node_table=costs.node_table[:0]), WEIGHTS)
    assert (found.labels.tolist(), found.energy) == ([], 0.0)


def test_starts_that_are_forbidden_or_break_a_tie_are_refused():
    costs = replace(random_costs(7, n=3, m=0), node_table=np.array([4, 4, 4], dtype=np.int32))
    with pytest.raises(InputError, match="start has tied nodes with different labels"):
        exact_labels(
            costs, WEIGHTS, tied=np.array([0, -1, 0], dtype=np.int32), start=np.array([0, 1, 2])
        )
    mixed = replace(costs, node_table=np.array([4, 4, 2], dtype=np.int32))
    with pytest.raises(InputError, match="one number with different numbers of labels"):
        exact_labels(mixed, WEIGHTS, tied=np.array([0, -1, 0], dtype=np.int32))
    with pytest.raises(ValueError, match=r"weights\[0\] is -1"):
        exact_labels(costs, np.array([-1.0, 1.0]))
    unary = costs.unary.copy()
    unary[costs.unary_start[4]] = np.inf
    with pytest.raises(InputError, match="start has a forbidden choice"):
        exact_labels(replace(costs, unary=unary), WEIGHTS, start=np.zeros(3, dtype=np.int32))
