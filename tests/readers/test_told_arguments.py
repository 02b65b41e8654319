"""What readers tell of a call: tensors by op, plain values as they are, no data, no objects."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmaster.model import arguments
from loadmaster.readers.shared.arguments import told


class Tensor:
    """A framework's tensor."""

    def __init__(self, op: int) -> None:
        self.op = op


def op_of(value: object) -> int | None:
    return value.op if isinstance(value, Tensor) else None


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (Tensor(3), {"op": 3}),
        ([Tensor(3), None], [{"op": 3}, None]),
        ((1, (2.5, True)), [1, [2.5, True]]),
        (range(3), [0, 1, 2]),
        (np.int32(4), 4),
        (np.float32(0.5), 0.5),
        (np.bool_(True), True),
        (np.str_("same"), "same"),
        (float("-inf"), "-inf"),
        (float("nan"), "nan"),
        (2**63, 2**63),
        (2**64, None),
        (list(range(64)), list(range(64))),
        (list(range(65)), None),
        ([[0] * 65, 1], [None, 1]),
        ([Tensor(i) for i in range(99)], [{"op": i} for i in range(99)]),
        ("ij,jk->ik", "ij,jk->ik"),
        ("x" * 257, None),
        (b"bytes", None),
        (object(), None),
        ({"a": 1}, None),
        (type("dtype", (), {"__str__": lambda self: "torch.float32"})(), "torch.float32"),
    ],
)
def test_a_value_is_told(value, wanted):
    (positional,) = told([value], {}, op_of)
    assert positional == [wanted]
    assert type(positional[0]) is type(wanted)
    assert told([], {"key": value}, op_of) == [[], {"key": wanted}]


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.binary() | st.complex_numbers()
    | st.text(st.characters(codec="utf-8")) | st.integers(0, 4).map(Tensor),
    lambda inner: st.lists(inner) | st.tuples(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)  # fmt: skip


@given(st.lists(values, max_size=4), st.dictionaries(st.text(st.characters(codec="utf-8")), values))
def test_whatever_is_told_stands_in_a_column(positional, keywords):
    call = told(positional, keywords, op_of)
    assert arguments.checked([call] + [None] * 4, list("abcde")) == [call] + [None] * 4


def test_lists_within_lists_without_end_are_told_as_none():
    value: list = []
    for _ in range(50):
        value = [value]
    call = told([value], {}, op_of)
    assert arguments.checked([call], ["a"]) == [call]
