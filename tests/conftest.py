"""Settings and fixtures that all tests share."""

from __future__ import annotations

from pathlib import Path

import pytest
from folders import SHARED
from hypothesis import HealthCheck, settings

import loadmaster as lm
from loadmaster.readers import registry
from loadmaster.readers.examples import EXAMPLES
from loadmaster.strategies import METHODS

settings.register_profile(
    "loadmaster",
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("loadmaster")


@pytest.fixture(autouse=True)
def what_comes_along():
    """What a test registers is gone after it."""
    registry.discover()
    registered = (METHODS, registry.GRAPHS, registry.PROFILES)
    before = [dict(names) for names in registered]
    yield
    for names, kept in zip(registered, before, strict=True):
        names.clear()
        names.update(kept)


_LOADED: dict[str, lm.OpGraph] = {}


def example(name: str) -> lm.OpGraph:
    """A packaged example, read once per run (graphs are immutable)."""
    if name not in _LOADED:
        _LOADED[name] = lm.read(f"example:{name}")
    return _LOADED[name]


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
