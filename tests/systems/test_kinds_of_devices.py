"""Processes of PyTorch on a cluster that has CPUs and GPUs: those of a plan are of one kind."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import loadmaster as lm
from loadmaster.base.errors import InfeasibleError, InputError
from loadmaster.model.families import families

PRESET = lm.Cluster.preset("cpu+gpu")
TYPES = {device.name: device.type for device in PRESET.devices}


def cluster_of(kinds):
    """Devices of these kinds, each joined with each."""
    names = [f"{kind}{number}" for number, kind in enumerate(kinds)]
    devices = [lm.Device(name, TYPES[name[:3]], "64GiB") for name in names]
    links = [lm.Link(a, b, 1e10) for a in names for b in names if a != b]
    return lm.Cluster(devices, links, PRESET.types)


@settings(max_examples=12, deadline=None)
@given(
    st.lists(st.sampled_from(["cpu", "gpu"]), min_size=2, max_size=4),
    st.sampled_from(["pipelining", "ddp", "fsdp", "simplefsdp", "dtensor"]),
)
def test_processes_are_of_one_kind(kinds, target):
    cluster = cluster_of(kinds)
    try:
        plan = lm.place(lm.read("example:alexnet"), cluster, target=target)
    except (InputError, InfeasibleError):  # One device is left.
        assert kinds.count("gpu") < 2
        return
    used = {families(cluster)[d][0] for d in plan.running_devices.tolist() if d >= 0}
    assert len(used) == 1
    assert lm.export(plan, check=False).count("def start(") == 1
    idle = [d.name for d, kind in zip(cluster.devices, kinds, strict=True) if kind not in used]
    if target == "pipelining" and idle:
        assert any(", ".join(idle) in note for note in plan.notes)


@pytest.mark.parametrize("target", ["pipelining", "ddp"])
def test_plans_across_kinds_are_not_written(target):
    graph, cluster = lm.read("example:alexnet"), cluster_of(["cpu", "gpu"])
    method = {"pipelining": "pipeline", "ddp": "data-parallel"}[target]
    plan = lm.place(graph, cluster, method)
    assert len(set(plan.running_devices.tolist())) == 2
    with pytest.raises(InputError, match="several kinds"):
        lm.export(plan, target, check=False)
