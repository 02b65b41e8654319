"""Files written for processes of PyTorch, run by torchrun as they are, beside one device."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch 2.5 or later")

from runs_public import cluster_of  # noqa: E402
from target_models import Branched  # noqa: E402

import loadmaster as lm  # noqa: E402
from loadmaster.running.tape.models import built, captured_model  # noqa: E402
from loadmaster.writers.export import export  # noqa: E402

MODEL = """
import torch
from target_models import Branched


class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.scale = Branched(), torch.nn.Parameter(torch.tensor(1.5))

    def forward(self, x):
        return self.body(x) * self.scale


def make():
    torch.manual_seed(3)
    model = Scaled()
    for name in {frozen}:
        model.get_parameter(name).requires_grad_(False)
    x, y = torch.rand(8, 32), torch.randint(0, 10, (8,))
    return {{
        "model": model, "example_inputs": x, "targets": y,
        "loss": torch.nn.functional.cross_entropy, "optimizer": torch.optim.AdamW,
    }}
"""


@pytest.mark.parametrize("target", ["ddp", "fsdp"])
def test_a_file_trains_by_torchrun_as_one_device_does(target, tmp_path):
    draw = random.Random(target)
    names = [f"body.{name}" for name, _ in Branched().named_parameters()]
    frozen = sorted(draw.sample(names, draw.randrange(1, len(names) - 1)))
    (tmp_path / "model.py").write_text(MODEL.format(frozen=frozen))
    spec = f"{tmp_path / 'model.py'}:make"
    plan = lm.place(captured_model(spec), cluster_of(2), target=target, replicas=2)
    export(plan, path=tmp_path / "train.py", check=False)
    losses = [float(loss) for loss in re.findall(r"loss ([\d.e-]+)", _torchrun(tmp_path, 2))]
    assert losses == pytest.approx(_alone(spec, 3), rel=1e-4)


def _torchrun(folder, n):
    """The output of so many processes of the file."""
    more = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    more["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--local-addr", "localhost", "--nproc-per-node", str(n), "train.py", "--steps", "3"]
    run = subprocess.run(
        command, cwd=folder, env=os.environ | more, capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def _alone(spec, steps):
    """The losses of steps on one device."""
    case = built(spec)
    model, losses = case["model"], []
    optimizer = case["optimizer"]([p for p in model.parameters() if p.requires_grad])
    for _ in range(steps):
        loss = case["loss"](model(case["example_inputs"]), case["targets"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
