"""Programs of two models, digested: ops, names, edges, bytes and times stay what they were."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

import loadmaster as lm
from loadmaster.costs.program import program_costs
from loadmaster.costs.roofline import roofline_costs
from loadmaster.transforms import Program, replicate, split_op

WAYS = {
    "all-reduce": {},
    "flat": {"aggregation": "reduce-scatter"},
    "parameters": {"aggregation": "reduce-scatter", "shards": "parameters"},
    "server": {"aggregation": "parameter-server"},
    "synchronised": {"batch_norm": "synchronised"},
    "small buckets": {"aggregation": "reduce-scatter", "bucket_bytes": 1000},
}

#: By model, way and replicas (or op and dimension): the digests of graph, columns and times.
KNOWN = {
    "lenet": {
        "all-reduce, 2": "9870790015ae",
        "all-reduce, 4": "634a7a428c1a",
        "flat, 2": "1bd6c00e7e7c",
        "flat, 4": "2637abbd42d3",
        "parameters, 2": "3a50d4c08452",
        "parameters, 4": "d489fc03a9ec",
        "server, 2": "d6f017874804",
        "server, 4": "a85cb6c726d1",
        "synchronised, 2": "e08ab494d34c",
        "synchronised, 4": "662e7728a46d",
        "small buckets, 2": "a2d149588f1b",
        "small buckets, 4": "26864eda1359",
        "split, batch": "b73dd292e35f",
        "split, output_channel": "31e69c65735d",
    },
    "alexnet": {
        "all-reduce, 2": "4597370435c5",
        "all-reduce, 4": "3c0da8866cc6",
        "flat, 2": "0558aa53003e",
        "flat, 4": "865d442077f3",
        "parameters, 2": "43acb5c30028",
        "parameters, 4": "8cc8b5dfe1f0",
        "server, 2": "44f540198c53",
        "server, 4": "32ca09e6a7e1",
        "synchronised, 2": "040cb696d69b",
        "synchronised, 4": "175ec1e4a848",
        "small buckets, 2": "54635f4cf2e5",
        "small buckets, 4": "8d6c74e803ae",
        "split, batch": "7f2201abc903",
        "split, output_channel": "1cf915662801",
    },
}


def digested(program: Program, before: lm.OpGraph) -> str:
    """What is in a program and its times, in 12 hexadecimal digits."""
    cluster = lm.Cluster.preset("4xV100-PCIe")
    costs = program_costs(program, roofline_costs(before, cluster), cluster)
    columns = (program.serves, program.part, program.parts, program.replica, program.share)
    digest = hashlib.sha256(program.graph.digest.encode())
    for column in (*columns, program.role, costs.time, costs.provenance):
        digest.update(np.ascontiguousarray(column).tobytes())
    digest.update(repr((program.notes, program.graph.meta)).encode())
    return digest.hexdigest()[:12]


def programs(graph: lm.OpGraph) -> dict[str, Program]:
    """Every program of a model that is digested."""
    made = {f"{way}, {k}": replicate(graph, k, **WAYS[way]) for way in WAYS for k in (2, 4)}
    convolution = next(i for i, kind in enumerate(graph.kinds) if ".convolution." in kind)
    for dimension in ("batch", "output_channel"):
        made[f"split, {dimension}"] = split_op(graph, convolution, dimension, 2)
    return made


@pytest.mark.parametrize("model", ["lenet", "alexnet"])
def test_programs_are_what_they_were(model):
    graph = lm.read(f"example:{model}")
    found = {what: digested(program, graph) for what, program in programs(graph).items()}
    assert found == KNOWN[model]
