"""The command line: results on stdout, progress and warnings on stderr.

Each command has a module of its name: ``add`` declares the command, ``run`` runs it. Several
commands share the declarations in ``options``, the reading in ``inputs`` and the output in
``printing``.
Functions import heavy modules inside their bodies, so that help comes at once.

Exit codes: 0 done, 1 a check failed, 2 bad input, 3 infeasible, 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import TextIO

from loadmaster.base.errors import InfeasibleError, LoadmasterError
from loadmaster.cli.parser import parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code."""
    arguments, unknown = parser().parse_known_args(argv)
    if unknown:
        arguments.command.error(f"unrecognized arguments: {' '.join(unknown)}")
    run: Callable[[argparse.Namespace], int | None] = arguments.run
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            code = run(arguments)
            sys.stdout.flush()
        except InfeasibleError as error:
            return _fail(error, 3)
        except LoadmasterError as error:
            return _fail(error, 2)
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            return 130
        except BrokenPipeError:
            # The reader of the output has closed it; the interpreter's exit is kept quiet too.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
    return code or 0


def _fail(error: Exception, code: int) -> int:
    print(f"loadmaster: {error}", file=sys.stderr)
    return code


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    print(f"loadmaster: warning: {message}", file=sys.stderr)
