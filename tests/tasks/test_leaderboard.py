"""Leaderboards: figures by hand, what counts, files of the user's, and nothing that is dropped."""

from __future__ import annotations

import csv
import json
import math

import numpy as np
import pytest

import loadmaster as lm
from loadmaster.base.errors import InputError
from loadmaster.cli import main
from loadmaster.strategies import Assignment
from loadmaster.strategies.user_method import method_of
from loadmaster.tasks.leaderboard import BoardRow, Leaderboard

MINE = """
import numpy as np
import loadmaster as lm
from loadmaster.strategies import Assignment


def on_first(problem):
    ops = np.arange(problem.graph.n_ops, dtype=np.int32)
    return Assignment(np.zeros_like(ops), ops)


@lm.strategy("named", "everything on the last device")
def decorated(problem, *, device: int = -1):
    ops = np.arange(problem.graph.n_ops, dtype=np.int32)
    return Assignment(np.full_like(ops, device % problem.cluster.n_devices), ops)


class MyMethod:
    def __call__(self, problem):
        return on_first(problem)


def broken(problem):
    raise RuntimeError("no idea")


def heft(problem):
    return on_first(problem)
"""


@pytest.fixture
def mine(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return str(path)


def row(instance, method, makespan, best, outcome="done"):
    return BoardRow(instance, method, outcome, makespan, best, 1.0, 0.5)


def board(*rows):
    methods = dict.fromkeys(r.method for r in rows)
    return Leaderboard(tuple(methods), tuple(dict.fromkeys(r.instance for r in rows)), rows)


def test_standings_by_hand():
    """b solves both, a one of them: b is first, and means are over what both have solved."""
    found = board(
        row("x", "a", 2.0, 2.0),
        row("x", "b", 4.0, 2.0),
        row("x", "c", None, 2.0, "failed"),
        row("y", "a", None, 1.0, "infeasible"),
        row("y", "b", 9.0, 1.0),
        row("y", "c", 1.0, 1.0, "splits ops"),
    )
    first, second, third = found.standings
    assert (first.rank, first.method, first.solved, first.mean) == (1, "b", 2, 2.0)
    assert (first.worst, first.best) == (9.0, 1)
    assert (second.rank, second.method, second.solved, second.mean) == (2, "a", 1, 1.0)
    assert (third.rank, third.method, third.solved, third.mean) == (3, "c", 0, None)
    assert [r.outcome for r in found.failures] == ["failed", "infeasible", "splits ops"]


def test_a_mean_is_geometric_and_level_methods_share_a_rank():
    found = board(
        row("x", "a", 2.0, 1.0), row("x", "b", 8.0, 1.0), row("x", "c", 9.0, 1.0),
        row("y", "a", 8.0, 1.0), row("y", "b", 2.0, 1.0), row("y", "c", 9.0, 1.0),
    )  # fmt: skip
    assert [one.mean for one in found.standings] == pytest.approx([4.0, 4.0, 9.0])
    assert [one.rank for one in found.standings] == [1, 1, 3]


def test_without_a_best_known_the_bound_is_the_reference():
    assert row("x", "a", 3.0, None).ratio == 3.0
    assert BoardRow("x", "a", "done", 3.0, None, 0.0, 0.1).ratio == math.inf


def test_a_shorter_plan_than_the_best_known_is_said():
    found = board(row("x", "a", 1.0, 2.0))
    assert [r.instance for r in found.records] == ["x"]
    assert "shorter than the best known by 50.00%" in str(found)


def test_rows_are_what_place_says():
    found = lm.leaderboard(["heft", "etf"], ["planted/100x4-ccr1-0", "planted/100x2-ccr1-0"])
    for one in found.rows:
        instance = lm.instances.load(one.instance)
        plan = lm.place(instance.graph, instance.cluster, one.method)
        assert one.makespan == plan.makespan
        assert one.best_known == instance.best_known
        assert one.lower_bound <= one.makespan * (1 + 1e-9)
    assert found.instances == ("planted/100x4-ccr1-0", "planted/100x2-ccr1-0")


def test_two_runs_say_the_same_but_for_seconds():
    once, again = (lm.leaderboard(["heft", "random"], "planted/100x2-*", seed=3) for _ in range(2))
    assert [r.makespan for r in once.rows] == [r.makespan for r in again.rows]
    assert [s.mean for s in once.standings] == [s.mean for s in again.standings]


def test_nothing_stands_in_for_a_method():
    """Where memory is tight, one device does not hold all: `place` would search in its stead."""

    @lm.strategy("on-one", "everything on one device")
    def on_one(problem):
        ops = np.arange(problem.graph.n_ops, dtype=np.int32)
        return Assignment(np.zeros_like(ops), ops)

    name = "scheduling/n20-train-K4-hom-ccr5-tight"
    instance = lm.instances.load(name)
    assert lm.place(instance.graph, instance.cluster, "on-one").fits
    (found,) = lm.leaderboard("on-one", name).rows
    assert (found.outcome, found.makespan) == ("infeasible", None)
    assert found.why


def test_plans_that_split_ops_count_only_where_they_may():
    name = "models/lenet@2xV100-NVLink"
    (whole,) = lm.leaderboard("data-parallel", name).rows
    assert (whole.outcome, whole.ratio) == ("splits ops", None)
    assert whole.makespan is not None
    (split,) = lm.leaderboard("data-parallel", name, split="auto").rows
    assert split.outcome == "done"
    (auto,) = lm.leaderboard([("auto", {"effort": 0.01})], name).rows
    assert auto.outcome == "done", "auto is told to place whole ops"


def test_methods_of_a_file(mine, capsys):
    chosen = f"{mine}:on_first,{mine}:decorated,{mine}:MyMethod,{mine}:broken,single"
    assert main(["leaderboard", "planted/100x2-ccr1-0", "--methods", chosen, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    outcomes = {r["method"]: (r["outcome"], r["makespan"]) for r in found["rows"]}
    assert list(outcomes) == ["on-first", "named", "my-method", "broken", "single"]
    assert outcomes["broken"] == ("failed", None)
    assert "RuntimeError: no idea" in str(found)
    same = {outcomes[name] for name in ("on-first", "named", "my-method")}
    assert len(same) == 1, "all on one of two equal devices"


def test_an_option_of_a_method_of_a_file(mine):
    name = method_of(f"{mine}:decorated")
    found = lm.leaderboard([(name, {"device": 0}), "single"], "planted/100x2-ccr1-0")
    assert found.rows[0].makespan == found.rows[1].makespan


def test_a_method_of_a_file_in_place_and_compare(mine, capsys):
    arguments = ["example:lenet", "--cluster", "2xV100-NVLink"]
    assert main(["place", *arguments, "--method", f"{mine}:on_first"]) == 0
    assert main(["compare", *arguments, "--methods", f"{mine}:on_first,single"]) == 0
    assert "on-first" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("function", "words"),
    [("gone", "has no function 'gone'"), ("heft", "a method that comes along")],
)
def test_a_function_that_is_no_method(mine, function, words):
    with pytest.raises(InputError, match=words):
        method_of(f"{mine}:{function}")


def test_files_that_are_written(tmp_path, capsys):
    paths = [tmp_path / f"board.{suffix}" for suffix in ("md", "csv", "json")]
    options = [word for path in paths for word in ("-o", str(path))]
    assert main(["leaderboard", "planted/100x2-*", "--methods", "heft,m-topo", *options]) == 0
    markdown, table, document = (path.read_text() for path in paths)
    assert markdown.count("| planted/100x2-") == 3
    rows = list(csv.DictReader(table.splitlines()))
    assert [r["method"] for r in rows] == ["heft", "m-topo"] * 3
    found = json.loads(document)
    assert [float(r["makespan"]) for r in rows] == [r["makespan"] for r in found["rows"]]
    assert {s["method"]: s["solved"] for s in found["standings"]} == {"heft": 3, "m-topo": 3}
    assert "written to" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--methods", "hefd"], "did you mean 'heft'"),
        (["--methods", "heft,heft"], "given twice"),
        (["--methods", "heft", "-o", "board.txt"], "is written to .md, .csv, .json"),
        (["nothing", "--methods", "heft"], "no instance is named 'nothing'"),
        (["--methods", "heft", "--option", "etf.memory=static"], "with a method of heft"),
        (["--methods", "heft", "--option", "heft.x=1"], "has no option 'x'"),
        (["--methods", "gone.py:f"], "there is no file gone.py"),
        (["--methods", "heft", "--folder", "gone"], "cannot read the folder gone"),
    ],
)
def test_what_is_wrong_is_said_before_any_work(arguments, words, capsys):
    assert main(["leaderboard", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_an_interrupted_run_keeps_its_rows():
    def stop(done, total, row):
        if done == 2:
            raise KeyboardInterrupt

    found = lm.leaderboard("heft", "planted/100x2-*", progress=stop)
    assert (len(found.rows), found.unfinished) == (2, 1)
    assert "interrupted: 1 row is missing" in str(found)
