"""Twelve public kinds of models, small, as their users build them: what targets are tried on.

Each function returns the arguments of :func:`loadmaster.capture` by name, so that ``place`` takes
``public_models.py:qwen3``. Weights and inputs are the same every time. Dropout is off, so that a
step on several devices can be compared with one on one device.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

#: Samples of a batch, words of a sample, words that there are.
BATCH, LENGTH, WORDS = 8, 16, 128

#: Sizes of a decoder of transformers.
_DECODER = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "use_cache": False,
}

#: Sizes of an encoder of transformers.
_ENCODER = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4}


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(1)


def _words(length: int = LENGTH) -> torch.Tensor:
    return torch.randint(3, WORDS, (BATCH, length), generator=_generator())


def _images(size: int = 32) -> torch.Tensor:
    return torch.rand(BATCH, 3, size, size, generator=_generator())


def _classes(n: int = 10) -> torch.Tensor:
    return torch.randint(0, n, (BATCH,), generator=_generator())


def _step(model: nn.Module, example_inputs: Any, **more: Any) -> dict[str, Any]:
    """A training step; a model of transformers returns its own loss."""
    return {
        "model": model,
        "example_inputs": example_inputs,
        "optimizer": torch.optim.AdamW,
        **more,
    }


def _language_model(model: nn.Module) -> dict[str, Any]:
    words = _words()
    return _step(model, {"input_ids": words, "labels": words})


def qwen3() -> dict[str, Any]:
    """A decoder with grouped queries and norms of queries and keys."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    return _language_model(Qwen3ForCausalLM(Qwen3Config(**_DECODER, tie_word_embeddings=False)))


def gemma3() -> dict[str, Any]:
    """A decoder with a sliding window, whose head is tied to its embedding."""
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    torch.manual_seed(0)
    return _language_model(Gemma3ForCausalLM(Gemma3TextConfig(**_DECODER, sliding_window=8)))


def t5() -> dict[str, Any]:
    """An encoder and a decoder that share an embedding, with positions by a table of biases."""
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    config = T5Config(
        vocab_size=WORDS,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_decoder_layers=2,
        num_heads=4,
        dropout_rate=0.0,
        decoder_start_token_id=0,
        use_cache=False,
    )
    return _language_model(T5ForConditionalGeneration(config))


def vit() -> dict[str, Any]:
    """An encoder of patches of images."""
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    config = ViTConfig(**_ENCODER, num_hidden_layers=4, image_size=32, patch_size=8, num_labels=10)
    images = {"pixel_values": _images(), "labels": _classes()}
    return _step(ViTForImageClassification(config), images)


def whisper() -> dict[str, Any]:
    """An encoder of sound, which is frozen, and a decoder that is trained."""
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    torch.manual_seed(0)
    config = WhisperConfig(
        vocab_size=WORDS,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        num_mel_bins=8,
        max_source_positions=16,
        max_target_positions=32,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        use_cache=False,
    )
    model = WhisperForConditionalGeneration(config)
    model.freeze_encoder()
    sound = torch.rand(BATCH, 8, 32, generator=_generator())
    return _step(model, {"input_features": sound, "labels": _words()})


def qwen3_moe() -> dict[str, Any]:
    """A decoder with routed experts."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    torch.manual_seed(0)
    sizes = {**_DECODER, "num_hidden_layers": 2}
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    config = Qwen3MoeConfig(**sizes, **experts, tie_word_embeddings=False)
    return _language_model(Qwen3MoeForCausalLM(config))


def mamba2() -> dict[str, Any]:
    """A decoder of state spaces."""
    from transformers import Mamba2Config, Mamba2ForCausalLM

    torch.manual_seed(0)
    config = Mamba2Config(
        vocab_size=WORDS,
        hidden_size=32,
        state_size=8,
        num_hidden_layers=2,
        num_heads=4,
        head_dim=16,
        n_groups=1,
        chunk_size=8,
        use_cache=False,
        tie_word_embeddings=False,
    )
    return _language_model(Mamba2ForCausalLM(config))


def swin() -> dict[str, Any]:
    """Attention in windows that are shifted, on images whose patches are merged."""
    from torchvision.models import SwinTransformer

    torch.manual_seed(0)
    model = SwinTransformer(
        patch_size=[4, 4],
        embed_dim=32,
        depths=[2, 2],
        num_heads=[2, 4],
        window_size=[4, 4],
        num_classes=10,
        stochastic_depth_prob=0.0,
    )
    return _step(model, _images(), loss=functional.cross_entropy, targets=_classes())


class _Translator(nn.Module):
    """Two LSTMs, the second of which begins with the state of the first."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(WORDS, width), nn.Embedding(WORDS, width)
        self.encoder = nn.LSTM(width, width, 2, batch_first=True)
        self.decoder = nn.LSTM(width, width, 2, batch_first=True)
        self.head = nn.Linear(width, WORDS)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        _, state = self.encoder(self.source(source))
        return self.head(self.decoder(self.target(target), state)[0])


def _of_words(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(output.flatten(0, 1), targets.flatten())


def lstm() -> dict[str, Any]:
    """A translator by LSTMs."""
    torch.manual_seed(0)
    words = _words()
    return _step(_Translator(), (words, words), loss=_of_words, targets=words)


class _Swish(torch.autograd.Function):
    """An activation with a backward pass of its own."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return gradient * s * (1 + x * (1 - s))


class _Block(nn.Module):
    def __init__(self, into: int, out: int) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(into, out, 3, padding=1), nn.GroupNorm(4, out)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _Swish.apply(self.norm(self.conv(x)))


class _UNet(nn.Module):
    """A U-Net, one block of which is recomputed in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.down, self.middle = _Block(3, 8), _Block(8, 16), _Block(16, 16)
        self.up, self.last = nn.ConvTranspose2d(16, 8, 2, 2), _Block(16, 8)
        self.head = nn.Conv2d(8, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.first(x)
        down = checkpoint(self.down, functional.max_pool2d(first, 2), use_reentrant=False)
        return self.head(self.last(torch.cat([first, self.up(self.middle(down))], 1)))


def unet() -> dict[str, Any]:
    """A U-Net with a checkpoint and an autograd function of its own."""
    torch.manual_seed(0)
    images = _images(16)
    return _step(_UNet(), images, loss=functional.mse_loss, targets=images)


class _GraphNetwork(nn.Module):
    """Two layers that add up what neighbours send."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, width), nn.Linear(width, width)
        self.head = nn.Linear(width, 5)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        for layer in (self.first, self.second):
            sent = layer(x)
            x = torch.relu(torch.zeros_like(sent).index_add_(0, edges[1], sent[edges[0]]))
        return self.head(x)


def graph_network() -> dict[str, Any]:
    """A graph network: its nodes are no samples, since edges point at them."""
    torch.manual_seed(0)
    generator = _generator()
    nodes = torch.rand(48, 16, generator=generator)
    edges = torch.randint(0, 48, (2, 160), generator=generator)
    labels = torch.randint(0, 5, (48,), generator=generator)
    return _step(_GraphNetwork(), (nodes, edges), loss=functional.cross_entropy, targets=labels)


def clip() -> dict[str, Any]:
    """An encoder of words and one of images, whose loss compares all samples of a batch."""
    from transformers import CLIPConfig, CLIPModel

    torch.manual_seed(0)
    text = {
        **_ENCODER,
        "vocab_size": WORDS,
        "num_hidden_layers": 2,
        "max_position_embeddings": LENGTH,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "bos_token_id": 1,
    }
    vision = {**_ENCODER, "num_hidden_layers": 2, "image_size": 32, "patch_size": 8}
    model = CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=16))
    inputs = {"input_ids": _words(), "pixel_values": _images(), "return_loss": True}
    return _step(model, inputs)


#: All of them, by name.
PUBLIC = {
    function.__name__: function
    for function in (
        qwen3, gemma3, t5, vit, whisper, qwen3_moe, mamba2, swin, lstm, unet, graph_network, clip,
    )
}  # fmt: skip
