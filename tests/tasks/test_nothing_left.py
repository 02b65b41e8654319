"""A reserve that leaves no memory: every method and ``fit`` say so, in one line."""

from __future__ import annotations

import pytest
from strategies import graph_of, ms_mesh

import loadmaster as lm
from loadmaster.base.errors import InfeasibleError
from loadmaster.cli import main

NOTHING = lm.Constraints(reserve=100)
GRAPH = graph_of({"a": 1.0, "b": 2.0}, [("a", "b", 10)], param_bytes=[10, 10])


def test_fit_says_that_nothing_is_left():
    found = lm.fit(GRAPH, ms_mesh(2, memory=100), constraints=NOTHING)
    assert not found.fits
    assert found.remedies[0].text == "memory: 20 B (20 bytes) more on every device"


@pytest.mark.parametrize("method", ["auto", "layers", "ilp", "heft", "metis", "single", "m-sct"])
def test_methods_say_that_nothing_is_left(method):
    with pytest.raises(InfeasibleError, match=r"reserve \*=100 B"):
        lm.place(GRAPH, ms_mesh(2, memory=100), method, constraints=NOTHING)


def test_the_command_line_says_that_nothing_is_left(capsys):
    asked = ["example:lenet", "--cluster", "2xV100-NVLink", "--reserve", "16GiB"]
    assert main(["fit", *asked]) == 3
    assert "no placement that fits can be found" in capsys.readouterr().out
    assert main(["place", *asked]) == 3
    assert "Traceback" not in capsys.readouterr().err
