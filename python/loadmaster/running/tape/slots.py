"""The tensors of a tape: slots of values, those that are there at the start, outputs in parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, eq=False)
class Placeholder:
    """A tensor that is there when the step begins, and the op of the graph that stands for it.

    ``kind`` is ``"parameter"``, ``"buffer"`` (an optimizer's slots too), ``"input"`` or
    ``"constant"``.
    """

    slot: int
    op: int
    name: str
    kind: str
    tensor: torch.Tensor = field(repr=False)


@dataclass(frozen=True, slots=True)
class Slot:
    """A tensor's value: the op of the graph that gives it, and how it lies in its storage.

    Slots of one ``storage`` show the same memory. Strides and offset count elements.
    """

    op: int
    storage: int
    dtype: torch.dtype
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


@dataclass(frozen=True, slots=True)
class Joint:
    """An output that several devices have parts of: their slots, and what puts them together."""

    slots: tuple[int, ...]
    join: Callable[[Sequence[torch.Tensor]], torch.Tensor] = field(repr=False)
