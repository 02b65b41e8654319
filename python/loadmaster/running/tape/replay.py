"""Runs a tape here, op by op in its own order: what every other way of running it is held to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from loadmaster.base.errors import LoadmasterError, RunError
from loadmaster.running.tape.calls import Call, Values
from loadmaster.running.tape.slots import Placeholder, Slot

if TYPE_CHECKING:
    from loadmaster.running.tape.tape import Tape

_MASK = (1 << 64) - 1


def seed_of(seed: int, step: int, op: int) -> int:
    """The seed of a random op in a step: SplitMix64 of the three, so that near ones differ.

    >>> seed_of(0, 0, 1) != seed_of(0, 1, 0)
    True
    """
    mixed = seed & _MASK
    for word in (step, op):
        mixed = (mixed + 0x9E3779B97F4A7C15 * (word + 1)) & _MASK
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        mixed ^= mixed >> 31
    return mixed >> 1  # generators take 63 bits


@contextmanager
def below_autograd() -> Iterator[None]:
    """As kernels run under autograd: nothing is kept for a backward pass."""
    enabled = torch.is_grad_enabled()
    try:
        with torch._C._AutoDispatchBelowAutograd():
            yield
    finally:
        torch.set_grad_enabled(enabled)


def prepare(call: Call, seed: int, step: int) -> None:
    """The state in which a call runs: autograd on or off, and its seed where it is random."""
    torch._C._set_grad_enabled(call.with_grad)
    if call.random:
        torch.manual_seed(seed_of(seed, step, call.op if call.seeded < 0 else call.seeded))


class Replay:
    """A tape with tensors of its own, step after step."""

    def __init__(self, tape: Tape, inputs: Mapping[int, torch.Tensor], seed: int = 0) -> None:
        self._tape = tape
        self._seed = seed
        self.step_index = 0
        self.values: Values = [None] * tape.n_values
        kept, self._fresh = starting(tape, tape.placeholders, inputs)
        for slot, tensor in kept.items():
            self.values[slot] = tensor

    def step(self, seen: Callable[[Call], None] | None = None) -> None:
        """Run the next step; `values` holds what it gave until the step after it.

        ``seen`` is told of each call that has run.
        """
        tape, values = self._tape, self.values
        for slot, number in zip(tape.numbers, tape.host(self.step_index), strict=True):
            values[slot] = number
        for slot, tensor in self._fresh.items():
            values[slot] = tensor.clone()
        with below_autograd(), torch.random.fork_rng(devices=[]):
            for call, run in zip(tape.calls, tape.runners, strict=True):
                prepare(call, self._seed, self.step_index)
                try:
                    run(values)
                except Exception as error:
                    raise self._failed(call, error) from error
                if seen is not None:
                    seen(call)
                if call.brings:  # what is sent is what it is now
                    for slot in call.results:
                        values[slot] = None if values[slot] is None else values[slot].clone()
        self.step_index += 1

    def _failed(self, call: Call, error: Exception) -> RunError:
        """The error of a call, with its op."""
        graph = self._tape.graph
        words = "" if isinstance(error, LoadmasterError) else f"{type(error).__name__}: "
        of = f"op {graph.names[call.op]!r} ({graph.kinds[call.op]})"
        return RunError(
            f"{of} fails: {words}{error}. If it is a part of an op, plan with that op whole "
            '(a recipe: "Replicate")'
        )


def layouts(tape: Tape, inputs: Mapping[int, torch.Tensor]) -> dict[int, Slot]:
    """The layout of every tensor in memory while a step runs, which it does once.

    That may differ from the recording: with other inputs, and where PyTorch's kernels without data
    do not know what the real ones give (the workspace of a fused LSTM).
    """
    replay = Replay(tape, inputs)
    placed = dict(tape.slots)

    def look(slots: Iterable[int]) -> None:
        for slot in slots:
            tensor = replay.values[slot] if slot >= 0 else None
            if tensor is not None:
                placed[slot] = replace(
                    placed[slot],
                    dtype=tensor.dtype,
                    sizes=tuple(tensor.shape),
                    strides=tensor.stride(),
                    offset=tensor.storage_offset(),
                )

    replay.step(lambda call: look(call.results))
    look(p.slot for p in tape.placeholders)
    return placed


def starting(
    tape: Tape, placeholders: Iterable[Placeholder], inputs: Mapping[int, torch.Tensor]
) -> tuple[dict[int, torch.Tensor], dict[int, torch.Tensor]]:
    """Tensors of placeholders by slot: those that stay, and those to clone before every step.

    What steps change and hand on is a copy of the model's own. Inputs and constants that a step
    changes are the same again when the next one begins.
    """
    kept, fresh = {}, {}
    copies: dict[int, torch.UntypedStorage] = {}
    for placeholder in placeholders:
        tensor = inputs.get(placeholder.slot, placeholder.tensor)
        if tape.slots[placeholder.slot].storage not in tape.written:
            kept[placeholder.slot] = tensor
        elif placeholder.kind in ("input", "constant"):
            fresh[placeholder.slot] = tensor
        else:
            kept[placeholder.slot] = _copied(tensor, copies)
    return kept, fresh


def _copied(tensor: torch.Tensor, copies: dict[int, torch.UntypedStorage]) -> torch.Tensor:
    """The tensor in a copy of its storage; tensors that share one share its copy."""
    storage = tensor.untyped_storage()
    if storage.data_ptr() not in copies:
        copies[storage.data_ptr()] = storage.clone()
    copy = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return copy.set_(
        copies[storage.data_ptr()], tensor.storage_offset(), tensor.shape, tensor.stride()
    )
