"""Equal parts of a tensor's elements, in their order in memory: shards of parameters and state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_map_only

from loadmaster.base.errors import InputError
from loadmaster.dimensions.dimensions import Dimensions
from loadmaster.model.program import Program
from loadmaster.running.tape.tape import Tape
from loadmaster.transforms.gradients import Updates
from loadmaster.transforms.specs import may_be_flat, part_weights


@dataclass(frozen=True)
class Flat:
    """The shards of tensors of some sizes.

    ``order`` has the axes from the outermost in memory on. Shard ``r`` goes from ``ends[r]`` to
    ``ends[r + 1]``, in elements.

    >>> flat = Flat.of(torch.arange(6).view(2, 3).t(), 2)
    >>> flat.cut(1, torch.arange(6).view(2, 3).t()).tolist()
    [3, 4, 5]
    """

    sizes: tuple[int, ...]
    order: tuple[int, ...]
    ends: tuple[int, ...]

    @classmethod
    def of(cls, tensor: torch.Tensor, k: int) -> Flat:
        """Of ``k`` shards, in the order in which a tensor lies in memory."""
        order = sorted(range(tensor.dim()), key=lambda axis: -tensor.stride(axis))
        ends = np.cumsum([0, *part_weights(tensor.numel(), [1.0] * k)]).tolist()
        return cls(tuple(tensor.shape), tuple(order), tuple(ends))

    @property
    def numel(self) -> int:
        """Elements of all shards."""
        return self.ends[-1]

    def cut(self, r: int, tensor: torch.Tensor) -> torch.Tensor:
        """Shard ``r`` of a whole tensor: what lies in memory as it does, or a copy."""
        return tensor.permute(self.order).reshape(-1)[self.ends[r] : self.ends[r + 1]]

    def put(self, r: int, tensor: torch.Tensor, shard: torch.Tensor) -> None:
        """Writes shard ``r`` into a tensor whose memory is in this order."""
        self.cut(r, tensor).copy_(shard)

    def joined(self, shards: Sequence[torch.Tensor]) -> torch.Tensor:
        """The whole tensor."""
        flat = torch.cat(list(shards)).view([self.sizes[axis] for axis in self.order])
        return flat.permute(np.argsort(self.order).tolist())

    def called(self, r: int, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls a function with shards of what is whole among its arguments."""

        def shard(tensor: torch.Tensor) -> torch.Tensor:
            return self.cut(r, tensor) if tensor.shape == self.sizes else tensor

        args, kwargs = tree_map_only(torch.Tensor, shard, (args, kwargs))
        return function(*args, **kwargs)


def flat_shards(program: Program, tape: Tape, k: int) -> dict[int, Flat]:
    """By op of the tape whose work each replica does a shard of, and by parameter: its shards.

    Raises
    ------
    InputError
        An op that does not work on parts of a tensor.
    """
    graph = tape.graph
    updates, d = Updates.of(graph, graph.roles.many), Dimensions.of(graph)
    tensors = {p.op: p.tensor for p in tape.placeholders}
    shards: dict[int, Flat] = {}
    for parameter, number in zip(
        updates.parameter.tolist(), updates.of_parameter.tolist(), strict=True
    ):
        ops = np.flatnonzero(updates.of_op == number).tolist()
        if tensors[parameter].numel() == 1 or any(len(program.parts_of(op)) < k for op in ops):
            continue
        flat = Flat.of(tensors[parameter], k)
        for op in ops:
            works = graph.placeholder[op] or graph.view[op] or may_be_flat(d.forms[d.form_of[op]])
            if not works or op in shards:
                raise InputError(
                    f"op {graph.names[op]!r} ({graph.kinds[op]}) of the optimizer does not work on "
                    f'parts of {graph.names[parameter]!r} alone: plan with shards="parameters"'
                )
            if not graph.placeholder[op] or tensors[op].shape == flat.sizes:
                shards[op] = flat
        shards[parameter] = flat
    return shards
