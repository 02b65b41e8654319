"""Fuzzes by hand, and says how to run each finding again."""

from __future__ import annotations

import argparse
import faulthandler
import os
import sys
import time
import traceback
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from . import counts
from .frame import Target, discover, limited_memory, run_input

#: Seconds before another target has its turn.
_TURN = 5

#: Seconds of the clock after which a turn is a hang, even where many processes share the machine.
_LONGEST_TURN = 600


def main() -> int:
    """Runs targets in turn; 1 if there is a finding."""
    targets = discover()
    arguments = _arguments(list(targets))
    chosen = [targets[name] for name in arguments.only or targets]
    seed = int.from_bytes(os.urandom(4)) if arguments.seed is None else arguments.seed
    done: Counter[str] = Counter()
    found: Counter[str] = Counter()
    until = time.monotonic() + 60 * arguments.minutes
    try:
        with limited_memory():
            while time.monotonic() < until and chosen:
                for one in chosen:
                    _turn(one, seed, arguments, done, found, until)
                chosen = [t for t in chosen if done[t.name] < (arguments.inputs or 1 << 60)]
    except KeyboardInterrupt:
        pass
    print(f"seed {seed}: {dict(done)}, {len(found)} findings")
    for where, times in found.items():
        print(f"{times} x {where}")
    return 1 if found else 0


def _arguments(names: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="of the clock; default: 1")
    parser.add_argument("--only", action="append", choices=names, help="a target; default: all")
    parser.add_argument("--seed", type=int, help="default: another one in every run")
    parser.add_argument("--first", type=int, default=0, help="number of the first input")
    parser.add_argument("--inputs", type=int, help="at most so many of each target")
    return parser.parse_args()


def _turn(
    one: Target,
    seed: int,
    arguments: argparse.Namespace,
    done: Counter[str],
    found: Counter[str],
    until: float,
) -> None:
    """Runs inputs of a target for some seconds, and counts them; tells findings, each kind once."""
    index = first = arguments.first + done[one.name]
    print(f"{one.name} from {index}", file=sys.stderr, flush=True)
    # What Rust does not return from, no signal stops: this ends the process and says where it was.
    faulthandler.dump_traceback_later(_LONGEST_TURN, exit=True)
    end = min(time.monotonic() + _TURN, until)
    while time.monotonic() < end and done[one.name] != arguments.inputs:
        try:
            run_input(one, seed, index)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            where = _where(one, error)
            found[where] += 1
            if found[where] == 1:
                print(f"\n--only {one.name} --seed {seed} --first {index} --inputs 1", flush=True)
                traceback.print_exception(error, limit=-12, chain=False, file=sys.stdout)
        done[one.name] += 1
        index += 1
    if index > first:
        counts.add(one.name, index - first)
    faulthandler.cancel_dump_traceback_later()


def _where(one: Target, error: BaseException) -> str:
    """What tells a finding from others: the target, the error, and the line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if "loadmaster" in f.filename] or frames
    last = ours[-1]
    return f"{one.name}: {type(error).__name__} at {Path(last.filename).name}:{last.lineno}"


if __name__ == "__main__":
    sys.exit(main())
