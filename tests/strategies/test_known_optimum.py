"""Planted instances: the planted schedule takes exactly the optimum, and nothing takes less.

How near HEFT comes to them, and to the design's table.
"""

from __future__ import annotations

import sys

import numpy as np
import pytest
from folders import BENCHES
from traced import named

import loadmaster as lm
from loadmaster.readers.instances.planted import LATENCY, planted
from loadmaster.strategies.lists import heft

sys.path.insert(0, str(BENCHES))

from quality import DESIGN, design_problem

CASES = [
    (n, k, ccr, seed)
    for n, k in ((40, 2), (200, 4), (1000, 8))
    for ccr in (0.1, 1.0, 10.0)
    for seed in (0, 1)
]


@pytest.mark.parametrize(("n_ops", "devices", "ccr", "seed"), CASES)
def test_the_planted_schedule_is_optimal(n_ops, devices, ccr, seed):
    found = planted(n_ops, devices, ccr, seed)
    assert (found.graph.n_ops, found.cluster.n_devices) == (n_ops, devices)
    seen = lm.simulate(found.graph, found.cluster, found.devices, found.priority)
    assert round(seen.makespan * 1e9) == round(found.optimum * 1e9)
    assert seen.utilisation.tolist() == pytest.approx([1.0] * devices)
    bound = lm.lower_bound(found.graph, found.cluster).seconds
    assert bound == pytest.approx(found.optimum, rel=1e-9), "no schedule is shorter"
    sent = LATENCY * 1e-6 + found.graph.bytes / found.cluster.links[0].bandwidth
    assert sent.sum() / found.graph.time["*"].sum() == pytest.approx(ccr, rel=0.021)
    assert found.graph.n_edges >= 0.8 * n_ops
    across = found.devices[found.graph.src] != found.devices[found.graph.dst]
    assert across.any()


@pytest.mark.parametrize("devices", [2, 4, 8])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_heft_is_within_a_percent_of_the_optimum_with_contention(devices, seed):
    found = planted(1000, devices, 1.0, seed)
    assert lm.place(found.graph, found.cluster, "heft").makespan <= 1.01 * found.optimum


@pytest.mark.parametrize("graph", [named(graph) for graph in DESIGN])
def test_heft_keeps_to_its_column_of_the_designs_table(graph):
    problem, (_, column, *_) = design_problem(graph, ""), DESIGN[graph]
    one = float(problem.time.sum(axis=0).min())
    assert heft.place(problem).schedule.makespan <= column * one


def test_the_same_seed_gives_the_same_instance():
    a, b, c = (planted(100, 4, 1.0, seed) for seed in (3, 3, 4))
    assert a.graph.digest == b.graph.digest != c.graph.digest
    assert np.array_equal(a.devices, b.devices)


def test_a_ccr_below_latency_is_refused():
    with pytest.raises(ValueError, match="latency alone"):
        planted(100, 4, 0.001, 0)
