"""Tapes against the model itself, run by PyTorch: bit for bit.

Needs torch (no GPU): without it these tests are skipped.
"""

from __future__ import annotations

import pickle

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch 2.5 or later")

from steps import STEPS, differing, evaluated, made, trained  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812
from torch_models import Model, example  # noqa: E402

import loadmaster as lm  # noqa: E402
from loadmaster.base.errors import InputError  # noqa: E402


def recorded(model, inputs, targets, optimizer, **options):
    return lm.record(
        model, inputs, loss=F.cross_entropy, targets=targets, optimizer=optimizer, **options
    )


def clipped(parameters):
    optimizer = torch.optim.SGD(parameters, 0.1)

    def clip(self, *_):
        nn.utils.clip_grad_norm_(self.param_groups[0]["params"], 0.5)

    optimizer.register_step_pre_hook(clip)
    return optimizer


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, 0.1),
    "momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01),
    "dampening": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, dampening=0.3),
    "Nesterov": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True),
    "clipped": clipped,
    "Adam": torch.optim.Adam,
    "AMSGrad": lambda p: torch.optim.Adam(p, amsgrad=True, maximize=True),
    "AdamW": torch.optim.AdamW,
    "NAdam": torch.optim.NAdam,
    "Adamax": torch.optim.Adamax,
    "Adagrad": torch.optim.Adagrad,
    "Adadelta": torch.optim.Adadelta,
    "RMSprop": lambda p: torch.optim.RMSprop(p, 0.01, momentum=0.9, centered=True),
    "Rprop": torch.optim.Rprop,
}


@pytest.mark.parametrize(
    ("name", "optimizer"), [(n, ("momentum", "Adam")[i % 2]) for i, n in enumerate(STEPS)]
)
def test_training_steps_are_those_of_pytorch(name, optimizer):
    model, inputs, targets = made(name)
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    tape = recorded(model, inputs, targets, OPTIMIZERS[optimizer])
    for steps in (1, 3):
        expected, _ = trained(model, inputs, targets, OPTIMIZERS[optimizer], steps, tape)
        assert differing(expected, tape.replay(steps)) == []
    assert differing(before, dict(model.state_dict())) == [], "the model is left as it is"


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer_is_right_from_its_first_step(optimizer):
    model, inputs, targets = made("tied")
    tape = recorded(model, inputs, targets, OPTIMIZERS[optimizer])
    for steps in (1, 2, 4):
        expected, _ = trained(model, inputs, targets, OPTIMIZERS[optimizer], steps, tape)
        assert differing(expected, tape.replay(steps)) == []


@pytest.mark.parametrize("name", STEPS)
def test_an_inference_is_that_of_pytorch(name):
    model, inputs, _ = made(name)
    tape = lm.record(model, inputs, train=False)
    expected = evaluated(model, inputs)
    assert torch.equal(tape.replay()["output"], expected)
    assert torch.equal(tape.replay(3)["output"], expected) or name == "in place"


@pytest.mark.parametrize("name", ["LSTM", "experts", "in place"])
def test_the_graph_is_that_of_a_capture_and_every_op_has_its_call(name):
    model, inputs, targets = made(name)
    options = dict(loss=F.cross_entropy, targets=targets, optimizer=torch.optim.Adam)
    tape = lm.record(model, inputs, **options)
    graph = lm.capture(model, inputs, **options)
    assert tape.graph.digest == graph.digest
    assert tape.graph.meta == graph.meta
    called = [op for call in tape.calls for op in (call.op, *call.parts) if op >= 0]
    placed = [placeholder.op for placeholder in tape.placeholders]
    assert sorted(called + placed) == list(range(graph.n_ops))
    for op, placeholder in zip(placed, tape.placeholders, strict=True):
        assert graph.kinds[op] == placeholder.kind
        assert graph.output_bytes[op] == placeholder.tensor.nbytes


# ---- what differs from step to step -----------------------------------------------------------


def stepped(optimizer):
    return torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.1)


@pytest.mark.parametrize("optimizer", ["momentum", "AdamW"])
def test_a_learning_rate_follows_its_schedule(optimizer):
    model, inputs, targets = made("tied")
    tape = recorded(model, inputs, targets, OPTIMIZERS[optimizer], schedule=stepped)
    for steps in (2, 3, 5):
        expected, _ = trained(model, inputs, targets, OPTIMIZERS[optimizer], steps, tape, stepped)
        assert differing(expected, tape.replay(steps)) == []


def test_numbers_of_the_host_are_those_of_the_step():
    model, inputs, targets = made("tied")
    tape = recorded(model, inputs, targets, torch.optim.Adam, schedule=stepped)
    corrections = {step: 1e-3 * 0.1 ** (step // 2) / (1 - 0.9 ** (step + 1)) for step in (4, 0, 1)}
    for step, rate in corrections.items():
        assert any(abs(number + rate) < 1e-12 for number in tape.host(step))
        assert len(tape.host(step)) == len(tape.numbers)


def test_a_tape_goes_on_from_where_the_optimizer_stands():
    model, inputs, targets = made("tied")
    fresh = recorded(model, inputs, targets, torch.optim.Adam)
    expected, _ = trained(model, inputs, targets, torch.optim.Adam, 4, fresh)
    optimizer = torch.optim.Adam(model.parameters())
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)
    for _ in range(2):
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    optimizer.zero_grad()
    before = str(optimizer.state_dict()), str(schedule.state_dict())
    tape = recorded(model, inputs, targets, optimizer, schedule=schedule)
    assert differing(expected, tape.replay(2)) == []
    assert before == (str(optimizer.state_dict()), str(schedule.state_dict())), "left as it is"


def test_other_inputs_are_run_and_wrong_ones_refused():
    model, inputs, targets = made("tied")
    tape = recorded(model, inputs, targets, torch.optim.Adam)
    others = (inputs + 1) % 50, (targets + 3) % 50
    expected, _ = trained(model, *others, torch.optim.Adam, 2, tape)
    assert differing(expected, tape.replay(2, others[0], targets=others[1])) == []
    with pytest.raises(InputError, match=r"input 'x' is torch.int64 \(1, 8\).*record again"):
        tape.replay(inputs=inputs[:1])
    with pytest.raises(InputError, match="targets: 2 tensors, but 1 were recorded"):
        tape.replay(targets=(targets, targets))
    with pytest.raises(InputError, match="steps is 0"):
        tape.replay(0)


def test_seeds_of_random_ops_are_of_the_seed_the_step_and_the_op():
    model, inputs, targets = made("dropout")
    tape = recorded(model, inputs, targets, torch.optim.Adam)
    assert sum(call.random for call in tape.calls) == 2
    assert torch.equal(tape.replay(2)["loss"], tape.replay(2)["loss"])
    losses = {tape.replay(1, seed=seed)["loss"].item() for seed in range(3)}
    assert len(losses) == 3


# ---- what cannot be recorded ------------------------------------------------------------------


class Reassigned(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x):
        self.mean = 0.9 * self.mean + x.detach().mean(0)
        return self.layer(x - self.mean)


class Drawn(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        return self.layer(x) * torch.rand(3, generator=torch.Generator())


def test_what_cannot_be_recorded_is_named_with_the_way_out():
    x = torch.ones(2, 3)
    with pytest.raises(InputError, match=r"buffer 'mean' anew.*copy_\(\)"):
        lm.record(Reassigned(), x)
    with pytest.raises(InputError, match=r"aten\.rand\.generator draws.*leave generator= out"):
        lm.record(Drawn(), x)
    with torch.device("meta"), pytest.raises(InputError, match="'weight' is on the meta device"):
        lm.record(nn.Linear(3, 3), torch.ones(2, 3))
    with pytest.raises(InputError, match=r"step 0 of RAdam calls .* has done such steps"):
        lm.record(nn.Linear(3, 3), x, optimizer=torch.optim.RAdam)
    with pytest.raises(InputError, match=r"Adafactor reads a number off a tensor"):
        lm.record(nn.Linear(3, 3), x, optimizer=torch.optim.Adafactor)
    with pytest.raises(InputError, match="schedule= needs the optimizer"):
        lm.record(nn.Linear(3, 3), x, schedule=stepped)
    with pytest.raises(InputError, match=r"record wants a torch\.nn\.Module, not a Tensor"):
        lm.record(x, x)


def test_a_tape_is_never_pickled():
    with pytest.raises(TypeError, match="never pickled"):
        pickle.dumps(lm.record(Model(), example(), train=False))
