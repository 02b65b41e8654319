"""The pictures of ``docs/gallery.md``, made by the commands on that page.

    python benches/gallery.py               # all of them, into docs/gallery
    python benches/gallery.py methods.png   # those of the blocks that name it

Needs the extra ``plot``.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "gallery.md"

#: Colours of a picture.
COLOURS = 48


def blocks(wanted: list[str]) -> list[str]:
    """The page's blocks of commands, or those that name one of these pictures."""
    found = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    return [block for block in found if not wanted or any(name in block for name in wanted)]


def small(picture: Path, path: Path) -> None:
    """Saves a picture with few colours."""
    image = Image.open(picture).convert("RGB")
    way = Image.Quantize.MAXCOVERAGE
    image.quantize(COLOURS, way, kmeans=3, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1e3:.0f} KB")


def main(wanted: list[str]) -> None:
    """Runs the blocks in a folder of their own, and keeps their pictures."""
    folder = PAGE.with_suffix("")
    folder.mkdir(exist_ok=True)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    with tempfile.TemporaryDirectory() as temporary:
        for block in blocks(wanted):
            shell = ["bash", "-euc", block]
            subprocess.run(shell, cwd=temporary, env={**os.environ, "PATH": path}, check=True)
        for picture in sorted(Path(temporary).glob("*.png")):
            small(picture, folder / picture.name)


if __name__ == "__main__":
    main(sys.argv[1:])
