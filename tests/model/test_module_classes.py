"""Classes of modules: few lines that say all, and units that names of classes can say."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

import loadmaster as lm
from loadmaster.model.module_classes import by_pattern, units_of_classes
from loadmaster.model.patterns import escaped_pattern, layerless

WORDS = st.sampled_from(["h", "0", "1", "12", "mlp", "fc1", "fc2", "a*b", "h*", "*"])
PATHS = st.lists(WORDS, min_size=1, max_size=4).map(".".join)


@given(st.dictionaries(PATHS, st.sampled_from(["Block", "Linear", "Norm"]), max_size=12))
def test_a_class_is_looked_up_by_a_path_or_its_pattern(classes):
    table = by_pattern(classes)
    assert len(table) <= len(classes)
    for path, name in classes.items():
        assert table.get(escaped_pattern(path), table.get(layerless(path))) == name


def graph_of(classes, parameters):
    """A graph with a parameter in each of some modules."""
    n = len(parameters)
    return lm.OpGraph(
        {
            "name": [f"p{i}" for i in range(n)],
            "module": parameters,
            "param_bytes": [4] * n,
            "kind": ["parameter"] * n,
        },
        {"src": [], "dst": []},
        meta={"classes": by_pattern(classes)},
    )


LAYERS = {"h.0": "Block", "h.1": "Block", "h.0.fc": "Linear", "h.1.fc": "Linear", "head": "Linear"}


def test_units_are_said_by_their_class_if_no_other_module_has_it():
    graph = graph_of(LAYERS, ["h.0.fc", "h.1.fc", "head"])
    assert units_of_classes(graph, ["h.*"]) == {"h.*": ("Block",)}
    assert units_of_classes(graph, ["h.*", "head"]) == {"h.*": ("Block",)}
    assert units_of_classes(graph, ["h.*.fc", "head"]) == {
        "h.*.fc": ("Linear",),
        "head": ("Linear",),
    }
    more = graph_of(LAYERS | {"head": "Block"}, ["h.0.fc", "h.1.fc", "head"])
    assert units_of_classes(more, ["h.*"]) == {}


def test_layers_of_two_classes_are_said_by_both():
    graph = graph_of(LAYERS | {"h.1": "Last"}, ["h.0.fc", "h.1.fc", "head"])
    assert units_of_classes(graph, ["h.*"]) == {"h.*": ("Block", "Last")}


def test_classes_that_no_name_says_say_no_unit():
    hostile = graph_of({"h.0": "A,B: x", "h.1": "A,B: x"}, ["h.0", "h.1"])
    assert units_of_classes(hostile, ["h.*"]) == {}
    for table in (None, [], {"h.*": 3}, {"h.*": ["Block"]}):
        graph = graph_of({}, ["h.0", "h.1"]).with_columns({}, meta={"classes": table})
        assert units_of_classes(graph, ["h.*"]) == {}
