"""Models by their configurations, captured on the meta device: the steps that others measured.

A captured step is kept in a folder, so that a second run reads it. The folder is to be emptied when
the capture changes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from data import at
from published_models import Gpt
from torch import nn
from torch.nn import functional

import loadmaster as lm

#: Tokens that BERT predicts of a sample, by its length: what NVIDIA's recipe has.
_PREDICTED = {128: 20, 512: 80}

#: Words of the joined vocabulary of WMT 2014, English and German.
_WMT_WORDS = 33708


@dataclass(frozen=True)
class Model:
    """One step of a model.

    Attributes
    ----------
    kind : str
        "gpt", "llama", "bert", "translation", "torchvision", or "configs": a file of
        ``kernels/configs``.
    sizes : tuple
        Of "gpt": width, layers, heads, vocabulary. Of "llama": width, layers, heads, heads of keys,
        inner width, vocabulary. Else a name, and a picture's side.
    batch, length : int
        Samples of all devices together, and tokens of each.
    dtype : str
        Of parameters.
    autocast : str
        Dtype that forward passes are cast to by autocast; empty: none.
    step : str
        "train", "inference", or "decode": one token behind ``length`` cached ones.
    optimizer : str
        Of ``torch.optim``; empty: no update.
    """

    kind: str
    sizes: tuple[Any, ...]
    batch: int
    length: int
    dtype: str = "float32"
    autocast: str = ""
    step: str = "train"
    optimizer: str = ""

    @property
    def name(self) -> str:
        """A name that no other step has."""
        cast = f"autocast_{self.autocast}" if self.autocast else ""
        sizes = "x".join(map(str, self.sizes))
        words = (self.kind, sizes, self.batch, self.length, self.dtype, cast, self.step)
        return "_".join(str(word) for word in (*words, self.optimizer) if word != "")


class Cast(nn.Module):
    """A model under autocast."""

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.model, self.dtype = model, dtype

    def forward(self, *inputs: torch.Tensor) -> Any:
        """As the model's."""
        with torch.autocast("cpu", dtype=self.dtype):
            return self.model(*inputs)


class Bert(nn.Module):
    """BERT in pretraining: a head on the tokens that are to be predicted, and one on the sample."""

    def __init__(self, predicted: int) -> None:
        import transformers

        super().__init__()
        config = transformers.BertConfig(
            vocab_size=30528,
            hidden_size=1024,
            num_hidden_layers=24,
            num_attention_heads=16,
            intermediate_size=4096,
        )
        config._attn_implementation = "eager"
        self.predicted, self.model = predicted, transformers.BertForPreTraining(config)

    def forward(self, words: torch.Tensor, places: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Logits of the words at the places [batch, predicted], and of the next sentence."""
        tokens, pooled = self.model.bert(words)[:2]
        wanted = tokens.gather(1, places.unsqueeze(-1).expand(-1, -1, tokens.shape[-1]))
        return self.model.cls(wanted, pooled)


class Translation(nn.Module):
    """Transformer-big; one embedding for both languages and for the head."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(_WMT_WORDS, 1024)
        self.layers = nn.Transformer(1024, 16, 6, 6, 4096, batch_first=True)
        self.head = nn.Linear(1024, _WMT_WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Logits [batch, tokens, words]."""
        return self.head(self.layers(self.words(source), self.words(target)))


def graph(model: Model, folder: Path) -> lm.OpGraph:
    """The step of a model, read from the folder, or captured and kept there."""
    path = folder / f"{model.name}.json.gz"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        captured(model).save(path)
    return lm.read(path)


def captured(model: Model) -> lm.OpGraph:
    """The step of a model, captured without its weights."""
    with torch.device("meta"):
        module, inputs, loss, targets = _OF_KIND[model.kind](model)
        if model.autocast:
            module = Cast(module, getattr(torch, model.autocast))
        module = module.to(getattr(torch, model.dtype))
    if model.step != "train":
        return lm.capture(module.eval(), inputs, train=False, name=model.name)
    optimizer = _optimizer(model.optimizer)
    return lm.capture(
        module.train(), inputs, loss=loss, targets=targets, optimizer=optimizer, name=model.name
    )


def _optimizer(name: str) -> Any:
    if name == "SGD":
        return lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    return getattr(torch.optim, name) if name else None


def _cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.flatten(0, -2), targets.flatten())


def _words(model: Model) -> torch.Tensor:
    return torch.zeros(model.batch, model.length, dtype=torch.long)


def _gpt(model: Model) -> tuple[Any, ...]:
    width, layers, heads, words = model.sizes
    module, inputs = Gpt(width, layers, heads, words, model.length), _words(model)
    return module, inputs, _cross_entropy, inputs


def _llama(model: Model) -> tuple[Any, ...]:
    import transformers

    width, layers, heads, of_keys, inner, words = model.sizes
    config = transformers.LlamaConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=of_keys,
        intermediate_size=inner,
        vocab_size=words,
        max_position_embeddings=model.length + 1,
        use_cache=model.step == "decode",
    )
    module, tokens = transformers.LlamaForCausalLM(config), _words(model)
    if model.step != "decode":
        return module, {"input_ids": tokens, "labels": tokens}, None, ()
    cache = transformers.DynamicCache()
    keys = torch.empty(
        model.batch, of_keys, model.length, width // heads, dtype=getattr(torch, model.dtype)
    )
    for layer in range(layers):
        cache.update(keys, keys, layer)
    return module, {"input_ids": tokens[:, :1], "past_key_values": cache}, None, ()


def _bert(model: Model) -> tuple[Any, ...]:
    predicted = _PREDICTED[model.length]
    places = torch.zeros(model.batch, predicted, dtype=torch.long)
    is_next = torch.zeros(model.batch, dtype=torch.long)

    def loss(
        logits: tuple[torch.Tensor, ...], words: torch.Tensor, is_next: torch.Tensor
    ) -> torch.Tensor:
        return _cross_entropy(logits[0], words) + functional.cross_entropy(logits[1], is_next)

    return Bert(predicted), (_words(model), places), loss, (places, is_next)


def _translation(model: Model) -> tuple[Any, ...]:
    words = _words(model)
    return Translation(), (words, words), _cross_entropy, words


def _torchvision(model: Model) -> tuple[Any, ...]:
    import torchvision

    name, side = model.sizes
    classes = torch.zeros(model.batch, dtype=torch.long)
    module = getattr(torchvision.models, name)()
    return module, torch.zeros(model.batch, 3, side, side), _cross_entropy, classes


def _configs(model: Model) -> tuple[Any, ...]:
    """Attention is written out, as in the measured steps."""
    import transformers

    config = json.loads((at("kernels/configs") / f"{model.sizes[0]}.json").read_text())
    kind = config.pop("model_type")
    of = transformers.AutoConfig.for_model(kind, **config)
    of._attn_implementation, of.use_cache = "eager", False
    bert = "BertLMHeadModel" if model.step == "train" else "BertForSequenceClassification"
    name = {"bert": bert, "gpt2": "GPT2LMHeadModel", "opt": "OPTForCausalLM"}[kind]
    module, tokens = getattr(transformers, name)(of), _words(model)
    inputs = {"input_ids": tokens, "labels": tokens} if model.step == "train" else tokens
    return module, inputs, None, ()


_OF_KIND = {
    "gpt": _gpt,
    "llama": _llama,
    "bert": _bert,
    "translation": _translation,
    "torchvision": _torchvision,
    "configs": _configs,
}
