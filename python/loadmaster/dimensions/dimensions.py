"""The dimensions of a graph: how each of its ops can be cut, and what that asks of its arguments.

Patterns say which axes of a call are one dimension (:mod:`.form`). Factors are found all over the
graph (:mod:`.factors`), named (:mod:`.naming`), and give each call its form (:mod:`.forming`).
Calls that see the same share one form: a graph of repeated layers has few.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.files import uncollected
from loadmaster.base.text import aligned, in_lines
from loadmaster.base.units import counted
from loadmaster.dimensions import forming
from loadmaster.dimensions.calls import LIES, calls, keyword
from loadmaster.dimensions.experts import Experts
from loadmaster.dimensions.factors import Axes
from loadmaster.dimensions.form import PICKED, REPLICATE, Cut, Factor, Form, Pattern
from loadmaster.dimensions.forming import Look, Tie
from loadmaster.dimensions.naming import ROLES, named
from loadmaster.dimensions.routing import with_routing
from loadmaster.dimensions.tensors import PICK, Output, Tensors
from loadmaster.model.graph import OpGraph

#: Sizes of one role that a table shows.
_SHOWN = 6

#: Attribute in which a graph keeps its dimensions. They have it too, so a table of weak keys would
#: keep both.
_KEPT = "_dimensions"


@dataclass(frozen=True, eq=False)
class Dimensions:
    """The forms of a graph's ops, and how factors of arguments map to those of their makers.

    Attributes
    ----------
    graph : OpGraph
    forms : tuple of Form
        Distinct ones.
    form_of : int32 [n_ops]
        The form of each op; -1: a view, or an op without tensors. A parameter, buffer, input or
        constant has a form without arguments, with a cut for each of its factors.
    first : int64 [n_ops + 1]
        The arguments of op v are ``first[v]`` to ``first[v + 1]``, in the order of the call.
    root : int32 [n_arguments]
        The op that runs and made the tensor, or the placeholder that it is, through views; -1: an
        op is waited for whose tensor is not read.
    output : int16 [n_arguments]
        Which output of the root it is.
    edge : int64 [n_arguments]
        The edge of the graph that carries it; -1: there is none.
    back : int32 [n_arguments]
        Index into ``backs``.
    backs : tuple of tuple of int
        Per factor of the argument, the factor of the root's output that it is. ``REPLICATE``: it
        is none, since a view made it of nothing (broadcast) or took only some of it.
    unknown : dict
        Kinds without a rule, with how many ops are of each.
    batch : int or None
        The size of the batch, where nothing but that is known; None: arguments of calls are.
    constrained : dict
        Per view that says how its array is to lie (:data:`.calls.LIES`), the array's factors.
    """

    graph: OpGraph
    forms: tuple[Form, ...]
    form_of: NDArray[np.int32]
    first: NDArray[np.int64]
    root: NDArray[np.int32]
    output: NDArray[np.int16]
    edge: NDArray[np.int64]
    back: NDArray[np.int32]
    backs: tuple[tuple[int, ...], ...]
    unknown: dict[str, int]
    batch: int | None = None
    constrained: Mapping[int, Sequence[Factor]] = field(default_factory=dict)

    @classmethod
    def of(cls, graph: OpGraph) -> Dimensions:
        """The dimensions of a graph, found once for each graph. O(V + E), nearly."""
        known: Dimensions | None = vars(graph).get(_KEPT)
        if known is None:
            with uncollected():
                arguments, patterns = calls(graph)
                patterns = with_routing(graph, arguments, patterns)
                known = vars(graph)[_KEPT] = cls.made(graph, arguments, patterns)
        return known

    @classmethod
    def made(
        cls,
        graph: OpGraph,
        arguments: Sequence[Sequence[Output]],
        patterns: Sequence[Pattern | None],
    ) -> Dimensions:
        """From the outputs that each call takes and its pattern; None: there is no rule."""
        tensors = Tensors.of(graph, arguments)
        looks = _looks(graph, tensors, patterns)
        of_op, forms = _forms(graph, tensors, patterns, looks)
        roots = _Roots(graph, tensors, looks, of_op, forms)
        taken = [roots.of(tensor) for some in tensors.taken for tensor in some]
        root, output, back = np.array(taken, dtype=np.int64).reshape(-1, 3).T
        first = np.cumsum([0, *map(len, tensors.taken)])
        edge = _edges(graph, first, [op for some in arguments for op, _ in some])
        # Forms of views were for following them.
        used, form_of = np.unique(np.where(graph.view, -1, of_op), return_inverse=True)
        hidden = int(np.count_nonzero(used < 0))
        return cls(
            graph=graph,
            forms=tuple(forms[at] for at in used[hidden:].tolist()),
            form_of=(form_of - hidden).astype(np.int32),
            first=first,
            root=np.where(_is_control(graph)[edge], -1, root).astype(np.int32),
            output=output.astype(np.int16),
            edge=edge,
            back=back.astype(np.int32),
            backs=tuple(roots.backs),
            unknown=_unknown(graph, patterns),
            constrained={
                op: looks[1][looks[0][tensors.taken[op][0]]].factors
                for op in np.flatnonzero(graph.view).tolist()
                if tensors.taken[op] and keyword(graph, op, LIES)
            },
        )

    def __repr__(self) -> str:
        ops, forms = counted(self.graph.n_ops, "op"), counted(len(self.forms), "form")
        return f"Dimensions({ops}, {forms}, {counted(len(self.unknown), 'kind')} without a rule)"

    def table(self) -> str:
        """For people: per role, how many ops can be cut along it, and at which sizes.

        Sizes that most ops have come first.
        """
        sizes: dict[str, Counter[int]] = {}
        ops: Counter[str] = Counter()
        n_ops = np.bincount(self.form_of[self.form_of >= 0], minlength=len(self.forms)).tolist()
        for form, count in zip(self.forms, n_ops, strict=True):
            cuts = [cut for cut in form.cuts if cut.size] if form.inputs else []
            for cut in cuts:
                sizes.setdefault(cut.role, Counter())[cut.size] += count
            ops.update(dict.fromkeys([cut.role for cut in cuts], count))
        rows = [["dimension", "ops", "sizes"]]
        for role in (*ROLES, ""):
            if ops[role]:
                most = [str(size) for size, _ in sizes[role].most_common(_SHOWN)]
                rows.append([role or "(no name)", f"{ops[role]:,}", ", ".join(most)])
        return in_lines(aligned(rows))

    @cached_property
    def experts(self) -> Experts:
        """Experts that are modules of their own."""
        has = [any(PICKED in (*cut.inputs, *cut.outputs) for cut in f.cuts) for f in self.forms]
        return Experts.of(self.graph, np.array([*has, False])[self.form_of])

    @cached_property
    def reader(self) -> NDArray[np.int32]:
        """The op whose argument each is, int32 [n_arguments]."""
        return np.repeat(np.arange(self.graph.n_ops, dtype=np.int32), np.diff(self.first))

    def needed(self, argument: int, cut: Cut) -> int:
        """The spec that the root of an argument must have if its reader is cut so."""
        spec = cut.inputs[argument - int(self.first[self.reader[argument]])]
        return spec if spec < 0 else self.backs[self.back[argument]][spec]


def _looks(
    graph: OpGraph, tensors: Tensors, patterns: Sequence[Pattern | None]
) -> tuple[list[int], list[Look]]:
    """The look of each tensor to its calls, as an index into distinct looks."""
    axes, start = _joined(tensors, patterns)
    # Tensors whose axes are the same have the same factors, and so the same look.
    alike: dict[tuple[int, ...], int] = {}
    of_tensor = [
        alike.setdefault(tuple([axes.find(axis) for axis in range(*ends)]), len(alike))
        for ends in itertools.pairwise(start)
    ]
    distinct = [
        [(i, f) for i, axis in enumerate(each) for f in axes.factors(axis)] for each in alike
    ]
    roles = named(graph, tensors, patterns, [distinct[i] for i in of_tensor])
    looks: dict[Look, int] = {}
    number = [
        looks.setdefault(
            Look(
                tuple([(axis, axes.size[factor]) for axis, factor in some]),
                tuple([roles.get(factor, "") for _, factor in some]),
            ),
            len(looks),
        )
        for some in distinct
    ]
    return [number[i] for i in of_tensor], list(looks)


def _joined(tensors: Tensors, patterns: Sequence[Pattern | None]) -> tuple[Axes, list[int]]:
    """The axes of all tensors, one after the other, joined as patterns say; where each begins.

    Where not all can be taken apart alike, what comes first stays. So reshapes come last, the most
    frequent first: the windows in all layers rather than the step to another resolution. What has
    dimensions that are parts of axes comes after them: samples and tokens are known by then.
    """
    start = list(itertools.accumulate(map(len, tensors.shapes), initial=0))
    axes = Axes([size for shape in tensors.shapes for size in shape])
    groups: dict[tuple[object, ...], list[list[int]]] = {}
    tied: dict[tuple[object, ...], tuple[int, list[Tie]]] = {}
    for op, pattern in enumerate(patterns):
        if pattern is not None:
            seen = tensors.of_call(op)
            shapes = [tensors.shapes[t] for t in seen]
            key = (id(pattern), *shapes)
            if key not in groups:
                groups[key] = []
                ties = [tie for tie in forming.ties(pattern, shapes) if tie.joined]
                tied[key] = (2 if pattern.pieces else int(pattern.is_reshape), ties)
            groups[key].append(seen)
    for key in sorted(groups, key=lambda key: (tied[key][0], -len(groups[key]))):
        for tie in tied[key][1]:
            one, *others = tie.places
            for seen in groups[key]:
                at = start[seen[one.tensor]]
                for other in others:
                    to = start[seen[other.tensor]]
                    if tie.is_of_axes:
                        axes.unite(at + one.first, to + other.first)
                    else:
                        axes.join(one.run(at), other.run(to))
    return axes, start


def _forms(
    graph: OpGraph,
    tensors: Tensors,
    patterns: Sequence[Pattern | None],
    looks: tuple[list[int], list[Look]],
) -> tuple[list[int], list[Form]]:
    """The form of each op, views too; -1: it has no tensors, or only picks one."""
    look_of, distinct = looks
    known: dict[tuple[int, ...], int] = {}
    forms: dict[Form, int] = {}
    form_of = []
    for op, pattern in enumerate(patterns):
        if tensors.first[op] == tensors.first[op + 1] or not graph.outputs[op]:
            form_of.append(-1)
            continue
        n_taken = len(tensors.taken[op])
        key = (id(pattern), n_taken, *(look_of[t] for t in tensors.of_call(op)))
        at = known.get(key)
        if at is None:
            seen = [distinct[look] for look in key[2:]]
            if graph.placeholder[op]:
                form = forming.placeholder(seen[-1])
            elif pattern is None:
                factors = [look.factors for look in seen]
                form = Form((), tuple(factors[:n_taken]), tuple(factors[n_taken:]))
            else:
                shapes = [tensors.shapes[t] for t in tensors.of_call(op)]
                form = forming.form(pattern, forming.ties(pattern, shapes), seen)
            at = known[key] = forms.setdefault(form, len(forms))
        form_of.append(at)
    return form_of, list(forms)


class _Roots:
    """Follows tensors through views to what made them."""

    def __init__(
        self,
        graph: OpGraph,
        tensors: Tensors,
        looks: tuple[list[int], list[Look]],
        form_of: Sequence[int],
        forms: Sequence[Form],
    ) -> None:
        self._graph, self._tensors, self._form_of, self._forms = graph, tensors, form_of, forms
        self._n_factors = [len(looks[1][look].factors) for look in looks[0]]
        self._views = graph.view.tolist()
        self._known: dict[int, tuple[int, int, tuple[int, ...]]] = {}
        #: Distinct maps of factors, with their numbers.
        self.backs: dict[tuple[int, ...], int] = {}

    def of(self, tensor: int) -> tuple[int, int, int]:
        """The op that made it, which of its outputs it is, and the map of its factors."""
        chain = []
        while tensor not in self._known:
            op = self._tensors.maker[tensor]
            output, n_factors = tensor - self._tensors.first[op], self._n_factors[tensor]
            if not self._views[op]:
                self._known[tensor] = (op, output, tuple(range(n_factors)))
            elif not self._tensors.taken[op]:
                shown = int(self._graph.reduced.shows[op])
                self._known[tensor] = (shown, 0, (REPLICATE,) * n_factors)
            else:
                chain.append((tensor, op, output))
                tensor = self._tensors.taken[op][0]
        root, which, back = self._known[tensor]
        for tensor, op, output in reversed(chain):
            of_view = [REPLICATE] * self._n_factors[tensor]
            form = self._form_of[op]
            for cut in self._forms[form].cuts if form >= 0 else ():
                if cut.inputs[0] >= 0 and cut.outputs[output] >= 0:
                    of_view[cut.outputs[output]] = back[cut.inputs[0]]
            back = tuple(of_view)
            self._known[tensor] = (root, which, back)
        return root, which, self.backs.setdefault(back, len(self.backs))


def _is_control(graph: OpGraph) -> NDArray[np.bool_]:
    """True for edges without a tensor: bool [n_edges + 1]; the last is no edge."""
    tensor = graph.src if graph.tensor is None else graph.tensor
    return np.append(tensor < 0, False)


def _edges(graph: OpGraph, first: NDArray[np.int64], sources: Sequence[int]) -> NDArray[np.int64]:
    """The edge between each argument's op and its reader, one with a tensor rather than control."""
    n = np.int64(graph.n_ops)
    reader = np.repeat(np.arange(n), np.diff(first))
    wanted = np.array(sources, dtype=np.int64) * n + reader
    pairs = graph.src * n + graph.dst
    order = np.lexsort((np.arange(graph.n_edges), _is_control(graph)[:-1], pairs))
    at = np.searchsorted(pairs[order], wanted)
    edges = np.append(order, -1)[at]
    return np.where((edges >= 0) & (np.append(pairs, -1)[edges] == wanted), edges, -1)


def _unknown(graph: OpGraph, patterns: Sequence[Pattern | None]) -> dict[str, int]:
    return dict(
        Counter(
            kind
            for kind, pattern, stands in zip(
                graph.kinds, patterns, graph.placeholder.tolist(), strict=True
            )
            if pattern is None and not stands and kind != PICK
        )
    )
