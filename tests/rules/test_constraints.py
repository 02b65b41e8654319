"""Constraints: every method obeys them all, plans keep them, and contradictions are named."""

from __future__ import annotations

import fnmatch
import itertools
import json
import re
import time
import warnings

import numpy as np
import pytest
from folders import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import brief, clusters, graph_of, ms_mesh, op_graphs

import loadmaster as lm
from loadmaster.base.errors import InfeasibleError, InputError
from loadmaster.cli import main
from loadmaster.judge.assignment import Assignment
from loadmaster.judge.problem import Problem
from loadmaster.rules.binding import bind
from loadmaster.rules.constraints import matcher, selected
from loadmaster.rules.stages import Stages, knots
from loadmaster.strategies import METHODS
from loadmaster.strategies.candidate import judged
from loadmaster.strategies.contiguous import contiguous, cut

PCIE = lm.Cluster.preset("4xV100-PCIe")


def problem_of(graph: lm.OpGraph, cluster: lm.Cluster) -> Problem:
    return Problem.make(graph, cluster, lm.costs.estimate(graph, cluster))


def tried(call):
    """What a call gives, and None; or None, and what the InputError says that it raises."""
    try:
        return call(), None
    except InputError as error:
        return None, str(error)


def running(graph: lm.OpGraph) -> list[int]:
    return graph.reduced.op_of.tolist()


def replica(plan: lm.Plan, i: int) -> int:
    """The replica that an op is in, or the device of the mesh whose parts it is among; what is done
    once stays with the first.
    """
    rank = plan.program.rank
    return max(int(plan.program.replica[i]), int(rank[i]), 0)


def backwards(plan: lm.Plan) -> list[tuple[str, str]]:
    """Edges of a plan that run against its stages."""
    graph, devices = plan.program.graph, plan.running_devices
    runs = set(running(graph))
    bad = []
    for s, d in zip(graph.src.tolist(), graph.dst.tolist(), strict=True):
        if not {s, d} <= runs:
            continue
        forward = graph.phases[d] in ("", "f") and devices[s] > devices[d]
        backward = graph.phases[s] == graph.phases[d] == "b" and devices[s] < devices[d]
        if forward or backward:
            bad.append((graph.names[s], graph.names[d]))
    return bad


# -- every method obeys ------------------------------------------------------------------------

LENET = lm.Constraints(
    pin={"convolution*": "gpu1", "m.9": ["gpu2", 3]},
    no_split=["m.7"],
    reserve={"gpu0": "15GiB", "*": "1GiB"},
    kinds={"gpu3": ["aten.*mm*", "aten.add*"]},
)


def check_lenet(plan: lm.Plan) -> None:
    program, graph = plan.program, plan.program.graph
    whole: dict[int, set[int]] = {}
    for i in running(graph):
        d, module = int(plan.running_devices[i]), graph.modules[i]
        # What sends a result from device to device is on all of them.
        if program.source.names[program.serves[i]].startswith("convolution") and not program.own[i]:
            assert d == 1
        if module == "m.9" or module.startswith("optim.m.9"):
            assert d in (2, 3)
        if (module == "m.7" or module.startswith("optim.m.7")) and not program.own[i]:
            whole.setdefault(replica(plan, i), set()).add(d)
        if d == 3 and graph.kinds[i].startswith("aten"):
            kinds = ("aten.*mm*", "aten.add*")
            assert any(fnmatch.fnmatchcase(graph.kinds[i], kind) for kind in kinds)
    assert all(len(used) == 1 for used in whole.values())
    room = [m - 2**30 for m in plan.cluster.memory]
    room[0] = plan.cluster.memory[0] - 15 * 2**30
    assert (plan.memory.peak <= np.array(room)).all()


@pytest.mark.parametrize("in_stages", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_obeys_all_of_them_at_once(lenet, method, in_stages):
    asked = LENET.merged(lm.Constraints(contiguous=in_stages))
    if method == "single":
        with pytest.raises(InfeasibleError, match=r"pins rule out a single device.*pin conv"):
            lm.place(lenet, PCIE, method, constraints=asked)
        return
    plan = lm.place(lenet, PCIE, method, constraints=asked, **brief(method))
    assert plan.fits
    check_lenet(plan)
    assert plan.constraints == asked
    assert plan.binding.broken(plan.assignment.devices, plan.memory.peak) == []
    assert not in_stages or backwards(plan) == []
    assert {t.name for t in plan.cluster.types} == {t.name for t in PCIE.types}


@pytest.mark.parametrize("method", ["celeritas", "m-etf", "layers", "data-parallel"])
def test_bert_with_whole_layers_in_contiguous_stages(method):
    graph = lm.read("example:bert-large")
    asked = lm.Constraints(
        pin={"*embeddings": 0, r"re:.*\.layer\.2[01]": "gpu2,gpu3"},
        no_split=["*.layer.*"],
        reserve="2GiB",
        contiguous=True,
    )
    plan = lm.place(graph, PCIE, method, constraints=asked)
    of_layer: dict[tuple[str, int], set[int]] = {}
    ran = plan.program.graph
    for i in running(ran):
        words = ran.modules[i].split(".")
        d = int(plan.running_devices[i])
        if "layer" in words:
            layer = words[words.index("layer") + 1]
            of_layer.setdefault((layer, replica(plan, i)), set()).add(d)
            assert layer not in ("20", "21") or d in (2, 3)
        elif "embeddings" in words:
            assert d == 0
    if plan.program.is_plain:
        assert len(of_layer) == 24
        assert all(len(used) == 1 for used in of_layer.values())
    assert backwards(plan) == []
    assert (plan.memory.peak <= 30 * 2**30).all()


@given(data=st.data())
@settings(max_examples=30)
def test_a_constrained_problem_has_the_schedules_of_the_users_own(data):
    """Placeholders keep their homes, whatever sets are joined and types split."""
    graph, cluster = data.draw(op_graphs()), data.draw(clusters())
    given_ = problem_of(graph, cluster)
    runs = running(graph)
    pins = {
        graph.names[data.draw(st.sampled_from(runs))]: data.draw(
            st.lists(st.integers(0, cluster.n_devices - 1), min_size=1, unique=True)
        )
        for _ in range(data.draw(st.integers(0, 2)))
    }
    modules = data.draw(
        st.lists(st.sampled_from(["", "a", "b"]), min_size=graph.n_ops, max_size=graph.n_ops)
    )
    given_ = problem_of(graph.with_columns({"module": modules}), cluster)
    whole = [m for m in "ab" if any(modules[i] == m for i in runs)]
    binding, refused = tried(lambda: bind(given_, lm.Constraints(pin=pins, no_split=whole)))
    if binding is None:
        assert "contradict each other" in refused
        return
    problem = binding.problem
    assert problem.reduced.op_of.tolist() == given_.reduced.op_of.tolist()
    of_set = data.draw(st.lists(st.integers(0, 7), min_size=graph.n_ops, max_size=graph.n_ops))
    free = [np.flatnonzero(row) for row in binding.allowed]
    devices = np.array(
        [f[of_set[s] % len(f)] for f, s in zip(free, binding.sets, strict=True)], dtype=np.int32
    )
    order = np.arange(len(devices), dtype=np.int32)
    a, b = (p.simulate(devices, order) for p in (problem, given_))
    assert a.makespan == b.makespan
    assert a.start.tolist() == b.start.tolist()
    assert a.peak.tolist() == b.peak.tolist()
    assert problem.graph.colocation.tolist() == _numbered(problem.graph.colocation)
    same = problem.graph.colocation
    for i in range(len(same)):
        assert (binding.sets == binding.sets[i]).tolist() == (same == same[i]).tolist()


def _numbered(sets: np.ndarray) -> list[int]:
    seen = {s: i for i, s in enumerate(dict.fromkeys(sets.tolist()))}
    return [seen[s] for s in sets.tolist()]


@given(data=st.data())
@settings(max_examples=30)
def test_any_placement_becomes_contiguous(data):
    graph = data.draw(op_graphs())
    cluster = data.draw(clusters())
    phases = data.draw(
        st.lists(st.sampled_from(["f", "b", "o", ""]), min_size=graph.n_ops, max_size=graph.n_ops)
    )
    graph = graph.with_columns({"phase": phases})
    asked = lm.Constraints(contiguous=True)
    seed = data.draw(st.integers(0, 9))
    plan = lm.place(graph, cluster, "random", seed=seed, constraints=asked)
    assert backwards(plan) == []
    assert Stages.of(plan.problem).hold(plan.problem, plan.assignment.devices)


# -- by hand -----------------------------------------------------------------------------------

CHAIN = graph_of(
    {"a": 4, "b": 4, "c": 4, "d": 4},
    [("a", "b", 1), ("b", "c", 1), ("c", "d", 1)],
    module=["m.0", "m.0", "m.1", "m.1"],
    kind=["x", "y", "x", "y"],
)


def devices_of(plan: lm.Plan) -> list[int]:
    return plan.devices.tolist()


def test_pins_reserves_kinds_and_modules_by_hand():
    def placed(**asked) -> list[int]:
        return devices_of(lm.place(CHAIN, ms_mesh(2), "heft", constraints=lm.Constraints(**asked)))

    assert placed() == [0, 0, 0, 0]
    assert placed(pin={"[bd]": 1})[1::2] == [1, 1]
    assert placed(pin={"re:a|b": "gpu1", "m.1": "gpu0"}) == [1, 1, 0, 0]
    assert placed(kinds={"gpu0": "x", "gpu1": "y"}) == [0, 1, 0, 1]
    assert placed(pin={"a": 0, "c": 1}, no_split=["m.*"]) == [0, 0, 1, 1]
    assert placed(pin={"*": "gp?1"}) == [1, 1, 1, 1]


def test_a_reserve_is_memory_that_is_not_there():
    graph = graph_of({"a": 1, "b": 1}, param_bytes=[60, 60])
    cluster = ms_mesh(2, memory=150)
    assert devices_of(lm.place(graph, cluster, "order-place")) == [0, 0]
    asked = lm.Constraints(reserve={"gpu0": 50})
    assert sorted(devices_of(lm.place(graph, cluster, "order-place", constraints=asked))) in (
        [0, 1],
        [1, 1],
    )
    with pytest.raises(InfeasibleError, match=r"Constraints: reserve \*=100 B") as caught:
        lm.place(graph, cluster, "order-place", constraints=lm.Constraints(reserve=100))
    assert caught.value.shortfall
    with pytest.raises(InputError, match=r"reserve of gpu0: 151 B .151 bytes. are more than"):
        lm.place(graph, cluster, constraints=lm.Constraints(reserve=151))


@pytest.mark.parametrize(
    ("given_", "nearest"),
    [
        ([0, 0, 0, 1], [0, 0, 0, 1]),
        ([1, 0, 0, 1], [0, 0, 0, 1]),  # a's 1 ms moves
        ([0, 1, 0, 1], [0, 1, 1, 1]),  # c's 1 ms, not b's 5
        ([1, 1, 1, 0], [1, 1, 1, 1]),  # d's 3 ms, not the 7 of the others
    ],
)
def test_the_nearest_contiguous_placement_by_hand(given_, nearest):
    edges = [("a", "b", 0), ("b", "c", 0), ("c", "d", 0)]
    problem = problem_of(graph_of({"a": 1, "b": 5, "c": 1, "d": 3}, edges), ms_mesh(2))
    order = np.arange(4, dtype=np.int32)
    before = judged(problem, Assignment(np.array(given_, dtype=np.int32), order))
    assert contiguous(before).assignment.devices.tolist() == nearest


@given(data=st.data())
@settings(max_examples=75)
def test_the_cut_is_the_best_of_all(data):
    """Beside all ways to give knots of one order stages that never fall."""
    n, k = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 3))
    numbers = st.integers(0, 9)

    def matrix(of) -> np.ndarray:
        return np.array(data.draw(st.lists(of, min_size=n * k, max_size=n * k))).reshape(n, k)

    cost, allowed = matrix(numbers), matrix(st.sampled_from([True, True, False]))
    held = np.array(data.draw(st.lists(numbers, min_size=n, max_size=n)), dtype=np.float64)
    capacity = np.array(
        data.draw(st.lists(st.integers(0, 30), min_size=k, max_size=k)), dtype=np.float64
    )
    none = np.empty(0, dtype=np.int64)
    order = np.array(data.draw(st.permutations(range(n))), dtype=np.int64)
    found = cut(Stages(none, none, np.arange(n), allowed, order), cost, held, capacity)

    def total(stage) -> int | None:
        fits = all(held[stage == d].sum() <= capacity[d] for d in range(k))
        may = allowed[np.arange(n), stage].all()
        return int(cost[np.arange(n), stage].sum()) if fits and may else None

    every = []
    for rising in itertools.combinations_with_replacement(range(k), n):
        stage = np.empty(n, dtype=np.int64)
        stage[order] = rising
        every.append(total(stage))
    possible = [c for c in every if c is not None]
    if found is None:
        assert possible == []
    else:
        assert (np.diff(found[order]) >= 0).all()
        assert total(found) == min(possible)


def test_a_backward_pass_returns_through_the_stages():
    graph = graph_of(
        {"f0": 4, "f1": 4, "b1": 4, "b0": 4, "o0": 1},
        [("f0", "f1", 1), ("f1", "b1", 1), ("b1", "b0", 1), ("f0", "b0", 1), ("b0", "o0", 1)],
        phase=["f", "f", "b", "b", "o"],
    )
    asked = lm.Constraints(pin={"f0": 0, "f1": 1, "b0": 0}, contiguous=True)
    plan = lm.place(graph, ms_mesh(2), "random", constraints=asked)
    assert devices_of(plan)[:2] == [0, 1]
    assert devices_of(plan)[3] == 0
    assert backwards(plan) == []


def test_knots_are_numbered_along_their_edges():
    tails, heads = np.array([0, 1, 2, 3, 4, 3]), np.array([1, 2, 0, 4, 3, 0])
    found = knots(6, tails, heads)
    assert found[0] == found[1] == found[2]
    assert found[3] == found[4] < found[0]
    assert (found[tails] <= found[heads]).all()
    assert sorted(set(found.tolist())) == [0, 1, 2]


# -- transformed graphs --------------------------------------------------------------------------


def test_split_ops_and_replicas_keep_the_pins_of_what_they_are_made_from(lenet):
    asked = lm.Constraints(pin={"convolution_1": [1, 2]})
    plan = lm.place(lenet, PCIE, "data-parallel", constraints=asked)
    parts = plan.parts("convolution_1")
    assert len(parts) == 4
    assert {part.device for part in parts} <= {"gpu1", "gpu2"}
    assert set(plan.program.graph.device_types) <= {"", PCIE.types[0].name}
    assert plan.graph is lenet
    for part in plan.explain("convolution_1").parts:
        assert part.constraint == "constraint: pin convolution_1=1,2"


def test_a_module_is_whole_in_every_replica(lenet):
    asked = lm.Constraints(no_split=["m.7"])
    plan = lm.place(lenet, PCIE, "data-parallel", constraints=asked)
    assert plan.binding.broken(plan.assignment.devices, plan.memory.peak) == []
    free = lm.place(lenet, PCIE, "data-parallel")
    assert not lm.check(free, constraints=asked).ok or free.makespan == plan.makespan
    sets = [ops for _, ops in plan.binding.modules]
    assert len(sets) == 4
    astray = plan.assignment.devices.copy()
    astray[sets[1][0]] = (astray[sets[1][0]] + 1) % 4
    assert any("m.7" in said for said in plan.binding.broken(astray, plan.memory.peak))


def test_ops_that_are_split_stay_where_they_are_pinned():
    asked = lm.Constraints(pin={"convolution*": ["gpu1", "gpu2"]}, kinds={"gpu3": "aten.*"})
    plan = lm.place(lm.read("example:vgg19"), PCIE, "os-dpos", constraints=asked, costs="roofline")
    assert plan.splits
    program = plan.program
    parts = np.flatnonzero(program.parts > 1)
    assert len(parts)
    for i in parts.tolist():
        if program.source.names[program.serves[i]].startswith("convolution"):
            assert plan.running_devices[i] in (1, 2)
    assert plan.binding.broken(plan.assignment.devices, plan.memory.peak) == []


# -- the plan --------------------------------------------------------------------------------------


def test_a_plan_is_saved_with_its_constraints(lenet, tmp_path):
    plan = lm.place(lenet, PCIE, "heft", constraints=LENET)
    plan.save(tmp_path / "plan.json")
    loaded = lm.Plan.load(tmp_path / "plan.json", lenet, PCIE)
    assert loaded.constraints == plan.constraints == LENET
    assert loaded.makespan == plan.makespan
    assert "constraints  pin convolution*=gpu1" in loaded.summary()
    assert loaded.on(lm.Cluster.preset("8xH100-NVLink")).constraints.is_empty
    plain = lm.place(lenet, PCIE, "heft")
    assert "constraints" not in plain.to_document()
    document = json.loads((tmp_path / "plan.json").read_text())
    document["constraints"] = {"pins": 1}
    (tmp_path / "bad.json").write_text(json.dumps(document))
    with pytest.raises(InputError, match=r"bad.json: no constraint is named 'pins'"):
        lm.Plan.load(tmp_path / "bad.json")


def test_explain_says_which_constraint_bound_an_op(lenet):
    plan = lm.place(lenet, PCIE, "heft", constraints=LENET)
    pinned = plan.explain("convolution")
    assert pinned.constraint == "constraint: pin convolution*=gpu1; kinds gpu3=aten.*mm*,aten.add*"
    assert [a.device for a in pinned.alternatives if a.makespan is not None] == []
    whole = plan.explain("addmm")
    assert "no_split keeps 'm.7' whole" in whole.constraint
    assert "mm_2" in whole.goes_with or "mm_3" in whole.goes_with


def test_explain_keeps_to_the_stages():
    asked = lm.Constraints(pin={"a": 1, "d": 1}, contiguous=True)
    plan = lm.place(CHAIN, ms_mesh(3), "random", constraints=asked)
    assert devices_of(plan) == [1, 1, 1, 1]
    between = plan.explain("b")
    assert [a.makespan for a in between.alternatives] == [None, None]
    assert between.constraint == "constraint: contiguous stages leave it no other device"
    last = lm.Constraints(pin={"a": 0, "b": 0, "c": 1}, contiguous=True)
    free = lm.place(CHAIN, ms_mesh(3), "random", constraints=last).explain("d")
    possible = {a.device for a in free.alternatives if a.makespan is not None} | {free.device}
    assert possible == {"gpu1", "gpu2"}


def test_what_if_plans_under_the_plans_constraints(lenet):
    plan = lm.place(lenet, PCIE, "heft", constraints=LENET)
    seen = lm.what_if(plan, scale_link=2, effort=0.02)
    for prospect in seen.prospects:
        check_lenet(prospect.plan)


def test_with_stages_auto_is_no_worse_than_the_expert_nor_than_its_start():
    graph, asked = lm.read("example:bert-large"), lm.Constraints(contiguous=True)
    layers = lm.place(graph, PCIE, "layers", constraints=asked)
    best = lm.place(graph, PCIE, "auto", effort=0.05, constraints=asked)
    assert best.makespan <= layers.makespan
    assert backwards(best) == []
    from_it = lm.place(graph, PCIE, "m-etf", warm_start=layers, constraints=asked)
    assert from_it.makespan <= layers.makespan


@pytest.mark.parametrize("method", ["heft", "mcmc", "random", "single"])
def test_no_method_is_worse_than_the_plan_it_starts_from(lenet, method):
    best = lm.place(lenet, PCIE, "auto", effort=0.02, split="none")
    plan = lm.place(lenet, PCIE, method, warm_start=best, **brief(method))
    assert plan.makespan <= best.makespan
    assert plan.notes[-1].startswith("warm start: a plan of")
    pinned = lm.Constraints(pin={"convolution*": "gpu3"})
    plan = lm.place(lenet, PCIE, method, warm_start=best, constraints=pinned, **brief(method))
    assert plan.device("convolution") == "gpu3"


@given(st.text("ab.*+?|()[]^$\\{}1,d", max_size=12), st.text("ab,1", max_size=6))
def test_a_regular_expression_means_what_it_means_in_python(pattern, name):
    try:
        matches = matcher(f"re:{pattern}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expression = re.compile(rf"(?:{pattern})\Z", re.S)
    except (lm.InputError, re.error):
        return
    assert bool(matches(name)) == bool(expression.match(name))


def test_a_pattern_takes_linear_time():
    began = time.process_time()
    for pattern in ("re:(a|a|aa)+$", "re:(a*)*b", "*a" * 40 + "b", "re:(.*)(.*)(.*)(.*)[^a]c"):
        assert not matcher(pattern)("a" * 20_000 + "!")
    assert time.process_time() - began < 5


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"pin": {"convolutoin": 0}}, ["no op or module matches 'convolutoin'", "'convolution'"]),
        ({"pin": {"convolution": 4}}, ["no device is '4'", "gpu0, gpu1", "V100-PCIe-32GB"]),
        ({"pin": {"re:(": 0}}, ["'re:(' is no regular expression", "unclosed group"]),
        ({"pin": {r"re:(a)\1": 0}}, ["is supported: backreferences are not supported"]),
        ({"pin": {"re:(?=a)a": 0}}, ["look-around", "is not supported"]),
        ({"pin": {"re:a*+": 0}}, ["a quantifier after a quantifier is not supported"]),
        ({"pin": {"re:[[a]]": 0}}, ["a set of characters in another is not supported"]),
        ({"pin": {"re:(a{999}){999}": 0}}, ["too large"]),
        ({"pin": {"a": True}}, ["pin of 'a' is True"]),
        ({"pin": "a=0"}, ["pin is 'a=0': wants a mapping"]),
        ({"no_split": ["m.17"]}, ["no module matches 'm.17'"]),
        ({"kinds": {"cpu": "x"}}, ["matches 'x'"]),
        ({"kinds": {"cpu": "aten*"}}, ["no device is 'cpu'"]),
        ({"reserve": "many"}, ["reserve of * is 'many'"]),
        ({"contiguous": 1}, ["contiguous is 1"]),
        (
            {"pin": {"convolution": 0, "conv*": 1}},
            ["pin convolution=0 and pin conv*=1 contradict", "for 'convolution'"],
        ),
        (
            {"pin": {"convolution": 0, "convolution_1": 1}, "no_split": ["m.[0-3]", "m"]},
            ["pin convolution=0 and pin convolution_1=1", "no_split of", "'m'"],
        ),
        (
            {"pin": {"addmm": 0, "mm_3": 1}, "no_split": ["m.7"]},
            ["pin addmm=0 and pin mm_3=1", "'addmm' and 'mm_3'", "no_split of 'm.7' keeps on one"],
        ),
        (
            {"pin": {"convolution": 2, "addmm": "gpu1"}, "contiguous": True},
            ["contiguous stages", "gpu1 only", "gpu2 at the earliest"],
        ),
    ],
)
def test_constraints_that_cannot_be_are_named(lenet, asked, words):
    with pytest.raises(InputError) as caught:
        lm.place(lenet, PCIE, "heft", constraints=lm.Constraints(**asked))
    for word in words:
        assert word in str(caught.value)


def test_what_is_no_constraints_is_refused(lenet):
    plan = lm.place(lenet, PCIE, "single")
    calls = (lm.place, lm.fit, lambda *_, constraints: lm.check(plan, constraints=constraints))
    for call in calls:
        with pytest.raises(InputError, match=r"constraints is {'pin': 0}: wants lm.Constraints"):
            call(lenet, PCIE, constraints={"pin": 0})


def test_a_pin_against_the_graphs_own_rules_names_both():
    graph = graph_of({"a": 1, "b": 1}, colocation=["s", "s"])
    with pytest.raises(InputError, match=r"pin a=0 and pin b=1 .* 'a' and 'b', which the graph's"):
        lm.place(graph, ms_mesh(2), constraints=lm.Constraints(pin={"a": 0, "b": 1}))
    devices = [lm.Device("cpu", "cpu", 100), lm.Device("gpu", "gpu", 100)]
    links = [lm.Link("cpu", "gpu", 1e3), lm.Link("gpu", "cpu", 1e3)]
    only = graph_of({"a": 1, "b": 1}, device_types=["gpu", ""])
    with pytest.raises(InputError, match="pin a=cpu and device_types 'gpu' of 'a' contradict"):
        lm.place(only, lm.Cluster(devices, links), constraints=lm.Constraints(pin={"a": "cpu"}))


def test_more_kinds_of_devices_than_masks_have_bits():
    graph = graph_of({f"o{i}": 1 for i in range(70)})
    links = [lm.Link(f"d{i}", f"d{(i + 1) % 70}", 1e9) for i in range(70)]
    ring = lm.Cluster([lm.Device(f"d{i}", "t", 10**6) for i in range(70)], links)
    asked = lm.Constraints(pin={f"o{i}": i for i in range(70)})
    with pytest.raises(InputError, match="tell 70 kinds of devices apart, but at most 64"):
        lm.place(graph, ring, constraints=asked)
    few = lm.Constraints(pin={f"o{i}": i for i in range(60)})
    assert devices_of(lm.place(graph, ring, "heft", constraints=few))[:60] == list(range(60))


def test_selectors_mean_indices_names_globs_and_types():
    devices = [lm.Device(n, t, 9) for n, t in (("1", "gpu"), ("0", "gpu"), ("host", "cpu"))]
    links = [lm.Link(a.name, b.name, 1.0) for a in devices for b in devices if a != b]
    cluster = lm.Cluster(devices, links)
    for selector, want in {
        "0": [False, True, False],  # a name counts before an index
        "2": [False, False, True],
        "[01]": [True, True, False],
        "cpu": [False, False, True],
        "gp*": [True, True, False],
        "*": [True, True, True],
    }.items():
        assert selected(cluster, selector).tolist() == want


# -- files and the command line ------------------------------------------------------------------

TOML = """
no_split = ["m.7"]
contiguous = true
reserve = "1GiB"

[pin]
"convolution*" = 1
"m.9" = ["gpu2", 3]

[kinds]
gpu3 = "aten.*"
"""


def test_toml_is_what_the_arguments_say(tmp_path):
    path = tmp_path / "rules.toml"
    path.write_text(TOML)
    asked = lm.Constraints.read(path)
    assert asked == lm.Constraints(
        pin={"convolution*": 1, "m.9": "gpu2, 3"},
        reserve=2**30,
        no_split=["m.7"],
        contiguous=True,
        kinds={"gpu3": ["aten.*"]},
    )
    assert lm.Constraints.from_document(asked.to_document()) == asked
    path.write_text("pin = 3")
    with pytest.raises(InputError, match=r"rules.toml: pin is 3"):
        lm.Constraints.read(path)
    path.write_text("[pin")
    with pytest.raises(InputError, match=r"rules.toml is not valid TOML"):
        lm.Constraints.read(path)


def test_the_file_that_the_page_on_formats_shows(tmp_path):
    page = (ROOT / "docs" / "formats.md").read_text()
    [block] = re.findall(r"^```toml\n(.*?)^```", page, re.M | re.S)
    path = tmp_path / "rules.toml"
    path.write_text(block)
    asked = lm.Constraints.read(path)
    plan = lm.place(lm.read("example:bert-large"), PCIE, "layers", constraints=asked)
    assert plan.binding.broken(plan.assignment.devices, plan.memory.peak) == []
    assert "no_split" in asked.to_document()


def test_the_command_line_adds_to_the_file(tmp_path, capsys):
    path = tmp_path / "rules.toml"
    path.write_text(TOML)
    arguments = ["place", "example:lenet", "--method", "heft", "--json", "--constraints", str(path)]
    own = ["--pin", "m.0=0", "--pin", "convolution*=0,1", "--reserve", "gpu0=2GiB"]
    own += ["--reserve", "512MiB", "--kinds", "gpu3=aten.*", "--no-split", "m.3"]
    assert main([*arguments, *own]) == 0
    seen = json.loads(capsys.readouterr().out)["constraints"]
    assert seen == {
        "pin": {"convolution*": ["0", "1"], "m.9": ["gpu2", "3"], "m.0": ["0"]},
        "reserve": {"*": 2**29, "gpu0": 2**31},
        "no_split": ["m.7", "m.3"],
        "contiguous": True,
        "kinds": {"gpu3": ["aten.*"]},
    }
    assert main(["place", "example:lenet", "--pin", "convolution"]) == 2
    assert "has no two sides" in capsys.readouterr().err
    words = ["--pin", "m.0=1", "--reserve", "0", "--json"]
    assert main(["compare", "example:lenet", "--methods", "heft,single", *words]) == 0
    plans = json.loads(capsys.readouterr().out)["plans"]
    assert all(plan["constraints"] == {"pin": {"m.0": ["1"]}} for plan in plans.values())
