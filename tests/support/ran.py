"""Steps of a plan as if they had run: those of its simulation, changed as a test wants."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace

import numpy as np

import loadmaster as lm
from loadmaster.costs.program import program_costs
from loadmaster.judge.problem import Problem
from loadmaster.judge.simulation import run
from loadmaster.running.measured.measured import Measured, Steps


def steps_of(plan: lm.Plan, seconds: list[float], stretch: float = 1.0) -> Steps:
    """Steps that took so many seconds, everything in them in proportion to the simulation."""
    seen, factor = plan.schedule, stretch * np.array(seconds)[:, None] / plan.makespan
    sent, together = seen.transfers, seen.collectives
    columns = (seen.start, seen.finish, sent.start, sent.finish, together.start, together.finish)
    return Steps(
        *(factor * column for column in columns),
        seconds=stretch * np.array(seconds),
        delay=np.zeros(len(seconds)),
        peaks=seen.memory.peak,
    )


def measured(plan: lm.Plan, seconds: list[float], stretch: float = 1.0) -> Measured:
    """The plan with such steps."""
    on = ("emulated",) * plan.cluster.n_devices
    return Measured(plan, steps_of(plan, seconds, stretch), on, stretch)


def disturbed(plan: lm.Plan, n_steps: int, seed: int) -> Measured:
    """A run in which everything takes another time than predicted, and starts as it can: the
    simulation with other costs and links, in the order that the plan has.
    """
    random = np.random.default_rng(seed)
    costs = plan.problem.costs
    runs = []
    for _ in range(n_steps):
        time = costs.time * random.uniform(0.5, 2.0, costs.time.shape)
        problem = Problem.make(plan.program, plan.cluster, replace(costs, time=time))
        runs.append(run(problem, plan.assignment))
    return of_simulation(plan, runs)


def pretended(times: np.ndarray, cluster: lm.Cluster | None = None, ran: list | None = None):
    """A runner whose devices truly take these times, [n_ops] of the user's graph, and whose links
    are truly those of a cluster: what the judge says of them. Plans that run are added to ``ran``.
    """

    @contextmanager
    def ready(plan: lm.Plan):
        def session(steps: int) -> Measured:
            if ran is not None:
                ran.append(plan)
            truly = cluster or plan.cluster
            problem = Problem.make(plan.graph, truly, lm.Costs.given(times, plan.graph, truly))
            if not plan.program.is_plain:
                costs = program_costs(plan.program, problem.costs, truly)
                problem = Problem.make(plan.program, truly, costs)
            seen = run(problem, plan.assignment)
            return of_simulation(plan, [seen] * steps)

        yield session

    return ready


def of_simulation(plan: lm.Plan, runs: list[lm.Simulation]) -> Measured:
    """Simulations of other costs as steps of a plan; a transfer begins with its sender's copy."""
    parts = [
        edge
        for seen in runs
        for edge in (
            (seen.start, seen.finish),
            (seen.transfers.start - seen.transfers.copying, seen.transfers.finish),
            (seen.collectives.start, seen.collectives.finish),
        )
    ]
    columns = [
        np.stack([parts[3 * i + k][e] for i in range(len(runs))])
        for k in range(3)
        for e in range(2)
    ]
    seconds = np.array([seen.makespan for seen in runs])
    steps = Steps(*columns, seconds=seconds, delay=np.zeros(len(runs)))
    return Measured(plan, steps, ("emulated",) * plan.cluster.n_devices)
