"""Graphs and runs as TensorFlow writes them today, read without it and held against what it ran.

Needs tensorflow-cpu, some 2 GB: without it these tests are skipped.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow", reason="needs tensorflow")

import loadmaster as lm  # noqa: E402
from loadmaster.readers.tensorflow import protos  # noqa: E402
from loadmaster.readers.tensorflow.costs import OF_SHAPES  # noqa: E402

tf1 = tf.compat.v1


def dense(x, width, name):
    with tf1.variable_scope(name):
        shape = [x.shape[-1], width]
        w = tf1.get_variable("w", shape, use_resource=False, initializer=tf1.ones_initializer())
        b = tf1.get_variable("b", [width], use_resource=False, initializer=tf1.zeros_initializer())
        return tf.nn.relu(tf.matmul(x, w) + b)


def trained(folder, loss, feeds):
    """The files of a training step, and the message that TensorFlow itself makes of its run."""
    optimizer = tf1.train.MomentumOptimizer(0.1, 0.9)
    train = optimizer.minimize(loss, name="train_op")
    metadata = tf1.RunMetadata()
    options = tf1.RunOptions(trace_level=tf1.RunOptions.FULL_TRACE, output_partition_graphs=True)
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        for _ in range(2):
            session.run(train, feeds, options=options, run_metadata=metadata)
    graph = tf1.get_default_graph().as_graph_def(add_shapes=True)
    (folder / "g.pb").write_bytes(graph.SerializeToString())
    (folder / "r.pb").write_bytes(metadata.SerializeToString())
    return graph, metadata


def read(folder, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return lm.read(folder / "g.pb", **options)


@pytest.fixture
def step(tmp_path):
    with tf.Graph().as_default():
        x = tf1.placeholder(tf.float32, [None, 12], name="x")
        y = tf1.placeholder(tf.float32, [None, 4], name="y")
        hidden = dense(dense(x, 16, "one"), 16, "two")
        loss = tf.reduce_mean(tf.square(dense(hidden, 4, "out") - y), name="loss")
        ones = {x: np.ones((6, 12), np.float32), y: np.ones((6, 4), np.float32)}
        yield tmp_path, *trained(tmp_path, loss, ones)


def test_all_that_ran_is_timed(step):
    folder, _, metadata = step
    graph = read(folder, profile=folder / "r.pb")
    stats = [s for d in metadata.step_stats.dev_stats for s in d.node_stats]
    nanos = sum(
        s.op_end_rel_nanos - s.op_start_rel_nanos for s in stats if s.node_name in set(graph.names)
    )
    assert graph.time["cpu"].sum() == pytest.approx(nanos * 1e-9)
    assert graph.meta["batch"] == 6
    ran = {s.node_name for s in stats}
    assert all(n in ran for n, k in zip(graph.names, graph.kinds, strict=True) if k != "input")
    kinds = set(graph.kinds)
    assert {"parameter", "buffer", "ApplyMomentum", "MatMul"} <= kinds
    assert set(graph.phases) == {"f", "b", "o"}
    # The bias, and on some CPUs the activation, is fused into the product.
    at = next(graph.index(f"two/{n}") for n in ("MatMul", "add", "Relu") if f"two/{n}" in ran)
    assert graph.flops[at] >= 2 * 6 * 16 * 16


def reached(edges):
    """Whatever each name is followed by."""
    after, order = {}, []
    for s, d in edges:
        after.setdefault(s, set()).add(d)
        after.setdefault(d, set())
    missing = dict.fromkeys(after, 0)
    for d in (d for ds in after.values() for d in ds):
        missing[d] += 1
    order = [n for n, count in missing.items() if not count]
    for name in order:
        for d in after[name]:
            missing[d] -= 1
            if not missing[d]:
                order.append(d)
    found = {}
    for name in reversed(order):
        found[name] = after[name].union(*(found[d] for d in after[name]))
    return found


def test_ops_wait_for_what_they_waited_for(step):
    """The graph that TensorFlow made of it orders the ops that compute as the one that is read."""
    folder, _, metadata = step
    graph = read(folder, profile=folder / "r.pb")
    ran = {node.name: node for part in metadata.partition_graphs for node in part.node}
    theirs = reached(
        (text.removeprefix("^").partition(":")[0], node.name)
        for node in ran.values()
        for text in node.input
    )
    ours = reached(
        (graph.names[s], graph.names[d])
        for s, d in zip(graph.src.tolist(), graph.dst.tolist(), strict=True)
    )
    # Of shape ops that are alike TensorFlow runs one, in the name of any.
    others = ("Const", "VariableV2", "_Arg", *OF_SHAPES)
    computing = {n for n, node in ran.items() if node.op not in others and n in graph.names}
    assert len(computing) > 20
    for name in computing:
        assert ours[name] & computing == theirs[name] & computing, name


def test_messages_are_tensorflows():
    """Every field has the number and the type that TensorFlow gives it."""
    from tensorflow.core.framework import graph_pb2
    from tensorflow.core.protobuf import config_pb2, meta_graph_pb2, saved_model_pb2

    seen = set()

    def compare(ours, theirs):
        if ours.name in seen:
            return
        seen.add(ours.name)
        for field in ours.fields:
            other = theirs.fields_by_name[field.name]
            assert field.number == other.number, (ours.name, field.name)
            enum = other.type == other.TYPE_ENUM and field.type == field.TYPE_INT32
            assert field.type == other.type or enum, (ours.name, field.name)
            if field.message_type is not None:
                compare(field.message_type, other.message_type)

    classes = protos._classes()
    for name, module in (
        ("GraphDef", graph_pb2),
        ("MetaGraphDef", meta_graph_pb2),
        ("RunMetadata", config_pb2),
        ("SavedModel", saved_model_pb2),
    ):
        compare(classes[name].DESCRIPTOR, getattr(module, name).DESCRIPTOR)
    assert set(protos._MESSAGES) <= seen


def test_a_loop_of_today(tmp_path):
    """``tf.while_loop`` as session graphs have it."""
    with tf.Graph().as_default():
        tf1.disable_control_flow_v2()
        x = tf1.placeholder(tf.float32, [3, 3], name="x")
        _, y = tf1.while_loop(
            lambda i, v: i < 7, lambda i, v: (i + 1, tf.matmul(v, v, name="square")), [0, x]
        )
        tf.identity(y, name="y")
        metadata = tf1.RunMetadata()
        options = tf1.RunOptions(trace_level=tf1.RunOptions.FULL_TRACE)
        with tf1.Session() as session:
            session.run("y:0", {x: np.eye(3)}, options=options, run_metadata=metadata)
        graph_def = tf1.get_default_graph().as_graph_def(add_shapes=True)
        (tmp_path / "g.pb").write_bytes(graph_def.SerializeToString())
        (tmp_path / "r.pb").write_bytes(metadata.SerializeToString())
    with pytest.warns(UserWarning, match="7 rounds"):
        graph = lm.read(tmp_path / "g.pb", profile=tmp_path / "r.pb")
    squares = [int(f) for f, kind in zip(graph.flops, graph.kinds, strict=True) if kind == "MatMul"]
    assert squares == [7 * 2 * 27]


def test_a_plan_goes_back_to_tensorflow(step, tmp_path):
    """What is read can be placed, and the plan written into the same GraphDef."""
    folder, graph_def, _ = step
    graph = read(folder, profile=folder / "r.pb")
    plan = lm.place(graph, lm.Cluster.preset("2xV100-NVLink"), "heft")
    placed = lm.writers.tensorflow_graph(plan, model=graph_def)
    devices = {node.name: node.device for node in placed.node}
    assert devices["one/Relu"] == f"/device:GPU:{plan.device('one/Relu').removeprefix('gpu')}"
