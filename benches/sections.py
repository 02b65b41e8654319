"""Sections of a report that several benches write: each replaces its own and leaves the others."""

from __future__ import annotations

import re
from pathlib import Path


def write_section(path: Path, name: str, text: str) -> None:
    """Puts a section into a Markdown file, where it was or at the end."""
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    section = f"{begin}\n{text.strip()}\n{end}\n"
    old = path.read_text() if path.exists() else ""
    found = re.search(f"{re.escape(begin)}.*?{re.escape(end)}\\n", old, re.DOTALL)
    if found:
        new = old[: found.start()] + section + old[found.end() :]
    else:
        new = old + ("\n" if old else "") + section
    path.write_text(new)
