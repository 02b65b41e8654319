"""The program ``loadmaster``, and ``python -m loadmaster``: one command, then the process ends."""

import atexit
import gc
import os
import sys
from contextlib import suppress
from typing import NoReturn

from loadmaster.cli import main

#: New objects between two collections of cycles: a collection looks through all objects, those of
#: PyTorch's import among them, and finds little.
_OBJECTS = 200_000


def program() -> NoReturn:
    """Runs a command, and ends the process with its exit code.

    The process ends without taking its modules apart, which takes over a second where PyTorch is
    imported. All that the command printed is out: every result is flushed as it is printed.
    """
    gc.set_threshold(_OBJECTS)
    code = main()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # What a user's own model printed, and nobody reads.
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    program()
