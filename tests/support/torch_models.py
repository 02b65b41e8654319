"""Small PyTorch models, and their graphs as the consumers' tests need them."""

from __future__ import annotations

import torch
from torch import nn

import loadmaster as lm


class Block(nn.Module):
    """A residual block: code of its own around two children."""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x, mask):
        return x + self.down(torch.relu(self.up(self.norm(x)))) * mask


class Model(nn.Module):
    """Embedding, four blocks that share a buffer, a head; tied or not."""

    def __init__(self, width=8, vocabulary=11, tied=False):
        super().__init__()
        torch.manual_seed(0)
        self.emb = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Block(width) for _ in range(4))
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.register_buffer("mask", torch.rand(width))
        if tied:
            self.head.weight = self.emb.weight

    def forward(self, x):
        y = self.emb(x)
        for layer in self.layers:
            y = layer(y, self.mask)
        return self.head(y)


def example():
    return torch.arange(6).reshape(2, 3)


def export(model):
    return torch.export.export(model.eval(), (example(),))


def graph_of(program):
    """The graph of an exported program, every op of the same time."""
    graph = lm.read(program)
    times = [0.0 if placed else 1e-4 for placed in graph.placeholder]
    return graph.with_columns({"time": {"*": times}})


class ResNet18(nn.Module):
    """The usual one, its width given."""

    def __init__(self, width=64, classes=10):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, 2, 3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
        )
        layers, before = [], width
        for stage in range(4):
            for block in range(2):
                after = width << stage
                layers.append(Residual(before, after, 2 if stage and not block else 1))
                before = after
        self.layers = nn.Sequential(*layers)
        self.fc = nn.Linear(before, classes)

    def forward(self, x):
        return self.fc(self.layers(self.stem(x)).mean((2, 3)))


class Residual(nn.Module):
    def __init__(self, before, after, stride):
        super().__init__()
        self.c1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.b1 = nn.BatchNorm2d(after)
        self.c2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.b2 = nn.BatchNorm2d(after)
        self.d = nn.Sequential()
        if stride > 1:
            self.d = nn.Sequential(
                nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after)
            )

    def forward(self, x):
        y = torch.relu(self.b1(self.c1(x)))
        return torch.relu(self.b2(self.c2(y)) + self.d(x))


class BertMini(nn.Module):
    """An encoder of a few layers, with a word for every place."""

    def __init__(self, width=32, layers=2, words=100, places=16):
        super().__init__()
        self.p = nn.Parameter(torch.zeros(places, width))
        self.e = nn.Embedding(words, width)
        self.enc = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True)
            for _ in range(layers)
        )
        self.o = nn.Linear(width, words)

    def forward(self, x):
        y = self.e(x) + self.p
        for layer in self.enc:
            y = layer(y)
        return self.o(y).transpose(1, 2)


class LSTM(nn.Module):
    """Two layers of LSTM between an embedding and a head."""

    def __init__(self, width=16, words=50):
        super().__init__()
        self.e = nn.Embedding(words, width)
        self.r = nn.LSTM(width, width, 2, batch_first=True)
        self.o = nn.Linear(width, words)

    def forward(self, x):
        return self.o(self.r(self.e(x))[0]).transpose(1, 2)
