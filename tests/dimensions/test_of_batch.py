"""Dimensions of the batch, told by sizes: no arguments of calls are needed."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import example
from trained import linears

from loadmaster.dimensions.dimensions import Dimensions
from loadmaster.dimensions.form import PARTIAL, REPLICATE
from loadmaster.dimensions.of_batch import dimensions_of_batch


def test_state_is_whole_gradients_are_partial_sums_and_all_else_has_the_batch():
    graph = linears((4, 6, 2), 8)
    dimensions = dimensions_of_batch(graph, 8)

    def cut(name):
        (one,) = dimensions.forms[dimensions.form_of[graph.index(name)]].cuts
        return one

    forward = cut("y1")
    assert (forward.name, forward.role, forward.size) == ("batch", "batch", 8)
    assert sorted(forward.inputs) == [REPLICATE, 0]
    assert forward.outputs == (0,)
    assert cut("dw1").outputs == (PARTIAL,)
    for name in ("w1", "update1"):
        assert not dimensions.forms[dimensions.form_of[graph.index(name)]].cuts


@pytest.mark.parametrize("model", ["alexnet", "vgg19", "gpt3-330m", "inception-v3"])
def test_what_arguments_cut_by_the_batch_sizes_cut_too(model):
    graph = example(model)
    by_arguments, by_sizes = Dimensions.of(graph), dimensions_of_batch(graph, graph.meta["batch"])
    works = (graph.flops > 0) & ~graph.view & ~graph.placeholder

    def cut(dimensions):
        has = [any(cut.role == "batch" for cut in form.cuts) for form in dimensions.forms]
        return np.array([*has, False])[dimensions.form_of]

    assert not (cut(by_arguments) & ~cut(by_sizes))[works].any()


def test_views_carry_what_they_show():
    """An argument is the tensor behind views, and it is an output of the op that made it."""
    graph = example("alexnet")
    dimensions = dimensions_of_batch(graph, graph.meta["batch"])
    root = dimensions.root
    assert not graph.view[root].any()
    n_outputs = np.array([len(form.outputs) for form in dimensions.forms] + [0])
    assert (dimensions.output < n_outputs[dimensions.form_of[root]]).all()
    direct = ~graph.view[graph.src[dimensions.edge]]
    assert (graph.src[dimensions.edge[direct]] == root[direct]).all()
