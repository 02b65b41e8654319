"""The search, and the method that lives on it."""

from dataclasses import replace
from itertools import pairwise
from random import Random

import numpy as np
import pytest
from conftest import example
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import clusters, graph_of, ms_mesh, op_graphs, placements, v100_mesh
from trained import linears

import loadmaster as lm
from loadmaster import fast
from loadmaster.base.effort import Budget
from loadmaster.base.errors import InfeasibleError, InputError
from loadmaster.costs.roofline import roofline_costs
from loadmaster.judge.assignment import Assignment
from loadmaster.judge.bounds import WHOLE_OPS
from loadmaster.judge.objective import WORTH
from loadmaster.judge.problem import Problem
from loadmaster.strategies import registry
from loadmaster.strategies.auto import auto, shards
from loadmaster.strategies.auto.gathering import gathered
from loadmaster.strategies.auto.parts import parts
from loadmaster.strategies.auto.planting import Planting
from loadmaster.strategies.auto.refinement import Entrant, Refinement
from loadmaster.strategies.auto.replicas import replicas
from loadmaster.strategies.auto.run import Run
from loadmaster.strategies.auto.search import Search
from loadmaster.strategies.auto.seeds import SEEDS, Seed, worth_trying
from loadmaster.strategies.auto.tuning import TUNING
from loadmaster.strategies.candidate import judged
from loadmaster.strategies.deciders import deciders
from loadmaster.strategies.kinds import REQUESTS, Kind
from loadmaster.strategies.lists import heft, noised
from loadmaster.strategies.simple import single
from loadmaster.strategies.simple.assigned import on_allowed

#: What auto tries as it is. Its m-sct has favourites without a linear program.
METHODS = ("single", *(name for name in registry.METHODS if name in {*SEEDS} - {"m-sct"}))


def diamonds(n):
    """Independent pairs of ops of equal time."""
    edges = [(2 * i, 2 * i + 1) for i in range(n)]
    src, dst = np.array(edges).T
    graph = fast.Graph(2 * n, src, dst, tensor_bytes=np.full(2 * n, 1000, dtype=np.uint64))
    both = [("a", "b", 1e9, 1e-3, []), ("b", "a", 1e9, 1e-3, [])]
    cluster = fast.Cluster([("a", "gpu", 10**9), ("b", "gpu", 10**9)], both)
    return graph, cluster, np.ones(2 * n)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_search_depends_on_chains_not_on_threads(threads):
    graph, cluster, time = diamonds(5)
    start = np.zeros(10, dtype=np.int32)
    args = fast.Problem(graph, cluster, time), (start, fast.m_topo(graph)), fast.Stop(moves=20_000)
    one = fast.search(*args, chains=3, seed=5)
    other = fast.search(*args, chains=3, seed=5, threads=threads)
    assert one[2] == other[2] == 5.0
    assert one[3] == other[3] == 60_000
    assert np.array_equal(one[0], other[0])
    assert np.array_equal(one[1], other[1])
    placed = fast.schedule_placed(fast.Problem(graph, cluster, time), one[1], one[0])
    assert placed[1].max() == one[2]


def test_the_search_stops_on_time_and_says_what_is_wrong():
    graph, cluster, time = diamonds(20)
    start, order = np.zeros(40, dtype=np.int32), fast.m_topo(graph)
    seen = []
    _, _, makespan, moves, _ = fast.search(
        fast.Problem(graph, cluster, time),
        (start, order),
        fast.Stop(time_limit=0.2),
        progress=lambda *news: seen.append(news),
    )
    assert moves > 0
    assert seen[-1][2] == makespan < 40
    with pytest.raises(ValueError, match="never stop"):
        fast.Stop()
    with pytest.raises(ValueError, match="device 0 take"):
        fast.search(
            fast.Problem(graph, cluster, time).within(capacity=np.array([1, 1], dtype=np.uint64)),
            (start, order),
            fast.Stop(moves=1),
        )
    with pytest.raises(ValueError, match="time_limit is -1"):
        fast.Stop(time_limit=-1.0)


def test_windows_go_as_far_as_they_are_told_to():
    graph, cluster, time = diamonds(400)
    start = np.zeros(800, dtype=np.int32), fast.m_topo(graph)
    args = fast.Problem(graph, cluster, time), start
    seen = []
    stop = fast.Stop(visits=5000)
    some = fast.search_windows(*args, stop, progress=lambda *news: seen.append(news))
    assert some[3] == 1
    assert some[2] == seen[-1][2] < 800
    more = fast.search_windows(*args, fast.Stop(visits=2_000_000))
    assert more[3] > 1
    assert more[2] < some[2]
    again = fast.search_windows(*args, fast.Stop(visits=2_000_000))
    assert np.array_equal(more[0], again[0])
    assert np.array_equal(more[1], again[1])
    placed = fast.schedule_placed(fast.Problem(graph, cluster, time), more[1], more[0])
    assert placed[1].max() == more[2]
    assert fast.search_windows(*args, fast.Stop(visits=2_000_000, target=800.0))[3] == 0


def test_several_windows_at_a_time_find_the_same_on_any_number_of_threads():
    graph, cluster, time = diamonds(800)
    one_byte = np.ones(1600, dtype=np.uint64)
    problem = fast.Problem(graph, cluster, time)
    capacity = np.array([1600, 250], dtype=np.uint64)
    within = problem.within(op_bytes=one_byte, capacity=capacity)
    args = within, (np.zeros(1600, dtype=np.int32), fast.m_topo(graph)), fast.Stop(visits=300_000)
    for chains in (2, 5):
        found = [
            fast.search_windows(*args, chains=chains, threads=threads) for threads in (1, 2, 3)
        ]
        devices, order, makespan, windows, visits = found[0]
        assert windows % chains == 0
        # Each chain's, and the last round may go beyond.
        assert 300_000 <= visits < 400_000
        assert makespan < 1600
        assert (devices == 1).sum() <= 250
        assert fast.schedule_placed(problem, order, devices)[1].max() == makespan
        for again in found[1:]:
            assert np.array_equal(devices, again[0])
            assert np.array_equal(order, again[1])
    with pytest.raises(ValueError, match="chains is 0"):
        fast.search_windows(*args, chains=0)


@given(data=st.data())
@settings(max_examples=25)
def test_auto_is_never_worse_than_what_it_tried(data):
    graph = data.draw(op_graphs())
    cluster = data.draw(clusters(memory=data.draw(st.sampled_from([20, 40, 10**6]))))
    try:
        plan = lm.place(graph, cluster, "auto", effort=0.02, split="none")
    except InfeasibleError:
        plan = None
    others = lm.compare(graph, cluster, METHODS)
    if plan is None:
        assert not others.plans
    elif others.best is not None:
        assert plan.fits
        assert plan.makespan * (1 - WORTH) <= others.best.makespan
        seen = lm.simulate(graph, cluster, plan.devices, plan.priority, plan.policy)
        assert seen.makespan == plan.makespan


def test_auto_parts_what_list_schedulers_leave_together():
    graph = lm.read("example:inception-v3")
    cluster = v100_mesh(4)
    plan = lm.place(graph, cluster, "auto", effort=0.8, split="none")
    best = lm.compare(graph, cluster, METHODS).best
    assert plan.makespan < 0.97 * best.makespan
    again = lm.place(graph, cluster, "auto", effort=0.8, split="none")
    assert again.makespan == plan.makespan
    assert np.array_equal(again.devices, plan.devices)


def test_a_plan_keeps_its_policy(tmp_path):
    graph = lm.read("example:rnnlm")
    plan = lm.place(graph, v100_mesh(4), "auto", effort=0.2, split="none")
    plan.save(tmp_path / "plan.json")
    loaded = lm.Plan.load(tmp_path / "plan.json")
    assert loaded.policy == plan.policy
    assert loaded.makespan == plan.makespan == loaded.schedule.makespan
    assert loaded.on(plan.cluster).makespan == plan.makespan


def test_a_chain_stays_on_one_device_and_says_so():
    graph = graph_of({"a": 1, "b": 1, "c": 1}, [("a", "b", 10), ("b", "c", 10)])
    plan = lm.place(graph, ms_mesh(2), "auto")
    assert set(plan.devices.tolist()) == {0}
    assert plan.planning_seconds < 0.5
    assert len(plan.notes) == 1
    assert "one device" in plan.notes[0]


def test_a_step_of_no_time_is_enough():
    times = {"quick": [0.0], "slow": [1.0]}
    devices = [lm.Device(name, name, 2**30) for name in times]
    links = [lm.Link("quick", "slow", 1e9, 0.0), lm.Link("slow", "quick", 1e9, 0.0)]
    graph = lm.OpGraph({"name": ["a"], "time": times}, {"src": [], "dst": []})
    plan = lm.place(graph, lm.Cluster(devices, links))
    assert plan.makespan == 0
    assert plan.device("a") == "quick"


def test_every_better_plan_is_told_and_ctrl_c_keeps_the_best():
    graph = lm.read("example:inception-v3")
    told = []

    def progress(stage, makespan):
        if makespan is not None:
            told.append(makespan)
        if len(told) == 3:
            raise KeyboardInterrupt

    plan = lm.place(graph, v100_mesh(4), effort=20, split="none", progress=progress)
    assert plan.makespan == min(told)
    assert any("interrupted" in note for note in plan.notes)


def test_the_time_limit_holds():
    graph = lm.read("example:bert-large")
    plan = lm.place(graph, v100_mesh(4, "1TiB"), split="none", time_limit=0.5)
    assert plan.planning_seconds < 2


@pytest.mark.parametrize("limits", [{"time_limit": np.inf}, {"effort": 1e300}])
def test_no_limit_is_a_limit_too(limits):
    plan = lm.place(lm.read("example:lenet"), v100_mesh(2), "auto", **limits)
    assert plan.makespan <= lm.place(plan.graph, plan.cluster, "auto", effort=0.1).makespan


def test_what_auto_does_not_take():
    graph = lm.read("example:lenet")
    with pytest.raises(InputError, match="effort is 'much'"):
        lm.place(graph, v100_mesh(2), "auto", effort="much")
    with pytest.raises(InputError, match="effort is -1"):
        lm.place(graph, v100_mesh(2), "auto", effort=-1)
    with pytest.raises(InputError, match="gap is 1"):
        lm.place(graph, v100_mesh(2), "auto", gap=1)
    with pytest.raises(InputError, match="chains is 0"):
        lm.place(graph, v100_mesh(2), "auto", chains=0)
    with pytest.raises(InputError, match="threads is 'all'"):
        lm.place(graph, v100_mesh(2), "auto", threads="all")


def test_auto_is_the_default_and_tells_incumbents_with_their_gap():
    told = []
    plan = lm.place(
        lm.read("example:lenet"), v100_mesh(2), progress=lambda *news: told.append(news)
    )
    assert plan.method == "auto"
    found = [best for _, best in told if best is not None]
    assert all(later <= earlier for earlier, later in pairwise(found))
    assert found[-1] == plan.makespan
    assert found[-1].lower_bound == plan.lower_bound
    assert found[-1].gap == pytest.approx(plan.gap)


def test_auto_stops_at_a_gap():
    graph, cluster = lm.read("example:inception-v3"), v100_mesh(4)
    near = lm.place(graph, cluster, "auto", effort=0.3, split="none")
    gap = near.gap + 0.02
    told = []
    plan = lm.place(
        graph,
        cluster,
        "auto",
        effort=60,
        gap=gap,
        split="none",
        progress=lambda stage, best: told.append(best.gap) if best and stage != "bound" else None,
    )
    assert plan.gap <= gap
    # At most a state of the search and its last, which it is judged by.
    assert sum(one <= gap for one in told) <= 2


def test_auto_does_no_more_than_a_gap_asks_for():
    told = []
    plan = lm.place(
        lm.read("example:rnnlm"),
        v100_mesh(4),
        gap=0.9,
        time_limit=1e-9,
        split="none",
        progress=lambda stage, best: told.append(stage) if best else None,
    )
    assert set(told) == {"single", "bound"}
    assert plan.notes == ()


def test_a_plan_says_when_the_clock_cut_the_search():
    graph, cluster = lm.read("example:inception-v3"), v100_mesh(4)
    plan = lm.place(graph, cluster, "auto", effort="max", time_limit=0.3)
    assert any("time limit of 0.3 s cut" in note for note in plan.notes)
    counted = lm.place(graph, cluster, "auto", effort=0.1)
    assert {Budget.make(effort, None).clock for effort in (None, "fast", "normal", "max")} == {None}
    assert not any("time limit" in note for note in counted.notes)


def test_effort_is_counted_whatever_the_threads():
    graph, cluster = lm.read("example:rnnlm"), v100_mesh(4)
    one, two = (
        lm.place(graph, cluster, "auto", effort=0.2, chains=2, threads=threads)
        for threads in (1, 2)
    )
    assert one.makespan == two.makespan
    assert np.array_equal(one.devices, two.devices)
    assert np.array_equal(one.priority, two.priority)


def test_a_search_stops_where_it_is_told_to():
    graph, cluster, time = diamonds(20)
    start = np.zeros(40, dtype=np.int32), fast.m_topo(graph)
    args = fast.Problem(graph, cluster, time), start
    _, _, near, few, _ = fast.search(*args, fast.Stop(moves=1_000_000, target=30.0))
    assert 20 < near <= 30
    _, _, best, more, visits = fast.search(*args, fast.Stop(moves=1_000_000, patience=400_000))
    assert best == 20
    # A move visits no more ops than there are, and takes as long as eight more.
    assert 400_000 <= visits <= (8 + 3 * 40) * more
    assert few < more < 1_000_000
    _, _, _, counted, visits = fast.search(*args, fast.Stop(visits=20_000))
    assert counted < 2500
    assert 20_000 <= visits < 21_000
    assert 20_000 <= fast.search(*args, fast.Stop(visits=20_000), chains=3, threads=2)[4] < 21_000
    assert counted == fast.search(*args, fast.Stop(visits=20_000, time_limit=60.0))[3]
    with pytest.raises(ValueError, match="target is NaN"):
        fast.Stop(moves=1, target=float("nan"))


# -- seeds that may spend so much ------------------------------------------------------------


def problem_of(graph, cluster):
    return Problem.make(graph, cluster, lm.costs.estimate(graph, cluster))


def test_a_seed_that_goes_on_and_on_is_stopped_and_its_best_kept(monkeypatch):
    graph = graph_of({"a": 4, "b": 4, "c": 1}, [("a", "c", 1), ("b", "c", 1)])
    problem = problem_of(graph, ms_mesh(2))
    seen = []

    def tries(problem):
        for devices in ([0, 0, 0], [0, 1, 0], [1, 1, 1]) * 1000:
            seen.append(devices)
            judged(problem, Assignment(np.array(devices, dtype=np.int32), np.arange(3, dtype="i4")))

    run = Run(problem, Budget(1.0, None))
    seed = Seed(tries, 1.0, 5, 0)
    monkeypatch.setitem(SEEDS, "tries", seed)
    spent, is_done = Planting(run).sow("tries", 5.5 * seed.cost_of(problem, 1))
    assert not is_done
    assert len(seen) == 6
    assert spent == pytest.approx(seed.cost_of(problem, 5))
    assert run.best.assignment.devices.tolist() == [0, 1, 0]
    judged(problem, run.best.assignment)  # Nothing is counted any more.


@pytest.mark.parametrize("name", ["peft", "dpos", "cpop", "heft", "etf", "m-etf", "noised"])
def test_a_list_schedule_asks_for_as_many_verdicts_as_are_counted_on(name):
    problem = problem_of(example("lenet"), lm.Cluster.preset("4xV100-PCIe"))
    seed = SEEDS[name]
    with problem.meter.allowing(1000) as allowance:
        seed.place(problem)
    asked = seed.verdicts + seed.per_way * len(deciders(problem.graph))
    assert allowance.used == asked
    assert seed.cost(problem, len(deciders(problem.graph))) == seed.cost_of(problem, asked)


def test_noise_begins_with_ranks_by_rule_and_only_gains(monkeypatch):
    problem = problem_of(example("inception-v3"), lm.Cluster.preset("4xV100-PCIe"))
    lengths = []
    for rounds in (2, 10, 40):
        monkeypatch.setattr(noised, "ROUNDS", rounds)
        lengths.append(noised.place(problem).schedule.makespan)
        assert noised.place(problem).schedule.makespan == lengths[-1]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[-1] < lengths[0]
    times = np.full(1000, 2.0)
    changed = noised.noised(times, np.random.default_rng(0))
    assert changed.min() >= times[0] / (1 + noised.NOISE)
    assert changed.max() <= times[0] * (1 + noised.NOISE)
    assert 0 < (changed != times).mean() < 2 * noised.SHARE


def test_heft_cut_short_leaves_the_best_of_its_rounds():
    graph, cluster = example("inception-v3"), lm.Cluster.preset("4xV100-PCIe")
    problem = Problem.make(graph, cluster, roofline_costs(graph, cluster))
    seed = SEEDS["heft"]
    whole = heft.place(problem).schedule.makespan
    planting = Planting(Run(problem, Budget(1e3, None)))
    found = []
    for rounds in range(1, heft.ROUNDS + 1):
        # Two verdicts a round, and one that is too many.
        _, is_done = planting.sow("heft", (2 * rounds + 0.5) * seed.cost_of(problem, 1))
        assert not is_done
        found.append(planting.seeds[-1].schedule.makespan)
    assert found == sorted(found, reverse=True)
    assert found[-1] < found[0]
    assert whole <= found[-1]
    assert seed.first(problem) >= seed.cost_of(problem, 3)


def test_heft_cut_short_has_as_many_rounds_of_either_way():
    problem = problem_of(example("inception-v3"), lm.Cluster.preset("4xV100-PCIe"))
    seed = SEEDS["heft"]
    ways = len(deciders(problem.graph))
    assert ways == 2
    run = Run(problem, Budget(1e3, None))
    Planting(run).sow("heft", (2 * 3 * ways + 0.5) * seed.cost_of(problem, 1))
    assert run.best.schedule.makespan == heft.place(problem, rounds=3).schedule.makespan


def test_a_search_that_ends_early_spends_what_it_used():
    problem = problem_of(example("lenet"), lm.Cluster.preset("4xV100-PCIe"))
    run = Run(problem, Budget(1e3, None))
    Search(run).explored(single.place(problem), 100.0)
    visits = TUNING.patience_per_op * problem.graph.n_ops
    assert visits / run.pace.moves <= run.budget.spent < 10


def test_half_of_what_is_refined_goes_on_in_the_next_way(monkeypatch):
    problem = problem_of(example("lenet"), lm.Cluster.preset("4xV100-PCIe"))
    run = Run(problem, Budget(10.0, None))
    one = single.place(problem)
    devices = np.arange(problem.graph.n_ops, dtype=np.int32) % 4
    seeds = [one, replace(one, assignment=replace(one.assignment, devices=devices))]
    run.best = one
    asked = []

    def once(refinement, start, way, seconds):
        which = next(
            i for i, seed in enumerate(seeds) if seed.assignment.devices is start.assignment.devices
        )
        asked.append((way, which, seconds))
        return start, 0

    monkeypatch.setattr(Refinement, "once", once)
    assert [found.assignment.devices.tolist() for found in Refinement(run).halved(seeds)] == [
        seed.assignment.devices.tolist() for seed in seeds
    ]
    # Every seed begins in every way; of what came to the same, one goes on.
    both = [(0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (3, 0), (2, 1), (3, 1)]
    assert [(turn, which) for turn, which, _ in asked] == [*both, (1, 0), (2, 0)]
    assert asked[-1][2] > asked[0][2]


def test_seeds_are_refined_on_any_number_of_threads():
    graph, cluster = lm.read("example:inception-v3"), lm.Cluster.preset("4xV100-PCIe")
    found = []
    for threads in (1, 2, 5):
        news = []
        plan = auto.place(
            problem_of(graph, cluster),
            effort=0.3,
            split="none",
            threads=threads,
            progress=lambda *one, news=news: news.append(one),
        )
        found.append((news, plan.assignment.devices.tolist(), plan.assignment.priority.tolist()))
    assert any(stage == "refine" for stage, _ in found[0][0])
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("threads", [1, 3])
def test_refinements_end_with_the_first_that_is_good_enough(monkeypatch, threads):
    problem = problem_of(example("lenet"), lm.Cluster.preset("4xV100-PCIe"))
    run = Run(problem, Budget(1.0, None), threads=threads)
    one = single.place(problem)
    run.best = one
    good = replace(one, notes=("good",))
    results = [one, good, replace(one)]
    shorter = []

    def offer(run, candidate, stage):
        shorter.append(candidate)
        run.is_sole = candidate is good
        return False

    turns, refinement = iter(range(3)), Refinement(run)
    assert len(refinement.hierarchies) == len(TUNING.ways)
    begin = run.budget.spent
    monkeypatch.setattr(Refinement, "once", lambda *_: (results[next(turns)], 10))
    monkeypatch.setattr(Run, "offer", offer)
    field = [Entrant(one, turn) for turn in range(3)]
    found = refinement.all_at_once(field, 1.0, "refine")
    assert shorter == [one, good]
    assert [id(after.candidate) for after in found] == [*map(id, (one, good, one))]
    assert [after.turn for after in found] == [1, 2, 3]
    assert run.budget.spent - begin == pytest.approx(20 / run.pace.refinement)
    begun = []
    monkeypatch.setattr(Refinement, "once", lambda *args: begun.append(args))
    [after] = refinement.all_at_once(field[:1], 1.0, "refine")
    assert after.candidate is one
    assert not begun
    assert run.budget.spent - begin == pytest.approx(20 / run.pace.refinement)


def test_what_a_search_leaves_goes_to_other_seeds(monkeypatch):
    problem = problem_of(lm.read("example:inception-v3"), lm.Cluster.preset("4xV100-PCIe"))
    begun = []

    def exhausted(search, start, reserve):
        assert 0 <= reserve < search.run.budget.left
        begun.append(start.assignment.devices.tolist())

    monkeypatch.setattr(Search, "exhausted", exhausted)
    auto.place(problem, effort=4.0, threads=1)
    assert len(begun) > 1


def test_whole_ops_are_not_placed_where_no_placement_can_be_as_fast(monkeypatch):
    def never(run, warm_start, hope):
        raise AssertionError("VGG's critical path is longer than shards of it take")

    graph, cluster = example("vgg19"), lm.Cluster.preset("4xV100-PCIe")
    whole = lm.place(graph, cluster, split="none", effort=0.05)
    monkeypatch.setattr(auto, "_of_whole_ops", never)
    plan = lm.place(graph, cluster)
    assert plan.makespan < whole.lower_bound <= whole.makespan
    assert plan.bounds[WHOLE_OPS] == whole.lower_bound
    [offer] = [one for one in plan.offers if one.space == WHOLE_OPS]
    assert offer.seconds == plan.single
    assert "whole ops on several devices (none can be as fast)" in plan.summary()


@pytest.mark.parametrize("method", ["auto", "sharded"])
def test_a_plan_says_which_ops_are_whole_since_no_rule_says_how_they_are_cut(method):
    known, cluster = example("alexnet"), lm.Cluster.preset("2xV100-NVLink")
    kinds = [kind.replace("aten.max_pool2d_with", "mine.pooled") for kind in known.kinds]
    graph = known.with_columns({"kind": kinds})
    notes = [note for note in lm.place(graph, cluster, method).notes if "no rule" in note]
    assert len(notes) == 1
    assert "mine.pooled_indices.default (3)" in notes[0]
    problem = Problem.make(graph, cluster, lm.costs.estimate(graph, cluster))
    pooled = [kinds[op].startswith("mine") for op in problem.reduced.op_of]
    assert f"({problem.op_time[pooled].sum() / problem.op_time.sum():.1%} of all time)" in notes[0]
    assert not any("no rule" in note for note in lm.place(known, cluster, method).notes)


@pytest.mark.parametrize(
    ("cluster", "is_sharded"), [("8xA100-NVLink", False), ("4xV100-PCIe", True)]
)
def test_the_recipe_of_shards_is_written_down_where_they_are_the_best(
    monkeypatch, cluster, is_sharded
):
    write, written = shards.with_recipe, []
    monkeypatch.setattr(shards, "with_recipe", lambda *of: written.append(of) or write(*of))
    plan = lm.place(example("lenet"), lm.Cluster.preset(cluster), costs="roofline")
    best = min(plan.offers, key=lambda one: one.seconds)
    assert (best.request == REQUESTS[Kind.SHARDS]) == is_sharded
    assert is_sharded == (plan.recipe is not None) == bool(written)


def test_where_nothing_fits_as_shards_whole_ops_are_placed(monkeypatch):
    """What does not fit is no reason to leave whole ops out, however fast it is."""
    graph, cluster = example("lenet"), lm.Cluster.preset("2xV100-PCIe").with_memory(1 << 20)
    asked = []
    monkeypatch.setattr(auto, "_of_whole_ops", lambda run, warm, hope: asked.append(run) or whole)
    whole = single.place(
        Problem.make(graph, cluster, lm.costs.estimate(graph, cluster), best_effort=True)
    )
    lm.place(graph, cluster, on_oom="best_effort")
    assert asked


def test_more_devices_than_can_be_searched_get_a_seed_and_a_note():
    cluster = v100_mesh(65)
    plan = lm.place(example("lenet"), cluster, split="none")
    assert any("65 devices" in note for note in plan.notes)
    assert plan.makespan <= lm.place(example("lenet"), cluster, "heft").makespan
    refined = lm.place(example("lenet"), cluster, "round-robin", refine=True)
    assert any("not refined: 65 devices" in note for note in refined.notes)


# -- fewer devices ---------------------------------------------------------------------------


@given(data=st.data())
@settings(max_examples=25)
def test_a_plan_for_a_part_of_the_devices_is_one_for_all(data):
    graph = data.draw(op_graphs())
    cluster = data.draw(clusters(max_devices=9, memory=data.draw(st.sampled_from([40, 10**6]))))
    try:
        problem = problem_of(graph, cluster)
    except InputError:
        return  # An op that may run on none of the types.
    before = range(cluster.n_devices)
    for part in parts(problem):
        assert 2 <= len(part.devices) < len(before)
        assert set(part.devices.tolist()) < set(before)
        assert part.problem.cluster.types == cluster.types
        try:
            inside = heft.place(part.problem)
        except InfeasibleError:
            continue
        opened = part.opened(inside)
        assert opened.fits
        assert opened.schedule.makespan <= inside.schedule.makespan
        assert np.isin(opened.assignment.devices, part.devices).all()
        before = part.devices.tolist()


def test_a_part_has_half_of_each_kind_and_those_best_joined():
    problem = problem_of(example("lenet"), lm.Cluster.preset("2x8xH100-IB"))
    names = [[problem.cluster.devices[d].name for d in part.devices] for part in parts(problem)]
    assert [len(some) for some in names] == [8, 4, 2]
    first = problem.cluster.devices[0].name.rpartition("gpu")[0]
    assert all(name.startswith(first) for some in names for name in some)
    mixed = problem_of(example("lenet"), lm.Cluster.preset("cpu+gpu"))
    assert parts(mixed) == []


def test_where_a_plan_is_far_ahead_there_are_no_more_than_the_first_seeds():
    problem = problem_of(example("inception-v3"), lm.Cluster.preset("4xV100-PCIe"))
    run = Run(problem, Budget(0.1, None))
    all_of_them = Planting(run).plant()
    best = run.best.verdict.step_time
    for far, n_seeds in ((2.0, TUNING.sure_seeds), (1.0, len(all_of_them))):
        run = Run(problem, Budget(0.1, None))
        assert len(Planting(run, best / far).plant()) == n_seeds
    assert len(all_of_them) > TUNING.sure_seeds


def test_replicas_that_are_far_by_their_mirror_are_not_judged():
    problem = problem_of(example("vgg19"), lm.Cluster.preset("4xV100-PCIe"))
    run = Run(problem, Budget(0.1, None), may_split=True)
    [(best, _)] = shards.shards(run)
    steps = [found.verdict.step_time for found, _ in replicas(run, best)]
    assert run.seen_of_replicas(4) < min(steps)
    run.replicas[4] = 1.01 * (1 + TUNING.replicas_near) * best.verdict.step_time
    assert list(replicas(run, best)) == []


def test_where_transfers_are_dear_what_is_best_on_two_devices_is_a_seed_for_eight():
    graph = example("inception-v3")
    two, eight = (
        Problem.make(graph, some, roofline_costs(graph, some))
        for some in (v100_mesh(2), v100_mesh(8))
    )
    seed = SEEDS["partitions"].place
    on_two, on_eight = (seed(problem).schedule.makespan for problem in (two, eight))
    assert on_two < 0.8 * on_eight
    run = Run(eight, Budget(5.0, None))
    assert [len(part.devices) for part in parts(eight)] == [4, 2]
    seeds = Planting(run).plant()
    assert {on_two, on_eight} <= {seed.schedule.makespan for seed in seeds}
    assert run.best.schedule.makespan <= on_two


def test_lists_come_first_where_transfers_are_cheap():
    graph = graph_of({"a": 4, "b": 4, "c": 1}, [("a", "c", 1), ("b", "c", 1)])
    cheap, dear = (problem_of(graph, ms_mesh(2, latency=ms)) for ms in (0, 100))
    assert worth_trying(cheap, True)[:2] == ["layers", "heft"]
    assert worth_trying(dear, True)[:2] == ["layers", "partition"]
    for problem in (cheap, dear):
        assert sorted(worth_trying(problem, False)) == sorted(SEEDS)
        assert {*SEEDS} - {*worth_trying(problem, True)} == {"least overflow"}


# -- less to send ------------------------------------------------------------------------------


@given(data=st.data())
@settings(max_examples=75)
def test_what_is_gathered_sends_less_and_takes_no_longer(data):
    graph = data.draw(op_graphs())
    cluster = data.draw(clusters())
    problem = problem_of(graph, cluster)
    sets, first = (
        problem.graph.colocation,
        np.unique(problem.graph.colocation, return_index=True)[1],
    )
    drawn = data.draw(placements(graph, cluster))[problem.reduced.op_of[first]]
    devices = on_allowed(problem, drawn)[sets]
    before = judged(problem, Assignment(devices, np.arange(len(sets), dtype=np.int32)))
    if not before.fits:
        return
    most = data.draw(st.integers(0, 30))
    with problem.meter.allowing(most) as allowance:
        after, used = gathered(problem, before, most)
    assert used == allowance.used
    assert after.fits
    assert after.schedule.makespan <= before.schedule.makespan
    latency, per_byte = problem.links.mean_link
    sent = [
        latency * s.n_transfers + per_byte * s.bytes_moved
        for s in (before.schedule, after.schedule)
    ]
    assert sent[1] <= sent[0] * (1 + 1e-9)
    types = np.array(problem.cluster.device_types)
    assert len(set(zip(sets, after.assignment.devices, strict=True))) == len(set(sets))
    assert problem.allowed_types[np.arange(len(sets)), types[after.assignment.devices]].all()
    again = problem.verdict(after.assignment)
    assert again.step_time == after.schedule.makespan


def test_updates_go_to_where_their_gradients_are_unless_that_takes_longer():
    times = {"loss": 4, "grad": 4, "update": 1, "other": 6}
    edges = [("loss", "grad", 10), ("grad", "update", 10), ("loss", "other", 10)]
    problem = problem_of(graph_of(times, edges), ms_mesh(2))
    priority = np.arange(4, dtype=np.int32)
    before = judged(problem, Assignment(np.array([0, 0, 1, 0], dtype=np.int32), priority))
    assert before.schedule.n_transfers == 1
    after, used = gathered(problem, before, 10)
    assert used == 1
    assert after.assignment.devices.tolist() == [0, 0, 0, 0]
    assert after.schedule.makespan < before.schedule.makespan
    # Where the device has no time to spare, it stays.
    apart = judged(problem, Assignment(np.array([0, 0, 1, 1], dtype=np.int32), priority))
    after, _ = gathered(problem, apart, 10)
    assert after.schedule.makespan <= apart.schedule.makespan


# -- partitions ------------------------------------------------------------------------------


@given(data=st.data())
@settings(max_examples=50)
def test_parts_are_of_even_weight_and_the_same_every_time(data):
    n = data.draw(st.integers(2, 60))
    pairs = st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)).filter(lambda p: p[0] != p[1])
    edges = data.draw(st.lists(pairs, max_size=150))
    src, dst = np.array([*edges], dtype=np.int64).reshape(-1, 2).T
    edge = np.array(
        data.draw(st.lists(st.integers(1, 9), min_size=len(edges), max_size=len(edges)))
    )
    weight, share = np.ones(n, dtype=np.uint64), np.ones(data.draw(st.integers(1, 4)))
    part = fast.partition(weight, src, dst, edge.astype(np.uint64), share)
    assert part.min() >= 0
    assert part.max() < len(share)
    sums = np.bincount(part, minlength=len(share))
    assert sums.max() <= np.ceil(1.05 * n / len(share)) + 1
    assert np.array_equal(part, fast.partition(weight, src, dst, edge.astype(np.uint64), share))


def test_what_a_partition_does_not_take():
    ones, ids = np.ones(3, dtype=np.uint64), np.array([0, 1])
    for arguments, message in (
        ((ones, ids, ids, ones[:2], np.ones(2)), "src\\[0\\] and dst\\[0\\] are both 0"),
        ((ones, ids, ids + 2, ones[:2], np.ones(2)), "dst\\[1\\] is 3"),
        ((ones, ids, ids[::-1], ones[:2], np.zeros(2)), "share: wants a positive"),
        ((ones << np.uint64(60), ids, ids[::-1], ones[:2], np.ones(2)), "weight adds up to"),
    ):
        with pytest.raises(ValueError, match=message):
            fast.partition(*arguments)


@settings(max_examples=25)
@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=6), st.integers(2, 4), st.booleans())
def test_what_several_devices_do_no_sooner_one_device_does(work, n_devices, reads_all):
    """A chain that nothing cuts takes as long on several devices: each would do all of it."""
    n = len(work)
    names = ["x", *(f"op{i}" for i in range(n))]
    src = [*range(n), *([0] * (n - 1) if reads_all else [])]
    dst = [*range(1, n + 1), *(range(2, n + 1) if reads_all else [])]
    kinds = ["input", *["nobody.knows"] * n]
    ops = {"name": names, "kind": kinds, "output": ["f32[1,64]"] * (n + 1)}
    sizes = {"output_bytes": [256] * (n + 1), "flops": [0, *work], "bytes_accessed": [0, *work]}
    edges = {"src": src, "dst": dst, "bytes": [256] * len(src)}
    graph = lm.OpGraph({**ops, **sizes}, edges)
    cluster = lm.Cluster.preset("4xV100-PCIe").subset(range(n_devices))
    plan = lm.place(graph, cluster)
    assert plan.program.recipe is None
    assert len(set(plan.devices.tolist())) == 1
    assert plan.offers[0].kind is Kind.ONE_DEVICE


def test_several_devices_gain_what_a_user_would_notice():
    """Launches take most of the time of drawn layers, and next to nothing is gained over one device
    that launches them all. Of plans that gain more the best is kept.
    """
    used = set()
    for seed in range(8):
        drawn = Random(f"worth {seed}")
        widths = [drawn.choice((2, 8, 16, 2048)) for _ in range(drawn.randint(2, 4))]
        graph = linears(widths, drawn.choice((4, 16, 64)), train=False)
        plan = lm.place(graph, lm.Cluster.preset("4xV100-NVLink"), effort=0.02)
        n_devices = len(set(plan.running_devices.tolist()))
        used.add(n_devices > 1)
        least = min(one.seconds for one in plan.offers)
        if n_devices > 1:
            assert plan.makespan <= (1 - WORTH) * plan.single, seed
            assert plan.makespan == pytest.approx(least), seed
            assert " 1.00 x one device" not in plan.summary(), seed
        else:
            assert plan.makespan == plan.single == pytest.approx(least), seed
            assert plan.offers[0].kind is Kind.ONE_DEVICE, seed
    assert used == {True, False}
