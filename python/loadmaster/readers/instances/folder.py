"""Instances in a folder of the user's: graphs in any format that is read, each with its cluster.

``NAME.json.gz``, ``NAME.onnx`` and so on is a graph; ``NAME.cluster.toml`` beside it is its
cluster. A file of SAGA holds both. Of a graph without a cluster, the instance's name says which
preset it is on: ``NAME@4xV100-PCIe``. Nothing is downloaded, and nothing is known of their shortest
steps.
"""

from __future__ import annotations

import os
from pathlib import Path

from loadmaster.base.errors import InputError
from loadmaster.base.files import system_errors
from loadmaster.base.text import meant
from loadmaster.model.cluster import Cluster
from loadmaster.readers import registry
from loadmaster.readers.formats.saga import is_saga
from loadmaster.readers.instances.instance import Instance
from loadmaster.readers.instances.models import CLUSTERS
from loadmaster.readers.planners import saga
from loadmaster.readers.reading import read

_CLUSTER = ".cluster.toml"


def names(folder: str | os.PathLike[str]) -> list[str]:
    """Names of the instances in a folder; graphs without a cluster are listed on two presets.

    Raises
    ------
    InputError
        No folder, or one that cannot be read.
    """
    listed: list[str] = []
    for stem, file in _graphs(Path(folder)).items():
        own = _own_cluster(file, stem) or is_saga(registry.File.of(file))
        listed += [stem] if own else [f"{stem}@{cluster}" for cluster in CLUSTERS]
    return listed


def load(name: str, folder: str | os.PathLike[str]) -> Instance:
    """The instance of a name in a folder.

    Raises
    ------
    InputError
        No such graph there, no cluster in its name or beside it, or anything that their readers
        refuse.
    """
    graphs = _graphs(Path(folder))
    stem, _, preset = name.partition("@")
    if stem not in graphs:
        raise InputError(f"{os.fspath(folder)} has no graph {stem!r}{meant(stem, graphs)}")
    file = graphs[stem]
    if preset:
        cluster = Cluster.named(preset)
    elif own := _own_cluster(file, stem):
        cluster = Cluster.read(own)
    elif is_saga(registry.File.of(file)):
        cluster = saga.cluster(file)
    else:
        raise InputError(
            f"{file} has no cluster: put {stem}{_CLUSTER} beside it, or say a preset: "
            f"{stem}@{CLUSTERS[0]}"
        )
    return Instance(name, read(file), cluster, source=os.fspath(file))


def _own_cluster(file: Path, stem: str) -> Path | None:
    beside = file.with_name(f"{stem}{_CLUSTER}")
    return beside if beside.is_file() else None


def _graphs(folder: Path) -> dict[str, Path]:
    """The files of a folder that a reader recognises, by the first part of their names."""
    with system_errors(f"cannot read the folder {folder}"):
        files = sorted(file for file in folder.iterdir() if file.is_file())
    graphs: dict[str, Path] = {}
    for file in files:
        if file.suffix not in (".toml", ".md", ".txt", ".csv") and _is_graph(file):
            stem = file.name.removesuffix(".gz").rpartition(".")[0] or file.name
            graphs.setdefault(stem, file)
    return graphs


def _is_graph(file: Path) -> bool:
    try:
        return registry.of_file(registry.GRAPHS, registry.File.of(file)) is not None
    except InputError:
        return False
