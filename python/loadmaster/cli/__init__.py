"""The command line: results on stdout, progress and warnings on stderr.

Each command has a module of its name: ``add`` declares the command, ``run`` runs it. Several
commands share the declarations in ``options``, the reading in ``inputs`` and the output in
``printing``.
Functions import heavy modules inside their bodies, so that help comes at once.

Exit codes: 0 done, 1 a check failed, 2 bad input, 3 infeasible, 130 interrupted.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from typing import TextIO

from loadmaster.base.errors import InfeasibleError, LoadmasterError
from loadmaster.base.files import limited_input
from loadmaster.cli.parser import parsed
from loadmaster.cli.printing import note, open_streams


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code."""
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            open_streams()
            return _run(argv) or 0
        except InfeasibleError as error:
            return _fail(error, 3)
        except LoadmasterError as error:
            return _fail(error, 2)
        except KeyboardInterrupt:
            return _fail("interrupted", 130)
        except BrokenPipeError:
            # Whoever reads the output has seen enough.
            return 0


def _run(argv: Sequence[str] | None) -> int | None:
    arguments = parsed(sys.argv[1:] if argv is None else argv)
    with limited_input(getattr(arguments, "max_input", None)):
        code: int | None = arguments.run(arguments)
        return code


def _fail(why: object, code: int) -> int:
    note(why)
    return code


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    note(f"warning: {' '.join(str(message).split())}")
