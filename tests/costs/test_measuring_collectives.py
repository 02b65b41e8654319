"""Measuring collectives of gloo. Needs torch (no GPU): without it these tests are skipped."""

from __future__ import annotations

import json

import pytest

import loadmaster as lm
from loadmaster.cli import main
from loadmaster.costs import measuring_collectives

pytest.importorskip("torch", reason="needs PyTorch 2.5 or later")

KINDS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast")


@pytest.fixture(scope="module")
def found():
    return lm.measure_collectives(2, [2**22, 2**12], KINDS)


def test_every_kind_has_seconds_and_those_that_cores_are_busy(found):
    assert [times.kind for times in found] == list(KINDS)
    for times in found:
        assert (times.devices, times.machines, times.bytes) == (2, 1, (2**12, 2**22))
        assert all(0 < own <= all_of for own, all_of in zip(times.busy, times.seconds, strict=True))
    # What is summed is read and written by the cores, more of it for longer.
    assert found[0].busy[1] > found[0].busy[0]


def test_a_cluster_takes_them(found):
    two = lm.Cluster.mesh(2, memory="1GiB", bandwidth=1e9).with_collectives(found)
    assert two.collective("all_reduce", [0, 1], 2**22).seconds == found[0].seconds[1]


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ((1,), "processes"),
        ((2, []), "wants bytes"),
        ((2, [0]), "wants bytes"),
        ((2, [8], ["sum"]), "no collective is named 'sum'; there are all_reduce"),
    ],
)
def test_what_cannot_be_measured_is_refused(asked, says):
    with pytest.raises(lm.InputError, match=says):
        lm.measure_collectives(*asked)


def test_a_process_that_ends_is_told(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "none-such")
    with pytest.raises(lm.LoadmasterError, match="a process ended"):
        lm.measure_collectives(2, [8], ["all_reduce"])


def test_by_command(found, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(measuring_collectives, "measure_collectives", lambda n, **_: found)
    lm.Cluster.mesh(2, memory="1GiB", bandwidth=1e9).write("two.toml")
    words = ["calibrate", "--measure-collectives", "2", "--cluster", "two.toml"]
    assert main(words) == 0
    seen = capsys.readouterr()
    assert "of which devices are busy" in seen.out
    assert "times of collectives are not saved" in seen.err
    assert main([*words, "--cluster-output", "c.toml", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["collectives"][0]["kind"] == "all_reduce"
    assert lm.Cluster.read("c.toml").collectives == found
