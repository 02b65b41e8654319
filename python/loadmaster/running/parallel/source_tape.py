"""Source tape: the recorded step whose ops devices share, looked up by op, slot and view."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from loadmaster.base.errors import InputError, refusing
from loadmaster.dimensions.dimensions import Dimensions
from loadmaster.dimensions.form import Form
from loadmaster.running.parallel.parts import counted
from loadmaster.running.parallel.pieces import Shown, order_of
from loadmaster.running.tape.calls import Call, runner
from loadmaster.running.tape.slots import Slot
from loadmaster.running.tape.tape import Tape
from loadmaster.transforms.conversions import UPDATED, Conversions


@dataclass(frozen=True, slots=True)
class ShownTensor:
    """The tensor whose elements a slot has: output ``output`` of ``op``, seen through views.

    ``shown`` says how the views show its elements.
    """

    op: int
    output: int
    shown: Shown


@dataclass(frozen=True, eq=False)
class SourceTape:
    """A tape, and the dimensions of its graph.

    Attributes
    ----------
    tape : Tape
    dimensions : Dimensions
    inputs : mapping of int to tensor
        Inputs and targets that are not those of the recording, by slot.
    """

    tape: Tape
    dimensions: Dimensions
    inputs: Mapping[int, torch.Tensor]

    @cached_property
    def slot_of(self) -> dict[tuple[int, int], int]:
        """The slot of each output of an op, by op and output."""
        slots = {(placed.op, 0): placed.slot for placed in self.tape.placeholders}
        for call in self.tape.calls:
            slots |= {(call.op, i): slot for i, slot in enumerate(call.results)}
        return slots

    @cached_property
    def tensors(self) -> dict[int, torch.Tensor]:
        """The tensor of each placeholder, by op."""
        return {p.op: self.inputs.get(p.slot, p.tensor) for p in self.tape.placeholders}

    @cached_property
    def numbers(self) -> dict[int, int]:
        """The host's numbers, such as a learning rate: where each slot is among them."""
        return {slot: i for i, slot in enumerate(self.tape.numbers)}

    @cached_property
    def views(self) -> dict[int, tuple[Call, int]]:
        """The view that gives each slot that is a view, and which of its results it is."""
        return {
            slot: (call, i)
            for call in self.tape.calls
            if self.tape.graph.view[call.op]
            for i, slot in enumerate(call.results)
        }

    @cached_property
    def maker(self) -> dict[int, tuple[int, int]]:
        """The op that makes each slot that is no view, and which of its outputs it is."""
        makers = {placed.slot: (placed.op, 0) for placed in self.tape.placeholders}
        for call in self.tape.calls:
            if not self.tape.graph.view[call.op]:
                makers |= {slot: (call.op, i) for i, slot in enumerate(call.results)}
        return makers

    @property
    def runs(self) -> list[Call]:
        """The calls that are no views."""
        return [call for call in self.tape.calls if not self.tape.graph.view[call.op]]

    def form(self, op: int) -> Form:
        """The form of an op."""
        form: Form = self.dimensions.forms[self.dimensions.form_of[op]]
        return form

    def has_form(self, op: int) -> bool:
        """True for an op that has tensors."""
        return bool(self.dimensions.form_of[op] >= 0)

    def slot(self, op: int, output: int) -> Slot:
        """The slot of an output."""
        return self.tape.slots[self.slot_of[op, output]]

    def tensor_slots(self, call: Call) -> list[int]:
        """The slots of a call's tensors in the order of its arguments, without the numbers."""
        return [slot for slot in counted(call)[1] if slot not in self.numbers]

    def last_writes(self, conversions: Conversions) -> dict[int, int]:
        """The op that writes each parameter or buffer last, but for those that a collective
        updates.
        """
        graph = self.tape.graph
        writers = np.flatnonzero((graph.alias_of >= 0) & ~graph.view).tolist()
        last = {int(graph.alias_of[op]): op for op in writers}
        for tensor in conversions.tensor[conversions.traffic == UPDATED].tolist():
            last.pop(int(graph.alias_of[conversions.layout.maker[tensor]]), None)
        return last

    def chain(self, slot: int) -> tuple[int, list[tuple[Call, int]]]:
        """The slot that views show, and these, the last one first."""
        chain: list[tuple[Call, int]] = []
        while slot in self.views:
            chain.append(self.views[slot])
            slot = chain[-1][0].reads[0]
        return slot, chain

    def shown_by(self, slot: int) -> ShownTensor:
        """The tensor that a slot shows, through views."""
        at, chain = self.chain(slot)
        return ShownTensor(*self.maker[at], self._shown(at, chain))

    def _shown(self, root: int, chain: Sequence[tuple[Call, int]]) -> Shown:
        """The elements of a tensor as views show them: they are run on a tensor without data, which
        lies in memory as it was recorded.

        Raises
        ------
        InputError
            A view that has no place in a part, or shows a copy.
        """
        slot = self.tape.slots[root]
        sizes, strides = slot.sizes, Shown.whole(slot.sizes).strides
        if not chain:
            return Shown.whole(sizes)
        if order_of(sizes, slot.strides) is not None:
            strides = slot.strides
        tensor = torch.empty_strided(sizes, strides, device="meta")
        of = None if tensor.is_contiguous() else (sizes, strides)
        shown = tensor
        for call, i in reversed(chain):
            part, slots = counted(call)
            values: list[Any] = [shown] * len(slots) + [None] * len(call.results)
            results = tuple(len(slots) + j for j in range(len(call.results)))
            with refusing(self._refusal(call.op), RuntimeError):
                runner(replace(part, results=results))(values)
            shown = values[len(slots) + i]
        if shown.untyped_storage()._cdata != tensor.untyped_storage()._cdata:
            name = self.tape.graph.names[self.tape.slots[root].op]
            raise InputError(
                f"a view of what op {name!r} gives shows a copy where parts of it are taken: label "
                "the op whole"
            )
        return Shown(tuple(shown.shape), shown.stride(), shown.storage_offset(), of)

    def _refusal(self, op: int) -> str:
        """The refusal of parts of a view."""
        name, kind = self.tape.graph.names[op], self.tape.graph.kinds[op]
        return f"parts of the view {name!r} ({kind}) cannot be taken: label the op behind it whole"
