"""The exact side, measured: bounds, formulations, agreement with brute force.

    python benches/exact.py bounds                       # gaps to the best known, CPU time
    python benches/exact.py table [--instances TEXT ...] [--formulations NAME ...]
                                  [--seconds 10 60] [--fresh]
    python benches/exact.py agree [--count 200]          # random instances against brute force

``bounds`` and ``table`` speak of the 24 instances of ``shared/data/scheduling``; ``table`` also of
GoogLeNet and Transformer of ``shared/data/heterogeneous``, merged to 50 groups. Each formulation
starts from the same schedule: a local search cut short, HEFT for the two models. CBC has one
thread, CP-SAT eight; seconds are of the clock, building the model included. What is measured is
kept in ``.exact.jsonl``, so that a run that was broken off goes on where it was, and instances can
be measured one at a time; every run writes all that is kept into its section of ``RESULTS.md``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from layered import layered
from quality import DATA, heterogeneous_problem, table
from search import Coarse
from sections import write_section

import loadmaster as lm
from loadmaster import fast
from loadmaster.bounds import bound
from loadmaster.errors import SolverError
from loadmaster.milp import cpsat, ilp, moirai, pesto, solve
from loadmaster.milp.formulation import Formulation
from loadmaster.milp.instance import Instance, instance_of
from loadmaster.milp.timing import Timed, in_order, timed
from loadmaster.problem import Problem, by_start
from loadmaster.strategies import auto
from loadmaster.strategies.exact import Level, searched

HERE = Path(__file__).parent
KEPT = HERE / ".exact.jsonl"
MEASURED = ("moirai-googlenet", "moirai-transformer")
GROUPS = 50
EFFORT = 0.02

#: A byte of an instance's memory, so large that what a tensor takes is nothing beside it.
BYTE = 2**36

Formulate = Callable[[Instance, Timed], Formulation]

PROGRAMS: dict[str, tuple[Callable[[Instance], Instance], Formulate]] = {
    "ilp": (lambda instance: instance, ilp.formulate),
    "pesto": (pesto.with_links, pesto.formulate),
    "moirai": (lambda i: moirai.with_links(i, "per-link"), moirai.formulate),
}
FORMULATIONS = (*PROGRAMS, "cpsat", "cpsat, free links")


@dataclass(frozen=True)
class Row:
    """What one formulation came to: milliseconds, but for ``better``, the second of the first
    solution better than the start.
    """

    instance: str
    formulation: str
    seconds: float
    rows: int | None
    columns: int | None
    start: float
    better: float | None
    best: float
    bound: float
    known: float | None
    outcome: str


def best_known() -> dict[str, Any]:
    """The instances' best known makespans."""
    found: dict[str, Any] = json.loads((DATA / "scheduling" / "best_known.json").read_text())
    return found


def scheduling_problem(name: str) -> Problem:
    """An instance as the package takes it."""
    coarse = Coarse.read(name)
    raw, seconds = coarse.raw, coarse.time
    same = bool((seconds == seconds[:, :1]).all())
    types = ["t0"] * raw["K"] if same else [f"t{d}" for d in range(raw["K"])]
    edges = [
        (t["src"], d, i, int(coarse.graph.tensor_bytes[i]))
        for i, t in enumerate(raw["tensors"])
        for d in t["dsts"]
    ]
    src, dst, tensor, size = zip(*edges, strict=True)
    ops = {
        "name": [f"o{i}" for i in range(raw["n"])],
        "param_bytes": [bytes_ * BYTE for bytes_ in raw["mem"]],
        "time": {name: seconds[:, types.index(name)].tolist() for name in dict.fromkeys(types)},
    }
    graph = lm.OpGraph(ops, {"src": src, "dst": dst, "tensor": tensor, "bytes": size})
    devices = [
        lm.Device(f"d{d}", types[d], int(raw["cap"][d]) * BYTE + BYTE // 2) for d in range(raw["K"])
    ]
    links = []
    for a in range(raw["K"]):
        for b in (b for b in range(raw["K"]) if b != a):
            latency, width, _, _ = coarse.cluster.route(a, b)
            links.append(lm.Link(f"d{a}", f"d{b}", width, latency))
    cluster = lm.Cluster(devices, links)
    return Problem.make(graph, cluster, lm.costs.estimate(graph, cluster))


def problem_of(name: str) -> Problem:
    """A scheduling instance, or the groups of a measured model."""
    if name in MEASURED:
        return Level(heterogeneous_problem(name, "")).coarser("multilevel", GROUPS).problem
    return scheduling_problem(name)


def start_of(name: str, problem: Problem) -> tuple[Instance, Timed]:
    """Where all formulations start."""
    if name in MEASURED:
        start = searched(Level(problem), "static", 0.0)
        devices, order, charge = start.devices, start.order, start.charge
    else:
        plan = auto.place(problem, effort=EFFORT)
        devices, charge = plan.devices, problem.held_at_peak
        order = by_start(problem.graph, plan.schedule.start, plan.schedule.finish)
    instance = instance_of(problem, charge, bound(problem).seconds)
    return instance, timed(instance, instance.canonical(devices), order)


def measured(name: str, formulation: str, seconds: float) -> Row:
    """One row of the table."""
    problem = problem_of(name)
    instance, start = start_of(name, problem)
    known = best_known().get(name)
    began = time.monotonic()
    better: list[float] = []

    def told(scale: float) -> Callable[[float | None, float | None], None]:
        def tell(best: float | None, lower: float | None) -> None:
            if best is not None and best / scale < start.makespan * (1 - 1e-6):
                better.append(time.monotonic() - began)

        return tell

    def row(size: tuple[int, int] | None, best: float, lower: float, outcome: str) -> Row:
        ms = instance.tick * 1e3
        return Row(
            name,
            formulation,
            seconds,
            *(size or (None, None)),
            start.makespan * ms,
            better[0] if better else None,
            best * ms,
            lower * ms,
            None if known is None else known["makespan"] * 1e-3,
            outcome,
        )

    if formulation in PROGRAMS:
        links, formulate = PROGRAMS[formulation]
        program = formulate(links(instance), start)
        model, scale = program.model, program.scale
        size = (model.n_rows, model.n_variables)
        left = max(seconds - (time.monotonic() - began), 0.1)
        try:
            found = solve(model, solver="cbc", time_limit=left, progress=told(scale))
        except SolverError:
            return row(size, start.makespan, instance.lower, "killed")
        lower = instance.lower if found.bound is None else found.bound / scale
        assert found.values is not None
        devices, begin = program.read(found.values)
        best = simulated(instance, devices, begin, start)
        return row(size, best, max(lower, instance.lower), found.status)
    is_fcfs = formulation == "cpsat"
    answer = cpsat.solve(instance, start, time_limit=seconds, is_fcfs=is_fcfs, progress=told(1.0))
    best = float(start.makespan)
    if answer.devices is not None and answer.start is not None:
        best = simulated(instance, answer.devices, answer.start, start)
    outcome = answer.status if answer.failure is None else "killed"
    return row(answer.size, best, answer.bound, outcome)


def simulated(instance: Instance, devices: Any, begin: Any, start: Timed) -> float:
    """The makespan first come, first served, of what a formulation found, or of its start."""
    finish = begin + instance.time[np.arange(instance.n_ops), devices]
    order = in_order(instance, begin, finish)
    return float(min(timed(instance, devices, order).makespan, start.makespan))


# -- the report ----------------------------------------------------------------------------------


def kept(fresh: bool) -> dict[tuple[str, str, float], Row]:
    """What has been measured."""
    if fresh or not KEPT.exists():
        return {}
    rows = [Row(**json.loads(line)) for line in KEPT.read_text().splitlines()]
    return {(r.instance, r.formulation, r.seconds): r for r in rows}


def report(rows: dict[tuple[str, str, float], Row]) -> str:
    """The section of RESULTS.md."""
    lines = [
        "# Exact formulations",
        "",
        "    python benches/exact.py table",
        "",
        "Milliseconds of makespan, simulated first come, first served. All start from the same "
        "schedule (a local search cut short; HEFT for the two models), so a solution is there "
        "from second 0: *better* is the second of the first one better than the start, as far as "
        "the solver's log tells. The bound is the solver's or the combinatorial one, whichever is "
        "larger; that of free links holds for first come, first served too. *killed*: the solver "
        "did not heed its limit for 10 s more, and what it had found is lost. Seconds are of the "
        "clock; CBC has one thread, CP-SAT 8 workers, on two cores that others used as well.",
        "",
    ]
    head = ["instance", "formulation", "seconds", "rows", "columns", "start", "better"]
    head += ["best", "bound", "gap", "best known", "outcome"]
    body = []
    order = list(FORMULATIONS)
    for r in sorted(
        rows.values(),
        key=lambda r: (
            not r.instance.startswith("n"),
            not r.instance.startswith("n20"),
            r.instance,
            order.index(r.formulation),
            r.seconds,
        ),
    ):
        body.append(
            [
                r.instance,
                r.formulation,
                f"{r.seconds:g}",
                str(r.rows or ""),
                str(r.columns or ""),
                f"{r.start:.4g}",
                "" if r.better is None else f"{r.better:.1f}",
                f"{r.best:.5g}",
                f"{r.bound:.5g}",
                f"{max(r.best - r.bound, 0) / r.best:.1%}",
                "" if r.known is None else f"{r.known:.5g}",
                r.outcome,
            ]
        )
    return "\n".join([*lines, *table(head, body)])


def make_table(
    instances: list[str], formulations: list[str], seconds: list[float], fresh: bool
) -> None:
    """Measures what is missing, shortest first, and writes the report."""
    rows = kept(fresh)
    names = [*sorted(best_known(), key=lambda n: (not n.startswith("n20"), n)), *MEASURED]
    names = [n for n in names if not instances or any(text in n for text in instances)]
    for limit in sorted(seconds):
        for name in names:
            for formulation in formulations:
                if (name, formulation, limit) in rows:
                    continue
                row = measured(name, formulation, limit)
                rows[name, formulation, limit] = row
                KEPT.write_text("".join(json.dumps(asdict(r)) + "\n" for r in rows.values()))
                write_section(HERE / "RESULTS.md", "exact", report(rows))
                print(
                    f"{name:42} {formulation:18} {limit:4g} s  start {row.start:.5g} "
                    f"best {row.best:.5g} bound {row.bound:.5g} {row.outcome}",
                    flush=True,
                )


def show_bounds() -> None:
    """Gaps to the best known and milliseconds, of the bounds alone."""
    gaps: dict[str, list[float]] = {}
    for name, found in sorted(best_known().items()):
        coarse = Coarse.read(name)
        began = time.process_time()
        bounds = fast.bounds(coarse.graph, coarse.cluster, coarse.time)
        took = time.process_time() - began
        best = found["makespan"] * 1e-6
        gap = max(1 - bounds["best"] / best, 0.0)
        gaps.setdefault(name.split("-")[0], []).append(gap)
        print(f"{name:42} {gap:6.1%}  {bounds['source']:36} {1e3 * took:.1f} ms")
    for types in (1, 4):
        graph = layered(50_000)
        work = fast.Graph(graph.n_ops, graph.src, graph.dst, tensor_bytes=graph.tensor_bytes)
        devices = [(f"d{i}", f"t{i % types}", 2**40) for i in range(8)]
        ends = [(a[0], b[0]) for a in devices for b in devices if a != b]
        cluster = fast.Cluster(devices, [(*pair, 12e9, 1e-5, []) for pair in ends])
        speed = np.random.default_rng(0).uniform(1, 4, (graph.n_ops, types))
        seconds = graph.op_seconds[:, None] * speed
        began = time.process_time()
        fast.bounds(work, cluster, seconds)
        took = time.process_time() - began
        print(f"50,000 ops, 8 devices of {types} types: {1e3 * took:.0f} ms")
    for size, some in gaps.items():
        print(f"{size}: median {statistics.median(some):.1%}, mean {statistics.mean(some):.1%}")


def agree(count: int) -> None:
    """Every formulation against brute force on random instances."""
    sys.path.insert(0, str(HERE.parent / "tests"))
    from brute_force import drawn, free_optimum, simulated_optimum, some_start, static_instance
    from solve_batch import solve_all

    problems = [drawn(seed) for seed in range(count)]
    instances = [static_instance(problem) for problem in problems]
    starts = [some_start(instance) for instance in instances]
    cases = [c for c in zip(problems, instances, starts, strict=True) if c[2] is not None]
    optima = [simulated_optimum(p, i) for p, i, _ in cases]
    over = sum(
        bound(p).seconds > b * (1 + 1e-9) for (p, _, _), b in zip(cases, optima, strict=True)
    )
    print(f"{count} instances, {len(cases)} feasible; the bound is above the optimum on {over}")
    for name, (links, formulate) in {
        **PROGRAMS,
        "moirai, one port": (lambda i: moirai.with_links(i, "one-port"), moirai.formulate),
    }.items():
        linked = [links(i) for _, i, _ in cases]
        again = [timed(i, s.devices, s.order(i)) for i, (*_, s) in zip(linked, cases, strict=True)]
        programs = [formulate(i, s) for i, s in zip(linked, again, strict=True)]
        answers = solve_all([p.model for p in programs])
        wrong = 0
        for i, program, answer, best in zip(linked, programs, answers, optima, strict=True):
            ticks = best / i.tick if name == "ilp" else free_optimum(i)
            wrong += abs(answer["objective"] / program.scale - ticks) > 1e-5 * ticks
        print(f"{name}: {wrong} of {len(cases)} differ", flush=True)
    answers = solve_all([cpsat.Task(i, s, 60.0, 1, 0, False, True) for _, i, s in cases])
    pairs = zip(cases, answers, optima, strict=True)
    wrong = sum(abs(a["bound"] * i.tick - b) > 1e-9 * b for (_, i, _), a, b in pairs)
    print(f"cpsat: {wrong} of {len(cases)} differ")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["bounds", "table", "agree"])
    parser.add_argument(
        "--instances", nargs="+", default=[], help="names that contain one of these"
    )
    parser.add_argument("--formulations", nargs="+", default=list(FORMULATIONS))
    parser.add_argument("--seconds", type=float, nargs="+", default=[10.0, 60.0])
    parser.add_argument("--fresh", action="store_true", help="forget what has been measured")
    parser.add_argument("--count", type=int, default=200)
    arguments = parser.parse_args()
    if arguments.what == "bounds":
        show_bounds()
    elif arguments.what == "agree":
        agree(arguments.count)
    else:
        unknown = set(arguments.formulations) - set(FORMULATIONS)
        if unknown:
            parser.error(f"no formulation is named {sorted(unknown)[0]!r}")
        make_table(arguments.instances, arguments.formulations, arguments.seconds, arguments.fresh)


if __name__ == "__main__":
    main()
