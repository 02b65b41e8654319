"""Written for DTensor, a model steps on gloo processes with the numbers of the model that is whole.

Needs torch (no GPU): without it these tests are skipped.
"""

from __future__ import annotations

import json

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch 2.5 or later")

import parallel_models as models  # noqa: E402
import torch.multiprocessing as processes  # noqa: E402

import loadmaster as lm  # noqa: E402


def written(folder, name, cluster, **options):
    """The file of a model's plan, by its name."""
    model, x, t = models.drawn(name)
    graph = lm.capture(
        model, x, loss=models.loss, targets=t, optimizer=lambda p: torch.optim.SGD(p, 0.1)
    )
    plan = lm.place(graph, lm.Cluster.preset(cluster), target="dtensor", **options)
    file = "-".join([name, *map(str, options.values())])
    lm.writers.dtensor(plan, folder / f"{file}.py")
    return file


def off(folder, size, names):
    """What the steps of files were off by, on so many processes."""
    processes.spawn(models.step, (size, str(folder), names), size)
    return json.loads((folder / "off.json").read_text())


def test_a_step_on_two_devices_has_the_numbers_of_the_whole_model(tmp_path):
    names = [
        written(tmp_path, name, "2xV100-NVLink", tp=2, sequence=sequence)
        for name in models.MODELS
        for sequence in (True, False)
    ]
    found = off(tmp_path, 2, names)
    assert len(found) == 6
    assert max(found.values()) < 1e-4, found


def test_tensors_are_cut_within_data_parallelism(tmp_path):
    names = [written(tmp_path, name, "4xV100-NVLink", tp=2) for name in models.MODELS]
    found = off(tmp_path, 4, names)
    assert len(found) == 3
    assert max(found.values()) < 1e-4, found


def test_a_plan_of_another_kind_is_refused_with_what_is_in_the_way(tmp_path):
    graph = lm.read("example:lenet")
    plan = lm.place(graph, lm.Cluster.preset("2xV100-NVLink"), "heft")
    with pytest.raises(lm.InputError, match=r"shares no work by labels.*--target dtensor"):
        lm.writers.dtensor(plan)
