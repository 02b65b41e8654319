"""What torchtitan's selective checkpointing keeps of a layer, by its own list of ops.

Needs torch for the list: without it that test is skipped.
"""

from __future__ import annotations

import numpy as np
import pytest

import loadmaster as lm
from loadmaster.model.recomputed import RecomputedSegments
from loadmaster.rules.layer_list import LayerList
from loadmaster.systems.torchtitan.checkpointing import level_of, selected


def layered(kinds, layers=2):
    """Layers of ops one after another, and a backward pass that reads all of them."""
    names = [(f"{kind}{i}", f"l.{i // len(kinds)}", kind, "f") for i, kind in
             enumerate(kinds * layers)]  # fmt: skip
    n = len(names)
    names += [(f"b{i}", names[i][1], "aten.add", "b") for i in reversed(range(n))]
    edges = [(i, i + 1) for i in range(2 * n - 1)] + [(i, 2 * n - 1 - i) for i in range(n - 1)]
    src, dst = zip(*edges, strict=True)
    name, module, kind, phase = (list(column) for column in zip(*names, strict=True))
    return lm.OpGraph(
        {"name": name, "module": module, "kind": kind, "phase": phase},
        {"src": src, "dst": dst, "bytes": [8] * len(src)},
    )


def test_every_second_product_without_a_bias_is_recomputed():
    kinds = ["aten.mm.default", "aten.silu", "aten.mm", "aten.addmm", "aten.mm", "aten.bmm"]
    graph = layered(kinds)
    line = selected(graph, LayerList.of(graph))
    again = RecomputedSegments.of_lines(graph, [line]).of >= 0
    assert again[: 2 * len(kinds)].tolist() == [False, True, True, False, False, False] * 2


def test_layers_of_other_ops_have_no_selection():
    graph = layered(["MatMul", "Relu"])
    layers = LayerList.of(graph)
    assert selected(graph, layers) is None
    assert level_of(graph, layers, ["l.* | l.* Relu"]) is None


def test_levels_are_known_by_the_ops_that_they_mean():
    graph = layered(["aten.mm", "aten.silu"])
    layers = LayerList.of(graph)
    said = {"none": [], "full": ["l.0", "l.1"], "selective": ["l.* | l.* aten.silu"]}
    assert {level: level_of(graph, layers, lines) for level, lines in said.items()} == {
        level: level for level in said
    }
    assert level_of(graph, layers, ["l.0"]) is None


def test_what_is_kept_is_in_the_list_of_torchtitan():
    pytest.importorskip("torchtitan", reason="needs torchtitan")
    pytest.importorskip("tyro", reason="needs tyro")
    pytest.importorskip("spmd_types", reason="needs spmd_types")
    from torchtitan.distributed.activation_checkpoint import SelectiveAC

    saved = sorted(str(op) for op in SelectiveAC(SelectiveAC.Config()).get_save_ops())
    saved = [op for op in saved if op.startswith("aten.") and "backward" not in op]
    graph = layered([*saved, "aten.silu"], layers=2)
    again = RecomputedSegments.of_lines(graph, [selected(graph, LayerList.of(graph))]).of >= 0
    anew = {graph.kinds[op] for op in np.flatnonzero(again).tolist()}
    assert "aten.silu" in anew
    assert anew <= {"aten.silu", "aten.mm.default", "aten.linear.default"}
