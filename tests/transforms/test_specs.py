"""Specs: what turns one into another, and what a part of an op does."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import loadmaster.fast as fast
from loadmaster.dimensions.form import (
    ANY,
    FLAT,
    OWNER,
    PARTIAL,
    REPLICATE,
    Cut,
    Form,
    part_sizes,
)
from loadmaster.transforms import specs

#: Two factors, and what turns what into what.
ROWS, COLUMNS = 2, 3
WANTED = {
    "all_gather": {(ROWS, REPLICATE), (FLAT, REPLICATE), (OWNER, REPLICATE)},
    "all_reduce": {(PARTIAL, REPLICATE)},
    "reduce_scatter": {(PARTIAL, ROWS), (PARTIAL, FLAT), (PARTIAL, OWNER)},
    "all_to_all": {(ROWS, COLUMNS), (COLUMNS, ROWS), (ROWS, FLAT), (FLAT, ROWS)},
    "free": {(REPLICATE, spec) for spec in (ROWS, FLAT, OWNER, PARTIAL, REPLICATE, ANY)}
    | {(spec, spec) for spec in (ROWS, PARTIAL, FLAT, OWNER)}
    | {(spec, ANY) for spec in (ROWS, PARTIAL, FLAT, OWNER)},
}
KIND_OF = {pair: kind for kind, pairs in WANTED.items() for pair in pairs}


@pytest.mark.parametrize("want", [ROWS, REPLICATE, PARTIAL, FLAT, OWNER, ANY])
@pytest.mark.parametrize("have", [ROWS, REPLICATE, PARTIAL, FLAT, OWNER])
def test_each_pair_of_specs_has_the_conversion_that_it_needs(have: int, want: int) -> None:
    names = {specs.FREE: "free", specs.FORBIDDEN: "forbidden", **dict(enumerate(fast.COLLECTIVES))}
    assert names[int(specs.conversion(have, want))] == KIND_OF.get((have, want), "forbidden")


@given(st.integers(1, 200), st.integers(1, 9))
def test_equal_parts_are_those_of_forms(size: int, k: int) -> None:
    assert specs.part_weights(size, [0.3] * k).tolist() == part_sizes(size, k)


@given(st.integers(1, 10_000), st.lists(st.floats(0.05, 1), min_size=1, max_size=9))
def test_unequal_parts_add_up_and_are_within_one_of_their_share(
    size: int, shares: list[float]
) -> None:
    parts = specs.part_weights(size, shares)
    assert parts.sum() == size
    assert (np.abs(parts - np.array(shares) / sum(shares) * size) < 1 + 1e-6).all()


ROW = Cut("row", "batch", 10, (0, REPLICATE), (0,))
CONTRACTION = Cut("contraction", "feature", 8, (1, 0), (PARTIAL,))
PARTIAL_SUMS = Cut("partial", "", 0, (PARTIAL, REPLICATE), (PARTIAL,), works=False)
PRODUCT = Form(
    (ROW, CONTRACTION, PARTIAL_SUMS), (((0, 10), (1, 8)), ((0, 8), (1, 6))), (((0, 10), (1, 6)),)
)
AMOUNT = specs.Amount(960, 4 * (80 + 48 + 60), 30, [320, 192], [240])


@pytest.mark.parametrize("label", [0, 1, 2, 3])
def test_a_part_reads_and_writes_its_parts_of_tensors(label: int) -> None:
    done = specs.work(PRODUCT, label, [1, 1, 1, 1], AMOUNT)
    rows, inner = np.array([3, 3, 2, 2]), np.array([2, 2, 2, 2])
    share = {0: np.ones(4), 1: rows / 10, 2: inner / 8, 3: np.ones(4)}[label]
    read = {0: 512 * np.ones(4), 1: 32 * rows + 192, 2: (40 + 24) * inner, 3: 512 * np.ones(4)}
    output = 24 * rows if label == 1 else 240 * np.ones(4)
    np.testing.assert_allclose(done.flops, 960 * share)
    np.testing.assert_allclose(done.workspace, 30 * share)
    np.testing.assert_allclose(done.outputs[0], output)
    np.testing.assert_allclose(done.accessed, read[label] + output)


def test_a_look_up_goes_by_what_it_writes() -> None:
    token = Cut("token", "token", 4, (REPLICATE, 0), (0,))
    form = Form((token,), (((0, 5000), (1, 8)), ((0, 4),)), (((0, 4), (1, 8)),))
    of = specs.Amount(0, 300, 0, [160_000, 32], [128])
    np.testing.assert_allclose(specs.work(form, 1, [1, 1], of).accessed, [150, 150])


def test_a_part_at_an_end_has_one_neighbour() -> None:
    height = Cut("height", "spatial", 8, (2, REPLICATE), (2,), halos=((1, 2), (0, 0)))
    image = ((0, 1), (1, 3), (2, 8), (3, 8))
    form = Form((height,), (image, ((0, 3),)), (image,))
    done = specs.work(form, 1, [1, 1, 1], specs.Amount(9, 2000, 0, [768, 12], [768]))
    assert done.halos[0].tolist() == [192, 96 + 192, 96]
    assert not done.halos[1].any()


def test_flat_state_is_shared_but_for_single_numbers() -> None:
    step = ((0, 8), (1, 6))
    update = Form((), (step, step, ((0, 1),)), (step,))
    assert specs.specs_of(update, FLAT) == ((FLAT, FLAT, REPLICATE), (FLAT,))
    assert specs.work_share(update, FLAT, [1] * 4).tolist() == [0.25] * 4
    count = Form((), (((0, 1),),), ((),))
    assert specs.specs_of(count, FLAT) == ((REPLICATE,), (REPLICATE,))
    assert specs.work_share(count, FLAT, [1] * 4).tolist() == [1.0] * 4
    assert specs.specs_of(count, OWNER) == ((OWNER,), (OWNER,))
