"""``FILE.py:FUNCTION``: a function in a file of the user's. The file is executed."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from loadmaster.base.errors import InputError, LoadmasterError

#: The name that the file's module has in ``sys.modules``.
_MODULE = "loadmaster_model"

_SPEC = re.compile(r".+\.py:\w+")


def is_spec(text: str) -> bool:
    """True if a text names a function in a file.

    >>> is_spec("my.py:build"), is_spec("model.onnx")
    (True, False)
    """
    return _SPEC.fullmatch(text) is not None


def user_function(spec: str) -> Callable[..., Any]:
    """Executes the file of ``FILE.py:FUNCTION``, and gives its function.

    Raises
    ------
    InputError
        No such file or function; an exception in the file.
    """
    path, colon, name = spec.rpartition(":")
    if not colon or not path or not name:
        raise InputError(f"{spec!r}: wants FILE.py:FUNCTION, such as my.py:build")
    if not Path(path).is_file():
        raise InputError(f"{spec}: there is no file {path}")
    file_spec = spec_from_file_location(_MODULE, path)
    if file_spec is None or file_spec.loader is None:
        raise InputError(f"{spec}: {path} is no file of Python; its name must end in .py")
    module = sys.modules[_MODULE] = module_from_spec(file_spec)
    # As Python has it of a script: what stands beside the file can be imported, later too.
    sys.path.insert(0, os.path.dirname(os.path.realpath(path)))
    with of_user(spec):
        file_spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        raise InputError(f"{spec}: {path} has no function {name!r}")
    known: Callable[..., Any] = function
    return known


@contextmanager
def of_user(spec: str) -> Iterator[None]:
    """Turns what the user's code raises into an InputError that names the function."""
    try:
        yield
    except LoadmasterError:
        raise
    except Exception as error:
        raise InputError(f"{spec}: {type(error).__name__}: {error}") from error
