"""Python files that writers write, read without running them."""

from __future__ import annotations

import ast


def constants(text):
    """The names that a file gives literals to, at its top."""
    found = {}
    for line in ast.parse(text).body:
        if isinstance(line, ast.Assign) and len(line.targets) == 1:
            try:
                found[line.targets[0].id] = ast.literal_eval(line.value)
            except ValueError:
                continue
    return found
