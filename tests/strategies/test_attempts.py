"""Which shares of the memory are tried."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from loadmaster.base.errors import InfeasibleError
from loadmaster.strategies.attempts import SHARES, Narrowing, Outcome


@dataclass(frozen=True)
class Found:
    """A candidate whose fullest device holds so many times its memory."""

    overfull: float

    @property
    def fits(self):
        return self.overfull <= 1


def tried(held, room=0.0, charged=1.0):
    """Shares that are tried where an attempt holds ``held(share)`` times the memory, and finds no
    room in less than ``room``.
    """
    narrowing, shares = Narrowing(SHARES), []
    for share in narrowing:
        shares.append(share)
        if share < room:
            narrowing.note(Outcome(None, share, InfeasibleError("no room", {})))
        else:
            narrowing.note(Outcome(Found(held(share)), share), charged)
    return shares


def test_the_first_share_is_all_that_is_tried_where_it_does():
    assert tried(lambda share: 1.0) == [1.0]


@pytest.mark.parametrize("fits", SHARES[1:])
def test_the_largest_share_that_does_is_found_in_few_attempts(fits):
    shares = tried(lambda share: share / fits)
    assert fits in shares
    assert len(shares) <= 4


@pytest.mark.parametrize("held", [1.01, 1.6, 3.0])
def test_where_no_share_does_there_are_few_attempts(held):
    assert len(tried(lambda share: held)) <= 5
    assert len(tried(lambda share: held, room=0.6)) <= 7


def test_shares_between_what_is_too_much_and_no_room_are_tried_only_if_they_may_do():
    assert tried(lambda share: 1.3 * share, room=0.65) == [1.0, 0.75, 0.9]
    # Half of what the first attempt held is wanted, and 0.7 is all that there is room for.
    assert tried(lambda share: 2.0, room=0.65) == [1.0, 0.5, 0.8]


def test_shares_that_change_nothing_are_passed_over():
    assert tried(lambda share: 1.01, charged=0.55) == [1.0, 0.5, 0.3, 0.2]
    assert tried(lambda share: 1.01, charged=0.1) == [1.0]
