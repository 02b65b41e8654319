"""Results print as text for people, in notebooks too, and never as the columns they are made of."""

from __future__ import annotations

import dataclasses

import pytest

import loadmaster as lm

#: Public types that come out of calls, by what makes one.
GRAPH, CLUSTER = "example:lenet", "2xV100-NVLink"
RESULTS = {
    "Advice": lambda: lm.advise(GRAPH, CLUSTER, targets=["ddp"]),
    "Bound": lambda: lm.lower_bound(lm.read(GRAPH), lm.Cluster.preset(CLUSTER)),
    "Check": lambda: lm.check(planned(), max_step=1.0),
    "Coarse": lambda: lm.coarsen(lm.read(GRAPH), groups=10),
    "Comparison": lambda: lm.compare(GRAPH, CLUSTER, ["single", "heft"]),
    "Costs": lambda: lm.costs.estimate(lm.read(GRAPH), lm.Cluster.preset(CLUSTER)),
    "Difference": lambda: planned().diff(lm.place(GRAPH, CLUSTER, "single")),
    "Explanation": lambda: planned().explain(40),
    "Fit": lambda: lm.fit(GRAPH, CLUSTER),
    "Measured": lambda: lm.emulate(planned(), 2, seconds=0.02),
    "Plan": lambda: planned(),
    "Report": lambda: lm.coarsen(lm.read(GRAPH), groups=10).report,
    "Simulation": lambda: planned().schedule,
    "WhatIf": lambda: lm.what_if(planned(), scale_link=2.0),
}


def planned() -> lm.Plan:
    return lm.place(GRAPH, CLUSTER, "heft")


@pytest.mark.parametrize("name", RESULTS)
def test_results_print_as_text(name):
    found = RESULTS[name]()
    assert type(found).__name__ == name
    text, page, line = str(found), found._repr_html_(), repr(found)
    assert page.startswith("<pre>")
    assert text.splitlines()[0][:20] in page or "&" in page
    assert 2 <= len(text.splitlines()) < 60
    assert len(text) < 4000
    for raw in ("array(", "object at 0x", "dtype="):
        assert raw not in text
        assert raw not in line
    assert line.count("\n") == 0
    assert len(line) < 300
    if dataclasses.is_dataclass(found):
        assert f"{dataclasses.fields(found)[0].name}=" not in line
