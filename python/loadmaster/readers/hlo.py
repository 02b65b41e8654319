"""Optimized HLO (``compiled.as_text()``) as a graph, with measured times from a profiler trace.

This is what XLA runs: an op is one of its instructions, mostly a fusion. The trace that
``jax.profiler`` writes names the instruction of every execution (``hlo_op``), its module and the
run, so that the join is exact.
"""

from __future__ import annotations

import os
import warnings
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.errors import InputError
from loadmaster.files import parse_json, read_bytes
from loadmaster.graph import ANY_TYPE, OpGraph
from loadmaster.profile import Profile
from loadmaster.readers.hlo_text import from_text
from loadmaster.readers.notes import warn
from loadmaster.readers.xla_graph import to_graph
from loadmaster.readers.xla_text import decoded


def begins(text: str) -> bool:
    """Whether a text begins like a module of HLO.

    >>> begins("HloModule jit_step, is_scheduled=true"), begins("module @jit_step {")
    (True, False)
    """
    return text.lstrip().startswith("HloModule")


def read(
    path: str | os.PathLike[str],
    *,
    profile: str | os.PathLike[str] | None = None,
    device_type: str = ANY_TYPE,
) -> OpGraph:
    """Read the text of an HLO module as an op graph, with measured times where a trace is given.

    Parameters
    ----------
    path
        HLO text, plain or gzipped: ``jax.jit(f).lower(x).compile().as_text()``.
    profile
        The ``*.trace.json.gz`` that ``jax.profiler.trace`` wrote while the module ran. An op in a
        loop takes what all of its executions took; over several runs, the median.
    device_type
        Where it was measured.

    Raises
    ------
    InputError
        The text is not a whole module (the line is named), or the trace has no run of it.

    Warns
    -----
    UserWarning
        Ops that the trace does not have: their time is filled in by the bytes that they move, at
        the rate of the measured ones. Kinds of op without known costs.

    Example
    -------
    >>> graph = read("step.optimized_hlo.txt.gz", profile="step.trace.json.gz")   # doctest: +SKIP
    """
    try:
        program = from_text(decoded(read_bytes(path)))
        graph = to_graph(program, Path(path).name.split(".")[0])
    except InputError as error:
        raise InputError(f"{os.fspath(path)}: {error}") from None
    if profile is None:
        return graph
    measured = _measured(profile, program.name, graph)
    document = graph.to_document()
    document["ops"]["time"] = {device_type: _filled(graph, measured).tolist()}
    return OpGraph.from_document(document)


def profile(
    path: str | os.PathLike[str],
    *,
    graph: str | os.PathLike[str],
    device_type: str = ANY_TYPE,
    batch: int | None = None,
) -> Profile:
    """What a profiler trace measured of the ops of a module, run by run.

    Parameters
    ----------
    path
        As ``profile`` of :func:`read`.
    graph, device_type
        As ``path`` and ``device_type`` there; errors are its own, and ops have the names that it
        gives.
    batch
        Size of the batch, if the cost models shall know it.

    Example
    -------
    >>> profile("step.trace.json.gz", graph="step.optimized_hlo.txt.gz")   # doctest: +SKIP
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of costs, which a profile has not
        program = read(graph)
    seconds = _measured(path, program.meta["model"], program)
    rows = np.flatnonzero(~np.isnan(seconds).all(axis=1))
    return Profile(
        tuple(program.names[i] for i in rows),
        tuple(program.kinds[i] for i in rows),
        seconds[rows],
        device_type,
        batch,
        program.output_bytes[rows],
    )


# ---- times --------------------------------------------------------------------------------------


def _measured(trace: str | os.PathLike[str], module: str, graph: OpGraph) -> NDArray[np.float64]:
    """Seconds per op and run, float64 [n_ops, n_runs]; NaN: not in the trace."""
    events = _events(trace, module)
    runs = {run: i for i, run in enumerate(dict.fromkeys(e.run for e in events))}
    index = {name: i for i, name in enumerate(graph.names)}
    seconds = np.full((graph.n_ops, len(runs)), np.nan)
    strangers: Counter[str] = Counter()
    for event in events:
        op = index.get(event.op)
        if op is None:
            strangers[event.op] += 1
            continue
        before = seconds[op, runs[event.run]]
        seconds[op, runs[event.run]] = event.own + (0.0 if np.isnan(before) else before)
    if len(strangers) == len({e.op for e in events}):
        raise InputError(
            f"{os.fspath(trace)} has runs of {module!r}, but of none of this text's instructions: "
            "it was compiled otherwise"
        )
    if strangers:
        warn(
            f"{sum(strangers.values())} events of {len(strangers)} instructions that the text does "
            f"not have, {next(iter(strangers))!r} first, are left out"
        )
    return seconds


@dataclass(slots=True)
class _Event:
    """One execution of an instruction, in seconds; ``own`` is without what ran within it."""

    op: str
    run: str
    start: float
    end: float
    own: float


def _events(trace: str | os.PathLike[str], module: str) -> list[_Event]:
    """The executions of a module's instructions, each without those nested in it."""
    document = parse_json(read_bytes(trace), trace)
    rows = document.get("traceEvents") if isinstance(document, Mapping) else None
    if not isinstance(rows, list):
        raise InputError(f"{os.fspath(trace)} is no profiler trace: it has no list 'traceEvents'")
    threads: dict[tuple[Any, Any], list[_Event]] = defaultdict(list)
    modules: Counter[str] = Counter()
    for row in rows:
        args = row.get("args") if isinstance(row, Mapping) else None
        if not isinstance(args, Mapping) or row.get("ph") != "X" or "hlo_op" not in args:
            continue
        modules[str(args.get("hlo_module", ""))] += 1
        if not _same_module(str(args.get("hlo_module", "")), module):
            continue
        start, length = row.get("ts"), row.get("dur")
        if not (_is_time(start) and _is_time(length)):
            raise InputError(
                f"{os.fspath(trace)}: {args['hlo_op']!r} has ts {start!r} and dur {length!r}: "
                "wants microseconds, not negative"
            )
        event = _Event(
            str(args["hlo_op"]),
            str(args.get("run_id", "")),
            start * 1e-6,
            (start + length) * 1e-6,
            length * 1e-6,
        )
        threads[str(row.get("pid")), str(row.get("tid"))].append(event)
    if not threads:
        others = ", ".join(sorted(filter(None, modules)))
        raise InputError(
            f"{os.fspath(trace)} has no execution of module {module!r}"
            + (f"; it has {others}" if others else ": no event names an hlo_op")
        )
    for events in threads.values():
        _take_nested_out(events)
    return [event for key in sorted(threads) for event in threads[key]]


def _take_nested_out(events: list[_Event]) -> None:
    """Each second of a thread belongs to the innermost event that spans it. O(n log n)."""
    events.sort(key=lambda e: (e.start, -e.end))
    open_: list[_Event] = []
    for event in events:
        while open_ and open_[-1].end < event.end:
            open_.pop()
        if open_:
            open_[-1].own = max(open_[-1].own - (event.end - event.start), 0.0)
        open_.append(event)


def _same_module(name: str, module: str) -> bool:
    """Traces may add the program's number: ``jit_step(123)``."""
    return name.partition("(")[0] == module


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e18


def _filled(graph: OpGraph, seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """A time for every op: the median of its runs, none for what makes no data, or by its bytes."""
    measured = ~np.isnan(seconds).all(axis=1)
    times = np.zeros(graph.n_ops)
    times[measured] = np.nanmedian(seconds[measured], axis=1)
    free = graph.view | graph.placeholder | (graph.bytes_accessed == 0)
    missing = ~measured & ~free
    moved = int(graph.bytes_accessed[measured].sum())
    rate = float(times[measured].sum()) / moved if moved else 0.0
    times[missing] = graph.bytes_accessed[missing] * rate
    if missing.any():
        names = [graph.names[i] for i in np.flatnonzero(missing)[:3]]
        note = (
            f"{int(missing.sum())} ops are not in the trace ({', '.join(names)}, ...): their time "
            "is filled in by the bytes they move, at the rate of the measured ones"
        )
        warn(note)
        graph.meta["assumed"].append(note)
    return times
