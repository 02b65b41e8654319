"""The files of the package, parsed once for all tests of a process."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import loadmaster

PACKAGE = Path(loadmaster.__file__).parent


@cache
def trees() -> dict[str, ast.Module]:
    """Every file of the package, by its path in it."""
    return {
        path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(PACKAGE.rglob("*.py"))
    }
