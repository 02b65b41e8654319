"""Processes that are started end with the one that started them, and leave Ctrl-C to it."""

import os
import signal
import subprocess
import sys
import time

import pytest

from loadmaster.base.children import sparing_children

CHILD = "from loadmaster.base.children import end_with_parent as end; end(); import time; "
CHILD += "print('ready', flush=True); time.sleep(60)"

PARENT = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {CHILD!r}], stdin=subprocess.PIPE,
                         stdout=subprocess.PIPE, start_new_session=True)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGKILL])
def test_a_child_ends_with_a_parent_that_is_ended(sent):
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE)
    child = int(parent.stdout.readline())
    parent.send_signal(sent)
    parent.communicate()
    until = time.monotonic() + 20
    while is_running(child):
        assert time.monotonic() < until
        time.sleep(0.01)


def is_running(process: int) -> bool:
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_ctrl_c_does_not_reach_a_process_that_starts():
    heard = []
    before = signal.signal(signal.SIGINT, lambda *_: heard.append(True))
    try:
        with sparing_children():
            child = subprocess.Popen([sys.executable, "-c", "pass"])
            os.kill(child.pid, signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            assert not heard
        assert heard
        assert child.wait() == 0
    finally:
        signal.signal(signal.SIGINT, before)
