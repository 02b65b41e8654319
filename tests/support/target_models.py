"""The models that targets are tried on: modules, their inputs, their graphs and their ONNX files.

Each is small and made without weights from elsewhere. ``mobilenet`` and ``tiny-llama`` are the code
of torchvision and transformers. ``gpt3-330m`` is an example of the package, which has a graph and
no module.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch_models import BertMini, ResNet18

import loadmaster as lm


class DecoderLayer(nn.Module):
    """Attention and a gated MLP, each behind a norm and beside a residual connection."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.input_layernorm = nn.RMSNorm(width)
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, width, bias=False)
        self.v_proj = nn.Linear(width, width, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)
        self.post_attention_layernorm = nn.RMSNorm(width)
        self.gate_proj = nn.Linear(width, 3 * width, bias=False)
        self.up_proj = nn.Linear(width, 3 * width, bias=False)
        self.down_proj = nn.Linear(3 * width, width, bias=False)

    def forward(self, x):
        y = self.input_layernorm(x)
        shape = (*y.shape[:-1], self.heads, -1)
        q, k, v = (
            part(y).view(shape).transpose(1, 2) for part in (self.q_proj, self.k_proj, self.v_proj)
        )
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o_proj(seen.transpose(1, 2).flatten(2))
        y = self.post_attention_layernorm(x)
        return x + self.down_proj(functional.silu(self.gate_proj(y)) * self.up_proj(y))


class Decoder(nn.Module):
    """A LLaMA-like decoder, whose head is tied to its embedding."""

    def __init__(self, width=32, layers=4, words=96, heads=4):
        super().__init__()
        self.embed_tokens = nn.Embedding(words, width)
        self.layers = nn.ModuleList(DecoderLayer(width, heads) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        self.lm_head = nn.Linear(width, words, bias=False)
        self.lm_head.weight = self.embed_tokens.weight

    def forward(self, words):
        x = self.embed_tokens(words)
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.norm(x))


class Branched(nn.Module):
    """Two branches of unlike depth that meet: a module of one's own."""

    def __init__(self, width=32, classes=10):
        super().__init__()
        self.stem = nn.Linear(width, 2 * width)
        self.deep = nn.Sequential(
            nn.Linear(2 * width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
        )
        self.wide = nn.Linear(2 * width, width)
        self.scale = nn.Parameter(torch.ones(width))
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        y = functional.relu(self.stem(x))
        return self.head(self.deep(y) * self.scale + self.wide(y))


class Tower(nn.Module):
    """Blocks of one kind, as many as a pipeline has stages that take turns, between two layers.

    What goes from one to the next is a view whose elements do not lie one after another.
    """

    def __init__(self, width=16, blocks=8, classes=10):
        super().__init__()
        self.stem = nn.Linear(width, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.Tanh(), nn.Linear(2 * width, width))
            for _ in range(blocks)
        )
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = functional.relu(block(x)).mT.contiguous().mT
        return self.head(x)


@dataclass(frozen=True)
class Built:
    """A module with weights, in eval mode, its inputs, and what its loss is made from."""

    module: nn.Module
    inputs: tuple[torch.Tensor, ...]
    targets: torch.Tensor
    loss: Callable[[Any, Any], torch.Tensor]


def tensor_of(output):
    """The first tensor of what a model puts out, of transformers the logits."""
    return output if isinstance(output, torch.Tensor) else output[0]


def _words(batch, length, vocabulary):
    return torch.randint(0, vocabulary, (batch, length))


def _of_words(output, targets):
    return functional.cross_entropy(tensor_of(output).flatten(0, 1), targets.flatten())


def _cnn(batch):
    images = torch.rand(batch, 3, 32, 32)
    return ResNet18(8), images, torch.randint(0, 10, (batch,)), functional.cross_entropy


def _encoder(batch):
    # Its outputs have the words in the second dimension, as cross entropy takes them.
    made, words = BertMini(), _words(batch, 16, 100)
    return made, words, _words(batch, 16, 100), functional.cross_entropy


def _decoder(batch):
    return Decoder(), _words(batch, 12, 96), _words(batch, 12, 96), _of_words


def _branched(batch):
    return (
        Branched(),
        torch.rand(batch, 32),
        torch.randint(0, 10, (batch,)),
        functional.cross_entropy,
    )


def _mobilenet(batch):
    from torchvision.models import MobileNetV2

    # Expansion, channels, blocks and stride of each part.
    parts = [[1, 16, 1, 1], [6, 24, 2, 2], [6, 32, 1, 2]]
    model = MobileNetV2(10, width_mult=0.5, inverted_residual_setting=parts)
    return (
        model,
        torch.rand(batch, 3, 32, 32),
        torch.randint(0, 10, (batch,)),
        functional.cross_entropy,
    )


def _tiny_llama(batch):
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=96, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=32,
            use_cache=False,
        )
    )  # fmt: skip
    return model, _words(batch, 12, 96), _words(batch, 12, 96), _of_words


def _tower(batch):
    return (
        Tower(),
        torch.rand(batch, 16),
        torch.randint(0, 10, (batch,)),
        functional.cross_entropy,
    )


#: The models of the matrix that have a module, by name.
MODULES = {
    "cnn": _cnn,
    "encoder": _encoder,
    "decoder": _decoder,
    "branched": _branched,
    "mobilenet": _mobilenet,
    "tiny-llama": _tiny_llama,
}

#: The packages whose code they are.
PACKAGES = {"mobilenet": "torchvision", "tiny-llama": "transformers"}

#: Models for more than the matrix.
OTHERS = {"tower": _tower}

#: The models that are examples of the package.
EXAMPLES = ("gpt3-330m",)


def built(name: str, batch: int = 8) -> Built:
    """A model, its weights and inputs the same every time."""
    torch.manual_seed(0)
    module, inputs, targets, loss = (MODULES | OTHERS)[name](batch)
    inputs = inputs if isinstance(inputs, tuple) else (inputs,)
    return Built(module.eval(), inputs, targets, loss)


@cache
def graph_of(name: str, *, train: bool = False) -> lm.OpGraph:
    """The graph of a model: of inference, or of a step with AdamW; an example's as it is."""
    if name in EXAMPLES:
        return lm.read(f"example:{name}")
    made = built(name)
    if not train:
        return lm.capture(made.module, made.inputs, train=False)
    return lm.capture(
        made.module.train(),
        made.inputs,
        loss=made.loss,
        targets=made.targets,
        optimizer=torch.optim.AdamW,
    )


@cache
def program_of(name: str) -> torch.export.ExportedProgram:
    """A model as PyTorch exports it."""
    made = built(name)
    return torch.export.export(made.module, made.inputs)


@cache
def onnx_file(name: str) -> Path:
    """A model as PyTorch exports it to ONNX, with its weights, in a file of this process."""
    path = Path(_folder().name) / f"{name}.onnx"
    torch.onnx.export(program_of(name), f=path, external_data=False, verbose=False)
    return path


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory()
