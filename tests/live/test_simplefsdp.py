"""Files for SimpleFSDP gather what their plans gather, on drawn models and meshes."""

from __future__ import annotations

import os
import random

import pytest

import loadmaster as lm
from loadmaster.systems.shared.priced_collectives import priced_collectives

torch = pytest.importorskip("torch", reason="needs PyTorch 2.5 or later")

from loadmaster.systems.shared.fake_processes import passes  # noqa: E402

MODEL = """
import random

import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self, draw):
        super().__init__()
        self.inner = nn.Sequential(
            nn.Linear(6, 10, bias=draw.random() < 0.5), nn.GELU(), nn.Linear(10, 6)
        )
        self.norm = nn.LayerNorm(6) if draw.random() < 0.5 else nn.Identity()

    def forward(self, x):
        if self.inner[0].weight.dtype != x.dtype:  # It reads a weight that it does not use.
            x = x.to(self.inner[0].weight.dtype)
        return x + self.norm(self.inner(x))


class Net(nn.Module):
    def __init__(self, draw):
        super().__init__()
        self.table = nn.Embedding(13, 6)
        self.layers = nn.ModuleList(Layer(draw) for _ in range(draw.randint(1, 3)))
        self.memory = nn.LSTM(6, 6, batch_first=True) if draw.random() < 0.5 else None
        self.head = nn.Linear(6, 13, bias=draw.random() < 0.5)
        if draw.random() < 0.5:
            self.head.weight = self.table.weight

    def forward(self, words):
        x = self.table(words)
        for layer in self.layers:
            x = layer(x)
        if self.memory is not None:
            x, _ = self.memory(x)
        return self.head(x)


def loss(output, targets):
    return torch.nn.functional.mse_loss(output, targets)


def make():
    torch.manual_seed(0)
    words, targets = torch.randint(0, 13, (8, 5)), torch.zeros(8, 5, 13)
    return {{"model": Net(random.Random({seed})), "example_inputs": words, "loss": loss,
            "targets": targets, "optimizer": torch.optim.AdamW}}
"""


@pytest.mark.parametrize("seed", range(3))
def test_a_file_runs_the_collectives_of_its_plan(seed, tmp_path, monkeypatch):
    draw = random.Random(seed)
    (tmp_path / "model.py").write_text(MODEL.format(seed=seed))
    names = {}
    exec((tmp_path / "model.py").read_text(), names)
    graph = lm.capture(**names["make"]())
    shard = draw.choice([2, 4])
    options = {"replicas": 4, "shard_size": shard, "recompute": seed % 2 == 1}
    plan = lm.place(graph, lm.Cluster.preset("4xV100-PCIe"), target="simplefsdp", **options)
    plan.export(path=tmp_path / "file.py", check=False)
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):  # They are set, and then as before.
        monkeypatch.setenv(name, os.environ.get(name, "0"))
    file = (tmp_path / "file.py").read_text().replace("torch.device('cuda'", "torch.device('cpu'")
    (tmp_path / "file.py").write_text(file)
    try:
        ran = passes(str(tmp_path / "file.py"), f"{tmp_path / 'model.py'}:make", 8, 4)
    finally:
        torch.distributed.destroy_process_group()
    assert ran["collectives"] == priced_collectives(plan)
    n = sum(p.numel() > 0 for p in names["make"]()["model"].parameters())
    assert ran["collectives"]["reduce_scatter"][0] == n
    assert ("all_reduce" in ran["collectives"]) == (shard == 2)
