"""``loadmaster check``: a saved plan or run against limits; exit code 1 if it breaks one."""

from __future__ import annotations

import argparse
from typing import Any

from loadmaster.cli import inputs, options, values
from loadmaster.cli.printing import show


def add(commands: Any) -> None:
    """Declares the command."""
    command = options.add_command(
        commands,
        "check",
        run,
        "check a saved plan against limits: exit code 1 if one is broken",
        examples=("plan.json --max-peak gpu0=30GiB --max-step 120ms",),
    )
    options.add_plan(command, graph=True)
    command.add_argument("--cluster", help="check that the plan is for this cluster")
    options.add_repeated(
        command,
        "--max-peak",
        "[DEVICE=]SIZE",
        "limit of the memory in use at any time, on all devices or one: 0=30GiB",
    )
    command.add_argument("--max-step", metavar="TIME", help="limit of the step time: 120ms")
    options.add_repeated(
        command,
        "--forbid",
        "DEVICE",
        "a device, or a device type, that must run no op (repeatable)",
    )
    options.add_constraints(command)


def run(arguments: argparse.Namespace) -> int:
    """Checks, and shows which limits hold."""
    from loadmaster.tasks.check import check

    cluster = inputs.cluster(arguments.cluster) if arguments.cluster else None
    seen = check(
        inputs.seen(arguments.plan, inputs.wanted_graph(arguments), cluster),
        max_peak=values.per_device("--max-peak", arguments.max_peak),
        max_step=arguments.max_step,
        forbid=arguments.forbid,
        constraints=inputs.constraints(arguments),
    )
    show(arguments, seen)
    return 0 if seen.ok else 1
