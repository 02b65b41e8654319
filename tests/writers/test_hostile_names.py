"""Names are no code: a file has one form, whatever the texts of graph, cluster, recipe and plan."""

from __future__ import annotations

import ast
import io
import json
import re
import shutil
import subprocess
import tokenize
from functools import cache
from html.parser import HTMLParser
from xml.etree import ElementTree

import hostile
import pytest

import loadmaster as lm
from loadmaster.base.text import escaped
from loadmaster.systems.registry import SYSTEMS
from loadmaster.writers import report
from loadmaster.writers.export import export, form_of, forms
from loadmaster.writers.pictures import coarse, pipeline, timeline
from loadmaster.writers.report import chain
from loadmaster.writers.report.contents import contents

#: The plans that every form is written of: the example, and what plans for it. Those of "any" have
#: other texts also where planners look for words that they know.
LARGE = ("example:gpt3-330m", "example:mixtral")
PLANS = {
    "any": ("example:lenet", {"method": "heft"}),
    **{
        target: ("example:alexnet", {"target": target})
        for target in (
            "autoparallel",
            "ddp",
            "deepspeed",
            "device-map",
            "dtensor",
            "fsdp",
            "jax",
            "pipelining",
            "simplefsdp",
        )
    },
    **{
        target: ("example:alexnet", {"target": target, "engine": engine})
        for target, engine in (
            ("accelerate", "fsdp"),
            ("lightning", "fsdp"),
            ("ray", "fsdp"),
            ("trainer", "deepspeed"),
        )
    },
    "megatron": ("example:gpt3-330m", {"target": "megatron"}),
    "llama-cpp": ("example:mixtral", {"target": "llama-cpp"}),
}
PLAN_OF = {
    **dict.fromkeys(("flax", "maxtext"), "fsdp"),
    "torchtitan": "megatron",
    **dict.fromkeys(("sglang", "tensorrt-llm", "vllm"), "llama-cpp"),
}

#: Forms whose texts are in protobuf, and which need the model itself.
OF_MODELS = {"onnx", "onnx-annotated", "openvino", "tensorflow-graph"}


@cache
def document_of(name):
    example, asked = PLANS[name]
    graph = hostile.marked_graph(lm.read(example), all_of_it=name == "any")
    cluster = hostile.marked_cluster(1 if name == "megatron" else 2)
    return hostile.marked(lm.place(graph, cluster, **asked))


@cache
def plan(name, key):
    """The plan of a name under texts of a set; of the empty set, with the marks."""
    return hostile.renamed(document_of(name), hostile.SETS[key] if key else hostile.MARKS)


def cases():
    for form in forms():
        if form not in OF_MODELS:
            name = PLAN_OF.get(form, form if form in PLANS else "any")
            is_large = PLANS[name][0] in LARGE
            yield from ((form, name, key) for key in [*hostile.SETS][: 1 if is_large else None])


# -- files in their languages ------------------------------------------------------------------


def tree_of_python(text):
    """The tree without docstrings, and its texts."""
    tree = ast.parse(text)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(node)
    }
    texts = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            texts += [] if id(node) in docstrings else [node.value]
            node.value = ""
    # Comments that are cut off are tokens.
    kinds = [t.type for t in tokenize.generate_tokens(io.StringIO(text).readline)]
    comments = tokenize.COMMENT, tokenize.NL
    return (ast.dump(tree), [kind for kind in kinds if kind not in comments]), texts


def tree_of_json(text):
    texts = []

    def shape(value):
        if isinstance(value, str):
            texts.append(value)
        elif isinstance(value, dict):
            texts.extend(value)
            return [shape(one) for one in value.values()]
        return [shape(one) for one in value] if isinstance(value, list) else type(value).__name__

    return shape(json.loads(text)), texts


def tree_of_yaml(text):
    yaml = pytest.importorskip("yaml", reason="needs PyYAML, a parser of YAML")
    return sorted(yaml.safe_load(text).items()), []


def tree_of_shell(text):
    """The words that the last command of a script is given."""
    bash = shutil.which("bash") or pytest.skip("needs bash")
    shown = "PATH=/nowhere; torchrun() { printf '%s\\0' \"$@\"; }\n"
    script = [bash, "--norc", "-c", shown + text]
    words = subprocess.run(script, check=True, capture_output=True).stdout.decode().split("\0")
    return len(words), words


def tree_of_dot(text):
    quoted = re.compile(r'"((?:[^"\\]|\\.)*)"')
    texts = [re.sub(r"\\(.)", _dot_escape, one) for one in quoted.findall(text)]
    return quoted.sub("", text), texts


def _dot_escape(match):
    return "\n" if match[1] == "n" else match[1]


def tree_of_xml(text):
    root = ElementTree.fromstring(text)
    nodes = list(root.iter())
    texts = [one for node in nodes for one in (node.text, *node.attrib.values()) if one]
    return [(node.tag, sorted(node.attrib)) for node in nodes], texts


LANGUAGES = {
    "autoparallel": tree_of_python,
    **dict.fromkeys(
        ("ddp", "dtensor", "flax", "fsdp", "jax", "lightning", "pipelining", "ray"),
        tree_of_python,
    ),
    **dict.fromkeys(("simplefsdp", "torchtitan"), tree_of_python),
    **dict.fromkeys(
        ("accelerate", "maxtext", "sglang", "tensorrt-llm", "trainer", "vllm"), tree_of_yaml
    ),
    "megatron": tree_of_shell,
    "dot": tree_of_dot,
    "graphml": tree_of_xml,
}
#: Forms in which characters that the language cannot hold, or a terminal would obey, are escaped.
ESCAPES = {
    "megatron": lambda text: text.replace("\0", r"\x00"),
    "dot": lambda text: escaped(text, but="\n"),
    "graphml": lambda text: re.sub(
        "[\0-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]", lambda m: ascii(m[0])[1:-1], text
    ),
}


def text_of(form, plan, folder):
    """A file as text."""
    written = export(plan, form, folder / "file", check=False)
    if form_of(form).is_file or form not in LANGUAGES:
        return (folder / "file").read_text() if (folder / "file").exists() else json.dumps(written)
    assert (folder / "file").read_text() == written
    return written


@pytest.mark.parametrize(("form", "name", "key"), list(cases()))
def test_a_file_has_the_form_that_it_has_with_harmless_names_and_gives_names_back(
    form, name, key, tmp_path
):
    language = LANGUAGES.get(form, tree_of_json)
    harmless = language(text_of(form, plan(name, ""), tmp_path))
    text = text_of(form, plan(name, key), tmp_path)
    shape, texts = language(text)
    assert text == escaped(text, but="\n\t") or form == "graphml"
    assert shape == harmless[0]
    given_back = [hostile.put(one, hostile.SETS[key]) for one in harmless[1]]
    escapes = ESCAPES.get(form, str)
    assert sorted(texts) == sorted(map(escapes, given_back))


def test_every_form_is_tried():
    """A new form is in a language above, or writes JSON, which the test above reads."""
    tried = {form for form, _, _ in cases()} | OF_MODELS
    assert tried == set(forms())
    assert {name for name, system in SYSTEMS.items() if system.form} <= tried


# -- pages, pictures and words -----------------------------------------------------------------


class Page(HTMLParser):
    """The elements of a page, without its scripts."""

    def __init__(self, text):
        super().__init__()
        self.elements = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        names = [key for key, _ in attrs]
        if tag != "wbr":  # Stands where a name may be broken, and says so in a class.
            self.elements.append((tag, [key for key in names if key != "class"]))

    def handle_endtag(self, tag):
        self.elements.append(("/", tag))


PAGES = [
    *(("any", key) for key in hostile.SETS),
    ("jax", "all in one"),
    ("pipelining", "all in one"),
]


@pytest.mark.parametrize(("name", "key"), PAGES)
def test_a_report_has_the_elements_that_it_has_with_harmless_names(
    name, key, tmp_path, monkeypatch
):
    monkeypatch.setattr(report, "_plotly", str)
    pages = []
    for one in (plan(name, ""), plan(name, key)):
        one.report(tmp_path / "plan.html")
        pages.append((tmp_path / "plan.html").read_text())
    harmless, other = map(Page, pages)
    assert other.elements == harmless.elements
    inside = contents(plan(name, key), chain.parts(plan(name, key)))
    document = json.loads(inside[8 : 8 + int.from_bytes(inside[:8], "little")])
    assert document["devices"] == [device.name for device in plan(name, key).cluster.devices]
    assert set(document["ops"]["name"]) <= set(plan(name, key).program.graph.names)


@pytest.mark.parametrize("key", ["all in one", "10,000 characters"])
def test_pictures_can_be_read(key, tmp_path):
    drawn = plan("pipelining", key)
    for draw in (timeline.draw, pipeline.draw):
        draw(drawn, tmp_path / "picture.svg")
        ElementTree.parse(tmp_path / "picture.svg")
    coarse.write(lm.coarsen(drawn.graph, groups=4), tmp_path / "coarse.graphml")
    ElementTree.parse(tmp_path / "coarse.graphml")


@pytest.mark.parametrize("name", ["any", "jax", "fsdp"])
def test_no_terminal_obeys_a_name(name):
    shown = plan(name, "all in one")
    names = shown.graph.names
    for thing in (shown, shown.explain(names[-1]), shown.cluster, shown.graph, shown.diff(shown)):
        for text in (str(thing), repr(thing)):
            assert text == escaped(text, but="\n")
    with pytest.raises(lm.InputError) as caught:
        shown.explain(f"{names[-1]}?")
    assert str(caught.value) == escaped(str(caught.value))
