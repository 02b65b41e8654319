"""Profile: what a framework measured of the ops of one graph on one device type, step by step.

Readers of traces make profiles, the cost models of :mod:`loadmaster.costs` learn from them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadmaster.base import checks
from loadmaster.base.errors import InputError
from loadmaster.base.units import counted
from loadmaster.model.graph import ANY_TYPE


@dataclass(frozen=True, eq=False)
class Profile:
    """Measured seconds of ops in one step or several, on one device type.

    Attributes
    ----------
    names : tuple of str
        An op each, unique, as in the graph they belong to.
    kinds : tuple of str
        The kind of each op, as in the graph.
    seconds : float64 [n_ops, n_steps]
        Compute time of an op in a step; NaN: not measured in it.
    device_type : str
        Where it was measured; ``"*"``: unknown, taken for any.
    batch : int or None
        Size of the batch, where it is known.
    output_bytes : uint64 [n_ops] or None
        Bytes that each op put out, where the source tells.

    Raises
    ------
    InputError
        Lengths that differ, a name given twice, a time that is negative or infinite, an op without
        any measurement; the op is named.

    Examples
    --------
    >>> import numpy as np
    >>> p = Profile(("conv", "relu"), ("Conv", "Relu"), np.array([[3e-3, 2e-3], [1e-3, np.nan]]))
    >>> p
    Profile(2 ops, 2 steps, device type '*')
    >>> p.median().tolist()
    [0.0025, 0.001]
    """

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    seconds: NDArray[np.float64]
    device_type: str = ANY_TYPE
    batch: int | None = None
    output_bytes: NDArray[np.uint64] | None = None

    def __post_init__(self) -> None:
        n = len(self.names)
        if len(self.kinds) != n or self.seconds.ndim != 2 or len(self.seconds) != n:
            raise InputError(
                f"a profile of {n} names, {len(self.kinds)} kinds and seconds of shape "
                f"{self.seconds.shape}: wants one of each per op, and seconds [n_ops, n_steps]"
            )
        if self.output_bytes is not None and self.output_bytes.shape != (n,):
            raise InputError(f"output_bytes has shape {self.output_bytes.shape}, wants ({n},)")
        twice = [name for name, count in Counter(self.names).items() if count > 1]
        if twice:
            raise InputError(
                f"{counted(len(twice), 'name stands', 'names stand')} twice in the profile, "
                f"{twice[0]!r} first"
            )
        wrong = np.argwhere((self.seconds < 0) | np.isinf(self.seconds))
        if len(wrong):
            op, step = map(int, wrong[0])
            raise InputError(
                f"op {self.names[op]!r} took {self.seconds[op, step]} s in step {step}: "
                "a time must be finite and not negative"
            )
        if self.batch is not None:
            checks.integer("batch", self.batch)
        unmeasured = np.flatnonzero(np.isnan(self.seconds).all(axis=1))
        if len(unmeasured):
            raise InputError(f"op {self.names[unmeasured[0]]!r} has no measured time in any step")

    def __repr__(self) -> str:
        ops, steps = counted(len(self.names), "op"), counted(self.seconds.shape[1], "step")
        return f"Profile({ops}, {steps}, device type {self.device_type!r})"

    @property
    def n_ops(self) -> int:
        """Ops measured."""
        return len(self.names)

    @property
    def n_steps(self) -> int:
        """Steps measured."""
        return int(self.seconds.shape[1])

    def median(self) -> NDArray[np.float64]:
        """The median time of each op over the steps that measured it, float64 [n_ops], s."""
        return np.asarray(np.nanmedian(self.seconds, axis=1), dtype=np.float64)

    def fastest(self) -> NDArray[np.float64]:
        """The least time of each op over the steps that measured it, float64 [n_ops], s.

        >>> Profile(("a",), ("Add",), np.array([[3e-3, np.nan, 2e-3]])).fastest().tolist()
        [0.002]
        """
        return np.asarray(np.nanmin(self.seconds, axis=1), dtype=np.float64)


def joined(profiles: Sequence[Profile]) -> Profile:
    """Profiles of one graph as one: their steps side by side, NaN where one lacks an op.

    Device type and batch are the first's; output bytes those of the first that tells them of all
    ops.

    Raises
    ------
    InputError
        An op of another kind in another profile.

    Examples
    --------
    >>> one = Profile(("a", "b"), ("Add", "Mul"), np.array([[1.0], [2.0]]))
    >>> joined([one, Profile(("a",), ("Add",), np.array([[3.0, 4.0]]))]).seconds.tolist()
    [[1.0, 3.0, 4.0], [2.0, nan, nan]]
    """
    kinds: dict[str, str] = {}
    for profile in profiles:
        for name, kind in zip(profile.names, profile.kinds, strict=True):
            if kinds.setdefault(name, kind) != kind:
                raise InputError(
                    f"op {name!r} is {kinds[name]!r} in one profile and {kind!r} in another: they "
                    "are of different graphs"
                )
    row = {name: i for i, name in enumerate(kinds)}
    seconds = np.full((len(kinds), sum(p.n_steps for p in profiles)), np.nan)
    sizes: NDArray[np.uint64] | None = None
    step = 0
    for profile in profiles:
        rows = [row[name] for name in profile.names]
        seconds[rows, step : step + profile.n_steps] = profile.seconds
        step += profile.n_steps
        if sizes is None and profile.output_bytes is not None and len(rows) == len(kinds):
            sizes = np.empty(len(kinds), dtype=np.uint64)
            sizes[rows] = profile.output_bytes
    first = profiles[0]
    names, of = tuple(kinds), tuple(kinds.values())
    return Profile(names, of, seconds, first.device_type, first.batch, sizes)
