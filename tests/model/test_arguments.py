"""The column of call arguments: it survives documents and networkx, and what is wrong is named."""

from __future__ import annotations

import json
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import graph_of, ms_mesh, op_graphs

import loadmaster as lm
from loadmaster import OpGraph
from loadmaster.base.errors import InputError
from loadmaster.model import arguments
from loadmaster.model.batch import scaled_batch
from loadmaster.readers import opgraph
from loadmaster.transforms import reduce_control, replicate, split_op

AB = {"name": ["alpha", "beta"]}
EDGE = {"src": [0], "dst": [1]}

#: Some calls of three ops.
CALLS = [None, [[{"op": 0}, [1, 0]]], [[[{"op": 0}, {"op": 1}], 1], {"scale": 0.5}]]


@st.composite
def graphs_with_args(draw) -> OpGraph:
    """Drawn graphs of which some ops say what they were called with."""
    graph = draw(op_graphs(max_ops=6))
    numbers = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**63), 2**63 - 1)
    tensor = st.integers(0, graph.n_ops - 1).map(lambda op: {"op": op})
    value = st.none() | st.booleans() | numbers | st.text(max_size=5) | tensor
    value = st.recursive(value, lambda inner: st.lists(inner, max_size=3), max_leaves=6)
    positional = st.lists(value, max_size=4)
    keywords = st.dictionaries(st.text(max_size=5), value, max_size=2)
    call = st.builds(lambda a, b: [a] if b is None else [a, b], positional, st.none() | keywords)
    calls = st.lists(st.none() | call, min_size=graph.n_ops, max_size=graph.n_ops)
    return graph.with_columns({"args": draw(calls)})


def three(**columns) -> OpGraph:
    """A graph of three ops, the calls of which are :data:`CALLS`."""
    return graph_of({"w": 0, "t": 1, "cat": 1}, EDGES_OF_THREE, args=CALLS, **columns)


EDGES_OF_THREE = [("w", "t", 4), ("w", "cat", 4), ("t", "cat", 4)]


# -- documents -------------------------------------------------------------------------------


@given(graphs_with_args())
def test_arguments_read_back_are_the_same(graph):
    document = graph.to_document()
    again = OpGraph.from_document(json.loads(json.dumps(document, allow_nan=False)))
    assert again.args == graph.args
    assert again.to_document() == document
    assert again.digest == graph.digest


def test_arguments_in_a_file_read_back_are_the_same(tmp_path):
    opgraph.write(three(), tmp_path / "three.json.gz")
    assert lm.read(tmp_path / "three.json.gz").args == CALLS


def test_the_entries_are_those_of_the_document():
    document = json.loads(json.dumps(three().to_document()))
    graph = OpGraph.from_document(document)
    ours, theirs = graph.args, document["ops"]["args"]
    assert all(one is other for one, other in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("args", [None, [None, None]])
def test_a_graph_of_which_no_call_is_known_has_no_column(args):
    graph = OpGraph(AB | {"args": args}, EDGE)
    assert graph.args is None
    assert "args" not in graph.to_document()["ops"]
    assert graph.digest == OpGraph(AB, EDGE).digest


# -- what is wrong is named ------------------------------------------------------------------


def nested(depth: int) -> list:
    """Lists within lists."""
    value: list = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (7, ["ops.args is 7", "list"]),
        ("ab", ["ops.args is 'ab'", "list"]),
        ([None], ["ops.args has 1 value where 2"]),
        ([None, [[{"op": 2}]]], ["ops.args of 'beta'", "op 2", "0 to 1"]),
        ([None, [[{"op": -1}]]], ["'beta'", "op -1"]),
        ([None, [[[{"op": 2**70}]]]], ["'beta'", "0 to 1"]),
        ([None, [[], {"bias": {"op": 9}}]], ["'beta'", "op 9"]),
        ([[[{"op": 1}]], [[{"op": True}]]], ["'beta'", '{"op": index}']),
        ([None, [[{"op": 0, "output": 1}]]], ["'beta'", '{"op": index}']),
        ([None, [[{}]]], ["'beta'", '{"op": index}']),
        ([None, []], ["'beta' is []", "[positional]"]),
        ([None, [[], {}, 1]], ["'beta'", "[positional, keywords]"]),
        ([None, [3]], ["'beta' is [3]"]),
        ([3, None], ["'alpha' is 3"]),
        ([None, [[], []]], ["'beta' has the keywords []", "object"]),
        ([None, [[], {3: 4}]], ["'beta' has the keywords {3: 4}"]),
        ([None, [[(1, 2)]]], ["'beta' holds (1, 2)"]),
        ([None, [[np.int64(3)]]], ["'beta' holds", "numbers"]),
        ([None, [[float("-inf")]]], ["'beta' holds -inf", 'the text "-inf"']),
        ([None, [[2**64]]], ["'beta' holds 18446744073709551616", "64 bits"]),
        ([None, [[2**100_000]]], ["'beta' holds an integer of 100001 bits"]),
        ([None, [["\ud800"]]], ["'beta'", "no Unicode"]),
        ([None, [[], {"\ud800": 1}]], ["'beta'", "no Unicode"]),
        ([None, [[nested(arguments.DEEPEST)]]], ["'beta'", "lists within lists"]),
        ([None, [[nested(100_000)]]], ["'beta'", "lists within lists"]),
    ],
)
def test_bad_arguments_are_named(args, words):
    with pytest.raises(InputError) as caught:
        OpGraph(AB | {"args": args}, EDGE)
    for word in words:
        assert word in str(caught.value)


def test_lists_within_lists_up_to_the_limit_are_taken():
    call = [[nested(arguments.DEEPEST - 1)]]
    assert OpGraph(AB | {"args": [None, call]}, EDGE).args[1] == call


# -- what keeps them and what drops them -----------------------------------------------------


def test_edits_that_keep_the_ops_keep_their_arguments():
    graph = three(output_bytes=[0, 4, 8])
    edits = [
        graph.with_columns({"device_types": ["", "gpu", ""]}),
        scaled_batch(graph, Fraction(2)),
        reduce_control(graph),
    ]
    assert all(edited.args == CALLS for edited in edits)
    assert graph.with_columns({"args": None}).args is None


def test_transforms_drop_them():
    graph = lm.read("example:lenet")
    calls = [None if graph.placeholder[op] else [[{"op": 0}]] for op in range(graph.n_ops)]
    graph = graph.with_columns({"args": calls})
    for program in (replicate(graph, 2), split_op(graph, "addmm", "row", 2)):
        assert program.source.args == calls
        assert program.graph.args is None
        assert "args" not in program.graph.to_document()["ops"]


@given(graphs_with_args())
def test_networkx_and_back_keeps_them(graph):
    assert OpGraph.from_networkx(graph.to_networkx()).args == graph.args


def test_networkx_has_nodes_for_tensors():
    found = three().to_networkx()
    assert found.nodes["cat"]["args"] == [[[{"op": "w"}, {"op": "t"}], 1], {"scale": 0.5}]
    assert "args" not in found.nodes["w"]


def test_nodes_in_another_order_have_other_numbers():
    import networkx as nx

    found = three().to_networkx()
    turned = nx.MultiDiGraph()
    turned.add_nodes_from((node, found.nodes[node]) for node in ("cat", "t", "w"))
    turned.add_edges_from(found.edges(data=True))
    of = {0: 2, 1: 1}
    graph = OpGraph.from_networkx(turned)
    assert graph.args == [arguments.renumbered(CALLS[op], of.get) for op in (2, 1)] + [None]


def test_a_call_of_a_node_that_is_gone_is_unknown():
    found = three().to_networkx()
    found.remove_node("t")
    assert OpGraph.from_networkx(found).args is None
    found = three().to_networkx()
    found.remove_node("cat")
    assert OpGraph.from_networkx(found).args == CALLS[:2]


@pytest.mark.parametrize("call", [7, "word", [[{"op": ["w"]}]], [[{"tensor": "w"}]], [[], 3]])
def test_nodes_with_bad_arguments_are_named(call):
    found = three().to_networkx()
    found.nodes["cat"]["args"] = call
    with pytest.raises(InputError, match="'cat'"):
        OpGraph.from_networkx(found)


# -- plans -----------------------------------------------------------------------------------


def test_a_plan_keeps_the_arguments_of_its_graph(tmp_path):
    plan = lm.place(three(), ms_mesh(2), "heft")
    plan.save(tmp_path / "plan.json")
    again = lm.Plan.load(tmp_path / "plan.json", graph=three())
    assert again.graph.args == CALLS


def test_plans_of_a_graph_before_it_had_arguments_are_plans_of_it(tmp_path):
    before, after = three().with_columns({"args": None}), three()
    assert before.digest != after.digest
    assert before.is_same(after)
    assert after.is_same(before)
    old, new = (lm.place(graph, ms_mesh(2), "heft") for graph in (before, after))
    for plan, graph in ((old, after), (new, before)):
        plan.save(tmp_path / "plan.json")
        assert lm.Plan.load(tmp_path / "plan.json", graph=graph).makespan == plan.makespan
    assert old.diff(new).moved_ops == 0


def test_a_plan_of_other_calls_is_a_plan_of_another_graph(tmp_path):
    lm.place(three(), ms_mesh(2), "heft").save(tmp_path / "plan.json")
    other = three().with_columns({"args": [None, [[{"op": 0}, [0, 1]]], None]})
    with pytest.raises(InputError, match="a plan for another graph"):
        lm.Plan.load(tmp_path / "plan.json", graph=other)
