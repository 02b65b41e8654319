"""Captures of models that are not in the data, in training and inference, on meta and on the CPU.

    python benches/captured_models.py [NAME ...] [--write]

The configurations are those of transformers, torchvision, timm, diffusers, peft and bitsandbytes,
with few layers and random weights. Each is captured four times, and the outcome is the number of
its ops, or the one line by which it is refused. What fails in any other way is said so in capitals,
and the exit status is 1. ``--write`` writes ``results/captured-models.md``. Needs these libraries.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

import loadmaster as lm

PAGE = Path(__file__).parent / "results" / "captured-models.md"

#: A model, its inputs, and further arguments of the capture.
Case = tuple[torch.nn.Module, Any, dict[str, Any]]

MODELS: dict[str, tuple[str, Callable[[bool], Case]]] = {}

BATCH, LENGTH, WORDS = 2, 16, 128


def model(name: str, has: str) -> Callable[[Callable[[bool], Case]], Callable[[bool], Case]]:
    """Adds a function that builds a model to the list."""

    def add(build: Callable[[bool], Case]) -> Callable[[bool], Case]:
        MODELS[name] = has, build
        return build

    return add


def words(length: int = LENGTH) -> torch.Tensor:
    """Whole numbers below the number of words."""
    return torch.zeros(BATCH, length, dtype=torch.long)


def by_config(config: str, of: str, **options: Any) -> torch.nn.Module:
    """A model of transformers by the names of its configuration and of its class."""
    import transformers

    usual = {
        "vocab_size": WORDS,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "pad_token_id": 0,
    }
    made = getattr(transformers, config)(**{**usual, **options})
    return getattr(transformers, of)(made)


def language(
    net: torch.nn.Module, train: bool, *, checkpoints: bool = False, heads: int | None = None
) -> Case:
    """A training step with labels, or a decode step with a cache of what was read before."""
    import transformers

    if train:
        if checkpoints:
            net.gradient_checkpointing_enable()
        return net, {"input_ids": words(), "labels": words(), "use_cache": False}, {}
    config = net.config.get_text_config()
    heads = heads or getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    cache = transformers.DynamicCache(config=config)
    for layer in range(config.num_hidden_layers):
        one = torch.zeros(BATCH, heads, LENGTH, width)
        cache.update(one, one, layer)
    return net, {"input_ids": words(1), "past_key_values": cache, "use_cache": True}, {}


@model("Qwen3", "gradient checkpoints; decode with a cache")
def qwen3(train: bool) -> Case:
    net = by_config("Qwen3Config", "Qwen3ForCausalLM", num_key_value_heads=2, head_dim=16)
    return language(net, train, checkpoints=True)


@model("Gemma 3", "sliding windows; decode with a cache")
def gemma3(train: bool) -> Case:
    options = {"num_key_value_heads": 2, "head_dim": 16, "sliding_window": 8}
    return language(by_config("Gemma3TextConfig", "Gemma3ForCausalLM", **options), train)


@model("Phi-3", "gradient checkpoints; decode with a cache")
def phi3(train: bool) -> Case:
    net = by_config("Phi3Config", "Phi3ForCausalLM", num_key_value_heads=2)
    return language(net, train, checkpoints=True)


@model("OPT", "decode with a cache")
def opt(train: bool) -> Case:
    options = {"ffn_dim": 128, "word_embed_proj_dim": 64, "max_position_embeddings": 64}
    return language(by_config("OPTConfig", "OPTForCausalLM", **options), train)


@model("BLOOM", "ALiBi; decode with a cache")
def bloom(train: bool) -> Case:
    return language(by_config("BloomConfig", "BloomForCausalLM", n_head=4, n_layer=2), train)


@model("Falcon", "one head of keys; decode with a cache")
def falcon(train: bool) -> Case:
    net = by_config("FalconConfig", "FalconForCausalLM", num_kv_heads=1)
    return language(net, train, heads=1)


@model("Qwen3-MoE", "routed experts")
def qwen3_moe(train: bool) -> Case:
    options = {"moe_intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 2}
    options |= {"num_key_value_heads": 2, "head_dim": 16}
    net = by_config("Qwen3MoeConfig", "Qwen3MoeForCausalLM", **options)
    return language(net, train, checkpoints=True)


@model("OLMoE, batched experts", "routed experts by batched products")
def olmoe(train: bool) -> Case:
    net = by_config("OlmoeConfig", "OlmoeForCausalLM", num_experts=8, num_experts_per_tok=2)
    net.set_experts_implementation("batched_mm")
    return language(net, train)


@model("Qwen2-MoE, a loop of experts", "routed experts in a loop that values decide")
def qwen2_moe(train: bool) -> Case:
    options = {"num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2}
    net = by_config("Qwen2MoeConfig", "Qwen2MoeForCausalLM", **options)
    net.set_experts_implementation("eager")
    return language(net, train)


@model("DeepSeek-V3", "latent attention, routed and shared experts")
def deepseek(train: bool) -> Case:
    options = {"moe_intermediate_size": 32, "n_routed_experts": 8, "num_experts_per_tok": 2}
    options |= {"n_group": 2, "topk_group": 1, "first_k_dense_replace": 1, "q_lora_rank": 32}
    options |= {"kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16}
    options |= {"num_key_value_heads": 4}
    net = by_config("DeepseekV3Config", "DeepseekV3ForCausalLM", **options)
    given = {"input_ids": words(), "use_cache": False}
    return net, given | ({"labels": words()} if train else {}), {}


@model("GPT-OSS", "sinks, routed experts with biases")
def gpt_oss(train: bool) -> Case:
    options = {"num_local_experts": 4, "num_experts_per_tok": 2, "num_key_value_heads": 2}
    options |= {"head_dim": 16, "sliding_window": 8}
    return language(by_config("GptOssConfig", "GptOssForCausalLM", **options), train)


@model("Llama with LoRA", "adapters, frozen weights, checkpoints")
def lora(train: bool) -> Case:
    import peft

    net = by_config("LlamaConfig", "LlamaForCausalLM", num_key_value_heads=2)
    wanted = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    adapted = peft.get_peft_model(net, wanted)
    if train:
        adapted.enable_input_require_grads()
    return language(adapted, train, checkpoints=True)


@model("OPT with IA3", "adapters that scale")
def ia3(train: bool) -> Case:
    import peft

    options = {"ffn_dim": 128, "word_embed_proj_dim": 64, "max_position_embeddings": 64}
    net = by_config("OPTConfig", "OPTForCausalLM", **options)
    return language(peft.get_peft_model(net, peft.IA3Config(task_type="CAUSAL_LM")), train)


@model("Llama of 4 bits", "bitsandbytes; quantised layers")
def four_bits(train: bool) -> Case:
    import bitsandbytes

    net = by_config("LlamaConfig", "LlamaForCausalLM", num_key_value_heads=2)
    for layer in net.model.layers:
        old = layer.mlp.up_proj
        new = bitsandbytes.nn.Linear4bit(64, 128, bias=False, compute_dtype=torch.float32)
        if old.weight.device.type != "meta":
            new.load_state_dict({"weight": old.weight.detach()})
            new = new.to("cpu")
        layer.mlp.up_proj = new
    return language(net, train)


@model("Llama of 8 bits", "bitsandbytes; quantised layers")
def eight_bits(train: bool) -> Case:
    import bitsandbytes

    net = by_config("LlamaConfig", "LlamaForCausalLM", num_key_value_heads=2)
    for layer in net.model.layers:
        old = layer.mlp.up_proj
        new = bitsandbytes.nn.Linear8bitLt(64, 128, bias=False, has_fp16_weights=False)
        if old.weight.device.type != "meta":
            new.load_state_dict({"weight": old.weight.detach()})
            new = new.to("cpu")
        layer.mlp.up_proj = new
    return language(net, train)


@model("T5", "encoder and decoder, inputs by name")
def t5(train: bool) -> Case:
    options = {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4}
    net = by_config("T5Config", "T5ForConditionalGeneration", decoder_start_token_id=0, **options)
    if train:
        net.gradient_checkpointing_enable()
        return net, {"input_ids": words(), "labels": words(), "use_cache": False}, {}
    return net, {"input_ids": words(), "decoder_input_ids": words(4)}, {}


@model("BART", "encoder and decoder, inputs by name")
def bart(train: bool) -> Case:
    options = {"d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 128}
    options |= {"decoder_ffn_dim": 128, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
    net = by_config("BartConfig", "BartForConditionalGeneration", **options)
    mask = torch.ones(BATCH, LENGTH, dtype=torch.long)
    given = {"input_ids": words(), "attention_mask": mask, "use_cache": False}
    return net, given | {"labels" if train else "decoder_input_ids": words()}, {}


@model("ModernBERT", "local attention, labels of words")
def modernbert(train: bool) -> Case:
    net = by_config("ModernBertConfig", "ModernBertForMaskedLM", local_attention=8)
    return net, {"input_ids": words()} | ({"labels": words()} if train else {}), {}


@model("CLIP", "two inputs, a contrastive loss")
def clip(train: bool) -> Case:
    import transformers

    small = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    small |= {"num_attention_heads": 4}
    text = {**small, "vocab_size": WORDS, "eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 0}
    vision = {**small, "image_size": 32, "patch_size": 8}
    config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=32)
    given = {"input_ids": words(), "pixel_values": torch.zeros(BATCH, 3, 32, 32)}
    return transformers.CLIPModel(config), {**given, "return_loss": train}, {}


@model("DINOv2", "images with labels")
def dinov2(train: bool) -> Case:
    options = {"image_size": 32, "patch_size": 8, "num_labels": 10}
    net = by_config("Dinov2Config", "Dinov2ForImageClassification", **options)
    if train:
        net.gradient_checkpointing_enable()
    return images(net, train)


@model("SegFormer", "images with labels of pixels")
def segformer(train: bool) -> Case:
    import transformers

    config = transformers.SegformerConfig(
        depths=[1] * 4, hidden_sizes=[16, 32, 64, 64], decoder_hidden_size=32, num_labels=5
    )
    net = transformers.SegformerForSemanticSegmentation(config)
    given = {"pixel_values": torch.zeros(BATCH, 3, 64, 64)}
    labels = {"labels": torch.zeros(BATCH, 64, 64, dtype=torch.long)}
    return net, given | (labels if train else {}), {}


@model("wav2vec 2.0", "sound; lengths of targets that values decide")
def wav2vec2(train: bool) -> Case:
    options = {"conv_dim": [32] * 2, "conv_stride": [5, 2], "conv_kernel": [10, 3]}
    options |= {"num_feat_extract_layers": 2, "num_conv_pos_embeddings": 16, "mask_time_prob": 0.0}
    options |= {"num_conv_pos_embedding_groups": 4}
    net = by_config("Wav2Vec2Config", "Wav2Vec2ForCTC", **options)
    given = {"input_values": torch.zeros(BATCH, 1000)}
    return net, given | ({"labels": words(4) + 1} if train else {}), {}


@model("DETR", "queries and boxes; a branch on finite numbers")
def detr(train: bool) -> Case:
    import transformers

    backbone = transformers.ResNetConfig(
        embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], out_features=["stage2"]
    )
    config = transformers.DetrConfig(
        backbone_config=backbone, use_timm_backbone=False, backbone=None, d_model=64,
        encoder_layers=1, decoder_layers=1, encoder_ffn_dim=64, decoder_ffn_dim=64, num_queries=10,
        encoder_attention_heads=4, decoder_attention_heads=4,
    )  # fmt: skip
    net = transformers.DetrForObjectDetection(config)
    given = {"pixel_values": torch.zeros(BATCH, 3, 64, 64)}
    return (
        net,
        given,
        {"loss": lambda out: out.logits.sum() + out.pred_boxes.sum()} if train else {},
    )


def on_cpu(make: Callable[[], torch.nn.Module]) -> torch.nn.Module:
    """A model whose code reads numbers while it is built, afterwards on the device asked for."""
    device = torch.get_default_device()
    with torch.device("cpu"):
        net = make()
    return net.to(device)


def images(net: torch.nn.Module, train: bool, size: int = 32) -> Case:
    """A classifier of transformers."""
    given = {"pixel_values": torch.zeros(BATCH, 3, size, size)}
    return net, given | ({"labels": torch.zeros(BATCH, dtype=torch.long)} if train else {}), {}


def classified(net: torch.nn.Module, x: torch.Tensor, train: bool) -> Case:
    """A classifier of torchvision or timm with cross-entropy."""
    targets = torch.zeros(len(x), dtype=torch.long)
    return net, x, {"loss": functional.cross_entropy, "targets": targets} if train else {}


def vision(name: str, size: int, has: str, **options: Any) -> None:
    """Adds a classifier of torchvision."""

    def build(train: bool) -> Case:
        import torchvision

        get = torchvision.models.get_model
        net = on_cpu(lambda: get(name, weights=None, num_classes=10, **options))
        return classified(net, torch.zeros(BATCH, 3, size, size), train)

    model(f"torchvision {name}", has)(build)


def from_timm(name: str, size: int, has: str, *, checkpoints: bool = False, **options: Any) -> None:
    """Adds a classifier of timm."""

    def build(train: bool) -> Case:
        import timm

        create = timm.create_model
        net = on_cpu(lambda: create(name, pretrained=False, num_classes=10, **options))
        if checkpoints:
            net.set_grad_checkpointing(True)
        return classified(net, torch.zeros(BATCH, 3, size, size), train)

    model(f"timm {name}", has)(build)


vision("convnext_tiny", 64, "convolutions over the channels of each place")
vision("efficientnet_v2_s", 64, "stochastic depth")
vision("regnet_y_400mf", 64, "squeeze and excitation")
vision("densenet121", 64, "gradient checkpoints, concatenations", memory_efficient=True)
vision("maxvit_t", 224, "windows and grids")
vision("mobilenet_v3_small", 64, "hard swish")
from_timm(
    "eva02_tiny_patch14_224", 56, "rotary positions, checkpoints", img_size=56, checkpoints=True
)
from_timm("coatnet_nano_rw_224", 64, "convolutions, relative positions", img_size=64)
from_timm("mixer_s32_224", 64, "products among places", img_size=64)
from_timm("xcit_nano_12_p16_224", 64, "attention among channels")


@model("torchvision r3d_18", "video")
def r3d(train: bool) -> Case:
    import torchvision

    net = on_cpu(lambda: torchvision.models.video.r3d_18(weights=None, num_classes=10))
    return classified(net, torch.zeros(BATCH, 3, 4, 32, 32), train)


@model("torchvision fcos_resnet50_fpn", "detection; boxes that values decide")
def fcos(train: bool) -> Case:
    import torchvision

    build = torchvision.models.detection.fcos_resnet50_fpn
    net = on_cpu(lambda: build(weights=None, weights_backbone=None, num_classes=5))
    pictures = [torch.zeros(3, 64, 64) for _ in range(BATCH)]
    boxes = {"boxes": torch.ones(1, 4), "labels": torch.ones(1, dtype=torch.long)}
    return net, (pictures, [boxes] * BATCH) if train else (pictures,), {}


def denoised(net: torch.nn.Module, given: dict[str, Any], train: bool, out: Any) -> Case:
    """A model of diffusers that says the noise."""
    options = {"loss": lambda y, x: functional.mse_loss(y[0], x), "targets": out}
    if train and getattr(net, "_supports_gradient_checkpointing", False):
        net.enable_gradient_checkpointing()
    return net, {**given, "return_dict": False}, options if train else {}


@model("diffusers UNet2DConditionModel", "checkpoints, inputs by name, added conditions")
def unet(train: bool) -> Case:
    import diffusers

    net = diffusers.UNet2DConditionModel(
        sample_size=16, block_out_channels=(32, 64), layers_per_block=1, cross_attention_dim=32,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), attention_head_dim=8,
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"), addition_embed_type="text_time",
        addition_time_embed_dim=8, projection_class_embeddings_input_dim=80,
    )  # fmt: skip
    x = torch.zeros(BATCH, 4, 16, 16)
    added = {"text_embeds": torch.zeros(BATCH, 32), "time_ids": torch.zeros(BATCH, 6)}
    given = {"sample": x, "timestep": torch.zeros(BATCH), "added_cond_kwargs": added}
    given["encoder_hidden_states"] = torch.zeros(BATCH, 7, 32)
    return denoised(net, given, train, x)


@model("diffusers FluxTransformer2DModel", "checkpoints, seven inputs by name")
def flux(train: bool) -> Case:
    import diffusers

    net = diffusers.FluxTransformer2DModel(
        in_channels=16, num_layers=1, num_single_layers=1, attention_head_dim=16,
        num_attention_heads=2, joint_attention_dim=32, pooled_projection_dim=32,
        axes_dims_rope=(4, 4, 8),
    )  # fmt: skip
    x = torch.zeros(BATCH, 16, 16)
    given = {"hidden_states": x, "encoder_hidden_states": torch.zeros(BATCH, 7, 32)}
    given |= {"pooled_projections": torch.zeros(BATCH, 32), "timestep": torch.zeros(BATCH)}
    given |= {"img_ids": torch.zeros(16, 3), "txt_ids": torch.zeros(7, 3)}
    return denoised(net, given, train, x)


@model("diffusers SD3Transformer2DModel", "checkpoints, joint attention")
def sd3(train: bool) -> Case:
    import diffusers

    net = diffusers.SD3Transformer2DModel(
        sample_size=16, patch_size=2, in_channels=4, num_layers=2, attention_head_dim=8,
        num_attention_heads=4, joint_attention_dim=32, caption_projection_dim=32,
        pooled_projection_dim=64, out_channels=4,
    )  # fmt: skip
    x = torch.zeros(BATCH, 4, 16, 16)
    given = {"hidden_states": x, "encoder_hidden_states": torch.zeros(BATCH, 7, 32)}
    given |= {"pooled_projections": torch.zeros(BATCH, 64), "timestep": torch.zeros(BATCH)}
    return denoised(net, given, train, x)


@model("diffusers AutoencoderKL", "checkpoints, samples of a distribution")
def autoencoder(train: bool) -> Case:
    import diffusers

    net = diffusers.AutoencoderKL(
        block_out_channels=(32, 64), down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2, latent_channels=4,
    )  # fmt: skip
    x = torch.zeros(BATCH, 3, 32, 32)
    return denoised(net, {"sample": x, "sample_posterior": True}, train, x)


def outcome(build: Callable[[bool], Case], device: str, train: bool) -> tuple[str, bool]:
    """The words for one capture, and whether they are fit to print."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.device(device):
            net, given, options = build(train)
        try:
            made = {"optimizer": torch.optim.AdamW} if train else {}
            graph = lm.capture(net, given, train=train, **made, **options)
        except lm.LoadmasterError as error:
            return f"refused: {error}", "\n" not in str(error)
        except Exception as error:  # what this script looks for
            return f"FAILED: {type(error).__name__}: {error}".splitlines()[0], False
    return f"{graph.n_ops:,} ops", True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    rows, refusals, is_fine = [], [], True
    for name, (has, build) in MODELS.items():
        if asked.names and not any(word in name for word in asked.names):
            continue
        start, cells = time.perf_counter(), []
        for train in (True, False):
            on = [outcome(build, device, train) for device in ("meta", "cpu")]
            is_fine &= all(fit for _, fit in on)
            said = list(dict.fromkeys(words for words, _ in on))
            where = ("",) if len(said) == 1 else (" (meta)", " (CPU)")
            for words_, at in zip(said, where, strict=True):
                if not words_.endswith("ops"):
                    refusals.append(
                        f"* {name}, {'training' if train else 'inference'}{at}: {words_}"
                    )
            short = [w if w.endswith("ops") else w.split(":")[0] for w in said]
            cells.append(", ".join(w + at for w, at in zip(short, where, strict=True)))
        rows.append(f"| {name} | {has} | {cells[0]} | {cells[1]} |")
        print(rows[-1], f"{time.perf_counter() - start:.1f} s", flush=True)
    print(*refusals, sep="\n")
    if asked.write:
        PAGE.write_text(_page(rows, refusals), "utf-8")
    return 0 if is_fine else 1


def _page(rows: list[str], refusals: list[str]) -> str:
    import bitsandbytes
    import diffusers
    import peft
    import timm
    import torchvision
    import transformers

    of = (torch, torchvision, transformers, timm, diffusers, peft, bitsandbytes)
    versions = ", ".join(f"{each.__name__} {each.__version__}" for each in of)
    captured = sum("refused" not in row and "FAILED" not in row for row in rows)
    return f"""# Models that are not in the data, captured

{captured} of {len(rows)} models are captured in training with AdamW and in inference, on meta and
on the CPU. What is refused is refused in one line, below the table. Where the two devices differ,
both outcomes are given.

    python benches/captured_models.py --write

With {versions}.
Models have few layers and random weights; inference of language models is a decode step.

| model | has | training | inference |
|---|---|---|---|
{chr(10).join(rows)}

{chr(10).join(refusals)}
"""


if __name__ == "__main__":
    sys.exit(main())
