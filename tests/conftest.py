"""Settings and fixtures that all tests share."""

from __future__ import annotations

import os
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import browser
import pytest
from folders import missing
from frameworks import absent, files
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
    max_examples=30,
    suppress_health_check=[HealthCheck.too_slow],
)
#: A few of these examples: ``pytest --hypothesis-profile=quick``.
settings.register_profile("quick", settings.get_profile("loadmaster"), max_examples=5)
#: More of them, others in every run: ``.ci/nightly``.
settings.register_profile(
    "nightly",
    settings.get_profile("loadmaster"),
    derandomize=False,
    max_examples=200,
    print_blob=True,
)
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

#: Files whose framework is not installed: ``tests/live/test_frameworks.py`` counts them.
collect_ignore = [str(path) for framework in absent() for path in files(framework)]

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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of a file's tests that need what is not here, the first stays: it is skipped, and says how
    many there are.
    """
    no_data, no_browser = bool(missing()), None in browser.found()
    kept: list[pytest.Item] = []
    apart: dict[tuple[Path, str], list[pytest.Item]] = {}
    for item in items:
        if no_data and item.get_closest_marker("large_data"):
            apart.setdefault(
                (item.path, "needs files that are too large for the repository"), []
            ).append(item)
        elif no_browser and "browser" in getattr(item, "fixturenames", ()):
            apart.setdefault((item.path, "needs chromium and chromedriver"), []).append(item)
        elif package := wanting(item):
            apart.setdefault((item.path, f"needs {package}"), []).append(item)
        else:
            kept.append(item)
    for (_, needed), tests in apart.items():
        tests[0].add_marker(pytest.mark.skip(reason=f"{needed}: {len(tests)} of this file's tests"))
        kept.append(tests[0])
    items[:] = kept


def wanting(item: pytest.Item) -> str | None:
    """The package that a test needs and that is not installed; None: there is none."""
    needed = (mark.args[0] for mark in item.iter_markers("needs"))
    return next((package for package in needed if find_spec(package) is None), None)


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
