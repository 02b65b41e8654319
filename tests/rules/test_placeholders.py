"""Constraints on parameters, buffers and inputs: they hold, or are refused with the reason."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rejudge import Asked, Meaning
from strategies import graph_of

import loadmaster as lm
from loadmaster.base.errors import InputError
from loadmaster.strategies import METHODS

#: A CPU and a GPU that is faster at everything.
MIXED = lm.Cluster(
    [lm.Device("cpu", "cpu", "1GiB"), lm.Device("gpu", "gpu", "1GiB")],
    [lm.Mesh(("cpu", "gpu"), ("cpu", "gpu"), 1e12)],
)
PAIR = lm.Cluster.mesh(2, memory="1GiB", bandwidth=1e9)
FAST = ("auto", "heft", "etf", "m-topo", "celeritas", "single", "layers")


def model(device_types: tuple[str, ...] = ("",) * 7) -> lm.OpGraph:
    """Two modules, ``e`` and ``m``. Nobody reads the buffers ``m.unused`` and ``m.sub.unused``."""
    names = ["e.w", "e.op", "m.w", "m.op", "m.sub.op", "m.unused", "m.sub.unused"]
    return graph_of(
        dict.fromkeys(names, 1.0) | dict.fromkeys((n for n in names if "op" not in n), 0.0),
        [("e.w", "e.op", 8), ("e.op", "m.op", 8), ("m.w", "m.op", 8), ("m.op", "m.sub.op", 8)],
        kind=["parameter", "op", "parameter", "op", "op", "buffer", "buffer"],
        module=["e", "e", "m", "m", "m.sub", "m", "m.sub"],
        param_bytes=[8, 0, 8, 0, 0, 2**20, 2**20],
        device_types=list(device_types),
    )


def where(plan: lm.Plan) -> dict[str, str]:
    return {name: plan.device(name) for name in plan.graph.names}


def test_what_nobody_reads_is_with_its_module():
    plan = lm.place(model(), PAIR, "heft", constraints=lm.Constraints(pin={"e": 0, "m": 1}))
    assert where(plan) == {n: "gpu0" if n.startswith("e") else "gpu1" for n in plan.graph.names}
    assert plan.memory.peak[1] >= 2**21
    assert lm.check(plan).ok


@pytest.mark.parametrize("method", FAST)
def test_a_pin_holds_for_buffers_that_nobody_reads(method):
    assert method in METHODS
    asked = lm.Constraints(pin={"e.op": "gpu0", "m.*": "gpu1"})
    if method == "single":
        asked = lm.Constraints(pin={"*": "gpu1"})
    found = where(lm.place(model(), PAIR, method, constraints=asked))
    assert {found[name] for name in found if name.startswith("m")} == {"gpu1"}


def test_a_pin_of_a_buffer_alone_moves_what_it_is_with():
    found = where(lm.place(model(), PAIR, "heft", constraints=lm.Constraints(pin={"m.unused": 1})))
    assert found["m.unused"] == found["m.op"] == "gpu1"
    asked = lm.Constraints(pin={"m.op": 0, "m.unused": 1})
    with pytest.raises(InputError, match=r"pin m\.op=0 and pin m\.unused=1 contradict each other"):
        lm.place(model(), PAIR, "heft", constraints=asked)


def test_a_module_is_whole_with_the_buffers_that_nobody_reads():
    asked = lm.Constraints(no_split=["m"], pin={"e": 0, "m.op": 1})
    found = where(lm.place(model(), PAIR, "heft", constraints=asked))
    assert {found[name] for name in found if name.startswith("m")} == {"gpu1"}


def held_elsewhere(label: str = "") -> lm.OpGraph:
    """The parameter ``m.w`` of module ``m`` is at home in module ``e``: there it is read first, or
    ``label`` holds it there.
    """
    readers = [2] if label else [1, 2]
    columns = {
        "name": ["m.w", "e.op", "m.op"],
        "kind": ["parameter", "op", "op"],
        "module": ["m", "e", "m"],
        "colocation": [label, label, ""],
        "param_bytes": [6, 6, 12],
        "time": {"*": [0.0, 1.0, 1.0]},
    }
    table = {"src": [0] * len(readers), "dst": readers, "tensor": [0] * len(readers)}
    return lm.OpGraph(columns, table | {"bytes": [6] * len(readers)}, name="held")


@pytest.mark.parametrize("label", ["", "tied"])
def test_a_module_is_whole_with_a_parameter_whose_home_is_in_another(label):
    graph, asked = held_elsewhere(label), lm.Constraints(no_split=["e", "m"])
    for memory in (23, 24):
        cluster = lm.Cluster.mesh(2, memory=memory, bandwidth=1e9)
        obeying = Asked(Meaning(graph), cluster, asked)
        assert obeying.placements == [[0, 0, 0], [1, 1, 1]]
        assert "not where its set is" in obeying.broken([0, 0, 1])
    plan = lm.place(graph, cluster, "heft", constraints=asked)
    assert len(set(where(plan).values())) == 1
    with pytest.raises(lm.InfeasibleError, match=r"proved: op .* needs 24 B at once"):
        lm.place(graph, lm.Cluster.mesh(2, memory=23, bandwidth=1e9), "heft", constraints=asked)


@pytest.mark.parametrize("label", ["", "tied"])
def test_pins_of_two_modules_that_share_a_parameter_are_refused_if_they_differ(label):
    asked = lm.Constraints(pin={"e": 0, "m": 1})
    with pytest.raises(InputError, match="pin e=0 and pin m=1 contradict each other"):
        lm.place(held_elsewhere(label), PAIR, "heft", constraints=asked)


def test_a_plan_says_when_a_buffer_is_not_where_it_should_be():
    plan = lm.place(model(), PAIR, "single")
    other = "gpu1" if plan.device("m.unused") == "gpu0" else "gpu0"
    checked = lm.check(plan, constraints=lm.Constraints(pin={"m.unused": other}))
    assert not checked.ok
    assert f"pin m.unused={other}" in str(checked)


def test_a_pinned_module_is_whole_for_a_device_map():
    asked = lm.Constraints(pin={"e": 0, "m": 1})
    plan = lm.place(model(), PAIR, "heft", constraints=asked)
    assert lm.writers.device_map(plan) == {"e": 0, "m": 1}


@pytest.mark.parametrize("method", FAST)
def test_device_types_of_a_parameter_hold(method):
    allowed = ("cpu", "", "", "", "", "", "cpu") if method != "single" else ("cpu",) + ("",) * 6
    plan = lm.place(model(allowed), MIXED, method)
    found = where(plan)
    assert found["e.w"] == found["e.op"] == "cpu"
    if method != "single":
        assert found["m.sub.unused"] == "cpu"


def test_device_types_that_leave_no_device_are_refused():
    graph = model(("cpu", "gpu", "", "", "", "", ""))
    with pytest.raises(InputError, match=r'"e\.w" and "e\.op" must share a device'):
        lm.place(graph, MIXED, "heft")


def test_device_types_of_a_parameter_that_leave_a_whole_module_no_device_are_refused():
    graph = model(("", "", "cpu", "", "gpu", "", ""))
    with pytest.raises(InputError, match=r"'cpu' of 'm\.op' .* contradict .* no_split of 'm'"):
        lm.place(graph, MIXED, "metis", constraints=lm.Constraints(no_split=["m"]))


@given(st.lists(st.sampled_from(["", "cpu", "gpu"]), min_size=7, max_size=7))
def test_device_types_hold_for_every_op_or_are_refused(allowed):
    graph = model(tuple(allowed))
    plan, refused = None, ""
    try:
        plan = lm.place(graph, MIXED, "heft")
    except InputError as error:
        refused = str(error)
    if plan is None:
        assert "must share a device" in refused
        return
    for name, device_type in zip(graph.names, allowed, strict=True):
        assert device_type in ("", plan.device(name)), name
