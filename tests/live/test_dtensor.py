"""Written for DTensor, a model steps on gloo processes with the numbers of the model that is whole.

Needs torch (no GPU): without it these tests are skipped.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch 2.5 or later")

import parallel_models as models  # noqa: E402
from gloo_steps import on_processes  # noqa: E402

import loadmaster as lm  # noqa: E402

#: What must be cut of each model, so that its step says something.
CUT = {
    "llama": ("'layers.*.attn.q': C", "'layers.*.attn.o': ", "'layers.*.mlp.down': R"),
    "gpt": ("'h.*.attn.c_attn': FusedColwise(3", "'h.*.attn.c_proj': R", "'h.*.proj': R"),
    "unseen": ("'a': C", "'b': R", "'c': C", "'o': R"),
}


def written(folder, name, cluster, **options):
    """The file of a model's plan, by its name. Devices are slow: cutting such small ops gains."""
    model, x, t = models.drawn(name)
    graph = lm.capture(
        model, x, loss=models.loss, targets=t, optimizer=lambda p: torch.optim.SGD(p, 0.1)
    )
    slow = lm.Cluster.preset(cluster).with_speed(1e-5)
    plan = lm.place(graph, slow, target="dtensor", **options)
    file = "-".join([name, *map(str, options.values())])
    text = lm.writers.dtensor(plan, folder / f"{file}.py")
    assert all(row in text for row in CUT[name])
    return file


def off(folder, size, names):
    """What the steps of files were off by, the worst of so many processes."""
    found = on_processes(size, models.step, str(folder), names)
    return {name: max(one[name] for one in found) for name in names}


def test_a_step_on_two_devices_has_the_numbers_of_the_whole_model(tmp_path):
    names = [written(tmp_path, name, "2xV100-NVLink", tp=2) for name in models.MODELS]
    found = off(tmp_path, 2, names)
    assert len(found) == 3
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
