"""Processes of a written PyTorch file, run one at a time, beside others that are not there.

The file's own ``parallelize`` wraps the model, and forward and backward passes run under PyTorch's
fake process group, whose collectives send nothing. Of processes that all do the same one is run;
of a pipeline each one, a step.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from importlib.util import module_from_spec, spec_from_file_location
from typing import Any

from loadmaster.base.units import counted
from loadmaster.base.user_file import of_user, user_function
from loadmaster.systems.shared.without_data import on_cpu, without_data

#: Collectives of PyTorch by the beginning of their names.
_KINDS = {
    "all_gather": ("_allgather_base", "allgather", "all_gather"),
    "reduce_scatter": ("_reduce_scatter_base", "reduce_scatter"),
    "all_reduce": ("allreduce", "all_reduce"),
    "all_to_all": ("alltoall", "all_to_all"),
    "send": ("send",),
}


def passes_without_data(path: str, model: str, batch: int, shares: int) -> dict[str, Any]:
    """As :func:`passes`, of a model that is too large to build, on tensors that have no data.

    Returns
    -------
    dict
        As :func:`passes`; or ``unchecked``, the words of PyTorch where it cannot do without data.
    """
    with without_data():
        try:
            return passes(path, model, batch, shares)
        except Exception as error:
            message = f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]
            return {"unchecked": f"on tensors without data PyTorch says {message}"}


def passes(path: str, model: str, batch: int, shares: int) -> dict[str, Any]:
    """A pass of the file: the words for it, and number and bytes of collectives by kind.

    Parameters
    ----------
    path : str
        The file.
    model : str
        ``FILE.py:FUNCTION``, that builds the model.
    batch, shares : int
        Samples of the batch, and the shares that it is divided into.

    Raises
    ------
    LoadmasterError
        The user's function raises.
    Exception
        Of PyTorch: the file does not run.
    """
    import torch

    function = user_function(model)

    def built() -> dict[str, Any]:
        with of_user(model):
            case = function()
        return on_cpu(case)

    case, file = built(), _loaded(path)
    size = file.PROCESSES
    if hasattr(file, "STAGES"):
        of = _of_stages(file, [case, *(built() for _ in range(size - 1))])
        ran = f"a step of each of {counted(size, 'process', 'processes')}"
    else:
        _join(0, size)
        wrapped = file.parallelize(case["model"].train(), torch.device("cpu"))
        of = _counted(file, wrapped, _share(case, batch, shares))
        ran = f"forward and backward pass of one of {counted(size, 'process', 'processes')}"
    return {"words": ran, "collectives": of}


def _loaded(path: str) -> Any:
    """The module of the file."""
    spec = spec_from_file_location("written", path)
    assert spec is not None
    assert spec.loader is not None
    file = sys.modules["written"] = module_from_spec(spec)
    spec.loader.exec_module(file)
    return file


def _join(rank: int, size: int) -> None:
    """Begins the fake process group of so many processes, as one of them."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():
        dist.destroy_process_group()
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size))
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)


def _of_stages(file: Any, cases: Sequence[Mapping[str, Any]]) -> dict[str, tuple[int, int]]:
    """Number and bytes of the messages of a step of a pipeline, of which each process has a model
    of its own.
    """
    import torch

    device, seen = torch.device("cpu"), list[tuple[str, int]]()
    for rank, case in enumerate(cases):
        _join(rank, len(cases))
        args, keywords, targets = _batch(case)
        loss = case.get("loss") or (lambda output, *_: _loss(output))
        trains = hasattr(file, "backward")
        batch = (args, keywords, targets if trains else ())
        model = case["model"].train(trains)
        model = file.parallelize(model, device, batch, loss if trains else None)
        with _seeing(seen):
            if trains:
                file.backward(model, batch)
            else:
                file.evaluate(model, *args, **keywords)
    return _by_kind(seen)


def _share(case: Mapping[str, Any], batch: int, shares: int) -> dict[str, Any]:
    """The function's arguments of capture with the samples of the first process alone."""
    import torch
    from torch.utils._pytree import tree_map_only

    def part(tensor: Any) -> Any:
        is_batch = tensor.dim() and len(tensor) == batch
        return tensor[: batch // shares] if is_batch else tensor

    of: dict[str, Any] = {"loss": case.get("loss")}
    for name in ("example_inputs", "targets"):
        of[name] = tree_map_only(torch.Tensor, part, case.get(name, ()))
    return of


def _counted(file: Any, model: Any, case: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Number and bytes of the collectives of a forward and backward pass, by kind, with the sums
    of gradients that the file does itself.
    """
    import torch
    from torch.distributed.tensor.experimental import implicit_replication
    from torch.distributed.tensor.parallel import loss_parallel
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.parallel import DistributedDataParallel

    seen = list[tuple[str, int]]()
    n_passes = 1
    if isinstance(model, DistributedDataParallel):
        # Sums of its reducer are seen by a hook alone, and it fills its buckets in the first pass.
        n_passes = 2

        def summed(buffer: Any) -> Any:
            seen.append(("all_reduce", buffer.nbytes))
            future: Any = torch.futures.Future()
            future.set_result(buffer)
            return future

        model.register_comm_hook(None, lambda _, bucket: summed(bucket.buffer()))
    args, keywords, targets = _batch(case)
    for _ in range(n_passes):
        seen.clear()
        with ExitStack() as within:
            # On a CPU DTensor knows attention by its parts alone.
            for one in (implicit_replication(), loss_parallel(), sdpa_kernel(SDPBackend.MATH)):
                within.enter_context(one)
            within.enter_context(_seeing(seen))
            output = model(*args, **keywords)
            (case["loss"](output, *targets) if case["loss"] else _loss(output)).backward()
            if hasattr(file, "summed"):
                file.summed(model)
    return _by_kind(seen)


def _seeing(seen: list[tuple[str, int]]) -> Any:
    """A context that notes kind and bytes of collectives; what is received is zeros in it."""
    import torch
    from torch.distributed.tensor import DTensor
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class Seeing(TorchDispatchMode):  # type: ignore[misc]
        """Notes the collectives."""

        def __torch_dispatch__(
            self, op: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if any(issubclass(kind, DTensor) for kind in types):
                return NotImplemented  # Its collectives are seen once it is taken apart.
            result = op(*args, **(kwargs or {}))
            if op.namespace in ("c10d", "_c10d_functional"):
                name = op.overloadpacket.__name__
                kind = next((k for k, some in _KINDS.items() if name.startswith(some)), None)
                tensors = [x for x in tree_leaves((args, result)) if isinstance(x, torch.Tensor)]
                if name.startswith("recv"):
                    for tensor in tensors:
                        tensor.zero_()
                if kind is not None:
                    seen.append((kind, max(x.nbytes for x in tensors)))
            return result

    return Seeing()


def _by_kind(seen: Sequence[tuple[str, int]]) -> dict[str, tuple[int, int]]:
    kinds = dict.fromkeys(sorted(kind for kind, _ in seen))
    each = {kind: [size for one, size in seen if one == kind] for kind in kinds}
    return {kind: (len(sizes), sum(sizes)) for kind, sizes in each.items()}


def _batch(case: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any], tuple[Any, ...]]:
    """Arguments, keywords and targets of the function's arguments of capture."""
    inputs, targets = case["example_inputs"], case.get("targets", ())

    def listed(values: Any) -> tuple[Any, ...]:
        return tuple(values) if isinstance(values, (tuple, list)) else (values,)

    if isinstance(inputs, Mapping):
        return (), dict(inputs), listed(targets)
    return listed(inputs), {}, listed(targets)


def _loss(output: Any) -> Any:
    """The loss that a model puts out; else the mean of all that it puts out."""
    import torch
    from torch.utils._pytree import tree_leaves

    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    of = [x for x in tree_leaves(output) if isinstance(x, torch.Tensor) and x.requires_grad]
    return sum(x.float().mean() for x in of) if loss is None else loss
