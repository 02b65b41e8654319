"""Where PyTorch can cut a model, against places counted by hand."""

from __future__ import annotations

from stacks import stack

import loadmaster as lm
from loadmaster.rules.module_cuts import ModuleCuts


def test_a_stack_is_cut_before_each_module_but_the_first():
    # embedding, then a, b and add of each of two layers, then logits.
    found = ModuleCuts(stack(2))
    assert [found.graph.names[op] for op in found.order] == [
        "embedding", "a0", "b0", "add0", "a1", "b1", "add1", "logits",
    ]  # fmt: skip
    assert {place: found.points[place] for place in found.open.tolist()} == {
        1: ("layers.0", "BEGINNING"), 2: ("layers.0.b", "BEGINNING"), 3: ("layers.0.b", "END"),
        4: ("layers.1", "BEGINNING"), 5: ("layers.1.b", "BEGINNING"), 6: ("layers.1.b", "END"),
        7: ("head", "BEGINNING"),
    }  # fmt: skip


def test_what_reads_one_parameter_is_not_parted():
    found = ModuleCuts(stack(2, tied=True))
    assert found.open.tolist() == []
    (span,) = found.tied
    assert (found.graph.names[span.op], span.places) == ("emb.weight", (0, 7))


def test_modules_are_named_below_the_root():
    found = ModuleCuts(stack(2, prefix="m."), "m")
    assert found.points[4] == ("layers.1", "BEGINNING")
    assert ModuleCuts(stack(2), "m").open.tolist() == []


def changed(edges=(), **columns):
    """A stack of two layers with other columns, and more edges by names."""
    graph = stack(2)
    rows = graph.to_document()
    for column, values in columns.items():
        for op, value in values.items():
            rows["ops"].setdefault(column, [""] * graph.n_ops)[graph.index(op)] = value
    for src, dst in edges:
        rows["edges"]["src"].append(graph.index(src))
        rows["edges"]["dst"].append(graph.index(dst))
        rows["edges"]["bytes"].append(100)
        for column in set(rows["edges"]) - {"src", "dst", "bytes"}:
            rows["edges"].pop(column)
    return lm.OpGraph.from_document(rows)


def test_a_module_that_runs_twice_has_no_split_point():
    twice = ModuleCuts(changed(module={"a1": "layers.0.a", "b1": "layers.0.b"}))
    assert not {"layers.0.a", "layers.0.b"} & {point.module for point in twice.points.values()}
    assert not {"layers.0.a", "layers.0.b"} & set(twice.spans)


def test_the_first_stage_reads_a_parameter():
    found = ModuleCuts(changed(module={"embedding": "front.words", "a0": "layers.0"}))
    assert found.open.min() == 1
    rows = stack(2).to_document()
    kinds = rows["ops"]["kind"]
    kinds[kinds.index("parameter")] = "constant"
    without = ModuleCuts(lm.OpGraph.from_document(rows))
    assert without.graph.names[without.order[without.open.min() - 1]] == "a0"


def test_behind_the_last_module_there_is_no_cut():
    found = ModuleCuts(changed(module={"logits": ""}))
    assert found.open.max() == 6


def test_gradients_end_where_no_other_parameter_is_behind():
    found = ModuleCuts(stack(2, train=True))
    assert [found.graph.names[found.order[place]] for place in found.roots] == ["embedding"]


def test_what_is_recomputed_together_is_not_cut():
    # The backward pass makes a0 and b0 again, and reads them from there.
    rows = stack(2, train=True).to_document()
    names = rows["ops"]["name"]
    for again, of in (("a0 again", "a0"), ("b0 again", "b0")):
        for column, values in rows["ops"].items():
            for one in values.values() if isinstance(values, dict) else [values]:
                one.append(again if column == "name" else one[names.index(of)])
        rows["ops"]["phase"][-1] = "b"
    for src, dst in (("embedding", "a0 again"), ("a0 again", "b0 again"), ("b0 again", "grad_b0")):
        rows["edges"]["src"].append(names.index(src))
        rows["edges"]["dst"].append(names.index(dst))
        rows["edges"]["bytes"].append(100)
    for column in set(rows["edges"]) - {"src", "dst", "bytes"}:
        rows["edges"].pop(column)
    found = ModuleCuts(lm.OpGraph.from_document(rows))
    assert 2 in ModuleCuts(stack(2, train=True)).open
    assert 2 not in found.open
    assert found.points[2] == ("layers.0.b", "BEGINNING")
