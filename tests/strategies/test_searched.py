"""Searches that learn from simulated steps: MCMC, cross-entropy, policy gradients."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import clusters, graph_of, ms_mesh, op_graphs, v100_mesh

import loadmaster as lm
from loadmaster.base.errors import InfeasibleError, InputError
from loadmaster.costs.roofline import roofline_costs
from loadmaster.judge.problem import Problem
from loadmaster.strategies.rivals import cross_entropy, mcmc, policy_gradient
from loadmaster.strategies.rivals.trials import Choices, Trials

METHODS = ("mcmc", "cross-entropy", "policy-gradient")

#: Four ops of 4 ms side by side, between two short ones: on two devices 10 ms, on four 6.
FORK = graph_of(
    {"in": 1, "a": 4, "b": 4, "c": 4, "d": 4, "out": 1},
    [(("in"), x, 0) for x in "abcd"] + [(x, "out", 0) for x in "abcd"],
)


def problem_of(graph, cluster, seed=0) -> Problem:
    return Problem.make(graph, cluster, roofline_costs(graph, cluster), seed=seed)


def trials_of(problem, groups=100, steps=10**6) -> Trials:
    made = Choices.make(problem, groups, "parallel")
    return Trials(made, steps)


# -- what they share -------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_they_find_what_is_best_where_that_is_easy(method):
    plan = lm.place(FORK, ms_mesh(4), method, steps=600)
    assert plan.makespan == pytest.approx(6e-3)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("steps", [1, 7, 40])
def test_a_step_is_a_simulation_and_no_more_are_taken(method, steps, monkeypatch):
    taken = []
    original = Problem.simulate_below
    counted = lambda *a, **k: taken.append(1) or original(*a, **k)  # noqa: E731
    monkeypatch.setattr(Problem, "simulate_below", counted)
    plan = lm.place(FORK, ms_mesh(3), method, steps=steps)
    # The walk from layers ends early where half of it brings nothing; four are for the order.
    assert len(taken) <= steps + 4
    assert plan.makespan > 0
    if method != "mcmc":
        assert len(taken) == steps + 4


@pytest.mark.parametrize("method", METHODS)
def test_more_steps_are_never_worse_and_the_seed_decides(method):
    graph, cluster = lm.read("example:alexnet"), v100_mesh(4)
    plans = [lm.place(graph, cluster, method, steps=120, seed=s) for s in (1, 1, 2)]
    assert np.array_equal(plans[0].devices, plans[1].devices)
    assert plans[0].makespan == plans[1].makespan
    assert not np.array_equal(plans[0].devices, plans[2].devices)


@pytest.mark.parametrize("method", METHODS)
def test_what_fits_is_kept_over_what_is_faster(method):
    # Each device holds two of the four ops' 10 bytes and no more.
    graph = graph_of({x: 1 for x in "abcd"}, param_bytes=[10] * 4)
    plan = lm.place(graph, ms_mesh(2, memory=20), method, steps=60, groups=4)
    assert sorted(np.bincount(plan.devices).tolist()) == [2, 2]
    with pytest.raises(InfeasibleError) as caught:
        lm.place(graph, ms_mesh(2, memory=19), method, steps=60, groups=4)
    assert caught.value.shortfall
    over = lm.place(graph, ms_mesh(2, memory=19), method, steps=60, on_oom="best_effort")
    assert not over.fits


@pytest.mark.parametrize("method", METHODS)
def test_ctrl_c_and_the_time_limit_keep_the_best(method):
    graph, cluster = lm.read("example:alexnet"), v100_mesh(4)
    told = []

    def progress(stage, makespan):
        if makespan is not None and stage == method:
            told.append(makespan)
            if len(told) == 2:
                raise KeyboardInterrupt

    plan = lm.place(graph, cluster, method, steps=10**6, progress=progress)
    assert plan.makespan <= min(told)
    assert any("interrupted after" in note for note in plan.notes)
    late = lm.place(graph, cluster, method, steps=10**6, time_limit=0.05)
    assert any("out of time after" in note for note in late.notes)
    assert late.planning_seconds < 20


@pytest.mark.parametrize("method", METHODS)
def test_where_there_is_no_choice_one_step_will_do(method):
    plan = lm.place(FORK, ms_mesh(1), method, steps=10**9)
    assert plan.makespan == pytest.approx(18e-3)
    assert plan.planning_seconds < 5


@given(data=st.data())
@settings(max_examples=20)
def test_groups_hold_colocated_ops_together_and_heed_types(data):
    graph = data.draw(op_graphs())
    problem = problem_of(graph, data.draw(clusters()))
    groups = Choices.make(problem, data.draw(st.integers(1, 6)), "parallel")
    for s in range(int(problem.graph.colocation.max()) + 1):
        assert len(set(groups.group[problem.graph.colocation == s].tolist())) == 1
    assert sorted(set(groups.group.tolist())) == list(range(groups.n_groups))
    assert groups.allowed.any(axis=1).all()


def test_what_does_not_fit_costs_more_than_anything_that_does():
    graph = graph_of({x: 1 for x in "abcd"}, param_bytes=[10] * 4)
    trials = trials_of(problem_of(graph, ms_mesh(2, memory=20)))
    costs = {
        devices: trials.cost(np.array(devices, dtype=np.int32))
        for devices in itertools.product((0, 1), repeat=4)
    }
    fits = {devices: sum(devices) == 2 for devices in costs}
    assert max(c for d, c in costs.items() if fits[d]) < min(
        c for d, c in costs.items() if not fits[d]
    )
    assert costs[0, 0, 0, 0] > costs[0, 0, 0, 1]
    assert trials.taken == 16
    assert trials.best.fits


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps is 0"),
        ({"steps": 2.5}, "steps is 2.5"),
        ({"groups": 0}, "groups is 0"),
        ({"coarsener": "magic"}, "coarsener is 'magic': wants one of"),
        ({"method": "mcmc", "beta": 0}, "beta is 0"),
        ({"method": "mcmc", "beta": math.inf}, "beta is inf"),
        ({"method": "cross-entropy", "batch": 0}, "batch is 0"),
        ({"method": "cross-entropy", "elite": 1.5}, "elite is 1.5"),
        ({"method": "cross-entropy", "smoothing": True}, "smoothing is True"),
        ({"method": "policy-gradient", "batch": "10"}, "batch is '10'"),
        ({"method": "policy-gradient", "learning_rate": -1}, "learning_rate is -1"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(InputError, match=message):
        lm.place(FORK, ms_mesh(2), **{"method": "mcmc", **options})


# -- MCMC ------------------------------------------------------------------------------------


def test_the_walk_has_the_stationary_distribution_of_metropolis():
    """Two ops side by side on two devices: states of 1 and of 2 ms, weights 1 and exp(-beta/2)."""
    graph = graph_of({"a": 1, "b": 1})
    trials = trials_of(problem_of(graph, ms_mesh(2)))
    beta = 2.0
    rng = np.random.default_rng(0)
    devices = np.zeros(2, dtype=np.int32)
    states = []
    for _ in range(10_000):
        # The start and one proposal: longer walks end where they bring nothing.
        mcmc.walk(trials, devices, 2, beta, rng)
        states.append(devices[0] != devices[1])
    weight = math.exp(-beta * 0.5)
    assert np.mean(states) == pytest.approx(1 / (1 + weight), abs=0.02)


def test_layers_are_where_a_walk_starts():
    graph = lm.read("example:bert-large")
    problem = problem_of(graph, v100_mesh(4, "1TiB"))
    start = mcmc.by_layers(Choices.make(problem, 100, "parallel"))
    assert set(start.tolist()) == {0, 1, 2, 3}


# -- cross-entropy ---------------------------------------------------------------------------


def test_draws_follow_their_chances():
    rng = np.random.default_rng(0)
    chances = np.array([[0.2, 0.8, 0.0], [0.5, 0.0, 0.5]])
    drawn = np.stack([cross_entropy.draw(chances, rng) for _ in range(20_000)])
    often = cross_entropy.frequencies(drawn, 3)
    assert often == pytest.approx(chances, abs=0.015)
    assert (often[chances == 0] == 0).all()


# -- policy gradients ------------------------------------------------------------------------


def test_the_gradient_is_that_of_the_log_likelihood():
    problem = problem_of(lm.read("example:lenet"), v100_mesh(3))
    seen = policy_gradient.Observation.of(Choices.make(problem, 12, "parallel"))
    rng = np.random.default_rng(1)
    policy = policy_gradient.Policy.make(rng)
    policy.weights[2][:] = rng.standard_normal(policy_gradient.HIDDEN)
    episode = policy_gradient.Episode.play(seen, policy, 4, rng)
    advantage = np.array([1.0, -2.0, 0.5, 3.0])

    def objective() -> float:
        chances = policy.chances(episode.features, seen.allowed[:, None, :])
        taken = np.take_along_axis(chances, episode.devices.T[:, :, None].astype(int), 2)
        return float((np.log(taken[..., 0]).sum(axis=0) * advantage).mean())

    for weights, slopes in zip(policy.weights, policy.gradient(episode, advantage), strict=True):
        at = np.unravel_index(int(np.argmax(np.abs(slopes))), slopes.shape)
        weights[at] += 1e-6
        above = objective()
        weights[at] -= 2e-6
        below = objective()
        weights[at] += 1e-6
        assert slopes[at] == pytest.approx((above - below) / 2e-6, rel=1e-4)


def test_the_policy_sees_where_the_inputs_are():
    graph = graph_of({"a": 1, "b": 1}, [("a", "b", 3)], output_bytes=[3, 0])
    problem = problem_of(graph, ms_mesh(2, latency=1))
    groups = Choices.make(problem, 2, "parallel")
    seen = policy_gradient.Observation.of(groups)
    [(sources, tensors, bytes_)] = [i for i in seen.inputs if len(i[0])]
    assert (sources.tolist(), tensors.tolist(), bytes_.tolist()) == ([0], [1.0], [3.0])
    nothing = np.zeros((1, 2))
    shown = policy_gradient.observed(seen, 1, np.array([[1, 0]], dtype=np.int32), nothing, nothing)
    # 3 ms and 1 ms of latency, where an even share of all work is 1 ms.
    assert shown[0, :, 0] == pytest.approx([math.log1p(40.0), 0.0])


@pytest.mark.parametrize("method", ["cross-entropy", "policy-gradient"])
def test_they_learn(method):
    """What is drawn last is better, on average, than what was drawn first."""
    problem = problem_of(lm.read("example:rnnlm"), v100_mesh(4, "1TiB"))
    trials = trials_of(problem, steps=400)
    costs = []
    original = trials.cost
    trials.cost = lambda devices: costs.append(original(devices)) or costs[-1]
    if method == "cross-entropy":
        cross_entropy.draws(trials, batch=20, elite=0.1, smoothing=0.5)
    else:
        policy_gradient.learn(trials, batch=10, rate=0.03)
    assert len(costs) == 400
    assert np.mean(costs[-50:]) < 0.9 * np.mean(costs[:50])
