"""Execution traces: dataflow through storages, what was there before, times joined from Kineto."""

from __future__ import annotations

import gzip
import json
import warnings
from collections import Counter

import numpy as np
import pytest
from folders import at
from hypothesis import given
from hypothesis import strategies as st
from kineto_traces import (
    call,
    kernel,
    launch,
    mark,
    node,
    plain,
    tensor,
    tensors,
    write_nodes,
    write_trace,
)

import loadmaster as lm
from loadmaster.base.errors import InputError
from loadmaster.cli import main
from loadmaster.readers.pytorch import execution_trace as chakra
from loadmaster.readers.pytorch import execution_trace_nodes as chakra_nodes
from loadmaster.readers.pytorch import kineto, kineto_events

ADD = "aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor"
ADD_ = "aten::add_.Tensor(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)"
T = "aten::t(Tensor(a) self) -> Tensor(a)"
ADDMM = (
    "aten::addmm(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1) -> Tensor"
)
LINEAR = "aten::linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor"
RELU = "aten::relu(Tensor self) -> Tensor"
FOREACH = "aten::_foreach_add_.List(Tensor(a!)[] self, Tensor[] other, *, Scalar alpha=1) -> ()"

# y = linear(x, w, b); z = relu(y); y is freed, and its numbers are used for the gradient g; w += g.
X, W, B = tensor(10, 20, [8, 4]), tensor(11, 21, [6, 4]), tensor(12, 22, [6])
WT = tensor(13, 21, [4, 6], strides=[1, 4])
Y, Z = tensor(14, 24, [8, 6]), tensor(15, 25, [8, 6])
G = tensor(14, 24, [6, 4])
STEP = [
    node(2, "aten::linear", inputs=[X, W, B], outputs=[Y], schema=LINEAR, seq=3),
    node(3, "aten::t", 2, [W], [WT], T, seq=3),
    node(4, "aten::transpose", 3, [W, plain(0), plain(1)], [WT]),
    node(5, "aten::addmm", 2, [B, X, WT, plain(1), plain(1)], [Y], ADDMM, seq=4),
    node(6, "aten::relu", inputs=[Y], outputs=[Z], schema=RELU, seq=5),
    node(7, "aten::clamp_min", 6, [Y, plain(0)], [Z]),
    node(8, "autograd::engine::evaluate_function: AddmmBackward0", seq=4, scope=1),
    node(9, "AddmmBackward0", 8, [Z], seq=4, scope=1),
    node(10, "aten::mm", 9, [Z, X], [G], "aten::mm(Tensor self, Tensor mat2) -> Tensor"),
    node(11, "Optimizer.step#SGD.step", scope=7),
    node(12, "aten::add_", 11, [W, G, plain(-0.1)], [W], ADD_),
]


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def read(tmp_path, nodes, **options):
    return chakra.read(write_nodes(tmp_path / "step.et.json", nodes), **options)


def edges(graph):
    """Source, destination, bytes; None for a control edge."""
    return {
        (graph.names[s], graph.names[d], None if t < 0 else int(b))
        for s, d, t, b in zip(graph.src, graph.dst, graph.tensor, graph.bytes, strict=True)
    }


def column(graph, name):
    return dict(zip(graph.names, getattr(graph, name), strict=True))


def kinds(graph):
    return {n: k for n, k in column(graph, "kinds").items() if "::" not in k}


# ---- dataflow ----------------------------------------------------------------------------------


def test_a_step_checked_by_hand(tmp_path):
    graph = read(tmp_path, STEP)
    assert edges(graph) == {
        ("aten::t.weight", "aten::t", 96),
        ("aten::addmm.bias", "aten::addmm", 24),
        ("aten::addmm.mat1", "aten::addmm", 128),
        ("aten::t", "aten::addmm", 96),
        ("aten::addmm", "aten::relu", 192),
        ("aten::relu", "aten::mm", 192),
        ("aten::addmm.mat1", "aten::mm", 128),
        ("aten::t.weight", "aten::add_", 96),
        ("aten::mm", "aten::add_", 96),
        # The weight is changed after it was read: by the view, and by the op that reads the view.
        ("aten::t", "aten::add_", None),
        ("aten::addmm", "aten::add_", None),
    }
    assert kinds(graph) == {
        "aten::t.weight": "parameter",
        "aten::addmm.bias": "parameter",
        "aten::addmm.mat1": "input",
    }
    assert column(graph, "view") == {n: n == "aten::t" for n in graph.names}
    weight = graph.index("aten::t.weight")
    alias = column(graph, "alias_of")
    assert {n for n in alias if alias[n] == weight} == {"aten::t", "aten::add_"}
    phases = column(graph, "phases")
    assert (phases["aten::relu"], phases["aten::mm"], phases["aten::add_"]) == ("f", "b", "o")
    assert column(graph, "output_bytes")["aten::mm"] == 96
    assert column(graph, "param_bytes")["aten::t.weight"] == 96
    assert column(graph, "outputs")["aten::addmm"] == "f32[8,6]"
    assert column(graph, "flops")["aten::addmm"] == 2 * 8 * 6 * 4
    assert graph.colocation[graph.index("aten::add_")] == "aten::t.weight"
    assert graph.meta["mode"] == "train"


def test_numbers_that_are_used_again_are_another_storage(tmp_path):
    a, b = tensor(1, 1, [4]), tensor(2, 2, [4])
    scalar = tensor(9, 1, [], "double", 8)  # made by Python where a's storage was
    nodes = [
        node(2, "aten::relu", inputs=[tensor(5, 5, [4])], outputs=[a], schema=RELU),
        node(3, "aten::exp", inputs=[a], outputs=[b]),
        node(4, "aten::mul", inputs=[b, scalar], outputs=[tensor(3, 3, [4])]),
        node(5, "aten::relu", inputs=[tensor(3, 3, [4])], outputs=[a], schema=RELU),
        node(6, "aten::neg", inputs=[tensor(8, 1, [4])], outputs=[b]),  # as autograd unpacks it
    ]
    graph = read(tmp_path, nodes)
    assert edges(graph) == {
        ("aten::relu.self", "aten::relu", 16),
        ("aten::relu", "aten::exp", 16),
        ("aten::exp", "aten::mul", 16),
        ("aten::mul.constant", "aten::mul", 8),
        ("aten::mul", "aten::relu#2", 16),
        ("aten::relu#2", "aten::neg", 16),
    }


def test_what_reads_a_view_of_what_was_changed_reads_the_change(tmp_path):
    whole, part = tensor(1, 1, [4, 4]), tensor(2, 1, [4], offset=4)
    nodes = [
        node(2, "aten::zeros", outputs=[whole]),
        node(3, "aten::select", inputs=[whole, plain(0), plain(1)], outputs=[part]),
        node(4, "aten::add_", inputs=[whole, tensor(7, 7, [])], outputs=[whole], schema=ADD_),
        node(5, "aten::exp", inputs=[part], outputs=[tensor(3, 3, [4])]),
    ]
    found = edges(read(tmp_path, nodes))
    assert ("aten::add_", "aten::exp", 64) in found
    assert ("aten::select", "aten::exp", 16) not in found
    assert ("aten::select", "aten::add_", None) in found


def test_several_outputs_are_several_tensors(tmp_path):
    a, b = tensor(1, 1, [4]), tensor(2, 2, [8])
    nodes = [
        node(2, "aten::native_layer_norm", inputs=[tensor(5, 5, [4])], outputs=[a, b]),
        node(3, "aten::exp", inputs=[a], outputs=[tensor(6, 6, [4])]),
        node(4, "aten::exp", inputs=[b, a], outputs=[tensor(7, 7, [8])]),
    ]
    graph = read(tmp_path, nodes)
    out = graph.src == graph.index("aten::native_layer_norm")
    assert sorted(graph.bytes[out].tolist()) == [16, 16, 32]
    assert len(set(graph.tensor[out].tolist())) == 2
    assert column(graph, "output_bytes")["aten::native_layer_norm"] == 48


def test_a_list_op_is_an_op_per_tensor(tmp_path):
    weights = [tensor(10 + i, 10 + i, [2**i]) for i in range(3)]
    gradients = [tensor(20 + i, 20 + i, [2**i]) for i in range(3)]
    nodes = [
        node(2, "aten::relu", inputs=[weights[2]], outputs=[gradients[0]], schema=RELU),
        node(3, "Optimizer.step#SGD.step", scope=7),
        node(4, "aten::_foreach_add_", 3, [tensors(*weights), tensors(*gradients)], schema=FOREACH),
    ]
    path = write_nodes(tmp_path / "step.et.json", nodes)
    timed = [call("aten::relu", 0, 5, **{"Record function id": 2})]
    timed += [call("aten::_foreach_add_", 10, 70, **{"Record function id": 4})]
    graph = chakra.read(path, profile=write_trace(tmp_path / "k.json", timed))
    parts = [f"aten::_foreach_add_[{i}]" for i in range(3)]
    alias, seconds = column(graph, "alias_of"), graph.time["cpu"]
    assert [graph.kinds[alias[part]] for part in parts] == ["buffer", "buffer", "parameter"]
    np.testing.assert_allclose([seconds[graph.index(p)] for p in parts], [1e-5, 2e-5, 4e-5])
    assert ("aten::relu", parts[0], 4) in edges(graph)


def test_an_op_that_changes_several_tensors_says_so(tmp_path):
    a, b = tensor(1, 1, [4]), tensor(2, 2, [8])
    schema = "my::swap_(Tensor(a!) x, Tensor(b!) y) -> ()"
    path = write_nodes(tmp_path / "x.et.json", [node(2, "my::swap_", inputs=[a, b], schema=schema)])
    with pytest.warns(
        UserWarning, match="1 op changes several tensors in place, 'my::swap_' first"
    ):
        graph = chakra.read(path)
    assert graph.kinds[graph.alias_of[graph.index("my::swap_")]] == "buffer"


def test_a_number_that_all_updates_read_binds_nothing(tmp_path):
    """As LAMB does: the weights' norm scales every update."""
    weights = [tensor(i, i, [4]) for i in (1, 2)]
    norm = tensor(5, 5, [])
    nodes = [node(i + 1, "aten::relu", inputs=[w], schema=RELU) for i, w in enumerate(weights, 1)]
    nodes.append(node(9, "Optimizer.step#LAMB.step", scope=7))
    nodes.append(node(10, "aten::linalg_vector_norm", 9, weights, [norm]))
    nodes += [node(10 + i, "aten::mul_", 9, [w, norm], [w], ADD_) for i, w in enumerate(weights, 1)]
    graph = read(tmp_path, nodes)
    assert len(set(graph.colocation) - {""}) == 2


@pytest.mark.parametrize(
    ("name", "schema"),
    [
        ("my::update_", ""),
        ("c10d::allreduce_", ""),
        ("my::update", "my::update(Tensor a) -> Tensor"),
    ],
)
def test_what_comes_back_without_being_called_a_view_was_changed(tmp_path, name, schema):
    a = tensor(1, 1, [4])
    nodes = [node(2, name, inputs=[a], outputs=[a], schema=schema)]
    graph = read(tmp_path, nodes)
    assert not graph.view.any()
    assert graph.alias_of[graph.index(name)] >= 0
    assert "buffer" in graph.kinds


def test_what_was_there_before_is_told_by_its_use(tmp_path):
    norm = (
        "aten::batch_norm(Tensor input, Tensor? weight, Tensor? bias, Tensor? running_mean, "
        "Tensor? running_var, bool training) -> Tensor"
    )
    inputs = [tensor(i, i, [2, 4] if i == 1 else [4]) for i in range(1, 6)]
    nodes = [
        node(2, "aten::my_norm", inputs=inputs, outputs=[tensor(7, 7, [4])], schema=norm),
        node(
            3,
            "aten::mul",
            inputs=[tensor(7, 7, [4]), tensor(8, 8, [])],
            outputs=[tensor(9, 9, [4])],
        ),
        node(4, "aten::add_", inputs=[tensor(6, 6, [], "long int", 8)], schema=ADD_),
    ]
    assert Counter(kinds(read(tmp_path, nodes)).values()) == {
        "input": 1, "parameter": 2, "buffer": 3, "constant": 1,
    }  # fmt: skip


def test_kinds_whose_flops_are_not_known_are_listed_once(tmp_path):
    nodes = [node(2 + i, "my::op", inputs=[tensor(1, 1, [4])]) for i in range(3)]
    with pytest.warns(
        UserWarning, match=r"FLOPs of 3 ops are not known, .*: my::op \(3\)"
    ) as caught:
        read(tmp_path, nodes)
    assert len(caught) == 1
    assert caught[0].filename == __file__


# ---- joined ------------------------------------------------------------------------------------


def timed_step():
    frame = call("nn.Module: Linear_0", -5, 70, cat="python_function")
    rows = [(2, 0, 60), (3, 2, 8), (4, 3, 6), (5, 12, 40), (6, 70, 20), (7, 72, 15)]
    rows += [(8, 100, 50), (9, 102, 45), (10, 105, 30), (12, 205, 25)]
    names = {each["id"]: each["name"] for each in STEP}
    events = [call(names[i], at, took, **{"Record function id": i}) for i, at, took in rows]
    return [frame, *events, mark("Optimizer.step#SGD.step", 200, 50)]


def test_joined_times_modules_and_profile(tmp_path):
    path = write_nodes(tmp_path / "step.et.json", STEP)
    times = write_trace(tmp_path / "k.json.gz", timed_step())
    graph = chakra.read(path, profile=times)
    seconds = dict(zip(graph.names, graph.time["cpu"], strict=True))
    took = {name: round(s * 1e6, 6) for name, s in seconds.items() if s}
    assert took == {"Linear_0/aten::addmm": 40, "aten::relu": 20, "aten::mm": 30, "aten::add_": 25}
    assert graph.names[0] == "Linear_0/aten::t.weight"
    profile = chakra.profile(times, graph=path, batch=8)
    assert set(profile.names) == set(took)
    assert profile.output_bytes.tolist() == [192, 192, 96, 0]
    assert [round(s * 1e6) for s in profile.median()] == [40, 20, 30, 25]


def test_joined_with_kernels(tmp_path):
    path = write_nodes(tmp_path / "step.et.json", STEP)
    events = [*timed_step(), launch(1, 15), launch(2, 74), launch(3, 106), launch(4, 206)]
    events += [kernel("k", 1000 * i, 7 * i, i) for i in range(1, 5)]
    properties = {"deviceProperties": [{"id": 0, "name": "V9"}]}
    graph = chakra.read(path, profile=write_trace(tmp_path / "k.json", events, **properties))
    assert [round(s * 1e6) for s in graph.time["V9"] if s] == [7, 14, 21, 28]
    other = chakra.read(path, profile=tmp_path / "k.json", device_type="H100")
    assert list(other.time) == ["H100"]


def test_an_op_that_was_not_measured_is_no_silent_zero(tmp_path):
    path = write_nodes(tmp_path / "step.et.json", STEP)
    events = [e for e in timed_step() if e["name"] not in ("aten::relu", "aten::clamp_min")]
    times = write_trace(tmp_path / "k.json", events)
    with pytest.warns(
        UserWarning, match="1 of 5 ops are not in .*: their times are by their bytes"
    ):
        graph = chakra.read(path, profile=times)
    moved = {n: b for n, b in column(graph, "bytes_accessed").items() if b}
    seconds = dict(zip(graph.names, graph.time["cpu"], strict=True))
    rest = [name for name in moved if name != "aten::relu"]
    rate = sum(seconds[n] for n in rest) / sum(moved[n] for n in rest)
    assert seconds["aten::relu"] == pytest.approx(rate * moved["aten::relu"])
    assert graph.meta["time_sources"] == {"bytes": ["aten::relu"]}


def test_traces_of_different_steps_are_refused(tmp_path):
    path = write_nodes(tmp_path / "step.et.json", STEP)
    events = timed_step()
    for event in events:
        event["args"].pop("Record function id", None)
    with pytest.raises(InputError, match=r"no record function ids.*Record both in one step"):
        chakra.read(path, profile=write_trace(tmp_path / "a.json", events))
    events = timed_step()
    events[5]["name"] = "aten::gelu"
    with pytest.raises(InputError, match="not of one step: 'aten::relu' in one is 'aten::gelu'"):
        chakra.read(path, profile=write_trace(tmp_path / "b.json", events))
    events = timed_step()[:3]
    with pytest.raises(InputError, match="not of one step: 1 of 5 ops are in both"):
        chakra.read(path, profile=write_trace(tmp_path / "c.json", events))


def test_steps_of_an_execution_trace(tmp_path):
    nodes, events = [], []
    for i in range(3):
        first = 100 * i
        nodes.append(node(first + 2, f"ProfilerStep#{i}", scope=7))
        nodes.append(
            node(first + 3, "aten::relu", first + 2, [tensor(1, 1, [4])], [tensor(2, 2, [4])], RELU)
        )
        events.append(call("aten::relu", 50 * i, 10 + i**2, **{"Record function id": first + 3}))
    path = write_nodes(tmp_path / "step.et.json", nodes)
    times = write_trace(tmp_path / "k.json", events)
    graph = chakra.read(path, profile=times)
    assert (graph.n_ops, graph.meta["steps"]) == (2, 3)
    assert graph.time["cpu"].max() == pytest.approx(11e-6)
    assert chakra.read(path, profile=times, step=2).time["cpu"].max() == pytest.approx(14e-6)
    lacking = [event for event in events if event["ts"] != 100]
    with pytest.raises(InputError, match="has no op of the step that is asked for"):
        chakra.read(path, profile=write_trace(tmp_path / "k.json", lacking), step=2)
    nodes.append(node(250, "aten::exp", 202, [tensor(2, 2, [4])], [tensor(3, 3, [4])]))
    with pytest.raises(InputError, match="they differ: step 2 has 2 ops"):
        read(tmp_path, nodes)


# ---- bad input ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([], "records no ops of PyTorch"),
        ([node(2, "aten::mm"), node(2, "aten::mm")], "two nodes with id 2"),
        (
            [node(2, "aten::mm", 3), node(3, "aten::mm")],
            r"node 2 \('aten::mm'\) is called by a later",
        ),
        ([{"id": "2", "name": "aten::mm"}], "node 1 of the list has id '2'"),
        ([{"id": 2, "name": None}], "has id 2 and name None"),
        ([7], "node 1 of the list has id None"),
        ([{"id": 2, "name": "aten::mm", "ctrl_deps": [1]}], r"node 2 has ctrl_deps \[1\]"),
    ],
)
def test_nodes_that_are_wrong_are_named(tmp_path, nodes, message):
    with pytest.raises(InputError, match=message):
        read(tmp_path, nodes)


def test_nodes_in_any_order_are_one_graph(tmp_path):
    assert read(tmp_path, STEP[::-1]).digest == read(tmp_path, STEP).digest


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"nodes": []}, "no execution trace: it has no schema and nodes"),
        ({"schema": "1.0.1", "nodes": []}, "has schema 1.0.1; versions named 'chakra' are read"),
        ([], "no execution trace"),
    ],
)
def test_what_is_no_execution_trace(tmp_path, document, message):
    path = tmp_path / "x.json"
    path.write_text(json.dumps(document))
    with pytest.raises(InputError, match=message):
        chakra.read(path)


def test_a_trace_that_is_cut_off(tmp_path):
    path = write_nodes(tmp_path / "step.et.json", STEP)
    data = path.read_bytes()
    path.write_bytes(data[:-9])
    with pytest.raises(InputError, match="not valid JSON"):
        chakra.read(path)
    path.write_bytes(gzip.compress(data)[:-9])
    with pytest.raises(InputError, match="truncated gzip"):
        chakra.read(path)


@given(st.data())
def test_a_damaged_trace_is_refused_or_read(tmp_path_factory, data):
    nodes = json.loads(json.dumps(STEP))
    odd = st.one_of(
        st.none(), st.integers(-2, 2**66), st.floats(), st.text(max_size=3), st.builds(list),
        st.builds(dict), st.just([[1, 2**70, 0, -4, 4, "cpu"]]), st.just([["a", [[]]]]),
        st.sampled_from(["Tensor(float)", "GenericList[Tensor(float)]", "aten::to", T, ADD_]),
    )  # fmt: skip
    for _ in range(data.draw(st.integers(1, 4))):
        each = data.draw(st.sampled_from(nodes))
        where = data.draw(st.sampled_from(["node", "inputs", "outputs", "attribute"]))
        if where == "node":
            each[data.draw(st.sampled_from(sorted(each)))] = data.draw(odd)
        elif where == "attribute" and isinstance(each["attrs"], list) and each["attrs"]:
            attribute = data.draw(st.sampled_from(each["attrs"]))
            if isinstance(attribute, dict):
                attribute[data.draw(st.sampled_from(["name", "value"]))] = data.draw(odd)
        elif isinstance(each.get(where), dict):
            side = each[where]
            key = data.draw(st.sampled_from(["values", "types", "shapes", "strides"]))
            column = side.get(key)
            if isinstance(column, list) and column and data.draw(st.booleans()):
                column[data.draw(st.integers(0, len(column) - 1))] = data.draw(odd)
            else:
                side[key] = data.draw(odd)
    path = tmp_path_factory.mktemp("fuzz") / "step.et.json"
    path.write_text(json.dumps({"schema": "1.1.1-chakra.0.0.4", "nodes": nodes}))
    try:
        graph = chakra.read(path)
    except InputError:
        return
    assert graph.n_ops
    assert graph.reduced.graph.n_ops


# ---- by content, and the real ones -------------------------------------------------------------


def test_lm_read_tells_an_execution_trace_by_its_content(tmp_path):
    path = write_nodes(tmp_path / "anything.json", STEP)
    assert lm.read(path).n_ops == 8
    times = write_trace(tmp_path / "k.json", timed_step())
    assert list(lm.read(path, profile=times).time) == ["cpu"]
    with pytest.raises(InputError, match="an execution trace takes no option 'shapes'"):
        lm.read(path, shapes={"x": [1]})


def test_the_command_line_joins_traces(tmp_path, capsys):
    path = write_nodes(tmp_path / "step.et.json", STEP)
    times = write_trace(tmp_path / "k.json", timed_step())
    cluster = tmp_path / "one.toml"
    cluster.write_text(
        '[[type]]\nname = "V9"\n[[device]]\nname = "d"\ntype = "V9"\nmemory = "1GiB"\n'
    )
    given = ["info", str(path), "--profile", str(times), "--cluster", str(cluster)]
    assert main([*given, "--device-type", "V9", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["work"] == pytest.approx(115e-6)
    assert main([*given, "--device-type", "V9", "--step", "3"]) == 2
    assert "no step 3" in capsys.readouterr().err


@pytest.mark.large_data
@pytest.mark.parametrize(
    ("name", "calls", "ops", "parameters", "buffers"),
    [("resnet18_b4_joint", 2888, 812, 62, 246), ("bertmini_b4_joint", 3553, 1026, 52, 156)],
)
def test_real_traces_joined(name, calls, ops, parameters, buffers):
    path, times = (at(f"artifacts/torch/{name}.{kind}.json.gz") for kind in ("et", "kineto"))
    recorded, trace = chakra_nodes.load(path), kineto_events.load(times)
    names = {int(n): trace.calls.names[i] for i, n in enumerate(trace.record) if n > 0}
    joined = [
        names[int(n)] == recorded.calls.names[i]
        for i, n in enumerate(recorded.record)
        if int(n) in names and recorded.calls.roles[i] != 3
    ]
    assert joined == [True] * calls
    graph = chakra.read(path, profile=times)
    counts = Counter(graph.kinds)
    assert (counts["parameter"], counts["buffer"], counts["input"]) == (parameters, buffers, 2)
    assert sum("::" in kind for kind in graph.kinds) == ops == len(trace.calls.ops)
    # Each parameter has two slots, and they and what updates them share a device.
    sets = Counter(c for c, k in zip(graph.colocation, graph.kinds, strict=True) if k == "buffer")
    assert {n for c, n in sets.items() if c} == {2}
    assert len(set(graph.colocation) - {""}) == parameters
    shown = sum(trace.seconds(trace.calls.ops))
    assert 0.95 * shown < graph.time["cpu"].sum() <= shown
    assert not graph.meta["assumed"][3:]


@pytest.mark.parametrize(
    "name",
    [
        "lstm_b2",
        pytest.param("resnet18_b16", marks=pytest.mark.large_data),
        pytest.param("bertmini_b4_joint", marks=pytest.mark.large_data),
    ],
)
def test_both_traces_call_ops_the_same(name):
    """So what was profiled at other batches belongs to the graph, though it cannot be joined."""
    graph = chakra.read(at(f"artifacts/torch/{name}.et.json.gz"))
    ops = [n for n, kind in zip(graph.names, graph.kinds, strict=True) if "::" in kind]
    assert ops == list(kineto.profile(at(f"artifacts/torch/{name}.kineto.json.gz")).names)


@pytest.mark.large_data
def test_flops_of_a_real_step_are_those_of_the_model():
    """ResNet-18 at 128 x 128, a batch of 4: 0.595 G multiply-adds per image, forward."""
    graph = chakra.read(at("artifacts/torch/resnet18_b4_joint.et.json.gz"))
    forward = sum(f for f, p in zip(graph.flops.tolist(), graph.phases, strict=True) if p == "f")
    assert forward == pytest.approx(2 * 4 * 0.595e9, rel=0.01)
    first = graph.flops[graph.index("aten::convolution")]  # its input needs no gradient
    assert graph.flops.sum() == pytest.approx(3 * forward - first, rel=0.001)


def test_real_traces_of_different_steps():
    path, times = (at(f"artifacts/torch/lstm_b4.{kind}.json.gz") for kind in ("et", "kineto"))
    with pytest.raises(InputError, match="no record function ids"):
        chakra.read(path, profile=times)


@pytest.mark.large_data
def test_a_real_step_is_placed(tmp_path):
    path, times = (
        at(f"artifacts/torch/bertmini_b4_joint.{kind}.json.gz") for kind in ("et", "kineto")
    )
    graph = lm.read(path, profile=times)
    cluster = lm.Cluster.from_toml(
        """
        name = "two processes"
        [[type]]
        name = "cpu"
        [[device]]
        name = "a"
        type = "cpu"
        memory = "8GiB"
        [[device]]
        name = "b"
        type = "cpu"
        memory = "8GiB"
        [[link]]
        from = ["a", "b"]
        to = ["a", "b"]
        bandwidth = 5e9
        latency = 10e-6
        """
    )
    plan = lm.place(graph, cluster, "heft")
    assert plan.provenance == {"measured": 1.0}
    assert plan.lower_bound <= plan.makespan < plan.single
