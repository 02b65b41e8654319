"""What long work says: nothing but results where nobody watches, one line where somebody does."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

from loadmaster import progress as module
from loadmaster.cli import main
from loadmaster.placing import Incumbent
from loadmaster.progress import Progress, clock_of


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def test_incumbent_bound_gap_and_time_left():
    clock = Clock()
    with Progress(15.0, clock) as progress:
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


@pytest.mark.parametrize(
    ("method", "options", "seconds"),
    [
        ("auto", {}, 1.0),
        ("auto", {"effort": "normal"}, 15.0),
        ("auto", {"effort": 0.1}, None),
        ("heft", {}, None),
    ],
)
def test_the_time_that_a_method_gives_itself(method, options, seconds):
    assert clock_of(method, options) == seconds


def test_nobody_watches_nothing_is_said(capsys, monkeypatch):
    monkeypatch.setattr(module, "PATIENCE", 0.0)
    assert main(["place", "example:lenet", "--method", "auto"]) == 0
    assert capsys.readouterr().err == "loadmaster: result written to standard output\n"


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
        "import sys, loadmaster.progress as p; p.PATIENCE = 0.0; from loadmaster.cli import main;"
        " sys.exit(main(['place', 'example:bert-large', '--time-limit', '2',"
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
