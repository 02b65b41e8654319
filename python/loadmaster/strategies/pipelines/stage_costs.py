"""Time and memory of a stage, for every pair of cuts of a line.

One micro-batch of the program that would run is looked at: its accumulation of gradients is a part
of it, and an op is priced for as many samples as it has. Of stages of several devices the first one
is looked at, since all do alike; what they do together keeps each of them busy. What overlaps in a
schedule is not known here: a stage keeps its devices busy, and the ends of its links.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from loadmaster.strategies.pipelines.batched import MicroBatched
from loadmaster.strategies.pipelines.phases import BACKWARD, FORWARD, ONCE, WEIGHT


@dataclass(frozen=True, eq=False)
class StageCosts:
    """Stages between cuts i < j: rows and columns i and j of matrices.

    Attributes
    ----------
    until : float64 [4, n_cuts, n_types]
        Seconds of what lies before each cut: of the forward pass, of gradients of inputs, of
        gradients of weights, each for one micro-batch; and of what is done once. Collectives among
        a stage's devices are a part of these.
    into, out : float64 [2, 2, n_cuts, n_cuts]
        A micro-batch's transfers into a stage and out of it, forward and back: how many there are,
        and their bytes.
    link : (float, float)
        Seconds of a transfer, and per byte, between stages on average.
    fixed : uint64 [n_cuts, n_cuts]
        Bytes that are held for the whole step, and the largest op's own.
    held : uint64 [n_cuts, n_cuts]
        Bytes that are kept per micro-batch from its forward pass to its backward pass.
    gradients : float64 [n_cuts, n_cuts]
        Bytes of gradients of parameters.
    barred : int64 [n_cuts, n_types]
        Ops before each cut that a device type may not run.
    """

    until: NDArray[np.float64]
    into: NDArray[np.float64]
    out: NDArray[np.float64]
    link: tuple[float, float]
    fixed: NDArray[np.uint64]
    held: NDArray[np.uint64]
    gradients: NDArray[np.float64]
    barred: NDArray[np.int64]

    @classmethod
    def of(
        cls,
        batched: MicroBatched,
        place: NDArray[np.int64],
        cuts: NDArray[np.int64],
        link: tuple[float, float],
        together: NDArray[np.float64] | None = None,
    ) -> StageCosts:
        """The costs of a program's stages.

        Parameters
        ----------
        batched : MicroBatched
            Its last micro-batch is looked at.
        place : int64 [n_user_ops]
            Where each op of the user's graph stands on the line.
        cuts : int64 [n_cuts]
        link : (float, float)
            Seconds of a transfer, and per byte, between stages on average.
        together : float64 [n_reduced], optional
            Seconds of the collective that each op is a member of. Absent: there are none.

        Notes
        -----
        O(V + E log E + n_cuts^2).
        """
        return _Looked(batched, place, cuts).costs(link, together)

    @cached_property
    def enters(self) -> NDArray[np.float64]:
        """Seconds that a micro-batch's transfers into a stage take, one after another, forward and
        back: [2, n_cuts, n_cuts].
        """
        return self.link[0] * self.into[:, 0] + self.link[1] * self.into[:, 1]

    @cached_property
    def leaves(self) -> NDArray[np.float64]:
        """The same of transfers out of a stage."""
        return self.link[0] * self.out[:, 0] + self.link[1] * self.out[:, 1]

    @property
    def n_cuts(self) -> int:
        """Number of cuts."""
        return len(self.fixed)

    def compute(self, device_type: int) -> NDArray[np.float64]:
        """Seconds per micro-batch that a stage computes on a device type, [n_cuts, n_cuts]."""
        return _between(self.until[:3, :, device_type].sum(axis=0))

    @cached_property
    def loads(self) -> list[NDArray[np.float64]]:
        """Per device type, seconds per micro-batch for which a stage keeps its device, or an end of
        its links, busy: [n_cuts, n_cuts]; infinite where it has an op that the type may not run.
        """
        ends = np.maximum(self.enters.sum(axis=0), self.leaves.sum(axis=0))
        per_kind = [np.maximum(self.compute(kind), ends) for kind in range(self.barred.shape[1])]
        for seconds, barred in zip(per_kind, self.barred.T, strict=True):
            seconds[barred[None, :] > barred[:, None]] = np.inf
        return per_kind

    def path(self, device_type: int) -> NDArray[np.float64]:
        """Seconds that a micro-batch takes through a stage and on to the next one, and back."""
        sent: NDArray[np.float64] = self.leaves.sum(axis=0)
        return self.compute(device_type) + sent

    @cached_property
    def work(self) -> NDArray[np.float64]:
        """Seconds per micro-batch of all stages, per device type."""
        return np.asarray(self.until[:3, -1].sum(axis=0))


def _between(until: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.maximum(until[None, :] - until[:, None], 0.0)


class _Looked:
    """The last micro-batch of a program, and where its ops are between cuts."""

    def __init__(
        self, batched: MicroBatched, place: NDArray[np.int64], cuts: NDArray[np.int64]
    ) -> None:
        self.problem, self.n = batched.problem, len(cuts)
        #: The part of the line that each reduced op is in.
        self.part = np.searchsorted(cuts, place[batched.serves], "right") - 1
        self.micro, self.kind, self.last = batched.micro, batched.parts, batched.m - 1
        # All ranks of a stage do alike: the first is looked at.
        self.is_first = batched.rank == 0
        self.edges = batched.edges

    def costs(self, link: tuple[float, float], together: NDArray[np.float64] | None) -> StageCosts:
        up, down = self._moved(is_up=True), self._moved(is_up=False)
        return StageCosts(
            self._seconds(together),
            np.stack([up[0], down[0]]),
            np.stack([up[1], down[1]]),
            link,
            self._fixed(),
            self._held(),
            _between(self._gradients),
            self._barred(),
        )

    def _seconds(self, together: NDArray[np.float64] | None) -> NDArray[np.float64]:
        time, here = self.problem.compute_time, self.is_first & (self.micro == self.last)
        time = time if together is None else time + together[:, None]
        until = np.zeros((4, self.n, time.shape[1]))
        rows = [here & (self.kind == kind) for kind in (FORWARD, BACKWARD, WEIGHT)]
        rows.append(self.is_first & (self.kind == ONCE))
        for into, some in zip(until, rows, strict=True):
            for kind, column in enumerate(time[some].T):
                into[:, kind] = np.bincount(self.part[some] + 1, column, self.n)
        return np.asarray(np.cumsum(until, axis=1))

    def _barred(self) -> NDArray[np.int64]:
        barred = (~self.problem.allowed_types).T
        until = [np.bincount(self.part[column] + 1, minlength=self.n) for column in barred]
        return np.cumsum(np.stack(until, axis=1), axis=0)

    def _tensors(self, reads: NDArray[np.bool_]) -> tuple[NDArray[np.int64], ...]:
        """The part that makes each tensor, a part that reads it, each once, its number, and its
        bytes, by number and part that reads.
        """
        src, dst, tensor, size = (column[reads] for column in self.edges)
        source, read = self.part[src], self.part[dst]
        _, first = np.unique((tensor * self.n + read) * self.n + source, return_index=True)
        return source[first], read[first], tensor[first], size[first]

    def _moved(self, *, is_up: bool) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Transfers into stages and out of them, of the last micro-batch: how many, and bytes."""
        src, dst = self.edges[:2]
        here = (self.micro == self.last) & self.is_first
        source, read, tensor, size = self._tensors(here[src] & here[dst])
        n = self.n
        away = read > source if is_up else read < source
        source, read, tensor, size = source[away], read[away], tensor[away], size[away]
        if not is_up:
            # Mirrored, gradients go up: part q is part n - 2 - q.
            source, read = n - 2 - source, n - 2 - read
            order = np.lexsort((read, tensor))
            source, read, tensor, size = source[order], read[order], tensor[order], size[order]
        is_new = np.append(True, tensor[1:] != tensor[:-1])[: len(tensor)]
        before = np.where(is_new, source, np.append(0, read[:-1])[: len(read)])
        is_last = np.append(tensor[1:] != tensor[:-1], True)[: len(tensor)]
        from_, to = source[is_last], read[is_last]
        into, out = [], []
        for each in (np.ones(len(size)), size.astype(np.float64)):
            into.append(_rectangles(n, before + 1, read, read + 1, np.full_like(read, n - 1), each))
            out.append(_rectangles(n, 0 * from_, from_, from_ + 1, to, each[is_last]))
        if not is_up:
            into, out = ([one[::-1, ::-1].T for one in some] for some in (into, out))
        return np.array(into), np.array(out)

    def _held(self) -> NDArray[np.uint64]:
        """Tensors of the forward pass that the backward pass reads, once per stage that reads
        them.
        """
        src, dst = self.edges[:2]
        here = (self.micro == self.last) & self.is_first
        kept = here[src] & here[dst] & (self.kind[src] == FORWARD) & (self.kind[dst] != FORWARD)
        _, read, tensor, size = self._tensors(kept)
        is_new = np.append(True, tensor[1:] != tensor[:-1])[: len(tensor)]
        before = np.where(is_new, -1, np.append(0, read[:-1])[: len(read)])
        n = self.n
        held = _rectangles(
            n, before + 1, read, read + 1, np.full_like(read, n - 1), size.astype(float)
        )
        return np.rint(held).astype(np.uint64)

    @cached_property
    def _gradients(self) -> NDArray[np.float64]:
        """Bytes of gradients of parameters before each cut. They are read by what is done once, or
        by the accumulation with the next ones.
        """
        src, dst = self.edges[:2]
        first = (self.micro == 0) & (self.kind >= 0) & self.is_first
        source, _, tensor, size = self._tensors(first[src] & (self.micro[dst] != 0))
        is_new = np.append(True, tensor[1:] != tensor[:-1])[: len(tensor)]
        until = np.zeros(self.n)
        np.add.at(until, source[is_new] + 1, size[is_new].astype(np.float64))
        return np.asarray(np.cumsum(until))

    @cached_property
    def _for_all(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Tensors that are made once and read by every micro-batch, such as parameters that are
        gathered: where, and bytes.
        """
        src, dst = self.edges[:2]
        read = (self.kind[src] == ONCE) & (self.kind[dst] != ONCE)
        source, _, tensor, size = self._tensors(read & self.is_first[src] & self.is_first[dst])
        is_new = np.append(True, tensor[1:] != tensor[:-1])[: len(tensor)]
        return source[is_new], size[is_new].astype(np.float64)

    def _fixed(self) -> NDArray[np.uint64]:
        """Bytes that stay, gradients of parameters among them, and the most that one op has for
        itself.
        """
        graph, some = self.problem.graph, self.is_first
        stays = np.zeros(self.n)
        np.add.at(stays, self.part[some] + 1, graph.resident[some].astype(np.float64))
        source, size = self._for_all
        np.add.at(stays, source + 1, size)
        own = (graph.static_bytes - graph.resident + graph.workspace).astype(np.float64)
        most = np.zeros(self.n - 1)
        np.maximum.at(most, self.part[some], own[some])
        largest = np.zeros((self.n, self.n))
        largest[:, 1:] = np.maximum.accumulate(np.triu(np.tile(most, (self.n, 1))), axis=1)
        return np.rint(_between(np.cumsum(stays) + self._gradients) + largest).astype(np.uint64)


def _rectangles(
    n: int,
    first_row: NDArray[np.int64],
    last_row: NDArray[np.int64],
    first_column: NDArray[np.int64],
    last_column: NDArray[np.int64],
    value: NDArray[np.float64],
) -> NDArray[np.float64]:
    """A matrix to which each value is added in a rectangle, ends included: float64 [n, n]."""
    rows = np.concatenate([first_row, last_row + 1, first_row, last_row + 1])
    columns = np.concatenate([first_column, first_column, last_column + 1, last_column + 1])
    signed = np.concatenate([value, -value, -value, value])
    step = np.bincount(rows * (n + 1) + columns, signed, (n + 1) ** 2).reshape(n + 1, n + 1)
    sums = np.cumsum(np.cumsum(step, axis=0), axis=1)[:n, :n]
    return np.maximum(sums, 0.0)
