"""Real model graphs that come with the package, traced to operator level."""

from __future__ import annotations

from importlib import resources

from loadmaster.base.errors import InputError
from loadmaster.base.text import meant
from loadmaster.model.graph import OpGraph

#: File and what it is, by name.
EXAMPLES = {
    "alexnet": ("alexnet_train_b256", "AlexNet training, batch 256"),
    "bert-large": ("bert_large_train_b16_s64", "BERT-large pre-training, batch 16, 64 tokens"),
    "gpt3-330m": ("gpt3_330m_train_b8", "GPT-3-style 330M training, batch 8"),
    "googlenet": ("moirai-googlenet", "GoogLeNet inference, times measured on four GPU types"),
    "inception-v3": ("inception_v3_train_b512", "Inception-v3 training, batch 512"),
    "lenet": ("lenet_train_b256", "LeNet-5 training, batch 256"),
    "mixtral": ("mixtral_8x7b_infer_b4_s2048", "Mixtral 8x7B inference, batch 4, 2048 tokens"),
    "rnnlm": ("rnnlm_2x2048_train_b128", "RNN language model 2x2048 training, batch 128"),
    "vgg19": ("vgg19_train_b64", "VGG-19 training, batch 64"),
}


def load(name: str) -> OpGraph:
    """The example called ``name``.

    Raises
    ------
    InputError
        No example has that name; the known ones are listed.
    """
    if name not in EXAMPLES:
        raise InputError(f"no example is named {name!r}{meant(name, sorted(EXAMPLES))}")
    from loadmaster.readers import opgraph

    file = resources.files("loadmaster.readers") / "examples" / f"{EXAMPLES[name][0]}.json.gz"
    with resources.as_file(file) as path:
        return opgraph.read(path)
