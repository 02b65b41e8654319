"""A batch is shared out where the mean of its parts' losses is its loss, and nowhere else.

Needs torch (no GPU): without it these tests are skipped.
"""

from __future__ import annotations

import random
import warnings

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch 2.5 or later")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

import loadmaster as lm  # noqa: E402
from loadmaster.base.errors import InputError  # noqa: E402
from loadmaster.plans.considered import head  # noqa: E402
from loadmaster.running.parallel.transformed import transformed  # noqa: E402
from loadmaster.transforms.samples import joined_samples  # noqa: E402
from loadmaster.transforms.shards import shard  # noqa: E402

BATCH, LENGTH, WIDTH = 8, 3, 6

#: What layers make of rows [batch, length, width], with whole numbers [batch] beside them.
LAYERS = {
    "linear": lambda m, x, n: torch.tanh(m.fc(x)),
    "norm": lambda m, x, n: m.norm(x),
    "attention": lambda m, x, n: F.scaled_dot_product_attention(x, m.fc(x), x),
    "attention by hand": lambda m, x, n: (x @ m.fc(x).mT).softmax(-1) @ x,
    "embedding": lambda m, x, n: x + m.emb(n)[:, None],
    "flattened": lambda m, x, n: m.fc(x.flatten(0, 1)).unflatten(0, (rows(x), LENGTH)),
    "positions": lambda m, x, n: x + m.emb(torch.arange(LENGTH)),
    "masked": lambda m, x, n: x * (n > 0)[:, None, None],
    "windows": lambda m, x, n: F.conv1d(x.mT, m.kernel, padding=1).mT,
    "among samples": lambda m, x, n: F.scaled_dot_product_attention(
        x.transpose(0, 1), m.fc(x).transpose(0, 1), x.transpose(0, 1)
    ).transpose(0, 1),
    "neighbours": lambda m, x, n: x + torch.tanh(m.fc(x))[n],
    "centred": lambda m, x, n: x - x.mean(0),
    "softmax over the batch": lambda m, x, n: x * m.fc(x).softmax(0),
    "largest of the batch": lambda m, x, n: x / m.fc(x).amax(0),
    "own row": lambda m, x, n: x[torch.arange(rows(x)), n % LENGTH][:, None] + x,
}

#: Losses of [batch, length, width].
LOSSES = {
    "squares": lambda m, x, n: F.mse_loss(x, torch.zeros_like(x)),
    "classes": lambda m, x, n: F.cross_entropy(x.mean(1), n % WIDTH),
    "words": lambda m, x, n: F.cross_entropy(x.mT, (n % WIDTH)[:, None].expand(-1, LENGTH)),
    "mean": lambda m, x, n: x.square().mean() + 1.0,
    "two": lambda m, x, n: x.square().mean() + 0.1 * F.l1_loss(x.tanh(), torch.zeros_like(x)),
    "penalty": lambda m, x, n: x.square().mean() + m.fc.weight.square().sum(),
    "root": lambda m, x, n: F.mse_loss(x, torch.zeros_like(x)).sqrt(),
    "contrastive": lambda m, x, n: F.cross_entropy(
        F.normalize(x[:, 0], dim=-1) @ F.normalize(m.fc(x)[:, 1], dim=-1).T,
        torch.arange(rows(x)),
    ),
    "views": lambda m, x, n: (lambda z: (z @ z.T).exp().mean().log())(
        torch.cat([x[:, 0], m.fc(x)[:, 1]])
    ),
    "distances": lambda m, x, n: (x[:, 0][:, None] - m.fc(x)[:, 1][None]).square().mean(),
    "covariance": lambda m, x, n: (x[:, 0].T @ m.fc(x)[:, 1] / rows(x)).square().sum(),
    "norm": lambda m, x, n: torch.linalg.vector_norm(x),
}


def rows(x):
    return x.shape[0]


class Drawn(nn.Module):
    def __init__(self, layers, loss):
        super().__init__()
        self.fc, self.norm, self.emb = (
            nn.Linear(WIDTH, WIDTH),
            nn.LayerNorm(WIDTH),
            nn.Embedding(8, WIDTH),
        )
        self.kernel = nn.Parameter(torch.randn(WIDTH, WIDTH, 3))
        self.layers, self.loss = layers, loss

    def forward(self, x, n):
        x = self.fc(x)
        for layer in self.layers:
            x = LAYERS[layer](self, x, n)
        return {"loss": LOSSES[self.loss](self, x, n)}


def graph_and_loss(layers, loss):
    """The captured step, and whether the mean over two parts of the batch is the loss."""
    torch.manual_seed(len(layers))
    model = Drawn(layers, loss).double()
    x = torch.randn(BATCH, LENGTH, WIDTH, dtype=torch.float64)
    n = torch.arange(BATCH) * 3 % 4  # rows that every part of the batch has too
    graph = lm.capture(model, (x, n), optimizer=torch.optim.SGD)
    parts = [model(a, b)["loss"] for a, b in zip(x.chunk(2), n.chunk(2), strict=True)]
    return graph, torch.allclose(sum(parts) / 2, model(x, n)["loss"], rtol=1e-9)


CASES = [([layer], "squares") for layer in LAYERS] + [(["linear"], loss) for loss in LOSSES]
CASES += [
    ([*of.choices(list(LAYERS), k=of.randint(1, 4))], of.choice(list(LOSSES)))
    for of in map(random.Random, range(10))
]


@pytest.mark.parametrize(("layers", "loss"), CASES)
def test_a_batch_is_shared_out_where_parts_add_up_to_it(layers, loss):
    graph, is_equal = graph_and_loss(layers, loss)
    reason = joined_samples(graph)
    assert (reason == "") == is_equal, reason
    if is_equal:
        assert lm.transforms.replicate(graph, 2).graph.n_ops > graph.n_ops
        return
    cluster = lm.Cluster.preset("2xV100-NVLink")
    for refused in (
        lambda: lm.transforms.replicate(graph, 2),
        lambda: lm.place(graph, cluster, "data-parallel"),
        lambda: lm.place(graph, cluster, target="ddp"),
        lambda: lm.place(graph, cluster, "gpipe"),
    ):
        with pytest.raises(InputError, match="the batch is not one of separate samples: op"):
            refused()


@pytest.mark.parametrize("loss", ["contrastive", "root"])
def test_shards_that_gather_what_is_joined_have_the_loss_of_the_batch(loss):
    torch.manual_seed(0)
    inputs = torch.randn(BATCH, LENGTH, WIDTH), torch.arange(BATCH) % 4
    tape = lm.record(Drawn(["linear"], loss), inputs, optimizer=torch.optim.SGD)
    program = shard(tape.graph, lm.Recipe({"dp": 2}, {"dp": {"**": "batch"}}))
    assert "all_gather" in set(program.graph.kinds) or loss == "root"
    alone, together = tape.replay(1), transformed(program, tape).replay(1)
    for name, tensor in alone.items():
        torch.testing.assert_close(together[name], tensor, rtol=1e-4, atol=1e-5)


def test_auto_says_why_it_has_no_replicas():
    graph, _ = graph_and_loss(["linear"], "contrastive")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plan = lm.place(graph, lm.Cluster.preset("2xV100-NVLink"))
    assert "joins every sample with every other" in "\n".join(head(plan))
