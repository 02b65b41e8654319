"""Checks: limits are kept or not, each says its figure, and exit codes say which."""

from __future__ import annotations

import json

import pytest
from strategies import graph_of, ms_mesh

import loadmaster as lm
from loadmaster.base.errors import InputError
from loadmaster.base.units import parse_seconds
from loadmaster.cli import main

#: Two ops of 4 ms with 60 and 20 bytes, on two devices.
PLAN = lm.place(
    graph_of({"a": 4, "b": 4}, [("a", "b", 8)], param_bytes=[60, 20], module=["m.0", "m.1"]),
    ms_mesh(2, memory=100),
    "heft",
    constraints=lm.Constraints(pin={"a": 0, "b": 1}),
)


def verdicts(**limits) -> list[bool]:
    return [verdict.ok for verdict in lm.check(PLAN, **limits).verdicts]


def test_limits_by_hand():
    peaks = PLAN.memory.peak.tolist()
    assert PLAN.makespan == pytest.approx(16e-3)  # 4 ms, 8 bytes at one per ms, 4 ms
    assert verdicts() == [True, True]  # memory, its own constraints
    assert verdicts(max_step=0.017) == [True, True, True]
    assert verdicts(max_step="15.9ms") == [True, False, True]
    assert verdicts(max_peak=max(peaks)) == [True, True, True, True]
    assert verdicts(max_peak=max(peaks) - 1) == [True, False, True, True]
    assert verdicts(max_peak={1: peaks[1]}) == [True, True, True]
    assert verdicts(max_peak={"gpu1": peaks[1] - 1}) == [True, False, True]
    assert verdicts(forbid="gpu1") == [True, False, True]
    assert verdicts(forbid=["cpu", 0]) == [True, True, False, True]
    asked = lm.Constraints(pin={"b": 0}, contiguous=True)
    assert verdicts(constraints=asked) == [True, True, False]
    broken = lm.check(PLAN, constraints=asked).verdicts[-1]
    assert broken.found == "pin b=0: 'b' is on gpu1"


def test_what_is_broken_is_named():
    plan = lm.place(
        PLAN.graph, PLAN.cluster, "heft", constraints=lm.Constraints(pin={"b": 0, "a": 1})
    )
    asked = lm.Constraints(
        no_split=["m"], contiguous=True, reserve={"gpu1": 90}, kinds={"gpu0": "re:"}
    )
    [_, _, verdict] = lm.check(plan, constraints=asked).verdicts
    for words in (
        "no_split: 'm' is on gpu0 and gpu1",
        "contiguous: an op feeds an earlier stage",
        "reserve of gpu1: 58 B of it are used",
    ):
        assert words in verdict.found
    assert "kinds" not in verdict.found


def test_a_plan_that_does_not_fit_fails():
    over = lm.place(PLAN.graph, ms_mesh(1, memory=50), "single", on_oom="best_effort")
    seen = lm.check(over)
    assert not seen.ok
    assert seen.verdicts[0].found.startswith("short on gpu0 by ")
    assert str(seen).startswith("FAIL  memory: short on gpu0")


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"max_step": "fast"}, "max_step is 'fast'"),
        ({"max_step": -1}, "max_step is -1"),
        ({"max_peak": {"gpu7": 1}}, "no device is 'gpu7'"),
        ({"max_peak": "much"}, "max_peak of . is 'much'"),
        ({"constraints": lm.Constraints(pin={"z": 0})}, "no op or module matches 'z'"),
    ],
)
def test_bad_limits_are_named(limits, words):
    with pytest.raises(InputError, match=words):
        lm.check(PLAN, **limits)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("120ms", 0.12), ("1.5 s", 1.5), ("3us", 3e-6), ("2e-3 s", 2e-3), ("2min", 120.0), (0.5, 0.5)],
)
def test_times_as_people_write_them(text, seconds):
    assert parse_seconds(text) == pytest.approx(seconds, rel=1e-15)


@pytest.mark.parametrize("text", ["", "ms", "1e999", "-1s", "1 h", "nan", None, True, float("inf")])
def test_times_that_are_none(text):
    with pytest.raises(InputError, match="time is"):
        parse_seconds(text)


def test_exit_codes(tmp_path, capsys):
    path = str(tmp_path / "plan.json")
    PLAN.save(path)
    good = ["check", path, "--max-peak", "0=30GiB", "--max-step", "120ms", "--forbid", "cpu"]
    assert main(good) == 0
    assert "FAIL" not in capsys.readouterr().out
    assert main([*good, "--max-step", "1ms", "--json"]) == 1
    seen = json.loads(capsys.readouterr().out)
    assert seen["ok"] is False
    [step] = [v for v in seen["verdicts"] if v["what"].startswith("step")]
    assert (step["ok"], step["limit"]) == (False, 1e-3)
    assert step["value"] == pytest.approx(16e-3)
    assert main([*good, "--no-split", "m.*", "--contiguous"]) == 0
    assert main([*good, "--pin", "b=0"]) == 1
    capsys.readouterr()
    assert main([*good, "--max-peak", "5=1GiB"]) == 2
    assert "no device is '5'" in capsys.readouterr().err
    assert main(["check", path, "--graph", "example:lenet"]) == 2
    assert "is a plan for another graph" in capsys.readouterr().err
