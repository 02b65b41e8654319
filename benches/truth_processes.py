"""Worker processes of gloo, each pinned to a core of its own, that run steps by written files."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed import pipelining

#: What a process is asked, and seconds as each process answers: ``(wall, cpu)`` for every time.
Ask = Callable[..., list[list[tuple[float, float]]]]

#: Makes a step of a written file: ``(rank, k, names of the file, what was given) -> step``.
Maker = Callable[..., Callable[[], None]]


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
            name, maker, written, *given = rest
            file: dict[str, Any] = {"__name__": "written"}
            exec(compile(written, "written.py", "exec"), file)
            steps[name] = maker(rank, k, file, *given)
            pipe.send([])
            continue
        run = steps[rest[0]] if what == "run" else _message(what, rank, k, rest[0])
        pipe.send([_timed(run) for _ in range(rest[1])])
    distributed.destroy_process_group()


def _timed(run: Callable[[], None]) -> tuple[float, float]:
    """Seconds from a barrier to the end, by the clock, and of all threads of this process."""
    distributed.barrier()
    began, busy = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - began, time.process_time() - busy


def _message(what: str, rank: int, k: int, size: int) -> Callable[[], None]:
    """A gradient's sum, a gather, a message from the first process to the last, or an addition by
    each, of so many bytes.
    """
    whole, part = torch.zeros(size // 4), torch.zeros(size // 4 // k)
    if what == "add":
        other = torch.ones(size // 4)
        return lambda: whole.add_(other)
    if what == "all_reduce":
        gradient = torch.ones(size // 4)

        def summed() -> None:
            torch.mul(gradient, 1 / k, out=whole)
            distributed.all_reduce(whole)

        return summed
    if what == "all_gather":
        return lambda: distributed.all_gather(list(whole.chunk(k)), part)

    def sent() -> None:
        way, other = (distributed.isend, k - 1) if rank == 0 else (distributed.irecv, 0)
        for work in distributed.batch_isend_irecv([distributed.P2POp(way, whole, other)]):
            work.wait()

    return sent


@contextmanager
def processes(k: int) -> Iterator[Ask]:
    """So many processes: a function that has each do one thing, and gives what each answers."""
    spawned = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        ends, workers = [], []
        for rank in range(k):
            here, there = spawned.Pipe()
            asked = (rank, k, f"file://{folder}/meeting", there)
            workers.append(spawned.Process(target=_worker, args=asked, daemon=True))
            workers[-1].start()
            ends.append(here)

        def ask(*what: Any) -> list[list[tuple[float, float]]]:
            for end in ends:
                end.send(what)
            return [end.recv() for end in ends]

        yield ask
        for end in ends:
            end.send(None)
        for worker in workers:
            worker.join()


def replica(
    rank: int, k: int, file: dict[str, Any], module: nn.Module, batch: Any, loss: Any
) -> Callable[[], None]:
    """A step of DistributedDataParallel, on this process's share of the samples."""
    module = file["parallelize"](module, torch.device("cpu"))
    optimizer = file["optimizer_of"](module, torch.optim.SGD, lr=0.01)
    return _trained(module, optimizer, [tensor.chunk(k)[rank] for tensor in batch], loss)


def alone(
    rank: int, k: int, file: dict[str, Any], module: nn.Module, batch: Any, loss: Any
) -> Callable[[], None]:
    """The same step without the other processes."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    return _trained(module, optimizer, [tensor.chunk(k)[rank] for tensor in batch], loss)


def _trained(
    module: nn.Module, optimizer: torch.optim.Optimizer, batch: Any, loss: Any
) -> Callable[[], None]:
    """A step on some samples."""
    inputs, targets = batch

    def run() -> None:
        optimizer.zero_grad()
        loss(module(inputs), targets).backward()
        optimizer.step()

    return run


def stage(
    rank: int, k: int, file: dict[str, Any], module: nn.Module, batch: Any, loss: Any
) -> Callable[[], None]:
    """A step of a stage of torch.distributed.pipelining."""
    inputs, targets = batch
    whole = ((inputs,), {}, (targets,))
    model = file["parallelize"](module, torch.device("cpu"), whole, loss)
    return _optimized(model, lambda: file["backward"](model, whole))


def apart(
    rank: int, k: int, file: dict[str, Any], module: nn.Module, batch: Any, loss: Any
) -> Callable[[], None]:
    """A step of the same stage by itself: tensors of its sizes stand for what it would be sent."""
    (inputs, targets), m = batch, file["MICRO_BATCHES"]
    whole = ((inputs,), {}, (targets,))
    model = file["parallelize"](module, torch.device("cpu"), whole, loss)
    model.micro_batches = file["_micro_batches"](whole)
    groups = [distributed.new_group([member]) for member in range(k)]
    [of] = model.schedule._stages if hasattr(model.schedule, "_stages") else [model.schedule._stage]
    alone = pipelining.PipelineStage(of.submod, 0, 1, of.device, group=groups[rank])
    sizes = [(m * one.shape[0], *one.shape[1:]) for one in of._user_meta.inputs]
    sent = tuple(torch.rand(size).requires_grad_() for size in sizes)
    schedule, each = type(model.schedule)(alone, m, loss_fn=_summed), torch.arange(m)
    return _optimized(model, lambda: schedule.step(*sent, micro_batch=each, target=each))


def _summed(found: Any, _: torch.Tensor) -> torch.Tensor:
    """Stands in for the loss of a stage that is not the last: of all that it sends."""
    every = found if isinstance(found, tuple | list) else [found]
    return torch.stack([each.sum() for each in every]).sum()


def _optimized(model: nn.Module, passes: Callable[[], Any]) -> Callable[[], None]:
    """A step: both passes, and an update of what this process has of the model."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def run() -> None:
        optimizer.zero_grad()
        passes()
        optimizer.step()

    return run
