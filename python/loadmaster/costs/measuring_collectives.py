"""Measuring collectives between processes on the CPUs of this machine, by PyTorch's gloo.

Gloo has no device of its own: threads of the processes sum and copy, so that a core computes the
less. Measured are the seconds that a collective takes, and those of them that are CPU time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack

import numpy as np

from loadmaster.base.checks import integer, is_integer
from loadmaster.base.errors import InputError, LoadmasterError, importing
from loadmaster.base.units import counted, format_bytes
from loadmaster.model.clusters.links import CollectiveTimes

#: Measured collectives, as a cluster's tables name them.
KINDS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast")

#: Sizes of tensors, in bytes: 4 KiB to 32 MiB.
SIZES = tuple(2**k for k in range(12, 26))

#: Largest size in bytes, and most processes.
_LARGEST, _MOST_PROCESSES = 2**31, 64

#: Seconds for all that is measured; then it is given up.
PATIENCE = 600.0


def measure_collectives(
    processes: int = 2,
    sizes: Sequence[int] = SIZES,
    kinds: Sequence[str] = KINDS,
    *,
    progress: Callable[[str], None] | None = None,
) -> tuple[CollectiveTimes, ...]:
    """Times collectives of gloo between so many local processes, each on a core of its own.

    Parameters
    ----------
    processes : int
        At least 2. With more of them than cores, they wait for each other.
    sizes : sequence of int
        Bytes of the whole tensor; of an all-to-all, of what all send together.
    kinds : sequence of str
        Any of ``"all_reduce"``, ``"reduce_scatter"``, ``"all_gather"``, ``"all_to_all"`` and
        ``"broadcast"``.
    progress : callable, optional
        Called with a text that says what is measured.

    Returns
    -------
    tuple of CollectiveTimes
        One per kind, for :meth:`loadmaster.Cluster.with_collectives`. Seconds are 10th percentiles
        of the slowest process; ``busy`` is the mean over processes of the 10th percentile of CPU
        time, of all threads.

    Raises
    ------
    InputError
        An unknown kind, fewer than 2 processes, sizes that are no positive integers.
    MissingExtraError
        No PyTorch.
    LoadmasterError
        A process ended, or all took too long.

    Examples
    --------
    >>> times = lm.measure_collectives(2, [2**12, 2**20], ["all_reduce"])   # doctest: +SKIP
    >>> cluster = cluster.with_collectives(times)   # doctest: +SKIP
    """
    integer("processes", processes, 2, _MOST_PROCESSES)
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown:
        raise InputError(f"no collective is named {unknown[0]!r}; there are {', '.join(KINDS)}")
    if not sizes or not all(is_integer(s) and 0 < s <= _LARGEST for s in sizes):
        raise InputError(f"sizes are {list(sizes)!r}: wants bytes, integers from 1 to {_LARGEST}")
    with importing("torch", "torch", "measuring collectives"):
        import torch.distributed  # noqa: F401
    whole = sorted({int(size) for size in sizes})
    tell = progress or (lambda stage: None)
    tell(f"{counted(len(kinds), 'kind')} of collectives, up to {format_bytes(whole[-1])}")
    answers = _asked(processes, whole, list(kinds))
    measured = []
    for i, kind in enumerate(kinds):
        walls, busy = (
            [
                np.percentile([rank[i][j][column] for rank in answers], 10, axis=1)
                for j in range(len(whole))
            ]
            for column in (0, 1)
        )
        seconds = np.maximum([float(each.max()) for each in walls], 1e-9)
        own = np.minimum([float(each.mean()) for each in busy], seconds)
        source = f"measured between {processes} processes of gloo, 10th percentiles"
        figures = tuple(seconds.tolist()), source, tuple(own.tolist())
        measured.append(CollectiveTimes(kind, processes, 1, tuple(whole), *figures))
    return tuple(measured)


#: Of each kind and size, seconds by the clock and of CPU, of every repeat.
_Answer = list[list[tuple[list[float], list[float]]]]


def _asked(processes: int, sizes: list[int], kinds: list[str]) -> list[_Answer]:
    """The answer of each process."""
    deadline = time.monotonic() + PATIENCE
    paths = os.pathsep.join(path for path in sys.path if path)
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="loadmaster-"))
        asked = json.dumps({"meeting": f"file://{folder}/meeting", "sizes": sizes, "kinds": kinds})
        # Members end once nobody holds the other end.
        theirs, ours = os.pipe()
        stack.callback(os.close, ours)
        stack.callback(os.close, theirs)
        members = []
        for rank in range(processes):
            member = subprocess.Popen(
                [
                    *(sys.executable, "-m", "loadmaster.costs.gloo_member"),
                    *(str(rank), str(processes), asked),
                ],
                stdin=theirs,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": paths},
                start_new_session=True,
            )
            stack.callback(member.wait)
            stack.callback(member.kill)
            members.append(member)
        answers: list[_Answer] = []
        for member in members:
            try:
                out, errors = member.communicate(timeout=max(deadline - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                raise LoadmasterError(
                    f"measuring collectives took more than {PATIENCE:.0f} s: ask for smaller sizes"
                ) from None
            if member.returncode:
                last = errors.decode(errors="replace").strip().rpartition("\n")[2]
                raise LoadmasterError(f"measuring collectives: a process ended: {last}")
            answers.append(json.loads(out))
        return answers
