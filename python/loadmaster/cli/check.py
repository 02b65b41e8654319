"""``loadmaster check``: a saved plan held to limits; exit code 1 if it breaks one."""

from __future__ import annotations

import argparse
from typing import Any

from loadmaster.cli import inputs, options, values
from loadmaster.cli.printing import show


def add(commands: Any) -> None:
    """Declares the command."""
    command = options.add_command(
        commands, "check", run, "hold a saved plan to limits: exit code 1 if not"
    )
    options.add_plan(command, graph=True)
    command.add_argument("--cluster", help="check that the plan is for this cluster")
    options.add_repeated(
        command,
        "--max-peak",
        "[DEVICE=]SIZE",
        "most memory in use at any time, on all devices or on one: 0=30GiB",
    )
    command.add_argument("--max-step", metavar="TIME", help="longest step: 120ms")
    options.add_repeated(
        command,
        "--forbid",
        "DEVICE",
        "a device, or a type of devices, that must run nothing (repeatable)",
    )
    options.add_constraints(command)


def run(arguments: argparse.Namespace) -> int:
    """Checks, and shows what holds and what does not."""
    from loadmaster.tasks.check import check

    cluster = inputs.cluster(arguments.cluster) if arguments.cluster else None
    seen = check(
        inputs.plan(arguments, cluster),
        max_peak=values.per_device("--max-peak", arguments.max_peak),
        max_step=arguments.max_step,
        forbid=arguments.forbid,
        constraints=inputs.constraints(arguments),
    )
    show(arguments, seen)
    return 0 if seen.ok else 1
