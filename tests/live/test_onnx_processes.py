"""Sub-models in a process per device: numbers, steps, failures, and their end."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", minversion="1.18", reason="needs onnx 1.18 or later")
ort = pytest.importorskip("onnxruntime", reason="needs the extra onnxruntime")

from onnx_models import saved  # noqa: E402
from placed import at_random, with_devices  # noqa: E402

import loadmaster as lm  # noqa: E402
from loadmaster.base.errors import InputError, RunError  # noqa: E402


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The model with two branches, exported for two devices."""
    folder = tmp_path_factory.mktemp("exported")
    path = saved("branchy", folder)
    graph = lm.read(path, batch=2)
    right = {"right", "right_scaled", "right_again"}
    plan = with_devices(graph, [int(name in right) for name in graph.names])
    lm.writers.onnx(plan, folder / "parts", model=path)
    return folder


def feeds(seed=0):
    return {"x": np.random.default_rng(seed).standard_normal((2, 4)).astype(np.float32)}


@pytest.fixture(scope="module")
def placed(folder):
    with lm.writers.OnnxProcesses(folder / "parts", feeds(), optimize=False) as placed:
        yield placed


def test_every_step_computes_what_the_whole_does(folder, placed):
    whole = ort.InferenceSession(str(folder / "branchy.onnx"), providers=["CPUExecutionProvider"])
    for seed in range(3):
        found = placed.run(feeds(seed))
        assert list(found) == [o.name for o in whole.get_outputs()]
        for mine, theirs in zip(found.values(), whole.run(None, feeds(seed)), strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-5)


def test_steps_are_measured_in_the_order_of_the_plan(placed):
    steps = placed.measure(30)
    rows = placed.manifest["segments"]
    assert steps.start.shape == steps.finish.shape == (30, len(rows))
    assert (steps.finish >= steps.start).all()
    assert (steps.start >= 0).all()
    assert (steps.seconds == steps.finish.max(axis=1)).all()
    maker = {value: i for i, row in enumerate(rows) for value in row["outputs"]}
    for i, row in enumerate(rows):
        for value in set(row["inputs"]) & set(maker):
            assert (steps.start[:, i] >= steps.finish[:, maker[value]] - 1e-3).all()
    for device in placed.devices:
        mine = [i for i, row in enumerate(rows) if row["device"] == device]
        assert (np.diff(steps.start[:, mine], axis=1) >= 0).all()
    assert steps.step == np.quantile(steps.seconds, 0.1, method="inverted_cdf")


def test_other_inputs_are_refused(folder, placed):
    with pytest.raises(InputError, match=r"shape \(3, 4\) \(float32\): the processes were started"):
        placed.run({"x": np.ones((3, 4), np.float32)})
    with pytest.raises(InputError, match="no value for the input 'x'"):
        placed.run({})
    with pytest.raises(InputError, match="steps is 0: wants an integer from 1 to"):
        placed.measure(0)
    with pytest.raises(InputError, match="which has no segment"):
        lm.writers.OnnxProcesses(folder / "parts", feeds(), on={"gpu7": "cpu:0"})
    with pytest.raises(InputError, match="this process may use cores"):
        lm.writers.OnnxProcesses(folder / "parts", feeds(), on={"gpu0": "cpu:4096"})
    with pytest.raises(InputError, match="sub-models run in processes"):
        lm.writers.OnnxProcesses(folder / "parts", feeds(), on={"gpu0": "thread:0"})


def test_descriptors_are_closed_and_processes_gone_at_the_end(folder):
    before = len(os.listdir("/proc/self/fd"))
    with lm.writers.OnnxProcesses(folder / "parts", feeds(), on={"gpu0": "cpu:0"}) as placed:
        processes = [process._process for process in placed._processes]
    assert all(process.poll() is not None for process in processes)
    del placed
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_process_that_is_killed_ends_the_others_and_is_named(folder):
    with lm.writers.OnnxProcesses(folder / "parts", feeds(), optimize=False) as placed:
        others = [process._process for process in placed._processes]
        others[1].send_signal(signal.SIGKILL)
        with pytest.raises(RunError, match=f"process of {placed.devices[1]} ended"):
            placed.run(feeds())
        assert all(process.poll() is not None for process in others)
        with pytest.raises(InputError, match="are closed"):
            placed.run(feeds())


def test_a_process_that_hangs_is_waited_for_no_longer_than_there_is_patience(folder):
    with lm.writers.OnnxProcesses(
        folder / "parts", feeds(), optimize=False, patience=0.5
    ) as placed:
        placed._processes[1]._process.send_signal(signal.SIGSTOP)
        with pytest.raises(RunError, match=r"nothing happened for 0\.5 s|did nothing for"):
            placed.run(feeds())


def test_processes_end_with_the_one_that_started_them(folder):
    script = f"""
        import os, sys, numpy as np, loadmaster as lm
        placed = lm.writers.OnnxProcesses(
            {str(folder / "parts")!r}, {{"x": np.ones((2, 4), np.float32)}}
        )
        print(*(process._process.pid for process in placed._processes), flush=True)
        os.kill(os.getpid(), 9)
    """
    made = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    pids = [int(pid) for pid in made.stdout.split()]
    assert len(pids) == 2, made.stderr
    until = time.monotonic() + 10
    while any(_runs(pid) for pid in pids):
        assert time.monotonic() < until, "a process outlived the one that started it"
        time.sleep(0.02)


def _runs(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_the_check_of_the_command_line_says_the_step_as_exported(tmp_path, capsys):
    from loadmaster.cli import main

    path = saved("branchy", tmp_path)
    at_random(lm.read(path, batch=2), 2).save(tmp_path / "plan.json")
    arguments = [str(tmp_path / "plan.json"), "--to", "onnx", "--model", str(path), "--check"]
    assert main(["export", *arguments, "-o", str(tmp_path / "parts"), "--json"]) == 0
    out, err = capsys.readouterr()
    assert '"step": {\n    "plan": ' in out
    assert "parts and whole differ by 0 at most" in err
    assert "step: plan " in err
