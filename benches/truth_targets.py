"""DistributedDataParallel on two worker processes, by files that were written for it, beside what
was predicted; ``truth.py targets`` runs it.

A transformer and a network of wide layers are trained on two cores over gloo: on one process, and
on two with buckets of two sizes, the optimizer replicated or sharded. Processes run in turn, round
by round, and a row says the least of the steps. What is predicted comes from times of the ops with
the whole batch (on one process; for two, while both cores are busy: `lm.measure_ops`), and from
times of sums and gathers of gloo between two processes.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import combinations
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from torch import distributed, nn
from truth_pipelines import BATCH, LAYERS, LENGTH, WORDS, Stage, loss_of, samples, sgd
from truth_real import FIRST, cpus

import loadmaster as lm
from loadmaster.running.learning import learn_times, times_of
from loadmaster.running.run import ready

#: Steps of each in a round, the first of which does not count.
STEPS = 3

#: Bytes of the sums and gathers that are measured, and how often each is.
SIZES, OFTEN = (4_096, 65_536, 1_048_576, 8_388_608, 33_554_432), 8

#: The largest error of a prediction that is wanted, and from where on the order counts.
ERROR, APART = 0.15, 1.10

#: What is tried of each model: a name, and options of the target.
WAYS: dict[str, dict[str, Any]] = {
    "one process": {"replicas": 1},
    "two, buckets of 25 MB": {"replicas": 2, "bucket_mb": 25, "optimizer": "replicated"},
    "two, buckets of 1 MB": {"replicas": 2, "bucket_mb": 1, "optimizer": "replicated"},
    "two, sharded optimizer": {"replicas": 2, "bucket_mb": 25, "optimizer": "sharded"},
}


class Wide(nn.Module):
    """Few wide layers over words: many parameters for the work."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 512)
        self.layers = nn.Sequential(*(nn.Linear(512, 512) for _ in range(8)))
        self.head = nn.Linear(512, WORDS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.layers(self.words(x)))
        return found


MODELS: dict[str, Callable[[], nn.Module]] = {
    "transformer": lambda: Stage(LAYERS // 2, is_first=True, is_last=True),
    "wide": Wide,
}


def _worker(rank: int, k: int, meeting: str, pipe: Connection) -> None:
    """A process: runs what it is told to, on a core of its own."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=k)
    steps: dict[str, Callable[[], None]] = {}
    while asked := pipe.recv():
        what, *rest = asked
        if what == "make":
            steps[rest[0]] = _made(rank, k, *rest[1:])
            pipe.send(None)
            continue
        run = steps[rest[0]] if what == "run" else _collective(what, k, rest[0])
        seconds = []
        for _ in range(rest[1]):
            distributed.barrier()
            began = time.perf_counter()
            run()
            distributed.barrier()
            seconds.append(time.perf_counter() - began)
        pipe.send(seconds)
    distributed.destroy_process_group()


def _made(rank: int, k: int, written: str, model: str) -> Callable[[], None]:
    """A step by a written file, on this process's share of the samples."""
    file: dict[str, Any] = {"__name__": "written"}
    exec(compile(written, "written.py", "exec"), file)
    torch.manual_seed(0)
    module = file["parallelize"](MODELS[model]().train(), torch.device("cpu"))
    optimizer = file["optimizer_of"](module, torch.optim.SGD, lr=0.01)
    inputs, targets = (tensor.chunk(k)[rank] for tensor in samples())

    def run() -> None:
        optimizer.zero_grad()
        loss_of(module(inputs), targets).backward()
        optimizer.step()

    return run


def _collective(what: str, k: int, size: int) -> Callable[[], None]:
    """A sum, or a gather, of so many bytes in all."""
    whole, part = torch.zeros(size // 4), torch.zeros(size // 4 // k)
    if what == "all_reduce":
        return lambda: distributed.all_reduce(whole)
    return lambda: distributed.all_gather(list(whole.chunk(k)), part)


@contextmanager
def processes(k: int) -> Iterator[Callable[..., list[float]]]:
    """So many processes: a function that has each do one thing, and gives rank 0's answer."""
    spawned = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        ends, workers = [], []
        for rank in range(k):
            here, there = spawned.Pipe()
            asked = (rank, k, f"file://{folder}/meeting", there)
            workers.append(spawned.Process(target=_worker, args=asked, daemon=True))
            workers[-1].start()
            ends.append(here)

        def ask(*what: Any) -> list[float]:
            for end in ends:
                end.send(what)
            found, *_ = [end.recv() for end in ends]
            return list(found or ())

        yield ask
        for end in ends:
            end.send(None)
        for worker in workers:
            worker.join()


def measured(ask: Callable[..., list[float]]) -> lm.Cluster:
    """Two cores, with what sums and gathers between them take."""
    two, times = cpus(2), []
    for kind in ("all_reduce", "all_gather"):
        seconds = tuple(min(ask(kind, size, OFTEN)[1:]) for size in SIZES)
        times.append(lm.CollectiveTimes(kind, 2, 1, SIZES, seconds, "measured here"))
    return lm.Cluster(two.devices, two.wiring, types=two.types, collectives=times)


def planned(model: str, cluster: lm.Cluster) -> dict[str, lm.Plan]:
    """A plan for each way, from times of the ops that are measured first."""
    torch.manual_seed(0)
    inputs, targets = samples()
    module = MODELS[model]()
    tape = lm.record(module, inputs, loss=loss_of, targets=targets, optimizer=sgd)
    single = lm.place(tape.graph, cpus(1), "single", np.where(tape.graph.reduced.runs, 1e-5, 0.0))
    costs = times_of(single)
    with ready(single, tape) as session:
        for _ in range(2):
            learn_times(costs, session(FIRST))
    busy = lm.measure_ops(tape, cpus(2), steps=FIRST)
    return {
        way: lm.place(
            tape.graph,
            cluster,
            costs=busy if options["replicas"] > 1 else costs,
            target="ddp",
            **options,
        )
        for way, options in WAYS.items()
    }


def main(rounds: int) -> None:
    """Prints the table; status 1 where a prediction, or an order, is off."""
    torch.set_num_threads(1)
    print(f"Batch {BATCH} x {LENGTH} words.\n")
    print("| model | how | predicted ms | ms | off by | load |\n" + "|---" * 6 + "|")
    good = True
    with processes(1) as one, processes(2) as two:
        cluster = measured(two)
        for model in MODELS:
            plans = planned(model, cluster)
            asks = {way: one if WAYS[way]["replicas"] == 1 else two for way in plans}
            for way, plan in plans.items():
                asks[way]("make", way, lm.writers.ddp(plan), model)
            seconds: dict[str, list[float]] = {way: [] for way in plans}
            for _ in range(rounds):
                for way, ask in asks.items():
                    seconds[way].extend(ask("run", way, STEPS)[1:])
            rows = {way: (plan.makespan, min(seconds[way])) for way, plan in plans.items()}
            good &= shown(model, rows)
    if not good:
        sys.exit(1)


def shown(model: str, rows: dict[str, tuple[float, float]]) -> bool:
    """Prints a model's rows; whether all are within what is wanted, and in the right order."""
    for way, (predicted, seen) in rows.items():
        cells = [model, way, f"{1e3 * predicted:.1f}", f"{1e3 * seen:.1f}"]
        cells += [f"{100 * (predicted / seen - 1):+.0f} %", f"{os.getloadavg()[0]:.1f}"]
        print(f"| {' | '.join(cells)} |", flush=True)
    pairs = [sorted(pair) for pair in combinations(rows.values(), 2)]
    apart = [(a, b) for a, b in pairs if b[0] > APART * a[0]]
    ordered = sum(a[1] < b[1] for a, b in apart)
    print(f"{model}: {ordered} of {len(apart)} pairs that are predicted apart are in order.")
    near = all(abs(predicted / seen - 1) <= ERROR for predicted, seen in rows.values())
    return near and ordered == len(apart)
