"""Whether tokens attend to those behind them, as far as a graph says."""

from __future__ import annotations

import pytest

import loadmaster as lm
from loadmaster.rules.attention import attention, is_two_way

CPU = "aten._scaled_dot_product_flash_attention_for_cpu.default"
QKV = [{"op": 0}, {"op": 0}, {"op": 0}]


def fused(kind, *arguments, **keywords):
    """One op of fused attention, called so."""
    calls = [None, [[*QKV, *arguments], keywords]]
    return lm.OpGraph(
        {
            "name": ["x", "seen"],
            "kind": ["input", kind],
            "output": ["f32[2,4,8,16]"] * 2,
            "args": calls,
        },
        {"src": [0], "dst": [1], "bytes": [1]},
    )


@pytest.mark.parametrize(
    ("kind", "arguments", "keywords", "expected"),
    [
        (CPU, [], {}, True),
        (CPU, [0.0, False], {}, True),
        (CPU, [0.0, True], {}, False),
        (CPU, [0.0, False], {"attn_mask": {"op": 0}}, False),
        ("aten.scaled_dot_product_attention.default", [None, 0.0, False], {}, True),
        ("aten.scaled_dot_product_attention.default", [None, 0.0, True], {}, False),
        ("aten.scaled_dot_product_attention.default", [], {"is_causal": True}, False),
        ("aten.scaled_dot_product_attention.default", [{"op": 0}], {}, False),
        ("aten._scaled_dot_product_flash_attention.default", [0.0, True], {}, False),
        (
            "aten._scaled_dot_product_efficient_attention.default",
            [None, True, 0.0, True],
            {},
            False,
        ),
        (
            "aten._scaled_dot_product_efficient_attention.default",
            [None, True, 0.0, False],
            {},
            True,
        ),
        ("aten._scaled_dot_product_cudnn_attention.default", [None, True, 0.0, True], {}, False),
        ("aten._scaled_dot_product_attention_math.default", [None, 0.0, True], {}, False),
        ("someone.attention", [], {}, False),
    ],
)
def test_a_fused_kernel_is_told(kind, arguments, keywords, expected):
    graph = fused(kind, *arguments, **keywords)
    assert attention(graph, range(2)) == [1]
    assert is_two_way(graph, range(2)) == expected


@pytest.mark.parametrize("kind", [CPU, "aten._scaled_dot_product_flash_attention.default"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("queries", "keys"), [(8, 8), (1, 8), (8, 1), (1, 1), (3, 8), (8, 3), (128, 129)]
)
def test_queries_beside_a_cache_do_not_tell_the_order(kind, causal, queries, keys):
    """A step of decoding is told no order: its one token may read all that are in the cache."""
    graph = lm.OpGraph(
        {
            "name": ["q", "k", "seen"],
            "kind": ["input", "input", kind],
            "output": [f"f32[2,4,{queries},16]", f"f32[2,4,{keys},16]", f"f32[2,4,{queries},16]"],
            "args": [None, None, [[{"op": 0}, {"op": 1}, {"op": 1}, 0.0, causal]]],
        },
        {"src": [0, 1], "dst": [2, 2], "bytes": [1, 1]},
    )
    assert is_two_way(graph, range(3)) == (queries == keys > 1 and not causal)


def test_what_nobody_says_is_not_known():
    rows = fused(CPU).to_document()
    del rows["ops"]["args"]
    assert not is_two_way(lm.OpGraph.from_document(rows), range(2))
    assert not is_two_way(fused("aten.relu.default"), range(2))


def written_out(softmax, mask, via="aten.add.Tensor", scores="f32[2,4,8,8]"):
    """Attention as a product and a softmax, with a mask between them, or none."""
    rows = [("q", "input", "f32[2,4,8,16]"), ("k", "input", "f32[2,4,16,8]"),
            ("scores", "aten.bmm.default", scores)]  # fmt: skip
    edges = [(0, 2), (1, 2)]
    if mask is not None:
        rows += [("mask", "buffer", mask), ("masked", via, scores)]
        edges += [(2, 4), (3, 4)]
    rows.append(("softmax", softmax, scores))
    edges.append((len(rows) - 2, len(rows) - 1))
    names, kinds, outputs = zip(*rows, strict=True)
    src, dst = zip(*edges, strict=True)
    return lm.OpGraph(
        {"name": names, "kind": kinds, "output": outputs},
        {"src": src, "dst": dst, "bytes": [1] * len(src)},
    )


@pytest.mark.parametrize("softmax", ["aten._softmax.default", "Softmax"])
@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (None, True),
        ("f32[8,8]", False),
        ("b8[1,1,8,8]", False),
        ("b8[2,4,8,8]", False),
        # Of keys alone: words that are none.
        ("f32[2,1,1,8]", True),
    ],
)
def test_a_mask_of_queries_by_keys_may_tell_the_order(softmax, mask, expected):
    graph = written_out(softmax, mask)
    assert is_two_way(graph, range(graph.n_ops)) == expected


def test_a_softmax_of_a_router_is_no_attention():
    graph = written_out("aten._softmax.default", None, scores="f32[2,8,4]")
    assert not is_two_way(graph, range(graph.n_ops))
