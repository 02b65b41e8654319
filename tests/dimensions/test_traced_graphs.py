"""Dimensions of traced graphs: what people cut by hand is found in all of them."""

from __future__ import annotations

import math

import numpy as np
from traced import every_traced_graph, traced

import loadmaster as lm
from loadmaster.dimensions.dimensions import Dimensions
from loadmaster.dimensions.form import ANY, PARTIAL, PICKED, REPLICATE
from loadmaster.model.graph import PARAMETER
from loadmaster.model.shapes import parse_output

#: Heads, by the beginning of a graph's name; of keys, and of queries for each of them.
HEADS = {
    "bert_large": {16},
    "gpt3_13b": {40},
    "gpt3_330m": {16},
    "llama3_70b": {8},
    "llama3_8b": {8, 4},
    "mixtral": {8, 4},
    "transformer": {16},
    "vit": {16},
    "whisper": {20},
}


def of_role(dimensions: Dimensions, role: str) -> np.ndarray:
    """Whether each op can be cut along a dimension of a role."""
    has = [any(cut.role == role for cut in form.cuts) for form in dimensions.forms]
    return np.array([*has, False])[dimensions.form_of]


def sizes_of_role(dimensions: Dimensions, role: str) -> set[int]:
    return {cut.size for form in dimensions.forms for cut in form.cuts if cut.role == role}


@every_traced_graph
def test_traced_graph(path):
    file, d = path.name, Dimensions.of(traced(path))
    graph = d.graph
    assert d.unknown == {}
    # 97 % of the time is wanted: the roofline of a V100, launches included.
    time = lm.costs.estimate(graph, lm.Cluster.preset("4xV100-PCIe")).time[:, 0]
    into_four = [any(cut.size >= 4 for cut in form.cuts) for form in d.forms]
    assert time[np.array([*into_four, False])[d.form_of]].sum() >= 0.97 * time.sum()
    for form, text in {*zip(d.form_of.tolist(), graph.outputs, strict=True)}:
        if form >= 0:
            check_factors(d.forms[form].outputs, text)
    for form in d.forms:
        # A handful of labels per op, each with a name of its own.
        assert len(form.cuts) <= 12
        assert len({cut.name for cut in form.cuts}) == len(form.cuts)
        assert [cut.role for cut in form.cuts].count("batch") <= 1
        for cut in form.cuts:
            check_cut(form, cut)
    check_arguments(d)
    # What computes can be cut by the batch, but for experts, whose tokens are of all samples, and
    # for tables of positions.
    batch = graph.meta["batch"]
    assert sizes_of_role(d, "batch") == ({batch} if batch > 1 else set())
    if batch > 1 and not file.startswith("mixtral"):
        flops = graph.flops.astype(np.float64)
        assert flops[of_role(d, "batch")].sum() >= 0.9999 * flops.sum()
    assert not of_role(d, "batch")[graph.stands_for == PARAMETER].any()
    for name, sizes in HEADS.items():
        assert not file.startswith(name) or sizes_of_role(d, "head") == sizes
    assert sizes_of_role(d, "expert") == ({8} if file.startswith("mixtral") else set())


def check_factors(outputs, text: str) -> None:
    """The factors of each output are those of its axes, major to minor."""
    shapes = [sizes or () for _, sizes in parse_output(text)]
    assert len(outputs) == len(shapes)
    for factors, shape in zip(outputs, shapes, strict=True):
        assert [axis for axis, _ in factors] == sorted(axis for axis, _ in factors)
        for axis, size in enumerate(shape):
            assert math.prod(s for a, s in factors if a == axis) == max(size, 1)


def check_cut(form, cut) -> None:
    """Specs are factors that are as large as the cut says, or words."""
    assert len(cut.inputs) == len(form.inputs)
    assert len(cut.outputs) == len(form.outputs)
    specs = [
        *zip(cut.inputs, form.inputs, strict=True),
        *zip(cut.outputs, form.outputs, strict=True),
    ]
    sharded = [factors[spec][1] for spec, factors in specs if spec >= 0]
    assert all(spec >= 0 or spec in (REPLICATE, PARTIAL, PICKED, ANY) for spec, _ in specs)
    if cut.size:
        assert cut.size >= 2
        assert min(sharded) == cut.size
        assert cut.steps or max(sharded) == cut.size
    else:
        assert not sharded


def check_arguments(d: Dimensions) -> None:
    """Every argument has an edge, and a root that runs or is there from the beginning."""
    graph = d.graph
    assert (d.edge >= 0).all()
    assert (graph.dst[d.edge] == d.reader).all()
    assert not graph.view[d.root].any()
    assert (d.root == graph.reduced.shows[graph.src[d.edge]]).all()
    runs = d.form_of[d.reader] >= 0
    for argument in np.flatnonzero(runs)[:: max(int(runs.sum()) // 500, 1)].tolist():
        form = d.forms[d.form_of[d.reader[argument]]]
        factors = form.inputs[argument - d.first[d.reader[argument]]]
        made = d.forms[d.form_of[d.root[argument]]].outputs[d.output[argument]]
        back = d.backs[d.back[argument]]
        assert len(back) == len(factors)
        for factor, spec in zip(factors, back, strict=True):
            assert spec == REPLICATE or made[spec][1] == factor[1]
