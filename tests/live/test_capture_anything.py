"""Models of all kinds on the CPU and on meta: the same graph, and nothing of the caller's changes.

Needs torch (no GPU): without it these tests are skipped.
"""

from __future__ import annotations

import random
import warnings
from dataclasses import dataclass

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch 2.5 or later")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812
from torch.utils.checkpoint import checkpoint  # noqa: E402

import loadmaster as lm  # noqa: E402
from loadmaster.base.errors import InputError  # noqa: E402

WIDTH = 8


def captured(model, inputs, **options):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="loss: the mean|no FLOPs are known")
        return lm.capture(model, inputs, **options)


# ---- drawn models ------------------------------------------------------------------------------


class Cache:
    """No pytree: keys so far in a list, by layer."""

    def __init__(self, layers):
        self.keys = [torch.zeros(2, 3, WIDTH) for _ in range(layers)]
        self.seen = {"tokens": 3}

    def update(self, layer, keys):
        self.keys[layer] = torch.cat([self.keys[layer], keys], 1)
        self.seen["tokens"] += 1
        return self.keys[layer]


@dataclass(frozen=True)
class Draw:
    """What one drawn model has."""

    layers: int
    checkpoints: str  # "", "reentrant" or "plain"
    caches: bool
    keeps: bool  # attributes of the model's own that change
    train: bool


class Layer(nn.Module):
    def __init__(self, number, draw):
        super().__init__()
        self.norm, self.up = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
        self.down, self.number = nn.Linear(2 * WIDTH, WIDTH), number
        self.scale = torch.ones(WIDTH)  # neither a parameter nor a buffer
        self.register_buffer("calls", torch.zeros(()))
        self.draw, self.last, self.history = draw, None, []

    def forward(self, x, cache=None):
        self.calls += 1
        if cache is not None:
            x = x + cache.update(self.number, x).mean(1, keepdim=True)
        y = self.norm(x) * self.scale
        y = y + torch.arange(WIDTH, device=self.scale.device, dtype=x.dtype)
        if self.draw.keeps:
            self.last = y
            self.history.append(y)
        return x + self.down(torch.relu(self.up(y)))


class Drawn(nn.Module):
    def __init__(self, draw):
        super().__init__()
        self.layers = nn.ModuleList(Layer(i, draw) for i in range(draw.layers))
        self.draw = draw

    def forward(self, x, cache=None):
        for layer in self.layers:
            if self.draw.checkpoints and self.training:
                x = checkpoint(layer, x, use_reentrant=self.draw.checkpoints == "reentrant")
            else:
                x = layer(x, cache)
        return x


def drawn(seed):
    of = random.Random(seed)
    train = of.random() < 0.7
    checkpoints = of.choice(["", "reentrant", "plain"]) if train else ""
    caches = not checkpoints and of.random() < 0.7
    return Draw(of.randint(1, 3), checkpoints, caches, of.random() < 0.5, train)


def parts(draw, device):
    with torch.device(device):
        inputs = {"x": torch.zeros(2, 1, WIDTH, requires_grad=draw.checkpoints == "reentrant")}
        cache = Cache(draw.layers)
        return Drawn(draw), inputs | ({"cache": cache} if draw.caches else {}), cache


def held(model, cache):
    """Identities of all that the model and the cache hold."""
    own = [(id(m.last), len(m.history), float(m.calls.is_meta or m.calls)) for m in model.layers]
    named = [*model.named_parameters(), *model.named_buffers()]
    tensors = [(name, id(t), id(t.grad)) for name, t in named]
    return own, tensors, list(map(id, cache.keys)), dict(cache.seen), model.training


@pytest.mark.parametrize("seed", range(12))
def test_a_capture_is_the_same_on_meta_and_leaves_all_as_it_was(seed):
    draw = drawn(seed)
    options = {"train": draw.train, "optimizer": torch.optim.SGD if draw.train else None}
    found = []
    for device in ("cpu", "meta"):
        model, inputs, cache = parts(draw, device)
        before = held(model, cache)
        graph = captured(model, inputs, **options)
        assert held(model, cache) == before
        assert captured(model, inputs, **options).to_document() == graph.to_document()
        found.append(graph)
    assert found[0].to_document()["ops"] == found[1].to_document()["ops"]
    again = draw.layers if draw.checkpoints else 0
    names = [f"layers.{i}.up" for i in range(draw.layers)]
    forward = [(m, p) for k, m, p in zip(found[0].kinds, found[0].modules, found[0].phases,
                                         strict=True) if "addmm" in k and m in names]  # fmt: skip
    assert sorted(forward) == sorted(
        [(name, "f") for name in names] + [(name, "b") for name in names[:again]]
    )
    inputs_of = [n for n, k in zip(found[0].names, found[0].kinds, strict=True) if k == "input"]
    assert len(inputs_of) == 1 + draw.layers * draw.caches
    # What is computed again reads the parameters themselves, so every one has its gradient.
    if draw.train:
        updates = {graph.names[i] for i in range(graph.n_ops) if graph.kinds[i] == "parameter"}
        updated = {m.removeprefix("optim.") for m, p in zip(graph.modules, graph.phases,
                                                            strict=True) if p == "o"}  # fmt: skip
        assert updated == updates


# ---- weights whose type has attributes of its own -----------------------------------------------


class Codes(nn.Parameter):
    """Weights of 8 bits with their scale beside them, as libraries keep those of few bits."""

    def __new__(cls, codes, scale):
        made = nn.Parameter.__new__(cls, codes, requires_grad=False)
        made.scale, made.codes = scale, made.data
        return made


class Quantised(nn.Module):
    def __init__(self):
        super().__init__()
        codes = torch.ones(WIDTH, WIDTH, dtype=torch.int8)
        self.weight, self.state = Codes(codes, torch.ones(WIDTH)), type("State", (), {})()

    def forward(self, x):
        self.state.codes = self.weight.codes
        return x @ (self.state.codes.to(x.dtype) * self.weight.scale)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_scales_of_quantised_weights_are_buffers_and_codes_count_once(device):
    with torch.device(device):
        layer = Quantised()
    graph = captured(nn.Sequential(layer), torch.zeros(2, WIDTH), train=False)
    kinds = dict(zip(graph.names, graph.kinds, strict=True))
    assert kinds["0.weight"] == "parameter"
    assert kinds["0.weight.scale"] == "buffer"
    assert graph.param_bytes.sum() == WIDTH * WIDTH + 4 * WIDTH
    assert "constant" not in graph.kinds
    assert not vars(layer.state)


# ---- one line, that names the module ----------------------------------------------------------


class Inner(nn.Module):
    def __init__(self, does):
        super().__init__()
        self.fc, self.does = nn.Linear(WIDTH, WIDTH), does

    def forward(self, x):
        return self.does(self.fc(x))


def lazily(x):
    raise ValueError("no such thing:\nlook elsewhere")


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize(
    ("does", "says"),
    [
        (lambda x: x @ torch.ones(3, 3), "RuntimeError: "),
        (lambda x: torch.from_numpy(x.detach().numpy()) + x, "module 'inner'"),
        (lambda x: x.no_such_method(), "AttributeError: .*no_such_method"),
        (lazily, "ValueError: no such thing: .*test_capture_anything.py, line"),
        (lambda x: x[:, : int(x.sum())], "'inner'"),
    ],
)
def test_no_error_of_pytorch_leaves_a_capture(does, says, device):
    with torch.device(device):
        model = nn.Sequential()
        model.add_module("inner", Inner(does))
    with pytest.raises(InputError, match=says) as caught:
        captured(model, torch.zeros(2, WIDTH))
    assert "'inner'" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.__suppress_context__


def test_the_model_itself_is_named_by_its_class():
    with pytest.raises(InputError, match=r"read off a tensor in Inner \(item"):
        captured(Inner(lambda x: x * int(x.sum())), torch.zeros(2, WIDTH))


def test_parameters_without_sizes_are_refused():
    with pytest.raises(InputError, match=r"'0.weight' has no sizes yet: run the model once"):
        captured(nn.Sequential(nn.LazyLinear(3)), torch.zeros(2, WIDTH))


def test_an_error_of_the_progress_callback_stays_as_it_is():
    class Stop(Exception):  # noqa: N818
        pass

    def stop(phase, n):
        raise Stop

    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(200)))
    with pytest.raises(Stop):
        captured(model, torch.zeros(2, WIDTH), progress=stop, loss=lambda y: F.relu(y).sum())


def test_a_step_has_no_numbers_that_are_not_finite():
    class Guarded(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(WIDTH, WIDTH)

        def forward(self, x):
            x = self.fc(x)
            if torch.isinf(x).any() or torch.isnan(x).any() or (~torch.isfinite(x)).any():
                return torch.clamp(x, -1, 1)
            return x if torch.isfinite(x).all() else torch.clamp(x, -1, 1)

    kinds = captured(Guarded(), torch.zeros(2, WIDTH)).kinds
    assert not any("clamp" in kind for kind in kinds)
    assert any("addmm" in kind for kind in kinds)
