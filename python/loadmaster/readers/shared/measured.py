"""Puts the measured times of a profile into the columns of the graph that they belong to.

Notes count and name measured ops that the graph lacks, and ops that were not measured. An op that
was not measured gets a time by its bytes, never a silent zero.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.errors import InputError
from loadmaster.base.units import counted
from loadmaster.model.graph import PLACEHOLDERS, TIME_SOURCES
from loadmaster.model.profile import Profile

#: Number of names that a note gives.
_NAMED = 3


def check_same(ops: Mapping[str, Any], profile: Profile) -> None:
    """Refuses a profile of another graph.

    Raises
    ------
    InputError
        Neither half of what was measured nor half of the ops that run have names in common.
    """
    kinds = ops.get("kind") or [""] * len(ops["name"])
    runs = {n for n, kind in zip(ops["name"], kinds, strict=True) if kind not in PLACEHOLDERS}
    common = len(runs.intersection(profile.names))
    if 2 * common < min(len(runs), profile.n_ops) or not common:
        raise InputError(
            f"the profile belongs to another graph: {common} of the {profile.n_ops} ops that it "
            f"measured ({_some(profile.names)}) are among the graph's {len(runs)} "
            f"({_some(sorted(runs))})"
        )


def add_times(document: dict[str, Any], profile: Profile, idle: Collection[str] = ()) -> list[str]:
    """Gives an opgraph document the profile's times, in place; notes on what did not join.

    Parameters
    ----------
    document
        An opgraph v1 document without times.
    profile
        Each op takes its median over the steps, in seconds.
    idle
        Names of ops that are known not to have run: they take no time.

    Raises
    ------
    InputError
        The profile belongs to another graph.

    Examples
    --------
    >>> document = {"ops": {"name": ["a", "b"], "bytes_accessed": [100, 200]}}
    >>> add_times(document, Profile(("a",), ("Relu",), np.array([[4e-6]]), "cpu"))
    ["1 of 2 ops ('b') were not measured: costed by their bytes at the measured ops' 0.025 GB/s"]
    >>> document["ops"]["time"]["cpu"]
    [4e-06, 8e-06]
    """
    ops = document["ops"]
    check_same(ops, profile)
    index = {name: i for i, name in enumerate(ops["name"])}
    median = profile.median()
    known = np.array([name in index for name in profile.names], dtype=bool)
    notes = []
    stray = np.flatnonzero(~known).tolist()
    if stray:
        share = median[stray].sum() / (median.sum() or 1.0)
        notes.append(
            f"{counted(len(stray), 'measured op')} ({_some([profile.names[i] for i in stray])}), "
            f"{share:.1%} of the measured time, not among the ops of the graph: left out"
        )
    seconds = np.full(len(index), np.nan)
    at = np.array([index[name] for name in np.array(profile.names, dtype=object)[known]])
    seconds[at] = median[known]
    seconds[[index[name] for name in idle]] = 0.0
    filled, more = _fill(ops, seconds)
    if filled:
        document.setdefault("meta", {})[TIME_SOURCES] = {"bytes": filled}
    ops["time"] = {profile.device_type: seconds.tolist()}
    return notes + more


def only(profile: Profile, rows: list[int]) -> Profile:
    """A profile of some of its ops."""
    sizes = profile.output_bytes
    return replace(
        profile,
        names=tuple(profile.names[row] for row in rows),
        kinds=tuple(profile.kinds[row] for row in rows),
        seconds=profile.seconds[rows],
        output_bytes=None if sizes is None else sizes[rows],
    )


def _fill(ops: dict[str, Any], seconds: NDArray[np.float64]) -> tuple[list[str], list[str]]:
    """Sets the times of ops that were not measured, in place: 0 for ops that cost nothing, else by
    bytes. Gives the names of the latter, and a note.
    """
    n = len(seconds)
    moved = np.array(ops.get("bytes_accessed") or [0] * n, dtype=np.float64)
    kinds, views = ops.get("kind") or [""] * n, ops.get("view") or [0] * n
    free = [kind in PLACEHOLDERS or bool(view) for kind, view in zip(kinds, views, strict=True)]
    missing = np.isnan(seconds)
    rated = ~missing & (moved > 0)
    rate = seconds[rated].sum() / moved[rated].sum() if rated.any() else 0.0
    positive = seconds[~missing & (seconds > 0)]
    least = float(positive.min()) if len(positive) else 0.0
    by_bytes = missing & ~np.array(free, dtype=bool)
    seconds[missing] = 0.0
    seconds[by_bytes] = np.maximum(moved[by_bytes] * rate, least)
    if not by_bytes.any():
        return [], []
    names = [ops["name"][i] for i in np.flatnonzero(by_bytes)]
    speed = f" at the measured ops' {1e-9 / rate:.3g} GB/s" if rate else ""
    return names, [
        f"{len(names)} of {n} ops ({_some(names)}) were not measured: costed by their bytes{speed}"
    ]


def _some(names: Sequence[str]) -> str:
    """A few names, as a message gives them."""
    return ", ".join(map(repr, names[:_NAMED])) + (", ..." if len(names) > _NAMED else "")
