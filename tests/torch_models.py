"""Small PyTorch models, and their graphs as the consumers' tests need them."""

from __future__ import annotations

import re

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
    """An exported program as an op graph: nodes, their modules, and what they read."""
    signature = program.graph_signature
    stored = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    ops = {key: [] for key in ("name", "kind", "module", "param_bytes", "output_bytes")}
    index, edges = {}, {"src": [], "dst": [], "bytes": []}
    for node in program.graph.nodes:
        if node.op == "output":
            continue
        index[node] = len(ops["name"])
        size = node.meta["val"].nbytes
        if node.name in stored:
            path = stored[node.name]
            kind = "parameter" if node.name in signature.inputs_to_parameters else "buffer"
            row = (path, kind, path.rpartition(".")[0], size, size)
        elif node.op == "placeholder":
            row = (node.name, "input", "", 0, size)
        else:
            stack = list(node.meta["nn_module_stack"].values())
            # torch.export spells a list's element with brackets in some versions.
            path = re.sub(r"\[(\d+)\]", r".\1", stack[-1][0].removeprefix("L['self']").strip("."))
            row = (node.name, str(node.target), path, 0, size)
        for column, value in zip(ops.values(), row, strict=True):
            column.append(value)
        for source in node.all_input_nodes:
            edges["src"].append(index[source])
            edges["dst"].append(index[node])
            edges["bytes"].append(source.meta["val"].nbytes)
    ops["time"] = {
        "*": [0.0 if k in ("parameter", "buffer", "input") else 1e-4 for k in ops["kind"]]
    }
    return lm.OpGraph(ops, edges, name="model")
