"""OS-DPOS' search, with a plain list scheduler in the place of DPOS."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from strategies import graph_of, v100_mesh

import loadmaster as lm
from loadmaster import fast
from loadmaster.base.errors import InfeasibleError, InputError
from loadmaster.judge.assignment import Assignment
from loadmaster.judge.problem import Problem, ranks
from loadmaster.strategies.candidate import Candidate, judged
from loadmaster.strategies.lists import dpos, os_dpos
from loadmaster.strategies.lists.os_dpos import Placed, split_search
from loadmaster.transforms import Split, replicate


def by_levels(problem: Problem, *_: object) -> Placed:
    """Ops by b-level, each where it finishes first; memory does not count."""
    graph = problem.graph
    tensor_time, control = problem.tensor_time(graph), problem.control_time
    _, level = fast.levels(fast.Weights(graph, problem.op_time, tensor_time, control_time=control))
    order = np.lexsort((ranks(fast.m_topo(graph)), -level)).astype(np.int32)
    unlimited = np.zeros(graph.n_ops, dtype=np.uint64)
    devices, _, _ = fast.adjusting_placement(
        fast.Problem(graph, problem.links, problem.time).within(op_bytes=unlimited), order
    )
    src, dst, _, _ = graph.flows()
    path = [int(level.argmax())]
    while (src == path[-1]).any():
        readers = dst[src == path[-1]]
        path.append(int(readers[level[readers].argmax()]))
    candidate = judged(problem, Assignment(devices, ranks(order)))
    path = np.array(path, dtype=np.int32)
    return Placed(problem, candidate, path, candidate.schedule.makespan)


def problem_of(graph: lm.OpGraph, cluster: lm.Cluster, costs=None) -> Problem:
    costs = lm.costs.estimate(graph, cluster) if costs is None else costs
    return Problem.make(graph, cluster, costs)


def two_convolutions(seconds: tuple[float, float] = (0.4, 0.2)) -> tuple[lm.OpGraph, list[float]]:
    """Small tensors, long convolutions, one after the other, each with parameters of its own."""
    graph = lm.OpGraph(
        {
            "name": ["x", "w", "first", "v", "second"],
            "kind": ["input", "parameter", "aten.convolution", "parameter", "aten.convolution"],
            "output": ["f32[4,2,2,2]", "f32[2,2,1,1]", "f32[4,2,2,2]", "f32[2,2,1,1]",
                       "f32[4,2,2,2]"],
            "flops": [0, 0, 1000, 0, 500],
            "bytes_accessed": [0, 0, 272, 0, 272],
            "output_bytes": [128, 16, 128, 16, 128],
            "param_bytes": [0, 16, 0, 16, 0],
        },
        {"src": [0, 1, 2, 3], "dst": [2, 2, 4, 4], "bytes": [128, 16, 128, 16]},
    )  # fmt: skip
    return graph, [0.0, 0.0, seconds[0], 0.0, seconds[1]]


def splits(found: Candidate) -> tuple[Split, ...]:
    return found.problem.program.splits


def test_long_ops_of_the_path_are_split_longest_first():
    graph, seconds = two_convolutions()
    cluster = v100_mesh(2)
    problem = problem_of(graph, cluster, lm.Costs.given(seconds, graph, cluster))
    found = split_search(problem, by_levels, start="model")
    assert [(split.op, split.n) for split in splits(found)] == [("first", 2), ("second", 2)]
    assert found.notes == ("split 2 ops: " + "; ".join(map(str, splits(found))),)
    placed = found.problem
    assert placed.model.flops.sum() == graph.flops.sum()
    assert found.schedule.makespan == pytest.approx(0.3, rel=1e-2)
    taken = placed.costs.time[:, 0]
    names = placed.model.names
    assert taken[names.index("first@s1")] == pytest.approx(0.2 + 5e-6), "half, and a launch"
    assert (taken[[i for i, n in enumerate(names) if "@split" in n or "@concat" in n]] > 0).all()
    devices = found.assignment.devices[placed.reduced.map]
    for name in ("first", "second"):
        assert {devices[names.index(f"{name}@s{i}")] for i in (0, 1)} == {0, 1}


def test_the_numbers_of_parts_go_up_to_the_number_of_devices():
    graph, seconds = two_convolutions()
    cluster = v100_mesh(4)
    problem = problem_of(graph, cluster, lm.Costs.given(seconds, graph, cluster))
    found = split_search(problem, by_levels, start="model")
    assert {split.n for split in splits(found)} == {4}
    assert found.schedule.makespan == pytest.approx(0.15, rel=1e-2)


def test_a_data_parallel_start_is_searched_too():
    graph, seconds = two_convolutions()
    cluster = v100_mesh(2)
    problem = problem_of(graph, cluster, lm.Costs.given(seconds, graph, cluster))
    models = []

    def recording(of: Problem, *_: object) -> Placed:
        models.append(of.model)
        return by_levels(of)

    found = split_search(problem, recording)
    replicas = replicate(graph, 2, aggregation="parameter-server").graph
    assert [m.digest for m in models].count(replicas.digest) == 1
    assert models[0] is graph
    only = split_search(problem, by_levels, start="data-parallel")
    assert only.notes[0] == "started from the data-parallel graph"
    assert found.schedule.makespan <= only.schedule.makespan
    assert only.schedule.makespan == pytest.approx(0.3, rel=1e-2)


def scripted(estimates: list[float]):
    """A scheduler whose estimates are given; the rest is as it would be."""
    left = iter(estimates)

    def schedule(problem: Problem, *_: object) -> Placed:
        return replace(by_levels(problem), estimate=next(left))

    return schedule, left


@pytest.mark.parametrize(("on", "calls"), [(False, 4), (True, 7)])
def test_the_search_stops_at_the_first_op_that_does_not_help_or_goes_on(on, calls):
    """Two devices, three dimensions, so three trials an op: none of the first op's, then none."""
    graph, seconds = two_convolutions()
    cluster = v100_mesh(2)
    problem = problem_of(graph, cluster, lm.Costs.given(seconds, graph, cluster))
    schedule, left = scripted([1.0] * calls + [np.nan])
    found = split_search(problem, schedule, start="model", continue_search=on)
    assert splits(found) == ()
    assert np.isnan(next(left)), "as many calls as there should be"


def test_going_on_may_find_a_later_op():
    graph, seconds = two_convolutions()
    cluster = v100_mesh(2)
    problem = problem_of(graph, cluster, lm.Costs.given(seconds, graph, cluster))
    # The start; "first" in its three ways; "second" by batch, by output channel a little better, by
    # input channel no better; then "first" is known to be hopeless and nothing is left.
    schedule, left = scripted([1.0, 1.0, 1.0, 1.0, 0.9, 0.8, 0.8, np.nan])
    found = split_search(problem, schedule, start="model", continue_search=True)
    assert np.isnan(next(left))
    assert splits(found) in ((), (Split("second", "output_channel", 2),))


def test_the_plan_is_the_fastest_by_the_simulator_of_all_that_was_kept():
    """An estimate that praises every split does not make the plan slower than the start."""
    graph, _ = two_convolutions()
    cluster = v100_mesh(2)
    costs = lm.Costs.given([0.0, 0.0, 1e-3, 0.0, 1e-3], graph, cluster)
    estimates = iter(np.linspace(1.0, 0.1, 50))

    def praising(problem: Problem, *_: object) -> Placed:
        placed = by_levels(problem)
        assignment = placed.candidate.assignment
        alone = Assignment(assignment.devices * 0, assignment.priority)
        return replace(placed, candidate=judged(problem, alone), estimate=next(estimates))

    found = split_search(problem_of(graph, cluster, costs), praising, start="model")
    assert splits(found) == ()
    assert found.schedule.makespan == pytest.approx(2e-3)
    assert "one device is no slower" in found.notes[-1]


def test_ops_whose_splits_cannot_pay_are_not_tried():
    """A relu moves as much as its split and concatenation do."""
    graph = lm.OpGraph(
        {
            "name": ["x", "relu"],
            "kind": ["input", "aten.relu"],
            "output": ["f32[4,1000000]"] * 2,
            "bytes_accessed": [0, 32_000_000],
            "output_bytes": [16_000_000] * 2,
        },
        {"src": [0], "dst": [1], "bytes": [16_000_000]},
    )
    calls = []

    def counting(problem: Problem, *_: object) -> Placed:
        calls.append(problem.model)
        return by_levels(problem)

    assert (
        split_search(
            problem_of(graph, v100_mesh(2)), counting, start="model"
        ).problem.program.splits
        == ()
    )
    assert len(calls) == 1


def test_one_device_has_nothing_to_split():
    graph, seconds = two_convolutions()
    cluster = v100_mesh(1)
    problem = problem_of(graph, cluster, lm.Costs.given(seconds, graph, cluster))
    found = split_search(problem, by_levels)
    assert (splits(found), found.problem) == ((), problem)
    assert found.schedule.makespan == pytest.approx(0.6)


def test_starts_that_cannot_be():
    graph, seconds = two_convolutions()
    cluster = v100_mesh(5)
    problem = problem_of(graph, cluster, lm.Costs.given(seconds, graph, cluster))
    with pytest.raises(InputError, match=r"start is 'both': wants one of any, model"):
        split_search(problem, by_levels, start="both")
    with pytest.raises(InputError, match="start: 5 replicas of a batch of 4 samples"):
        split_search(problem, by_levels, start="data-parallel")

    def refusing(problem: Problem, *_: object) -> Placed:
        raise InfeasibleError("no room", {"gpu0": 1})

    with pytest.raises(InfeasibleError, match="no room"):
        split_search(problem, refusing)


def test_graphs_without_shapes_are_placed_as_they_are():
    graph = graph_of({"a": 3, "b": 2, "c": 2}, [("a", "b", 4), ("a", "c", 4)])
    found = split_search(problem_of(graph, v100_mesh(2)), by_levels, start="model")
    assert splits(found) == ()


def test_vgg_19_is_split_at_its_convolutions():
    """FastT, tables 5 and 6: the key split ops are Conv2D and its gradient."""
    graph = lm.read("example:vgg19")
    problem = problem_of(graph, v100_mesh(4))
    found = split_search(problem, by_levels, start="model")
    assert splits(found)
    kinds = {graph.kinds[graph.index(split.op)] for split in splits(found)}
    assert kinds <= {"aten.convolution.default", "aten.convolution_backward.default"}
    assert found.problem.model.param_bytes.sum() == graph.param_bytes.sum()
    again = split_search(replace(problem), by_levels, start="model")
    assert splits(again) == splits(found)
    assert again.schedule.makespan == found.schedule.makespan


# -- with DPOS -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "start"), [("vgg19", "any"), ("vgg19", "model"), ("inception-v3", "model")]
)
def test_training_graphs_are_split_at_convolutions(name, start):
    """FastT, tables 5 and 6."""
    graph = lm.read(f"example:{name}")
    cluster = lm.Cluster.preset("4xV100-PCIe")
    plan = lm.place(graph, cluster, "os-dpos", start=start, costs="roofline")
    assert plan.fits
    assert plan.splits
    for split in plan.splits:
        op = split.op.partition("@")[0]
        assert graph.kinds[graph.index(op)].startswith("aten.convolution")


def test_the_search_goes_on_after_an_op_that_no_split_helps():
    """Of equal replicas the first is not worth splitting, and yet a split helps later on."""
    graph, cluster = lm.read("example:vgg19"), lm.Cluster.preset("2xRTX4090-PCIe")
    paper = lm.place(graph, cluster, "os-dpos", continue_search=False, costs="roofline")
    plan = lm.place(graph, cluster, "os-dpos", costs="roofline")
    assert not paper.splits
    assert plan.splits
    assert plan.makespan < 0.9 * paper.makespan


def test_a_plan_lists_its_splits_and_keeps_them(tmp_path):
    graph = lm.read("example:vgg19")
    plan = lm.place(graph, v100_mesh(4), "os-dpos", start="model")
    assert plan.splits
    assert plan.graph is graph
    assert plan.makespan < lm.place(graph, v100_mesh(4), "single").makespan
    assert f"split {len(plan.splits)} ops: {plan.splits[0]}" in "".join(plan.notes)
    plan.save(tmp_path / "plan.json.gz")
    again = lm.Plan.load(tmp_path / "plan.json.gz", graph)
    assert again.splits == plan.splits
    assert again.makespan == plan.makespan
    by_hand = graph
    for split in plan.splits:
        by_hand = lm.transforms.split_op(by_hand, split.op, split.dimension, split.n).graph
    assert by_hand.digest == plan.program.graph.digest, "the list is the recipe"


def whole(problem: Problem, heed: dpos.Heed, limit: float = np.inf) -> Placed:
    """DPOS of a graph, to the end, whatever the limit."""
    listed = dpos.Listed(problem, "dynamic", True, heed)
    candidate = listed.place()
    expected = candidate.assignment.estimate or candidate.verdict.step_time
    return Placed(problem, candidate, listed.critical, expected)


@pytest.mark.parametrize("cluster", ["4xV100-PCIe", "8xA100-NVLink"])
@pytest.mark.parametrize("name", ["vgg19", "alexnet", "lenet"])
def test_splits_that_are_broken_off_would_not_have_been_kept(name, cluster, monkeypatch):
    """The plan is that of a search which places every trial whole, and fewer are simulated."""
    verdicts = []
    original = Problem.verdict
    monkeypatch.setattr(
        Problem, "verdict", lambda of, *arguments: verdicts.append(of) or original(of, *arguments)
    )
    devices = lm.Cluster.preset(cluster).subset(range(4))
    problem = problem_of(lm.read(f"example:{name}"), devices)
    found = os_dpos.place(problem)
    simulated = len(verdicts)
    slow = split_search(problem, whole)
    assert splits(found) == splits(slow)
    assert found.schedule.makespan == slow.schedule.makespan
    assert simulated < len(verdicts) - simulated


def test_the_search_ends_at_a_given_work_and_says_so(monkeypatch):
    graph, cluster = lm.read("example:vgg19"), v100_mesh(4)
    plan = lm.place(graph, cluster, "os-dpos", start="model")
    assert not any("allowance" in note for note in plan.notes)
    monkeypatch.setattr(os_dpos, "MOST_WORK", 1)
    short = lm.place(graph, cluster, "os-dpos", start="model")
    assert short.notes[-1] == "the search ended at its allowance of work, after 0 splits"
    assert not short.splits
    assert short.makespan >= plan.makespan


def test_one_dpos_tells_how_far_it_is():
    graph, cluster = lm.read("example:inception-v3"), v100_mesh(4)
    told = []
    lm.place(graph, cluster, "os-dpos", progress=lambda stage, best: told.append(stage))
    replicas = [stage for stage in told if stage.startswith("placing its replicas: ")]
    shares = [int(stage.split(": ")[1].split("%")[0]) for stage in replicas]
    assert len(set(shares)) > 5
    assert max(shares) == 100
    told.clear()
    lm.place(graph, cluster, "dpos", progress=lambda stage, best: told.append(stage))
    assert "dpos: 100% of ops" in told


@pytest.mark.parametrize("at", ["placing the graph", "placing its replicas", "splitting "])
def test_ctrl_c_returns_the_best_so_far(at):
    graph, cluster = lm.read("example:vgg19"), v100_mesh(4)
    told = []

    def progress(stage: str, best: float | None) -> None:
        told.append(stage)
        if stage.startswith(at):
            raise KeyboardInterrupt

    plan = lm.place(graph, cluster, "os-dpos", progress=progress)
    assert plan.notes[-1] == "interrupted: the best so far"
    assert plan.fits
    assert sum(stage.startswith(at) for stage in told) == 1
    assert plan.makespan <= lm.place(graph, cluster, "single").makespan


def test_at_its_time_limit_the_search_returns_the_best_so_far():
    graph, cluster = lm.read("example:vgg19"), v100_mesh(4)
    told = []
    plan = lm.place(
        graph, cluster, "os-dpos", time_limit=1e-6, progress=lambda stage, best: told.append(stage)
    )
    assert plan.notes == ("out of time: the best so far",)
    assert told.count("placing the graph") == 1
    assert not any(stage.startswith("splitting ") for stage in told)
    assert plan.makespan == lm.place(graph, cluster, "single").makespan


def test_a_time_limit_waits_for_a_first_plan():
    """No device holds the model alone."""
    graph = lm.read("example:vgg19")
    peak = lm.place(graph, v100_mesh(1), "single").verdict.peak.max()
    cluster = v100_mesh(4, memory=int(0.8 * peak))
    with pytest.raises(InfeasibleError):
        lm.place(graph, cluster, "single")
    plan = lm.place(graph, cluster, "os-dpos", time_limit=1e-6)
    assert plan.fits
    assert plan.notes[-1] == "out of time: the best so far"


def test_what_is_tried_is_told_beside_the_bound_of_split_ops():
    told = []
    plan = lm.place(
        lm.read("example:alexnet"),
        v100_mesh(2),
        "os-dpos",
        progress=lambda stage, best: told.append((stage, best)),
    )
    stages = [stage for stage, _ in told]
    assert {"placing the graph", "placing its replicas"} < set(stages)
    assert any(stage.endswith(" into 2") for stage in stages), "each split that is placed is told"
    tried = [best for stage, best in told if stage.startswith("splitting ")]
    assert tried
    assert all(best.lower_bound == plan.bounds["split ops"] <= best for best in tried)
