"""``loadmaster cluster``: the machine at hand as a cluster, or one from a few words."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from loadmaster.base.errors import InputError
from loadmaster.base.text import meant
from loadmaster.cli import options, values
from loadmaster.cli.printing import (
    check_targets,
    note,
    put_file,
    say_where,
    show_columns,
    show_json,
)
from loadmaster.cli.progress import ProgressLine

if TYPE_CHECKING:
    from loadmaster.model.cluster import Cluster

#: Actions of the command, and the flags that are for each alone.
KINDS = {
    "detect": ("measure", "cpu"),
    "new": ("gpus", "link", "hosts", "network", "ports"),
    "types": (),
}

_QUESTIONS = {
    "gpus": "GPUs of one host, such as 2xRTX4090,1xA100 (`loadmaster cluster types` lists them)?",
    "link": "What joins them (their own): pcie4, nvlink, xgmi, or a rate such as 25GB/s?",
    "hosts": "How many such hosts (1)?",
    "network": "What joins the hosts: 25GbE, 200Gb-IB, NDR, or all of a host's, such as 3GB/s?",
}


def add(commands: Any) -> None:
    """Declares the command."""
    command = options.add_command(
        commands,
        "cluster",
        run,
        "write a cluster: of this machine, or of a few words",
        reads=False,
        examples=(
            "detect -o cluster.toml",
            "detect --measure -o cluster.toml",
            "new --gpus 4xL4 --link pcie4 -o cluster.toml",
            "new --gpus 2xRTX4090,1xA100 --link pcie4 --hosts 2 --network 25GbE",
            "new --gpus 8xH100 --hosts 2 --network 400Gb",
            "types",
        ),
    )
    command.add_argument(
        "action",
        metavar="WHAT",
        help="detect (this machine), new (from flags, or questions), types (list the known ones)",
    )
    command.add_argument("-o", "--output", metavar="CLUSTER.toml", help="write it to a file")
    group = command.add_argument_group("detect")
    group.add_argument(
        "--measure",
        action="store_true",
        help="time transfers between GPUs (PyTorch must see them) and the CPU's memory",
    )
    group.add_argument("--cpu", action="store_true", help="the CPU is a device beside the GPUs")
    group = command.add_argument_group("new")
    group.add_argument("--gpus", metavar="GPUS", help="those of one host: 2xRTX4090,1xA100")
    group.add_argument(
        "--link",
        metavar="LINK",
        help="what joins them: pcie4, pcie4x8, nvlink, xgmi, 25GB/s; default: the GPUs' own",
    )
    group.add_argument("--hosts", metavar="N", help="equal hosts; default: 1")
    group.add_argument(
        "--network",
        metavar="NETWORK",
        help="what joins hosts: a port's 25GbE, 200Gb-IB, NDR, 400Gb, or all ports' 3GB/s",
    )
    group.add_argument(
        "--ports",
        metavar="N",
        help="network ports of a host; default: one per GPU for types sold so, else one",
    )


def run(arguments: argparse.Namespace) -> None:
    """Detects, describes or lists."""
    kind = arguments.action
    if kind not in KINDS:
        raise InputError(f"cluster has no {kind!r}{meant(kind, KINDS)}")
    for of, flags in KINDS.items():
        other_flags = [flag for flag in flags if of != kind and getattr(arguments, flag)]
        if other_flags:
            raise InputError(f"--{other_flags[0]} is for `loadmaster cluster {of}`, not for {kind}")
    check_targets(arguments.output)
    {"detect": _detect, "new": _new, "types": _types}[kind](arguments)


def _detect(arguments: argparse.Namespace) -> None:
    from loadmaster.tasks.detect import detect

    with ProgressLine() as progress:
        here = detect(
            cpu=True if arguments.cpu else None, measure=arguments.measure, progress=progress
        )
    notes = here.notes + here.untimed
    for text in notes:
        note(text)
    _give(arguments, here.cluster, here.toml, list(notes))


def _new(arguments: argparse.Namespace) -> None:
    from loadmaster.model.cluster import Cluster

    asked = {flag: getattr(arguments, flag) for flag in KINDS["new"]}
    if sys.stdin.isatty():
        asked = _answers(asked)
    elif not asked["gpus"]:
        raise InputError(
            "cluster new wants --gpus, such as --gpus 4xL4 --link pcie4, and for several hosts "
            "--hosts 2 --network 25GbE"
        )
    hosts = values.whole("--hosts", asked["hosts"]) if asked["hosts"] else 1
    ports = values.whole("--ports", asked["ports"]) if asked["ports"] else None
    cluster = Cluster.new(
        asked["gpus"] or "", asked["link"], hosts=hosts, network=asked["network"], ports=ports
    )
    note(cluster.description)
    _give(arguments, cluster, cluster.to_toml(), [cluster.description])


def _answers(asked: dict[str, str | None]) -> dict[str, str | None]:
    """Answers of the terminal for what is missing; an empty answer gives nothing."""
    from loadmaster.model.machine.described import parts

    answers = dict(asked)
    for flag, question in _QUESTIONS.items():
        is_idle = (
            answers[flag]
            or (flag == "link" and [n for n, _ in parts(answers["gpus"] or "")] == [1])
            or (flag == "hosts" and asked["gpus"])
            or (flag == "network" and answers["hosts"] in (None, "1"))
        )
        if not is_idle:
            note(question)
            answers[flag] = sys.stdin.readline().strip() or None
    return answers


def _types(arguments: argparse.Namespace) -> None:
    from loadmaster.base.units import RATE, SPEED, format_bytes
    from loadmaster.model.machine.types import known_types

    table = known_types()
    if arguments.json:
        rows = [
            {
                **known.type.facts,
                "memory": known.memory,
                "called": known.called,
                "read_at": known.read_at,
            }
            for known in table.values()
        ]
        show_json(rows)
        return
    columns = {}
    for name, known in table.items():
        memory = f"{format_bytes(known.memory)}, " if known.memory else ""
        peaks = {d: SPEED.write(known.type.peak[d]) for d in ("f32", "f16") if d in known.type.peak}
        said = ", ".join(f"{dtype} {peak}" for dtype, peak in peaks.items())
        bandwidth = RATE.write(known.type.memory_bandwidth)
        columns[name] = "; ".join([f"{memory}{bandwidth}, {said}", *known.called[:1]])
    show_columns(columns)


def _give(arguments: argparse.Namespace, cluster: Cluster, toml: str, notes: list[str]) -> None:
    """Writes the cluster, or prints it."""
    from loadmaster.base.files import write_bytes

    if arguments.output:
        write_bytes(arguments.output, toml.encode())
    if arguments.json:
        show_json(
            {
                "name": cluster.name,
                "devices": [
                    {"name": d.name, "type": d.type, "memory": d.memory} for d in cluster.devices
                ],
                "types": [kind.facts for kind in cluster.types],
                "notes": notes,
                "toml": toml,
            }
        )
    elif not arguments.output:
        put_file(toml)
    if arguments.output:
        say_where([("cluster", arguments.output)])
