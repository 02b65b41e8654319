"""Collectives of clusters: measured times in files, what derived clusters keep of them."""

import csv

import pytest
from folders import DATA

import loadmaster as lm
from loadmaster import CollectiveTimes


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


def test_presets_of_h100_take_what_nccl_takes():
    with (DATA / "collectives.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    clusters = {1: lm.Cluster.preset("8xH100-NVLink"), 2: lm.Cluster.preset("2x8xH100-IB")}
    for row in rows:
        k, cluster = int(row["devices"]), clusters[int(row["nodes"])]
        # The table has what each device sends in an all-to-all.
        whole = int(row["bytes"]) * (k if row["collective"] == "all_to_all" else 1)
        found = cluster.collective(row["collective"], range(k), whole)
        assert found.seconds * 1e6 == pytest.approx(float(row["microseconds"]), rel=0.02), row
    others = set(lm.presets()) - {"8xH100-NVLink", "8xH100-NVLink-eager", "2x8xH100-IB"}
    assert not any(lm.Cluster.preset(name).collectives for name in others)
