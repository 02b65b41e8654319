"""Where PyTorch is installed, its ops are what a host launches."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import loadmaster as lm  # noqa: E402
from loadmaster.costs import measuring_device  # noqa: E402


def test_small_ops_of_torch_are_called(monkeypatch):
    monkeypatch.setattr(measuring_device, "waited_for_a_core", lambda: lambda: 0)
    found = lm.measure_device([2**10, 2**16])
    at = "cuda" if torch.cuda.is_available() else "cpu"
    assert found.by == f"torch on {at}"
    assert list(found.calls) == ["add", "mul", "relu", "mm"]
    assert f"calls of torch on {at}" in found.toml
