"""A tape of replicas: each runs the calls of a tape that was recorded at its share of the batch.

The members of an all-reduce sum the gradients of all replicas, each weighted by its share, in the
order of replicas: so all get the same sums, bit for bit. With equal shares that is what PyTorch's
DistributedDataParallel does. The loss must be a mean over the batch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from loadmaster.base.errors import InputError
from loadmaster.model.batch import batch_of
from loadmaster.model.program import Program
from loadmaster.running.calls import Call, Ref, renumbered
from loadmaster.running.tape import Placeholder, Slot, Tape


def replicated(
    program: Program, tape: Tape, given: Mapping[int, torch.Tensor] | None = None
) -> Tape:
    """The tape of a program of replicas, whose outputs have the names of the tape's.

    Of a parameter and of a sum of gradients, that is the first replica's; what depends on the batch
    has a name per replica: ``loss@r0``, ``loss@r1``.

    Parameters
    ----------
    program
        Of whole replicas whose gradients are all-reduced, or of replicas that are not trained.
    tape
        Of the whole batch.
    given
        Inputs and targets that are not those of the recording, by slot.

    Raises
    ------
    InputError
        A program with other parts than these; a batch that the inputs do not have; a model that
        runs other ops at a share of its batch.
    """
    _check(program)
    rows = _rows(program, tape)
    starts = np.cumsum([0, *rows]).tolist()
    batch = starts[-1]
    parts = [
        _Replica(program, r, _at(tape, given or {}, batch, starts[r], starts[r + 1]))
        for r in range(len(rows))
    ]
    joined = _Joined(program, parts, [n / batch for n in rows])
    return joined.tape()


def _check(program: Program) -> None:
    parts = np.flatnonzero(program.parts > 1)
    if len(parts):
        raise InputError(f"{program.label(int(parts[0]))}: ops that are split do not run on a tape")
    kinds = {label.partition("/")[0] for label in program.graph.collectives if label}
    names = {label.partition("/")[2].rstrip("0123456789") for label in program.graph.collectives}
    if kinds - {"all_reduce"} or names - {"", "gradients"}:
        raise InputError(
            f"the replicas need {', '.join(sorted(kinds))} of {', '.join(sorted(names - {''}))}: "
            'only gradients that are all-reduced run (aggregation="all-reduce", batch_norm="local")'
        )
    alone = np.flatnonzero((program.replica < 0) | (program.own & ~program.graph.is_member))
    if len(alone):
        raise InputError(
            f"{program.label(int(alone[0]))} is in no replica: only whole replicas run on a tape "
            '(aggregation="all-reduce")'
        )


def _rows(program: Program, tape: Tape) -> list[int]:
    """Samples per replica."""
    batch = batch_of(tape.graph)
    k = int(program.replica.max()) + 1
    shares = [float(program.share[program.replica == r].min()) for r in range(k)]
    if batch is None:
        raise InputError("the tape's graph does not say its batch: replicas have no share of it")
    rows = [round(batch * share) for share in shares]
    if sum(rows) != batch:
        raise InputError(f"the replicas' shares {shares} are not of a batch of {batch}")
    return rows


def _at(tape: Tape, given: Mapping[int, torch.Tensor], batch: int, start: int, end: int) -> Tape:
    """The tape of some of the samples."""
    if tape.again is None:
        raise InputError("a tape of a program cannot be recorded at a share of its batch")
    placed = [p for p in tape.placeholders if p.kind == "input"]
    tensors = [given.get(p.slot, p.tensor) for p in placed]
    parts = [t[start:end] if t.dim() and len(t) == batch else t for t in tensors]
    found = tape.again(parts)
    pairs = zip(tape.graph.names, found.graph.names, strict=False)
    other = next((f"{b!r}, not {a!r}" for a, b in pairs if a != b), None)
    if other is not None or found.graph.n_ops != tape.graph.n_ops:
        raise InputError(
            f"with {end - start} of {batch} samples the model runs other ops"
            f"{f' ({other})' if other else ''}: use fewer replicas, or a larger batch"
        )
    return found


class _Replica:
    """A replica's tape, and where its ops stand in the graph that runs."""

    def __init__(self, program: Program, number: int, tape: Tape) -> None:
        self.tape = tape
        at = np.full(tape.graph.n_ops, -1, dtype=np.int64)
        mine = np.flatnonzero((program.replica == number) & (program.origin >= 0))
        at[program.origin[mine]] = mine
        self.at: list[int] = at.tolist()


@dataclass(frozen=True, slots=True)
class _Summed:
    """A gradient of a bucket: its slots in all replicas, and those of the sums."""

    shares: tuple[int, ...]
    sums: tuple[int, ...]


class _Joined:
    """The tapes of all replicas as one; slots and storages are numbered on from tape to tape."""

    def __init__(
        self, program: Program, parts: Sequence[_Replica], weights: Sequence[float]
    ) -> None:
        self._program, self._parts, self._weights = program, parts, weights
        self._first = np.cumsum([0, *(part.tape.n_values for part in parts)]).tolist()
        self._slots: dict[int, Slot] = {}
        self._n_storages = 0
        for r, part in enumerate(parts):
            most = self._n_storages
            for slot, one in part.tape.slots.items():
                storage = self._n_storages + one.storage
                most = max(most, storage + 1)
                self._slots[slot + self._first[r]] = replace(
                    one, op=part.at[one.op], storage=storage
                )
            self._n_storages = most
        self._given: dict[int, int] = {}
        for slot, one in self._slots.items():
            self._given.setdefault(one.op, slot)
        self._n = self._first[-1]
        #: By collective, its members in the order of replicas, and its gradients.
        self._members: dict[str, list[int]] = defaultdict(list)
        for op in np.flatnonzero(program.graph.is_member).tolist():
            self._members[program.graph.collectives[op]].append(op)
        self._gradients = {label: self._summed(members) for label, members in self._members.items()}
        #: By member: the slot of the sum by the storage of the replica's own gradient.
        self._sum_of: dict[int, dict[int, int]] = defaultdict(dict)
        for label, members in self._members.items():
            for summed in self._gradients[label]:
                for r, member in enumerate(members):
                    own = self._slots[summed.shares[r]]
                    self._sum_of[member][own.storage] = summed.sums[r]

    def tape(self) -> Tape:
        """The whole."""
        calls = [
            self._call(r, call) for r, part in enumerate(self._parts) for call in part.tape.calls
        ]
        calls += [call for label in self._members for call in self._collective(label)]
        numbers = [
            number + self._first[r]
            for r, part in enumerate(self._parts)
            for number in part.tape.numbers
        ]
        hosts = [part.tape.host for part in self._parts]
        return Tape(
            graph=self._program.graph,
            calls=tuple(sorted(calls, key=lambda call: call.op)),
            slots=self._slots,
            placeholders=tuple(self._placeholders()),
            outputs=self._outputs(),
            numbers=tuple(numbers),
            host=lambda step: [number for host in hosts for number in host(step)],
        )

    def _summed(self, members: Sequence[int]) -> list[_Summed]:
        """The gradients of a bucket. Every member reads them in the same order."""
        graph = self._program.graph
        reads = [
            [self._given[op] for op in dict.fromkeys(graph.src[graph.dst == member].tolist())]
            for member in members
        ]
        found = []
        for shares in zip(*reads, strict=True):
            sums = []
            for slot, member in zip(shares, members, strict=True):
                self._slots[self._n] = replace(
                    self._slots[slot], op=member, storage=self._n_storages, offset=0
                )
                sums.append(self._n)
                self._n += 1
                self._n_storages += 1
            found.append(_Summed(shares, tuple(sums)))
        return found

    def _collective(self, label: str) -> list[Call]:
        """A call per member: it sums what all replicas have."""
        gradients = self._gradients[label]
        shares = [[Ref(slot) for slot in gradient.shares] for gradient in gradients]
        function = partial(_sums, self._weights)
        return [
            Call(
                member, function, (shares,), {}, tuple(g.sums[r] for g in gradients), True,
                shares=True,
            )
            for r, member in enumerate(self._members[label])
        ]  # fmt: skip

    def _call(self, r: int, call: Call) -> Call:
        """A call of a replica, which reads sums where its op reads them."""
        part, first = self._parts[r], self._first[r]
        op = part.at[call.op]
        graph = self._program.graph
        sources = graph.src[graph.dst == op]
        sums: dict[int, int] = {}
        for member in sources[graph.is_member[sources]].tolist():
            sums |= self._sum_of[member]

        def at(slot: int) -> int:
            here: int = slot + first
            one = self._slots.get(here)
            return here if one is None else sums.get(one.storage, here)

        return renumbered(call, op, at, lambda slot: slot + first, part.at)

    def _placeholders(self) -> list[Placeholder]:
        found = []
        for r, part in enumerate(self._parts):
            tape = part.tape
            for one in tape.placeholders:
                own = r and tape.slots[one.slot].storage in tape.written
                tensor = one.tensor.clone() if own else one.tensor
                found.append(
                    replace(one, slot=one.slot + self._first[r], op=part.at[one.op], tensor=tensor)
                )
        return found

    def _outputs(self) -> dict[str, int]:
        sums = {
            summed.shares[0]: summed.sums[0]
            for gradients in self._gradients.values()
            for summed in gradients
        }
        by_storage = {self._slots[share].storage: total for share, total in sums.items()}
        found = {}
        for r, part in enumerate(self._parts):
            for name, own in part.tape.outputs.items():
                slot = own + self._first[r]
                if not name.startswith(("parameter.", "gradient.")):
                    found[f"{name}@r{r}"] = slot
                elif not r:
                    found[name] = by_storage.get(self._slots[slot].storage, slot)
        return found


def _sums(weights: Sequence[float], shares: Sequence[Sequence[Any]]) -> list[Any]:
    """The weighted sum of each gradient over the replicas."""
    found = []
    for first, *others in shares:
        total = torch.empty_strided(first.shape, first.stride(), dtype=first.dtype)
        torch.mul(first, weights[0], out=total)
        for weight, other in zip(weights[1:], others, strict=True):
            total.add_(other, alpha=weight)
        found.append(total)
    return found
