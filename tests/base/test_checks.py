"""One module checks arguments, by the same rules for all."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from loadmaster.base import checks
from loadmaster.base.errors import InputError

WHOLE = [1, 7, 2**70, np.int32(3), np.uint8(3)]
REAL = [0.5, np.float32(0.5), np.float64(0.5), Fraction(1, 2)]
NEITHER = [True, False, np.True_, None, "1", 1j, [1], np.array([1]), Decimal(1), math.nan]


@pytest.mark.parametrize("value", WHOLE)
def test_integers_are_integers_of_python_whoever_made_them(value):
    found = checks.integer("n", value)
    assert type(found) is int
    assert found == value
    assert checks.is_number(value)


@pytest.mark.parametrize("value", [*REAL, *NEITHER, np.float64("nan"), 0, -1, math.inf])
def test_what_is_no_integer_of_at_least_one_is_refused(value):
    with pytest.raises(InputError, match=r"^n is .*: wants an integer, at least 1$"):
        checks.integer("n", value)


@pytest.mark.parametrize("value", [*REAL, np.int64(1), 1])
def test_numbers_are_floats_of_python(value):
    found = checks.share("n", value)
    assert type(found) is float
    assert found == value


@pytest.mark.parametrize("check", [checks.share, checks.positive, checks.not_negative])
@pytest.mark.parametrize("value", [*NEITHER, np.float64("nan"), -1, math.inf])
def test_what_is_no_number_is_refused_by_all(check, value):
    with pytest.raises(InputError, match=r"^n is .*: wants a number"):
        check("n", value)


def test_an_integer_has_a_range_and_its_own_words():
    assert checks.integer("n", 0, 0, 5) == 0
    with pytest.raises(InputError, match=r"^n is 6: wants a die's number$"):
        checks.integer("n", 6, 0, 5, wants="a die's number")


def test_a_time_limit_may_be_infinite():
    assert checks.time_limit(math.inf) == checks.time_limit(10**400) == checks.YEAR
    assert checks.time_limit(np.float32(2)) == 2.0
    for value in (-1, math.nan, True, "1"):
        with pytest.raises(InputError, match=r"^time_limit is .*: wants seconds >= 0$"):
            checks.time_limit(value)


def test_seeds_words_and_flags():
    assert checks.seed(np.uint64(2**64 - 1)) == 2**64 - 1
    for value in (2**64, -1, True, 0.0):
        with pytest.raises(InputError, match=r"^seed is "):
            checks.seed(value)
    checks.one_of("word", "a", ("a", "b"))
    with pytest.raises(InputError, match=r"^word is 'c': wants one of a, b$"):
        checks.one_of("word", "c", ("a", "b"))
    assert checks.flag("it", False) is False
    for value in (1, None, np.True_):
        with pytest.raises(InputError, match=r"^it is .*: wants True or False$"):
            checks.flag("it", value)
