"""The one enumerator of sizes of axes."""

from __future__ import annotations

from itertools import product
from math import gcd, prod

import pytest

from loadmaster.model.factorisations import divisors, factorisations, halvings, sharing_more


@pytest.mark.parametrize("axes", [1, 2, 3, 4])
def test_every_factorisation_is_there_once_in_order(axes):
    for n in range(1, 25):
        every = [sizes for sizes in product(range(1, n + 1), repeat=axes) if prod(sizes) == n]
        assert list(factorisations([n], axes)) == every


def test_numbers_come_in_the_order_given_and_only_when_it_is_their_turn():
    asked = []

    def numbers():
        for n in (6, 5, 4):
            asked.append(n)
            yield n

    some = factorisations(numbers(), 2)
    assert [next(some) for _ in range(5)] == [(1, 6), (2, 3), (3, 2), (6, 1), (1, 5)]
    assert asked == [6, 5]


def test_the_bound_cuts_off_all_that_begins_so():
    asked = []

    def may(sizes):
        asked.append(sizes)
        return sizes[0] != 2 and sizes[-1] <= 4

    allowed = [s for s in factorisations([8], 3) if s[0] != 2 and max(s) <= 4]
    assert list(factorisations([8], 3, may)) == allowed
    assert not [sizes for sizes in asked if sizes[0] in (2, 8) and len(sizes) > 1]


def test_numbers_that_share_a_batch_among_more_devices():
    for n, batch in product(range(1, 17), (1, 2, 6, 8, 12, 32)):
        numbers = sharing_more(n, batch)
        shared = [gcd(number, batch) for number in numbers]
        assert numbers[0] == n
        assert shared == sorted(set(shared))
        assert shared[-1] == max(gcd(k, batch) for k in range(1, n + 1))


def test_divisors_and_halvings():
    assert divisors(1) == halvings(1) == [1]
    assert divisors(36) == [1, 2, 3, 4, 6, 9, 12, 18, 36]
    assert halvings(13) == [13, 6, 3, 1]
