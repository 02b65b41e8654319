"""Plans for a process per device: DistributedDataParallel, FSDP2 and ZeRO, as they run them."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from conftest import example
from strategies import v100_mesh
from trained import linears

import loadmaster as lm
from loadmaster.base.errors import InputError
from loadmaster.model.graph import PARAMETER
from loadmaster.strategies.sharding.units import unit_patterns

GPT = "gpt3-330m"
WIDTHS = (64, 64, 64, 64)


def gradients(plan):
    """Members of sums of gradients."""
    labels = plan.program.graph.collectives
    return np.array(["/gradients" in label for label in labels], dtype=bool)


def kinds(plan):
    """How many collectives there are of each kind and on what, numbers left out."""
    labels = {label.rstrip("0123456789") + "#" + label for label in plan.program.graph.collectives}
    return Counter(label.partition("#")[0] for label in labels if label != "#")


@pytest.mark.parametrize(
    ("target", "options"),
    [
        ("ddp", {"bucket_mb": 1}),
        ("ddp", {"optimizer": "sharded"}),
        ("fsdp", {}),
        ("deepspeed", {"stage": 2}),
        ("deepspeed", {"stage": 3}),
    ],
)
def test_updates_begin_after_the_last_sum_of_gradients(target, options):
    plan = lm.place(example(GPT), v100_mesh(2), target=target, replicas=2, **options)
    assert plan.target == target
    assert plan.fits
    seen, graph = plan.schedule, plan.program.graph
    sums = gradients(plan)
    assert sums.any()
    devices = plan.running_devices
    reads = np.zeros(graph.n_ops, dtype=bool)
    reads[graph.dst[sums[graph.src]]] = True
    for device in (0, 1):
        here = devices == device
        last = seen.finish[sums & here].max()
        assert (seen.start[graph.updates & reads & here] >= last - 1e-12).all()


def test_buckets_stand_for_the_whole_step_as_views_of_them_do():
    graph = linears(WIDTHS, 8)
    plan = lm.place(graph, v100_mesh(2), target="ddp", replicas=2, optimizer="replicated")
    size = int(graph.param_bytes[[graph.index(f"w{i}") for i in range(3)]].sum())
    members = gradients(plan) & (plan.running_devices == 0)
    assert int(plan.program.graph.param_bytes[members].sum()) == size
    # Weights, slots of momentum and gradients are there from the start.
    assert plan.memory.peak.min() >= 3 * size


def test_a_bucket_ends_with_the_gradient_that_fills_it():
    # Each gradient has 4 MiB: one of 7 MiB is filled by the second.
    graph = linears([1024] * 6, 4)
    plan = lm.place(graph, v100_mesh(2), target="ddp", replicas=2, bucket_mb=7)
    held = plan.program.graph.param_bytes[gradients(plan) & (plan.running_devices == 0)]
    assert held.tolist() == [8 << 20, 8 << 20, 4 << 20]


def test_replicas_are_equal_on_unequal_devices_and_the_slowest_sets_the_pace():
    graph, slow = linears(WIDTHS, 12), lm.Cluster.preset("moirai-intra").subset(["A", "C"])
    fast = lm.Cluster(
        [lm.Device(d.name, slow.devices[0].type, d.memory) for d in slow.devices],
        slow.wiring,
        types=slow.types,
    )
    both = [lm.place(graph, c, target="ddp", replicas=2) for c in (slow, fast)]
    shares = {float(s) for s in both[0].program.share[~both[0].program.own] if s < 1}
    assert shares == {0.5}
    assert both[0].makespan >= both[1].makespan


def test_fewer_devices_where_more_are_slower():
    tiny = linears((8, 8), 8)
    plan = lm.place(tiny, v100_mesh(4), target="ddp")
    assert plan.program.is_plain
    lm.writers.ddp(plan)


def test_a_sharded_optimizer_sums_whole_gradients_and_updates_each_parameter_once():
    graph = linears(WIDTHS, 8)
    plan = lm.place(graph, v100_mesh(2), target="ddp", replicas=2, optimizer="sharded")
    assert set(kinds(plan)) == {"all_reduce/gradients", "all_gather/updated"}
    program = plan.program
    for i in range(3):
        assert len(program.parts_of(graph.index(f"update{i}"))) == 1


def test_units_are_gathered_and_scattered_by_one_collective_each():
    graph = example(GPT)
    counts = {}
    for reshard in (True, False):
        plan = lm.place(graph, v100_mesh(2), target="fsdp", replicas=2, reshard=reshard)
        counts[reshard] = kinds(plan)
        assert plan.recipe.units == {"h.*": "again" if reshard else "kept", ".": "kept"}
    layers = 24
    assert counts[True]["all_gather/parameters"] == 2 * layers + 1
    assert counts[False]["all_gather/parameters"] == layers + 1
    assert counts[True]["reduce_scatter/gradients"] == layers + 1


def test_single_parameters_have_collectives_of_their_own_which_nothing_overlaps():
    plan = lm.place(example(GPT), v100_mesh(2), target="simplefsdp", replicas=2)
    found, of = kinds(plan), plan.graph.stands_for == PARAMETER
    n = int((of & (plan.graph.param_bytes > 0)).sum())
    assert found["all_gather/parameters"] == found["reduce_scatter/gradients"] == n
    seen, graph = plan.schedule, plan.program.graph
    here = np.flatnonzero((plan.running_devices == 0) & ~graph.view & ~graph.placeholder)
    start, finish = seen.start[here], seen.finish[here]
    member = graph.is_member[here]
    # Ops come one after another, in the program's order.
    assert (start[1:] >= finish[:-1] - 1e-12)[member[1:] | member[:-1]].all()


def test_a_compiler_begins_collectives_of_single_parameters_earlier():
    steps = {
        runtime: lm.place(
            example(GPT), v100_mesh(2), target="simplefsdp", replicas=2, runtime=runtime
        ).makespan
        for runtime in ("eager", "compiled")
    }
    assert steps["compiled"] < steps["eager"]


def test_parameters_are_sharded_on_the_inner_axis_and_gradients_summed_on_the_outer_one():
    plan = lm.place(example(GPT), v100_mesh(4), target="fsdp", replicas=4, shard_size=2)
    assert plan.recipe.mesh.shape == (2, 2)
    found = kinds(plan)
    assert found["all_reduce/gradients"] >= 25
    text = lm.writers.fsdp(plan)
    assert "MESH = {'replicate': 2, 'shard': 2}" in text


def test_kept_parameters_take_more_memory_than_those_gathered_again():
    peaks = [
        lm.place(example(GPT), v100_mesh(2), target="fsdp", replicas=2, reshard=r).memory.peak[0]
        for r in (True, False)
    ]
    assert peaks[0] < peaks[1]


def test_what_another_module_reads_is_no_units():
    assert unit_patterns(example(GPT)) == ("h.*",)
    graph = example(GPT)
    reader = next(
        dst
        for src, dst in zip(graph.src.tolist(), graph.dst.tolist(), strict=True)
        if graph.names[src] == "h.0.fc.weight" and graph.phases[dst] == "f"
    )
    modules = list(graph.modules)
    modules[reader] = "lm_head"
    assert unit_patterns(graph.with_columns({"module": modules})) == ()


@pytest.mark.parametrize("target", ["ddp", "fsdp", "deepspeed"])
def test_models_of_another_kind_are_refused_by_the_kind(target):
    forward = linears(WIDTHS, 8, train=False)
    with pytest.raises(InputError, match=f"target '{target}' takes training steps with a batch"):
        lm.place(forward, v100_mesh(2), target=target)


@pytest.mark.parametrize("target", ["ddp", "deepspeed"])
def test_sizes_that_do_not_divide_are_refused(target):
    with pytest.raises(InputError, match="a batch of 8 samples is not 3 equal shares"):
        lm.place(linears(WIDTHS, 8), v100_mesh(4), target=target, replicas=3)


def test_exports_of_other_plans_say_all_that_is_in_the_way_and_what_plans_for_it():
    graph = example(GPT)
    plan = lm.place(graph, v100_mesh(4), "megatron", tp=2)
    for write, name in ((lm.writers.fsdp, "fsdp"), (lm.writers.deepspeed, "deepspeed")):
        with pytest.raises(InputError, match="ops are shared otherwise than by the batch") as seen:
            write(plan)
        assert "no parameter is sharded" in str(seen.value)
        assert f"--target {name}" in str(seen.value)
    with pytest.raises(InputError, match="its recipe shares ops otherwise than by replicas"):
        lm.writers.ddp(plan)


@pytest.mark.parametrize("target", ["ddp", "fsdp", "deepspeed"])
def test_a_loaded_plan_is_written_as_the_plan_was(target, tmp_path):
    plan = lm.place(example(GPT), v100_mesh(2), target=target, replicas=2)
    plan.save(tmp_path / "plan.json")
    again = lm.Plan.load(tmp_path / "plan.json")
    write = getattr(lm.writers, target)
    assert write(again) == write(plan)
    assert again.makespan == plan.makespan


@pytest.mark.parametrize("target", ["fsdp", "deepspeed"])
@pytest.mark.parametrize(("batch", "devices", "way_out"), [
    (1, 4, "capture the batch of all processes together, such as 4 times as many samples"),
    (7, 4, "a batch of 7 samples has no equal shares for 2 of the 4 devices or more"),
    (8, 1, "one device can be used"),
])  # fmt: skip
def test_what_cannot_be_shared_is_told_the_way_out(target, batch, devices, way_out):
    graph = linears(WIDTHS, batch)
    graph = graph.with_columns({"module": [f"layers.{name}" for name in graph.names]})
    with pytest.raises(InputError, match=way_out):
        lm.place(graph, v100_mesh(devices), target=target)
