"""Calls of an op whose parts exchange sums: they all-reduce the sums first, axis after axis, and
then each does its part with what all know.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from loadmaster.base.errors import InputError
from loadmaster.running.parallel import members
from loadmaster.running.parallel.device_tensors import DeviceTensors
from loadmaster.running.parallel.part_arguments import PartArguments
from loadmaster.running.parallel.part_call import PartCall
from loadmaster.running.parallel.statistics import Exchange, exchange_of
from loadmaster.running.parallel.statistics import PartOfWhole as Share
from loadmaster.running.tape.calls import Call, Ref


@dataclass(frozen=True, slots=True)
class AxisSum:
    """A sum of parts on an axis, and the op of the program that runs it on each device."""

    axis: int
    members: list[int]


def sums_of_ops(tensors: DeviceTensors) -> dict[int, list[AxisSum]]:
    """The sums of each op, the outermost axis first."""
    sums, of_op = tensors.lowering.sums, dict[int, list[AxisSum]]()
    columns = sums.op.tolist(), sums.axis.tolist(), tensors.expansion.sums.tolist()
    for op, axis, run_by in zip(*columns, strict=True):
        of_op.setdefault(op, []).append(AxisSum(axis, run_by))
    return of_op


def summed_calls(arguments: PartArguments, call: Call, sums: Sequence[AxisSum]) -> Iterator[Call]:
    """The calls of all devices in the place of one whose parts exchange sums.

    Raises
    ------
    InputError
        It is not known what parts of such an op exchange.
    """
    tensors, exchange = arguments.tensors, _exchange(arguments, call)
    parts = {d: arguments.of(call, d, exchanges=True) for d in tensors.on(call.op)}
    like = tensors.source.tape.slots[call.results[0]]
    fraction, known = dict.fromkeys(parts, 1.0), dict[int, list[int]]()
    for one in sums:
        shares = {
            d: Share(arguments.fraction(call, d, one.axis), box=part.box)
            for d, part in parts.items()
        }
        slots = {d: [tensors.new(one.members[d], like) for _ in range(exchange.n)] for d in parts}
        for d, part in parts.items():
            brought = replace(call, op=one.members[d], function=partial(exchange.brings, shares[d]))
            yield _brings(brought, part, slots[d], known.get(d, ()))
        known = {d: [tensors.new(one.members[d], like) for _ in range(exchange.n)] for d in parts}
        for d in parts:
            group = tensors.group(one.axis, d)
            total = partial(exchange.total, [shares[other] for other in group])
            refs = [[Ref(slot) for slot in slots[other]] for other in group]
            yield Call(one.members[d], total, (refs,), {}, tuple(known[d]), True, shares=True)
            fraction[d] *= shares[d].fraction
    for d, part in parts.items():
        ends = partial(exchange.ends, Share(fraction[d], box=part.box))
        yield arguments.part(replace(call, function=ends), d, part, known[d])


def _exchange(arguments: PartArguments, call: Call) -> Exchange:
    exchange = exchange_of(call.function)
    if exchange is None:
        graph = arguments.source.tape.graph
        raise InputError(
            f"op {graph.names[call.op]!r} ({graph.kinds[call.op]}) is cut so that its parts "
            "exchange sums, which is not known of such an op: label it whole, or cut it "
            "otherwise"
        )
    return exchange


def _brings(call: Call, part: PartCall, slots: Sequence[int], known: Sequence[int]) -> Call:
    """The call with which a part brings its sums to others on an axis: on the first axis its own,
    on a later one what is known so far.
    """
    if known:
        refs = [Ref(slot) for slot in known]
        return Call(call.op, members.same, (refs,), {}, tuple(slots), True, brings=True)
    brought = part.called(replace(call, several=True), slots, ())
    return replace(brought, brings=True, writes=())
