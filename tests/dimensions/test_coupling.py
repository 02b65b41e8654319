"""Batches of the packaged models: their samples can be shared out."""

from __future__ import annotations

import pytest

import loadmaster as lm
from loadmaster.readers.examples import EXAMPLES
from loadmaster.transforms.samples import joined_samples


@pytest.mark.parametrize("name", EXAMPLES)
def test_no_packaged_model_joins_its_samples(name):
    # In one of them experts of limited capacity take their tokens by a top-k along the batch.
    assert joined_samples(lm.read(f"example:{name}")) == ""
