"""What a target is, how one input of it is run, and what counts as a finding.

A finding is any exception that a target lets through, a warning of numpy's that a number
overflowed, an input that computes longer than ``SECONDS``, and memory beyond ``MEMORY``.
"""

from __future__ import annotations

import resource
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from random import Random
from typing import NamedTuple

from loadmaster.base.errors import LoadmasterError

#: Seconds of CPU that one input may take.
SECONDS = 20

#: Bytes of address space that inputs may take beside what the process has when they start.
MEMORY = 4 << 30

#: Characters that the message of an error may have.
READABLE = 2000

_HERE = Path(__file__).parent


class Target(NamedTuple):
    """What is fuzzed: ``run`` makes one input of random numbers and lets only findings through."""

    name: str
    run: Callable[[Random], None]
    in_ci: int
    seconds: int = SECONDS


TARGETS: dict[str, Target] = {}


def target(
    name: str, *, in_ci: int, seconds: int = SECONDS
) -> Callable[[Callable[[Random], None]], None]:
    """Makes a function a target, whose inputs may take so many seconds of CPU each; continuous
    integration runs the first ``in_ci`` of them.
    """

    def register(run: Callable[[Random], None]) -> None:
        TARGETS[name] = Target(name, run, in_ci, seconds)

    return register


def discover() -> dict[str, Target]:
    """Every target of the modules in this folder, by name."""
    for module in iter_modules([str(_HERE)]):
        if module.name != "__main__" and not module.name.startswith("test_"):
            import_module(f"{__package__}.{module.name}")
    return dict(sorted(TARGETS.items()))


@contextmanager
def refused() -> Iterator[None]:
    """An error of Loadmaster's own is no finding, if a person can read its message."""
    try:
        yield
    except LoadmasterError as error:
        message = str(error)
        if len(message) > READABLE:
            raise UnreadableError(
                f"a message of {len(message)} characters: {message[:200]}"
            ) from None


class UnreadableError(Exception):
    """A message is too long to be read."""


class Hang(BaseException):
    """An input computed longer than ``SECONDS``."""


def run_input(one: Target, seed: int, index: int) -> None:
    """Runs the input of a number: the same input for the same seed and number."""
    with _clocked(one.seconds), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", RuntimeWarning)
        one.run(Random(f"{one.name} {seed} {index}"))


@contextmanager
def _clocked(seconds: int) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise Hang(f"longer than {seconds} s")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@contextmanager
def limited_memory() -> Iterator[None]:
    """No more than ``MEMORY`` beside what the process has now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
