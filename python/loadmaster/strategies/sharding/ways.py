"""The labels of ops, form by form: which specs each wants and makes, and what share is a part's.

Besides the cuts of its form, an op of an update (a parameter, a slot of the optimizer, an op that
updates) may have two labels: FLAT, an equal part of the storage on each device, and OWNER, all of
it on one device. OWNER may also be an op of an expert that is a module of its own. An op may be
FLAT if all its tensors have as many elements, or one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod

import numpy as np
from numpy.typing import NDArray

from loadmaster.dimensions.form import FLAT, OWNER, PARTIAL, PICKED, REPLICATE, Factor, Form
from loadmaster.strategies.sharding.joint import dense, firsts
from loadmaster.transforms.specs import halo, part_weights, specs_of

#: The label of an op that every device of an axis does whole.
WHOLE = 0

#: Sizes that stand for no factor: a tensor, or work, is whole; each device has as much of it.
_ALL, _EVEN = 0, -1

#: Specs of which every device has as much, on average.
_SPREAD = (FLAT, OWNER, PICKED)


@dataclass(frozen=True)
class Ways:
    """Labels of forms. A row is a form, or a form of ops that update; columns are its labels.

    Attributes
    ----------
    n_labels : int64 [n]
    label : int32 [n, most]
        The number of each label: 0 whole, i > 0 the form's cut i - 1, FLAT or OWNER.
    size : int64 [n, most]
        Size of what each label cuts; 0: the work is not shared; -1: equally, whatever the size.
    limit : int64 [n, most]
        Most parts that there can be; 0: any number.
    exchanged : float64 [n, most]
        Bytes that parts all-reduce while they run.
    first_input, first_output : int64 [n]
        Where its rows start in the next four.
    inputs, outputs : int32 [rows, most]
        The spec wanted of each argument, and that of each output.
    input_size, output_size : int64 [rows, most]
        As ``size``, of the tensors.
    halo, sent : float64 [rows of inputs, most]
        What a part needs of an argument from its neighbours, and from the one that has more of it:
        as a fraction of the argument.
    role : tuple of tuple of str
        What each label cuts is in the model: the cut's role; "whole", "flat", "owner"; "partial":
        nothing, and all the work is done on partial sums. "expert" is also what is whole on the
        device of its expert.
    shares_experts : bool [n, most]
        Whether each label has devices share experts and their work.
    """

    n_labels: NDArray[np.int64]
    label: NDArray[np.int32]
    size: NDArray[np.int64]
    limit: NDArray[np.int64]
    exchanged: NDArray[np.float64]
    first_input: NDArray[np.int64]
    first_output: NDArray[np.int64]
    inputs: NDArray[np.int32]
    outputs: NDArray[np.int32]
    input_size: NDArray[np.int64]
    output_size: NDArray[np.int64]
    halo: NDArray[np.float64]
    sent: NDArray[np.float64]
    role: tuple[tuple[str, ...], ...]
    shares_experts: NDArray[np.bool_]

    @classmethod
    def of(cls, forms: Sequence[tuple[Form, bool, bool, bool]]) -> Ways:
        """The labels of forms, each with whether it is one of ops that update, and of an expert,
        and whether what its parts would sum while they run is left in parts of a sum instead: all
        outputs but the first.

        >>> from loadmaster.dimensions.form import Cut
        >>> one = Form((Cut("row", "batch", 8, (0,), (0,)),), (((0, 8),),), (((0, 8),),))
        >>> ops = [(one, False, False, False), (one, True, False, False), (one, False, True, False)]
        >>> Ways.of(ops).n_labels.tolist()
        [2, 4, 3]
        """
        labels = [labels_of(*one[:3]) for one in forms]
        most = max((len(row) for row in labels), default=1)
        n_inputs = [len(form.inputs) for form, *_ in forms]
        n_outputs = [len(form.outputs) for form, *_ in forms]
        of_op, of_inputs, of_outputs = (
            (n, most) for n in (len(forms), sum(n_inputs), sum(n_outputs))
        )
        ways = cls(
            np.array([len(row) for row in labels], dtype=np.int64),
            np.zeros(of_op, dtype=np.int32),
            np.zeros(of_op, dtype=np.int64),
            np.zeros(of_op, dtype=np.int64),
            np.zeros(of_op),
            _starts(n_inputs),
            _starts(n_outputs),
            np.full(of_inputs, REPLICATE, dtype=np.int32),
            np.full(of_outputs, REPLICATE, dtype=np.int32),
            np.zeros(of_inputs, dtype=np.int64),
            np.zeros(of_outputs, dtype=np.int64),
            np.zeros(of_inputs),
            np.zeros(of_inputs),
            tuple(
                tuple(
                    "expert" if of_expert and label == OWNER else _role(form, label)
                    for label in row
                )
                for (form, _, of_expert, _), row in zip(forms, labels, strict=True)
            ),
            np.zeros(of_op, dtype=bool),
        )
        for row, (form, _, of_expert, sums_late) in enumerate(forms):
            later = ways.outputs[ways.first_output[row] :][1 : len(form.outputs)]
            for column, label in enumerate(labels[row]):
                ways._fill(row, column, form, label)
                if sums_late and ways.exchanged[row, column] > 0:
                    later[later[:, column] == REPLICATE, column] = PARTIAL
                is_theirs = label > 0 and form.cuts[label - 1].shares_experts
                ways.shares_experts[row, column] = is_theirs or (label == OWNER and of_expert)
        return ways

    def with_role(self, wanted: Collection[str]) -> NDArray[np.bool_]:
        """True for labels of one of some roles: bool [n, most]."""
        known, codes = self._roles
        have: NDArray[np.bool_] = np.isin(codes, [known[role] for role in wanted if role in known])
        return have

    @cached_property
    def _roles(self) -> tuple[dict[str, int], NDArray[np.int64]]:
        """A number for each role, and that of each label; -1: there is no such label."""
        known: dict[str, int] = {}
        codes = np.full(self.label.shape, -1, dtype=np.int64)
        for row, words in enumerate(self.role):
            codes[row, : len(words)] = [known.setdefault(word, len(known)) for word in words]
        return known, codes

    def _fill(self, row: int, column: int, form: Form, label: int) -> None:
        self.label[row, column] = label
        needs, gives = specs_of(form, label)
        if label > 0:
            cut = form.cuts[label - 1]
            self.size[row, column] = cut.size if cut.works else _ALL
            self.limit[row, column] = cut.size
            self.exchanged[row, column] = cut.exchanged
            for at, factors in enumerate(form.inputs):
                sides = halo(cut, at, factors)
                self.halo[self.first_input[row] + at, column] = sum(sides)
                # What is sent crosses the end of a part once, as long as parts are of one position.
                sent = 1 / cut.size if cut.sends else max(sides)
                self.sent[self.first_input[row] + at, column] = sent
        elif label < 0:
            self.size[row, column] = _EVEN
        for specs, sizes, first, spec_of, tensors in (
            (self.inputs, self.input_size, self.first_input, needs, form.inputs),
            (self.outputs, self.output_size, self.first_output, gives, form.outputs),
        ):
            for at, (spec, factors) in enumerate(
                zip(spec_of, tensors, strict=True), int(first[row])
            ):
                specs[at, column] = spec
                sizes[at, column] = factors[spec][1] if spec >= 0 else _EVEN * (spec in _SPREAD)


def fractions(size: NDArray[np.int64], shares: Sequence[float], place: int) -> NDArray[np.float64]:
    """The part at a place of an axis of what is cut, by its size as :class:`Ways` says it.

    >>> fractions(np.array([10, 0, -1]), [1, 1, 1, 1], 0).tolist()
    [0.3, 1.0, 0.25]
    """
    which = dense(size.reshape(-1))
    some = size.reshape(-1)[firsts(which)]
    weights = tuple(shares)
    part = [_fraction(n, weights, place) for n in some.tolist()]
    return np.array(part, dtype=np.float64)[which].reshape(size.shape)


@lru_cache(maxsize=1 << 16)
def _fraction(size: int, shares: tuple[float, ...], place: int) -> float:
    if size <= 0:
        return {_ALL: 1.0, _EVEN: 1 / len(shares)}[size]
    return float(part_weights(size, shares)[place] / size)


def labels_of(form: Form, may_update: bool, of_expert: bool) -> list[int]:
    """The labels that an op may have: whole first."""
    labels = list(range(len(form.cuts) + 1))
    labels += [FLAT] if may_update and _may_be_flat(form) else []
    return labels + [OWNER] * (may_update or of_expert)


def _role(form: Form, label: int) -> str:
    if label <= 0:
        return {WHOLE: "whole", FLAT: "flat", OWNER: "owner"}[label]
    cut = form.cuts[label - 1]
    return "partial" if not cut.works and not cut.role else cut.role


def _may_be_flat(form: Form) -> bool:
    """True where tensors have one number of elements, or one element, and nothing is summed."""
    large = {_numel(tensor) for tensor in (*form.inputs, *form.outputs)} - {0, 1}
    sums = (PARTIAL in cut.outputs and PARTIAL not in cut.inputs for cut in form.cuts)
    return len(large) == 1 and not any(sums)


def _numel(factors: tuple[Factor, ...]) -> int:
    return prod(size for _, size in factors)


def _starts(counts: Sequence[int]) -> NDArray[np.int64]:
    return np.cumsum([0, *counts], dtype=np.int64)[:-1]
