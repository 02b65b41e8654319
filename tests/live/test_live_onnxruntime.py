"""A profile as ONNX Runtime writes it today, joined with the model it optimised.

Needs onnxruntime: without it these tests are skipped.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest

ort = pytest.importorskip("onnxruntime", reason="needs onnxruntime")
onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

import loadmaster as lm  # noqa: E402
from loadmaster.readers.onnx import profile as ort_profile  # noqa: E402

BATCH, RUNS = 3, 5


def network():
    """Two convolutions with ReLUs, pooled, flattened, and a matrix product."""
    rng = np.random.default_rng(0)

    def weight(name, *shape):
        return numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name)

    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["c1"], name="conv1", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"], name="relu1"),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], name="conv2", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c2"], ["r2"], name="relu2"),
        helper.make_node("GlobalAveragePool", ["r2"], ["p"], name="pool"),
        helper.make_node("Flatten", ["p"], ["f"], name="flat"),
        helper.make_node("MatMul", ["f", "w3"], ["m"], name="product"),
        helper.make_node("Softmax", ["m"], ["y"], name="softmax"),
    ]
    floats = TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", floats, ["n", 3, 16, 16])],
        [helper.make_tensor_value_info("y", floats, ["n", 10])],
        [weight("w1", 8, 3, 3, 3), weight("w2", 8, 8, 3, 3), weight("w3", 8, 10)],
    )
    opset = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opset, ir_version=8)


@pytest.mark.parametrize("level", ["ORT_DISABLE_ALL", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL"])
def test_every_op_that_ran_is_timed(tmp_path, level):
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "profile")
    options.intra_op_num_threads = 1
    options.log_severity_level = 3  # a model optimised for this machine alone is what is wanted
    session = ort.InferenceSession(
        network().SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    x = np.ones((BATCH, 3, 16, 16), np.float32)
    for _ in range(RUNS):
        session.run(None, {"x": x})
    recorded = session.end_profiling()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        graph = lm.read(tmp_path / "optimized.onnx", profile=recorded)
    measured = ort_profile.profile(recorded, graph=tmp_path / "optimized.onnx")
    assert (measured.n_steps, measured.batch, measured.device_type) == (RUNS, BATCH, "cpu")
    runs = ~graph.placeholder
    assert (graph.time["cpu"][runs] > 0).all()
    assert set(measured.names) == {n for n, run in zip(graph.names, runs, strict=True) if run}
    sizes = dict(zip(graph.names, graph.output_bytes.tolist(), strict=True))
    for name, size in zip(measured.names, measured.output_bytes.tolist(), strict=True):
        assert sizes[name] == size or graph.view[graph.index(name)], name
