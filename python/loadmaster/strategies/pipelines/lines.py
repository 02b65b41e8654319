"""Linear orders along which a model can be cut into stages.

The forward pass is brought into an order. Ops of the backward pass and of the optimizer stand where
what they belong to stands: gradients of weights and updates with the op that reads the parameter,
other ops of the backward pass with the last op of the forward pass that they read from. So a cut
divides both passes, and samples go forward and gradients back.

A weight can be tied: a language model's first op looks rows up in the table that its last product
reads. The look-up reads nothing that the pass makes, so it can be on any stage. In a *gathered*
line it stands where the last reader of the table does, with the table's gradients and update. Then
rows cross, and the table does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import loadmaster.fast as fast
from loadmaster.judge.problem import Problem, ranks
from loadmaster.model.graph import PARAMETER
from loadmaster.model.orders import frugal_order, program_order


@dataclass(frozen=True, eq=False)
class Line:
    """A linear order of a model.

    Attributes
    ----------
    place : int64 [n_ops]
        Where each op of the problem's graph stands. Ops of the forward pass have places of their
        own, from 0, and all other ops that of one of these.
    is_open : bool [n_places + 1]
        Whether the line may be cut before each place: no set of colocated ops is on both sides.
    gathered : int64 [n_ops], or None
        Where each op stands if look-ups in tied weights stand with the last readers of these; None:
        there are none.
    """

    place: NDArray[np.int64]
    is_open: NDArray[np.bool_]
    gathered: NDArray[np.int64] | None = None


def lines(problem: Problem) -> list[Line]:
    """A line for each of several orders of the forward pass, no two alike.

    Orders are Kahn's by position in the program and by who is ready first, depth first, critical
    paths first (CPD-TOPO), and least live bytes.

    Notes
    -----
    O((V + E) log V) for each order.

    Examples
    --------
    >>> import loadmaster as lm
    >>> graph, cluster = lm.read("example:gpt3-330m"), lm.Cluster.preset("4xV100-PCIe")
    >>> problem = Problem.make(graph, cluster, lm.costs.estimate(graph, cluster))
    >>> line = lines(problem)[0]
    >>> first, last = graph.index("embedding"), graph.index("nll_loss_forward")
    >>> bool(line.place[first] < line.place[last])
    True
    """
    passes = _Passes(problem)
    distinct: dict[bytes, Line] = {}
    for order in _orders(problem, passes):
        distinct.setdefault(order.tobytes(), passes.line(order))
    return list(distinct.values())


def line_of(problem: Problem, ops: NDArray[np.integer]) -> Line:
    """The line of one order of the forward pass: int [n_forward], ops of the problem's graph."""
    passes = _Passes(problem)
    at = np.full(problem.graph.n_ops, -1, dtype=np.int64)
    at[passes.forward] = np.arange(len(passes.forward))
    return passes.line(at[ops].astype(np.int32))


def _orders(problem: Problem, passes: _Passes) -> list[NDArray[np.int32]]:
    """Orders of the ops of the forward pass, int32 [n_forward], by their index among these."""
    forward = passes.forward
    at = np.full(problem.graph.n_ops, -1, dtype=np.int64)
    at[forward] = np.arange(len(forward))
    src, dst, tensor, bytes_, is_home = passes.edges
    inner = (at[src] >= 0) & (at[dst] >= 0) & ~is_home
    data = inner & (tensor >= 0)
    ids, numbers = np.unique(tensor[data], return_inverse=True)
    size = np.zeros(len(ids), dtype=np.uint64)
    size[numbers] = bytes_[data]
    numbered = np.full(len(src), -1, dtype=np.int64)
    numbered[data] = numbers
    graph = fast.Graph(
        len(forward), at[src[inner]], at[dst[inner]], numbered[inner], tensor_bytes=size
    )
    weights = fast.Weights(
        graph,
        problem.op_time[forward],
        tensor_time=problem.tensor_time(graph),
        control_time=problem.control_time,
    )
    return [
        program_order(graph),
        fast.m_topo(graph),
        fast.dfs_topo(graph),
        fast.cpd_topo(weights),
        frugal_order(graph),
    ]


class _Passes:
    """The passes of a model: which op reads which, and what must stand with what."""

    def __init__(self, problem: Problem) -> None:
        graph = problem.graph
        self.problem = problem
        self.phase = np.array([problem.model.phases[op] for op in problem.reduced.op_of.tolist()])
        self.is_forward = np.isin(self.phase, ("", "f"))
        self.is_backward = self.phase == "b"
        self.forward = np.flatnonzero(self.is_forward)
        self.edges = fast.edges(graph)
        self.topological = fast.m_topo(graph).tolist()
        self.readers: list[list[int]] = [[] for _ in range(graph.n_ops)]
        self.makers: list[list[int]] = [[] for _ in range(graph.n_ops)]
        src, dst, _, _, is_home = self.edges
        for a, b in zip(src[~is_home].tolist(), dst[~is_home].tolist(), strict=True):
            self.readers[a].append(b)
            self.makers[b].append(a)
        self.gradient = self._gradients()

    def _gradients(self) -> NDArray[np.int64]:
        """For ops of the backward pass that lead to the gradient of one parameter and to nothing
        else, the op that makes it: int64 [n_reduced]; -1: any other op.
        """
        phase, none = self.phase.tolist(), len(self.phase)
        low, high = [none] * none, [-1] * none
        for op in reversed(self.topological):
            if phase[op] != "b":
                continue
            for reader in self.readers[op]:
                is_last = phase[reader] == "o"
                low[op] = min(low[op], op if is_last else low[reader])
                high[op] = max(high[op], op if is_last else high[reader])
        return np.where(np.array(low) == np.array(high), low, -1)

    def line(self, order: NDArray[np.int32]) -> Line:
        """The line of an order of the forward pass."""
        sets, n = self.problem.graph.colocation, len(order)
        at = np.full(len(sets), -1, dtype=np.int64)
        at[self.forward] = ranks(order)
        first = np.full(int(sets.max()) + 1, n, dtype=np.int64)
        last = np.full(len(first), -1, dtype=np.int64)
        np.minimum.at(first, sets[self.forward], at[self.forward])
        np.maximum.at(last, sets[self.forward], at[self.forward])
        of_set = np.where(last >= 0, last, self._first_readers(at))
        self._place_backward(at, of_set)
        alone = np.flatnonzero(self.is_backward & (of_set[sets] < 0))
        np.maximum.at(of_set, sets[alone], at[alone])
        moved = self._gathered(at, of_set)
        gathered = None if moved is None else self._placed(*moved)
        return Line(self._placed(at, of_set), _unspanned(first, last, n), gathered)

    def _placed(self, at: NDArray[np.int64], of_set: NDArray[np.int64]) -> NDArray[np.int64]:
        """The place of each op of the model, from the places of ops and of sets of them."""
        self._place_others(of_set)
        place = np.where(self.is_forward, at, of_set[self.problem.graph.colocation])
        return np.asarray(place[self.problem.reduced.map])

    def _first_readers(self, at: NDArray[np.int64]) -> NDArray[np.int64]:
        """The place where the forward pass first reads a tensor that each set of colocated ops has
        from the start, such as a parameter that they update; -1: nowhere.
        """
        sets, n = self.problem.graph.colocation, len(at)
        src, dst, _, _, is_home = self.edges
        reads = is_home & self.is_forward[dst]
        first = np.full(int(sets.max()) + 1, n, dtype=np.int64)
        np.minimum.at(first, sets[src[reads]], at[dst[reads]])
        return np.where(first < n, first, -1)

    def _place_backward(self, at: NDArray[np.int64], of_set: NDArray[np.int64]) -> None:
        """Places ops of the backward pass, no reader of a gradient after its maker."""
        src, dst, _, _, is_home = self.edges
        sets = self.problem.graph.colocation
        reads = self.is_forward[src] & self.is_backward[dst]
        np.maximum.at(at, dst[reads], at[src[reads]])
        reads = is_home & self.is_backward[dst]
        np.maximum.at(at, dst[reads], of_set[sets[src[reads]]])
        late = np.flatnonzero((self.gradient >= 0) & ~self._sums())
        at[late] = np.maximum(at[late], self._updates(of_set)[self.gradient[late]])
        is_reader, moves = at >= 0, self.is_backward.tolist()
        for op in reversed(self.topological):
            if moves[op]:
                readers = [int(at[r]) for r in self.readers[op] if moves[r]]
                at[op] = max([int(at[op]), *readers])
        for op in self.topological:
            if moves[op] and not is_reader[op]:
                places = [int(at[m]) for m in self.makers[op] if moves[m]]
                at[op] = min(places, default=int(at[op]))

    def _sums(self) -> NDArray[np.bool_]:
        """Ops of the backward pass that add parts of one parameter's gradient, such as those of
        time steps: bool [n_reduced].

        They stand with the first of what they add, so that parts of one stage cross as one.
        """
        makers, of = self.makers, self.gradient.tolist()
        adds = (
            len(makers[op]) > 1 and all(of[m] == one for m in makers[op])
            for op, one in enumerate(of)
        )
        return np.fromiter(adds, bool, len(of)) & (self.gradient >= 0)

    def _updates(self, of_set: NDArray[np.int64]) -> NDArray[np.int64]:
        """The place of the parameter that each op of the backward pass helps to update; -1: nowhere
        known.
        """
        sets, n = self.problem.graph.colocation, len(self.phase)
        place = np.where(self.phase == "o", of_set[sets], -1)
        for op in reversed(self.topological):
            if self.phase[op] == "o" and place[op] < 0:
                places = {int(place[r]) for r in self.readers[op]} - {-1}
                place[op] = places.pop() if len(places) == 1 else -1
        src, dst, _, _, is_home = self.edges
        known = ~is_home & self.is_backward[src] & (self.phase[dst] == "o") & (place[dst] >= 0)
        first = np.full(n, np.iinfo(np.int64).max)
        np.minimum.at(first, src[known], place[dst[known]])
        return np.where(first < np.iinfo(np.int64).max, first, -1)

    def _gathered(
        self, at: NDArray[np.int64], of_set: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
        """The same with look-ups in tied weights, and what updates these, where the last readers
        stand; None: there are none.
        """
        sets, updates = self.problem.graph.colocation, self._updates(of_set)
        places = at.copy(), of_set.copy()
        for op, home, last in self._look_ups(at):
            makes = (self.gradient >= 0) & (updates[self.gradient] == at[op])
            places[0][op] = places[1][sets[makes]] = places[1][sets[[home, op]]] = last
        return None if np.array_equal(places[0], at) else places

    def _look_ups(self, at: NDArray[np.int64]) -> Iterator[tuple[int, int, int]]:
        """Ops that read a weight which others read later, and nothing that the forward pass makes;
        each with the op that has the weight, and the place of the last reader.
        """
        sets = self.problem.graph.colocation
        alone = np.bincount(sets[self.forward], minlength=int(sets.max()) + 1) == 1
        src, dst, tensor, _, is_home = self.edges
        weight = _weights(self.problem)[tensor]
        reads = np.flatnonzero(is_home & self.is_forward[dst] & (weight >= 0))
        for one in np.unique(weight[reads]).tolist():
            edges = reads[weight[reads] == one]
            home, readers = int(src[edges[0]]), dst[edges].tolist()
            readers += [home] * bool(self.is_forward[home])
            others = [op for op in readers if self.makers[op]]
            last = max((int(at[op]) for op in others), default=-1)
            for op in readers:
                if not self.makers[op] and alone[sets[op]] and at[op] < last:
                    yield op, home, last

    def _place_others(self, of_set: NDArray[np.int64]) -> None:
        """Places sets that stand nowhere yet with what they read, else with what reads them, else
        first.
        """
        sets = self.problem.graph.colocation.tolist()
        backwards = reversed(self.topological)
        for along, others in ((self.topological, self.makers), (backwards, self.readers)):
            for op in along:
                if of_set[sets[op]] < 0 and others[op]:
                    of_set[sets[op]] = max(int(of_set[sets[o]]) for o in others[op])
        of_set[of_set < 0] = 0


def _weights(problem: Problem) -> NDArray[np.int64]:
    """The parameter, an op of the model, that each tensor is or shows; -1: none. The last entry is
    that of control.
    """
    model = problem.model
    ids = (model.src if model.tensor is None else model.tensor).astype(np.int64)
    shown = problem.reduced.shows[model.src]
    known = (model.stands_for[shown] == PARAMETER) & (ids >= 0)
    weight_of = np.full(max(int(ids.max(initial=-1)) + 1, problem.graph.n_tensor_ids) + 1, -1)
    weight_of[ids[known]] = shown[known]
    return weight_of


def _unspanned(first: NDArray[np.int64], last: NDArray[np.int64], n: int) -> NDArray[np.bool_]:
    """Mask of the cuts that no interval spans, from its first place to its last, a cut before each
    place: bool [n + 1].
    """
    step = np.zeros(n + 2, dtype=np.int64)
    spans = first < last
    np.add.at(step, first[spans] + 1, 1)
    np.add.at(step, last[spans] + 1, -1)
    return np.asarray(np.cumsum(step)[: n + 1] == 0)
