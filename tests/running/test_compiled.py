"""Compiled plans: the simulator's transfers, every op once, nothing read before it is there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from interpreted import Interpreter, pairs
from placed import with_devices
from strategies import clusters, graph_of, ms_mesh, op_graphs, placements

import loadmaster as lm
from loadmaster.readers.examples import EXAMPLES
from loadmaster.running.devices.compiled import compile_plan

FOUR = "4xV100-PCIe"


def step(compiled, seed=0):
    """One interpreted step; every claim of the interpreter holds."""
    seen = Interpreter(compiled, seed)
    ran = seen.run()
    assert sorted(ran) == np.flatnonzero(compiled.device >= 0).tolist()
    assert not any(seen.uses)
    return seen


def as_planned(compiled, plan):
    """The transfers of a compiled plan are the simulator's."""
    planned, sent = plan.schedule.transfers, compiled.transfers
    assert len(sent) == len(planned)
    for column in ("tensor", "src", "dst", "bytes"):
        assert getattr(sent, column).tolist() == getattr(planned, column).tolist()
    data = [compiled.pieces.sent[i] for i in range(len(sent)) if sent.tensor[i] >= 0]
    assert all(piece >= 0 for piece in data)
    on = plan.running_devices
    runs = compiled.device[: compiled.n_ops] >= 0
    assert compiled.device[: compiled.n_ops][runs].tolist() == on[runs].tolist()
    assert runs.tolist() == (~plan.program.graph.placeholder).tolist()


@pytest.mark.parametrize("name", sorted(EXAMPLES))
@pytest.mark.parametrize("method", ["heft", "random", "data-parallel", "round-robin"])
def test_transfers_are_those_of_the_simulator(name, method):
    graph = lm.read(f"example:{name}")
    costs = next(iter(graph.time.values()))[:, None] if name == "googlenet" else None
    cluster = lm.Cluster.preset(FOUR)
    try:
        plan = lm.place(graph, cluster, method, costs=costs, on_oom="best_effort")
    except lm.InputError as error:
        assert method == "data-parallel"
        pytest.skip(f"has no replicas: {error}")
    compiled = compile_plan(plan)
    as_planned(compiled, plan)
    if compiled.n_tasks < 3000:
        step(compiled)


def test_auto_runs_in_its_fixed_order():
    plan = lm.place(lm.read("example:lenet"), lm.Cluster.preset(FOUR), "auto", effort="fast")
    compiled = compile_plan(plan)
    as_planned(compiled, plan)
    step(compiled)


@given(st.data())
def test_drawn_plans_run_to_the_end(data):
    """Views, in-place ops, control edges, every kind of link, both policies, any interleaving."""
    graph, cluster = data.draw(op_graphs()), data.draw(clusters())
    plan = with_devices(graph, data.draw(placements(graph, cluster)), cluster)
    if data.draw(st.booleans()):
        order = np.argsort(np.lexsort((plan.schedule.finish, plan.schedule.start)))
        fixed = order[plan.problem.reduced.op_of].astype(np.int32)
        assignment = replace(plan.assignment, priority=fixed, policy="fixed")
        plan = replace(plan, assignment=assignment)
    compiled = compile_plan(plan)
    n = len(plan.schedule.transfers)
    assert compiled.transfers.bytes[:n].tolist() == plan.schedule.transfers.bytes.tolist()
    seen = step(compiled, data.draw(st.integers(0, 3)))
    position = {task: at for at, task in enumerate(seen.ran)}
    for transfer, writer in pairs(compiled.overwritten):
        after = int(compiled.after[transfer])
        assert after < 0 or position[after] < position[writer], "the copy is of a later version"


def test_a_copy_is_of_the_version_that_its_reader_wants():
    """``a`` is changed in place; one reader elsewhere wants it before, one after the change."""
    graph = graph_of(
        {"a": 1, "before": 1, "change": 1, "after": 1},
        [("a", "before", 8, 0), ("a", "change", 8, 0), ("a", "after", 8, 0),
         ("before", "change", 0, -1), ("change", "after", 0, -1)],
        alias_of=[-1, -1, 0, -1],
    )  # fmt: skip
    plan = with_devices(graph, [0, 1, 0, 1], ms_mesh(2))
    compiled = compile_plan(plan)
    data = np.flatnonzero(compiled.transfers.tensor >= 0)
    assert compiled.after[data].tolist() == [0, 2]
    assert (len(compiled.transfers), len(plan.schedule.transfers)) == (4, 3)
    assert pairs(compiled.overwritten) == [(int(data[0]), 2)]
    step(compiled)


def test_one_reader_after_the_change_gets_the_plans_transfer():
    graph = graph_of(
        {"a": 1, "change": 1, "after": 1},
        [("a", "change", 8, 0), ("a", "after", 8, 0), ("change", "after", 0, -1)],
        alias_of=[-1, 0, -1],
    )
    plan = with_devices(graph, [0, 0, 1], ms_mesh(2))
    compiled = compile_plan(plan)
    as_planned(compiled, plan)
    assert compiled.after[compiled.transfers.tensor >= 0].tolist() == [1]


def test_writes_that_the_graph_does_not_tell_of_are_given():
    """A batch norm (``norm``) updates a buffer that an op elsewhere reads after it."""
    graph = lm.OpGraph(
        {"name": ["mean", "norm", "after"], "kind": ["buffer", "norm", "mul"],
         "param_bytes": [4, 0, 0], "time": {"*": [0, 1e-3, 1e-3]}},
        {"src": [0, 0, 1], "dst": [1, 2, 2], "tensor": [0, 0, -1], "bytes": [4, 4, 0]},
    )  # fmt: skip
    plan = with_devices(graph, [0, 0, 1], ms_mesh(2))
    told, untold = compile_plan(plan, ([1], [0])), compile_plan(plan)
    sent = plan.schedule.transfers.tensor >= 0
    assert (told.after[sent].tolist(), untold.after[sent].tolist()) == ([1], [-1])
    with pytest.raises(lm.InputError, match="op 3: the graph has 3"):
        compile_plan(plan, ([3], [0]))


def test_a_view_of_all_of_a_tensor_travels_as_the_tensor_and_a_part_as_itself():
    graph = graph_of(
        {"a": 1, "whole": 0, "part": 0, "b": 1, "c": 1},
        [("a", "whole", 8, 0), ("a", "part", 8, 0), ("whole", "b", 8, 1), ("part", "c", 3, 2)],
        view=[0, 1, 1, 0, 0],
        alias_of=[-1, 0, 0, -1, -1],
    )
    plan = with_devices(graph, [0, 0, 0, 1, 1], ms_mesh(2))
    compiled = compile_plan(plan)
    as_planned(compiled, plan)
    assert compiled.transfers.tensor.tolist() == [0, 2]
    assert compiled.after.tolist() == [0, 2]
    read = compiled.pieces.read.tolist()
    assert [compiled.pieces.tensor[read[e]] for e in (2, 3)] == [0, 2]
    assert compiled.at_once.tolist() == [False, True, True, False, False]
    step(compiled)


def test_members_of_a_collective_bring_their_shares_and_wait_for_all():
    graph = graph_of(
        {"a": 1, "b": 2, "sum_a": 0, "sum_b": 0, "use": 1},
        [("a", "sum_a", 8), ("b", "sum_b", 8), ("sum_a", "use", 8)],
        collective=["", "", "all_reduce/x", "all_reduce/x", ""],
        output_bytes=[8, 8, 8, 8, 0],
    )
    plan = with_devices(graph, [0, 1, 0, 1, 0], ms_mesh(2))
    compiled = compile_plan(plan)
    assert compiled.n_tasks == 7
    assert compiled.members.tolist() == [2, 3]
    assert pairs(compiled.waits) == [(0, 2), (0, 3), (1, 2), (1, 3)]
    ran = step(compiled).ran
    assert max(ran.index(5), ran.index(6)) < min(ran.index(2), ran.index(3))


def test_a_piece_is_freed_by_its_last_reader_or_sender():
    graph = graph_of({"a": 1, "b": 1, "c": 1, "d": 1},
                     [("a", "b", 8), ("a", "c", 8), ("a", "d", 8), ("b", "d", 1)])  # fmt: skip
    plan = with_devices(graph, [0, 0, 1, 0], ms_mesh(2))
    compiled = compile_plan(plan)
    pieces = compiled.pieces
    home = int(np.flatnonzero((pieces.tensor == 0) & (pieces.brought < 0))[0])
    copy = int(np.flatnonzero(pieces.brought >= 0)[0])
    assert (pieces.uses[home], pieces.uses[copy]) == (3, 1)
    seen = step(compiled)
    ended = {piece: seen.ran[at - 1] for at, piece in seen.freed}
    assert (ended[home], ended[copy]) == (3, 2)


def test_what_a_device_waits_for_is_said_by_name():
    graph = graph_of({"a": 1, "b": 1}, [("a", "b", 8)])
    compiled = compile_plan(with_devices(graph, [0, 1], ms_mesh(2)))
    words = compiled.waiting([[], [(1, [0], [])]], ["left", "right"])
    assert words == "op 'b' on right waits for tensor 0 of 'a' from left"
