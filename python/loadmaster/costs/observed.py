"""Costs that one measured step taught: a factor for each class of op, which holds for any recipe.

A step of a plan was predicted, and measured. Its classes of op share the difference as their shares
of the step and their spreads ask (the mean of Gaussian errors, given their sum). What is then known
of their errors together makes ranges narrower: :mod:`loadmaster.plans.ranges`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from loadmaster.base import checks
from loadmaster.base.errors import InputError
from loadmaster.base.files import check_format, parse_json, read_bytes, write_json
from loadmaster.base.text import Printed
from loadmaster.base.units import format_seconds
from loadmaster.costs.op_classes import OF_OPS, classes_of
from loadmaster.costs.roofline import PROVENANCES, Costs, estimate, is_estimated
from loadmaster.model.cluster import Cluster
from loadmaster.model.graph import OpGraph

FORMAT, VERSION = "loadmaster-observed", 1

#: Key of a graph's meta that says what was observed.
META = "observed"


@dataclass(frozen=True)
class Observed(Printed):
    """Lessons of one measured step.

    Attributes
    ----------
    plan : str
        The plan whose step was measured, in words.
    seconds, predicted : float
        Of a step: measured, and as it was predicted.
    types : tuple of str
        Device types that it ran on.
    factors : mapping of str to float
        How many times as long each class takes as was predicted.
    known : mapping of str to float
        The part of each class's spread that the measured step has in it: errors of these sizes
        together are no longer open.
    """

    plan: str
    seconds: float
    predicted: float
    types: tuple[str, ...]
    factors: Mapping[str, float]
    known: Mapping[str, float]

    def costs(self, graph: OpGraph, cluster: Cluster) -> Costs:
        """Costs of a graph's ops: estimates times the factors, on the device types observed.

        Measured times of the graph stay as they are.
        """
        before = estimate(graph, cluster)
        factor = np.array([self.factors.get(name, 1.0) for name in classes_of(graph)])
        scaled = is_estimated(before.provenance)
        factor[~scaled] = 1.0
        time = before.time.copy()
        for column, name in enumerate(before.types):
            if name in self.types:
                time[:, column] *= factor
        provenance = before.provenance.copy()
        provenance[scaled & bool(set(before.types) & set(self.types))] = PROVENANCES.index("scaled")
        return Costs(time, before.types, provenance)

    def on(self, graph: OpGraph) -> OpGraph:
        """The graph, which says what was observed, so that ranges of its plans are narrower."""
        beside = {n: f for n, f in self.factors.items() if n not in OF_OPS}
        said = {"types": list(self.types), "factors": beside, "known": dict(self.known)}
        return graph.with_columns({}, meta={META: said})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes it as JSON, gzipped if the path ends in ``.gz``."""
        write_json(path, self.to_document())

    def to_document(self) -> dict[str, Any]:
        """As plain data for JSON."""
        return {"format": FORMAT, "version": VERSION, **asdict(self)}

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Observed:
        """From a file that :meth:`save` wrote.

        Raises
        ------
        InputError
            Another format or version; a figure that is out of range.
        """
        document, source = parse_json(read_bytes(path), path), os.fspath(path)
        check_format(document, FORMAT, VERSION, "an observed step", source)
        try:
            fields = {name: document[name] for name in cls.__dataclass_fields__}
            one = cls(**fields | {"types": tuple(map(str, fields["types"]))})
            for name, factor in one.factors.items():
                checks.positive(f"{source}: factor of {name}", factor)
            for name, part in one.known.items():
                checks.not_negative(f"{source}: known of {name}", part)
            for name in ("seconds", "predicted"):
                checks.positive(f"{source}: {name}", fields[name])
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{source} is no observed step: {error}") from error
        return one

    def __str__(self) -> str:
        ratio = self.seconds / self.predicted
        rows = ", ".join(f"{name} x {factor:.2f}" for name, factor in self.factors.items())
        return (
            f"{self.plan}: {format_seconds(self.seconds)} measured, "
            f"{format_seconds(self.predicted)} predicted ({ratio:.2f} x), on "
            f"{', '.join(self.types)}\ntimes of {rows}"
        )


def is_observed(path: str | os.PathLike[str]) -> bool:
    """True if a file of costs is one of an observed step."""
    document = parse_json(read_bytes(path), path)
    return isinstance(document, Mapping) and document.get("format") == FORMAT
