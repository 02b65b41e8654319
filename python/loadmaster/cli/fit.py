"""``loadmaster fit``: whether a graph fits, on how few devices, and what would help."""

from __future__ import annotations

import argparse
from typing import Any

from loadmaster.base.errors import InfeasibleError
from loadmaster.cli import inputs, options, values
from loadmaster.cli.printing import say_where, show


def add(commands: Any) -> None:
    """Declares the command."""
    command = options.add_command(
        commands,
        "fit",
        run,
        "say whether a graph fits, on how few devices, and what would help",
        examples=(
            "example:inception-v3 --cluster 4xV100-PCIe",
            "example:inception-v3 --cluster 4xV100-PCIe --target fsdp",
        ),
    )
    options.add_graph(command)
    options.add_cluster(command)
    options.add_costs(command)
    options.add_objective(command)
    options.add_target(command)
    options.add_repeated(command, "--option", "KEY=VALUE", "an option of the target (repeatable)")
    options.add_constraints(command)


def run(arguments: argparse.Namespace) -> None:
    """Shows the result; fails if no placement fits."""
    from loadmaster.cli.progress import ProgressLine
    from loadmaster.tasks.fit import fit

    cluster = inputs.cluster(arguments.cluster)
    constraints = inputs.constraints(arguments, cluster)
    options = values.options(arguments.option)
    if arguments.target is not None:
        inputs.check_planners([], [arguments.target], options)
    with ProgressLine() as progress:
        progress("reading the graph")
        graph = inputs.graph(arguments, progress=progress)
        fitted = fit(
            graph,
            cluster,
            inputs.costs(arguments, graph, cluster),
            constraints=constraints,
            objective=arguments.objective,
            target=arguments.target,
            progress=progress,
            **options,
        )
    show(arguments, fitted)
    say_where([])
    if not fitted.fits:
        raise InfeasibleError("no placement that fits was found")
