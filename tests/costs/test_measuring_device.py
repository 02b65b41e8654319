"""What sending and launching cost on this machine: what comes of it, never how long it took."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from strategies import v100_mesh

import loadmaster as lm
from loadmaster.cli import main
from loadmaster.costs import measuring_device


@pytest.fixture(scope="module")
def found() -> lm.DeviceCosts:
    with pytest.MonkeyPatch.context() as patch:
        # Whether others keep the cores of the machine that runs this is no part of the test.
        patch.setattr(measuring_device, "waited_for_a_core", lambda: lambda: 0)
        return lm.measure_device([2**10, 2**14, 2**18, 2**20])


def test_what_is_measured_is_a_line_and_calls(found):
    assert found.sizes.tolist() == [2**10, 2**14, 2**18, 2**20]
    assert (found.seconds > 0).all()
    assert found.send_cost.bandwidth > 0
    assert found.send_cost.latency >= 0
    assert found.dispatch.launch == pytest.approx(np.mean(list(found.calls.values())))
    assert found.by in ("numpy", "torch on cpu", "torch on cuda")
    assert found.by in found.dispatch.source
    assert not found.is_busy
    document = json.loads(json.dumps(found.to_document(), allow_nan=False))
    assert document["dispatch"] == found.dispatch.launch
    assert str(found).endswith(found.toml.rstrip())
    assert "calls of" in str(found)


def test_it_goes_into_a_cluster(found):
    paying = found.sending(v100_mesh(2))
    assert paying.types[0].send_cost == found.send_cost
    assert paying.types[0].peak == v100_mesh(2).types[0].peak
    assert paying.dispatch is None
    eager = found.launching(lm.Cluster.preset("2xV100-NVLink"))
    assert eager.dispatch == found.dispatch
    assert not eager.types[0].launch
    several = lm.Cluster.preset("cpu+gpu")
    cpu, gpu = found.sending(several, several.types[0].name).types
    assert (cpu.send_cost, gpu.send_cost) == (found.send_cost, None)
    with pytest.raises(lm.InputError, match="names no type: the cluster has"):
        found.sending(several)
    with pytest.raises(lm.InputError, match="'tpu' is not there"):
        found.sending(several, "tpu")


def test_its_text_is_that_of_a_cluster(found):
    device = '[[type]]\nname = "cpu"\n{}\n[[device]]\nname = "a"\ntype = "cpu"\nmemory = "1GiB"\n'
    cluster = lm.Cluster.from_toml(device.format(found.toml))
    assert cluster.types[0].send_cost.bandwidth == pytest.approx(
        found.send_cost.bandwidth, rel=0.01
    )
    assert cluster.dispatch.launch == pytest.approx(found.dispatch.launch, rel=0.01)
    assert cluster.dispatch.source == found.dispatch.source


def test_a_graph_says_which_sizes_matter(monkeypatch):
    monkeypatch.setattr(measuring_device, "waited_for_a_core", lambda: lambda: 0)
    graph = lm.OpGraph(
        {"name": ["a", "b"]}, {"src": [0], "dst": [1], "tensor": [0], "bytes": [2**20]}
    )
    assert lm.measure_device([2**10, 2**20], graph).send_cost.bandwidth > 0


def test_a_busy_machine_is_said(monkeypatch):
    monkeypatch.setattr(measuring_device, "waited_for_a_core", lambda: lambda: 10**12)
    with pytest.warns(UserWarning, match="too busy to be measured: this thread waited for a core"):
        found = lm.measure_device([2**10, 2**11])
    assert found.is_busy
    assert found.delay == 1.0
    assert "measure again when nothing else runs" in str(found)


@pytest.mark.parametrize("sizes", [[], [1024], [0, 1], [1024, -1], [1024, 2.5], [2**31 + 1, 2**40]])
def test_sizes_that_cannot_be_measured(sizes):
    with pytest.raises(lm.InputError, match="wants two or more"):
        lm.measure_device(sizes)


def test_by_command(found, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(measuring_device, "measure_device", lambda **_: found)
    words = ["calibrate", "--measure-device", "--cluster", "cpu+gpu"]
    assert main(words) == 2
    assert "names no type" in capsys.readouterr().err
    words += ["--of-type", lm.Cluster.preset("cpu+gpu").types[0].name]
    assert main(words) == 0
    seen = capsys.readouterr()
    assert "This machine's runtime" in seen.out
    assert "[dispatch]" in seen.out
    assert "what sending costs is not saved" in seen.err
    assert main([*words, "--cluster-output", "c.toml", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["device"]["by"] == found.by
    saved = lm.Cluster.read("c.toml").types[0].send_cost
    assert saved.bandwidth == pytest.approx(found.send_cost.bandwidth)
    assert Path("c.toml").exists()
