"""Configurations, read by the systems that they are for, as ``export`` does."""

from __future__ import annotations

import json

import pytest

import loadmaster as lm
from loadmaster.systems.registry import SYSTEMS

torch = pytest.importorskip("torch", reason="needs PyTorch 2.5 or later")

MODEL = """
import torch


def make():
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
    return {"model": model, "example_inputs": torch.ones(8, 8)}
"""


def planned(target, **options):
    names = {}
    exec(MODEL, names)
    case = names["make"]()
    case |= {"loss": lambda x, y: (x - y).square().mean(), "targets": torch.ones(8, 4)}
    graph = lm.capture(**case, optimizer=torch.optim.AdamW)
    return lm.place(graph, lm.Cluster.preset("2xV100-PCIe"), target=target, **options)


@pytest.mark.parametrize(
    ("target", "options", "says"),
    [
        ("accelerate", {"engine": "ddp", "replicas": 2}, "start 2 processes (ddp)"),
        ("deepspeed", {"replicas": 2, "stage": 2}, "stage 2 of ZeRO, batch of 8 on 2 processes"),
        ("jax", {"tp": 2}, "JAX lays"),
    ],
    ids=["accelerate", "deepspeed", "jax"],
)
def test_the_system_reads_what_the_plan_has(tmp_path, target, options, says):
    plan = planned(target, **options)
    plan.export(target, tmp_path / "file.yaml")
    assert says in str(plan.checked[target])


def test_what_a_parser_refuses_is_an_error_with_its_words(tmp_path):
    plan, path = planned("accelerate", engine="ddp", replicas=2), tmp_path / "file.yaml"
    plan.export("accelerate", path)
    path.write_text(path.read_text() + "number_of_wings: 2\n")
    with pytest.raises(lm.InputError, match=r"accelerate refuses .*number_of_wings"):
        SYSTEMS["accelerate"].check(plan, path)


def test_jax_refuses_parts_that_are_not_whole(tmp_path):
    plan, path = planned("jax", tp=2), tmp_path / "file.py"
    plan.export("jax", path, check=False)
    sizes, three = "AXES = {'tp': 2}", "AXES = {'tp': 3}"
    text = path.read_text().replace(sizes, three).replace("DEVICES = [0, 1]", "DEVICES = [0, 1, 2]")
    assert three in text
    path.write_text(text)
    with pytest.raises(lm.InputError, match=r"JAX refuses .*IndivisibleError"):
        SYSTEMS["jax"].check(plan, path)


def test_a_system_without_a_check_reads_its_files_itself(tmp_path):
    plan = lm.place("example:mixtral", lm.Cluster.preset("8xMI300X"), target="sglang", tp=8)
    plan.export(path=tmp_path / "file.yaml")
    assert str(SYSTEMS["sglang"].check(plan, tmp_path / "file.yaml")) == (
        "not checked: nothing checks files for sglang: sglang reads them when it starts"
    )


def test_a_device_map_is_one_of_the_model(tmp_path):
    (tmp_path / "model.py").write_text(MODEL)
    plan, path = planned("device-map"), tmp_path / "map.json"
    spec = f"{tmp_path / 'model.py'}:make"
    plan.export("device-map", path, model=spec)
    assert plan.checked["device-map"].is_done
    path.write_text(json.dumps({"0": 0}))
    with pytest.raises(lm.InputError, match=r"accelerate refuses .*2\.weight"):
        SYSTEMS["device-map"].check(plan, path, spec)
