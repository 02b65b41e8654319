"""The target megatron: grids of tensor parallelism inside of replicas inside of stages."""

from __future__ import annotations

import re
from dataclasses import FrozenInstanceError, fields, replace
from itertools import product

import numpy as np
import pytest
from written import flags, settings

import loadmaster as lm
from loadmaster.base.errors import InfeasibleError, InputError
from loadmaster.model.graph import PARAMETER
from loadmaster.model.micro import Micro
from loadmaster.model.recipe import DeviceMesh
from loadmaster.strategies.grids.grids import Asked, Grid, Grids, JudgedGrids, Known
from loadmaster.strategies.pipelines.stage_costs import StageCosts
from loadmaster.systems.shared.layered import listed_layers
from loadmaster.systems.shared.sharded_grids import ShardedGrids

CLUSTER = "8xV100-NVLink"

nightly = pytest.mark.nightly


@pytest.fixture(scope="module")
def graph():
    return lm.read("example:gpt3-330m")


@pytest.fixture(scope="module")
def free(graph):
    return lm.place(graph, lm.Cluster.preset(CLUSTER), target="megatron")


def given(graph, **options):
    return lm.place(graph, lm.Cluster.preset(CLUSTER), target="megatron", **options)


def said(plan):
    """The flags of a plan, by name; True: the flag has no value."""
    words = flags(lm.writers.megatron(plan))
    found = {}
    for word, after in zip(words, [*words[1:], "--"], strict=True):
        if word.startswith("--"):
            found[word[2:]] = True if after.startswith("--") else after
    return found


@pytest.fixture(scope="module")
def grid(graph):
    return given(graph, tp=2, pp=2, dp=2, micro_batches=2, virtual=1)


def test_a_grid_has_its_axes_and_its_ranks_in_order(grid):
    recipe = grid.recipe
    assert dict(zip(recipe.mesh.names, recipe.mesh.shape, strict=True)) == {
        "pp": 2, "dp": 2, "tp": 2
    }  # fmt: skip
    assert (recipe.micro.n, recipe.micro.schedule, recipe.micro.virtual) == (2, "1f1b", 1)
    flag = said(grid)
    assert flag["tensor-model-parallel-size"] == flag["pipeline-model-parallel-size"] == "2"
    assert (flag["micro-batch-size"], flag["global-batch-size"]) == ("2", "8")
    assert flag["num-layers"] == "24"
    # Layers of one stage are on its devices, and on no others.
    stage = recipe.stage_of(grid.graph)[grid.program.serves]
    slices = recipe.mesh.on(grid.cluster).reshape(2, 4)
    assert (grid.running_devices == slices[stage, np.maximum(grid.program.rank, 0)]).all()


def test_weights_of_layers_are_cut_in_stages_too(grid):
    words = grid.recipe.words(grid.graph)["tp"]
    rows = zip(words, grid.graph.names, strict=True)
    specs = {name: word for word, name in rows}
    assert specs["h.3.fc.weight"] == "Shard(0)"
    assert specs["h.20.proj.weight"] == "Shard(1)"
    batch = grid.recipe.words(grid.graph)["dp"]
    assert {w for w, k in zip(batch, grid.graph.kinds, strict=True) if "addmm" in k} <= {
        "row", "batch"
    }  # fmt: skip


def test_updates_wait_for_all_sums_of_their_rank(grid):
    made, schedule, device = grid.program.graph, grid.schedule, grid.running_devices
    words = ("all_reduce/gradients", "reduce_scatter/gradients")
    sums = np.array([label.startswith(words) for label in made.collectives])
    reads = sums[made.src] & made.updates[made.dst]
    updates = np.unique(made.dst[reads])
    assert len(updates) > 8 * 24
    for d in range(8):
        last = np.flatnonzero(sums & (device == d)).max()
        assert schedule.start[updates[device[updates] == d]].min() >= schedule.finish[last] - 1e-9


@pytest.mark.parametrize(
    "options",
    [
        {"tp": 1, "pp": 1, "dp": 8},
        {"tp": 2, "pp": 1, "dp": 4},
        pytest.param({"tp": 8, "pp": 1}, marks=nightly),
        {"tp": 1, "pp": 4, "dp": 2, "micro_batches": 4, "virtual": 2},
        pytest.param({"tp": 2, "pp": 4, "dp": 1, "micro_batches": 8, "virtual": 1}, marks=nightly),
        pytest.param({"tp": 1, "pp": 8, "micro_batches": 8, "virtual": 1}, marks=nightly),
    ],
)
def test_nothing_that_is_asked_for_is_better_than_what_is_planned(graph, free, options):
    asked = given(graph, **options)
    assert free.makespan <= 1.001 * asked.makespan
    assert asked.lower_bound <= asked.makespan
    flag = said(asked)
    for name, key in (("tp", "tensor"), ("pp", "pipeline")):
        assert flag[f"{key}-model-parallel-size"] == str(options[name])
    if options.get("virtual") == 2:
        runs = flag.get("pipeline-model-parallel-layout", "|".join(["t*3"] * 8))
        assert runs.count("|") == 7
        assert sum(map(int, re.findall(r"\*(\d+)", runs))) == 24


def test_estimates_are_near_the_judge(graph):
    """So that the best few of them are worth judging."""
    for options in (
        {"tp": 2, "pp": 2, "dp": 2, "micro_batches": 2, "virtual": 1},
        {"tp": 1, "pp": 4, "dp": 2, "micro_batches": 4, "virtual": 1},
        {"tp": 4, "pp": 2, "micro_batches": 8, "virtual": 1},
    ):
        plan = given(graph, **options)
        assert plan.assignment.estimate == pytest.approx(plan.makespan, rel=0.1)


def test_recomputed_layers_hold_less_and_take_longer(graph, grid):
    again = given(graph, tp=2, pp=2, dp=2, micro_batches=2, virtual=1, recompute=True)
    assert again.makespan > grid.makespan
    assert again.memory.peak.max() < grid.memory.peak.max()
    flag = said(again)
    assert flag["recompute-granularity"] == "full"
    assert (flag["recompute-method"], flag["recompute-num-layers"]) == ("uniform", "1")


def test_a_distributed_optimizer_holds_less(graph):
    sizes = {"tp": 1, "pp": 2, "dp": 4, "micro_batches": 2, "virtual": 1}
    flat, whole = (
        given(graph, **sizes, distributed_optimizer=is_flat) for is_flat in (True, False)
    )
    assert (flat.memory.peak < whole.memory.peak).all()
    assert "use-distributed-optimizer" in said(flat)
    assert "use-distributed-optimizer" not in said(whole)


def test_what_does_not_fit_is_recomputed_or_cut_further(graph, free):
    least = int(0.35 * free.memory.peak.max())
    small = lm.Cluster.preset(CLUSTER).with_memory(least)
    plan = lm.place(graph, small, target="megatron")
    assert plan.fits
    assert plan.makespan > free.makespan
    with pytest.raises(InfeasibleError):
        lm.place(graph, small.with_memory("100MiB"), target="megatron")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"tp": 3}, "tp is 3, and the 16 heads of a layer.* tp can be one of 1, 2, 4, 8$"),
        ({"dp": 16}, "dp 16 takes 16 devices, and there are 8 to use"),
        ({"tp": 4, "pp": 3}, "tp 4 x pp 3 takes 12 devices, and there are 8 to use"),
        ({"dp": 3}, "no grid of 8 devices.* dp 3: dp divides the batch of 8"),
        ({"pp": 2, "micro_batches": 3}, "so many micro-batches"),
        ({"tp": 0}, "tp"),
    ],
)
def test_sizes_that_do_not_go_are_refused(graph, options, says):
    with pytest.raises((InputError, InfeasibleError), match=says):
        given(graph, **options)


def test_grids_come_in_the_order_of_what_they_are_taken_to_take(graph):
    large = lm.Cluster.preset(CLUSTER).with_memory("80GiB")
    problem = lm.place(graph, large, "single").problem
    grids = Grids(problem, listed_layers("megatron", problem, "", None), 8)
    found = []
    for cut in grids.best_first(Asked(), JudgedGrids()):
        found.append(cut.seconds)
        if len(found) == 6:
            break
    assert found == sorted(found)
    assert grids.least(Grid(2, 2, 2, m=2)) > grids.least(Grid(2, 4))


def test_what_grids_share_is_kept_by_all_that_it_depends_on(graph):
    """Costs and labels are the same whichever other grids were asked before."""
    problem = lm.place(graph, CLUSTER, "single", on_oom="best_effort").problem
    listed, shared = listed_layers("megatron", problem, "", None), Known()

    def sorts(known):
        for sequence, flat in product((True, False), repeat=2):
            yield Grids(problem, listed, 8, sequence=sequence, flat=flat, known=known)
        for word in ("kept", "again"):
            yield ShardedGrids(problem, listed, 8, word=word, known=known)

    grid = Grid(2, 2, 2, m=2)
    for grids in (*sorts(shared), *reversed([*sorts(shared)])):
        alone = replace(grids, known=Known())
        for one in fields(StageCosts):
            now, own = (getattr(some.costs(grid), one.name) for some in (grids, alone))
            assert np.array_equal(now, own), (one.name, grids.state, grids.sequence)
        labels = (some.labels(2, 2).labels.columns for some in (grids, alone))
        assert np.array_equal(*labels)
    assert len(shared.costs) == 6
    assert len(shared.labels) == 3
    with pytest.raises(FrozenInstanceError):
        alone.flat = False


# ---- other plans ------------------------------------------------------------------------------


def test_a_recipe_of_the_same_is_written_the_same(graph, grid):
    again = lm.place(graph, lm.Cluster.preset(CLUSTER), recipe=grid.recipe)
    assert said(again) == said(grid)
    turned = replace(grid.recipe, mesh=DeviceMesh.of({"pp": 2, "dp": 2, "tp": 2}, [
        f"gpu{i}" for i in (7, 6, 5, 4, 3, 2, 1, 0)
    ]))  # fmt: skip
    text = lm.writers.megatron(lm.place(graph, lm.Cluster.preset(CLUSTER), recipe=turned))
    assert "CUDA_VISIBLE_DEVICES=7,6,5,4,3,2,1,0 torchrun --nproc-per-node 8" in text


def test_replicas_are_a_grid(graph):
    plan = lm.place(graph, lm.Cluster.preset(CLUSTER), "data-parallel", replicas=4)
    flag = said(plan)
    assert flag["tensor-model-parallel-size"] == flag["pipeline-model-parallel-size"] == "1"
    assert (flag["micro-batch-size"], flag["global-batch-size"]) == ("2", "8")


def test_everything_in_the_way_of_a_grid_is_said_at_once(graph):
    recipe = lm.Recipe(
        DeviceMesh.of({"pp": 2, "dp": 2}),
        {"dp": {"**": "batch"}},
        shard_state={"**": "parameters"},
        stages={"h.3.fc": 1, "h.4": 1},
        micro=Micro(2, "gpipe"),
        recompute=("h.*.fc",),
    )
    plan = lm.place(graph, lm.Cluster.preset(CLUSTER), recipe=recipe, on_oom="best_effort")
    with pytest.raises(InputError) as caught:
        lm.writers.megatron(plan)
    text = str(caught.value)
    for words in (
        "layers are on several stages each: h.3 (",
        "parameters are in parts among replicas",
        "modules are recomputed that are no layers: h.0.fc",
        "the schedule is gpipe" if "one after another" in text else "stages",
    ):
        assert words in text
    assert text.endswith("--target megatron")


def test_the_head_has_the_figures(grid, tmp_path):
    text = lm.writers.megatron(grid, tmp_path / "flags.sh")
    assert (tmp_path / "flags.sh").read_text() == text
    head = text.partition("set -euo pipefail")[0]
    for words in ("Step:", "one device", "Peak memory:", "Lower bound:", "Times of ops:"):
        assert words in head


# ---- one micro-batch --------------------------------------------------------------------------


def test_one_micro_batch_goes_through_one_stage_after_another(graph):
    """Each device works a half of the time that one works for both."""
    cluster = lm.Cluster.preset("2xV100-NVLink").with_memory("80GiB")
    stages = {f"h.{i}.**": 1 for i in range(12, 24)} | {"ln_f.**": 1}
    recipe = lm.Recipe(DeviceMesh.of({"pp": 2}), stages=stages, micro=Micro(1))
    plan = lm.place(graph, cluster, recipe=recipe)
    single = lm.place(graph, cluster, "single")
    assert set(plan.devices.tolist()) == {0, 1}
    assert plan.makespan >= 0.95 * single.makespan
    assert lm.Recipe.from_toml(recipe.to_toml()) == recipe


def test_vllm_has_tensor_parallelism_inside_of_stages():
    mixtral, cluster = lm.read("example:mixtral"), lm.Cluster.preset("8xH100-NVLink")
    plan = lm.place(mixtral, cluster, target="vllm", tp=2, pp=2)
    keys, variables = settings(lm.writers.vllm(plan))
    assert (keys["tensor-parallel-size"], keys["pipeline-parallel-size"]) == (2, 2)
    counts = variables.get("VLLM_PP_LAYER_PARTITION", "16,16").split(",")
    assert sum(map(int, counts)) == 32
    assert set(plan.running_devices.tolist()) == {0, 1, 2, 3}
    one = lm.place(mixtral, cluster, target="vllm", tp=2, pp=1)
    assert plan.memory.peak.max() < 0.7 * one.memory.peak.max()
    best = lm.place(mixtral, cluster, target="vllm")
    assert best.makespan <= min(plan.makespan, one.makespan)


@pytest.mark.parametrize("apart", [False, True])
def test_vllm_has_experts_cut_or_apart(apart):
    """Of every expert's weights a device has a half, or of half of the experts it has all."""
    mixtral, cluster = lm.read("example:mixtral"), lm.Cluster.preset("8xH100-NVLink")
    plan = lm.place(mixtral, cluster, target="vllm", tp=2, pp=1, expert_parallel=apart)
    keys, _ = settings(lm.writers.vllm(plan))
    assert keys.get("enable-expert-parallel", False) is apart
    names = mixtral.names
    held = [set(), set()]
    bytes_ = [0, 0]
    for at in np.flatnonzero(plan.program.graph.stands_for == PARAMETER).tolist():
        name = names[plan.program.serves[at]]
        if name.startswith("layers.9.moe.w"):
            device = int(plan.running_devices[at])
            size = int(plan.program.graph.param_bytes[at])
            bytes_[device] += size
            held[device] |= {name} if size else set()
    assert bytes_[0] == bytes_[1] == 8 * 3 * 14336 * 4096 * 2 // 2
    assert (held[0] & held[1] == set()) is apart
    free = lm.place(mixtral, cluster, target="vllm", tp=2, pp=1)
    assert free.makespan <= plan.makespan


def test_heads_of_groups_go_into_as_many_parts_as_groups():
    mixtral, cluster = lm.read("example:mixtral"), lm.Cluster.preset("8xH100-NVLink")
    plan = lm.place(mixtral, cluster, target="vllm", tp=8, pp=1)
    assert settings(lm.writers.vllm(plan))[0]["tensor-parallel-size"] == 8


def test_vllm_takes_any_number_of_devices():
    """Of all sizes that can be asked for, its own choice is the best; others name the heads."""
    mixtral, cluster = lm.read("example:mixtral"), lm.Cluster.new("6xL4-24GB", "pcie4")
    goal = {"target": "vllm", "objective": "throughput", "costs": "roofline"}
    plans = [lm.place(mixtral, cluster, tp=tp, pp=pp, **goal) for tp, pp in ((1, 6), (2, 3))]
    best = lm.place(mixtral, cluster, **goal)
    assert all(best.period <= plan.period for plan in plans)
    heads = "the 8 heads of a layer, or groups of heads that share keys, do not go into 3"
    with pytest.raises(InputError, match=heads):
        lm.place(mixtral, cluster, tp=3, pp=2, **goal)
