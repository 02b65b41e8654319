"""A verdict on a model of one's own, from the function that builds it."""

from __future__ import annotations

import re
import sys

import pytest

import loadmaster as lm
from loadmaster.running.tape.models import captured_model

torch = pytest.importorskip("torch")

from folders import ROOT  # noqa: E402


def test_a_capture_says_how_far_it_is(tmp_path):
    path = tmp_path / "my.py"
    path.write_text(
        "import torch\n\n\ndef build():\n"
        "    model = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(100)])\n"
        "    return {'model': model, 'example_inputs': torch.zeros(2, 4)}\n"
    )
    told: list[str] = []
    with pytest.warns(UserWarning, match="loss"):
        captured_model(f"{path}:build", told.append)
    assert told[0] == f"building the model of {path}:build"
    assert any(re.match(r"capturing the backward pass, \d+ ops", stage) for stage in told)


def test_norms_that_a_style_would_cut_stay_whole(monkeypatch):
    """What a product that no label fits gives is whole, so that modules alike can be told so."""
    monkeypatch.syspath_prepend(str(ROOT / "benches"))
    monkeypatch.delitem(sys.modules, "verdict", raising=False)
    import verdict

    graph = lm.capture(**verdict.resnet())
    plan = lm.place(graph, "8xH100-NVLink", target="dtensor")
    assert plan.fits
    assert plan.makespan < lm.place(graph, "8xH100-NVLink", "single").makespan


class Slots(torch.optim.Optimizer):
    """Keeps two slots of a parameter, one of them made by an op in place."""

    def __init__(self, parameters) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state["mean"] = torch.zeros_like(parameter).add_(1.0)
                    state["square"] = torch.zeros_like(parameter)
                state["mean"].lerp_(parameter.grad, 0.1)
                state["square"].mul_(0.9).addcmul_(parameter.grad, parameter.grad)
                parameter.addcdiv_(state["mean"], state["square"].sqrt().add_(1e-8), value=-0.1)


def test_slots_are_there_after_a_first_step_that_is_not_computed():
    model = torch.nn.Linear(3, 2)
    graph = lm.capture(model, torch.zeros(4, 3), loss=lambda output: output.sum(), optimizer=Slots)
    slots = [name for name in graph.names if name.startswith("optim.")]
    assert sorted(slots) == [
        f"optim.{slot}.{parameter}"
        for slot in ("mean", "square")
        for parameter in ("bias", "weight")
    ]
    updates = [kind for kind, phase in zip(graph.kinds, graph.phases, strict=True) if phase == "o"]
    per_parameter = ["lerp_", "mul_", "addcmul_", "sqrt", "add_", "addcdiv_"]
    assert sorted(kind.split(".")[1] for kind in updates) == sorted(2 * per_parameter)
