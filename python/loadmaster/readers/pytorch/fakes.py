"""Tensors without memory that stand for others while a step is captured."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils.weak import WeakIdKeyDictionary

from loadmaster.base.errors import InputError


class Fakes:
    """Makes fake tensors. Those of tensors on the meta device are on the model's own device, or on
    the CPU.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        stored = [*model.parameters(), *model.buffers()]
        devices = (tensor.device for tensor in stored if tensor.device.type != "meta")
        self.home = next(devices, torch.device("cpu"))
        self._of_meta = WeakIdKeyDictionary()

    def like(self, tensor: torch.Tensor, of: str) -> torch.Tensor:
        """A fake of the sizes, strides and type of a tensor; ``of`` is the tensor's name.

        Raises
        ------
        InputError
            It has no sizes yet, or is no plain strided tensor.
        """
        if torch.nn.parameter.is_lazy(tensor):
            raise InputError(f"{of} has no sizes yet: run the model once on real inputs")
        if is_traceable_wrapper_subclass(tensor):
            raise InputError(
                f"{of} is a {type(tensor).__name__}, made of other tensors: only plain tensors are "
                "captured"
            )
        if tensor.layout is not torch.strided:
            raise InputError(f"{of} has layout {tensor.layout}: only strided ones are captured")
        device = self.home if tensor.device.type == "meta" else tensor.device
        with self.mode:
            return torch.empty_strided(
                tensor.size(), tensor.stride(), dtype=tensor.dtype, device=device
            )

    def at_home(self, argument: Any) -> Any:
        """An argument of a call with nothing on the meta device: no tensor, and not the call."""
        if isinstance(argument, FakeTensor):
            return argument
        if isinstance(argument, torch.Tensor):
            return self._of(argument) if argument.device.type == "meta" else argument
        if isinstance(argument, torch.device):
            return self.home if argument.type == "meta" else argument
        if isinstance(argument, (list, tuple)):
            housed = [self.at_home(each) for each in argument]
            return housed if isinstance(argument, list) else tuple(housed)
        return argument

    def _of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The one fake of a tensor on the meta device that the model holds itself."""
        if tensor not in self._of_meta:
            self._of_meta[tensor] = self.like(tensor, "a tensor of the model's own")
        fake: torch.Tensor = self._of_meta[tensor]
        return fake
