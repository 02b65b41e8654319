"""Bad inputs: each is refused by an error that names the culprit."""

from __future__ import annotations

import gzip
import itertools
import json

import numpy as np
import pytest
from strategies import graph_of, ms_mesh, v100_mesh

import loadmaster as lm
from loadmaster.base.errors import InfeasibleError, InputError, LoadmasterError


def write(path, document) -> str:
    path.write_text(json.dumps(document))
    return str(path)


def document(**changes) -> dict:
    graph = {
        "format": "opgraph",
        "version": 1,
        "ops": {"name": ["conv", "relu", "loss"], "flops": [8, 8, 8]},
        "edges": {"src": [0, 1], "dst": [1, 2]},
    }
    for key, value in changes.items():
        part, _, column = key.partition("_")
        if column:
            graph[part] = graph[part] | {column: value}
        else:
            graph[part] = value
    return graph


def test_errors_are_of_the_family():
    assert issubclass(InputError, LoadmasterError)
    assert issubclass(InputError, ValueError)
    assert issubclass(InfeasibleError, LoadmasterError)
    assert not issubclass(InfeasibleError, ValueError)
    assert issubclass(lm.SolverError, LoadmasterError)
    assert issubclass(lm.MissingExtraError, ImportError)


def test_the_document_is_good_as_it_is(tmp_path):
    assert lm.read(write(tmp_path / "net.json", document())).n_ops == 3


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"edges_dst": [1, 0]}, ["cycle", '"conv" -> "relu"', '"relu" -> "conv"']),
        ({"edges_dst": [1, 3]}, ["edge 1 has dst 3", "0 to 2", "dangling"]),
        ({"edges_src": [0, -1]}, ["edge 1 has src -1", "dangling"]),
        ({"ops_flops": [8, -8, 8]}, ["flops of 'relu' is -8"]),
        ({"ops_flops": [8, float("nan"), 8]}, ["flops of 'relu' is nan"]),
        ({"ops_time": {"*": [1, 1, float("nan")]}}, ["of 'loss' is nan"]),
        ({"ops_time": {"*": [1, 1, float("inf")]}}, ["of 'loss' is inf"]),
        ({"ops_time": {"V100": [1, -1, 1]}}, ["'V100'", "of 'relu' is -1"]),
        ({"ops_name": ["conv", "conv", "loss"]}, ['two ops are named "conv"']),
        ({"ops": {"name": []}, "edges": {"src": [], "dst": []}}, ["no ops"]),
        ({"version": 2}, ["opgraph version 2", "reads version 1"]),
        ({"format": "onnx"}, ['no "format": "opgraph"']),
        ({"format": "loadmaster-plan"}, ["is a plan", "not a graph"]),
    ],
    ids=str,
)
def test_bad_graphs_name_file_and_culprit(tmp_path, changes, words):
    path = write(tmp_path / "net.json", document(**changes))
    with pytest.raises(InputError) as caught:
        lm.read(path)
    assert "net.json" in str(caught.value)
    assert any(word in str(caught.value) for word in words[:3] if "->" in word) or all(
        word in str(caught.value) for word in words
    )


def test_a_long_cycle_is_named_op_by_op():
    n = 6
    names = [f"layer{i}" for i in range(n)]
    edges = [(names[i], names[(i + 1) % n], 1) for i in range(n)]
    with pytest.raises(InputError) as caught:
        graph_of({name: 1 for name in names}, edges)
    shown = str(caught.value)
    found = [w.strip('"') for w in shown.partition("cycle: ")[2].split(" -> ")]
    assert found[0] == found[-1]
    assert sorted(found[:-1]) == names
    steps = {(a, b) for a, b, _ in edges}
    assert set(itertools.pairwise(found)) <= steps


def test_a_very_long_cycle_is_shortened():
    n = 5000
    src = np.arange(n)
    with pytest.raises(InputError, match="more") as caught:
        lm.OpGraph({"name": [f"op{i}" for i in range(n)]}, {"src": src, "dst": (src + 1) % n})
    assert len(str(caught.value)) < 500


def test_an_unknown_preset():
    with pytest.raises(InputError, match="no preset is named '9xB200'; there are"):
        lm.Cluster.preset("9xB200")


def test_an_unknown_example():
    with pytest.raises(
        InputError, match=r"no example is named 'resnet': did you mean 'lenet'\? There are alexnet"
    ):
        lm.read("example:resnet")


def test_a_device_no_link_reaches():
    devices = [lm.Device(name, "gpu", 9) for name in ("hub", "leaf", "island")]
    links = [
        lm.Link("hub", "leaf", 1.0),
        lm.Link("leaf", "hub", 1.0),
        lm.Link("island", "hub", 1.0),
    ]
    with pytest.raises(InputError, match='leads from "hub" to "island"'):
        lm.Cluster(devices, links)


def test_a_model_that_cannot_fit_says_what_is_short_where_and_what_takes_it(alexnet):
    with pytest.raises(InfeasibleError) as caught:
        lm.place(alexnet, v100_mesh(2, "256MiB"))
    message, shortfall = str(caught.value), caught.value.shortfall
    assert shortfall
    for device, short in shortfall.items():
        assert device in message
        assert f"({short} bytes)" in message
    assert "best_effort" in message


def test_a_model_that_is_placed_but_overflows_names_the_largest_tensors(alexnet):
    with pytest.raises(InfeasibleError) as caught:
        lm.place(alexnet, v100_mesh(2, "1GiB"), "single")
    message, shortfall = str(caught.value), caught.value.shortfall
    for device, short in shortfall.items():
        assert f"{device} by" in message
        assert f"({short} bytes)" in message
    assert "largest tensors alive" in message
    assert "best_effort" in message
    largest = message.partition("largest tensors alive there: ")[2].partition(". More")[0]
    assert 1 <= largest.count("'") // 2 <= 5
    assert largest.split("'")[1] in alexnet.names


def test_weights_alone_that_cannot_fit(alexnet):
    with pytest.raises(InfeasibleError) as caught:
        lm.place(alexnet, v100_mesh(2, "1MiB"))
    assert caught.value.shortfall
    assert "bytes" in str(caught.value)
    assert "gpu" in str(caught.value)


def test_a_set_too_large_for_every_device_is_named():
    graph = graph_of({"a": 1, "b": 1}, param_bytes=[60, 60], colocation=["s", "s"])
    with pytest.raises(InfeasibleError) as caught:
        lm.place(graph, ms_mesh(4, memory=100))
    assert "20" in str(caught.value)
    assert sum(caught.value.shortfall.values()) == 20


@pytest.mark.parametrize("method", ["auto", "celeritas", "heft", "etf", "m-sct", "getf", "lc"])
def test_an_op_that_no_device_may_run_is_named_with_what_it_may_use(method):
    graph = graph_of({"a": 1, "b": 1}, device_types=["", "tpu"])
    with pytest.raises(InfeasibleError) as caught:
        lm.place(graph, lm.Cluster.mesh(2, memory=1, bandwidth=1.0), method)
    assert str(caught.value) == "op 'b' may run on tpu, but the cluster has gpu"


def test_truncated_gzip(tmp_path, lenet):
    path = tmp_path / "net.json.gz"
    whole = gzip.compress(json.dumps(lenet.to_document()).encode())
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"net\.json\.gz is a damaged or truncated gzip file"):
        lm.read(path)
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 0xFF
    path.write_bytes(bytes(flipped))
    with pytest.raises(InputError, match=r"net\.json\.gz"):
        lm.read(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"   \n", "is empty"),
        (b"{", "not valid JSON"),
        (b'{"format": "opgraph"', "not valid JSON"),
        (b"[]", "not an opgraph document"),
        (b"{}", "not an opgraph document"),
        (b'{"nodes": [], "edges": []}', "not an opgraph document"),
        (b"[" * 100_000, "not valid JSON"),
        (gzip.compress(b"", mtime=0), "is empty"),
        (gzip.compress(b"{", mtime=0), "not valid JSON"),
        (b"op,ms\nmm,0.2\n", "a text of no graph: graphs are read from .*opgraph JSON"),
        (b"\x00\x01\x02", "not an ONNX model"),
    ],
)
def test_files_of_no_known_kind(tmp_path, content, message):
    path = tmp_path / "net.any"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as caught:
        lm.read(path)
    assert "net.any" in str(caught.value)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(InputError, match=r"cannot read .*none\.json: No such file"):
        lm.read(tmp_path / "none.json")
    with pytest.raises(InputError, match=r"cannot read .*: Is a directory"):
        lm.read(tmp_path)


def test_options_that_a_file_does_not_take(tmp_path):
    path = write(tmp_path / "net.json", document())
    with pytest.raises(InputError, match="opgraph JSON takes no options, so not 'batch'"):
        lm.read(path, batch=4)
    with pytest.raises(InputError, match="example:lenet takes no options, so not 'batch'"):
        lm.read("example:lenet", batch=4)


def test_a_plan_for_another_graph(tmp_path, alexnet, lenet):
    path = tmp_path / "plan.json"
    lm.place(lenet, v100_mesh(2), "celeritas").save(path)
    with pytest.raises(InputError, match=r"plan\.json is a plan for another graph"):
        lm.Plan.load(path, alexnet)
    with pytest.raises(InputError, match=r"is a plan, .*, not a graph"):
        lm.read(path)
