"""The frameworks that files of this folder need: a skipped test for each that is not installed."""

from __future__ import annotations

import pytest
from frameworks import FRAMEWORKS, absent, files


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_files_that_need(framework):
    needing = files(framework)
    assert needing
    if framework in absent():
        pytest.skip(f"{len(needing)} files of tests/live need {framework}")
