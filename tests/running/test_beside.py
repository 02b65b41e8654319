"""A run beside its prediction: on the page, and by the command line."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html import unescape

import pytest
from pictured import layered, planned
from ran import disturbed, measured

import loadmaster as lm
from loadmaster.cli import main
from loadmaster.running.measured.measured import Measured
from loadmaster.writers.report.beside import beside, cause_rows, device_rows, ratio_rows


@pytest.fixture(scope="module")
def run() -> Measured:
    graph, cluster = lm.read("example:lenet"), lm.Cluster.preset("2xV100-NVLink")
    return disturbed(lm.place(graph, cluster, "round-robin"), 2, seed=5)


@pytest.fixture
def saved(run, tmp_path) -> dict[str, str]:
    paths = {name: str(tmp_path / f"{name}.json") for name in ("plan", "measured", "other")}
    run.plan.save(paths["plan"])
    run.save(paths["measured"])
    other = lm.place(run.plan.graph, run.plan.cluster, "single")
    measured(other, [0.5]).save(paths["other"])
    return paths


# -- the page ------------------------------------------------------------------------------------


def test_the_page_has_both_steps_and_the_ratios(run, tmp_path):
    run.report(tmp_path / "run.html")
    page = unescape((tmp_path / "run.html").read_text()).replace("<wbr>", "")
    assert '<div id="beside"></div>' in page
    cells = re.sub("<td[^>]*>", "<td>", page)
    for row in ratio_rows(run)[1] + device_rows(run) + cause_rows(run.causes())[1]:
        assert "".join(f"<td>{cell}</td>" for cell in row) in cells
    assert run.causes().head in page
    run.plan.report(tmp_path / "plan.html")
    assert '<div id="beside"></div>' not in (tmp_path / "plan.html").read_text()


def test_the_picture_of_both_fills_what_ran(run):
    figure = beside(run)
    devices = run.plan.cluster.n_devices
    for trace, step in zip(figure["data"], (run.plan, run.seen), strict=True):
        assert len(trace["y"]) == len(trace["base"]) == len(trace["x"])
        ends = [b + x for b, x in zip(trace["base"], trace["x"], strict=True)]
        assert max(ends) == pytest.approx(step.makespan, rel=2e-3)
        for row in range(devices):
            some = [x for y, x in zip(trace["y"], trace["x"], strict=True) if round(y) == row]
            assert sum(some) >= 0.99 * step.schedule.device_busy[row]
    json.dumps(figure, allow_nan=False)


def test_the_picture_of_many_ops_has_few_bars():
    run = measured(planned(layered(20_000), "8xA100-NVLink", "celeritas"), [0.2])
    assert sum(len(trace["y"]) for trace in beside(run)["data"]) < 2 * 24 * 600


def test_rows_that_are_left_out_are_counted(run):
    rows = cause_rows(run.causes())[1]
    changed = [row for row in run.causes().rows if row.seconds]
    if len(changed) > 40:
        assert rows[-1] == (f"and {len(changed) - 40} more rows",)
    assert len(rows) == min(len(changed), 41)


def test_names_on_the_page_are_text(tmp_path):
    named = lm.OpGraph(
        {"name": ["</script><b>bold</b>"], "kind": ["<i>"], "time": {"*": [1e-3]}},
        {"src": [], "dst": []},
    )
    seen = measured(planned(named, "2xV100-NVLink", "single"), [2e-3])
    seen.report(tmp_path / "run.html")
    page = (tmp_path / "run.html").read_text()
    assert "<b>bold" not in page
    assert "&lt;i&gt;" in page


# -- the command line ----------------------------------------------------------------------------


def told(capsys, *words: str) -> str:
    assert main([*words]) == 0
    return capsys.readouterr().out


def test_explain_takes_a_run(run, saved, capsys):
    text = told(capsys, "explain", saved["measured"], "convolution")
    assert text.strip() == str(run.explain("convolution"))
    document = json.loads(told(capsys, "explain", saved["measured"], "convolution", "--json"))
    assert document["measured"][0]["op"] == "convolution"


def test_diff_takes_plan_and_run_or_two_runs(run, saved, capsys):
    document = json.loads(told(capsys, "diff", saved["plan"], saved["measured"], "--json"))
    assert document["makespans"] == pytest.approx([run.plan.makespan, run.seen.makespan])
    assert document["methods"] == ["round-robin", "round-robin, measured"]
    text = told(capsys, "diff", saved["measured"], saved["other"])
    assert "by round-robin, measured -> 500 ms by single, measured" in text


def test_report_and_check_take_a_run(run, saved, tmp_path, capsys):
    told(capsys, "report", saved["measured"], "-o", str(tmp_path / "run.html"))
    assert '<div id="beside"></div>' in (tmp_path / "run.html").read_text()
    assert main(["check", saved["other"], "--max-step", "400ms"]) == 1
    assert main(["check", saved["other"], "--max-step", "600ms"]) == 0


@pytest.mark.parametrize("command", [["simulate"], ["what-if", "--memory", "20GiB"]])
def test_commands_about_plans_take_the_plan_of_a_run(saved, capsys, command):
    first, second = (told(capsys, command[0], saved[p], *command[1:]) for p in ("plan", "measured"))
    assert first == second


def test_a_run_for_another_graph_is_refused(saved, capsys):
    assert main(["check", saved["measured"], "--graph", "example:alexnet"]) == 2
    assert "is a plan for another graph" in capsys.readouterr().err


def test_a_damaged_run_is_told_in_one_line(run, tmp_path, capsys):
    document = run.to_document()
    document["steps"]["finish"][0][0] = -1.0
    (tmp_path / "bad.json").write_text(json.dumps(document))
    assert main(["explain", str(tmp_path / "bad.json"), "convolution"]) == 2
    assert "bad.json is damaged: finish of step 0 has -1.0" in capsys.readouterr().err


def test_a_plan_as_it_was_measured_says_so(run):
    assert "by round-robin, measured: " in run.seen.summary()
    assert "by round-robin: " in run.plan.summary()
    assert run.seen.predicted.makespan == run.plan.makespan
    assert replace(run, on=("cpu:0", "cpu:1")).summary().count("cpu:") == 2
