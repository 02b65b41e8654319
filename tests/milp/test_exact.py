"""Exact methods: they agree with trying everything, and no solver's fault reaches the user."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from brute_force import (
    drawn,
    free_optimum,
    simulated_optimum,
    some_start,
    static_instance,
)
from solve_batch import solve_all
from strategies import MS, graph_of, ms_mesh, v100_mesh

import loadmaster as lm
from loadmaster.base.errors import InfeasibleError, InputError, MissingExtraError
from loadmaster.judge.bounds import bound
from loadmaster.judge.problem import Problem
from loadmaster.milp import cpsat, ilp, moirai, pesto, process, worker
from loadmaster.milp.instance import instance_of
from loadmaster.milp.memory import least_relaxation
from loadmaster.milp.timing import in_order, settled, timed
from loadmaster.strategies import METHODS
from loadmaster.strategies.candidate import INTERRUPTED
from loadmaster.strategies.exact import solving as exact
from loadmaster.strategies.lists import heft

#: Of the 200 instances of ``benches/exact.py agree``.
SAMPLE = range(12)

LINKS = {
    "pesto": (pesto.with_links, pesto.formulate),
    "moirai per link": (partial(moirai.with_links, links="per-link"), moirai.formulate),
    "moirai one port": (partial(moirai.with_links, links="one-port"), moirai.formulate),
}

needs_cpsat = pytest.mark.skipif(
    importlib.util.find_spec("ortools") is None, reason="the extra cpsat"
)


@pytest.fixture(scope="module")
def instances():
    """Problem, instance, start and optimum of small problems, and of some on shared channels."""
    found = []
    for problem in [drawn(s) for s in SAMPLE] + [drawn(s, shared=True) for s in SAMPLE[:4]]:
        instance = static_instance(problem)
        start = some_start(instance)
        best = simulated_optimum(problem, instance)
        assert (start is None) == (best is None), "the certificate says when nothing fits"
        if start is not None:
            found.append((problem, instance, start, best))
    return found


def test_ilp_agrees_with_brute_force(instances):
    programs = [ilp.formulate(instance, start) for _, instance, start, _ in instances]
    for program in programs:
        assert program.model.violation(program.model.start) < 1e-6
    answers = solve_all([program.model for program in programs])
    for (_, instance, _, best), program, answer in zip(instances, programs, answers, strict=True):
        assert answer["status"] == "optimal"
        ticks = answer["objective"] / program.scale
        assert ticks * instance.tick == pytest.approx(best, rel=1e-6)


def test_a_schedule_from_any_order_is_where_ilp_may_start(instances):
    for _, instance, start, _ in instances:
        schedule = settled(instance, start.devices, np.array(instance.topological, dtype=np.int32))
        program = ilp.formulate(instance, schedule)
        assert program.model.violation(program.model.start) < 1e-6


@needs_cpsat
def test_cpsat_agrees_with_brute_force(instances):
    tasks = [cpsat.CpsatTask(i, s, 30.0, 1, 0, False, True) for _, i, s, _ in instances]
    for (_, instance, _, best), answer in zip(instances, solve_all(tasks), strict=True):
        assert answer["status"] == "optimal"
        assert answer["bound"] * instance.tick == pytest.approx(best, rel=1e-9)
        devices, start = (np.array(column) for column in answer["values"])
        finish = start + instance.time[np.arange(instance.n_ops), devices]
        again = timed(instance, devices.astype(np.int32), in_order(instance, start, finish))
        assert again.makespan * instance.tick == pytest.approx(best, rel=1e-9)


@needs_cpsat
def test_without_fcfs_cpsat_bounds(instances):
    tasks = [cpsat.CpsatTask(i, s, 30.0, 1, 0, False, False) for _, i, s, _ in instances]
    for (_, instance, _, best), answer in zip(instances, solve_all(tasks), strict=True):
        assert answer["bound"] * instance.tick <= best * (1 + 1e-9)


@pytest.mark.parametrize("name", LINKS)
def test_reference_formulations_agree_with_brute_force(name, instances):
    in_links, formulate = LINKS[name]
    few = [(in_links(instance), start) for _, instance, start, _ in instances[:6]]
    programs = [formulate(i, timed(i, s.devices, s.order(i))) for i, s in few]
    for program in programs:
        assert program.model.violation(program.model.start) < 1e-6
    answers = solve_all([program.model for program in programs])
    for (instance, _), program, answer in zip(few, programs, answers, strict=True):
        assert answer["status"] == "optimal"
        best = free_optimum(instance)
        assert answer["objective"] / program.scale == pytest.approx(best, rel=1e-5)


def test_no_bound_is_above_brute_force(instances):
    for problem, _, _, best in instances:
        assert bound(problem).seconds <= best * (1 + 1e-9)


def fan(n_readers: int = 2) -> Problem:
    """An op whose tensors go to readers that must be on devices of their own."""
    readers = {f"r{i}": 1 for i in range(n_readers)}
    graph = graph_of(
        {"a": 1, **readers},
        [("a", r, 4, i) for i, r in enumerate(readers)],
        device_types=["t0", *(f"t{i + 1}" for i in range(n_readers))],
        time={f"t{i}": [1 * MS] * (n_readers + 1) for i in range(n_readers + 1)},
    )
    devices = [lm.Device(f"d{i}", f"t{i}", 10**6) for i in range(n_readers + 1)]
    links = [lm.Link(a.name, b.name, 1000.0) for a in devices for b in devices if a != b]
    cluster = lm.Cluster(devices, links)
    return Problem.make(graph, cluster, lm.costs.estimate(graph, cluster))


@pytest.mark.parametrize(("links", "least"), [("per-link", 6), ("one-port", 10)])
def test_one_port_and_per_link_differ_where_one_op_sends_to_two_devices(links, least):
    # 1 ms, then two transfers of 4 ms, at once or one after the other, then 1 ms.
    instance = moirai.with_links(static_instance(fan()), links)
    start = some_start(instance)
    program = moirai.formulate(instance, start)
    (answer,) = solve_all([program.model])
    assert answer["objective"] / program.scale * instance.tick == pytest.approx(least * MS)
    assert free_optimum(instance) * instance.tick == pytest.approx(least * MS)


def test_pestos_link_model_is_per_link():
    assert pesto.with_links(static_instance(fan())).is_private
    assert not moirai.with_links(static_instance(fan()), "one-port").is_private


def test_device_kinds_of_pesto_are_allowed_types():
    # A kernel op on the CPU before a GPU op: 1 ms there, 1 ms for the tensor, 1 ms here.
    graph = graph_of(
        {"kernel": 1, "gpu": 1},
        [("kernel", "gpu", 1)],
        device_types=["cpu", "gpu"],
        time={"cpu": [1 * MS, 1 * MS], "gpu": [1 * MS, 1 * MS]},
    )
    devices = [lm.Device("cpu0", "cpu", 100), lm.Device("gpu0", "gpu", 100)]
    links = [lm.Link(a, b, 1000.0) for a, b in (("cpu0", "gpu0"), ("gpu0", "cpu0"))]
    plan = lm.place(graph, lm.Cluster(devices, links), "pesto", time_limit=5)
    assert [plan.device(op) for op in ("kernel", "gpu")] == ["cpu0", "gpu0"]
    assert plan.makespan == pytest.approx(3 * MS)
    assert plan.gap == pytest.approx(0.0, abs=1e-5)


# -- the model ---------------------------------------------------------------------------------


def test_the_recurrence_is_the_simulators(alexnet):
    for cluster in (v100_mesh(3), lm.Cluster.preset("4xV100-PCIe")):
        problem = Problem.make(alexnet, cluster, lm.costs.estimate(alexnet, cluster))
        instance = instance_of(problem, problem.reduced.held_at_peak, 0.0)
        for method in ("heft", "random"):
            placed = lm.place(alexnet, cluster, method).assignment
            seen = problem.simulate(placed.devices, placed.priority, policy=placed.policy)
            order = in_order(instance, seen.start, seen.finish)
            again = timed(instance, placed.devices, order)
            off = np.array(again.start) * instance.tick - seen.start
            assert (off <= 1e-12).all(), "times are rounded down"
            assert np.abs(off).max() <= 400 * instance.tick


def test_windows_and_comparable_pairs_have_no_rows_of_order():
    chain = graph_of({c: 1 for c in "abcd"}, [("a", "b", 1), ("b", "c", 1), ("c", "d", 1)])
    cluster = ms_mesh(2)
    problem = Problem.make(chain, cluster, lm.costs.estimate(chain, cluster))
    instance = static_instance(problem)
    program = ilp.formulate(instance, some_start(instance))
    assert instance.loose_pairs == []
    # Nothing is to be decided but devices.
    assert program.model.n_integers == 4 * 2


def test_exchangeable_devices_are_told_from_others():
    problem = fan()
    assert static_instance(problem).twins == [[0], [1], [2]]
    graph = graph_of({"a": 1, "b": 1})
    alike = Problem.make(graph, ms_mesh(3), lm.costs.estimate(graph, ms_mesh(3)))
    instance = static_instance(alike)
    assert instance.twins == [[0, 1, 2]]
    assert instance.canonical(np.array([2, 0], dtype=np.int32)).tolist() == [0, 1]


# -- as a user meets them ----------------------------------------------------------------------

SMALL = graph_of(
    {"a": 2, "b": 3, "c": 4, "d": 2, "e": 3},
    [("a", "b", 1), ("a", "c", 1), ("b", "d", 2), ("c", "e", 1)],
)


@pytest.mark.parametrize("method", ["ilp", pytest.param("cpsat", marks=needs_cpsat)])
def test_a_proved_plan_says_so(method):
    # Three equal ops on two devices: the combinatorial bound is 4.5 ms, the optimum 6.
    graph = graph_of({"a": 3, "b": 3, "c": 3})
    plan = lm.place(graph, ms_mesh(2), method, time_limit=10)
    assert plan.makespan == pytest.approx(6 * MS)
    assert plan.gap == 0.0
    assert any("proved optimal" in note for note in plan.notes)
    assert plan.lower_bound == plan.makespan
    assert "CBC" in plan.bound_source or "CP-SAT" in plan.bound_source


def test_gurobi_proves_a_plan():
    pytest.importorskip("gurobipy")
    graph = graph_of({"a": 3, "b": 3, "c": 3})
    plan = lm.place(graph, ms_mesh(2), "ilp", solver="gurobi", time_limit=10)
    assert plan.bound_source == "ilp, Gurobi"
    assert (plan.makespan, plan.gap) == (pytest.approx(6 * MS), 0.0)


def test_no_solver_plan_is_worse_than_where_it_starts(lenet):
    cluster = v100_mesh(3)
    start = lm.place(lenet, cluster, "ilp", time_limit=0)
    assert any("no time for the solver" in note for note in start.notes)
    assert start.makespan <= lm.place(lenet, cluster, "heft").makespan
    assert lm.place(lenet, cluster, "ilp", time_limit=3).makespan <= start.makespan


def test_bounds_tell_whom_they_speak_of(alexnet):
    small = lm.place(alexnet, v100_mesh(2), "ilp", time_limit=3, groups=12)
    assert not any("groups" in note for note in small.notes), "105 ops are few enough"
    bert = lm.read("example:bert-large")
    plan = lm.place(bert, v100_mesh(2), "ilp", time_limit=4, groups=15)
    assert any("solved on" in note for note in plan.notes)
    assert any("plan for the" in note and "groups takes less than" in note for note in plan.notes)
    assert plan.lower_bound == lm.lower_bound(bert, v100_mesh(2)).seconds, "of the full graph"


def test_a_graph_that_is_too_large_is_refused_politely():
    bert = lm.read("example:bert-large")
    plan = lm.place(bert, v100_mesh(2), "ilp", time_limit=1, coarsen=False)
    (note,) = [note for note in plan.notes if note.startswith("ilp:")]
    assert "4517 ops are more than the 200 it takes" in note
    assert "coarsen=True" in note
    assert plan.fits
    assert plan.lower_bound > 0


@needs_cpsat
def test_prove_raises_the_bound(lenet):
    cluster = v100_mesh(3)
    plan = lm.place(lenet, cluster, "cpsat", time_limit=4, prove=True)
    assert lm.lower_bound(lenet, cluster).seconds <= plan.lower_bound <= plan.makespan


def test_thorough_bounds_are_no_lower_than_fast_ones():
    fast = lm.lower_bound(SMALL, ms_mesh(2))
    thorough = lm.lower_bound(SMALL, ms_mesh(2), effort="thorough", time_limit=10)
    best = lm.place(SMALL, ms_mesh(2), "ilp", time_limit=10)
    assert fast.seconds <= thorough.seconds <= best.makespan * (1 + 1e-9)
    assert lm.lower_bound(SMALL, ms_mesh(2), effort="thorough", time_limit=0) == fast


@needs_cpsat
def test_the_order_of_a_placement_is_optimised_and_proved():
    # On one device the urgent op must come first: 1 + 1 + 5 + 1, not 3 + 1 + 1 + 5 + 1.
    graph = graph_of({"long": 3, "urgent": 1, "far": 1}, [("urgent", "far", 5)])
    plan = lm.place(graph, ms_mesh(2), "heft")
    worst = replace(
        plan,
        assignment=replace(
            plan.assignment,
            devices=np.array([0, 0, 1], dtype=np.int32),
            priority=np.array([0, 1, 2], dtype=np.int32),
        ),
    )
    told = []
    better = lm.optimise_order(worst, time_limit=10, progress=lambda *a: told.append(a))
    assert better.devices.tolist() == [0, 0, 1]
    assert better.makespan == pytest.approx(7 * MS)
    assert any("proved optimal for this placement" in note for note in better.notes)
    same = lm.optimise_order(worst, time_limit=0)
    assert same.assignment.priority.tolist() == worst.assignment.priority.tolist()


def test_the_log_and_the_bound_can_be_had(tmp_path):
    told = []
    path = tmp_path / "cbc.log"
    lm.place(
        SMALL,
        ms_mesh(2),
        "ilp",
        time_limit=10,
        log=str(path),
        progress=lambda stage, best: told.append((stage, best)),
    )
    assert "Rows" in path.read_text()
    assert any(stage.startswith("ilp") and best is not None for stage, best in told)


# -- bad input and bad luck ------------------------------------------------------------------------


def test_memory_that_cannot_suffice_comes_with_the_smallest_relaxation():
    # 6 + 6 + 6 bytes, two devices of 7: one of them lacks 5.
    graph = lm.OpGraph(
        {"name": ["a", "b", "c"], "param_bytes": [6] * 3, "time": {"*": [1 * MS] * 3}},
        {"src": [], "dst": []},
    )
    cluster = lm.Cluster.mesh(2, memory=7, bandwidth=1000.0)
    with pytest.raises(InfeasibleError, match=r"5 bytes.*no smaller relaxation") as caught:
        lm.place(graph, cluster, "ilp", time_limit=2)
    assert list(caught.value.shortfall.values()) == [5]


def test_the_smallest_relaxation_by_hand():
    # Two 5s and two 4s in 9 and 8: 5 + 4 and 5 + 4 lack 1. A 4 may be on the second device only.
    anywhere = np.ones((4, 2), dtype=bool)
    charge = np.array([5, 4, 5, 4])
    found = least_relaxation(anywhere, charge, np.array([9, 8]))
    assert (found.total, found.is_proved) == (1, True)
    # All on the first device alone: 18 - 9.
    only = np.tile([True, False], (4, 1))
    assert least_relaxation(only, charge, np.array([9, 8])).missing.tolist() == [9, 0]
    assert least_relaxation(anywhere, charge, np.array([9, 9])).total == 0


def test_contradictory_rules_are_an_error():
    graph = graph_of({"a": 1, "b": 1}, colocation=["x", "x"], device_types=["t0", "t1"])
    devices = [lm.Device("d0", "t0", 10), lm.Device("d1", "t1", 10)]
    links = [lm.Link("d0", "d1", 1.0), lm.Link("d1", "d0", 1.0)]
    with pytest.raises((InputError, InfeasibleError), match="a"):
        lm.place(graph, lm.Cluster(devices, links), "ilp", time_limit=1)


@pytest.mark.parametrize(
    ("method", "options", "said"),
    [
        ("ilp", {"solver": "glpk"}, "solver is 'glpk'"),
        ("ilp", {"groups": 0}, "groups is 0"),
        ("ilp", {"coarsen": "yes"}, "coarsen is 'yes'"),
        ("ilp", {"memory": "none"}, "memory is 'none'"),
        ("ilp", {"log": 3}, "log is 3"),
        ("ilp", {"log": "no/such/folder/cbc.log"}, r"cannot write no/such/folder/cbc\.log"),
        ("pesto", {"groups": -1}, "groups is -1"),
        ("moirai", {"links": "mesh"}, "links is 'mesh'"),
        pytest.param("cpsat", {"workers": 0}, "workers is 0", marks=needs_cpsat),
        pytest.param("cpsat", {"prove": 1}, "prove is 1", marks=needs_cpsat),
    ],
)
def test_bad_options_are_named(method, options, said):
    with pytest.raises(InputError, match=said):
        lm.place(SMALL, ms_mesh(2), method, time_limit=1, **options)


def test_bad_efforts_are_named():
    with pytest.raises(InputError, match="effort is 'much'"):
        lm.lower_bound(SMALL, ms_mesh(2), effort="much")
    with pytest.raises(InputError, match="time_limit is -1"):
        lm.lower_bound(SMALL, ms_mesh(2), effort="thorough", time_limit=-1)


def test_a_missing_solver_names_its_extra(monkeypatch):
    known, solvers = importlib.util.find_spec, ("ortools", "gurobipy")
    for module in (cpsat, worker):
        monkeypatch.setattr(module, "find_spec", lambda n: None if n in solvers else known(n))
    with pytest.raises(MissingExtraError, match=r"loadmaster\[cpsat\]"):
        lm.place(SMALL, ms_mesh(2), "cpsat", time_limit=1)
    with pytest.raises(InputError, match="Gurobi needs its own package"):
        lm.place(SMALL, ms_mesh(2), "ilp", time_limit=1, solver="gurobi")


def children(pid: int) -> list[int]:
    """Ids of the processes that a process has started and not yet collected."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


linux = pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="looks into /proc")


@linux
@needs_cpsat
@pytest.mark.parametrize(("by", "said"), [(signal.SIGKILL, "signal 9"), (signal.SIGSTOP, "killed")])
def test_a_solver_that_dies_or_hangs_costs_nothing(monkeypatch, by, said, alexnet):
    start, others = subprocess.Popen, children(os.getpid())

    def struck(*args: object, **options: object) -> subprocess.Popen:
        process = start(*args, **options)
        os.kill(process.pid, by)
        return process

    monkeypatch.setattr(process, "GRACE", 0.5)
    monkeypatch.setattr(process.subprocess, "Popen", struck)
    with pytest.warns(UserWarning, match=said):
        plan = lm.place(alexnet, v100_mesh(2), "cpsat", time_limit=2)
    assert plan.fits
    assert any("the best plan so far is kept" in note for note in plan.notes)
    assert children(os.getpid()) == others


def test_a_solver_that_exits_costs_nothing(monkeypatch, tmp_path):
    (tmp_path / "mip.py").write_text("import os\nos._exit(3)")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.warns(UserWarning, match="exit code 3"):
        plan = lm.place(SMALL, ms_mesh(2), "ilp", time_limit=5)
    assert plan.makespan <= lm.place(SMALL, ms_mesh(2), "single").makespan
    assert any("the best plan so far is kept" in note for note in plan.notes)


@pytest.mark.parametrize("method", ["ilp", pytest.param("cpsat", marks=needs_cpsat)])
@pytest.mark.parametrize(
    ("module", "name"), [(process, "run"), (exact, "settled"), (exact, "coarsen_problem")]
)
def test_ctrl_c_returns_the_best_so_far(monkeypatch, method, module, name, alexnet):
    # In the solver, in what comes before it, and where a large graph is coarsened.
    def interrupted(*args: object, **options: object) -> None:
        raise process.Interrupted(None) if module is process else KeyboardInterrupt

    monkeypatch.setattr(module, name, interrupted)
    with pytest.warns(UserWarning, match="interrupted"):
        plan = lm.place(alexnet, lm.Cluster.preset("4xV100-PCIe"), method, time_limit=1)
    assert any("interrupted" in note for note in plan.notes)
    assert plan.fits


@pytest.mark.parametrize("method", ["ilp", "pesto", "moirai"])
def test_ctrl_c_before_there_is_a_plan_returns_one_of_heft(monkeypatch, method, lenet):
    def interrupted(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    cluster = v100_mesh(3)
    quick = lm.place(lenet, cluster, "heft")
    monkeypatch.setattr(exact, "instance_of", interrupted)
    with pytest.warns(UserWarning, match=f"{method} was interrupted"):
        plan = lm.place(lenet, cluster, method)
    assert any("interrupted" in note for note in plan.notes)
    assert plan.makespan == quick.makespan


def test_ctrl_c_without_any_plan_stays_one(monkeypatch):
    def interrupted(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(exact, "instance_of", interrupted)
    graph = graph_of({"a": 1}, param_bytes=[10])
    with pytest.raises(KeyboardInterrupt):
        lm.place(graph, ms_mesh(2, memory=9), "pesto")


@needs_cpsat
def test_ctrl_c_keeps_what_cpsat_had_found(monkeypatch):
    problem = fan()
    instance = static_instance(problem)
    start = some_start(instance)
    found = start.devices.tolist(), start.start

    def interrupted(*args: object, **options: object) -> None:
        raise process.Interrupted(found)

    monkeypatch.setattr(process, "run", interrupted)
    answer = cpsat.solve(cpsat.CpsatTask(instance, start, 5.0))
    assert (answer.status, answer.bound) == ("feasible", instance.lower)
    assert (answer.devices.tolist(), answer.start.tolist()) == found
    assert "interrupted" in answer.failure


def test_ctrl_c_in_the_search_ends_all_of_it(monkeypatch):
    def searched(problem: Problem, **options: object) -> object:
        return heft.place(problem).interrupted()

    monkeypatch.setitem(METHODS, "auto", (searched, ""))
    monkeypatch.setattr(process, "run", None)
    plan = lm.place(SMALL, ms_mesh(2), "ilp", time_limit=5)
    assert INTERRUPTED in plan.notes


def test_solving_exactly_imports_no_solver_into_the_caller():
    import sys

    code = (
        "import sys, loadmaster as lm\n"
        "g, c = lm.read('example:lenet'), lm.Cluster.preset('2xV100-NVLink')\n"
        "lm.place(g, c, 'ilp', time_limit=1.0)\n"
        "print([m for m in ('mip', 'highspy', 'ortools') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_static_memory_is_kept():
    problem = drawn(3)
    plan = lm.place(problem.model, problem.cluster, "ilp", time_limit=5, memory="static")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (plan.memory.static <= plan.memory.capacity).all()
    assert heft.place(problem).schedule.makespan >= plan.lower_bound * (1 - 1e-9)
