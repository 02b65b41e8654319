"""Loadmaster's own format: JSON that no other reader recognises."""

from __future__ import annotations

import re

from loadmaster.readers.registry import Later, reader

#: Beginning of JSON: a list, or an object, whose first key is quoted.
_JSON = re.compile(rb"\[|\{\s*(?:[\"}]|$)")

reader(
    "opgraph",
    "opgraph JSON",
    recognises=lambda file: _JSON.match(file.text) is not None,
    is_last=True,
)(Later("opgraph:read"))
