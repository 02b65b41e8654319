"""``loadmaster advise``: the best plan of all, and what each system would make of a model."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

from loadmaster.cli import inputs, options
from loadmaster.cli.printing import note, say_where, show


def add(commands: Any) -> None:
    """Declares the command."""
    command = options.add_command(
        commands,
        "advise",
        run,
        "what to do with a model and a cluster, the fastest first",
        examples=(
            "example:gpt3-330m --cluster 4xV100-PCIe",
            "my.py:build --cluster 4xV100-PCIe",
            "model.pt2 --cluster 8xH100-NVLink --targets ddp,fsdp",
        ),
    )
    options.add_graph(command)
    options.add_cluster(command)
    options.add_costs(command)
    options.add_runtime(command)
    command.add_argument(
        "--targets",
        metavar="TARGET,...",
        help="systems to plan for; default: those of the framework that the graph is from",
    )


def run(arguments: argparse.Namespace) -> None:
    """Plans by auto and for each target, and shows them side by side."""
    from loadmaster.cli.progress import ProgressLine
    from loadmaster.rules.reserves import kept_by_default
    from loadmaster.tasks.advise import advise

    targets, cluster = inputs.targets(arguments), inputs.hosted_cluster(arguments)
    inputs.check_planners((), targets)
    if said := options.unsaid(arguments):
        note(said)
    with ProgressLine() as progress:
        progress("reading the graph")
        graph = inputs.graph(arguments, progress=progress)
        advice = advise(
            graph,
            cluster,
            inputs.costs(arguments, graph, cluster),
            targets=targets or None,
            constraints=kept_by_default(cluster, arguments.runtime),
            progress=progress,
        )
    flags = tuple(options.words_of(arguments, but=("cluster", "targets", "json")))
    show(
        arguments,
        replace(advice, graph=arguments.graph, cluster=arguments.cluster, flags=flags),
    )
    say_where([], "the plans are not saved: a choice's command saves one")
