"""Loadmaster's own format: JSON that no other reader recognises."""

from __future__ import annotations

import os
import re

from loadmaster.model.graph import OpGraph
from loadmaster.readers.registry import reader

#: How JSON begins: a list, or an object, whose first key is quoted.
_JSON = re.compile(rb"\[|\{\s*(?:[\"}]|$)")


@reader(
    "opgraph",
    "opgraph JSON",
    recognises=lambda file: _JSON.match(file.text) is not None,
    is_last=True,
)
def read(path: str | os.PathLike[str]) -> OpGraph:
    """As :func:`loadmaster.readers.opgraph.read`."""
    from loadmaster.readers import opgraph

    return opgraph.read(path)
