"""A method in a file of the user's, named as ``FILE.py:FUNCTION``."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from loadmaster.base.user_file import is_spec, of_user, user_function
from loadmaster.strategies.registry import METHODS, strategy


def method_of(text: str) -> str:
    """The name of a method: the text itself, or what a function of a file is registered as.

    The file of ``FILE.py:FUNCTION`` is executed. The function takes a
    :class:`~loadmaster.judge.problem.Problem` and returns an assignment, as under
    :func:`loadmaster.strategy`. If it stands under that decorator, its name is that of the
    decorator; else it is that of the function. A class is called without arguments, and what it
    makes is the function.

    Raises
    ------
    InputError
        No such file or function, an exception in the file, or a name that a method which comes
        along has.

    Examples
    --------
    >>> method_of("heft")
    'heft'
    """
    if not is_spec(text):
        return text
    function = user_function(text)
    known = _registered(function)
    if known is not None:
        return known
    word = text.rpartition(":")[2]
    if isinstance(function, type):
        with of_user(text):
            function = function()
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", word).replace("_", "-").strip("-").lower()
    strategy(name, f"{word} of {text.rpartition(':')[0]}")(function)
    return name


def _registered(function: Callable[..., Any]) -> str | None:
    """The name that a function is registered by, if it is."""
    names = (name for name in METHODS if getattr(METHODS[name][0], "__wrapped__", 0) is function)
    return next(names, None)
