"""Plans that run on worker processes and threads: the numbers are those of one device, bit for bit.

Needs torch (no GPU): without it these tests are skipped.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch 2.5 or later")

from steps import STEPS, differing, evaluated, made, trained  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

import loadmaster as lm  # noqa: E402
from loadmaster.base.errors import InputError, RunError  # noqa: E402
from loadmaster.running.devices import processes  # noqa: E402
from loadmaster.running.run import started  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:devices share a core"),
    pytest.mark.filterwarnings("ignore:the machine was too busy"),
]


@pytest.fixture(autouse=True)
def one_thread():
    """As many as each worker has."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def cluster(k):
    return lm.Cluster.preset("4xV100-PCIe").subset(range(k))


def taped(name, optimizer=torch.optim.Adam):
    model, inputs, targets = made(name)
    tape = lm.record(model, inputs, loss=F.cross_entropy, targets=targets, optimizer=optimizer)
    return tape, (model, inputs, targets)


def momentum(parameters):
    return torch.optim.SGD(parameters, 0.1, momentum=0.9)


PLANS = [(2, "random"), (3, "heft"), (4, "round-robin"), (2, "etf")]

#: Two of the plans for every model, in turn.
CASES = [(name, PLANS[i % 4], PLANS[(i + 1) % 4]) for i, name in enumerate(STEPS)]


def transfers_are_the_plans(plan, wiring):
    """One for one, and byte for byte, but for what only a real kernel knows the size of."""
    sent, compiled = plan.schedule.transfers, wiring.compiled
    assert compiled.n_transfers == len(sent)
    data = np.flatnonzero(sent.tensor >= 0)
    assert sorted(arrival for arrival, _ in wiring.packed) == data.tolist()
    for (arrival, _), packed in wiring.packed.items():
        workspace = packed.slot.dtype is torch.uint8
        n_bytes = packed.numel * packed.slot.dtype.itemsize
        assert n_bytes == sent.bytes[arrival] or workspace


@pytest.mark.parametrize(("name", "first", "second"), CASES)
def test_training_on_several_devices_is_training_on_one(name, first, second):
    optimizer = momentum if name in ("cells", "in place") else torch.optim.Adam
    tape, given = taped(name, optimizer)
    alone = tape.replay(3)
    expected, _ = trained(*given, optimizer, 3, tape)
    assert differing(expected, alone) == []
    for k, method in (first, second):
        plan = lm.place(tape.graph, cluster(k), method)
        with started(plan, tape) as devices:
            transfers_are_the_plans(plan, devices.wiring)
            devices.run(2)
            devices.run(1)
            assert differing(alone, devices.fetch()) == [], (k, method)


@pytest.mark.parametrize(("name", "plan"), [(name, second) for name, _, second in CASES])
def test_an_inference_on_several_devices_is_one_on_one(name, plan):
    model, inputs, _ = made(name)
    tape = lm.record(model, inputs, train=False)
    expected = evaluated(model, inputs)
    k, method = plan
    plan = lm.place(tape.graph, cluster(k), method)
    with started(plan, tape) as devices:
        transfers_are_the_plans(plan, devices.wiring)
        devices.run(1)
        assert torch.equal(devices.fetch(["output"])["output"], expected)


@pytest.mark.parametrize("name", ["LSTM", "in place", "dropout"])
def test_threads_give_the_same_numbers(name):
    tape, _ = taped(name)
    plan = lm.place(tape.graph, cluster(3), "random")
    on = {f"gpu{i}": f"thread:{i % len(os.sched_getaffinity(0))}" for i in range(3)}
    torch.manual_seed(1)
    state = torch.get_rng_state()
    with started(plan, tape, on=on) as devices:
        devices.run(3)
        assert differing(tape.replay(3), devices.fetch()) == []
    assert torch.equal(torch.get_rng_state(), state), "the caller's generator is left as it is"
    assert torch.get_num_threads() == 1


def test_several_cores_are_as_many_threads():
    cores = sorted(os.sched_getaffinity(0))[:2]
    torch.set_num_threads(len(cores))
    tape, _ = taped("ResNet-18")
    tape.replay()  # so that OpenMP has threads before the fork
    plan = lm.place(tape.graph, cluster(2), "heft")
    place = f"cpu:{cores[0]}-{cores[-1]}"
    with started(plan, tape, on={"gpu0": place, "gpu1": place}) as devices:
        devices.run(2)
        assert differing(tape.replay(2), devices.fetch()) == []


# ---- what is measured -------------------------------------------------------------------------


def test_a_run_is_measured_beside_its_prediction():
    tape, (_, inputs, targets) = taped("tied")
    plan = lm.place(tape.graph, cluster(2), "random")
    places = {"gpu0": "cpu:0", "gpu1": f"cpu:{sorted(os.sched_getaffinity(0))[-1]}"}
    found = lm.run(plan, tape, inputs, targets=targets, steps=3, on=places)
    assert found.on == tuple(places.values())
    assert len(found.steps) == 3
    assert found.step > 0
    runs = ~tape.graph.placeholder
    assert (found.steps.finish[:, runs] > 0).all()
    assert (found.steps.sent_finish > found.steps.sent_start).all()
    src = plan.schedule.transfers.src
    assert (np.sort(found.timeline.transfers.src) == np.sort(src)).all()
    # An op begins when what it reads is there, and a device does one thing at a time.
    for step in range(3):
        start, finish = found.steps.start[step], found.steps.finish[step]
        same = plan.running_devices[tape.graph.src] == plan.running_devices[tape.graph.dst]
        pairs = same & runs[tape.graph.src] & runs[tape.graph.dst]
        assert (finish[tape.graph.src[pairs]] <= start[tape.graph.dst[pairs]]).all()
        for device in range(2):
            mine = np.flatnonzero(runs & (plan.running_devices == device))
            order = mine[np.argsort(start[mine])]
            assert (finish[order[:-1]] <= start[order[1:]]).all()


@pytest.mark.parametrize("name", ["ResNet-18", "experts"])
def test_peaks_are_what_the_plan_says(name):
    """But for what no graph tells: views that keep a part's whole alive, and a sender's copies."""
    tape, _ = taped(name)
    plan = lm.place(tape.graph, cluster(2), "heft")
    found = lm.run(plan, tape, steps=1)
    ratio = found.steps.peaks / plan.schedule.memory.peak
    assert (ratio > 0.8).all()
    assert (ratio < 1.25).all()


# ---- what goes wrong --------------------------------------------------------------------------


def failing(tape, op, what):
    """The tape, an op of which does something else."""
    calls = [
        replace(call, function=what(call.function)) if call.op == op else call
        for call in tape.calls
    ]
    return replace(tape, calls=tuple(calls))


def broken(function):
    def run(*args, **kwargs):
        if os.getpid() != PARENT or threading.current_thread() is not threading.main_thread():
            raise ValueError("it broke")
        return function(*args, **kwargs)

    return run


def killed(function):
    def run(*args, **kwargs):
        if os.getpid() != PARENT:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **kwargs)

    return run


def stuck(function):
    def run(*args, **kwargs):
        if os.getpid() != PARENT:
            time.sleep(1.5)
        return function(*args, **kwargs)

    return run


PARENT = os.getpid()


def last_op_of(tape, plan, device):
    """An op whose result another device reads."""
    transfers = plan.schedule.transfers
    sent = [int(op) for op, src in zip(transfers.op, transfers.src, strict=True) if src == device]
    calls = {call.op for call in tape.calls}
    return max(op for op in sent if op in calls)


@pytest.mark.parametrize(
    ("how", "on", "message"),
    [
        (broken, "cpu", "op '{op}' on gpu1: ValueError: it broke"),
        (broken, "thread", "op '{op}' on gpu1: ValueError: it broke"),
        (killed, "cpu", "the worker of gpu1 died by signal SIGKILL"),
        (stuck, "cpu", "nothing happened for 1 s: .* on gpu0 waits for .* from gpu1"),
    ],
)
def test_what_fails_names_op_and_device_and_ends_all_workers(how, on, message):
    tape, _ = taped("tied")
    plan = lm.place(tape.graph, cluster(2), "round-robin")
    op = last_op_of(tape, plan, 1)
    tape = failing(tape, op, how)
    threads = threading.active_count()
    places = {f"gpu{i}": f"{on}:0" for i in range(2)}
    wanted = pytest.raises(RunError, match=message.format(op=tape.graph.names[op]))
    with started(plan, tape, on=places, patience=1) as devices, wanted:
        devices.run(1)
    assert multiprocessing.active_children() == []
    assert threading.active_count() == threads


def hung(function):
    def run(*args, **kwargs):
        if os.getpid() != PARENT:
            time.sleep(600)
        return function(*args, **kwargs)

    return run


def test_a_worker_that_hangs_in_an_op_is_killed(monkeypatch):
    monkeypatch.setattr(processes, "_GRACE", 0.5)
    tape, _ = taped("tied")
    plan = lm.place(tape.graph, cluster(2), "round-robin")
    tape = failing(tape, last_op_of(tape, plan, 1), hung)
    wanted = pytest.raises(RunError, match=r"nothing happened for 0\.5 s: .* on gpu0 waits for")
    with started(plan, tape, patience=0.5) as devices, wanted:
        devices.run(1)
    assert multiprocessing.active_children() == []


SCRIPT = """
import os, sys, time, torch
import loadmaster as lm
from loadmaster.running.run import started  # noqa: E402

if __name__ == "__main__":
    tape = lm.record(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()), torch.ones(2, 4),
                     train=False)
    plan = lm.place(tape.graph, lm.Cluster.preset("4xV100-PCIe").subset(range(2)), "round-robin")
    with started(plan, tape) as devices:
        print(*(worker.pid for worker in devices._workers), flush=True)
        while True:
            devices.run(1)
"""


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_workers_end_with_who_started_them(sent, tmp_path):
    script = tmp_path / "run.py"
    script.write_text(SCRIPT)
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", str(script)], stdout=subprocess.PIPE, text=True,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    workers = list(map(int, process.stdout.readline().split()))
    assert len(workers) == 2
    time.sleep(0.1)
    process.send_signal(sent)
    _, errors = process.communicate(timeout=30)
    if sent is signal.SIGINT:
        assert "KeyboardInterrupt" in errors
        assert "loadmaster gpu" not in errors
        assert errors.count("Traceback") == 1
    until = time.monotonic() + 10
    while any(map(alive, workers)) and time.monotonic() < until:
        time.sleep(0.02)
    assert not any(map(alive, workers))


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] != "Z"


def test_what_cannot_be_run_is_refused():
    tape, (_, inputs, _) = taped("tied")
    plan = lm.place(tape.graph, cluster(2), "heft")
    other, _ = taped("dropout")
    with pytest.raises(InputError, match="the plan is of another graph: it has"):
        lm.run(plan, other)
    with pytest.raises(InputError, match=r"on= does not say what gpu1 is"):
        lm.run(plan, tape, on={"gpu0": "cpu:0"})
    with pytest.raises(InputError, match="gpu7"):
        lm.run(plan, tape, on={"gpu0": "cpu:0", "gpu7": "cpu:0"})
    with pytest.raises(InputError, match="'cpu:4096': this process may use cores"):
        lm.run(plan, tape, on={"gpu0": "cpu:0", "gpu1": "cpu:4096"})
    with pytest.raises(InputError, match="a device cannot be 'core 1': wants cpu:0"):
        lm.run(plan, tape, on={"gpu0": "cpu:0", "gpu1": "core 1"})
    with pytest.raises(InputError, match="mixes kinds"):
        lm.run(plan, tape, on={"gpu0": "cpu:0", "gpu1": "thread:0"})
    with pytest.raises(InputError, match="record again"):
        lm.run(plan, tape, inputs[:1])
    with pytest.raises(InputError, match="steps is 0"):
        lm.run(plan, tape, steps=0)
    copies = lm.place(tape.graph, cluster(2), "data-parallel", replicas=2)
    with pytest.raises(InputError, match=r"with 1 of 2 samples .* use fewer replicas"):
        lm.run(copies, tape)
