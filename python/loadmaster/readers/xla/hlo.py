"""Optimized HLO (``compiled.as_text()``) as a graph, with measured times from a profiler trace.

XLA runs this text: an op is one of its instructions, mostly a fusion.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from loadmaster.base.files import naming, read_bytes
from loadmaster.base.warnings import warn
from loadmaster.model.graph import OpGraph
from loadmaster.model.profile import Profile
from loadmaster.readers.shared.measured import add_times, only
from loadmaster.readers.xla.graph import to_graph
from loadmaster.readers.xla.hlo_text import from_text
from loadmaster.readers.xla.hlo_trace import HloTrace
from loadmaster.readers.xla.text import decoded


def read(
    path: str | os.PathLike[str],
    *,
    profile: str | os.PathLike[str] | None = None,
    device_type: str | None = None,
    parameters: Sequence[str] | None = None,
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
        Where it was measured; None: ``cpu``, ``gpu`` or ``tpu``, as the trace says.
    parameters
        Arguments that are parameters, or arrays in their trees (``"model.layers"``), of a program
        without training. If absent: those that :mod:`loadmaster.readers.xla.served` tells.

    Raises
    ------
    InputError
        The text is not a whole module (the line is named), or the trace has no run of it, or is of
        several kinds of devices and no ``device_type`` is given.

    Warns
    -----
    UserWarning
        Ops that the trace does not have, whose time is filled in by the bytes that they move, and
        what it has that is no op. Kinds of op without known costs.

    Example
    -------
    >>> graph = read("step.optimized_hlo.txt.gz", profile="step.trace.json.gz")   # doctest: +SKIP
    """
    with naming(path):
        program = from_text(decoded(read_bytes(path)))
        graph = to_graph(program, Path(path).name.split(".")[0], parameters or ())
    if profile is None:
        return graph
    document = graph.to_document()
    with naming(profile):
        trace = HloTrace.read(profile, program.name)
        measured = _profile(trace, graph, device_type, None)
        idle = [n for n, size in zip(graph.names, graph.bytes_accessed, strict=True) if not size]
        notes = add_times(document, measured, set(idle) - set(measured.names))
    warn(*notes)
    document["meta"]["assumed"] += [*trace.notes(), *notes]
    return OpGraph.from_document(document)


def profile(
    path: str | os.PathLike[str],
    *,
    graph: str | os.PathLike[str],
    device_type: str | None = None,
    batch: int | None = None,
) -> Profile:
    """Times of the ops of a module by a profiler trace, run by run.

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
    with naming(path):
        trace = HloTrace.read(path, program.meta["model"])
        times = _profile(trace, program, device_type, batch)
    rows = [i for i, name in enumerate(times.names) if name in set(program.names)]
    return only(times, rows)


def _profile(
    trace: HloTrace, graph: OpGraph, device_type: str | None, batch: int | None
) -> Profile:
    """Times of a trace, with kinds and sizes of the graph's ops where it has them."""
    index = {name: i for i, name in enumerate(graph.names)}
    names = tuple(trace.seconds)
    at = [index.get(name, -1) for name in names]
    return Profile(
        names,
        tuple(graph.kinds[i] if i >= 0 else "" for i in at),
        np.array([trace.seconds[name] for name in names]),
        device_type or trace.device_type(),
        batch,
        np.array([graph.output_bytes[i] if i >= 0 else 0 for i in at], dtype=np.uint64),
    )
