"""RecomputationLevel of layers by torchtitan: all of each, or by its selective checkpointing.

``SelectiveAC`` of torchtitan 0.3 keeps what products, attention and choices of experts give, but
for every second product with a weight that has no bias; all else of a layer is recomputed. It
counts products from the beginning of each layer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from loadmaster.model.graph import OpGraph
from loadmaster.model.patterns import instances
from loadmaster.model.recomputed import RecomputedSegments, line_of
from loadmaster.rules.layer_list import LayerList
from loadmaster.strategies.grids.recomputation_levels import whole_layers

#: Ops whose results are kept, by their names in PyTorch's aten, and by how such a name begins.
_KEPT = {
    "mm", "linear", "addmm", "bmm", "_scaled_mm", "convolution", "upsample_bilinear2d", "max",
    "topk",
}  # fmt: skip
_ATTENTION = ("scaled_dot_product_", "flash_attention_", "efficient_attention_", "flex_attention")

#: Of these every second one is recomputed.
_IN_TURN = {"mm", "linear"}

#: Amounts of recomputation: nothing, what SelectiveAC does, layers.
Level = Literal["none", "selective", "full"]
SELECTIVE: Level = "selective"


def selected(graph: OpGraph, layer_list: LayerList) -> str | None:
    """The line of a recipe that recomputes what SelectiveAC does.

    None: no op of the layers is one of PyTorch's, or layers differ.

    Notes
    -----
    O(ops x selectors).

    Examples
    --------
    >>> import loadmaster as lm
    >>> graph = lm.read("example:gpt3-330m")
    >>> "aten.gelu" in selected(graph, LayerList.of(graph))
    True
    """
    layers = whole_layers(layer_list)
    layer = instances(graph.modules, [layers], "recompute")
    again = np.zeros(graph.n_ops, dtype=bool)
    products: Counter[int] = Counter()
    for op in layer_list.cuts.order.tolist():
        of, name = int(layer[op]), _aten(graph.kinds[op])
        if of < 0 or not name:
            continue
        is_kept = name in _KEPT or name.lstrip("_").startswith(_ATTENTION)
        if name in _IN_TURN:
            products[of] += 1
            is_kept = products[of] % 2 == 1
        again[op] = not is_kept
    return line_of(graph, layers, again) if again.any() else None


def level_of(graph: OpGraph, layer_list: LayerList, lines: Iterable[str]) -> Level | None:
    """The level of recomputation that lines of a recipe say; None: none that torchtitan has.

    >>> import loadmaster as lm
    >>> graph = lm.read("example:gpt3-330m")
    >>> layers = LayerList.of(graph)
    >>> [level_of(graph, layers, lines) for lines in ([], ["h.*"], ["h.0"])]
    ['none', 'full', None]
    >>> level_of(graph, layers, [selected(graph, layers)])
    'selective'
    """
    lines = list(lines)
    if not lines:
        return "none"
    meant = _meant(graph, lines)
    if np.array_equal(meant, _meant(graph, [whole_layers(layer_list)])):
        return "full"
    line = selected(graph, layer_list)
    is_selective = line is not None and np.array_equal(meant, _meant(graph, [line]))
    return "selective" if is_selective else None


def _meant(graph: OpGraph, lines: list[str]) -> NDArray[np.bool_]:
    forward = np.array([phase == "f" for phase in graph.phases], dtype=bool)
    is_meant: NDArray[np.bool_] = (RecomputedSegments.of_lines(graph, lines).of >= 0) & forward
    return is_meant & ~graph.placeholder


def _aten(kind: str) -> str:
    """The name of an op of PyTorch; "": it is another's."""
    space, _, name = kind.partition(".")
    return name.partition(".")[0] if space == "aten" else ""
