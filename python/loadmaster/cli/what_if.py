"""``loadmaster what-if``: the gain of a saved plan on other hardware."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from loadmaster.base.errors import InputError
from loadmaster.cli import inputs, options, values
from loadmaster.cli.printing import say_where, show

#: Flag, metavar and text of each change; the flag is a keyword of :func:`loadmaster.what_if`.
CHANGES = (
    ("--add-device", "DEVICE[=N]", "add a device like this one, or N of them"),
    ("--remove-device", "DEVICE", "take this device away"),
    ("--scale-link", "[A:B=]FACTOR", "multiply the bandwidth of all links, or of one, by a factor"),
    (
        "--scale-device",
        "[DEVICE=]FACTOR",
        "multiply the speed of all devices, or of one, by a factor",
    ),
    ("--memory", "[DEVICE=]SIZE", "give all devices, or one, this memory: 80GiB"),
)


def add(commands: Any) -> None:
    """Declares the command."""
    command = options.add_command(
        commands,
        "what-if",
        run,
        "plan again on other hardware, and say what it gains",
        examples=("plan.json --add-device gpu3 --scale-link 2",),
    )
    options.add_plan(command)
    for flag, metavar, text in CHANGES:
        options.add_repeated(command, flag, metavar, text)
    command.add_argument(
        "--together", action="store_true", help="one scenario of all changes, not one for each"
    )
    command.add_argument(
        "--time-limit",
        metavar="TIME",
        help="limit of the search in each scenario; default: 1s",
    )


def run(arguments: argparse.Namespace) -> None:
    """Places again on each changed cluster, or on one with all changes."""
    from loadmaster.cli.progress import ProgressLine
    from loadmaster.tasks.what_if import what_if

    scenarios = []
    for flag, _, _ in CHANGES:
        word = flag.removeprefix("--").replace("-", "_")
        scenarios += [{word: _value(flag, text)} for text in getattr(arguments, word)]
    if not scenarios:
        flags = ", ".join(flag for flag, _, _ in CHANGES)
        raise InputError(f"nothing is changed: give at least one of {flags}")
    if arguments.together:
        scenarios = [_merged(scenarios)]
    with ProgressLine() as progress:
        seen = what_if(
            inputs.plan(arguments.plan),
            *scenarios,
            time_limit=values.seconds("--time-limit", arguments.time_limit),
            progress=progress,
        )
    show(arguments, seen)
    say_where([])


def _value(flag: str, text: str) -> Any:
    """The value of a change as :func:`loadmaster.what_if` takes it."""
    of, equals, value = text.rpartition("=")
    parsed: Any = value
    if flag.startswith("--scale") or (flag == "--add-device" and equals):
        try:
            parsed = (int if flag == "--add-device" else float)(value)
        except ValueError as error:
            raise InputError(f"{flag} {text!r}: {value!r} is no number") from error
    elif flag == "--memory" and value.isdecimal():
        parsed = int(value)
    if not equals:
        return parsed
    return {tuple(of.split(":")) if flag == "--scale-link" else of: parsed}


def _merged(scenarios: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One scenario with the changes of all."""
    merged: dict[str, Any] = {}
    for word, value in (item for scenario in scenarios for item in scenario.items()):
        before = merged.get(word)
        if before is None:
            merged[word] = value
        elif isinstance(before, dict) and isinstance(value, dict):
            merged[word] = before | value
        else:
            flag = f"--{word.replace('_', '-')}"
            raise InputError(f"{flag} is given twice: together, each wants a device of its own")
    return merged
