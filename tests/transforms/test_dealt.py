"""Batches dealt out to whole models beside each other."""

import numpy as np
import pytest

import loadmaster as lm
from loadmaster.base.errors import InputError
from loadmaster.transforms.dealt import deal


def model():
    ops = {
        "name": ["x", "w", "first", "second"],
        "kind": ["input", "parameter", "a", "b"],
        "output_bytes": [8, 100, 16, 4],
        "param_bytes": [0, 100, 0, 0],
        "time": {"*": [0.0, 0.0, 1.0, 2.0]},
        "colocation": ["", "", "both", "both"],
    }
    return lm.OpGraph(ops, {"src": [0, 1, 2], "dst": [2, 2, 3], "bytes": [8, 100, 16]})


def test_a_lane_has_its_weights_once_and_each_batch_all_else():
    program = deal(model(), [2, 1])
    graph = program.graph
    assert program.batches == 3
    assert np.bincount(program.serves).tolist() == [3, 2, 3, 3]
    assert int(graph.param_bytes.sum()) == 200
    assert (program.share == 1).all()
    reads = {(graph.names[a], graph.names[b]) for a, b in zip(graph.src, graph.dst, strict=True)}
    assert {("w@b0", "first@b0"), ("w@b0", "first@b1"), ("w@b2", "first@b2")} <= reads
    # Ops of one lane that share a device are bound to those of that lane alone.
    sets = graph.reduced.graph.colocation
    lane = np.array([0, 0, 1])[program.replica[graph.reduced.op_of]]
    assert len(np.unique(np.stack([sets, lane]), axis=1).T) == len(np.unique(sets)) == 2


def test_programs_of_programs_count_batches_of_the_users_graph():
    inner = deal(model(), [1, 1])
    assert inner.then(deal(inner.graph, [2])).batches == 4


def test_training_and_no_batches_are_refused():
    with pytest.raises(InputError, match="for training"):
        deal(lm.read("example:lenet"), [1, 1])
    with pytest.raises(InputError, match="counts"):
        deal(model(), [1, 0])
    with pytest.raises(InputError, match="counts is empty"):
        deal(model(), [])
