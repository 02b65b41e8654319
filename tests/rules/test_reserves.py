"""Memory that the command line keeps free on GPUs by default."""

import json

import pytest

import loadmaster as lm
from loadmaster.cli import main
from loadmaster.model.machine.types import known_types
from loadmaster.rules.reserves import default_reserve, kept_by_default

NVIDIA = sorted(
    name
    for name, known in known_types().items()
    if known.nvlink or known.type.source.startswith("NVIDIA")
)


@pytest.mark.parametrize("name", NVIDIA)
def test_what_is_left_is_at_most_97_percent_of_what_a_card_has(name):
    for n in (1, 2, 8):
        cluster = lm.Cluster.mesh(n, memory=known_types()[name].memory, bandwidth=1e10, type=name)
        for runtime in (None, "graphs"):
            reserve = default_reserve(cluster, runtime)[name]
            parts = dict(reserve.parts)
            has = cluster.memory[0] - parts["less than its name says"]
            assert cluster.memory[0] - reserve.bytes <= 0.97 * has
            assert reserve.bytes < 0.3 * cluster.memory[0]
            assert ("communicators" in parts) == (n > 1)
            assert ("pools of graphs" in parts) == (runtime == "graphs")


def test_types_of_no_table_and_cards_that_say_what_they_have_keep_less():
    assert default_reserve(lm.Cluster.mesh(2, memory="80GiB", bandwidth=1e9)) == {}
    assert default_reserve(lm.Cluster.preset("m2-ultra")) == {}
    # A detected card says the memory that there is.
    shown = lm.Cluster.preset("8xH100-NVLink").with_memory("79.1GiB")
    assert "less than its name says" not in dict(default_reserve(shown)["H100-SXM5-80GB"].parts)
    # One GPU beside a CPU sends nothing to another GPU.
    alone = default_reserve(lm.Cluster.preset("cpu+gpu"))
    assert [dict(one.parts).get("communicators") for one in alone.values()] == [None]


def test_a_reserve_alone_lets_auto_try_all_that_it_tries_without():
    graph, cluster = lm.read("example:lenet"), lm.Cluster.preset("2xV100-NVLink")
    kept = lm.place(graph, cluster, constraints=kept_by_default(cluster))
    free = lm.place(graph, cluster)
    assert kept.makespan == free.makespan
    assert kept.method == free.method


def placed(capsys, *words):
    assert main(["place", "example:lenet", "--method", "single", "--json", *words]) == 0
    return json.loads(capsys.readouterr().out)


def test_by_command(capsys, tmp_path):
    cluster = ["--cluster", "2xV100-NVLink"]
    by_default = placed(capsys, *cluster)["constraints"]["reserve"]
    assert by_default == {
        "V100-SXM2-16GB": default_reserve(lm.Cluster.preset("2xV100-NVLink"))[
            "V100-SXM2-16GB"
        ].bytes
    }
    assert placed(capsys, *cluster, "--reserve", "0")["constraints"] == {}
    assert placed(capsys, *cluster, "--reserve", "1GiB")["constraints"]["reserve"] == {"*": 2**30}
    assert placed(capsys, *cluster, "--max-memory", '{"0": "1GiB"}')["constraints"] == {}
    assert main(["place", "example:lenet", "--method", "single", *cluster]) == 0
    text = capsys.readouterr().out
    assert "reserve      2.17 GiB, --reserve 0 for none: 205 MiB less than its name says" in text
    assert "constraints " not in text


def test_what_fits_only_a_cards_name_is_refused(capsys, tmp_path):
    import networkx

    big = networkx.DiGraph()
    big.add_node("w", kind="parameter", param_bytes=15 * 2**30)
    big.add_node("op", time=1.0)
    big.add_edge("w", "op", bytes=15 * 2**30)
    lm.OpGraph.from_networkx(big).save(tmp_path / "big.json")
    words = ["place", str(tmp_path / "big.json"), "--cluster", "2xV100-NVLink"]
    assert main([*words, "--reserve", "0"]) == 0
    capsys.readouterr()
    assert main(words) != 0
    assert "Constraints: reserve V100-SXM2-16GB=2.17 GiB" in capsys.readouterr().err
