"""Figures with units: what is written reads back exactly, and no unit is guessed."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import loadmaster as lm
from loadmaster.base.errors import InputError
from loadmaster.base.units import RATE, SIZE, SPEED, TIME, exact_bytes, parse_bytes, parse_seconds
from loadmaster.cli import main

FIGURES = st.one_of(st.floats(0, 1e20), st.integers(0, 10**15), st.integers(0, 999).map(float))


@given(FIGURES, st.sampled_from([RATE, SPEED, TIME]))
def test_what_is_written_reads_back_exactly(figure, quantity):
    text = quantity.write(figure)
    again = quantity.parse(text, "it")
    assert again == figure, text
    assert type(again) is type(figure), text


@given(st.one_of(st.integers(0, 2**62), st.integers(0, 2**20).map(lambda n: n << 30)))
def test_bytes_that_are_written_read_back_exactly(size):
    assert parse_bytes(exact_bytes(size)) == size


@pytest.mark.parametrize(
    ("quantity", "text", "figure"),
    [
        (RATE, "12GB/s", 12e9),
        (RATE, "100 Gbit/s", 12.5e9),
        (RATE, "400Gbps", 50e9),
        (RATE, "1 GiB/s", 2.0**30),
        (SPEED, "14 TFLOP/s", 14e12),
        (SPEED, "1979 TOP/s", 1979e12),
        (TIME, "10 us", 1e-5),
        (SIZE, "2gb", 2e9),
        (SIZE, "2GIB", 2.0**31),
        (TIME, "0", 0),
    ],
)
def test_units_as_people_write_them(quantity, text, figure):
    assert quantity.parse(text, "it") == figure


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: parse_bytes("2", "reserve"), "reserve is 2, .*'2GiB', '2MiB' or '2B'"),
        (lambda: parse_seconds("20", "step"), "step is 20, .*'20ms', '20s' or '20us'"),
        (lambda: RATE.parse("12", "bandwidth"), "'12GB/s', '12Gbit/s' or '12MB/s'"),
        (lambda: RATE.parse("12gb/s", "bandwidth"), "is '12gb/s': .* such as '12GB/s'"),
        (lambda: RATE.parse("12 GB", "bandwidth"), "is '12 GB': .* such as '12GB/s'"),
        (lambda: SPEED.parse("14", "peak"), "'14TFLOP/s', '14GFLOP/s' or '14FLOP/s'"),
    ],
)
def test_no_unit_is_guessed(call, words):
    with pytest.raises(InputError, match=words):
        call()


PAIR = '[[device]]\nname = "a{0..1}"\nmemory = "8GiB"\n[[link]]\nfrom = "*"\nto = "*"\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[[device]]\nname = "a"\nmemory = 8', "memory of device 'a' is 8, .*'8GiB'"),
        ('[[device]]\nname = "a"\nmemory = 16384', "memory of device 'a' is 16384, .*MiB"),
        (PAIR + "bandwidth = 12", "link 0 .*bandwidth is 12, .*'12GB/s'"),
        (PAIR + 'bandwidth = "12GB/s"\nlatency = 5', "latency is 5, .*'5us'"),
        (PAIR + 'bandwidth = "1GB/s"\n[[type]]\nname = "a0"\nlaunch = 5', "launch is 5, .*'5us'"),
        (
            PAIR + 'bandwidth = "1GB/s"\n[[type]]\nname = "a0"\npeak = { f32 = 14 }',
            "peak of f32 is 14, .*'14TFLOP/s'",
        ),
        (
            PAIR + 'bandwidth = "1GB/s"\n[[type]]\nname = "a0"\nmemory_bandwidth = 900',
            "memory_bandwidth is 900, .*'900GB/s'",
        ),
    ],
)
def test_a_cluster_says_its_units(text, words):
    with pytest.raises(InputError, match=words):
        lm.Cluster.from_toml(text)
    assert lm.Cluster.from_toml(text, bare=True).n_devices


def test_what_can_only_be_the_first_unit_is_read_as_before():
    text = '[[device]]\nname = "a{0..1}"\nmemory = 61981000000\n[[link]]\nfrom = "*"\nto = "*"\n'
    cluster = lm.Cluster.from_toml(text + "bandwidth = 2.275e+09\nlatency = 0.0")
    assert cluster.memory == [61981000000] * 2
    assert cluster.route(0, 1).bandwidth == 2.275e9
    assert lm.Cluster.from_toml(text + "bandwidth = 12e9\nlatency = 10e-6").route(0, 1) == lm.Route(
        1e-5, 12e9, ("a0->a1",), ("a0", "a1")
    )


def test_a_written_cluster_has_units_and_its_digest():
    cluster = lm.Cluster.mesh(2, memory=100, bandwidth=1000.0, latency=0.001)
    text = cluster.to_toml()
    assert 'memory = "100 B"' in text
    assert 'bandwidth = "1 kB/s"' in text
    assert 'latency = "1 ms"' in text
    assert lm.Cluster.from_toml(text).digest == cluster.digest
    whole = lm.DeviceType("gpu", {"f32": 1000}, 10**12, 0)
    cluster = lm.Cluster.mesh(2, memory=100, bandwidth=1, type=whole)
    assert lm.Cluster.from_toml(cluster.to_toml()).digest == cluster.digest


def test_a_plan_whose_cluster_has_bare_numbers_is_read(tmp_path):
    cluster = lm.Cluster.mesh(2, memory=10**8, bandwidth=1000.0, latency=1.0)
    graph = lm.read("example:lenet")
    plan = lm.place(graph, cluster, "single", costs=[1e-6] * graph.n_ops)
    plan.save(tmp_path / "plan.json")
    document = json.loads((tmp_path / "plan.json").read_text())
    toml = document["cluster"]
    for text, bare in (
        ('"100000000 B"', "100000000"),
        ('"1 kB/s"', "1000.0"),
        ('"1.0 s"', "1.0"),
    ):
        assert text in toml
        toml = toml.replace(text, bare)
    document["cluster"] = toml
    (tmp_path / "plan.json").write_text(json.dumps(document))
    assert lm.Plan.load(tmp_path / "plan.json").makespan == plan.makespan


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["place", "example:lenet", "--reserve", "2"], "reserve of * is 2, without a unit"),
        (["place", "example:lenet", "--time-limit", "2"], "--time-limit is 2, without a unit"),
        (["check", "PLAN", "--max-step", "20"], "max_step is 20, without a unit"),
        (["check", "PLAN", "--max-peak", "gpu0=30"], "max_peak of gpu0 is 30, without a unit"),
    ],
)
def test_the_command_line_guesses_no_unit(words, said, tmp_path, capsys):
    path = tmp_path / "plan.json"
    if "PLAN" in words:
        lm.place(lm.read("example:lenet"), lm.Cluster.preset("2xV100-NVLink"), "single").save(path)
    assert main([str(path) if word == "PLAN" else word for word in words]) == 2
    assert said in capsys.readouterr().err


def test_constraints_say_their_units(tmp_path):
    path = tmp_path / "rules.toml"
    for text in ("reserve = 2", "[reserve]\ngpu0 = 2"):
        path.write_text(text)
        with pytest.raises(InputError, match=r"rules\.toml: reserve of .* is 2, without a unit"):
            lm.Constraints.read(path)
    path.write_text("reserve = 2147483648")
    assert lm.Constraints.read(path).reserve == {"*": 2**31}


def test_the_way_back_of_a_link_is_said_in_the_words_of_the_file():
    one_way = PAIR.replace('"*"\nto = "*"', '"a0"\nto = "a1"') + 'bandwidth = "1GB/s"'
    with pytest.raises(InputError) as caught:
        lm.Cluster.from_toml(one_way)
    lines = 'from = ["a0", "a1"]\nto = ["a0", "a1"]'
    assert lines.replace("\n", " ") in str(caught.value)
    both = one_way.replace('from = "a0"\nto = "a1"', lines)
    assert lm.Cluster.from_toml(both).n_channels == 2
