"""Replicas among the plans of auto: parameter servers, the search inside, loose replicas."""

from __future__ import annotations

from functools import cache, partial

import pytest
from conftest import example
from hypothesis import given, settings
from hypothesis import strategies as st
from test_data_parallel import PCIE, WAYS, problem_of, unequal
from trained import linears

import loadmaster as lm
from loadmaster.base.effort import Budget
from loadmaster.judge.assignment import Assignment
from loadmaster.judge.bounds import SPLIT_OPS
from loadmaster.judge.problem import Problem, ranks
from loadmaster.strategies.auto.inside import (
    Representative,
    in_time_for_collectives,
    searched_inside,
)
from loadmaster.strategies.auto.loose import loose_replicas
from loadmaster.strategies.auto.replicas import seconds_of_servers
from loadmaster.strategies.auto.run import Run
from loadmaster.strategies.candidate import Candidate, judged
from loadmaster.strategies.simple import data_parallel

TWO = PCIE.subset([0, 1])
COLLECTIVES = WAYS[:3]


def replicas(graph: lm.OpGraph, cluster: lm.Cluster, aggregation: str, shards: str) -> Candidate:
    problem = problem_of(graph, cluster)
    return data_parallel.place(problem, aggregation=aggregation, shards=shards)


@cache
def recurrent() -> Candidate:
    problem = problem_of(example("rnnlm"), PCIE, "roofline")
    return data_parallel.place(problem, aggregation="all-reduce", shards="flat")


def search(candidate: Candidate, effort: float, threads: int = 1) -> Candidate:
    budget = Budget(effort, None)
    return searched_inside(Run(candidate.problem, budget, threads=threads), candidate, budget)


nets = st.tuples(
    st.lists(st.integers(1, 1500), min_size=2, max_size=6),
    st.integers(4, 64),
    st.sampled_from(COLLECTIVES),
    st.integers(0, 2),
)


def test_what_is_recomputed_is_in_the_representative_twice():
    """An op in the forward pass, and once more in the backward pass: one group of the two would
    wait for itself.
    """
    graph = example("gpt3-330m")
    recipe = lm.Recipe({"dp": 2}, {"dp": {"**": "batch"}}, recompute=["h.*"])
    plan = lm.place(graph, TWO, recipe=recipe)
    representative = Representative.of(judged(plan.problem, plan.assignment))
    assert representative.problem().graph.n_ops == representative.coarse.n_groups
    assert representative.coarse.n_groups > graph.reduced.graph.n_ops


# -- the order of ops --------------------------------------------------------------------------


@settings(max_examples=15)
@given(nets, st.integers(0, 3))
def test_what_is_found_inside_is_never_worse_on_any_number_of_threads(net, seed):
    widths, batch, way, n_slow = net
    first = replicas(linears(widths, batch), unequal(n_slow), *way)
    given_order = in_time_for_collectives(first)
    found = search(given_order, 0.02)
    steps = [one.verdict.step_time for one in (first, given_order, found)]
    assert steps == sorted(steps, reverse=True)
    again = search(given_order, 0.02, threads=2)
    assert again.assignment.priority.tolist() == found.assignment.priority.tolist()
    for one in (given_order, found):
        assert one.problem is first.problem
        assert one.assignment.devices.tolist() == first.assignment.devices.tolist()
        assert one.problem.verdict(one.assignment).step_time == one.verdict.step_time


@settings(max_examples=15)
@given(nets)
def test_one_of_equal_replicas_stands_for_all(net):
    widths, batch, _, _ = net
    first = replicas(linears(widths, 4 * batch), PCIE, "all-reduce", "flat")
    representative = Representative.of(first)
    devices = representative.is_network.astype("int32")
    one = judged(representative.problem(), Assignment(devices, ranks(representative.order)))
    assert one.verdict.step_time == pytest.approx(first.verdict.step_time, rel=1e-9)
    assert representative.is_network.sum() == first.schedule.n_collectives


def test_what_the_first_collective_waits_for_comes_first():
    """Gradients of a recurrent net's weights are sums over all steps: in the order of the program
    the last of them come together, and the links have nothing to do until then.
    """
    first = recurrent()
    assert in_time_for_collectives(first).verdict.step_time < 0.88 * first.verdict.step_time


def test_the_search_goes_on_from_the_order_of_the_program():
    first = recurrent()
    assert search(first, 0.2).verdict.step_time < 0.99 * first.verdict.step_time


def test_the_search_places_ops_of_replicas_with_servers():
    first = data_parallel.place(problem_of(example("lenet"), TWO), aggregation="parameter-server")
    assert in_time_for_collectives(first) is first
    found = search(first, 0.2)
    assert found.verdict.step_time < first.verdict.step_time
    assert found.problem.program is first.problem.program
    assert search(first, 0.2, threads=2).assignment.devices.tolist() == (
        found.assignment.devices.tolist()
    )


def test_replicas_that_are_as_fast_as_any_stay_as_they_are():
    """Inference: every device does an equal share of the work all the time."""
    first = data_parallel.place(problem_of(linears((64, 64, 64), 64, train=False), TWO))
    assert in_time_for_collectives(first) is first
    assert search(first, 1.0) is first


def test_auto_has_what_is_found_inside(tmp_path):
    plan = lm.place(example("vgg19"), PCIE, effort=0.1)
    known = [
        lm.place(example("vgg19"), PCIE, "data-parallel", aggregation=a, shards=s) for a, s in WAYS
    ]
    assert plan.makespan < min(one.makespan for one in known)
    first = next(offer for offer in plan.offers if offer.space == SPLIT_OPS)
    assert first.seconds == plan.makespan
    plan.save(tmp_path / "plan.json")
    again = lm.Plan.load(tmp_path / "plan.json")
    assert again.makespan == plan.makespan
    assert again.priority.tolist() == plan.priority.tolist()


# -- parameter servers ---------------------------------------------------------------------------


def test_auto_has_parameter_servers_where_they_are_best():
    """Two devices with little work: transfers of weights overlap more than collectives do."""
    plan = lm.place(example("lenet"), TWO, effort=0.02)
    servers = lm.place(example("lenet"), TWO, "data-parallel", aggregation="parameter-server")
    words = {offer.what: offer.seconds for offer in plan.offers}
    assert words["2 replicas, parameter servers"] <= servers.makespan
    assert plan.makespan <= servers.makespan


@settings(max_examples=20)
@given(
    st.lists(st.integers(1, 3000), min_size=2, max_size=5),
    st.integers(4, 64),
    st.sampled_from(["4xV100-PCIe", "8xA100-NVLink", "4x1V100-25GbE"]),
    st.integers(2, 4),
)
def test_servers_send_for_as_long_as_is_said(widths, batch, name, n):
    cluster = lm.Cluster.preset(name)
    problem = problem_of(linears(widths, batch), cluster)
    least = seconds_of_servers(problem, data_parallel.usable(problem)[:n])
    found = data_parallel.place(problem, aggregation="parameter-server", replicas=n)
    assert 0 < least <= found.verdict.step_time


@pytest.mark.parametrize("name", ["lenet", "alexnet", "vgg19", "inception-v3"])
def test_servers_of_traced_models_send_for_as_long_as_is_said(name):
    problem = problem_of(example(name), PCIE)
    found = data_parallel.place(problem, aggregation="parameter-server")
    assert 0 < seconds_of_servers(problem, [0, 1, 2, 3]) <= found.verdict.step_time


def test_servers_that_cannot_win_are_not_placed():
    """Two replicas are best where links are slow, and four servers send more than these take."""
    plan = lm.place(example("lenet"), PCIE.with_link_speed(0.2), effort=0.02, costs="roofline")
    words = [offer.what for offer in plan.offers]
    assert "4 replicas, parameter servers" not in words
    assert "4 replicas, gradients all-reduced" in words


def test_more_replicas_than_samples_are_asked_for_once(monkeypatch):
    """On four devices, four replicas of a batch of two are two replicas."""
    placed, made = data_parallel.place, []

    def place(problem, **options):
        found = placed(problem, **options)
        made.append((found.problem.program.replica.max(), *options.values()))
        return found

    monkeypatch.setattr(data_parallel, "place", place)
    lm.place(linears([300, 300], 2), PCIE)
    ways = [(k, *rest) for k, _, *rest in made]
    assert len(ways) == len(set(ways)) >= 3


# -- loose replicas --------------------------------------------------------------------------------


def loosened(candidate: Candidate, problem: Problem, effort: float, threads: int = 1):
    run = Run(problem, Budget(effort, None), threads=threads, may_split=True)
    return loose_replicas(run, candidate, Budget(effort, None))


@pytest.mark.parametrize("name", ["lenet"])
def test_ops_of_replicas_are_placed_one_by_one_where_links_are_slow(name):
    """Layers with many weights stay where they are, and work on one part of the batch after
    another: neither whole ops nor replicas are near that.
    """
    place = partial(lm.place, example(name), PCIE, costs="roofline")
    plan = place()
    whole = place(split="none")
    known = [place("data-parallel", aggregation=a, shards=s) for a, s in WAYS]
    (loose,) = (one for one in plan.offers if one.what.endswith("replicas, op by op"))
    assert loose.seconds < 0.85 * min(one.makespan for one in (whole, *known))
    assert loose.seconds >= plan.makespan >= plan.bounds[SPLIT_OPS]


def test_loose_replicas_are_the_same_on_any_number_of_threads():
    problem = problem_of(example("lenet"), PCIE)
    bound = data_parallel.place(problem)
    (one, offer), (other, _) = (loosened(bound, problem, 0.1, threads) for threads in (1, 2))
    assert one.assignment.devices.tolist() == other.assignment.devices.tolist()
    assert one.assignment.priority.tolist() == other.assignment.priority.tolist()
    assert offer.seconds == one.verdict.step_time
    assert one.problem.verdict(one.assignment).step_time == one.verdict.step_time


def test_replicas_near_their_bound_are_not_loosened():
    problem = problem_of(linears([4096] * 4, 8192), lm.Cluster.preset("2xV100-NVLink"))
    assert loosened(data_parallel.place(problem), problem, 1.0) is None


def test_loose_replicas_obey_rules(tmp_path):
    graph = example("lenet")
    pinned = lm.Constraints(pin={"convolution_1": 2}, reserve="1GiB")
    plan = lm.place(graph, PCIE, constraints=pinned, costs="roofline")
    assert plan.offers[0].what.endswith("replicas, op by op")
    assert {part.device for part in plan.parts("convolution_1")} == {"gpu2"}
    plan.save(tmp_path / "plan.json")
    again = lm.Plan.load(tmp_path / "plan.json")
    assert again.makespan == plan.makespan
    assert again.running_devices.tolist() == plan.running_devices.tolist()
