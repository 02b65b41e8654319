"""OpGraph: what goes in comes out, in JSON and networkx; what is wrong is named."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import MS, graph_of, op_graphs

import loadmaster as lm
from loadmaster import OpGraph
from loadmaster.base.errors import InputError, MissingExtraError
from loadmaster.model.graph import Reduced
from loadmaster.readers import opgraph

nx = pytest.importorskip("networkx")

#: Every column filled.
FULL = OpGraph(
    {
        "name": ["weight", "matmul", "row", "cast"],
        "kind": ["parameter", "aten.mm", "aten.select", "aten.to"],
        "module": ["fc", "fc", "fc", "loss"],
        "phase": ["f", "f", "f", "b"],
        "colocation": ["fc", "fc", "", ""],
        "output": ["f32[4,4]", "f32[4,4]", "f32[4]", "f16[4]"],
        "device_types": ["", "gpu,npu", "", "cpu"],
        "flops": [0, 128, 0, 4],
        "bytes_accessed": [0, 192, 0, 24],
        "output_bytes": [0, 64, 0, 8],
        "param_bytes": [64, 0, 0, 0],
        "workspace": [0, 32, 0, 0],
        "view": [0, 0, 1, 0],
        "alias_of": [-1, -1, 1, -1],
        "time": {"gpu": [0.0, 1e-3, 0.0, 1e-6], "*": [0.0, 0.1, 0.0, 0.3]},
        "args": [
            None,
            [[{"op": 0}, [{"op": 0}]], {"alpha": -0.5}],
            [[{"op": 1}, 0, -1]],
            [[{"op": 2}], {"dtype": "torch.float16"}],
        ],
    },
    {
        "src": [0, 1, 2, 0],
        "dst": [1, 2, 3, 3],
        "tensor": [0, 1, 2, -1],
        "bytes": [64, 64, 16, 0],
    },
    name="full",
    meta={"batch": 4, "notes": ["ünïcode"]},
)


def changed(graph: OpGraph, part: str, column: str, values) -> dict:
    """The graph's document with one column replaced."""
    document = json.loads(json.dumps(graph.to_document()))
    document[part][column] = values
    return document


@settings(max_examples=15, deadline=None)
@given(op_graphs(), st.data())
def test_columns_of_numbers_are_replaced_as_in_a_graph_recomputed(graph, data):
    sizes = st.lists(st.integers(0, 2**40), min_size=graph.n_ops, max_size=graph.n_ops)
    ops = {column: data.draw(sizes) for column in ("flops", "workspace")}
    last = np.arange(graph.n_edges) < graph.n_edges - 1
    edges = {column: getattr(graph, column)[last] for column in ("src", "dst", "bytes")}
    ids = graph.src if graph.tensor is None else graph.tensor
    edges["tensor"] = ids[last]
    document = graph.to_document()
    document["ops"] |= ops
    document["edges"] = {column: values.tolist() for column, values in edges.items()}
    anew, made = OpGraph.from_document(document), graph.with_columns(ops, edges)
    assert made.digest == anew.digest
    assert np.array_equal(made.reduced.graph.resident, anew.reduced.graph.resident)
    assert np.array_equal(made.reduced.map, anew.reduced.map)


@pytest.mark.parametrize(
    ("ops", "edges", "words"),
    [
        ({"flops": [1, -2, 0, 0]}, {}, ["ops.flops of 'matmul' is -2"]),
        ({"flops": [1]}, {}, ["ops.flops has 1 value where 4"]),
        ({}, {"src": [3, 1, 2, 0]}, ["cycle", "cast"]),
        ({}, {"bytes": [64, 64, 16]}, ["edges.bytes has 3 values where 4"]),
        ({}, {"src": [0, 1]}, ["4", "2"]),
        ({}, {"dst": [1, 2, 9, 3]}, ["9"]),
        ({}, {"weight": [1]}, ["edges", "unknown column 'weight'"]),
        ({}, {"tensor": [0, 0, 2, -1]}, ["tensor"]),
    ],
)
def test_columns_of_numbers_that_are_replaced_are_checked(ops, edges, words):
    with pytest.raises(InputError) as error:
        FULL.with_columns(ops, edges)
    assert all(word in str(error.value) for word in words)


# -- JSON ------------------------------------------------------------------------------------


@given(op_graphs())
def test_a_document_read_back_is_the_same_graph(graph):
    document = graph.to_document()
    again = OpGraph.from_document(json.loads(json.dumps(document)))
    assert again.to_document() == document
    assert again.digest == graph.digest


@pytest.mark.parametrize("suffix", ["json", "json.gz"])
def test_a_file_read_back_is_the_same_graph(tmp_path, suffix):
    path = tmp_path / f"graph.{suffix}"
    opgraph.write(FULL, path)
    assert (path.read_bytes()[:2] == b"\x1f\x8b") == suffix.endswith("gz")
    for again in (opgraph.read(path), lm.read(path), lm.read(str(path))):
        assert again.to_document() == FULL.to_document()
    assert [p.name for p in tmp_path.iterdir()] == [path.name], "nothing else is left behind"


def test_gzip_is_told_by_content_and_written_reproducibly(tmp_path):
    plain, packed = tmp_path / "plain.gz", tmp_path / "packed.json"
    packed.write_bytes(gzip.compress(json.dumps(FULL.to_document()).encode()))
    assert lm.read(packed).digest == FULL.digest
    opgraph.write(FULL, plain)
    first = plain.read_bytes()
    opgraph.write(FULL, plain)
    assert plain.read_bytes() == first


def test_every_example_survives_a_round_trip(any_example):
    again = OpGraph.from_document(json.loads(json.dumps(any_example.to_document())))
    assert again.digest == any_example.digest


def test_columns_that_are_missing_mean_nothing():
    graph = OpGraph({"name": ["a", "b"]}, {"src": [0], "dst": [1]})
    assert graph.kinds == graph.phases == graph.colocation == ["", ""]
    for column in (graph.flops, graph.output_bytes, graph.param_bytes, graph.workspace, graph.view):
        assert not column.any()
    assert graph.alias_of.tolist() == [-1, -1]
    assert graph.time == {}
    assert graph.tensor is None
    assert graph.bytes.tolist() == [0]
    assert set(graph.to_document()["ops"]) == {"name"}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], 'no "format": "opgraph"'),
        ({"format": "onnx"}, 'no "format": "opgraph"'),
        ({"format": "opgraph", "version": 2}, "version 2"),
        ({"format": "opgraph"}, "version None"),
        ({"format": "opgraph", "version": 1}, "no object 'ops'"),
        ({"format": "opgraph", "version": 1, "ops": {"name": ["a"]}}, "no object 'edges'"),
        ({"format": "opgraph", "version": 1, "ops": {}, "edges": {}}, "ops.name is missing"),
        (
            {"format": "opgraph", "version": 1, "ops": {"name": ["a"]}, "edges": {"src": []}},
            "edges.dst is missing",
        ),
    ],
)
def test_documents_of_another_shape(document, message):
    with pytest.raises(InputError, match=message) as caught:
        OpGraph.from_document(document, "net.json")
    assert str(caught.value).startswith("net.json")


# -- digest ----------------------------------------------------------------------------------

CHANGES = {
    ("ops", "name"): ["weight", "matmul", "row", "other"],
    ("ops", "kind"): ["parameter", "aten.mm", "aten.select", "aten.cast"],
    ("ops", "module"): ["fc", "fc", "fc", "fc"],
    ("ops", "phase"): ["f", "f", "f", "o"],
    ("ops", "colocation"): ["fc", "fc", "fc", ""],
    ("ops", "output"): ["f32[4,4]", "f32[4,4]", "f32[4]", "f16[2]"],
    ("ops", "device_types"): ["", "gpu", "", "cpu"],
    ("ops", "flops"): [0, 128, 0, 5],
    ("ops", "bytes_accessed"): [0, 192, 0, 25],
    ("ops", "output_bytes"): [0, 64, 0, 9],
    ("ops", "param_bytes"): [65, 0, 0, 0],
    ("ops", "workspace"): [0, 33, 0, 0],
    ("ops", "view"): [0, 0, 0, 0],
    ("ops", "alias_of"): [-1, -1, 0, -1],
    ("ops", "time"): {"gpu": [0.0, 1e-3, 0.0, 1e-6], "*": [0.0, 0.1, 0.0, 0.30000000000000004]},
    ("ops", "args"): [None, None, [[{"op": 1}, 0, -1]], None],
    ("edges", "src"): [0, 1, 2, 1],
    ("edges", "dst"): [1, 2, 3, 2],
    ("edges", "tensor"): [0, 1, 3, -1],
    ("edges", "bytes"): [64, 64, 17, 0],
}


def test_the_digest_changes_with_every_column():
    assert {c for p, c in CHANGES if p == "ops"} == set(FULL.to_document()["ops"])
    digests = {FULL.digest}
    for (part, column), values in CHANGES.items():
        digests.add(OpGraph.from_document(changed(FULL, part, column, values)).digest)
    assert len(digests) == 1 + len(CHANGES)


def test_the_digest_does_not_change_with_name_and_meta():
    document = FULL.to_document() | {"name": "other", "meta": {}}
    assert OpGraph.from_document(document).digest == FULL.digest


def test_the_digest_is_the_same_in_every_process():
    code = "import loadmaster as lm; print(lm.read('example:lenet').digest)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONHASHSEED": "17"},
    )
    assert done.stdout.strip() == lm.read("example:lenet").digest


# -- lookup and immutability -----------------------------------------------------------------


def test_index_by_name_or_index():
    assert FULL.index("row") == FULL.index(2) == 2
    with pytest.raises(InputError, match="did you mean 'matmul'"):
        FULL.index("matmull")
    with pytest.raises(InputError, match=r"no op is named 'qqqqqq'$"):
        FULL.index("qqqqqq")
    for outside in (-1, 4):
        with pytest.raises(InputError, match=f"op {outside}: the graph has ops 0 to 3"):
            FULL.index(outside)


def test_index_by_an_integer_of_numpy():
    assert FULL.index(np.int32(2)) == 2


def test_columns_cannot_be_written():
    columns = {k: v for k, v in vars(FULL).items() if isinstance(v, np.ndarray)}
    assert {"flops", "src", "dst", "bytes", "view", "alias_of", "param_bytes"} <= set(columns)
    for name, column in columns.items():
        with pytest.raises(ValueError, match="read-only"):
            column[0] = 1
        assert not column.flags.writeable, name


def test_times_cannot_be_written():
    with pytest.raises(ValueError, match="read-only"):
        OpGraph({"name": ["a"], "time": {"*": [1.0]}}, {"src": [], "dst": []}).time["*"][0] = 2.0


def test_the_users_arrays_stay_theirs():
    flops, src = np.array([1, 2], dtype=np.uint64), np.array([0], dtype=np.int64)
    time = np.array([1.0, 2.0])
    ops = {"name": ["a", "b"], "flops": flops, "time": {"*": time}}
    graph = OpGraph(ops, {"src": src, "dst": [1]})
    flops[0], src[0], time[0] = 9, 1, 9.0
    assert graph.flops.tolist() == [1, 2]
    assert graph.src.tolist() == [0]
    assert graph.time["*"].tolist() == [1.0, 2.0]


def test_repr_and_sizes():
    assert repr(FULL) == "OpGraph('full', 4 ops, 4 edges)"
    assert (FULL.n_ops, FULL.n_edges) == (4, 4)


# -- what is wrong is named ------------------------------------------------------------------

AB = {"name": ["alpha", "beta"]}
EDGE = {"src": [0], "dst": [1]}


@pytest.mark.parametrize(
    ("ops", "edges", "words"),
    [
        (AB | {"colour": ["red", "blue"]}, EDGE, ["unknown column 'colour'", "kind"]),
        (AB, EDGE | {"weight": [1]}, ["edges", "unknown column 'weight'", "tensor"]),
        ({"name": []}, {"src": [], "dst": []}, ["no ops"]),
        ({"name": ["alpha", "alpha"]}, EDGE, ['two ops are named "alpha"', "0", "1"]),
        ({"name": ["alpha", 7]}, EDGE, ["ops.name[1] is 7", "string"]),
        (AB | {"kind": ["x"]}, EDGE, ["ops.kind has 1 value where 2"]),
        (AB | {"kind": ["x", None]}, EDGE, ["ops.kind[1] is None"]),
        (AB | {"flops": [1]}, EDGE, ["ops.flops has 1 value where 2"]),
        (AB | {"flops": [1, -2]}, EDGE, ["ops.flops of 'beta' is -2", "not negative"]),
        (AB | {"flops": [1, float("nan")]}, EDGE, ["ops.flops of 'beta' is nan"]),
        (AB | {"flops": [1, "x"]}, EDGE, ["ops.flops[1] is 'x'"]),
        (AB | {"flops": [1, 2**64]}, EDGE, ["ops.flops[1]", "out of range"]),
        (AB | {"output_bytes": [float("inf"), 0]}, EDGE, ["ops.output_bytes of 'alpha' is inf"]),
        (AB | {"workspace": [-1, 0]}, EDGE, ["ops.workspace of 'alpha' is -1"]),
        (AB | {"view": [0, "yes"]}, EDGE, ["ops.view[1] is 'yes'"]),
        (AB | {"view": [0, 0.5]}, EDGE, ["ops.view[1] is 0.5", "integer"]),
        (AB | {"alias_of": [-1, 5]}, EDGE, ['"beta" has alias_of 5']),
        (AB | {"alias_of": [0, -1]}, EDGE, ['"alpha" has alias_of 0']),
        (AB | {"time": [1, 2]}, EDGE, ["ops.time must map device types"]),
        (AB | {"time": {"gpu": [1.0]}}, EDGE, ["ops.time['gpu'] has 1 value where 2"]),
        (AB | {"time": {"gpu": [1.0, -1.0]}}, EDGE, ["ops.time['gpu'] of 'beta' is -1.0"]),
        (AB | {"time": {"gpu": [float("nan"), 0]}}, EDGE, ["ops.time['gpu'] of 'alpha' is nan"]),
        (AB | {"time": {"gpu": [1.0, None]}}, EDGE, ["ops.time['gpu'][1] is None"]),
        (AB, {"src": [0]}, ["edges.dst is missing"]),
        (AB, {"dst": [0]}, ["edges.src is missing"]),
        (AB, {"src": [0], "dst": [1, 1]}, ["edges.dst has 2 values where 1"]),
        (AB, {"src": [0], "dst": [2]}, ["edge 0 has dst 2", "0 to 1", "dangling"]),
        (AB, {"src": [-3], "dst": [1]}, ["edge 0 has src -3"]),
        (AB, {"src": [1], "dst": [1]}, ['edge 0 joins "beta" to itself']),
        (AB, {"src": [0, 1], "dst": [1, 0]}, ["cycle", '"alpha"', '"beta"']),
        (AB, EDGE | {"tensor": [-2]}, ["edge 0 carries tensor -2"]),
        (AB, EDGE | {"tensor": [3]}, ["edge 0 carries tensor 3", "0 to 2", "renumber"]),
        (AB, EDGE | {"tensor": ["t"]}, ["edges.tensor[0] is 't'"]),
        (AB, EDGE | {"bytes": [-1]}, ["edges.bytes[0] is -1"]),
        (
            {"name": ["a", "b", "c"]},
            {"src": [0, 1], "dst": [2, 2], "tensor": [0, 0]},
            ["tensor 0 has two producers", '"a"', '"b"'],
        ),
        (
            {"name": ["a", "b", "c"]},
            {"src": [0, 0], "dst": [1, 2], "bytes": [4, 8]},
            ['of "a" has 4 bytes on one edge and 8 on another'],
        ),
    ],
)
def test_bad_columns_are_named(ops, edges, words):
    with pytest.raises(InputError) as caught:
        OpGraph(ops, edges)
    for word in words:
        assert word in str(caught.value)
    with pytest.raises(InputError, match=r"^net\.json: "):
        OpGraph.from_document(
            {"format": "opgraph", "version": 1, "ops": ops, "edges": edges}, "net.json"
        )


@pytest.mark.parametrize(
    ("ops", "edges", "extra"),
    [
        pytest.param(AB | {"kind": 5}, EDGE, {}, id="a text column that is a number"),
        pytest.param({"name": 5}, EDGE, {}, id="names that are a number"),
        pytest.param({"name": "ab"}, EDGE, {}, id="names that are one string"),
        pytest.param({"name": ["a", "\ud800"]}, EDGE, {}, id="a name that is no UTF-8"),
        pytest.param(AB, EDGE, {"meta": [1, 2]}, id="meta that is a list"),
        pytest.param(AB | {"flops": [1e30, 0]}, EDGE, {}, id="more than 64 bits"),
        pytest.param(AB, EDGE | {"tensor": [2**64 - 1]}, {}, id="a tensor id that wraps to -1"),
        pytest.param(
            {"name": ["a", "b", "c"]}, {"src": [1, 2], "dst": None}, {}, id="a column that is null"
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_malformed_documents_are_input_errors(ops, edges, extra):
    document = {"format": "opgraph", "version": 1, "ops": ops, "edges": edges} | extra
    with pytest.raises(InputError):
        OpGraph.from_document(document)


# -- networkx --------------------------------------------------------------------------------


def test_networkx_and_back_is_the_same_document():
    nx_graph = FULL.to_networkx()
    assert isinstance(nx_graph, nx.MultiDiGraph)
    assert nx_graph.nodes["row"]["alias_of"] == "matmul"
    assert nx_graph.nodes["cast"]["time"] == {"gpu": 1e-6, "*": 0.3}
    again = OpGraph.from_networkx(nx_graph)
    # networkx lists edges by source, so one that comes late moves up; nothing else changes.
    ours = FULL.to_document()
    rows = sorted(zip(*ours["edges"].values(), strict=True))
    theirs = again.to_document()
    assert sorted(zip(*theirs["edges"].values(), strict=True)) == rows
    assert theirs["ops"] == ours["ops"]
    assert again.name == "full"


@given(op_graphs())
def test_networkx_and_back_keeps_drawn_graphs(graph):
    order = np.lexsort((np.arange(graph.n_edges), graph.src))
    document = graph.to_document() | {"meta": {}}
    document["edges"] = {k: np.array(v)[order].tolist() for k, v in document["edges"].items()}
    by_source = OpGraph.from_document(document)
    again = OpGraph.from_networkx(by_source.to_networkx())
    assert again.to_document() == by_source.to_document()


def test_parallel_edges_of_networkx_carry_a_tensor_each():
    g = nx.MultiDiGraph()
    g.add_edge("a", "b", tensor=0, bytes=4)
    g.add_edge("a", "b", tensor=1, bytes=8)
    graph = OpGraph.from_networkx(g)
    assert graph.tensor.tolist() == [0, 1]
    assert graph.bytes.tolist() == [4, 8]


def test_attributes_of_other_names():
    g = nx.DiGraph(name="mine")
    g.add_node(1, cost={"gpu": 1e-3}, weights=64, op="conv", show=None)
    g.add_node(2, cost={"gpu": 2e-3}, op="relu", base=1)
    g.add_edge(1, 2, size=16)
    graph = OpGraph.from_networkx(
        g, time="cost", bytes="size", kind="op", param_bytes="weights", alias_of="base"
    )
    assert graph.name == "mine"
    assert graph.names == ["1", "2"]
    assert graph.time["gpu"].tolist() == [1e-3, 2e-3]
    assert graph.kinds == ["conv", "relu"]
    assert graph.param_bytes.tolist() == [64, 0]
    assert graph.alias_of.tolist() == [-1, 0]
    assert graph.bytes.tolist() == [16]


def test_edges_without_tensor_share_one_if_they_agree_on_bytes():
    g = nx.DiGraph()
    g.add_edge("same", "x", bytes=4)
    g.add_edge("same", "y", bytes=4)
    g.add_edge("unlike", "x", bytes=4)
    g.add_edge("unlike", "y", bytes=8)
    g.add_edge("given", "x", bytes=4, tensor=0)
    g.add_edge("given", "y", bytes=0, tensor=-1)
    graph = OpGraph.from_networkx(g)
    tensor = {
        (graph.names[s], graph.names[d]): t
        for s, d, t in zip(graph.src, graph.dst, graph.tensor.tolist(), strict=True)
    }
    assert tensor["same", "x"] == tensor["same", "y"]
    assert tensor["unlike", "x"] != tensor["unlike", "y"]
    assert tensor["given", "x"] == 0
    assert tensor["given", "y"] == -1
    assert len(set(tensor.values())) == 5


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: nx.Graph([("a", "b")]), "undirected"),
        (lambda: nx.MultiGraph([("a", "b")]), "undirected"),
        (lambda: nx.DiGraph(), "no ops"),
        (lambda: nx.DiGraph([("a", "b"), ("b", "a")]), "cycle"),
        (lambda: nx.DiGraph([(1, "1")]), 'two ops are named "1"'),
    ],
)
def test_networkx_graphs_that_are_refused(build, message):
    with pytest.raises(InputError, match=message):
        OpGraph.from_networkx(build())


def test_a_node_without_time_for_a_type_is_named():
    g = nx.DiGraph()
    g.add_node("a", time={"gpu": 1.0})
    g.add_node("b", time={"cpu": 1.0})
    with pytest.raises(InputError, match=r"node 'a' has no time for device type 'cpu'"):
        OpGraph.from_networkx(g)


def test_an_unknown_column_argument_is_refused():
    with pytest.raises(InputError, match="unknown column 'colour'"):
        OpGraph.from_networkx(nx.DiGraph([("a", "b")]), colour="c")


def test_an_alias_of_no_node_is_refused():
    g = nx.DiGraph([("a", "b")])
    g.nodes["b"]["alias_of"] = "typo"
    with pytest.raises(InputError, match="typo"):
        OpGraph.from_networkx(g)


def test_to_networkx_without_networkx_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "networkx", None)
    with pytest.raises(MissingExtraError, match=r"loadmaster\[networkx\]"):
        FULL.to_networkx()


# -- random bytes ----------------------------------------------------------------------------


@given(st.binary(max_size=60))
@settings(max_examples=50)
def test_no_bytes_make_the_reader_fail_otherwise(tmp_path_factory, data):
    """Whatever a file holds, reading it gives a graph or a LoadmasterError that names the file."""
    path = tmp_path_factory.mktemp("any") / "any.json"
    path.write_bytes(b"{" + data)
    with pytest.raises(lm.LoadmasterError, match=r"any\.json"):
        lm.read(path)


def test_sums_over_reduced_ops():
    graph = graph_of(
        {"w": 0, "a": 1, "v": 0.5},
        [("w", "a", 4), ("a", "v", 4)],
        kind=["parameter", "", ""],
        view=[0, 0, 1],
    )
    reduced = graph.reduced
    assert isinstance(reduced, Reduced)
    assert reduced.sum(graph.time["*"]).tolist() == [1.5 * MS]
    both = np.stack([graph.time["*"]] * 2, axis=1)
    assert reduced.sum(both).tolist() == [[1.5 * MS, 1.5 * MS]]


def test_a_document_is_changed_without_its_graph():
    graph = lm.read("example:lenet")
    digest = graph.digest
    document = graph.to_document()
    document["ops"]["name"][0] = document["ops"]["kind"][0] = "other"
    document["meta"]["model"] = "other"
    assert lm.OpGraph.from_document(graph.to_document(), "again").digest == digest
    assert "other" not in (*graph.names, *graph.kinds, *graph.meta.values())
