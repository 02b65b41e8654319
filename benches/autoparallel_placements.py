"""AutoParallel's placements, for :mod:`sharding_peers`: run it in an environment of its own.

    python autoparallel_placements.py MODEL [--devices K] [--batch B] [--tokens T] -o FILE.json

MODEL is ``llama3-8b`` (AutoParallel's own test model) or ``gpt`` (24 layers of 1,024, as the graph
``gpt3_330m_train_b8``). Needs PyTorch, ``pulp``, ``filecheck`` and AutoParallel
(github.com/meta-pytorch/autoparallel, BSD). No GPU is needed: the mesh is of CPUs, the times are
those that AutoParallel has for the GPU named by ``--gpu``, and attention is written out.

The file has the placement of every parameter, and the CPU seconds of tracing and of planning.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from typing import Any

import autoparallel.cost_models.compute_estimation as estimation
import torch
from autoparallel._testing.models import llama3
from autoparallel.api import AutoParallel
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.placement_types import Replicate, Shard
from torch.nn import functional
from torch.testing._internal.distributed.fake_pg import FakeStore


class Attention(torch.nn.Module):
    """Causal attention in its ops."""

    def forward(self, q: Any, k: Any, v: Any) -> Any:
        """Of queries, keys and values [batch, head, token, feature]."""
        ones = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool, device=q.device)
        scores = torch.matmul(q, k.transpose(-2, -1)) * q.shape[-1] ** -0.5
        scores = scores.masked_fill(~ones.tril(), float("-inf"))
        return torch.matmul(torch.softmax(scores.float(), -1).to(v.dtype), v)


class Block(torch.nn.Module):
    """A block of GPT."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.c_attn = torch.nn.Linear(width, 3 * width)
        self.c_proj = torch.nn.Linear(width, width)
        self.fc, self.proj = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)
        self.attention = Attention()

    def forward(self, x: Any) -> Any:
        """Of activations [batch, token, feature]."""
        b, t, width = x.shape
        q, k, v = self.c_attn(self.ln_1(x)).split(width, dim=-1)
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in (q, k, v))
        x = x + self.c_proj(self.attention(q, k, v).transpose(1, 2).reshape(b, t, width))
        return x + self.proj(functional.gelu(self.fc(self.ln_2(x))))


class Gpt(torch.nn.Module):
    """GPT with tied weights; its parameters have the names of the data's graphs."""

    def __init__(self, vocabulary: int, tokens: int, layers: int, width: int, heads: int) -> None:
        super().__init__()
        self.wpe = torch.nn.Parameter(torch.empty(tokens, width))
        self.wte = torch.nn.Embedding(vocabulary, width)
        self.h = torch.nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln_f = torch.nn.LayerNorm(width)

    def forward(self, ids: Any) -> Any:
        """Logits of token ids [batch, token]."""
        x = self.wte(ids) + self.wpe[: ids.shape[1]]
        for block in self.h:
            x = block(x)
        return functional.linear(self.ln_f(x), self.wte.weight)


def _llama(tokens: int) -> tuple[torch.nn.Module, int]:
    llama3.build_attention = lambda *_: Attention()
    sizes = llama3.TransformerModelArgs(
        dim=4096,
        n_layers=32,
        n_heads=32,
        n_kv_heads=8,
        ffn_dim_multiplier=1.3,
        multiple_of=1024,
        rope_theta=500_000,
        vocab_size=128_256,
        max_seq_len=tokens,
    )
    return llama3.Transformer(sizes), 128_256


def _gpt(tokens: int) -> tuple[torch.nn.Module, int]:
    return Gpt(50_257, tokens, 24, 1024, 16), 50_257


MODELS: dict[str, Callable[[int], tuple[torch.nn.Module, int]]] = {
    "llama3-8b": _llama,
    "gpt": _gpt,
}


def _cpu_seconds() -> float:
    """Of this process and of those that it waited for, such as a solver's."""
    return sum(os.times()[:4])


def placements(model: str, devices: int, batch: int, tokens: int) -> dict[str, Any]:
    """What AutoParallel decides for the parameters of a model on a mesh of one axis."""
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=devices)
    mesh = init_device_mesh("cpu", (devices,), mesh_dim_names=("axis",))
    with torch.device("meta"):
        module, vocabulary = MODELS[model](tokens)
        module = module.to(torch.bfloat16)

    def ids() -> Any:
        return torch.randint(0, vocabulary, (batch, tokens))

    began = _cpu_seconds()
    with AutoParallel(module, ids, mesh, None, repeated_subgraphs=True) as planner:
        traced = _cpu_seconds()
        planner.add_parameter_memory_constraint(low=None, high=None)
        is_shared = batch % devices == 0
        planner.add_input_constraints([(Shard(0),) if is_shared else (Replicate(),)])
        found = planner.optimize_placement(verbose=False)
        planned = _cpu_seconds()
    named = {}
    for node, spec in found.items():
        target = getattr(node.meta.get("desc"), "target", None)
        if node.op == "placeholder" and isinstance(target, str):
            named[target] = [str(one) for one in spec.output_specs.placements]
    seconds = {"tracing": traced - began, "planning": planned - traced}
    return {"model": model, "mesh": [devices], "batch": batch, "tokens": tokens} | {
        "cpu_seconds": seconds,
        "parameters": named,
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--gpu", default="H100", help="one that AutoParallel knows")
    parser.add_argument("-o", dest="output", required=True)
    args = parser.parse_args()
    limits = {one.name: one for one in estimation.DEVICE_LIMITS}
    estimation._get_device_limit = lambda: limits[args.gpu]
    found = placements(args.model, args.devices, args.batch, args.tokens)
    with open(args.output, "w", encoding="utf-8") as file:
        json.dump(found, file, separators=(",", ":"))


if __name__ == "__main__":
    main()
