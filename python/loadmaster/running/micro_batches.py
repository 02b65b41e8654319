"""A tape of micro-batches: each runs the calls of a tape recorded at its share of the batch.

Gradients are accumulated in the order of micro-batches, each weighted by its share: the loss must
be a mean over the batch. The optimizer runs once. What a step writes into the model's own buffers,
such as the running statistics of a batch norm, each micro-batch writes in turn.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
import torch

from loadmaster.base.errors import InputError
from loadmaster.model.batch import batch_of
from loadmaster.model.program import COMPUTE, Program
from loadmaster.running.calls import Call, Ref, renumbered
from loadmaster.running.replicas import at_samples, by_op
from loadmaster.running.tape import Joint, Placeholder, Slot, Tape


def micro_batched(
    program: Program, tape: Tape, given: Mapping[int, torch.Tensor] | None = None
) -> Tape:
    """The tape of a program of micro-batches, whose outputs have the names of the tape's.

    The loss is the mean of those of the micro-batches, by their shares; what there is per sample is
    put together. Any other output has a name per micro-batch: ``auxiliary@m0``, ``auxiliary@m1``.

    Parameters
    ----------
    program
        Of micro-batches alone, and of stages.
    tape
        Of the whole batch.
    given
        Inputs and targets that are not those of the recording, by slot.

    Raises
    ------
    InputError
        Micro-batches of replicas, shards or split ops; a batch that the inputs do not have; a model
        that runs other ops at a share of its batch.
    """
    _check(program)
    rows = _rows(program, tape)
    starts = np.cumsum([0, *rows]).tolist()
    tapes = [
        at_samples(tape, given or {}, starts[-1], start, end) for start, end in pairwise(starts)
    ]
    return _Joined(program, tapes, rows).tape()


def _check(program: Program) -> None:
    others = (program.replica >= 0) | (program.rank >= 0) | (program.parts > 1)
    if others.any():
        raise InputError(
            f"{program.label(int(others.argmax()))}: micro-batches run in stages of whole ops, not "
            "of replicas or shards: plan with one device per stage"
        )
    pairs = np.stack([program.serves, program.micro, program.own])
    if len(np.unique(pairs, axis=1).T) < program.graph.n_ops:
        raise InputError(
            "micro-batches of a step that recomputes, or accumulates several results of one op, "
            "do not run: plan without recomputation"
        )


def _rows(program: Program, tape: Tape) -> list[int]:
    """Samples per micro-batch."""
    batch = batch_of(tape.graph)
    if batch is None:
        raise InputError("the tape's graph does not say its batch: micro-batches have no share")
    computes = program.role == COMPUTE
    m = int(program.micro.max()) + 1
    shares = [float(program.share[computes & (program.micro == j)].min()) for j in range(m)]
    rows = [round(batch * share) for share in shares]
    if sum(rows) != batch:
        raise InputError(f"the micro-batches' shares {shares} are not of a batch of {batch}")
    return rows


class _Joined:
    """The tapes of all micro-batches as one; slots and storages are numbered on from tape to tape.

    An op that there is once is that of the first tape.
    """

    def __init__(self, program: Program, tapes: Sequence[Tape], rows: Sequence[int]) -> None:
        self._graph, self._tapes, self._rows = program.graph, tapes, rows
        self._weights = [n / sum(rows) for n in rows]
        micro, own = program.micro, program.own
        self._is_once: list[bool] = (micro < 0).tolist()
        #: By micro-batch, where each op of its tape is in the graph that runs.
        self._at = np.full((len(tapes), tapes[0].graph.n_ops), -1, dtype=np.int64)
        for j in range(len(tapes)):
            mine = np.flatnonzero(~own & ((micro == j) | (micro < 0)))
            self._at[j, program.serves[mine]] = mine
        self._slots: dict[int, Slot] = {}
        self._n = self._n_storages = 0
        #: By micro-batch, the new number of each slot.
        self._slot_at: list[dict[int, int]] = []
        for j in range(len(tapes)):
            self._number(j)
        self._additions: list[Call] = []
        #: The slot of each sum by the storage of what the first micro-batch adds to it.
        self._sums: dict[int, int] = {}
        adds: dict[int, list[int]] = defaultdict(list)
        for op in np.flatnonzero(own).tolist():
            adds[int(program.serves[op])].append(op)
        for maker, ops in adds.items():
            self._accumulate(maker, ops)

    def _number(self, j: int) -> None:
        """New numbers for the slots of a tape; what there is once has those of the first."""
        tape, first, storages = self._tapes[j], self._n, self._n_storages
        here, there = by_op(tape), by_op(self._tapes[0])
        found: dict[int, int] = {}
        for slot, one in tape.slots.items():
            op = int(self._at[j, one.op])
            if j and self._is_once[op]:
                found[slot] = self._slot_at[0][there[one.op][here[one.op].index(slot)]]
                continue
            found[slot] = first + slot
            storage = storages + one.storage
            self._n_storages = max(self._n_storages, storage + 1)
            self._slots[first + slot] = replace(one, op=op, storage=storage)
        found |= {slot: first + slot for slot in tape.numbers}
        self._n = first + tape.n_values
        self._slot_at.append(found)

    def _accumulate(self, maker: int, ops: Sequence[int]) -> None:
        """Calls that add up what an op of the tapes makes; ``ops`` add, from the second on."""
        made = [self._slot_at[j][by_op(tape)[maker][0]] for j, tape in enumerate(self._tapes)]
        first = so_far = made[0]
        for j, op in enumerate(ops, 1):
            in_place = bool(self._graph.alias_of[op] >= 0)
            like = self._slots[so_far]
            storage = like.storage if in_place else self._n_storages
            self._n_storages += not in_place
            self._slots[self._n] = replace(like, op=op, storage=storage)
            weights = (self._weights[0] if j == 1 else 1.0, self._weights[j])
            self._additions.append(
                Call(
                    op, partial(_added, weights, in_place), (Ref(so_far), Ref(made[j])), {},
                    (self._n,), writes=(so_far,) if in_place else (),
                )
            )  # fmt: skip
            so_far, self._n = self._n, self._n + 1
        before = self._slots[first].storage
        self._sums[before] = so_far
        # What shows the sum lies where that is.
        for slot, one in self._slots.items():
            if one.storage == before and self._is_once[one.op]:
                self._slots[slot] = replace(one, storage=self._slots[so_far].storage)

    def _summed(self, slot: int) -> int:
        """What an op that there is once reads in the place of what the first micro-batch made."""
        one = self._slots.get(slot)
        if one is None or self._is_once[one.op]:
            return slot
        return self._sums.get(one.storage, slot)

    def tape(self) -> Tape:
        """The whole."""
        calls = [call for j in range(len(self._tapes)) for call in self._calls(j)]
        outputs, joints = self._outputs()
        numbers = [
            at[number] for at, tape in zip(self._slot_at, self._tapes, strict=True)
            for number in tape.numbers
        ]  # fmt: skip
        hosts = [tape.host for tape in self._tapes]
        return Tape(
            graph=self._graph,
            calls=tuple(sorted([*calls, *self._additions], key=lambda call: call.op)),
            slots=self._slots,
            placeholders=tuple(p for j in range(len(self._tapes)) for p in self._placeholders(j)),
            outputs=outputs,
            joints=joints,
            numbers=tuple(numbers),
            host=lambda step: [number for host in hosts for number in host(step)],
        )

    def _placeholders(self, j: int) -> Iterator[Placeholder]:
        for one in self._tapes[j].placeholders:
            op = int(self._at[j, one.op])
            if not j or not self._is_once[op]:
                yield replace(one, slot=self._slot_at[j][one.slot], op=op)

    def _calls(self, j: int) -> Iterator[Call]:
        at, ops = self._slot_at[j], self._at[j].tolist()
        for call in self._tapes[j].calls:
            is_once = self._is_once[ops[call.op]]
            if j and is_once:
                continue

            def read(slot: int, is_once: bool = is_once) -> int:
                return self._summed(at[slot]) if is_once else at[slot]

            made = renumbered(call, ops[call.op], read, at.__getitem__, ops)
            yield replace(made, writes=tuple(map(read, call.writes)))

    def _outputs(self) -> tuple[dict[str, int], dict[str, Joint]]:
        outputs: dict[str, int] = {}
        joints: dict[str, Joint] = {}
        for name in self._tapes[0].outputs:
            slots = [
                at[tape.outputs[name]] for at, tape in zip(self._slot_at, self._tapes, strict=True)
            ]
            sizes = [self._slots[slot].sizes for slot in slots]
            if name.startswith(("parameter.", "gradient.")):
                outputs[name] = self._summed(slots[0])
            elif name == "loss":
                joints[name] = Joint(tuple(slots), partial(_mean, self._weights))
            elif [s[0] if s else 0 for s in sizes] == list(self._rows):
                joints[name] = Joint(tuple(slots), _put_together)
            else:
                outputs |= {f"{name}@m{j}": slot for j, slot in enumerate(slots)}
        return outputs, joints


def _added(
    weights: tuple[float, float], in_place: bool, so_far: torch.Tensor, more: torch.Tensor
) -> torch.Tensor:
    """What there is so far and a micro-batch's part, each by its weight."""
    total = so_far if in_place else so_far.clone()
    if weights[0] != 1.0:
        total.mul_(weights[0])
    return total.add_(more, alpha=weights[1])


def _mean(weights: Sequence[float], losses: Sequence[torch.Tensor]) -> torch.Tensor:
    found = losses[0] * weights[0]
    for weight, loss in zip(weights[1:], losses[1:], strict=True):
        found = found + loss * weight
    return found


def _put_together(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat(list(parts))
