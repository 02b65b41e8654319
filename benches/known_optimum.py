"""How far above the known optimum of planted instances list schedulers end.

    python benches/known_optimum.py [--ops 1000] [--ccr 1]

The instances are those of ``loadmaster.readers.instances.planted``. The command prints how far
above the optimum list schedulers end, under both link models: each plans and is simulated with
channels without limit, as the papers do, and with channels that serve one transfer at a time, first
come, first served. What the engine itself expects with contention stands beside: it leaves ops
where they are scheduled, though a later one may delay what they read.
"""

from __future__ import annotations

import argparse
import statistics

import loadmaster as lm
from loadmaster.base.effort import Effort
from loadmaster.readers.instances import Instance
from loadmaster.readers.instances.planted import planted

#: Methods that plan under either link model.
LISTED = ("heft", "etf", "dpos", "peft", "cpop")

#: What `auto` may take, as counted, and its rows.
EFFORTS: dict[Effort, str] = {"fast": "auto, 1 s", "normal": "auto, 15 s"}

#: Devices and seeds of the instances in the table.
DEVICES, SEEDS = (2, 4, 8), (0, 1, 2)


def over(made: Instance, method: str) -> dict[str, float]:
    """How far above the optimum a method ends, in percent: by link model, and as it expects."""
    plan = lm.place(made.graph, made.cluster, method)
    free = lm.place(made.graph, made.cluster, method, contention=False)
    # The sequence that was planned, kept to exactly, and whatever is ready taken at once.
    unlimited = min(
        lm.simulate(
            made.graph,
            made.cluster,
            free.devices,
            free.priority,
            policy=policy,
            contention=False,
        ).makespan
        for policy in ("fixed", "priority")
    )
    seconds = {"free": unlimited, "contention": plan.makespan, "expected": plan.estimate}
    return {name: (s / made.optimum - 1) * 100 for name, s in seconds.items() if s is not None}


def report(n_ops: int, ccr: float) -> None:
    """Prints a table: mean and worst of the seeds, per method and number of devices."""
    print(f"{n_ops} ops, CCR {ccr:g}: percent over the optimum, mean (worst) of {len(SEEDS)} seeds")
    print("devices  method        unlimited channels         contention    expected with it")
    for devices in DEVICES:
        instances = [planted(n_ops, devices, ccr, seed) for seed in SEEDS]
        for method in LISTED:
            found = [over(made, method) for made in instances]
            cells = []
            for column in ("free", "contention", "expected"):
                values = [one[column] for one in found if column in one]
                cells.append(
                    f"{statistics.mean(values):.2f} ({max(values):.2f})" if values else "-"
                )
            print(f"{devices:7}  {method:10}" + "".join(f"{cell:>20}" for cell in cells))
        for effort, method in EFFORTS.items():
            plans = [
                lm.place(one.graph, one.cluster, effort=effort, time_limit=60) for one in instances
            ]
            values = [
                (plan.makespan / one.optimum - 1) * 100
                for plan, one in zip(plans, instances, strict=True)
            ]
            cell = f"{statistics.mean(values):.2f} ({max(values):.2f})"
            print(f"{devices:7}  {method:10}{'':20}{cell:>20}")


def main() -> None:
    """Parses arguments and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ops", type=int, default=1000)
    parser.add_argument("--ccr", type=float, default=1.0)
    arguments = parser.parse_args()
    report(arguments.ops, arguments.ccr)


if __name__ == "__main__":
    main()
