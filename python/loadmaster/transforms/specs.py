"""Specs of tensors and labels of ops on one axis of a mesh, and the collectives between specs.

A spec says how a tensor lies on an axis, as a DTensor placement does: whole on every device, in
shards, in parts of a sum, or as :mod:`loadmaster.dimensions.form` says else. The axes of a mesh are
independent: a tensor that is sharded on two axes has shards of shards. If both axes shard the same
dimension, the inner axis cuts each shard of the outer one.

A *label* says how the devices of an axis share an op. 0: each device runs all of it. i > 0: they
cut it as cut i - 1 of its form says. FLAT: each device updates an equal part of the storage of a
parameter. OWNER: one device runs all of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

import loadmaster.fast as fast
from loadmaster.dimensions.form import (
    ANY,
    FLAT,
    OWNER,
    PARTIAL,
    PICKED,
    REPLICATE,
    Cut,
    Factor,
    Form,
)

#: Values of :func:`conversion` beside indices into :data:`loadmaster.fast.COLLECTIVES`.
FREE, FORBIDDEN = -1, -2

#: Kinds of collectives by what they turn into what. One factor into another is an all-to-all.
_SHARD = 0
_KINDS = {
    "all_gather": [(_SHARD, REPLICATE), (FLAT, REPLICATE), (OWNER, REPLICATE), (_SHARD, PICKED)],
    "all_reduce": [(have, want) for have in (PARTIAL, PICKED) for want in (REPLICATE, PICKED)],
    "reduce_scatter": [
        *[(have, want) for have in (PARTIAL, PICKED) for want in (_SHARD, FLAT)],
        (PARTIAL, OWNER),
    ],
    "all_to_all": [
        *[(_SHARD, _SHARD), (_SHARD, FLAT), (FLAT, _SHARD)],
        *[(PICKED, OWNER), (OWNER, PICKED)],
    ],
}
_FREE = [(REPLICATE, spec) for spec in (_SHARD, FLAT, OWNER, PARTIAL, PICKED)] + [(PICKED, PARTIAL)]


def _table() -> NDArray[np.int8]:
    """The conversion by what there is and what is wanted; factors are one, negative words count
    from the end.
    """
    table = np.full((7, 7), FORBIDDEN, dtype=np.int8)
    for kind, pairs in _KINDS.items():
        for have, want in pairs:
            table[have, want] = fast.COLLECTIVES.index(kind)
    for have, want in _FREE:
        table[have, want] = FREE
    for spec in (REPLICATE, PARTIAL, FLAT, OWNER):
        table[spec, spec] = FREE
    table[:, ANY] = FREE
    return table


_CONVERSION = _table()


def conversion(have: ArrayLike, want: ArrayLike) -> NDArray[np.int8]:
    """The collectives that turn specs of tensors into others.

    A collective of a tensor of n bytes on its axis is one of n bytes, whatever its kind. Free is
    what needs no other device: a part of what is whole, or a whole tensor as a sum, which one
    device has while the others have zeros. Rows that an index picks go from the device that has
    them to an owner, and back; for all others they are summed up, with zeros elsewhere.

    Parameters
    ----------
    have, want : int arrays of one shape, or of shapes that broadcast

    Returns
    -------
    int8 array
        Indices into :data:`loadmaster.fast.COLLECTIVES`; :data:`FREE`; :data:`FORBIDDEN`.

    Examples
    --------
    >>> import loadmaster.fast as fast
    >>> [fast.COLLECTIVES[kind] for kind in conversion([PARTIAL, PARTIAL, 2], [REPLICATE, 0, 1])]
    ['all_reduce', 'reduce_scatter', 'all_to_all']
    >>> int(conversion(REPLICATE, 3)) == FREE, int(conversion(FLAT, OWNER)) == FORBIDDEN
    (True, True)
    """
    before, after = np.broadcast_arrays(np.asarray(have), np.asarray(want))
    kinds = _CONVERSION[np.minimum(before, _SHARD), np.minimum(after, _SHARD)]
    return np.where((before == after) & (before >= 0), np.int8(FREE), kinds)


def part_weights(size: int, shares: Sequence[float]) -> NDArray[np.int64]:
    """The part of a factor that each device has: whole numbers that add up to its size.

    Proportional to ``shares``. What is left goes one by one to those that miss most of their share,
    the first of equal ones: equal shares give
    :func:`~loadmaster.dimensions.form.part_sizes`.

    >>> part_weights(10, [1, 1, 1, 1]).tolist(), part_weights(10, [1, 0.5]).tolist()
    ([3, 3, 2, 2], [7, 3])
    """
    exact = np.array(shares, dtype=np.float64) / sum(shares) * size
    least = np.floor(exact + 1e-9).astype(np.int64)
    missed = np.round(exact - least, 9)
    least[np.argsort(-missed, kind="stable")[: size - int(least.sum())]] += 1
    return least


def fraction(spec: int, factors: Sequence[Factor], shares: Sequence[float]) -> NDArray[np.float64]:
    """Part of a tensor's bytes on each device of an axis, float64 [k].

    FLAT parts are equal. Of OWNER each device has as much on average, another one per parameter or
    expert; of PICKED too.

    >>> fraction(0, [(0, 10), (1, 3)], [1, 1]).tolist(), fraction(PARTIAL, [], [1, 1]).tolist()
    ([0.5, 0.5], [1.0, 1.0])
    """
    if spec >= 0:
        size = factors[spec][1]
        return part_weights(size, shares) / size
    return np.full(len(shares), 1.0 / len(shares) if spec in (FLAT, OWNER, PICKED) else 1.0)


def specs_of(form: Form, label: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The specs that an op under a label needs of its arguments, and those that its outputs have.

    What has a single element cannot be FLAT, and is whole.
    """
    if label > 0:
        cut = form.cuts[label - 1]
        return cut.inputs, cut.outputs
    # No cut looks at the values of such an argument, so no other label does either.
    unread = [
        not form.reads_values
        or (bool(form.cuts) and all(cut.inputs[i] == ANY for cut in form.cuts))
        for i in range(len(form.inputs))
    ]
    if label == 0:
        whole = tuple(ANY if any_value else REPLICATE for any_value in unread)
        return whole, (REPLICATE,) * len(form.outputs)
    needs = tuple(
        ANY if any_value else _state_spec(label, factors)
        for any_value, factors in zip(unread, form.inputs, strict=True)
    )
    return needs, tuple(_state_spec(label, factors) for factors in form.outputs)


def _state_spec(label: int, factors: Sequence[Factor]) -> int:
    return REPLICATE if label == FLAT and all(size == 1 for _, size in factors) else label


def may_be_flat(form: Form) -> bool:
    """True for an op that can work on equal parts of storage.

    Its tensors have one number of elements, or a single element, and nothing is summed: not by the
    devices, and not by parts that exchange something, as those of a norm do.
    """
    counts = {prod(size for _, size in factors) for factors in (*form.inputs, *form.outputs)}
    sums = (
        cut.exchanged or (PARTIAL in cut.outputs and PARTIAL not in cut.inputs) for cut in form.cuts
    )
    return len(counts - {0, 1}) <= 1 and not any(sums)


def work_share(form: Form, label: int, shares: Sequence[float]) -> NDArray[np.float64]:
    """Part of an op's FLOPs that each device of an axis does, float64 [k].

    It is 1 on each where the op is whole. Of OWNER each does as much on average.
    """
    if label > 0:
        cut = form.cuts[label - 1]
        if not cut.works or not cut.size:
            return np.ones(len(shares))
        return part_weights(cut.size, shares) / cut.size
    _, outputs = specs_of(form, label)
    is_shared = any(spec in (FLAT, OWNER) for spec in outputs) or (label < 0 and not outputs)
    return np.full(len(shares), 1.0 / len(shares) if is_shared else 1.0)


def halo(cut: Cut, argument: int, factors: Sequence[Factor]) -> tuple[float, float]:
    """Parts of an argument's bytes that a device needs of its neighbours, before and after.

    >>> cut = Cut("height", "spatial", 8, (1,), (1,), halos=((1, 2),))
    >>> halo(cut, 0, [(0, 4), (1, 8)])
    (0.125, 0.25)
    """
    spec = cut.inputs[argument]
    if argument >= len(cut.halos) or spec < 0:
        return 0.0, 0.0
    before, after = cut.halos[argument]
    size = factors[spec][1]
    return before / size, after / size


def sent_on(cut: Cut, parts: Sequence[int] | NDArray[np.int64]) -> dict[int, NDArray[np.float64]]:
    """Shares of an argument that parts of so many positions send to others, [n_parts], by how many
    parts further these are.

    >>> cut = Cut("ring", "", 4, (0,), (0,), sends=((0, 1), (1, 2), (2, 3), (3, 0)))
    >>> {step: share.tolist() for step, share in sent_on(cut, [2, 2]).items()}
    {1: [0.25, 0.0], -1: [0.0, 0.25]}
    """
    part = np.repeat(np.arange(len(parts)), np.asarray(parts, dtype=np.int64))
    sent: dict[int, NDArray[np.float64]] = {}
    for source, target in cut.sends:
        if step := int(part[target] - part[source]):
            sent.setdefault(step, np.zeros(len(parts)))[part[source]] += 1 / len(part)
    return sent


@dataclass(frozen=True)
class Amount:
    """The amounts of an op on one axis, all other axes of the mesh taken into account.

    Attributes
    ----------
    flops, accessed, workspace : float
        FLOPs; bytes that it accesses, and that it needs while it runs.
    inputs, outputs : sequence of float
        Bytes of each argument and of each output.
    held : float
        Bytes of weights that are no argument: every part reads them all.
    """

    flops: float
    accessed: float
    workspace: float
    inputs: Sequence[float]
    outputs: Sequence[float]
    held: float = 0.0


@dataclass(frozen=True)
class Work:
    """The part of an op that each of the ``k`` devices of an axis does, float64 columns.

    Attributes
    ----------
    share, flops, accessed, workspace : [k]
    outputs : [n_outputs, k]
        Bytes of each output.
    halos : [n_inputs, k]
        Bytes of each argument that come from neighbours.
    """

    share: NDArray[np.float64]
    flops: NDArray[np.float64]
    accessed: NDArray[np.float64]
    workspace: NDArray[np.float64]
    outputs: NDArray[np.float64]
    halos: NDArray[np.float64]


def work(form: Form, label: int, shares: Sequence[float], amount: Amount) -> Work:
    """The parts of an op of some form that the devices of an axis do under a label.

    Parameters
    ----------
    form : Form
    label : int
    shares : sequence of float [k]
        What each device of the axis gets of what can be shared; equal ones: ones.
    amount : Amount
        The whole op.

    Examples
    --------
    >>> column = Cut("column", "feature", 6, (REPLICATE, 1), (1,))
    >>> product = Form((column,), (((0, 4), (1, 8)), ((0, 8), (1, 6))), (((0, 4), (1, 6)),))
    >>> of = Amount(2 * 4 * 8 * 6, 4 * (32 + 48 + 24), 0, [128, 192], [96])
    >>> half = work(product, 1, [1, 1], of)
    >>> half.flops.tolist(), half.accessed.tolist(), half.outputs.tolist()
    ([192.0, 192.0], [272.0, 272.0], [[48.0, 48.0]])
    """
    k = len(shares)
    needs, gives = specs_of(form, label)
    read, halos = np.full(k, amount.held), np.zeros((len(needs), k))
    all_read = amount.held
    for i, (spec, bytes_, factors) in enumerate(
        zip(needs, amount.inputs, form.inputs, strict=True)
    ):
        if spec == ANY:
            continue
        all_read += bytes_
        read += bytes_ * fraction(spec, factors, shares)
        if label > 0:
            before, after = halo(form.cuts[label - 1], i, factors)
            halos[i, 1:] += bytes_ * before
            halos[i, :-1] += bytes_ * after
    written = [
        bytes_ * fraction(spec, factors, shares)
        for spec, bytes_, factors in zip(gives, amount.outputs, form.outputs, strict=True)
    ]
    outputs = np.array(written).reshape(len(gives), k)
    share = work_share(form, label, shares)
    scale = accessed_share(
        amount.accessed, (all_read, sum(amount.outputs)), (read, outputs.sum(axis=0)), share
    )
    return Work(
        share,
        amount.flops * share,
        amount.accessed * scale + halos.sum(axis=0),
        amount.workspace * share,
        outputs,
        halos,
    )


def accessed_share(
    accessed: ArrayLike, whole: tuple[Any, Any], part: tuple[Any, Any], share: ArrayLike
) -> NDArray[np.float64]:
    """Part of the bytes that an op accesses which a part of it accesses; arrays broadcast.

    It is what the part's tensors are of the op's. An op that accesses less than its tensors are,
    such as a look-up, reads a few of its inputs: then it goes by what it writes. If it writes
    nothing, by its share of the work.

    Parameters
    ----------
    accessed : bytes that the op accesses
    whole, part : pairs of bytes read and bytes written, of the op and of its part
    share : part of the op's work
    """
    read, written = (np.asarray(bytes_, dtype=np.float64) for bytes_ in whole)
    part_read, part_written = part
    total = read + written
    is_all = (np.asarray(accessed) >= total) & (total > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        by_all = (part_read + part_written) / total
        by_output = np.where(written > 0, part_written / written, share)
    return np.where(is_all, by_all, by_output)
