"""Written for JAX, a model steps on eight devices with the numbers of the model that is whole.

Needs JAX: without it these tests are skipped.
"""

from __future__ import annotations

import math
import warnings

import pytest

jax = pytest.importorskip("jax")

import jax_models as models  # noqa: E402

import loadmaster as lm  # noqa: E402

#: The size of the inner axis that each model is planned with.
SIZES = {"transformer": 4, "mlp": 8, "convnet": 1}

#: What each mesh is to cut, so that its step says something.
CUT = {
    "transformer": ("'dp': 2, 'tp': 4", "layers.*.up': P('dp', 'tp')", "'x': P('dp', None)"),
    "mlp": ("'tp': 8", "parameters.0.0': P(None, 'tp')", "parameters.2.0': P('tp', None)"),
    "convnet": ("'dp': 8", "parameters.layers.0.kernel': P(None, None, None, 'dp')"),
}


def graph_of(name, folder):
    """The graph of a step, from StableHLO."""
    path = folder / f"{name}.mlir"
    lowered = models.step_of(name).lower(*models.given(name))
    path.write_text(lowered.as_text(debug_info=True))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return lm.read(path)


@pytest.fixture(scope="module")
def plans(tmp_path_factory):
    """A plan of each model. Devices are slow: cutting such small ops gains."""
    slow = lm.Cluster.preset("8xH100-NVLink").with_speed(1e-5)
    found = {}
    for name, tp in SIZES.items():
        graph = graph_of(name, tmp_path_factory.mktemp(name))
        found[name] = lm.place(graph, slow, target="jax", tp=tp)
    return found


@pytest.fixture(scope="module")
def ran(plans):
    """What became of a step of each, on eight devices of the host."""
    return models.on_devices(models.steps, {name: lm.writers.jax(p) for name, p in plans.items()})


def test_plans_cut_parameters_and_inputs(plans):
    for name, plan in plans.items():
        text = lm.writers.jax(plan)
        assert [words for words in CUT[name] if words not in text] == []
        assert plan.makespan < 0.3 * plan.single


def test_a_step_has_the_numbers_of_the_whole_model(ran, plans):
    assert ran.keys() == plans.keys()
    assert {name: row["off"] for name, row in ran.items() if row["off"] > 1} == {}


def test_a_device_holds_of_the_arguments_what_specs_say(ran, plans):
    for name, plan in plans.items():
        file, expected, held = models.functions(lm.writers.jax(plan)), 0, 0
        on = jax.sharding.AbstractMesh(tuple(file["AXES"].values()), tuple(file["AXES"]))
        for tree, argument in zip(models.given(name), models.ARGUMENTS, strict=True):
            leaves = jax.tree.leaves(tree), jax.tree.leaves(file["shardings"](on, tree, argument))
            for array, sharding in zip(*leaves, strict=True):
                expected += array.dtype.itemsize * math.prod(sharding.shard_shape(array.shape))
                held += array.nbytes
        assert ran[name]["arguments"] == expected < 0.3 * held


def test_a_jaxpr_is_refused_since_no_rule_knows_its_ops():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graph = lm.read(jax.make_jaxpr(models.step_of("mlp"))(*models.given("mlp")))
    with pytest.raises(lm.InputError, match=r"no rule says how most ops .* read StableHLO"):
        lm.place(graph, lm.Cluster.preset("2xV100-NVLink"), target="jax")
