"""Checks by a system's own code, in a Python of its own: what that imports and changes stays there.

``python -m loadmaster.systems.shared.own_python PLACE ARGUMENTS SECONDS`` calls the function of a
place (:func:`~loadmaster.base.later.imported`) with a JSON list of arguments, and prints JSON.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import warnings
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

from loadmaster.base.errors import InputError, LoadmasterError
from loadmaster.base.later import imported
from loadmaster.systems.registry import Checked

#: Seconds of a processor that a check takes at most, and seconds on the clock on a busy machine.
_SECONDS, _CLOCK = 15, 60

#: Letters of a system's message that are said.
_LETTERS = 300


def checked_apart(system: str, path: str | os.PathLike[str], place: str, *more: Any) -> Checked:
    """The words of a function of a path and more arguments, on the file that was written there.

    Parameters
    ----------
    system : str
        Its name for people.
    path : path
    place : str
        The function: it returns the members of a :class:`Checked` beside ``is_done``, or raises
        what the system does.
    *more : values of JSON

    Raises
    ------
    InputError
        The system refuses the file: its own message. The user's own function raises.
    """
    arguments = json.dumps([os.fspath(path), *more])
    command = [sys.executable, "-m", __name__, place, arguments, str(_SECONDS)]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=_CLOCK, check=False)
        is_late = run.returncode == -getattr(signal, "SIGXCPU", 0) != 0
    except subprocess.TimeoutExpired:
        is_late = True
    if is_late:
        return Checked(False, f"it took longer than {_SECONDS} s")
    try:
        says = json.loads(run.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        last = next(iter(run.stderr.splitlines()[::-1]), "")
        says = {"error": f"Python ended with {run.returncode}: {last}"}
    if "missing" in says:
        return Checked(False, f"{says['missing']} is not installed, which {system} needs")
    if "unchecked" in says:
        return Checked(False, says["unchecked"])
    if "user" in says:
        raise InputError(says["user"])
    if "error" in says:
        raise InputError(
            f"{system} refuses what was written to {os.fspath(path)}: {says['error']} "
            "(--no-check leaves this out)"
        )
    ran = says.pop("collectives", {})
    return Checked(True, **says, collectives={kind: tuple(each) for kind, each in ran.items()})


def _answer(place: str, arguments: list[Any]) -> dict[str, Any]:
    try:
        answer: dict[str, Any] = imported(place)(*arguments)
    except LoadmasterError as error:
        return {"user": str(error)}
    except Exception as error:
        package = (getattr(error, "name", None) or "").partition(".")[0]
        if isinstance(error, ModuleNotFoundError) and package and find_spec(package) is None:
            return {"missing": package}
        return {"error": f"{type(error).__name__}: {' '.join(str(error).split())}"[:_LETTERS]}
    return answer


if __name__ == "__main__":
    with suppress(ImportError):
        import resource

        # A busy machine takes longer by the clock.
        resource.setrlimit(resource.RLIMIT_CPU, (int(sys.argv[3]), resource.RLIM_INFINITY))
    warnings.simplefilter("ignore")
    said = json.dumps(_answer(sys.argv[1], json.loads(sys.argv[2])))
    sys.stdout.write(f"\n{said}")
    # Threads may wait for processes that are not there.
    sys.stdout.flush()
    os._exit(0)
