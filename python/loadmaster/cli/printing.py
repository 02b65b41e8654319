"""What commands print: results on stdout, where they went on stderr."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class Result(Protocol):
    """What prints itself, and has a document for machines."""

    def to_document(self) -> Any:
        """What ``--json`` prints."""


def show(arguments: argparse.Namespace, result: Result) -> None:
    """A result for a reader, or for machines if they asked."""
    if arguments.json:
        show_json(result.to_document())
    else:
        print(result)


def show_json(document: Any) -> None:
    """A document for machines."""
    print(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False))


def show_columns(texts: Mapping[str, str]) -> None:
    """Names on the left, what they are on the right."""
    width = max(map(len, texts))
    for name, text in texts.items():
        print(f"{name:<{width}}  {text}")


def say_where(written: Sequence[tuple[str, str]], unsaved: str = "") -> None:
    """The last lines: where every result went, and what was not kept, with how to keep it."""
    sys.stdout.flush()
    lines = [f"{what} written to {path}" for what, path in written]
    lines = lines or ["result written to standard output"]
    if unsaved:
        lines[-1] += f"; {unsaved}"
    for line in lines:
        print(f"loadmaster: {line}", file=sys.stderr)


def check_targets(*paths: str | None, picture: str | None = None) -> None:
    """Refuses what cannot be written to, before the work whose result it is for."""
    from loadmaster.base.files import check_target

    if picture:
        from loadmaster.base.drawing import check_suffix

        check_suffix(picture)
    for path in (*paths, picture):
        if path is not None:
            check_target(path)
