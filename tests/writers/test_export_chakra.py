"""Chakra: what is written is Chakra's protobuf, and read back takes what the plan takes."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import loadmaster as lm
from loadmaster.base.errors import InputError
from loadmaster.cli import main
from loadmaster.readers.chakra import execution_traces as chakra_et
from loadmaster.readers.chakra.protos import (
    NODE_TYPES,
    attributes,
    classes,
    dump,
    load,
    may_be_trace,
)

CASES = [
    ("example:lenet", "2xV100-NVLink", "data-parallel"),
    ("example:inception-v3", "4xV100-PCIe", "heft"),
    ("example:alexnet", "4xV100-PCIe", "layers"),
    ("example:rnnlm", "2xV100-NVLink", "gpipe"),
    ("instance:planted/100x4-ccr1-0", "instance:planted/100x4-ccr1-0", "heft"),
    ("instance:measured/googlenet", "instance:measured/googlenet", "etf"),
]


def written(tmp_path, graph, cluster, method):
    """A plan, its files' nodes by rank."""
    plan = lm.place(graph, cluster, method)
    lm.writers.chakra(plan, tmp_path / "step")
    ranks = range(plan.cluster.n_devices)
    return plan, [load(tmp_path / f"step.{rank}.et")[1] for rank in ranks]


def ranks_of(graph):
    return np.array([int(module.removeprefix("rank")) for module in graph.modules], dtype=np.int32)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[2]}")
def test_read_back_it_takes_what_the_plan_takes(case, tmp_path):
    plan, _ = written(tmp_path, *case)
    graph = lm.read(tmp_path / "step.0.et")
    seen = [
        lm.simulate(graph, plan.cluster, ranks_of(graph), policy=policy)
        for policy in ("priority", "fixed")
    ]
    assert plan.makespan == pytest.approx(min(s.makespan for s in seen), rel=1e-9)
    for s in seen:
        assert len(s.transfers) == len(plan.schedule.transfers)
        assert s.transfers.bytes.sum() == plan.schedule.transfers.bytes.sum()
        assert sorted(s.collectives.bytes) == sorted(plan.schedule.collectives.bytes)
        assert s.device_busy == pytest.approx(plan.schedule.device_busy)
    again = lm.read(tmp_path / "step.1.et")
    assert again.digest == graph.digest, "any of the files stands for all"


@pytest.mark.parametrize("case", CASES[:3], ids=lambda case: f"{case[0]}-{case[2]}")
def test_nodes_are_what_ran(case, tmp_path):
    plan, ranks = written(tmp_path, *case)
    seen, op_of = plan.schedule, plan.problem.reduced.op_of
    kinds = Counter(node.type for nodes in ranks for node in nodes)
    members = sum(len(m) for m in seen.collectives.members)
    assert kinds[NODE_TYPES["COMP_NODE"]] == len(op_of) - members
    assert kinds[NODE_TYPES["COMM_COLL_NODE"]] == members
    for word in ("SEND", "RECV"):
        assert kinds[NODE_TYPES[f"COMM_{word}_NODE"]] == len(seen.transfers)
    for nodes in ranks:
        assert [node.id for node in nodes] == list(range(len(nodes)))
        starts = [node.start_time_micros for node in nodes]
        assert starts == sorted(starts)
        for node in nodes:
            assert all(other < node.id for other in (*node.ctrl_deps, *node.data_deps))
            exact = attributes(node)["duration_nanos"]
            assert abs(node.duration_micros - exact / 1e3) <= 0.5 + 1e-6
            for other in node.data_deps:
                ends = nodes[other].start_time_micros + nodes[other].duration_micros
                assert ends <= node.start_time_micros + 2, "whole microseconds"


def test_sends_and_receives_say_the_same(tmp_path):
    plan, ranks = written(tmp_path, "example:inception-v3", "4xV100-PCIe", "heft")
    sides = {}
    for word in ("SEND", "RECV"):
        kind = NODE_TYPES[f"COMM_{word}_NODE"]
        found = [(rank, attributes(n)) for rank, nodes in enumerate(ranks) for n in nodes
                 if n.type == kind]  # fmt: skip
        sides[word] = sorted(
            (a["comm_src"], a["comm_dst"], a["comm_tag"], a["comm_size"]) for _, a in found
        )
        here = "comm_src" if word == "SEND" else "comm_dst"
        assert all(a[here] == rank for rank, a in found), "a node stands where it happens"
        assert not any(a["is_cpu_op"] for _, a in found)
    assert sides["SEND"] == sides["RECV"]
    tags = [row[:3] for row in sides["SEND"]]
    assert len(set(tags)) == len(tags)
    sent = plan.schedule.transfers
    assert sum(row[3] for row in sides["SEND"]) == int(sent.bytes.sum())


def test_collectives_and_their_groups(tmp_path):
    plan, ranks = written(tmp_path, "example:lenet", "2xV100-NVLink", "data-parallel")
    (one,) = {tuple(devices) for devices in plan.schedule.collectives.devices}
    for nodes in ranks:
        (node,) = [n for n in nodes if n.type == NODE_TYPES["COMM_COLL_NODE"]]
        said = attributes(node)
        assert (said["comm_type"], said["pg_name"]) == (0, "0"), "all-reduce, all ranks"
        assert said["comm_size"] == int(plan.schedule.collectives.bytes[0])
    groups = json.loads((tmp_path / "step.groups.json").read_text())
    assert groups == {"0": list(one)}


def test_a_node_on_the_wire(tmp_path):
    """Field by field, by the numbers of et_def.proto, without any class of ours."""
    graph = lm.OpGraph(
        {"name": ["a", "b"], "time": {"*": [2e-3, 1e-3]}, "flops": [7, 0]},
        {"src": [0], "dst": [1], "bytes": [300]},
    )
    plan = lm.place(graph, lm.Cluster.mesh(2, memory="1GiB", bandwidth=1e6), "round-robin")
    assert plan.devices.tolist() == [0, 1]
    lm.writers.chakra(plan, tmp_path / "two.et")
    first, second = (messages((tmp_path / f"two.{rank}.et").read_bytes()) for rank in (0, 1))
    metadata, a, send = first
    assert metadata[1] == [b"0.0.4"]
    assert (a.get(1, [0]), a[2], a[3], a[7]) == ([0], [b"a"], [4], [2000])
    assert (send[1], send[3], send[5], send[6]) == ([1], [5], [b"\x00"], [2000])
    assert send[7] == [300], "300 bytes at 1 MB/s"
    _, recv, b = second
    assert (recv[3], b[3], b[5], b[6]) == ([6], [4], [b"\x00"], [2300])


def messages(data):
    """Messages behind their lengths; per message, values by field number."""
    at = 0
    while at < len(data):
        size, at = varint(data, at)
        yield fields(data[at : at + size])
        at += size


def fields(data):
    found, at = {}, 0
    while at < len(data):
        key, at = varint(data, at)
        if key & 7 == 0:
            value, at = varint(data, at)
        else:
            assert key & 7 == 2
            size, at = varint(data, at)
            value, at = data[at : at + size], at + size
        found.setdefault(key >> 3, []).append(value)
    return found


def varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 128:
            return value, at


def test_the_command_line(tmp_path, capsys):
    plan = tmp_path / "plan.json"
    lm.place("example:lenet", "2xV100-NVLink", "heft").save(plan)
    assert main(["export", str(plan), "--to", "chakra", "-o", str(tmp_path / "step")]) == 0
    assert "chakra written to" in capsys.readouterr().err
    assert main(["info", str(tmp_path / "step.0.et")]) == 0
    assert main(["export", str(plan), "--to", "chakra"]) == 2
    assert "needs a path" in capsys.readouterr().err


# -- traces of others ----------------------------------------------------------------------------


def node(number, kind, deps=(), us=0, name="", **said):
    made = classes()
    found = made["Node"](
        id=number, name=name or f"n{number}", type=NODE_TYPES[kind], data_deps=deps,
        duration_micros=us,
    )  # fmt: skip
    kinds = {int: "int64_val", str: "string_val", float: "double_val", bool: "bool_val"}
    for key, value in said.items():
        found.attr.append(made["AttributeProto"](name=key, **{kinds[type(value)]: value}))
    return found


def trace(path, *nodes, version="1.0.0"):
    path.write_bytes(dump([classes()["GlobalMetadata"](version=version), *nodes]))
    return path


def test_a_trace_without_tensors_is_order_alone(tmp_path):
    path = trace(tmp_path / "one.et", node(3, "COMP_NODE", us=5), node(4, "COMP_NODE", [3], us=7))
    graph = lm.read(path)
    assert (graph.names, graph.time["*"].tolist()) == (["n3", "n4"], [5e-6, 7e-6])
    assert (graph.tensor.tolist(), graph.bytes.tolist()) == ([-1], [0])


def test_what_is_handed_on_comes_from_whoever_made_it(tmp_path):
    """Rank 0 makes it, rank 1 receives it and sends it on, rank 2 reads it."""
    ends = {"comm_tag": 1, "comm_size": 64}
    trace(
        tmp_path / "r.0.et",
        node(0, "COMP_NODE", us=1, name="make"),
        node(1, "COMM_SEND_NODE", [0], comm_src=0, comm_dst=1, **ends),
    )
    trace(
        tmp_path / "r.1.et",
        node(0, "COMM_RECV_NODE", comm_src=0, comm_dst=1, **ends),
        node(1, "COMM_SEND_NODE", [0], comm_dst=2, **ends),
    )
    trace(
        tmp_path / "r.2.et",
        node(0, "COMM_RECV_NODE", comm_src=1, **ends),
        node(1, "COMP_NODE", [0], us=1, name="use"),
    )
    graph = lm.read(tmp_path / "r.1.et")
    assert graph.names == ["make", "use"]
    assert (graph.src.tolist(), graph.dst.tolist(), graph.bytes.tolist()) == ([0], [1], [64])


def test_ranks_alone(tmp_path):
    path = trace(
        tmp_path / "alone.et",
        node(0, "COMM_RECV_NODE", us=3, comm_src=5, comm_size=9),
        node(1, "COMM_COLL_NODE", [0], us=4, comm_type=0, comm_size=9),
    )
    with (
        pytest.warns(UserWarning, match="no partner"),
        pytest.warns(UserWarning, match="says no tensor: 1 of 1, whose transfers count as free"),
    ):
        graph = lm.read(path)
    assert graph.time["*"].tolist() == [3e-6, 4e-6]
    assert graph.collectives == ["", ""]


BAD = [
    ([node(1, "COMP_NODE"), node(1, "COMP_NODE")], "two nodes have the id 1"),
    ([node(1, "COMP_NODE", [7])], "node 1: data_deps has 7"),
    ([node(1, "COMP_NODE", duration_nanos=-1.0)], "duration_nanos is -1.0"),
    ([node(1, "COMM_SEND_NODE", comm_dst=-1)], "comm_dst is -1"),
    ([node(1, "COMM_SEND_NODE", comm_dst="x")], "comm_dst is 'x'"),
    ([node(1, "COMP_NODE", [2]), node(2, "COMP_NODE", [1])], "cycle"),
    ([], "no nodes that compute"),
    ([node(0, "COMM_SEND_NODE", [2], comm_dst=0, comm_size=4), node(1, "COMP_NODE"),
      node(2, "COMM_RECV_NODE", comm_src=0, comm_size=5)], "comm_size is not that of"),
    ([node(0, "COMM_SEND_NODE", [1], comm_dst=0, comm_size=4), node(2, "COMP_NODE", [1]),
      node(1, "COMM_RECV_NODE", comm_src=0, comm_size=4)], "waits for itself"),
]  # fmt: skip


@pytest.mark.parametrize(("nodes", "words"), BAD, ids=[words for _, words in BAD])
def test_bad_traces(nodes, words, tmp_path):
    path = trace(tmp_path / "bad.et", *nodes)
    with pytest.raises(InputError) as error:
        chakra_et.read(path)
    assert words in str(error.value)


def test_members_that_differ_and_ranks_that_are_missing(tmp_path):
    trace(tmp_path / "c.0.et", node(0, "COMM_COLL_NODE", comm_type=0))
    trace(tmp_path / "c.1.et", node(0, "COMM_COLL_NODE", comm_type=2))
    with pytest.raises(InputError, match="comm_type is not that of rank 0, node 0") as error:
        lm.read(tmp_path / "c.0.et")
    assert "rank 1, node 0" in str(error.value)
    plan = lm.place("example:lenet", "2xV100-NVLink", "heft")
    lm.writers.chakra(plan, tmp_path / "step")
    (tmp_path / "step.1.et").unlink()
    with pytest.raises(InputError, match="is of 2 ranks, and rank 1 is not beside it"):
        lm.read(tmp_path / "step.0.et")


def test_files_of_another_step_beside_it_are_not_read(tmp_path):
    lm.writers.chakra(lm.place("example:alexnet", "4xV100-PCIe", "layers"), tmp_path / "step")
    plan = lm.place("example:lenet", "2xV100-NVLink", "round-robin")
    lm.writers.chakra(plan, tmp_path / "step")
    assert set(lm.read(tmp_path / "step.0.et").modules) == {"rank0", "rank1"}


WHOLE = dump(
    [classes()["GlobalMetadata"](version="1.0.0"), *(node(i, "COMP_NODE") for i in range(9))]
)


@given(st.integers(1, len(WHOLE) - 1))
def test_a_trace_that_is_cut_off_is_refused_or_ends_at_a_node(tmp_path_factory, at):
    path = tmp_path_factory.mktemp("cut") / "cut.et"
    path.write_bytes(WHOLE[:at])
    try:
        graph = chakra_et.read(path)
    except InputError as error:
        assert str(path) in str(error)  # noqa: PT017
    else:
        assert graph.names == [f"n{i}" for i in range(graph.n_ops)]


@given(st.binary(max_size=40))
def test_other_bytes_are_not_taken_for_traces_by_chance(data):
    if may_be_trace(data):
        assert data[1:2] in (b"\x0a", b"\x12") or data[0] > 127


def test_files_are_the_same_every_time(tmp_path):
    plan = lm.place("example:lenet", "2xV100-NVLink", "data-parallel")
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        lm.writers.chakra(plan, tmp_path / folder / "step")
    first = {path.name: path.read_bytes() for path in (tmp_path / "one").iterdir()}
    assert set(first) == {"step.0.et", "step.1.et", "step.groups.json"}
    assert {path.name: path.read_bytes() for path in (tmp_path / "two").iterdir()} == first
    with pytest.raises(InputError, match="cannot write"):
        lm.writers.chakra(plan, tmp_path / "nowhere" / "step")
