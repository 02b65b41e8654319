"""Checks by Lightning and Ray, beside classes of theirs that only keep what they are given."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

import loadmaster as lm
from loadmaster.systems.lightning.check import words as of_lightning
from loadmaster.systems.ray.check import words as of_ray


class DDPStrategy(SimpleNamespace):
    """Arguments of the strategy."""


@pytest.fixture
def plan():
    graph, cluster = lm.read("example:alexnet"), lm.Cluster.preset("4xV100-PCIe")
    return {t: lm.place(graph, cluster, target=t, engine="ddp") for t in ("lightning", "ray")}


def module(monkeypatch, name, **members):
    stub = ModuleType(name)
    vars(stub).update(members)
    monkeypatch.setitem(sys.modules, name, stub)


def test_lightning_makes_the_trainer(monkeypatch, tmp_path, plan):
    def trainer(**arguments):
        n = arguments["devices"] * arguments["num_nodes"]
        return SimpleNamespace(world_size=n, strategy=arguments["strategy"])

    for name in ("lightning", "lightning.pytorch"):
        module(monkeypatch, name, Trainer=trainer)
    module(monkeypatch, "lightning.pytorch.strategies", DDPStrategy=DDPStrategy)
    lm.writers.lightning(plan["lightning"], tmp_path / "file.py")
    says = of_lightning(str(tmp_path / "file.py"))["words"]
    assert says == "Lightning makes a Trainer of 4 processes (DDPStrategy)"


def test_ray_makes_the_trainer(monkeypatch, tmp_path, plan):
    pytest.importorskip("torch", reason="needs PyTorch 2.5 or later")

    def trainer(train, scaling_config, torch_config):
        assert torch_config.backend == "nccl"
        return SimpleNamespace(scaling_config=scaling_config)

    kept = {"ScalingConfig": SimpleNamespace, "TorchConfig": SimpleNamespace}
    for name in ("ray", "ray.train", "ray.train.torch"):
        module(monkeypatch, name, TorchTrainer=trainer, **kept)
    lm.writers.ray(plan["ray"], tmp_path / "file.py")
    assert of_ray(str(tmp_path / "file.py"))["words"] == "Ray makes a TorchTrainer of 4 workers"
