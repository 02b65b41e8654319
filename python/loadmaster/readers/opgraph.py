"""Reads opgraph v1 JSON, plain or gzipped, and writes it."""

from __future__ import annotations

import os

from loadmaster.base.files import parse_json, read_bytes, write_json
from loadmaster.model.graph import OpGraph


def read(path: str | os.PathLike[str]) -> OpGraph:
    """The graph in an opgraph v1 file.

    Raises
    ------
    InputError
        The file cannot be read or unpacked, is no JSON, of another format or version, or its graph
        is invalid; path and culprit are named.
    """
    return OpGraph.from_document(parse_json(read_bytes(path), path), os.fspath(path))


def write(graph: OpGraph, path: str | os.PathLike[str]) -> None:
    """Writes a graph; gzipped if the path ends in ``.gz``. Nothing half-written stays behind."""
    write_json(path, graph.to_document())
