"""Files that writers write, read without running them."""

from __future__ import annotations

import ast
import shlex


def constants(text):
    """The names that a file gives literals to, at its top."""
    found = {}
    for line in ast.parse(text).body:
        if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Name):
            try:
                found[line.targets[0].id] = ast.literal_eval(line.value)
            except ValueError:
                continue
    return found


def flags(text):
    """The words of the array PLAN in a shell script, in their order."""
    inside = text.partition("PLAN=(\n")[2].partition("\n)\n")[0]
    return shlex.split(inside)


def settings(text):
    """The keys of a file of YAML with a line for each, and the variables that its command sets."""
    keys = dict(line.split(": ") for line in text.splitlines() if not line.startswith("#"))
    command = next(line for line in text.splitlines() if "vllm serve" in line)
    words = command.removeprefix("#").split()
    variables = dict(word.split("=") for word in words[: words.index("vllm")])
    return {name: value == "true" or int(value) for name, value in keys.items()}, variables
