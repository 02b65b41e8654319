"""``loadmaster compare``: several methods on one graph and cluster."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from loadmaster.base.errors import InfeasibleError
from loadmaster.cli import inputs, options, values
from loadmaster.cli.printing import check_targets, put, say_where, show_json

if TYPE_CHECKING:
    from loadmaster.plans.comparison import Comparison


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
            "example:lenet --cluster 2xV100-NVLink --methods heft,single --chart methods.png",
        ),
    )
    options.add_placing(command)
    options.add_methods(command)
    options.add_search(command)
    options.add_chart(command, "step times beside their bounds")


def run(arguments: argparse.Namespace) -> None:
    """Places by each method; fails only if none found a plan."""
    from loadmaster.cli.progress import ProgressLine
    from loadmaster.plans.summary import document
    from loadmaster.strategies.user_method import method_of
    from loadmaster.tasks.compare import compare

    methods = [method_of(text) for text in inputs.methods(arguments)]
    targets = inputs.targets(arguments)
    inputs.check_planners(methods, targets)
    cluster = inputs.limited_cluster(arguments)
    constraints = inputs.constraints(arguments, cluster)
    check_targets(pictures=(arguments.chart,))
    time_limit = values.seconds("--time-limit", arguments.time_limit)
    with ProgressLine(time_limit, is_of_cases=True) as progress:
        progress("reading the graph")
        graph = inputs.graph(arguments, progress=progress)
        comparison = compare(
            graph,
            cluster,
            methods,
            inputs.costs(arguments, graph, cluster),
            seed=arguments.seed,
            targets=targets,
            time_limit=time_limit,
            on_oom=arguments.on_oom,
            constraints=constraints,
            objective=arguments.objective,
            progress=progress,
            **inputs.chosen(arguments),
        )
    if arguments.json:
        plans = {method: document(plan) for method, plan in comparison.plans.items()}
        unsure = comparison.not_told_apart
        show_json({"plans": plans, "failures": comparison.failures, "not_told_apart": unsure})
    else:
        put(comparison)
    say_where(
        _drawn(comparison, arguments.chart),
        "the plans are not saved: place --method METHOD -o PLAN.json, or --target "
        "TARGET, saves one",
    )
    if not comparison.plans:
        raise InfeasibleError("no method made a plan that fits: the reason of each stands above")


def _drawn(comparison: Comparison, path: str | None) -> list[tuple[str, str]]:
    """Draws the plans that there are; what was written, and where."""
    if path is None or not comparison.plans:
        return []
    from loadmaster.writers.pictures.comparison import draw

    draw(comparison, path)
    return [("chart", path)]
