"""Programs of two models, digested: ops, names, edges, bytes and times stay what they were."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

import loadmaster as lm
from loadmaster.costs.program import program_costs
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
        "all-reduce, 2": "37bc9d23dee9",
        "all-reduce, 4": "ba9d62aef60b",
        "flat, 2": "8c01147119dc",
        "flat, 4": "bef92fbe0920",
        "parameters, 2": "42de37f897eb",
        "parameters, 4": "be5bf49c08cb",
        "server, 2": "d6f017874804",
        "server, 4": "a85cb6c726d1",
        "synchronised, 2": "a31b796f8bd7",
        "synchronised, 4": "52f4104b7943",
        "small buckets, 2": "0621b0864919",
        "small buckets, 4": "bb2a02347b97",
        "split, batch": "b73dd292e35f",
        "split, output_channel": "31e69c65735d",
    },
    "alexnet": {
        "all-reduce, 2": "d0e305a9c13f",
        "all-reduce, 4": "8d498d9658b5",
        "flat, 2": "2f76016595b1",
        "flat, 4": "b53ab8e84fe7",
        "parameters, 2": "1acfbc7571b2",
        "parameters, 4": "5e9371332492",
        "server, 2": "44f540198c53",
        "server, 4": "32ca09e6a7e1",
        "synchronised, 2": "aebec447bb76",
        "synchronised, 4": "6ff8b075ff07",
        "small buckets, 2": "72f1497ae564",
        "small buckets, 4": "08cd7585c70e",
        "split, batch": "7f2201abc903",
        "split, output_channel": "1cf915662801",
    },
}


def digested(program: Program, before: lm.OpGraph) -> str:
    """What is in a program and its times, in 12 hexadecimal digits."""
    cluster = lm.Cluster.preset("4xV100-PCIe")
    costs = program_costs(program, lm.costs.estimate(before, cluster), cluster)
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
