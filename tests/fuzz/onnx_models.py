"""ONNX models that are drawn: sizes are those that ONNX Runtime makes, and every plan is found.

Without ONNX Runtime there is no such target; ``tests/live`` runs a few inputs.
"""

from __future__ import annotations

import contextlib
import re
import warnings
from importlib.util import find_spec
from random import Random
from typing import Any

import numpy as np

import loadmaster as lm

from .frame import target

#: Two GPUs, a GPU beside a processor, and a laptop.
CLUSTERS = ("2xV100-NVLink", "cpu+gpu", "laptop")


def one(random: Random) -> None:
    """A model: its sizes beside those of a run, and its plans on three clusters."""
    from drawn_onnx import drawn_model

    from loadmaster.readers.onnx.model import to_columns

    model = drawn_model(random).model()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        document = to_columns(model, name="drawn")
        sizes_hold(model, document["ops"], made_by_onnx_runtime(random, model))
        graph = lm.OpGraph.from_document(document)
        for cluster in CLUSTERS:
            with contextlib.suppress(lm.LoadmasterError):
                said = lm.place(graph, cluster).summary()
                assert not re.search("two producers|carries tensor|wants values", said), said


def sizes_hold(model: Any, ops: dict[str, list[Any]], made: dict[str, Any]) -> None:
    """What is known is what a run makes, and all is known but what depends on what is fed."""
    outputs = dict(zip(ops["name"], ops["output"], strict=True))
    fed: set[str] = set()
    for node in (node for node in model.graph.node if node.op_type != "Constant"):
        depends = node.op_type == "NonZero" or not fed.isdisjoint(node.input)
        if depends:
            fed.update(node.output)
        for value, text in zip(node.output, outputs[node.output[0]].split(";"), strict=True):
            sizes = re.sub(r".*\[|\]", "", text).split(",")
            wanted = [str(size) for size in made[value].shape] or [""]
            right = depends or sizes == wanted
            assert right, f"{node.op_type} {value} is {text}, and a run makes {wanted}"


def made_by_onnx_runtime(random: Random, model: Any) -> dict[str, Any]:
    """Each value of a run on drawn numbers, by name."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    numbers = np.random.default_rng(random.randrange(2**32))
    feeds = {
        one.name: numbers.integers(0, 3, one.shape).astype(
            np.int64 if one.type == "tensor(int64)" else np.float32
        )
        for one in session.get_inputs()
    }
    names = [out.name for out in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


if find_spec("onnxruntime"):
    target("onnx-models", in_ci=20)(one)
