"""Text of others comes back from every language as it was, and is never more than text."""

from __future__ import annotations

import ast
import csv
import html
import json
import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import hostile
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import loadmaster as lm
from loadmaster.base.csv_rows import csv_text, csv_value
from loadmaster.base.quoting import (
    Code,
    command,
    comment,
    json_text,
    markdown,
    markup,
    python,
    python_file,
    python_name,
    shell_file,
    yaml_file,
)
from loadmaster.base.text import escaped

#: Texts with all that means something to somebody.
TEXTS = st.text(
    st.sampled_from(
        "ab1 .=+-@\"'`$(){}\\#&<>|;:%*!~\t\r\n\0\x1b\x7f\x85\u2028\ufeff\ufffe\u202e\u00e4\N{PIG}"
    ),
    max_size=12,
) | st.sampled_from([hostile.ALL_IN_ONE, "None", "end\\", "x" * 1000])

VALUES = st.recursive(
    TEXTS | st.integers() | st.booleans() | st.none() | st.floats(-1, 1),
    lambda one: st.lists(one, max_size=3) | st.tuples(one) | st.dictionaries(TEXTS, one),
    max_leaves=4,
)


@given(VALUES)
def test_a_literal_of_python_is_the_value(value):
    written = python(value)
    assert ast.literal_eval(written) == value
    assert written == escaped(written)


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 1j, b"", object(), {1}])
def test_what_has_no_literal_is_not_written(value):
    with pytest.raises(TypeError, match="no literal"):
        python([value])


@given(TEXTS, TEXTS)
def test_a_template_of_python_has_one_tree(words, text):
    template = '"""{words:words}"""\n{note}\nx = {text}\ny = {code}\n'
    written = python_file(template, words=words, note=comment(words), text=text, code=Code("f(1)"))
    docstring, x, y = ast.parse(written).body
    assert ast.literal_eval(docstring.value) == escaped(words)
    assert (ast.literal_eval(x.value), ast.unparse(y)) == (text, "y = f(1)")
    assert len(written.splitlines()) == 4


@given(TEXTS)
def test_a_name_of_python_is_one(text):
    name = python_name(text, "SGD")
    assert name == text or name == "SGD"
    assert isinstance(ast.parse(name, mode="eval").body, ast.Name)


@given(st.lists(TEXTS, min_size=5, max_size=20))
def test_words_of_a_shell_come_back_but_for_NUL(words):  # noqa: N802
    shown = command(*words)
    assert shown == escaped(shown)
    bash = shutil.which("bash") or pytest.skip("needs bash")
    script = shell_file("printf '%s\\0' {first} {rest}\n{note}", first=words[0],
        rest=command(*words[1:]), note=comment(words[0]))  # fmt: skip
    said = subprocess.run([bash, "-c", script], capture_output=True, check=True, env={}).stdout
    assert said.decode().split("\0")[:-1] == [word.replace("\0", r"\x00") for word in words]


@given(st.dictionaries(TEXTS, TEXTS, max_size=4))
def test_json_and_yaml_come_back(document):
    written = json_text(document)
    assert json.loads(written) == document
    assert written == escaped(written)
    yaml = pytest.importorskip("yaml", reason="needs PyYAML, a parser of YAML")
    text = yaml_file("{note}\nkey: {document}\n", note=comment(str(document)), document=document)
    assert yaml.safe_load(text) == {"key": document}


@given(TEXTS)
def test_markup_comes_back_but_for_what_xml_cannot_hold(text):
    element = ElementTree.fromstring(f'<a b="{markup(text)}">{markup(text)}</a>')
    held = "".join(ascii(c)[1:-1] if c in "\0\x0b\x0c\x1b\ufffe" else c for c in text)
    assert element.attrib["b"] == (element.text or "") == held
    page = HTMLParser()
    page.handle_starttag = lambda tag, attrs: pytest.fail(tag)
    page.feed(markup(text))


@given(st.lists(st.lists(TEXTS | st.integers(), min_size=2, max_size=3), min_size=1, max_size=4))
@example([["=HYPERLINK(1)", "'=x", "''-x"]])
def test_cells_come_back_and_are_no_formulas(rows):
    text = csv_text(rows)
    assert text == escaped(text, but="\n")
    read = list(csv.reader(text.splitlines()))
    assert not any(cell[:1] in tuple("=+@") for row in read for cell in row)
    cells = [[escaped(v) if isinstance(v, str) else str(v) for v in row] for row in rows]
    assert [[csv_value(cell) for cell in row] for row in read] == cells


@given(TEXTS, TEXTS)
def test_a_cluster_comes_back_from_toml_whatever_it_is_called(text, other):
    names = (f"a{text}", f"b{text}")
    links = [lm.Mesh(names, names, 1e9, channels=(f"{other}{{from}}",), source=other)]
    cluster = lm.Cluster(
        [lm.Device(name, f"t{text}", 1) for name in names], links, name=other, description=text
    )
    again = lm.Cluster.from_toml(cluster.to_toml(), bare=True)
    assert again.digest == cluster.digest
    assert again.devices == cluster.devices
    assert (again.name, again.description) == (other, text)


@pytest.mark.parametrize("name", ["g{0..3}", "g{0..99999999999}", "{to}", "x{from}"])
def test_a_name_that_stands_for_others_is_no_name_of_a_device(name):
    with pytest.raises(lm.InputError, match="stands for"):
        lm.Device(name, "gpu", 1)


def test_a_range_of_any_length_is_a_range():
    row = '[[device]]\nname = "g{{0..{}}}"\nmemory = "1GiB"\n'
    for last in ("9999999999", "9" * 5000):
        with pytest.raises(lm.InputError, match="at most 10000 names"):
            lm.Cluster.from_toml(row.format(last))


@pytest.mark.parametrize("made", [
    lambda name: lm.Device(name, "gpu", 1),
    lambda name: lm.Cluster([lm.Device("a", "gpu", 1)], [], name=name),
    lambda name: lm.OpGraph({"name": ["a"]}, {"src": [], "dst": []}, name=name),
])  # fmt: skip
def test_half_of_a_pair_of_surrogates_is_no_name(made):
    with pytest.raises(lm.InputError, match="wants a text"):
        made("\ud800")


@given(TEXTS)
def test_nothing_in_markdown_is_a_link_or_code_or_another_cell(text):
    written = markdown(text)
    assert not set(re.sub(r"\\[\\\[\]`*|]", "", written)) & set("\\[]`*|<>\n")
    assert html.unescape(re.sub(r"\\([\\\[\]`*|])", r"\1", written)) == escaped(text)
