"""Models of OpenVINO: costs checked by hand, constants, order, bad files."""

from __future__ import annotations

import re
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

import loadmaster as lm
from loadmaster.base.errors import InputError, LoadmasterError
from loadmaster.readers.openvino.ir import read as read_ir


def port(number, dims, precision="FP32"):
    inside = "".join(f"<dim>{d}</dim>" for d in dims)
    return f'<port id="{number}" precision="{precision}">{inside}</port>'


def layer(number, kind, name, out, data="", precision="FP32"):
    """A layer with one output, which is port 9."""
    ports = f"<output>{port(9, out, precision)}</output>" if out is not None else ""
    return (
        f'<layer id="{number}" name="{name}" type="{kind}" version="opset1">{data}{ports}</layer>'
    )


def net(layers, edges, version=11):
    rows = "".join(
        f'<edge from-layer="{a}" from-port="9" to-layer="{b}" to-port="{i}"/>' for a, b, i in edges
    )
    return (
        f'<?xml version="1.0"?>\n<net name="model" version="{version}">'
        f"<layers>{''.join(layers)}</layers><edges>{rows}</edges></net>"
    )


#: A convolution, a ReLU, a reshape and a product by weights that are stored as 16-bit floats.
LAYERS = [
    layer(0, "Parameter", "x", [2, 3, 8, 8]),
    layer(1, "Const", "w", [4, 3, 3, 3]),
    layer(2, "Convolution", "/body/conv/c", [2, 4, 6, 6], '<data strides="1,1"/>'),
    layer(3, "ReLU", "__module.body.act/aten::relu/r", [2, 4, 6, 6]),
    layer(4, "Const", "to", [2], precision="I64"),
    layer(5, "Reshape", "flat", [2, 144]),
    layer(6, "Const", "v16", [10, 144], precision="FP16"),
    layer(7, "Convert", "v", [10, 144]),
    layer(8, "MatMul", "product", [2, 10], '<data transpose_a="false" transpose_b="true"/>'),
    layer(9, "Result", "y", None),
]
EDGES = [
    (0, 2, 0), (1, 2, 1), (2, 3, 0), (3, 5, 0), (4, 5, 1), (6, 7, 0), (5, 8, 0), (7, 8, 1),
    (8, 9, 0),
]  # fmt: skip


def read(text, tmp_path):
    path = tmp_path / "m.xml"
    path.write_text(text)
    return lm.read(path)


@pytest.mark.parametrize("turned", [False, True])
def test_a_model_checked_by_hand(turned, tmp_path):
    turn = reversed if turned else iter
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        graph = read(net(list(turn(LAYERS)), list(turn(EDGES))), tmp_path)
    flops = dict(zip(graph.names, graph.flops.tolist(), strict=True))
    assert {name: n for name, n in flops.items() if n} == {
        "/body/conv/c": 2 * (2 * 4 * 6 * 6) * 27,
        "__module.body.act/aten::relu/r": 2 * 4 * 6 * 6,
        "product": 2 * 2 * 10 * 144,
    }
    at = graph.index
    assert graph.bytes_accessed[at("product")] == 4 * (2 * 144 + 10 * 144 + 2 * 10)
    assert graph.param_bytes.sum() == 4 * 4 * 27 + 2 * 8 + 2 * 1440
    assert [graph.kinds[at(name)] for name in ("x", "w")] == ["input", "parameter"]
    assert graph.modules[at("/body/conv/c")] == "body.conv"
    assert graph.modules[at("__module.body.act/aten::relu/r")] == "body.act"
    # What only constants go into is folded as the model is loaded; a reshape moves nothing.
    assert [bool(graph.view[at(name)]) for name in ("flat", "v", "product")] == [True, True, False]
    assert graph.alias_of[at("v")] == at("v16")
    into = graph.src[graph.dst == at("product")]
    assert {graph.names[op] for op in into} == {"flat", "v"}
    assert lm.place(graph, "4xV100-PCIe").makespan > 0


def test_matrices_at_one_place_are_one_weight(tmp_path):
    at = '<data offset="0" size="144"/>'
    other = '<data offset="144" size="144"/>'
    layers = [
        layer(0, "Parameter", "x", [2, 6]),
        *(layer(i, "Const", f"w{i}", [6, 6], where) for i, where in ((1, at), (2, at), (3, other))),
        *(layer(3 + i, "MatMul", f"y{i}", [2, 6]) for i in (1, 2, 3)),
    ]
    edges = [(0, 4, 0), (1, 4, 1), (4, 5, 0), (2, 5, 1), (5, 6, 0), (3, 6, 1)]
    graph = read(net(layers, edges), tmp_path)
    assert graph.names == ["x", "w1", "y1", "y2", "w3", "y3"]
    assert graph.param_bytes.sum() == 2 * 144
    assert graph.dst[graph.src == graph.index("w1")].tolist() == [2, 3]


def body_of(n, tag="body"):
    """A body: a product by a weight of n x n, and a tanh."""
    layers = [
        layer(0, "Parameter", "h", [1, n]),
        layer(1, "Const", "w", [n, n]),
        layer(2, "MatMul", "p", [1, n]),
        layer(3, "Tanh", "t", [1, n]),
        layer(4, "Result", "r", None),
    ]
    edges = "".join(
        f'<edge from-layer="{a}" from-port="9" to-layer="{b}" to-port="{i}"/>'
        for a, b, i in [(0, 2, 0), (1, 2, 1), (2, 3, 0), (3, 4, 0)]
    )
    return f"<{tag}><layers>{''.join(layers)}</layers><edges>{edges}</edges></{tag}>"


def looping(kind, bodies, mapped, steps=7, n=4):
    """A model of one layer with bodies, which reads x of so many steps."""
    ports = f"<input>{port(0, [steps, n])}</input><output>{port(9, [steps, n])}</output>"
    inside = f"{ports}<port_map>{mapped}</port_map>{bodies}"
    one = f'<layer id="1" name="loop" type="{kind}" version="opset1">{inside}</layer>'
    return net([layer(0, "Parameter", "x", [steps, n]), one], [(0, 1, 0)])


_SLICED = '<input external_port_id="0" internal_layer_id="0" axis="0" part_size="{}"/>'
_JOINED = '<output external_port_id="9" internal_layer_id="4" axis="0"/>'
_FIXED = '<input external_port_id="0" internal_layer_id="0"/>'


@pytest.mark.parametrize("kind", ["TensorIterator", "Loop"])
@pytest.mark.parametrize(
    ("mapped", "trips"),
    [(_SLICED.format(1), 6), (_SLICED.format(-2), 3), (_FIXED + _JOINED, 6), (_FIXED, None)],
)
def test_bodies_of_loops_count_with_their_trips_kernels_and_weights(kind, mapped, trips, tmp_path):
    with pytest.warns(UserWarning, match=f"ops with bodies .* {kind}, its body"):
        graph = read(looping(kind, body_of(4), mapped, steps=6), tmp_path)
    at = graph.index("loop")
    runs = trips or 1
    assert graph.flops[at] == runs * (2 * 4 * 4 + 4)
    assert graph.bytes_accessed[at] == runs * 4 * (4 + 16 + 4 + 4 + 4)
    assert graph.launches[at] == 2 * runs
    assert graph.param_bytes[at] == 4 * 16
    said = "once" if trips is None else f"{trips} times"
    assert any(f"{kind}, its body {said} (1)" in note for note in graph.meta["assumed"])


def test_of_branches_the_larger_counts_and_bodies_nest(tmp_path):
    inner = looping("Loop", body_of(8), _SLICED.format(1), steps=5, n=8)
    inner = inner[inner.index("<layers>") : inner.index("</net>")]
    branches = body_of(4, "then_body") + f"<else_body>{inner}</else_body>"
    with pytest.warns(UserWarning, match="If, its larger branch"):
        graph = read(looping("If", branches, _FIXED), tmp_path)
    at = graph.index("loop")
    assert graph.flops[at] == 5 * (2 * 8 * 8 + 8)
    assert graph.launches[at] == 10
    assert graph.param_bytes[at] == 4 * (16 + 64)


def test_what_is_not_known_is_said(tmp_path):
    layers = [
        layer(0, "Parameter", "x", [4, 8]),
        layer(1, "NonZero", "where", [2, -1], precision="I64"),
        layer(2, "Magic", "magic", [4, 8]),
    ]
    with pytest.warns(UserWarning, match=r"Magic \(1\)|NonZero \(1\)") as caught:
        graph = read(net(layers, [(0, 1, 0), (0, 2, 0)]), tmp_path)
    assert graph.meta["assumed"][1:] == [str(w.message) for w in caught]
    assert len(caught) == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (net([layer(0, "Parameter", "x", [-1, 8])], []), r"'x' is f32\[\?,8\].*model.reshape"),
        (net(LAYERS, EDGES, version=7), "no model of OpenVINO of version 10 or later"),
        (net(LAYERS, EDGES)[:-20], "no XML, or a truncated one"),
        (net(LAYERS, [*EDGES, (8, 2, 2)]), "a cycle through"),
        (net(LAYERS, [(99, 0, 0)]), "a damaged model of OpenVINO: KeyError"),
        (net([layer(0, "Parameter", "x", ["n"])], []), "a damaged model of OpenVINO: ValueError"),
        ("<net>" + "<a>" * 99 + "</a>" * 99 + "</net>", "nested too deeply"),
    ],
)
def test_bad_models_are_refused_in_words(text, said, tmp_path):
    with pytest.raises(InputError, match=f"m.xml: .*{said}"):
        read(text, tmp_path)


def test_documents_that_grow_without_limit_are_refused(tmp_path):
    bomb = '<!DOCTYPE net [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]>'
    (tmp_path / "m.xml").write_text(net(LAYERS, EDGES).replace("\n", f"\n{bomb}"))
    with pytest.raises(InputError, match="document type"):
        read_ir(tmp_path / "m.xml")


@given(st.data())
def test_any_damage_is_read_or_refused(tmp_path_factory, data):
    text = net(LAYERS, EDGES)
    words = [match.span() for match in re.finditer(r'"[^"]*"|>[^<]+<|<[^>]*>', text)]
    start, end = data.draw(st.sampled_from(words))
    other = data.draw(st.sampled_from(["", '""', '"-1"', ">-7<", "<dim>", '"9"', ">x<", "<net>"]))
    path = tmp_path_factory.mktemp("damage") / "m.xml"
    path.write_text(text[:start] + other + text[end:])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            lm.read(path)
    except LoadmasterError:
        pass
