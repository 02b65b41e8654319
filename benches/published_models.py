"""GPT-2, LLaMA-3 and Mixtral as modules, captured without memory: what published recipes train."""

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


class Attending(nn.Module):
    """Attention with grouped keys, behind a norm and beside a residual connection; and the norm of
    what follows.
    """

    def __init__(self, width: int, heads: int, groups: int) -> None:
        super().__init__()
        self.each = width // heads
        self.input_layernorm, self.post_attention_layernorm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, groups * self.each, bias=False)
        self.v_proj = nn.Linear(width, groups * self.each, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)

    def attended(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, tokens, width]."""
        y = self.input_layernorm(x)
        q, k, v = (
            part(y).unflatten(-1, (-1, self.each)).transpose(1, 2)
            for part in (self.q_proj, self.k_proj, self.v_proj)
        )
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return x + self.o_proj(seen.transpose(1, 2).flatten(2))


class LlamaLayer(Attending):
    """Attention with grouped keys and a gated MLP."""

    def __init__(self, width: int, heads: int, groups: int, hidden: int) -> None:
        super().__init__(width, heads, groups)
        self.gate_proj = nn.Linear(width, hidden, bias=False)
        self.up_proj = nn.Linear(width, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, tokens, width]."""
        x = self.attended(x)
        y = self.post_attention_layernorm(x)
        return x + self.down_proj(functional.silu(self.gate_proj(y)) * self.up_proj(y))


class Routed(nn.Module):
    """Gated MLPs of which a router picks a few for every token. In each sample an expert takes as
    many tokens as are its fair share, those that want it most: so shapes are known before.
    """

    def __init__(self, width: int, hidden: int, experts: int, top: int) -> None:
        super().__init__()
        self.experts, self.top = experts, top
        self.gate = nn.Linear(width, experts, bias=False)
        self.w1 = nn.Parameter(torch.empty(experts, width, hidden))
        self.w3 = nn.Parameter(torch.empty(experts, width, hidden))
        self.w2 = nn.Parameter(torch.empty(experts, hidden, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, tokens, width]."""
        batch, tokens, width = x.shape
        weight, expert = self.gate(x).float().softmax(-1).topk(self.top, -1)
        weight = (weight / weight.sum(-1, keepdim=True)).to(x.dtype)
        wants = torch.zeros(batch, tokens, self.experts, dtype=x.dtype, device=x.device)
        wants = wants.scatter(2, expert, weight).transpose(1, 2)
        each = tokens * self.top // self.experts
        weight, place = wants.topk(each, -1)  # [batch, experts, each]
        place = place.flatten(1).unsqueeze(-1).expand(-1, -1, width)
        y = x.gather(1, place).unflatten(1, (self.experts, each)).transpose(0, 1).flatten(1, 2)
        y = torch.bmm(functional.silu(torch.bmm(y, self.w1)) * torch.bmm(y, self.w3), self.w2)
        y = y.unflatten(1, (batch, each)).transpose(0, 1) * weight.unsqueeze(-1)
        return torch.zeros_like(x).scatter_add(1, place, y.flatten(1, 2))


class MixtralLayer(Attending):
    """Attention with grouped keys and routed experts."""

    def __init__(
        self, width: int, heads: int, groups: int, hidden: int, experts: int, top: int
    ) -> None:
        super().__init__(width, heads, groups)
        self.moe = Routed(width, hidden, experts, top)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, tokens, width]."""
        x = self.attended(x)
        return x + self.moe(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    """LLaMA-3 or Mixtral, by its layers, without rotary embeddings, which take next to nothing."""

    def __init__(self, width: int, words: int, layers: list[nn.Module]) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(words, width)
        self.layers = nn.ModuleList(layers)
        self.norm, self.lm_head = nn.RMSNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Logits [batch, tokens, words]."""
        x = self.embed_tokens(words)
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.norm(x))


def llama(width: int, layers: int, heads: int, groups: int, hidden: int, words: int) -> nn.Module:
    """LLaMA-3."""
    made = (LlamaLayer(width, heads, groups, hidden) for _ in range(layers))
    return Decoder(width, words, list(made))


def mixtral(
    width: int, layers: int, heads: int, groups: int, hidden: int, experts: int, words: int
) -> nn.Module:
    """Mixtral, whose router picks two experts for every token."""
    made = (MixtralLayer(width, heads, groups, hidden, experts, 2) for _ in range(layers))
    return Decoder(width, words, list(made))


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
