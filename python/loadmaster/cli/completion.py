"""``loadmaster completion``: what a shell runs to complete commands, flags and names.

The shell calls the command line itself for what may come next, and argcomplete answers.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable
from typing import Any

from loadmaster.base.errors import importing
from loadmaster.cli import options
from loadmaster.cli.printing import put_file

SHELLS = ("bash", "zsh", "fish")


def add(commands: Any) -> None:
    """Declares the command."""
    command = options.add_command(
        commands,
        "completion",
        run,
        'print what completes this command in a shell: eval "$(loadmaster completion bash)"',
        reads=False,
        examples=SHELLS,
    )
    command.add_argument("shell", choices=SHELLS)


def run(arguments: argparse.Namespace) -> None:
    """Prints it."""
    with importing("argcomplete", "completion", "completion"):
        from argcomplete.shell_integration import shellcode
    put_file(shellcode(["loadmaster"], shell=arguments.shell) + "\n")


def complete(parser: argparse.ArgumentParser) -> None:
    """Answers a shell that asks what may come next, and ends; nothing where none asks."""
    if "_ARGCOMPLETE" not in os.environ:
        return
    with importing("argcomplete", "completion", "completion"):
        import argcomplete
    argcomplete.autocomplete(parser, default_completer=_names)  # type: ignore[arg-type]


def _names(prefix: str, action: argparse.Action, parsed_args: Any, **_: Any) -> list[str]:
    """Words that begin with ``prefix`` and that an action may take; of several, the last is
    completed.
    """
    if action.dest == "option":
        return [word for word in _options(parsed_args) if word.startswith(prefix)]
    known = _KNOWN.get(action.dest)
    if known is None:
        return _files(prefix)
    before, comma, last = prefix.rpartition(",")
    completions = [f"{before}{comma}{name}" for name in known() if name.startswith(last)]
    return completions + (_files(prefix) if action.dest in _FILES_TOO else [])


def _files(prefix: str) -> list[str]:
    from argcomplete.completers import FilesCompleter

    return list(FilesCompleter()(prefix))


def _methods() -> Iterable[str]:
    from loadmaster.strategies.registry import METHODS

    return METHODS


def _presets() -> Iterable[str]:
    from loadmaster.model.clusters.presets import presets

    return presets()


def _examples() -> Iterable[str]:
    from loadmaster.readers import instances
    from loadmaster.readers.examples import EXAMPLES
    from loadmaster.readers.reading import INSTANCE

    listed = [f"{INSTANCE}{name}" for name in instances.names()]
    return [*(f"example:{name}" for name in EXAMPLES), *listed]


def _targets() -> Iterable[str]:
    from loadmaster.systems.registry import planned_for

    return planned_for()


def _options(arguments: argparse.Namespace) -> Iterable[str]:
    """KEY=VALUE for each option of the method or the target of a command; of one that takes other
    values than some texts, KEY= alone.
    """
    from loadmaster.strategies.registry import DEFAULT, METHODS, options_of
    from loadmaster.systems.registry import SYSTEMS, is_planned_for

    target = getattr(arguments, "target", None)
    method = getattr(arguments, "method", None) or DEFAULT
    if target is not None:
        options = SYSTEMS[target].options if is_planned_for(target) else []
    else:
        options = options_of(method) if method in METHODS else []
    for option in options:
        yield from (f"{option.name}={value}" for value in option.choices or [""])


def _of_cluster() -> Iterable[str]:
    from loadmaster.cli.cluster import KINDS

    return KINDS


#: Values of a flag or a word, by the name that its value has.
_KNOWN: dict[str, Callable[[], Iterable[str]]] = {
    "method": _methods,
    "methods": _methods,
    "cluster": _presets,
    "graph": _examples,
    "graphs": _examples,
    "target": _targets,
    "targets": _targets,
    "action": _of_cluster,
}
_FILES_TOO = ("cluster", "graph", "graphs")
