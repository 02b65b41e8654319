"""What is written for PyTorch and Hugging Face, loaded by them.

Needs torch and accelerate, with CUDA libraries some 6 GB: without them these tests are skipped.
"""

from __future__ import annotations

from importlib import resources

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch 2.5 or later")
pytest.importorskip("torch.distributed.pipelining", reason="needs PyTorch 2.5 or later")

import target_models  # noqa: E402
from placed import at_random, by_module  # noqa: E402
from runs_pipelining import in_one_process  # noqa: E402
from torch_models import Model, example, export, graph_of  # noqa: E402
from written import flags  # noqa: E402

import loadmaster as lm  # noqa: E402
from loadmaster.base.errors import InputError  # noqa: E402

HALVES = {"": 0, "layers.2": 1, "layers.3": 1, "head": 1}


@pytest.fixture(scope="module")
def model():
    return Model()


@pytest.fixture(scope="module")
def graph(model):
    return graph_of(export(model))


def test_the_graph_of_the_model_is_what_the_writers_expect(graph):
    assert {"emb", "layers.0.norm", "layers.0", "head"} <= set(graph.modules)
    assert {"emb.weight", "mask", "layers.3.down.bias"} <= set(graph.names)


def test_accelerate_takes_the_device_map(model, graph):
    accelerate = pytest.importorskip("accelerate", reason="needs accelerate")
    from accelerate.utils.modeling import check_device_map

    found = lm.writers.device_map(by_module(graph, HALVES))
    assert found["layers.1"] == 0
    assert found["layers.2"] == 1
    check_device_map(model, found)
    # The CPU stands for both devices: every key must be a module, and everything covered.
    expected = model(example())
    placed = Model()
    placed.load_state_dict(model.state_dict())
    on_cpu = dict.fromkeys(found, "cpu")
    placed = accelerate.dispatch_model(placed, on_cpu, main_device="cpu", force_hooks=True)
    assert set(placed.hf_device_map) == set(found)
    assert torch.equal(placed(example()), expected)


def test_accelerate_agrees_on_sizes():
    modeling = pytest.importorskip("accelerate.utils.modeling", reason="needs accelerate")
    cluster = lm.Cluster.preset("2xV100-NVLink")
    for text in ("10GiB", "7.5GB", "8Gb", "300MB", "12kib", "1gib", "512KB", 123456):
        limited = lm.writers.max_memory(cluster, {0: text})
        assert limited.memory == [modeling.convert_file_size_to_int(text)]


def test_tied_parameters_are_kept_together_or_refused():
    tied = graph_of(export(Model(tied=True)))
    with pytest.raises(InputError, match=r"would untie them: 'emb\.weight' on gpu0, gpu1"):
        lm.writers.device_map(by_module(tied, HALVES))
    kept = lm.writers.device_map(by_module(tied, HALVES | {"head": 0}))
    assert kept["emb"] == kept["head"] == 0


#: A device beside those of a preset, as its file has it.
DISK = """
[[device]]
name = "disk"
type = "EPYC-7313"
memory = "1GiB"

[[link]]
from = ["cpu", "disk"]
to = ["cpu", "disk"]
bandwidth = "3 GB/s"
latency = "100 us"
"""


def test_accelerate_loads_from_the_disk_what_the_plan_has_there(tmp_path):
    accelerate = pytest.importorskip("accelerate", reason="needs accelerate")
    from safetensors.torch import save_file

    preset = resources.files("loadmaster.model") / "presets" / "cpu+gpu.toml"
    cluster = lm.Cluster.from_toml(preset.read_text() + DISK)
    cluster = cluster.with_memory("170KiB", "gpu").with_memory("80KiB", "cpu")
    plan = lm.place(target_models.graph_of("decoder"), cluster, target="device-map")
    found = lm.writers.device_map(plan)
    assert set(found.values()) == {0, "cpu", "disk"}
    made = target_models.built("decoder")
    expected = made.module(*made.inputs)
    # A file has tied weights under each of their names.
    weights = {name: weight.clone() for name, weight in made.module.state_dict().items()}
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with torch.device("meta"):
        empty = target_models.Decoder()
    # The CPU stands for the GPU too.
    places = {key: place if place == "disk" else "cpu" for key, place in found.items()}
    loaded = accelerate.load_checkpoint_and_dispatch(
        empty, str(tmp_path / "model.safetensors"), places, offload_folder=str(tmp_path / "off")
    )
    on_disk = {key for key, place in found.items() if place == "disk"}
    assert all(loaded.get_submodule(key).weight.is_meta for key in on_disk if "_proj" in key)
    assert torch.allclose(loaded(*made.inputs), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("ends_late", [False, True])
def test_a_pipeline_is_cut_where_the_plan_says(graph, ends_late):
    # The head on a third device, or the first layers' rest: a cut where a module begins, or ends.
    where = HALVES | {"head": 2} if not ends_late else {"": 1, "emb": 0, "mask": 1}
    plan = by_module(graph, where)
    (found,), parameters = in_one_process(
        lm.writers.pipelining(plan), Model(), ((example(),), {}, ())
    )
    for stage, names in enumerate(parameters):
        assert {plan.device(name) for name in names} == {f"gpu{stage}"}
    assert torch.allclose(found, Model()(example()))


def test_a_cut_inside_a_module_is_refused(graph):
    plan = by_module(graph, HALVES | {"layers.2": 0, "layers.2.down": 1})
    with pytest.raises(InputError, match=r"reads what is on another device: layers\.2"):
        lm.writers.device_map(plan)
    torn = by_module(graph, HALVES | {"layers.1.up": 1})
    with pytest.raises(InputError, match=r"what is on another device: layers\.1"):
        lm.writers.device_map(torn)


@pytest.mark.parametrize("seed", range(3))
def test_a_module_split_by_fx_computes_the_same(model, seed):
    program = export(model)
    plan = at_random(graph_of(program), 3, seed)
    names = {f"gpu{i}": "cpu" for i in range(3)}
    whole = program.module()
    split = lm.writers.fx_split(plan, program if seed else whole, names=names)
    segments = lm.writers.fx(plan)["segments"]
    assert [name for name, _ in split.named_children()] == [
        f"segment_{i}" for i in range(len(segments))
    ]
    expected = whole(example())
    found = split(example())
    found = found[0] if isinstance(found, (tuple, list)) else found
    expected = expected[0] if isinstance(expected, (tuple, list)) else expected
    assert torch.equal(found, expected)


def test_a_split_module_is_on_its_devices(model):
    program = export(model)
    plan = by_module(graph_of(program), HALVES)
    split = lm.writers.fx_split(plan, program.module(), names={"gpu0": "cpu", "gpu1": "meta"})
    assert {p.device.type for p in split.segment_0.parameters()} == {"cpu"}
    assert {p.device.type for p in split.segment_1.parameters()} == {"meta"}
    found = split(example())
    found = found[0] if isinstance(found, (tuple, list)) else found
    assert found.device.type == "meta"
    # The cut carries one activation and the shared buffer stays: each is sent once.
    sends = [n for n in split.graph.nodes if n.op == "call_function" and n.args[-1:] == ("meta",)]
    assert len(sends) == 1


def test_fx_refuses_another_module(model, graph):
    other = torch.export.export(torch.nn.Sequential(torch.nn.Tanh()), (torch.ones(2),))
    with pytest.raises(InputError, match="is not the model that the plan is for"):
        lm.writers.fx_split(by_module(graph, HALVES), other.module())
    with pytest.raises(InputError, match=r"or a torch\.fx\.GraphModule, got Model"):
        lm.writers.fx_split(by_module(graph, HALVES), model)


def test_megatron_reads_the_layout(graph):
    layout = pytest.importorskip(
        "megatron.core.transformer.pipeline_parallel_layer_layout",
        reason="needs megatron-core",
    )
    words = flags(lm.writers.megatron(by_module(graph, HALVES | {"layers.1": 1})))
    text = words[words.index("--pipeline-model-parallel-layout") + 1]
    assert text == "Et*1|t*3L"
    parsed = layout.PipelineParallelLayerLayout.from_str(text, 2)
    assert [len(stage[0]) for stage in parsed.layout] == [2, 4]


def test_megatron_takes_the_flags():
    """Its own configurations check that sizes go with each other."""
    pytest.importorskip("megatron.core", reason="needs megatron-core")
    from loadmaster.systems.megatron.check import configuration

    options = {"tp": 2, "pp": 2, "dp": 2, "micro_batches": 2, "virtual": 2, "recompute": True}
    plan = lm.place(
        lm.read("example:gpt3-330m"), lm.Cluster.preset("8xH100-NVLink"), target="megatron",
        **options,
    )  # fmt: skip
    words = flags(lm.writers.megatron(plan))
    made = configuration(words)
    assert made.tensor_model_parallel_size == made.pipeline_model_parallel_size == 2
    assert made.recompute_granularity == "full"
    with pytest.raises(TypeError, match="no_such_flag"):
        configuration([*words, "--no-such-flag", "1"])
