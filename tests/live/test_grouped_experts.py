"""Experts in grouped products: what is read, how they are shared out, and who sees them.

Needs torch (no GPU): without it these tests are skipped.
"""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch 2.5 or later")

from torch import nn  # noqa: E402

import loadmaster as lm  # noqa: E402
from loadmaster.dimensions.dimensions import Dimensions  # noqa: E402
from loadmaster.transforms.shards import shard  # noqa: E402

WIDTH, HIDDEN, FLOAT = 16, 32, 4


class Experts(nn.Module):
    def __init__(self, n, top, sums):
        super().__init__()
        self.gate = nn.Linear(WIDTH, n, bias=False)
        self.up, self.down = (
            nn.Parameter(torch.empty(n, WIDTH, HIDDEN)),
            nn.Parameter(torch.empty(n, HIDDEN, WIDTH)),
        )
        self.n, self.top, self.sums = n, top, sums

    def forward(self, x):
        tokens = x.flatten(0, 1)
        weight, expert = self.gate(tokens).softmax(-1).topk(self.top, -1)
        ids, order = expert.flatten().sort()
        ends = torch.histc(ids.float(), self.n, 0, self.n - 1).cumsum(0, dtype=torch.int32)
        y = torch._grouped_mm(tokens[order // self.top], self.up, ends)
        y = torch._grouped_mm(torch.relu(y), self.down, ends) * weight.flatten()[order, None]
        if self.sums:
            back = torch.empty_like(order)
            back[order] = torch.arange(len(order), device=order.device)
            y = y[back].unflatten(0, (-1, self.top)).sum(1)
        else:
            y = torch.zeros_like(tokens).index_add(0, order // self.top, y)
        return x + y.unflatten(0, x.shape[:2])


def captured(n, top, batch, length, *, sums=True, layers=1, **options):
    with torch.device("meta"):
        model = nn.Sequential(*(Experts(n, top, sums) for _ in range(layers)))
        x = torch.empty(batch, length, WIDTH)
    return lm.capture(model, x, **options)


class Decoder(nn.Module):
    """Layers of attention and experts, which read words."""

    def __init__(self, layers):
        super().__init__()
        self.embed = nn.Embedding(32, WIDTH)
        self.layers = nn.ModuleList(
            nn.Sequential(Attention(), Experts(8, 2, sums=True)) for _ in range(layers)
        )
        self.head = nn.Linear(WIDTH, 32)

    def forward(self, words):
        x = self.embed(words)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(y.transpose(1, 2).flatten(2))


def grouped(graph):
    return [op for op, kind in enumerate(graph.kinds) if "_grouped_mm" in kind]


@pytest.mark.parametrize("rows", [1, 3, 16, 64])
def test_as_many_experts_are_read_as_rows_can_reach(rows):
    graph = captured(16, 1, 1, rows, train=False)
    up, _ = grouped(graph)
    matrices = min(rows, 16) * WIDTH * HIDDEN
    assert graph.bytes_accessed[up] == FLOAT * (rows * (WIDTH + HIDDEN) + matrices + 16)
    assert graph.flops[up] == 2 * rows * WIDTH * HIDDEN


@pytest.mark.parametrize("seed", range(5))
def test_experts_rows_and_columns_can_be_cut_in_both_passes(seed):
    of = random.Random(seed)
    n, batch = of.choice([4, 8]), of.choice([2, 4])
    length = n * of.choice([1, 2, 4])
    train = of.random() < 0.7
    options = {"train": train, "optimizer": torch.optim.AdamW if train else None}
    graph = captured(n, of.choice([1, 2]), batch, length, sums=of.random() < 0.5, **options)
    dimensions = Dimensions.of(graph)
    assert len(grouped(graph)) == (2, 5)[train]
    for op in grouped(graph):
        cuts = {cut.role: cut for cut in reversed(dimensions.forms[dimensions.form_of[op]].cuts)}
        assert cuts["expert"].size == n
        assert cuts["expert"].shares_experts
        assert cuts["batch"].size == batch
        assert not cuts["batch"].shares_experts
        assert cuts["feature"].size in (WIDTH, HIDDEN)
    # The batch goes all the way through: no tensor is gathered on the way, weights' sums apart.
    program = shard(graph, lm.Recipe({"dp": 2}, {"dp": {"**": "batch"}}))
    kinds = {program.graph.kinds[op] for op in program.own.nonzero()[0]}
    assert kinds <= {"all_reduce"}


@pytest.mark.parametrize("imbalance", [1.0, 1.5])
def test_tokens_go_to_experts_and_back_and_the_busiest_does_more(imbalance):
    graph = captured(8, 2, 4, 16, train=False)
    recipe = lm.Recipe({"ep": 4}, {"ep": {"**": "batch"}}, expert_imbalance=imbalance)
    by_experts = {"** aten._grouped_mm.default": "expert", "** aten.relu.default": "expert"}
    recipe = lm.Recipe(
        {"ep": 4},
        {"ep": {"**": "batch", **by_experts}},
        {"ep": {"0.up": "Shard(0)", "0.down": "Shard(0)", "input": "Shard(0)"}},
        expert_imbalance=imbalance,
    )
    program = shard(graph, recipe)
    kinds = [program.graph.kinds[op] for op in program.own.nonzero()[0]]
    assert kinds.count("all_to_all") == 2 * 4
    assert "all_gather" not in kinds
    share = program.share[program.parts_of(grouped(graph)[0])]
    assert share.max() == pytest.approx(imbalance / 4)
    assert share.sum() == pytest.approx(1)


def test_expert_parallelism_sees_them():
    with torch.device("meta"):
        model, words = Decoder(4), torch.zeros(8, 16, dtype=torch.int64)
    graph = lm.capture(model, words, optimizer=torch.optim.AdamW)
    cluster = lm.Cluster.preset("8xH100-NVLink")
    plan = lm.place(graph, cluster, target="megatron", tp=1, pp=1, dp=8, expert_parallel=8)
    assert plan.parallelism.ep == 8
    held = [
        int(plan.program.graph.param_bytes[op])
        for op in plan.program.parts_of(graph.index("layers.0.1.up"))
    ]
    assert held == [WIDTH * HIDDEN * FLOAT] * 8
    steps = [lm.place(graph, cluster, target="megatron", tp=1, pp=1, dp=8, expert_parallel=8,
                      expert_imbalance=x).makespan for x in (1.0, 2.0)]  # fmt: skip
    assert all(a < b for a, b in pairwise(steps))


def test_a_loop_over_the_experts_that_were_chosen_is_refused_with_a_way_out():
    class Loop(nn.Module):
        def forward(self, x):
            for row in (x > 0).nonzero():
                x = x + row.sum()
            return x

    model = nn.Module()
    model.experts, model.forward = Loop(), lambda x: model.experts(x)
    with pytest.raises(lm.InputError, match=r"'experts'.*set_experts_implementation"):
        lm.capture(model, torch.zeros(2, 3), train=False)
