"""The exact side, measured: bounds, formulations, agreement with brute force.

    python benches/exact.py bounds                       # gaps to the best known, CPU time
    python benches/exact.py table [--instances TEXT ...] [--formulations NAME ...]
                                  [--seconds 60] [--fresh]
    python benches/exact.py agree [--count 200]          # random instances against brute force

``bounds`` and ``table`` speak of the 24 instances of ``tests/data/scheduling``; ``table`` also of
GoogLeNet and Transformer of ``tests/data/heterogeneous``, merged to 50 groups. Each formulation
starts from the same schedule: a local search cut short, HEFT for the two models. It runs once, for
60 s of CPU: the building of the model, the solver's process and all of its threads; what it knew
after 10 s is read off the same run. CBC has one thread, CP-SAT eight. What is measured is kept in
``.exact.jsonl``, so that a run that was broken off goes on where it was, instances can be measured
one at a time, and runs that were stopped earlier (``--seconds 10``) are made again for longer;
every run writes all that is kept into ``results/exact.md``.
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
from data import DATA
from layered import layered
from quality import heterogeneous_problem, table
from search import Coarse

import loadmaster as lm
from loadmaster import fast
from loadmaster.base.errors import SolverError
from loadmaster.judge.bounds import bound
from loadmaster.judge.problem import Problem, by_start
from loadmaster.milp import cpsat, ilp, moirai, pesto, solve
from loadmaster.milp.formulation import Formulation
from loadmaster.milp.instance import MilpInstance, instance_of
from loadmaster.milp.timing import Timed, settled, timed
from loadmaster.strategies.auto import auto
from loadmaster.strategies.exact.solving import Solvable, start_from_search

HERE = Path(__file__).parent
PAGE = HERE / "results" / "exact.md"
KEPT = HERE / ".exact.jsonl"
MEASURED = ("moirai-googlenet", "moirai-transformer")
GROUPS = 50
EFFORT = 0.02

#: CPU seconds after which the table says what is known.
SECONDS = (10.0, 60.0)

#: Share of a makespan by which a bound may miss it and be called a proof: programs are solved to
#: so much.
PROVED = 1e-4

#: The outcome of a run that was not over by then.
STOPPED = "time"

#: Seconds of the clock that a run may take for them.
CLOCK = 900.0

Formulate = Callable[[MilpInstance, Timed], Formulation]

PROGRAMS: dict[str, tuple[Callable[[MilpInstance], MilpInstance], Formulate]] = {
    "ilp": (lambda instance: instance, ilp.formulate),
    "pesto": (pesto.with_links, pesto.formulate),
    "moirai": (lambda i: moirai.with_links(i, "per-link"), moirai.formulate),
}
FORMULATIONS = (*PROGRAMS, "cpsat", "cpsat, free links")


@dataclass(frozen=True)
class Row:
    """What one formulation came to: milliseconds of makespan, by its own link model.

    ``known`` has what was known when: CPU seconds, best and bound; ``cpu`` is what the run took,
    and ``limit`` when it would have been stopped.
    """

    instance: str
    formulation: str
    rows: int | None
    columns: int | None
    start: float
    lower: float
    known: list[tuple[float, float, float]]
    cpu: float
    limit: float
    best_known: float | None
    outcome: str

    def reaches(self, seconds: float) -> bool:
        """Whether it is known how things stand after so many CPU seconds."""
        return self.outcome != STOPPED or self.limit >= seconds

    def after(self, seconds: float) -> tuple[float, float]:
        """Best and bound after so many CPU seconds."""
        told = [(best, bound) for cpu, best, bound in self.known if cpu <= seconds]
        best, bound = told[-1] if told else (self.start, self.lower)
        return best, min(bound, best)

    @property
    def better(self) -> float | None:
        """The CPU second of the first solution better than the start; None: there was none."""
        return next((c for c, best, _ in self.known if best < self.start * (1 - 1e-6)), None)


def best_known() -> dict[str, Any]:
    """The instances' best known makespans."""
    found: dict[str, Any] = json.loads((DATA / "scheduling" / "best_known.json").read_text())
    return found


def scheduling_problem(name: str) -> Problem:
    """An instance as the package takes it."""
    found = lm.instances.load(f"scheduling/{name}")
    return Problem.make(found.graph, found.cluster, found.costs)


def problem_of(name: str) -> Problem:
    """A scheduling instance, or the groups of a measured model."""
    if name in MEASURED:
        return Solvable(heterogeneous_problem(name, "")).coarser("multilevel", GROUPS).problem
    return scheduling_problem(name)


def start_of(name: str, problem: Problem) -> tuple[MilpInstance, Timed]:
    """Where all formulations start."""
    if name in MEASURED:
        start = start_from_search(Solvable(problem), "static", 0.0)
        devices, order, charge = start.devices, start.order, start.charge
    else:
        plan = auto.place(problem, effort=EFFORT)
        devices, charge = plan.assignment.devices, problem.reduced.held_at_peak
        order = by_start(problem.graph, plan.schedule.start, plan.schedule.finish)
    instance = instance_of(problem, charge, bound(problem).seconds)
    return instance, settled(instance, instance.canonical(devices), order)


def measured(name: str, formulation: str, limit: float) -> Row:
    """One row of the table, of a run that is stopped after so many CPU seconds."""
    problem = problem_of(name)
    instance, start = start_of(name, problem)
    ms = instance.tick * 1e3
    known: list[tuple[float, float, float]] = []
    began = time.process_time()

    def teller(scale: float, built: float) -> Callable[[float | None, float | None, float], None]:
        def tell(best: float | None, lower: float | None, cpu: float) -> None:
            _, least, most = known[-1] if known else (0.0, start.makespan * ms, instance.lower * ms)
            least = least if best is None else min(best / scale * ms, least)
            most = most if lower is None else max(lower / scale * ms, most)
            known.append((built + cpu, least, most))

        return tell

    if formulation in PROGRAMS:
        links, formulate = PROGRAMS[formulation]
        program = formulate(links(instance), start)
        built = time.process_time() - began
        size, cpu, outcome = solved(program, built, limit, teller(program.scale, built))
    else:
        is_fcfs = formulation == "cpsat"
        tell = teller(1.0, 0.0)
        task = cpsat.CpsatTask(instance, start, CLOCK, is_fcfs=is_fcfs)
        answer = cpsat.solve(task, cpu_limit=limit, progress=tell)
        tell(None, answer.bound, answer.cpu)
        size, cpu, outcome = answer.size, answer.cpu, answer.status
        if answer.failure is not None:
            outcome = ended(answer.failure)
    best = best_known().get(name)
    return Row(
        name,
        formulation,
        *(size or (None, None)),
        start.makespan * ms,
        instance.lower * ms,
        known,
        cpu,
        limit,
        None if best is None else best["makespan"] * 1e-3,
        outcome,
    )


def solved(
    program: Formulation,
    built: float,
    limit: float,
    tell: Callable[[float | None, float | None, float], None],
) -> tuple[tuple[int, int], float, str]:
    """Size, CPU seconds and outcome of a program, by CBC."""
    model = program.model
    size, left = (model.n_rows, model.n_variables), max(limit - built, 0.1)
    try:
        found = solve(model, solver="cbc", time_limit=CLOCK, cpu_limit=left, progress=tell)
    except SolverError as error:
        return size, limit, ended(str(error))
    tell(found.objective, found.bound, found.cpu)
    return size, built + found.cpu, found.status


def ended(failure: str) -> str:
    """Why a run was over, in a word or two."""
    return STOPPED if "s of CPU" in failure else failure.splitlines()[0]


# -- the report ----------------------------------------------------------------------------------


def kept(fresh: bool) -> dict[tuple[str, str], Row]:
    """What has been measured."""
    if fresh or not KEPT.exists():
        return {}
    rows = [Row(**json.loads(line)) for line in KEPT.read_text().splitlines()]
    return {(r.instance, r.formulation): r for r in rows}


def report(rows: dict[tuple[str, str], Row]) -> str:
    """The page ``exact.md``."""
    names = [*best_known(), *MEASURED]
    missing = []
    for f in FORMULATIONS:
        found = [rows[n, f] for n in names if (n, f) in rows]
        counts = [len(names) - sum(row.reaches(s) for row in found) for s in SECONDS]
        if any(counts):
            by = " and ".join(f"{n} at {s:g} s" for n, s in zip(counts, SECONDS, strict=True) if n)
            missing.append(f"`{f}`: {by}")
    lines = [
        "# Exact formulations",
        "",
        "    python benches/exact.py table",
        "",
        "Milliseconds of makespan, each formulation by its own link model: `ilp` and `cpsat` "
        "first come, first served, as the simulator; `pesto` and `moirai` (per link) and `cpsat, "
        "free links` let channels serve in any order, so that their bounds hold for first come, "
        "first served too, and their best may not. All start from the same schedule (a local "
        "search cut short; HEFT for the two models), so that a solution is there from second 0; "
        "*better* is when the first one better than the start came. Seconds are of CPU: the "
        "building of the model, the solver's process and all of its threads. One run gives both "
        "columns, 10 s and 60 s; *took* is when it ended, *time* that it was stopped there. CBC "
        "(`ilp`, `pesto`, `moirai`) has one thread. CP-SAT has 8 workers, which take CPU time "
        "eight at a time: on 8 cores, 60 s of it would be 7.5 s of the clock; here two cores "
        "took turns at them, at least 30 s. A bound is the solver's or the combinatorial one "
        "that it was given, whichever is larger. Medians are of what was measured: where counts "
        "differ, they speak of different instances.",
        "",
    ]
    if missing:
        many = f"Not measured, of the {len(names)} instances: {'; '.join(missing)}."
        lines += [many, ""]
    lines += summary(rows)
    head = ["instance", "formulation", "rows", "columns", "start", "better"]
    head += [f"{what}, {s:g} s" for s in SECONDS for what in ("best", "bound", "gap")]
    head += ["best known", "took", "outcome"]
    body = []
    order = list(FORMULATIONS)
    for r in sorted(
        rows.values(), key=lambda r: (*place_of(r.instance), order.index(r.formulation))
    ):
        at = [r.after(s) if r.reaches(s) else None for s in SECONDS]
        body.append(
            [
                r.instance,
                r.formulation,
                str(r.rows or ""),
                str(r.columns or ""),
                f"{r.start:.5g}",
                "" if r.better is None else f"{r.better:.1f}",
                *(text for known in at for text in stated(known)),
                "" if r.best_known is None else f"{r.best_known:.5g}",
                f"{r.cpu:.1f}",
                r.outcome,
            ]
        )
    return "\n".join([*lines, *table(head, body)])


def summary(rows: dict[tuple[str, str], Row]) -> list[str]:
    """What each formulation came to by size, as a table."""
    body = []
    for size in ("n20", "n100", "moirai"):
        for f in FORMULATIONS:
            some = [r for (n, g), r in rows.items() if g == f and n.startswith(size)]
            line = [{"n20": "20 groups", "n100": "100 groups", "moirai": "models"}[size], f]
            for seconds in SECONDS:
                at = [(r.start, *r.after(seconds)) for r in some if r.reaches(seconds)]
                gaps = [(best - bound) / best for _, best, bound in at]
                line += [
                    str(len(at)),
                    str(sum(best < start * (1 - 1e-6) for start, best, _ in at)) if at else "",
                    str(sum(gap < PROVED for gap in gaps)) if at else "",
                    f"{statistics.median(gaps):.1%}" if at else "",
                ]
            body.append(line)
    head = ["", "formulation"]
    words = ("measured", "better than the start", "proved", "median gap")
    return table([*head, *(f"{word}, {s:g} s" for s in SECONDS for word in words)], body)


def stated(known: tuple[float, float] | None) -> tuple[str, str, str]:
    """Best, bound and gap, as far as known."""
    if known is None:
        return "", "", ""
    best, bound = known
    return f"{best:.5g}", f"{bound:.5g}", f"{(best - bound) / best:.1%}"


def place_of(name: str) -> tuple[bool, bool, str]:
    """Where an instance stands in the table: the smaller first, models last."""
    return not name.startswith("n"), not name.startswith("n20"), name


def turn(name: str, formulation: str) -> int:
    """What is measured first: what is soon proved, then our own programs on what is large."""
    ours = formulation in ("ilp", "cpsat")
    if formulation not in FORMULATIONS[:4]:
        return 5
    if name in MEASURED:
        return 0 if ours else 3
    if name.startswith("n20"):
        return {"cpsat": 0, "ilp": 2}.get(formulation, 4)
    return 1 if ours else 3


def make_table(instances: list[str], formulations: list[str], limit: float, fresh: bool) -> None:
    """Measures what is missing, and writes the report after every run."""
    rows = kept(fresh)
    names = [
        n for n in (*best_known(), *MEASURED) if not instances or any(t in n for t in instances)
    ]
    todo = [(n, f) for n in names for f in formulations]
    todo = [job for job in todo if job not in rows or not rows[job].reaches(limit)]
    for name, formulation in sorted(todo, key=lambda job: (turn(*job), job[0])):
        row = measured(name, formulation, limit)
        rows[name, formulation] = row
        KEPT.write_text("".join(json.dumps(asdict(r)) + "\n" for r in rows.values()))
        PAGE.write_text(report(rows).strip() + "\n")
        known = [row.after(s) for s in SECONDS if row.reaches(s)]
        at = "  ".join(f"{best:.5g} >= {bound:.5g}" for best, bound in known)
        print(
            f"{name:42} {formulation:18} start {row.start:.5g}  {at}  "
            f"{row.cpu:.1f} s {row.outcome}",
            flush=True,
        )
    PAGE.write_text(report(rows).strip() + "\n")


def show_bounds() -> None:
    """Gaps to the best known and milliseconds, of the bounds alone."""
    gaps: dict[str, list[float]] = {}
    for name, found in sorted(best_known().items()):
        coarse = Coarse.read(name)
        began = time.process_time()
        bounds = fast.bounds(fast.Problem(coarse.graph, coarse.cluster, coarse.time))
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
        fast.bounds(fast.Problem(work, cluster, seconds))
        took = time.process_time() - began
        print(f"50,000 ops, 8 devices of {types} types: {1e3 * took:.0f} ms")
    for size, some in gaps.items():
        print(f"{size}: median {statistics.median(some):.1%}, mean {statistics.mean(some):.1%}")


def agree(count: int) -> None:
    """Every formulation against brute force on random instances."""
    sys.path.insert(0, str(HERE.parent / "tests" / "support"))
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
    answers = solve_all([cpsat.CpsatTask(i, s, 60.0, 1, 0, False, True) for _, i, s in cases])
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
    parser.add_argument("--seconds", type=float, default=SECONDS[-1], help="of CPU, per run")
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
