"""The errors Loadmaster raises: bad input, no feasible plan, a solver or a run that failed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from loadmaster.base.text import escaped, shortened

#: The end of a line, and what is around it.
_LINES = re.compile(r"\s*[\r\n]\s*")

#: Characters of a message. Names and values from files may be of any length.
LONGEST = 2000


class LoadmasterError(Exception):
    """Base of every error this package raises on purpose.

    A message is one line: those of other libraries, which may have several, are joined. One longer
    than :data:`LONGEST` lacks its middle, and says so. Of what a terminal would obey, such as
    colours, there are escapes.
    """

    def __init__(self, message: object = "") -> None:
        line = _LINES.sub(" ", str(message).strip())
        super().__init__(escaped(shortened(line, LONGEST), but="\t"))


class InputError(LoadmasterError, ValueError):
    """The input is wrong: the message names the op, device, link or file, and the way out."""


class MissingExtraError(LoadmasterError, ImportError):
    """A feature needs an optional package; the message says which extra installs it."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the package {package!r}: python -m pip install 'loadmaster[{extra}]'"
        )
        self.package = package
        self.extra = extra


@contextmanager
def importing(package: str, extra: str, purpose: str) -> Iterator[None]:
    """Turns the ImportError of an optional package into a MissingExtraError."""
    try:
        yield
    except ImportError:
        raise MissingExtraError(package, extra, purpose) from None


@contextmanager
def refusing(failed: str, *errors: type[Exception]) -> Iterator[None]:
    """Turns errors of other libraries into an InputError: what failed, and their own words."""
    try:
        yield
    except LoadmasterError:
        raise
    except errors as error:
        raise InputError(f"{failed}: {error}") from error


@contextmanager
def malformed(problem: str | Callable[[], str]) -> Iterator[None]:
    """Turns what Python raises where data has not the form of its format into an InputError.

    It is the border of a reader: around the code that takes a parsed file apart, and nothing else.
    ``problem`` says which part of the file that is, or is a function that is asked when needed.
    """
    try:
        yield
    except LoadmasterError:
        raise
    except (KeyError, IndexError, TypeError, AttributeError, ValueError, OverflowError) as error:
        said = problem if isinstance(problem, str) else problem()
        raise InputError(f"{said}: {type(error).__name__}: {error}") from error
    except RecursionError as error:
        said = problem if isinstance(problem, str) else problem()
        raise InputError(f"{said}: nested too deeply") from error


class InfeasibleError(LoadmasterError):
    """No placement that obeys the constraints was found.

    Attributes
    ----------
    shortfall : dict[str, int]
        Bytes missing, by the name of the device, in the attempt that came closest.
    """

    def __init__(self, message: str, shortfall: Mapping[str, int] | None = None) -> None:
        super().__init__(message)
        self.shortfall: dict[str, int] = dict(shortfall or {})


class SolverError(LoadmasterError):
    """A solver crashed, hung or returned nonsense, and no plan could be kept.

    Attributes
    ----------
    log : str
        All that the solver printed.
    """

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log


class RunError(LoadmasterError):
    """A plan could not be run to the end: a device waited in vain, or its worker died."""
