"""Truths about numbers that are not finite: a step in order has none, so that they are known.

Models branch on such truths, as ``torch.isfinite(x).all()``, and PyTorch dispatches them as
comparisons with infinity, or of a tensor with itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isinf
from typing import Any

from loadmaster.readers.pytorch.aten_costs import bare
from loadmaster.readers.pytorch.aten_graph import GraphValue

#: Kinds that ask for infinities or for what is no number.
_ASKS = ("isinf", "isnan", "isneginf", "isposinf")
#: Kinds whose result is true if all that they join is true, and false if all of it is false.
_JOINS = {"any", "all", "mul", "logical_and", "logical_or", "bitwise_and", "bitwise_or", "_to_copy"}
_NEGATIONS = ("logical_not", "bitwise_not")


class FiniteTruths:
    """The truths that ops of a graph say of finite numbers."""

    def __init__(self) -> None:
        self._of_op: dict[int, bool] = {}

    def of(self, value: GraphValue) -> bool | None:
        """The truth that a value is; None: it is none, or not known."""
        return self._of_op.get(value.op)

    def note(self, op: int, kind: str, inputs: Sequence[Any]) -> None:
        """Notes the truth that an op gives, if it is one of finite numbers."""
        name, values = bare(kind), [each for each in inputs if isinstance(each, GraphValue)]
        known = {self._of_op.get(value.op) for value in values}
        if name in _ASKS:
            self._of_op[op] = False
        elif name in ("eq", "ne") and len(inputs) > 1:
            first, second = inputs[:2]
            if isinstance(second, float) and isinf(second):
                self._of_op[op] = name == "ne"
            elif second is first:
                self._of_op[op] = name == "eq"
        elif len(known) == 1 and None not in known and name in {*_JOINS, *_NEGATIONS}:
            [truth] = known
            self._of_op[op] = bool(truth) != (name in _NEGATIONS)
