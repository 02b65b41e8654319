"""Schedules of pipelines: textbook figures in whole ticks, and what is searched for."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipelined import staged, uniform
from strategies import in_ms

import loadmaster as lm
from loadmaster.judge.timeline import Timeline
from loadmaster.model.micro import Micro
from loadmaster.strategies.candidate import judged
from loadmaster.strategies.pipelines.batched import MicroBatched
from loadmaster.strategies.pipelines.estimates import StageTimes, estimated, most_at_once
from loadmaster.strategies.pipelines.phases import PASSES
from loadmaster.strategies.pipelines.schedules import (
    INTERLEAVED,
    NAMED,
    Windows,
    actions,
    alive_of_stages,
    in_windows,
    named_for,
    windows,
)
from loadmaster.strategies.pipelines.scheduling import scheduled
from loadmaster.strategies.pipelines.searching import searched
from loadmaster.strategies.pipelines.staged import (
    Staged,
    in_flight,
    kept_bytes,
    most_alive,
    stage_times,
)

SIZES = [(2, 4), (3, 5), (4, 8), (4, 12), (8, 16)]


def step_ms(candidate) -> int:
    return in_ms([candidate.verdict.step_time])[0]


# -- as data -----------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", NAMED)
@pytest.mark.parametrize(("p", "m"), [*SIZES, (1, 1), (5, 3)])
def test_each_device_does_everything_once_and_after_what_it_needs(schedule, p, m):
    virtual = 2 if schedule in INTERLEAVED else 1
    kinds = "FBW" if schedule in ("zero-bubble", "zb-v") else "FB"
    for s, device in enumerate(actions(schedule, p, m, virtual)):
        every = {(kind, c, j) for kind in kinds for c in range(virtual) for j in range(m)}
        assert len(device) == len(every)
        assert set(device) == every
        at = {action: i for i, action in enumerate(device)}
        assert all(
            at["F", c, j] < at["B", c, j] < at.get(("W", c, j), len(device))
            for c in range(virtual)
            for j in range(m)
        )
        alive = np.cumsum([{"F": 1, kinds[-1]: -1}.get(a.kind, 0) for a in device])
        assert alive.max() <= windows(schedule, p, m, virtual).alive[s]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: actions("pipedream-2bw", 2, 4), "schedule is 'pipedream-2bw': wants one of gpipe"),
        (lambda: actions("1f1b", 2, 0), "m is 0: wants an integer, at least 1"),
        (lambda: actions("1f1b", 2, 4, 2), "'1f1b' with 2 stages per device"),
        (lambda: actions("interleaved-1f1b", 2, 4), "interleaved-1f1b needs at least 2"),
        (lambda: actions("zb-v", 2, 4, 3), "zb-v needs 2"),
        (
            lambda: scheduled(uniform(2, 4, 1, 1, 1, virtual=2), "zb-v"),
            "through the devices and back",
        ),
        (lambda: scheduled(in_v(2, 4), "interleaved-1f1b"), "through the devices in turn"),
        (lambda: Micro(4, "zb-v"), "devices have 2 stages each"),
        (
            lambda: estimated(StageTimes.of([1.0] * 3), 4, virtual=2),
            "3 stages are not 2 per device",
        ),
        (lambda: StageTimes.of([1.0, -1.0]), "forward is .*: wants seconds >= 0"),
        (lambda: StageTimes.of([1.0, 1.0], [1.0] * 3), "backward has shape"),
        (lambda: searched(StageTimes.of([1.0] * 2), 4, most_alive=[0, 1]), "most_alive is"),
    ],
)
def test_what_no_schedule_has_is_refused(call, message):
    with pytest.raises(lm.InputError, match=message):
        call()


# -- textbook figures, op by op ------------------------------------------------------------------


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("p", "m"), SIZES)
@pytest.mark.parametrize(("forward", "backward"), [(1, 1), (1, 2), (3, 5)])
def test_idle_share_of_gpipe_and_1f1b_is_exact(schedule, p, m, forward, backward):
    given = uniform(p, m, forward, backward)
    found = scheduled(given, schedule)
    busy = in_ms(found.schedule.device_busy)
    assert busy == [m * (forward + backward)] * p
    assert 1 - Fraction(busy[0], step_ms(found)) == Fraction(p - 1, m + p - 1)
    alive = [m] * p if schedule == "gpipe" else [p - s for s in range(p)]
    assert in_flight(given, found).tolist() == alive


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (4, 12), (8, 16)])
@pytest.mark.parametrize("virtual", [2, 3])
def test_idle_share_of_interleaved_1f1b_is_exact(p, m, virtual):
    found = scheduled(uniform(p, m, 1, 2, virtual=virtual), "interleaved-1f1b")
    busy = in_ms(found.schedule.device_busy)
    assert busy == [3 * m * virtual] * p
    assert 1 - Fraction(busy[0], step_ms(found)) == Fraction(p - 1, virtual * m + p - 1)


@pytest.mark.parametrize(("p", "m"), [(2, 4), (3, 6), (4, 8), (4, 9), (8, 16)])
def test_zero_bubble_idles_at_most_half_as_long_as_1f1b(p, m):
    # An update of one tick a stage, so that gradients of weights are seen to be such.
    given = uniform(p, m, 1, 1, 1, 1)
    one, zero = (scheduled(given, name) for name in ("1f1b", "zero-bubble"))
    work = 3 * m + 1
    assert in_ms(zero.schedule.device_busy) == [work] * p
    # Qi et al. 2023, table 2: (p - 1) (F + B - W).
    assert step_ms(zero) - work == p - 1
    assert 2 * (step_ms(zero) - work) <= step_ms(one) - work
    assert in_flight(given, zero).max() <= 2 * p - 1
    # Where gradients of weights are no ops of their own, 1F1B idles three times as long.
    assert step_ms(scheduled(uniform(p, m, 1, 2), "1f1b")) - 3 * m == 3 * (p - 1)


def in_v(p, m):
    """Stages in a V whose passes all take a tick, with an update of one."""
    return uniform(p, m, 1, 1, 1, 1, virtual=2, in_v=True)


@pytest.mark.parametrize(("p", "m"), [(2, 4), (3, 6), (4, 8), (4, 9), (8, 16)])
def test_a_v_idles_while_it_fills_alone_and_keeps_alive_what_1f1b_does(p, m):
    given = in_v(p, m)
    found = scheduled(given, "zb-v")
    work = 6 * m + 2
    assert in_ms(found.schedule.device_busy) == [work] * p
    assert step_ms(found) - work == p - 1
    # Of half a stage of 1F1B each.
    assert windows("zb-v", p, m, 2).alive == (2 * p,) * p
    assert in_flight(given, found).max() <= 2 * p
    seen = estimated(stage_times(given), m, "zb-v", virtual=2)
    assert in_ms([seen.seconds]) == in_ms([found.verdict.step_time])


def test_stages_of_a_v_keep_no_more_alive_than_is_counted():
    given = in_v(4, 8)
    found = scheduled(given, "zb-v")
    many, n = given.passes >= 0, 8 * 8
    of = given.of_op[many].astype(int) * 8 + given.micro[many]
    begin, end = np.full(n, np.inf), np.zeros(n)
    np.minimum.at(begin, of, found.schedule.start[many])
    np.maximum.at(end, of, found.schedule.finish[many])
    seen = [most_at_once(begin[at : at + 8], end[at : at + 8]) for at in range(0, n, 8)]
    assert seen <= [*alive_of_stages(windows("zb-v", 4, 8, 2), 8, 2)]
    assert max(seen) > 1


def test_priorities_alone_run_ahead_and_control_edges_hold_them_back():
    given = uniform(4, 8, 2, 5)
    free = judged(given.problem, scheduled(given, "1f1b").assignment)
    held = scheduled(given, Windows((4, 3, 2, 1), in_order=False))
    assert in_flight(given, free).tolist() == [8, 8, 5, 1]
    assert in_flight(given, held).tolist() == [4, 3, 2, 1]
    assert free.verdict.step_time == held.verdict.step_time
    # One edge per forward pass that has to wait.
    added = held.problem.model.n_edges - given.problem.model.n_edges
    assert added == 4 + 5 + 6 + 7


def test_control_edges_bound_the_bytes_that_are_kept():
    given = uniform(4, 8, 1, 2, kept=1 << 20)
    peaks = [scheduled(given, name).verdict.peak.tolist() for name in ("gpipe", "1f1b")]
    assert peaks == [[8 << 20] * 4, [4 << 20, 3 << 20, 2 << 20, 1 << 20]]


def test_ops_are_forward_backward_or_gradients_of_weights():
    given = uniform(3, 2, 1, 1, 1, 1)
    model, op_of = given.problem.model, given.problem.reduced.op_of
    kinds = ["once" if k < 0 else PASSES[k] for k in given.passes]
    assert {(model.names[op][:2], kind) for op, kind in zip(op_of, kinds, strict=True)} == {
        *((f"F{k}", "F") for k in range(3)),
        *((f"U{k}", "once") for k in range(3)),
        *((f"B{k}", "B") for k in range(3)),
        *((f"W{k}", "W") for k in (1, 2)),
        # All of the first stage's backward pass leads to its one gradient.
        ("W0", "B"),
    }


@pytest.mark.parametrize(
    ("stage", "devices", "message"),
    [
        ([0, 1, 1, 0, 5, 0], [0, 1], "op 'U0' is of stage 5, and there are stages 0 to 1"),
        ([0, 1], [0, 1], "stage has shape"),
        ([0, 1, 1, 0, 0, 1], [0, 7], "the cluster has devices 0 to 1"),
        ([0, 1, 1, 0, 0, 1], [[0, 1], [1, 0]], "stages have 2 devices each"),
        ([0, 1, 1, 0, 0, 1], [0, 1, 1], "wants those of the first stages, then the same again"),
    ],
)
def test_stages_that_cannot_be_are_refused(stage, devices, message):
    batched = uniform(2, 2, 1, 1, (), 1).batched
    with pytest.raises(lm.InputError, match=message):
        Staged.of(batched, np.array(stage), np.array(devices))


def test_a_program_without_micro_batches_is_refused():
    problem = uniform(2, 2, 1, 1).problem
    plain = lm.simulate(problem.model, problem.cluster, [0] * problem.model.n_ops)._problem
    with pytest.raises(lm.InputError, match="the program has no micro-batches"):
        Staged.of(MicroBatched(plain), np.zeros(plain.model.n_ops), [0])


# -- the estimate ------------------------------------------------------------------------------


stages = st.integers(1, 5).flatmap(
    lambda p: st.tuples(
        *(st.lists(st.integers(1, 9), min_size=p, max_size=p) for _ in range(2)),
        st.integers(0, 4),
        st.integers(1, 9),
        st.booleans(),
    )
)


@given(stages, st.sampled_from(named_for(1)))
def test_the_estimate_is_what_the_judge_sees_of_a_chain(case, schedule):
    forward, backward, sent, m, in_order = case
    given = staged(m, [forward, backward], sent=sent)
    how = windows(schedule, len(forward), m)
    how = Windows(how.ahead, None, in_order)
    found = scheduled(given, how)
    seen = estimated(stage_times(given), m, how)
    assert in_ms([seen.seconds]) == in_ms([found.verdict.step_time])
    assert seen.in_flight.tolist() == in_flight(given, found).tolist()
    assert in_ms(seen.busy) == in_ms(found.schedule.device_busy)


def test_the_estimate_knows_interleaved_stages_and_updates():
    given = uniform(4, 8, 1, 2, (), 3, virtual=2, sent=1)
    found = scheduled(given, "interleaved-1f1b")
    seen = estimated(stage_times(given), 8, "interleaved-1f1b", virtual=2)
    assert in_ms([seen.seconds]) == in_ms([found.verdict.step_time])


# -- what is searched for ----------------------------------------------------------------------


@st.composite
def times(draw):
    p = draw(st.integers(2, 5))
    column = st.lists(st.integers(1, 9), min_size=p, max_size=p)
    forward, backward, weight = (draw(column) for _ in range(3))
    send = draw(st.integers(0, 4))
    return StageTimes.of(forward, backward, weight, send=send, send_back=send)


@settings(max_examples=20)
@given(times(), st.integers(1, 10), st.one_of(st.none(), st.integers(1, 6)))
def test_what_is_searched_for_is_never_worse_than_what_has_a_name(times, m, limit):
    p = len(times)
    most = None if limit is None else [limit] * p
    found = searched(times, m, most_alive=most, budget=100)
    seen = estimated(times, m, found)
    if limit is not None:
        assert seen.in_flight.max() <= limit
    for name in named_for(1):
        if max(alive_of_stages(windows(name, p, m), m, 1)) <= (limit or m):
            assert seen.seconds <= estimated(times, m, name).seconds
    assert found == searched(times, m, most_alive=most, budget=100)


def test_with_fewer_micro_batches_than_stages_gradients_of_weights_may_come_last():
    """The middle stage has its two forward passes done at 3, and what it reads of the last stage
    from 4 on. If gradients of weights come last, its backward passes end at 6 and 8, and with two
    of these it is done at 10. Else the first stage would wait for its second backward pass until 9,
    and be done at 11.
    """
    times = StageTimes.of([1.0] * 3, [1.0, 2.0, 1.0], 1.0)
    assert estimated(times, 2, Windows((2, 2, 1), (0, 0, 1))).seconds == 11
    assert estimated(times, 2, "zero-bubble").seconds == 10
    assert estimated(times, 2, searched(times, 2)).seconds == 10


def test_slow_links_are_hidden_by_more_ahead():
    times = StageTimes.of([2.0] * 4, 2.0, 2.0, send=2.0, send_back=2.0)
    named = {name: estimated(times, 12, name).seconds for name in ("1f1b", "gpipe", "zero-bubble")}
    found = estimated(times, 12, searched(times, 12)).seconds
    assert found < 0.95 * min(named.values())
    # Nobody can do all of its work sooner than the last device, which the first micro-batch reaches
    # after three passes and transfers.
    assert found <= 1.03 * (3 * 4.0 + 12 * 6.0)


def test_what_is_searched_for_fits_the_memory():
    free = uniform(4, 8, 1, 1, 1, 1, kept=1 << 20)
    assert kept_bytes(free).tolist() == [2 << 20] * 4
    assert most_alive(free, scheduled(free, "1f1b")).tolist() == [8] * 4
    tight = uniform(4, 8, 1, 1, 1, 1, kept=1 << 20, memory="6MiB")
    assert most_alive(tight, scheduled(tight, "1f1b")).tolist() == [3] * 4
    names = ("gpipe", "1f1b", "zero-bubble")
    assert not any(scheduled(tight, name).fits for name in names)
    found = scheduled(tight, "searched")
    assert found.fits
    assert in_flight(tight, found).max() <= 3


def test_windows_by_which_stages_would_wait_for_each_other_are_refused():
    with pytest.raises(lm.InputError, match="cycle"):
        estimated(StageTimes.of([1.0, 1.0], 1.0), 4, Windows((1, 3)))
    with pytest.raises(lm.InputError, match="cycle"):
        scheduled(uniform(2, 4, 1, 1), Windows((1, 3)))


def test_a_schedule_as_windows_is_the_named_one():
    assert in_windows(Windows((3, 2, 1)), 6) == actions("1f1b", 3, 6)


@pytest.mark.parametrize("schedule", ["1f1b", "zero-bubble"])
def test_gradients_of_tied_weights_cross_after_those_of_micro_batches(schedule):
    graph, cluster = lm.read("example:bert-large"), lm.Cluster.preset("4xV100-PCIe")
    first = lm.place(graph, cluster, "layers")
    problem = first.problem.transformed(lm.transforms.micro_batches(graph, 4))
    given = Staged.of(MicroBatched(problem), first.devices, range(4))
    found = scheduled(given, schedule)
    sent = Timeline.simulated(found.problem, found.schedule, found.assignment.devices).transfers
    back = np.flatnonzero(sent.src == 3)
    tied = back[np.argmax(sent.bytes[back])]
    assert sent.dst[tied] == 0
    assert sent.bytes[tied] == 30522 * 1024 * 4
    passed = (given.placed == 3) & (given.passes == PASSES.index("B"))
    assert sent.queued[tied] >= found.schedule.finish[passed].max()
    assert sent.start[tied] >= sent.start[back].max()
