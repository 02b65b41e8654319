"""Where the files are that tests read."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
SUPPORT = ROOT / "tests" / "support"
BENCHES = ROOT / "benches"
#: Measured graphs and files of frameworks: beside the repository, not part of it.
SHARED = ROOT.parent / "shared" / "data"
ARTIFACTS = SHARED / "artifacts"


def missing() -> list[str]:
    """Folders of the shared data that are not there."""
    artifacts = ("comm", "gpu_traces", "jax", "onnx", "tf", "torch")
    needed = [SHARED / "graphs", SHARED / "heterogeneous", *(ARTIFACTS / a for a in artifacts)]
    return [str(folder) for folder in needed if not folder.is_dir() or not any(folder.iterdir())]
