"""The structure of stacks of layers, of models that are drawn with and without each trait."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import loadmaster as lm
from loadmaster.base.errors import InputError
from loadmaster.rules.layer_list import LayerList, longest
from loadmaster.rules.module_cuts import ModuleCuts
from loadmaster.rules.stack import not_alone, not_in_line, stacks, words_reach


@dataclass
class Drawn:
    """A graph that is put together op by op."""

    rows: list = field(default_factory=list)
    edges: list = field(default_factory=list)

    def op(self, kind, module, output, *reads):
        self.rows.append((f"op{len(self.rows)}", kind, module, output))
        self.edges += [(read, len(self.rows) - 1) for read in reads]
        return len(self.rows) - 1

    def stack(self, name, x, widths, *, attends=True, memory=None, skips=None):
        """Layers of these widths; each may read a memory, and one passes nothing on."""
        for i, width in enumerate(widths):
            layer, shape = f"{name}.{i}", f"f32[2,8,{width}]"
            reads = [x] if memory is None else [x, memory]
            kind = "someone.attention" if attends else "aten.mm"
            y = self.op(kind, f"{layer}.attn", shape, *reads)
            y = self.op("aten.add", layer, shape, x, y)
            x = x if i == skips else y
        return x

    def graph(self):
        names, kinds, modules, outputs = zip(*self.rows, strict=True)
        src, dst = zip(*self.edges, strict=True)
        columns = {"name": names, "kind": kinds, "module": modules, "output": outputs}
        columns["time"] = {"*": [1e-6 * (kind != "input") for kind in kinds]}
        return lm.OpGraph(columns, {"src": src, "dst": dst, "bytes": [4] * len(src)})


SHAPES = ["one", "two towers", "encoder and decoder", "vision before", "heads behind"]


@settings(max_examples=30, deadline=None)
@given(
    shape=st.sampled_from(SHAPES),
    n=st.integers(2, 4),
    width=st.sampled_from([8, 16]),
    widens=st.booleans(),
    words=st.booleans(),
    attends=st.booleans(),
    other=st.integers(2, 5),
)
def test_what_is_seen_in_a_structure(shape, n, width, widens, words, attends, other):
    drawn = Drawn()
    ids = drawn.op("input", "", "i64[2,8]" if words else "f32[2,8,3]")
    pixels = drawn.op("input", "", "f32[2,8,3]")
    labels = drawn.op("input", "", "i64[2]")
    x = drawn.op("aten.embedding", "emb", f"f32[2,8,{width}]", ids)
    seen = drawn.op("aten.mm", "patch", "f32[2,8,24]", pixels)
    widths = [width] * (n - 1) + [2 * width if widens else width] * 2
    if shape in ("two towers", "encoder and decoder", "vision before"):
        seen = drawn.stack("side.layers", seen, [24] * other)
    if shape == "vision before":
        x = drawn.op("aten.cat", "", f"f32[2,8,{width}]", x, seen)
    memory = seen if shape == "encoder and decoder" else None
    x = drawn.stack("main.layers", x, widths, attends=attends, memory=memory)
    if shape == "heads behind":
        x = drawn.stack("heads.layers", x, [widths[-1]] * other)
    drawn.op("loss", "", "f32[]", x, seen, labels)
    cuts = ModuleCuts(drawn.graph())
    layers = LayerList.of(cuts.graph, layers="main.layers")
    assert ("of one width" in not_in_line(layers)) == widens
    assert words_reach(layers) == words
    assert ("main.layers" in stacks(cuts)) == attends
    if attends:
        expected = {"two towers": "side by side", "encoder and decoder": "an encoder and a decoder"}
        reason = not_alone(cuts, "main.layers")
        assert expected.get(shape, "") in reason
        assert bool(reason) == (shape in expected)


@pytest.mark.parametrize("skips", [0, 1, 2])
def test_layers_side_by_side_are_not_in_line(skips):
    drawn = Drawn()
    ids = drawn.op("input", "", "i64[2,8]")
    x = drawn.op("aten.embedding", "emb", "f32[2,8,16]", ids)
    drawn.stack("layers", x, [16] * 4, skips=skips)
    assert (
        not_in_line(LayerList.of(drawn.graph()))
        == f"the layer behind 'layers.{skips}' reads nothing of it"
    )


def test_stages_with_a_stack_each_are_several():
    drawn = Drawn()
    x = drawn.op("aten.embedding", "emb", "f32[2,8,8]", drawn.op("input", "", "i64[2,8]"))
    for stage, width in enumerate((8, 16)):
        x = drawn.op("aten.mm", f"stages.{stage}.merge", f"f32[2,8,{width}]", x)
        x = drawn.stack(f"stages.{stage}.blocks", x, [width] * (4 + stage))
    assert not_alone(ModuleCuts(drawn.graph()), None) == (
        "it has a stack of layers in each of 'stages.0.blocks', 'stages.1.blocks'"
    )


@pytest.mark.parametrize(
    ("lists", "best"),
    [
        # Experts, as many in every layer, are parts of layers.
        ({"layers": 4, "layers.0.experts": 8, "layers.1.experts": 8}, ["layers"]),
        ({"a": 2, "b": 2, "a.0.parts": 3, "a.1.parts": 3}, ["a", "b"]),
        ({"towers": 2, "towers.0.layers": 6, "towers.1.layers": 6}, ["towers"]),
        ({"": 3, "1.layers": 24}, ["1.layers"]),
        ({"stages": 4, "stages.2.blocks": 18, "stages.1.blocks": 2}, ["stages.2.blocks"]),
        ({}, []),
    ],
)
def test_the_longest_list_is_none_of_the_parts_of_layers(lists, best):
    assert longest({name: range(n) for name, n in lists.items()}) == best


@pytest.mark.parametrize("target", ["llama-cpp", "vllm"])
def test_a_refusal_says_what_is_seen(target):
    drawn = Drawn()
    x = drawn.op("aten.embedding", "emb", "f32[2,8,8]", drawn.op("input", "", "i64[2,8]"))
    drawn.stack("layers", x, [8, 8, 16, 16])
    said = r"one stack of layers of one width .*8 features go into 'layers.2', and 16 come out"
    with pytest.raises(InputError, match=said):
        lm.place(drawn.graph(), lm.Cluster.preset("2xV100-NVLink"), target=target)
