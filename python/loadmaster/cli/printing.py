"""Output of commands: results on stdout, where they went on stderr.

All that the command line prints goes through :func:`put` and :func:`note`. These show names of ops,
devices and modules as they are, whatever a terminal would do with them.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from loadmaster.base.errors import InputError
from loadmaster.base.quoting import json_text
from loadmaster.base.text import escaped

if TYPE_CHECKING:
    from loadmaster.plans.plan import Plan


class Printable(Protocol):
    """A result that prints itself, and has a document for machines."""

    def to_document(self) -> Any:
        """The document that ``--json`` prints."""


def put(text: object) -> None:
    """Prints a result, and ends its line."""
    _put(escaped(f"{text}\n", but="\n\t"))


def put_file(text: str) -> None:
    """Prints the contents of a file: every character where no terminal is."""
    _put(escaped(text, but="\n\t") if sys.stdout.isatty() else text)


def _put(text: str) -> None:
    """Prints on stdout.

    Raises
    ------
    InputError
        Stdout takes no more: its disk is full, for example.
    BrokenPipeError
        Nobody reads stdout any more.
    """
    try:
        _print(text, sys.stdout)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise InputError(f"cannot write to standard output: {error.strerror}") from error


def note(text: object) -> None:
    """Says something on stderr, in one line; nothing where stderr takes no more."""
    with suppress(OSError):
        _print(f"loadmaster: {escaped(str(text))}\n", sys.stderr)


def _print(text: str, stream: TextIO) -> None:
    """Writes at once. Characters that the stream's encoding lacks are escaped."""
    encoding = stream.encoding or "utf-8"
    try:
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        stream.flush()
    except OSError:
        # The stream keeps the text, and would fail again when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        raise


def open_streams() -> None:
    """Opens a closed stderr, for nobody to read, and refuses a closed stdout.

    Raises
    ------
    InputError
        Stdout is closed.
    """
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        raise InputError("standard output is closed: send it to a file, or to /dev/null")


def show(arguments: argparse.Namespace, result: Printable) -> None:
    """A result for a reader, or for machines if they asked."""
    if arguments.json:
        show_json(result.to_document())
    else:
        put(result)


def show_json(document: Any) -> None:
    """A document for machines."""
    put(json_text(document, indent=2))


def show_columns(texts: Mapping[str, str]) -> None:
    """Names on the left, what they are on the right."""
    width = max(map(len, texts))
    for name, text in texts.items():
        put(f"{name:<{width}}  {text}")


def say_where(written: Sequence[tuple[str, str]], unsaved: str = "") -> None:
    """The last lines: where every result went, and what was not kept, with how to keep it."""
    lines = [f"{noun} written to {path}" for noun, path in written]
    lines = lines or ["result written to standard output"]
    if unsaved:
        lines[-1] += f"; {unsaved}"
    for line in lines:
        note(line)


def write_pictures(plan: Plan, arguments: argparse.Namespace) -> list[tuple[str, str]]:
    """Writes the trace and the pictures that were asked for; what was written, and where."""
    written = []
    if arguments.trace:
        from loadmaster.writers.pictures.trace import write_trace

        write_trace(plan, arguments.trace)
        written.append(("trace", arguments.trace))
    if arguments.timeline:
        from loadmaster.writers.pictures.timeline import draw

        draw(plan, arguments.timeline)
        written.append(("timeline", arguments.timeline))
    return written + _draw_pipeline(plan, arguments.pipeline)


def _draw_pipeline(plan: Plan, path: str | None) -> list[tuple[str, str]]:
    from loadmaster.writers.pictures import pipeline

    if path is None:
        return []
    if not pipeline.is_pipeline(plan):
        note(f"the plan has no micro-batches, so {path} is not drawn: there is no pipeline")
        return []
    pipeline.draw(plan, path)
    return [("pipeline", path)]


def save_recipe(plan: Plan, path: str) -> list[tuple[str, str]]:
    """Writes a plan's recipe; what was written, and where: nothing where it has none."""
    if plan.recipe is None:
        note(f"the plan has no recipe, so {path} is not written: it splits nothing by modules")
        return []
    plan.recipe.save(path)
    return [("recipe", path)]


def check_targets(*paths: str | None, pictures: Sequence[str | None] = ()) -> None:
    """Refuses what cannot be written to, before the work whose result it is for."""
    from loadmaster.base.files import check_target

    drawn = [path for path in pictures if path is not None]
    if drawn:
        from loadmaster.base.drawing import check_suffix

        for picture in drawn:
            check_suffix(picture)
    for path in (*paths, *drawn):
        if path is not None:
            check_target(path)
