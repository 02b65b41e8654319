"""``loadmaster sweep``: many graphs on many clusters by many methods."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from loadmaster.base.errors import InputError, importing
from loadmaster.cli import inputs, options, values
from loadmaster.cli.printing import check_targets, put, say_where, show_json

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from loadmaster.tasks.sweep_table import SweepRow


def add(commands: Any) -> None:
    """Declares the command."""
    command = options.add_command(
        commands,
        "sweep",
        run,
        "place many graphs on many clusters by many methods, and for many targets",
        examples=(
            "example:lenet example:vgg19 --cluster 4xV100-PCIe,8xH100-NVLink --methods auto,heft",
        ),
    )
    options.add_graphs(command)
    command.add_argument(
        "--cluster",
        default="4xV100-PCIe",
        help="presets or TOML files, comma-separated; default: 4xV100-PCIe",
    )
    options.add_methods(command)
    options.add_repeated(
        command,
        "--option",
        "METHOD.KEY=VALUE",
        "an option of one of the methods, such as auto.time_limit=15; of a target, such as "
        "'target ddp.replicas=4' (repeatable)",
    )
    command.add_argument("--seeds", default="0", help="comma-separated; default: 0")
    command.add_argument(
        "-o",
        "--output",
        metavar="TABLE.csv",
        help="add rows to this table (or .parquet), and do not run again what it has; several "
        "sweeps may share it",
    )
    command.add_argument("--workers", type=int, help="cases at a time; default: one per CPU")
    command.add_argument(
        "--dask", metavar="ADDRESS", help="run on the workers of this dask.distributed scheduler"
    )
    options.add_repeated(
        command,
        "--warm-start",
        "PLAN.json",
        "a saved plan, from which cases of a graph with the same ops start (repeatable)",
    )
    options.add_runtime(command)
    options.add_objective(command)
    options.add_constraints(command)
    options.add_chart(command, "steps a second over the number of devices")


def run(arguments: argparse.Namespace) -> None:
    """Runs the cases that the table lacks; exits as interrupted if some are left."""
    from loadmaster.base.units import format_seconds
    from loadmaster.cli.progress import ProgressLine
    from loadmaster.plans.planner import Planner
    from loadmaster.tasks.given import as_cluster
    from loadmaster.tasks.sweep import sweep

    methods, targets = inputs.methods(arguments), inputs.targets(arguments)
    planners = [Planner(name) for name in methods]
    planners += [Planner(name, is_target=True) for name in targets]
    by_name = values.options_by_method([*map(str, planners)], arguments.option)
    seeds = _seeds(arguments.seeds)
    check_targets(pictures=(arguments.chart,))
    clusters = [as_cluster(name) for name in arguments.cluster.split(",")]
    inputs.check_planners(methods, targets)
    constraints = inputs.constraints(arguments)
    warm_start = [inputs.plan(path) for path in arguments.warm_start]
    with _executor(arguments.dask) as executor, ProgressLine() as progress:

        def tell(done: int, total: int, row: SweepRow) -> None:
            case = f"{row.graph} on {row.cluster} by {row.method}"
            came = row.outcome if row.makespan is None else format_seconds(row.makespan)
            progress(f"{done}/{total} {case}: {came}")

        progress("reading the graphs")
        graphs = [inputs.plain_graph(arguments, source) for source in arguments.graphs]
        progress("the first case")
        seen = sweep(
            graphs,
            clusters,
            [(one.name, by_name[str(one)]) for one in planners if not one.is_target],
            targets=[(one.name, by_name[str(one)]) for one in planners if one.is_target],
            seeds=seeds,
            constraints=constraints,
            objective=arguments.objective,
            runtime=arguments.runtime,
            warm_start=warm_start,
            executor=executor,
            workers=arguments.workers,
            out=arguments.output,
            progress=tell,
        )
    if arguments.json:
        rows = [row.to_document() for row in seen.rows]
        show_json({"rows": rows, "resumed": seen.resumed, "unfinished": seen.unfinished})
    else:
        put(seen)
    written = [("table", arguments.output)] if arguments.output else []
    if arguments.chart:
        from loadmaster.writers.pictures.scaling import draw

        draw(seen.rows, {c.digest: c.n_devices for c in clusters}, arguments.chart)
        written.append(("chart", arguments.chart))
    say_where(written, "" if arguments.output else "the table is not saved: -o TABLE.csv saves it")
    if seen.unfinished:
        raise KeyboardInterrupt


def _seeds(text: str) -> list[int]:
    try:
        return [int(word) for word in text.split(",")]
    except ValueError as error:
        raise InputError(f"--seeds {text!r}: wants integers, as 0,1,2") from error


@contextmanager
def _executor(dask: str | None) -> Iterator[Executor | None]:
    """The executor of a dask.distributed scheduler, if there is an address."""
    if dask is None:
        yield None
        return
    with importing("distributed", "dask", "a sweep on dask.distributed"):
        import distributed
    connect: Any = distributed.Client
    try:
        client = connect(dask, timeout=10)
    except (OSError, ValueError) as error:
        raise InputError(f"no dask.distributed scheduler at {dask!r}: {error}") from error
    with client:
        yield client.get_executor()
