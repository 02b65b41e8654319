"""Experts on devices of their own: which ops are whose, where they are, and uneven loads."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from labels import by_experts, whole
from stacks import stack

import loadmaster as lm
from loadmaster.base.errors import InputError
from loadmaster.cli import main
from loadmaster.dimensions.dimensions import Dimensions
from loadmaster.dimensions.form import OWNER
from loadmaster.judge.problem import Problem
from loadmaster.model.graph import PARAMETER
from loadmaster.model.recipe import DeviceMesh, Recipe
from loadmaster.strategies.sharding.space import Space
from loadmaster.transforms import Layout, shard
from loadmaster.transforms.mesh_ways import Load

EIGHT = DeviceMesh.of({"x": 8})


@cache
def mixtral() -> Dimensions:
    return Dimensions.of(lm.read("example:mixtral"))


@cache
def planned(imbalance: float) -> lm.Plan:
    cluster = lm.Cluster.preset("8xV100-NVLink")
    return lm.place(mixtral().graph, cluster, "sharded", expert_imbalance=imbalance)


def layout(mesh: DeviceMesh, imbalance: float = 1.0) -> Layout:
    d = mixtral()
    labels = np.concatenate([by_experts(d, mesh), *[whole(d, mesh)[1:]] * (len(mesh.shape) > 1)])
    return Layout(d, mesh, labels, expert_imbalance=imbalance)


def stacked(experts: int = 4) -> lm.OpGraph:
    """Tokens of each expert, its product with a stacked weight, and what routes them."""
    rows = [
        ("x", "input", "f32[8,16]", []),
        ("gate", "parameter", "f32[16,4]", []),
        ("w", "parameter", f"f32[{experts},16,32]", []),
        ("scores", "aten.mm.default", "f32[8,4]", ["x", "gate"]),
        ("topk", "aten.topk.default", "f32[8,2];i64[8,2]", ["scores"]),
        ("mask", "aten.ones.default", f"f32[{experts},8]", []),
        ("given", "aten.einsum.default", f"f32[{experts},8,16]", ["mask", "x"]),
        ("made", "aten.bmm.default", f"f32[{experts},8,32]", ["given", "w"]),
    ]
    args = {
        "scores": [["x", "gate"]],
        "topk": [["scores", 2]],
        "given": [["eb,bd->ebd", ["mask", "x"]]],
        "made": [["given", "w"]],
    }
    index = {name: i for i, (name, *_) in enumerate(rows)}
    edges = [(index[r], i) for i, (*_, reads) in enumerate(rows) for r in reads]

    def numbered(value):
        if isinstance(value, list):
            return [numbered(each) for each in value]
        return {"op": index[value]} if value in index else value

    sizes = {name: 4 * int(np.prod([int(n) for n in text.split(";")[0][4:-1].split(",")]))
             for name, _, text, _ in rows}  # fmt: skip
    return lm.OpGraph(
        {
            "name": list(index),
            "kind": [kind for _, kind, _, _ in rows],
            "output": [text for _, _, text, _ in rows],
            "flops": [1_000_000 * (name == "made") for name in index],
            "output_bytes": [0 if not of[3] else sizes[of[0]] for of in rows],
            "args": [numbered(args[name]) if name in args else None for name in index],
        },
        {
            "src": [a for a, _ in edges],
            "dst": [b for _, b in edges],
            "bytes": [sizes[rows[a][0]] for a, _ in edges],
        },
    )


def test_the_experts_of_every_layer_are_found():
    d = mixtral()
    graph, experts = d.graph, d.experts
    assert experts.layer.max() + 1 == 32
    products = [graph.kinds[op] == "aten.mm.default" for op in range(graph.n_ops)]
    for layer in (0, 31):
        for number in range(8):
            mine = np.flatnonzero((experts.layer == layer) & (experts.of_op == number))
            kinds = [graph.kinds[op] for op in mine.tolist()]
            # Products, the activation, and multiplications by the gate's and by the router's.
            counts = {"parameter": 3, "aten.mm.default": 3, "aten.silu.default": 1}
            assert Counter(kinds) == {**counts, "aten.mul.Tensor": 2}
            modules = {graph.modules[op] for op in mine.tolist() if products[op]}
            assert modules == {f"layers.{layer}.moe.w{i}.{number}" for i in (1, 2, 3)}
    assert (experts.count[experts.of_op >= 0] == 8).all()
    weights = graph.stands_for == PARAMETER
    assert (experts.of_op[weights] >= 0).sum() == 32 * 8 * 3


@pytest.mark.parametrize(
    "graph", [stack(4), lm.read("example:alexnet"), lm.read("example:gpt3-330m")]
)
def test_layers_are_no_experts(graph):
    assert (Dimensions.of(graph).experts.of_op < 0).all()


def test_names_count_for_nothing():
    graph = mixtral().graph
    renamed = [
        m.replace("moe", "ff").replace(".w1", ".a").replace(".w2", ".b") for m in graph.modules
    ]
    other = Dimensions.of(graph.with_columns({"module": renamed}))
    assert np.array_equal(other.experts.of_op, mixtral().experts.of_op)


@pytest.mark.parametrize(
    ("sizes", "place"),
    [
        ({"x": 8}, [[0, 1, 2, 3, 4, 5, 6, 7]]),
        ({"x": 4}, [[0, 1, 2, 3, 0, 1, 2, 3]]),
        ({"x": 3}, [[0, 1, 2, 0, 1, 2, 0, 1]]),
    ],
)
def test_an_expert_is_on_one_device(sizes, place):
    made = layout(DeviceMesh.of(sizes))
    experts = mixtral().experts
    for number, at in enumerate(place[0]):
        mine = (experts.of_op == number) & (made.labels[0] == OWNER)
        assert mine.sum() == 32 * 9
        assert (made.owner[0, mine] == at).all()
        share = made.share[mine & ~made.graph.placeholder]
        assert (share[:, at] == 1).all()
        assert (share.sum(axis=1) == 1).all()


def test_two_axes_share_experts_out_between_all_their_devices():
    d, mesh = mixtral(), DeviceMesh.of({"x": 2, "y": 4})
    labels = np.where(d.experts.of_op >= 0, OWNER, np.zeros((2, d.graph.n_ops))).astype(np.int32)
    made = Layout(d, mesh, labels)
    device = made.owner[0] * 4 + made.owner[1]
    mine = d.experts.of_op >= 0
    assert np.array_equal(device[mine], d.experts.of_op[mine])


def test_shares_of_uneven_experts_by_hand():
    # Eight experts on four devices, the busiest with 1.2 times its fair share, two of eight: each
    # of its experts has 1.2 of what it has on average, and 8 - 2.4 is left for six.
    made, experts = layout(DeviceMesh.of({"x": 4}), 1.2), mixtral().experts
    share = made.share.sum(axis=1)
    runs = ~made.graph.placeholder & (experts.layer == 5)
    found = [share[runs & (experts.of_op == number)] for number in range(8)]
    for number, expected in enumerate([1.2, 5.6 / 6, 5.6 / 6, 5.6 / 6] * 2):
        assert found[number] == pytest.approx(expected, abs=1e-12)
    assert sum(of[0] for of in found) == pytest.approx(8, abs=1e-9)
    # No device does more than there is, and the others nothing less than nothing.
    all_of_it = layout(DeviceMesh.of({"x": 4}), 9.0).share.sum(axis=1)
    assert all_of_it[runs & (experts.of_op == 0)] == pytest.approx(4, abs=1e-12)
    assert all_of_it[runs & (experts.of_op == 1)] == pytest.approx(0, abs=1e-12)


def test_flops_and_bytes_of_the_program_go_by_the_load():
    made = layout(DeviceMesh.of({"x": 4}), 1.5)
    program = shard(made.graph, made)
    experts, graph = mixtral().experts, made.graph
    product = np.array([kind == "aten.mm.default" for kind in graph.kinds])
    for number, expected in ((0, 1.5), (1, 5 / 6)):
        op = int(np.flatnonzero(product & (experts.of_op == number))[0])
        (part,) = program.parts_of(op).tolist()
        assert program.rank[part] == number
        assert program.graph.flops[part] == pytest.approx(expected * int(graph.flops[op]), rel=1e-9)
        # Tokens are more, the weight is as it was.
        edges = np.flatnonzero(graph.dst == op)
        weight = max(graph.bytes[edges].tolist())
        tokens = int(graph.bytes_accessed[op]) - weight
        accessed = int(program.graph.bytes_accessed[part])
        assert accessed == pytest.approx(weight + expected * tokens, rel=1e-6)
    assert any("1.5 times its fair share" in note for note in program.notes)


def test_a_load_in_thousandths():
    # Two of eight experts: 1.25 of two, and 8 - 2.5 among six.
    (first, others), of = Load(1250, 2, 8).parts
    assert (first / of, others / of) == (1.25, 5.5 / 6)
    assert 2 * first + 6 * others == 8 * of


@pytest.mark.parametrize("imbalance", [1.0, 1.25, 2.0])
def test_stacked_experts_are_cut_and_their_shares_sum_up(imbalance):
    graph = stacked()
    recipe = Recipe({"x": 2}, {"x": {"**": "expert"}}, expert_imbalance=imbalance)
    program = shard(graph, recipe)
    made = graph.index("made")
    share = program.share[program.parts_of(made)]
    assert share == pytest.approx([imbalance / 2, 1 - imbalance / 2])
    flops = program.graph.flops[program.parts_of(made)]
    assert flops.tolist() == pytest.approx([500_000 * imbalance, 500_000 * (2 - imbalance)])
    said = [note for note in program.notes if "expert_imbalance" in note]
    assert len(said) == 1
    assert f"does {imbalance:g} times" in said[0]
    assert ("spread evenly" in said[0]) == (imbalance == 1)


def test_the_scores_of_a_router_are_of_every_token():
    recipe = Recipe(
        {"x": 2}, {"x": {". aten.mm.default": "expert"}}, {"x": {"gate": "Shard(1)"}},
        expert_imbalance=2,
    )  # fmt: skip
    program = shard(stacked(), recipe)
    at = program.parts_of(program.source.index("scores"))
    assert program.share[at].tolist() == [0.5, 0.5]
    assert not any("expert_imbalance" in note for note in program.notes)


def test_tokens_of_stacked_experts_go_there_by_an_all_to_all():
    # Tokens lie by the batch, experts one by one: what is handed out is exchanged.
    recipe = Recipe(
        {"x": 2},
        {"x": {". aten.einsum.default": "batch", ". aten.bmm.default": "expert"}},
        {"x": {"w": "Shard(0)", "x": "Shard(0)"}},
    )
    program = shard(stacked(), recipe)
    kinds = [program.graph.kinds[i] for i in np.flatnonzero(program.own)]
    assert kinds.count("all_to_all") == 2


def test_the_solver_shares_experts_out_and_says_so():
    plan = planned(1.0)
    labels, experts = plan.layout.labels, mixtral().experts
    runs = (experts.of_op >= 0) & ~plan.graph.placeholder
    assert (labels[:, runs] == OWNER).any(axis=0).mean() == 1
    assert any("1 times its fair share" in note and "spread evenly" in note for note in plan.notes)
    at = int(np.flatnonzero(runs)[0])
    said = str(plan.explain(plan.graph.names[at]))
    assert "the busiest device does 1 times its fair share of the experts' work" in said
    assert plan.recipe.expert_imbalance == 1


def test_uneven_experts_take_as_much_longer_in_the_tables_and_in_the_judge():
    cluster = lm.Cluster.preset("8xV100-NVLink")
    graph = mixtral().graph
    costs = lm.costs.estimate(graph, cluster)
    seconds = []
    for imbalance in (1.0, 1.5):
        problem = Problem.make(graph, cluster, costs, expert_imbalance=imbalance)
        space = Space.of(problem)
        setting, structure = space.setting(EIGHT), space.structure
        node = int(structure.node[graph.index("mm_5")])
        way = int(structure.way[node])
        column = structure.ways.label[way].tolist().index(OWNER)
        part = space.parts.of(
            np.array([node]), np.array([[column]]), setting.shares, setting.places
        )
        seconds.append(float(part.seconds[0]))
    assert seconds[1] == pytest.approx(1.5 * seconds[0])
    # Of the step as the judge has it, the experts' share is what grows: by half on the busiest.
    even, uneven = (shard(graph, layout(EIGHT, imbalance)) for imbalance in (1.0, 1.5))
    at = even.parts_of(graph.index("mm_5"))
    assert uneven.share[at].tolist() == [1.5]
    times = [problem.transformed(program).costs.time[at[0], 0] for program in (even, uneven)]
    assert times[1] == pytest.approx(1.5 * times[0], rel=0.02)


def test_worse_balance_makes_longer_steps():
    assert planned(1.0).makespan < planned(1.3).makespan
    assert planned(1.3).recipe.expert_imbalance == 1.3


def test_where_few_experts_have_all_the_work_each_is_on_all_devices():
    plan = planned(8.0)
    runs = (mixtral().experts.of_op >= 0) & ~plan.graph.placeholder
    assert not (plan.layout.labels[:, runs] == OWNER).any()
    assert plan.makespan == planned(6.0).makespan


def test_a_recipe_keeps_it_and_applies_it():
    # With 1.3 sharding cuts no experts there: their exchange no longer pays.
    recipe = replace(planned(1.0).recipe, expert_imbalance=1.3)
    again = Recipe.from_toml(recipe.to_toml())
    assert again == recipe
    cluster = lm.Cluster.preset("8xV100-NVLink")
    plan = lm.place(mixtral().graph, cluster, recipe=again)
    assert plan.recipe.expert_imbalance == 1.3
    other = lm.place(mixtral().graph, cluster, recipe=again, expert_imbalance=2)
    assert other.recipe.expert_imbalance == 2
    assert other.makespan > plan.makespan


@pytest.mark.parametrize("value", [0.5, "much", float("nan"), -1, True])
def test_what_is_no_imbalance_is_refused(value):
    with pytest.raises(InputError, match="expert_imbalance"):
        Recipe({"x": 2}, expert_imbalance=value)
    with pytest.raises(InputError, match="expert_imbalance"):
        lm.place(
            lm.read("example:lenet"), lm.Cluster.preset("2xV100-NVLink"), expert_imbalance=value
        )


def test_the_command_line_takes_it(tmp_path, capsys):
    recipe = tmp_path / "r.toml"
    Recipe({"x": 2}, {"x": {"layers.*.moe.*.*": "expert"}}).save(recipe)
    out = tmp_path / "plan.json"
    given = ["place", "example:mixtral", "--cluster", "8xV100-NVLink", "--recipe", str(recipe)]
    assert (
        main([*given, "--expert-imbalance", "1.2", "--on-oom", "best_effort", "-o", str(out)]) == 0
    )
    assert "1.2 times its fair share" in capsys.readouterr().out
    assert lm.Plan.load(out).recipe.expert_imbalance == 1.2
    assert main([*given, "--expert-imbalance", "x"]) == 2
