"""``loadmaster compare``: several methods on one graph and cluster."""

from __future__ import annotations

import argparse
from typing import Any

from loadmaster.base.errors import InfeasibleError
from loadmaster.cli import inputs, options, values
from loadmaster.cli.printing import put, say_where, show_json


def add(commands: Any) -> None:
    """Declares the command."""
    command = options.add_command(
        commands,
        "compare",
        run,
        "compare methods, and targets, on a graph",
        examples=(
            "example:lenet --cluster 2xV100-NVLink --methods auto,heft,single",
            "example:lenet --cluster 2xV100-NVLink --methods auto --targets ddp,fsdp",
        ),
    )
    options.add_placing(command)
    options.add_methods(command)
    options.add_search(command)


def run(arguments: argparse.Namespace) -> None:
    """Places by each method; fails only if none found a plan."""
    from loadmaster.cli.progress import ProgressLine
    from loadmaster.plans.summary import document
    from loadmaster.tasks.place import compare

    methods, targets = inputs.methods(arguments), inputs.targets(arguments)
    time_limit = values.seconds("--time-limit", arguments.time_limit)
    with ProgressLine(time_limit, is_of_cases=True) as progress:
        progress("reading the graph")
        graph = inputs.graph(arguments, progress=progress)
        cluster = inputs.limited_cluster(arguments)
        comparison = compare(
            graph,
            cluster,
            methods,
            inputs.costs(arguments, graph, cluster),
            seed=arguments.seed,
            targets=targets,
            time_limit=time_limit,
            on_oom=arguments.on_oom,
            constraints=inputs.constraints(arguments),
            objective=arguments.objective,
            progress=progress,
            **inputs.chosen(arguments),
        )
    if arguments.json:
        plans = {method: document(plan) for method, plan in comparison.plans.items()}
        show_json({"plans": plans, "failures": comparison.failures})
    else:
        put(comparison)
    say_where(
        [],
        "the plans are not saved: place --method METHOD -o PLAN.json, or --target "
        "TARGET, saves one",
    )
    if not comparison.plans:
        raise InfeasibleError("no method made a plan that fits: the reason of each stands above")
