"""Arguments that several commands declare: graph, cluster, costs, method and constraints."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from loadmaster.base.files import MAX_INPUT
from loadmaster.base.units import format_bytes

_GRAPH = (
    "opgraph JSON, ONNX, a program of torch.export (.pt2), a trace of PyTorch, a TensorFlow "
    "GraphDef, text of JAX (StableHLO, HLO), msr-fiddle or SAGA JSON, Chakra, any of them gzipped; "
    "example:NAME; instance:NAME; "
    "or FILE.py:FUNCTION, which returns a dictionary of the arguments of loadmaster.capture: "
    "the file is executed, the model is not run"
)

#: The cluster where none is named.
_OTHERWISE = "4xV100-PCIe"

#: Arguments of readers besides --batch and --shape.
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
    ("--parameters", "NAME", "JAX: an argument, or array of its tree, that is stored (repeatable)"),
    ("--fetch", "NAME", "TensorFlow: a node to compute; ops that no such node needs are left out"),
    ("--time-unit", "UNIT", "msr-fiddle: unit of latencies, such as ms"),
    ("--size-unit", "UNIT", "msr-fiddle: unit of sizes, such as B"),
    ("--cost-unit", "UNIT", "msr-fiddle: unit of edge costs; that of latencies by default"),
)
_REPEATABLE = ("--profile", "--fetch", "--size", "--parameters")

#: Constraints besides --contiguous. A PATTERN is a glob, or re:REGEX.
_CONSTRAINTS = (
    ("--pin", "PATTERN=DEVICE[,...]", "ops or modules on these devices: 'embed*=0'"),
    (
        "--reserve",
        "[DEVICE=]SIZE",
        "memory kept free on all devices, or on one: 2GiB; default: by type of GPU",
    ),
    ("--no-split", "PATTERN", "modules that stay on one device: '*.layer.*'"),
    ("--kinds", "DEVICE=PATTERN", "the only kinds of ops that a device runs"),
)


def add_command(
    commands: Any,
    name: str,
    run: Callable[[argparse.Namespace], int | None],
    text: str,
    *,
    reads: bool = True,
    examples: Sequence[str] = (),
    first: Callable[[argparse.ArgumentParser], None] | None = None,
) -> argparse.ArgumentParser:
    """Adds a command that calls ``run``; every command takes --json, and a limit if it reads.

    ``examples`` are arguments that help shows the command with. ``first`` adds the arguments that
    help shows first.
    """
    shown = [f"  loadmaster {name} {example}".rstrip() for example in examples]
    command: argparse.ArgumentParser = commands.add_parser(
        name,
        help=text,
        description=text,
        epilog="\n".join(["examples:", *shown]) if shown else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.set_defaults(run=run, command=command)
    if first is not None:
        first(command)
    command.add_argument("--json", action="store_true", help="print JSON for machines")
    if reads:
        command.add_argument(
            "--max-input",
            metavar="SIZE",
            help="refuse a file that takes more once it is unpacked and parsed; default: "
            f"{format_bytes(MAX_INPUT).replace(' ', '')}",
        )
    return command


def add_graph(command: argparse.ArgumentParser) -> None:
    """One graph and how to read it: ``inputs.graph``."""
    command.add_argument("graph", help=_GRAPH)
    _add_reading(command)


def add_graphs(command: argparse.ArgumentParser) -> None:
    """Several graphs with the same options of reading."""
    command.add_argument("graphs", nargs="+", metavar="graph", help=_GRAPH)
    _add_reading(command)


def _add_reading(command: argparse.ArgumentParser) -> None:
    add_shapes(command)
    for flag, metavar, text in _READING:
        action = "append" if flag in _REPEATABLE else "store"
        command.add_argument(flag, action=action, metavar=metavar, help=text)


def add_shapes(command: argparse.ArgumentParser) -> None:
    """Sizes of a model's inputs: ``inputs.shapes``."""
    command.add_argument(
        "--batch", type=int, help="ONNX, .pt2: size of the first dimension of inputs"
    )
    add_repeated(
        command, "--shape", "NAME=1,3,224,224", "ONNX, .pt2: shape of an input (repeatable)"
    )


def add_plan(command: argparse.ArgumentParser, graph: bool = False) -> None:
    """A saved plan or run, and the graph that it must be for if a command checks that."""
    command.add_argument("plan", help="a plan that place saved, or what run saved of it")
    if graph:
        command.add_argument("--graph", help="check that the plan is for this graph")


def add_pictures(command: argparse.ArgumentParser, of: str) -> None:
    """Files that a step is drawn into: ``printing.write_pictures``."""
    command.add_argument(
        "--trace", metavar="FILE.json", help=f"write a Perfetto/Chrome trace of the {of}"
    )
    command.add_argument(
        "--timeline", metavar="FILE.png", help=f"draw the {of} as a timeline (.png or .svg)"
    )
    command.add_argument(
        "--pipeline",
        metavar="FILE.png",
        help=f"draw the {of} by micro-batches, if there are any (.png or .svg)",
    )


def add_chart(command: argparse.ArgumentParser, of: str) -> None:
    """A file that results side by side are drawn into."""
    command.add_argument("--chart", metavar="FILE.png", help=f"draw {of} (.png or .svg)")


def add_cluster(command: argparse.ArgumentParser) -> None:
    """One cluster: ``inputs.cluster``."""
    command.add_argument(
        "--cluster",
        default=_OTHERWISE,
        help="preset, part of one (4xA100-NVLink), TOML file, file of SAGA, or instance:NAME; "
        "default: that of the graph if it is an instance or a file of SAGA, else 4xV100-PCIe",
    )


def unsaid(arguments: argparse.Namespace) -> str:
    """The cluster that a command took because none was named, in a sentence; or nothing."""
    if getattr(arguments, "cluster", None) is not _OTHERWISE:
        return ""
    return (
        f"no cluster was named, so this is for {_OTHERWISE}: --cluster names another, and "
        "`loadmaster cluster detect -o cluster.toml` writes that of this machine"
    )


def settle(arguments: argparse.Namespace) -> None:
    """Puts an instance, or a file of SAGA, on its own cluster where no other is named."""
    if getattr(arguments, "cluster", None) is not _OTHERWISE:
        return
    from loadmaster.tasks.given import has_network

    graph = getattr(arguments, "graph", None) or ""
    if graph.startswith("instance:") or has_network(graph):
        arguments.cluster = graph


def words_of(arguments: argparse.Namespace, but: Sequence[str]) -> list[str]:
    """The flags that a command was given, but for some, as words of a command line."""
    words = []
    for action in arguments.command._actions:
        value = getattr(arguments, action.dest, action.default)
        if not action.option_strings or action.dest in but or value == action.default:
            continue
        flag = action.option_strings[-1]
        if action.nargs == 0:
            words.append(flag)
        else:
            # A value may begin as a flag does.
            words += [f"{flag}={one}" for one in (value if isinstance(value, list) else [value])]
    return words


def add_costs(command: argparse.ArgumentParser) -> None:
    """Costs learnt before: ``inputs.costs``."""
    command.add_argument(
        "--costs",
        metavar="COSTS.json",
        help="times of ops, or an observed step, as calibrate wrote them; roofline: by data sheets",
    )
    command.add_argument(
        "--explore",
        action="store_true",
        help="with --costs: an op that was never measured costs nothing, so that plans try it",
    )


def add_placing(command: argparse.ArgumentParser) -> None:
    """Arguments of every placement, whatever its method."""
    add_graph(command)
    add_cluster(command)
    add_costs(command)
    add_runtime(command)
    command.add_argument("--seed", type=int, default=0, help="of methods that draw; default: 0")
    add_objective(command)
    command.add_argument(
        "--on-oom",
        default="error",
        choices=["error", "best_effort"],
        help="when no placement fits: stop with an error (the default), or exceed memory as "
        "little as the method can",
    )
    command.add_argument(
        "--max-memory",
        metavar="JSON",
        help='memory by device, as Hugging Face takes it: \'{"0": "10GiB", "cpu": "30GiB"}\'',
    )
    add_constraints(command)


def add_runtime(command: argparse.ArgumentParser) -> None:
    """Declares what runs ops."""
    command.add_argument(
        "--runtime",
        choices=["eager", "compiled", "graphs"],
        help="what runs ops: one kernel an op, kernels as torch.compile fuses them, or these "
        "replayed as CUDA graphs; hosts launch them ahead of devices. Default: one kernel an op, "
        "and devices wait for launches",
    )


def add_search(command: argparse.ArgumentParser) -> None:
    """Declares the effort of methods, and their own options: ``inputs.chosen``."""
    command.add_argument(
        "--time-limit",
        metavar="TIME",
        help="limit for methods that search: 30s; auto has none (see --effort)",
    )
    command.add_argument(
        "--effort",
        metavar="EFFORT",
        help="how far auto searches: fast, normal, max, or seconds of a usual machine",
    )
    add_repeated(
        command,
        "--option",
        "KEY=VALUE",
        "an option of the method, such as max_ops=100 (repeatable); see `loadmaster methods NAME`",
    )


def add_methods(command: argparse.ArgumentParser) -> None:
    """Several methods, and targets: ``inputs.methods`` and ``inputs.targets``."""
    command.add_argument(
        "--methods", help="names, comma-separated; default: all, or none if targets are given"
    )
    command.add_argument(
        "--targets", help="systems to plan for, comma-separated, as `loadmaster targets` lists them"
    )


def add_target(command: argparse.ArgumentParser) -> None:
    """The system that will run the plan."""
    command.add_argument(
        "--target",
        metavar="TARGET",
        help="plan for what this system can run, as it runs it; see `loadmaster targets`",
    )


def add_objective(command: argparse.ArgumentParser) -> None:
    """Declares the objective of plans."""
    command.add_argument(
        "--objective",
        default="step",
        choices=["step", "throughput"],
        help="what is to be short: a step from start to end (step, the default), or the time "
        "between batches that follow each other without a pause (throughput)",
    )


def add_split(command: argparse.ArgumentParser) -> None:
    """Declares the choice if the default method may replicate the model."""
    command.add_argument(
        "--split",
        choices=["auto", "none"],
        help="whether the method auto may give each device a replica of the model (auto, the "
        "default), or places every op whole on one device (none)",
    )


def add_constraints(command: argparse.ArgumentParser) -> None:
    """Declares constraints that every method must obey: ``inputs.constraints``."""
    group = command.add_argument_group("constraints", "what every method must obey")
    group.add_argument("--constraints", metavar="FILE.toml", help="read them from a file")
    for flag, metavar, text in _CONSTRAINTS:
        add_repeated(group, flag, metavar, text)
    group.add_argument(
        "--contiguous",
        action="store_true",
        help="devices, in their order, are consecutive stages of the graph",
    )


def add_repeated(command: argparse._ActionsContainer, flag: str, metavar: str, text: str) -> None:
    """A flag that may be given any number of times; its value is the list of what was given."""
    command.add_argument(flag, action="append", default=[], metavar=metavar, help=text)
