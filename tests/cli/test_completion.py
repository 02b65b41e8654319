"""Completion: what a shell is told may come next."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from loadmaster.cli import main

pytest.importorskip("argcomplete")


def asked(line: str, tmp_path) -> list[str]:
    """What completes a line, as argcomplete's protocol has it: on a file, by tabs."""
    out = tmp_path / "out"
    environment = {
        **os.environ,
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_IFS": "\t",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(out),
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
    }
    command = [sys.executable, "-c", "from loadmaster.cli import main; main()"]
    subprocess.run(command, env=environment, check=False, capture_output=True, cwd=tmp_path)
    return [word.strip() for word in out.read_text().split("\t")]


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("loadmaster pla", "place"),
        ("loadmaster place example:le", "example:lenet"),
        ("loadmaster place x --method hef", "heft"),
        ("loadmaster compare x --methods auto,hef", "auto,heft"),
        ("loadmaster place x --cluster 8xH100-NVLink-", "8xH100-NVLink-eager"),
        ("loadmaster place x --target dd", "ddp"),
        ("loadmaster place x --object", "--objective"),
        ("loadmaster place x --method heft --option mem", "memory=static"),
        ("loadmaster place x --option eff", "effort=normal"),
        ("loadmaster place x --target ddp --option rep", "replicas="),
    ],
)
def test_what_comes_next(line, word, tmp_path):
    assert word in asked(line, tmp_path)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_is_told_whom_to_ask(shell, capsys):
    assert main(["completion", shell]) == 0
    said = capsys.readouterr().out
    assert "_ARGCOMPLETE" in said
    assert "loadmaster" in said
