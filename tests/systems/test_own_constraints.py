"""Sharding constraints of programs, kept by plans for JAX: drawn programs of products, each behind
a constraint, and what becomes of those that no mesh keeps.
"""

from __future__ import annotations

import random

import numpy as np
import pytest

import loadmaster as lm
from loadmaster.dimensions.form import ANY, PARTIAL, REPLICATE
from loadmaster.systems.shared.own_constraints import OwnConstraints

EIGHT = lm.Cluster.preset("8xH100-NVLink").with_speed(1e-4)
ROWS, WIDTH = 32, 64
MESH = '<["data"=2, "model"=4]>'

#: How the two axes of an array may be constrained: sizes of "data" and "model" divide both.
CUTS = (
    '[{"data"}, {}]', '[{"data"}, {"model"}]', '[{}, {"model"}]', '[{}, {}]', '[{?}, {"model"}]',
    '[{"data", "model"}, {}]', '[{"model"}, {"data"}]', '[{"data"}, {?}], replicated={"model"}',
    '[{"data"}, {?}]',
)  # fmt: skip


def program(cuts, mesh=MESH, constraint="sdy.sharding_constraint %d{i} <@mesh, {cut}>"):
    """A chain of products and tanhs, with a constraint behind each product."""
    array = f"tensor<{ROWS}x{WIDTH}xf32>"
    matrix = f"tensor<{WIDTH}x{WIDTH}xf32>"
    lines = []
    for i, cut in enumerate(cuts):
        lines += [
            f"%d{i} = stablehlo.dot_general %t{i}, %w{i}, contracting_dims = [1] x [0] : "
            f"({array}, {matrix}) -> {array}",
            f"%c{i} = {constraint.format(i=i, cut=cut)} : {array}",
            f"%t{i + 1} = stablehlo.tanh %c{i} : {array}",
        ]
    weights = ", ".join(f"%w{i}: {matrix}" for i in range(len(cuts)))
    body = "\n    ".join(lines)
    return f"""module @chain {{
  sdy.mesh @mesh = {mesh}
  func.func public @main({weights}, %t0: {array}) -> {array} {{
    {body}
    return %t{len(cuts)} : {array}
  }}
}}
"""


def read(tmp_path, text):
    path = tmp_path / "chain.mlir"
    path.write_text(text)
    return lm.read(path)


def specs(cut, axis):
    """The specs that a constraint allows on an axis: axes of the array that it cuts."""
    _, *rest = cut.replace("]", "").split("{")
    axes = [one.partition("}")[0] for one in rest]
    replicated = axes.pop() if "replicated" in cut else ""
    cuts = [dim for dim, names in enumerate(axes) if f'"{axis}"' in names]
    opened = [dim for dim, names in enumerate(axes) if "?" in names and axis not in replicated]
    return set(cuts) or {REPLICATE, *opened}


@pytest.mark.parametrize("seed", range(6))
def test_arrays_lie_as_the_program_says(seed, tmp_path):
    draw = random.Random(seed)
    cuts = [draw.choice(CUTS) for _ in range(draw.randint(1, 5))]
    graph = read(tmp_path, program(cuts))
    plan = lm.place(graph, EIGHT, target="jax", model_constraints="keep")
    layout, d = plan.layout, plan.layout.dimensions
    assert dict(zip(plan.recipe.mesh.names, plan.recipe.mesh.shape, strict=True)) == {
        "dp": 2,
        "tp": 4,
    }
    products = [op for op, kind in enumerate(graph.kinds) if kind.endswith("dot_general")]
    for op, cut in zip(products, cuts, strict=True):
        argument = int(np.flatnonzero((d.root == op) & ~graph.view[d.reader])[0])
        for row, axis in enumerate(("data", "model")):
            wanted = specs(cut, axis)
            made = int(layout.made[row, layout.tensor[argument]])
            read_so = int(layout.wanted[row, argument])
            assert (
                made in wanted
                or read_so in wanted | {ANY}
                or (made, read_so) == (PARTIAL, REPLICATE)
            ), (cut, axis, made, read_so)
    assert "AXES = {'data': 2, 'model': 4}" in lm.writers.jax(plan)
    assert f"{len(cuts)} sharding constraint" in plan.summary()


def test_constraints_are_dropped_if_nobody_asks_for_them(tmp_path):
    graph = read(tmp_path, program(CUTS))
    text = lm.writers.jax(plan := lm.place(graph, EIGHT, target="jax", tp=8))
    assert "9 sharding constraints of the program are dropped" in plan.summary()
    assert "constrained(on, step)" in text
    assert "a constraint that the program has of itself, which is dropped" in text


@pytest.mark.parametrize(
    ("mesh", "options", "words"),
    [
        ('<["data"=2, "model"=4]>', {"tp": 2}, "a mesh of 'data' 2, 'model' 4, and no mesh of"),
        ('<["data"=2, "model"=4]>', {"axis_names": "a,b"}, "say axis_names='data,model'"),
        ('<["data"=8, "model"=4]>', {}, "plan for 32 devices of one kind"),
        ('<["data"=2, "x"=2, "model"=2]>', {}, "plans have two axes"),
    ],
)
def test_another_mesh_is_refused_with_a_way_out(mesh, options, words, tmp_path):
    graph = read(tmp_path, program(CUTS[:1], mesh))
    with pytest.raises(lm.InputError, match=words) as refused:
        lm.place(graph, EIGHT, target="jax", model_constraints="keep", **options)
    assert "leave model_constraints out" in str(refused.value)


@pytest.mark.parametrize(
    ("constraint", "words"),
    [
        ('stablehlo.custom_call @Sharding(%d{i}) {{mhlo.sharding = "{{devices=[8,1]<=[8]}}"}}',
         "does not say which axes of a mesh"),
        ("stablehlo.negate %d{i}", "has no sharding constraints to keep"),
    ],
)  # fmt: skip
def test_what_cannot_be_kept_is_refused(constraint, words, tmp_path):
    graph = read(tmp_path, program(CUTS[:1], constraint=constraint))
    with pytest.raises(lm.InputError, match=words):
        lm.place(graph, EIGHT, target="jax", model_constraints="keep")


def test_constraints_of_two_meshes_are_refused(tmp_path):
    text = program(CUTS[:2]).replace("<@mesh", "<@other", 1)
    text = text.replace("  func", '  sdy.mesh @other = <["rows"=8]>\n  func')
    with pytest.raises(lm.InputError, match="of several meshes, 'rows' 8 and 'data' 2, 'model' 4"):
        OwnConstraints.of(read(tmp_path, text))


def test_one_axis_is_whichever_axis_of_the_plan_is_better(tmp_path):
    graph = read(tmp_path, program(['[{}, {"x"}]'] * 2, '<["x"=8]>'))
    plan = lm.place(graph, EIGHT, target="jax", model_constraints="keep")
    assert "AXES = {'x': 8}" in lm.writers.jax(plan)
