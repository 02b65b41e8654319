"""Rows that the two reference formulations, Pesto's and Moirai's, have in common.

Both have a task for every op and every transfer. They forbid overlaps by one binary delta per pair
of tasks and a large M, which conditions release. Three things are corrected for both:

* a tensor sent to a device is one transfer, however many ops read it there; the papers count edges;
* one delta per unordered pair of tasks, and none for pairs that a path joins;
* M is the makespan of the schedule to start from, which nothing needs to pass, not a number such as
  1e5: with S and C in [0, M] it releases every row it is meant to.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod

from loadmaster.milp.formulation import ModelRows, Term, negative, readers_on
from loadmaster.milp.instance import Message, MilpInstance
from loadmaster.milp.timing import Timed


class Reference(ModelRows, ABC):
    """The tasks of both formulations."""

    def __init__(self, instance: MilpInstance, start: Timed) -> None:
        super().__init__(instance, start)
        #: u_q,s: whether transfer q comes from device s; z_q: whether it takes place.
        self.comes: dict[tuple[Message, int], int] = {}
        self.sent: dict[Message, int] = {}
        self.leaves: dict[Message, int] = {}
        self.arrives: dict[Message, list[Term]] = {}
        self.precedence()
        self.transfers()
        self.communication()
        self.ops_apart()
        self.congestion()

    @abstractmethod
    def communication(self) -> None:
        """Rows for the transfers that take place, and their sources: a formulation's own."""

    @abstractmethod
    def congestion(self) -> None:
        """Rows for the transfers that follow each other: a formulation's own."""

    def precedence(self) -> None:
        """C_i <= S_j for an op and its reader, and C_i <= C_max."""
        for source, reader in self.instance.edges:
            self.at_least(0.0, [(self.start[reader], 1.0)], negative(self.finish(source)))
        for op in range(self.instance.n_ops):
            self.at_least(0.0, [(self.end, 1.0)], negative(self.finish(op)))

    def transfers(self) -> None:
        """A task per tensor and device that it may have to be sent to: S_q >= C of its source, and
        each reader there starts after it ends.
        """
        instance, start = self.instance, self.from_
        for message in instance.messages:
            tensor, d = instance.tensors[message.tensor], message.device
            happens = message in start.sent
            ready = 0 if tensor.home else start.finish[tensor.source]
            at = start.sent[message][0] if happens else ready
            self.sent[message] = self.binary(happens)
            leaves = self.leaves[message] = self.variable(at * self.scale, upper=self.limit)
            if not tensor.home:
                self.at_least(0.0, [(leaves, 1.0)], negative(self.finish(tensor.source)))
            takes: list[Term] = []
            for s in instance.senders(message):
                from_here = happens and int(start.devices[tensor.source]) == s
                comes = self.comes[message, s] = self.binary(from_here)
                takes.append((comes, float(tensor.time[s, d]) * self.scale))
            self.arrives[message] = [(leaves, 1.0), *takes]
            for r in readers_on(instance, message):
                on = (int(self.on[r, d]), -self.limit)
                self.at_least(
                    -self.limit, [(self.start[r], 1.0)], negative(self.arrives[message]), [on]
                )

    def ops_apart(self) -> None:
        """S_i >= C_j - M delta - M (2 - x_ik - x_jk) and S_j >= C_i - M (1 - delta) - M (2 - x_ik -
        x_jk), for every pair that no path joins and every device that both may be on.
        """
        instance, start = self.instance, self.from_
        for i, j in instance.loose_pairs:
            both = set(instance.devices_of[i]) & set(instance.devices_of[j])
            if not both:
                continue
            i_first = (start.finish[i], start.start[i]) < (start.finish[j], start.start[j])
            delta = self.binary(i_first)
            for k in sorted(both):
                together = [(int(self.on[op, k]), -self.limit) for op in (i, j)]
                if instance.unit[i] == instance.unit[j]:
                    together = [(int(self.on[i, k]), -2 * self.limit)]
                self.one_first(
                    delta,
                    (self.start[i], self.finish(i)),
                    (self.start[j], self.finish(j)),
                    together,
                    2,
                )

    def one_first(
        self,
        delta: int,
        first: tuple[int, list[Term]],
        second: tuple[int, list[Term]],
        conditions: list[Term],
        count: int,
    ) -> None:
        """Two tasks, each a start and an end, one after the other where all conditions, given with
        -M, are 1; delta = 1: the first comes first.
        """
        m = self.limit
        self.at_least(
            -m * (count + 1), [(second[0], 1.0)], negative(first[1]), [(delta, -m)], conditions
        )
        self.at_least(-m * count, [(first[0], 1.0)], negative(second[1]), [(delta, m)], conditions)

    def pairs_of_messages(self) -> list[tuple[Message, Message]]:
        """All pairs of transfers but those of which one always has arrived before the other leaves:
        where each reader of the one precedes the source of the other, or is it.
        """
        instance = self.instance

        def is_over(early: Message, late: Message) -> bool:
            later = instance.tensors[late.tensor]
            readers = readers_on(instance, early)
            return not later.home and all(
                r == later.source or instance.precedes[r, later.source] for r in readers
            )

        pairs = itertools.combinations(self.sent, 2)
        return [(q, r) for q, r in pairs if not is_over(q, r) and not is_over(r, q)]

    def messages_apart(self, q: Message, r: Message, conditions: list[list[Term]]) -> None:
        """Two transfers one after the other, for each list of four indicators that are all 1."""
        sent = self.from_.sent
        q_first = sent.get(q, (0, 0)) <= sent.get(r, (0, 0))
        delta = self.binary(q_first)
        for terms in conditions:
            self.one_first(
                delta,
                (self.leaves[q], self.arrives[q]),
                (self.leaves[r], self.arrives[r]),
                [(column, -self.limit) for column, _ in terms],
                len(terms),
            )
