"""Kineto traces: which calls are ops, what they take, which kernels are theirs; damaged traces."""

from __future__ import annotations

import gzip
import json
import math
import warnings

import numpy as np
import pytest
from folders import at
from hypothesis import given
from hypothesis import strategies as st
from kineto_traces import call, kernel, launch, mark, memory, write_trace

import loadmaster as lm
from loadmaster.base.errors import InputError
from loadmaster.readers.pytorch import kineto

GPU = {"deviceProperties": [{"id": 0, "name": "V9"}]}
GPU_TRACES = "artifacts/gpu_traces"

# A convolution that autograd numbers, an activation, and their backward on a thread of its own.
FORWARD = [
    call("aten::conv2d", 0, 100, seq=4),
    call("aten::convolution", 5, 90, seq=4),
    call("aten::_convolution", 10, 80),
    call("aten::mkldnn_convolution", 15, 70),
    call("aten::empty", 16, 4),
    call("aten::relu", 110, 20, seq=5),
    call("aten::clamp_min", 112, 15),
]
BACKWARD = [
    call("autograd::engine::evaluate_function: ReluBackward0", 200, 40, thread=2, seq=5),
    call("ReluBackward0", 202, 30, thread=2, seq=5),
    call("aten::threshold_backward", 204, 25, thread=2),
    call("autograd::engine::evaluate_function: ConvolutionBackward0", 250, 200, thread=2, seq=4),
    call("ConvolutionBackward0", 251, 195, thread=2, seq=4),
    call("aten::convolution_backward", 255, 180, thread=2),
    call("aten::empty", 256, 3, thread=2),
]
OPTIMIZER = [
    mark("Optimizer.step#SGD.step", 500, 50),
    call("aten::add_", 505, 30),
    call("aten::to", 506, 8),
    call("aten::_to_copy", 507, 6),
]


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def trace_of(tmp_path, events, **document):
    return write_trace(tmp_path / "step.json", events, **document)


def said(path, **options):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        kineto.read(path, **options)
    return "\n".join(str(w.message) for w in caught)


def times(graph):
    (column,) = graph.time.values()
    return {name: round(s * 1e6, 3) for name, s in zip(graph.names, column, strict=True)}


# ---- ops ---------------------------------------------------------------------------------------


def test_an_op_is_the_innermost_call_that_autograd_numbers_with_all_that_it_calls(tmp_path):
    graph = kineto.read(trace_of(tmp_path, FORWARD + BACKWARD + OPTIMIZER))
    assert times(graph) == {
        "aten::convolution": 90,
        "aten::relu": 20,
        "aten::threshold_backward": 25,
        "aten::convolution_backward": 180,
        "aten::add_": 30,
    }
    assert graph.phases == ["f", "f", "b", "b", "o"]
    assert list(graph.time) == ["cpu"]
    assert graph.meta["step_seconds"] == pytest.approx(530e-6)


def test_without_gradients_composite_ops_are_opened(tmp_path):
    events = [
        call("aten::linear", 0, 50),
        call("aten::t", 2, 8),
        call("aten::transpose", 3, 6),
        call("aten::addmm", 12, 30),
        call("aten::dropout", 60, 2),  # nothing to do: no op
        call("aten::contiguous", 70, 30),
        call("aten::clone", 72, 25),
        call("my::attention", 110, 40),
        call("aten::mm", 112, 10),
    ]
    graph = kineto.read(trace_of(tmp_path, events))
    assert times(graph) == {"aten::t": 8, "aten::addmm": 30, "aten::clone": 25, "my::attention": 40}


def test_what_calls_nothing_that_is_recorded_is_an_op_but_no_frame_is(tmp_path):
    events = [
        call("TorchDynamo Cache Lookup", 0, 9),
        call("Torch-Compiled Region: 0/0", 10, 30),
        call("AddBackward0", 50, 2),
        mark("epoch", 60, 9),
        call("MyFunction", 70, 20),
        call("aten::mul", 72, 5),
    ]
    graph = kineto.read(trace_of(tmp_path, events))
    assert times(graph) == {"Torch-Compiled Region: 0/0": 30, "aten::mul": 5}


def test_short_calls_keep_their_digits_late_in_time(tmp_path):
    """At 1.7e15 us, a date in this century, the next float is a quarter of a us away."""
    events = [call("aten::mm", 1_700_000_000_000_000 + i, 0.123) for i in range(3)]
    graph = kineto.read(trace_of(tmp_path, events))
    assert graph.time["cpu"].tolist() == [1.23e-07] * 3


def test_the_order_of_events_in_the_file_does_not_count(tmp_path):
    events = FORWARD + BACKWARD + OPTIMIZER
    first = kineto.read(trace_of(tmp_path, events))
    assert kineto.read(trace_of(tmp_path, events[::-1])).digest == first.digest


def test_the_same_call_twice_has_a_count_behind_its_name(tmp_path):
    events = [call("aten::mm", 10 * i, 5) for i in range(3)]
    events.append(call("aten::mm#2", 100, 5))
    names = kineto.read(trace_of(tmp_path, events)).names
    assert names == ["aten::mm", "aten::mm#2", "aten::mm#3", "aten::mm#2#2"]


def test_modules_come_from_frames_and_go_to_the_backward_of_the_same_number(tmp_path):
    frames = [
        call("nn.Module: Net_0", 0, 140, cat="python_function"),
        call("nn.Module: Conv2d_0", 0, 105, cat="python_function"),
        call("torch/nn/modules/conv.py(553): forward", 0, 104, cat="python_function"),
    ]
    graph = kineto.read(trace_of(tmp_path, frames + FORWARD + BACKWARD))
    assert graph.names == [
        "Net_0.Conv2d_0/aten::convolution",
        "Net_0/aten::relu",
        "Net_0/aten::threshold_backward",
        "Net_0.Conv2d_0/aten::convolution_backward",
    ]
    assert graph.modules == ["Net_0.Conv2d_0", "Net_0", "Net_0", "Net_0.Conv2d_0"]


# ---- edges -------------------------------------------------------------------------------------


def test_edges_follow_the_program_and_the_numbers_of_autograd_and_say_so(tmp_path):
    path = trace_of(tmp_path, FORWARD + BACKWARD + OPTIMIZER)
    graph = kineto.read(path)
    edges = list(zip(graph.src.tolist(), graph.dst.tolist(), strict=True))
    assert edges == [(0, 1), (0, 3), (1, 2), (2, 3), (3, 4)]
    assert "guesses" in said(path)
    assert any("same autograd number" in note for note in graph.meta["assumed"])


def test_bytes_are_what_an_op_keeps_and_what_it_was_given_if_it_keeps_nothing(tmp_path):
    events = [
        call("aten::mm", 0, 10),
        memory(1, 400, 1),
        memory(2, 64, 2),
        memory(8, -64, 2),
        call("aten::relu_", 20, 10),
        memory(21, -1000, 3),  # another op's
        call("aten::add", 40, 10),
        memory(41, 80, 2),
        memory(99, 4096, 9),  # outside of every op
    ]
    graph = kineto.read(trace_of(tmp_path, events))
    assert graph.output_bytes.tolist() == [400, 400, 80]
    assert graph.bytes.tolist() == [400, 400]
    profile = kineto.profile(trace_of(tmp_path, events))
    assert profile.output_bytes.tolist() == [400, 0, 80]


def test_without_memory_an_edge_has_the_largest_tensor_that_the_next_op_reads(tmp_path):
    shapes = {"Input Dims": [[8, 4], [4, 16], []], "Input type": ["float", "c10::Half", "Scalar"]}
    path = trace_of(tmp_path, [call("aten::mm", 0, 5), call("aten::mm", 9, 5, **shapes)])
    graph = kineto.read(path)
    assert graph.bytes.tolist() == [128]
    assert any("profile_memory" in note for note in graph.meta["assumed"])


def test_without_shapes_and_memory_it_says_what_is_lost(tmp_path):
    path = trace_of(tmp_path, FORWARD)
    assert kineto.read(path).bytes.tolist() == [0]
    assert "record_shapes=True" in said(path)


# ---- kernels -----------------------------------------------------------------------------------


def test_kernels_belong_to_the_op_around_their_launch(tmp_path):
    events = [
        call("aten::linear", 0, 50, seq=1),
        call("aten::addmm", 5, 40, seq=1),
        launch(11, 10),
        launch(12, 20, name="cudaMemsetAsync"),
        call("aten::relu", 60, 10, seq=2),
        launch(13, 65, name="hipLaunchKernel"),
        launch(13, 65, thread=2),  # of another thread, where no call is
        kernel("sgemm", 300, 70, 11),
        kernel("Memset (Device)", 400, 3, 12, cat="gpu_memset"),
        kernel("relu_kernel", 500, 9, 13, cat="Kernel"),
        call("aten::view", 80, 2),
    ]
    del events[6]
    path = trace_of(tmp_path, events, **GPU)
    graph = kineto.read(path)
    assert graph.time.keys() == {"V9"}
    assert times(graph) == {"aten::addmm": 73, "aten::relu": 9, "aten::view": 0}
    assert graph.meta["launches"] == {"aten::addmm": 2}
    eager = lm.Cluster.mesh(2, memory="1GiB", bandwidth=1e9, type="V9")
    eager = eager.with_dispatch(lm.Dispatch(5e-6))
    assert lm.place(graph, eager, "single").schedule.launching == pytest.approx(3 * 5e-6)
    assert "1 of 3 ops launched no kernel: 0 s on V9" in said(path)
    assert list(kineto.read(path, device_type="H100").time) == ["H100"]
    assert kineto.profile(path).device_type == "V9"


def test_a_kernel_without_launch_goes_by_external_id_unless_that_is_its_correlation(tmp_path):
    events = [
        call("aten::mm", 0, 9, **{"External id": 5}),
        call("aten::mul", 10, 9, **{"External id": 6}),
        kernel("a", 100, 40, 71, **{"External id": 5}),
        kernel("b", 200, 2, 6, **{"External id": 6}),
        kernel("c", 300, 1),
    ]
    path = trace_of(tmp_path, events, **GPU)
    assert times(kineto.read(path)) == {"aten::mm": 40, "aten::mul": 0}
    assert "2 kernels (3 us) of 3 were launched by no op in the trace" in said(path)
    assert "'b' (1), 'c' (1)" in said(path)


def test_kernels_that_a_frame_launches_make_an_op_of_it_and_not_of_what_it_calls(tmp_path):
    events = [
        call("Torch-Compiled Region: 0/0", 0, 50),
        launch(1, 5),
        call("aten::mm", 10, 20),
        launch(2, 12),
        mark("ProfilerStep#1", 0, 90),
        launch(3, 80),
        kernel("triton_poi_fused_add", 100, 30, 1),
        kernel("gemm", 200, 50, 2),
        kernel("loose", 300, 8, 3),
    ]
    path = trace_of(tmp_path, events, **GPU)
    assert times(kineto.read(path)) == {"Torch-Compiled Region: 0/0": 30, "aten::mm": 50}
    assert "'loose' (1)" in said(path)


def test_communication_is_left_out_of_times_and_counted(tmp_path):
    events = [
        call("c10d::allreduce_", 0, 20),
        launch(1, 5),
        kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 50, 4000, 1),
        call("aten::add", 30, 5),
        launch(2, 31),
        kernel("add", 60, 7, 2),
    ]
    path = trace_of(tmp_path, events, **GPU)
    assert times(kineto.read(path)) == {"c10d::allreduce_": 0, "aten::add": 7}
    assert "1 communication kernel (4 ms) are left out" in said(path)


# ---- steps -------------------------------------------------------------------------------------


def three_steps(durations, odd=()):
    events = []
    for i, duration in enumerate(durations):
        events += [
            mark(f"ProfilerStep#{i + 4}", 1000 * i, 900),
            call("aten::mm", 1000 * i + 10, duration),
            call("aten::add", 1000 * i + 500, 5),
        ]
    return [call("aten::ones", -50, 10), *events, *odd]


def test_several_steps_are_columns_and_their_median_the_time(tmp_path):
    path = trace_of(tmp_path, three_steps([30, 10, 20]))
    assert times(kineto.read(path)) == {"aten::mm": 20, "aten::add": 5}
    profile = kineto.profile(path, batch=8)
    np.testing.assert_allclose(profile.seconds, [[3e-5, 1e-5, 2e-5], [5e-6] * 3])
    assert (profile.names, profile.batch) == (("aten::mm", "aten::add"), 8)
    assert times(kineto.read(path, step=5)) == {"aten::mm": 10, "aten::add": 5}
    assert "1 op is outside of every step" in said(path)


def test_steps_that_differ_ask_which(tmp_path):
    path = trace_of(tmp_path, three_steps([30, 10, 20], [call("aten::exp", 1700, 9)]))
    with pytest.raises(
        InputError, match=r"steps 4, 5, 6, and they differ: step 5 has 3 .*aten::exp"
    ):
        kineto.read(path)
    assert kineto.read(path, step=6).n_ops == 2
    with pytest.raises(InputError, match="no step 9; its steps are 4, 5, 6"):
        kineto.read(path, step=9)
    with pytest.raises(InputError, match="its steps are not marked"):
        kineto.read(trace_of(tmp_path, FORWARD), step=1)


def test_steps_of_an_optimizer_part_what_is_not_marked(tmp_path):
    events = [
        event | {"ts": event["ts"] + 1000 * i} for i in range(3) for event in FORWARD + OPTIMIZER
    ]
    graph = kineto.read(trace_of(tmp_path, events))
    assert (graph.n_ops, graph.meta["steps"]) == (3, 3)


# ---- bad input ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dur": -3}, r"'aten::relu' \(event 5 .* has dur -3: wants a number that is not negative"),
        ({"dur": math.nan}, "has dur nan"),
        ({"dur": None}, "has dur None"),
        ({"ts": "12"}, "has ts '12'"),
        ({"ts": 10**400}, "has ts 1000000"),
        ({"ts": math.inf}, "has ts inf"),
        ({"name": 3}, "an event whose name is 3"),
        ({"args": [1]}, "an event that is none"),
        ({"cat": ["cpu_op"]}, "an event that is none"),
    ],
)
def test_an_event_that_is_wrong_is_named(tmp_path, change, message):
    events = [dict(event) for event in FORWARD]
    events[5] |= change
    with pytest.raises(InputError, match=message):
        kineto.read(trace_of(tmp_path, events))


def test_a_kernel_that_ends_before_it_starts(tmp_path):
    path = trace_of(tmp_path, [*FORWARD, kernel("gemm", 10, -1, 3)])
    with pytest.raises(InputError, match=r"'gemm' .* has dur -1"):
        kineto.read(path)


def test_calls_that_overlap_where_they_cannot_are_counted(tmp_path):
    path = trace_of(tmp_path, [call("aten::mm", 0, 50), call("aten::add", 30, 50)])
    assert times(kineto.read(path)) == {"aten::mm": 50, "aten::add": 50}
    assert "1 call overlaps another of their thread, 'aten::mm' and 'aten::add' first" in said(path)


def test_rounded_ends_of_older_traces_do_not_count_as_overlap(tmp_path):
    path = trace_of(tmp_path, [call("aten::mm", 0, 50), call("aten::empty", 49, 2)])
    assert times(kineto.read(path)) == {"aten::mm": 50}
    assert "overlap" not in said(path)


@pytest.mark.parametrize("kept", [0.2, 0.7, 0.99])
@pytest.mark.parametrize("packed", [False, True])
def test_a_trace_that_is_cut_off(tmp_path, kept, packed):
    whole = write_trace(tmp_path / ("t.json.gz" if packed else "t.json"), FORWARD)
    data = whole.read_bytes()
    whole.write_bytes(data[: int(kept * len(data))])
    with pytest.raises(InputError, match="truncated gzip" if packed else "not valid JSON"):
        kineto.read(whole)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"traceEvents": []}, "without calls of PyTorch"),
        ({"traceEvents": [{"ph": "X", "cat": "Op", "name": "MatMul"}]}, "without calls of PyTorch"),
        ({"traceEvents": [kernel("gemm", 0, 5, 1)]}, "records no ops of PyTorch"),
        ({"traceEvents": [mark("ProfilerStep#1", 0, 5)]}, "records no ops of PyTorch"),
        ({"nodes": []}, "has no traceEvents"),
        ([call("aten::mm", 0, 5)], "has no traceEvents"),
    ],
)
def test_what_is_no_trace_of_pytorch(tmp_path, document, message):
    path = tmp_path / "other.json"
    path.write_text(json.dumps(document))
    with pytest.raises(InputError, match=message):
        kineto.read(path)


@given(st.data())
def test_a_damaged_trace_is_refused_or_read(tmp_path_factory, data):
    events = [
        json.loads(json.dumps(e))
        for e in [*FORWARD, *BACKWARD, *OPTIMIZER, launch(1, 6), kernel("k", 9, 9, 1), memory(7, 4)]
    ]
    odd = st.one_of(
        st.none(), st.integers(), st.floats(), st.text(max_size=3), st.builds(list),
        st.builds(dict),
        st.just([[2**70, -1]]), st.just("ProfilerStep#1"), st.just("Optimizer.step#A"),
        st.sampled_from(["cpu_op", "kernel", "python_function", "nn.Module: A", "aten::to"]),
    )  # fmt: skip
    for _ in range(data.draw(st.integers(1, 4))):
        event = data.draw(st.sampled_from(events))
        inside = data.draw(st.booleans()) and isinstance(event.get("args"), dict)
        target = event["args"] if inside else event
        keys = [*target, "Sequence number", "Input Dims", "correlation", "External id", "Bytes"]
        key = data.draw(st.sampled_from(keys))
        target[key] = data.draw(odd)
    text = json.dumps({"traceEvents": events, "deviceProperties": data.draw(odd)}).encode()
    if data.draw(st.booleans()):
        text = text[: data.draw(st.integers(0, len(text)))]
    path = tmp_path_factory.mktemp("fuzz") / "t.json"
    path.write_bytes(text)
    try:
        graph = kineto.read(path)
    except InputError:
        return
    assert graph.n_ops
    assert np.isfinite(list(graph.time.values())).all()


# ---- by content, and the real ones -------------------------------------------------------------


def test_lm_read_tells_a_trace_by_its_content(tmp_path):
    path = write_trace(tmp_path / "anything.gz", three_steps([30, 10, 20]))
    assert lm.read(path, step=5).names == ["aten::mm", "aten::add"]
    with pytest.raises(InputError, match="a Kineto trace takes no option 'batch': it takes"):
        lm.read(path, batch=4)


@pytest.mark.large_data
def test_all_time_of_kernels_is_some_ops_in_some_step():
    path = at(f"{GPU_TRACES}/kineto_resnet50_gpu_2021.pt.trace.json.gz")
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    launched = [e for e in events if e.get("cat") in ("Kernel", "Memcpy", "Memset")]
    profile = kineto.profile(path)
    assert profile.seconds.shape == (1462, 6)
    assert profile.device_type == "Tesla V100-DGXS-32GB"
    assert profile.seconds.sum() == pytest.approx(sum(e["dur"] for e in launched) * 1e-6)
    graph = kineto.read(path)
    assert graph.names == list(profile.names)
    assert graph.kinds.count("aten::cudnn_convolution") == 53
    np.testing.assert_allclose(graph.time["Tesla V100-DGXS-32GB"], profile.median())


@pytest.mark.parametrize(
    ("name", "ops", "device", "microseconds"),
    [
        ("hta_amd_trace_mi250_minitoy_train_ROCm6_2_kineto", 21, "AMD Radeon Graphics", 149.042),
        ("hta_triton_example_triton_example", 1, "NVIDIA A100-PG509-200", 1.76),
        ("hta_critical_path_event_sync_trace", 3, "NVIDIA A100-PG509-200", 372),
        ("hta_execution_trace_benchmark_simple_add_trace", 8, "NVIDIA A100-PG509-200", 16),
    ],
)
def test_traces_of_other_devices_and_launchers(name, ops, device, microseconds):
    graph = kineto.read(at(f"{GPU_TRACES}/{name}.json.gz"))
    assert graph.n_ops == ops
    assert graph.time[device].sum() * 1e6 == pytest.approx(microseconds)


@pytest.mark.large_data
def test_a_trace_with_communication():
    path = at(f"{GPU_TRACES}/hta_nccl_parser_config_nccl_data.json.gz")
    profile = kineto.profile(path)
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    ran = [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    computed = sum(e["dur"] for e in ran if not e["name"].startswith("nccl"))
    assert profile.n_steps == 3
    assert profile.seconds.sum() == pytest.approx(computed * 1e-6)


@pytest.mark.parametrize(
    "model",
    [
        "lstm",
        pytest.param("resnet18", marks=pytest.mark.large_data),
        pytest.param("bertmini", marks=pytest.mark.large_data),
    ],
)
def test_ops_of_a_batch_sweep_have_the_same_names(model):
    batches = (2, 4, 8, 16)
    found = [
        kineto.profile(at(f"artifacts/torch/{model}_b{b}.kineto.json.gz"), batch=b) for b in batches
    ]
    assert len({profile.names for profile in found}) == 1
    total = [profile.median().sum() for profile in found]
    assert total[-1] > total[0]
