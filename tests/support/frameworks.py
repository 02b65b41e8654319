"""The framework that each file of ``tests/live`` is for: what it imports first, or else skips.

As a program, it prints the files of a framework: frameworks do not bear one another in a process.
"""

from __future__ import annotations

import re
import sys
from importlib.util import find_spec
from pathlib import Path

from folders import ROOT

LIVE = ROOT / "tests" / "live"
FRAMEWORKS = ("torch", "jax", "tensorflow", "onnxruntime")
_NEEDED = re.compile(rf'^(?:\w+ = )?pytest\.importorskip\("({"|".join(FRAMEWORKS)})"', re.MULTILINE)


def files(framework: str) -> list[Path]:
    """The files that test a framework, the largest first."""
    found = [path for path in LIVE.glob("test_*.py") if _needed(path) == framework]
    return sorted(found, key=lambda path: (-path.stat().st_size, path.name))


def absent() -> list[str]:
    """The frameworks that are not installed."""
    return [framework for framework in FRAMEWORKS if find_spec(framework) is None]


def _needed(path: Path) -> str | None:
    needed = _NEEDED.search(path.read_text())
    return needed and needed[1]


if __name__ == "__main__":
    print(*(path.relative_to(ROOT) for path in files(sys.argv[1])), sep="\n")
