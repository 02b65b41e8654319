"""Decoders of PyTorch with routed experts, for training: small ones, captured without memory."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

import loadmaster as lm

WIDTH, HIDDEN, EXPERTS, TOP, TOKENS, WORDS = 64, 128, 8, 2, 32, 96


class Routed(nn.Module):
    """In each sample an expert takes its fair share of the tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.up = nn.Parameter(torch.rand(EXPERTS, WIDTH, HIDDEN) / WIDTH)
        self.down = nn.Parameter(torch.rand(EXPERTS, HIDDEN, WIDTH) / HIDDEN)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        each = tokens * TOP // EXPERTS
        weight, expert = self.gate(x).softmax(-1).topk(TOP, -1)
        wants = torch.zeros(batch, tokens, EXPERTS, device=x.device).scatter(2, expert, weight)
        weight, place = wants.transpose(1, 2).topk(each, -1)
        place = place.flatten(1).unsqueeze(-1).expand(-1, -1, width)
        y = x.gather(1, place).unflatten(1, (EXPERTS, each)).transpose(0, 1).flatten(1, 2)
        y = torch.bmm(functional.silu(torch.bmm(y, self.up)), self.down)
        y = y.unflatten(1, (batch, each)).transpose(0, 1) * weight.unsqueeze(-1)
        return torch.zeros_like(x).scatter_add(1, place, y.flatten(1, 2))


class Layer(nn.Module):
    """Attention of four heads, then experts."""

    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.out, self.moe = nn.Linear(WIDTH, WIDTH, bias=False), Routed()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.ln_1(x)
        q, k, v = (
            each(y).unflatten(-1, (4, -1)).transpose(1, 2) for each in (self.q, self.k, self.v)
        )
        scores = torch.softmax(q @ k.transpose(-1, -2) / 4, -1)
        x = x + self.out((scores @ v).transpose(1, 2).flatten(2))
        return x + self.moe(self.ln_2(x))


class Decoder(nn.Module):
    """Some layers, an embedding and a head."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.embed(words)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def routed_step(layers: int, batch: int) -> lm.OpGraph:
    """The graph of a training step with AdamW, in float32."""
    with torch.device("meta"):
        words = torch.zeros(batch, TOKENS, dtype=torch.long)
        model = Decoder(layers)
    return lm.capture(
        model,
        words,
        loss=lambda logits, targets: functional.cross_entropy(
            logits.flatten(0, 1), targets.flatten()
        ),
        targets=words,
        optimizer=torch.optim.AdamW,
    )
