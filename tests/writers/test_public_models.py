"""Systems by public models that were not made for them: what is planned runs as it is written.

The rows ``[[public]]`` of ``tests/targets.toml`` have every model of ``tests/support/
public_models.py``: either a step by the written file is that of the model, or planning refuses it.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch 2.5 or later")
pytest.importorskip("transformers", reason="needs transformers")
pytest.importorskip("torchvision", reason="needs torchvision")

from public_models import PUBLIC  # noqa: E402
from runs_public import (  # noqa: E402
    cluster_of,
    graph_of,
    run_by_device_map,
    run_by_onnx,
    run_by_processes,
)

import loadmaster as lm  # noqa: E402
from loadmaster.base.errors import InputError  # noqa: E402
from loadmaster.writers.export import export  # noqa: E402

ROWS = tomllib.loads((Path(__file__).parents[1] / "targets.toml").read_text())["public"]


def cases():
    """Target, model, number of processes, and words of the refusal where there is one."""
    for row in ROWS:
        for model, words in row.get("refused", {}).items():
            yield pytest.param(row["target"], model, 2, words, id=f"{row['target']}-{model}")
        for model in row.get("equal", ()):
            yield pytest.param(row["target"], model, 2, None, id=f"{row['target']}-{model}")
        for model in row.get("four", ()):
            yield pytest.param(row["target"], model, 4, None, id=f"{row['target']}-{model}-four")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["target"])
def test_every_model_is_in_every_row(row):
    named = [*row.get("equal", ()), *row.get("refused", {})]
    assert sorted(named) == sorted(PUBLIC)
    assert set(row.get("four", ())) <= set(row["equal"])


@pytest.mark.parametrize(("target", "model", "k", "words"), list(cases()))
def test_a_model_runs_as_it_is_written_or_is_refused_while_planning(
    target, model, k, words, tmp_path
):
    if target == "onnx":
        run_by_onnx(model, tmp_path)
        return
    if words is not None:
        with pytest.raises(InputError, match=words):
            lm.place(graph_of(model), cluster_of(k), target=target)
        return
    plan = lm.place(graph_of(model), cluster_of(k), target=target)
    written = export(plan)
    if target == "device-map":
        run_by_device_map(model, written)
    else:
        run_by_processes(model, written)
