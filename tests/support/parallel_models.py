"""Small models that are cut by styles of modules. Needs torch."""

from __future__ import annotations

import torch
from target_models import Built
from torch import nn
from torch.nn import functional as F  # noqa: N812

WIDTH, HEADS, WORDS, LENGTH, BATCH = 32, 4, 64, 16, 4


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, WIDTH))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class Separate(nn.Module):
    """Attention with q, k and v apart, and rotations; heads are counted from what there is."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x, cos, sin):
        b, t, _ = x.shape
        q, k, v = (
            f(x).view(b, t, -1, WIDTH // HEADS).transpose(1, 2) for f in (self.q, self.k, self.v)
        )
        half = WIDTH // HEADS // 2
        q, k = (z * cos + torch.cat([-z[..., half:], z[..., :half]], -1) * sin for z in (q, k))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(y.transpose(1, 2).reshape(b, t, -1))


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up = (nn.Linear(WIDTH, 64, bias=False) for _ in range(2))
        self.down = nn.Linear(64, WIDTH, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class LlamaBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2, self.attn, self.mlp = Norm(), Norm(), Separate(), Gated()

    def forward(self, x, cos, sin):
        x = x + self.attn(self.n1(x), cos, sin)
        return x + self.mlp(self.n2(x))


class Llama(nn.Module):
    """Like LLaMA."""

    def __init__(self):
        super().__init__()
        self.embed, self.norm = nn.Embedding(WORDS, WIDTH), Norm()
        self.layers = nn.ModuleList(LlamaBlock() for _ in range(2))
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        size = WIDTH // HEADS
        angles = torch.outer(torch.arange(LENGTH), 1e4 ** (-torch.arange(0, size, 2) / size))
        angles = torch.cat([angles, angles], -1)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, x):
        y = self.embed(x)
        for layer in self.layers:
            y = layer(y, self.cos, self.sin)
        return self.head(self.norm(y))


class Fused(nn.Module):
    """Attention with q, k and v in one product, and numbers that are written out."""

    def __init__(self):
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (
            z.view(b, t, HEADS, c // HEADS).transpose(1, 2)
            for z in self.c_attn(x).split(WIDTH, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).contiguous().view(b, t, c))


class GptBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attn, self.fc, self.proj = Fused(), nn.Linear(WIDTH, 64), nn.Linear(64, WIDTH)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.proj(F.gelu(self.fc(self.ln_2(x))))


class Gpt(nn.Module):
    """Like GPT."""

    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.h = nn.ModuleList(GptBlock() for _ in range(2))
        self.ln_f, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, x):
        y = self.wte(x) + self.wpe(torch.arange(x.shape[1], device=x.device))
        for layer in self.h:
            y = layer(y)
        return self.head(self.ln_f(y))


class Unseen(nn.Module):
    """Layers in an order of their own."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, 64), nn.Linear(64, 64)
        self.c, self.o = nn.Linear(64, 64), nn.Linear(64, WORDS)

    def forward(self, x):
        y = torch.tanh(self.a(x))
        return self.o(torch.relu(self.c(torch.relu(self.b(y)))))


class Masked(nn.Module):
    """Like BERT's head: a norm behind what could be cut. What owns the table is never called."""

    def __init__(self):
        super().__init__()
        self.shared, self.embed = nn.Embedding(WORDS, WIDTH), nn.Embedding(WORDS, WIDTH)
        self.mlp, self.transform = Gated(), nn.ModuleDict()
        self.transform["dense"], self.transform["act"] = nn.Linear(WIDTH, WIDTH), nn.GELU()
        self.transform["norm"] = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.embed.weight = self.head.weight = self.shared.weight

    def forward(self, x):
        y = self.embed(x)
        y = y + self.mlp(y)
        for layer in self.transform.values():
            y = layer(y)
        return self.head(y)


class ViewedBlock(Separate):
    """Attention whose views leave out one size, at an axis that is drawn for each of them."""

    def __init__(self):
        super().__init__()
        self.axes = torch.randint(5, (3,)).tolist()

    def forward(self, x):
        parts = []
        for layer, axis in zip((self.q, self.k, self.v), self.axes, strict=True):
            sizes = [*x.shape[:2], HEADS, WIDTH // HEADS, 1]
            sizes[axis] = -1
            parts.append((layer(x) * 0.5).view(sizes).squeeze(-1).transpose(1, 2).contiguous())
        y = F.scaled_dot_product_attention(*parts)
        return x + self.o(y.transpose(1, 2).flatten(2))


class Viewed(nn.Sequential):
    """Blocks that are viewed in several ways."""

    def __init__(self):
        table, head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        super().__init__(table, *(ViewedBlock() for _ in range(4)), head)


MODELS = {"llama": Llama, "gpt": Gpt, "unseen": Unseen, "masked": Masked, "viewed": Viewed}


def loss(y, t):
    return F.cross_entropy(y.flatten(0, -2), t.flatten())


def built(name):
    """A model of known numbers with its input and its targets, as :mod:`target_models` has them."""
    torch.manual_seed(0)
    model = MODELS[name]()
    words = torch.randint(WORDS, (BATCH, LENGTH))
    if name == "unseen":
        return Built(model, (torch.randn(BATCH, WIDTH),), words[:, 0], loss)
    return Built(model, (words,), words.roll(1, 1), loss)
