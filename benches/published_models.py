"""GPT-2 and LLaMA-3 as modules, captured without memory: the models of published recipes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

import loadmaster as lm


class GptLayer(nn.Module):
    """Attention and an MLP, each behind a norm and beside a residual connection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc, self.out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, tokens, width]."""
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(self.ln_1(x)).chunk(3, -1)
        )
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(seen.transpose(1, 2).flatten(2))
        return x + self.out(functional.gelu(self.fc(self.ln_2(x))))


class Gpt(nn.Module):
    """GPT-2, its head tied to its embedding."""

    def __init__(self, width: int, layers: int, heads: int, words: int, tokens: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(tokens, width)
        self.h = nn.ModuleList(GptLayer(width, heads) for _ in range(layers))
        self.ln_f, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Logits [batch, tokens, words]."""
        x = self.words(words) + self.places(torch.arange(words.shape[1], device=words.device))
        for layer in self.h:
            x = layer(x)
        return self.head(self.ln_f(x))


class LlamaLayer(nn.Module):
    """Attention with grouped keys and a gated MLP."""

    def __init__(self, width: int, heads: int, groups: int, hidden: int) -> None:
        super().__init__()
        self.each = width // heads
        self.input_layernorm, self.post_attention_layernorm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, groups * self.each, bias=False)
        self.v_proj = nn.Linear(width, groups * self.each, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)
        self.gate_proj = nn.Linear(width, hidden, bias=False)
        self.up_proj = nn.Linear(width, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, tokens, width]."""
        y = self.input_layernorm(x)
        q, k, v = (
            part(y).unflatten(-1, (-1, self.each)).transpose(1, 2)
            for part in (self.q_proj, self.k_proj, self.v_proj)
        )
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o_proj(seen.transpose(1, 2).flatten(2))
        y = self.post_attention_layernorm(x)
        return x + self.down_proj(functional.silu(self.gate_proj(y)) * self.up_proj(y))


class Llama(nn.Module):
    """LLaMA-3, without rotary embeddings, which take next to nothing."""

    def __init__(
        self, width: int, layers: int, heads: int, groups: int, hidden: int, words: int
    ) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(words, width)
        self.layers = nn.ModuleList(LlamaLayer(width, heads, groups, hidden) for _ in range(layers))
        self.norm, self.lm_head = nn.RMSNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Logits [batch, tokens, words]."""
        x = self.embed_tokens(words)
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.norm(x))


def _loss(logits: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), words.flatten())


def training(
    name: str, model: Callable[[], nn.Module], batch: int, tokens: int, dtype: str
) -> lm.OpGraph:
    """The graph of a training step with AdamW; the model is made on the meta device."""
    with torch.device("meta"):
        made = model().to(getattr(torch, dtype))
        words = torch.zeros(batch, tokens, dtype=torch.long)
    return lm.capture(
        made,
        words,
        loss=_loss,
        targets=words,
        optimizer=torch.optim.AdamW,
        name=f"{name}_train_b{batch}",
    )
