"""The models whose plans are run by ``truth.py real``: small enough that a step takes some 20 ms on
one core, of the kinds that plans are made for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

_WORDS = 1000


def _conv(inputs: int, outputs: int, kernel: int = 3, stride: int = 1) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    )


class Inception(nn.Module):
    """Convolutions with batch norm, in four branches a block."""

    def __init__(self, width: int = 32, blocks: int = 3) -> None:
        super().__init__()
        self.stem = _conv(3, 4 * width, stride=2)
        self.blocks = nn.ModuleList(
            nn.ModuleList(
                nn.Sequential(_conv(4 * width, width, 1), *deeper)
                for deeper in (
                    [],
                    [_conv(width, width)],
                    [_conv(width, width), _conv(width, width)],
                    [_conv(width, width, 5)],
                )
            )
            for _ in range(blocks)
        )
        self.head = nn.Linear(4 * width, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.stem(images)
        for block in self.blocks:
            x = torch.cat([branch(x) for branch in block], 1)
        return self.head(x.mean((2, 3)))


class Residual(nn.Module):
    """Convolutions with batch norm, one after another, with residual connections."""

    def __init__(self, width: int = 48, blocks: int = 5) -> None:
        super().__init__()
        self.stem = _conv(3, width, stride=2)
        self.blocks = nn.ModuleList(
            nn.Sequential(_conv(width, width), _conv(width, width)) for _ in range(blocks)
        )
        self.head = nn.Linear(width, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.stem(images)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x.mean((2, 3)))


class Recurrent(nn.Module):
    """An LSTM unrolled: a cell a layer and word."""

    def __init__(self, width: int = 256, layers: int = 3) -> None:
        super().__init__()
        self.words = nn.Embedding(_WORDS, width)
        self.cells = nn.ModuleList(nn.LSTMCell(width, width) for _ in range(layers))
        self.head = nn.Linear(width, _WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.words(words)
        states = [(x.new_zeros(len(x), x.shape[-1]),) * 2 for _ in self.cells]
        out = []
        for t in range(x.shape[1]):
            h = x[:, t]
            for i, cell in enumerate(self.cells):
                states[i] = cell(h, states[i])
                h = states[i][0]
            out.append(h)
        return self.head(torch.stack(out, 1)).transpose(1, 2)


class Transformer(nn.Module):
    """Attention and dense layers, with weights tied between embedding and head."""

    def __init__(self, width: int = 192, layers: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.words = nn.Embedding(_WORDS, width)
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {
                    "first": nn.LayerNorm(width),
                    "qkv": nn.Linear(width, 3 * width),
                    "out": nn.Linear(width, width),
                    "second": nn.LayerNorm(width),
                    "up": nn.Linear(width, 4 * width),
                    "down": nn.Linear(4 * width, width),
                }
            )
            for _ in range(layers)
        )

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.words(words)
        batch, length, width = x.shape
        for layer in self.layers:
            q, k, v = (
                part.view(batch, length, self.heads, -1).transpose(1, 2)
                for part in layer["qkv"](layer["first"](x)).chunk(3, -1)
            )
            scores = (q @ k.transpose(-1, -2)) / (width / self.heads) ** 0.5
            mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, width)
            x = x + layer["out"](mixed)
            x = x + layer["down"](functional.gelu(layer["up"](layer["second"](x))))
        return functional.linear(x, self.words.weight).transpose(1, 2)


class Experts(nn.Module):
    """A mixture of experts: each word takes all, weighted by a router."""

    def __init__(self, width: int = 192, experts: int = 6) -> None:
        super().__init__()
        self.words = nn.Embedding(_WORDS, width)
        self.router = nn.Linear(width, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 3 * width), nn.GELU(), nn.Linear(3 * width, width))
            for _ in range(experts)
        )
        self.head = nn.Linear(width, _WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.words(words)
        weights, chosen = self.router(x).softmax(-1).topk(2)
        gates = torch.zeros(*x.shape[:2], len(self.experts)).scatter(-1, chosen, weights)
        mixed = sum(one(x) * gates[..., i : i + 1] for i, one in enumerate(self.experts))
        return self.head(x + mixed).transpose(1, 2)


class Towers(nn.Module):
    """Two towers of dense layers with dropout, which meet in the end."""

    def __init__(self, width: int = 640, depth: int = 4) -> None:
        super().__init__()
        self.towers = nn.ModuleList(
            nn.Sequential(
                *(
                    layer
                    for _ in range(depth)
                    for layer in (nn.Linear(width, width), nn.ReLU(), nn.Dropout(0.1))
                )
            )
            for _ in range(2)
        )
        self.head = nn.Linear(2 * width, 10)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.head(torch.cat([tower(rows) for tower in self.towers], -1))


def _images(n: int = 4, size: int = 48) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.rand(n, 3, size, size), torch.randint(0, 10, (n,))


def _sentences(n: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(0, _WORDS, (n, length)), torch.randint(0, _WORDS, (n, length))


#: Name -> the model, its inputs and targets.
MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Any, Any]]]] = {
    "inception": (Inception, _images),
    "residual": (Residual, _images),
    "recurrent": (Recurrent, lambda: _sentences(16, 8)),
    "transformer": (Transformer, lambda: _sentences(4, 64)),
    "experts": (Experts, lambda: _sentences(4, 64)),
    "towers": (Towers, lambda: (torch.rand(128, 640), torch.randint(0, 10, (128,)))),
}


def step_of(name: str, train: bool) -> dict[str, Any]:
    """The arguments of ``lm.record`` for a model's inference, or for its step of SGD."""
    torch.manual_seed(0)
    make, data = MODELS[name]
    model, (inputs, targets) = make(), data()
    if not train:
        return {"model": model.eval(), "example_inputs": inputs, "train": False}
    return {
        "model": model.train(),
        "example_inputs": inputs,
        "targets": targets,
        "loss": functional.cross_entropy,
        "optimizer": lambda parameters: torch.optim.SGD(parameters, lr=1e-3, momentum=0.9),
    }
