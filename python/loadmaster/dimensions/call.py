"""One call of an op: what it was called with, by position or by name, and its tensors' shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from loadmaster.model.shapes import Shape

#: Stands for a tensor among the arguments of a call.
TENSOR = "<tensor>"

#: An argument with lists as tuples and :data:`TENSOR` for tensors, so that it has a hash.
Argument = Any


def skeleton(args: Sequence[Any]) -> tuple[tuple[Argument, ...], tuple[tuple[str, Argument], ...]]:
    """An entry of ``OpGraph.args`` without the ops of its tensors: positional, keywords.

    >>> skeleton([[{"op": 3}, [1, 0]], {"alpha": 2}])
    (('<tensor>', (1, 0)), (('alpha', 2),))
    """
    positional = tuple([_hashed(value) for value in args[0]])
    if len(args) < 2:
        return positional, ()
    return positional, tuple([(name, _hashed(value)) for name, value in args[1].items()])


def _hashed(value: Any) -> Argument:
    if isinstance(value, dict):
        return TENSOR
    if isinstance(value, list):
        return tuple([_hashed(item) for item in value])
    return value


class NamedCall:
    """A call whose arguments have names.

    Parameters
    ----------
    kind : str
    positional, keywords
        See :func:`skeleton`.
    inputs, outputs : sequence of (dtype, sizes)
        Per tensor argument in the order of the call, and per output.
    names : sequence of str
        Of the positional arguments.
    """

    def __init__(
        self,
        kind: str,
        positional: Sequence[Argument],
        keywords: Mapping[str, Argument],
        inputs: Sequence[Shape],
        outputs: Sequence[Shape],
        names: Sequence[str] = (),
    ) -> None:
        self.kind, self.names = kind, names
        self.inputs = [sizes if sizes is not None else () for _, sizes in inputs]
        self.outputs = [sizes if sizes is not None else () for _, sizes in outputs]
        self.dtypes = [dtype for dtype, _ in inputs]
        self.results = [dtype for dtype, _ in outputs]
        self._values: dict[int | str, Argument] = dict(enumerate(positional))
        self._values.update(zip(names, positional, strict=False))
        self._values.update(keywords)
        self._tensors: dict[int | str, tuple[int, ...]] = {}
        at = 0
        for position, value in enumerate(positional):
            count = _count(value)
            self._tensors[position] = tuple(range(at, at + count))
            at += count
        for name, position in zip(names, range(len(positional)), strict=False):
            self._tensors[name] = self._tensors[position]
        for name, value in keywords.items():
            count = _count(value)
            self._tensors[name] = tuple(range(at, at + count))
            at += count
        #: Number of tensors in the arguments.
        self.n_tensors = at

    def value(self, which: int | str, default: Argument = None) -> Argument:
        """An argument by position or name; None and what was not given: the default."""
        value = self._values.get(which)
        return default if value is None else value

    def tensors(self, which: int | str) -> tuple[int, ...]:
        """The tensors that an argument holds, by their order in the call."""
        return self._tensors.get(which, ())

    def tensor(self, which: int | str) -> int | None:
        """The tensor that an argument is, if it is one."""
        positions = self.tensors(which)
        return positions[0] if positions else None

    def axes(self, which: int | str, rank: int, default: Argument = None) -> list[int] | None:
        """Axes from 0 that an argument names, one or several; None: it is not given."""
        value = self.value(which, default)
        if value is None:
            return None
        several = (value,) if isinstance(value, int) else value
        return [axis % rank if rank else 0 for axis in several]


def _count(value: Argument) -> int:
    if value == TENSOR:
        return 1
    return sum(map(_count, value)) if isinstance(value, tuple) else 0
