"""Captures and FX graphs, against what PyTorch itself does.

Needs torch (no GPU): without it these tests are skipped.
"""

from __future__ import annotations

import gzip
import json
import resource
import warnings
from collections import Counter

import pytest
from folders import EXAMPLES, at

torch = pytest.importorskip("torch", reason="needs PyTorch 2.5 or later")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402
from torch_models import LSTM, BertMini, Model, ResNet18, example  # noqa: E402

import loadmaster as lm  # noqa: E402
from loadmaster.base.errors import InputError  # noqa: E402
from loadmaster.model import arguments  # noqa: E402


def words(*shape):
    return torch.zeros(*shape, dtype=torch.long)


MODELS = {
    "ResNet-18": (lambda: ResNet18(8), torch.rand(2, 3, 64, 64), words(2)),
    "BERT-mini": (BertMini, words(2, 16), words(2, 16)),
    "LSTM": (LSTM, words(4, 20), words(4, 20)),
}


def captured(model, inputs, **options):
    """Without a word about the loss."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="loss: the mean")
        return lm.capture(model, inputs, **options)


def ops(graph, phase="fbo"):
    """How many ops of each kind PyTorch dispatches in these phases."""
    pairs = zip(graph.kinds, graph.phases, strict=True)
    return Counter(kind for kind, p in pairs if kind.startswith("aten.") and p in phase)


class Dispatched(TorchDispatchMode):
    """Counts what a real step dispatches."""

    def __init__(self):
        super().__init__()
        self.kinds = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "aten":
            self.kinds[str(func)] += 1
        return func(*args, **(kwargs or {}))


# ---- against a real step ----------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_a_capture_is_op_for_op_what_a_real_step_dispatches(name):
    make, inputs, targets = MODELS[name]
    model = make()
    with FlopCounterMode(display=False) as counted, Dispatched() as real:
        F.cross_entropy(model(inputs), targets).backward()
    graph = lm.capture(model, inputs, loss=F.cross_entropy, targets=targets)
    assert ops(graph) == real.kinds
    # PyTorch's counter has no figure for fused recurrent layers, ours has.
    recurrent = [f for k, f in zip(graph.kinds, graph.flops, strict=True) if "rnn" in k]
    assert graph.flops.sum() - sum(recurrent) == counted.get_total_flops()
    rows, weights = 4 * 20, 2 * 2 * (4 * 16 * 16)
    assert sum(recurrent) == (3 * 2 * rows * weights if name == "LSTM" else 0)


@pytest.mark.parametrize("name", MODELS)
def test_an_inference_is_what_a_real_one_dispatches(name):
    make, inputs, _ = MODELS[name]
    model = make().eval()
    torch.backends.mha.set_fastpath_enabled(False)
    with torch.no_grad(), Dispatched() as real:
        model(inputs)
    torch.backends.mha.set_fastpath_enabled(True)
    graph = lm.capture(model, inputs, train=False)
    assert ops(graph) == real.kinds
    assert set(graph.phases) == {"f"}
    assert graph.meta["mode"] == "infer"


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam, torch.optim.RMSprop])
def test_an_update_is_what_a_real_one_dispatches(optimizer):
    model = BertMini()
    real = optimizer(model.parameters(), foreach=False)
    for _ in range(2):
        model(words(2, 16)).mean().backward()
        with Dispatched() as step:
            real.step()
    graph = captured(model, words(2, 16), optimizer=optimizer)
    parameters = len(list(model.parameters()))
    counted = {"aten.add_.Tensor": parameters, "aten._local_scalar_dense.default": parameters}
    counts = Counter(counted if optimizer is torch.optim.Adam else {})
    if optimizer is torch.optim.RMSprop:
        counts = Counter({"aten.add_.Tensor": parameters})
    assert step.kinds - ops(graph, "o") == counts, "the host counts the steps"
    assert not ops(graph, "o") - step.kinds


def test_a_captured_lenet_is_the_one_in_the_data():
    """But for one `detach` per parameter, as autograd keeps the gradient, where that has one."""
    layers = [
        nn.Conv2d(1, 20, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(20, 50, 5), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(800, 500), nn.ReLU(), nn.Linear(500, 10),
    ]  # fmt: skip
    with torch.device("meta"):
        model = nn.ModuleDict({"m": nn.Sequential(*layers)})
        images, classes = torch.empty(256, 1, 28, 28), torch.empty(256, dtype=torch.long)
    model.forward = lambda x: model["m"](x)
    graph = lm.capture(
        model, images, loss=F.cross_entropy, targets=classes,
        optimizer=lambda parameters: torch.optim.SGD(parameters, 1e-4, momentum=0.9),
    )  # fmt: skip
    data = lm.read(EXAMPLES / "lenet_train_b256.json.gz")
    assert ops(graph) - ops(data) == {"aten.detach.default": 7}
    assert not ops(data) - ops(graph)
    for column in ("flops", "bytes_accessed", "param_bytes", "output_bytes"):
        assert getattr(graph, column).sum() == getattr(data, column).sum()
    for column in ("modules", "colocation"):
        found = [Counter(zip(g.kinds, getattr(g, column), strict=True)) for g in (graph, data)]
        left = {kind for kind, _ in set(found[1]) - set(found[0])}
        assert left <= {"aten.detach.default", "aten.ones_like.default"}, column
    controls = [Counter((g.tensor < 0).tolist())[True] for g in (graph, data)]
    assert controls[0] == controls[1]
    assert calls(graph) == calls(lm.read("example:lenet"))


def calls(graph):
    """How often each kind of op that gives a tensor is called with what; of tensors the shapes."""
    outputs = [text.partition(";")[0] for text in graph.outputs]
    return Counter(
        (kind, json.dumps(arguments.renumbered(call, outputs.__getitem__)))
        for kind, call, output in zip(graph.kinds, graph.args, graph.outputs, strict=True)
        if call is not None and kind != "aten.detach.default" and output != "none"
    )


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_captured_calls_take_what_their_edges_say(name, train):
    make, inputs, _ = MODELS[name]
    graph = captured(make(), inputs, train=train)
    read = [[] for _ in graph.names]
    for src, dst in zip(graph.src[graph.tensor >= 0], graph.dst[graph.tensor >= 0], strict=True):
        read[dst].append(int(src))
    for op, call in enumerate(graph.args):
        assert (call is None) == graph.placeholder[op]
        assert call is None or list(dict.fromkeys(arguments.tensors(call))) == read[op]


RECORDED = {
    "resnet18_b4": (ResNet18, (4, 3, 128, 128), (4,)),
    "bertmini_b4": (lambda: BertMini(256, 4, 8000, 64), (4, 64), (4, 64)),
    "lstm_b4": (lambda: LSTM(256, 4000), (4, 20), (4, 20)),
}
MOVING = {"add", "add_", "clone", "copy_", "div", "empty", "sum", "zeros"}  # kernels use them, too


@pytest.mark.parametrize(
    "stem",
    [
        "lstm_b4",
        pytest.param("resnet18_b4", marks=pytest.mark.large_data),
        pytest.param("bertmini_b4", marks=pytest.mark.large_data),
    ],
)
def test_captures_have_the_ops_of_recorded_steps(stem):
    """Steps with Adam in execution traces, which hold calls within calls, too."""
    make, shape, targets = RECORDED[stem]
    with torch.device("meta"):
        model, labels = make(), words(*targets)
        inputs = torch.empty(shape) if len(shape) == 4 else words(*shape)
    graph = lm.capture(
        model, inputs, loss=F.cross_entropy, targets=labels, optimizer=torch.optim.Adam
    )
    trace = json.loads(gzip.decompress(at(f"artifacts/torch/{stem}.et.json.gz").read_bytes()))
    recorded = Counter(node["name"].removeprefix("aten::") for node in trace["nodes"])
    done = Counter(
        kind.split(".")[1]
        for kind, view in zip(graph.kinds, graph.view, strict=True)
        if kind.startswith("aten.") and not view and kind.split(".")[1] not in MOVING
    )
    assert done == {kind: recorded[kind] for kind in done}
    assert sum(done.values()) > 70


# ---- what a capture says ----------------------------------------------------------------------


def test_ops_of_all_phases_belong_to_modules():
    graph = captured(Model(), example(), optimizer=torch.optim.Adam)
    at = {}
    for kind, module, phase in zip(graph.kinds, graph.modules, graph.phases, strict=True):
        at.setdefault((kind, phase), set()).add(module)
    layers = {f"layers.{i}" for i in range(4)}
    assert at["aten.native_layer_norm_backward.default", "b"] == {f"{m}.norm" for m in layers}
    assert at["aten.threshold_backward.default", "b"] == layers
    assert at["aten.embedding_dense_backward.default", "b"] == {"emb"}
    assert at["aten.mm.default", "b"] >= {"head", *(f"{m}.up" for m in layers)}
    assert at["aten.addcdiv_.default", "o"] == {
        f"optim.{n}" for n, k in zip(graph.names, graph.kinds, strict=True) if k == "parameter"
    }


def test_a_parameter_its_slots_and_its_update_share_a_device():
    model = Model()
    graph = captured(model, example(), optimizer=torch.optim.Adam)
    sets = {}
    for i, name in enumerate(graph.colocation):
        sets.setdefault(name, []).append(i)
    for name, parameter in model.named_parameters():
        members = sets[name]
        kinds = Counter(graph.kinds[i] for i in members)
        assert (kinds["parameter"], kinds["buffer"]) == (1, 2)
        assert {graph.phases[i] for i in members if graph.kinds[i].startswith("aten.")} == {"o"}
        stored = [i for i in members if graph.placeholder[i]]
        assert [int(graph.param_bytes[i]) for i in stored] == [4 * parameter.numel()] * 3
        assert all(
            graph.modules[i] == f"optim.{name}" for i in members if graph.kinds[i] == "buffer"
        )
    update = next(i for i in sets["head.weight"] if graph.kinds[i] == "aten.addcdiv_.default")
    before = {int(s) for s, d, t in zip(graph.src, graph.dst, graph.tensor, strict=True)
              if d == update and t < 0}  # fmt: skip
    assert {graph.phases[i] for i in before} == {"f", "b"}, "after all that read the weight"
    plan = lm.place(graph, lm.Cluster.preset("2xV100-NVLink"), "heft")
    assert len({plan.device(graph.names[i]) for i in sets["head.weight"]}) == 1


def test_batch_norm_stays_with_its_statistics():
    graph = captured(ResNet18(4), torch.rand(2, 3, 32, 32))
    norm = next(i for i, kind in enumerate(graph.kinds) if "batch_norm" in kind)
    assert graph.colocation[norm] == "stem.1.running_mean"
    assert graph.colocation[graph.index("stem.1.running_var")] == "stem.1.running_mean"


def test_tied_weights_are_one_parameter():
    graph = captured(Model(tied=True), example())
    assert "head.weight" not in graph.names
    readers = {graph.modules[d] for s, d in zip(graph.src, graph.dst, strict=True)
               if graph.names[s] == "emb.weight"}  # fmt: skip
    assert {"emb", "head"} <= readers


def test_a_capture_leaves_the_model_and_the_optimizer_as_they_are():
    model = ResNet18(4)
    model.stem.eval()
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.AdamW(model.parameters())
    captured(model, torch.rand(2, 3, 32, 32), optimizer=optimizer)
    assert model.training
    assert not model.stem.training
    assert all(torch.equal(weights[name], v) for name, v in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert optimizer.param_groups[0]["params"][0] is model.stem[0].weight
    assert optimizer.param_groups[0]["foreach"] is None
    assert not optimizer.state
    assert not model.stem._forward_hooks


def test_captures_are_deterministic():
    first, second = (captured(LSTM(), words(4, 20), optimizer=torch.optim.Adam) for _ in range(2))
    assert first.to_document() == second.to_document()


class Block(nn.Module):
    """Of a decoder as large language models have them."""

    def __init__(self, width, heads, inner):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, inner, bias=False)
        self.up = nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x):
        batch, length, width = x.shape
        shape = (batch, length, 3, self.heads, width // self.heads)
        q, k, v = self.qkv(self.norm1(x)).view(shape).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Decoder(nn.Module):
    def __init__(self, width=4096, layers=32, heads=32, inner=11008, words=32000):
        super().__init__()
        self.emb = nn.Embedding(words, width)
        self.layers = nn.ModuleList(Block(width, heads, inner) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, x):
        y = self.emb(x)
        for layer in self.layers:
            y = layer(y)
        return self.head(self.norm(y)).transpose(1, 2)


def test_seven_billion_parameters_take_no_memory():
    with torch.device("meta"):
        model = Decoder().to(torch.bfloat16)
        tokens = torch.empty(1, 2048, dtype=torch.long)
    said = []
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    graph = lm.capture(
        model, tokens, loss=F.cross_entropy, targets=tokens, optimizer=torch.optim.AdamW,
        progress=lambda phase, n_ops: said.append((phase, n_ops)),
    )  # fmt: skip
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    parameters = sum(p.numel() for p in model.parameters())
    assert parameters > 6.7e9
    assert graph.param_bytes.sum() == 3 * 2 * parameters, "weights and two slots, bfloat16"
    assert grown < 2**30 < 2 * parameters / 10
    tokens_and_pairs = 6 * (parameters - 32000 * 4096) * 2048 + 32 * 7 * 2 * 2048**2 * 4096
    assert graph.flops.sum() == pytest.approx(tokens_and_pairs, rel=0.01)
    assert dict(graph.meta) | {"dtype": "bfloat16", "optimizer": "AdamW"} == dict(graph.meta)
    assert {phase for phase, _ in said} == {"f", "b", "o"}
    assert said == sorted(said, key=lambda pair: pair[1])


def test_a_model_on_meta_is_captured_as_one_in_memory():
    with torch.device("meta"):
        light = LSTM()
    found = [
        captured(model, inputs, optimizer=torch.optim.Adam).to_document()["ops"]
        for model, inputs in ((LSTM(), words(4, 20)), (light, words(4, 20).to("meta")))
    ]
    assert found[0] == found[1]


def test_gradient_checkpoints_run_again_in_the_backward_pass():
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x):
            return checkpoint(lambda y: self.b(torch.relu(self.a(y))), x, use_reentrant=False)

    graph = captured(Checkpointed(), torch.rand(2, 8))
    again = [m for k, m, p in zip(graph.kinds, graph.modules, graph.phases, strict=True)
             if k == "aten.addmm.default" and p == "b"]  # fmt: skip
    assert "a" in again


def test_inputs_and_losses_in_all_their_forms():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(8, 8)
            self.scale = torch.rand(8)

        def forward(self, x, pair=(), labels=None):
            y = self.fc(x) * self.scale + sum(each["k"] for each in pair)
            return y if labels is None else {"loss": F.mse_loss(y, labels), "y": y}

    x = torch.rand(2, 8)
    graph = lm.capture(Own(), {"x": x, "labels": x})
    assert [n for n, k in zip(graph.names, graph.kinds, strict=True) if k == "input"] == [
        "x",
        "labels",
    ]
    assert graph.kinds.count("constant") == 1, "a tensor that is no buffer"
    with pytest.warns(UserWarning, match=r"loss: the mean of the model's output") as caught:
        graph = lm.capture(Own(), (x, [{"k": x}, {"k": x}]), name="own")
    assert caught[0].filename == __file__
    assert graph.name == "own"
    assert graph.meta["assumed"] == [str(caught[0].message)]
    assert graph.kinds.count("input") == 3


# ---- what cannot be captured ------------------------------------------------------------------


class Branch(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.gate = Gate()

    def forward(self, x):
        return self.fc(self.gate(x))


class Gate(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


class Picks(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x):
        return self.fc(x[x[:, 0] > 0])


class Chooses(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x):
        return torch.cond(x.sum() > 0, self.fc, torch.neg, (x,))


LINEAR = nn.Linear(8, 8)


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (Branch(), {}, r"a number is read off a tensor in module 'gate'"),
        (Picks(), {}, r"the size of what index gives in Picks depends on values"),
        (Chooses(), {"train": False}, r"calls cond.*torch\.export\.export"),
        (nn.Linear(8, 8).requires_grad_(False), {}, "depends on a parameter that is trained"),
        (LINEAR, {"loss": lambda y: y}, "the loss is no scalar: give loss="),
        (LINEAR, {"loss": lambda y: torch.zeros(())}, "depends on no parameter"),
        (LINEAR, {"optimizer": torch.optim.SGD([nn.Parameter(torch.ones(1))])},
         "a parameter that is not of the model"),
        (LINEAR, {"optimizer": lambda p: p}, "optimizer made a list"),
        (LINEAR, {"optimizer": torch.optim.LBFGS}, "LBFGS evaluates the model again"),
        (nn.Bilinear(8, 8, 2), {}, "Bilinear does not take these example inputs: missing"),
        (LINEAR, {"train": False, "optimizer": torch.optim.SGD}, "has no loss and no optimizer"),
        ("model.pt", {}, "wants a torch.nn.Module, not a str"),
    ],
)  # fmt: skip
def test_what_cannot_be_captured_is_said(model, options, message):
    with pytest.raises(InputError, match=message):
        captured(model, torch.rand(2, 8), **options)


def test_sparse_gradients_are_refused():
    with pytest.raises(InputError, match=r"layout torch.sparse_coo.*sparse=False"):
        captured(nn.Embedding(9, 4, sparse=True), words(3))


# ---- FX graphs and exported programs ----------------------------------------------------------


def same(program, path, **options):
    """A program reads the same from memory and from its file."""
    torch.export.save(program, path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [lm.read(source, **options).to_document() for source in (program, path)]
    assert found[0]["ops"] == found[1]["ops"]
    assert found[0]["edges"] == found[1]["edges"]
    return lm.OpGraph.from_document(found[0])


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_an_exported_program_reads_as_its_file(tmp_path, name, train):
    make, inputs, _ = MODELS[name]
    program = torch.export.export(make().train(train), (inputs,))
    graph = same(program, tmp_path / "whole.pt2")
    lower = same(program.run_decompositions({}), tmp_path / "aten.pt2")
    assert graph.param_bytes.sum() == lower.param_bytes.sum()
    assert graph.flops.sum() == lower.flops.sum() > 0


@pytest.mark.parametrize("lowered", [False, True])
def test_a_program_and_its_module_are_the_same_graph(lowered):
    program = torch.export.export(ResNet18(4).train(), (torch.rand(2, 3, 32, 32),))
    program = program.run_decompositions() if lowered else program
    whole, module = lm.read(program), lm.read(program.module())
    for column in ("names", "kinds", "modules", "outputs", "colocation"):
        found = [dict(zip(g.names, getattr(g, column), strict=True)) for g in (whole, module)]
        assert found[0] == found[1]
    assert edges(whole) == edges(module)


def edges(graph):
    rows = zip(graph.src, graph.dst, graph.bytes, strict=True)
    return Counter((graph.names[s], graph.names[d], int(b)) for s, d, b in rows)


def test_tied_weights_and_control_flow_read_as_their_file(tmp_path):
    tied = same(torch.export.export(Model(tied=True), (example(),)), tmp_path / "tied.pt2")
    assert "head.weight" not in tied.names

    class Varied(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(6))
            self.scale = torch.arange(6.0)

        def forward(self, x, y):
            self.seen.add_(x.sum(0))
            both = torch.cat([x, y])
            with torch.no_grad():
                found = torch.nonzero(x).sum(0)
            chosen = torch.cond(
                x.sum() > 0, lambda q: (q @ q.t()).sum(), lambda q: (q * q).sum(), (x,)
            )
            parts = both.split([x.shape[0], y.shape[0]])
            return both[::2].t().reshape(-1), parts, chosen, found, x.to(torch.float64) * self.scale

    batch = torch.export.Dim("batch", max=100)
    program = torch.export.export(
        Varied(),
        (torch.ones(4, 6), torch.ones(4, 6)),
        dynamic_shapes={"x": {0: batch}, "y": {0: batch}},
    )
    graph = same(program, tmp_path / "whole.pt2", batch=8)
    assert column(graph, "flops")["cond"] == 2 * 8 * 8 * 6
    assert graph.colocation[graph.index("seen")] == "seen"
    lower = same(program.run_decompositions({}), tmp_path / "aten.pt2", batch=8)
    copied = lower.index("copy__default")
    assert lower.names[lower.alias_of[copied]] == "seen"
    with pytest.raises(InputError, match=r"exported for s\d+ from 0 to 100"):
        lm.read(tmp_path / "whole.pt2", batch=101)


def column(graph, name):
    return dict(zip(graph.names, getattr(graph, name).tolist(), strict=True))


def test_a_traced_module_needs_example_inputs_and_keeps_its_nodes():
    model = ResNet18(8).eval()
    traced = torch.fx.symbolic_trace(model)
    with pytest.raises(InputError, match=r"'x' \(input\) first: give example_inputs"):
        lm.read(traced)
    graph = lm.read(traced, example_inputs=torch.rand(2, 3, 64, 64))
    nodes = [n.name for n in traced.graph.nodes if n.op not in ("placeholder", "output")]
    own = [n for n, p in zip(graph.names, graph.placeholder, strict=True) if not p]
    assert own == nodes
    whole = lm.capture(model, torch.rand(2, 3, 64, 64), train=False)
    for name in ("flops", "param_bytes", "bytes_accessed"):
        assert getattr(graph, name).sum() == getattr(whole, name).sum()
    assert graph.kinds[graph.index("stem_0")] == "torch.nn.Conv2d"
    assert graph.modules[graph.index("layers_0_c1")] == "layers.0.c1"
    assert ("stem.0.weight", "stem_0") in {
        (graph.names[s], graph.names[d]) for s, d in zip(graph.src, graph.dst, strict=True)
    }
    plan = lm.place(graph, lm.Cluster.preset("2xV100-NVLink"), "heft")
    names = {"gpu0": "cpu", "gpu1": "cpu"}
    split = lm.writers.fx_split(plan, traced, names=names)
    x = torch.rand(2, 3, 64, 64)
    found = split(x)
    assert torch.allclose(found[0] if isinstance(found, tuple) else found, model(x))


def test_shape_propagation_is_enough_for_aten_graphs():
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.passes.shape_prop import ShapeProp

    traced = make_fx(lambda x, w: (x @ w).relu_().sum(0))(torch.rand(3, 4), torch.rand(4, 5))
    kept = lm.read(traced)
    assert kept.args[2:] == [[[{"op": 0}, {"op": 1}]], [[{"op": 2}]], [[{"op": 3}, [0]]]]
    for node in traced.graph.nodes:
        node.meta.clear()
    with pytest.raises(InputError, match="give example_inputs"):
        lm.read(traced)
    run = lm.read(traced, example_inputs=(torch.rand(3, 4), torch.rand(4, 5)))
    ShapeProp(traced).propagate(torch.rand(3, 4), torch.rand(4, 5))
    propagated = lm.read(traced)
    assert kept.to_document()["ops"] == run.to_document()["ops"]
    assert kept.to_document()["ops"] == propagated.to_document()["ops"]
    assert kept.flops.sum() == 2 * 3 * 4 * 5


def test_phases_of_joint_graphs(tmp_path):
    from torch._functorch.aot_autograd import aot_export_joint_simple

    joint = aot_export_joint_simple(
        lambda x, w: [(x @ w).relu().sum()],
        (torch.rand(2, 3, requires_grad=True), torch.rand(3, 4, requires_grad=True)),
        trace_joint=True,
    )
    graph = lm.read(joint)
    phase = dict(zip(graph.names, graph.phases, strict=True))
    assert {phase["mm"], phase["relu"], phase["sum_1"]} == {"f"}
    assert {p for n, p in phase.items() if n in ("mm_1", "mm_2", "threshold_backward")} == {"b"}


@pytest.mark.parametrize("source", [LINEAR, 3, b"net.pt2"])
def test_other_things_are_refused(source):
    with pytest.raises(InputError, match=r"torch\.fx\.GraphModule.*lm\.capture takes a"):
        lm.read(source)


def test_checkpoints_and_torchscript_are_told_by_what_they_are(tmp_path):
    torch.save(LINEAR.state_dict(), tmp_path / "weights.pt")
    with pytest.raises(InputError, match=r"a checkpoint of torch\.save: weights without a graph"):
        lm.read(tmp_path / "weights.pt")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.trace(LINEAR, torch.rand(2, 8)), tmp_path / "script.pt")
    with pytest.raises(InputError, match=r"a TorchScript archive.*lm\.capture"):
        lm.read(tmp_path / "script.pt")


def test_a_scalar_parameter_has_slots_like_any_other():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, x):
            return x * self.scale

    graph = captured(Scaled(), torch.rand(4), optimizer=torch.optim.Adam)
    assert {"optim.exp_avg.scale", "optim.exp_avg_sq.scale"} <= set(graph.names)
    assert ops(graph, "o")["aten.addcdiv_.default"] == 1


def test_weight_decay_goes_with_its_parameter():
    """It reads the gradient and the weight; weight and bias have theirs from one backward op."""
    model = nn.Conv2d(3, 4, 3)
    graph = captured(
        model, torch.rand(2, 3, 8, 8),
        optimizer=lambda parameters: torch.optim.SGD(parameters, weight_decay=0.1),
    )  # fmt: skip
    own = {n: c for n, c, p in zip(graph.names, graph.colocation, graph.phases, strict=True)
           if p == "o"}  # fmt: skip
    assert own == {"add": "weight", "add_": "weight", "add_1": "bias", "add__1": "bias"}
    rows = zip(graph.src, graph.dst, graph.tensor, strict=True)
    control = {(graph.names[s], graph.names[d]) for s, d, t in rows if t < 0}
    assert control == {
        ("convolution", "add_"), ("convolution_backward", "add_"), ("convolution", "add__1"),
    }  # fmt: skip
