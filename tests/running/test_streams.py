"""Programs of streams: every read is after its write, by the streams' order and events alone."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from interpreted import pairs
from placed import with_devices
from strategies import clusters, graph_of, ms_mesh, op_graphs, placements

import loadmaster as lm
from loadmaster.readers.examples import EXAMPLES
from loadmaster.running.devices.compiled import compile_plan
from loadmaster.running.devices.emulated import held_channels
from loadmaster.running.devices.streams import StreamProgram, What, stream_program

FOUR = "4xV100-PCIe"


class UnorderedError(AssertionError):
    """Nothing keeps one thing after another."""


def check(compiled, program: StreamProgram, holds=None) -> None:
    """Raises where streams and events do not keep what must be in order.

    A set of bits per instruction has all that is certain to be done before it: what is before it in
    its stream, and, after a wait, what was before the event.
    """
    last, event, done = {}, {}, {}
    place = {}
    for i, (what, stream, item) in enumerate(program):
        before = last.get(stream, 0)
        if what is What.RECORD:
            event[item] = before
        elif what is What.WAIT:
            before |= event[item]  # a wait for an event that no one has recorded yet is a KeyError
        else:
            place[what, item] = i
        done[i] = before
        last[stream] = before | 1 << i

    def after(first, then, why):
        if not done[place[then]] >> place[first] & 1:
            raise UnorderedError(f"{then} may run before {first}: {why}")

    n, sent = compiled.n_ops, compiled.n_transfers
    members = compiled.members.tolist()

    def task(number):
        return (What.GATHER, members[number - n]) if number >= n else (What.RUN, number)

    for first, then in pairs(compiled.order):
        after(task(first), task(then), "order")
    for arrival, waiter in pairs(compiled.waits):
        if arrival >= sent:
            after((What.GATHER, members[arrival - sent]), task(waiter), "collective")
        elif compiled.transfers.tensor[arrival] >= 0:
            after((What.COPY, arrival), task(waiter), "transfer")
        else:
            after(task(int(compiled.after[arrival])), task(waiter), "message")
    for transfer in np.flatnonzero(compiled.transfers.tensor >= 0).tolist():
        if compiled.after[transfer] >= 0:
            after(task(int(compiled.after[transfer])), (What.COPY, transfer), "made")
    for transfer, writer in pairs(compiled.overwritten):
        after((What.COPY, transfer), (What.RUN, writer), "overwritten")
    # Each once, where it belongs.
    ran = [(what, item) for what, _, item in program if what in (What.RUN, What.COPY, What.GATHER)]
    assert len(ran) == len(set(ran))
    assert (
        sorted(i for w, i in ran if w is What.RUN)
        == np.flatnonzero(compiled.device[:n] >= 0).tolist()
    )
    assert (
        sorted(i for w, i in ran if w is What.COPY)
        == np.flatnonzero(compiled.transfers.tensor >= 0).tolist()
    )
    for what, stream, item in program:
        if what is What.RUN:
            assert stream == compiled.device[item]
        elif what is What.COPY:
            on = program.streams[stream]
            assert (on.src, on.dst) == (compiled.transfers.src[item], compiled.transfers.dst[item])
    if holds is not None:
        by_channel = {}
        for transfer, channel in pairs(holds):
            if (What.COPY, transfer) in place:
                by_channel.setdefault(channel, []).append(transfer)
        for transfers in by_channel.values():
            transfers.sort(key=lambda t: place[What.COPY, t])
            for first, then in pairwise(transfers):
                after((What.COPY, first), (What.COPY, then), "channel")


@pytest.mark.parametrize("name", sorted(set(EXAMPLES) - {"bert-large", "gpt3-330m", "mixtral"}))
@pytest.mark.parametrize("method", ["heft", "random", "data-parallel"])
def test_every_read_is_after_its_write(name, method):
    graph = lm.read(f"example:{name}")
    costs = next(iter(graph.time.values()))[:, None] if name == "googlenet" else None
    plan = lm.place(graph, lm.Cluster.preset(FOUR), method, costs=costs, on_oom="best_effort")
    compiled = compile_plan(plan)
    program = stream_program(compiled)
    check(compiled, program)
    assert (program.kind == What.RECORD).sum() == program.n_events


@given(st.data())
def test_drawn_plans_keep_their_order(data):
    graph, cluster = data.draw(op_graphs()), data.draw(clusters())
    plan = with_devices(graph, data.draw(placements(graph, cluster)), cluster)
    compiled = compile_plan(plan)
    check(compiled, stream_program(compiled))
    holds = held_channels(plan, compiled)
    check(compiled, stream_program(compiled, holds), holds)


def test_ops_of_a_device_are_issued_as_they_were_simulated():
    plan = lm.place(lm.read("example:lenet"), lm.Cluster.preset(FOUR), "heft")
    compiled = compile_plan(plan)
    issued = [item for what, _, item in stream_program(compiled) if what is What.RUN]
    for device in range(4):
        here = [i for i in issued if compiled.device[i] == device and not compiled.at_once[i]]
        assert plan.schedule.start[here].tolist() == sorted(plan.schedule.start[here])


def test_no_wait_can_be_left_out():
    """Two readers of one copy wait for it once; each wait that there is is needed."""
    graph = graph_of({"a": 1, "b": 1, "c": 1, "d": 1},
                     [("a", "b", 8), ("a", "c", 8), ("b", "d", 8), ("c", "d", 8)])  # fmt: skip
    compiled = compile_plan(with_devices(graph, [0, 1, 1, 0], ms_mesh(2)))
    program = stream_program(compiled)
    waits = np.flatnonzero(program.kind == What.WAIT)
    assert len(waits) == 5  # a's copy for a, b for it, two copies back, d for the last
    for at in waits.tolist():
        keep = np.arange(len(program)) != at
        columns = {name: getattr(program, name)[keep] for name in ("kind", "stream", "item")}
        with pytest.raises(UnorderedError):
            check(compiled, replace(program, **columns))


def test_a_message_is_an_event_without_a_copy():
    graph = graph_of({"a": 1, "b": 1}, [("a", "b", 0, -1)])
    program = stream_program(compile_plan(with_devices(graph, [0, 1], ms_mesh(2))))
    assert [what for what, *_ in program] == [What.RUN, What.RECORD, What.WAIT, What.RUN]


def test_a_change_in_place_waits_for_the_copy_of_what_was_there():
    graph = graph_of(
        {"a": 1, "read": 1, "change": 1},
        [("a", "read", 8, 0), ("a", "change", 8, 0)],
        alias_of=[-1, -1, 0],
    )
    compiled = compile_plan(with_devices(graph, [0, 1, 0], ms_mesh(2)))
    assert len(pairs(compiled.overwritten)) == 1
    check(compiled, stream_program(compiled))


def test_members_of_a_collective_are_issued_together():
    plan = lm.place(lm.read("example:alexnet"), lm.Cluster.preset(FOUR), "data-parallel")
    compiled = compile_plan(plan)
    members = [item for what, _, item in stream_program(compiled) if what is What.GATHER]
    groups = [set(group) for group in compiled.timeline.collectives.members]
    while members:
        group = next(g for g in groups if members[0] in g)
        assert set(members[: len(group)]) == group
        members = members[len(group) :]
