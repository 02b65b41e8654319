"""Training steps on processes of gloo, by files that were written for them.

Processes are forked from a server that has imported PyTorch and has run no backward pass, which
PyTorch would not bear. A store of files joins them; after a deadline they are ended.
"""

from __future__ import annotations

import datetime
import multiprocessing
import os
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist

#: Seconds that processes have in all.
DEADLINE = 120


def on_processes(k, step, *arguments):
    """What ``step(rank, k, *arguments)``, a function of a module of these, returns on each."""
    here = str(Path(__file__).parent)
    before = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join([here, *filter(None, [before])])
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed.pipelining", "target_models"])
    with tempfile.TemporaryDirectory() as folder:
        store, found = Path(folder) / "store", [Path(folder) / f"{r}.pt" for r in range(k)]
        rows = [(step, rank, k, str(store), str(found[rank]), arguments) for rank in range(k)]
        workers = [context.Process(target=_worker, args=row, daemon=True) for row in rows]
        try:
            for worker in workers:
                worker.start()
        finally:
            os.environ["PYTHONPATH"] = before
        for worker in workers:
            worker.join(DEADLINE)
        alive = [worker for worker in workers if worker.is_alive()]
        for worker in alive:
            worker.kill()
        assert not alive, f"{len(alive)} of {k} processes did not end"
        assert all(worker.exitcode == 0 for worker in workers), "a process failed: see its output"
        return [torch.load(path, weights_only=False) for path in found]


def _worker(step, rank, k, store, found, arguments):
    sys.path.insert(0, str(Path(__file__).parent))
    torch.set_num_threads(1)
    # No name of this machine is looked up.
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=k,
        timeout=datetime.timedelta(seconds=DEADLINE),
    )
    torch.save(step(rank, k, *arguments), found)
    dist.barrier()
    dist.destroy_process_group()


def functions(written):
    """The functions of a written file."""
    names = {"__name__": "written"}
    exec(compile(written, "written.py", "exec"), names)
    return names


def share(tensor, rank, k):
    """The rows of a process."""
    return tensor.chunk(k)[rank]


def whole_step(made, lr=0.1):
    """Loss, gradients and parameters after a step of SGD, of the model as it is."""
    model = made.module
    loss = made.loss(model(*made.inputs), made.targets)
    loss.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    torch.optim.SGD(model.parameters(), lr=lr).step()
    return {
        "loss": loss.detach(),
        "gradients": gradients,
        "parameters": {name: p.detach().clone() for name, p in model.named_parameters()},
    }


def assert_same(found, expected):
    """Loss, gradients and parameters of a step, each within 1e-4."""
    torch.testing.assert_close(found["loss"], expected["loss"], rtol=1e-4, atol=0)
    for what in ("gradients", "parameters"):
        assert found[what].keys() == expected[what].keys()
        for name, tensor in expected[what].items():
            least = 1e-6 * float(tensor.abs().max())
            torch.testing.assert_close(found[what][name], tensor, rtol=1e-4, atol=least, msg=name)
