"""Instances: what is said to be known of each is what the simulator says; no bound is above it."""

from __future__ import annotations

import re

import numpy as np
import pytest
from folders import DATA
from hypothesis import given, settings
from hypothesis import strategies as st

import loadmaster as lm
from loadmaster.base.errors import InputError
from loadmaster.cli import main
from loadmaster.readers.instances import planted
from loadmaster.readers.opgraph import write
from loadmaster.strategies.papers import papers

NAMES = lm.instances.names()
#: A schedule came with these.
SCHEDULED = [name for name in NAMES if name.partition("/")[0] in ("planted", "scheduling")]


def test_what_is_listed():
    by_set = {
        kind: [n for n in NAMES if n.startswith(f"{kind}/")] for kind in ("planted", "models")
    }
    assert len(by_set["planted"]) == 18
    assert len(by_set["models"]) == 16
    assert len(lm.instances.names("scheduling/n20-*")) == 12
    assert len(set(NAMES)) == len(NAMES) == 60


@pytest.mark.parametrize("name", SCHEDULED)
def test_the_schedule_that_came_along_takes_what_is_known(name):
    found = lm.instances.load(name)
    assert found.name == name
    seen = lm.simulate(found.graph, found.cluster, found.devices, found.priority, policy="fixed")
    assert seen.fits
    assert seen.makespan == pytest.approx(found.best_known, rel=1e-9)
    assert found.lower_bound <= found.best_known * (1 + 1e-9)
    assert lm.lower_bound(found.graph, found.cluster).seconds <= found.best_known * (1 + 1e-9)


@pytest.mark.parametrize("name", lm.instances.names("scheduling/*"))
def test_transfers_take_what_was_published_or_a_little_more(name):
    from loadmaster.base.files import parse_json, read_bytes

    path = DATA / "scheduling" / f"{name.partition('/')[2]}.json.gz"
    raw, found = parse_json(read_bytes(path), path), lm.instances.load(name)
    most = 0.0
    edge = {int(t): int(b) for t, b in zip(found.graph.tensor, found.graph.bytes, strict=True)}
    for i, tensor in enumerate(raw["tensors"]):
        for a in range(raw["K"]):
            for b in (b for b in range(raw["K"]) if b != a):
                route = found.cluster.route(a, b)
                takes = (route.latency + edge[i] / route.bandwidth) * 1e6
                assert takes >= tensor["c"][a][b] - 1e-6, "a published bound would not hold"
                most = max(most, takes - tensor["c"][a][b])
    assert most <= (1e-6 if raw["hom"] else 5.0)
    assert found.graph.param_bytes.tolist() == [m * 2**36 for m in raw["mem"]]


def test_memory_is_the_sum_of_the_groups_on_a_device():
    """One group more than a device may hold does not fit, and what it may hold fits."""
    found = lm.instances.load("scheduling/n20-train-K2-hom-ccr0.1-tight")
    room = found.cluster.memory[0]
    held = np.zeros(2, dtype=np.int64)
    np.add.at(held, found.devices, found.graph.param_bytes.astype(np.int64))
    assert (held <= room).all()
    everything = np.zeros(found.graph.n_ops, dtype=np.int32)
    assert not lm.simulate(found.graph, found.cluster, everything).fits


def test_the_optima_of_twenty_groups_are_proved_to_a_rounding():
    for name in lm.instances.names("scheduling/n20-*"):
        found = lm.instances.load(name)
        assert found.best_known <= found.lower_bound * 1.0006
        if "-hom-" in name:
            assert found.optimum == found.best_known


@settings(max_examples=25)
@given(
    st.integers(1, 6),
    st.integers(1, 12),
    st.sampled_from([0.1, 0.5, 1.0, 3.0, 10.0]),
    st.integers(0, 2**64 - 1),
)
def test_any_planted_instance_keeps_its_promise_or_says_why_not(devices, more, ccr, seed):
    try:
        found = planted.planted(devices * more, devices, ccr, seed)
    except InputError as error:
        if "CCR" not in str(error):
            raise
        return
    seen = lm.simulate(found.graph, found.cluster, found.devices, found.priority)
    assert seen.makespan == pytest.approx(found.optimum, rel=1e-9)
    assert lm.lower_bound(found.graph, found.cluster).seconds <= found.optimum * (1 + 1e-9)
    again = lm.instances.load(found.name)
    assert again.graph.digest == found.graph.digest


def test_models_are_any_example_on_any_preset():
    found = lm.instances.load("models/lenet@2xV100-NVLink")
    assert found.graph.digest == lm.read("example:lenet").digest
    assert found.cluster.digest == lm.Cluster.preset("2xV100-NVLink").digest
    assert found.best_known is None, "nobody looked"


@pytest.mark.parametrize("name", [n for n in NAMES if n.startswith(("models/", "measured/"))])
def test_what_is_known_of_models_is_above_their_bound(name):
    found = lm.instances.load(name)
    assert found.licence
    assert found.source
    if found.best_known is None:
        return
    assert found.best_by
    assert lm.lower_bound(found.graph, found.cluster).seconds <= found.best_known * (1 + 1e-9)


@pytest.mark.parametrize("name", ["models/lenet@4xV100-PCIe", "models/alexnet@4xV100-PCIe"])
def test_what_is_known_of_a_model_is_found_again(name):
    found = lm.instances.load(name)
    plan = lm.place(found.graph, found.cluster, "auto", effort="normal", split="none")
    assert plan.makespan <= found.best_known * (1 + 1e-9)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nothing", "no instance is named 'nothing'"),
        ("planted/1000x4", "wants planted/OPSxDEVICES-ccrCCR-SEED"),
        ("planted/2x4-ccr1-0", "n_ops is 2"),
        ("planted/100x4-ccr0.001-0", "latency alone"),
        ("planted/100x1-ccr0-0", "ccr is 0.0"),
        ("planted/999999999x4-ccr1-0", "n_ops is 999999999"),
        ("scheduling/n20-lstm-K4-hom-ccr1", "did you mean 'n20-lstm-K4-hom-ccr1-tight'"),
        ("models/lenet", "wants models/EXAMPLE@PRESET"),
        ("models/lenett@4xV100-PCIe", "did you mean 'lenet'"),
        ("models/lenet@4xV100", "did you mean"),
        ("measured/bert", "there are googlenet, transformer"),
    ],
)
def test_a_name_that_is_none(name, words):
    with pytest.raises(InputError) as error:
        lm.instances.load(name)
    assert words in str(error.value)


# -- a folder ------------------------------------------------------------------------------------


def test_a_folder_of_graphs_and_clusters(tmp_path, lenet):
    write(lenet, tmp_path / "mine.json.gz")
    write(lenet, tmp_path / "other.json")
    lm.Cluster.preset("2xV100-NVLink").write(tmp_path / "mine.cluster.toml")
    (tmp_path / "notes.md").write_text("nothing")
    (tmp_path / "empty.json").write_text("")
    names = lm.instances.names(folder=tmp_path)
    assert names == ["mine", "other@4xV100-PCIe", "other@8xA100-NVLink"]
    mine = lm.instances.load("mine", tmp_path)
    assert (mine.graph.digest, mine.cluster.n_devices) == (lenet.digest, 2)
    assert lm.instances.load("other@2xV100-NVLink", tmp_path).cluster.n_devices == 2
    assert lm.instances.names("mine*", folder=tmp_path) == ["mine"]
    for name, words in (("other", "has no cluster"), ("gone", "has no graph 'gone'")):
        with pytest.raises(InputError, match=words):
            lm.instances.load(name, tmp_path)
    with pytest.raises(InputError, match="cannot read the folder"):
        lm.instances.names(folder=tmp_path / "gone")


# -- where a graph or a cluster is wanted --------------------------------------------------------


def test_an_instance_is_a_graph_and_a_cluster(capsys):
    name = "instance:planted/100x4-ccr1-0"
    assert lm.read(name).digest == lm.instances.load("planted/100x4-ccr1-0").graph.digest
    plan = lm.place(name, name, "heft")
    assert plan.cluster.n_devices == 4
    assert main(["place", name, "--method", "heft", "--json"]) == 0
    assert '"planted-100x4-ccr1-0"' in capsys.readouterr().out
    assert main(["place", name, "--cluster", "2xV100-NVLink", "--method", "heft"]) == 0
    with pytest.raises(InputError, match="takes no options"):
        lm.read(name, batch=3)


def test_the_command_lists_them(capsys):
    assert main(["instances", "planted/100x*", "models/vgg19@2xV100-NVLink"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + 9 + 1
    assert main(["instances", "measured/*", "--cite"]) == 0
    assert "@misc{moirai" in capsys.readouterr().out
    assert main(["instances", "planted/*", "--cite"]) == 0
    assert capsys.readouterr().out.startswith("% no paper")
    assert main(["instances", "--json", "scheduling/n20-lstm-K4-hom-ccr1-tight"]) == 0
    assert '"is_optimal": true' in capsys.readouterr().out
    assert main(["instances", "nothing"]) == 2


def test_entries_have_the_fields_of_their_kind():
    """BibTeX's own rules: a journal or a book, a volume where there is a number, a DOI as a DOI."""
    for paper in papers():
        kind, key, fields = re.match(r"@(\w+)\{([\w-]+),\n(.*)\n\}$", paper.bibtex, re.S).groups()
        found = dict(re.findall(r"^  (\w+) = \{(.+)\},?$", fields, re.M))
        venue = {"article": "journal", "inproceedings": "booktitle", "misc": "howpublished"}[kind]
        assert key == paper.key
        assert {"author", "title", "year", venue} <= set(found)
        assert kind != "article" or {"volume", "number", "pages"} <= set(found)
        assert ("number" not in found) or "volume" in found
        assert re.fullmatch(r"10\.\d{4,}/\S+", found.get("doi", "10.1000/x"))
        assert re.fullmatch(r"\d+--\d+", found.get("pages", "1--2"))
        if kind == "misc":
            assert found["doi"] == "10.48550/" + paper.venue.replace(":", ".")
