"""The first inputs of every target; ``python -m tests.fuzz`` runs more."""

import pytest

from .arrays import CALLS, functions
from .frame import discover, limited_memory, run_input

TARGETS = discover()


@pytest.mark.parametrize("name", TARGETS)
def test_a_number_of_inputs(name):
    with limited_memory():
        for index in range(TARGETS[name].in_ci):
            try:
                run_input(TARGETS[name], 0, index)
            except BaseException as error:
                error.add_note(f"python -m tests.fuzz --only {name} --seed 0 --first {index}")
                raise


def test_every_function_is_called():
    """A function or method without a call of its own is one that nobody has fuzzed."""
    assert set(functions()) == set(CALLS)
