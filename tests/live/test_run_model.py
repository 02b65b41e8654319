"""``loadmaster run`` with a model of a file, on two workers: measured, saved, learnt from.

Needs torch (no GPU): without it these tests are skipped. No test asserts a time.
"""

from __future__ import annotations

import json
import os
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch 2.5 or later")

import loadmaster as lm  # noqa: E402
from loadmaster.cli import main  # noqa: E402
from loadmaster.running.measured.adapt import adapt  # noqa: E402
from loadmaster.running.measured.measured import Measured  # noqa: E402
from loadmaster.running.measured.rounds import interleaved  # noqa: E402
from loadmaster.running.runners import running  # noqa: E402
from loadmaster.running.tape.models import recorded_model  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:devices share a core"),
    pytest.mark.filterwarnings("ignore:the machine was too busy"),
]

MODEL = """
import torch
from torch import nn

class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = (
            nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32)) for _ in range(2)
        )
        self.head = nn.Linear(64, 5)

    def forward(self, x):
        return self.head(torch.cat([self.left(x), self.right(x)], -1))

def build():
    torch.manual_seed(0)
    return {
        "model": Branches(),
        "example_inputs": torch.rand(8, 32),
        "loss": nn.functional.cross_entropy,
        "targets": torch.arange(8) % 5,
        "optimizer": torch.optim.SGD,
    }

def wrong():
    return {"model": Branches(), "inputs": torch.rand(8, 32)}
"""


def test_a_model_of_a_file_is_captured_for_any_command(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.py").write_text(MODEL)
    assert main(["info", "my.py:build", "--cluster", "2xV100-NVLink", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "Branches"
    assert main(["info", "my.py:wrong", "--cluster", "2xV100-NVLink"]) == 2
    assert "my.py:wrong: the dictionary has no 'example_inputs'" in capsys.readouterr().err
    assert main(["info", "mine.py:build", "--cluster", "2xV100-NVLink"]) == 2
    assert "there is no file mine.py" in capsys.readouterr().err


@pytest.fixture
def model(tmp_path, monkeypatch) -> str:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "my.py").write_text(MODEL)
    return f"{tmp_path / 'my.py'}:build"


@pytest.fixture
def plan(model, tmp_path) -> lm.Plan:
    graph = recorded_model(model).graph
    costs = np.where(graph.placeholder | graph.view, 0.0, 1e-5)
    cluster = lm.Cluster.mesh(2, memory="1GiB", bandwidth=10e9, latency=1e-5)
    return lm.place(graph, cluster, "round-robin", costs)


def places() -> str:
    cores = sorted(os.sched_getaffinity(0))
    return f"gpu0=cpu:{cores[0]},gpu1=cpu:{cores[-1]}"


def test_a_model_of_a_file_runs_and_is_measured(plan, model, tmp_path, capsys):
    plan.save(tmp_path / "plan.json")
    out = tmp_path / "run.json"
    words = ["run", str(tmp_path / "plan.json"), "--model", model, "--steps", "3"]
    assert main([*words, "--on", places(), "-o", str(out), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    seen = Measured.load(out)
    assert document["step"] == seen.step > 0
    assert [device["on"] for device in document["devices"]] == list(seen.on)
    assert all(name.startswith("cpu:") for name in seen.on)
    assert sum(document["causes"]["parts"].values()) == pytest.approx(
        document["causes"]["difference"]
    )
    links = [row for row in document["ratios"] if row["of"] == "link"]
    assert sum(row["count"] for row in links) == len(plan.schedule.transfers)
    assert [device["peak_bytes"] > 0 for device in document["devices"]] == [True, True]


def test_a_profile_of_a_run_has_every_op_that_takes_time(plan, model):
    tape = recorded_model(model)
    seen = lm.run(plan, tape, steps=3)
    profile = seen.profile()
    free = plan.graph.placeholder
    wanted = {name for name, no in zip(plan.graph.names, free, strict=True) if not no}
    assert set(profile.names) == wanted
    model_of_costs = lm.costs.CostModel()
    model_of_costs.update(profile)
    again = lm.place(plan.graph, plan.cluster, "etf", model_of_costs)
    assert again.provenance == {"measured": 1.0}


def test_plans_in_rounds_and_the_loop(plan, model):
    tape = recorded_model(model)
    single = lm.place(plan.graph, plan.cluster, "single", plan.costs)
    runner = running(tape)
    runs = interleaved([single, plan], runner, 3, 2)
    assert [len(run.steps) for run in runs] == [6, 6]
    assert len(runs[0].steps.sent_start[0]) == 0
    assert len(runs[1].steps.sent_start[0]) == len(plan.schedule.transfers)
    found = adapt(plan, runner, 1, steps=2)
    steps = [run.step for run in found.candidates]
    assert found.which == steps.index(min(steps))


def test_arguments_that_record_does_not_have_are_refused(plan, model, tmp_path, capsys):
    plan.save(tmp_path / "plan.json")
    words = ["run", str(tmp_path / "plan.json"), "--model", model.replace("build", "wrong")]
    assert main(words) == 2
    assert "the dictionary has no 'example_inputs'" in capsys.readouterr().err
