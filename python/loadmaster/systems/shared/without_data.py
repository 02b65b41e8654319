"""Tensors of PyTorch that have sizes and no data, so that a model of any size is built and run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any
from unittest.mock import patch


@contextmanager
def without_data() -> Iterator[None]:
    """A context in which new tensors have no data.

    Meshes of devices are made outside of it, since they read their own numbers. Modules are on
    their device already: what moves them would exchange their parameters, which PyTorch refuses of
    such tensors.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
    from torch.distributed import device_mesh

    def outside(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def called(*arguments: Any, **options: Any) -> Any:
            with unset_fake_temporarily():
                return function(*arguments, **options)

        return called

    mesh = device_mesh.DeviceMesh
    with (
        patch.object(device_mesh, "init_device_mesh", outside(device_mesh.init_device_mesh)),
        patch.object(mesh, "__init__", outside(mesh.__init__)),
        patch.object(mesh, "__getitem__", outside(mesh.__getitem__)),
        patch.object(torch.nn.Module, "to", lambda module, *_, **__: module),
        FakeTensorMode(allow_non_fake_inputs=True),
    ):
        yield


def on_cpu(case: Mapping[str, Any]) -> dict[str, Any]:
    """The value of a user's function, with tensors on the CPU where they were on the meta device.

    Tied parameters stay tied.
    """
    import torch
    from torch.utils._pytree import tree_map_only

    moved = dict[Any, Any]()

    def of(tensor: Any) -> Any:
        if tensor.device.type != "meta":
            return tensor
        if tensor not in moved:
            there = torch.zeros_like(tensor, device="cpu")
            is_parameter = isinstance(tensor, torch.nn.Parameter)
            moved[tensor] = (
                torch.nn.Parameter(there, tensor.requires_grad) if is_parameter else there
            )
        return moved[tensor]

    for module in case["model"].modules():
        for tensors in (module._parameters, module._buffers):
            tensors.update({k: of(x) for k, x in tensors.items() if x is not None})
    names = [name for name in ("example_inputs", "targets") if name in case]
    return {**case, **{name: tree_map_only(torch.Tensor, of, case[name]) for name in names}}
