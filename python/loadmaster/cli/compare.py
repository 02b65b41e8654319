"""``loadmaster compare``: several methods on one graph and cluster."""

from __future__ import annotations

import argparse
from typing import Any

from loadmaster.base.errors import InfeasibleError
from loadmaster.cli import inputs, options
from loadmaster.cli.printing import put, say_where, show_json


def add(commands: Any) -> None:
    """Declares the command."""
    command = options.add_command(
        commands, "compare", run, "compare methods, and targets, on a graph"
    )
    options.add_placing(command)
    options.add_methods(command)


def run(arguments: argparse.Namespace) -> None:
    """Places by each method; fails only if none found a plan."""
    from loadmaster.cli.progress import ProgressLine
    from loadmaster.plans.summary import comparison_table, document
    from loadmaster.tasks.place import compare

    methods, targets = inputs.methods(arguments), inputs.targets(arguments)
    graph, cluster = inputs.graph(arguments), inputs.limited_cluster(arguments)
    with ProgressLine() as progress:
        comparison = compare(
            graph,
            cluster,
            methods,
            inputs.costs(arguments, graph, cluster),
            seed=arguments.seed,
            targets=targets,
            on_oom=arguments.on_oom,
            constraints=inputs.constraints(arguments),
            objective=arguments.objective,
            progress=progress,
        )
    if arguments.json:
        plans = {method: document(plan) for method, plan in comparison.plans.items()}
        show_json({"plans": plans, "failures": comparison.failures})
    else:
        put(comparison_table(comparison))
    say_where(
        [],
        "the plans are not saved: place --method METHOD -o PLAN.json, or --target "
        "TARGET, saves one",
    )
    if not comparison.plans:
        raise InfeasibleError("no method made a plan that fits: the reason of each stands above")
