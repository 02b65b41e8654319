"""Collectives of clusters: measured times in files, what derived clusters keep of them."""

import csv

import pytest
from folders import DATA

import loadmaster as lm
from loadmaster import CollectiveTimes
from loadmaster.judge.problem import Problem
from loadmaster.model.clusters.measured_collectives import as_served
from loadmaster.systems.registry import SYSTEMS


def two(**figures):
    devices = [lm.Device(name, "gpu", "1GiB") for name in ("a", "b")]
    links = [lm.Link("a", "b", 1e9), lm.Link("b", "a", 1e9)]
    return lm.Cluster(devices, links, **figures)


def times(**changes):
    given = {"kind": "all_reduce", "devices": 2, "machines": 1, "bytes": (10,), "seconds": (1.0,)}
    return CollectiveTimes(**given | changes)


def test_times_stand_above_links_and_survive_toml():
    cluster = two(collectives=[times(bytes=(1000, 3000), seconds=(50e-6, 70e-6), source="by hand")])
    again = lm.Cluster.from_toml(cluster.to_toml())
    assert again.collectives == cluster.collectives
    assert again.digest == cluster.digest != two().digest
    assert again.collective("all_reduce", ["a", "b"], 2000).seconds == pytest.approx(60e-6)
    assert two().collective("all_reduce", ["a", "b"], 2000).seconds == pytest.approx(2e-6)
    assert again.collective("all_gather", ["a", "b"], 2000).algorithm != "table"


def test_busy_seconds_survive_toml_and_count_only_where_they_are():
    given = {"bytes": (1000, 3000), "seconds": (50e-6, 70e-6)}
    free, busy = times(**given), times(**given, busy=(10e-6, 60e-6))
    cluster = two().with_collectives([busy])
    again = lm.Cluster.from_toml(cluster.to_toml())
    assert again.collectives == (busy,)
    assert again.digest == cluster.digest != two(collectives=[free]).digest
    assert "busy" not in two(collectives=[free]).to_toml()
    assert "busy" not in free.facts
    # The whole time is the same: devices have a part of it.
    assert again.collective("all_reduce", ["a", "b"], 2000).seconds == pytest.approx(60e-6)


def test_clusters_made_from_one_keep_its_times_unless_its_links_change():
    cluster = lm.Cluster.preset("8xH100-NVLink")
    assert cluster.subset(range(4)).collective("all_reduce", range(4), "1MiB").algorithm == "table"
    assert lm.Cluster.preset("2xH100-NVLink").collectives == cluster.collectives
    assert cluster.with_memory("40GiB").collectives == cluster.collectives
    assert cluster.with_link_speed(2).collectives == ()
    reserved = lm.Constraints(reserve="1GiB")
    plan = lm.place(lm.read("example:lenet"), cluster, "data-parallel", constraints=reserved)
    free = lm.place(lm.read("example:lenet"), cluster, "data-parallel")
    assert plan.makespan == free.makespan


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kind": "allreduce"}, "one of all_reduce"),
        ({"seconds": (1.0, 2.0)}, "1 number of bytes and 2 numbers"),
        ({"bytes": (-1,)}, "bytes"),
        ({"seconds": (float("nan"),)}, "seconds"),
        ({"busy": (-1.0,)}, "busy"),
    ],
)
def test_bad_times_are_refused(changes, words):
    with pytest.raises(lm.InputError, match=words):
        times(**changes)


def test_times_that_cannot_be_used_are_refused():
    with pytest.raises(lm.InputError, match="ascend"):
        two(collectives=[times(bytes=(10, 10), seconds=(1.0, 2.0))])
    with pytest.raises(lm.InputError, match="2 busy seconds for 1 numbers of bytes"):
        two(collectives=[times(busy=(0.5, 0.5))])
    with pytest.raises(lm.InputError, match="busy for 2 s of 1 s for 10 bytes"):
        two(collectives=[times(busy=(2.0,))])
    with pytest.raises(lm.InputError, match="3 devices on 2 machines"):
        two(collectives=[times(devices=3, machines=2)])
    toml = two().to_toml() + '\n[[collective]]\nkind = "all_reduce"\n'
    with pytest.raises(lm.InputError, match="collective 0 has no 'devices'"):
        lm.Cluster.from_toml(toml)


def test_measured_times_inside_a_host_are_not_used_between_hosts():
    two = lm.Cluster.preset("2x8xH100-IB")
    way = two.collective("all_reduce", [0, 8], 10**9)
    # Two steps of a half each over the network cards.
    assert (way.algorithm, way.seconds) == ("ring", pytest.approx(2 * (15e-6 + 5e8 / 48e9)))
    for part in (two.subset([0, 8]), two.subset([0, 1, 8]).subset([1, 2])):
        again = part.collective("all_reduce", range(2), 10**9)
        assert (again.algorithm, again.seconds) == (way.algorithm, way.seconds)
    assert two.collective("all_reduce", [8, 15], 10**9).algorithm == "table"
    small = [two.collective("all_reduce", range(k), 8192).seconds for k in (8, 16)]
    assert small == sorted(small), "two hosts are not quicker than one"


def test_times_go_where_links_no_longer_tell_hosts():
    names = [f"{host}{i}" for host in "ab" for i in range(2)]
    links = [lm.Link(a, b, 10e9 if a[0] == b[0] else 1e9) for a in names for b in names if a != b]
    devices = [lm.Device(name, "gpu", "1GiB") for name in names]
    cluster = lm.Cluster(devices, links, collectives=[times()])
    assert cluster.collective("all_reduce", ["a0", "a1"], 10).algorithm == "table"
    assert cluster.collective("all_reduce", ["a0", "b0"], 10).algorithm == "ring"
    for kept, known in ((["a0", "a1"], 1), (["a0", "a1", "b0"], 1), (["a0", "b0"], 0)):
        part = cluster.subset(kept)
        assert len(part.collectives) == known
        assert part.name == f"[{len(kept)}]"
        assert part.collective("all_reduce", ["a0", kept[-1]], 10).seconds < 1.0 or known


def test_h100_presets_are_near_the_tuning_model_of_nccl_where_bytes_count():
    with (DATA / "collectives.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    clusters = {1: lm.Cluster.preset("8xH100-NVLink"), 2: lm.Cluster.preset("2x8xH100-IB")}
    for row in rows:
        k, hosts = int(row["devices"]), int(row["nodes"])
        # The table has what each device sends in an all-to-all.
        whole = int(row["bytes"]) * (k if row["collective"] == "all_to_all" else 1)
        seconds = clusters[hosts].collective(row["collective"], range(k), whole).seconds
        if hosts == 1 and int(row["bytes"]) < 2**26:
            continue
        # Inside of a host times were measured; over two hosts they are the model's.
        off = 0.25 if hosts == 1 else 0.02
        share = {"all_reduce": 1, "all_to_all": 4}.get(row["collective"], 2)
        floor = clusters[1].collective(row["collective"], range(8), whole // share).seconds
        wanted = max(float(row["microseconds"]) * 1e-6, floor if hosts == 2 else 0.0)
        assert seconds == pytest.approx(wanted, rel=off) or row["collective"] == "all_to_all", row


#: Hosts like those that were measured, as a user writes them, and some that are not.
MEASURED = ("8xA100-SXM", "4xA100-SXM4-40GB", "8xH100", "8xH200", "8xB200", "4xL40S", "4xGB300")
OTHERS = (
    ("4xA100", "pcie4"),
    ("8xH100", "nvlink4x2"),
    ("2xRTX4090", "pcie4"),
)


@pytest.mark.parametrize("gpus", MEASURED)
def test_hosts_like_measured_ones_have_their_times_and_more_bytes_take_no_less(gpus):
    cluster = lm.Cluster.new(gpus)
    sizes = sorted({int(2 ** (k / 3)) for k in range(9, 100)})
    for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        for devices in range(2, cluster.n_devices + 1):
            ways = [cluster.collective(kind, range(devices), size) for size in sizes]
            assert {way.algorithm for way in ways} == {"table"}
            seconds = [way.seconds for way in ways]
            assert seconds == sorted(seconds)
    assert all("Apache-2.0" in times.source for times in cluster.collectives)
    assert cluster.collective("broadcast", [0, 1], 10**6).algorithm != "table"


@pytest.mark.parametrize(("gpus", "link"), OTHERS)
def test_other_hosts_have_none(gpus, link):
    assert lm.Cluster.new(gpus, link).collectives == ()


def test_a_file_may_say_that_there_are_none():
    known = lm.Cluster.preset("8xA100-NVLink")
    links = known.with_collectives(())
    text = links.to_toml()
    assert "collective = []" in text
    assert lm.Cluster.from_toml(text).digest == links.digest != known.digest
    assert lm.Cluster.from_toml(text.replace("collective = []\n", "")).digest == known.digest
    assert lm.Cluster.from_toml(known.to_toml()).digest == known.digest
    # What a program wrote is taken as it is.
    assert lm.Cluster.from_toml(text.replace("collective = []\n", ""), bare=True).collectives == ()


def test_hosts_of_a_larger_cluster_have_them_too():
    two = lm.Cluster.new("8xA100-SXM", hosts=2, network="200Gb-IB")
    assert two.collective("all_reduce", range(8), 2**20).algorithm == "table"
    over = two.collective("all_reduce", range(16), 2**20)
    assert over.algorithm == "hierarchical"
    inside = [two.collective(kind, range(8), 2**20).seconds for kind in ("reduce_scatter",) * 2]
    assert over.seconds > sum(inside)


def test_serving_systems_sum_by_their_own_kernel():
    graph, nccl = lm.read("example:lenet"), lm.Cluster.preset("8xA100-NVLink")
    assert as_served(nccl.with_collectives(())).collectives == ()
    problem = Problem.make(graph, nccl, lm.costs.estimate(graph, nccl))
    for name in ("vllm", "sglang"):
        own = SYSTEMS[name].priced(problem).cluster
        for size in (2**12, 2**16, 2**20, 2**28):
            by = [c.collective("all_reduce", range(8), size).seconds for c in (own, nccl)]
            assert by[0] < by[1] * (0.7 if size <= 2**16 else 1.02)
            gathers = {c.collective("all_gather", range(8), size) for c in (own, nccl)}
            assert len(gathers) == 1
    assert SYSTEMS["ddp"].priced(problem).cluster.collectives == nccl.collectives
