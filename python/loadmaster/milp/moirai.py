"""Moirai's MILP (Zhang et al. 2023, section III-D), per link or with one port.

The paper's constraint, and what stands here; i, j are ops, q, r transfers, k', k'', d devices:

==============================  ================================================================
paper                           here
==============================  ================================================================
(4) min max C_i                 min C_max, C_max >= C_i, no less than a bound known before
(4a) C_i <= S_j for all of Succ  the same for edges, from which those for other successors follow
(4b) C_i = S_i + sum p_ik x_ik  the same
(4c) sum_k x_ik = 1             the same; colocated ops share x
(5) sum_i m_i x_ik <= Mem_k     the same
(6) non-overlap, for all k      the same, one delta per unordered pair outside Succ
(7) z_q = 1 where the ends      a transfer q is a tensor on its way to d, not an edge: z_q >= x_jd -
differ; sum of u_qk'k'' = z_q;  x_id for each reader j; sum_k' u_qk' = z_q;
u_qk'k'' if x_ik' = x_jk'' = 1; u_qk' >= x_ik' + x_jd - 1;
C_q = S_q + sum p_comm u        C_q = S_q + sum_k' c_qk'd u_qk', and S_j >= C_q - M (1 - x_jd)
(8) congestion on k             ``one-port``: as printed, with u for the differences of x: two
                                transfers that leave the same k never overlap, nor do two that
                                come to the same k, whatever the other ends are
the text: "on the same          ``per-link``: only transfers from the same k' to the same k''
channel"
==============================  ================================================================

Equation (8) as printed serialises all of a device's traffic in one direction, while its text speaks
of the same communication channel: the two differ from three devices on. What holds for both
reference formulations stands in :mod:`~loadmaster.milp.reference`.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Literal

from loadmaster.milp import pesto
from loadmaster.milp.formulation import Formulation, Term, readers_on
from loadmaster.milp.instance import Message, MilpInstance
from loadmaster.milp.reference import Reference
from loadmaster.milp.timing import Timed

Links = Literal["per-link", "one-port"]


def with_links(instance: MilpInstance, links: Links) -> MilpInstance:
    """The instance in one of the paper's link models."""
    if links == "per-link":
        return pesto.with_links(instance)
    devices = range(instance.n_devices)
    out = [frozenset((k, d) for d in devices if d != k) for k in devices]
    into = [frozenset((s, k) for s in devices if s != k) for k in devices]
    return replace(instance, channels=tuple(port for port in (*out, *into) if port))


def formulate(instance: MilpInstance, start: Timed) -> Formulation:
    """The program for an instance :func:`with_links`, and a schedule of it to start from."""
    return _MoiraiProgram(instance, start).formulation()


def estimated_rows(instance: MilpInstance) -> int:
    """About the number of rows of the program. O(pairs)."""
    k = instance.n_devices
    per_pair = sum(len(channel) for channel in instance.channels) / max(k * (k - 1), 1)
    messages = len(instance.messages)
    return int(2 * k * len(instance.loose_pairs) + per_pair * messages * messages)


class _MoiraiProgram(Reference):
    def communication(self) -> None:
        """(7)."""
        instance = self.instance
        for message, z in self.sent.items():
            d = message.device
            source = self.on[instance.tensors[message.tensor].source]
            senders = instance.senders(message)
            for r in readers_on(instance, message):
                reader = int(self.on[r, d])
                self.at_least(0.0, [(z, 1.0), (reader, -1.0), (int(source[d]), 1.0)])
                for s in senders:
                    u = self.comes[message, s]
                    self.at_least(-1.0, [(u, 1.0), (int(source[s]), -1.0), (reader, -1.0)])
            whole = [(self.comes[message, s], 1.0) for s in senders]
            self.at_least(0.0, whole, [(z, -1.0)])
            self.at_least(0.0, [(z, 1.0)], [(u, -1.0) for u, _ in whole])

    def congestion(self) -> None:
        """(8), or the reading of its text: two transfers of one channel follow each other."""
        for q, r in self.pairs_of_messages():
            shared = [
                clash
                for channel in self.instance.channels
                for clash in self._clashes(q, r, channel)
            ]
            if shared:
                self.messages_apart(q, r, shared)

    def _clashes(
        self, q: Message, r: Message, channel: frozenset[tuple[int, int]]
    ) -> list[list[Term]]:
        """Pairs of senders whose transfers share a channel."""
        first, second = (
            [s for s in self.instance.senders(m) if (s, m.device) in channel] for m in (q, r)
        )
        return [
            [(self.comes[q, a], 1.0), (self.comes[r, b], 1.0)]
            for a, b in itertools.product(first, second)
        ]
