"""A tape of recomputation: what the backward pass recomputes is called a second time.

Numbers are those of the tape itself, bit for bit: what is random is never recomputed.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np

from loadmaster.base.errors import InputError
from loadmaster.model.program import Program
from loadmaster.running.tape.calls import Call, renumbered
from loadmaster.running.tape.slots import Slot
from loadmaster.running.tape.tape import Tape


def recomputed(program: Program, tape: Tape) -> Tape:
    """The tape of a program of :func:`loadmaster.transforms.recompute`.

    Raises
    ------
    InputError
        An op reads a view of what is recomputed which is not itself recomputed.
    """
    return _Again(program, tape).tape()


class _Again:
    """The slots of second calls, and who reads them."""

    def __init__(self, program: Program, tape: Tape) -> None:
        self._graph, self._tape = program.graph, tape
        backward = np.array([phase == "b" for phase in tape.graph.phases], dtype=bool)
        self._is_backward = backward.tolist()
        n, serves = tape.graph.n_ops, program.serves
        #: Places of each op and of its second copy; -1: there is none.
        self._first, self._second = [-1] * n, [-1] * n
        for at, op in enumerate(serves.tolist()):
            is_first = self._graph.names[at] == tape.graph.names[op]
            (self._first if is_first else self._second)[op] = at
        self._n = tape.n_values
        self._slots: dict[int, Slot] = {}
        #: The slot of each that is made a second time.
        self._copy: dict[int, int] = {}
        storages: dict[int, int] = {}
        most = 1 + max((one.storage for one in tape.slots.values()), default=-1)
        for slot, one in tape.slots.items():
            self._slots[slot] = replace(one, op=self._first[one.op])
            if self._second[one.op] >= 0:
                storage = storages.setdefault(one.storage, most + len(storages))
                self._copy[slot] = self._n
                self._slots[self._n] = replace(one, op=self._second[one.op], storage=storage)
                self._n += 1
        #: By storage, the slots that have a second copy.
        self._of_storage: dict[int, list[int]] = defaultdict(list)
        for slot in self._copy:
            self._of_storage[tape.slots[slot].storage].append(slot)

    def tape(self) -> Tape:
        """The whole."""
        calls = [one for call in self._tape.calls for one in self._calls(call)]
        return replace(
            self._tape,
            graph=self._graph,
            calls=tuple(sorted(calls, key=lambda call: call.op)),
            slots=self._slots,
            placeholders=tuple(replace(p, op=self._first[p.op]) for p in self._tape.placeholders),
            again=None,
        )

    def _calls(self, call: Call) -> list[Call]:
        op = call.op
        seeded = op if call.seeded < 0 else call.seeded
        read = self._read if self._is_backward[op] else int
        calls = [replace(renumbered(call, self._first[op], read, int, self._first), seeded=seeded)]
        if self._is_backward[op]:
            calls[0] = replace(calls[0], writes=tuple(map(read, call.writes)))
        if self._second[op] >= 0:
            second = renumbered(call, self._second[op], self._read, self._read, self._second)
            calls.append(replace(second, seeded=seeded))
        return calls

    def _read(self, slot: int) -> int:
        """The slot that stands for another in recomputed ops and in the backward pass."""
        if slot in self._copy:
            return self._copy[slot]
        one = self._tape.slots.get(slot)
        others = [] if one is None else self._of_storage[one.storage]
        if one is None or not others:
            return slot
        for other in others:
            if replace(self._tape.slots[other], op=one.op) == one:
                return self._copy[other]
        raise InputError(
            f"op {self._tape.graph.names[one.op]!r} shows what is recomputed, and is not "
            "recomputed itself: recompute other modules"
        )
