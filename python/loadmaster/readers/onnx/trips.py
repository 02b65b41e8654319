"""Trips of a Loop: its limit, or fewer where its condition can be computed from known numbers.

The condition, the numbers that the loop carries for it and nothing else run trip by trip. So do
counters of every kind; a condition that depends on data is not known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from loadmaster.readers.onnx.nodes import RANDOM, TINY, bodies, data_of
from loadmaster.readers.shared.ops import Op, Tensor

#: Limits from here on say "until the condition ends it": exporters write the largest integer.
_NO_LIMIT = 2**31 - 1
#: Trips that are computed at the most.
_COMPUTED = 4096


def trips_of(
    onnx: Any, opsets: Mapping[str, int], op: Op, values: Mapping[str, Tensor]
) -> int | None:
    """The number of times that a Loop runs its body; None where that is known only at run time.

    ``values`` are those of one run of the body, of which numbers are known that no trip changes.
    A loop that has a limit and a condition that is not known counts up to its limit.
    """
    starts, numbers = data_of(op.ins, 1), data_of(op.ins, 0)
    limit = None if numbers is None else max(int(numbers.reshape(-1)[0]), 0)
    limit = None if limit is not None and limit >= _NO_LIMIT else limit
    if limit == 0 or (starts is not None and not starts.all()):
        return 0
    # A limit that is there and not known may end the loop before its condition does.
    if numbers is None and op.ins and op.ins[0] is not None:
        return None
    condition = _Condition.of(op, values)
    if condition is None:
        return limit
    try:
        ended = condition.run(onnx, opsets, min(limit or _COMPUTED, _COMPUTED))
    except Exception:  # computing it is a bonus: any failure leaves the limit
        return limit
    return limit if ended is None else ended


@dataclass
class _Condition:
    """The part of a loop's body that its condition needs.

    Attributes
    ----------
    body : GraphProto
    nodes : set of int
        Positions in the body.
    constants : mapping of str to array
        Values that are the same on every trip.
    carried : mapping of str to (str, array)
        By inputs of the body: the output that is the next trip's, and the number that it begins as.
    """

    body: Any
    nodes: set[int] = field(default_factory=set)
    constants: dict[str, Any] = field(default_factory=dict)
    carried: dict[str, tuple[str, Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, op: Op, values: Mapping[str, Tensor]) -> _Condition | None:
        """The part that a Loop's condition needs; None where it needs what is not known."""
        part = cls(op.attrs["body"])
        inputs, outputs = [i.name for i in part.body.input], [o.name for o in part.body.output]
        index, going, *states = inputs
        following = dict(zip(states, zip(outputs[1:], op.ins[2:], strict=False), strict=False))
        producer = {v: at for at, node in enumerate(part.body.node) for v in node.output}
        part.constants[going] = np.array(True)
        waiting, seen = outputs[:1], {index, going}
        while waiting:
            value = waiting.pop()
            if value in seen:
                continue
            seen.add(value)
            known = values.get(value)
            if value in following:
                output, first = following[value]
                if first is None or first.data is None:
                    return None
                part.carried[value] = (output, first.data)
                waiting.append(output)
            elif known is not None and known.data is not None:
                part.constants[value] = known.data
            elif value in producer:
                node = part.body.node[producer[value]]
                if bodies(node) or node.op_type in RANDOM:
                    return None
                part.nodes.add(producer[value])
                waiting += filter(None, node.input)
            else:
                return None
        return part

    def run(self, onnx: Any, opsets: Mapping[str, int], most: int) -> int | None:
        """The trips until the condition ends the loop; None if it goes on after so many."""
        index = self.body.input[0].name
        results = [self.body.output[0].name, *(output for output, _ in self.carried.values())]
        empty = onnx.helper.make_empty_tensor_value_info
        graph = onnx.helper.make_graph(
            [self.body.node[at] for at in sorted(self.nodes)],
            "condition",
            [empty(name) for name in (index, *self.constants, *self.carried)],
            [empty(name) for name in dict.fromkeys(results)],
        )
        imports = [onnx.helper.make_opsetid(*opset) for opset in opsets.items()]
        model = onnx.helper.make_model(graph, opset_imports=imports)
        evaluator = onnx.reference.ReferenceEvaluator(model)
        state = {name: first for name, (_, first) in self.carried.items()}
        for trip in range(most):
            feeds = {index: np.array(trip, np.int64), **self.constants, **state}
            going, *following = evaluator.run(results, feeds)
            if not np.all(going):
                return trip + 1
            if any(np.size(number) > TINY for number in following):
                return None
            state = dict(zip(self.carried, following, strict=True))
        return None
