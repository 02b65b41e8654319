"""The ledger: the same report on every run, and a run that goes on where it was."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest
from folders import BENCHES

WRITTEN = ("quality.md", "quality.csv", "quality.svg")


def ledger(out: Path, *options: str) -> str:
    """Runs it on two small graphs of two sorts; what it prints."""
    command = [sys.executable, str(BENCHES / "quality.py"), "--out", str(out), "--limit", "60"]
    command += ["--graphs", "moirai-googlenet", "planted-1000-2-1-0", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout


def test_the_report_is_the_same_on_every_run(tmp_path):
    pytest.importorskip("matplotlib")
    methods = ("--methods", "celeritas", "single")
    first = ledger(tmp_path / "a", *methods)
    assert len(first.splitlines()) == 2 * 2
    ledger(tmp_path / "b", *methods)
    for name in WRITTEN:
        a, b = (tmp_path / run / name for run in "ab")
        assert a.read_bytes() == b.read_bytes(), name

    more = ledger(tmp_path / "a", *methods, "m-topo")
    assert [line.split()[0] for line in more.splitlines()] == 2 * ["m-topo"], "the others are kept"
    with (tmp_path / "a" / "quality.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["outcome"] for row in rows} == {"fits"}
    assert all(float(row["bound"]) <= float(row["makespan"]) * (1 + 1e-6) for row in rows)
    single = [float(row["fraction"]) for row in rows if row["method"] == "single"]
    assert single == pytest.approx([1.0] * len(single))
