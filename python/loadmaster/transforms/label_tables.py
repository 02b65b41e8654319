"""The meaning of labels of forms, looked up for many ops at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadmaster.dimensions.form import FLAT, OWNER, Factor, Form
from loadmaster.transforms.mesh_ways import ALL, EVEN, FIRST_SIZE
from loadmaster.transforms.specs import specs_of

#: An index of labels: FLAT and OWNER come before what is whole.
_BEFORE = 2


def _column(label: NDArray[Any]) -> NDArray[np.int64]:
    """The column of each label."""
    special = np.where(label == FLAT, 0, 1)
    return np.where(label >= 0, label + _BEFORE, special).astype(np.int64)


@dataclass(frozen=True)
class LabelTables:
    """Labels of forms. The last form is of ops without tensors.

    Attributes
    ----------
    n_cuts, n_inputs, n_outputs : int64 [n_forms + 1]
    sizes : tuple of int
        Distinct sizes of what is cut.
    """

    n_cuts: NDArray[np.int64]
    n_outputs: NDArray[np.int64]
    sizes: tuple[int, ...]
    _needed: NDArray[np.int32]
    _first_input: NDArray[np.int64]
    _made: NDArray[np.int32]
    _first_output: NDArray[np.int64]
    _work: NDArray[np.int64]
    _exchanged: NDArray[np.int64]
    _is_batch: NDArray[np.bool_]
    _experts: NDArray[np.int64]
    _size_class: NDArray[np.int64]

    @classmethod
    def of(cls, forms: Sequence[Form]) -> LabelTables:
        """The labels of forms. O(sum over forms of tensors times cuts)."""
        all_of_them = (*forms, Form((), (), ()))
        width = max(len(form.cuts) for form in all_of_them) + 1 + _BEFORE
        n_inputs = [len(form.inputs) for form in all_of_them]
        n_outputs = [len(form.outputs) for form in all_of_them]
        outputs = [factors for form in all_of_them for factors in form.outputs]
        sizes = {size for factors in outputs for _, size in factors}
        sizes |= {cut.size for form in all_of_them for cut in form.cuts if cut.size}
        number = {size: FIRST_SIZE + i for i, size in enumerate(sorted(sizes))}
        # One row at least: that of arguments of ops whose form has none.
        needed = np.zeros((max(sum(n_inputs), 1), width), dtype=np.int32)
        given_out = np.zeros((sum(n_outputs), width), dtype=np.int32)
        work = np.full((len(all_of_them), width), ALL, dtype=np.int64)
        exchanged = np.zeros((len(all_of_them), width), dtype=np.int64)
        is_batch = np.zeros((len(all_of_them), width), dtype=bool)
        experts = np.zeros((len(all_of_them), width), dtype=np.int64)
        first_input, first_output = (
            np.concatenate([[0], np.cumsum(counts)]) for counts in (n_inputs, n_outputs)
        )
        for f, form in enumerate(all_of_them):
            for label in (FLAT, OWNER, *range(len(form.cuts) + 1)):
                at = label + _BEFORE if label >= 0 else int(label == OWNER)
                needs, gives = specs_of(form, label)
                needed[first_input[f] : first_input[f + 1], at] = needs
                given_out[first_output[f] : first_output[f + 1], at] = gives
                if label == FLAT and (FLAT in gives or not gives):
                    work[f, at] = EVEN
                if label > 0:
                    cut = form.cuts[label - 1]
                    work[f, at] = number[cut.size] if cut.works and cut.size else ALL
                    exchanged[f, at] = cut.exchanged
                    is_batch[f, at] = cut.role == "batch"
                    experts[f, at] = cut.size if cut.shares_experts else 0
        return cls(
            np.array([len(form.cuts) for form in all_of_them]),
            np.array(n_outputs),
            tuple(sorted(sizes)),
            needed,
            first_input,
            given_out,
            first_output,
            work,
            exchanged,
            is_batch,
            experts,
            _classes(outputs, number),
        )

    def made(
        self, form: NDArray[Any], which: NDArray[Any], label: NDArray[Any]
    ) -> NDArray[np.int32]:
        """The spec of an output of an op under a label; arrays broadcast."""
        specs: NDArray[np.int32] = self._made[self._first_output[form] + which, _column(label)]
        return specs

    def needed(
        self, form: NDArray[Any], which: NDArray[Any], label: NDArray[Any]
    ) -> NDArray[np.int32]:
        """The spec that an op under a label needs of an argument."""
        n = len(self._needed)
        # An op may have more arguments than its form, if it has none.
        at = np.minimum(self._first_input[form] + which, n - 1)
        specs: NDArray[np.int32] = self._needed[at, _column(label)]
        return specs

    def work_class(self, form: NDArray[Any], label: NDArray[Any]) -> NDArray[np.int64]:
        """The way in which an op under a label is shared: a class of
        :class:`.mesh_ways.MeshWays`.
        """
        classes: NDArray[np.int64] = self._work[form, _column(label)]
        return classes

    def exchanged(self, form: NDArray[Any], label: NDArray[Any]) -> NDArray[np.int64]:
        """Bytes that parts of an op under a label all-reduce."""
        bytes_: NDArray[np.int64] = self._exchanged[form, _column(label)]
        return bytes_

    def is_batch(self, form: NDArray[Any], label: NDArray[Any]) -> NDArray[np.bool_]:
        """True for an op that a label cuts by the batch."""
        by_batch: NDArray[np.bool_] = self._is_batch[form, _column(label)]
        return by_batch

    def experts(self, form: NDArray[Any], label: NDArray[Any]) -> NDArray[np.int64]:
        """The number of experts that an op under a label shares out; 0: it is not cut
        by experts.
        """
        counts: NDArray[np.int64] = self._experts[form, _column(label)]
        return counts

    def size_class(
        self, form: NDArray[Any], which: NDArray[Any], factor: NDArray[Any]
    ) -> NDArray[np.int64]:
        """The way in which an output is shared if a factor of it is cut."""
        width = self._size_class.shape[1]
        classes: NDArray[np.int64] = self._size_class[
            self._first_output[form] + which, np.minimum(factor, width - 1)
        ]
        return classes


def _classes(outputs: Sequence[Sequence[Factor]], number: dict[int, int]) -> NDArray[np.int64]:
    """Per output and factor, the class of its size."""
    width = max(map(len, outputs), default=0) + 1
    classes = np.full((len(outputs), width), ALL, dtype=np.int64)
    for at, factors in enumerate(outputs):
        for i, (_, size) in enumerate(factors):
            classes[at, i] = number[size]
    return classes
