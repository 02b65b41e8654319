"""Micro-batches: what is copied, what is accumulated, what there is once."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from trained import linears, step

import loadmaster as lm
from loadmaster.base.errors import InputError
from loadmaster.transforms import Program, micro_batches


@pytest.mark.parametrize("rows", [(4, 4), (3, 3, 2), (1, 6, 1), (1,) * 8])
def test_micro_batches_update_weights_as_the_batch_does(rows):
    widths, batch = (3, 5, 2, 7), sum(rows)
    graph, draw = linears(widths, batch), np.random.default_rng(1)
    x = draw.standard_normal((batch, widths[0]))
    weights = [draw.standard_normal(shape) for shape in pairwise(widths)]
    alone = step(Program.of(graph), [x], weights)
    program = micro_batches(graph, len(rows), rows)
    found = step(program, np.split(x, np.cumsum(rows)[:-1]), weights)
    assert set(found) >= set(alone)
    for key, value in alone.items():
        np.testing.assert_allclose(found[key], value, rtol=1e-9, atol=1e-9)


def test_by_hand_two_layers_in_three_micro_batches():
    graph = linears((2, 3, 4), 6)
    program = micro_batches(graph, 3, (3, 2, 1))
    made = program.graph
    at, micro = made.index, program.micro
    assert [micro[at(name)] for name in ("w0", "update1", "x@m0", "y1@m2")] == [-1, -1, 0, 2]
    assert program.share[at("y1@m1")] == pytest.approx(1 / 3)
    # y1 is [6, 4] of 4 bytes, and 2 * 6 * 3 * 4 FLOPs.
    assert [int(made.output_bytes[at(f"y1@m{j}")]) for j in range(3)] == [48, 32, 16]
    assert [int(made.flops[at(f"y1@m{j}")]) for j in range(3)] == [72, 48, 24]
    # dw1 is [3, 4]: 48 bytes, whole in each micro-batch. Additions read both and write one.
    adds = [at("dw1@aggregate@m1"), at("dw1@aggregate@m2")]
    assert [int(made.output_bytes[at(f"dw1@m{j}")]) for j in range(3)] == [48, 48, 48]
    for column, value in {"flops": 12, "bytes_accessed": 144, "output_bytes": 0}.items():
        assert getattr(made, column)[adds].tolist() == [value, value]
    assert (made.alias_of[adds] == at("dw1@m0")).all()
    assert made.names[at("dw1@m0") : at("dw1@m0") + 5] == [
        "dw1@m0", "dw1@m1", "dw1@m2", "dw1@aggregate@m1", "dw1@aggregate@m2",
    ]  # fmt: skip
    assert program.source.names[program.serves[adds[0]]] == "dw1"
    sources = {made.names[s] for s in made.src[made.dst == at("update1")].tolist()}
    assert sources == {"w1", "m1", "dw1@aggregate@m2"}


@pytest.mark.parametrize(
    ("graph", "m", "rows", "words"),
    [
        (linears((2, 2), 4), 5, None, "batch of 4 samples.*at most 4"),
        (linears((2, 2), 4), 2, (3, 2), "rows add up to 5, and the batch is 4"),
        (linears((2, 2), 4), 2, (4,), "rows has 1 value for 2 micro-batches"),
        (linears((2, 2), 4), 0, None, "m "),
        (lm.OpGraph({"name": ["a"]}, {"src": [], "dst": []}), 2, None, "nobody says how many"),
    ],
)
def test_refusals_say_the_way_out(graph, m, rows, words):
    with pytest.raises(InputError, match=words):
        micro_batches(graph, m, rows)
