"""Files of PyTorch systems, run by PyTorch on processes that are not there.

Collectives that run are those that the plan has: by kind, number and bytes.
"""

from __future__ import annotations

import pytest

import loadmaster as lm

torch = pytest.importorskip("torch", reason="needs PyTorch 2.5 or later")

MODEL = '''
import torch


class Net(torch.nn.Module):
    """Layers alike, a table that is read twice, and rows that no number of processes divides."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(30, 8)
        self.place = torch.nn.Parameter(torch.zeros(1, 5, 8))
        self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(3))

    def forward(self, words):
        x = self.table(words) + self.place
        for layer in self.layers:
            x = x + torch.relu(layer(x))
        return x @ self.table.weight.T


def loss(output, targets):
    return torch.nn.functional.mse_loss(output, targets)


def make():
    words, targets = torch.randint(0, 30, (8, 5)), torch.zeros(8, 5, 30)
    return {"model": Net(), "example_inputs": words, "loss": loss, "targets": targets,
            "optimizer": torch.optim.SGD}


class Ends(torch.nn.Sequential):
    """Layers one after another, with whole numbers that go from stage to stage."""

    def __init__(self):
        super().__init__(*(torch.nn.Linear(8, 8) for _ in range(4)))

    def forward(self, x):
        first, *others = self
        x = first(x)
        at = x.detach().argmax(-1)
        for layer in others:
            x = torch.relu(layer(x))
        return x.gather(-1, at[:, None])


def chain():
    return {"model": Ends(), "example_inputs": torch.ones(8, 8), "loss": loss,
            "targets": torch.ones(8, 1), "optimizer": torch.optim.SGD}


def large():
    with torch.device("meta"):
        model = torch.nn.Sequential(torch.nn.Linear(16384, 16384), torch.nn.Linear(16384, 8))
        return chain() | {"model": model, "example_inputs": torch.ones(8, 16384),
                          "targets": torch.ones(8, 8)}


def fails():
    return make() | {"model": torch.nn.Linear(3, 4)}
'''


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "model.py"
    path.write_text(MODEL)
    return path


def planned(model, target, options, make="make"):
    names = {}
    exec(compile(model.read_text(), str(model), "exec"), names)
    torch.manual_seed(0)
    graph = lm.capture(**names[make]())
    return lm.place(graph, lm.Cluster.preset("4xV100-PCIe"), target=target, **options)


@pytest.mark.parametrize(
    ("target", "options", "words"),
    [
        ("ddp", {"replicas": 2, "optimizer": "replicated"}, "1 all-reduce"),
        # The model is gathered once, each of its layers twice.
        (
            "fsdp",
            {"replicas": 4, "shard_size": 2, "reshard": True},
            "7 all-gathers, 4 all-reduces, 4 reduce-scatters",
        ),
        # Each of eight parameters by itself, those of layers once more.
        (
            "simplefsdp",
            {"replicas": 4, "shard_size": 2, "recompute": True},
            "14 all-gathers, 8 all-reduces, 8 reduce-scatters",
        ),
        (
            "dtensor",
            {"tp": 1, "replicate": 1, "shard": 4, "reshard": False},
            "4 all-gathers, 4 reduce-scatters",
        ),
    ],
    ids=["ddp", "hsdp", "simplefsdp", "dtensor"],
)
def test_collectives_of_a_file_are_those_of_its_plan(model, tmp_path, target, options, words):
    plan = planned(model, target, options)
    lm.export(plan, target, tmp_path / "file.py", model=f"{model}:make")
    outcome = plan.checked[target]
    assert outcome.is_done, outcome.words
    assert outcome.words.endswith(f"with the {words} of the plan")
    assert not outcome.differs


class Scaled(torch.nn.Module):
    """A layer with buffers, of which one may be changed in each forward pass."""

    def __init__(self, norm, *, is_changed):
        super().__init__()
        self.layer, self.norm, self.is_changed = torch.nn.Linear(4, 5), norm, is_changed
        self.register_buffer("scale", torch.ones(2, 4))

    def forward(self, x):
        if self.is_changed:
            self.scale[0].mul_(0.5)
        return self.layer(self.norm(x) * self.scale[0])


@pytest.mark.parametrize(
    ("norm", "is_changed"),
    [("Identity", False), ("LayerNorm", False), ("LayerNorm", True), ("BatchNorm1d", False)],
)
def test_buffers_are_sent_before_a_pass_only_where_a_step_changes_them(norm, is_changed):
    module = Scaled(getattr(torch.nn, norm)(4), is_changed=is_changed)
    graph = lm.capture(
        module,
        torch.ones(8, 4),
        loss=torch.nn.functional.mse_loss,
        targets=torch.ones(8, 5),
        optimizer=torch.optim.SGD,
    )
    plan = lm.place(graph, lm.Cluster.preset("4xV100-PCIe"), target="ddp", replicas=2)
    file = lm.writers.ddp(plan)
    are_sent = is_changed or norm == "BatchNorm1d"
    assert ("broadcast_buffers=False" in file) == (not are_sent)
    assert ("buffers become those of process 0" in file) == are_sent


def test_a_file_that_runs_other_collectives_is_told_with_a_warning(model, tmp_path):
    """Another model than the one that the plan is for: it has other parameters."""
    plan = planned(model, "ddp", {"replicas": 2, "optimizer": "replicated"})
    with pytest.warns(UserWarning, match="runs 1 all-reduce .1.12 KiB., and the plan prices 1"):
        plan.export("ddp", tmp_path / "file.py", model=f"{model}:chain")
    assert plan.checked["ddp"].collectives != plan.checked["ddp"].planned


def test_all_stages_of_a_pipeline_run_a_step(model, tmp_path):
    plan = planned(
        model, "pipelining", {"stages": 4, "micro_batches": 4, "schedule": "1f1b"}, "chain"
    )
    with pytest.warns(UserWarning, match="pipelining: the file runs 32 sends"):
        plan.export("pipelining", tmp_path / "file.py", model=f"{model}:chain")
    number, _ = plan.checked["pipelining"].collectives["send"]
    # Of each of four micro-batches: x and its gradient at three cuts; at two the index, which the
    # second stage makes.
    assert number == 4 * (2 * 3 + 2)


def test_one_program_has_one_price(model):
    """``fully_shard`` by either name."""
    plans = [
        planned(model, "fsdp", {"replicas": 4, "shard_size": 4, "reshard": False}),
        planned(model, "dtensor", {"tp": 1, "shard": 4, "replicate": 1, "reshard": False}),
    ]
    assert plans[0].makespan == plans[1].makespan


def test_a_model_that_is_too_large_to_build_is_run_without_data(model, tmp_path):
    plan = planned(model, "fsdp", {"replicas": 2}, "large")
    plan.export("fsdp", tmp_path / "file.py", model=f"{model}:large")
    outcome = plan.checked["fsdp"]
    assert str(outcome).startswith("checked: forward and backward pass of one of 2 processes, with")
    assert outcome.collectives == outcome.planned
    # Weights and their gradients go round in parts.
    assert outcome.collectives["all_gather"][1] > 2**30


def test_a_file_that_does_not_run_is_refused_with_the_systems_words(model, tmp_path):
    plan = planned(model, "fsdp", {"replicas": 2})
    with pytest.raises(lm.InputError, match=r"PyTorch refuses .*: AttributeError.*layers"):
        plan.export("fsdp", tmp_path / "file.py", model=f"{model}:fails")
    plan.export("fsdp", tmp_path / "file.py", model=f"{model}:fails", check=False)
    assert plan.checked == {}


def test_what_cannot_be_checked_says_why(model, tmp_path):
    plan = planned(model, "fsdp", {"replicas": 2})
    plan.export("fsdp", tmp_path / "file.py")
    assert str(plan.checked["fsdp"]).startswith("not checked: no model to build")
