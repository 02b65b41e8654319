"""ONNX parts and annotations, run by ONNX Runtime and compared with the whole; OpenVINO."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
from folders import LARGE

onnx = pytest.importorskip("onnx", minversion="1.18", reason="needs onnx 1.18 or later")

from onnx_models import MODELS, OPSET, saved  # noqa: E402
from placed import at_random, with_devices  # noqa: E402

import loadmaster as lm  # noqa: E402
from loadmaster.base.errors import InputError, LoadmasterError  # noqa: E402
from loadmaster.cli import main  # noqa: E402
from loadmaster.readers.onnx.model import op_names, to_columns  # noqa: E402


def read(path, batch=2):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return lm.read(path, batch=batch) if "branchy" in path.name else lm.read(path)


def runtime():
    return pytest.importorskip("onnxruntime", reason="needs the extra onnxruntime")


@pytest.fixture(params=sorted(MODELS))
def model(request, tmp_path):
    return saved(request.param, tmp_path)


@pytest.mark.needs("onnxruntime")
@pytest.mark.parametrize("seed", range(2))
def test_parts_compute_what_the_whole_does(model, seed, tmp_path):
    runtime()
    plan = at_random(read(model), 2 + seed, seed)
    manifest = lm.writers.onnx(plan, tmp_path / "parts", model=model)
    assert lm.writers.check_onnx(tmp_path / "parts", model, seed=seed) == 0.0
    feeds = {i["name"]: np.full(_shape(i), -0.5, np.float32) for i in manifest["inputs"]}
    session = runtime().InferenceSession(str(model), providers=["CPUExecutionProvider"])
    found = lm.writers.OnnxSegments(tmp_path / "parts").run(feeds)
    for name, value in zip(manifest["outputs"], session.run(None, feeds), strict=True):
        np.testing.assert_allclose(found[name], value, rtol=1e-5)


@pytest.mark.needs("onnxruntime")
def test_the_whole_sums_in_the_order_of_its_parts(tmp_path):
    """By as many threads as they have: sums by others differ, and what comes after shows it."""
    runtime()
    made, draw = onnx.helper, np.random.default_rng(0).standard_normal
    stored = {"w": draw((96, 960, 1, 1), np.float32), "steep": np.float32(1000)}
    graph = made.make_graph(
        [
            made.make_node("Conv", ["x", "w"], ["sums"]),
            made.make_node("Mul", ["sums", "steep"], ["angles"]),
            made.make_node("Sin", ["angles"], ["y"]),
        ],
        "waves",
        [made.make_tensor_value_info("x", 1, [1, 960, 10, 10])],
        [made.make_tensor_value_info("y", 1, [1, 96, 10, 10])],
        [onnx.numpy_helper.from_array(value, name) for name, value in stored.items()],
    )
    path = tmp_path / "waves.onnx"
    onnx.save(made.make_model(graph, opset_imports=OPSET), path)
    lm.writers.onnx(at_random(lm.read(path), 2, 0), tmp_path / "parts", model=path)
    assert lm.writers.check_onnx(tmp_path / "parts", path) == 0.0


def _shape(described):
    return json.loads(described["type"].partition("[")[1] + described["type"].partition("[")[2])


@pytest.mark.needs("onnxruntime")
@pytest.mark.large_data
def test_real_models_too(tmp_path):
    runtime()
    for name in ("resnet18_w8", "bertmini_d64", "lstm_d64"):
        path = LARGE / "artifacts" / "onnx" / f"{name}.onnx"
        graph = read(path) if name == "branchy" else lm.read(path, batch=2)
        plan = lm.place(graph, lm.Cluster.preset("4xV100-PCIe"), "layers")
        manifest = lm.writers.onnx(plan, tmp_path / name, model=path)
        assert lm.writers.check_onnx(tmp_path / name, path) < 1e-6
        # Balanced layers in a row: the devices take turns.
        devices = [segment["device"] for segment in manifest["segments"]]
        assert devices == sorted(devices)
        assert len(set(devices)) >= 3


def test_the_cut_of_two_branches(tmp_path):
    path = saved("branchy", tmp_path)
    graph = read(path)
    right = {"right", "right_scaled", "right_again"}
    free = lm.DeviceType("cpu", session_cost=lm.SessionCost())
    two = lm.Cluster.mesh(2, memory="1TiB", bandwidth=1e10, latency=1e-6, type=free)
    devices = [int(name in right) for name in graph.names]
    costs = np.where(graph.placeholder | graph.view, 0.0, 1e-5)
    plan = with_devices(graph, devices, two, costs)
    manifest = lm.writers.onnx(plan, model=path)
    # The left branch runs beside the right one, which waits for the weight that they share.
    left, right, again, joined = manifest["segments"]
    assert (left["device"], left["inputs"], left["outputs"]) == ("gpu0", ["x"], ["a1"])
    assert (right["device"], right["inputs"], right["outputs"]) == ("gpu1", ["x"], ["b1"])
    assert (again["device"], again["inputs"], again["outputs"]) == ("gpu1", ["b1"], ["b2"])
    assert (joined["device"], joined["inputs"]) == ("gpu0", ["a1", "b2"])
    assert joined["outputs"] == ["y"]
    assert manifest["outputs"] == ["y", "a1", "x"]


def test_parts_hold_the_weights_they_read_and_their_device(tmp_path):
    path = saved("branchy", tmp_path)
    graph = read(path)
    right = {"right", "right_scaled", "right_again"}
    plan = with_devices(graph, [int(name in right) for name in graph.names])
    manifest = lm.writers.onnx(plan, tmp_path / "parts", model=path)
    for segment in manifest["segments"]:
        part = onnx.load(tmp_path / "parts" / segment["file"])
        onnx.checker.check_model(part, full_check=True)
        read_here = {v for node in part.graph.node for v in node.input}
        assert {i.name for i in part.graph.initializer} == read_here & {"w", "v"}
        props = {p.key: p.value for p in part.metadata_props}
        assert props["loadmaster.device"] == segment["device"]
        assert "unneeded" not in {node.name for node in part.graph.node}


def test_an_export_replaces_an_export_and_nothing_else(tmp_path):
    path = saved("branchy", tmp_path)
    plan = at_random(read(path), 2)
    folder = tmp_path / "parts"
    lm.writers.onnx(plan, folder, model=path)
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    lm.writers.onnx(plan, folder, model=path)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    assert {file.name for file in tmp_path.iterdir()} == {"branchy.onnx", "parts"}
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(InputError, match="is no export of a model"):
        lm.writers.onnx(plan, tmp_path / "mine", model=path)
    assert (tmp_path / "mine" / "thesis.txt").exists()


@pytest.mark.needs("onnxruntime")
def test_weights_outside_go_along_or_are_missed_by_name(tmp_path):
    runtime()
    path = tmp_path / "large.onnx"
    onnx.save(
        MODELS["branchy"](), path, save_as_external_data=True, location="large.data",
        size_threshold=0,
    )  # fmt: skip
    plan = at_random(lm.read(path, batch=2), 2)
    lm.writers.onnx(plan, tmp_path / "parts", model=path)
    assert lm.writers.check_onnx(tmp_path / "parts", path) == 0.0
    lm.writers.onnx_annotated(plan, tmp_path / "placed.onnx", model=path)
    runtime().InferenceSession(str(tmp_path / "placed.onnx"), providers=["CPUExecutionProvider"])
    (tmp_path / "large.data").unlink()
    with pytest.raises(InputError, match="its weights cannot be read"):
        lm.writers.onnx(plan, tmp_path / "parts2", model=path)
    assert not (tmp_path / "parts2").exists()
    assert not [f for f in tmp_path.iterdir() if f.name.startswith(".")]


@pytest.mark.needs("onnxruntime")
def test_a_difference_is_found(tmp_path):
    runtime()
    path = saved("branchy", tmp_path)
    plan = at_random(read(path), 2)
    manifest = lm.writers.onnx(plan, tmp_path / "parts", model=path)
    file = tmp_path / "parts" / manifest["segments"][0]["file"]
    part = onnx.load(file)
    changed = part.graph.initializer[0]
    changed.CopyFrom(onnx.numpy_helper.from_array(np.ones((4, 4), np.float32), changed.name))
    onnx.save(part, file)
    with pytest.raises(LoadmasterError, match="differs from the model's"):
        lm.writers.check_onnx(tmp_path / "parts", path)


@pytest.mark.needs("onnxruntime")
@pytest.mark.parametrize("declared", [[], ["n"], [5, 4], ["n", 4], ["n", 4, "m"], [1, 2, 3]])
@pytest.mark.parametrize("seed", range(2))
def test_shapes_that_a_file_declares_wrongly_are_no_faults(declared, seed, tmp_path):
    """ONNX Runtime warns of them and runs the model; so do its parts."""
    runtime()
    model = MODELS["branchy"]()
    for output in list(model.graph.output)[:2]:
        output.CopyFrom(onnx.helper.make_tensor_value_info(output.name, 1, declared))
    path = tmp_path / "wrong.onnx"
    onnx.save(model, path)
    plan = at_random(lm.read(path, batch=3), 2, seed)
    lm.writers.onnx(plan, tmp_path / "parts", model=path)
    assert lm.writers.check_onnx(tmp_path / "parts", path) == 0.0


@pytest.mark.needs("onnxruntime")
def test_inputs_that_were_drawn_are_not_the_runtimes_fault(tmp_path):
    runtime()
    helper, numbers = onnx.helper, onnx.TensorProto.INT64
    graph = helper.make_graph(
        [
            helper.make_node("Relu", ["x"], ["r"], "relu"),
            helper.make_node("Reshape", ["r", "to"], ["y"], "reshape"),
        ],
        "g",
        [
            helper.make_tensor_value_info("x", 1, [4, 6]),
            helper.make_tensor_value_info("to", numbers, [2]),
        ],
        [helper.make_tensor_value_info("y", 1, ["a", "b"])],
    )
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=OPSET, ir_version=8), path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plan = with_devices(lm.read(path), [0, 0, 0, 0])
    lm.writers.onnx(plan, tmp_path / "parts", model=path)
    check = lm.writers.check_onnx
    with pytest.raises(InputError, match=r"values that were drawn for 'x', 'to'.*--input x=FILE"):
        check(tmp_path / "parts", path)
    assert check(tmp_path / "parts", path, inputs={"to": np.array([3, 8])}) == 0.0
    assert check(tmp_path / "parts", path, inputs={"to": np.array([-1, 2]), "x": 3}) == 0.0
    with pytest.raises(InputError, match="has no input 'z': its inputs are 'x', 'to'"):
        check(tmp_path / "parts", path, inputs={"z": 0})
    np.save(tmp_path / "to.npy", np.array([8, 3]))
    plan.save(tmp_path / "plan.json")
    command = ["export", str(tmp_path / "plan.json"), "--target", "onnx", "--model", str(path)]
    command += ["-o", str(tmp_path / "parts"), "--check", "--input"]
    assert main([*command, f"to={tmp_path / 'to.npy'}"]) == 0
    assert main([*command, f"to={path}"]) == 2
    assert main([*command, "to"]) == 2


def test_annotations_are_what_the_plan_says(model, tmp_path):
    plan = at_random(read(model), 3)
    lm.writers.onnx_annotated(plan, tmp_path / "placed.onnx", model=model)
    placed = onnx.load(tmp_path / "placed.onnx")
    onnx.checker.check_model(placed)
    assert placed.ir_version >= 11
    (configuration,) = placed.configuration
    names = [d.name for d in plan.cluster.devices]
    assert (configuration.num_devices, list(configuration.device)) == (len(names), names)
    found, positions = op_names(placed.graph)
    for node, position in zip(placed.graph.node, positions, strict=True):
        props = {p.key: p.value for p in node.metadata_props}
        assert props["loadmaster.device"] == plan.device(found[position])
        (used,) = node.device_configurations
        assert used.configuration_id == configuration.name
        for spec in used.sharding_spec:
            assert spec.tensor_name in node.output
            assert [names[d] for d in spec.device] == [plan.device(found[position])]


@pytest.mark.needs("onnxruntime")
def test_the_annotated_model_runs_alike(model, tmp_path):
    ort = runtime()
    plan = at_random(read(model), 3)
    lm.writers.onnx_annotated(plan, tmp_path / "placed.onnx", model=model)
    cpu = ["CPUExecutionProvider"]
    sessions = [
        ort.InferenceSession(str(p), providers=cpu) for p in (model, tmp_path / "placed.onnx")
    ]
    feeds = {
        i.name: np.ones([d if isinstance(d, int) else 2 for d in i.shape], np.float32)
        for i in sessions[0].get_inputs()
    }
    for one, other in zip(*(s.run(None, feeds) for s in sessions), strict=True):
        np.testing.assert_array_equal(one, other)


def test_an_annotated_model_is_annotated_anew(tmp_path):
    path = saved("branchy", tmp_path)
    for seed in range(2):
        plan = at_random(read(path), 3, seed)
        lm.writers.onnx_annotated(plan, tmp_path / "branchy.onnx", model=path)
    placed = onnx.load(path)
    onnx.checker.check_model(placed)
    assert len(placed.configuration) == 1
    assert all(len(node.device_configurations) == 1 for node in placed.graph.node)
    manifest = lm.writers.onnx(plan, tmp_path / "parts", model=path)
    for segment in manifest["segments"]:
        onnx.checker.check_model(onnx.load(tmp_path / "parts" / segment["file"]))


def test_names_are_those_of_the_reader(model):
    proto = onnx.load(model)
    if proto.functions:
        proto = onnx.inliner.inline_local_functions(proto)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        columns = to_columns(proto, name="x", batch=2 if "branchy" in model.name else None)
    names, positions = op_names(proto.graph)
    assert names == columns["ops"]["name"]
    kinds = [columns["ops"]["kind"][i] for i in positions]
    assert not {"parameter", "input"} & set(kinds)


def test_another_model_is_refused(tmp_path):
    path, other = saved("branchy", tmp_path), saved("conditional", tmp_path)
    plan = at_random(read(path), 2)
    for writer in (lm.writers.onnx, lm.writers.onnx_annotated):
        with pytest.raises(InputError, match="is not the model that the plan is for"):
            writer(plan, model=other)
    with pytest.raises(InputError, match="cannot read"):
        lm.writers.onnx(plan, model=tmp_path / "none.onnx")


# OpenVINO names the nodes of a model's own functions anew, so "functional" is none of these.
@pytest.mark.needs("openvino")
@pytest.mark.parametrize("name", ["branchy", "conditional"])
def test_openvino_runs_it_by_affinity(name, tmp_path):
    model = saved(name, tmp_path)
    ov = pytest.importorskip("openvino", reason="needs the extra openvino")
    core = ov.Core()
    graph = read(model)
    plan = at_random(graph, 2)
    whole = core.read_model(model)
    found = lm.writers.openvino(plan, model=whole, names={"gpu0": "CPU", "gpu1": "CPU"})
    assert set(found) <= set(graph.names) & {op.get_friendly_name() for op in whole.get_ops()}
    assert {op.get_rt_info()["affinity"] for op in whole.get_ops()} == {"CPU"}
    compiled = core.compile_model(whole, "HETERO:CPU")
    plain = core.compile_model(core.read_model(model), "CPU")
    shape = (2, 4) if model.stem == "branchy" else (3, 4)
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    for one, other in zip(compiled(x).values(), plain(x).values(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


@pytest.mark.needs("openvino")
def test_openvino_names_of_a_plan_hold_whenever_a_model_is_read(tmp_path):
    """OpenVINO numbers what has no name in the file anew for every model that it reads."""
    ov = pytest.importorskip("openvino", reason="needs the extra openvino")
    core, path = ov.Core(), saved("conditional", tmp_path)
    plan, names = at_random(read(path), 2), {"gpu0": "CPU", "gpu1": "CPU"}
    models = [core.read_model(path) for _ in range(3)]
    theirs = [{op.get_friendly_name() for op in model.get_ops()} for model in models]
    assert theirs[0] != theirs[1]
    found = [lm.writers.openvino(plan, model=model, names=names) for model in models]
    assert found[0] == found[1] == found[2]
    assert set(found[0]) <= set.intersection(*theirs)
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    first, *others = (core.compile_model(model, "HETERO:CPU")(x).to_tuple() for model in models)
    for other in others:
        np.testing.assert_array_equal(first[0], other[0])


@pytest.mark.needs("openvino")
def test_openvino_affinities_follow_the_plan(tmp_path):
    pytest.importorskip("openvino", reason="needs the extra openvino")
    path = saved("branchy", tmp_path)
    graph = read(path)
    right = {"right", "right_scaled", "right_again"}
    plan = with_devices(graph, [int(name in right) for name in graph.names])
    found = lm.writers.openvino(plan, tmp_path / "affinity.json", model=path)
    assert json.loads((tmp_path / "affinity.json").read_text()) == found
    assert found["left"] == "GPU.0"
    assert {found[name] for name in right} == {"GPU.1"}
    assert found["v"] == "GPU.1"
    with pytest.raises(InputError, match="no name matches"):
        lm.writers.openvino(lm.place(lm.read("example:lenet"), plan.cluster, "single"), model=path)
