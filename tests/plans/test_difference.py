"""Two plans side by side: what moved, what it gained, what each move alone is worth."""

from __future__ import annotations

import json

import numpy as np
import pytest
from pictured import hand_made

import loadmaster as lm
from loadmaster.base.errors import InputError
from loadmaster.cli import main
from loadmaster.plans.difference import MAX_MOVES


@pytest.fixture(scope="module")
def plans():
    graph, cluster = lm.read("example:inception-v3"), lm.Cluster.preset("4xV100-PCIe")
    return lm.compare(graph, cluster, ["celeritas", "m-etf", "layers"]).plans


def test_a_plan_does_not_differ_from_itself(plans):
    same = plans["m-etf"].diff(plans["m-etf"])
    assert (same.moved_ops, same.reordered, same.moves, same.other_moves) == (0, 0, (), 0)
    assert (same.gain, same.speedup) == (0.0, 1.0)
    assert all((d.busy_before, d.peak_before) == (d.busy_after, d.peak_after) for d in same.loads)


def test_a_move_by_hand():
    """b takes 2 ms on the other device and waits 2 ms for its two inputs; c reads a by a view."""
    plan = hand_made()
    alone = lm.place(plan.graph, plan.cluster, "single")
    seen = alone.diff(plan)
    assert seen.makespans == (alone.makespan, plan.makespan)
    moved = alone.assignment.devices != plan.assignment.devices
    assert seen.moved_ops == moved.sum() == 3
    [move] = seen.moves
    assert (move.source, move.target) == (
        alone.cluster.devices[0].name,
        alone.cluster.devices[1].name,
    )
    assert (move.ops, move.example, move.time) == (3, "c", pytest.approx(5e-3))
    # All that moved is one move: taken back, the step is as it was.
    assert move.worth == pytest.approx(alone.makespan - plan.makespan)
    [first, second] = seen.loads
    assert (first.busy_before, first.busy_after) == pytest.approx((6e-3, 1e-3))
    assert (second.busy_before, second.busy_after) == pytest.approx((0.0, 5e-3))


def test_moves_count_every_op_once_and_worth_is_what_the_simulator_says(plans):
    before, after = plans["celeritas"], plans["layers"]
    seen = before.diff(after)
    moved = np.flatnonzero(before.assignment.devices != after.assignment.devices)
    assert seen.moved_ops == len(moved) == sum(m.ops for m in seen.moves) + seen.other_moves
    assert len(seen.moves) <= MAX_MOVES
    assert [m.time for m in seen.moves] == sorted((m.time for m in seen.moves), reverse=True)
    assert seen.speedup == pytest.approx(before.makespan / after.makespan)
    back = after.diff(before)
    assert back.gain == -seen.gain
    assert (back.moved_ops, back.reordered) == (seen.moved_ops, seen.reordered)
    names = [d.name for d in after.cluster.devices]
    modules = after.graph.modules
    move = next(m for m in seen.moves if m.worth is not None)
    op_of = after.problem.reduced.op_of
    ops = [
        op
        for op in moved.tolist()
        if (modules[op_of[op]] + ".").startswith(f"{move.module}." if move.module else "")
        and names[before.assignment.devices[op]] == move.source
        and names[after.assignment.devices[op]] == move.target
    ]
    if len(ops) == move.ops:
        devices = after.assignment.devices.copy()
        devices[ops] = names.index(move.source)
        again = after.problem.simulate(devices, after.assignment.priority, policy=after.policy)
        assert move.worth == pytest.approx(again.makespan - after.makespan)


def test_devices_go_by_name_across_clusters(plans):
    plan = plans["m-etf"]
    fewer = lm.Cluster.preset("2xV100-NVLink")
    other = lm.place(plan.graph, fewer, "m-etf", on_oom="best_effort")
    seen = plan.diff(other)
    assert [load.device for load in seen.loads] == [d.name for d in plan.cluster.devices]
    assert {m.worth for m in seen.moves if m.source in ("gpu2", "gpu3")} <= {None}
    assert all(load.busy_after == 0 for load in seen.loads[2:])


def test_plans_for_other_ops_are_refused(plans):
    other = lm.place(lm.read("example:lenet"), lm.Cluster.preset("4xV100-PCIe"), "single")
    with pytest.raises(InputError, match="different graphs"):
        plans["m-etf"].diff(other)


def test_from_the_command_line(plans, tmp_path, capsys):
    paths = []
    for name in ("celeritas", "m-etf"):
        paths.append(str(tmp_path / f"{name}.json"))
        plans[name].save(paths[-1])
    assert main(["diff", *paths, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["gain"] == plans["celeritas"].makespan - plans["m-etf"].makespan
    assert main(["diff", *paths]) == 0
    said = capsys.readouterr().out
    assert "on another device" in said
    assert "taken back alone" in said
    assert main(["explain", paths[0], "convolution"]) == 0
    assert "it waited for" in capsys.readouterr().out
    assert main(["explain", paths[0], "convolution", "--json"]) == 0
    explained = json.loads(capsys.readouterr().out)
    same = plans["celeritas"].explain("convolution").to_document()
    assert explained == json.loads(json.dumps(same))
    assert main(["explain", paths[0], "convolutoin"]) == 2
    assert "convolution" in capsys.readouterr().err
