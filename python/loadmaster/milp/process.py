"""A solver in a process of its own, which can be killed and whose output is kept.

Solvers crash, hang, overshoot their limits by seconds, print past Python, and cannot share a
process with one another (design section 10). So none is ever imported by who calls: every solve
starts ``python -m MODULE FOLDER STARTED`` afresh, with its output in a file from the first byte on,
and waits no longer than the limit and some grace. The process itself tells its CPU time, that of
the solver's threads and of all that it starts: on a machine that others use, what a limit on the
clock leaves a solver is anyone's guess. A fresh interpreter rather than
:mod:`multiprocessing`'s spawn, which would run a user's unguarded script again.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from loadmaster.base.children import end_with_parent
from loadmaster.base.files import system_errors

#: Seconds past its limit after which a process is taken for hung: limits overshoot by seconds.
GRACE = 10.0

#: Least seconds a solver is given when building its model has used up the limit.
LEAST = 0.05

#: Seconds between two looks at a running process, and between two that it takes at its CPU clock.
_POLL = 0.05

#: Lines of the log that an error shows.
_TAIL = 12

_TASK, _ANSWER, _BEST = "task.pickle", "answer.pickle", "best.pickle"
_CPU = "cpu.txt"

#: Called with a line that a process printed and the CPU seconds that it had taken by then.
Follow = Callable[[str, float], None]


@dataclass(frozen=True)
class Ended:
    """The end of a process.

    Attributes
    ----------
    answer : Any or None
        What it answered.
    best : Any or None
        What it last kept by :func:`keep`, answer or not.
    failure : str or None
        Why there is no answer, with the last that it said.
    log : str
        All that it printed.
    cpu : float
        CPU seconds that it took, of all its threads.
    """

    answer: Any
    best: Any
    failure: str | None
    log: str
    cpu: float


class Interrupted(KeyboardInterrupt):
    """Ctrl-C while a process ran: with what it last kept by :func:`keep`."""

    def __init__(self, best: Any) -> None:
        super().__init__()
        self.best = best


def run(
    module: str,
    task: object,
    time_limit: float,
    follow: Follow | None = None,
    cpu_limit: float = math.inf,
) -> Ended:
    """Runs a module on a task, for the limit and :data:`GRACE` at most.

    Parameters
    ----------
    module : str
        A module whose ``__main__`` calls :func:`serve`.
    task : object
        Picklable.
    time_limit : float
        Seconds of the clock, which the task knows as well.
    follow : callable, optional
        Called with every line that the process prints, as it comes, and with the CPU seconds that
        it had taken by then.
    cpu_limit : float
        CPU seconds after which the process is killed, without grace. The task does not know them.

    Raises
    ------
    InputError
        The folder for temporary files takes no more.
    Interrupted
        Ctrl-C: the process is gone when this, or whatever ``follow`` raises, arrives.
    """
    with tempfile.TemporaryDirectory(prefix="loadmaster-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with system_errors(f"cannot write the task of a solver to {folder}"):
            (folder / _TASK).write_bytes(pickle.dumps(task))
        output = folder / "log.txt"
        try:
            with output.open("wb") as file:
                failure = _watched(module, folder, file, time_limit, follow, cpu_limit)
        except KeyboardInterrupt as error:
            raise Interrupted(_kept(folder)) from error
        text = output.read_text(encoding="utf-8", errors="replace")
        answer = None if failure else pickle.loads((folder / _ANSWER).read_bytes())
        kept = _kept(folder)
        cpu = _cpu_of(folder)
    if failure:
        tail = " | ".join(text.rstrip().splitlines()[-_TAIL:])
        failure += f"; the last it said: {tail}" if tail else "; it said nothing"
    return Ended(answer, kept, failure, text, cpu)


def _watched(
    module: str,
    folder: Path,
    file: IO[bytes],
    time_limit: float,
    follow: Follow | None,
    cpu_limit: float,
) -> str | None:
    """Why the process failed, if it did. It is gone when this returns or raises."""
    paths = os.pathsep.join(path for path in sys.path if path)
    process = subprocess.Popen(
        [sys.executable, "-m", module, str(folder), str(time.time())],
        stdin=subprocess.PIPE,
        stdout=file,
        stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONPATH": paths, "PYTHONIOENCODING": "utf-8"},
        # Ctrl-C is for the parent, which then kills the process.
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + time_limit + GRACE
        lines = _lines(Path(file.name))
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_POLL)
            cpu = _cpu_of(folder)
            for line in iter(lambda: next(lines), None):
                if follow is not None:
                    follow(line, cpu)
            if process.returncode is not None:
                break
            if cpu > cpu_limit:
                return f"it was stopped at its limit of {cpu_limit:g} s of CPU"
            if time.monotonic() > deadline:
                return (
                    f"it was still running {GRACE:g} s past its limit of {time_limit:g} s "
                    "and was killed"
                )
        if process.returncode == 0 and (folder / _ANSWER).exists():
            return None
        return f"its process ended with {_ending(process.returncode)}"
    finally:
        process.kill()
        process.wait()
        assert process.stdin is not None
        process.stdin.close()


def _lines(path: Path) -> Iterator[str | None]:
    """Whole lines of a growing file as they come; None where there is none yet."""
    with path.open("rb") as file:
        rest = b""
        while True:
            chunk = file.read()
            *whole, rest = (rest + chunk).split(b"\n")
            yield from (line.decode("utf-8", errors="replace") for line in whole)
            yield None


def _kept(folder: Path) -> Any:
    """The last that the process kept, or None."""
    best = folder / _BEST
    return pickle.loads(best.read_bytes()) if best.exists() else None


def _cpu_of(folder: Path) -> float:
    """CPU seconds that the process reported last."""
    try:
        return float((folder / _CPU).read_text())
    except (OSError, ValueError):
        return 0.0


def _ending(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code} and no answer"


# -- inside the process ------------------------------------------------------------------------


def serve(work: Callable[[Any, Path, float], object]) -> None:
    """The main program of such a process: reads the task in the folder that the command line names
    and writes what ``work`` makes of it, given the task, the folder and when it was started (on the
    command line by :func:`time.time`, to ``work`` by :func:`time.monotonic`).
    """
    folder = Path(sys.argv[1])
    # On a busy machine, an interpreter takes up to seconds to start.
    began = time.monotonic() - max(time.time() - float(sys.argv[2]), 0.0)
    # There is no one left to answer, nor to remove the folder.
    end_with_parent(lambda: shutil.rmtree(folder, ignore_errors=True))
    over = threading.Event()
    teller = threading.Thread(target=_tell, args=(folder / _CPU, over), daemon=True)
    teller.start()
    task = pickle.loads((folder / _TASK).read_bytes())
    _write(folder / _ANSWER, work(task, folder, began))
    over.set()
    teller.join()


def left(time_limit: float, began: float) -> float:
    """Seconds for the solver: the limit minus the time so far, at least :data:`LEAST`."""
    return max(time_limit - (time.monotonic() - began), LEAST)


def keep(folder: Path, best: object) -> None:
    """Writes the best so far to a file that survives this process."""
    _write(folder / _BEST, best)


def _write(path: Path, content: object) -> None:
    unfinished = path.with_suffix(".part")
    unfinished.write_bytes(pickle.dumps(content))
    unfinished.replace(path)


def _tell(path: Path, over: threading.Event) -> None:
    """Tells the CPU time until all is over, and hands on what the solver's C library has printed:
    into a file it writes whole blocks only.
    """
    flush = getattr(ctypes.CDLL(None), "fflush", None) if os.name == "posix" else None
    with path.open("wb", buffering=0) as file:
        is_last = False
        while not is_last:
            is_last = over.wait(_POLL)
            if flush is not None:
                flush(None)
            file.seek(0)
            file.write(b"%12.2f" % sum(os.times()[:4]))
