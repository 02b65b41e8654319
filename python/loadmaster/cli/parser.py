"""The parser of the whole command line: every command, in the order that help lists them."""

from __future__ import annotations

import argparse
from importlib import import_module
from typing import Any

#: Modules of this package, in the order that help lists them.
_COMMANDS = (
    "place",
    "simulate",
    "explain",
    "diff",
    "report",
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

        print(f"loadmaster {version('loadmaster')}")
        parser.exit()


def parser() -> argparse.ArgumentParser:
    """What it parses has the function to run as ``run``, the command's parser as ``command``."""
    made = argparse.ArgumentParser(
        prog="loadmaster",
        description="Decides on which device every op of a deep-learning graph runs, and when.",
    )
    made.add_argument("-V", "--version", action=_Version, nargs=0, help="print the version")
    commands = made.add_subparsers(required=True, metavar="COMMAND")
    for command in _COMMANDS:
        import_module(f"loadmaster.cli.{command}").add(commands)
    return made
