"""The parser of the whole command line: every command, in the order that help lists them."""

from __future__ import annotations

import argparse
from importlib import import_module
from typing import Any, NoReturn

from loadmaster.base.text import escaped
from loadmaster.cli.printing import put

#: Modules of this package, in the order that help lists them.
_COMMANDS = (
    "place",
    "simulate",
    "recipe",
    "explain",
    "diff",
    "report",
    "run",
    "export",
    "targets",
    "compare",
    "sweep",
    "what_if",
    "check",
    "calibrate",
    "fit",
    "info",
    "coarsen",
    "presets",
    "examples",
)


class _Version(argparse.Action):
    """Looks the version up only if it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from importlib.metadata import version

        put(f"loadmaster {version('loadmaster')}")
        parser.exit()


class _Parser(argparse.ArgumentParser):
    """Prints by ``printing``."""

    def print_help(self, file: Any = None) -> None:
        """Help is a result."""
        put(self.format_help().rstrip())

    def error(self, message: str) -> NoReturn:
        """The message has the user's words in it."""
        super().error(escaped(message))


def parser() -> argparse.ArgumentParser:
    """What it parses has the function to run as ``run``, the command's parser as ``command``."""
    made = _Parser(
        prog="loadmaster",
        description="Decides on which device every op of a deep-learning graph runs, and when.",
    )
    made.add_argument("-V", "--version", action=_Version, nargs=0, help="print the version")
    commands = made.add_subparsers(required=True, metavar="COMMAND")
    for command in _COMMANDS:
        import_module(f"loadmaster.cli.{command}").add(commands)
    return made
