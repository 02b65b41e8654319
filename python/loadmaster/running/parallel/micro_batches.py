"""A tape of micro-batches: each runs the calls of a tape recorded at its share of the batch.

Gradients are accumulated in the order of micro-batches, each weighted by its share: the loss must
be a mean over the batch. The optimizer runs once. What a step writes into the model's own buffers,
such as the running statistics of a batch norm, each micro-batch writes in turn.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from loadmaster.base.errors import InputError
from loadmaster.model.batch import batch_of
from loadmaster.model.program import Program
from loadmaster.running.devices.turns import in_turn
from loadmaster.running.parallel.one_micro_batch import MicroBatches
from loadmaster.running.parallel.replicas import at_samples, by_op
from loadmaster.running.tape.calls import Call, Ref, renumbered
from loadmaster.running.tape.slots import Joint, Placeholder, Slot
from loadmaster.running.tape.tape import Tape


def micro_batched(
    program: Program,
    tape: Tape,
    inputs: Mapping[int, torch.Tensor] | None,
    of_program: Callable[[Program, Tape], Tape],
) -> Tape:
    """The tape of a program of micro-batches, whose outputs have the names of the tape's.

    The loss is the mean of those of the micro-batches, by their shares; what there is per sample is
    put together. Any other output has a name per micro-batch: ``auxiliary@m0``, ``auxiliary@m1``.

    Parameters
    ----------
    program
    tape
        Of the whole batch.
    inputs
        Inputs and targets that are not those of the recording, by slot.
    of_program
        Gives the tape of a program without micro-batches, from that of the user's graph.

    Raises
    ------
    InputError
        A batch that the inputs do not have; a model that runs other ops at a share of its batch.
    """
    batch = batch_of(tape.graph)
    if batch is None:
        raise InputError("the tape's graph does not say its batch: micro-batches have no share")
    parts = MicroBatches.of(program, batch)
    samples = [parts.samples(j) for j in range(parts.m)]
    if sum(map(len, samples)) != batch or not all(map(len, samples)):
        sizes = [len(each) for each in samples]
        raise InputError(f"micro-batches of {sizes} samples are not of a batch of {batch}")
    recorded = [at_samples(tape, inputs or {}, batch, each.tolist()) for each in samples]
    tapes = [of_program(parts.of_micro_batch(j), each) for j, each in enumerate(recorded)]
    order = np.argsort(np.concatenate(samples))
    return _JoinedMicroBatches(program, parts, tapes, _per_sample(recorded, samples), order).tape()


def _per_sample(tapes: Sequence[Tape], samples: Sequence[NDArray[np.int64]]) -> set[str]:
    """The outputs that have a row per sample."""
    names = set(tapes[0].outputs)
    for tape, mine in zip(tapes, samples, strict=True):
        sizes = {name: tape.slots[slot].sizes for name, slot in tape.outputs.items()}
        names &= {name for name, of in sizes.items() if of[:1] == (len(mine),)}
    return names


class _JoinedMicroBatches:
    """The tapes of all micro-batches as one; slots and storages are numbered on from tape to tape.

    An op that there is once is that of the first tape.
    """

    def __init__(
        self,
        program: Program,
        parts: MicroBatches,
        tapes: Sequence[Tape],
        per_sample: set[str],
        order: NDArray[np.int64],
    ) -> None:
        self._graph, self._parts, self._tapes = program.graph, parts, tapes
        self._per_sample, self._order = per_sample, torch.from_numpy(order)
        self._is_once: list[bool] = (program.micro < 0).tolist()
        #: By micro-batch, where each op of its tape is in the graph that runs.
        self._at = parts.at
        self._slots: dict[int, Slot] = {}
        self._n = self._n_storages = 0
        #: By micro-batch, the new number of each slot.
        self._slot_at: list[dict[int, int]] = []
        for j in range(len(tapes)):
            self._number(j)
        self._additions: list[Call] = []
        #: The slot of each sum by the storage of what the first micro-batch adds to it.
        self._sums: dict[int, int] = {}
        #: By micro-batch, the slots of what each op makes.
        self._made = [_made(tape) for tape in tapes]
        #: By slot of the first tape, the ops that there are once and that read it.
        self._readers: dict[int, set[int]] = defaultdict(set)
        for call in tapes[0].calls:
            if self._is_once[op := int(self._at[0, call.op])]:
                for slot in call.reads:
                    self._readers[slot].add(op)
        of_maker: dict[int, list[tuple[int, ...]]] = defaultdict(list)
        for maker, ops in parts.sums:
            of_maker[self._shown(maker)].append(ops)
        for maker, chains in of_maker.items():
            for result, ops in zip(self._results(maker, chains), chains, strict=True):
                self._accumulate(maker, result, ops)

    def _number(self, j: int) -> None:
        """New numbers for the slots of a tape; what there is once has those of the first."""
        tape, first, storages = self._tapes[j], self._n, self._n_storages
        here, there = by_op(tape), by_op(self._tapes[0])
        numbers: dict[int, int] = {}
        for slot, one in tape.slots.items():
            op = int(self._at[j, one.op])
            if j and self._is_once[op]:
                numbers[slot] = self._slot_at[0][there[one.op][here[one.op].index(slot)]]
                continue
            numbers[slot] = first + slot
            storage = storages + one.storage
            self._n_storages = max(self._n_storages, storage + 1)
            self._slots[first + slot] = replace(one, op=op, storage=storage)
        numbers |= {slot: first + slot for slot in tape.numbers}
        self._n = first + tape.n_values
        self._slot_at.append(numbers)

    def _accumulate(self, maker: int, result: int, ops: Sequence[int]) -> None:
        """Calls that add up a result of an op of the tapes; ``ops`` add, from the second on."""
        slots = [at[of[maker][result]] for at, of in zip(self._slot_at, self._made, strict=True)]
        weight = [self._parts.weight(maker, j) for j in range(len(slots))]
        first = so_far = slots[0]
        for j, op in enumerate(ops, 1):
            in_place = bool(self._graph.alias_of[op] >= 0)
            like = self._slots[so_far]
            storage = like.storage if in_place else self._n_storages
            self._n_storages += not in_place
            self._slots[self._n] = replace(like, op=op, storage=storage)
            weights = (weight[0] if j == 1 else 1.0, weight[j])
            self._additions.append(
                Call(
                    op,
                    partial(_added, weights, in_place),
                    (Ref(so_far), Ref(slots[j])),
                    {},
                    (self._n,),
                    writes=(so_far,) if in_place else (),
                )
            )
            so_far, self._n = self._n, self._n + 1
        before = self._slots[first].storage
        self._sums[before] = so_far
        # What shows the sum lies where that is.
        for slot, one in self._slots.items():
            if one.storage == before and self._is_once[one.op]:
                self._slots[slot] = replace(one, storage=self._slots[so_far].storage)

    def _shown(self, maker: int) -> int:
        """The op that makes what is added up; of a view that devices take parts of, what that
        shows.
        """
        graph = self._tapes[0].graph
        while not self._made[0].get(maker):
            into = np.flatnonzero((graph.dst == maker) & (graph.roles.tensor >= 0))
            maker = int(graph.src[into[0]])
        return maker

    def _results(self, maker: int, chains: Sequence[Sequence[int]]) -> list[int]:
        """The result of an op of the tapes that each of its sums adds up: the one that the same ops
        read.

        Raises
        ------
        InputError
            No op reads both.
        """
        results = self._made[0][maker]
        if len(results) == 1:
            return [0] * len(chains)
        adding: list[int] = []
        for ops in chains:
            readers = self._read_by(ops[-1])
            left = [i for i in range(len(results)) if i not in adding]
            left.sort(key=lambda i: -len(self._readers[results[i]] & readers))
            if not left or not self._readers[results[left[0]]] & readers:
                name = self._tapes[0].graph.names[maker]
                raise InputError(
                    f"op {name!r} gives several results, and nothing says which of them is "
                    "accumulated: such micro-batches do not run. Plan without them"
                )
            adding.append(left[0])
        return adding

    def _read_by(self, op: int) -> set[int]:
        """The ops that read what an op gives, or views of it."""
        graph, readers, left = self._graph, set[int](), [op]
        while left:
            mine = (graph.src == left.pop()) & (graph.roles.tensor >= 0)
            after = set(graph.dst[mine].tolist()) - readers
            readers |= after
            left += [reader for reader in after if graph.view[reader]]
        return readers

    def _summed(self, slot: int) -> int:
        """The slot that an op which runs once reads in the place of the first micro-batch's."""
        one = self._slots.get(slot)
        if one is None or self._is_once[one.op]:
            return slot
        return self._sums.get(one.storage, slot)

    def tape(self) -> Tape:
        """The whole."""
        calls = [call for j in range(len(self._tapes)) for call in self._calls(j)]
        outputs, joints = self._outputs()
        numbers = [
            at[number]
            for at, tape in zip(self._slot_at, self._tapes, strict=True)
            for number in tape.numbers
        ]
        hosts = [tape.host for tape in self._tapes]
        return Tape(
            graph=self._graph,
            calls=in_turn(self._graph, [*calls, *self._additions], self._slots),
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

            renumbered_call = renumbered(call, ops[call.op], read, at.__getitem__, ops)
            yield replace(renumbered_call, writes=tuple(map(read, call.writes)))

    def _outputs(self) -> tuple[dict[str, int], dict[str, Joint]]:
        outputs: dict[str, int] = {}
        joints: dict[str, Joint] = {}
        for name in (*self._tapes[0].outputs, *self._tapes[0].joints):
            parts = [
                self._output(at, tape, name)
                for at, tape in zip(self._slot_at, self._tapes, strict=True)
            ]
            output = name.partition("@")[0]  # of a replica, or of the whole batch
            if output.startswith(("parameter.", "gradient.")):
                total = self._of_sums(parts)
                if name in self._tapes[0].outputs and len(total.slots) == 1:
                    outputs[name] = total.slots[0]
                else:
                    joints[name] = total
            elif output == "loss":
                op = int(self._tapes[0].slots[self._tapes[0].slots_of([name])[0]].op)
                weights = [self._parts.weight(op, j) for j in range(len(parts))]
                joints[name] = _joint(parts, partial(_mean, weights))
            elif output in self._per_sample:
                order = self._order if output == name else None
                joints[name] = _joint(parts, partial(_put_together, order))
            else:
                joints |= {f"{name}@m{j}": part for j, part in enumerate(parts)}
        return outputs, joints

    def _of_sums(self, parts: Sequence[Joint]) -> Joint:
        """A gradient or a parameter. What no device reads is not added up: it is here."""
        slots: list[int] = []
        weights: list[list[float]] = []
        for i, slot in enumerate(parts[0].slots):
            total = self._summed(slot)
            if total != slot or self._is_once[self._slots[slot].op]:
                slots.append(total)
                weights.append([1.0])
                continue
            op = int(np.flatnonzero(self._at[0] == self._slots[slot].op)[0])
            slots += [part.slots[i] for part in parts]
            weights.append([self._parts.weight(op, j) for j in range(len(parts))])
        return Joint(tuple(slots), partial(_summed_up, parts[0], weights))

    def _output(self, at: Mapping[int, int], tape: Tape, name: str) -> Joint:
        """An output of a micro-batch, as what puts it together of slots."""
        joint = tape.joints.get(name) or Joint((tape.outputs[name],), _only)
        return replace(joint, slots=tuple(at[slot] for slot in joint.slots))


def _made(tape: Tape) -> dict[int, list[int]]:
    """The slots of what each op makes: its own, or those that others take out of it."""
    taken = {call.op: [slot for slot in call.results if slot >= 0] for call in tape.calls}
    return taken | by_op(tape)


def _joint(
    parts: Sequence[Joint], of_all: Callable[[Sequence[torch.Tensor]], torch.Tensor]
) -> Joint:
    """An output of all micro-batches, of what each has."""
    slots = tuple(slot for part in parts for slot in part.slots)
    return Joint(slots, partial(_of_micro_batches, parts, of_all))


def _of_micro_batches(
    parts: Sequence[Joint],
    of_all: Callable[[Sequence[torch.Tensor]], torch.Tensor],
    values: Sequence[torch.Tensor],
) -> torch.Tensor:
    rest = iter(values)
    return of_all([part.join([next(rest) for _ in part.slots]) for part in parts])


def _summed_up(
    whole: Joint, weights: Sequence[Sequence[float]], values: Sequence[torch.Tensor]
) -> torch.Tensor:
    rest = iter(values)
    each = ([next(rest) for _ in of_slot] for of_slot in weights)
    return whole.join([_mean(*both) for both in zip(weights, each, strict=True)])


def _only(values: Sequence[torch.Tensor]) -> torch.Tensor:
    return values[0]


def _added(
    weights: tuple[float, float], in_place: bool, so_far: torch.Tensor, more: torch.Tensor
) -> torch.Tensor:
    """The sum so far and a micro-batch's part, each by its weight."""
    total = so_far if in_place else so_far.clone()
    if weights[0] != 1.0:
        total.mul_(weights[0])
    return total.add_(more, alpha=weights[1])


def _mean(weights: Sequence[float], losses: Sequence[torch.Tensor]) -> torch.Tensor:
    mean = losses[0] * weights[0]
    for weight, loss in zip(weights[1:], losses[1:], strict=True):
        mean = mean + loss * weight
    return mean


def _put_together(order: torch.Tensor | None, parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Rows of samples; in an order, or as they come."""
    rows = torch.cat(list(parts))
    return rows if order is None else rows[order]
