"""Stages of several devices that are found by search: what they cost, and when they win."""

from __future__ import annotations

import numpy as np
import pytest
from hosted import hosts
from trained import linears

import loadmaster as lm
from loadmaster.judge.problem import Problem
from loadmaster.model.micro import Micro
from loadmaster.strategies.pipelines.schedules import NAMED
from loadmaster.strategies.pipelines.shapes import ranked
from loadmaster.strategies.pipelines.space import PipelineSpace
from loadmaster.strategies.pipelines.stage_links import collective_seconds, link

#: Links between hosts of 25 Gb/s.
SLOW = 2.9e9


@pytest.fixture(scope="module")
def graph() -> lm.OpGraph:
    return lm.read("example:gpt3-330m")


@pytest.fixture(scope="module")
def cluster() -> lm.Cluster:
    return hosts(2, 4, between=SLOW)


@pytest.fixture(scope="module")
def space(graph: lm.OpGraph, cluster: lm.Cluster) -> PipelineSpace:
    return PipelineSpace.of(Problem.make(graph, cluster, lm.costs.estimate(graph, cluster)))


@pytest.fixture(scope="module")
def found(graph: lm.OpGraph, cluster: lm.Cluster) -> lm.Plan:
    return lm.place(graph, cluster, "pipeline")


@pytest.fixture(scope="module")
def wide(graph: lm.OpGraph, cluster: lm.Cluster) -> lm.Plan:
    return lm.place(graph, cluster, "pipeline", devices_per_stage=4)


def test_over_slow_links_between_hosts_a_host_is_a_stage(
    graph: lm.OpGraph, cluster: lm.Cluster, found: lm.Plan, wide: lm.Plan
) -> None:
    """Replicas would send all gradients between hosts."""
    thin = lm.place(graph, cluster, "pipeline", devices_per_stage=1)
    replicas = lm.place(graph, cluster, "data-parallel")
    assert found.makespan <= min(thin.makespan, wide.makespan)
    assert wide.makespan < 0.95 * replicas.makespan
    assert wide.recipe.mesh.shape[0] == 2
    assert any(" x " in note and "micro-batches" in note for note in wide.notes)
    host = [name.partition(".")[0] for name in wide.recipe.mesh.devices]
    per_stage = np.array(host).reshape(wide.recipe.mesh.shape[0], -1)
    assert all(len(set(row)) == 1 for row in per_stage.tolist())


def test_auto_is_not_behind_and_says_so(
    graph: lm.OpGraph, cluster: lm.Cluster, found: lm.Plan
) -> None:
    plan = lm.place(graph, cluster)
    assert plan.makespan <= 1.005 * found.makespan
    assert any("stages" in note for note in plan.notes)
    assert any("of the step on gradients" in note for note in plan.notes)


def test_such_a_plan_comes_out_of_its_recipe_again(
    graph: lm.OpGraph, cluster: lm.Cluster, wide: lm.Plan
) -> None:
    read = lm.Recipe.from_toml(wide.recipe.to_toml())
    again = lm.place(graph, cluster, recipe=read)
    assert again.makespan == wide.makespan
    assert np.array_equal(again.running_devices, wide.running_devices)


def drawn(seed: int) -> tuple[lm.OpGraph, lm.Cluster]:
    """A stack of linear layers of unequal widths, trained or not, on hosts with any links."""
    rng = np.random.default_rng(seed)
    widths = 64 * rng.integers(4, 40, rng.integers(6, 14))
    batch = int(2 ** rng.integers(3, 8)) * int(rng.integers(1, 4))
    graph = linears(widths.tolist(), batch, train=seed % 3 > 0)
    n, each = ((2, 2), (2, 4), (1, 4), (3, 2), (2, 3), (4, 1))[seed % 6]
    inside, between = 10 ** rng.uniform(9.5, 11.5), 10 ** rng.uniform(8.5, 10.5)
    return graph, hosts(n, each, inside=inside, between=between, latency=10 ** rng.uniform(-6, -4))


@pytest.mark.parametrize("seed", range(8))
def test_more_to_choose_from_is_never_worse(seed: int) -> None:
    graph, cluster = drawn(seed)
    thin = lm.place(graph, cluster, "pipeline", devices_per_stage=1)
    wide = lm.place(graph, cluster, "pipeline")
    assert wide.makespan <= thin.makespan
    assert lm.place(graph, cluster).makespan <= 1.005 * wide.makespan


def test_a_user_says_how_many_devices_share_a_stage(graph: lm.OpGraph, cluster: lm.Cluster) -> None:
    options = {"micro_batches": 2, "schedule": "1f1b"}
    plan = lm.place(graph, cluster, "pipeline", devices_per_stage=2, stages=2, **options)
    assert plan.recipe.mesh.shape == (2, 2)
    with pytest.raises(lm.InputError, match="devices_per_stage"):
        lm.place(graph, cluster, "pipeline", devices_per_stage=5)


@pytest.mark.parametrize("what", range(2))
def test_collectives_inside_take_what_the_judge_has_them_take(what: int) -> None:
    """Sharded optimizers, and parameters that are gathered for every micro-batch."""
    graph, cluster = linears([2048] * 13, 256), hosts(2, 2)
    space = PipelineSpace.of(Problem.make(graph, cluster, lm.costs.estimate(graph, cluster)))
    inside = space.insides(2)[what]
    probe = space.probe(4, inside=inside)
    seconds = collective_seconds(probe, inside.sets)
    first = probe.program.rank[probe.reduced.op_of] == 0
    # The probe has two of the four micro-batches.
    each = np.where(probe.program.micro[probe.reduced.op_of] < 0, 1, 2)
    judged = ranked(space, [4], [2], NAMED[1:2], inside=inside)[0].judged()
    seen = judged.schedule.collectives()
    taken = np.sum(seen["finish"]) - np.sum(seen["start"])
    assert (each * seconds)[first].sum() == pytest.approx(taken, rel=0.1)


def test_what_stages_tell_of_a_step_is_near_what_the_judge_sees(space: PipelineSpace) -> None:
    shards = space.insides(4)[-1]
    shape = ranked(space, [2], [2], NAMED[1:2], inside=shards)[0]
    assert shape.judged().verdict.step_time == pytest.approx(shape.seconds, rel=0.05)


def test_sharded_parameters_are_gathered_for_every_micro_batch_unless_kept() -> None:
    graph, cluster = linears([2048] * 9, 256), hosts(1, 4)
    said = {"labels": {"dp": {"**": "batch"}}, "shard_state": {"**": "parameters"}}
    peak, gathers = {}, {}
    for name, more in {
        "replicas": {"shard_state": {}},
        "again": {},
        "kept": {"units": {".": "kept"}},
    }.items():
        recipe = lm.Recipe({"pp": 1, "dp": 4}, micro=Micro(4), **said | more)
        plan = lm.place(graph, cluster, recipe=recipe)
        peak[name] = plan.verdict.peak.max()
        names = {c for c in plan.program.graph.collectives if c.startswith("all_gather/param")}
        gathers[name] = len(names)
        assert {c.endswith(("@m0", "@m1", "@m2", "@m3")) for c in names} <= {name == "again"}
    assert gathers["again"] % 4 == 0
    assert gathers["kept"] > gathers["replicas"] == 0
    assert peak["again"] < peak["replicas"]
    assert peak["again"] < peak["kept"]


def test_devices_of_a_stage_share_the_port_of_their_host(cluster: lm.Cluster) -> None:
    links = cluster._core
    one, four = link(links, [0], [4]), link(links, range(4), range(4, 8))
    assert four[1] == pytest.approx(4 * one[1])
    assert link(links, [0, 1], [2, 3])[1] == pytest.approx(1 / 47.9e9)
