"""A device map in accelerate, on the CPU: the same numbers, and no code that reads of two."""

from __future__ import annotations

import tempfile

import pytest
import torch
from target_models import built


def run(case, plan, written):
    accelerate = pytest.importorskip("accelerate", reason="needs accelerate")
    from accelerate.utils.modeling import check_device_map

    made = built(case["model"])
    with torch.no_grad():
        expected = made.module(*made.inputs)
    check_device_map(made.module, written)
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        # The CPU stands for GPUs, and the disk for the memory that weights are streamed from.
        places = {key: "cpu" if isinstance(to, int) else "disk" for key, to in written.items()}
        found = dispatched(accelerate, case, places, folder)(*made.inputs)
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
