"""Strategies that users add: known wherever a method is named, held to one judge and to memory."""

from __future__ import annotations

import subprocess
import sys
from typing import get_args

import numpy as np
import pytest

import loadmaster as lm
from loadmaster.base.errors import InfeasibleError, InputError
from loadmaster.cli import main
from loadmaster.strategies import METHODS, Assignment, Method
from loadmaster.strategies.candidate import judged
from loadmaster.strategies.registry import function_of
from loadmaster.strategies.simple import single

CLUSTER = lm.Cluster.preset("2xV100-NVLink")


def on_one(problem, *, device: int = 0):
    ops = np.arange(problem.graph.n_ops)
    return Assignment(np.full_like(ops, device), ops)


def test_a_former_name_still_works_and_the_plan_has_the_name_of_today():
    plan = lm.place("example:lenet", "2xV100-NVLink", "expert")
    assert plan.method == "layers"
    assert "expert" not in list(METHODS)


def test_place_compare_and_the_command_line_know_it(alexnet, capsys):
    lm.strategy("on-one", "everything on one device")(on_one)
    plan = lm.place(alexnet, CLUSTER, "on-one", device=1)
    assert (plan.method, plan.options) == ("on-one", {"device": 1})
    assert set(plan.devices) == {1}
    assert plan.makespan == lm.place(alexnet, CLUSTER, "single").makespan
    assert set(lm.compare(alexnet, CLUSTER, ["on-one", "single"]).plans) == {"on-one", "single"}
    command = ["place", "example:alexnet", "--method", "on-one", "--option", "device=1"]
    assert main(command) == 0
    assert "by on-one" in capsys.readouterr().out


def test_the_function_itself_stays_as_it_was():
    assert lm.strategy("on-one", "")(on_one) is on_one


def test_options_are_checked(alexnet):
    lm.strategy("on-one", "")(on_one)
    with pytest.raises(InputError, match="has no option 'colour'; there are device"):
        lm.place(alexnet, CLUSTER, "on-one", colour=1)


def test_memory_binds_it_too():
    graph = lm.read("example:inception-v3")
    lm.strategy("on-one", "")(on_one)
    with pytest.raises(InfeasibleError):
        lm.place(graph, CLUSTER, "on-one")
    assert not lm.place(graph, CLUSTER, "on-one", on_oom="best_effort").fits


def test_a_candidate_is_taken_as_it_is(alexnet):
    lm.strategy("alone", "")(lambda problem: single.place(problem))
    assert lm.place(alexnet, CLUSTER, "alone").makespan > 0


def test_a_candidate_is_held_to_the_memory():
    graph = lm.read("example:inception-v3")
    lm.strategy("alone", "", is_final=True)(lambda problem: judged(problem, on_one(problem)))
    with pytest.raises(InfeasibleError, match="short on gpu0"):
        lm.place(graph, CLUSTER, "alone")
    assert not lm.place(graph, CLUSTER, "alone", on_oom="best_effort").fits


def test_time_limit_and_progress_are_passed_on(alexnet):
    seen = {}

    @lm.strategy("watched", "")
    def watched(problem, *, time_limit=None, progress=None):
        seen.update(time_limit=time_limit)
        progress("watching", None)
        return on_one(problem)

    said = []
    lm.place(
        alexnet, CLUSTER, "watched", time_limit=3, progress=lambda stage, *_: said.append(stage)
    )
    assert seen == {"time_limit": 3}
    assert "watching" in said


@pytest.mark.parametrize("name", ["", "Two Words", "x_y", None, "heft"])
def test_names_that_cannot_be(name):
    with pytest.raises(InputError, match="name"):
        lm.strategy(name, "")(on_one)
    assert function_of("heft", {}).__module__ == "loadmaster.strategies.lists.heft"


@pytest.mark.parametrize(
    ("returned", "error"),
    [
        (lambda n: None, "wants an Assignment or a Candidate"),
        (lambda n: Assignment(np.zeros(3, int), np.arange(n)), "devices has shape"),
        (lambda n: Assignment(np.zeros(n), np.arange(n)), "wants .* integers"),
        (lambda n: Assignment(np.full(n, 2), np.arange(n)), "on device 2: wants 0 to 1"),
        (lambda n: Assignment(np.full(n, -1), np.arange(n)), "on device -1"),
    ],
)
def test_what_is_no_placement_is_named(alexnet, returned, error):
    lm.strategy("wrong", "")(lambda problem: returned(problem.graph.n_ops))
    with pytest.raises(InputError, match=error):
        lm.place(alexnet, CLUSTER, "wrong")


def test_a_method_that_needs_an_option_is_there_by_name_and_not_listed(alexnet):
    @lm.strategy("needing", "what is given")
    def place(problem, *, device: int):
        n = problem.graph.n_ops
        return Assignment(np.full(n, device, dtype=np.int32), np.arange(n, dtype=np.int32))

    assert "needing" in METHODS
    assert "recipe" in METHODS
    assert not {"needing", "recipe"} & {*METHODS}
    with pytest.raises(InputError, match="'needing' needs the option 'device'"):
        lm.place(alexnet, CLUSTER, "needing")
    assert lm.place(alexnet, CLUSTER, "needing", device=1).device("convolution") == "gpu1"


def test_the_methods_that_type_checkers_know_come_first():
    known = [name for name in get_args(Method) if name != "recipe"]
    assert list(METHODS)[: len(known)] == known
    assert all(what and "\n" not in what for _, what in METHODS.values())


def test_a_method_that_comes_along_is_one_file():
    def place(problem):
        return on_one(problem)

    place.__module__ = "loadmaster.strategies.simple.last_one"
    lm.strategy("last-one", "as if its file were there")(place)
    assert list(METHODS)[-1] == "last-one"
    with pytest.raises(InputError, match="'last-one' is a method that comes along"):
        lm.strategy("last-one", "")(on_one)


def test_a_method_is_found_without_importing_the_others():
    code = (
        "import sys, loadmaster as lm\n"
        "g, c = lm.read('example:lenet'), lm.Cluster.preset('2xV100-NVLink')\n"
        "lm.place(g, c, 'heft')\n"
        "print([m for m in sys.modules if m.startswith('loadmaster.strategies.exact.')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_methods_that_compete_in_stages_are_placed_too(alexnet):
    calls = []

    @lm.strategy("first", "")
    def first(problem):
        calls.append("first")
        return on_one(problem)

    lm.strategy("second", "", rivals_in_stages=("first",))(on_one)
    lm.place(alexnet, CLUSTER, "second")
    assert calls == []
    lm.place(alexnet, CLUSTER, "second", constraints=lm.Constraints(contiguous=True))
    assert calls == ["first"]


def test_what_a_test_registers_is_gone():
    ours = {"on-one", "wrong", "watched", "alone", "first", "second", "last-one"}
    assert not ours & set(METHODS)
