"""The tape of a step: every op of a graph as a call that runs, and what is there when it begins."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from loadmaster.base import checks
from loadmaster.base.errors import InputError, importing
from loadmaster.model.graph import OpGraph
from loadmaster.running.tape.calls import Call, Values, runner
from loadmaster.running.tape.slots import Joint, Placeholder, Slot

if TYPE_CHECKING:
    import torch


def no_numbers(step: int) -> Sequence[float]:
    """The host's numbers for a step that needs none."""
    return ()


@dataclass(frozen=True, eq=False)
class Tape:
    """The calls of one step, in order.

    Attributes
    ----------
    graph : OpGraph
        What ``lm.capture`` gives (or ``lm.read`` of a program). Every op that runs has its call.
    calls : tuple of Call
        In the order of the graph.
    slots : Mapping of int to Slot
        Of tensors, by number.
    placeholders : tuple of Placeholder
        Parameters, buffers, the optimizer's slots, inputs and constants, with their tensors. They
        are the model's own, and no replay changes them.
    outputs : Mapping of str to int
        Slots by name: ``"loss"``; ``"output"``, or ``"output.0"``, ``"output.logits"`` where there
        are several; ``"gradient.NAME"`` and ``"parameter.NAME"`` of every parameter, the latter
        with the value that it has after the step.
    joints : Mapping of str to Joint
        Outputs of which there is no slot, since devices have parts of them.
    n_targets : int
        How many of the last placeholders of kind ``"input"`` are targets, not inputs.
    numbers : tuple of int
        Slots of the numbers that the host gives to each step, such as what Adam's count of steps
        comes to.
    host : callable
        Those numbers, of a step (the first is 0).
    again : callable or None
        Records the model once more, with these tensors as its inputs and targets.

    Notes
    -----
    A tape holds functions and tensors of this process. It cannot be saved: record it again.
    """

    graph: OpGraph
    calls: tuple[Call, ...]
    slots: Mapping[int, Slot]
    placeholders: tuple[Placeholder, ...]
    outputs: Mapping[str, int]
    joints: Mapping[str, Joint] = field(default_factory=dict)
    n_targets: int = 0
    numbers: tuple[int, ...] = ()
    host: Callable[[int], Sequence[float]] = field(default=no_numbers, repr=False)
    again: Callable[[Sequence[torch.Tensor]], Tape] | None = field(default=None, repr=False)

    @classmethod
    def of_program(cls, program: Any, example_inputs: Any = None) -> Tape:
        """The tape of an exported program, or of an FX graph.

        Parameters
        ----------
        program : torch.export.ExportedProgram or torch.fx.GraphModule
            Of sizes that are not open. It is left as it is, and the tape starts from its numbers.
        example_inputs
            Positional arguments of the program; those that it was exported with by default.

        Returns
        -------
        Tape
            With ``tape.graph`` equal to what ``lm.read`` gives: an op has the name of its node.

        Raises
        ------
        InputError
            As ``lm.read`` does; and open sizes, inputs that are missing or have no numbers.

        Examples
        --------
        >>> tape = lm.Tape.of_program(torch.export.export(model, (x,)))   # doctest: +SKIP
        """
        with importing("torch", "torch", "running a program"):
            from loadmaster.readers.pytorch.fx import traced
        from loadmaster.running.tape.exported import program_calls

        parts = program_calls(program, traced(program, example_inputs), example_inputs)
        return cls(parts.graph, parts.calls, parts.slots, parts.placeholders, parts.outputs)

    def __repr__(self) -> str:
        return f"Tape({self.graph.name!r}, {len(self.calls)} calls, {len(self.slots)} tensors)"

    def __reduce__(self) -> Any:
        raise TypeError("a tape holds functions of this process and is never pickled: record again")

    def replay(
        self, steps: int = 1, inputs: Any = None, *, targets: Any = None, seed: int = 0
    ) -> dict[str, torch.Tensor]:
        """Run steps here, one after another, each op as it was recorded.

        Numbers are those of the recorded model run by PyTorch itself with as many threads, bit for
        bit, but for random ops: each takes a seed of its own, of ``seed``, step and op.

        Parameters
        ----------
        steps
            How many; parameters, buffers and optimizer slots go on from step to step. The model
            keeps its own.
        inputs, targets
            Of the sizes that were recorded, in the same form; those of the recording by default.
        seed
            Of random ops.

        Returns
        -------
        dict of str to torch.Tensor
            What the last step gave, by the names of `outputs`.

        Raises
        ------
        InputError
            ``steps`` is less than 1, or the inputs are not of the sizes that were recorded.

        Examples
        --------
        >>> tape = lm.record(model, inputs, optimizer=torch.optim.Adam)   # doctest: +SKIP
        >>> tape.replay(steps=3)["loss"]                                  # doctest: +SKIP
        tensor(2.3026)
        """
        from loadmaster.running.tape.replay import Replay

        checks.count("steps", steps)
        replay = Replay(self, self.given(inputs, targets), seed)
        for _ in range(steps):
            replay.step()
        return self.named(replay.values.__getitem__)

    def named(
        self, value: Callable[[int], torch.Tensor], names: Sequence[str] | None = None
    ) -> dict[str, torch.Tensor]:
        """Outputs by name, from the values of their slots; all by default."""
        named = {}
        for name in (*self.outputs, *self.joints) if names is None else names:
            joint = self.joints.get(name)
            named[name] = (
                value(self.outputs[name])
                if joint is None
                else joint.join([value(slot) for slot in joint.slots])
            )
        return named

    def slots_of(self, names: Sequence[str] | None = None) -> list[int]:
        """The slots that outputs are in, ascending; of all by default."""
        slots: set[int] = set()
        for name in (*self.outputs, *self.joints) if names is None else names:
            joint = self.joints.get(name)
            slots.update((self.outputs[name],) if joint is None else joint.slots)
        return sorted(slots)

    def given(self, inputs: Any = None, targets: Any = None) -> dict[int, torch.Tensor]:
        """The tensors of inputs and targets by slot; those of the recording where None is given.

        Raises
        ------
        InputError
            Not as many tensors as were recorded, or of other sizes or types.
        """
        from torch import Tensor
        from torch.utils._pytree import tree_leaves

        placed = [p for p in self.placeholders if p.kind == "input"]
        split = len(placed) - self.n_targets
        values = {}
        for noun, held, value in (
            ("inputs", placed[:split], inputs),
            ("targets", placed[split:], targets),
        ):
            if value is None:
                continue
            leaves = [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]
            if len(leaves) != len(held):
                raise InputError(f"{noun}: {len(leaves)} tensors, but {len(held)} were recorded")
            for placeholder, leaf in zip(held, leaves, strict=True):
                _check_like(placeholder, leaf)
                values[placeholder.slot] = leaf.detach()
        return values

    @cached_property
    def written(self) -> frozenset[int]:
        """Storages that the step changes."""
        return frozenset(self.slots[slot].storage for call in self.calls for slot in call.writes)

    @property
    def changes(self) -> tuple[list[int], list[int]]:
        """Ops that change memory, and the ops whose memory that is."""
        owner: dict[int, int] = {}
        for slot in self.slots.values():
            owner.setdefault(slot.storage, slot.op)
        pairs = {
            (call.op, owner[self.slots[slot].storage])
            for call in self.calls
            for slot in call.writes
        }
        writers = sorted(pairs)
        return [writer for writer, _ in writers], [owned for _, owned in writers]

    @cached_property
    def runners(self) -> tuple[Callable[[Values], None], ...]:
        """A function a call, which also forgets the values that no later call reads."""
        last: dict[int, int] = {}
        for i, call in enumerate(self.calls):
            last |= dict.fromkeys((*call.reads, *(r for r in call.results if r >= 0)), i)
        kept = {*self.slots_of(), *self.numbers, *(p.slot for p in self.placeholders)}
        frees: dict[int, list[int]] = {}
        for slot, i in last.items():
            if slot not in kept:
                frees.setdefault(i, []).append(slot)
        return tuple(runner(call, frees.get(i, ())) for i, call in enumerate(self.calls))

    @property
    def n_values(self) -> int:
        """The length of a list of all slots' values."""
        return 1 + max((*self.slots, *self.numbers), default=-1)


def _check_like(placeholder: Placeholder, value: torch.Tensor) -> None:
    recorded = placeholder.tensor
    if value.shape != recorded.shape or value.dtype != recorded.dtype:
        raise InputError(
            f"input {placeholder.name!r} is {value.dtype} {tuple(value.shape)}, but "
            f"{recorded.dtype} {tuple(recorded.shape)} was recorded: record again with this input"
        )
