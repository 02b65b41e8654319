"""``auto`` where memory is tight beside systems; what systems do not offer."""

from __future__ import annotations

import pytest
from folders import DATA

import loadmaster as lm
from loadmaster.base.effort import Budget
from loadmaster.base.errors import InputError
from loadmaster.judge.problem import Problem
from loadmaster.strategies.auto.grids import grids
from loadmaster.strategies.auto.run import Run

MODELS = DATA / "models"


def test_micro_batches_one_after_another_on_devices_that_share_every_layer():
    graph = lm.read(MODELS / "gpt2_train.json.gz")
    cluster = lm.Cluster.preset("4xV100-NVLink").with_memory("110MiB")
    problem = Problem.make(graph, cluster, lm.costs.estimate(graph, cluster))
    run = Run(problem, Budget.make(None, None), may_split=True)
    ((candidate, _),) = grids(run, ())
    rival = lm.place(graph, cluster, target="megatron")
    assert rival.parallelism.stages == 1 < rival.parallelism.micro_batches
    assert candidate.fits
    assert candidate.verdict.step_time <= rival.makespan * 1.001


def test_replicas_of_one_sample_are_not_offered():
    """Devices that would all do the same are no mesh."""
    graph = lm.read(MODELS / "gpt2_infer.json.gz")
    with pytest.raises(InputError, match="no batch can be shared"):
        lm.place(graph, "4xL4-PCIe", target="dtensor", tp=1)


@pytest.mark.parametrize("tp", [1, 2])
def test_each_axis_of_a_mesh_shares_work(tp):
    graph = lm.read(MODELS / "bert_infer.json.gz")
    plan = lm.place(graph, "4xL4-PCIe", target="dtensor", tp=tp, costs="roofline")
    assert plan.program.share.min() <= 1 / plan.cluster.n_devices
