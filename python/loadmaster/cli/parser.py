"""The parser of the whole command line: every command, in the order that help lists them."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

from loadmaster.base.errors import InputError
from loadmaster.base.text import meant
from loadmaster.cli import options
from loadmaster.cli.completion import complete
from loadmaster.cli.printing import put

#: Modules of this package, in the order that help lists them.
_COMMANDS = (
    "advise",
    "place",
    "simulate",
    "recipe",
    "explain",
    "diff",
    "report",
    "run",
    "export",
    "targets",
    "methods",
    "compare",
    "sweep",
    "what_if",
    "check",
    "calibrate",
    "fit",
    "info",
    "coarsen",
    "cluster",
    "presets",
    "examples",
    "instances",
    "leaderboard",
    "completion",
)


#: A flag, as help lists it.
_FLAG = re.compile(r"(?<!\S)--[a-z][a-z-]*")


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
        """One line: the message, which has the user's words in it, and where help is."""
        message = message.rstrip(".")
        see = f" See {self.prog} --help" if message.endswith("?") else f"; see {self.prog} --help"
        raise InputError(message + see)


def parsed(argv: Sequence[str]) -> argparse.Namespace:
    """The arguments of a command, whose ``run`` is the function to call with them.

    Raises
    ------
    InputError
        No command, or a word that the command does not know: the message names what is like it.
    """
    command_parser = parser()
    complete(command_parser)
    first = next((word for word in argv if not word.startswith("-")), None)
    names = [name.replace("_", "-") for name in _COMMANDS]
    if first is not None and first not in names:
        if first == "help":
            raise InputError("help is a flag: loadmaster --help, or loadmaster COMMAND --help")
        raise InputError(f"no command is named {first!r}{meant(first, names)}")
    arguments, unknown = command_parser.parse_known_args(argv)
    if unknown:
        flags = sorted(set(_FLAG.findall(arguments.command.format_help())))
        near = meant(unknown[0].partition("=")[0], flags).partition("? ")
        hint = f"{near[0]}?" if near[1] else ""
        arguments.command.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
    options.settle(arguments)
    return arguments


def parser() -> argparse.ArgumentParser:
    """The parser. Parsed arguments have a function, ``run``, and the parser of ``command``."""
    top = _Parser(
        prog="loadmaster",
        description="Decides on which device every op of a deep-learning graph runs, and when.",
    )
    top.add_argument("-V", "--version", action=_Version, nargs=0, help="print the version")
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    for command in _COMMANDS:
        import_module(f"loadmaster.cli.{command}").add(commands)
    return top
