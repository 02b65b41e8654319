"""Pesto's ILP (Hafeez et al., Middleware 2021, section 3.2.2), for K devices of any types.

The paper's constraint, and what stands here; i, j are ops, q, r transfers, k, s, d devices:

==========================  ====================================================================
paper                       here
==========================  ====================================================================
min C_max, (3) C_i <= C_max  the same; C_max is no less than a bound known before
(1) C_i <= S_j               the same for ops. A transfer q of a tensor from op i to device d
                            starts after C_i, and S_j >= C_q - M (1 - x_jd) for each reader j
(2) C_i = S_i + p_i          C_i = S_i + sum_k p_ik x_ik: times differ by device type
x_i in {0, 1}, 2 GPUs        x_ik, one per device the op's kind allows, sum_k x_ik = 1 (the paper's
                            bits x_i, y_i for 4 GPUs become unwieldy for other K). O_C, O_G, O_K,
                            CPU, GPU and kernel ops, are allowed device types: kernels share the
                            CPU's types
colocation x_i1 = x_i2       one x for the whole set
(10) four rows, as printed   S_i >= C_j - M delta - M (2 - x_ik - x_jk), and with i, j exchanged
S_i >= C_j + M_s delta ...   and 1 - delta, for every k. **The sign of M_s in the print is wrong**:
                            with + M_s delta, delta = 1 demands S_i >= C_j + M_s
(5) z_q = x_i XOR x_j        z_q >= x_jd - x_id, z_q <= 1 - x_id, z_q <= sum of x_jd over readers:
                            whether the tensor must be sent to d
(6) C_q = S_q + z_q p_q      C_q = S_q + sum_s c_qsd u_qs, u_qs >= x_is + z_q - 1, sum_s u_qs = z_q
                            (the two-GPU case has one sender, and u is z)
(7) congestion of a link     S_q >= C_r - M delta - M (2 - u_qs - u_rs) for transfers from s to the
                            same d, for every s: the paper's M_s (x_a + x_c - x_b - x_d - 2)
(8) memory "balanced"        sum_i m_i x_ik <= memory of k, the paper's own remark on strengthening
(9) x, z binary              the same, and u
==========================  ====================================================================

A link joins each ordered pair of devices and serves transfers in any order. What holds for both
reference formulations stands in :mod:`~loadmaster.milp.reference`.
"""

from __future__ import annotations

from dataclasses import replace

from loadmaster.milp.formulation import Formulation, readers_on
from loadmaster.milp.instance import MilpInstance
from loadmaster.milp.reference import Reference
from loadmaster.milp.timing import Timed


def with_links(instance: MilpInstance) -> MilpInstance:
    """The instance in the paper's link model: a link of its own for every ordered pair."""
    k = instance.n_devices
    pairs = tuple(frozenset({(s, d)}) for s in range(k) for d in range(k) if s != d)
    return replace(instance, channels=pairs)


def formulate(instance: MilpInstance, start: Timed) -> Formulation:
    """The program for an instance :func:`with_links`, and a schedule of it to start from."""
    return _PestoProgram(instance, start).formulation()


def estimated_rows(instance: MilpInstance) -> int:
    """About the number of rows of the program. O(pairs)."""
    k = instance.n_devices
    messages = len(instance.messages)
    return 2 * k * len(instance.loose_pairs) + messages * messages * max(k - 1, 0) // k


class _PestoProgram(Reference):
    def communication(self) -> None:
        """(5), and the sender of (6)."""
        instance = self.instance
        for message, z in self.sent.items():
            d = message.device
            source = self.on[instance.tensors[message.tensor].source]
            readers = [(int(self.on[r, d]), 1.0) for r in readers_on(instance, message)]
            here = (int(source[d]), 1.0)
            for on, _ in readers:
                self.at_least(0.0, [(z, 1.0), (on, -1.0), here])
            self.at_least(-1.0, [(z, -1.0), (here[0], -1.0)])
            self.at_least(0.0, [(z, -1.0)], readers)
            senders = instance.senders(message)
            for s in senders:
                terms = [(self.comes[message, s], 1.0), (int(source[s]), -1.0), (z, -1.0)]
                self.at_least(-1.0, terms)
            of_any = [(self.comes[message, s], 1.0) for s in senders]
            self.at_least(0.0, of_any, [(z, -1.0)])
            self.at_least(0.0, [(z, 1.0)], [(u, -1.0) for u, _ in of_any])

    def congestion(self) -> None:
        """(7)."""
        for q, r in self.pairs_of_messages():
            if q.device != r.device:
                continue
            links = set(self.instance.senders(q)) & set(self.instance.senders(r))
            shared = [[(self.comes[q, s], 1.0), (self.comes[r, s], 1.0)] for s in sorted(links)]
            if shared:
                self.messages_apart(q, r, shared)
