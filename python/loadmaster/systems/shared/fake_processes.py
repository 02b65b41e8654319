"""One process of a written PyTorch file, beside others that are not there.

``python -m loadmaster.systems.shared.fake_processes FILE MODEL BATCH SHARES SECONDS``: builds the
model of MODEL, ``FILE.py:FUNCTION``, wraps it by the file's own ``parallelize``, and runs forward
and backward passes under PyTorch's fake process group, whose collectives send nothing. It writes
JSON: ``collectives``, the number and the bytes of each kind in a pass; or ``error``; or ``user``,
an error of the user's own function.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import warnings
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from importlib.util import module_from_spec, spec_from_file_location
from math import prod
from typing import Any

from loadmaster.base.errors import LoadmasterError
from loadmaster.base.user_file import of_user, user_function

#: Collectives of PyTorch by the beginning of their names.
_KINDS = {
    "all_gather": ("_allgather_base", "allgather", "all_gather"),
    "reduce_scatter": ("_reduce_scatter_base", "reduce_scatter"),
    "all_reduce": ("allreduce", "all_reduce"),
    "all_to_all": ("alltoall", "all_to_all"),
}


def main(path: str, model: str, batch: int, shares: int) -> dict[str, Any]:
    """The collectives of a pass of the file, or an error."""
    import torch
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    try:
        function = user_function(model)
        with of_user(model):
            case = function()
    except LoadmasterError as error:
        return {"user": str(error)}
    try:
        spec = spec_from_file_location("written", path)
        assert spec is not None
        assert spec.loader is not None
        file: Any = module_from_spec(spec)
        sys.modules["written"] = file
        spec.loader.exec_module(file)
        mesh = getattr(file, "MESH", {})
        size = getattr(file, "PROCESSES", None) or prod(mesh.values())
        os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE=str(size))
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=size)
        device = torch.device("cpu")
        wanted = list(inspect.signature(file.parallelize).parameters)[1:]
        wrapped = file.parallelize(
            case["model"].train(), _mesh(mesh) if "mesh" in wanted else device
        )
        return {"collectives": _counted(wrapped, _share(case, batch, shares))}
    except Exception as error:
        first = next(iter(str(error).splitlines()), "")
        return {"error": f"{type(error).__name__}: {first}"}


def _mesh(axes: Mapping[str, int]) -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", tuple(axes.values()), mesh_dim_names=tuple(axes))


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


def _counted(model: Any, case: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Number and bytes of the collectives of a forward and backward pass, by kind."""
    import torch
    from torch.distributed.tensor.experimental import implicit_replication
    from torch.distributed.tensor.parallel import loss_parallel
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    seen: list[tuple[str, int]] = []

    class Seeing(TorchDispatchMode):  # type: ignore[misc]
        """Notes the collectives."""

        def __torch_dispatch__(
            self, op: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            result = op(*args, **(kwargs or {}))
            if op.namespace in ("c10d", "_c10d_functional"):
                name = op.overloadpacket.__name__
                kind = next((k for k, some in _KINDS.items() if name.startswith(some)), None)
                tensors = [x for x in tree_leaves((args, result)) if isinstance(x, torch.Tensor)]
                if kind is not None:
                    seen.append((kind, max(x.nbytes for x in tensors)))
            return result

    passes = 1
    if isinstance(model, DistributedDataParallel):
        # Sums of its reducer are seen by a hook alone, and it fills its buckets in the first pass.
        passes = 2

        def summed(buffer: Any) -> Any:
            seen.append(("all_reduce", buffer.nbytes))
            future: Any = torch.futures.Future()
            future.set_result(buffer)
            return future

        model.register_comm_hook(None, lambda _, bucket: summed(bucket.buffer()))
    inputs = case["example_inputs"]
    keywords = inputs if isinstance(inputs, Mapping) else {}
    args = () if keywords else inputs if isinstance(inputs, (tuple, list)) else (inputs,)
    targets = case["targets"] if isinstance(case["targets"], (tuple, list)) else (case["targets"],)
    for _ in range(passes):
        seen.clear()
        with ExitStack() as within:
            # On a CPU DTensor knows attention by its parts alone.
            for one in (implicit_replication(), loss_parallel(), sdpa_kernel(SDPBackend.MATH)):
                within.enter_context(one)
            within.enter_context(Seeing())
            output = model(*args, **keywords)
            (case["loss"](output, *targets) if case["loss"] else _loss(output)).backward()
    kinds = dict.fromkeys(sorted(kind for kind, _ in seen))
    each = {kind: [size for one, size in seen if one == kind] for kind in kinds}
    return {kind: (len(sizes), sum(sizes)) for kind, sizes in each.items()}


def _loss(output: Any) -> Any:
    """The loss that a model puts out; else the mean of all that it puts out."""
    import torch
    from torch.utils._pytree import tree_leaves

    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    of = [x for x in tree_leaves(output) if isinstance(x, torch.Tensor) and x.requires_grad]
    return sum(x.float().mean() for x in of) if loss is None else loss


if __name__ == "__main__":
    with suppress(ImportError):
        import resource

        # A busy machine takes longer by the clock.
        resource.setrlimit(resource.RLIMIT_CPU, (int(sys.argv[5]), resource.RLIM_INFINITY))
    warnings.simplefilter("ignore")
    sys.stdout.write(json.dumps(main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:5]))))
    # The fake group is not ended: its threads may wait for processes that are not there.
    sys.stdout.flush()
    os._exit(0)
