"""Written for DTensor, a model steps on gloo processes with the numbers of the model that is whole.

Needs torch (no GPU): without it these tests are skipped.
"""

from __future__ import annotations

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


def written(name, cluster, *, sequence):
    """A model's file and its shards. Devices are slow: cutting such small ops gains."""
    slow = lm.Cluster.preset(cluster).with_speed(1e-5)
    plan = lm.place(graph_of(name), slow, target="dtensor", tp=2, sequence=sequence)
    text = lm.writers.dtensor(plan)
    for row in [*CUT[name], *(BY_TOKENS[name] if sequence else ())]:
        assert row in text
    return name, text, shards_of(plan)


#: Clusters, with the models that are cut on them and whether by tokens too.
STEPS = {
    "2xV100-NVLink": {"llama": True, "gpt": False, "unseen": False, "masked": False},
    "4xV100-NVLink": {"llama": False, "gpt": True},
}


@pytest.mark.parametrize("cluster", STEPS)
def test_a_step_has_the_numbers_of_the_whole_model(cluster):
    rows = STEPS[cluster].items()
    assert_steps([written(name, cluster, sequence=sequence) for name, sequence in rows])


def test_a_plan_of_another_kind_is_refused_with_what_is_in_the_way():
    graph = lm.read("example:lenet")
    plan = lm.place(graph, lm.Cluster.preset("2xV100-NVLink"), "heft")
    with pytest.raises(lm.InputError, match=r"shares no work by labels.*--target dtensor"):
        lm.writers.dtensor(plan)
