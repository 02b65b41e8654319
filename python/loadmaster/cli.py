"""The command line: results on stdout, progress and warnings on stderr.

Exit codes: 0 done, 1 a check failed, 2 bad input, 3 infeasible, 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from loadmaster.errors import (
    InfeasibleError,
    InputError,
    LoadmasterError,
    MissingExtraError,
)

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from loadmaster.cluster import Cluster
    from loadmaster.constraints import Constraints
    from loadmaster.costs import Costs
    from loadmaster.graph import OpGraph
    from loadmaster.plan import Plan
    from loadmaster.table import Row


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code."""
    arguments, unknown = _parser().parse_known_args(argv)
    if unknown:
        arguments.command.error(f"unrecognized arguments: {' '.join(unknown)}")
    run: Callable[[argparse.Namespace], int | None] = arguments.run
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            code = run(arguments)
            sys.stdout.flush()
        except InfeasibleError as error:
            return _fail(error, 3)
        except LoadmasterError as error:
            return _fail(error, 2)
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            return 130
        except BrokenPipeError:
            # Whoever read the output has seen enough; keep the interpreter's exit quiet too.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
    return code or 0


def _fail(error: Exception, code: int) -> int:
    print(f"loadmaster: {error}", file=sys.stderr)
    return code


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    print(f"loadmaster: warning: {message}", file=sys.stderr)


# -- arguments ---------------------------------------------------------------------------------


class _Version(argparse.Action):
    """Looks the version up only if it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from loadmaster import __version__

        print(f"loadmaster {__version__}")
        parser.exit()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="loadmaster",
        description="Decides on which device every op of a deep-learning graph runs, and when.",
    )
    parser.add_argument("-V", "--version", action=_Version, nargs=0, help="print the version")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    place = _command(commands, "place", _place, "place a graph on a cluster")
    _graph_arguments(place)
    _cluster_argument(place)
    _costs_arguments(place)
    _method_arguments(place)
    place.add_argument("--method", default="auto", help="default: auto")
    place.add_argument(
        "--time-limit",
        type=float,
        metavar="SECONDS",
        help="for methods that search; auto's is 1 if absent (see also --option effort=max)",
    )
    place.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="an option of the method, such as max_ops=100 (repeatable)",
    )
    place.add_argument(
        "--warm-start",
        metavar="PLAN.json",
        help="a saved plan of the same ops that the answer shall be no worse than",
    )
    place.add_argument("-o", "--output", metavar="PLAN.json", help="save the plan (.gz to pack)")
    place.add_argument("--trace", metavar="FILE.json", help="write a Perfetto/Chrome trace")
    place.add_argument("--timeline", metavar="FILE.png", help="draw the timeline (.png or .svg)")

    simulate = _command(commands, "simulate", _simulate, "simulate a saved plan")
    simulate.add_argument("plan", help="a plan that place saved")
    simulate.add_argument("--graph", help="check that the plan is for this graph")
    simulate.add_argument("--cluster", help="simulate on another cluster: preset or TOML file")
    simulate.add_argument(
        "--policy",
        default=None,
        choices=["priority", "fifo", "random", "fixed"],
        help="the plan's own if absent",
    )
    simulate.add_argument("--link-order", default="fifo", choices=["fifo", "priority"])
    simulate.add_argument(
        "--no-contention", action="store_true", help="unlimited channels, the classic model"
    )
    simulate.add_argument("--seed", type=int, default=None, help="for the random policy")

    explain = _command(commands, "explain", _explain, "why an op is where it is and when it is")
    explain.add_argument("plan", help="a plan that place saved")
    explain.add_argument("op", help="name of an op")

    diff = _command(commands, "diff", _diff, "what moved between two plans, and what it gained")
    diff.add_argument("before", help="a plan that place saved")
    diff.add_argument("after", help="another plan for the same graph")

    report = _command(commands, "report", _report, "a plan as one HTML page")
    report.add_argument("plan", help="a plan that place saved")
    report.add_argument("-o", "--output", default="report.html", help="default: report.html")
    report.add_argument(
        "--compare", metavar="METHODS", help="also place by these methods, comma-separated"
    )

    export = _command(commands, "export", _export, "write a saved plan for another system")
    export.add_argument("plan", help="a plan that place saved")
    export.add_argument("--to", required=True, metavar="TARGET", help="see `loadmaster targets`")
    export.add_argument("-o", "--output", metavar="FILE", help="where to; default: stdout")
    export.add_argument("--model", metavar="FILE", help="the model itself, where that is written")
    export.add_argument("--root", help="what the model is called in the graph's module paths")
    export.add_argument("--layers", help="the module list that holds the layers")
    export.add_argument(
        "--name",
        action="append",
        default=[],
        metavar="DEVICE=NAME",
        help="what a device is called there (repeatable)",
    )
    export.add_argument(
        "--check", action="store_true", help="onnx: run the parts and the whole, and compare"
    )
    _command(commands, "targets", _targets, "list what export writes")

    compare = _command(commands, "compare", _compare, "compare methods on a graph")
    _graph_arguments(compare)
    _cluster_argument(compare)
    _costs_arguments(compare)
    _method_arguments(compare)
    compare.add_argument("--methods", help="comma-separated; default: all")

    sweep = _command(commands, "sweep", _sweep, "many graphs on many clusters by many methods")
    sweep.add_argument("graphs", nargs="+", metavar="graph", help=_GRAPH)
    _reading_arguments(sweep)
    sweep.add_argument(
        "--cluster",
        default="4xV100-PCIe",
        help="presets or TOML files, comma-separated; default: 4xV100-PCIe",
    )
    sweep.add_argument("--methods", help="comma-separated; default: all")
    sweep.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="METHOD.KEY=VALUE",
        help="an option of one of the methods, such as auto.time_limit=15 (repeatable)",
    )
    sweep.add_argument("--seeds", default="0", help="comma-separated; default: 0")
    sweep.add_argument(
        "-o", "--output", metavar="TABLE.csv", help="add rows to this table (or .parquet), and "
        "do not run again what it has"
    )  # fmt: skip
    sweep.add_argument("--workers", type=int, help="cases at a time; default: one per CPU")
    sweep.add_argument(
        "--dask", metavar="ADDRESS", help="run on the workers of this dask.distributed scheduler"
    )
    sweep.add_argument(
        "--warm-start",
        action="append",
        default=[],
        metavar="PLAN.json",
        help="a saved plan that the cases of the graph with its ops start from (repeatable)",
    )
    _constraint_arguments(sweep)

    what_if = _command(commands, "what-if", _what_if, "what other hardware would be worth")
    what_if.add_argument("plan", help="a plan that place saved")
    for flag, metavar, text in _CHANGES:
        what_if.add_argument(flag, action="append", default=[], metavar=metavar, help=text)
    what_if.add_argument(
        "--together", action="store_true", help="all changes at once, not each by itself"
    )
    what_if.add_argument(
        "--time-limit", type=float, metavar="SECONDS", help="of search per scenario; default: 1"
    )

    check = _command(commands, "check", _check, "hold a saved plan to limits: exit code 1 if not")
    check.add_argument("plan", help="a plan that place saved")
    check.add_argument("--graph", help="check that the plan is for this graph")
    check.add_argument("--cluster", help="check that the plan is for this cluster")
    check.add_argument(
        "--max-peak",
        action="append",
        default=[],
        metavar="[DEVICE=]SIZE",
        help="most memory in use at any time, on all devices or on one: 0=30GiB",
    )
    check.add_argument("--max-step", metavar="TIME", help="longest step: 120ms")
    check.add_argument(
        "--forbid",
        action="append",
        default=[],
        metavar="DEVICE",
        help="a device, or a type of devices, that must run nothing (repeatable)",
    )
    _constraint_arguments(check)

    calibrate = _command(
        commands,
        "calibrate",
        _calibrate,
        "learn costs from measurements, and how far to trust them",
    )
    calibrate.add_argument("graph", nargs="?", help="what the costs are for, as place takes it")
    _shape_arguments(calibrate)
    _cluster_argument(calibrate)
    calibrate.add_argument(
        "--profile",
        action="append",
        default=[],
        metavar="[BATCH=]FILE[,KEY=VALUE...]",
        help="measured times of ops (repeatable)",
    )
    calibrate.add_argument(
        "--to-batch",
        type=int,
        metavar="BATCH",
        help="what the costs are for: profiles of other batches are regressed to it",
    )
    calibrate.add_argument(
        "--costs", metavar="COSTS.json", help="costs learnt before, that these profiles update"
    )
    calibrate.add_argument("-o", "--output", metavar="COSTS.json", help="write the costs")
    calibrate.add_argument(
        "--links", metavar="FILE.csv", help="measured transfers: bytes, seconds_one_way, method"
    )
    calibrate.add_argument(
        "--measure-links",
        action="store_true",
        help="measure transfers between local devices first, into the file of --links",
    )
    calibrate.add_argument("--way", help="which method of the transfers the links take")
    calibrate.add_argument(
        "--cluster-output", metavar="CLUSTER.toml", help="write the cluster with links as measured"
    )
    calibrate.add_argument(
        "--picture", metavar="FILE.png", help="draw predicted against measured (.png or .svg)"
    )

    fit = _command(commands, "fit", _fit, "will it fit, on how few devices, and what would help")
    _graph_arguments(fit)
    _cluster_argument(fit)
    _costs_arguments(fit)
    _constraint_arguments(fit)

    info = _command(commands, "info", _info, "facts about a graph, before and after coarsening")
    _graph_arguments(info)
    _cluster_argument(info)

    coarsen = _command(commands, "coarsen", _coarsen, "merge ops into groups, and draw them")
    _graph_arguments(coarsen)
    _cluster_argument(coarsen)
    coarsen.add_argument("--method", default="parallel", help="default: parallel")
    coarsen.add_argument("--groups", type=int, default=200, help="default: 200")
    coarsen.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="balance, max_bytes, order or rules (repeatable)",
    )
    coarsen.add_argument("-o", "--output", metavar="FILE", help="draw: .dot, .gv or .graphml")

    presets = _command(commands, "presets", _presets, "list the clusters that come along")
    presets.add_argument("name", nargs="?", help="print this one's TOML")
    _command(commands, "examples", _examples, "list the graphs that come along")
    return parser


#: What a graph may be given as.
_GRAPH = (
    "opgraph JSON, ONNX, a program of torch.export (.pt2), a trace of PyTorch, a TensorFlow "
    "GraphDef, text of JAX (jaxpr, StableHLO, HLO), msr-fiddle JSON, any of them gzipped; or "
    "example:NAME"
)

#: What readers take besides --batch and --shape.
_READING = (
    (
        "--profile",
        "FILE",
        "measured times of the same graph: a Kineto trace beside an execution "
        "trace, ONNX Runtime's profile, TensorFlow's RunMetadata, JAX's trace beside HLO",
    ),
    ("--device-type", "TYPE", "device type that the measured times are of"),
    ("--step", "N", "PyTorch: which ProfilerStep to read"),
    ("--size", "SYMBOL=N", "size of a symbolic dimension (repeatable)"),
    ("--fetch", "NAME", "TensorFlow: a node to be computed; what none needs is left out"),
    ("--time-unit", "UNIT", "msr-fiddle: unit of latencies, such as ms"),
    ("--size-unit", "UNIT", "msr-fiddle: unit of sizes, such as B"),
    ("--cost-unit", "UNIT", "msr-fiddle: unit of edge costs; that of latencies by default"),
)
_REPEATABLE = ("--profile", "--fetch", "--size")

#: Changes that what-if takes.
_CHANGES = (
    ("--add-device", "DEVICE[=N]", "one more device like this one, or N more"),
    ("--remove-device", "DEVICE", "without this device"),
    ("--scale-link", "[A:B=]FACTOR", "all links, or that of two devices, so many times as wide"),
    ("--scale-device", "[DEVICE=]FACTOR", "all devices, or one, so many times as fast"),
    ("--memory", "[DEVICE=]SIZE", "this memory on all devices, or on one: 80GiB"),
)


#: Constraints that place and others take, besides --contiguous; a PATTERN is a glob, or re:REGEX.
_CONSTRAINTS = (
    ("--pin", "PATTERN=DEVICE[,...]", "ops or modules on these devices: 'embed*=0'"),
    ("--reserve", "[DEVICE=]SIZE", "memory kept free on all devices, or on one: 2GiB"),
    ("--no-split", "PATTERN", "modules that stay on one device: '*.layer.*'"),
    ("--kinds", "DEVICE=PATTERN", "the only kinds of ops that a device runs"),
)


def _command(
    commands: Any, name: str, run: Callable[[argparse.Namespace], int | None], text: str
) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(name, help=text, description=text)
    command.set_defaults(run=run, command=command)
    command.add_argument("--json", action="store_true", help="print JSON for machines")
    return command


def _graph_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("graph", help=_GRAPH)
    _reading_arguments(command)


def _reading_arguments(command: argparse.ArgumentParser) -> None:
    _shape_arguments(command)
    for flag, metavar, text in _READING:
        action = "append" if flag in _REPEATABLE else "store"
        command.add_argument(flag, action=action, metavar=metavar, help=text)


def _shape_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--batch", type=int, help="ONNX, .pt2: size of the first dimension of inputs"
    )
    command.add_argument(
        "--shape",
        action="append",
        default=[],
        metavar="NAME=1,3,224,224",
        help="ONNX, .pt2: shape of an input (repeatable)",
    )


def _cluster_argument(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--cluster", default="4xV100-PCIe", help="preset or TOML file; default: 4xV100-PCIe"
    )


def _costs_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--costs", metavar="COSTS.json", help="times of ops, as calibrate wrote them"
    )
    command.add_argument(
        "--explore",
        action="store_true",
        help="with --costs: ops are free where they were never measured, so that they are tried",
    )


def _method_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("--seed", type=int, default=0)
    command.add_argument(
        "--on-oom",
        default="error",
        choices=["error", "best_effort"],
        help="what to do when nothing fits; default: error",
    )
    command.add_argument(
        "--max-memory",
        metavar="JSON",
        help='as Hugging Face takes it, such as \'{"0": "10GiB", "cpu": "30GiB"}\'',
    )
    _constraint_arguments(command)


def _constraint_arguments(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("constraints", "what every method must obey")
    group.add_argument("--constraints", metavar="FILE.toml", help="read them from a file")
    for flag, metavar, text in _CONSTRAINTS:
        group.add_argument(flag, action="append", default=[], metavar=metavar, help=text)
    group.add_argument(
        "--contiguous", action="store_true", help="devices in their order are stages of the graph"
    )


def _read_graph(arguments: argparse.Namespace, source: str | None = None) -> OpGraph:
    """The one graph of a command, or one of several."""
    from loadmaster.readers import read

    profiles = arguments.profile or []
    return read(
        source or arguments.graph,
        **_shapes(arguments),
        profile=profiles[0] if len(profiles) == 1 else profiles or None,
        device_type=arguments.device_type,
        step=None if arguments.step is None else _whole("--step", arguments.step),
        sizes={s: _whole("--size", n) for s, n in _halves("--size", arguments.size or [])} or None,
        fetches=arguments.fetch,
        time_unit=arguments.time_unit,
        size_unit=arguments.size_unit,
        cost_unit=arguments.cost_unit,
    )


def _whole(flag: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InputError(f"{flag}: {text!r} is no whole number") from None


def _shapes(arguments: argparse.Namespace) -> dict[str, Any]:
    """``--batch`` and ``--shape``, as readers take them."""
    shapes = {}
    for text in arguments.shape:
        name, _, dims = text.rpartition("=")
        try:
            shapes[name] = [int(d) for d in dims.split(",")]
        except ValueError:
            shapes = {}
        if not name or name not in shapes:
            raise InputError(f"--shape {text!r}: wants NAME=1,3,224,224")
    return {"batch": arguments.batch, "shapes": shapes or None}


def _constraints(arguments: argparse.Namespace) -> Constraints:
    """Those of the file, and then those of the command line."""
    from loadmaster.constraints import Constraints

    kinds: dict[str, list[str]] = {}
    for device, pattern in _halves("--kinds", arguments.kinds):
        kinds.setdefault(device, []).append(pattern)
    own = Constraints(
        pin=dict(_halves("--pin", arguments.pin)),
        reserve=_per_device("--reserve", arguments.reserve),
        no_split=arguments.no_split,
        contiguous=arguments.contiguous,
        kinds=kinds,
    )
    return Constraints.read(arguments.constraints).merged(own) if arguments.constraints else own


def _halves(flag: str, texts: Sequence[str]) -> list[tuple[str, str]]:
    """What stands on the two sides of the last '=' of each text."""
    parted = [text.rpartition("=") for text in texts]
    for text, (left, _, right) in zip(texts, parted, strict=True):
        if not left or not right:
            raise InputError(f"{flag} {text!r} has no two sides of a '='; see --help")
    return [(left, right) for left, _, right in parted]


def _per_device(flag: str, texts: Sequence[str]) -> dict[str, str]:
    """Sizes by device; one without a device is for all."""
    from loadmaster.constraints import EVERY

    return dict(_halves(flag, [text if "=" in text else f"{EVERY}={text}" for text in texts]))


def _read_cluster(text: str) -> Cluster:
    from loadmaster.cluster import Cluster

    return Cluster.named(text)


def _limited_cluster(arguments: argparse.Namespace) -> Cluster:
    cluster = _read_cluster(arguments.cluster)
    if arguments.max_memory is None:
        return cluster
    from loadmaster.files import parse_json
    from loadmaster.writers import max_memory

    return max_memory(cluster, parse_json(arguments.max_memory.encode(), "--max-memory"))


def _options(texts: Sequence[str]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise InputError(f"--option {text!r}: wants KEY=VALUE")
        try:
            options[key.replace("-", "_")] = json.loads(value)
        except ValueError:
            options[key.replace("-", "_")] = value
    return options


def _costs(arguments: argparse.Namespace, graph: OpGraph, cluster: Cluster) -> Costs | None:
    """Those of a file, for a graph on a cluster; how the names meet goes to stderr."""
    if arguments.costs is None:
        if arguments.explore:
            raise InputError("--explore is for --costs: without them nothing is known or unknown")
        return None
    from loadmaster.costs import CostModel

    model = CostModel.load(arguments.costs)
    print(f"loadmaster: {model.join(graph)}".replace("\n", "; "), file=sys.stderr)
    return model.costs(graph, cluster, explore=arguments.explore)


def _print_json(document: Any) -> None:
    print(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False))


# -- commands ----------------------------------------------------------------------------------


def _place(arguments: argparse.Namespace) -> None:
    from loadmaster.placing import place
    from loadmaster.plan import Plan
    from loadmaster.progress import Progress, clock_of
    from loadmaster.summary import document

    if arguments.timeline:
        from loadmaster.writers.pictures import check_suffix

        check_suffix(arguments.timeline)
    _check_targets(arguments.output, arguments.trace, arguments.timeline)
    cluster, options = _limited_cluster(arguments), _options(arguments.option)
    limit = arguments.time_limit
    if limit is None:
        limit = clock_of(arguments.method, options)
    with Progress(limit) as progress:
        progress("reading the graph")
        graph = _read_graph(arguments)
        plan = place(
            graph,
            cluster,
            arguments.method,
            _costs(arguments, graph, cluster),
            seed=arguments.seed,
            time_limit=arguments.time_limit,
            on_oom=arguments.on_oom,
            warm_start=Plan.load(arguments.warm_start) if arguments.warm_start else None,
            constraints=_constraints(arguments),
            progress=progress,
            **options,
        )
        progress("writing")
        written = _write_plan(plan, arguments)
    if arguments.json:
        _print_json(document(plan))
    else:
        print(plan.summary())
    _say_where(written, "" if arguments.output else "the plan is not saved: -o PLAN.json saves it")


def _check_targets(*paths: str | None) -> None:
    """Refuses what cannot be written to, before the work whose result it is for."""
    from loadmaster.files import check_target

    for path in paths:
        if path is not None:
            check_target(path)


def _say_where(written: Sequence[tuple[str, str]], unsaved: str = "") -> None:
    """The last lines: where every result went, and what was not kept, with how to keep it."""
    sys.stdout.flush()
    lines = [f"{what} written to {path}" for what, path in written]
    lines = lines or ["result written to standard output"]
    if unsaved:
        lines[-1] += f"; {unsaved}"
    for line in lines:
        print(f"loadmaster: {line}", file=sys.stderr)


def _write_plan(plan: Plan, arguments: argparse.Namespace) -> list[tuple[str, str]]:
    written = []
    if arguments.output:
        plan.save(arguments.output)
        written.append(("plan", arguments.output))
    if arguments.trace:
        from loadmaster.writers.trace import write_trace

        write_trace(plan, arguments.trace)
        written.append(("trace", arguments.trace))
    if arguments.timeline:
        from loadmaster.writers.timeline import draw

        draw(plan, arguments.timeline)
        written.append(("timeline", arguments.timeline))
    return written


def _simulate(arguments: argparse.Namespace) -> None:
    from dataclasses import replace

    from loadmaster.plan import Plan
    from loadmaster.readers import read
    from loadmaster.simulation import run
    from loadmaster.summary import simulation_document, simulation_lines

    plan = Plan.load(arguments.plan, read(arguments.graph) if arguments.graph else None)
    if arguments.cluster:
        plan = plan.on(_read_cluster(arguments.cluster))
    problem = plan.problem
    if arguments.seed is not None:
        problem = replace(problem, seed=arguments.seed)
    simulation = run(
        problem,
        plan.placed,
        policy=arguments.policy,
        contention=not arguments.no_contention,
        link_order=arguments.link_order,
    )
    if arguments.json:
        _print_json(simulation_document(simulation, plan.cluster))
        return
    policy = arguments.policy or plan.policy
    print(
        f"{plan.graph.name or 'graph'} on {plan.cluster.name or 'cluster'}, "
        f"policy {policy}{', no contention' if arguments.no_contention else ''}"
    )
    print("\n".join(simulation_lines(simulation, plan.cluster, plan.graph)))


def _explain(arguments: argparse.Namespace) -> None:
    from loadmaster.plan import Plan

    explanation = Plan.load(arguments.plan).explain(arguments.op)
    if arguments.json:
        _print_json(explanation.to_document())
    else:
        print(explanation)


def _diff(arguments: argparse.Namespace) -> None:
    from loadmaster.plan import Plan

    difference = Plan.load(arguments.before).diff(Plan.load(arguments.after))
    if arguments.json:
        _print_json(difference.to_document())
    else:
        print(difference)


def _report(arguments: argparse.Namespace) -> None:
    from loadmaster.placing import Incumbent, compare
    from loadmaster.plan import Plan
    from loadmaster.progress import Progress
    from loadmaster.writers.report import check_plotly

    check_plotly()
    _check_targets(arguments.output)
    methods: list[Any] = arguments.compare.split(",") if arguments.compare else []
    plan = Plan.load(arguments.plan)
    with Progress() as progress:
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
        plan.report(arguments.output, comparison=comparison)
    if arguments.json:
        _print_json({"report": arguments.output, "failures": comparison.failures})
    _say_where([("report", arguments.output)])


def _export(arguments: argparse.Namespace) -> None:
    from loadmaster.plan import Plan
    from loadmaster.progress import Progress
    from loadmaster.writers import check_onnx
    from loadmaster.writers.export import export

    if arguments.check and arguments.to != "onnx":
        raise InputError("--check is for --to onnx")
    names = {}
    for text in arguments.name:
        device, equals, name = text.partition("=")
        if not device or not equals or not name:
            raise InputError(f"--name {text!r}: wants DEVICE=NAME")
        names[device] = name
    with Progress() as progress:
        progress("writing")
        written = export(
            Plan.load(arguments.plan),
            arguments.to,
            arguments.output,
            model=arguments.model,
            root=arguments.root,
            layers=arguments.layers,
            names=names or None,
        )
        if arguments.check:
            progress("running the parts and the whole")
            error = check_onnx(arguments.output, arguments.model)
    if arguments.output is None and isinstance(written, str):
        print(written, end="")
    elif arguments.output is None or arguments.json:
        _print_json(written if isinstance(written, dict) else {"written": arguments.output})
    if arguments.check:
        print(f"loadmaster: parts and whole differ by {error:.2g} at most", file=sys.stderr)
    if arguments.output is not None:
        print(f"loadmaster: {arguments.to} written to {arguments.output}", file=sys.stderr)


def _targets(arguments: argparse.Namespace) -> None:
    from loadmaster.writers.export import TARGETS

    if arguments.json:
        _print_json({name: target.text for name, target in TARGETS.items()})
        return
    width = max(map(len, TARGETS))
    for name, target in TARGETS.items():
        print(f"{name:<{width}}  {target.text}")


def _compare(arguments: argparse.Namespace) -> None:
    from loadmaster.placing import compare
    from loadmaster.progress import Progress
    from loadmaster.strategies import METHODS
    from loadmaster.summary import comparison_table, document

    methods: list[Any] = arguments.methods.split(",") if arguments.methods else list(METHODS)
    graph, cluster = _read_graph(arguments), _limited_cluster(arguments)
    with Progress() as progress:
        comparison = compare(
            graph,
            cluster,
            methods,
            _costs(arguments, graph, cluster),
            seed=arguments.seed,
            on_oom=arguments.on_oom,
            constraints=_constraints(arguments),
            progress=progress,
        )
    if arguments.json:
        plans = {method: document(plan) for method, plan in comparison.plans.items()}
        _print_json({"plans": plans, "failures": comparison.failures})
    else:
        print(comparison_table(comparison))
    _say_where([], "the plans are not saved: place --method METHOD -o PLAN.json saves one")
    if not comparison.plans:
        raise InfeasibleError("no method found a placement that fits")


def _sweep(arguments: argparse.Namespace) -> None:
    from loadmaster.plan import Plan
    from loadmaster.progress import Progress
    from loadmaster.strategies import METHODS
    from loadmaster.sweeping import sweep
    from loadmaster.units import format_seconds

    names = arguments.methods.split(",") if arguments.methods else list(METHODS)
    options: dict[str, list[str]] = {name: [] for name in names}
    for text in arguments.option:
        method, dot, option = text.partition(".")
        if not dot or method not in options:
            raise InputError(
                f"--option {text!r}: wants METHOD.KEY=VALUE, with a method of {', '.join(names)}"
            )
        options[method].append(option)
    try:
        seeds = [int(word) for word in arguments.seeds.split(",")]
    except ValueError as error:
        raise InputError(f"--seeds {arguments.seeds!r}: wants integers, as 0,1,2") from error
    with _executor(arguments.dask) as executor, Progress() as progress:

        def tell(done: int, total: int, row: Row) -> None:
            case = f"{row.graph} on {row.cluster} by {row.method}"
            came = row.outcome if row.makespan is None else format_seconds(row.makespan)
            progress(f"{done}/{total} {case}: {came}")

        progress("reading the graphs")
        graphs = [_read_graph(arguments, source) for source in arguments.graphs]
        progress("the first case")
        seen = sweep(
            graphs,
            arguments.cluster.split(","),
            [(name, _options(texts)) for name, texts in options.items()],
            seeds=seeds,
            constraints=_constraints(arguments),
            warm_start=[Plan.load(path) for path in arguments.warm_start],
            executor=executor,
            workers=arguments.workers,
            out=arguments.output,
            progress=tell,
        )
    if arguments.json:
        rows = [row.to_document() for row in seen.rows]
        _print_json({"rows": rows, "resumed": seen.resumed, "unfinished": seen.unfinished})
    else:
        print(seen)
    if arguments.output:
        _say_where([("table", arguments.output)])
    else:
        _say_where([], "the table is not saved: -o TABLE.csv saves it")
    if seen.unfinished:
        raise KeyboardInterrupt


@contextmanager
def _executor(dask: str | None) -> Iterator[Executor | None]:
    """That of a dask.distributed scheduler, if there is an address."""
    if dask is None:
        yield None
        return
    try:
        import distributed
    except ImportError as error:
        raise MissingExtraError("distributed", "dask", "a sweep on dask.distributed") from error
    connect: Any = distributed.Client
    try:
        client = connect(dask, timeout=10)
    except (OSError, ValueError) as error:
        raise InputError(f"no dask.distributed scheduler at {dask!r}: {error}") from error
    with client:
        yield client.get_executor()


def _what_if(arguments: argparse.Namespace) -> None:
    from loadmaster.plan import Plan
    from loadmaster.progress import Progress
    from loadmaster.scenarios import what_if

    scenarios = []
    for flag, _, _ in _CHANGES:
        word = flag.removeprefix("--").replace("-", "_")
        scenarios += [{word: _change(word, text)} for text in getattr(arguments, word)]
    if not scenarios:
        flags = ", ".join(flag for flag, _, _ in _CHANGES)
        raise InputError(f"nothing is changed: give at least one of {flags}")
    if arguments.together:
        scenarios = [_merged(scenarios)]
    with Progress() as progress:
        seen = what_if(
            Plan.load(arguments.plan),
            *scenarios,
            time_limit=arguments.time_limit,
            progress=progress,
        )
    if arguments.json:
        _print_json(seen.to_document())
    else:
        print(seen)
    _say_where([])


def _change(word: str, text: str) -> Any:
    """The value of a change as :func:`loadmaster.what_if` takes it."""
    of, equals, value = text.rpartition("=")
    parsed: Any = value
    if word.startswith("scale") or (word == "add_device" and equals):
        try:
            parsed = (int if word == "add_device" else float)(value)
        except ValueError as error:
            flag = f"--{word.replace('_', '-')}"
            raise InputError(f"{flag} {text!r}: {value!r} is no number") from error
    elif word == "memory" and value.isdecimal():
        parsed = int(value)
    if not equals:
        return parsed
    return {tuple(of.split(":")) if word == "scale_link" else of: parsed}


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


def _check(arguments: argparse.Namespace) -> int:
    from loadmaster.checking import check
    from loadmaster.plan import Plan
    from loadmaster.readers import read

    plan = Plan.load(
        arguments.plan,
        read(arguments.graph) if arguments.graph else None,
        _read_cluster(arguments.cluster) if arguments.cluster else None,
    )
    seen = check(
        plan,
        max_peak=_per_device("--max-peak", arguments.max_peak),
        max_step=arguments.max_step,
        forbid=arguments.forbid,
        constraints=_constraints(arguments),
    )
    if arguments.json:
        _print_json(seen.to_document())
    else:
        print(seen)
    return 0 if seen.ok else 1


def _calibrate(arguments: argparse.Namespace) -> None:
    from loadmaster.calibration import calibrate
    from loadmaster.costs import CostModel, TransferTimes
    from loadmaster.progress import Progress
    from loadmaster.readers import read
    from loadmaster.readers.profiles import read_profiles

    if not (arguments.profile or arguments.links or arguments.measure_links):
        raise InputError("nothing to learn from: give --profile FILE, --links FILE.csv, or both")
    if arguments.picture:
        from loadmaster.writers.pictures import check_suffix

        check_suffix(arguments.picture)
    _check_targets(arguments.output, arguments.cluster_output, arguments.picture)
    written = []
    with Progress() as progress:
        transfers = None
        if arguments.measure_links:
            from loadmaster.costs.measuring_links import measure_links

            if not arguments.links:
                raise InputError("--measure-links wants --links FILE.csv, to write to")
            transfers = measure_links(progress=progress)
            transfers.write(arguments.links)
            written.append(("transfers", arguments.links))
        elif arguments.links:
            transfers = TransferTimes.read(arguments.links)
        progress("reading the graph")
        graph = read(arguments.graph, **_shapes(arguments)) if arguments.graph else None
        progress("reading profiles")
        profiles = []
        for text in arguments.profile:
            path, options = _profile_argument(text)
            profiles += read_profiles(path, **options)
        progress("learning")
        found = calibrate(
            _read_cluster(arguments.cluster),
            graph,
            profiles,
            batch=arguments.to_batch,
            model=CostModel.load(arguments.costs) if arguments.costs else None,
            transfers=transfers,
            way=arguments.way,
        )
    if arguments.output and found.model is not None:
        found.model.save(arguments.output)
        written.append(("costs", arguments.output))
    if arguments.cluster_output:
        found.cluster.write(arguments.cluster_output)
        written.append(("cluster", arguments.cluster_output))
    if arguments.picture and found.trust is not None:
        found.trust.draw(arguments.picture)
        written.append(("picture", arguments.picture))
    if arguments.json:
        _print_json(found.to_document())
    else:
        print(found)
    unsaved = []
    if found.model is not None and not arguments.output:
        unsaved.append("the costs are not saved: -o COSTS.json saves them")
    if found.links is not None and not arguments.cluster_output:
        unsaved.append("the links are not saved: --cluster-output CLUSTER.toml saves them")
    _say_where(written, "; ".join(unsaved))


def _profile_argument(text: str) -> tuple[str, dict[str, Any]]:
    """Path and options of ``[BATCH=]FILE[,KEY=VALUE...]``."""
    first, *rest = text.split(",")
    batch, equals, path = first.partition("=")
    options: dict[str, Any] = {}
    if equals and batch.isdecimal():
        options["batch"] = int(batch)
    else:
        path = first
    for word in rest:
        key, equals, value = word.partition("=")
        if not key or not equals:
            raise InputError(f"--profile {text!r}: {word!r} is no KEY=VALUE")
        options[key] = int(value) if value.isdecimal() else value
    return path, options


def _fit(arguments: argparse.Namespace) -> None:
    from loadmaster.fitting import fit
    from loadmaster.progress import Progress

    graph, cluster = _read_graph(arguments), _read_cluster(arguments.cluster)
    with Progress() as progress:
        found = fit(
            graph,
            cluster,
            _costs(arguments, graph, cluster),
            constraints=_constraints(arguments),
            progress=progress,
        )
    if arguments.json:
        _print_json(found.to_document())
    else:
        print(found)
    _say_where([])
    if not found.fits:
        raise InfeasibleError("no placement that fits was found")


def _info(arguments: argparse.Namespace) -> None:
    from loadmaster.info import info

    facts = info(_read_graph(arguments), _read_cluster(arguments.cluster))
    if arguments.json:
        _print_json(facts.to_document())
    else:
        print(facts)


def _coarsen(arguments: argparse.Namespace) -> None:
    from loadmaster.coarsening import coarsen
    from loadmaster.writers.coarse import write

    _check_targets(arguments.output)
    options = _options(arguments.option)
    unknown = sorted(set(options) - {"balance", "max_bytes", "order", "rules"})
    if unknown:
        raise InputError(f"coarsen has no option {unknown[0]!r}")
    coarse = coarsen(
        _read_graph(arguments),
        arguments.method,
        arguments.groups,
        cluster=_read_cluster(arguments.cluster),
        **options,
    )
    if arguments.output:
        write(coarse, arguments.output)
    if arguments.json:
        _print_json(coarse.report.to_document())
    else:
        print(coarse.report)
    _say_where([("drawing", arguments.output)] if arguments.output else [])


def _presets(arguments: argparse.Namespace) -> None:
    from loadmaster.cluster import Cluster, presets

    if arguments.name:
        print(Cluster.preset(arguments.name).to_toml(), end="")
        return
    clusters = [Cluster.preset(name) for name in presets()]
    if arguments.json:
        _print_json(
            [
                {
                    "name": c.name,
                    "description": c.description,
                    "devices": c.n_devices,
                    "memory": c.memory,
                    "source": c.source,
                }
                for c in clusters
            ]
        )
        return
    width = max(len(c.name) for c in clusters)
    for c in clusters:
        print(f"{c.name:<{width}}  {c.description}")


def _examples(arguments: argparse.Namespace) -> None:
    from loadmaster.examples import EXAMPLES

    if arguments.json:
        _print_json({name: text for name, (_, text) in sorted(EXAMPLES.items())})
        return
    width = max(map(len, EXAMPLES))
    for name, (_, text) in sorted(EXAMPLES.items()):
        print(f"example:{name:<{width}}  {text}")
