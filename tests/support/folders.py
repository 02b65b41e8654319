"""Where the files are that tests read."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
SUPPORT = ROOT / "tests" / "support"
BENCHES = ROOT / "benches"
#: Measured graphs and files of frameworks: beside the repository, not part of it.
SHARED = ROOT.parent / "shared" / "data"
ARTIFACTS = SHARED / "artifacts"
