"""Compares the speed of two builds of Loadmaster: the rows of ``peers.py`` and of Criterion.

    python benches/builds.py rows OLD_PYTHON OLD_TREE NEW_PYTHON NEW_TREE [--rounds 20] [--core 1]
    python benches/builds.py criterion OLD_FOLDER NEW_FOLDER [--rounds 20] [--core 1]

``rows`` keeps a process per build, each with the Python that the build is installed in and the
``peers.py`` of its own tree, and asks them in turn for one run of a row: CPU seconds. ``criterion``
runs the programs ``pipeline`` and ``coarsen`` of two folders in turn (what ``cargo bench --no-run``
leaves in ``target/release/deps``, without the hash in the name): wall seconds, so nothing else may
run meanwhile. Both bind themselves to one core. Printed per row: median milliseconds of the old and
the new build and their ratio; at last the geometric mean of the ratios. Linux.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

#: Seconds of each round by row, of the old build and of the new one.
Seconds = dict[str, tuple[list[float], list[float]]]

T = TypeVar("T")

OPS = 50_000

#: Rows of ``peers.py`` that are not Loadmaster's, which show how alike the two processes are.
OTHERS = ("rustworkx", "METIS")


def answer(tree: str, shuffle: bool) -> None:
    """A process of ``rows``: prints the names of its rows, then seconds for each name it reads."""
    sys.path.insert(0, f"{tree}/benches")
    import peers
    from layered import layered

    data = layered(OPS, shuffle=shuffle)
    rows: dict[str, Callable[[], object]] = peers.contenders(data)
    rows = {name: run for name, run in rows.items() if not name.startswith("networkx")}
    rows |= {f"loadmaster: {name}": run for name, run in peers.schedulers(data).items()}
    print(json.dumps(list(rows)), flush=True)
    for line in sys.stdin:
        gc.collect()
        began = time.process_time()
        rows[json.loads(line)]()
        print(time.process_time() - began, flush=True)


@contextmanager
def asked(python: str, tree: str, shuffle: bool) -> Iterator[subprocess.Popen[str]]:
    """A process that runs :func:`answer` for a build."""
    words = [python, __file__, "answer", tree, str(int(shuffle))]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True, cwd="/") as process:
        yield process


def of_rows(builds: list[str], rounds: int) -> Seconds:
    """CPU seconds of the rows of ``peers.py``, ops in order and shuffled, after a warm-up."""
    found: Seconds = {}
    for shuffle in (False, True):
        with asked(*builds[:2], shuffle) as old, asked(*builds[2:], shuffle) as new:
            listed = [json.loads(process.stdout.readline()) for process in (old, new)]
            for turn in range(rounds + 1):
                for name in (row for row in listed[0] if row in listed[1]):
                    key = f"{name} ({'shuffled' if shuffle else 'in order'})"
                    for which, process in ordered([old, new], turn):
                        process.stdin.write(json.dumps(name) + "\n")
                        process.stdin.flush()
                        seconds = float(process.stdout.readline())
                        if turn:
                            found.setdefault(key, ([], []))[which].append(seconds)
            for process in (old, new):
                process.stdin.close()
    return found


def of_criterion(folders: list[str], rounds: int) -> Seconds:
    """Wall seconds of Criterion's rows, by its quick mode."""
    found: Seconds = {}
    for turn in range(rounds):
        for which, folder in ordered(folders, turn):
            with tempfile.TemporaryDirectory() as home:
                for program in ("pipeline", "coarsen"):
                    words = [f"{folder}/{program}", "--bench", "--quick", "--noplot"]
                    environment = {**os.environ, "CRITERION_HOME": home}
                    subprocess.run(words, env=environment, capture_output=True, check=True)
                for file in Path(home).rglob("new/estimates.json"):
                    name = json.loads((file.parent / "benchmark.json").read_text())["full_id"]
                    nanoseconds = json.loads(file.read_text())["mean"]["point_estimate"]
                    found.setdefault(name, ([], []))[which].append(nanoseconds / 1e9)
    return found


def ordered(pair: list[T], turn: int) -> list[tuple[int, T]]:
    """Old then new in even rounds, new then old in odd ones."""
    return list(enumerate(pair))[:: 1 if turn % 2 == 0 else -1]


def show(found: Seconds) -> None:
    """Prints the table."""
    ratios = []
    for name, (old, new) in sorted(found.items()):
        before, after = statistics.median(old), statistics.median(new)
        print(f"{before * 1e3:10.2f} {after * 1e3:10.2f} {after / before:7.3f}  {name}")
        if not any(word in name for word in OTHERS):
            ratios.append(after / before)
    print(f"{statistics.geometric_mean(ratios):.3f} is the geometric mean of {len(ratios)} rows")


def main() -> None:
    """Parses arguments and prints one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("rows", "criterion", "answer"))
    parser.add_argument("builds", nargs="+")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--core", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.what == "answer":
        answer(arguments.builds[0], arguments.builds[1] == "1")
        return
    os.sched_setaffinity(0, {arguments.core})
    measure = of_rows if arguments.what == "rows" else of_criterion
    show(measure(arguments.builds, arguments.rounds))


if __name__ == "__main__":
    main()
