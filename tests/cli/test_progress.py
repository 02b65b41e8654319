"""What long work says: nothing but results where nobody watches, one line where somebody does."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

import loadmaster as lm
import loadmaster.cli.progress as module
from loadmaster.base.progress import Incumbent
from loadmaster.cli import main
from loadmaster.cli.progress import ProgressLine


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def test_incumbent_bound_gap_and_time_left():
    clock = Clock()
    with ProgressLine(15.0, clock) as progress:
        progress("costs")
        assert progress.line() == "costs | 15 s left"
        progress("search", Incumbent(0.02, 0.015))
        clock.now += 5
        assert progress.line() == "search | best 20 ms | bound 15 ms | gap 25.0% | 10 s left"
        progress("refine", Incumbent(0.016, 0.015))
        clock.now += 50
        assert progress.line() == "refine | best 16 ms | bound 15 ms | gap 6.3% | 0 s left"
        progress("the next graph")
        assert progress.line() == "the next graph | 0 s left"


def test_each_of_several_cases_has_the_time_limit():
    clock = Clock()
    with ProgressLine(10.0, clock, is_of_cases=True) as progress:
        progress("heft, 1 of 2: costs")
        clock.now += 4
        progress("heft, 1 of 2: heft")
        assert progress.line() == "heft, 1 of 2: heft | 6 s left"
        progress("auto, 2 of 2: costs")
        assert progress.line() == "auto, 2 of 2: costs | 10 s left"


@pytest.mark.parametrize("does", ["compare", "advise"])
def test_several_plans_say_which_is_made_and_of_how_many(does):
    cases = {"compare": ["single", "heft"], "advise": ["auto", "ddp", "fsdp"]}[does]
    asked = {"methods": cases} if does == "compare" else {"targets": cases[1:]}
    told: list[str] = []
    getattr(lm, does)(
        "example:lenet", "2xV100-NVLink", progress=lambda stage, best: told.append(stage), **asked
    )
    heads = list(dict.fromkeys(stage.partition(": ")[0] for stage in told))
    assert heads == [f"{name}, {i} of {len(cases)}" for i, name in enumerate(cases, start=1)]


def test_fit_tells_the_plan_that_fits_so_far():
    told = []
    lm.fit("example:lenet", "4xV100-PCIe", target="ddp", progress=lambda *said: told.append(said))
    bests = [best for stage, best in told if stage.endswith(" of 4 devices")]
    assert bests
    assert all(0 < best.lower_bound <= best for best in bests)


def test_nobody_watches_nothing_is_said(capsys, monkeypatch):
    monkeypatch.setattr(module, "PATIENCE", 0.0)
    assert main(["place", "example:lenet", "--method", "auto"]) == 0
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        (["place", "example:lenet", "--method", "heft"], "the plan is not saved: -o PLAN.json"),
        (
            ["compare", "example:lenet", "--methods", "heft"],
            "-o PLAN.json, or --target TARGET, saves one",
        ),
        (["sweep", "example:lenet", "--methods", "heft", "--workers", "1"], "-o TABLE.csv saves"),
        (["fit", "example:lenet"], ""),
    ],
)
def test_what_is_not_saved_is_said_with_how_to_save_it(words, kept, capsys):
    assert main(words) == 0
    *_, last = capsys.readouterr().err.splitlines()
    assert last.startswith("loadmaster: result written to standard output")
    assert kept in last
    assert bool(kept) == (";" in last)


def test_a_trace_alone_saves_no_plan(tmp_path, capsys):
    trace = tmp_path / "trace.json"
    assert main(["place", "example:lenet", "--method", "heft", "--trace", str(trace)]) == 0
    assert capsys.readouterr().err == (
        f"loadmaster: trace written to {trace}; the plan is not saved: -o PLAN.json saves it\n"
    )


@pytest.mark.parametrize("flag", ["-o", "--trace", "--timeline"])
def test_where_nothing_can_be_written_is_told_before_any_work(flag, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(
        "loadmaster.tasks.place.place", lambda *_, **__: pytest.fail("it was placed")
    )
    for path, why in (("no/where.png", "there is no folder"), (".", "it is a folder")):
        assert main(["place", "example:lenet", flag, str(tmp_path / path)]) == 2
        if flag != "--timeline" or path != ".":
            assert why in capsys.readouterr().err


def test_an_unknown_option_names_the_one_that_is_like_it(capsys):
    assert main(["place", "example:lenet", "--metod", "heft"]) == 2
    said = capsys.readouterr().err
    assert "unrecognized arguments: --metod heft: did you mean '--method'?" in said


def test_the_version(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"loadmaster {lm.__version__}\n"


def test_the_last_line_says_where_the_results_went(tmp_path, capsys):
    plan, trace = tmp_path / "plan.json", tmp_path / "trace.json"
    assert main(["place", "example:lenet", "-o", str(plan), "--trace", str(trace)]) == 0
    assert capsys.readouterr().err.splitlines() == [
        f"loadmaster: plan written to {plan}",
        f"loadmaster: trace written to {trace}",
    ]


def test_a_terminal_sees_a_line_that_is_gone_at_the_end(tmp_path):
    """The command on a pseudo-terminal, told to say at once what it would say after 2 s."""
    code = (
        "import sys, loadmaster.cli.progress as p; p.PATIENCE = 0.0;"
        " from loadmaster.cli import main;"
        " sys.exit(main(['place', 'example:bert-large', '--time-limit', '8s',"
        f" '-o', {str(tmp_path / 'plan.json')!r}]))"
    )
    mine, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "200"},
    ) as process:
        os.close(theirs)
        seen = b""
        try:
            while chunk := os.read(mine, 65536):
                seen += chunk
        except OSError:  # The other end is closed.
            pass
        out = process.stdout.read().decode()
        assert process.wait() == 0
    os.close(mine)
    said = seen.decode()
    assert "s left" in said
    assert "best " in said
    assert "gap " in said
    assert said.rstrip().splitlines()[-1].endswith(f"plan written to {tmp_path / 'plan.json'}")
    assert "per step" in out
    assert "left" not in out
