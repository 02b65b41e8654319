"""A measured run as a JSON document, with the plan that ran inside."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields
from importlib import metadata
from typing import Any

import numpy as np

from loadmaster.base import checks
from loadmaster.base.errors import InputError, malformed
from loadmaster.base.files import check_format, limited_input, naming, parse_json, read_bytes
from loadmaster.model.cluster import Cluster
from loadmaster.model.graph import OpGraph
from loadmaster.plans.document import plan_document, plan_of_document
from loadmaster.running.measured.measured import Measured, Steps

FORMAT = "loadmaster-measured"
VERSION = 1

_COLUMNS = tuple(column.name for column in fields(Steps) if column.name != "peaks")


def read_measured(path: str | os.PathLike[str], *, max_input: int | str | None = None) -> Measured:
    """The measured run of a file; see :meth:`Measured.load`."""
    with limited_input(max_input):
        document = parse_json(read_bytes(path), path)
    return measured_of_document(document, os.fspath(path))


def is_measured(document: Any) -> bool:
    """True if a parsed document says that it is a measured run."""
    return isinstance(document, Mapping) and document.get("format") == FORMAT


def measured_document(measured: Measured) -> dict[str, Any]:
    """A measured run as the document of version 1. Seconds are those of the clock."""
    steps = measured.steps
    return {
        "format": FORMAT,
        "version": VERSION,
        "loadmaster": metadata.version("loadmaster"),
        "on": list(measured.on),
        "stretch": measured.stretch,
        "steps": {
            **{column: getattr(steps, column).tolist() for column in _COLUMNS},
            "peaks": None if steps.peaks is None else steps.peaks.tolist(),
        },
        "plan": plan_document(measured.plan),
    }


def measured_of_document(
    document: Any,
    source: str = "measured",
    graph: OpGraph | None = None,
    cluster: Cluster | None = None,
) -> Measured:
    """The measured run of :func:`measured_document`'s document; ``source`` is named in errors. The
    plan must be for the graph and the cluster, if given.

    Raises
    ------
    InputError
        Not a measured run, another version, damaged, or steps that are not those of its plan.
    """
    check_format(document, FORMAT, VERSION, "a measured run", source)
    with malformed(f"{source} is a damaged measured run"):
        plan = plan_of_document(document["plan"], f"{source}, its plan", graph, cluster)
        on, stretch, steps = document["on"], document["stretch"], document["steps"]
        if not isinstance(on, list) or not all(isinstance(name, str) for name in on):
            raise InputError(f"{source} is damaged: on is no list of texts")
        if not checks.is_number(stretch):
            raise InputError(f"{source} is damaged: stretch is {stretch!r}, wants a number")
        columns = {name: np.array(steps[name], dtype=np.float64) for name in _COLUMNS}
        peaks = steps["peaks"]
        if peaks is not None:
            if not all(checks.is_integer(size) and 0 <= size < 2**63 for size in peaks):
                raise InputError(f"{source} is damaged: peaks are no list of bytes")
            peaks = np.array(peaks, dtype=np.uint64)
        with naming(f"{source} is damaged"):
            return Measured(plan, Steps(**columns, peaks=peaks), tuple(on), float(stretch))
