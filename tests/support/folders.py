"""Where the files are that tests and benches read."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]
SUPPORT = ROOT / "tests" / "support"
BENCHES = ROOT / "benches"
EXAMPLES = ROOT / "python" / "loadmaster" / "readers" / "examples"
#: Files of frameworks and of papers that come with the repository.
DATA = ROOT / "tests" / "data"
#: All of them, and traced graphs: too large for the repository, so beside it, or where the variable
#: says.
LARGE = Path(os.environ.get("LOADMASTER_DATA", ROOT.parent / "shared" / "data"))


def at(path: str) -> Path:
    """The path of a file, or of a folder, of the repository's data, otherwise of the large data."""
    here = DATA / path
    return here if here.exists() else LARGE / path


def traced_graphs() -> list[Path]:
    """Files of traced graphs: those of the package, then all others that are at hand."""
    packaged = sorted(EXAMPLES.glob("*_*.json.gz"))
    names = {path.name for path in packaged}
    others = sorted((LARGE / "graphs").glob("*.json.gz"))
    return [*packaged, *(path for path in others if path.name not in names)]


def missing() -> list[str]:
    """Folders of the large data that are not there."""
    folders = (
        "graphs",
        "graph_args",
        *(f"artifacts/{a}" for a in ("gpu_traces", "onnx", "tf", "torch")),
    )
    needed = [LARGE / folder for folder in folders]
    return [str(folder) for folder in needed if not folder.is_dir() or not any(folder.iterdir())]
