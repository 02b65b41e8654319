"""Affinities for OpenVINO's HETERO: the model runs as PyTorch does, however often it is read."""

from __future__ import annotations

import pytest
import torch
from target_models import built, onnx_file, tensor_of

import loadmaster as lm


def run(case, plan, written):
    ov = pytest.importorskip("openvino", reason="needs the extra openvino")
    made = built(case["model"])
    with torch.no_grad():
        expected = tensor_of(made.module(*made.inputs)).numpy()
    core, names = ov.Core(), {device.name: "CPU" for device in plan.cluster.devices}
    # OpenVINO numbers what has no name in the file anew for every model that it reads.
    for _ in range(2):
        model = core.read_model(onnx_file(case["model"]))
        found = lm.writers.openvino(plan, model=model, names=names)
        assert found.keys() == written.keys()
        assert {op.get_rt_info()["affinity"] for op in model.get_ops()} == {"CPU"}
        compiled = core.compile_model(model, "HETERO:CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        output = compiled([x.numpy() for x in made.inputs])[0]
        assert abs(output - expected).max() <= 1e-4 * abs(expected).max()
