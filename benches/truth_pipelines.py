"""Pipelines on worker processes, beside PyTorch's own and beside what was predicted of them;
``truth.py pipelines`` runs it.

A transformer is cut into equal stages by hand, so that both run the same ones: Loadmaster by a
recipe (``lm.run``), PyTorch by ``torch.distributed.pipelining`` (``ScheduleGPipe``,
``Schedule1F1B``) over gloo. Both have the same weights, samples, micro-batches and optimizer. First
their losses and gradients are held against each other and against the step of one process, then
they run in turn, and a row says the 10th percentile of the steps of each, and by how much what is
predicted is off. That comes from times of the ops on one process, with the whole batch, and from a
message's time between the processes: an op of a micro-batch takes its share of that.

With more stages than cores, stages wait for cores: numbers are compared then, and times are not.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from torch import distributed, nn
from torch.distributed import pipelining
from torch.nn import functional
from truth_real import FIRST, cpus

import loadmaster as lm
from loadmaster.model.micro import Micro
from loadmaster.model.recipe import DeviceMesh, Recipe
from loadmaster.running.measured.learning import learn_times, learnt_links, times_of
from loadmaster.running.run import ready, started

WORDS, WIDTH, LENGTH, BATCH, LAYERS = 1000, 192, 32, 16, 8

#: Steps of each in a round.
STEPS = 3

#: PyTorch's schedules by the names of Loadmaster's.
SCHEDULES = {"gpipe": pipelining.ScheduleGPipe, "1f1b": pipelining.Schedule1F1B}

#: The largest relative error of a loss or a gradient that is wanted.
WANTED = 1e-4


class Stage(nn.Module):
    """Layers of a transformer, after its words or before its head."""

    def __init__(self, layers: int, *, is_first: bool, is_last: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH) if is_first else None
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
            )
            for _ in range(layers)
        )
        self.head = nn.Linear(WIDTH, WORDS) if is_last else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.words is not None:
            x = self.words(x)
        for layer in self.layers:
            x = layer(x)
        return x if self.head is None else self.head(x)


def model_of(p: int) -> nn.Sequential:
    """The model in ``p`` stages, the same in each process."""
    torch.manual_seed(0)
    return nn.Sequential(
        *(Stage(LAYERS // p, is_first=s == 0, is_last=s == p - 1) for s in range(p))
    )


def samples() -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets."""
    drawn = torch.Generator().manual_seed(1)
    one, other = (torch.randint(WORDS, (BATCH, LENGTH), generator=drawn) for _ in range(2))
    return one, other


def loss_of(found: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """The mean over samples."""
    return functional.cross_entropy(found.flatten(0, 1), wanted.flatten())


def sgd(parameters: Any) -> torch.optim.Optimizer:
    """What both update by."""
    return torch.optim.SGD(parameters, 0.01)


# -- PyTorch's -------------------------------------------------------------------------------


def _worker(rank: int, p: int, m: int, schedule: str, meeting: str, pipe: Connection) -> None:
    """A stage of PyTorch's pipeline: runs so many steps whenever it is told to."""
    torch.set_num_threads(1)
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
    distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=p)
    module, (inputs, targets) = model_of(p)[rank].train(), samples()
    stage = pipelining.PipelineStage(module, rank, p, torch.device("cpu"))
    run = SCHEDULES[schedule](stage, m, loss_fn=loss_of)
    optimizer = sgd(module.parameters())
    while steps := pipe.recv():
        seconds, losses = [], []
        for _ in range(steps):
            losses = []
            distributed.barrier()
            began = time.perf_counter()
            optimizer.zero_grad()
            given = (inputs,) if rank == 0 else ()
            run.step(*given, **({"target": targets, "losses": losses} if rank == p - 1 else {}))
            optimizer.step()
            distributed.barrier()
            seconds.append(time.perf_counter() - began)
        gradients = {f"{rank}.{name}": w.grad for name, w in module.named_parameters()}
        numbers = {name: tensor.numpy() for name, tensor in gradients.items()}
        pipe.send((seconds, [loss.item() for loss in losses], numbers))
    distributed.destroy_process_group()


@contextmanager
def torch_pipeline(p: int, m: int, schedule: str) -> Iterator[Any]:
    """PyTorch's pipeline: a function of steps that gives seconds, losses and gradients."""
    spawned = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        ends, workers = [], []
        for rank in range(p):
            here, there = spawned.Pipe()
            meeting = f"file://{folder}/meeting"
            asked = (rank, p, m, schedule, meeting, there)
            workers.append(spawned.Process(target=_worker, args=asked, daemon=True))
            workers[-1].start()
            ends.append(here)

        def run(steps: int) -> tuple[list[float], list[float], dict[str, Any]]:
            for end in ends:
                end.send(steps)
            found = [end.recv() for end in ends]
            gradients = {name: value for *_, of in found for name, value in of.items()}
            return found[0][0], found[-1][1], gradients

        yield run
        for end in ends:
            end.send(0)
        for worker in workers:
            worker.join()


# -- Loadmaster's ----------------------------------------------------------------------------


def planned(tape: lm.Tape, p: int, m: int, schedule: str) -> lm.Plan:
    """The plan of the same stages, from times of the ops that are measured first."""
    graph, cluster = tape.graph, cpus(p)
    single = lm.place(graph, cluster, "single", np.where(graph.reduced.runs, 1e-5, 0.0))
    costs = times_of(single)
    with ready(single, tape) as session:
        learn_times(costs, session(FIRST))
    with ready(lm.place(graph, cluster, "random", costs), tape) as session:
        cluster = learnt_links(cluster, session(FIRST))
    # The loss has no module of its own: it is the last stage's.
    stage = np.array([int(name[:1]) if name[:1].isdigit() else p - 1 for name in graph.modules])
    names = tuple(device.name for device in cluster.devices)
    mesh = DeviceMesh(DeviceMesh.of({"pp": p}).axes, names)
    recipe = Recipe.of_stages(graph, mesh, stage, Micro(m, schedule))
    return lm.place(graph, cluster, costs=costs, recipe=recipe)


def off(found: Any, expected: torch.Tensor) -> float:
    """The largest difference, over the largest number."""
    difference = (torch.as_tensor(found) - expected).abs().max()
    return float(difference / expected.abs().max().clamp(min=1e-30))


def compared(p: int, m: int, schedule: str, rounds: int) -> bool:
    """Prints a row; whether the numbers are the same."""
    inputs, targets = samples()
    tape = lm.record(model_of(p), inputs, loss=loss_of, targets=targets, optimizer=sgd)
    alone = tape.replay(1)
    plan = planned(tape, p, m, schedule)
    with torch_pipeline(p, m, schedule) as run:
        _, losses, theirs = run(1)
        with started(plan, tape) as devices:
            devices.run(1)
            ours = devices.fetch()
        names = [name for name in alone if name.startswith("gradient.")]
        errors = (
            max(off(ours[name], alone[name]) for name in ("loss", *names)),
            max(
                off(np.mean(losses), alone["loss"]),
                *(off(theirs[name.partition(".")[2]], alone[name]) for name in names),
            ),
        )
        seconds: tuple[list[float], list[float]] = [], []
        with ready(plan, tape) as session:
            for _ in range(rounds):
                seconds[0].extend(session(STEPS).steps.seconds[1:].tolist())
                seconds[1].extend(run(STEPS)[0][1:])
    ours_ms, theirs_ms = (1e3 * float(np.quantile(each, 0.1)) for each in seconds)
    predicted = 1e3 * plan.makespan
    cells = [str(p), str(m), schedule, f"{errors[0]:.0e}", f"{errors[1]:.0e}"]
    cells += [f"{predicted:.1f}", f"{ours_ms:.1f}", f"{100 * (predicted / ours_ms - 1):+.0f} %"]
    cells += [f"{theirs_ms:.1f}", f"{100 * (predicted / theirs_ms - 1):+.0f} %"]
    cells += [f"{os.getloadavg()[0]:.1f}"]
    print(f"| {' | '.join(cells)} |", flush=True)
    return max(errors) <= WANTED


def main(rounds: int) -> None:
    """Prints the table; status 1 where a loss or gradient is another."""
    torch.set_num_threads(1)
    heads = "stages | micro-batches | schedule | error | error of PyTorch's | predicted ms | ms"
    print(f"| {heads} | off by | PyTorch's ms | off by | load |\n" + "|---" * 11 + "|")
    asked = [(p, m, name) for p, m in ((2, 4), (2, 8), (4, 8)) for name in SCHEDULES]
    if not all([compared(p, m, name, rounds) for p, m, name in asked]):
        sys.exit(1)
