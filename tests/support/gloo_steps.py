"""Training steps on processes of gloo, by files that were written for them.

Processes are forked from a server that has imported PyTorch and has run no backward pass, which
PyTorch would not bear. Those of one number are joined once, by a store of files, and run one step
after another. Where one fails, or a deadline passes, they are ended, and the next step has others.
"""

from __future__ import annotations

import datetime
import io
import multiprocessing
import os
import sys
import tempfile
import time
from multiprocessing.connection import wait
from pathlib import Path

import torch
import torch.distributed as dist

#: Seconds that a step has, joining included.
DEADLINE = 120

#: What the server has imported before it forks: each process would, on its own, in seconds.
_IMPORTED = [
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torch.distributed.optim",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.experimental",
    "torch.distributed.tensor.parallel",
    "target_models",
    # Those that are not there are passed over.
    "torchvision.models.mobilenetv2",
    "transformers.models.llama.modeling_llama",
]

_JOINED = {}


def on_processes(k, step, *arguments):
    """What ``step(rank, k, *arguments)``, a function of a module of these, returns on each."""
    if k not in _JOINED:
        _JOINED[k] = _Processes(k)
    try:
        return _JOINED[k].found(step, arguments)
    except BaseException:
        _JOINED.pop(k).end()
        raise


class _Processes:
    """So many processes, joined."""

    def __init__(self, k):
        here = str(Path(__file__).parent)
        before = os.environ.get("PYTHONPATH", "")
        os.environ["PYTHONPATH"] = os.pathsep.join([here, *filter(None, [before])])
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_IMPORTED)
        self.folder = tempfile.TemporaryDirectory()
        store = str(Path(self.folder.name) / "store")
        pipes = [context.Pipe() for _ in range(k)]
        self.ends = [ours for ours, _ in pipes]
        self.workers = [
            context.Process(target=_work, args=(rank, k, store, theirs), daemon=True)
            for rank, (_, theirs) in enumerate(pipes)
        ]
        try:
            for worker in self.workers:
                worker.start()
        finally:
            os.environ["PYTHONPATH"] = before
        for _, theirs in pipes:
            theirs.close()

    def found(self, step, arguments):
        """What a step returns on each."""
        for end in self.ends:
            end.send((step, arguments))
        until, waiting = time.monotonic() + DEADLINE, dict(enumerate(self.ends))
        found = {}
        while waiting:
            ready = wait(list(waiting.values()), max(0, until - time.monotonic()))
            assert ready, f"{len(waiting)} of {len(self.ends)} processes did not end their step"
            for rank in [rank for rank, end in waiting.items() if end in ready]:
                try:
                    found[rank] = torch.load(
                        io.BytesIO(waiting.pop(rank).recv_bytes()), weights_only=False
                    )
                except EOFError:
                    raise AssertionError(f"process {rank} failed: see its output") from None
        return [found[rank] for rank in range(len(self.ends))]

    def end(self):
        """Ends them, wherever they are."""
        for worker in self.workers:
            worker.kill()
            worker.join()
        self.folder.cleanup()


def _work(rank, k, store, end):
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
    while True:
        try:
            step, arguments = end.recv()
        except EOFError:
            return
        found = io.BytesIO()
        torch.save(step(rank, k, *arguments), found)
        dist.barrier()
        end.send_bytes(found.getvalue())


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


def assert_same(found, expected, of=("gradients", "parameters")):
    """Loss, gradients and parameters of a step are the same, within 1e-4, or 1e-6 of the largest
    of all: the bias of keys in attention has a gradient of zero, and rounding makes some.
    """
    torch.testing.assert_close(found["loss"], expected["loss"], rtol=1e-4, atol=0)
    for what in of:
        assert found[what].keys() == expected[what].keys()
        least = 1e-6 * max(float(tensor.abs().max()) for tensor in expected[what].values())
        for name, tensor in expected[what].items():
            torch.testing.assert_close(found[what][name], tensor, rtol=1e-4, atol=least, msg=name)
