"""``auto`` on graphs that nobody tuned on, against every method that took no more time.

    python benches/unseen.py --seed SEED [--cases N] [--first I] [--only FAMILY ...] [--json FILE]

Case i of a seed is a graph of ``unseen_nets.py`` (1,000 to 100,000 ops, trained or not) on 2 to 16
devices, equal or not, with links fast or slow and memory tight or loose. Every ninth case is a
*wavefront*: a recurrent net of 8 to 32 layers on 8 devices joined by fast links. A seed that
figures are published for is used once: by custom the first 8 hexadecimal digits of the last commit
that changes code, as in ``--seed 0x1234abcd``. Whoever tunes takes another.

``auto`` (effort "fast", one thread) plans first. Then every other method that places whole ops has
as much CPU time as ``auto`` took, its solver's processes among it. ``auto`` is behind where one of
them made a shorter step, or a plan where ``auto`` made none. Left out are methods that begin with
the plan of ``auto`` or whose own steps take minutes (``quality.ELSEWHERE``).

A line is printed for each case, then the table. Finished cases are kept in ``.unseen.jsonl`` under
a digest of the package and of the cases, so that a run that was broken off goes on.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import multiprocessing
import resource
import statistics
from collections import Counter
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from quality import HERE, LEDGER, SPLITTING, package_digest, records, table
from unseen_nets import FAMILIES, FORWARD_SHARE, Net, recurrent

import loadmaster as lm
from loadmaster.base.errors import InfeasibleError, MissingExtraError
from loadmaster.judge.bounds import bound
from loadmaster.judge.problem import Problem
from loadmaster.strategies import METHODS

#: Methods that place whole ops.
RIVALS = [name for name in LEDGER if name not in (*SPLITTING, "auto")]

AUTO: dict[str, Any] = {"effort": "fast", "threads": 1, "split": "none"}

#: By how much ``auto`` may be longer than another and yet not be behind.
SLACK = 0.001

#: The range of ops, parameters not counted; of devices; of mean transfer time / mean op time where
#: links are fast, where they are slow, and of wavefronts.
OPS, DEVICES = (1_000, 100_000), (2, 3, 4, 6, 8, 12, 16)
FAST_LINKS, SLOW_LINKS, WAVE_LINKS = (0.02, 0.3), (0.3, 10.0), (0.02, 2.0)

#: Bytes of each device where memory is to spare. Where it is tight: so many times what the fullest
#: device holds in the leanest of some plain plans.
ENOUGH, TIGHT, PLAIN = 2**50, (1.05, 1.6), ("layers", "m-topo", "round-robin")

#: Layers and devices of recurrent nets that are held against the bound, and the target.
DEEP, WIDE, TARGET = 8, 8, 1.35

#: Cases of one round: a case of each family, and a wavefront.
ROUND = (*FAMILIES, "wavefronts")


@dataclass(frozen=True)
class Case:
    """A graph on a cluster, and how every method did.

    ``plans`` has, by method, seconds of a step and CPU seconds of planning; infinite seconds of a
    step: no plan, and ``outcomes`` says why. ``layers`` are those of a recurrent net, else 0.
    """

    index: int
    family: str
    what: str
    n_ops: int
    devices: int
    layers: int
    bound: float
    plans: dict[str, tuple[float, float]]
    outcomes: dict[str, str]

    @property
    def best(self) -> tuple[str, float]:
        """The best other method in no more CPU time than ``auto``, and its seconds of a step."""
        most = self.plans["auto"][1]
        found = {
            name: step
            for name, (step, cpu) in self.plans.items()
            if name != "auto" and cpu <= most and math.isfinite(step)
        }
        return min(found.items(), key=lambda item: item[1], default=("", math.inf))

    @property
    def behind(self) -> float:
        """How much longer a step by ``auto`` is than by the best other, as a share; less than 0:
        shorter. NaN where nothing fits.
        """
        step, other = self.plans["auto"][0], self.best[1]
        if math.isinf(other):
            return math.nan if math.isinf(step) else -1.0
        return step / other - 1

    @property
    def is_deep(self) -> bool:
        """Whether it is a recurrent net of many layers on 8 devices."""
        return self.layers >= DEEP and self.devices == WIDE


# -- cases -----------------------------------------------------------------------------------------


def drawn(seed: int, index: int, most: int = OPS[1]) -> tuple[str, str, int, Problem]:
    """Case ``index`` of a seed, with so many ops at most: its family, what it is in words, layers
    of a recurrent net (else 0), and the problem.
    """
    family, random = ROUND[index % len(ROUND)], np.random.default_rng([seed, index])
    is_wavefront, is_trained = family == "wavefronts", random.random() < 0.5
    n_ops = int(between(random, (OPS[0], most)))
    net = Net(random)
    forward = int(n_ops * FORWARD_SHARE) if is_trained else n_ops
    if family in ("recurrent", "wavefronts"):
        layers = int(random.integers(DEEP if is_wavefront else 2, 33))
        recurrent(net, forward, layers)
    else:
        layers = 0
        FAMILIES[family](net, forward)
    if is_trained:
        net.trained()
    k = WIDE if is_wavefront else int(random.choice(DEVICES))
    is_equal, is_fast = random.random() < 0.6, random.random() < 0.5
    is_tight, has_modules = random.random() < 0.4, random.random() < 0.7
    slower = 1.0 if is_equal else float(random.uniform(1.3, 4.0))
    graph = net.graph(f"{family}-{seed:x}-{index}", {"fast": 1.0, "slow": slower}, has_modules)
    types = ["slow" if d % 2 and not is_equal else "fast" for d in range(k)]
    ratios = FAST_LINKS if is_fast else SLOW_LINKS
    ratio = between(random, WAVE_LINKS if is_wavefront else ratios)
    links = linked(random, graph, types, ratio)
    room = float(random.uniform(*TIGHT))
    problem = posed(graph, types, links, ENOUGH)
    if is_tight:
        problem = posed(graph, types, links, math.ceil(room * leanest(problem)))
    words = (
        f"{'training' if is_trained else 'inference'}, {k} {'equal' if is_equal else 'unequal'}, "
        f"CCR {ratio:.2g}, {f'memory {room:.2f} x' if is_tight else 'memory to spare'}"
        f"{'' if has_modules else ', no modules'}{f', {layers} layers' if layers else ''}"
    )
    return family, words, layers, problem


def between(random: np.random.Generator, ends: tuple[float, float]) -> float:
    """A number of a range, as likely in each octave of it."""
    return float(np.exp(random.uniform(np.log(ends[0]), np.log(ends[1]))))


def linked(
    random: np.random.Generator, graph: lm.OpGraph, types: list[str], ratio: float
) -> list[lm.Link]:
    """Links between all pairs of devices of these types, over which a mean tensor takes so many
    times a mean op.

    Each pair has channels of its own, or each device sends by one channel and receives by one.
    """
    sizes = graph.reduced_for(("fast", "slow")).graph.tensor_bytes
    transfer = ratio * float(graph.time["fast"][graph.time["fast"] > 0].mean())
    is_shared, latency = random.random() < 0.5, random.uniform(0.02, 0.3) * transfer
    bandwidth = float(sizes.mean()) / (transfer - latency)
    names = [f"{type}{i}" for i, type in enumerate(types)]
    return [
        lm.Link(a, b, bandwidth, latency, (f"{a}.tx", f"{b}.rx") if is_shared else ())
        for a in names
        for b in names
        if a != b
    ]


def posed(graph: lm.OpGraph, types: list[str], links: list[lm.Link], memory: int) -> Problem:
    """The problem of placing a graph on devices of these types with so many bytes each."""
    devices = [lm.Device(f"{type}{i}", type, memory) for i, type in enumerate(types)]
    known = [lm.DeviceType(type) for type in ("fast", "slow") if type in types]
    cluster = lm.Cluster(devices, links, known)
    return Problem.make(graph, cluster, lm.costs.estimate(graph, cluster))


def leanest(problem: Problem) -> int:
    """Bytes on the fullest device in the plain plan that needs least, so that there is a plan."""
    return min(int(METHODS[name][0](problem).verdict.peak.max()) for name in PLAIN)


# -- planning in a process of its own --------------------------------------------------------------


def planned(
    problem: Problem, method: str, options: dict[str, Any], most: float
) -> tuple[str, float, float]:
    """How a method did that may take so many CPU seconds: "fits" or why there is no plan, seconds
    of a step (infinite without a plan), CPU seconds.
    """
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_plan, args=(theirs, problem, method, options, most))
    process.start()
    theirs.close()
    try:
        outcome, step, cpu = ours.recv()
    except EOFError:
        outcome, step, cpu = "late", math.inf, math.inf
    process.join()
    return outcome, step, cpu


def _plan(
    answer: Connection, problem: Problem, method: str, options: dict[str, Any], most: float
) -> None:
    """Plans, and answers. The kernel ends the process when its seconds are spent."""
    if math.isfinite(most):
        limit = math.ceil(_cpu() + most)
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 1))
    before, step, outcome = _cpu(), math.inf, "no room"
    try:
        found = METHODS[method][0](problem, **options)
        if found.fits:
            outcome, step = "fits", found.verdict.step_time
    except InfeasibleError:
        pass
    except MissingExtraError:
        outcome = "missing"
    answer.send((outcome, step, _cpu() - before))


def _cpu() -> float:
    """CPU seconds of this process and of those that it started and that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def measured(seed: int, index: int) -> Case:
    """One case, planned by all."""
    family, what, layers, problem = drawn(seed, index)
    # What every method needs is made before any of them is timed.
    low = bound(problem).seconds
    _ = problem.core, problem.weights, problem.reduced.held_at_peak
    plans, outcomes = dict[str, tuple[float, float]](), dict[str, str]()
    for method in ("auto", *RIVALS):
        is_auto = method == "auto"
        options, most = (AUTO, math.inf) if is_auto else ({}, plans["auto"][1])
        outcomes[method], step, cpu = planned(problem, method, options, most)
        plans[method] = step, cpu
    n_ops, k = problem.graph.n_ops, problem.cluster.n_devices
    return Case(index, family, what, n_ops, k, layers, low, plans, outcomes)


def cases_digest() -> str:
    """Of the package, and of the files that make the cases."""
    digest = hashlib.sha256(package_digest().encode())
    for name in ("unseen.py", "unseen_nets.py", "layered.py"):
        digest.update((HERE / name).read_bytes())
    return digest.hexdigest()[:16]


def cases(path: Path, seed: int, wanted: list[int], fresh: bool) -> list[Case]:
    """Those wanted, from the file or planned now."""
    digest = f"{cases_digest()}-{seed:x}"
    kept: dict[int, Case] = {}
    if path.exists() and not fresh:
        kept = {record["index"]: Case(**record) for record in records(path, digest)}
    found = []
    for index in wanted:
        if index not in kept:
            kept[index] = measured(seed, index)
            with path.open("a") as file:
                file.write(json.dumps({"digest": digest, **asdict(kept[index])}) + "\n")
        found.append(kept[index])
        print(line(kept[index]), flush=True)
    return found


# -- the table -------------------------------------------------------------------------------------


def line(case: Case) -> str:
    """A case in a line: ``auto`` against the best other and against the bound."""
    step, cpu = case.plans["auto"]
    name, _ = case.best
    return (
        f"{case.index:4} {case.family:15} {case.n_ops:6} ops  auto {cpu:5.1f} s, "
        f"{step / case.bound:6.3f} of the bound, {case.behind:+8.2%} by {name or 'nothing':14} "
        f"{case.what}"
    )


def summary(found: list[Case]) -> list[str]:
    """Lines of the table: a row per family, then the cases behind, then the wavefronts."""
    body = []
    for family in (*ROUND, "all"):
        some = [c for c in found if family in (c.family, "all")]
        fits = [c for c in some if math.isfinite(c.plans["auto"][0])]
        if not some:
            continue
        both = [c.behind for c in fits if math.isfinite(c.best[1])]
        gain = statistics.geometric_mean(1 + b for b in both) if both else math.nan
        bounds = [c.plans["auto"][0] / c.bound for c in fits]
        over = statistics.geometric_mean(bounds) if bounds else math.nan
        cpu = [c.plans["auto"][1] for c in some]
        body.append(
            [
                family,
                str(len(some)),
                str(sum(c.behind > SLACK for c in some)),
                str(sum(c.behind < -SLACK for c in some)),
                f"{gain:.4f}",
                f"{over:.3f}",
                f"{statistics.median(cpu):.1f}",
                f"{max(cpu):.1f}",
                str(sum(math.isnan(c.behind) for c in some)),
            ]
        )
    head = [
        "family",
        "cases",
        f"behind by more than {SLACK:.1%}",
        f"ahead by more than {SLACK:.1%}",
        "step over the best other's",
        "step over the bound",
        "CPU s, median",
        "most",
        "nothing fits",
    ]
    lines = table(head, body)
    behind = sorted((c for c in found if c.behind > SLACK), key=lambda c: -c.behind)
    if behind:
        rows = []
        for c in behind:
            (name, _), (_, cpu) = c.best, c.plans["auto"]
            what = f"{c.index}: {c.family}, {c.what}"
            seconds = [f"{cpu:.1f}", name, f"{c.plans[name][1]:.1f}"]
            rows.append([what, str(c.n_ops), *seconds, f"{c.behind:.2%}"])
        lines += table(["behind", "ops", "CPU s", "method", "its CPU s", "longer by"], rows)
    deep = [c for c in found if c.is_deep and math.isfinite(c.plans["auto"][0])]
    if deep:
        lost = sum(c.plans["auto"][0] > (1 + 1e-9) * c.plans["layers"][0] for c in deep)
        over = statistics.geometric_mean(c.plans["auto"][0] / c.bound for c in deep)
        lines += [
            f"Recurrent nets of {DEEP} to 32 layers on {WIDE} devices: {len(deep)} cases, behind "
            f"`layers` in {lost}, {over:.3f} of the bound in the geometric mean (target: "
            f"{TARGET}).",
            "",
        ]
    best = Counter(c.best[0] for c in found if c.best[0])
    named = ", ".join(f"{name} {n}" for name, n in best.most_common())
    return [*lines, f"The best other method was: {named}."]


def main() -> None:
    """Plans what is not planned yet, then prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=lambda text: int(text, 0), required=True)
    parser.add_argument("--cases", type=int, default=200, help="how many (200)")
    parser.add_argument("--first", type=int, default=0, help="index of the first (0)")
    parser.add_argument("--only", nargs="+", choices=ROUND, default=list(ROUND), metavar="FAMILY")
    parser.add_argument("--json", type=Path, help="file that every figure of every case goes to")
    parser.add_argument("--fresh", action="store_true", help="forget what has been planned")
    arguments = parser.parse_args()
    indices = range(arguments.first, arguments.first + arguments.cases)
    wanted = [i for i in indices if ROUND[i % len(ROUND)] in arguments.only]
    found = cases(HERE / "results" / ".unseen.jsonl", arguments.seed, wanted, arguments.fresh)
    print("", *summary(found), sep="\n")
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(case) for case in found], indent=1) + "\n")


if __name__ == "__main__":
    main()
