"""Sizes that are known only at run time: the op that each comes from, and its share of the work.

An *origin* is the first op on the way whose size nobody knows, though the sizes of all that it
reads are. It travels with its values (:attr:`~loadmaster.readers.shared.ops.Tensor.origin`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from loadmaster.base.units import counted
from loadmaster.model.graph import UNSIZED
from loadmaster.readers.onnx.nodes import TINY
from loadmaster.readers.shared.formulas import Cost
from loadmaster.readers.shared.ops import Op, Tensor, numel

#: Origins that are told one by one.
_TOLD = 5
_WAY = (
    "declare the shapes of these values in the file (graph.value_info), as they are when it runs, "
    "or give a profile of a run: profile= (--profile)"
)


class UnsizedOps:
    """Ops that cost less here than they will, by the origin of that, beside all ops that work."""

    def __init__(self) -> None:
        self._ops: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        self._n_working = self._n_bytes = 0

    def note(self, op: Op, name: str, work: Cost, origin: str) -> None:
        """Counts an op, which has known outputs and costs as far as they can be."""
        origin = origin or f"from op {name!r} on ({op.kind}): its inputs are not those of its kind"
        unsized = any(t is not None and t.nbytes is None for t in op.outs) or not work.known
        if unsized or work.flops or work.bytes:
            self._n_working += 1
            self._n_bytes += work.bytes
        if unsized:
            self._ops[origin] += 1
            self._bytes[origin] += work.bytes

    @property
    def meta(self) -> dict[str, Any]:
        """The entry of a graph's ``meta`` by which what plans the graph knows that sizes lack."""
        if not self._ops:
            return {}
        return {UNSIZED: {"ops": self._ops.total(), "of": self._n_working, "way": _WAY}}

    def sentences(self) -> list[str]:
        """A sentence per origin, those of most bytes first."""
        order = sorted(self._ops, key=lambda origin: -self._bytes[origin])
        sentences = [
            f"sizes are known only at run time {origin}; {self._share([origin])}"
            for origin in order[:_TOLD]
        ]
        if rest := order[_TOLD:]:
            sentences.append(
                f"sizes are known only at run time from {counted(len(rest), 'other op')} on; "
                + self._share(rest)
            )
        return [*sentences[:-1], f"{sentences[-1]}. To have them, {_WAY}"] if sentences else []

    def _share(self, origins: Sequence[str]) -> str:
        ops, moved = (sum(table[one] for one in origins) for table in (self._ops, self._bytes))
        return (
            f"{ops} of {counted(self._n_working, 'op')}, with {moved / max(self._n_bytes, 1):.0%} "
            "of all bytes that are known, cost less here than they will"
        )


def origin_of(op: Op, name: str, failure: str, has_rule: bool) -> str:
    """The origin of what an op cannot know, in words; empty: all that it makes is known.

    ``failure`` says why its numbers cannot be computed.
    """
    inherited = next((t.origin for t in op.ins if t is not None and t.origin), "") or failure
    if inherited or all(t is None or t.nbytes is not None for t in op.outs):
        return inherited
    return f"from op {name!r} on ({op.kind}): {_why(op, has_rule)}"


def _why(op: Op, has_rule: bool) -> str:
    if any(t is not None and (t.other is not None or t.dtype == "str") for t in op.outs):
        return "sequences and texts have no size of their own"
    return (
        "they depend on what it reads" if has_rule else "no rule says the shapes of what it makes"
    )


def with_origin(tensor: Tensor, origin: str) -> Tensor:
    """The value with its origin, if its size is not known, or the few numbers that it holds."""
    holds_numbers = tensor.dtype in ("i64", "i32") and tensor.data is None
    lacks = tensor.nbytes is None or (holds_numbers and numel(tensor) <= TINY)
    return replace(tensor, origin=origin if lacks else "")
