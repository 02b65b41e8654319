"""Graphs of calls by hand: every op with its arguments and the shapes of what it makes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import loadmaster as lm
from loadmaster.dimensions.form import part_sizes
from loadmaster.model.arguments import tensors

VIEWS = ("view", "_unsafe_view", "transpose", "permute", "t", "expand", "unsqueeze", "squeeze")
VIEWS += ("slice", "select", "split", "unbind", "getitem")


class T(int):
    """The tensor of an op among the arguments of a call."""


class Calls:
    """A graph that grows by calls, as a reader would record them."""

    def __init__(self, batch: int | None = None) -> None:
        self.ops: dict[str, list[Any]] = {
            column: [] for column in ("name", "kind", "output", "view", "alias_of", "args", "phase")
        }
        self.edges: dict[str, list[int]] = {"src": [], "dst": [], "tensor": []}
        self.meta = {} if batch is None else {"batch": batch}

    def placeholder(self, kind: str, *shape: int, dtype: str = "f32") -> T:
        """A parameter, buffer, input or constant."""
        return self._add(kind, None, f"{dtype}[{','.join(map(str, shape))}]")

    def call(
        self,
        kind: str,
        *positional: Any,
        out: Any,
        alias: int = -1,
        dtype: str = "f32",
        **named: Any,
    ) -> T:
        """A call of ``aten.<kind>``; ``out`` is the shape that it makes, or a list of them."""
        shapes = out if isinstance(out, list) else [out]
        output = ";".join(f"{dtype}[{','.join(map(str, shape))}]" for shape in shapes)
        call = [_written(list(positional))] + ([_written(named)] if named else [])
        stem = kind.partition(".")[0]
        at = self._add(
            kind if stem == "getitem" else f"aten.{kind}", call, output, stem in VIEWS, alias
        )
        for source in dict.fromkeys(tensors(call)):
            self.edges["src"].append(source)
            self.edges["dst"].append(at)
            self.edges["tensor"].append(source)
        return at

    def _add(self, kind: str, call: Any, output: str, view: bool = False, alias: int = -1) -> T:
        at = len(self.ops["name"])
        row = (f"{kind}_{at}", kind, output, int(view), alias, call, "f")
        for column, value in zip(self.ops, row, strict=True):
            self.ops[column].append(value)
        return T(at)

    def graph(self) -> lm.OpGraph:
        """What was called so far."""
        return lm.OpGraph(self.ops, self.edges, meta=self.meta)


def _written(value: Any) -> Any:
    if isinstance(value, T):
        return {"op": int(value)}
    if isinstance(value, (list, tuple)):
        return [_written(item) for item in value]
    if isinstance(value, dict):
        return {key: _written(item) for key, item in value.items()}
    return value


def places(shape: tuple[int, ...], factors, number: int) -> np.ndarray:
    """For each element of a tensor, its place in one of the tensor's factors: int, of the shape."""
    axis, size = factors[number]
    stride = math.prod(s for a, s in factors[number + 1 :] if a == axis)
    along = np.arange(shape[axis]) // stride % size
    return np.broadcast_to(
        np.expand_dims(along, [a for a in range(len(shape)) if a != axis]), shape
    )


def part(value: np.ndarray, factors, number: int, j: int, k: int) -> np.ndarray:
    """Part ``j`` of ``k`` of a tensor that is sharded by a factor."""
    axis, size = factors[number]
    ends = np.cumsum([0, *part_sizes(size, k)])
    at = places(value.shape, factors, number)
    along = np.moveaxis(at, axis, 0).reshape(value.shape[axis], -1)[:, 0]
    return np.compress((along >= ends[j]) & (along < ends[j + 1]), value, axis=axis)
