"""Plans for throughput: cuts, moves, whole models in turn, and what plans say of themselves."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import clusters, op_graphs

import loadmaster as lm
from loadmaster.base.errors import InfeasibleError
from loadmaster.costs.roofline import roofline_costs
from loadmaster.judge.assignment import Assignment
from loadmaster.judge.bounds import bound, split_bound
from loadmaster.judge.loads import Loads
from loadmaster.judge.objective import THROUGHPUT
from loadmaster.judge.problem import Problem
from loadmaster.judge.streaming import streamed
from loadmaster.plans.comparison import comparison_table
from loadmaster.plans.summary import document
from loadmaster.strategies.pipelines.balance import Balance
from loadmaster.strategies.pipelines.larger_batches import larger_batch
from loadmaster.strategies.pipelines.throughput import balanced, dealt_out, staged

MESH = lm.Cluster.mesh(4, memory="1GiB", bandwidth=1e12)


def problem_of(graph, cluster):
    made = Problem.make(graph, cluster, roofline_costs(graph, cluster))
    return replace(made, objective=THROUGHPUT)


def chain(seconds, *, weight=0, size=16, **meta):
    n = len(seconds)
    ops = {
        "name": [f"op{i}" for i in range(n)],
        "output_bytes": [size] * n,
        "param_bytes": [weight] * n,
        "time": {"*": list(seconds)},
    }
    edges = {"src": range(n - 1), "dst": range(1, n), "bytes": [size] * (n - 1)}
    return lm.OpGraph(ops, edges, name="chain", meta=meta)


@given(st.data())
def test_no_placement_of_whole_ops_is_below_the_bounds_of_a_period(data):
    graph = data.draw(op_graphs(max_ops=6))
    cluster = data.draw(clusters(max_devices=3))
    problem = problem_of(graph, cluster)
    least, of_all = bound(problem).seconds, split_bound(problem).seconds
    sets = problem.graph.colocation
    shortest = np.inf
    for chosen in itertools.product(range(cluster.n_devices), repeat=int(sets.max()) + 1):
        devices = np.array(chosen, dtype=np.int32)[sets]
        allowed = problem.allowed_types[np.arange(len(sets)), _types(cluster)[devices]]
        if allowed.all():
            schedule = problem.simulate(devices, np.arange(len(sets), dtype=np.int32))
            shortest = min(shortest, Loads.of(problem, devices, schedule).busiest)
    assert of_all <= least * (1 + 1e-9)
    assert least <= shortest * (1 + 3e-6)


def _types(cluster):
    return np.array(cluster.device_types)


@given(st.data())
def test_loads_of_moved_ops_are_those_that_the_judge_sees(data):
    graph = data.draw(op_graphs(rules=False))
    cluster = data.draw(clusters())
    problem = problem_of(graph, cluster)
    sets = problem.graph.colocation
    n = int(sets.max()) + 1
    at = data.draw(st.lists(st.integers(0, cluster.n_devices - 1), min_size=n, max_size=n))
    devices = np.array(at, dtype=np.int32)[sets]
    balance = Balance(problem, devices, problem.capacity)
    for _ in range(3):
        unit = data.draw(st.integers(0, n - 1))
        to = data.draw(st.integers(0, cluster.n_devices - 1))
        if balance.can_move(unit, to):
            balance.move(unit, to)
    schedule = problem.simulate(balance.devices, np.arange(len(sets), dtype=np.int32))
    loads = Loads.of(problem, balance.devices, schedule)
    seen = np.concatenate([loads.device, loads.channel])
    assert np.allclose(balance.load, seen, rtol=1e-6, atol=1e-9)


def test_stages_are_the_best_contiguous_ones():
    rng = np.random.default_rng(3)
    for _ in range(5):
        seconds = rng.integers(1, 20, size=9).astype(float)
        problem = problem_of(chain(seconds), MESH)
        best = min(
            max(part.sum() for part in np.split(seconds, list(cuts)))
            for cuts in itertools.combinations(range(1, 9), 3)
        )
        found = staged(problem)[0]
        assert found.verdict.period == pytest.approx(best, rel=1e-3)


def test_unequal_devices_get_unequal_stages():
    types = [lm.DeviceType("slow"), lm.DeviceType("fast")]
    devices = [lm.Device("a", "slow", 2**30), lm.Device("b", "fast", 2**30)]
    links = [lm.Link("a", "b", 1e12), lm.Link("b", "a", 1e12)]
    graph = chain([1.0] * 8).with_columns({"time": {"slow": [3.0] * 8, "fast": [1.0] * 8}})
    found = staged(problem_of(graph, lm.Cluster(devices, links, types)))[0]
    assert np.bincount(found.assignment.devices).tolist() == [2, 6]


def test_moves_of_single_ops_balance_what_no_cut_can():
    # Cut anywhere, one of two stages takes 5 s of 8; op 0 with op 2 takes 4.
    problem = problem_of(chain([3.0, 4.0, 1.0]), lm.Cluster.mesh(2, memory="1GiB", bandwidth=1e12))
    stages = staged(problem)[0]
    assert stages.verdict.period == pytest.approx(5.0)
    assert balanced(stages).verdict.period == pytest.approx(4.0)


def test_whole_models_take_batches_by_the_speed_of_their_devices():
    types = [lm.DeviceType("slow"), lm.DeviceType("fast")]
    devices = [lm.Device("a", "slow", 2**30), lm.Device("b", "fast", 2**30)]
    links = [lm.Link("a", "b", 1e12), lm.Link("b", "a", 1e12)]
    graph = chain([1.0] * 4).with_columns({"time": {"slow": [2.0] * 4, "fast": [1.0] * 4}})
    problem = problem_of(graph, lm.Cluster(devices, links, types))
    (found,) = dealt_out(problem)
    assert found.problem.program.batches == 3
    verdict = streamed(found.problem, found.assignment)
    assert verdict.period == pytest.approx(8 / 3)
    assert bound(problem).seconds == pytest.approx(8 / 3)


def test_auto_takes_whole_models_where_they_fit_and_stages_where_they_do_not():
    graph = chain([1.0] * 8, weight=1000)
    plan = lm.place(graph, MESH, objective="throughput")
    assert plan.program.batches == 4
    assert plan.period == pytest.approx(2.0)
    assert plan.latency == pytest.approx(8.0)
    assert plan.in_flight == 4
    assert {offer.space for offer in plan.offers} == {"whole ops", "split ops"}
    assert any("take batches in turn" in note for note in plan.notes)
    tight = lm.Cluster.mesh(4, memory=4000, bandwidth=1e12)
    staged_plan = lm.place(graph, tight, objective="throughput")
    assert staged_plan.period == pytest.approx(2.0)
    assert len(set(staged_plan.devices.tolist())) == 4
    whole = lm.place(graph, MESH, objective="throughput", split="none")
    assert whole.program.is_plain
    assert whole.period == pytest.approx(2.0, rel=0.01)


@pytest.mark.parametrize("method", ["auto", "heft", "single", "layers", "metis", "celeritas"])
def test_every_method_is_judged_by_its_period(method):
    graph = chain([1.0] * 6, batch=4)
    plan = lm.place(graph, MESH, method, objective="throughput")
    assert plan.objective.goal == "throughput"
    assert plan.verdict.steady is not None
    assert plan.lower_bound <= plan.period * (1 + 3e-6)
    assert plan.rate == pytest.approx(4 / plan.period)
    assert f"{plan.rate:.3g} samples/s" in plan.summary()
    assert "limited by" in plan.summary()
    assert "cannot help time" not in plan.summary()
    assert len(plan.summary().splitlines()) <= 9 + MESH.n_devices
    told = document(plan)
    assert told["period"] == plan.period
    assert told["in_flight"] == plan.in_flight


def test_plans_are_read_as_they_were_written(tmp_path):
    for split in ("auto", "none"):
        plan = lm.place(chain([1.0, 2.0, 3.0]), MESH, objective="throughput", split=split)
        plan.save(tmp_path / "plan.json")
        again = lm.Plan.load(tmp_path / "plan.json")
        assert again.verdict.steady == plan.verdict.steady
        assert again.summary() == plan.summary()
        assert again.program.batches == plan.program.batches


def test_constraints_hold_and_memory_that_is_reserved_stays_free():
    graph = chain([1.0] * 8, weight=100)
    asked = lm.Constraints(pin={"op3": 2}, reserve="512MiB")
    plan = lm.place(graph, MESH, objective="throughput", split="none", constraints=asked)
    assert plan.device("op3") == "gpu2"
    assert not plan.binding.broken(plan.assignment.devices, plan.verdict.peak)
    dealt = lm.place(graph, MESH, objective="throughput", constraints=asked)
    assert dealt.device("op3") == "gpu2"


def test_comparisons_sort_by_period():
    graph = chain([1.0] * 8)
    found = lm.compare(graph, MESH, ["single", "auto"], objective="throughput")
    assert [name for name, _ in found.best_first] == ["auto", "single"]
    assert "period" in comparison_table(found).splitlines()[0]


def test_refining_goes_by_the_period():
    graph = chain([1.0] * 8)
    plan = lm.place(graph, MESH, "single", objective="throughput", refine=True)
    assert plan.period < 8.0


def test_what_holds_nothing_is_refused_with_the_bytes_that_are_short():
    graph = chain([1.0] * 4, weight=1000)
    with pytest.raises(InfeasibleError) as caught:
        lm.place(graph, lm.Cluster.mesh(2, memory=1500, bandwidth=1e9), objective="throughput")
    assert caught.value.shortfall


def test_training_is_judged_by_a_stream_that_waits_for_updates():
    graph, cluster = lm.read("example:lenet"), lm.Cluster.preset("2xV100-NVLink")
    plan = lm.place(graph, cluster, "heft", objective="throughput")
    assert "update of parameters" in plan.limit
    assert plan.period == pytest.approx(plan.makespan, rel=0.2)


def test_fit_says_how_many_samples_a_second():
    found = lm.fit(chain([1.0] * 8, weight=1000, batch=2), MESH, objective="throughput")
    assert found.fewest == 1
    assert "fits 1 of 4 devices at 0.25 samples/s" in str(found)


def test_what_if_compares_periods():
    plan = lm.place(chain([1.0] * 8), MESH, objective="throughput")
    seen = lm.what_if(plan, scale_device=2)
    assert seen.gain(seen.prospects[1]) == pytest.approx(2.0, rel=0.02)
    assert "period" in str(seen)


def looked_up(weight, flops):
    """A product that reads a large weight for a small batch."""
    ops = {
        "name": ["x", "w", "product", "sum"],
        "kind": ["input", "parameter", "aten.mm.default", "aten.add.Tensor"],
        "output": ["f32[2,4]", "f32[4,4]", "f32[2,4]", "f32[2,4]"],
        "output_bytes": [32, weight, 32, 32],
        "param_bytes": [0, weight, 0, 0],
        "flops": [0, 0, flops, 8],
        "bytes_accessed": [0, 0, weight + 64, 64],
    }
    edges = {"src": [0, 1, 2], "dst": [2, 2, 3], "bytes": [32, weight, 32]}
    return lm.OpGraph(ops, edges, meta={"batch": 2})


def test_a_larger_batch_costs_little_where_weights_are_waited_for():
    cluster = lm.Cluster.preset("2xV100-NVLink")
    waits = problem_of(looked_up(10**9, 10**3), cluster)
    seconds = float(waits.time.sum())
    found = larger_batch(waits, 1.05 * seconds)
    assert found.times >= 64
    assert found.latency <= 1.05 * seconds
    assert found.period == pytest.approx(found.latency / 2 / found.times, rel=0.01)
    assert found.models.fits
    assert found.models.problem.program.batches == 2
    computes = problem_of(looked_up(10**3, 10**12), cluster)
    assert larger_batch(computes, 1.5 * float(computes.time.sum())) is None
    assert larger_batch(computes, 2.5 * float(computes.time.sum())).times == 2


def test_a_larger_batch_is_held_to_the_memory():
    """Of a table of 1000 bytes, and 32 bytes of input, product and sum for each of today's."""
    types = lm.Cluster.preset("2xV100-NVLink").types
    devices = [lm.Device(f"gpu{i}", types[0].name, 1000 + 96 * 5) for i in range(2)]
    links = [lm.Link("gpu0", "gpu1", 1e12), lm.Link("gpu1", "gpu0", 1e12)]
    tight = problem_of(looked_up(1000, 1000), lm.Cluster(devices, links, types))
    found = larger_batch(tight, 1.0)
    assert found.times == 4
    assert found.models.verdict.peak.max() <= devices[0].memory


def test_larger_batches_are_told_beside_stages():
    graph = looked_up(10**9, 10**3)
    cluster = lm.Cluster.preset("2xV100-NVLink")
    plan = lm.place(graph, cluster, objective="throughput")
    told = [note for note in plan.notes if "larger batch" in note or "times as large" in note]
    assert len(told) == 1
    assert "estimate" not in told[0]
    silent = lm.place(chain([1.0] * 4), MESH, objective="throughput")
    assert not any("times as large" in note for note in silent.notes)


def test_plans_are_the_same_again():
    graph = chain([3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0])
    plans = [lm.place(graph, MESH, objective="throughput", split="none") for _ in range(2)]
    assert plans[0].devices.tolist() == plans[1].devices.tolist()
    assert plans[0].verdict.steady == plans[1].verdict.steady


def test_an_assignment_of_a_step_is_that_of_each_step():
    problem = problem_of(chain([1.0, 1.0]), MESH)
    assignment = Assignment(np.array([0, 1], dtype=np.int32), np.array([0, 1], dtype=np.int32))
    assert streamed(problem, assignment).peak[2:].tolist() == [0, 0]


def test_training_is_planned_for_its_step() -> None:
    """Steps wait for each other's updates: a plan for throughput is the one for the step."""
    graph, cluster = lm.read("example:lenet"), lm.Cluster.preset("4xV100-PCIe")
    step = lm.place(graph, cluster, effort="fast", costs="roofline")
    plan = lm.place(graph, cluster, effort="fast", objective="throughput", costs="roofline")
    assert (plan.devices == step.devices).all()
    assert plan.period <= step.makespan * (1 + 1e-9)
    assert plan.period >= plan.lower_bound
