"""Plans in which every text is somebody else's: a mark in each field, and what stands for it.

A plan is made once with marks. Its document with other texts for the marks is the same plan, under
other names.
"""

from __future__ import annotations

import json
import keyword
import re
import tomllib
from dataclasses import replace

import tomli_w

import loadmaster as lm
from loadmaster.model.patterns import escaped_pattern
from loadmaster.plans.document import plan_of_document

#: The mark of each text field. Those of ``path`` stand within module paths and names of ops.
MARKS = {
    name: f"Q{name.title()}Q"
    for name in (
        "path", "graph", "optimizer", "meta", "kind", "colocation", "collective", "argument",
        "cluster", "description", "source", "device", "type", "channel", "link", "times",
        "method", "option", "value", "note", "left", "why", "bound", "offer", "recomputed",
    )
}  # fmt: skip

_MARK = re.compile(rf"Q({'|'.join(name.title() for name in MARKS)})Q")

#: First words of a path that have a meaning.
_MEANT = {"optim", "gradients", "gradient_tape"}

CALL = 'open("PWNED","w")'

#: What a shell, Python, a template, YAML, a terminal, TOML, HTML, XML or a spreadsheet would obey.
#: None has a dot or a slash, which part the words of paths.
ALL_IN_ONE = (
    f"=1+1'''\"\"\"'\"\n{CALL}\n\"\"\"'''#]}})`touch PWNED`$(touch PWNED)${{HOME}}"
    "{0}{name!r}{{%s%(a)s\\x"
    "\r\u2028tp: 99\u0085pp: 99\u2029\x0b\x0c\0\x1b[31m\x9b31m\x7f\u202e*|<b onload=x>&lt;]]>"
    "<!-- -->${title}$title%{x}\ufffe\t\\N;:,~\N{GRINNING FACE}"
)
KEYWORDS = dict(zip(MARKS, keyword.kwlist, strict=False))

#: Texts by field, a set of them at a time.
SETS = {
    "all in one": {name: f"{ALL_IN_ONE}{name}" for name in MARKS},
    "a backslash at the end": {name: f"-{name}\\" for name in MARKS},
    "a quote at the end": {name: f'@{name}"""\'\'\'"' for name in MARKS},
    "words of Python": {name: KEYWORDS[name] + name for name in MARKS}
    | {"graph": "None", "optimizer": "None", "device": "class", "method": "def"},
    "10,000 characters": {name: f"{name}{'x' * 10_000}" for name in MARKS} | {"path": "x" * 200},
}


def marked_graph(graph, *, all_of_it):
    """The graph with marks; ``all_of_it``: also where planners look for words that they know."""
    document = json.loads(json.dumps(graph.to_document()))
    ops, n = document["ops"], graph.n_ops
    for column in ("name", "module"):
        ops[column] = [_marked_path(text) for text in ops[column]]
    document["name"] = MARKS["graph"]
    document["meta"] |= {"optimizer": MARKS["optimizer"], MARKS["meta"]: {"a": [MARKS["meta"]]}}
    if all_of_it:
        ops["kind"] = [
            kind and kind if kind in _KEPT else MARKS["kind"] + kind for kind in ops["kind"]
        ]
        ops["colocation"] = [MARKS["colocation"]] * 2 + [""] * (n - 2)
        ops["args"] = [[[MARKS["argument"]], {MARKS["argument"]: 1}]] + [None] * (n - 1)
    return lm.OpGraph.from_document(document)


_KEPT = ("parameter", "buffer", "input", "constant")


def _marked_path(path):
    words = re.split(r"([./])", path)
    return "".join(
        MARKS["path"] + word
        if word and not word.isdecimal() and word not in "./" and word not in _MEANT
        else word
        for word in words
    )


def marked_cluster(n=2):
    """Some large GPUs with marks, linked to each other."""
    kind = lm.Cluster.preset("2xH100-NVLink").types[0]
    kind = replace(kind, name=MARKS["type"], source=MARKS["source"])
    names = tuple(f"{MARKS['device']}{i}" for i in "abcdefgh"[:n])
    ports = tuple(MARKS["channel"] + end for end in ("{from}.tx", "{to}.rx"))
    return lm.Cluster(
        [lm.Device(name, kind.name, "192GiB") for name in names],
        [lm.Mesh(names, names, 2e11, 1e-6, ports, MARKS["link"])],
        [kind],
        name=MARKS["cluster"],
        description=MARKS["description"],
        source=MARKS["source"],
        collectives=[lm.CollectiveTimes("broadcast", 2, 1, (1,), (1.0,), MARKS["times"])],
    )


def marked(plan):
    """The document of a plan, with marks in what planners say."""
    document = json.loads(json.dumps(plan.to_document()))
    document["method"] = MARKS["method"]
    document["options"] |= {MARKS["option"]: MARKS["value"]}
    document["notes"] += [MARKS["note"]]
    document["left_out"] += [[MARKS["left"], MARKS["why"]]]
    if plan.target == "megatron":
        recomputed = {"recompute": "selective", "recompute_modules": [MARKS["recomputed"]]}
        document["parallelism"] |= recomputed
    document["bound_source"] = MARKS["bound"]
    space = document["space"]
    offer = {"space": space, "what": MARKS["offer"], "seconds": 1.0, "kind": "", "peak": None}
    request = {"method": MARKS["method"], "options": {MARKS["option"]: MARKS["value"]}}
    document["offers"] += [offer | {"memory": None, "request": request}]
    return document


def renamed(document, texts):
    """The plan of a marked document with these texts, by field, for the marks."""
    other = {key: put(value, texts) for key, value in document.items() if key not in _APART}
    cluster = put(tomllib.loads(document["cluster"]), texts)
    other["cluster"] = tomli_w.dumps(cluster)
    if "recipe" in document:
        mesh = document["recipe"]["mesh"]
        patterns = {name: escaped_pattern(text) for name, text in texts.items()}
        other["recipe"] = put(document["recipe"], patterns) | {"mesh": put(mesh, texts)}
    if "program" in other:
        other["program"]["sha256"] = _digest(other["program"]["graph"])
    other["graph_sha256"] = _digest(other["graph"])
    other["cluster_sha256"] = lm.Cluster.from_toml(other["cluster"], bare=True).digest
    return plan_of_document(other, "plan.json")


_APART = ("cluster", "recipe")


def _digest(graph):
    return lm.OpGraph.from_document(graph).digest


def put(value, texts):
    """Plain data with these texts, by field, for the marks."""
    if isinstance(value, str):
        return _MARK.sub(lambda match: texts[match[1].lower()], value) if "Q" in value else value
    if isinstance(value, dict):
        return {put(k, texts): put(v, texts) for k, v in value.items()}
    if isinstance(value, list):
        return [put(v, texts) for v in value]
    return value
