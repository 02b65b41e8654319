"""``loadmaster run``: emulated devices, what it writes and says, files that build no model.

Models themselves are run in tests/live.
"""

from __future__ import annotations

import json
import sys

import pytest

import loadmaster as lm
from loadmaster.cli import main
from loadmaster.running.measured.measured import Measured
from loadmaster.running.tape.models import built

QUICK = ("--emulate", "--seconds", "5ms", "--steps", "2")


@pytest.fixture
def plan(tmp_path) -> str:
    path = tmp_path / "plan.json"
    graph, cluster = lm.read("example:lenet"), lm.Cluster.preset("2xV100-NVLink")
    lm.place(graph, cluster, "round-robin").save(path)
    return str(path)


def test_an_emulated_run_is_saved_drawn_and_summed_up(plan, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    paths = {name: tmp_path / name for name in ("run.json", "trace.json", "step.svg")}
    files = ("-o", "run.json", "--trace", "trace.json", "--timeline", "step.svg")
    words = [str(paths.get(word, word)) for word in files]
    assert main(["run", plan, *QUICK, *words]) == 0
    seen = Measured.load(paths["run.json"])
    out, err = capsys.readouterr()
    assert out.strip() == seen.summary()
    assert all(f"written to {path}" in err for path in paths.values())
    assert ("the machine was too busy" in err) == seen.is_busy
    assert seen.on == ("emulated", "emulated")
    assert len(seen.steps) == 2
    trace = json.loads(paths["trace.json"].read_text())["traceEvents"]
    assert {e["name"] for e in trace} >= {"convolution"}
    assert "round-robin, measured" in paths["step.svg"].read_text()


def test_json_is_for_machines(plan, capsys):
    assert main(["run", plan, *QUICK, "--json"]) == 0
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert document["predicted"] == lm.Plan.load(plan).makespan
    assert document["error"] == pytest.approx(document["predicted"] / document["step"] - 1)
    assert {row["of"] for row in document["ratios"]} == {"step", "op", "link"}
    assert sum(document["causes"]["parts"].values()) == pytest.approx(
        document["causes"]["difference"]
    )
    assert "-o MEASURED.json saves it" in err


def test_adapt_ends_with_the_plan_that_was_measured_fastest(plan, tmp_path, capsys):
    path = tmp_path / "run.json"
    assert main(["run", plan, *QUICK, "--adapt", "1", "-o", str(path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    steps = [candidate["step"] for candidate in document["candidates"]]
    assert document["which"] == steps.index(min(steps))
    assert document["best"]["step"] == min(steps) == Measured.load(path).step


def test_the_help_says_that_the_file_is_executed(capsys):
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    assert "THE FILE IS EXECUTED" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--emulate", "--on", "gpu0=cpu:0"], "--on is for --model"),
        (["--emulate", "--steps", "0"], "--steps: '0' is not at least 1"),
        (["--emulate", "--adapt", "none"], "--adapt: 'none' is no whole number"),
        (["--emulate", "--seconds", "2"], "--seconds"),
        (["--model", "my.py:build", "--seconds", "2s"], "--seconds is for --emulate"),
        (["--model", "my.py:build", "--on", "gpu0"], "--on 'gpu0' has no two sides of a '='"),
        (["--model", "my.py:build", "--on", "gpu7=cpu:0"], "no device 'gpu7'"),
        (["--emulate", "-o", "nowhere/run.json"], "there is no folder"),
        (["--emulate", "--timeline", "run.gif"], "run.gif"),
    ],
)
def test_what_cannot_be_asked_for_is_refused_before_anything_runs(plan, words, says, capsys):
    assert main(["run", plan, *words]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["--emulate", "--model", "my.py:build"]])
def test_it_runs_either_a_model_or_emulated_devices(plan, words, capsys):
    assert main(["run", plan, *words]) == 2
    assert "--emulate" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("spec", "text", "says"),
    [
        ("my.py", None, "wants FILE.py:FUNCTION, such as my.py:build"),
        (":build", None, "wants FILE.py:FUNCTION"),
        ("my.py:build", None, "there is no file"),
        ("my.txt:build", "", "no file of Python; its name must end in .py"),
        ("my.py:build", "", "has no function 'build'"),
        ("my.py:build", "build = 3", "has no function 'build'"),
        ("my.py:build", "def build(:", "SyntaxError"),
        ("my.py:build", "raise ImportError('no such layer')", "ImportError: no such layer"),
        ("my.py:build", "def build(n): pass", "TypeError: build() missing 1 required"),
        ("my.py:build", "def build(): return 3", "build returned a int, wants a dictionary"),
    ],
)
def test_a_file_that_builds_no_model_is_refused(tmp_path, monkeypatch, spec, text, says):
    file, colon, name = spec.rpartition(":")
    if text is not None:
        (tmp_path / file).write_text(text)
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(lm.InputError) as told:
        built(f"{tmp_path / file if file else ''}{colon}{name}")
    assert says in str(told.value)


def test_a_file_is_executed_and_may_import_what_stands_beside_it(tmp_path, monkeypatch):
    (tmp_path / "beside.py").write_text("SIZE = 7\n")
    (tmp_path / "my.py").write_text(
        "from beside import SIZE\ndef build():\n    return {'model': SIZE, 'name': __name__}\n"
    )
    monkeypatch.setattr(sys, "path", [*sys.path])
    found = built(f"{tmp_path / 'my.py'}:build")
    assert found["model"] == 7
    assert found["name"] in sys.modules
