"""Data parallelism as a plan: shares by speed and memory, and what auto makes of it."""

from __future__ import annotations

import json
from typing import Literal

import numpy as np
import pytest
from conftest import example
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import v100_mesh
from trained import linears

import loadmaster as lm
from loadmaster.base.errors import InfeasibleError, InputError
from loadmaster.cli import main
from loadmaster.judge.bounds import SPLIT_OPS, WHOLE_OPS, split_bound
from loadmaster.judge.problem import Problem
from loadmaster.judge.simulation import as_costs
from loadmaster.strategies.auto import auto
from loadmaster.transforms.data_parallel import Aggregation, Shards, replicate

WAYS: tuple[tuple[Aggregation, Shards], ...] = (
    ("all-reduce", "flat"),
    ("reduce-scatter", "flat"),
    ("reduce-scatter", "parameters"),
    ("parameter-server", "flat"),
)

PCIE = lm.Cluster.preset("4xV100-PCIe")


def problem_of(
    graph: lm.OpGraph, cluster: lm.Cluster, costs: Literal["roofline"] | None = None
) -> Problem:
    return Problem.make(graph, cluster, as_costs(costs, graph, cluster))


def unequal(n_slow: int = 2, memory: str = "32GiB") -> lm.Cluster:
    """Four devices over PCIe: the last of them of half the speed of the first."""
    fast, slow = (
        lm.DeviceType(name, {"f32": f32}, memory_bandwidth=bandwidth, launch=5e-6)
        for name, f32, bandwidth in (("V100", 14e12, 900e9), ("half", 7e12, 450e9))
    )
    types = [fast] * (4 - n_slow) + [slow] * n_slow
    devices = [lm.Device(f"gpu{i}", of.name, memory) for i, of in enumerate(types)]
    return lm.Cluster(devices, PCIE.links, types=[fast, slow])


# -- where replicas are ----------------------------------------------------------------------


@pytest.mark.parametrize(("aggregation", "shards"), WAYS)
def test_replicas_on_fewer_devices_use_no_others(aggregation, shards):
    graph = lm.read("example:lenet")
    asked = {"aggregation": aggregation, "shards": shards}
    plan = lm.place(graph, PCIE, "data-parallel", replicas=2, **asked)
    assert set(plan.running_devices.tolist()) == {0, 1}
    with pytest.raises(InputError, match="replicas is 5"):
        lm.place(graph, PCIE, "data-parallel", replicas=5, **asked)


@pytest.mark.parametrize(("aggregation", "shards"), WAYS)
def test_a_batch_has_no_more_replicas_than_samples(aggregation, shards):
    asked = {"aggregation": aggregation, "shards": shards}
    plan = lm.place(linears((8, 8), 3), PCIE, "data-parallel", **asked)
    assert set(plan.running_devices.tolist()) == {0, 1, 2}
    assert plan.notes == ("the batch has 3 samples: 1 device of no use",)
    alone = lm.place(linears((8, 8), 1), PCIE, "data-parallel", **asked)
    assert alone.program.is_plain
    assert alone.notes == ("the batch has 1 sample: 3 devices of no use",)


def test_devices_of_unequal_speed_get_unequal_shares():
    graph, cluster = lm.read("example:vgg19"), unequal()
    plan = lm.place(graph, cluster, "data-parallel", costs="roofline")
    assert plan.makespan <= 0.37 * plan.single
    equal = replicate(graph, 4)
    devices = equal.replica.astype(np.int32)
    seen = lm.simulate(equal.graph, cluster, devices, costs="roofline")
    assert plan.makespan < 0.75 * seen.makespan
    assert "weight each one's loss by its share" in plan.notes[0]


def test_an_odd_batch_is_shared_so_that_all_end_together():
    plan = lm.place(linears([2048] * 4, 999), unequal(), "data-parallel", costs="roofline")
    at = plan.program.graph.index("y1@r0")
    rows = [round(999 * share) for share in plan.program.share[at : at + 4].tolist()]
    assert sum(rows) == 999
    assert rows[0] > 2 * rows[2] > 0
    busy = plan.schedule.device_busy
    assert busy.max() < 1.02 * busy.min()


@pytest.mark.parametrize("aggregation", ["all-reduce", "reduce-scatter"])
def test_shares_are_unequal_where_only_that_fits(aggregation):
    """Two equal devices, one with 0.6 of the memory that equal shares need there."""
    graph, mesh = linears([256] * 6, 2**18), v100_mesh(2, "1TiB")
    equal = lm.place(graph, mesh, "data-parallel", aggregation=aggregation)
    devices = [
        lm.Device(one.name, one.type, memory)
        for one, memory in zip(
            mesh.devices, ("32GiB", int(0.6 * equal.memory.peak[1])), strict=True
        )
    ]
    cluster = lm.Cluster(devices, mesh.links, types=mesh.types)
    plan = lm.place(graph, cluster, "data-parallel", aggregation=aggregation)
    assert plan.fits
    at = plan.program.graph.index("y1@r0")
    large, small = plan.program.share[at : at + 2].tolist()
    assert large + small == 1
    assert 0.25 < small < 0.31, "as much as fits, not the least"


def test_weights_that_fit_no_device_are_refused():
    graph = linears([4096] * 9, 64)
    with pytest.raises(InfeasibleError, match="gpu0"):
        lm.place(graph, v100_mesh(4, "600MiB"), "data-parallel")


def test_an_op_that_its_replica_may_not_run_goes_to_the_next_device():
    graph = example("lenet")
    pinned = lm.Constraints(pin={"convolution_1": [1, 2]})
    plan = lm.place(graph, PCIE, "data-parallel", constraints=pinned)
    assert [part.device for part in plan.parts("convolution_1")] == ["gpu1", "gpu1", "gpu2", "gpu1"]
    assert [part.device for part in plan.parts("convolution")] == [f"gpu{i}" for i in range(4)]


def test_shares_count_what_a_sharded_optimizer_leaves_to_each_device():
    """BERT-large has more optimizer than samples: a slow device that does all of it takes one."""
    cluster = PCIE.with_link_speed(10.0).with_speed(0.5, "gpu2").with_speed(0.5, "gpu3")
    options = {"aggregation": "reduce-scatter", "shards": "parameters"}
    plan = lm.place(example("bert-large"), cluster, "data-parallel", costs="roofline", **options)
    busy = plan.schedule.device_busy
    assert busy.max() < 1.05 * busy.min()
    assert plan.notes[0].startswith("replicas have 6, 6, 2, 2 samples")


# -- among the plans of auto -----------------------------------------------------------------


@pytest.mark.parametrize("train", [True, False])
def test_replicas_halve_eight_products_and_the_summary_says_so(train):
    graph = linears([4096] * 9, 8192, train=train)
    plan = lm.place(graph, lm.Cluster.preset("2xV100-NVLink"), effort=0.05, costs="roofline")
    assert plan.makespan < 0.51 * plan.single
    said = plan.summary()
    assert "\n  replicas  " in said or "\n  shards  " in said
    assert "\n  one device  " in said
    assert "cannot help" not in said
    assert plan.space == SPLIT_OPS
    assert plan.lower_bound == plan.bounds[SPLIT_OPS] <= plan.makespan
    assert plan.bounds[WHOLE_OPS] <= min(o.seconds for o in plan.offers if o.space == WHOLE_OPS)


@pytest.mark.parametrize("name", ["lenet", "alexnet", "vgg19"])
@pytest.mark.parametrize("cluster", ["4xV100-PCIe", "2xV100-NVLink"])
def test_auto_is_never_behind_data_parallelism(name, cluster):
    graph, cluster = example(name), lm.Cluster.preset(cluster)
    plan = lm.place(graph, cluster, effort=0.02)
    for aggregation, shards in WAYS:
        rival = lm.place(graph, cluster, "data-parallel", aggregation=aggregation, shards=shards)
        assert plan.makespan <= 1.001 * rival.makespan, (aggregation, shards)


def test_auto_of_whole_ops_never_replicates():
    graph = example("vgg19")
    plan = lm.place(graph, PCIE, effort=0.02, split="none")
    assert plan.program.is_plain
    assert (plan.space, plan.offers) == (WHOLE_OPS, ())
    both = lm.place(graph, PCIE, effort=0.02)
    assert not both.program.is_plain
    assert both.makespan < 0.5 * plan.makespan
    with pytest.raises(InputError, match="split is 'some'"):
        lm.place(graph, PCIE, split="some")


@pytest.mark.parametrize(
    ("change", "space"), [({"meta": {}}, WHOLE_OPS), ({"batch": 1}, SPLIT_OPS)]
)
def test_auto_splits_no_batch_that_is_not_there(change, space):
    """One sample is not replicated, but its ops may be cut; of no sizes nothing is known."""
    document = linears((64, 64, 64), change.get("batch", 4096)).to_document()
    document["meta"] = change.get("meta", document["meta"])
    if "meta" in change:
        document["ops"]["output"] = [""] * len(document["ops"]["name"])
    plan = lm.place(lm.OpGraph.from_document(document), v100_mesh(2), effort=0.02)
    assert plan.program.is_plain
    assert plan.space == space


def test_auto_tells_what_is_better_and_beside_one_bound():
    told: list = []
    plan = lm.place(example("vgg19"), PCIE, effort=0.05, progress=lambda *news: told.append(news))
    found = [best for _, best in told if best is not None]
    assert found == sorted(found, reverse=True)
    assert {best.lower_bound for best in found} == {plan.lower_bound}
    assert found[-1] == plan.makespan


def without_arguments(graph: lm.OpGraph) -> lm.OpGraph:
    """The graph where nothing says how ops can be cut, so that there are no shards."""
    document = graph.to_document()
    for column in ("args", "output"):
        del document["ops"][column]
    return lm.OpGraph.from_document(document)


def test_ctrl_c_keeps_the_best_replicas():
    def progress(stage, best):
        if "replicas" in stage:
            raise KeyboardInterrupt

    problem = problem_of(without_arguments(example("vgg19")), PCIE)
    with pytest.raises(KeyboardInterrupt):
        auto.place(problem, effort=0.05, progress=progress)
    seen: list = []

    def later(stage, best):
        seen.append(stage)
        if len(seen) == 2:
            raise KeyboardInterrupt

    plan = auto.place(problem, effort=0.05, progress=later)
    assert plan.notes == ("interrupted: the best so far",)
    assert not plan.problem.program.is_plain


def test_a_time_limit_keeps_the_first_replicas():
    plan = lm.place(without_arguments(example("vgg19")), PCIE, time_limit=1e-9)
    assert not plan.program.is_plain
    replicas = [offer.what for offer in plan.offers if offer.space == SPLIT_OPS]
    assert replicas == ["4 replicas, gradients all-reduced"]


# -- bounds by space -------------------------------------------------------------------------


@settings(max_examples=20)
@given(
    st.lists(st.integers(1, 2000), min_size=2, max_size=4),
    st.integers(2, 64),
    st.booleans(),
    st.integers(2, 4),
    st.integers(0, 2),
    st.sampled_from(["heft", "data-parallel", "os-dpos", "auto"]),
    st.sampled_from(WAYS),
)
def test_no_plan_is_below_the_bound_of_its_space(widths, batch, train, n, n_slow, method, way):
    graph = linears(widths, batch, train=train)
    cluster = unequal(n_slow).subset(list(range(n))) if n < 4 else unequal(n_slow)
    options = {}
    if method == "data-parallel":
        options = {"aggregation": way[0], "shards": way[1]}
    elif method == "auto":
        options = {"effort": 0.01}
    plan = lm.place(graph, cluster, method, **options)
    assert split_bound(problem_of(graph, cluster)).seconds == plan.bounds[SPLIT_OPS]
    assert plan.bounds[SPLIT_OPS] <= plan.makespan * (1 + 1e-9)
    if plan.program.is_plain:
        assert plan.bounds[WHOLE_OPS] <= plan.makespan * (1 + 1e-9)
    for offer in plan.offers:
        assert plan.bounds[offer.space] <= offer.seconds * (1 + 1e-9)
    assert plan.lower_bound == plan.bounds[plan.space]
    assert plan.space == SPLIT_OPS or plan.program.is_plain


# -- on the command line ---------------------------------------------------------------------


def test_split_on_the_command_line(capsys):
    words = ["place", "example:vgg19", "--option", "effort=0.02", "--json"]
    assert main([*words, "--split", "none"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["space"], document["options"]["split"]) == (WHOLE_OPS, "none")
    assert main(words) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["space"] == SPLIT_OPS
    assert document["collectives"]["count"] > 0
    assert {offer["space"] for offer in document["offers"]} == {WHOLE_OPS, SPLIT_OPS}
    assert main(["place", "example:lenet", "--method", "heft", "--split", "none"]) == 2
    assert "split" in capsys.readouterr().err
