"""ONNX Runtime profiles: joined with the optimised model, hand-checked times, bad files."""

from __future__ import annotations

import gzip
import json
import warnings

import numpy as np
import pytest
from folders import LARGE
from hypothesis import given
from hypothesis import strategies as st

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

import loadmaster as lm  # noqa: E402
from loadmaster.base.errors import InputError, LoadmasterError  # noqa: E402
from loadmaster.cli import main  # noqa: E402
from loadmaster.readers.onnx.profile import profile, read  # noqa: E402
from loadmaster.readers.onnx.recording import RuntimeProfile  # noqa: E402

ARTIFACTS = LARGE / "artifacts" / "onnx"
MODELS = {"bertmini_d64": 177, "lstm_d64": 34, "resnet18_w8": 33, "resnet18_w8_noopt": 48}
RUN = {"cat": "Session", "name": "model_run", "dur": 99}


def recorded(model, batch):
    return ARTIFACTS / f"{model}_b{batch}.ortprofile.json.gz"


def optimized(model):
    return ARTIFACTS / f"{model}.ort_optimized.onnx"


def kernel(name, micros, kind="Relu", provider="CPUExecutionProvider", **args):
    args = {"op_name": kind, "provider": provider, **args}
    return {"cat": "Node", "name": f"{name}_kernel_time", "dur": micros, "args": args}


def written(path, events):
    path.write_text(json.dumps(events))
    return path


@pytest.fixture
def model(tmp_path):
    """x [n, 4] through a matrix product, a ReLU and a reshape."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], name="product"),
        helper.make_node("Relu", ["m"], ["r"], name="relu"),
        helper.make_node("Flatten", ["r"], ["y"], name="flat"),
    ]
    floats = TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", floats, ["n", 4])],
        [helper.make_tensor_value_info("y", floats, None)],
        [numpy_helper.from_array(np.zeros((4, 8), np.float32), "w")],
    )
    onnx.save(helper.make_model(graph), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def product(micros, rows=2):
    shapes = [{"float": [rows, 4]}, {"float": [4, 8]}]
    return kernel("product", micros, "MatMul", output_size=str(rows * 32), input_type_shape=shapes)


# ---- real profiles ----------------------------------------------------------------------------


@pytest.mark.large_data
@pytest.mark.parametrize("batch", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("name", MODELS)
def test_every_op_is_timed(name, batch):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing is left out: there is nothing to warn of
        graph = read(optimized(name), profile=recorded(name, batch))
        measured = profile(recorded(name, batch), graph=optimized(name))
    assert (measured.n_ops, measured.n_steps, measured.batch) == (MODELS[name], 4, batch)
    assert set(measured.names) <= set(graph.names)
    assert graph.meta["batch"] == batch
    # Half a microsecond is the least, and nothing is lost on the way.
    assert measured.seconds.min() >= 0.5e-6
    np.testing.assert_allclose(graph.time["cpu"].sum(), measured.median().sum())
    timed = {n for n, s in zip(graph.names, graph.time["cpu"], strict=True) if s > 0}
    assert timed == set(measured.names)
    kinds = dict(zip(graph.names, graph.kinds, strict=True))
    assert measured.kinds == tuple(kinds[n] for n in measured.names)


@pytest.mark.large_data
def test_times_by_hand():
    """In the file: 339, 255, 254 and 252 us of the one, 21, 17, 16 and 16 of the other."""
    graph = lm.read(optimized("resnet18_w8"), profile=recorded("resnet18_w8", 4))
    seconds = graph.time["cpu"]
    assert seconds[graph.index("relu_nchwc")] == pytest.approx(255e-6)
    assert seconds[graph.index("node_max_pool2d")] == pytest.approx(17e-6)
    assert graph.kinds[graph.index("relu_nchwc")] == "com.microsoft.nchwc.Conv"


@pytest.mark.large_data
@pytest.mark.parametrize("batch", [1, 2, 8, 16])
def test_names_that_a_session_numbered_otherwise_are_matched_by_size(batch):
    """``ReorderOutput_token_40`` is another op in each session; sizes tell."""
    measured = profile(recorded("resnet18_w8", batch), graph=optimized("resnet18_w8"))
    graph = read(optimized("resnet18_w8"), profile=recorded("resnet18_w8", batch))
    sizes = dict(zip(measured.names, measured.output_bytes.tolist(), strict=True))
    for name, size in zip(graph.names, graph.output_bytes.tolist(), strict=True):
        assert sizes.get(name, size) == size or graph.view[graph.index(name)], name
    assert any("have other names" in note for note in graph.meta["assumed"])
    # Without the model they are as the session called them, and some are not what they seem.
    plain = profile(recorded("resnet18_w8", batch))
    assert plain.names != measured.names
    assert sorted(plain.names) == sorted(measured.names)


@pytest.mark.large_data
def test_other_models_and_batches_are_refused():
    with pytest.raises(InputError, match="belongs to another graph: 3 of the 34 ops"):
        read(optimized("bertmini_d64"), profile=recorded("lstm_d64", 1), batch=1)
    with pytest.raises(InputError, match=r"recorded with other shapes: \d+ of 33 ops.*batch="):
        read(optimized("resnet18_w8"), profile=recorded("resnet18_w8", 16), batch=4)


@pytest.mark.large_data
def test_the_command_line_places_it(capsys, tmp_path):
    cluster = tmp_path / "c.toml"
    cluster.write_text(
        '[[device]]\nname="a"\ntype="cpu"\nmemory="1GiB"\n'
        '[[device]]\nname="b"\ntype="cpu"\nmemory="1GiB"\n'
        '[[link]]\nfrom="a"\nto="b"\nbandwidth=1e10\n[[link]]\nfrom="b"\nto="a"\nbandwidth=1e10\n'
    )
    files = [str(optimized("bertmini_d64")), "--profile", str(recorded("bertmini_d64", 4))]
    assert main(["place", *files, "--cluster", str(cluster), "--method", "heft", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert 0 < plan["makespan"] <= 1389.5e-6 * 1.001


# ---- what a profile may have ------------------------------------------------------------------


def test_the_profile_tells_the_shape_that_the_model_leaves_open(model, tmp_path):
    events = [product(10, rows=3), kernel("relu", 4), kernel("flat", 0, "Flatten"), RUN]
    graph = lm.read(model, profile=written(tmp_path / "p.json", events))
    assert graph.outputs[graph.index("product")] == "f32[3,8]"
    assert graph.time["cpu"].tolist() == pytest.approx([0, 0, 10.5e-6, 4.5e-6, 0.5e-6])
    assert "1 of 3 durations were under 1 us" in graph.meta["assumed"][1]


def test_the_median_of_the_runs_counts(model, tmp_path):
    runs = [[product(d), kernel("relu", 1), kernel("flat", 1), RUN] for d in (500, 20, 22, 21)]
    graph = read(
        model, profile=written(tmp_path / "p.json", [event for run in runs for event in run])
    )
    assert graph.time["cpu"][graph.index("product")] == pytest.approx(22e-6)


def test_ops_without_an_event_are_costed_by_bytes(model, tmp_path):
    path = written(tmp_path / "p.json", [product(9.5), RUN])
    with pytest.warns(UserWarning, match=r"1 of 5 ops \('relu'\) were not measured: costed by"):
        graph = read(model, profile=path)
    moved = graph.bytes_accessed.astype(float)
    relu, matmul = graph.index("relu"), graph.index("product")
    assert graph.time["cpu"][relu] == pytest.approx(max(10e-6 * moved[relu] / moved[matmul], 10e-6))
    assert graph.time["cpu"][graph.index("flat")] == 0  # a view that was not measured is free
    assert graph.meta["time_sources"] == {"bytes": ["relu"]}


def test_events_without_an_op_are_counted(model, tmp_path):
    events = [product(9), kernel("relu", 9), kernel("flat", 9), kernel("inner", 9), RUN]
    with pytest.warns(UserWarning, match=r"1 measured op \('inner'\), 25.0% of the measured"):
        graph = read(model, profile=written(tmp_path / "p.json", events))
    assert graph.time["cpu"].sum() == pytest.approx(28.5e-6)


def test_runs_that_did_not_end_are_left_out(tmp_path):
    events = [kernel("a", 1), RUN, kernel("a", 70), kernel("b", 5)]
    with pytest.warns(UserWarning, match="2 kernels of a last run that did not end"):
        measured = profile(written(tmp_path / "p.json", events))
    assert measured.names == ("a",)
    with pytest.warns(UserWarning, match="no run is marked as complete"):
        profile(written(tmp_path / "p.json", events[:1]))


def test_what_runs_twice_in_a_run_is_summed(tmp_path):
    events = [kernel("a", 1), kernel("a", 2), RUN]
    with pytest.warns(UserWarning, match=r"1 op \('a' first\) ran several times in a run"):
        measured = profile(written(tmp_path / "p.json", events))
    assert measured.seconds.tolist() == [[pytest.approx(4e-6)]]


def test_providers_are_device_types(tmp_path):
    cuda = [kernel("a", 7, provider="CUDAExecutionProvider"), RUN]
    with pytest.warns(UserWarning, match="CUDAExecutionProvider are what the host saw of each op"):
        assert profile(written(tmp_path / "p.json", cuda)).device_type == "gpu"
    mixed = written(tmp_path / "p.json", [kernel("b", 7), *cuda])
    with pytest.raises(InputError, match=r"several kinds of devices \(1 on cpu, 1 on gpu\): give"):
        profile(mixed)
    with pytest.warns(UserWarning, match="what the host saw"):
        assert profile(mixed, device_type="V100").device_type == "V100"


# ---- bad files --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ({"traceEvents": []}, "no ONNX Runtime profile"),
        ([{"cat": "cpu_op"}], "no ONNX Runtime profile"),
        ([RUN], "no kernel that ran"),
        ([kernel("conv", -3), RUN], r"event 0 \('conv'\): dur is -3: wants a number >= 0"),
        ([kernel("conv", "3"), RUN], "dur is '3'"),
        ([kernel("conv", None), RUN], "dur is None"),
    ],
)
def test_what_is_no_profile_says_so(tmp_path, events, message):
    with pytest.raises(InputError, match=message):
        profile(written(tmp_path / "p.json", events))


def test_truncated_files(tmp_path):
    data = json.dumps([kernel("a", 1), RUN]).encode()
    (tmp_path / "p.json").write_bytes(data[:-5])
    with pytest.raises(InputError, match="is not valid JSON"):
        profile(tmp_path / "p.json")
    (tmp_path / "p.json.gz").write_bytes(gzip.compress(data)[:-9])
    with pytest.raises(InputError, match="damaged or truncated gzip"):
        profile(tmp_path / "p.json.gz")


def test_a_profile_alone_is_no_graph(tmp_path):
    with pytest.raises(InputError, match="is an ONNX Runtime profile, which has times and no"):
        lm.read(written(tmp_path / "p.json", [kernel("a", 1), RUN]))


def test_options_are_the_readers(model, tmp_path):
    with pytest.raises(
        InputError, match=r"an ONNX model takes no option 'fetches': it takes batch, sh"
    ):
        lm.read(model, fetches=["y"])
    with pytest.raises(InputError, match=r"device_type': it takes batch, shapes"):
        lm.read(model, device_type="cpu")


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["cat", "name", "dur", "args", "op_name", "output_size", "float"]),
            inner,
        )
    ),
    max_leaves=12,
)


@given(
    st.lists(junk, max_size=5), st.integers(0, 4), st.sampled_from(["dur", "args", "name"]), junk
)
def test_any_events_are_read_or_refused(events, at, field, value):
    good = [product(3), kernel("relu", 1), kernel("flat", 1), RUN]
    good[at % 3] = {**good[at % 3], field: value}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            RuntimeProfile.of([*events, *good]).profile(None)
    except LoadmasterError:
        pass
