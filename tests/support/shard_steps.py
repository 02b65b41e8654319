"""Steps of small models whose ops are shared out, and meshes for them. Needs torch."""

from __future__ import annotations

import torch
from steps import Cells, Dropped, Experts, Routed, Stacked, Tied, words
from torch import nn
from torch.nn import functional as F  # noqa: N812

import loadmaster as lm
from loadmaster.model.recipe import DeviceMesh, MeshAxis

MESHES = {
    "2": DeviceMesh.of({"x": 2}),
    "4": DeviceMesh.of({"x": 4}),
    "2 x 2": DeviceMesh.of({"x": 2, "y": 2}),
    "3 : 1": DeviceMesh((MeshAxis("x", 2, (3.0, 1.0)),)),
}


class Normed(nn.Module):
    """Convolutions with batch norms, as in a ResNet."""

    def __init__(self, width=8):
        super().__init__()
        self.a, self.b = nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.c, self.d = nn.Conv2d(width, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width)
        self.o = nn.Linear(width, 12)

    def forward(self, x):
        y = torch.relu(self.b(self.a(x)))
        return self.o(torch.relu(self.d(self.c(y))).mean((2, 3)))


STEPS = {
    "LSTM": (Cells, words(4, 2), words(4, 2)),
    "tied transformer": (Tied, words(4, 8), words(4, 8)),
    "experts": (Experts, words(4, 8), words(4, 8)),
    "routed experts": (Routed, words(4, 8), words(4, 8)),
    "stacked experts": (Stacked, words(4, 8), words(4, 8)),
    "dropout": (Dropped, words(4, 8), words(4, 8)),
    "batch norm": (Normed, torch.linspace(-1, 1, 4 * 3 * 64).sin().view(4, 3, 8, 8), words(4) % 12),
}


def momentum(parameters):
    return torch.optim.SGD(parameters, 0.1, momentum=0.9)


def recorded(name):
    """The tape of a step."""
    make, inputs, targets = STEPS[name]
    torch.manual_seed(0)
    torch.set_num_threads(1)
    return lm.record(make(), inputs, loss=F.cross_entropy, targets=targets, optimizer=momentum)
