"""FastT's loop: it learns what ops and links take, and returns what was measured fastest."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from ran import pretended
from strategies import graph_of, ms_mesh

import loadmaster as lm
from loadmaster.base.errors import InputError
from loadmaster.judge.problem import Problem
from loadmaster.running.devices.emulated import emulate
from loadmaster.running.measured.adapt import adapt
from loadmaster.running.measured.measured import Measured

#: Two branches of four ops; what comes in and goes out is small.
GRAPH = graph_of(
    {"a": 1, **{f"l{i}": 4 for i in range(4)}, **{f"r{i}": 4 for i in range(4)}, "z": 1},
    [
        ("a", "l0", 1),
        ("a", "r0", 1),
        *((f"l{i}", f"l{i + 1}", 1) for i in range(3)),
        *((f"r{i}", f"r{i + 1}", 1) for i in range(3)),
        ("l3", "z", 1),
        ("r3", "z", 1),
    ],
)
CLUSTER = ms_mesh(2)
TRULY = GRAPH.time["*"]


def test_it_finds_the_plan_that_true_times_ask_for():
    """By the costs that are given, the branches are nothing and one device is best."""
    wrong = np.array([1e-2, *[1e-5] * 8, 1e-2])
    start = lm.place(GRAPH, CLUSTER, "etf", wrong)
    assert len(set(start.devices.tolist())) == 1
    found = adapt(start, pretended(TRULY), 4, steps=3)
    assert found.plan.makespan == lm.place(GRAPH, CLUSTER, "etf").makespan
    assert found.best.step < found.candidates[0].step
    assert found.best.error == pytest.approx(0.0, abs=1e-9)
    assert found.ended == "placement 2 is one that ran already"
    assert [len(run.steps) for run in found.candidates] == [24, 24]


def test_what_is_returned_was_measured_fastest_and_the_start_is_among_it():
    """Plans get worse from round to round: the time of an op depends on who runs beside it."""
    start = lm.place(GRAPH, CLUSTER, "single")
    spread = pretended(TRULY)
    ran: list[lm.Plan] = []

    @contextmanager
    def runner(plan):
        with spread(plan) as session:

            def slowed(steps):
                ran.append(plan)
                slow = 1.0 if len(set(plan.devices.tolist())) == 1 else 3.0
                return replace(session(steps), stretch=1 / slow)

            yield slowed

    found = adapt(replace(start, method="etf"), runner, 4, steps=2)
    assert len(found.candidates) > 1
    assert found.which == 0
    assert found.plan.devices.tolist() == start.devices.tolist()
    steps = [run.step for run in found.candidates]
    assert found.best.step == min(steps) == steps[0]


def test_links_are_learnt_too():
    """A fast link by the costs, a slow one by truth: the branches stay together."""
    graph = GRAPH.with_columns({}, {"bytes": [1000, 1000, *[10] * 6, 20, 30]})
    fast = lm.Cluster.mesh(2, memory="1GiB", bandwidth=1e9, latency=1e-6)
    slow = lm.Cluster.mesh(2, memory="1GiB", bandwidth=1e5, latency=5e-2)
    start = lm.place(graph, fast, "etf")
    assert len(set(start.devices.tolist())) == 2
    found = adapt(start, pretended(TRULY, slow), 3, steps=2)
    assert len(set(found.plan.devices.tolist())) == 1
    (link, *_) = found.candidates[-1].plan.cluster.links
    assert (link.latency, link.bandwidth) == pytest.approx((5e-2, 1e5), rel=1e-2)


def test_times_that_were_not_measured_are_the_plans_own():
    """On another device type, an op keeps the time that the plan was made with."""
    types = [lm.DeviceType("x"), lm.DeviceType("y")]
    devices = [lm.Device("d0", "x", 1 << 30), lm.Device("d1", "y", 1 << 30)]
    links = [lm.Link("d0", "d1", 1e9, 1e-6), lm.Link("d1", "d0", 1e9, 1e-6)]
    cluster = lm.Cluster(devices, links, types)
    given = np.stack([TRULY, 1.5 * TRULY], axis=1)
    start = lm.place(GRAPH, cluster, "single", given)
    ran: list[lm.Plan] = []
    truly = np.stack([3 * TRULY, 9 * TRULY], axis=1)
    found = adapt(replace(start, method="etf"), pretended(truly, ran=ran), 1, steps=1)
    learnt = ran[1].costs.time
    assert learnt[:, 0] == pytest.approx(3 * TRULY)
    assert learnt[:, 1] == pytest.approx(1.5 * TRULY)
    assert found.ended == "1 placement tried"


def test_constraints_and_options_hold_in_every_round():
    constraints = lm.Constraints(pin={"l*": "1"})
    start = lm.place(GRAPH, CLUSTER, "random", constraints=constraints, seed=3)
    found = adapt(start, pretended(TRULY), 2, steps=1)
    at = [i for i, name in enumerate(GRAPH.names) if name.startswith("l")]
    for run in found.candidates:
        assert set(run.plan.devices[at].tolist()) == {1}
        assert (run.plan.method, run.plan.seed) == ("random", 3)


def test_a_plan_of_replicas_is_learnt_from():
    graph, cluster = lm.read("example:lenet"), lm.Cluster.preset("2xV100-NVLink")
    start = lm.place(graph, cluster, "data-parallel")
    # Ops are as good as free, so that whole ones on one device need no gradients to be summed.
    truly = pretended(1e-3 * start.costs.time)
    found = adapt(replace(start, method="auto"), truly, 1, steps=1)
    assert found.plan.program.is_plain
    assert found.best.step < found.candidates[0].step


def test_no_placement_that_fits_ends_it_with_what_ran():
    start = lm.place(GRAPH, CLUSTER, "single")
    with pytest.raises(InputError, match="rounds"):
        adapt(start, pretended(TRULY), 0)
    tight = GRAPH.with_columns({"output_bytes": [1 << 20] * GRAPH.n_ops})
    plan = lm.place(tight, CLUSTER, "single")
    reserve = lm.Constraints(reserve={"*": "1GiB"})
    found = adapt(replace(plan, constraints=reserve), pretended(TRULY), 2, steps=1)
    assert found.ended.startswith("placement 1 found nothing that fits: ")
    assert found.which == 0


def test_what_it_says():
    start = lm.place(GRAPH, CLUSTER, "single")
    found = adapt(replace(start, method="etf"), pretended(TRULY), 2, steps=1)
    text = str(found)
    assert "round  predicted  measured alone  in the last run" in text
    assert "start  " in text
    document = json.loads(json.dumps(found.to_document(), allow_nan=False))
    assert document["which"] == found.which == 1
    assert document["best"]["step"] == found.best.step
    truly = Problem.make(GRAPH, CLUSTER, lm.Costs.given(TRULY, GRAPH, CLUSTER))
    assert document["candidates"][0]["step"] == truly.verdict(start.assignment).step_time


def test_emulated_devices_whose_true_times_are_others():
    """Waits are as long as the true times, not as the costs say; the clock is the machine's."""
    wrong = np.array([1e-2, *[1e-5] * 8, 1e-2])
    start = lm.place(GRAPH, CLUSTER, "etf", wrong)

    @contextmanager
    def runner(plan):
        problem = Problem.make(plan.program, CLUSTER, lm.Costs.given(TRULY, GRAPH, CLUSTER))
        truly = replace(plan, problem=problem, verdict=problem.verdict(plan.assignment))

        def session(steps):
            seen = emulate(truly, steps, seconds=0.01)
            return Measured(plan, seen.steps, seen.on, seen.stretch)

        yield session

    found = adapt(start, runner, 1, steps=2)
    assert [len(set(run.plan.devices.tolist())) for run in found.candidates] == [1, 2]
    steps = [run.step for run in found.candidates]
    assert found.which == steps.index(min(steps))
    assert found.plan is found.candidates[found.which].plan
    assert all(len(run.steps) == 24 for run in found.candidates)
