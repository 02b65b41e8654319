"""Labellings through the extension: what is best, what is proved, and what is refused."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from labellings import energy, least_energy, n_labels, random_costs, tied_by_labels

from loadmaster import fast
from loadmaster.base.errors import InfeasibleError, InputError

WEIGHTS = np.array([1.0, 0.5])
SEEDS = st.integers(0, 2**32 - 1)


def solved(costs, tied):
    """What a solve finds, or why it finds nothing."""
    try:
        return costs.problem.solve(WEIGHTS, tied=tied), ""
    except InfeasibleError as error:
        return None, str(error)


@given(SEEDS, st.integers(1, 6), st.integers(0, 9), st.sampled_from([0.0, 0.05]), st.booleans())
def test_what_is_best_lies_between_bound_and_energy(seed, n, m, forbidden, is_tied):
    costs = random_costs(seed, n=n, m=m, forbidden=forbidden)
    tied = tied_by_labels(costs, seed) if is_tied else None
    best = least_energy(costs, WEIGHTS, tied)
    found, refusal = solved(costs, tied)
    if found is None:
        assert best == np.inf or "none was found" in refusal
        return
    assert found.bound <= best + 1e-9
    assert best - 1e-9 <= found.energy
    assert found.energy == pytest.approx(energy(costs, found.labels, WEIGHTS))
    assert found.energy == costs.problem.energy(found.labels, WEIGHTS)
    assert found.gap == pytest.approx((found.energy - found.bound) / (found.energy or 1.0))
    if tied is not None:
        for number in np.unique(tied[tied >= 0]):
            assert len(set(found.labels[tied == number].tolist())) == 1


@given(SEEDS)
def test_components_are_sums_by_column_and_weights_choose_among_them(seed):
    costs = random_costs(seed, n=5, m=6)
    problem = costs.problem
    labels = problem.solve(WEIGHTS).labels
    total = problem.components(labels)
    assert total @ WEIGHTS == pytest.approx(problem.energy(labels, WEIGHTS))
    for i, weights in enumerate(np.eye(2)):
        assert problem.energy(labels, weights) == total[i]
        assert problem.solve(weights).energy <= total[i] + 1e-9


def test_a_forbidden_choice_is_forbidden_even_where_it_weighs_nothing():
    costs = random_costs(1, n=2, m=0)
    unary = costs.unary.copy()
    unary[:, 1] = np.inf
    problem = replace(costs, unary=unary).problem
    labels = np.zeros(2, dtype=np.int32)
    assert problem.energy(labels, np.array([1.0, 0.0])) == np.inf
    with pytest.raises(InfeasibleError, match="labels of node 0 is forbidden"):
        problem.solve(np.array([1.0, 0.0]))


def pair_of_nodes(pair):
    """Two nodes of two labels, joined by an edge of these costs."""
    zero = np.array([0], dtype=np.int32)
    return fast.Labelling(
        node_table=np.array([0, 0]),
        unary_start=np.array([0, 2]),
        unary=np.array([[1.0], [2.0]]),
        src=zero,
        dst=zero + 1,
        edge_table=zero,
        pair_start=np.array([0, 4]),
        pair_columns=np.array([2]),
        pair=np.array(pair, dtype=float).reshape(4, 1),
    )


def test_an_edge_of_which_every_pair_is_forbidden_is_named():
    problem = pair_of_nodes([np.inf] * 4)
    with pytest.raises(InfeasibleError, match=r"on edge 0 is forbidden, between node 0 and node 1"):
        problem.solve(np.ones(1))


def test_ties_forbid_what_is_off_the_diagonal():
    problem = pair_of_nodes([7, 0, 0, 9])
    assert problem.solve(np.ones(1)).labels.tolist() in ([0, 1], [1, 0])
    tied = problem.solve(np.ones(1), tied=np.array([5, 5]))
    assert tied.labels.tolist() == [0, 0]
    assert tied.energy == tied.bound == 9.0
    with pytest.raises(InfeasibleError, match=r"node 0 \(with 1 tied to it\)"):
        pair_of_nodes([np.inf, 0, 0, np.inf]).solve(np.ones(1), tied=np.array([5, 5]))


def test_layers_that_are_tied_cost_what_one_layer_costs_so_many_times():
    one = random_costs(3, n=6, m=9)
    many = 80
    n = len(one.node_table)
    shift = np.repeat(np.arange(many, dtype=np.int32) * n, len(one.src))
    layers = replace(
        one,
        node_table=np.tile(one.node_table, many),
        src=np.tile(one.src, many) + shift,
        dst=np.tile(one.dst, many) + shift,
        edge_table=np.tile(one.edge_table, many),
    )
    found = layers.problem.solve(WEIGHTS, tied=np.tile(np.arange(n, dtype=np.int32), many))
    alone = one.problem.solve(WEIGHTS)
    assert found.energy == pytest.approx(many * alone.energy)
    assert found.bound == pytest.approx(many * alone.bound)
    assert found.labels.reshape(many, n).tolist() == [found.labels[:n].tolist()] * many


@given(SEEDS)
def test_more_sweeps_are_never_worse_and_runs_are_alike(seed):
    problem = random_costs(seed, n=30, m=60).problem
    found = [problem.solve(WEIGHTS, sweeps=sweeps) for sweeps in (0, 1, 3, 20)]
    for few, more in itertools.pairwise(found):
        assert more.energy <= few.energy + 1e-9
        assert more.bound >= few.bound - 1e-9
        assert more.sweeps >= few.sweeps
    assert problem.solve(WEIGHTS, sweeps=20).labels.tolist() == found[-1].labels.tolist()


@given(SEEDS)
def test_the_result_is_no_worse_than_the_start_nor_than_descending_from_it(seed):
    costs = random_costs(seed, n=12, m=20)
    start = (np.random.default_rng(seed).integers(0, 9, 12) % n_labels(costs)).astype(np.int32)
    problem = costs.problem
    descended = problem.descend(start, WEIGHTS)
    least = problem.energy(descended, WEIGHTS)
    assert least <= problem.energy(start, WEIGHTS) + 1e-9
    assert problem.solve(WEIGHTS, start=start, sweeps=0).energy <= least + 1e-9
    assert problem.solve(WEIGHTS, start=start).energy <= least + 1e-9
    for node, n in enumerate(n_labels(costs)):
        for label in range(n):
            other = descended.copy()
            other[node] = label
            assert problem.energy(other, WEIGHTS) >= least - 1e-9


@given(SEEDS)
def test_a_solve_that_goes_on_from_another_keeps_its_labels_and_its_bound(seed):
    costs = random_costs(seed, n=30, m=60)
    problem, near = costs.problem, replace(costs, unary=1.01 * costs.unary).problem
    first = near.solve(WEIGHTS, sweeps=20)
    found = problem.solve(WEIGHTS, after=first, sweeps=0)
    assert found.energy <= problem.energy(first.labels, WEIGHTS) + 1e-9
    found = problem.solve(WEIGHTS, after=first, sweeps=1)
    alone = problem.solve(WEIGHTS)
    assert found.bound <= alone.energy + 1e-9
    assert alone.bound <= found.energy + 1e-9
    again = problem.solve(WEIGHTS, after=alone)
    assert again.energy <= alone.energy + 1e-9
    assert again.bound >= alone.bound - 1e-9
    assert again.sweeps <= alone.sweeps


def test_what_was_found_of_other_nodes_is_nothing_to_go_on_from():
    other = random_costs(1, n=3, m=2).problem.solve(WEIGHTS)
    with pytest.raises(InputError, match="after"):
        random_costs(1, n=4, m=2).problem.solve(WEIGHTS, after=other)


@given(SEEDS)
def test_a_long_hot_walk_finds_what_is_best_and_no_walk_is_worse_than_its_start(seed):
    costs = random_costs(seed, n=5, m=6)
    problem = costs.problem
    start = np.zeros(5, dtype=np.int32)
    first = problem.energy(start, WEIGHTS)
    walked = [problem.walk(start, WEIGHTS, steps, seed) for steps in (0, 10, 1000)]
    energies = [problem.energy(labels, WEIGHTS) for labels in walked]
    assert walked[0].tolist() == start.tolist()
    assert all(energy <= first + 1e-9 for energy in energies)
    hot = problem.walk(start, WEIGHTS, 50_000, seed, beta=3.0)
    assert problem.energy(hot, WEIGHTS) == pytest.approx(least_energy(costs, WEIGHTS))
    assert problem.walk(start, WEIGHTS, 1000, seed).tolist() == walked[2].tolist()


@given(SEEDS)
def test_a_walk_leaves_forbidden_choices_and_takes_none_up(seed):
    costs = random_costs(seed, n=6, m=5, forbidden=0.3)
    start = np.zeros(6, dtype=np.int32)
    problem = costs.problem
    before = problem.energy(start, WEIGHTS)
    after = problem.energy(problem.walk(start, WEIGHTS, 200, seed), WEIGHTS)
    assert after <= before + 1e-9


def test_progress_tells_of_the_best_so_far_and_what_it_raises_ends_the_solve():
    problem = random_costs(5, n=200, m=600, labels=5).problem
    told: list[fast.Labels] = []
    found = problem.solve(WEIGHTS, progress=told.append)
    assert [best.sweeps for best in told] == [2**i for i in range(len(told))]
    assert len(told) > 2
    assert all(best.energy >= found.energy - 1e-9 for best in told)

    def interrupted(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        problem.solve(WEIGHTS, progress=interrupted)


def test_without_nodes_there_is_nothing_to_pay():
    costs = random_costs(0, n=1, m=0)
    found = replace(costs, node_table=costs.node_table[:0]).problem.solve(WEIGHTS)
    assert (found.labels.tolist(), found.energy, found.bound) == ([], 0.0, 0.0)


BAD = [
    ({"node_table": [99, 0]}, "node_table: value 0 is 99"),
    (
        {"unary_start": [0, 1]},
        "unary_start: wants to start with 0 and to end with the number of rows",
    ),
    ({"unary_start": [0, 1, 1, 4, 6, 9, 12]}, "unary_start: table 1 goes from row 1 to row 1"),
    ({"unary_start": []}, "unary_start: wants to start with 0"),
    ({"src": [0]}, "dst has 3 values where 1 are wanted"),
    ({"src": [0, 0, 1], "dst": [1, 1, 1]}, "dst: edge 2 joins node 1 to itself"),
    ({"dst": [1, 7, 1]}, "dst: value 1 is 7, but there are 2"),
    ({"dst": [1, -1, 1]}, "dst: value 1 is -1"),
    ({"edge_table": [0, 0, 0]}, r"edge 0 from node 0 \(3 labels\) to node 1 \(2 labels\) wants 6"),
    ({"edge_table": [0, 99, 0]}, "edge_table: value 1 is 99"),
    ({"pair_columns": [1]}, "pair_columns has 1 value where 18 are wanted"),
    ({"pair_columns": [2**31 - 1] * 18}, "pair_columns: table 0 of 1 pairs has 2147483647 columns"),
    ({"pair_columns": [0] * 18}, "pair_columns: table 0 of 1 pairs has 0 columns"),
]


@pytest.mark.parametrize(("columns", "message"), BAD)
def test_columns_that_do_not_fit_are_refused_by_name(columns, message):
    costs = replace(
        random_costs(0, n=2, m=0),
        node_table=np.array([4, 2], dtype=np.int32),
        src=np.zeros(3, dtype=np.int32),
        dst=np.ones(3, dtype=np.int32),
        edge_table=np.full(3, 15, dtype=np.int32),
    )
    assert costs.problem.n_edges == 3
    with pytest.raises(InputError, match=message):
        _ = replace(costs, **{k: np.array(v, dtype=np.int64) for k, v in columns.items()}).problem


@pytest.mark.parametrize("value", [np.nan, -np.inf])
@pytest.mark.parametrize("column", ["unary", "pair"])
def test_a_cost_that_is_no_number_is_refused(column, value):
    costs = random_costs(0, n=2, m=1)
    table = getattr(costs, column).copy()
    table[3, 1] = value
    with pytest.raises(InputError, match=f"{column}: component 1 of row 3 is"):
        _ = replace(costs, **{column: table}).problem


def test_arguments_of_a_solve_that_do_not_fit_are_refused_by_name():
    costs = replace(random_costs(0, n=3, m=0), node_table=np.array([0, 2, 4], dtype=np.int32))
    problem = costs.problem
    labels = np.zeros(3, dtype=np.int32)
    with pytest.raises(ValueError, match=r"weights: got float64 array of shape \[1\]"):
        problem.solve(np.ones(1))
    with pytest.raises(ValueError, match=r"weights\[1\] is -1: it must be finite and not negative"):
        problem.solve(np.array([1.0, -1.0]))
    with pytest.raises(InputError, match="tied: nodes 0 and 2 are tied, but have 1 and 3 labels"):
        problem.solve(WEIGHTS, tied=np.array([1, -1, 1]))
    with pytest.raises(InputError, match="tied has 2 values where 3 are wanted"):
        problem.solve(WEIGHTS, tied=np.array([1, -1]))
    with pytest.raises(InputError, match="start: node 1 has label 2: it has 2 labels"):
        problem.solve(WEIGHTS, start=np.array([0, 2, 0]))
    with pytest.raises(InputError, match="labels: node 2 has label -1"):
        problem.energy(np.array([0, 0, -1]), WEIGHTS)
    with pytest.raises(InputError, match="labels has 2 values"):
        problem.components(labels[:2])
    with pytest.raises(ValueError, match="beta is NaN: it must be finite and not negative"):
        problem.walk(labels, WEIGHTS, 1, 0, beta=np.nan)
    with pytest.raises(ValueError, match="steps: got -1, wants an integer"):
        problem.walk(labels, WEIGHTS, -1, 0)
    same = replace(costs, node_table=np.array([4, 5], dtype=np.int32)).problem
    with pytest.raises(InputError, match="start: nodes 0 and 1 are tied, but differ"):
        same.solve(WEIGHTS, tied=np.array([1, 1]), start=np.array([0, 1]))


def test_what_shared_tables_would_come_to_one_by_one_is_refused_before_it_is_made():
    n, labels = 10_000, 2**16
    one = np.zeros(n // 2, dtype=np.int32)
    shared = fast.Labelling(
        node_table=np.repeat([0, 1], n // 2),
        unary_start=np.array([0, 1, 1 + labels]),
        unary=np.zeros((1 + labels, 1)),
        src=np.arange(n // 2),
        dst=np.arange(n // 2, n),
        edge_table=one,
        pair_start=np.array([0, labels]),
        pair_columns=np.array([labels]),
        pair=np.zeros((labels, 1)),
    )
    with pytest.raises(InputError, match="327680000 labels at ends of edges: at most 268435456"):
        shared.solve(np.ones(1))
    alone = fast.Labelling(
        node_table=np.zeros(n, dtype=np.int32),
        unary_start=np.array([0, labels]),
        unary=np.zeros((labels, 1)),
        src=one[:0],
        dst=one[:0],
        edge_table=one[:0],
        pair_start=np.array([0]),
        pair_columns=one[:0],
        pair=np.zeros((0, 1)),
    )
    with pytest.raises(InputError, match="327745536 labels: at most 268435456"):
        alone.solve(np.ones(1), tied=np.arange(n) // 2)


def test_costs_too_large_to_be_added_are_refused():
    costs = random_costs(0, n=2, m=1)
    labels = np.zeros(2, dtype=np.int32)
    for weight in (1e250, 1.7e308):
        with pytest.raises(InputError, match="costs times weights may add up to"):
            costs.problem.energy(labels, np.array([weight, 1.0]))
    cancelling = replace(costs, unary=np.tile([1e200, -1e200], (len(costs.unary), 1)))
    with pytest.raises(InputError, match="costs times weights may add up to 4e200"):
        cancelling.problem.solve(np.ones(2))
    assert cancelling.problem.solve(np.full(2, 1e-200)).energy < 5.0
    huge = replace(costs, unary=np.tile([1.7e308, 0.0], (len(costs.unary), 1)))
    with pytest.raises(InputError, match="must be a number of at most 1e200 in size"):
        _ = huge.problem
