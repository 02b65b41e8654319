"""How many inputs of each target were run by hand, and the commit that the last ones ran on."""

from __future__ import annotations

import subprocess
import tomllib
from collections.abc import Mapping
from pathlib import Path

import tomli_w

_PATH = Path(__file__).with_name("counts.toml")


def add(inputs: Mapping[str, int]) -> None:
    """Adds the inputs of a run to those of the runs before it."""
    command = ["git", "rev-parse", "--short=8", "HEAD"]
    commit = subprocess.run(
        command, cwd=_PATH.parent, capture_output=True, text=True
    ).stdout.strip()
    known = tomllib.loads(_PATH.read_text()) if _PATH.exists() else {}
    for name, count in inputs.items():
        if count:
            before = known.get(name, {}).get("inputs", 0)
            known[name] = {"inputs": before + count, "commit": commit}
    _PATH.write_text(tomli_w.dumps(dict(sorted(known.items()))))
