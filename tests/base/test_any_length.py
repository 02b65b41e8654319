"""Values and messages of any length, and documents that would take for ever to parse."""

from __future__ import annotations

import time
import tracemalloc

import pytest

import loadmaster as lm
from loadmaster.base import checks, files
from loadmaster.base.errors import LONGEST, InputError, MissingExtraError, malformed
from loadmaster.base.files import (
    limited_input,
    parse_json,
    parse_toml,
    read_bytes,
    write_bytes,
)
from loadmaster.base.text import shown
from loadmaster.base.units import parse_bytes


def test_a_message_of_any_length_can_be_read():
    message = str(InputError("begins" + "x" * 10**6 + "ends"))
    assert len(message) <= LONGEST
    assert message.startswith("begins")
    assert message.endswith("ends")
    assert "characters left out" in message
    assert str(InputError("short")) == "short"
    assert "needs the package 'a'" in str(MissingExtraError("a", "b", "reading"))


def test_values_of_any_size_are_shown():
    assert shown([1, "a"]) == "[1, 'a']"
    assert shown(10**5000) == "an integer of 16610 bits"
    assert len(shown("x" * 10**6)) <= 100
    assert shown([10**5000]) == "a list that is too large to show"
    for check in (checks.integer, checks.positive, parse_bytes):
        with pytest.raises(InputError, match=r"16610 bits|too large"):
            check(*(("n", -(10**5000)) if check is not parse_bytes else (10**5000, "n")))
    with pytest.raises(InputError, match="more than 2\\^63 bytes"):
        parse_bytes("9" * 400 + "GiB")


def test_a_border_names_what_it_stands_around():
    with pytest.raises(InputError, match="line 7: KeyError: 'a'"), malformed(lambda: "line 7"):
        {}["a"]
    with pytest.raises(InputError, match=r"^kept$"), malformed("no border"):
        raise InputError("kept")
    with pytest.raises(ZeroDivisionError), malformed("no fault of a file's"):
        1 / 0  # noqa: B018


@pytest.mark.parametrize(
    "key",
    ["a", '"b c"', "'d'"],
)
def test_toml_that_would_take_minutes_is_refused(key):
    dotted = " . ".join([key] * 20_000)
    for text in (f"{dotted} = 1", f"[{dotted}]", f"x = {{{dotted} = 1}}"):
        before = time.process_time()
        with pytest.raises(InputError, match=r"net\.toml, line 2: a dotted key of more than 64"):
            parse_toml("# one\n" + text, "net.toml")
        assert time.process_time() - before < 10, "it took 40 s"


def test_toml_nested_deeply_is_refused_and_what_is_meant_is_read():
    for text in ("a = " + "[" * 500, "a = " + "[" * 500 + "]" * 500, "a = " + "{b = " * 500):
        with pytest.raises(InputError, match=r"net\.toml is not valid TOML"):
            parse_toml(text, "net.toml")
    dots = ".".join("a" * 60)
    assert parse_toml(f'a.b.c = "{dots}" # {dots}', "x") == {"a": {"b": {"c": dots}}}
    with pytest.raises(InputError, match="a dotted key"):
        lm.Cluster.from_toml(f"{dots}.{dots} = 1")


def test_half_a_character_is_no_text():
    assert parse_json(rb'["\ud83d\ude00", "\\ud800"]', "x") == ["\U0001f600", r"\ud800"]
    for half in (rb'"\ud83d"', rb'"\uDE00"', rb'"\\\ud83d "', rb'"\ud83d\ude00\ud83d"'):
        with pytest.raises(InputError, match="half of a surrogate pair"):
            parse_json(half, "x")


@pytest.mark.parametrize("parse", [parse_toml, lambda text, _: parse_json(text.encode(), "it")])
def test_a_number_of_thousands_of_digits_is_refused_in_words(parse):
    text = "9" * 5000 if parse is not parse_toml else "n = " + "9" * 5000
    with pytest.raises(InputError, match="a number has too many digits"):
        parse(text, "it")


def test_products_of_sizes_are_bounded():
    assert checks.product([3, 0, 5]) == 0
    for sizes in ([2**62] * 3, [1] * 65, [2**62] * 13726):
        with pytest.raises(InputError, match="is out of range"):
            checks.product(sizes)


def test_modules_of_many_levels_are_refused():
    ops, edges = {"name": ["a", "b"]}, {"src": [0], "dst": [1]}
    assert lm.OpGraph(ops | {"module": ["m" + ".m" * 400, ""]}, edges).n_ops == 2
    for separator in "./":
        with pytest.raises(InputError, match=r"ops.module\[1\] is .* more than 500 levels"):
            lm.OpGraph(ops | {"module": ["", separator.join("m" * 20_000)]}, edges)


def test_what_unpacks_to_too_much_is_refused_before_it_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_LONG", 4 << 20)
    path, data = tmp_path / "a.json.gz", bytes(32 << 20)
    write_bytes(path, data)
    assert read_bytes(path) == data
    tracemalloc.start()
    with limited_input("31MiB"), pytest.raises(InputError, match="takes more than 31 MiB"):
        read_bytes(path)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 12 << 20
