"""Written files of PyTorch, built and run once by PyTorch itself, on processes that are not there.

The file's own ``parallelize`` wraps the model, and a forward and a backward pass run under the fake
process group of PyTorch (:mod:`.fake_processes`), in a Python of its own.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import numpy as np

from loadmaster.base.errors import InputError
from loadmaster.base.units import counted, format_bytes
from loadmaster.model.graph import PARAMETER
from loadmaster.plans.plan import Plan
from loadmaster.systems.registry import Checked
from loadmaster.transforms.shares import batch_size

#: Seconds of a processor that a check takes at most, seconds on the clock on a busy machine, and
#: bytes of parameters of a model that is built for it.
_SECONDS, _CLOCK, _BYTES = 15, 60, 2**30

_WORDS = {"all_gather": "all-gather", "all_reduce": "all-reduce", "all_to_all": "all-to-all"}


def checked(plan: Plan, path: str | os.PathLike[str], model: str | None = None) -> Checked:
    """Runs a forward and a backward pass of what was written, as one process of many.

    Parameters
    ----------
    plan : Plan
    path : path
        The file.
    model : str, optional
        ``FILE.py:FUNCTION``, that builds the model. Absent: the function that the graph was
        captured from.

    Raises
    ------
    InputError
        It does not run: PyTorch's own message. The user's function raises.
    """
    spec = model or plan.graph.meta.get("file")
    if not isinstance(spec, str):
        return Checked(False, "no model to build: --model FILE.py:FUNCTION gives one")
    graph = plan.graph
    size = int(graph.param_bytes[np.flatnonzero(graph.stands_for == PARAMETER)].sum())
    if size > _BYTES:
        return Checked(False, f"the model has parameters of {format_bytes(size)}")
    degrees = plan.parallelism
    shares = degrees.replicate * degrees.shard if degrees is not None else 1
    arguments = (
        os.fspath(path),
        spec,
        str(batch_size(graph) or shares),
        str(shares),
        str(_SECONDS),
    )
    command = [sys.executable, "-m", "loadmaster.systems.shared.fake_processes", *arguments]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=_CLOCK, check=False)
        is_late = run.returncode == -getattr(signal, "SIGXCPU", 0) != 0
    except subprocess.TimeoutExpired:
        is_late = True
    if is_late:
        return Checked(False, f"it took longer than {_SECONDS} s")
    try:
        says = json.loads(run.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        last = next(iter(run.stderr.splitlines()[::-1]), "")
        says = {"error": f"Python ended with {run.returncode}: {last}"}
    if "user" in says:
        raise InputError(says["user"])
    if "error" in says:
        raise InputError(
            f"what was written to {os.fspath(path)} does not run, says PyTorch: {says['error']} "
            "(--no-check leaves this out)"
        )
    of = says["collectives"]
    words = [counted(n, _WORDS.get(kind, kind.replace("_", "-"))) for kind, (n, _) in of.items()]
    ran = f"forward and backward pass of one of {counted(_processes(plan), 'process', 'processes')}"
    return Checked(True, f"{ran}, with {', '.join(words) or 'no collective'}", of)


def _processes(plan: Plan) -> int:
    return len(set(plan.running_devices[plan.running_devices >= 0].tolist()))
