"""A device map in accelerate, on the CPU: the same numbers; no code reads of two devices."""

from __future__ import annotations

import tempfile
from dataclasses import replace

import pytest
import torch
from gloo_steps import assert_same, whole_step
from target_models import built, tensor_of


def run(case, plan, written):
    accelerate = pytest.importorskip("accelerate", reason="needs accelerate")
    from accelerate.utils.modeling import check_device_map

    made = built(case["model"])
    check_device_map(made.module, written)
    if case.get("train"):
        # The CPU stands for GPUs: all that a step has there is that the map divides modules.
        assert {type(place) for place in written.values()} == {int}
        places = dict.fromkeys(written, "cpu")
        module = dispatched(accelerate, case, places, folder=None)
        assert_same(whole_step(replace(made, module=module)), whole_step(built(case["model"])))
        return
    with torch.no_grad():
        expected = tensor_of(made.module(*made.inputs))
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        # The CPU stands for GPUs, and the disk for the memory that weights are streamed from.
        places = {key: "cpu" if isinstance(to, int) else "disk" for key, to in written.items()}
        found = tensor_of(dispatched(accelerate, case, places, folder)(*made.inputs))
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-6 * float(expected.abs().max()))
    # Now every GPU but the first has no data, so that code of two devices is found out.
    places = {key: "meta" if to not in (0, "cpu") else "cpu" for key, to in written.items()}
    if "meta" not in places.values():
        return
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        try:
            dispatched(accelerate, case, places, folder)(*made.inputs)
        except NotImplementedError as error:
            # A module of the first GPU is given what one of another made: accelerate moves it.
            assert "Cannot copy out of meta tensor" in str(error)  # noqa: PT017


def dispatched(accelerate, case, places, folder):
    module = built(case["model"]).module
    for key, place in places.items():
        # from_pretrained puts parameters where the map has them; dispatch_model only modules.
        if key in dict(module.named_parameters()) and place == "meta":
            owner, _, name = key.rpartition(".")
            parent = module.get_submodule(owner)
            setattr(parent, name, torch.nn.Parameter(getattr(parent, name).to(place)))
    return accelerate.dispatch_model(
        module, places, main_device="cpu", offload_dir=folder, force_hooks=True
    )
