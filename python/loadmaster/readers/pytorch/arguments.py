"""Copies of nested arguments, with other tensors in the place of their own."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from loadmaster.base.errors import LoadmasterError

#: Gives the tensor that takes the place of another one.
Replace = Callable[[torch.Tensor], torch.Tensor]

_KEPT = (type(None), bool, int, float, str, bytes, torch.dtype, torch.device, torch.nn.Module)
_COPIES = (torch.Tensor.__deepcopy__, torch.Tensor.clone)


class _Replacing(TorchFunctionMode):  # type: ignore[misc]
    """Replaces each tensor that Python's ``copy.deepcopy`` comes to."""

    def __init__(self, replace: Replace) -> None:
        super().__init__()
        self._replace = replace

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._replace(args[0]) if func in _COPIES else func(*args, **(kwargs or {}))


def with_tensors(value: Any, replace: Replace, kept: Iterable[Any] = ()) -> Any:
    """A copy of lists, mappings and objects of any class, each tensor in them replaced.

    Objects in ``kept`` stay themselves wherever they are met. So do modules, and an object that
    cannot be copied.
    """
    known = {id(each): each for each in kept}

    def leaf(each: Any) -> Any:
        if isinstance(each, torch.Tensor):
            return replace(each)
        if isinstance(each, _KEPT):
            return each
        try:
            with _Replacing(replace):
                return copy.deepcopy(each, dict(known))
        except LoadmasterError:
            raise
        except Exception:  # of any class's own way to be copied
            return each

    return tree_map(leaf, value)
