"""Factors of axes: common refinements, everywhere, and never a wrong one."""

from __future__ import annotations

import itertools
import math

from hypothesis import given
from hypothesis import strategies as st

from loadmaster.dimensions.factors import Axes


def sizes(axes: Axes, axis: int) -> list[int]:
    return [axes.size[factor] for factor in axes.factors(axis)]


def reshape(axes: Axes, one: range, other: range) -> bool:
    """Joins all axes of one shape with all of another."""
    runs = [
        (some.start, some.stop, 1, math.prod(axes.size[axis] for axis in some))
        for some in (one, other)
    ]
    return axes.join(*runs)


def test_both_sides_of_a_reshape_are_taken_apart_where_one_is():
    axes = Axes([3, 8, 10, 24, 2, 5])
    assert reshape(axes, range(0, 3), range(3, 6))
    assert [sizes(axes, axis) for axis in range(6)] == [[3], [8], [2, 5], [3, 8], [2], [5]]
    assert axes.factors(3) == axes.factors(0) + axes.factors(1)


def test_what_is_taken_apart_later_reaches_what_was_joined_before():
    axes = Axes([1024, 1024, 16, 64])
    axes.unite(0, 1)
    reshape(axes, range(1, 2), range(2, 4))
    assert sizes(axes, 0) == [16, 64]
    assert axes.factors(0) == axes.factors(2) + axes.factors(3)


def test_six_by_four_and_eight_by_three_stay_as_they_are():
    axes = Axes([5, 6, 4, 5, 8, 3])
    assert not reshape(axes, range(0, 3), range(3, 6))
    assert [sizes(axes, axis) for axis in range(6)] == [[5], [6], [4], [5], [8], [3]]
    assert axes.factors(0) == axes.factors(3)


def test_small_pieces_are_not_made_of_axes_that_each_have_places_of_their_own():
    windows, halves = [16, 16], [128, 2]
    axes = Axes([*windows, *halves, 32, 512])
    assert not reshape(axes, range(0, 2), range(2, 4))
    assert [sizes(axes, axis) for axis in range(4)] == [[16], [16], [128], [2]]
    # 256 x 64 against 32 x 512 has pieces of 32, 8 and 64.
    axes = Axes([256, 64, 32, 512])
    assert reshape(axes, range(0, 2), range(2, 4))
    assert [sizes(axes, axis) for axis in range(4)] == [[32, 8], [64], [32], [8, 64]]


def test_a_factor_that_is_on_both_sides_is_taken_apart_on_both():
    axes = Axes([64, 64, 4, 1024])
    axes.unite(0, 1)
    assert reshape(axes, range(0, 2), range(2, 4))
    assert sizes(axes, 0) == sizes(axes, 1) == [4, 16]
    assert sizes(axes, 3) == [16, 4, 16]


def test_within_a_period_axes_of_different_sizes_are_one():
    axes = Axes([3072, 1024, 16, 64])
    assert axes.join((0, 1, 1, 1024), (1, 2, 1, 1024))
    reshape(axes, range(1, 2), range(2, 4))
    assert sizes(axes, 0) == [3, 16, 64]
    assert axes.factors(0)[1:] == axes.factors(1)


def test_shares_of_axes_of_different_sizes_are_one():
    axes = Axes([8, 32])
    assert axes.join((0, 1, 1, 8), (1, 2, 4, 32))
    assert sizes(axes, 1) == [8, 4]
    assert axes.factors(1)[:1] == axes.factors(0)


shapes = st.lists(st.sampled_from([1, 2, 3, 4, 6, 8, 12]), min_size=1, max_size=3)


@given(st.lists(shapes, min_size=2, max_size=5), st.data())
def test_products_of_factors_are_sizes_whatever_is_joined(each, data):
    flat = [size for shape in each for size in shape]
    axes = Axes(flat)
    start = [sum(map(len, each[:at])) for at in range(len(each) + 1)]
    spans = [range(*ends) for ends in itertools.pairwise(start)]
    for _ in range(data.draw(st.integers(1, 6))):
        one, other = data.draw(st.tuples(st.sampled_from(spans), st.sampled_from(spans)))
        if math.prod(flat[a] for a in one) == math.prod(flat[a] for a in other):
            reshape(axes, one, other)
        if flat[one[0]] == flat[other[-1]]:
            axes.unite(one[0], other[-1])
        for axis, size in enumerate(flat):
            assert math.prod(sizes(axes, axis)) == size
            assert 1 not in sizes(axes, axis)
