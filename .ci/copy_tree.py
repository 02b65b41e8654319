"""Makes a folder a copy of the repository, with what is not committed yet.

    python .ci/copy_tree.py FOLDER

Files that are alike stay as they are: what was compiled of them still stands. Others are deleted,
but for folders of tools.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

LISTED = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
#: Folders in which tools keep what they compiled or found out.
KEPT = {"__pycache__", ".mypy_cache", ".ruff_cache", ".import_linter_cache"}


def main() -> None:
    """Copies what changed, deletes what is gone."""
    target = Path(sys.argv[1])
    listed = subprocess.run(LISTED, check=True, capture_output=True, text=True).stdout.split("\0")
    files = {path for path in map(Path, filter(None, listed)) if path.is_file()}
    for path in files:
        copy = target / path
        if not copy.is_file() or copy.read_bytes() != path.read_bytes():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
        shutil.copymode(path, copy)
    for copy in list(target.rglob("*")):
        path = copy.relative_to(target)
        if not copy.is_dir() and path not in files and KEPT.isdisjoint(path.parts):
            copy.unlink()


if __name__ == "__main__":
    main()
