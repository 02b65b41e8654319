"""Decoders that are drawn, by tensor parallelism: files of ``dtensor`` run what their plans price.

Collectives are those of the plan by kind, number and bytes, and no optimizer's state lies otherwise
than its parameter.
"""

from __future__ import annotations

import os
import random

import pytest

import loadmaster as lm
from loadmaster.systems.shared.priced_collectives import priced_collectives

torch = pytest.importorskip("torch", reason="needs PyTorch 2.5 or later")

from loadmaster.systems.shared.fake_processes import passes  # noqa: E402

MODEL = """
import torch
from torch import nn
from torch.nn import functional

NORM, PLACES, GATE, WIDTH, BIAS = {norm}, {places}, {gate}, {width}, {bias}


class Scale(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        norm = nn.LayerNorm if NORM == "layer" else Scale
        self.first, self.second = norm(width), norm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=BIAS) for _ in range(4))
        self.up, self.down = nn.Linear(width, 64, bias=BIAS), nn.Linear(64, width, bias=BIAS)
        self.gate = nn.Linear(width, 64, bias=BIAS) if GATE else None

    def forward(self, x):
        y = self.first(x)
        made = (self.q(y), self.k(y), self.v(y))
        q, k, v = (one.unflatten(-1, (-1, 8)).transpose(1, 2) for one in made)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        y = self.second(x)
        hidden = functional.silu(self.up(y))
        return x + self.down(hidden * self.gate(y) if GATE else hidden)


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(64, WIDTH)
        self.places = nn.Embedding(12, WIDTH) if PLACES else None
        self.blocks = nn.ModuleList(Block(WIDTH) for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH) if NORM == "layer" else Scale(WIDTH)
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, words):
        x = self.words(words)
        if PLACES:
            x = x + self.places(torch.arange(words.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def make():
    words, targets = torch.zeros(4, 12, dtype=torch.long), torch.zeros(4, 12, 10)
    return {{"model": Decoder(), "example_inputs": words, "loss": functional.mse_loss,
            "targets": targets, "optimizer": torch.optim.AdamW}}
"""


def drawn(seed):
    """Sizes and parts of a decoder, and the options of its plan."""
    draw = random.Random(seed)
    parts = {
        "norm": draw.choice(["layer", "scale"]),
        "places": draw.choice([True, False]),
        "gate": draw.choice([True, False]),
        "width": draw.choice([16, 32]),
        "bias": draw.choice([True, False]),
    }
    return parts, {"sequence": draw.choice([True, True, False])}


@pytest.mark.parametrize("seed", range(3))
def test_a_file_runs_the_collectives_of_its_plan(seed, tmp_path):
    parts, options = drawn(seed)
    source, written = tmp_path / "model.py", tmp_path / "written.py"
    source.write_text(MODEL.format(**{name: repr(value) for name, value in parts.items()}))
    names = {}
    exec(compile(source.read_text(), str(source), "exec"), names)
    graph, cluster = lm.capture(**names["make"]()), lm.Cluster.preset("2xV100-NVLink")
    plan = lm.place(graph, cluster, target="dtensor", tp=2, **options)
    assert not any("updated" in label for label in plan.program.graph.collectives)
    lm.writers.dtensor(plan, written)
    environment = dict(os.environ)
    try:
        ran = passes(str(written), f"{source}:make", 4, 1)["collectives"]
    finally:
        os.environ.clear()
        os.environ.update(environment)
        torch.distributed.destroy_process_group()
    assert ran == priced_collectives(plan)
