"""Names are no code in the forms that need the model's own file either: protobuf and a manifest.

Models are those of harmless names with other texts in every field; see ``writers/
test_hostile_names.py`` for forms that are text. Needs onnx and ONNX Runtime; OpenVINO and
TensorFlow for their forms.
"""

from __future__ import annotations

import json
import re
import tomllib

import hostile
import numpy as np
import pytest
import tomli_w

onnx = pytest.importorskip("onnx", minversion="1.18", reason="needs onnx 1.18 or later")
pytest.importorskip("onnxruntime", reason="needs the extra onnxruntime")

from onnx_models import branchy, conditional  # noqa: E402
from placed import at_random  # noqa: E402

import loadmaster as lm  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:control flow counts as one op")

MODELS = {"branchy": branchy, "conditional": conditional}

#: The texts of fields, by set; of the empty set, harmless ones.
TEXTS = {"": {name: "q" for name in hostile.MARKS}, **hostile.SETS}


def renamed(graph, texts):
    """Puts texts before all names of an ONNX graph, and of the bodies of its nodes."""
    path = texts["path"]
    for node in graph.node:
        node.name, node.doc_string = path + node.name, texts["note"]
        for names in (node.input, node.output):
            names[:] = [path + name if name else "" for name in names]
        for attribute in node.attribute:
            if attribute.HasField("g"):
                renamed(attribute.g, texts)
    for one in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        one.name = path + one.name
    for one in (*graph.input, *graph.output):
        one.doc_string = texts["why"]
        for dim in one.type.tensor_type.shape.dim:
            if dim.HasField("dim_param"):
                dim.dim_param = texts["argument"]
    graph.name, graph.doc_string = texts["graph"], texts["value"]


def saved(name, texts, folder):
    """The model under other texts."""
    model = MODELS[name]()
    renamed(model.graph, texts)
    model.producer_name, model.doc_string = texts["source"], texts["description"]
    model.metadata_props.add(key=texts["meta"], value=texts["option"])
    folder.mkdir()
    onnx.save(model, folder / "model.onnx")
    return folder / "model.onnx"


def planned(model, texts):
    """A plan on two devices of hostile names."""
    document = hostile.put(tomllib.loads(hostile.marked_cluster().to_toml()), texts)
    cluster = lm.Cluster.from_toml(tomli_w.dumps(document))
    return at_random(lm.read(model, batch=3), 2, seed=3, cluster=cluster)


def shape_of(graph):
    """The nodes of an ONNX graph, without names."""
    return [(node.op_type, len(node.input), len(node.output)) for node in graph.node]


@pytest.mark.parametrize("key", list(hostile.SETS))
@pytest.mark.parametrize("name", list(MODELS))
def test_sub_models_are_those_of_harmless_names_and_run(name, key, tmp_path):
    seen = []
    for which in ("", key):
        texts, folder = TEXTS[which], tmp_path / f"of_{bool(which)}"
        model = saved(name, texts, folder)
        manifest = planned(model, texts).export("onnx", folder / "parts", model=model)
        files = [row["file"] for row in manifest["segments"]]
        assert all(re.fullmatch(r"\d{3}_[\w.-]{1,100}\.onnx", file) for file in files)
        parts = [onnx.load(folder / "parts" / file) for file in files]
        values = {v: v for row in manifest["segments"] for v in (*row["inputs"], *row["outputs"])}
        assert all(value.startswith(texts["path"]) for value in values)
        x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
        outputs = lm.writers.OnnxSegments(folder / "parts").run({f"{texts['path']}x": x})
        seen.append(
            (
                [shape_of(part.graph) for part in parts],
                [(len(row["inputs"]), len(row["outputs"])) for row in manifest["segments"]],
                [value.tolist() for value in outputs.values()],
            )
        )
        assert sorted(p.name for p in folder.rglob("*")) == sorted(
            ["model.onnx", "parts", "manifest.json", *files]
        )
        devices = {device.name for device in planned(model, texts).cluster.devices}
        assert {row["device"] for row in manifest["segments"]} <= devices
    assert seen[0] == seen[1]


@pytest.mark.parametrize("key", list(hostile.SETS))
@pytest.mark.parametrize("name", list(MODELS))
def test_annotated_models_are_those_of_harmless_names(name, key, tmp_path):
    seen = []
    for which in ("", key):
        texts, folder = TEXTS[which], tmp_path / f"of_{bool(which)}"
        model = saved(name, texts, folder)
        plan = planned(model, texts)
        placed = plan.export("onnx-annotated", folder / "placed.onnx", model=model)
        assert onnx.load(folder / "placed.onnx") == placed
        names = [device.name for device in plan.cluster.devices]
        assert list(placed.configuration[0].device) == names
        facts = [[fact.key for fact in node.metadata_props] for node in placed.graph.node]
        seen.append((shape_of(placed.graph), facts))
    assert seen[0] == seen[1]


@pytest.mark.parametrize("key", list(hostile.SETS))
def test_affinities_are_those_of_harmless_names(key, tmp_path):
    pytest.importorskip("openvino", reason="needs the extra openvino")
    seen = []
    for which in ("", key):
        texts, folder = TEXTS[which], tmp_path / f"of_{bool(which)}"
        model = saved("branchy", texts, folder)
        written = planned(model, texts).export("openvino", folder / "file.json", model=model)
        assert json.loads((folder / "file.json").read_text()) == written
        seen.append({one.removeprefix(texts["path"]): device for one, device in written.items()})
    assert seen[0] == seen[1]


@pytest.mark.parametrize("key", list(hostile.SETS))
def test_devices_of_a_graph_def_are_those_of_harmless_names(key, tmp_path):
    graph_pb2 = pytest.importorskip(
        "tensorflow.core.framework.graph_pb2", reason="needs TensorFlow"
    )
    seen = []
    for which in ("", key):
        # A colon and a caret are TensorFlow's own.
        path = TEXTS[which]["path"].replace(":", "").replace("^", "")
        graph = graph_pb2.GraphDef()
        for name, kind, inputs in (("x", "Placeholder", ()), ("a", "Relu", "x"), ("y", "Neg", "a")):
            node = graph.node.add(name=path + name, op=kind)
            node.input[:] = [path + one for one in inputs]
            node.attr["T" if inputs else "dtype"].type = 1
            shape = node.attr["_output_shapes"].list.shape.add()
            shape.dim.add(size=4)
        (tmp_path / "graph.pb").write_bytes(graph.SerializeToString())
        plan = at_random(lm.read(tmp_path / "graph.pb"), 2, cluster=hostile.marked_cluster())
        placed = plan.export(
            "tensorflow-graph", tmp_path / "placed.pb", model=tmp_path / "graph.pb"
        )
        assert placed == graph_pb2.GraphDef.FromString((tmp_path / "placed.pb").read_bytes())
        seen.append([(node.name.removeprefix(path), node.device) for node in placed.node])
    assert seen[0] == seen[1]
