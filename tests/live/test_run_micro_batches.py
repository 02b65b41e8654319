"""Micro-batches that run, piece by piece and in stages: the loss and gradients of the whole batch.

Needs torch (no GPU): without it these tests are skipped.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch 2.5 or later")

from steps import differing  # noqa: E402
from test_run_replicas import off, one_thread, taped  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

import loadmaster as lm  # noqa: E402
from loadmaster.base.errors import InputError  # noqa: E402
from loadmaster.running.micro_batches import micro_batched  # noqa: E402
from loadmaster.running.replay import Replay  # noqa: E402
from loadmaster.running.replicas import replicated  # noqa: E402
from loadmaster.running.run import started  # noqa: E402
from loadmaster.transforms import micro_batches, replicate  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:devices share a core"),
    pytest.mark.filterwarnings("ignore:the machine was too busy"),
]

__all__ = ["one_thread"]


def check(found, alone, tolerance=1e-4):
    """The loss, all gradients and all updated parameters are those of the whole batch."""
    assert {"loss", *(name for name in alone if name.startswith(("gradient", "parameter")))} <= set(
        found
    )
    for name in alone:
        assert off(found[name], alone[name]) < tolerance, name


@pytest.mark.parametrize("rows", [(2, 2, 2, 2), (3, 3, 2)])
@pytest.mark.parametrize("name", ["tied", "BERT-mini", "LSTM", "cells", "experts"])
def test_micro_batches_have_the_loss_and_the_gradients_of_the_batch(name, rows):
    tape, _ = taped(name)
    program = micro_batches(tape.graph, len(rows), rows)
    check(micro_batched(program, tape).replay(2), tape.replay(2))


def test_other_inputs_than_those_recorded():
    tape, (_, inputs, targets) = taped("tied")
    given = (inputs + 1) % 50, (targets + 1) % 50
    program = micro_batches(tape.graph, 4)
    found = micro_batched(program, tape, tape.given(*given)).replay(1)
    check(found, tape.replay(1, given[0], targets=given[1]))


class Convolutions(nn.Module):
    """A small convolutional net with batch norms, which the head does not wait for in eval mode."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.c, self.o = nn.Conv2d(8, 8, 3, 2), nn.Linear(8, 10)

    def forward(self, x):
        y = torch.relu(self.b(self.a(x)))
        return self.o(torch.relu(self.c(y)).mean((2, 3)))


def images(batch=8):
    torch.manual_seed(3)
    return torch.randn(batch, 3, 8, 8), torch.arange(batch) % 10


def recorded(model, inputs, targets):
    sgd = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
    return lm.record(
        model, inputs, loss=F.cross_entropy, targets=targets, optimizer=lambda p: sgd(p)
    )


def frozen(model):
    """The batch norms of a model are as in inference."""
    for each in model.modules():
        if isinstance(each, nn.BatchNorm2d):
            each.track_running_stats, each.momentum = True, 0.0
            each.forward = partial(_in_inference, each)
    return model


def _in_inference(norm, x):
    return F.batch_norm(x, norm.running_mean, norm.running_var, norm.weight, norm.bias)


def test_convolutions_with_the_statistics_of_inference():
    tape = recorded(frozen(Convolutions()), *images())
    check(micro_batched(micro_batches(tape.graph, 4), tape).replay(2), tape.replay(2))


def test_a_batch_norm_in_training_has_its_micro_batchs_statistics_as_pytorch_would():
    inputs, targets = images()
    torch.manual_seed(0)
    model = Convolutions().train()
    tape = recorded(model, inputs, targets)
    program = micro_batches(tape.graph, 2)
    assert any("statistics of a micro-batch" in note for note in program.notes)
    found = micro_batched(program, tape).replay(1)
    for part in (slice(0, 4), slice(4, 8)):
        (F.cross_entropy(model(inputs[part]), targets[part]) / 2).backward()
    for name, parameter in model.named_parameters():
        assert off(found[f"gradient.{name}"], parameter.grad) < 1e-4, name
    alone = tape.replay(1)
    assert off(found["gradient.a.weight"], alone["gradient.a.weight"]) > 1e-3


def with_draws_of(tape, batch):
    """The tape, whose recordings at a share of the batch draw what the whole batch draws there."""
    replay, drawn, taken = Replay(tape, {}), {}, [0]

    def look(call):
        if call.random:
            drawn[call.op] = [replay.values[slot].clone() for slot in call.results]

    def again(tensors):
        of = slice(taken[0], taken[0] + len(tensors[0]))
        taken[0] = of.stop
        found = tape.again(tensors)

        def draw(call, *args, **_):
            parts = [value[of] if len(value) == batch else value for value in drawn[call.op]]
            if call.writes:
                return args[0].copy_(parts[0])
            return parts if call.several else parts[0]

        calls = [
            replace(call, function=partial(draw, call)) if call.random else call
            for call in found.calls
        ]
        return replace(found, calls=tuple(calls))

    replay.step(look)
    return replace(tape, again=again)


def test_dropout_with_the_draws_of_the_batch():
    tape, _ = taped("dropout")
    assert any(call.random for call in tape.calls)
    program = micro_batches(tape.graph, 4)
    check(micro_batched(program, with_draws_of(tape, 8)).replay(1), tape.replay(1))


def test_micro_batches_of_replicas_have_the_gradients_of_the_batch():
    """Piece by piece: what each micro-batch of the replicas calls is recorded at their samples."""
    tape, _ = taped("tied")
    replicas = replicate(tape.graph, 2, bucket_bytes=5000)
    whole = replicated(replicas, tape)
    tensors = [p.tensor for p in tape.placeholders if p.kind == "input"]
    turn = iter(range(2))

    def again(_):
        j = next(turn)
        mine = torch.tensor([2 * j, 2 * j + 1, 4 + 2 * j, 5 + 2 * j])
        return replicated(replicas, tape.again([each[mine] for each in tensors]))

    program = micro_batches(replicas.graph, 2)
    assert (program.micro[program.graph.is_member] == -1).all()
    found = micro_batched(program, replace(whole, again=again)).replay(2)
    alone = tape.replay(2)
    names = [name for name in alone if name.startswith(("gradient", "parameter"))]
    assert names
    for name in names:
        assert off(found[name], alone[name]) < 1e-4, name


def test_what_does_not_run_is_refused():
    tape, _ = taped("tied")
    of_replicas = micro_batches(replicate(tape.graph, 2), 2)
    with pytest.raises(InputError, match="micro-batches run in stages of whole ops"):
        micro_batched(of_replicas, tape)


@pytest.mark.parametrize(("name", "p"), [("tied", 4), ("LSTM", 2)])
@pytest.mark.parametrize("method", ["gpipe", "pipeline"])
def test_stages_on_processes_have_the_numbers_of_the_batch(name, p, method):
    # One sample has ops of its own in PyTorch: each of p, 2p or 4p micro-batches has two.
    tape, _ = taped(name, 8 * p)
    cluster = lm.Cluster.preset("4xV100-PCIe").subset(range(p))
    plan = lm.place(tape.graph, cluster, method)
    assert plan.program.micro.max() > 0
    assert len(np.unique(plan.running_devices)) == p
    with started(plan, tape) as devices:
        devices.run(1)
        check(devices.fetch(), tape.replay(1))
        devices.run(2)
        later = devices.fetch()
    assert differing(micro_batched(plan.program, tape).replay(3), later) == []
