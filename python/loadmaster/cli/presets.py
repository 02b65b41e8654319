"""``loadmaster presets``: the clusters that come along."""

from __future__ import annotations

import argparse
from typing import Any

from loadmaster.cli import options
from loadmaster.cli.printing import put_file, show_columns, show_json


def add(commands: Any) -> None:
    """Declares the command."""
    text = "list the clusters that come along"
    command = options.add_command(
        commands, "presets", run, text, reads=False, examples=("", "4xV100-PCIe")
    )
    command.add_argument("name", nargs="?", help="print this one's TOML")


def run(arguments: argparse.Namespace) -> None:
    """Lists them, or prints one."""
    from loadmaster.model.cluster import Cluster
    from loadmaster.model.clusters.presets import presets

    if arguments.name:
        from loadmaster.model.clusters.writing import preset_text

        put_file(preset_text(arguments.name))
        return
    clusters = [Cluster.preset(name) for name in presets()]
    if not arguments.json:
        show_columns({c.name: c.description for c in clusters})
        return
    show_json(
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
