"""Messages on the channels of a simulated step: the transfers, then the collectives, as columns.

A message is either. Message ``i`` is transfer ``i`` below :attr:`Messages.n_transfers`, and the
collectives follow, for every picture of the step.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from loadmaster.judge.simulation import Blame
from loadmaster.plans.plan import Plan

#: Names of links of the chain of causes that are the runtime's own work.
WORDS = {"copy": "copies", "share": "shares of collectives", "launch": "launches"}

#: Devices that are listed by name; of more, the rest is counted.
_NAMED = 4


class Messages:
    """The messages of a plan's step.

    Attributes
    ----------
    n_transfers : int
        Messages that are transfers; the later ones are collectives.
    bytes : uint64
        Of the tensor.
    queued, start, finish : float64
        Seconds.
    of_op : int64 [n_ops]
        The message that each op of the graph that runs takes part in, as a member; -1: none.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        sent, together = plan.schedule.transfers, plan.schedule.collectives
        self.n_transfers = len(sent)
        self.bytes = np.concatenate([sent.bytes, together.bytes])
        self.queued = np.concatenate([sent.queued, together.queued])
        self.start = np.concatenate([sent.start, together.start])
        self.finish = np.concatenate([sent.finish, together.finish])
        of_op = together.of_op(plan.program.graph.n_ops).astype(np.int64)
        self.of_op: NDArray[np.int64] = np.where(of_op >= 0, of_op + self.n_transfers, -1)

    def __len__(self) -> int:
        return len(self.bytes)

    def of_link(self, link: Blame) -> int:
        """The message that a link of the chain of causes is, or that its device copied out or did a
        share of; -1: an op that computes, or launches.
        """
        if link.transfer is not None:
            return link.transfer
        return -1 if link.op is None or link.doing == "launch" else int(self.of_op[link.op])

    @cached_property
    def channels(self) -> list[tuple[int, ...]]:
        """The channels that each message holds, by index; of a transfer in the route's order."""
        transfers, n = self._plan.schedule.transfers, self._plan.cluster.n_devices
        links = self._plan.problem.links
        pairs, which = np.unique(
            transfers.src.astype(np.int64) * n + transfers.dst, return_inverse=True
        )
        of_pair = [tuple(links.route(*divmod(pair, n))[2]) for pair in pairs.tolist()]
        return [of_pair[i] for i in which.tolist()] + list(self._plan.schedule.collectives.channels)

    @cached_property
    def names(self) -> list[str]:
        """A transfer's op or placeholder, whose tensor is sent; what a collective is."""
        graph, transfers = self._plan.program.graph, self._plan.schedule.transfers
        names = [graph.names[op] for op in transfers.op.tolist()]
        tensors = graph.src if graph.tensor is None else graph.tensor
        held = graph.placeholder[graph.src] & (tensors >= 0)
        owner = dict(zip(tensors[held].tolist(), graph.src[held].tolist(), strict=True))
        for i, tensor in enumerate(transfers.tensor.tolist()):
            if tensor in owner:
                names[i] = graph.names[owner[tensor]]
        together = self._plan.schedule.collectives
        return names + [together.label(i) for i in range(len(together))]

    def title(self, message: int) -> str:
        """The name in a sentence: ``transfer of conv1``."""
        name = self.names[message]
        return f"transfer of {name}" if message < self.n_transfers else name

    def kind(self, message: int) -> str:
        """``transfer``, or what a collective does."""
        together = message - self.n_transfers
        return "transfer" if together < 0 else self._plan.schedule.collectives.kind[together]

    @cached_property
    def places(self) -> list[str]:
        """``gpu0 to gpu1`` of a transfer; the devices of a collective."""
        transfers, together = self._plan.schedule.transfers, self._plan.schedule.collectives
        names = [device.name for device in self._plan.cluster.devices]
        ends = zip(transfers.src.tolist(), transfers.dst.tolist(), strict=True)
        routes = [f"{names[src]} to {names[dst]}" for src, dst in ends]
        return routes + [_listed([names[d] for d in devices]) for devices in together.devices]


def _listed(names: list[str]) -> str:
    if len(names) <= _NAMED:
        return ", ".join(names)
    return f"{', '.join(names[: _NAMED - 1])} and {len(names) - _NAMED + 1} more"
