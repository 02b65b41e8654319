"""Expert parallelism for Megatron-LM: where experts are, what tokens move, what its code reads."""

from __future__ import annotations

import importlib
from functools import cache

import numpy as np
import pytest
from written import flags

import loadmaster as lm
from loadmaster.base.errors import InfeasibleError
from loadmaster.model.graph import PARAMETER

torch = pytest.importorskip("torch", reason="needs torch")

from routed_models import EXPERTS, HIDDEN, TOKENS, TOP, WIDTH, routed_step  # noqa: E402

CLUSTER = lm.Cluster.preset("8xH100-NVLink")
LAYERS, BATCH, FLOAT = 2, 16, 4


@cache
def step() -> lm.OpGraph:
    return routed_step(LAYERS, BATCH)


@cache
def planned(**options: object) -> lm.Plan:
    return lm.place(step(), CLUSTER, target="megatron", **options)


def said(plan: lm.Plan) -> dict[str, list[str]]:
    """The flags of a plan, by name, with what follows them."""
    found: dict[str, list[str]] = {}
    for word in flags(lm.writers.megatron(plan)):
        if word.startswith("--"):
            found[name := word[2:]] = []
        else:
            found[name].append(word)
    return found


def weights_on(plan: lm.Plan, device: int) -> dict[str, int]:
    """Bytes of experts' weights, and of all others, that a device holds."""
    graph, source = plan.program.graph, plan.graph
    here = (plan.running_devices == device) & (graph.stands_for == PARAMETER)
    found = {"experts": 0, "others": 0}
    for at in np.flatnonzero(here).tolist():
        name = source.names[plan.program.serves[at]]
        found["experts" if name.endswith((".up", ".down")) else "others"] += int(
            graph.param_bytes[at]
        )
    return found


@pytest.mark.parametrize("ep", [1, 2, 8])
def test_a_device_has_its_share_of_the_experts_and_all_else(ep):
    plan = planned(tp=1, pp=1, dp=8, expert_parallel=ep)
    experts = LAYERS * EXPERTS * 2 * WIDTH * HIDDEN * FLOAT
    whole = weights_on(planned(tp=1, pp=1, dp=8, expert_parallel=1), 0)
    assert whole["experts"] == experts
    for device in range(8):
        here = weights_on(plan, device)
        assert here["experts"] == experts // ep
        assert here["others"] == whole["others"]


@pytest.mark.parametrize(("ep", "m"), [(8, 1), (4, 2)])
def test_tokens_go_to_experts_and_back_once_a_pass(ep, m):
    plan = planned(tp=1, pp=1, dp=8, expert_parallel=ep, micro_batches=m)
    graph = plan.program.graph
    sent = [at for at, label in enumerate(graph.collectives) if label.startswith("all_to_all")]
    each = BATCH // 8 // m
    chosen = each * TOKENS * TOP
    # To experts and back, in the forward pass and in the backward pass, of every micro-batch.
    assert len(sent) == 4 * LAYERS * 8 * m
    assert {int(graph.output_bytes[at]) for at in sent} == {chosen * WIDTH * FLOAT}
    groups: dict[str, set[int]] = {}
    for at in sent:
        groups.setdefault(graph.collectives[at], set()).add(int(plan.running_devices[at]))
    assert {tuple(sorted(group)) for group in groups.values()} == {
        tuple(range(first, first + ep)) for first in range(0, 8, ep)
    }


def test_gradients_of_experts_are_summed_among_those_that_have_the_same():
    plan = planned(tp=1, pp=1, dp=8, expert_parallel=4, distributed_optimizer=False)
    words = plan.recipe.words(step())
    assert plan.recipe.mesh.names == ("dp", "ep")
    rows = dict(zip(step().names, zip(words["dp"], words["ep"], strict=True), strict=True))
    assert rows["layers.1.moe.up"] == ("Replicate", "Shard(0)")
    assert rows["layers.1.moe.gate.weight"] == ("Replicate", "Replicate")
    assert rows["layers.1.q.weight"] == ("Replicate", "Replicate")


@pytest.mark.parametrize(
    "options",
    [
        {"tp": 1, "pp": 1, "dp": 8, "expert_parallel": 8},
        {"tp": 1, "pp": 2, "dp": 4, "expert_parallel": 4, "micro_batches": 2, "virtual": 1},
        {"tp": 2, "pp": 1, "dp": 4, "expert_parallel": 2},
        {"tp": 2, "pp": 2, "dp": 2, "expert_parallel": 2, "micro_batches": 4, "virtual": 1},
        {"tp": 1, "pp": 1, "dp": 8, "expert_parallel": 8, "recompute": "core_attn,moe_act"},
        {"tp": 1, "pp": 1, "dp": 8, "expert_parallel": 2, "recompute": True},
        {"tp": 4, "pp": 1, "dp": 2, "expert_parallel": 1},
    ],
)
def test_what_is_planned_is_what_megatron_reads(options):
    pytest.importorskip("megatron.core", reason="needs megatron-core")
    from loadmaster.systems.megatron.check import configuration

    ep = options["expert_parallel"]
    flag = said(planned(**options))
    assert flag["micro-batch-size"] == [
        str(BATCH // options["dp"] // options.get("micro_batches", 1))
    ]
    assert ("sequence-parallel" in flag) == (options["tp"] > 1)
    if ep == 1:
        assert "expert-model-parallel-size" not in flag
        return
    assert flag["num-experts"] == [str(EXPERTS)]
    made = configuration(flags(lm.writers.megatron(planned(**options))))
    assert made.expert_model_parallel_size == ep
    assert made.expert_tensor_parallel_size == options["tp"]
    assert made.moe_token_dispatcher_type == "alltoall"
    if options.get("recompute") == "core_attn,moe_act":
        assert made.recompute_modules == ["core_attn", "moe_act"]


def test_ranks_of_experts_are_neighbours_as_megatron_has_them():
    """Megatron-LM's own groups of ranks: those of experts go round fastest."""
    state = pytest.importorskip("megatron.core.parallel_state", reason="needs megatron-core")
    plan = planned(tp=1, pp=2, dp=4, expert_parallel=2, micro_batches=2, virtual=1)
    groups = state.RankGenerator(tp=1, ep=2, dp=2, pp=2, cp=1, order="tp-cp-ep-dp-pp")
    mesh = plan.recipe.mesh
    assert mesh.names == ("pp", "dp", "ep")
    on = mesh.on(CLUSTER)
    assert groups.get_ranks("ep") == on.reshape(-1, 2).tolist()


def test_nothing_that_is_asked_for_is_much_better_than_what_is_planned():
    """Grids are judged in the order of their estimates, and the best few of these alone."""
    free = planned()
    for ep in (1, 2, 4, 8):
        assert free.makespan <= 1.005 * planned(tp=1, pp=1, dp=8, expert_parallel=ep).makespan


def test_sizes_that_experts_do_not_go_into_are_refused():
    with pytest.raises(InfeasibleError, match="expert_parallel divides dp and the 8 experts"):
        planned(dp=8, expert_parallel=3)
    with pytest.raises(lm.InputError, match="the model has no routed experts"):
        lm.place(lm.read("example:gpt3-330m"), CLUSTER, target="megatron", expert_parallel=2)


def test_what_is_not_considered_is_said_once():
    notes = [note for note in planned().notes if "not considered" in note]
    assert notes == [
        "not considered: context parallelism (--context-parallel-size), experts in other parts than"
        " tp (--expert-tensor-parallel-size)"
    ]


def test_each_way_of_recomputing_is_found():
    modules = importlib.import_module("loadmaster.strategies.grids.modules")
    from loadmaster.dimensions.dimensions import Dimensions
    from loadmaster.rules.layer_list import LayerList
    from loadmaster.strategies.sharding.structure import Structure

    lines = modules.lines_of_modules(
        Structure.of(Dimensions.of(step())), LayerList.of(step(), "", None)
    )
    assert set(lines) == {"core_attn", "layernorm", "moe_act", "moe"}
    assert lines["moe_act"] == "layers.* | layers.*.moe aten.silu.default"
    assert "layers.*.moe.gate aten.mm.default" in lines["moe"]
    assert ".moe" not in lines["core_attn"]
