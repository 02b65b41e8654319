"""Written for JAX, a model steps on eight devices with the numbers of the model that is whole.

Needs JAX: without it these tests are skipped.
"""

from __future__ import annotations

import math
import warnings
from pathlib import Path

import pytest

jax = pytest.importorskip("jax")

import jax_models as models  # noqa: E402
import numpy as np  # noqa: E402

import loadmaster as lm  # noqa: E402
from loadmaster.dimensions.form import PARTIAL  # noqa: E402
from loadmaster.strategies.sharding.structure import Structure  # noqa: E402
from loadmaster.systems.jax.constraints import operands  # noqa: E402

#: The size of the inner axis that each model is planned with.
SIZES = {"transformer": 4, "mlp": 8, "convnet": 1, "scanned": 2, "mapped": 2}

#: The models whose collectives are counted on four devices.
ON_FOUR = ("transformer", "scanned", "experts", "convnet")

#: What each mesh is to cut, so that its step says something.
CUT = {
    "transformer": ("'dp': 2, 'tp': 4", "layers.*.up': P('dp', 'tp')", "'x': P('dp', None)"),
    "mlp": ("'tp': 8", "parameters.0.0': P(None, 'tp')", "parameters.2.0': P('tp', None)"),
    "convnet": ("'dp': 8", "parameters.layers.0.kernel': P(None, None, None, 'dp')"),
    "scanned": ("'dp': 4, 'tp': 2", "'x': P('dp', None)"),
    "mapped": ("'dp': 4, 'tp': 2", "'x': P('dp', None)"),
}


def graph_of(name, folder):
    """The graph of a step, from StableHLO."""
    path = folder / f"{name}.mlir"
    path.write_text(models.on_devices(models.text_of, name))
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
    """What became of a step of each, on eight devices of the host; of the one that is mapped by
    hand, on devices in another order than its own mesh has.
    """
    files = {name: lm.writers.jax(plan) for name, plan in plans.items()}
    order = "DEVICES = [0, 1, 2, 3, 4, 5, 6, 7]"
    assert order in files["mapped"]
    files["mapped"] = files["mapped"].replace(order, "DEVICES = [0, 3, 2, 1, 6, 7, 5, 4]")
    return models.on_devices(models.steps, files)


@pytest.fixture(scope="module")
def on_four(tmp_path_factory):
    """Bytes that plans say and that XLA sends on four devices, by model and the size of tp."""
    four = lm.Cluster.preset("8xH100-NVLink").subset(list(range(4))).with_speed(1e-5)
    said, files = {}, {}
    for name in ON_FOUR:
        graph = graph_of(name, tmp_path_factory.mktemp(name))
        for tp in (1, 4):
            plan = lm.place(graph, four, target="jax", tp=tp)
            said[name, tp] = plan.schedule.collectives.bytes_sent
            files[f"{name}-{tp}"] = lm.writers.jax(plan)
    ran = models.on_devices(models.sent, files)
    return {key: (said[key], ran["{}-{}".format(*key)]) for key in said}


def test_xla_sends_what_plans_say_and_in_their_order(on_four):
    """XLA sums on hosts with all-reduces alone, a plan by reduce-scatters: half as much."""
    for name in ON_FOUR:
        for tp in (1, 4):
            said, sent = on_four[name, tp]
            assert said / 1.5 <= sent <= 1.51 * said, (name, tp)
        (data, by_data), (tensors, by_tensors) = on_four[name, 1], on_four[name, 4]
        assert (data < tensors) == (by_data < by_tensors), name


def test_what_a_model_constrains_lies_so_if_it_is_asked_for(tmp_path):
    """Behind reshapes and in scans, forward and backward, on four devices."""
    four = lm.Cluster.preset("8xH100-NVLink").subset(list(range(4))).with_speed(1e-5)
    graph = graph_of("constrained", tmp_path)
    plan = lm.place(graph, four, target="jax", model_constraints="keep")
    off, rows = models.on_devices(models.kept, lm.writers.jax(plan))
    assert off < 1
    assert len(rows) == 10
    assert [row for row in rows if row[0] != row[1]] == []


def test_plans_cut_parameters_and_inputs(plans):
    for name, plan in plans.items():
        text = lm.writers.jax(plan)
        assert [words for words in CUT[name] if words not in text] == []
        assert plan.makespan < 0.3 * plan.single


def test_a_product_that_sums_has_all_its_operands_as_planned_or_none(plans):
    """Where one is moved, XLA would move those that are not said, too."""
    n_sums = 0
    for plan in plans.values():
        layout, d = plan.layout, plan.layout.dimensions
        structure = Structure.of(d, layout.batch_norm)
        said = set(operands(structure, layout.labels))
        for node in {node for node, _ in said}:
            op = int(structure.op[node])
            arguments = np.arange(d.first[op], d.first[op + 1])
            made = layout.made[:, np.searchsorted(layout.maker, op)]
            for axis in np.flatnonzero(made == PARTIAL).tolist():
                have, want = (
                    layout.made[axis, layout.tensor[arguments]],
                    layout.wanted[axis, arguments],
                )
                if (is_cut := (want >= 0)).all() and ((have >= 0) & (have != want)).any():
                    n_sums += 1
                    assert {(node, at) for at in np.flatnonzero(is_cut).tolist()} <= said
    assert n_sums > 0


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


def test_advice_plans_stablehlo_for_jax_as_place_does(tmp_path):
    graph, cluster = graph_of("mlp", tmp_path), lm.Cluster.preset("2xV100-NVLink")
    advice = lm.advise(graph, cluster)
    [choice] = [one for one in advice.choices if one.name == "jax"]
    plan = lm.place(graph, cluster, target="jax")
    assert choice.plan.makespan == plan.makespan
    gain = f"{plan.single / plan.makespan:.2f} x"
    assert next(line for line in str(advice).splitlines() if " jax " in line).count(gain) == 1
    assert gain in plan.summary()


def test_gradients_are_summed_whether_or_not_state_is_donated(tmp_path):
    sent = []
    for donated in ((0, 1), ()):
        step = jax.jit(models.step_of("mlp").__wrapped__, donate_argnums=donated)
        path = tmp_path / "step.mlir"
        path.write_text(step.lower(*models.given("mlp")).as_text(debug_info=True))
        graph = lm.read(path)
        assert bool((graph.alias_of >= 0)[~graph.view].any()) == bool(donated)
        plan = lm.place(graph, lm.Cluster.preset("4xH100-NVLink"), target="jax", tp=1)
        sent.append(plan.schedule.collectives.bytes_sent)
    parameters = models.given("mlp")[0]
    held = sum(array.nbytes for array in jax.tree.leaves(parameters))
    assert sent[0] == sent[1] >= 2 * held  # on two devices or more


def test_a_plan_that_is_slower_than_one_device_says_it(tmp_path):
    plan = lm.place(graph_of("mlp", tmp_path), lm.Cluster.preset("2xV100-PCIe"), target="jax")
    assert plan.makespan > plan.single
    assert "one device would take" in plan.summary()


def test_a_mesh_on_too_few_devices_says_it(plans):
    file = models.functions(lm.writers.jax(plans["mlp"]))
    with pytest.raises(ValueError, match="the mesh needs 8 devices, and there are 3: "):
        file["mesh"](jax.devices() * 3)


def test_forms_that_the_docs_say_are_refused_are(tmp_path):
    """What ``docs/jax.md`` says of jaxprs, HLO and StableHLO."""
    step, given = models.step_of("mlp"), models.given("mlp")
    cluster = lm.Cluster.preset("2xV100-NVLink")
    path = tmp_path / "step.hlo"
    path.write_text(step.lower(*given).compile().as_text())
    page = Path(__file__).parents[2].joinpath("docs", "jax.md").read_text()
    assert "`--target jax` refuses both" in page
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for form in (path, jax.make_jaxpr(step)(*given)):
            with pytest.raises(lm.InputError, match="no rule says how most ops"):
                lm.place(lm.read(form), cluster, target="jax")
        assert "jax" in lm.advise(path, cluster).refused
