"""``loadmaster report``: a saved plan, or a saved run beside its prediction, as one HTML page."""

from __future__ import annotations

import argparse
from typing import Any

from loadmaster.base.errors import InputError
from loadmaster.cli import inputs, options
from loadmaster.cli.printing import check_targets, say_where, show_json, write_pictures


def add(commands: Any) -> None:
    """Declares the command."""
    command = options.add_command(
        commands,
        "report",
        run,
        "write a saved plan or run as one HTML page",
        examples=("plan.json -o plan.html --compare heft,auto",),
    )
    options.add_plan(command)
    command.add_argument("-o", "--output", default="report.html", help="default: report.html")
    command.add_argument(
        "--compare", metavar="METHODS", help="also place by these methods, comma-separated"
    )
    options.add_pictures(command, "step")


def run(arguments: argparse.Namespace) -> None:
    """Places by the methods to compare with, and writes the page."""
    from loadmaster.base.progress import Incumbent
    from loadmaster.cli.progress import ProgressLine
    from loadmaster.running.measured.measured import Measured
    from loadmaster.tasks.compare import compare
    from loadmaster.writers.report import check_plotly

    check_plotly()
    drawn = arguments.timeline, arguments.pipeline
    check_targets(arguments.output, arguments.trace, pictures=drawn)
    if not arguments.output.endswith((".html", ".htm")):
        raise InputError(f"{arguments.output}: a report is a page: give a name that ends in .html")
    methods: list[Any] = arguments.compare.split(",") if arguments.compare else []
    loaded = inputs.saved(arguments.plan)
    plan = loaded.plan if isinstance(loaded, Measured) else loaded
    with ProgressLine() as progress:
        comparison = compare(
            plan.graph,
            plan.cluster,
            methods,
            plan.costs,
            plan.seed,
            on_oom="best_effort",
            progress=progress,
        )
        progress("drawing", Incumbent(plan.makespan, plan.lower_bound))
        loaded.report(arguments.output, comparison=comparison)
    seen = loaded.seen if isinstance(loaded, Measured) else loaded
    written = [("report", arguments.output), *write_pictures(seen, arguments)]
    if arguments.json:
        show_json({**dict(written), "failures": comparison.failures})
    say_where(written)
