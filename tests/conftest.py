"""Settings and fixtures that all tests share."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import browser
import pytest
from folders import SHARED, missing
from hypothesis import HealthCheck, settings
from hypothesis.database import DirectoryBasedExampleDatabase

import loadmaster as lm
from loadmaster.readers import examples, registry
from loadmaster.readers.examples import EXAMPLES
from loadmaster.strategies import METHODS

#: The same examples in every run.
settings.register_profile(
    "loadmaster",
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow],
)
#: A few of these examples: ``pytest --hypothesis-profile=quick``.
settings.register_profile("quick", settings.get_profile("loadmaster"), max_examples=5)
#: Other examples in every run; those that fail are kept and tried again first.
settings.register_profile(
    "explore",
    settings.get_profile("loadmaster"),
    derandomize=False,
    database=DirectoryBasedExampleDatabase(".hypothesis/examples"),
    max_examples=1000,
    print_blob=True,
)
settings.load_profile("loadmaster")

#: Graphs are immutable: tests of a process, and commands that they call in it, share the packaged
#: ones, with what was worked out of them. ``load.__wrapped__`` reads the file.
examples.load = cache(examples.load)

# All that comes along is registered before any test.
registry.discover()


def pytest_configure() -> None:
    """In continuous integration no test is skipped for want of shared data or a browser."""
    if not os.environ.get("CI"):
        return
    wanting = missing()
    if None in browser.found():
        wanting.append("chromium and chromedriver")
    if wanting:
        raise pytest.UsageError(f"not here, and tests need it: {', '.join(wanting)}")


@pytest.fixture(autouse=True)
def what_comes_along():
    """What a test registers is gone after it."""
    registered = (METHODS, registry.GRAPHS, registry.PROFILES)
    before = [dict(names) for names in registered]
    yield
    for names, kept in zip(registered, before, strict=True):
        names.clear()
        names.update(kept)


def example(name: str) -> lm.OpGraph:
    """A packaged example."""
    return examples.load(name)


@pytest.fixture(params=sorted(EXAMPLES))
def any_example(request) -> lm.OpGraph:
    return example(request.param)


@pytest.fixture(scope="session")
def lenet() -> lm.OpGraph:
    return example("lenet")


@pytest.fixture(scope="session")
def alexnet() -> lm.OpGraph:
    return example("alexnet")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    return SHARED
