"""Written for DTensor, a model steps on gloo processes with the numbers of the model that is whole.

Needs torch (no GPU): without it these tests are skipped.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch 2.5 or later")

from parallel_models import built  # noqa: E402
from runs_dtensor import assert_steps, shards_of  # noqa: E402

import loadmaster as lm  # noqa: E402

#: What must be cut of each model, so that its step says something.
CUT = {
    "llama": ("'layers.*.attn.q': C", "'layers.*.attn.o': ", "'layers.*.mlp.down': R"),
    "gpt": ("'h.*.attn.c_attn': FusedColwise(3", "'h.*.attn.c_proj': R", "'h.*.proj': R"),
    "unseen": ("'a': C", "'b': R", "'c': C", "'o': R"),
    "masked": ("'mlp.gate': C", "'mlp.down': R"),
    "viewed": ("'*.o': R",),
}

#: What must be said of sequence parallelism, of the models that have some.
BY_TOKENS = {
    "llama": ("'layers.*.n1': SequenceParallel(sequence_dim=1)", "'norm': PrepareModuleOutput"),
    "gpt": ("'h.*.ln_2': SequenceParallel(sequence_dim=1)", "'wpe': PrepareModuleOutput"),
}


@cache
def graph_of(name):
    made = built(name)
    return lm.capture(
        made.module, *made.inputs, loss=made.loss, targets=made.targets, optimizer=sgd
    )


def sgd(parameters):
    return torch.optim.SGD(parameters, 0.1)


def written(name, cluster, *, tp=2, sequence=None, **sizes):
    """A model's file and its shards. Devices are slow: cutting such small ops gains. Launches are
    a thousandth of what is slowed down with them: those of collectives would cost what is gained.
    """
    known = lm.Cluster.preset(cluster).with_speed(1e-5)
    types = [replace(type_, launch=type_.launch * 1e-3) for type_ in known.types]
    slow = lm.Cluster(known.devices, known.wiring, types)
    plan = lm.place(graph_of(name), slow, target="dtensor", tp=tp, sequence=sequence, **sizes)
    text = lm.writers.dtensor(plan)
    for row in [*(CUT[name] if tp > 1 else ()), *(BY_TOKENS[name] if sequence else ())]:
        assert row in text
    return name, text, shards_of(plan)


#: Models with what is asked of their plans, by cluster.
STEPS = {
    "2xV100-NVLink": [
        ("llama", {"sequence": True}),
        *[(name, {"sequence": False}) for name in ("gpt", "unseen", "masked", "viewed")],
    ],
    "4xV100-NVLink": [
        ("llama", {"replicate": 2, "sequence": False}),
        ("gpt", {"shard": 2, "sequence": True}),
        ("gpt", {"replicate": 2, "shard": 2, "tp": 1}),
    ],
}


@pytest.mark.parametrize("cluster", STEPS)
def test_a_step_has_the_numbers_of_the_whole_model(cluster):
    assert_steps([written(name, cluster, **asked) for name, asked in STEPS[cluster]])


def test_parameters_are_in_parts_on_the_inner_one_of_two_axes_of_the_batch():
    _, text, shards = written("unseen", "8xH100-NVLink", replicate=2, shard=2)
    assert "MESH = {'replicate': 2, 'shard': 2, 'tp': 2}" in text
    assert "options = {\"mesh\": mesh['replicate', 'shard']}" in text
    assert "fully_shard(model, reshard_after_forward=False, **options)" in text
    assert shards["parameters"]["b.weight"]["placements"] == {
        "replicate": "Replicate", "shard": "Shard(0)", "tp": "Shard(1)",
    }  # fmt: skip


def test_slow_links_between_hosts_carry_parts_of_gradients_alone():
    """On two hosts replicas of parts send a quarter of the gradients over the slow link."""
    graph, hosts = lm.read("example:alexnet"), lm.Cluster.preset("2x4xV100-25GbE")
    plans = [
        lm.place(graph, hosts, target="dtensor", tp=1, replicate=n, shard=8 // n) for n in (8, 2, 1)
    ]
    whole, both, flat = (plan.makespan for plan in plans)
    assert both < min(whole, flat)


@pytest.mark.parametrize("asked", [{"replicate": 3}, {"shard": 2, "tp": 4}, {"tp": 3}])
def test_sizes_that_do_not_multiply_to_the_devices_are_refused(asked):
    name, size = next(iter(asked.items()))
    with pytest.raises(lm.InputError, match=f"{name} is {size}.*mesh of all 4 devices"):
        lm.place(graph_of("gpt"), lm.Cluster.preset("4xV100-NVLink"), target="dtensor", **asked)


def test_a_plan_of_another_kind_is_refused_with_what_is_in_the_way():
    graph = lm.read("example:lenet")
    plan = lm.place(graph, lm.Cluster.preset("2xV100-NVLink"), "heft")
    with pytest.raises(lm.InputError, match=r"shares no work by labels.*--target dtensor"):
        lm.writers.dtensor(plan)
