"""Solves many small tasks in one process: starting one for each would take most of the time.

    python solve_batch.py TASKS.pickle ANSWERS.pickle

A task is a model (solved by CBC) or a task of CP-SAT; all of one kind, since the two solvers cannot
share a process.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from loadmaster.milp.model import Model


def solve_all(tasks: list) -> list:
    """Answers in the order of the tasks."""
    with tempfile.TemporaryDirectory() as name:
        given, made = Path(name) / "tasks", Path(name) / "answers"
        given.write_bytes(pickle.dumps(tasks))
        command = [sys.executable, __file__, str(given), str(made)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
        return pickle.loads(made.read_bytes())


def _answer(task, folder: Path):
    if isinstance(task, Model):
        from loadmaster.milp import child

        return child.run(task, "cbc", 60.0, time.monotonic())
    from loadmaster.milp import cpsat_child

    return cpsat_child.work(task, folder, time.monotonic())


if __name__ == "__main__":
    tasks = pickle.loads(Path(sys.argv[1]).read_bytes())
    with tempfile.TemporaryDirectory() as folder:
        answers = [_answer(task, Path(folder)) for task in tasks]
    Path(sys.argv[2]).write_bytes(pickle.dumps(answers))
