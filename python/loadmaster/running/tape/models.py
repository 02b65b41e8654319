"""The model that a file of the user's builds: what `record` and `capture` take, by name."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from loadmaster.base.errors import InputError
from loadmaster.base.text import shown
from loadmaster.base.units import counted
from loadmaster.base.user_file import of_user, user_function

if TYPE_CHECKING:
    from loadmaster.model.graph import OpGraph
    from loadmaster.running.tape.tape import Tape

#: Phases of a step, in words.
_PHASES = {"f": "the forward pass", "b": "the backward pass", "o": "the update"}


def recorded_model(spec: str) -> Tape:
    """Executes a file, calls its function, and records what that returns.

    Parameters
    ----------
    spec : str
        ``FILE.py:FUNCTION``. The function takes nothing and returns a dictionary: the arguments of
        :func:`loadmaster.record` by name, of which ``model`` and ``example_inputs`` are needed.

    Raises
    ------
    InputError
        No such file or function; an exception in them; a function that returns something else.
    """
    from loadmaster.running.tape.record import record

    tape: Tape = _called(spec, record, "record")
    return tape


def captured_model(spec: str, progress: Callable[[str], None] | None = None) -> OpGraph:
    """Executes a file, calls its function, and captures what that returns: nothing is run.

    The function of ``FILE.py:FUNCTION`` returns a dictionary: the arguments of
    :func:`loadmaster.capture` by name. Errors are those of :func:`recorded_model`. Progress is told
    of what is built or captured. The graph's ``meta["file"]`` says the function, by a whole path:
    files that are written for the graph build the model by it.
    """
    from loadmaster.readers.pytorch.capture import capture

    report = progress or (lambda stage: None)
    report(f"building the model of {spec}")

    def captured(**arguments: Any) -> OpGraph:
        def tell(phase: str, ops: int) -> None:
            report(f"capturing {_PHASES[phase]}, {counted(ops, 'op')}")

        return capture(**{"progress": tell, **arguments})

    graph: OpGraph = _called(spec, capture, "capture", captured)
    path, _, name = spec.rpartition(":")
    graph.meta["file"] = f"{os.path.abspath(path)}:{name}"
    return graph


def _called(
    spec: str,
    function: Callable[..., Any],
    name: str,
    calls: Callable[..., Any] | None = None,
) -> Any:
    """The result of a function of ours for the arguments that a file's function returns; ``calls``
    names it in messages.
    """
    arguments = built(spec)
    known = inspect.signature(function).parameters
    for needed in ("model", "example_inputs"):
        if needed not in arguments:
            raise InputError(
                f"{spec}: the dictionary has no {needed!r}; it wants the arguments of "
                f"loadmaster.{name}: {', '.join(known)}"
            )
    unknown = [argument for argument in arguments if argument not in known]
    if unknown:
        raise InputError(
            f"{spec}: {shown(unknown[0])} is no argument of loadmaster.{name}, which takes "
            f"{', '.join(known)}"
        )
    return (calls or function)(**arguments)


def built(spec: str) -> Mapping[str, Any]:
    """The result of the function of ``FILE.py:FUNCTION``; errors are those of
    :func:`recorded_model`.
    """
    function = user_function(spec)
    with of_user(spec):
        arguments = function()
    if not isinstance(arguments, Mapping):
        raise InputError(
            f"{spec} returned a {type(arguments).__name__}, wants a dictionary of "
            "arguments by name, such as {'model': model, 'example_inputs': x}"
        )
    return arguments
