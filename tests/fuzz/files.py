"""Targets that read a file: a good one of a format's corpus, mutated.

``corpus/`` has a folder a format, with small files: what tests write, and parts of what frameworks
wrote. ``corpus/graphs`` has the graphs that files of measured times go with.
"""

from __future__ import annotations

import gzip
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from .frame import refused, target
from .mutations import damaged

CORPUS = Path(__file__).parent / "corpus"

#: How much of the files are gzipped, half of which are then damaged.
_GZIPPED = 0.03

#: Makes a file of a good one and the others.
Mutated = Callable[[bytes, list[bytes], Random], bytes]


def add(name: str, read: Callable[[Path], Any], mutate: Mutated, *, in_ci: int = 250) -> None:
    """Adds the target of a format."""

    @target(name, in_ci=in_ci)
    def one(random: Random) -> None:
        files = _corpus(name)
        data = mutate(random.choice(files), files, random)
        if random.random() < _GZIPPED:
            data = gzip.compress(data, 1, mtime=0)
            data = damaged(data, data, random) if random.random() < 0.5 else data
        path = Path(_folder().name) / "input"
        path.write_bytes(data)
        with refused():
            read(path)


@cache
def _corpus(name: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """A folder for one file at a time, there as long as the process."""
    return tempfile.TemporaryDirectory()
