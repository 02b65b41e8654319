"""Files as OpenVINO saves them: its own sizes, and the FLOPs of the ONNX that they are made of."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", minversion="1.18", reason="needs onnx 1.18 or later")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from onnx_models import MODELS  # noqa: E402

import loadmaster as lm  # noqa: E402


def recurrent():
    """A convolution, a pooling, an LSTM over the columns, and a softmax of a product."""
    rng = np.random.default_rng(0)

    def weight(name, *shape):
        return numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name)

    node, info = helper.make_node, helper.make_tensor_value_info
    nodes = [
        node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1], group=3),
        node("Relu", ["c"], ["r"]),
        node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Reshape", ["p", "to"], ["s"]),
        node("LSTM", ["s", "wx", "wr"], ["l"], hidden_size=16),
        node("Reshape", ["l", "flat"], ["f"]),
        node("MatMul", ["f", "v"], ["m"]),
        node("Softmax", ["m"], ["y"], axis=-1),
    ]
    stored = [
        weight("w", 6, 1, 3, 3), weight("wx", 1, 64, 48), weight("wr", 1, 64, 16),
        weight("v", 16, 10), numpy_helper.from_array(np.array([-1, 2, 48]), "to"),
        numpy_helper.from_array(np.array([-1, 16]), "flat"),
    ]  # fmt: skip
    inputs = [info("x", TensorProto.FLOAT, [2, 3, 16, 16])]
    graph = helper.make_graph(nodes, "net", inputs, [info("y", TensorProto.FLOAT, None)], stored)
    opset = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opset, ir_version=8)


@pytest.mark.needs("openvino")
@pytest.mark.parametrize("name", ["branchy", "recurrent"])
def test_a_saved_model_has_the_sizes_and_the_work_of_its_source(name, tmp_path):
    ov = pytest.importorskip("openvino", reason="needs the extra openvino")
    source = recurrent() if name == "recurrent" else MODELS[name]()
    onnx.save(source, tmp_path / "m.onnx")
    model = ov.convert_model(tmp_path / "m.onnx")
    model.reshape({port: [2 if d.is_dynamic else d.get_length() for d in port.partial_shape]
                   for port in model.inputs})  # fmt: skip
    ov.save_model(model, tmp_path / "m.xml", compress_to_fp16=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graph = lm.read(tmp_path / "m.xml")
        before = lm.read(tmp_path / "m.onnx", batch=2)
    ops = [op for op in model.get_ops() if op.get_type_name() != "Result"]
    names = {op.get_friendly_name() for op in ops}
    assert set(graph.names) <= names
    for op in ops:
        if op.get_friendly_name() not in graph.names:  # at the place of another weight
            assert op.get_type_name() == "Constant"
            continue
        shapes = [",".join(map(str, output.shape)) for output in op.outputs()]
        ours = graph.outputs[graph.index(op.get_friendly_name())]
        assert [text.partition("[")[2].removesuffix("]") for text in ours.split(";")] == shapes
    stored = (tmp_path / "m.bin").stat().st_size
    assert stored <= graph.param_bytes.sum() <= stored * 1.05
    heavy = {"MatMul", "Conv", "Convolution", "GroupConvolution", "LSTM", "LSTMSequence"}
    work = [
        sum(int(n) for n, kind in zip(g.flops, g.kinds, strict=True) if kind in heavy)
        for g in (graph, before)
    ]
    assert work[0] == work[1] > 0
