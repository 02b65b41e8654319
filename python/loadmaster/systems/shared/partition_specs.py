"""Meaning of specs that say the axes of a mesh that cut each axis of an array, evenly: JAX's
``PartitionSpec``, the placements of PyTorch's DTensor.

An array's axis is cut into runs of equal length. So where an axis is a product of factors, such as
3 x heads x width of one fused weight, only the first factor can be cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from loadmaster.dimensions.form import FLAT, OWNER, Factor, Form
from loadmaster.model.shapes import parse_output
from loadmaster.strategies.sharding.joint import firsts
from loadmaster.strategies.sharding.structure import Structure
from loadmaster.strategies.sharding.uniform import Mask
from loadmaster.transforms.specs import specs_of


def axis_of(factors: Sequence[Factor], spec: int) -> int | None:
    """The axis of an array that a spec cuts into runs; None: it cuts every run of several.

    >>> axis_of([(0, 8), (1, 3), (1, 4)], 0), axis_of([(0, 8), (1, 3), (1, 4)], 2)
    (0, None)
    """
    axis = factors[spec][0]
    return None if any(a == axis and size > 1 for a, size in factors[:spec]) else axis


def flat_axis(sizes: Sequence[int], k: int, taken: Mapping[int, int]) -> int | None:
    """The axis by which an array is cut whose storage is to be shared out; None: none can be.

    The first that ``k`` parts divide, of those that nothing cuts yet before those that
    ``taken`` says are in so many parts.

    >>> flat_axis([3, 8], 4, {}), flat_axis([8, 8], 4, {0: 2}), flat_axis([8, 3], 4, {0: 2})
    (1, 1, 0)
    """
    fits = [axis for axis, size in enumerate(sizes) if size % (k * taken.get(axis, 1)) == 0]
    return min(fits, key=lambda axis: (axis in taken, axis), default=None)


def is_said(form: Form, label: int, k: int) -> bool:
    """True if a spec can say how all arrays of an op lie on an axis of ``k`` devices.

    What an update keeps flat is another matter (:func:`may_be_flat`).
    """
    if label in (0, FLAT):
        return True
    if label == OWNER or form.cuts[label - 1].size % k:
        return False
    return all(
        spec < 0 or (axis_of(factors, spec) is not None and factors[spec][1] % k == 0)
        for specs, tensors in zip(specs_of(form, label), (form.inputs, form.outputs), strict=True)
        for spec, factors in zip(specs, tensors, strict=True)
    )


def sayable(structure: Structure, k: int, devices: int) -> Mask:
    """Mask of the labels that specs can say on an axis of ``k`` devices, of a mesh of so many: bool
    [n_nodes, most labels].
    """
    ways, dimensions = structure.ways, structure.dimensions
    rows = np.zeros(ways.label.shape, dtype=bool)
    for row, node in enumerate(firsts(structure.way).tolist()):
        form = dimensions.forms[dimensions.form_of[structure.op[node]]]
        for column in range(int(ways.n_labels[row])):
            rows[row, column] = is_said(form, int(ways.label[row, column]), k)
    is_flat = (ways.label == FLAT)[structure.way]
    mask: Mask = rows[structure.way] & (~is_flat | may_be_flat(structure, devices)[:, None])
    return mask


def may_be_flat(structure: Structure, devices: int) -> NDArray[np.bool_]:
    """Mask of the nodes of updates whose parameters can be shared out on any axis of a mesh,
    whatever cuts them on the others: bool [n_nodes].
    """
    updates, graph = structure.updates, structure.graph
    of_set = updates.of_op.copy()
    of_set[updates.parameter] = updates.of_parameter
    has = np.ones(int(of_set.max(initial=0)) + 1, dtype=bool)
    for op, number in zip(updates.parameter.tolist(), updates.of_parameter.tolist(), strict=True):
        sizes = parse_output(graph.outputs[op])[0][1] or ()
        has[number] &= flat_axis(sizes, devices, {}) is not None
    is_flat = of_set[structure.op]
    return np.where(is_flat >= 0, has[np.maximum(is_flat, 0)], True)
