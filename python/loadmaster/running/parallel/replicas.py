"""A tape of replicas: each runs the calls of a tape that was recorded at its share of the batch.

The members of a collective sum the gradients of all replicas, each weighted by its share, in the
order of replicas: so all get the same sums, bit for bit. With equal shares that is what PyTorch's
DistributedDataParallel does. The loss must be a mean over the batch.

Of an optimizer that is sharded, a replica has the sums of its shard, updates that, and takes what
the others have updated. With a parameter server one op sums, and the optimizer runs once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from loadmaster.base.errors import InputError
from loadmaster.model.batch import batch_of
from loadmaster.model.program import COMPUTE, Program
from loadmaster.running.devices.turns import in_turn
from loadmaster.running.parallel.flat import Flat, flat_shards
from loadmaster.running.parallel.statistics import PartOfWhole, exchange_of
from loadmaster.running.tape.calls import Call, Ref, renumbered
from loadmaster.running.tape.slots import Joint, Placeholder, Slot
from loadmaster.running.tape.tape import Tape
from loadmaster.transforms.gradients import Updates

#: Beginning of the name of a collective of batch norms.
_STATISTICS = "all_reduce/statistics"


def replicated(
    program: Program, tape: Tape, inputs: Mapping[int, torch.Tensor] | None = None
) -> Tape:
    """The tape of a program of replicas, whose outputs have the names of the tape's.

    Of a parameter and of a sum of gradients, that is the first replica's, or what all have of it;
    what depends on the batch has a name per replica: ``loss@r0``, ``loss@r1``.

    Parameters
    ----------
    program
        Of replicas.
    tape
        Of the whole batch.
    inputs
        Inputs and targets that are not those of the recording, by slot.

    Raises
    ------
    InputError
        A batch that the inputs do not have; a model that runs other ops at a share of its batch; an
        op of a sharded optimizer that does not work on parts of a tensor; a batch norm of a kind
        whose statistics are not known.
    """
    rows = _rows(program, tape)
    starts = np.cumsum([0, *rows]).tolist()
    batch = starts[-1]
    parts = [
        _Replica(program, r, at_samples(tape, inputs or {}, batch, range(starts[r], starts[r + 1])))
        for r in range(len(rows))
    ]
    joined = _JoinedReplicas(program, parts, [n / batch for n in rows])
    return joined.tape()


def _rows(program: Program, tape: Tape) -> list[int]:
    """Samples per replica."""
    batch = batch_of(tape.graph)
    k = int(program.replica.max()) + 1
    computes = program.role == COMPUTE
    shares = [float(program.share[computes & (program.replica == r)].min()) for r in range(k)]
    if batch is None:
        raise InputError("the tape's graph does not say its batch: replicas have no share of it")
    rows = [round(batch * share) for share in shares]
    if sum(rows) != batch:
        raise InputError(f"the replicas' shares {shares} are not of a batch of {batch}")
    return rows


def at_samples(
    tape: Tape, inputs: Mapping[int, torch.Tensor], batch: int, samples: Sequence[int]
) -> Tape:
    """The tape of some of the samples."""
    rows = torch.tensor(samples)
    if tape.again is None:
        raise InputError("a tape of a program cannot be recorded at a share of its batch")
    placed = [p for p in tape.placeholders if p.kind == "input"]
    tensors = [inputs.get(p.slot, p.tensor) for p in placed]
    parts = [t[rows] if t.dim() and len(t) == batch else t for t in tensors]
    part = tape.again(parts)
    pairs = zip(tape.graph.names, part.graph.names, strict=False)
    other = next((f"{b!r}, not {a!r}" for a, b in pairs if a != b), None)
    if other is not None or part.graph.n_ops != tape.graph.n_ops:
        raise InputError(
            f"with {len(rows)} of {batch} samples the model runs other ops"
            f"{f' ({other})' if other else ''}: use fewer replicas or micro-batches, or a larger "
            "batch"
        )
    return part


class _Replica:
    """A replica's tape, and where its ops stand in the graph that runs; -1: nowhere."""

    def __init__(self, program: Program, number: int, tape: Tape) -> None:
        self.tape = tape
        at = np.full(tape.graph.n_ops, -1, dtype=np.int64)
        is_mine = (program.replica == number) | (program.replica < 0)
        mine = np.flatnonzero(is_mine & (program.origin >= 0))
        at[program.origin[mine]] = mine
        self.at: list[int] = at.tolist()


@dataclass(frozen=True, slots=True)
class _Gradient:
    """A gradient that is summed: by which collective or op, and its slots in all replicas."""

    group: str
    shares: tuple[int, ...]


class _JoinedReplicas:
    """The tapes of all replicas as one; slots and storages are numbered on from tape to tape."""

    def __init__(
        self, program: Program, parts: Sequence[_Replica], weights: Sequence[float]
    ) -> None:
        self._program, self._parts, self._weights = program, parts, weights
        self._replica = program.replica.tolist()
        self._slots: dict[int, Slot] = {}
        self._n = self._n_storages = 0
        #: By replica, the new number of each slot.
        self._at: list[dict[int, int]] = []
        for r in range(len(parts)):
            self._number(r)
        self._given: dict[int, int] = {}
        for slot, one in self._slots.items():
            self._given.setdefault(one.op, slot)
        self._sources: dict[int, list[int]] = defaultdict(list)
        for src, dst in zip(program.graph.src.tolist(), program.graph.dst.tolist(), strict=True):
            self._sources[dst].append(src)
        #: By collective, its members in the order of replicas; by a server's sum, the op itself.
        self._members: dict[str, list[int]] = defaultdict(list)
        self._group_of: dict[int, str] = {}
        for op in np.flatnonzero(program.own).tolist():
            label = program.graph.collectives[op] or program.graph.names[op]
            self._members[label].append(op)
            self._group_of[op] = label
        #: By replica and storage of a gradient, what sums it.
        self._gradients: list[dict[int, _Gradient]] = [{} for _ in parts]
        for label, members in self._members.items():
            if not label.startswith(("all_gather/", _STATISTICS)):
                self._find_gradients(label, members)
        #: The slots of sums, by gradient and member; and the shard that each is, if it is one.
        self._sums: dict[tuple[_Gradient, int], int] = {}
        self._cuts: dict[int, tuple[Flat, int]] = {}
        is_sharded = any(label.startswith("all_gather/") for label in self._members)
        #: By op of the tape that works on shards, and by parameter: what its shards are.
        self._flat = flat_shards(program, parts[0].tape, len(parts)) if is_sharded else {}
        #: By replica and slot of a whole parameter, the slot of the replica's shard of it.
        self._shard_of: list[dict[int, int]] = [{} for _ in parts]
        self._placeholders = [p for r in range(len(parts)) for p in self._placed(r)]
        #: By member of a batch norm's collective: slots of what it brings, and of what it gives.
        self._statistics: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {}

    def _number(self, r: int) -> None:
        """New numbers for the slots of a replica; what all replicas share has the first one's."""
        part, first, storages = self._parts[r], self._n, self._n_storages
        here, there = (by_op(each.tape) for each in (part, self._parts[0]))
        number_of: dict[int, int] = {}
        for slot, one in part.tape.slots.items():
            op = part.at[one.op]
            if op >= 0 and r and self._replica[op] < 0:
                number_of[slot] = self._at[0][there[one.op][here[one.op].index(slot)]]
            elif op >= 0:
                number_of[slot] = first + slot
                storage = storages + one.storage
                self._n_storages = max(self._n_storages, storage + 1)
                self._slots[first + slot] = replace(one, op=op, storage=storage)
        number_of |= {slot: first + slot for slot in part.tape.numbers}
        self._n = first + part.tape.n_values
        self._at.append(number_of)

    def _new(self, op: int, like: Slot) -> int:
        """A slot for what an op gives anew."""
        self._slots[self._n] = replace(like, op=op, storage=self._n_storages, offset=0)
        self._n, self._n_storages = self._n + 1, self._n_storages + 1
        return self._n - 1

    def _find_gradients(self, label: str, members: Sequence[int]) -> None:
        """The gradients of a bucket. Every member reads them in the same order."""
        k = len(self._parts)
        if self._program.graph.is_member[members[0]]:
            reads = [list(dict.fromkeys(self._sources[member])) for member in members]
        else:
            of_sum = self._sources[members[0]]
            reads = [[op for op in of_sum if self._replica[op] == r] for r in range(k)]
        for ops in zip(*reads, strict=True):
            gradient = _Gradient(label, tuple(self._given[op] for op in ops))
            for r, slot in enumerate(gradient.shares):
                self._gradients[r][self._slots[slot].storage] = gradient

    def _placed(self, r: int) -> Iterator[Placeholder]:
        """The placeholders of a replica. What steps change is its own; of the optimizer's state,
        and of parameters beside the whole, there are shards.
        """
        part = self._parts[r]
        for one in part.tape.placeholders:
            op, slot = part.at[one.op], self._at[r].get(one.slot, -1)
            if op < 0 or (r and self._replica[op] < 0):
                continue
            is_own = r and part.tape.slots[one.slot].storage in part.tape.written
            tensor = one.tensor.clone() if is_own else one.tensor
            flat = self._flat.get(one.op)
            if flat is None:
                yield replace(one, slot=slot, op=op, tensor=tensor)
            elif one.kind == "parameter":
                yield replace(one, slot=slot, op=op, tensor=tensor)
                shard = self._new(op, self._slots[slot])
                self._slots[shard] = replace(self._slots[shard], storage=self._slots[slot].storage)
                self._shard_of[r][slot] = shard
                yield replace(one, slot=shard, op=op, tensor=flat.cut(r, tensor))
            else:
                yield replace(one, slot=slot, op=op, tensor=flat.cut(r, tensor).clone())

    # -- calls

    def tape(self) -> Tape:
        """The whole."""
        parts = list(enumerate(self._parts))
        calls = [
            renamed
            for r, part in parts
            for call in part.tape.calls
            for renamed in self._called(r, call)
        ]
        for label, members in self._members.items():
            if label.startswith("all_gather/"):
                calls += self._gathered(members)
        calls += self._summed()
        outputs, joints = self._outputs()
        hosts = [part.tape.host for part in self._parts]
        return Tape(
            graph=self._program.graph,
            calls=in_turn(self._program.graph, calls, self._slots),
            slots=self._slots,
            placeholders=tuple(self._placeholders),
            outputs=outputs,
            joints=joints,
            numbers=tuple(self._at[r][number] for r, part in parts for number in part.tape.numbers),
            host=lambda step: [number for host in hosts for number in host(step)],
        )

    def _called(self, r: int, call: Call) -> Iterator[Call]:
        """The call of a replica in the place of a call."""
        part = self._parts[r]
        op = part.at[call.op]
        if op < 0 or (r and self._replica[op] < 0):
            return
        groups = {self._group_of[src] for src in self._sources[op] if src in self._group_of}
        flat = self._flat.get(call.op)

        def read(slot: int) -> int:
            here = self._at[r][slot]
            one = self._slots.get(here)
            gradient = None if one is None else self._gradients[r].get(one.storage)
            if gradient is not None and gradient.group in groups:
                return self._sum(gradient, r, flat)
            return here if flat is None else self._shard_of[r].get(here, here)

        own = renumbered(call, op, read, self._at[r].__getitem__, part.at)
        own = replace(own, writes=tuple(map(read, call.writes)))
        if flat is not None:
            own = replace(own, function=partial(flat.called, r, call.function))
        if r:
            own = self._on_copies(own)
        label = next((group for group in groups if group.startswith(_STATISTICS)), None)
        if label is None:
            yield own
        else:
            yield from self._exchanged(r, own, label)

    def _on_copies(self, call: Call) -> Call:
        """A call that changes what the first replica keeps changes a copy of it."""
        kept = [slot for slot in call.writes if self._replica[self._slots[slot].op] < 0]
        if not kept:
            return call
        at = [i for i, each in enumerate(call.args) if isinstance(each, Ref) and each.slot in kept]
        writes = tuple(slot for slot in call.writes if slot not in kept)
        return replace(call, function=partial(_copying, at, call.function), writes=writes)

    def _exchanged(self, r: int, call: Call, label: str) -> Iterator[Call]:
        """A batch norm with the statistics of all replicas."""
        exchange = exchange_of(call.function)
        if exchange is None:
            raise InputError(
                f"op {self._program.graph.names[call.op]!r} ({call.function}): the statistics of "
                'such a batch norm are not known: plan with batch_norm="local"'
            )
        members, like = self._members[label], self._slots[call.results[0]]
        for member in members:
            if member not in self._statistics:
                slots = [self._new(member, like) for _ in range(2 * exchange.n)]
                self._statistics[member] = tuple(slots[: exchange.n]), tuple(slots[exchange.n :])
        brought = [self._statistics[member][0] for member in members]
        known = self._statistics[members[r]][1]
        parts = [PartOfWhole(weight, weight, is_whole=False) for weight in self._weights]
        yield from exchange.calls(call, r, parts, members[r], brought, known)

    # -- sums of gradients, and parameters that were updated elsewhere

    def _sum(self, gradient: _Gradient, r: int, flat: Flat | None) -> int:
        """The slot of a sum for an op of a replica: its member makes it then."""
        members = self._members[gradient.group]
        member = members[r] if len(members) > 1 else members[0]
        if (gradient, member) not in self._sums:
            slot = self._new(member, self._slots[gradient.shares[r]])
            self._sums[gradient, member] = slot
            if flat is not None and gradient.group.startswith("reduce_scatter/"):
                self._cuts[slot] = flat, r
        return self._sums[gradient, member]

    def _summed(self) -> Iterator[Call]:
        """A call per member, or per sum of a server: it sums what all replicas have."""
        by_member: dict[int, list[tuple[_Gradient, int]]] = defaultdict(list)
        for (gradient, member), slot in self._sums.items():
            by_member[member].append((gradient, slot))
        for member, sums in by_member.items():
            shares = [[Ref(slot) for slot in gradient.shares] for gradient, _ in sums]
            cuts = [self._cuts.get(slot) for _, slot in sums]
            yield Call(
                member,
                partial(_sums, self._weights, cuts),
                (shares,),
                {},
                tuple(slot for _, slot in sums),
                True,
                shares=bool(self._program.graph.is_member[member]),
            )

    def _gathered(self, members: Sequence[int]) -> Iterator[Call]:
        """A call per member: it writes what others have updated into the replica's parameters."""
        updates = Updates.of(self._program.source, self._program.source.roles.many)
        parameter_of = dict(zip(updates.writer.tolist(), updates.parameter.tolist(), strict=True))
        #: By parameter, the slot of each replica that has updated it or its shard.
        sources: dict[int, dict[int, int]] = defaultdict(dict)
        for r, member in enumerate(members):
            for writer in self._sources[member]:
                sources[parameter_of[int(self._program.serves[writer])]][r] = self._given[writer]
        flats = [self._flat.get(parameter) for parameter in sources]
        brought = [
            {r: Ref(slot) for r, slot in of.items() if flat is not None or r == min(of)}
            for flat, of in zip(flats, sources.values(), strict=True)
        ]
        for r, member in enumerate(members):
            own = [self._given[self._parts[r].at[parameter]] for parameter in sources]
            others = [[(i, ref) for i, ref in of.items() if i != r] for of in brought]
            yield Call(
                member,
                partial(_take, flats),
                ([Ref(slot) for slot in own], others),
                {},
                (),
                writes=tuple(own),
                shares=True,
            )

    # -- outputs

    def _outputs(self) -> tuple[dict[str, int], dict[str, Joint]]:
        outputs: dict[str, int] = {}
        joints: dict[str, Joint] = {}
        placed: dict[int, int] = {}
        for each in self._placeholders:
            placed.setdefault(self._slots[each.slot].storage, each.slot)
        for r, part in enumerate(self._parts):
            for name, own in part.tape.outputs.items():
                slot = self._at[r].get(own, -1)
                if not name.startswith(("parameter.", "gradient.")):
                    outputs[f"{name}@r{r}"] = slot
                    continue
                if r:
                    continue
                storage = part.tape.slots[own].storage
                gradient = self._gradients[0].get(storage)
                sums = [slot for (of, _), slot in self._sums.items() if of is gradient]
                if name.startswith("parameter."):
                    outputs[name] = placed.get(storage, slot)
                elif sums and sums[0] in self._cuts:
                    joints[name] = Joint(tuple(sums), self._cuts[sums[0]][0].joined)
                else:
                    outputs[name] = sums[0] if sums else slot
        return outputs, joints


def by_op(tape: Tape) -> dict[int, list[int]]:
    """The slots that each op gives, ascending."""
    slots: dict[int, list[int]] = defaultdict(list)
    for slot in sorted(tape.slots):
        slots[tape.slots[slot].op].append(slot)
    return slots


def _copying(at: Sequence[int], function: Any, *args: Any, **kwargs: Any) -> Any:
    """Calls a function with copies of some of its arguments."""
    return function(*(a.clone() if i in at else a for i, a in enumerate(args)), **kwargs)


def _sums(
    weights: Sequence[float],
    cuts: Sequence[tuple[Flat, int] | None],
    shares: Sequence[Sequence[torch.Tensor]],
) -> list[torch.Tensor]:
    """The weighted sum of each gradient over the replicas, or of a shard of it."""
    sums = []
    for cut, all_of_it in zip(cuts, shares, strict=True):
        first, *others = all_of_it if cut is None else [cut[0].cut(cut[1], t) for t in all_of_it]
        total = torch.empty_strided(first.shape, first.stride(), dtype=first.dtype)
        torch.mul(first, weights[0], out=total)
        for weight, other in zip(weights[1:], others, strict=True):
            total.add_(other, alpha=weight)
        sums.append(total)
    return sums


def _take(
    flats: Sequence[Flat | None],
    own: Sequence[torch.Tensor],
    others: Sequence[Sequence[tuple[int, torch.Tensor]]],
) -> None:
    """Writes what other replicas have updated into a replica's own parameters."""
    for flat, parameter, brought in zip(flats, own, others, strict=True):
        for r, tensor in brought:
            if flat is None:
                parameter.copy_(tensor)
            else:
                flat.put(r, parameter, tensor)
