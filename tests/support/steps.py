"""Models whose steps are run beside PyTorch's own, and that step of PyTorch."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils._python_dispatch import TorchDispatchMode
from torch_models import LSTM, BertMini, Model, ResNet18

from loadmaster.running.tape.replay import seed_of


class Cells(nn.Module):
    """An LSTM unrolled: a cell a layer and word."""

    def __init__(self, width=16, words=50):
        super().__init__()
        self.e = nn.Embedding(words, width)
        self.cells = nn.ModuleList(nn.LSTMCell(width, width) for _ in range(2))
        self.o = nn.Linear(width, words)

    def forward(self, x):
        y = self.e(x)
        states = [(y.new_zeros(len(x), y.shape[-1]),) * 2 for _ in self.cells]
        out = []
        for t in range(x.shape[1]):
            h = y[:, t]
            for i, cell in enumerate(self.cells):
                states[i] = cell(h, states[i])
                h = states[i][0]
            out.append(h)
        return self.o(torch.stack(out, 1)).transpose(1, 2)


class Experts(nn.Module):
    """A mixture of experts: each word takes all, weighted by a router."""

    def __init__(self, width=16, words=50, experts=4):
        super().__init__()
        self.e = nn.Embedding(words, width)
        self.router = nn.Linear(width, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
            for _ in range(experts)
        )
        self.o = nn.Linear(width, words)

    def forward(self, x):
        y = self.e(x)
        weights, chosen = self.router(y).softmax(-1).topk(2)
        gates = torch.zeros(*y.shape[:2], len(self.experts)).scatter(-1, chosen, weights)
        mixed = sum(e(y) * gates[..., i : i + 1] for i, e in enumerate(self.experts))
        return self.o(y + mixed).transpose(1, 2)


class Routed(nn.Module):
    """Layers of experts that are modules of their own, each with the words that a router picks."""

    def __init__(self, width=16, words=50, experts=4, layers=2, picks=10):
        super().__init__()
        self.e = nn.Embedding(words, width)
        self.picks = picks
        self.routers = nn.ModuleList(nn.Linear(width, experts) for _ in range(layers))
        self.layers = nn.ModuleList(
            nn.ModuleList(
                nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
                for _ in range(experts)
            )
            for _ in range(layers)
        )
        self.o = nn.Linear(width, words)

    def forward(self, x):
        y = self.e(x)
        y = y.flatten(0, 1)
        for router, experts in zip(self.routers, self.layers, strict=True):
            weights, chosen = router(y).softmax(-1).topk(2)
            out = torch.zeros_like(y)
            for i, expert in enumerate(experts):
                gate, rows = ((chosen == i) * weights).sum(-1).topk(self.picks)
                made = expert(y.index_select(0, rows)) * gate[:, None]
                out = out.index_add(0, rows, made)
            y = y + out
        return self.o(y).unflatten(0, x.shape).transpose(1, 2)


class Stacked(nn.Module):
    """A mixture whose experts are one tensor: words are handed out to them by products."""

    def __init__(self, width=16, words=50, experts=4):
        super().__init__()
        self.e = nn.Embedding(words, width)
        self.router = nn.Linear(width, experts)
        self.a = nn.Parameter(torch.randn(experts, width, 2 * width) / 4)
        self.b = nn.Parameter(torch.randn(experts, 2 * width, width) / 4)
        self.o = nn.Linear(width, words)

    def forward(self, x):
        y = self.e(x)
        weights, chosen = self.router(y).softmax(-1).topk(2)
        gates = torch.zeros(*y.shape[:2], len(self.a)).scatter(-1, chosen, weights)
        given = torch.einsum("bse,bsd->ebsd", (gates > 0).to(y.dtype), y).flatten(1, 2)
        made = torch.bmm(F.gelu(torch.bmm(given, self.a)), self.b).unflatten(1, x.shape)
        return self.o(y + torch.einsum("bse,ebsd->bsd", gates, made)).transpose(1, 2)


class Tied(Model):
    """Weights tied between the embedding and the head."""

    def __init__(self):
        super().__init__(width=16, vocabulary=50, tied=True)

    def forward(self, x):
        return super().forward(x).transpose(1, 2)


class InPlace(nn.Module):
    """Views that are written, in-place ops, and a buffer that the forward pass keeps up to date."""

    def __init__(self, width=16, words=50):
        super().__init__()
        self.e = nn.Embedding(words, width)
        self.a = nn.Linear(width, width)
        self.o = nn.Linear(width, words)
        self.register_buffer("seen", torch.zeros(width))

    def forward(self, x):
        y = self.e(x)
        z = self.a(y).relu_()
        half = z.shape[-1] // 2
        mixed = torch.zeros_like(z)
        mixed[..., :half] = z[..., half:]
        mixed[..., half:].add_(z[..., :half])
        self.seen.mul_(0.9).add_(mixed.detach().mean((0, 1)), alpha=0.1)
        mixed = mixed * (1 + self.seen) + torch.tensor([0.5]).mul_(2)
        return self.o(mixed.mul_(0.5)).transpose(1, 2)


class Dropped(nn.Module):
    """Dropout between two layers."""

    def __init__(self, width=16, words=50):
        super().__init__()
        self.e = nn.Embedding(words, width)
        self.layers = nn.Sequential(
            nn.Linear(width, width), nn.Dropout(0.3), nn.ReLU(), nn.Linear(width, width)
        )
        self.drop = nn.Dropout(0.1)
        self.o = nn.Linear(width, words)

    def forward(self, x):
        return self.o(self.drop(self.layers(self.e(x)))).transpose(1, 2)


def words(*shape):
    return torch.arange(torch.Size(shape).numel()).reshape(shape).mul(7) % 50


#: Name -> what makes the model, its inputs, the targets of cross-entropy.
STEPS = {
    "ResNet-18": (lambda: ResNet18(8), torch.linspace(-1, 1, 4 * 3 * 64 * 64).view(4, 3, 64, 64),
                  words(4) % 10),
    "BERT-mini": (BertMini, words(2, 16), words(2, 16)),
    "LSTM": (LSTM, words(4, 20), words(4, 20)),
    "cells": (Cells, words(4, 6), words(4, 6)),
    "experts": (Experts, words(2, 8), words(2, 8)),
    "tied": (Tied, words(2, 8), words(2, 8)),
    "in place": (InPlace, words(2, 8), words(2, 8)),
    "dropout": (Dropped, words(2, 8), words(2, 8)),
}  # fmt: skip


def made(name):
    """A model, its inputs and its targets."""
    make, inputs, targets = STEPS[name]
    torch.manual_seed(0)
    return make(), inputs, targets


class Seeded(TorchDispatchMode):
    """Gives the random ops of a real step the seeds that they have on a tape."""

    def __init__(self, tape, step):
        super().__init__()
        self._ops = iter([call.op for call in tape.calls if call.random])
        self._step = step

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if torch.Tag.nondeterministic_seeded in func.tags:
            torch.manual_seed(seed_of(0, self._step, next(self._ops)))
        return func(*args, **(kwargs or {}))


def trained(model, inputs, targets, optimizer, steps, tape, schedule=None):
    """PyTorch's own steps, on a copy of the model: its outputs by the names of a tape's."""
    model = copy.deepcopy(model).train()
    if not isinstance(optimizer, torch.optim.Optimizer):
        optimizer = optimizer(model.parameters())
    schedule = schedule and schedule(optimizer)
    for step in range(steps):
        optimizer.zero_grad()
        with Seeded(tape, step):
            output = model(inputs)
            loss = F.cross_entropy(output, targets)
            loss.backward()
        optimizer.step()
        if schedule:
            schedule.step()
    found = {"loss": loss.detach(), "output": output.detach()}
    for name, parameter in model.named_parameters():
        found[f"parameter.{name}"] = parameter.detach()
        found[f"gradient.{name}"] = parameter.grad
    return found, model


def evaluated(model, inputs):
    """PyTorch's own inference, on a copy of the model, op by op."""
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad():
            return copy.deepcopy(model).eval()(inputs)
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


def differing(expected, found):
    """Names of what is not the same, bit for bit."""
    assert set(expected) == set(found)
    return [name for name, tensor in expected.items() if not torch.equal(tensor, found[name])]
