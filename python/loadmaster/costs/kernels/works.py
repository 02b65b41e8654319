"""Sizes of the ops of a graph, as families of kernels have them.

An op's sizes follow from its output's shape, its FLOPs and the bytes that it accesses, which every
reader of graphs gives. So no reader has to say more. Each distinct op is looked at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from loadmaster.costs.kernels.kinds import family_of, is_backward
from loadmaster.model.graph import OpGraph
from loadmaster.model.shapes import Shape, parse_output

#: Bytes of an element of each dtype that graphs spell; 4 for all others.
_ITEM = {"f64": 8, "f16": 2, "bf16": 2, "f8": 1, "i8": 1, "u8": 1, "b8": 1, "i16": 2, "i64": 8}

#: Time of attention's gradients in times of its forward pass: five products for two, at nine tenths
#: of the speed (FlashAttention 2 and 3: Dao 2023, Shah et al. 2024).
_ATTENTION_BACKWARD = 2.9

#: Time of a convolution of several taps as a product, where none like it was measured, in times of
#: that product.
_WINDOW = 1.25

#: Windows that an element of the input is in, of a filter of one tap at most, and of filters that
#: read all channels at least.
_POINT, _DENSE = 1.5, 0.2

#: Gathers and scatters reach less of the bandwidth than ops on neighbouring elements.
_GATHERS = 1.5


@dataclass(frozen=True)
class KernelWork:
    """An op as kernels know it.

    Attributes
    ----------
    family : str
        Of :data:`~loadmaster.costs.kernels.families.FAMILIES`; empty: none.
    dtype : str
        "f32", "f16" or "f8".
    sizes : tuple of float
        As the family has them.
    factor : float
        Time in times of the family's.
    implied : bool
        True if nobody measured kernels of its kind: the factor is what whole steps imply.
    """

    family: str
    dtype: str
    sizes: tuple[float, ...]
    factor: float = 1.0
    implied: bool = False


@dataclass(frozen=True)
class KernelWorks:
    """The distinct works of a graph.

    Attributes
    ----------
    every : tuple of KernelWork
        Of one run.
    of_op : int32 [n_ops]
        Index into ``every``; -1: the op is free.
    runs, flops, accessed : uint64 [n_works]
        Runs of an op with this work; FLOPs and bytes of one run.
    parts : dict
        Seconds of parts that were asked for, by device type: a cache of
        :mod:`loadmaster.costs.kernels.seconds`.
    """

    every: tuple[KernelWork, ...]
    of_op: NDArray[np.int32]
    runs: NDArray[np.uint64]
    flops: NDArray[np.uint64]
    accessed: NDArray[np.uint64]
    parts: dict[Any, Any] = field(default_factory=dict)


_KNOWN: WeakKeyDictionary[OpGraph, KernelWorks] = WeakKeyDictionary()


def works_of(graph: OpGraph) -> KernelWorks:
    """The works of a graph.

    Notes
    -----
    O(n_ops); the second time O(1).
    """
    if graph not in _KNOWN:
        _KNOWN[graph] = _read(graph)
    return _KNOWN[graph]


def _read(graph: OpGraph) -> KernelWorks:
    flops = graph.flops // graph.runs
    accessed = graph.bytes_accessed // graph.runs
    free = graph.view | graph.placeholder | ((flops == 0) & (accessed == 0))
    at = np.full(graph.n_ops, -1, dtype=np.int32)
    known: dict[Any, int] = {}
    first: list[int] = []
    every: list[KernelWork] = []
    args = graph.args
    for op in np.flatnonzero(~free).tolist():
        kind, output = graph.kinds[op], graph.outputs[op]
        causal = args is not None and family_of(kind) == "attention" and _is_causal(args[op])
        key = (kind, output, int(flops[op]), int(accessed[op]), causal)
        index = known.get((key, int(graph.runs[op])))
        if index is None:
            index = known[key, int(graph.runs[op])] = len(every)
            every.append(work_of(*key))
            first.append(op)
        at[op] = index
    some = np.array(first, dtype=np.int64)
    return KernelWorks(tuple(every), at, graph.runs[some], flops[some], accessed[some])


def _is_causal(call: Any) -> bool:
    """True if the arguments of a call of attention say that it is causal."""
    if not isinstance(call, list):
        return False
    keywords = call[1] if len(call) > 1 and isinstance(call[1], Mapping) else {}
    flag = keywords.get("is_causal")
    positional = call[0] if call and isinstance(call[0], list) else []
    return bool(flag) or any(value is True for value in positional[4:7])


def work_of(kind: str, output: str, flops: int, accessed: int, causal: bool = False) -> KernelWork:
    """The work of an op of a kind.

    >>> accessed = 2 * (64 * 32 + 32 * 128 + 64 * 128)
    >>> product = work_of("aten.mm.default", "bf16[64,128]", 2 * 64 * 128 * 32, accessed)
    >>> product.family, product.dtype, product.sizes
    ('products', 'f16', (1.0, 64.0, 128.0, 32.0))
    """
    outputs = parse_output(output)
    dtype, shape = next((one for one in outputs if one[1]), ("f32", None))
    item = _ITEM.get(dtype, 4)
    name = {1: "f8", 2: "f16"}.get(item, "f32")
    family = family_of(kind)
    if flops and shape and family == "products":
        return KernelWork(*_product(name, shape, flops / 2, accessed / item))
    if flops and shape and family == "convolutions":
        return _convolution(kind, name, outputs, flops / 2, accessed / item)
    if flops and shape and len(shape) == 4 and family == "attention":
        return _attention(kind, name, shape, (flops, accessed / item), causal)
    if flops:
        return KernelWork("", name, ())
    touched = float(accessed)
    if family == "batch norm":
        passes = _batch_norm(kind, outputs)
        return KernelWork("pointwise", name, (touched, 1.0), passes, passes > 1)
    if family in ("norm", "softmax") and shape:
        return KernelWork(family, name, (touched, float(shape[-1])), 1.0, is_backward(kind))
    return KernelWork("pointwise", name, (touched, 1.0), _GATHERS if family == "gathers" else 1.0)


def _product(
    dtype: str, shape: tuple[int, ...], pairs: float, elements: float
) -> tuple[str, str, tuple[float, float, float, float]]:
    """The sizes of a product: its output's dimensions, cut into batch, rows and columns so that
    factors and result have as many elements as the op accesses.
    """
    count, last = math.prod(shape), len(shape) - 1
    k = max(pairs / count, 1.0)
    cuts = [(i, j) for i in range(last + 1) for j in range(i, last + 2)]
    best, sizes = math.inf, (1.0, 1.0, float(count), k)
    for i, j in sorted(cuts, key=lambda cut: cut != (0, last)):
        b, m, n = math.prod(shape[:i]), math.prod(shape[i:j]), math.prod(shape[j:])
        apart = abs(math.log((b * (m * k + k * n) + count) / max(elements, 1.0)))
        if apart < best - 1e-3:
            best, sizes = apart, (float(b), float(m), float(n), k)
    family = "batched products" if sizes[0] > 1 and dtype == "f32" else "products"
    return family, dtype, sizes


def _convolution(
    kind: str, dtype: str, outputs: Sequence[Shape], pairs: float, elements: float
) -> KernelWork:
    """A convolution: a dense one of 3 x 3 with stride 1 as such, any other as products.

    Gradients of inputs and of weights take as many FLOPs each as the forward pass.
    """
    backward = is_backward(kind)
    image, weight = (_image(outputs, at) for at in range(2))
    parts = float((image is not None) + (weight is not None)) or 1.0 if backward else 1.0
    pairs /= parts
    if backward and weight:
        channels, window = weight[0], float(math.prod(weight[1:]))
        pixels = max(pairs / (channels * window), 1.0)
        read = float(math.prod(image)) if image else elements - pixels * channels
        groups = image[1] // weight[1] if image else 1
    else:
        shape = image or (1,)
        channels, window = _channels(shape), max(pairs / math.prod(shape), 1.0)
        pixels = float(math.prod(shape)) / channels
        read = elements - channels * (pixels + window)
        groups = 0
    read = max(read, 1.0)
    taps = window * pixels / read
    if not groups:
        groups = 1 if taps > _DENSE else min(math.ceil(9 / taps), channels)
    if dtype == "f32" and groups == 1 and image and len(image) == 4 and 8.0 < taps < 10.0:
        sizes = (float(image[0]), window / 9, float(channels), math.sqrt(pixels / image[0]))
        return KernelWork("convolutions", dtype, sizes, parts, backward)
    ways = (float(groups), pixels, max(channels / groups, 1.0), window, read)
    implied = backward or groups > 1 or dtype != "f32" or taps > _POINT
    return KernelWork("windows", dtype, ways, parts * (_WINDOW if taps > _POINT else 1.0), implied)


def _batch_norm(kind: str, outputs: Sequence[Shape]) -> float:
    """Bytes that norms over a batch move, in times of those of their tensors: statistics are taken
    in a pass of their own, in training, forward and back.
    """
    if is_backward(kind):
        return 5 / 3
    trains = len(outputs) > 1 and bool(outputs[1][1]) and math.prod(outputs[1][1] or ()) > 0
    return 3 / 2 if trains else 1.0


def _image(outputs: Sequence[Shape], at: int) -> tuple[int, ...] | None:
    """The shape of an output with channels and places; None: it is none."""
    shape = outputs[at][1] if at < len(outputs) else None
    return shape if shape and len(shape) > 2 else None


def _channels(shape: tuple[int, ...]) -> int:
    """Channels of images: the second dimension, the last where images are square and in front."""
    last = len(shape) == 4 and shape[1] == shape[2] != shape[3]
    return shape[-1] if last or len(shape) < 2 else shape[1]


def _attention(
    kind: str, dtype: str, shape: tuple[int, ...], work: tuple[float, float], causal: bool
) -> KernelWork:
    """Fused attention over [batch, heads, queries, head_dim]; FLOPs count every pair."""
    batch, heads, queries, dim = (float(size) for size in shape)
    flops, elements = work
    backward = is_backward(kind)
    flops *= 0.4 if backward else 1.0
    keys = max(round(flops / (4 * batch * heads * queries * dim)), 1)
    tensors = (elements / (2.0 if backward else 1.0) - 2 * batch * heads * queries * dim) / 2
    shared = max(tensors / (batch * keys * dim), 1.0)
    kv_heads = min((h for h in _divisors(int(heads))), key=lambda h: abs(math.log(h / shared)))
    family = "generation" if queries == 1 else "context" if causal else "encoder"
    sizes = (batch, heads, float(kv_heads), queries, float(keys), dim, 0.0)
    if dtype == "f32":
        return KernelWork("", dtype, ())
    return KernelWork(family, dtype, sizes, _ATTENTION_BACKWARD if backward else 1.0, backward)


def _divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]
