"""The precision that a model was captured in, as systems read it in what is written for them."""

from __future__ import annotations

import json
from functools import cache
from importlib.util import find_spec
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch 2.5 or later")

from gloo_steps import functions  # noqa: E402
from target_models import Decoder  # noqa: E402

import loadmaster as lm  # noqa: E402
from loadmaster.base.errors import InputError  # noqa: E402

#: Types of parameters, and of products under autocast; None: there is none.
PRECISIONS = [
    ("float32", None),
    ("bfloat16", None),
    ("float16", None),
    ("float64", None),
    ("float32", "bfloat16"),
    ("float32", "float16"),
]

PAIR = lm.Cluster.preset("2xV100-NVLink")


class Cast(torch.nn.Module):
    """A decoder under autocast, if there is one."""

    def __init__(self, mixed):
        super().__init__()
        self.decoder, self.mixed = Decoder(layers=2), mixed

    def forward(self, words):
        if self.mixed is None:
            return self.decoder(words)
        with torch.autocast("cpu", getattr(torch, self.mixed)):
            return self.decoder(words)


def of_words(output, targets):
    return torch.nn.functional.cross_entropy(output.flatten(0, 1), targets.flatten())


@cache
def graph_of(kept, mixed, optimizer="AdamW"):
    model = Cast(mixed).to(getattr(torch, kept))
    words = torch.zeros(8, 8, dtype=torch.long)
    return lm.capture(
        model, words, loss=of_words, targets=words, optimizer=getattr(torch.optim, optimizer)
    )


@pytest.fixture(autouse=True)
def _cpu(monkeypatch):
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize(("kept", "mixed"), PRECISIONS)
def test_deepspeed_keeps_and_computes_as_the_model_does(kept, mixed, stage):
    from runs_deepspeed import as_deepspeed_reads

    graph = graph_of(kept, mixed)
    if kept in ("float16", "float64"):  # Copies in float32 would be more than is planned.
        with pytest.raises(InputError, match=f"parameters are in {kept}"):
            lm.place(graph, PAIR, target="deepspeed", stage=stage)
        return
    plan = lm.place(graph, PAIR, target="deepspeed", stage=stage)
    read = as_deepspeed_reads(lm.writers.deepspeed(plan), 2)
    if read is None:
        pytest.skip("needs deepspeed")
    assert read.torch_autocast_enabled == (mixed is not None)
    if mixed:
        assert read.torch_autocast_dtype == getattr(torch, mixed)
        assert read.torch_autocast_lower_precision_safe_modules == []
    own = read.bfloat16_config
    flags = (own.enabled, own.bf16_master_weights_and_grads, own.bf16_optimizer_states)
    assert flags == (kept == "bfloat16",) * 3
    assert not read.float16_config.enabled
    assert read.gradient_clipping == 0
    assert read.gradient_accumulation_steps == 1


@pytest.mark.parametrize("optimizer", ["Adam", "AdamW", "SGD", "RMSprop"])
def test_deepspeed_takes_the_optimizer(optimizer):
    plan = lm.place(graph_of("float32", None, optimizer), PAIR, target="deepspeed", stage=2)
    allowed = lm.writers.deepspeed(plan).get("zero_allow_untested_optimizer", False)
    if find_spec("deepspeed"):
        from deepspeed.runtime.zero.utils import ZERO_SUPPORTED_OPTIMIZERS

        assert allowed == (getattr(torch.optim, optimizer) not in ZERO_SUPPORTED_OPTIMIZERS)


@pytest.mark.parametrize(("kept", "mixed"), PRECISIONS)
def test_torchtitan_keeps_and_computes_as_the_model_does(kept, mixed):
    from runs_torchtitan import as_torchtitan_has_them

    graph = graph_of(kept, mixed)
    if {kept, mixed} & {"float16", "float64"}:
        with pytest.raises(InputError, match="f32 and bf16 alone"):
            lm.place(graph, PAIR, target="torchtitan")
        return
    config = SimpleNamespace(activation_checkpoint=None, **as_torchtitan_has_them())
    plan = lm.place(graph, PAIR, target="torchtitan")
    functions(lm.writers.torchtitan(plan))["parallelize"](config)
    assert config.training.dtype == kept
    assert config.training.mixed_precision_param == (mixed or kept)
    assert config.training.mixed_precision_reduce == "float32"


@pytest.mark.parametrize("engine", ["ddp", "fsdp", "deepspeed"])
@pytest.mark.parametrize(("kept", "mixed"), PRECISIONS)
def test_trainer_has_one_precision(kept, mixed, engine):
    """Its own words for autocast, or DeepSpeed's."""
    from runs_trainer import as_trainer_reads

    if engine == "deepspeed" and (kept in ("float16", "float64") or not find_spec("deepspeed")):
        return
    plan = lm.place(graph_of(kept, mixed), PAIR, target="trainer", engine=engine)
    read = as_trainer_reads(lm.writers.trainer(plan))
    of_deepspeed = engine == "deepspeed" and kept == "bfloat16"
    assert read.fp16 == (mixed == "float16" and engine != "deepspeed")
    assert read.bf16 == ((mixed == "bfloat16" and engine != "deepspeed") or of_deepspeed)
    if engine == "deepspeed":
        settings = json.loads(json.dumps(read.deepspeed))
        assert settings["gradient_clipping"] == "auto"
        assert settings.get("torch_autocast", {}).get("dtype") == mixed
