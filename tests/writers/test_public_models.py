"""Systems by public models that were not made for them: what is planned runs as it is written.

The rows ``[[public]]`` of ``tests/targets.toml`` have every model of ``tests/support/
public_models.py``: either a step by the written file is that of the model, or planning refuses it,
or, for a system with models of its own, its parser reads the file.
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
    ENGINES,
    cluster_of,
    collectives_of,
    graph_of,
    run_by_device_map,
    run_by_engine,
    run_by_onnx,
    run_by_processes,
    run_eagerly,
)

import loadmaster as lm  # noqa: E402
from loadmaster.base.errors import InputError  # noqa: E402
from loadmaster.systems.registry import SYSTEMS  # noqa: E402
from loadmaster.writers.export import export  # noqa: E402

TABLES = tomllib.loads((Path(__file__).parents[1] / "targets.toml").read_text())
ROWS = TABLES["public"]
#: Targets whose files run their collectives under the fake process group.
COUNTED = ("ddp", "fsdp", "simplefsdp", "dtensor", "pipelining")
#: Collectives that files run beside those of their plans, by row and model.
OTHERS = {
    (row["target"], model): {kind: tuple(more) for kind, more in row["more"].items()}
    for row in TABLES["other_collectives"]
    for model in row["models"]
}


def named(row):
    """The target of a row, with its options."""
    return "-".join([row["target"], *(str(value) for value in row.get("options", {}).values())])


def cases():
    """The row, model, number of processes, and words of the refusal where there is one."""
    for row in ROWS:
        for model, words in row.get("refused", {}).items():
            yield case(row, model, 2, words)
        for model in (*row.get("equal", ()), *row.get("read", ())):
            yield case(row, model, 2, None)
        for model in row.get("four", ()):
            yield case(row, model, 4, None)


#: Models that take least, by target; the LSTM and the graph network, which most refuse, by others.
QUICK = {
    "device-map": PUBLIC,
    "onnx": ("unet", "graph_network"),
    "torchtitan": ("qwen3", "graph_network"),
    **dict.fromkeys(("pipelining", "ddp", "fsdp", "dtensor"), ("lstm", "unet", "graph_network")),
    # Their engines take long to import, or are not in continuous integration.
    **dict.fromkeys(("deepspeed", "lightning", "ray"), ("graph_network",)),
}


def case(row, model, k, words):
    """A case, which runs in the night but where it is quick: each target and each model is."""
    quick = QUICK.get(row["target"], ("lstm", "graph_network"))
    is_quick = model in quick and (k == 2 or (model == "lstm" and "unet" in quick))
    marks = () if is_quick else pytest.mark.nightly
    more = "-four" if k == 4 else ""
    return pytest.param(row, model, k, words, id=f"{named(row)}-{model}{more}", marks=marks)


@pytest.mark.parametrize("row", ROWS, ids=named)
def test_every_model_is_in_every_row(row):
    of = [*row.get("equal", ()), *row.get("read", ()), *row.get("refused", {})]
    assert sorted(of) == sorted(PUBLIC)
    assert set(row.get("four", ())) <= set(row.get("equal", ()))


@pytest.mark.parametrize(("row", "model", "k", "words"), list(cases()))
def test_a_model_runs_as_it_is_written_or_is_refused_while_planning(row, model, k, words, tmp_path):
    target, options = row["target"], row.get("options", {})
    if target == "onnx":
        run_by_onnx(model, tmp_path)
        return
    if target == "eager":
        run_eagerly(model, k)
        return
    cluster = lm.Cluster.preset(row["cluster"]) if "cluster" in row else cluster_of(k)
    if words is not None:
        with pytest.raises(InputError, match=words):
            lm.place(graph_of(model), cluster, target=target, **options)
        return
    plan = lm.place(graph_of(model), cluster, target=target, **options)
    if model in row.get("read", ()):
        written = export(plan, path=tmp_path / "written", check=False)
        outcome = SYSTEMS[target].check(plan, tmp_path / "written")
        assert outcome.is_done or "is not installed" in outcome.words
        return
    written = export(plan)
    if target == "device-map":
        run_by_device_map(model, written)
    elif target in ENGINES:
        run_by_engine(target, k, model, written)
    else:
        run_by_processes(model, written)
    if k == 2 and target in COUNTED:
        ran, planned = collectives_of(plan, model, written, tmp_path / "written.py")
        assert beside(ran, planned) == OTHERS.get((named(row), model), {})


def test_known_differences_are_of_rows_that_are_counted():
    known = {(named(row), m) for row in ROWS if row["target"] in COUNTED for m in row["equal"]}
    assert set(OTHERS) <= known


def beside(ran, planned):
    """Collectives that ran beside those that were planned, by kind, in number and bytes."""
    none = (0, 0)
    more = {
        kind: tuple(
            a - b for a, b in zip(ran.get(kind, none), planned.get(kind, none), strict=True)
        )
        for kind in {*ran, *planned}
    }
    return {kind: rest for kind, rest in more.items() if rest != none}
