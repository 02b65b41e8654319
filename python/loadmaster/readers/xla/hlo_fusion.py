"""The cost and the kind of a fusion of HLO: one kernel of many instructions."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from loadmaster.readers.xla.costs import XlaOp, cost, is_elementwise, plain
from loadmaster.readers.xla.program import Computation, Constant, Operand, Type

_SLICES = frozenset(("dynamic-slice", "slice", "gather"))


def fusion(body: Computation) -> dict[str, Any]:
    """Attributes of a fusion: ``flops`` of its instructions, ``bytes`` read and written, whether
    all its kinds are ``known``, the input it updates ``in_place``, whether it is ``elementwise``.

    An input that is only sliced counts by its slices, an output that is updated by the update.
    O(size of the body).
    """
    types = dict(body.inputs)
    flops, known = 0, True
    for instruction in body.instructions:
        types.update(instruction.results)
        ins = [_type(o, types) for o in instruction.operands]
        outs = [t for _, t in instruction.results]
        attributes, bodies = instruction.attributes, instruction.bodies
        work = cost(XlaOp(instruction.kind, ins, outs, attributes, bodies))
        flops += work.flops
        known = known and work.known
    traffic = _FusionTraffic(body, types)
    kinds = {i.kind for i in body.instructions}
    return {
        "flops": flops,
        "bytes": traffic.bytes,
        "known": known,
        "in_place": traffic.in_place,
        "elementwise": all(
            is_elementwise(k) or plain(k) in ("broadcast", "bitcast", "reshape") for k in kinds
        ),
    }


def _type(operand: Operand, types: dict[str, Type]) -> Type:
    return operand.type if isinstance(operand, Constant) else types[operand]


class _FusionTraffic:
    """Bytes that cross a fusion's border."""

    def __init__(self, body: Computation, types: dict[str, Type]) -> None:
        #: The value that each bitcast shows.
        shown: dict[Operand, Operand] = {}
        sliced: dict[Operand, int] = defaultdict(int)
        whole: set[Operand] = set()
        #: The value that each value updates, and the update.
        updates: dict[Operand, tuple[Operand, Operand]] = {}
        for instruction in body.instructions:
            read = [shown.get(o, o) for o in instruction.operands]
            name, type_ = instruction.results[0]
            if instruction.kind in ("bitcast", "reshape") and read:
                shown[name] = read[0]
                continue
            if instruction.kind in _SLICES:
                sliced[read[0]] += type_.nbytes
                read = read[1:]
            elif instruction.kind == "dynamic-update-slice":
                updates[name] = read[0], read[1]
                read = read[1:]
            whole.update(read)
        outputs = [shown.get(o, o) for o in body.outputs]
        whole.update(o for o in outputs if o not in updates)
        self.bytes = sum(_type(updates[o][1] if o in updates else o, types).nbytes for o in outputs)
        for name, type_ in body.inputs:
            self.bytes += type_.nbytes if name in whole else min(sliced[name], type_.nbytes)
        changed = updates[outputs[0]][0] if len(outputs) == 1 and outputs[0] in updates else None
        #: Position of the input whose memory the output may keep.
        self.in_place = next((i for i, (n, _) in enumerate(body.inputs) if n == changed), None)
