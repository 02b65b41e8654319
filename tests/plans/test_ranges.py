"""Ranges of plans, plans that cannot be told apart, and what one observed step teaches."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

import loadmaster as lm
from loadmaster.cli import main
from loadmaster.costs.observed import Observed
from loadmaster.plans.apart import in_order
from loadmaster.plans.ranges import Errors, errors_of, is_order_sure, ranges_of
from loadmaster.plans.time_classes import ESTIMATED, seconds_by_class
from loadmaster.tasks.observe import observe

CLUSTER = lm.Cluster.preset("2xV100-NVLink")


@pytest.fixture(scope="module")
def plans():
    graph = lm.read("example:lenet")
    return {name: lm.place(graph, CLUSTER, name) for name in ("single", "data-parallel", "heft")}


def test_the_classes_of_a_chain_add_up_to_the_step(plans):
    for plan in plans.values():
        seconds = seconds_by_class(plan)
        assert sum(seconds.values()) == pytest.approx(plan.makespan)
        assert set(seconds) <= set(ESTIMATED)
    # On slow links a step waits for its all-reduces.
    slow = CLUSTER.with_link_speed(1e-3)
    waiting = lm.place(lm.read("example:lenet"), slow, "data-parallel")
    assert seconds_by_class(waiting)["collectives"] > 0.5 * waiting.makespan
    assert "collectives" not in seconds_by_class(plans["single"])


def test_ranges_are_of_estimates_on_known_gpus_alone(plans):
    graph, single = lm.read("example:lenet"), plans["single"]
    low, high = ranges_of(single).step
    assert 0 < low < high
    measured = lm.place(graph, CLUSTER, "single", costs=np.ones(graph.n_ops))
    assert ranges_of(measured) is None
    assert "range        none: times were measured" in measured.summary()
    assert json.dumps(lm.plans.summary.document(measured)["ranges"]) == "null"
    own = lm.Cluster.mesh(
        2, memory="16GiB", bandwidth=1e10, type=replace(CLUSTER.types[0], name="x")
    )
    assert ranges_of(lm.place(graph, own, "single")) is None


def drawn(rng):
    """Errors of two plans of one graph by drawn chains."""
    names = list(ESTIMATED)
    biases, spreads = (
        {n: float(v) for n, v in zip(names, rng.random(9), strict=True)} for _ in range(2)
    )
    rows = [{n: float(v) for n, v in zip(names, rng.random(9), strict=True)} for _ in range(2)]
    own = float(rng.random())
    return [Errors(row, biases, spreads, {}, sum(row.values()), own, own) for row in rows]


@pytest.mark.parametrize("seed", range(20))
def test_what_two_plans_share_tells_nothing_of_their_order(seed):
    rng = np.random.default_rng(seed)
    one, other = drawn(rng)
    assert is_order_sure(one, other) == is_order_sure(other, one)
    more = rng.random(9)
    both = [
        replace(
            e, seconds={n: s + float(m) for (n, s), m in zip(e.seconds.items(), more, strict=True)}
        )
        for e in (one, other)
    ]
    assert is_order_sure(*both) == is_order_sure(one, other)
    # Without spreads a difference above the noise is sure; one that is nothing but spread is not.
    exact = [
        replace(e, spreads=dict.fromkeys(e.spreads, 0.0), own=0.0, shared=0.0) for e in (one, other)
    ]
    assert is_order_sure(*exact)
    plain = replace(exact[0], biases=dict.fromkeys(exact[0].biases, 0.0))
    for share, is_sure in ((0.01, False), (0.05, True)):
        norms = plain.seconds["norms"] + share * plain.step
        longer = replace(plain, seconds=plain.seconds | {"norms": norms})
        assert is_order_sure(plain, longer) == is_sure
    alone = replace(one, seconds=one.seconds | {"norms": one.seconds["norms"] + 1.0})
    wild = [replace(e, spreads=dict.fromkeys(e.spreads, 1.5)) for e in (one, alone)]
    assert not is_order_sure(*wild)
    assert is_order_sure(
        *(replace(e, spreads=dict.fromkeys(e.spreads, 0.1), own=0.1, shared=0.1) for e in wild)
    )


def test_the_simplest_of_those_that_cannot_be_told_apart_is_first(plans, monkeypatch):
    names = ["heft", "data-parallel", "single"]
    unsure = "loadmaster.plans.apart.is_order_sure"
    monkeypatch.setattr(unsure, lambda *_: False)
    rows, n = in_order(names, plans.get)
    assert (rows, n) == (["single", "data-parallel", "heft"], 3)
    monkeypatch.setattr(unsure, lambda *_: True)
    rows, n = in_order(names, plans.get)
    assert rows == sorted(names, key=lambda name: plans[name].makespan)
    assert n == 1


@pytest.mark.parametrize("factor", [0.5, 1.0, 1.7, 3.0])
def test_an_observed_step_is_explained_and_narrows_ranges(plans, factor):
    graph, plan = lm.read("example:lenet"), plans["single"]
    seen = observe(plan, factor * plan.makespan)
    errors = errors_of(plan)
    wanted = math.log(factor)
    taught = sum(math.log(seen.factors[n]) * share for n, share in errors.shares.items())
    # Between what was known before and what was seen.
    assert min(errors.bias, wanted) - 1e-9 <= taught <= max(errors.bias, wanted) + 1e-9
    again = lm.place(seen.on(graph), CLUSTER, "single", costs=seen.costs(graph, CLUSTER))
    assert errors_of(again).variance < 0.8 * errors.variance
    other = lm.place(seen.on(graph), CLUSTER, "heft", costs=seen.costs(graph, CLUSTER))
    assert errors_of(other).variance < errors_of(plans["heft"]).variance
    assert other.provenance["scaled"] == 1.0


def test_by_command(plans, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plan = plans["single"]
    plan.save("plan.json")
    assert "range        step " in plan.summary()
    seen = 2.0 * plan.makespan
    learn = ["calibrate", "--plan", "plan.json", "--observed"]
    assert main([*learn, f"{seen} s", "-o", "seen.json"]) == 0
    assert "measured" in capsys.readouterr().out
    words = ["example:lenet", "--cluster", "2xV100-NVLink", "--method", "single"]
    assert main(["place", *words, "--costs", "seen.json", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["provenance"]["scaled"] == 1.0
    assert document["makespan"] > plan.makespan
    low, high = document["ranges"]["step"]
    assert low < 1.2 * seen
    assert high > seen / 1.2
    assert main([*learn, f"{256 / seen} samples/s", "-o", "rate.json"]) == 0
    one, other = (lm.Observed.load(name) for name in ("seen.json", "rate.json"))
    assert one.factors == pytest.approx(other.factors)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--observed", "1ms"], "go together"),
        (["--observed", "-1", "--plan", "plan.json"], "observed"),
        (["--observed", "5 apples", "--plan", "plan.json"], "observed"),
        (["--observed", "9 tokens/s", "--plan", "plan.json"], "how many tokens"),
        (["--observed", "1ms", "--plan", "plan.json", "--costs", "plan.json"], "leave out --costs"),
    ],
)
def test_what_cannot_be_observed_is_refused(words, says, plans, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plans["single"].save("plan.json")
    assert main(["calibrate", *words]) == 2
    assert says in capsys.readouterr().err
    with pytest.raises(lm.InputError, match="is not an observed step"):
        lm.Observed.load("plan.json")


@pytest.mark.parametrize(
    "said",
    [3, {}, {"known": 1, "factors": "x"}, {"factors": {"norms": -1, "<b>": 2, "launches": "y"}}],
)
def test_a_graph_that_says_nonsense_of_what_was_observed_has_ranges_still(said):
    graph = lm.read("example:lenet").with_columns({}, meta={"observed": said})
    low, high = ranges_of(lm.place(graph, CLUSTER, "single")).step
    assert 0 < low < high


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("known", {"norms": -1}, "known of norms"),
        ("factors", {"norms": 0}, "factor of norms"),
        ("predicted", "long", "predicted"),
    ],
)
def test_a_file_of_an_observed_step_with_a_figure_out_of_range_is_refused(
    plans, tmp_path, name, value, words
):
    document = observe(plans["single"], 1e-3).to_document() | {name: value}
    (tmp_path / "seen.json").write_text(json.dumps(document))
    with pytest.raises(lm.InputError, match=words):
        Observed.load(tmp_path / "seen.json")
