"""What is written for TensorFlow, run by it on two devices.

Needs tensorflow-cpu, some 2 GB: without it these tests are skipped.
"""

from __future__ import annotations

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow", reason="needs tensorflow")

from placed import at_random, with_devices  # noqa: E402

import loadmaster as lm  # noqa: E402
from loadmaster.base.errors import InputError  # noqa: E402

tf1 = tf.compat.v1
NAMES = {"gpu0": "/device:CPU:0", "gpu1": "/device:CPU:1"}


def network(colocated=False):
    """A GraphDef of two branches."""
    graph = tf.Graph()
    with graph.as_default():
        x = tf1.placeholder(tf.float32, [2, 3], name="x")
        w = tf.constant(np.arange(9, dtype=np.float32).reshape(3, 3), name="w")
        left = tf.matmul(x, w, name="left")
        right = tf.nn.relu(tf.matmul(x, w, transpose_b=True, name="right"), name="positive")
        if colocated:
            with tf1.colocate_with(left.op):
                right = tf.identity(right, name="beside")
        tf.add(left, right, name="y")
    return graph.as_graph_def()


def graph_of(graph_def):
    names = [node.name for node in graph_def.node]
    index = {name: i for i, name in enumerate(names)}
    pairs = [
        (index[source.removeprefix("^").split(":")[0]], i)
        for i, node in enumerate(graph_def.node)
        for source in node.input
    ]
    edges = {"src": [a for a, _ in pairs], "dst": [b for _, b in pairs], "bytes": [24] * len(pairs)}
    ops = {"name": names, "kind": [node.op for node in graph_def.node]}
    return lm.OpGraph(ops | {"time": {"*": [1e-5] * len(names)}}, edges, name="network")


@pytest.mark.parametrize("seed", range(3))
def test_nodes_run_where_the_plan_has_them(seed):
    graph_def = network()
    plan = at_random(graph_of(graph_def), 2, seed)
    placed = lm.writers.tensorflow_graph(plan, model=graph_def, names=NAMES)
    assert graph_def == network()
    x = np.ones((2, 3), np.float32)
    with tf.Graph().as_default() as graph:
        tf1.import_graph_def(placed, name="")
        # Nothing rewritten, so that every node is there to be seen.
        config = tf1.ConfigProto(device_count={"CPU": 2}, allow_soft_placement=False)
        off = config.graph_options.rewrite_options
        off.disable_meta_optimizer = True
        config.graph_options.optimizer_options.opt_level = -1
        metadata = tf1.RunMetadata()
        options = tf1.RunOptions(
            trace_level=tf1.RunOptions.FULL_TRACE, output_partition_graphs=True
        )
        with tf1.Session(graph=graph, config=config) as session:
            found = session.run("y:0", {"x:0": x}, options=options, run_metadata=metadata)
    w = np.arange(9, dtype=np.float32).reshape(3, 3)
    np.testing.assert_allclose(found, x @ w + np.maximum(x @ w.T, 0))
    where = {node.name: node.device for part in metadata.partition_graphs for node in part.node}
    for name in ("left", "right", "positive", "y"):
        assert where[name].endswith(NAMES[plan.device(name)].upper().replace("/DEVICE", "/device"))


def test_what_tensorflow_colocates_is_not_parted(tmp_path):
    graph_def = network(colocated=True)
    graph = graph_of(graph_def)
    plan = with_devices(graph, [int(name == "beside") for name in graph.names])
    with pytest.raises(InputError, match=r"must colocate 'beside' with 'left'"):
        lm.writers.tensorflow_graph(plan, model=graph_def)
    together = with_devices(graph, [0 for _ in graph.names])
    lm.writers.tensorflow_graph(together, tmp_path / "placed.pb", model=graph_def)
    again = tf1.GraphDef.FromString((tmp_path / "placed.pb").read_bytes())
    assert {node.device for node in again.node} == {"/device:GPU:0"}
    read = lm.writers.tensorflow_graph(together, model=tmp_path / "placed.pb")
    assert read == again


def test_another_graph_is_refused(tmp_path):
    plan = lm.place(lm.read("example:lenet"), lm.Cluster.preset("2xV100-NVLink"), "heft")
    with pytest.raises(InputError, match="is not the model that the plan is for"):
        lm.writers.tensorflow_graph(plan, model=network())
    with pytest.raises(InputError, match="wants a GraphDef"):
        lm.writers.tensorflow_graph(plan, model=3)
    (tmp_path / "bad.pb").write_bytes(b"\xff\xff\xff")
    with pytest.raises(InputError, match="is no GraphDef"):
        lm.writers.tensorflow_graph(plan, model=tmp_path / "bad.pb")
