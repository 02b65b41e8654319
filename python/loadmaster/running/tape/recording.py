"""Listens to a recorder and keeps every call of its graph, with slots in the place of tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from loadmaster.base.errors import InputError
from loadmaster.readers.pytorch.recorder import storage_of
from loadmaster.running.tape.calls import Call, Ref
from loadmaster.running.tape.slots import Placeholder, Slot

#: Type, sizes, strides and offset of a tensor in its storage.
_Layout = tuple[torch.dtype, tuple[int, ...], tuple[int, ...], int]


@dataclass(frozen=True, slots=True, eq=False)
class RecordedUpdate:
    """A call of an optimizer, with its result: one tensor, or several."""

    call: Call
    result: Any


class Recording:
    """A `Listener` that makes the parts of a `Tape`.

    It knows tensors as the recorder does: by identity, and by storage and layout where autograd
    hands on another tensor of it. It keeps none of them alive but those that are real.
    """

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.slots: dict[int, Slot] = {}
        self.placeholders: list[Placeholder] = []
        #: Slots of numbers in the optimizer's calls, as the host may give others in each step.
        self.numbers: list[int] = []
        #: Those numbers as they were recorded.
        self.recorded: list[float] = []
        #: The optimizer's calls: their results stand for those of the same calls in later steps.
        self.updates: list[RecordedUpdate] = []
        self._n = 0  # slots so far
        self._known = WeakIdKeyDictionary()
        self._storages: dict[int, tuple[Any, int]] = {}  # the reference keeps the number in use
        self._shown: dict[tuple[int, _Layout], int] = {}

    # -- what the recorder says

    def placed(
        self, tensor: torch.Tensor, op: int, name: str, kind: str, real: torch.Tensor | None
    ) -> None:
        """Keeps a placeholder with its tensor; an optimizer's slot gets one later."""
        if real is not None and real.device.type == "meta":
            raise InputError(
                f"{kind} {name!r} is on the meta device, without numbers: build the model and "
                "its inputs on a device to record it (lm.capture needs no numbers)"
            )
        slot = self._bind(tensor, op)
        self.placeholders.append(
            Placeholder(slot, op, name, kind, tensor if real is None else real)
        )

    def called(
        self,
        op: int,
        function: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
        writes: Sequence[Any],
        phase: str,
    ) -> None:
        """Keeps a call."""
        if function is torch.ops.aten.lift_fresh.default:
            function = torch.ops.aten.clone.default  # what torch.tensor() gives is new in each step
        if any(isinstance(leaf, torch.Generator) for leaf in tree_leaves((args, kwargs))):
            raise InputError(
                f"{function} draws from a generator of the model's own, which a tape cannot seed "
                "by step and op: leave generator= out"
            )
        free: frozenset[int | str] = frozenset()
        if phase == "o":
            kwargs, free = with_numbers(function, args, kwargs)
        several = isinstance(result, (tuple, list))
        flat = list(result) if several else [result]
        filled = tuple(self._argument(function, each, i in free) for i, each in enumerate(args))
        named = {name: self._argument(function, v, name in free) for name, v in kwargs.items()}
        changed = tuple(self.slot_of(t) for t in tree_leaves(list(writes)) if _is_tensor(t))
        results, parts, taken = [], [], op
        for each in flat:
            taken += several and _is_tensor(each)
            results.append(self._bind(each, taken) if _is_tensor(each) else -1)
            parts.append(taken if several and _is_tensor(each) else -1)
        self.calls.append(
            Call(
                op,
                function,
                filled,
                named,
                tuple(results),
                several,
                tuple(parts) if several else (),
                changed,
                torch.Tag.nondeterministic_seeded in function.tags,
                torch.is_grad_enabled(),
            )
        )
        if phase == "o":
            self.updates.append(RecordedUpdate(self.calls[-1], result))

    # -- slots

    def slot_of(self, tensor: torch.Tensor) -> int:
        """The slot of a tensor that was placed, or that a call gave.

        Raises
        ------
        KeyError
            Neither is so.
        """
        if tensor in self._known:
            slot: int = self._known[tensor]
            return slot
        storage = self._storages[storage_of(tensor).cdata][1]
        return self._shown[storage, _layout(tensor)]

    def _bind(self, tensor: torch.Tensor, op: int) -> int:
        """A new slot, for a tensor that ``op`` gives."""
        slot = self._new()
        reference = storage_of(tensor)
        _, storage = self._storages.setdefault(reference.cdata, (reference, len(self._storages)))
        layout = _layout(tensor)
        self._known[tensor] = slot
        self._shown[storage, layout] = slot
        self.slots[slot] = Slot(op, storage, *layout)
        return slot

    def _new(self) -> int:
        self._n += 1
        return self._n - 1

    def _argument(self, function: Any, argument: Any, free: bool) -> Any:
        """An argument with slots for tensors, and for numbers where those are ``free``."""
        if isinstance(argument, torch.Tensor):
            try:
                return Ref(self.slot_of(argument))
            except KeyError:
                raise InputError(
                    f"{function} reads a tensor of {argument.dtype} {tuple(argument.shape)} that "
                    "the host keeps (an optimizer with capturable=True, say), or that is a view "
                    "which no op made: neither has a call. Leave capturable out"
                ) from None
        if isinstance(argument, (list, tuple)):
            kept = [self._argument(function, each, free) for each in argument]
            return kept if isinstance(argument, list) else tuple(kept)
        if free and type(argument) in (int, float):
            self.numbers.append(self._new())
            self.recorded.append(argument)
            return Ref(self.numbers[-1])
        return argument


def with_numbers(
    function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[dict[str, Any], frozenset[int | str]]:
    """The named arguments with numbers that were left out, and which arguments are numbers.

    PyTorch leaves out those that equal their default, as they may in one step and not in another.
    Numbers are told by position and by name; sizes are none.
    """
    free, defaults = _numbers(function)
    named = dict(kwargs)
    for position, name, default in defaults:
        if position >= len(args):
            named.setdefault(name, default)
    return named, free


@lru_cache(maxsize=1024)
def _numbers(function: Any) -> tuple[frozenset[int | str], list[tuple[int, str, float]]]:
    """Mask of the arguments of an op that are numbers, and the position, name and default of some
    of them.
    """
    free: list[int | str] = []
    defaults = []
    for i, argument in enumerate(function._schema.arguments):
        if any(word in str(argument.type) for word in ("number", "float", "Tensor")):
            free += [i, argument.name]
            if type(argument.default_value) in (int, float):
                defaults.append((i, argument.name, argument.default_value))
    return frozenset(free), defaults


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _layout(tensor: torch.Tensor) -> _Layout:
    return tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.storage_offset()
