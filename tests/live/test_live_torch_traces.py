"""What PyTorch records here and now: the ops that are read are those that it dispatches."""

from __future__ import annotations

import warnings
from collections import Counter

import pytest

torch = pytest.importorskip("torch")
from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import loadmaster as lm  # noqa: E402
from loadmaster.readers.pytorch import execution_trace as chakra  # noqa: E402
from loadmaster.readers.pytorch import execution_trace_nodes as chakra_nodes  # noqa: E402
from loadmaster.readers.pytorch import kineto  # noqa: E402

# Under a dispatch mode autograd adds gradients out of place and detaches them, and the profiler's
# own calls are seen; otherwise nothing differs.
ONLY_WHEN_WATCHED = {
    "aten::add",
    "aten::add_",
    "aten::detach",
    "aten::view",
    "aten::_reshape_alias",
}


class Dispatched(TorchDispatchMode):
    """Counts what reaches a backend."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.counts[func._schema.name] += 1
        return func(*args, **(kwargs or {}))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(8)
        self.rnn = torch.nn.LSTM(64, 16, batch_first=True)
        self.head = torch.nn.Linear(16, 5)

    def forward(self, x):
        y = torch.relu(self.norm(self.conv(x))).flatten(2)
        return self.head(torch.nn.functional.gelu(self.rnn(y)[0]).mean(1))


def recorded(folder, step):
    """Counts of dispatched ops, and the files of a step recorded both ways."""
    step()
    with Dispatched() as watch:
        step()
    observer = ExecutionTraceObserver()
    observer.register_callback(str(folder / "step.et.json"))
    with profile(
        activities=[ProfilerActivity.CPU], record_shapes=True, profile_memory=True,
        with_stack=True, execution_trace_observer=observer,
    ) as profiler:  # fmt: skip
        step()
    profiler.export_chrome_trace(str(folder / "step.kineto.json"))
    counts = {k: n for k, n in watch.counts.items() if not k.startswith("profiler::")}
    return Counter(counts), folder / "step.et.json", folder / "step.kineto.json"


@pytest.mark.parametrize("foreach", [False, True])
def test_a_training_step(tmp_path, foreach):
    torch.manual_seed(0)
    net, x = Net(), torch.randn(4, 3, 8, 8)
    labels = torch.randint(0, 5, (4,))
    optimizer = torch.optim.Adam(net.parameters(), foreach=foreach)

    def step():
        loss = torch.nn.functional.cross_entropy(net(x), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    dispatched, path, times = recorded(tmp_path, step)
    calls = chakra_nodes.load(path).calls
    found = Counter(calls.names[op] for op in calls.ops)
    for differs in (dispatched - found, found - dispatched):
        assert differs.keys() <= ONLY_WHEN_WATCHED | {"aten::empty", "aten::detach_"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        graph = chakra.read(path, profile=times)
    parameters = [i for i, kind in enumerate(graph.kinds) if kind == "parameter"]
    assert sorted(int(graph.param_bytes[i]) for i in parameters) == sorted(
        p.numel() * 4 for p in net.parameters()
    )
    buffers = Counter(graph.kinds)["buffer"]
    assert buffers == 3 * len(parameters) + 3  # two slots and a step each; the norm's statistics
    sets = set(graph.colocation) - {""}
    assert sets == {graph.names[i] for i in parameters}
    assert graph.modules[graph.index("Net_0.LSTM_0/aten::mkldnn_rnn_layer")] == "Net_0.LSTM_0"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert kineto.read(times).time["cpu"].sum() >= graph.time["cpu"].sum() > 0


def test_what_is_captured_has_the_flops_of_what_ran(tmp_path):
    torch.manual_seed(0)
    net, x = Net(), torch.randn(4, 3, 8, 8)
    labels = torch.randint(0, 5, (4,))

    def step():
        torch.nn.functional.cross_entropy(net(x), labels).backward()

    _, path, _ = recorded(tmp_path, step)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ran = chakra.read(path)
        captured = lm.capture(net, x, loss=torch.nn.functional.cross_entropy, targets=labels)
    work = [
        {p: sum(f for f, q in zip(g.flops.tolist(), g.phases, strict=True) if q == p) for p in "fb"}
        for g in (ran, captured)
    ]
    assert work[0] == work[1]
    assert work[0]["b"] > work[0]["f"] > 0


def test_inference(tmp_path):
    torch.manual_seed(0)
    net, x = Net().eval(), torch.randn(4, 3, 8, 8)

    def step():
        with torch.no_grad():
            net(x)

    dispatched, path, times = recorded(tmp_path, step)
    calls = chakra_nodes.load(path).calls
    found = Counter(calls.names[op] for op in calls.ops)
    for differs in (dispatched - found, found - dispatched):
        assert differs.keys() <= ONLY_WHEN_WATCHED
    graph = chakra.read(path, profile=times)
    assert graph.meta["mode"] == "infer"
    counts = Counter(graph.kinds)
    assert counts["parameter"] == len(list(net.parameters()))
    assert (counts["input"], counts["buffer"]) == (1, 2)
