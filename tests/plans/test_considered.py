"""The head of a plan: the best of each kind that was judged, and what was not considered."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import loadmaster as lm
from loadmaster.cli import main
from loadmaster.plans.considered import Considered, considered, kind_of, not_considered
from loadmaster.plans.plan import Plan
from loadmaster.strategies.kinds import REQUESTS

GRAPHS = ["lenet", "alexnet"]


@pytest.fixture(scope="module", params=GRAPHS)
def plan(request):
    return lm.place(f"example:{request.param}", "4xV100-PCIe")


def test_the_plan_is_among_the_kinds_and_none_that_fits_is_faster(plan):
    rows = considered(plan)
    (own,) = [row for row in rows if row.is_plan]
    assert rows[0] is own
    assert own.seconds == plan.makespan
    assert own.kind == kind_of(plan)
    assert [row.seconds for row in rows] == sorted(row.seconds for row in rows)
    assert len({row.kind for row in rows}) == len(rows)


def test_every_kind_is_either_judged_or_left_out_with_why(plan):
    judged = {row.kind for row in considered(plan)}
    left = dict(plan.left_out)
    assert judged | set(left) == set(REQUESTS)
    assert judged & set(left) == set()
    assert all(left.values())
    assert all(why in not_considered(plan) for why in left.values())


def test_ratios_are_of_the_one_device_that_holds_the_graph(plan):
    for row in considered(plan):
        assert row.ratio == pytest.approx(plan.single / row.seconds)
        assert row.fits
        assert row.kind == "one device" or 0 < row.peak <= row.memory


def test_the_command_of_a_kind_makes_a_plan_of_it(plan, capsys):
    graph = f"example:{plan.graph.name.partition('_')[0]}"
    for row in considered(plan):
        words = ["place", graph, "--cluster", "4xV100-PCIe", *row.arguments.split(), "--json"]
        if row.arguments:
            assert main(words) == 0
            (own,) = [
                one for one in json.loads(capsys.readouterr().out)["considered"] if one["is_plan"]
            ]
            assert own["kind"] == row.kind


def test_the_head_is_saved_with_the_plan(plan, tmp_path):
    plan.save(tmp_path / "plan.json")
    loaded = lm.Plan.load(tmp_path / "plan.json")
    assert considered(loaded) == considered(plan)
    assert not_considered(loaded) == not_considered(plan)


def test_a_document_of_before_has_spaces_and_no_kinds(plan):
    document = plan.to_document() | {"version": 2}
    del document["left_out"]
    document["version"] = 2
    fields = ("space", "what", "seconds")
    document["offers"] = [[offer[field] for field in fields] for offer in document["offers"]]
    rows = considered(Plan.from_document(document))
    assert sum(row.is_plan for row in rows) == 1
    assert {row.kind for row in rows} <= {*REQUESTS, "split ops"}


OFFER = {
    "space": "whole ops",
    "what": "a",
    "seconds": 1.0,
    "kind": "whole ops",
    "peak": 1,
    "memory": 2,
    "request": None,
}


def test_offers_of_version_2_are_those_of_version_3(plan):
    document = plan.to_document()
    rows = [
        [one.space, one.what, one.seconds, one.kind, one.peak, one.memory, row.arguments]
        for one in plan.offers
        for row in [Considered(one.kind, one.what, one.seconds, request=one.request)]
    ]
    assert any("--option" in row[-1] for row in rows)
    old = Plan.from_document({**document, "version": 2, "offers": rows})
    assert old.offers == Plan.from_document(document).offers == plan.offers


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("offers", [OFFER | {"kind": 3}]),
        ("offers", [OFFER | {"peak": "much"}]),
        ("left_out", [["shards", 2]]),
    ],
)
def test_a_damaged_head_is_refused(plan, key, value):
    with pytest.raises(lm.InputError, match=key):
        Plan.from_document({**plan.to_document(), key: value})


def test_the_summary_opens_with_a_line_per_kind(plan):
    first, *lines = str(plan).splitlines()
    assert "per step" in first
    rows = considered(plan)
    for row, line in zip(rows, lines, strict=False):
        assert line.startswith(f"  {row.kind}")
        assert ("this plan" in line) == row.is_plan
    assert lines[len(rows)].startswith("Not considered: ")
    assert "`loadmaster advise`" in lines[len(rows)]


def test_a_plan_of_replicas_has_one_kind_and_name_whatever_made_it():
    """Copies of the graph, labels of the batch, and systems that share nothing else."""
    graph, cluster = lm.read("example:vgg19"), "4xV100-NVLink"
    by_batch = lm.Recipe({"x": 4}, {"x": {"**": "batch"}})
    flat = replace(by_batch, shard_state={"**": "optimizer"})
    parts = replace(by_batch, shard_state={"**": "parameters"})
    made = {
        "gradients all-reduced": [
            lm.place(graph, cluster, "data-parallel"),
            lm.place(graph, cluster, "recipe", recipe=by_batch),
            lm.place(graph, cluster, target="ddp", replicas=4, optimizer="replicated"),
        ],
        "optimizer sharded flat": [
            lm.place(graph, cluster, "data-parallel", aggregation="reduce-scatter"),
            lm.place(graph, cluster, "recipe", recipe=flat),
        ],
        "parameters sharded": [
            lm.place(graph, cluster, "recipe", recipe=parts),
            lm.place(graph, cluster, target="fsdp", replicas=4, shard_size=4),
        ],
    }
    for summing, plans in made.items():
        for plan in plans:
            (own,) = [row for row in considered(plan) if row.is_plan]
            assert (own.kind, own.what) == ("replicas", f"4 replicas, {summing}")


def test_work_that_every_device_does_whole_is_not_shared_by_the_batch():
    graph = lm.read("example:vgg19")
    table = {"**": "batch", "** aten.addmm.default": "whole"}
    plan = lm.place(graph, "4xV100-NVLink", "recipe", recipe=lm.Recipe({"x": 4}, {"x": table}))
    assert kind_of(plan) == "shards"
    columns = {"** aten.addmm.default": "column"}
    plan = lm.place(graph, "4xV100-NVLink", "recipe", recipe=lm.Recipe({"x": 4}, {"x": columns}))
    assert kind_of(plan) == "shards"


def test_auto_lists_replicas_once():
    """Where the best labels share the batch alone, its row is that of replicas."""
    plan = lm.place("example:inception-v3", "4xV100-PCIe")
    rows = considered(plan)
    (own,) = [row for row in rows if row.is_plan]
    assert own.kind == kind_of(plan) == "replicas"
    assert plan.recipe is not None
    assert "shards" not in [row.kind for row in rows]
    assert dict(plan.left_out)["shards"] == "none found that is faster"


def test_one_method_says_its_own_kind_and_what_others_have():
    plan = lm.place("example:lenet", "2xV100-NVLink", "heft")
    assert [row.kind for row in considered(plan)] == ["whole ops", "one device"]
    assert not_considered(plan).startswith("other methods, such as auto, which has replicas")
    sharded = lm.place("example:lenet", "2xV100-NVLink", "sharded", costs="roofline")
    assert "whole ops" in not_considered(sharded)
    assert "shards" not in not_considered(sharded)


def test_a_target_says_what_it_may_split():
    plan = lm.place("example:lenet", "2xV100-NVLink", target="ddp", replicas=2)
    assert [row.kind for row in considered(plan) if row.is_plan] == ["replicas"]
    assert "what the target ddp cannot run; it may split" in not_considered(plan)


def test_whole_ops_that_were_asked_for_are_said_so():
    plan = lm.place("example:lenet", "2xV100-NVLink", split="none")
    assert not_considered(plan).startswith("replicas, shards, pipelines (every op was to be whole)")


def test_where_no_device_holds_the_graph_its_row_says_so():
    graph = lm.read("example:lenet")
    peak = int(lm.place(graph, "1xV100-PCIe").memory.peak.max())
    cluster = lm.Cluster.preset("4xV100-PCIe").with_memory(int(peak * 0.8))
    plan = lm.place(graph, cluster)
    *rows, last = considered(plan)
    assert (last.kind, last.seconds, last.ratio) == ("one device", None, None)
    assert all(row.ratio is None for row in rows)
    assert "found none that holds everything, in any order tried" in str(plan)


def test_a_plan_over_the_memory_says_so_and_comes_behind_what_fits():
    graph = lm.read("example:lenet")
    cluster = lm.Cluster.preset("2xV100-NVLink").with_memory(1 << 20)
    plan = lm.place(graph, cluster, "heft", on_oom="best_effort")
    (own,) = [row for row in considered(plan) if row.is_plan]
    assert not own.fits
    assert "DOES NOT FIT" in str(plan)


def test_one_device_alone_leaves_nothing_out():
    plan = lm.place("example:lenet", "1xV100-PCIe")
    assert [row.kind for row in considered(plan)] == ["one device"]
    assert not_considered(plan) == ""
    assert "Not considered" not in str(plan)


@pytest.mark.parametrize("costs", [None, "roofline"])
def test_kinds_of_a_training_stream_were_judged_by_one_step(costs):
    """Where the next step waits for updates, no seconds of other kinds are periods."""
    plan = lm.place("example:lenet", "4xV100-PCIe", objective="throughput", costs=costs)
    assert plan.offers == ()
    assert all(why.endswith("by one step's time") for _, why in plan.left_out)
    assert {kind for kind, _ in plan.left_out} | {kind_of(plan), "one device"} == set(REQUESTS)
