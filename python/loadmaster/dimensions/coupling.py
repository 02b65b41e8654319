"""Ops that join samples: along what they join, a batch cannot be shared out without an exchange.

Each tensor of the forward pass is followed from the inputs on. It has a row per sample, or is a
sum or mean over samples, or is the same for every sample. An op keeps samples apart if it can be
cut so that its arguments are as they come. It joins them if it has a rule and no such cut:

* a product or a difference of all samples with all samples, as in a contrastive loss;
* what is not linear in a sum over the batch, as a norm over the batch is;
* what goes along the batch: a softmax, a maximum, an order, attention among samples;
* rows of the batch picked by an index that is an input, as the neighbours of a graph's nodes are.

What is not known joins nothing: kinds without a rule, and samples lost in a reshape. A batch norm,
the number of targets that count, and the tokens that an expert has room for, are those of each
device's samples. Whole numbers and truths, and what is made of them alone, are counts and choices:
masks, the experts of a token.

O(V + E) times the cuts of an op.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from loadmaster.dimensions.dimensions import Dimensions
from loadmaster.dimensions.experts import in_order
from loadmaster.dimensions.form import ANY, PARTIAL, PICKED, REPLICATE, Cut, Form
from loadmaster.dimensions.rules import rule_of
from loadmaster.model.graph import INPUT, PARAMETER
from loadmaster.model.shapes import parse_output

#: Of a tensor that depends on samples in a way that is not known.
_UNKNOWN = -9

#: Families whose parts exchange sums that data parallelism takes from each part alone.
_LOCAL = ("batch-norm", "likelihood")

#: Families that join samples along any axis that they are never cut along.
_ALONG = ("product", "einsum", "along", "reduction", "recurrent", "recurrent_layer")

#: Families that join samples where two arguments have them on axes of their own.
_PAIRED = ("product", "einsum", "elementwise", "loss")

#: Ops by which a sum over the batch stays one, though a number is added that each part adds.
_AFFINE = ("aten.add", "aten.sub", "aten.rsub")

_JOINED = "joined"


@dataclass(frozen=True, slots=True)
class _Seen:
    """The samples of one tensor: the factor that they are or a spec, and whether it is data."""

    spec: int
    is_data: bool


_SAME = _Seen(REPLICATE, False)


def joins_samples(dimensions: Dimensions) -> tuple[int, str] | None:
    """The first op of the forward pass that joins samples, and what it does; None: there is none.

    Examples
    --------
    >>> import loadmaster as lm
    >>> joins_samples(Dimensions.of(lm.read("example:lenet"))) is None
    True
    """
    if dimensions.batch is not None or dimensions.graph.args is None:
        return None
    return _Following(dimensions).first()


class _Following:
    """Follows samples through the ops of a graph."""

    def __init__(self, dimensions: Dimensions) -> None:
        self.dimensions, self.graph = dimensions, dimensions.graph
        self._seen: dict[tuple[int, int], _Seen] = {}
        self._first, self._form_of = dimensions.first.tolist(), dimensions.form_of.tolist()
        self._root, self._output = dimensions.root.tolist(), dimensions.output.tolist()
        self._back = dimensions.back.tolist()

    def first(self) -> tuple[int, str] | None:
        """The first op that joins samples."""
        matters = self._before_the_backward_pass()
        stands_for, views = self.graph.stands_for.tolist(), self.graph.view.tolist()
        for op in in_order(self.graph):
            if views[op] or self._form_of[op] < 0:
                continue
            form = self.dimensions.forms[self._form_of[op]]
            if stands_for[op] >= 0:
                self._seen[op, 0] = self._placed(op, form, stands_for[op])
            elif self.graph.phases[op] not in ("b", "o"):
                why = self._run(op, form)
                if why and matters[op]:
                    return op, why
        return None

    def _before_the_backward_pass(self) -> np.ndarray:
        """Mask of the ops that the backward pass depends on; without one, all ops."""
        graph = self.graph
        matters = np.array([phase == "b" for phase in graph.phases], dtype=bool)
        if not matters.any():
            return ~matters
        read: list[list[int]] = [[] for _ in range(graph.n_ops)]
        for source, reader in zip(graph.src.tolist(), graph.dst.tolist(), strict=True):
            read[reader].append(source)
        ahead = np.flatnonzero(matters).tolist()
        while ahead:
            for source in read[ahead.pop()]:
                if not matters[source]:
                    matters[source] = True
                    ahead.append(source)
        return matters

    def _placed(self, op: int, form: Form, stands_for: int) -> _Seen:
        """A tensor that is there when the step begins; samples are axis 0 of an input."""
        is_data = parse_output(self.graph.outputs[op])[0][0].startswith(("f", "bf"))
        if stands_for != INPUT:
            return _Seen(REPLICATE, is_data and stands_for == PARAMETER)
        cuts = [cut for cut in form.cuts if cut.role == "batch" and cut.outputs[0] >= 0]
        along = [cut.outputs[0] for cut in cuts if form.outputs[0][cut.outputs[0]][0] == 0]
        return _Seen(along[0] if along else REPLICATE, is_data)

    def _arguments(self, op: int) -> Iterator[_Seen]:
        for row in range(self._first[op], self._first[op + 1]):
            seen = self._seen.get((self._root[row], self._output[row]), _SAME)
            if seen.spec >= 0:
                back = self.dimensions.backs[self._back[row]]
                at = back.index(seen.spec) if seen.spec in back else _UNKNOWN
                seen = _Seen(at, seen.is_data)
            is_count = seen.spec == PARTIAL and not seen.is_data
            yield _Seen(REPLICATE, False) if is_count else seen

    def _run(self, op: int, form: Form) -> str:
        """Notes the outputs of an op; the words for an op that joins samples, or ""."""
        arguments = list(self._arguments(op))
        of_batch = [each for each in arguments if each.spec != REPLICATE]
        is_data = any(each.is_data for each in arguments)
        rule = rule_of(self.graph.kinds[op])
        specs, why = (REPLICATE,) * len(form.outputs), ""
        if of_batch:
            specs = (_UNKNOWN,) * len(form.outputs)
            if rule is not None and all(each.spec != _UNKNOWN for each in of_batch):
                cut = _kept_apart(form, arguments, rule.family)
                if cut is not None:
                    specs = cut.outputs
                elif rule.family == _JOINED or self._is_own_row(op, rule.family, arguments):
                    specs = (_same_axis(form, arguments),)
                elif any(each.is_data for each in of_batch):
                    why = self._joins(op, rule.family, of_batch)
                    specs = (PARTIAL,) * len(specs) if self._is_affine(op, of_batch) else specs
        if PICKED in specs:
            why = self._picks(op)
            specs = (_UNKNOWN,) * len(specs)
        dtypes = [dtype for dtype, _ in parse_output(self.graph.outputs[op])]
        for output, (spec, dtype) in enumerate(zip(specs, dtypes, strict=False)):
            self._seen[op, output] = _Seen(spec, is_data and dtype.startswith(("f", "bf", "c")))
        return why

    def _is_affine(self, op: int, of_batch: list[_Seen]) -> bool:
        kind = self.graph.kinds[op].rpartition(".")[0].removesuffix("_")
        return kind in _AFFINE and all(each.spec == PARTIAL for each in of_batch)

    def _joins(self, op: int, family: str, of_batch: list[_Seen]) -> str:
        """The words for an op that has no cut by which its samples stay apart."""
        if self._is_affine(op, of_batch):
            return ""
        if any(each.spec == PARTIAL for each in of_batch):
            return "is no linear function of a sum over the batch"
        if family.startswith("index"):
            return self._picks(op)
        if len(of_batch) > 1:
            return "joins every sample with every other" if family in _PAIRED else ""
        if family not in _ALONG or self._chooses_for_experts(op):
            return ""
        return "goes along the batch"

    def _chooses_for_experts(self, op: int) -> bool:
        """True of a top-k over tokens in a model with routed experts, of limited capacity."""
        return "topk" in self.graph.kinds[op] and bool((self.dimensions.experts.of_op >= 0).any())

    def _is_own_row(self, op: int, family: str, arguments: list[_Seen]) -> bool:
        """True of ``x[arange(batch), of_sample]``, which picks something of every sample."""
        if family != "index" or not all(each.spec in (0, REPLICATE) for each in arguments):
            return False
        roots = self._root[self._first[op] + 1 : self._first[op + 1]]
        return any(self.graph.kinds[root].startswith("aten.arange") for root in roots)

    def _picks(self, op: int) -> str:
        """The words for rows of a batch that an index picks, if that is an input or kept."""
        rows = range(self._first[op] + 1, self._first[op + 1])
        roots = [self._root[row] for row in rows]
        is_told = [root >= 0 and bool(self.graph.placeholder[root]) for root in roots]
        return "picks samples by an index that is an input" if any(is_told) else ""


def _kept_apart(form: Form, arguments: list[_Seen], family: str) -> Cut | None:
    """The cut of an op by which each part has its own samples, if there is one."""
    of_batch = [i for i, each in enumerate(arguments) if each.spec != REPLICATE]
    if form.cuts and all(cut.inputs[i] == ANY for cut in form.cuts for i in of_batch):
        return Cut("made", "", 0, (), (REPLICATE,) * len(form.outputs))
    for cut in form.cuts:
        fits = all(
            spec in (each.spec, ANY) or each.spec == REPLICATE
            for spec, each in zip(cut.inputs, arguments, strict=True)
        )
        if fits and (not cut.exchanged or family in _LOCAL):
            return cut
    return None


def _same_axis(form: Form, arguments: list[_Seen]) -> int:
    """The factor of the output on the axis that has the samples of all arguments."""
    axes = {
        factors[each.spec][0]
        for factors, each in zip(form.inputs, arguments, strict=True)
        if each.spec >= 0
    }
    on = [i for i, (axis, _) in enumerate(form.outputs[0]) if axes == {axis}]
    return on[0] if on else _UNKNOWN
