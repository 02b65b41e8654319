"""Graphs that nobody tuned on: they are what they are said to be, and every cheap method is tried
whole on them.
"""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest
from folders import BENCHES

import loadmaster as lm
from loadmaster.base.effort import Budget
from loadmaster.base.errors import InfeasibleError
from loadmaster.judge.problem import Problem
from loadmaster.strategies import METHODS
from loadmaster.strategies.auto.planting import Planting
from loadmaster.strategies.auto.run import Run
from loadmaster.strategies.auto.seeds import LENGTHY, SEEDS, worth_trying

sys.path.insert(0, str(BENCHES))

from unseen import AUTO, PLAIN, RIVALS, ROUND, SLACK, Case, drawn, planned, summary

#: A seed that no published table has.
SEED, MOST = 5, 1500

#: Cases of it whose memory is tight: trained or not, on equal and unequal devices.
TIGHT = (5, 6, 7, 9, 10, 12, 13, 21, 24, 28, 29, 33)


@pytest.mark.parametrize("index", range(len(ROUND)), ids=ROUND)
def test_a_case_is_what_it_says(index):
    family, words, layers, problem = drawn(SEED, index, MOST)
    assert family == ROUND[index]
    assert 700 <= problem.graph.n_ops <= 2 * MOST
    assert ("training" in words) == ("o" in problem.model.phases)
    assert ("unequal" in words) == (len(problem.cluster.types) == 2)
    assert f"{problem.cluster.n_devices} " in words
    assert (layers > 0) == (family in ("recurrent", "wavefronts"))
    if family == "wavefronts":
        assert layers >= 8
        assert problem.cluster.n_devices == 8
    assert any(METHODS[name][0](problem).fits for name in PLAIN)
    again = drawn(SEED, index, MOST)[3]
    assert again.model.digest == problem.model.digest
    assert again.cluster.digest == problem.cluster.digest
    assert drawn(SEED + 1, index, MOST)[3].model.digest != problem.model.digest


def test_gradients_of_a_trained_graph_are_added_up_and_each_parameter_is_updated_where_it_is():
    cases = (drawn(seed, 0, MOST) for seed in range(20))
    problem = next(p for _, words, _, p in cases if "training" in words)
    model = problem.model
    weights = [i for i, kind in enumerate(model.kinds) if kind == "parameter"]
    updates = [i for i, phase in enumerate(model.phases) if phase == "o"]
    read = set(model.src.tolist())
    assert {model.colocation[i] for i in updates} == {
        model.colocation[i] for i in weights if i in read
    }
    # A step of every layer's cells adds its part to the gradient of the layer's one weight.
    assert np.count_nonzero([phase == "b" for phase in model.phases]) > 2 * len(weights)


def test_every_method_that_places_whole_ops_is_a_seed_or_has_a_reason_not_to_be():
    along = {name for name in RIVALS if METHODS.comes_along(name)}
    reasons = {
        "single": "comes before all seeds",
        "metis": "needs an extra; Loadmaster's own partition stands in for it",
        "getf": "solves a linear program, and is etf on equal devices",
    }
    assert along - {*SEEDS} == {*reasons}


@pytest.mark.parametrize("index", TIGHT)
def test_auto_is_behind_no_cheap_method_where_memory_is_tight(index):
    """At an effort that counts next to nothing: what is never behind is a seed that was done."""
    _, words, _, problem = drawn(SEED, index, MOST)
    assert "memory 1." in words
    step = METHODS["auto"][0](problem, **{**AUTO, "effort": 1e-6}).verdict.step_time
    for name in {*RIVALS} & {*SEEDS} - {"m-sct"}:
        try:
            found = METHODS[name][0](problem)
        except InfeasibleError:
            continue
        assert step <= found.verdict.step_time * (1 + SLACK), name


@pytest.mark.parametrize("index", [0, 2, 4, 8])
def test_what_is_cheap_is_tried_whole_on_any_graph(index):
    """At an effort that counts next to nothing, as the effort "fast" is on large graphs."""
    problem = drawn(SEED, index, MOST)[3]
    run = Run(problem, Budget.make(1e-6, None))
    made = {seed.verdict.step_time for seed in Planting(run).plant() if seed.fits}
    assert not run.is_near
    is_loose = bool(problem.objective.seconds(run.best.verdict)) and len(made) > 1
    assert is_loose
    for name in worth_trying(problem, True):
        if name not in LENGTHY:
            found = SEEDS[name].place(problem)
            assert not found.fits or found.verdict.step_time in made, name


def test_alexnet_on_three_unequal_memories_is_no_longer_than_by_celeritas():
    preset = lm.Cluster.preset("4xV100-PCIe")
    gib = zip(preset.devices, (0.962, 0.239, 0.785), strict=False)
    devices = [lm.Device(d.name, d.type, int(memory * 2**30)) for d, memory in gib]
    names = {d.name for d in devices}
    links = [link for link in preset.links if {link.src, link.dst} <= names]
    cluster = lm.Cluster(devices, links, preset.types)
    graph = lm.read("example:alexnet")
    best = lm.place(graph, cluster, "celeritas").makespan
    assert lm.place(graph, cluster, effort=0.1).makespan <= best


def test_where_nothing_else_fits_the_search_for_the_least_overflow_is_one_of_the_seeds():
    preset = lm.Cluster.preset("8xV100-NVLink")
    gib = zip(preset.devices, (0.962, 0.239, 0.785), strict=False)
    devices = [lm.Device(d.name, d.type, int(memory * 2**30)) for d, memory in gib]
    names = {d.name for d in devices}
    links = [link for link in preset.links if {link.src, link.dst} <= names]
    cluster = lm.Cluster(devices, links, preset.types)
    graph = lm.read("example:alexnet")
    # No list schedule fits: what stands in for it is the search.
    stand_in = lm.place(graph, cluster, "heft")
    assert any("least overflow" in note for note in stand_in.notes)
    plan = lm.place(graph, cluster, effort=0.1)
    assert plan.makespan <= stand_in.makespan
    assert not any("least overflow" in note for note in plan.notes)


def case(auto, others, layers=0):
    """A case by seconds of a step and CPU seconds."""
    plans = {"auto": auto, "layers": (9.0, 0.1), **others}
    return Case(0, "recurrent", "training", 10, 8, layers, 1.0, plans, {})


def test_auto_is_behind_what_took_no_more_time_than_it_did():
    assert case((2.0, 1.0), {"heft": (1.0, 1.1), "etf": (2.1, 0.5)}).best == ("etf", 2.1)
    assert case((2.0, 1.0), {"heft": (1.0, 1.0)}).behind == pytest.approx(1.0)
    assert case((math.inf, 1.0), {"heft": (1.0, 1.0)}).behind == math.inf
    assert math.isnan(case((math.inf, 0.0), {}).behind)
    assert case((2.0, 0.0), {"heft": (1.0, 1.0)}).behind == -1.0
    cases = [case((2.0, 1.0), {"heft": (1.0, 1.0)}, layers=9), case((1.0, 1.0), {})]
    text = "\n".join(summary(cases))
    assert f"{SLACK:.1%}" in text
    assert "| recurrent | 2 | 1 | 1 |" in text
    assert "1 cases, behind `layers` in 0, 2.000 of the bound" in text


def test_a_method_has_so_much_cpu_time_and_no_more():
    graph = lm.OpGraph({"name": ["a"], "time": {"*": [1.0]}}, {"src": [], "dst": []})
    cluster = lm.Cluster.mesh(2, memory="1GiB", bandwidth=1e9)
    problem = Problem.make(graph, cluster, lm.costs.estimate(graph, cluster))
    assert planned(problem, "single", {}, math.inf)[:2] == ("fits", 1.0)

    def forever(problem):
        while True:
            pass

    METHODS["forever"] = forever, "never ends"
    try:
        assert planned(problem, "forever", {}, 0.0) == ("late", math.inf, math.inf)
    finally:
        del METHODS["forever"]
