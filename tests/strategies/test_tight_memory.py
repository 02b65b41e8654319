"""``auto`` where memory is tight: what it plans beside the systems that accumulate micro-batches."""

from __future__ import annotations

from folders import DATA

import loadmaster as lm

MODELS = DATA / "models"


def test_micro_batches_one_after_another_on_devices_that_share_every_layer():
    graph = lm.read(MODELS / "gpt2_train.json.gz")
    cluster = lm.Cluster.preset("4xV100-NVLink").with_memory("110MiB")
    plan = lm.place(graph, cluster)
    rival = lm.place(graph, cluster, target="megatron")
    assert rival.parallelism.stages == 1 < rival.parallelism.micro_batches
    assert plan.makespan <= rival.makespan * 1.001
