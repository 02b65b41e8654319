"""Sub-models for ONNX Runtime: one after another they put out what PyTorch does."""

from __future__ import annotations

import pytest
import torch
from target_models import built, onnx_file, tensor_of

import loadmaster as lm


def run(case, plan, written):
    pytest.importorskip("onnxruntime", reason="needs the extra onnxruntime")
    assert lm.writers.check_onnx(written, onnx_file(case["model"])) < 1e-6
    made = built(case["model"])
    with torch.no_grad():
        expected = tensor_of(made.module(*made.inputs)).numpy()
    parts = lm.writers.OnnxSegments(written)
    names = [one["name"] for one in parts.manifest["inputs"]]
    feeds = {name: x.numpy() for name, x in zip(names, made.inputs, strict=True)}
    found = parts.run(feeds)[parts.manifest["outputs"][0]]
    assert abs(found - expected).max() <= 1e-4 * abs(expected).max()
    # Memory that a case gives is so small that one device does not hold the model.
    devices = {segment["device"] for segment in parts.manifest["segments"]}
    assert len(devices) > 1 or not case.get("memory")
