"""Reads inputs of Piper: layers, the ways to run each, and the devices of a pipeline.

The JSON of "Piper: Multidimensional Planner for DNN Parallelization" (Tarnawski, Narayanan,
Phanishayee, NeurIPS 2021).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.checks import integer, not_negative
from loadmaster.base.errors import InputError
from loadmaster.base.files import naming, parse_json, read_bytes
from loadmaster.base.text import shown
from loadmaster.readers.planners.planner_json import Row, ends, positions, rows

#: The most devices, samples of a batch and degrees of tensor parallelism.
MOST = 2**20

#: Bytes per second between a device and others in the authors' own experiments: their program puts
#: it in the place of what the files say.
BANDWIDTH = 25.0 * 2**30

#: The number columns of a choice, as the file calls them.
_NUMBERS = ("timePerSample", "parameterSize", "memoryUsageA", "memoryUsageB")


@dataclass(frozen=True)
class Piper:
    """Layers of a model, and the devices of a pipeline.

    Attributes
    ----------
    ids : tuple of int
        The layers' ids, as the file lists them. Everything else speaks of positions in this list.
    src, dst : int64 [m]
        Edges: the second layer reads what the first makes.
    layer, degree : int64 [c]
        Of each choice, its layer and its degree of tensor parallelism.
    names : tuple of str
        What the file calls each choice, such as "activation recomp".
    numbers : float64 [c, 4]
        Seconds per sample, forward and backward; bytes of parameters; bytes held per sample in
        flight; bytes held besides.
    choice, other : int64 [x]
        A choice, and a layer that it exchanges data with if that is in another stage.
    exchanged : float64 [x]
        Bytes per sample that it sends and receives then, in both passes.
    devices : int
    memory : float
        Bytes of a device.
    bandwidth : float
        Bytes per second.
    samples : int
        Samples of a batch.
    """

    ids: tuple[int, ...]
    src: NDArray[np.int64]
    dst: NDArray[np.int64]
    layer: NDArray[np.int64]
    degree: NDArray[np.int64]
    names: tuple[str, ...]
    numbers: NDArray[np.float64]
    choice: NDArray[np.int64]
    other: NDArray[np.int64]
    exchanged: NDArray[np.float64]
    devices: int
    memory: float
    bandwidth: float
    samples: int

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Piper:
        """Read a file, plain or gzipped.

        Raises
        ------
        InputError
            A damaged file; a layer, choice or edge without a field, or with one that is no number
            or negative; an id given twice or that no layer has.

        Examples
        --------
        >>> problem = Piper.read("bert32a100.json")  # doctest: +SKIP
        """
        document = parse_json(read_bytes(path), path)
        with naming(path):
            return cls.from_document(document)

    @classmethod
    def from_document(cls, document: Any) -> Piper:
        """From parsed JSON; errors as those of :meth:`read`."""
        if not is_piper(document):
            raise InputError("no input of Piper: it has no nodes with TMPCs")
        nodes = document["nodes"]
        index = positions(nodes, "layer")
        bytes_of = _edges(rows(document, "edges"), index)
        src, dst = np.array(list(bytes_of), dtype=np.int64).reshape(-1, 2).T
        ways = list(_choices(nodes))
        exchanges = [
            (at, other, 2.0 * (bytes_ + sync))
            for at, row in enumerate(ways)
            for other, bytes_, sync in _exchanges(row, index, bytes_of)
        ]
        if any(bytes_ == math.inf for _, _, bytes_ in exchanges):
            raise InputError("what some layer exchanges adds up to more bytes than can be counted")
        choice, other, exchanged = zip(*exchanges, strict=True) if exchanges else ((), (), ())
        return cls(
            ids=tuple(index),
            src=src,
            dst=dst,
            layer=np.array([index[row.node] for row in ways], dtype=np.int64),
            degree=np.array([row.degree for row in ways], dtype=np.int64),
            names=tuple(str(row.fields.get("id", "")) for row in ways),
            numbers=np.array([[row.number(key) for key in _NUMBERS] for row in ways]).reshape(
                -1, 4
            ),
            choice=np.array(choice, dtype=np.int64),
            other=np.array(other, dtype=np.int64),
            exchanged=np.array(exchanged, dtype=np.float64),
            devices=integer("maxDevices", document.get("maxDevices"), 1, MOST),
            memory=not_negative("maxMemoryPerDevice", document.get("maxMemoryPerDevice")),
            bandwidth=BANDWIDTH,
            samples=integer(
                "mbsInBatch", document.get("mbsInBatch", document.get("maxBatchSize")), 1, MOST
            ),
        )


def is_piper(document: Any) -> bool:
    """True if parsed JSON looks like an input of Piper."""
    nodes = document.get("nodes") if isinstance(document, dict) else None
    return (
        isinstance(nodes, list)
        and bool(nodes)
        and all(isinstance(node, dict) and isinstance(node.get("TMPCs"), dict) for node in nodes)
    )


@dataclass(frozen=True)
class _ChoiceRow:
    """A choice as the file has it: its layer's id, its degree and its fields."""

    node: int
    degree: int
    fields: Mapping[str, Any]

    def number(self, key: str) -> float:
        """One of its numbers."""
        return not_negative(f"{self}: {key}", self.fields.get(key))

    def bytes_with(self, key: str) -> dict[int, float]:
        """Bytes by neighbour."""
        by_layer = self.fields.get(key, {})
        if not isinstance(by_layer, dict):
            raise InputError(f"{self}: {key} is {shown(by_layer)}: wants bytes by layer")
        return {
            _number(f"{self}: {key}", name): not_negative(f"{self}: {key} {name}", value)
            for name, value in by_layer.items()
        }

    def __str__(self) -> str:
        return f"layer {self.node}, degree {self.degree}"


def _number(place: str, text: str) -> int:
    if not text.isdigit():
        raise InputError(f"{place} has the key {shown(text)}: wants a whole number")
    return int(text)


def _edges(edges: list[Row], index: Mapping[int, int]) -> dict[tuple[int, int], float]:
    """Bytes per edge, by the positions of its ends."""
    bytes_of: dict[tuple[int, int], float] = {}
    for at, (edge, pair) in enumerate(zip(edges, ends(edges, index, "layer"), strict=True)):
        if pair in bytes_of:
            raise InputError(f"edge {at} joins the same layers as another one")
        bytes_of[pair] = not_negative(
            f"edge {at}: communicationCost", edge.get("communicationCost")
        )
    return bytes_of


def _choices(nodes: list[Row]) -> Iterator[_ChoiceRow]:
    for node in nodes:
        for name, some in node["TMPCs"].items():
            place = f"layer {node['id']}: TMPCs"
            degree = integer(f"{place}: degree", _number(place, name), 1, MOST)
            if not isinstance(some, list) or not all(isinstance(one, dict) for one in some):
                raise InputError(f"{place} {name} is no list of objects")
            yield from (_ChoiceRow(node["id"], degree, one) for one in some)


def _exchanges(
    row: _ChoiceRow, index: Mapping[int, int], bytes_of: Mapping[tuple[int, int], float]
) -> Iterator[tuple[int, float, float]]:
    """The neighbours of a choice, the bytes of the edge, and those that it adds."""
    at = index[row.node]
    into, out = row.bytes_with("syncTimeFw"), row.bytes_with("syncTimeBw")
    by_position = {index[key]: key for key in (*into, *out) if key in index}
    for (a, b), bytes_ in bytes_of.items():
        if b == at:
            yield a, bytes_, into.get(by_position.get(a, -1), 0.0)
        elif a == at:
            yield b, bytes_, out.get(by_position.get(b, -1), 0.0)
