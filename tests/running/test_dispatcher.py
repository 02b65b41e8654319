"""fast.Board, fast.Part and fast.Dispatcher: what a worker in Python sees of them."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import loadmaster as lm
from loadmaster import fast

NONE = np.empty(0, dtype=np.int32), np.empty(0, dtype=np.int32)


def ids(*values):
    return np.array(values, dtype=np.int32)


def board(n_devices, n_arrivals, n_tasks):
    arrays = [np.zeros(n, np.uint64) for n in fast.Board.words(n_devices, n_arrivals, n_tasks)]
    return fast.Board(*arrays), arrays


def part(device, *tasks, waits=NONE, sends=NONE, order=NONE, fixed=False):
    columns = ids(*tasks), ids(*tasks), np.zeros(len(tasks), dtype=bool)
    return fast.Part(device, columns, order, waits, sends, fixed=fixed)


def test_two_threads_hand_over_what_one_sends():
    shared, (_, arrivals, tasks) = board(2, 1, 2)
    sender = fast.Dispatcher(part(0, 0, sends=(ids(0), ids(1))), shared, 10.0)
    reader = fast.Dispatcher(part(1, 1, waits=(ids(0), ids(1))), shared, 10.0)
    ran = []

    def work(dispatcher, sent):
        for _ in range(3):
            dispatcher.begin()
            while (task := dispatcher.next()) >= 0:
                ran.append(task)
                dispatcher.done(task)
                for arrival in sent:
                    dispatcher.arrive(arrival, 5, 7)
            dispatcher.end()

    threads = [threading.Thread(target=work, args=a) for a in ((sender, [0]), (reader, []))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ran == [0, 1] * 3
    assert arrivals.tolist() == [3, 5, 7]
    assert tasks[0] <= tasks[1] <= tasks[2] <= tasks[3]


def test_a_wait_ends_and_says_what_it_waits_for():
    shared, _ = board(1, 1, 2)
    alone = fast.Dispatcher(
        part(0, 0, 1, waits=(ids(0), ids(0)), order=(ids(0), ids(1))), shared, 0.05
    )
    alone.begin()
    with pytest.raises(TimeoutError):
        alone.next()
    assert alone.missing() == [(0, [0], []), (1, [], [0])]
    shared.stop()
    with pytest.raises(InterruptedError):
        alone.next()


def test_a_device_that_keeps_its_core_while_it_waits_gives_up_as_soon():
    shared, _ = board(1, 1, 1)
    alone = fast.Dispatcher(part(0, 0, waits=(ids(0), ids(0))), shared, 0.05, alert=60.0)
    alone.begin()
    with pytest.raises(TimeoutError):
        alone.next()
    with pytest.raises(ValueError, match="alert"):
        fast.Dispatcher(part(0, 0), shared, 0.05, alert=-1.0)


@pytest.mark.parametrize(
    "array",
    [
        np.zeros(6),
        np.zeros((2, 3), np.uint64),
        np.zeros(12, np.uint64)[::2],
        np.zeros(5, np.uint64),
    ],
)
def test_other_arrays_are_no_board(array):
    good = [np.zeros(n, np.uint64) for n in fast.Board.words(1, 1, 1)]
    with pytest.raises((ValueError, lm.InputError), match="gates"):
        fast.Board(array, *good[1:])


def test_what_cannot_be_written_is_no_board():
    good = [np.zeros(n, np.uint64) for n in fast.Board.words(1, 1, 1)]
    good[2].flags.writeable = False
    with pytest.raises(ValueError, match="tasks"):
        fast.Board(*good)


def test_tasks_that_wait_for_each_other_are_refused():
    with pytest.raises(lm.InputError, match="waits for itself"):
        part(0, 0, 1, order=(ids(0, 1), ids(1, 0)))
