"""Shapes of ONNX Runtime's quantized ops, beside those that it makes itself."""

from __future__ import annotations

import warnings
from random import Random

import numpy as np
import pytest

onnxruntime = pytest.importorskip("onnxruntime", reason="needs onnxruntime")

from fuzz.onnx_models import one  # noqa: E402
from onnx import helper, numpy_helper  # noqa: E402
from onnxruntime.capi import onnxruntime_pybind11_state as runtime  # noqa: E402

from loadmaster.readers.onnx.model import to_columns  # noqa: E402
from loadmaster.readers.onnx.runtime_shapes import RULES, STAND_INS  # noqa: E402

DOMAIN = "com.microsoft"
#: Names of the element types that the models here have.
SPELLED = {"float32": "f32", "uint8": "u8", "int8": "i8", "int32": "i32", "int64": "i64"}


def test_every_quantized_op_has_a_rule():
    """An op of the domain is quantized if it reads or makes 8-bit numbers by its name."""
    words = ("QLinear", "QOrdered", "Quantize", "Integer", "QGemm", "QAttention", "QMoE", "NBits")
    kinds = {f"{DOMAIN}.{s.name}" for s in runtime.get_all_operator_schema() if s.domain == DOMAIN}
    quantized = {kind for kind in kinds if any(word in kind for word in words)}
    assert len(quantized) > 25
    assert quantized <= {*RULES, *STAND_INS}


def bytes_of(random: Random, *shape: int) -> np.ndarray:
    return np.random.default_rng(random.randrange(99)).integers(0, 200, shape).astype(np.uint8)


def scale() -> list[np.ndarray]:
    """A scale and a zero."""
    return [np.float32(0.1), np.uint8(3)]


def floats(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def image(random: Random, last: bool) -> np.ndarray:
    batch, channels, rows, columns = (random.randint(4, 7) for _ in range(4))
    shape = (batch, rows, columns, channels) if last else (batch, channels, rows, columns)
    return bytes_of(random, *shape)


def drawn(kind: str, random: Random) -> tuple[list[np.ndarray | None], dict]:
    """Inputs, the first of which is not stored, and attributes of an op."""
    a, b, c = (random.randint(1, 6) for _ in range(3))
    last, n_axes = random.random() < 0.5, random.randint(1, 3)
    x, s = bytes_of(random, a, b, c), scale()
    axes = {"channels_last": int(last)}
    window = {"kernel_shape": [2, 3], "strides": [random.randint(1, 2)] * 2, "pads": [0, 1, 1, 0]}
    match kind:
        case "QLinearConcat":
            axis = random.randint(-3, 2)
            sizes = [list(x.shape) for _ in range(n_axes)]
            for one in sizes:
                one[axis] = random.randint(1, 5)
            parts = [x, *(bytes_of(random, *one) for one in sizes)]
            return [*s, *(t for part in parts for t in (part, *s))], {"axis": axis}
        case "QLinearAdd" | "QLinearMul":
            return [x, *s, bytes_of(random, random.choice((1, b)), c), *s, *s], {}
        case "QLinearLeakyRelu" | "QLinearSigmoid":
            return [x, *s, *s], {}
        case "QLinearSoftmax":
            return [x, *s, *s], {"axis": -1, "opset": 13}
        case "QLinearWhere":
            return [np.ones((b, c), bool), x, *s, bytes_of(random, 1, c), *s, *s], {}
        case "QLinearAveragePool":
            return [image(random, last), *s, *s], window | axes
        case "QLinearGlobalAveragePool":
            return [image(random, last), *s, *s], axes
        case "QLinearConv":
            x = image(random, last)
            w = bytes_of(random, 3, x.shape[-1 if last else 1], 2, 3)
            return [x, *s, w, *s, *s], window | axes
        case "NhwcMaxPool":
            return [image(random, True)], window
        case "QGemm":
            out = [np.zeros(a, np.int32), *s] if last else []
            return [x[0], *s, bytes_of(random, c, a), *s, *out], {"alpha": 1.0}
        case "MatMulIntegerToFloat":
            return [x, bytes_of(random, c, b), np.float32(0.1), np.float32(0.1)], {}
        case "DynamicQuantizeMatMul":
            return [floats(a, b, c), bytes_of(random, c, b), np.float32(0.1)], {}
        case "GatherBlockQuantized":
            data = bytes_of(random, a, 16)
            picked = np.zeros((b, c), np.int64)
            bits = random.choice((4, 8))
            scales = floats(a, 16 * 8 // bits // 16)
            return [data, picked, scales], {"bits": bits, "block_size": 16, "quantize_axis": 1}
        case "MatMulNBits":
            weights = bytes_of(random, b, 2, 16)
            return [floats(a, c, 64), weights, floats(b * 2)], {
                "K": 64, "N": b, "bits": 4, "block_size": 32,
            }  # fmt: skip
        case "QuantizeLinear":
            return [floats(a, b, c), *s], {}
        case "DequantizeLinear":
            return [x, *s], {}
        case "MatMulInteger16":
            return [x.astype(np.int16), bytes_of(random, c, b).astype(np.int16)], {}
    raise AssertionError(kind)


KINDS = [
    "QLinearConcat",
    "QLinearAdd",
    "QLinearMul",
    "QLinearLeakyRelu",
    "QLinearSigmoid",
    "QLinearSoftmax",
    "QLinearWhere",
    "QLinearAveragePool",
    "QLinearGlobalAveragePool",
    "QLinearConv",
    "NhwcMaxPool",
    "QGemm",
    "MatMulIntegerToFloat",
    "DynamicQuantizeMatMul",
    "GatherBlockQuantized",
    "MatMulNBits",
    "QuantizeLinear",
    "DequantizeLinear",
    "MatMulInteger16",
]


@pytest.mark.parametrize("kind", KINDS)
def test_shapes_are_those_that_onnx_runtime_makes(kind):
    random = Random(kind)
    for _ in range(8):
        arrays, attributes = drawn(kind, random)
        names = [f"i{i}" for i in range(len(arrays))]
        node = helper.make_node(kind, names, ["y"], "op", domain=DOMAIN, **attributes)
        at = 2 if kind == "QLinearConcat" else 0
        fed, kept = arrays[at], dict(zip(names, arrays, strict=True))
        kept.pop(names[at])
        graph = helper.make_graph(
            [node],
            "g",
            [helper.make_tensor_value_info(
                names[at], helper.np_dtype_to_tensor_dtype(fed.dtype), fed.shape)],
            [helper.make_empty_tensor_value_info("y")],
            [numpy_helper.from_array(np.asarray(t), n) for n, t in kept.items()],
        )  # fmt: skip
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            ops = to_columns(model, name="m")["ops"]
        session = onnxruntime.InferenceSession(model.SerializeToString())
        (made,) = session.run(None, {names[at]: fed})
        seen = ops["output"][ops["name"].index("op")]
        assert seen == f"{SPELLED[made.dtype.name]}[{','.join(map(str, made.shape))}]"


def test_drawn_models_have_the_sizes_of_a_run_and_plans():
    """A few inputs of the target ``onnx-models`` of tests/fuzz, which runs more."""
    for index in range(10):
        one(Random(f"onnx-models 0 {index}"))
