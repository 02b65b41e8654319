"""Stages of real graphs: lines, cut candidates, what stages cost, and the methods made of them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from trained import linears

import loadmaster as lm
import loadmaster.fast as fast
from loadmaster.judge.problem import Problem
from loadmaster.model.micro import Micro
from loadmaster.strategies.pipelines.chains import StageWay, best_chain, times
from loadmaster.strategies.pipelines.cuts import crossing_bytes, cuts
from loadmaster.strategies.pipelines.floors import floors
from loadmaster.strategies.pipelines.lines import lines
from loadmaster.strategies.pipelines.phases import FORWARD, ONCE, passes
from loadmaster.strategies.pipelines.space import PipelineSpace
from loadmaster.writers.pictures.blocks import Blocks

METHODS = ("gpipe", "pipedream", "max-load", "piper", "pipeline")


def problem_of(name: str, cluster: str | lm.Cluster = "4xV100-PCIe") -> Problem:
    graph = lm.read(name) if isinstance(name, str) else name
    devices = lm.Cluster.preset(cluster) if isinstance(cluster, str) else cluster
    return Problem.make(graph, devices, lm.costs.estimate(graph, devices))


@pytest.fixture(scope="module")
def bert() -> Problem:
    return problem_of("example:bert-large")


@pytest.fixture(scope="module")
def space(bert: Problem) -> PipelineSpace:
    return PipelineSpace.of(bert)


@pytest.mark.parametrize("name", ["example:bert-large", "example:inception-v3", "example:rnnlm"])
def test_samples_go_forward_along_a_line_and_gradients_back(name: str) -> None:
    problem = problem_of(name)
    phase = np.array([problem.model.phases[op] for op in problem.reduced.op_of.tolist()])
    src, dst, _, _, is_home = (column for column in fast.edges(problem.graph))
    src, dst = src[~is_home], dst[~is_home]
    for line in lines(problem):
        place = line.place[problem.reduced.op_of]
        forward = np.isin(phase[src], ("", "f")) & np.isin(phase[dst], ("", "f"))
        assert (place[src] <= place[dst])[forward].all()
        back = (phase[src] == "b") & (phase[dst] == "b")
        assert (place[src] >= place[dst])[back].all()


def test_updates_and_gradients_stand_where_the_parameter_is_read(bert: Problem) -> None:
    line = lines(bert)[0]
    for layer in (0, 11, 23):
        module = f"m.bert.encoder.layer.{layer}.intermediate.dense"
        here = {
            int(line.place[op])
            for op, path in enumerate(bert.model.modules)
            if bert.reduced.runs[op]
            and (
                path == f"optim.{module}.weight"
                or (path == module and bert.model.phases[op] == "f")
            )
        }
        assert len(here) == 1


def test_a_tied_gradient_stays_where_it_is_made(bert: Problem) -> None:
    graph, line = bert.model, lines(bert)[0]
    made = [
        op
        for op, module in enumerate(graph.modules)
        if module == "m.cls.predictions.decoder" and graph.phases[op] == "b"
    ]
    first = graph.index("embedding")
    assert min(line.place[op] for op in made if bert.reduced.runs[op]) > line.place[first] + 700


def test_sums_of_time_steps_stand_with_the_first_of_what_they_add() -> None:
    """So of the parts that one stage makes, one tensor crosses."""
    problem = problem_of("example:rnnlm")
    phase = np.array([problem.model.phases[op] for op in problem.reduced.op_of.tolist()])
    src, dst, tensor, _, is_home = fast.edges(problem.graph)
    back = ~is_home & (phase[src] == "b") & (phase[dst] == "b") & (tensor >= 0)
    into = np.bincount(dst[back], minlength=problem.graph.n_ops)
    kinds = [problem.model.kinds[op] for op in problem.reduced.op_of.tolist()]
    # Reads gradients alone: no op of the forward pass, no parameter.
    alone = np.bincount(dst[~back & (tensor >= 0)], minlength=problem.graph.n_ops) == 0
    updates = np.zeros(problem.graph.n_ops, dtype=bool)
    updates[src[(phase[src] == "b") & (phase[dst] == "o")]] = True
    sums = [
        op
        for op, kind in enumerate(kinds)
        if kind.startswith("aten.add") and into[op] == 2 and alone[op] and phase[op] == "b"
    ]
    assert len(sums) > 50
    last = [op for op in sums if updates[op]]
    assert last
    for line in lines(problem):
        place = line.place[problem.reduced.op_of]
        for op in last:
            added, todo = set(), [op]
            while todo:
                at = todo.pop()
                for maker in src[back & (dst == at)].tolist():
                    (todo.append if maker in sums else added.add)(maker)
            assert place[op] == min(place[maker] for maker in added)


def test_look_ups_stand_with_the_last_reader_of_a_tied_weight(bert: Problem) -> None:
    graph, line = bert.model, lines(bert)[0]
    assert line.gathered is not None
    look_up = graph.index("embedding")
    decoder = next(
        op
        for op, module in enumerate(graph.modules)
        if module == "m.cls.predictions.decoder" and graph.kinds[op].startswith("aten.addmm")
    )
    assert line.gathered[look_up] == line.place[decoder] > line.place[look_up]
    moved = np.flatnonzero((line.gathered != line.place) & bert.reduced.runs).tolist()
    modules = {graph.modules[op].removeprefix("optim.").removesuffix(".weight") for op in moved}
    table, head = "m.bert.embeddings.word_embeddings", "m.cls.predictions.decoder"
    assert modules == {table, head}
    assert all(graph.phases[op] == "b" for op in moved if graph.modules[op] == head)
    inception = problem_of("example:inception-v3")
    assert all(line.gathered is None for line in lines(inception))


def test_rows_cross_and_not_the_table(bert: Problem) -> None:
    place = partial(lm.place, bert.model, bert.cluster, costs="roofline")
    ours = place("pipeline", micro_batches=4)
    table = int(bert.model.param_bytes.max())
    assert any("looked up where a tied weight is" in note for note in ours.notes)
    assert ours.schedule.transfers.bytes.max() < table / 10
    stage = ours.recipe.stage_of(bert.model)
    assert stage[bert.model.index("embedding")] == stage.max()
    apart = {k: v for k, v in ours.recipe.stages.items() if "word_embeddings" not in k}
    apart["m.bert.embeddings.word_embeddings"] = 0
    pulled = place(recipe=replace(ours.recipe, stages=apart))
    assert pulled.schedule.transfers.bytes.max() >= table
    assert ours.makespan < pulled.makespan


def test_look_ups_keep_no_micro_batch_alive(bert: Problem) -> None:
    """1F1B on four stages holds 4, 3, 2 and 1, wherever the table is."""
    options = {"micro_batches": 8, "schedule": "1f1b"}
    plan = lm.place(bert.model, bert.cluster, "pipeline", **options)
    assert any("looked up where a tied weight is" in note for note in plan.notes)
    assert sorted(Blocks.of(plan).alive.tolist()) == [1, 2, 3, 4]


def test_no_cut_divides_colocated_ops(bert: Problem) -> None:
    for line in lines(bert):
        place = line.place[bert.reduced.op_of]
        forward = np.array([bert.model.phases[op] == "f" for op in bert.reduced.op_of.tolist()])
        for cut in cuts(bert, line)[1:-1].tolist():
            sides = {}
            for s, p in zip(bert.graph.colocation[forward], place[forward], strict=True):
                sides.setdefault(int(s), set()).add(bool(p >= cut))
            assert all(len(found) == 1 for found in sides.values())


def test_of_many_cuts_those_are_candidates_that_little_crosses(bert: Problem) -> None:
    line = lines(bert)[0]
    n = len(line.is_open) - 1
    chosen = cuts(bert, line, 24)
    width = crossing_bytes(bert, line.place[bert.reduced.op_of], n)
    assert len(chosen) <= 25
    assert width[chosen[1:-1]].max() <= np.quantile(width[1:n], 0.25)


def _stage_of_ops(costs_of: Problem, space: PipelineSpace, i: int, j: int) -> np.ndarray:
    """Whether each reduced op of a program stands between two cuts."""
    line, at = space.lines[0]
    place = line.place[costs_of.program.serves[costs_of.reduced.op_of]]
    return (place >= at[i]) & (place < at[j])


@pytest.mark.parametrize("again", [False, True])
def test_what_a_stage_costs_is_what_its_ops_cost(space: PipelineSpace, *, again: bool) -> None:
    probe, costs = space.probe(4, again=again), space.costs(4, again=again)[0]
    micro = probe.program.micro[probe.reduced.op_of]
    kind = passes(probe.program)[probe.reduced.op_of]
    src, dst, tensor, size, is_home = fast.edges(probe.graph)
    data = (tensor >= 0) & ~is_home & (micro[src] == 1) & (micro[dst] == 1)
    latency, per_byte = costs.link
    rng = np.random.default_rng(0)
    for _ in range(12):
        i, j = np.sort(rng.choice(costs.n_cuts, 2, replace=False)).tolist()
        inside = _stage_of_ops(probe, space, i, j)
        busy = probe.compute_time[inside & (micro == 1), 0].sum()
        assert costs.compute(0)[i, j] == pytest.approx(busy)
        once = probe.compute_time[inside & (kind == ONCE), 0].sum()
        assert costs.until[3, j, 0] - costs.until[3, i, 0] == pytest.approx(once)
        place = space.lines[0][0].place[probe.program.serves[probe.reduced.op_of]]
        at = space.lines[0][1]
        part = np.searchsorted(at, place, "right") - 1
        for way, ends in ((0, part[src] < part[dst]), (1, part[src] > part[dst])):
            into = data & ends & inside[dst] & ~inside[src]
            out = data & ends & inside[src] & ~inside[dst]
            for found, some in ((costs.enters, into), (costs.leaves, out)):
                ids, first = np.unique(tensor[some], return_index=True)
                seconds = len(ids) * latency + size[some][first].astype(float).sum() * per_byte
                assert found[way, i, j] == pytest.approx(seconds, abs=1e-12)
        kept = data & (kind[src] == FORWARD) & (kind[dst] != FORWARD) & inside[dst]
        first = np.unique(tensor[kept], return_index=True)[1]
        assert int(costs.held[i, j]) == int(size[kept][first].sum())


def test_stages_of_unequal_devices_come_in_the_best_order(space: PipelineSpace) -> None:
    """One fast device and three slow ones: the fast one may have any stage."""
    cluster = lm.Cluster(
        [lm.Device("fast", "a", "32GiB"), *(lm.Device(f"slow{i}", "b", "32GiB") for i in range(3))],
        [
            lm.Link(x, y, 12e9, 1e-5)
            for x in ("fast", "slow0", "slow1", "slow2")
            for y in ("fast", "slow0", "slow1", "slow2")
            if x != y
        ],
    )
    graph = linears([64, 64, 64, 64, 512, 64, 64], 16)
    seconds = np.where(graph.reduced.runs, 1e-3 + graph.flops / 1e9, 0.0)
    time = {"a": seconds / 4, "b": seconds}
    problem = problem_of(graph.with_columns({"time": time}), cluster)
    found = PipelineSpace.of(problem)
    costs = found.costs(4)[0]
    ways = [StageWay(costs, pool, (4, 3, 2, 1)) for pool in range(len(found.pools))]
    chain = best_chain(found.pools, ways, 4, 3.0)
    assert chain is not None
    devices = [d for (d,) in chain.devices]
    assert sorted(devices) == [0, 1, 2, 3]
    busy = dict(zip(devices, times(found.pools, ways, chain, problem.links).forward, strict=True))
    assert busy[0] < 2 * max(busy.values())


@pytest.fixture(scope="module")
def ours(bert: Problem) -> lm.Plan:
    return lm.place(bert.model, bert.cluster, "pipeline", micro_batches=4)


@pytest.mark.parametrize("method", METHODS[:-1])
def test_micro_batches_beat_layers_without_and_ours_beats_all(
    bert: Problem, ours: lm.Plan, method: str
) -> None:
    layers = lm.place(bert.model, bert.cluster, "layers")
    plan = lm.place(bert.model, bert.cluster, method, micro_batches=4)
    assert ours.makespan < plan.makespan < layers.makespan
    assert int(plan.program.micro.max()) == 3


def test_micro_batches_of_ops_that_only_launch_are_told() -> None:
    graph, cluster = linears([8] * 9, 64), lm.Cluster.preset("4xV100-NVLink")
    few, many = (lm.place(graph, cluster, "gpipe", micro_batches=m) for m in (2, 16))
    told = [any("fewer micro-batches" in note for note in plan.notes) for plan in (few, many)]
    assert told == [True, True]
    roomy = linears([2048] * 9, 8192)
    plan = lm.place(roomy, cluster, "gpipe", micro_batches=2)
    assert not any("fewer micro-batches" in note for note in plan.notes)


def test_layers_take_micro_batches(bert: Problem, ours: lm.Plan) -> None:
    layers = lm.place(bert.model, bert.cluster, "layers")
    piped = lm.place(bert.model, bert.cluster, "layers", micro_batches=4)
    assert ours.makespan < piped.makespan < layers.makespan


def test_a_pipeline_comes_out_of_its_recipe_again(
    bert: Problem, ours: lm.Plan, tmp_path: Path
) -> None:
    plan = ours
    for read in (
        lm.Recipe.from_toml(plan.recipe.to_toml()),
        lm.Recipe.from_document(plan.recipe.to_document()),
    ):
        assert read == plan.recipe
    again = lm.place(bert.model, bert.cluster, recipe=plan.recipe)
    assert again.makespan == plan.makespan
    assert np.array_equal(again.running_devices, plan.running_devices)
    assert len(plan.recipe.stages) < 100
    plan.save(tmp_path / "plan.json")
    loaded = lm.Plan.load(tmp_path / "plan.json")
    assert loaded.recipe == plan.recipe
    assert "4 micro-batches" in loaded.summary()
    assert any("with 4 micro-batches" in line for line in plan.explain("addmm_40").label)


@pytest.mark.parametrize("method", ["gpipe", "pipedream", "max-load", "piper"])
def test_pipelines_of_papers_come_out_of_their_recipes_again(bert: Problem, method: str) -> None:
    plan = lm.place(bert.model, bert.cluster, method, micro_batches=4)
    recipe = lm.Recipe.from_toml(plan.recipe.to_toml())
    assert recipe == plan.recipe
    again = lm.place(bert.model, bert.cluster, recipe=recipe)
    assert again.makespan == plan.makespan
    assert np.array_equal(again.running_devices, plan.running_devices)


def test_devices_of_a_stage_take_micro_batches_in_turn() -> None:
    graph, cluster = linears([64] * 5, 16), lm.Cluster.preset("4xV100-NVLink")
    micro = Micro(4, in_turn=(2, 1))
    recipe = lm.Recipe({"pp": 3}, stages={". aten.mm#2": 1, ". aten.mm#3": 1}, micro=micro)
    plan = lm.place(graph, cluster, recipe=recipe)
    program = plan.program
    stage = recipe.stage_of(graph)[program.serves]
    forward = np.array([kind == "aten.mm" for kind in program.graph.kinds]) & (program.micro >= 0)
    forward &= np.array(program.graph.phases) == "f"
    wanted = np.where(stage == 1, 2, program.micro % 2)
    assert (plan.running_devices == wanted)[forward].all()
    assert set(stage[forward].tolist()) == {0, 1}
    assert "stages of 2-1 devices, which take them in turn" in plan.summary()


def test_where_memory_is_short_stages_recompute(bert: Problem) -> None:
    options = {"micro_batches": 4, "schedule": "1f1b", "devices_per_stage": 1}
    options["costs"] = "roofline"
    roomy = lm.place(bert.model, bert.cluster, "pipeline", **options)
    memory = int(roomy.verdict.peak.max() * 0.8)
    devices = [replace(device, memory=memory) for device in bert.cluster.devices]
    tight = lm.Cluster(devices, bert.cluster.links, bert.cluster.types)
    plan = lm.place(bert.model, tight, "pipeline", **options)
    assert plan.verdict.peak.max() <= memory
    assert plan.recipe.recompute
    assert any("recomputed" in note for note in plan.notes)


def test_a_pipeline_of_a_half_of_the_devices(bert: Problem) -> None:
    options = {"micro_batches": 4, "stages": 2, "devices_per_stage": 1}
    plan = lm.place(bert.model, bert.cluster, "pipeline", **options)
    assert len(set(plan.running_devices[plan.running_devices >= 0].tolist())) == 2


def test_inference_is_piped_too() -> None:
    graph = linears([256] * 9, 64, train=False)
    plan = lm.place(graph, lm.Cluster.preset("4xV100-NVLink"), "pipeline", micro_batches=4)
    assert int(plan.program.micro.max()) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"micro_batches": 17}, "micro_batches"),
        ({"stages": 5}, "stages"),
        ({"schedule": "2f2b"}, "schedule"),
    ],
)
def test_bad_options_are_refused(bert: Problem, options: dict, message: str) -> None:
    with pytest.raises(lm.InputError, match=message):
        lm.place(bert.model, bert.cluster, "pipeline", **options)


def test_one_sample_is_no_batch() -> None:
    graph = linears([8, 8, 8], 1)
    with pytest.raises(lm.InputError, match="one sample"):
        lm.place(graph, lm.Cluster.preset("2xV100-NVLink"), "pipeline")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"micro": None}, "no micro"),
        ({"stages": {"**": 2}}, "stage"),
        ({"labels": {"pp": {"**": "row"}}}, "that of the stages"),
        ({"micro": {"n": 0}}, "micro: n"),
        ({"micro": {"n": 2, "schedule": "windows"}}, "ahead"),
        ({"micro": {"n": 2, "ahead": [2, 1]}}, "windows"),
        ({"micro": {"n": 2, "in_turn": [2, 1]}}, "in_turn has 3 devices in all"),
        ({"micro": {"n": 2, "in_turn": [1, 1], "schedule": "gpipe"}}, "in turn by"),
        ({"micro": {"schedule": "1f1b"}}, "n = 8"),
    ],
)
def test_recipes_that_are_no_pipeline_are_refused(changes: dict, message: str) -> None:
    given = {"mesh": {"axes": {"pp": 2}}, "stages": {"h.1": 1}, "micro": {"n": 2}, **changes}
    with pytest.raises(lm.InputError, match=message):
        lm.Recipe.from_document({key: value for key, value in given.items() if value is not None})


def test_stages_that_a_pass_comes_back_to_are_refused_with_the_way_out(bert: Problem) -> None:
    """One layer in the middle alone: what follows it is in stage 0 again."""
    layer = "m.bert.encoder.layer"
    recipe = lm.Recipe({"pp": 2}, stages={f"{layer}.12.**": 1}, micro=Micro(2))
    with pytest.raises(lm.InputError, match="does not come back") as refused:
        lm.place(bert.model, bert.cluster, recipe=recipe)
    said = str(refused.value)
    op, read = said.split("'")[1:4:2]
    stage, names = recipe.stage_of(bert.model), bert.model.names
    assert f"op {op!r} is in stage 0 and reads {read!r} of stage 1" in said
    assert stage[[names.index(op), names.index(read)]].tolist() == [0, 1]
    assert f"lines with stage 1 or later to the modules '{layer}.13', '{layer}.14'" in said
    after = dict.fromkeys([*(f"{layer}.{i}.**" for i in range(12, 24)), "m.cls.**", "m"], 1)
    with pytest.raises(lm.InputError, match=r"to the modules 'm\.bert\.pooler\.dense'"):
        lm.place(bert.model, bert.cluster, recipe=replace(recipe, stages=after))
    after |= {"m.bert.pooler.**": 1}
    assert lm.place(bert.model, bert.cluster, recipe=replace(recipe, stages=after)).fits


def test_a_stage_of_nothing_is_refused(bert: Problem) -> None:
    recipe = lm.Recipe({"pp": 2}, stages={"h.99.**": 1}, micro=Micro(2))
    with pytest.raises(lm.InputError, match=r"no op is 'h\.99"):
        lm.place(bert.model, bert.cluster, recipe=recipe)


def test_auto_takes_the_pipeline_and_says_why(bert: Problem) -> None:
    eight = [lm.Device(f"gpu{i}", bert.cluster.devices[0].type, "32GiB") for i in range(8)]
    first = bert.cluster.links[0]
    links = [
        lm.Link(a.name, b.name, first.bandwidth, first.latency, (f"{a.name}.tx", f"{b.name}.rx"))
        for a in eight
        for b in eight
        if a != b
    ]
    cluster = lm.Cluster(eight, links, bert.cluster.types)
    plan = lm.place(bert.model, cluster)
    single = lm.place(bert.model, cluster, "single")
    assert plan.makespan <= 0.40 * single.makespan
    assert any("stages" in note and "micro-batches" in note for note in plan.notes)
    assert any("of the step on gradients" in note for note in plan.notes)
    assert plan.recipe.micro.n > 2


def test_no_pipeline_is_below_its_floor(bert: Problem, ours: lm.Plan) -> None:
    (least,) = floors(bert, [4])
    assert 0.5 * ours.makespan < least <= ours.makespan
