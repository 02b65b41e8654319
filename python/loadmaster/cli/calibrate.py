"""``loadmaster calibrate``: costs and links from measurements, and how far to trust them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from loadmaster.base.errors import InputError
from loadmaster.cli import inputs, options
from loadmaster.cli.printing import check_targets, say_where, show

if TYPE_CHECKING:
    from loadmaster.cli.progress import ProgressLine
    from loadmaster.costs import TransferTimes
    from loadmaster.model.clusters.links import CollectiveTimes
    from loadmaster.tasks.calibrate import Calibration


def add(commands: Any) -> None:
    """Declares the command."""
    command = options.add_command(
        commands,
        "calibrate",
        run,
        "learn costs from measurements, and say how far to trust them",
        examples=(
            "example:bert-large --cluster 8xH100-NVLink --profile steps.csv -o costs.json",
            "example:bert-large --costs costs.json --profile step.csv -o costs.json",
            "--observed 2.46s --plan plan.json -o costs.json",
        ),
    )
    command.add_argument("graph", nargs="?", help="what the costs are for, as place takes it")
    options.add_shapes(command)
    options.add_cluster(command)
    options.add_repeated(
        command,
        "--profile",
        "[BATCH=]FILE[,KEY=VALUE...]",
        "measured times of ops (repeatable)",
    )
    command.add_argument(
        "--to-batch",
        type=int,
        metavar="BATCH",
        help="batch that the costs are for; profiles of other batches are regressed to it",
    )
    command.add_argument(
        "--costs", metavar="COSTS.json", help="costs learnt before, which these profiles update"
    )
    command.add_argument("-o", "--output", metavar="COSTS.json", help="write the costs")
    command.add_argument(
        "--picture", metavar="FILE.png", help="draw predicted against measured (.png or .svg)"
    )
    command.add_argument(
        "--observed",
        metavar="TIME",
        help="a measured step of --plan: 2.46s, '5200 tokens/s', '320 samples/s'; a factor for "
        "each class of op explains it, for any recipe",
    )
    command.add_argument("--plan", metavar="PLAN.json", help="the plan whose step was measured")
    _add_cluster(command)


def _add_cluster(command: argparse.ArgumentParser) -> None:
    """Declares what is measured of the cluster itself."""
    command.add_argument(
        "--links", metavar="FILE.csv", help="measured transfers: bytes, seconds_one_way, method"
    )
    command.add_argument(
        "--measure-links",
        action="store_true",
        help="first measure transfers between local devices, and write them to the file of --links",
    )
    command.add_argument("--way", help="the method of transfer whose times the links take")
    command.add_argument(
        "--measure-device",
        action="store_true",
        help="measure what sending and launching cost here; print both as TOML, and put the first "
        "into the written cluster",
    )
    command.add_argument(
        "--measure-collectives",
        type=int,
        metavar="N",
        help="measure collectives between N processes of gloo, a core each, for the written "
        "cluster (needs PyTorch)",
    )
    command.add_argument(
        "--of-type", metavar="TYPE", help="the device type that pays for sending, of several"
    )
    command.add_argument(
        "--cluster-output", metavar="CLUSTER.toml", help="write the cluster with links as measured"
    )


def run(arguments: argparse.Namespace) -> None:
    """Reads or measures, learns, and writes what was asked for."""
    from loadmaster.cli.progress import ProgressLine
    from loadmaster.costs import CostModel
    from loadmaster.readers import read
    from loadmaster.readers.profiles import read_profiles
    from loadmaster.tasks.calibrate import calibrate

    if arguments.observed is not None or arguments.plan is not None:
        _observe(arguments)
        return
    measured = arguments.measure_links or arguments.measure_device or arguments.measure_collectives
    if not (arguments.profile or arguments.links or measured):
        raise InputError(
            "nothing to learn from: give --profile FILE, --links FILE.csv, --measure-device, "
            "--measure-collectives N, or --observed TIME --plan PLAN.json"
        )
    check_targets(arguments.output, arguments.cluster_output, pictures=(arguments.picture,))
    written: list[tuple[str, str]] = []
    with ProgressLine() as progress:
        transfers = _transfers(arguments, progress, written)
        progress("reading the graph")
        graph = read(arguments.graph, **inputs.shapes(arguments)) if arguments.graph else None
        device = None
        if arguments.measure_device:
            from loadmaster.costs.measuring_device import measure_device

            device = measure_device(graph=graph, progress=progress)
        collectives: Sequence[CollectiveTimes] = ()
        if arguments.measure_collectives is not None:
            from loadmaster.costs.measuring_collectives import measure_collectives

            collectives = measure_collectives(arguments.measure_collectives, progress=progress)
        progress("reading profiles")
        profiles = []
        for text in arguments.profile:
            path, readings = _profile(text)
            profiles += read_profiles(path, **readings)
        progress("learning")
        calibration = calibrate(
            inputs.cluster(arguments.cluster),
            graph,
            profiles,
            batch=arguments.to_batch,
            model=CostModel.load(arguments.costs) if arguments.costs else None,
            transfers=transfers,
            way=arguments.way,
            device=device,
            device_type=arguments.of_type,
            collectives=collectives,
        )
    written += _write(calibration, arguments)
    show(arguments, calibration)
    unsaved = []
    if calibration.model is not None and not arguments.output:
        unsaved.append("the costs are not saved: -o COSTS.json saves them")
    saved = {
        "links": "the links are",
        "device": "what sending costs is",
        "collectives": "times of collectives are",
    }
    learnt = [words for part, words in saved.items() if getattr(calibration, part)]
    if learnt and not arguments.cluster_output:
        unsaved.append(f"{learnt[0]} not saved: --cluster-output CLUSTER.toml saves the cluster")
    say_where(written, "; ".join(unsaved))


def _observe(arguments: argparse.Namespace) -> None:
    """Learns from one measured step of a plan."""
    from loadmaster.tasks.observe import observe

    if arguments.observed is None or arguments.plan is None:
        raise InputError("--observed TIME and --plan PLAN.json go together: the plan that ran")
    if others := [f"--{name}" for name in ("profile", "links", "costs") if vars(arguments)[name]]:
        raise InputError(f"leave out {', '.join(others)}: --observed learns from the step alone")
    check_targets(arguments.output)
    seen = observe(inputs.plan(arguments.plan), arguments.observed)
    if arguments.output:
        seen.save(arguments.output)
    show(arguments, seen)
    written = [("costs", arguments.output)] if arguments.output else []
    say_where(written, "" if written else "the costs are not saved: -o COSTS.json saves them")


def _transfers(
    arguments: argparse.Namespace, progress: ProgressLine, written: list[tuple[str, str]]
) -> TransferTimes | None:
    """Transfers that were measured before, or are now; the file that has them then."""
    from loadmaster.costs import TransferTimes

    if not arguments.measure_links:
        return TransferTimes.read(arguments.links) if arguments.links else None
    from loadmaster.costs.measuring_links import measure_links

    if not arguments.links:
        raise InputError("--measure-links wants --links FILE.csv, to write to")
    transfers = measure_links(progress=progress)
    transfers.write(arguments.links)
    written.append(("transfers", arguments.links))
    return transfers


def _write(calibration: Calibration, arguments: argparse.Namespace) -> list[tuple[str, str]]:
    written = []
    if arguments.output and calibration.model is not None:
        calibration.model.save(arguments.output)
        written.append(("costs", arguments.output))
    if arguments.cluster_output:
        calibration.cluster.write(arguments.cluster_output)
        written.append(("cluster", arguments.cluster_output))
    if arguments.picture and calibration.trust is not None:
        calibration.trust.draw(arguments.picture)
        written.append(("picture", arguments.picture))
    return written


def _profile(text: str) -> tuple[str, dict[str, Any]]:
    """Path and options of ``[BATCH=]FILE[,KEY=VALUE...]``."""
    first, *rest = text.split(",")
    batch, equals, path = first.partition("=")
    readings: dict[str, Any] = {}
    if equals and batch.isdecimal():
        readings["batch"] = int(batch)
    else:
        path = first
    for word in rest:
        key, equals, value = word.partition("=")
        if not key or not equals:
            raise InputError(f"--profile {text!r}: {word!r} is no KEY=VALUE")
        readings[key] = int(value) if value.isdecimal() else value
    return path, readings
