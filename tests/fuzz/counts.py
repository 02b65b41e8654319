"""How many inputs of each target were run by hand, and the commit that the last ones ran on."""

from __future__ import annotations

import subprocess
import tomllib
from functools import cache
from pathlib import Path

import tomli_w

_PATH = Path(__file__).with_name("counts.toml")


def add(name: str, inputs: int) -> None:
    """Adds inputs of a target to those of the runs before."""
    known = tomllib.loads(_PATH.read_text()) if _PATH.exists() else {}
    before = known.get(name, {}).get("inputs", 0)
    known[name] = {"inputs": before + inputs, "commit": _commit()}
    _PATH.write_text(tomli_w.dumps(dict(sorted(known.items()))))


@cache
def _commit() -> str:
    command = ["git", "rev-parse", "--short=8", "HEAD"]
    found = subprocess.run(command, cwd=_PATH.parent, capture_output=True, text=True)
    return found.stdout.strip()
