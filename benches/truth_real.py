"""Plans on two worker processes, beside what was predicted of them; ``truth.py real`` runs it.

Each model, for inference and for a step of SGD, is placed by six methods; the plan of one device
is added. All run in the same rounds. Costs are those of the rounds of even number and steps those
of odd number, and the other way round, so that no time predicts itself. A step's time is the 10th
percentile; an op's cost is its mean in the fastest fifth of the steps, which take about as long.
There are three predictions:

* ``alone``: costs from the run of the one-device plan, while the other core does nothing;
* ``single``: costs from runs of the one-device plan on both cores at once, each by itself, as
  ``lm.measure_ops`` has them. A plan that uses one device has the costs of ``alone``;
* ``others``: the mean of the costs from the runs of all plans but the one that is predicted.

What a message costs comes from a run of the random plan before the rounds: for ``alone`` it is
what links take, for the others what senders take (``send_cost``).

Intervals are those of the bootstrap over rounds, 90 %. Where workers waited for cores for more than
2 % of the time, the case is refused, with the message that says so, and it counts in no figure.
Between steps there is a rest, since Linux stops what runs in real time for all of a second.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import loadmaster as lm
from loadmaster.base.units import counted
from loadmaster.judge.problem import Problem
from loadmaster.running.measured.learning import learn_times, learnt_links, times_of
from loadmaster.running.measured.measured import Measured, fastest, typical
from loadmaster.running.measured.rounds import Runner, Session, interleaved
from loadmaster.running.measured.together import together
from loadmaster.running.runners import running

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: The plans of each model besides that of one device.
METHODS = ("auto", "heft", "etf", "m-topo", "round-robin", "random")
SOURCES = ("alone", "single", "others")

#: Draws of the bootstrap; steps before the rounds, from which costs and links are learnt.
DRAWS, FIRST = 200, 12

#: Steps of a plan in each round: the first finds the caches as the plan before it left them.
STEPS = 3

#: B/s of links between cores that have what is sent as soon as it is copied.
FREE = 1e13

#: Pairs of plans count in Kendall's tau where they are predicted so far apart. A plan that is
#: predicted to be faster than one device by the first factor is to measure the second.
APART, PREDICTED, WANTED = 0.1, 1.3, 1.15

#: Targets: the median absolute error by source of costs, at the lower end of its interval.
TARGETS = {"single": 0.09, "others": 0.055}

#: Where devices are.
ON = {"gpu0": "cpu:0", "gpu1": "cpu:1"}


@dataclass(frozen=True)
class Case:
    """A model, for inference or training, and how its plans did.

    Attributes
    ----------
    name : str
    rounds : int
    refused : str
        Why its figures count for nothing; empty where they do.
    plans : tuple of str
        One device first.
    measured : [n_plans]
        Seconds per step: the mean of those of even and of odd rounds.
    predicted : by source, [n_plans]
        Likewise.
    errors : by source, [1 + DRAWS, n_plans, 2]
        Predicted / measured - 1 in both halves: as measured, then as the bootstrap drew rounds.
    causes : str
        What the difference of the plan of ``auto`` to its prediction is made of.
    """

    name: str
    rounds: int
    refused: str
    plans: tuple[str, ...] = ()
    measured: tuple[float, ...] = ()
    predicted: dict[str, tuple[float, ...]] | None = None
    errors: dict[str, list[Any]] | None = None
    causes: str = ""


def measure(name: str, graph: lm.OpGraph, ready: Runner, rounds: int) -> Case:
    """Places a graph, runs all plans in rounds, and predicts them from each other."""
    plans = planned(graph, cpus(2), ready)
    by_itself = lm.place(graph, cpus(1), "single", plans["single"].costs.time)
    *runs, beside = interleaved([*plans.values(), by_itself], ready, rounds, STEPS)
    try:
        refuse_if_busy([*runs, beside])
    except BusyError as error:
        return Case(name, rounds, str(error))
    return judged(name, plans, runs, beside)


class BusyError(Exception):
    """The machine had other work, so that what was measured on it means little."""


def refuse_if_busy(runs: Sequence[Measured]) -> None:
    """Raises a BusyError if in some run workers waited too long for cores."""
    busy = [run for run in runs if run.is_busy]
    if busy:
        worst = max(busy, key=lambda run: run.delay)
        raise BusyError(f"{worst.busy} ({counted(len(busy), 'run')} of {len(runs)})")


def cpus(n: int) -> lm.Cluster:
    """Cores that share memory, by figures of other machines until these are measured."""
    kind = lm.DeviceType("cpu")
    return lm.Cluster.mesh(n, memory="8GiB", bandwidth=10e9, latency=10e-6, type=kind)


def copying(cluster: lm.Cluster) -> lm.Cluster:
    """Such cores, where what links take is what senders take, and links take next to nothing."""
    latency, per_byte = (
        float(np.mean([of(link) for link in cluster.links]))
        for of in (lambda link: link.latency, lambda link: 1 / link.bandwidth)
    )
    kind = lm.DeviceType("cpu", send_cost=lm.SendCost(latency, 1 / per_byte))
    return lm.Cluster.mesh(cluster.n_devices, memory="8GiB", bandwidth=FREE, type=kind)


def planned(graph: lm.OpGraph, cluster: lm.Cluster, ready: Runner) -> dict[str, lm.Plan]:
    """Plans by method, from costs and links that are measured first."""
    guess = np.where(graph.placeholder | graph.view, 0.0, 1e-5)
    single = lm.place(graph, cluster, "single", guess)
    costs = times_of(single)
    with ready(single) as session:
        learn_times(costs, session(FIRST))
    scattered = lm.place(graph, cluster, "random", costs)
    with ready(scattered) as session:
        cluster = learnt_links(cluster, session(FIRST))
    methods = ("single", *METHODS)
    options: dict[str, dict[str, Any]] = {"auto": {"split": "none"}}
    return {
        method: lm.place(graph, cluster, method, costs, **options.get(method, {}))
        for method in methods
    }


def on_cores(tape: lm.Tape) -> Runner:
    """Runs plans of two devices on two cores; one of one device on both of them at once, each by
    itself: its steps are those of either core.
    """
    placed = running(tape, on=ON)

    @contextmanager
    def ready(plan: lm.Plan) -> Iterator[Session]:
        if plan.cluster.n_devices > 1:
            with placed(plan) as session:
                yield session
            return
        with together(tape, cpus(2), on=ON) as run:

            def session(steps: int) -> Measured:
                first, *rest = (seen.steps for seen in run(steps))
                return Measured(plan, first.joined(rest), ("cpu:0,1",))

            yield session

    return ready


def resting(runner: Runner, urgent: Callable[[], None] | None) -> Runner:
    """The same with a rest after each run of steps, of half the time that they took. Workers, and
    not this process, run as urgently as what is called before they are started has it.
    """

    @contextmanager
    def ready(plan: lm.Plan) -> Iterator[Session]:
        if urgent is not None:
            urgent()
        with runner(plan) as session:
            if urgent is not None:
                os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))

            def run(steps: int) -> Measured:
                seen = session(steps)
                time.sleep(0.5 * float(seen.steps.seconds.sum()))
                return seen

            yield run

    return ready


def judged(
    name: str, plans: dict[str, lm.Plan], runs: Sequence[Measured], beside: Measured
) -> Case:
    """The case of plans, one device first, that ran in the same rounds, and of the run of one
    device beside itself.
    """
    rounds = len(runs[0].steps) // STEPS
    seconds = np.stack([run.steps.seconds for run in runs])
    ops = [run.op_seconds for run in runs]
    both = beside.op_seconds, beside.steps.seconds
    halves = np.arange(0, rounds, 2), np.arange(1, rounds, 2)
    random = np.random.default_rng(0)
    errors: dict[str, list[Any]] = {source: [] for source in SOURCES}
    first: dict[str, list[Floats]] = {"measured": [], **{source: [] for source in SOURCES}}
    for draw in range(1 + DRAWS):
        drawn = [random.choice(half, len(half)) if draw else half for half in halves]
        found: dict[str, list[Floats]] = {source: [] for source in SOURCES}
        for learnt, seen in (drawn, drawn[::-1]):
            took = typical(seconds[:, _steps(seen)].T)
            rows = _steps(learnt)
            costs = np.stack([_costs(*one, rows) for one in zip(ops, seconds, strict=True)])
            busy = _costs(*both, _steps(learnt, len(beside.steps) // rounds))
            for source in SOURCES:
                expected = predictions(plans, costs, busy, source)
                found[source].append(expected / took - 1)
                if not draw:
                    first[source].append(expected)
            if not draw:
                first["measured"].append(took)
        for source in SOURCES:
            errors[source].append(np.round(np.stack(found[source], axis=1), 5).tolist())
    means = {what: tuple(np.mean(columns, axis=0).tolist()) for what, columns in first.items()}
    auto = list(plans).index("auto")
    return Case(
        name,
        rounds,
        "",
        tuple(plans),
        means.pop("measured"),
        means,
        errors,
        str(runs[auto].causes()),
    )


def _costs(ops: Floats, seconds: Floats, steps: Ints) -> Floats:
    """What ops took in the fastest of some steps, [n_ops]."""
    return ops[steps][fastest(seconds[steps])].mean(axis=0)


def _steps(rounds: Ints, per_round: int = STEPS) -> Ints:
    """The steps of some rounds."""
    return (rounds[:, None] * per_round + np.arange(per_round)).ravel()


def predictions(plans: dict[str, lm.Plan], costs: Floats, busy: Floats, source: str) -> Floats:
    """Seconds per step of each plan by costs, [n_plans, n_ops], that were measured in the runs, and
    those of one device beside itself, [n_ops].
    """
    expected = []
    for i, plan in enumerate(plans.values()):
        is_one = len(set(plan.devices[plan.devices >= 0].tolist())) == 1
        if source == "others":
            times = np.delete(costs, i, axis=0).mean(axis=0)
        else:
            times = costs[0] if source == "alone" or is_one else busy
        cluster = plan.cluster if source == "alone" else copying(plan.cluster)
        given = lm.Costs.given(times, plan.graph, cluster)
        problem = Problem.make(plan.graph, cluster, given)
        expected.append(problem.verdict(plan.assignment).step_time)
    return np.array(expected)


# -- figures -------------------------------------------------------------------------------------


def tau(predicted: Sequence[float], measured: Sequence[float]) -> float | None:
    """Kendall's tau over the pairs predicted far enough apart; None where there are none."""
    agree: list[float] = []
    for a, b in combinations(range(len(predicted)), 2):
        low, high = sorted((predicted[a], predicted[b]))
        if high > (1 + APART) * low:
            agree.append(np.sign(predicted[a] - predicted[b]) * np.sign(measured[a] - measured[b]))
    return float(np.mean(agree)) if agree else None


def medians(cases: Sequence[Case], source: str) -> Floats:
    """The median absolute error of all plans of all cases but those of one device: as measured,
    then of each draw.
    """
    columns = [np.abs(np.array(case.errors[source])[:, 1:]) for case in cases if case.errors]
    flat = [column.reshape(len(column), -1) for column in columns]
    return np.median(np.concatenate(flat, axis=1), axis=1)


def kept_promises(cases: Sequence[Case], source: str) -> tuple[int, int]:
    """Plans predicted to be faster than one device by 1.3, and those of them that measure 1.15."""
    promised = kept = 0
    for case in cases:
        predicted, measured = np.array((case.predicted or {})[source]), np.array(case.measured)
        some = predicted[0] / predicted >= PREDICTED
        promised += int(some.sum())
        kept += int((measured[0] / measured >= WANTED)[some].sum())
    return promised, kept


def report(cases: Sequence[Case]) -> str:
    """Tables in Markdown: the figures beside their targets, then every plan."""
    told = [case for case in cases if not case.refused]
    lines = [f"Cases: {len(told)} measured, {len(cases) - len(told)} refused.", ""]
    lines += [f"* {case.name}: {case.refused}" for case in cases if case.refused]
    if not told:
        return "\n".join(lines)
    lines += ["", "| costs from | median error | 90 % | tau | promised 1.3 x | measured 1.15 x |"]
    lines += ["|---|---|---|---|---|---|"]
    for source in SOURCES:
        found = medians(told, source)
        low, high = np.quantile(found[1:], [0.05, 0.95])
        taus = [tau((case.predicted or {})[source], case.measured) for case in told]
        ranked = [one for one in taus if one is not None]
        promised, kept = kept_promises(told, source)
        wanted = f" (target {TARGETS[source]:.1%})" if source in TARGETS else ""
        lines.append(
            f"| {source} | {found[0]:.1%}{wanted} | {low:.1%} to {high:.1%} "
            f"| {np.mean(ranked):.2f} | {promised} | {kept} |"
        )
    lines += ["", "| case | plan | measured | " + " | ".join(SOURCES) + " |"]
    lines += ["|---|---|---|" + "---|" * len(SOURCES)]
    for case in told:
        for i, plan in enumerate(case.plans):
            off = " | ".join(
                f"{(case.predicted or {})[source][i] / case.measured[i] - 1:+.1%}"
                for source in SOURCES
            )
            lines.append(f"| {case.name} | {plan} | {1e3 * case.measured[i]:.2f} ms | {off} |")
    return "\n".join(lines)


def main(path: Path, names: Sequence[str], rounds: int, urgent: Callable[[], None] | None) -> None:
    """Measures the cases that a file of finished ones lacks, and prints the report of all."""
    import torch
    from truth_models import MODELS, step_of

    torch.set_num_threads(1)
    known = (
        [Case(**json.loads(line)) for line in path.read_text().splitlines()]
        if path.exists()
        else []
    )
    done = {case.name for case in known if not case.refused}
    cases = {case.name: case for case in known}
    for model in names or MODELS:
        for train in (False, True):
            name = f"{model}, {'SGD' if train else 'inference'}"
            if name in done:
                continue
            tape = lm.record(**step_of(model, train))
            ready = resting(on_cores(tape), urgent)
            case = measure(name, tape.graph, ready, rounds)
            cases[name] = case
            with path.open("a") as file:
                file.write(json.dumps(asdict(case)) + "\n")
            print(case.refused or case.causes, file=sys.stderr, flush=True)
    print(report(list(cases.values())))
