"""Sweeps: every case has its row, whatever happens to the worker, the sweep or the table."""

from __future__ import annotations

import csv
import itertools
import json
import multiprocessing
import os
import pickle
import resource
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor

import pytest
from strategies import graph_of, ms_mesh, v100_mesh

import loadmaster as lm
from loadmaster.base.errors import InputError, LoadmasterError, MissingExtraError
from loadmaster.cli import main
from loadmaster.tasks.sweep_table import COLUMNS, Table
from loadmaster.tasks.worker_losses import Losses

CHAIN = graph_of({"a": 1, "b": 2}, [("a", "b", 10)], output_bytes=[10, 10])
OTHER = graph_of({"c": 1, "d": 2}, [("c", "d", 10)], output_bytes=[10, 10])

#: Cases of a few tenths of a second each, so that something can happen in the middle.
SLOW = [("auto", {"time_limit": 0.2, "effort": effort}) for effort in ("fast", "normal", "max")]
SLOW_SEEDS = (0, 1, 2, 3)


class Counting(Executor):
    """Threads that count what they are handed."""

    def __init__(self) -> None:
        self.threads = ThreadPoolExecutor(2)
        self.n = 0

    def submit(self, fn, /, *args, **kwargs) -> Future:
        self.n += 1
        return self.threads.submit(fn, *args, **kwargs)


def lines_of(path) -> list[list[str]]:
    return list(csv.reader(path.read_text().splitlines()))


def wait_for_rows(path, n: int) -> None:
    """Until a table has some rows."""
    end = time.monotonic() + 60
    while not path.exists() or path.read_bytes().count(b"\n") <= n:
        assert time.monotonic() < end, "no rows came"
        time.sleep(0.02)


# -- rows ------------------------------------------------------------------------------------


def test_rows_are_what_place_finds():
    clusters = [ms_mesh(2), ms_mesh(3, memory=15)]
    seen = lm.sweep([CHAIN], clusters, ["heft", "single"], executor=ThreadPoolExecutor(2))
    assert [(row.cluster, row.method) for row in seen.rows] == [
        (cluster.name, method) for cluster in clusters for method in ("heft", "single")
    ]
    for row, cluster in zip(seen.rows[:2], (clusters[0],) * 2, strict=True):
        plan = lm.place(CHAIN, cluster, row.method)
        assert (row.outcome, row.error, row.tries) == ("done", "", 1)
        assert row.makespan == plan.makespan
        assert row.lower_bound == plan.lower_bound
        assert row.one_device == plan.single == 3e-3
        assert row.bytes_moved == plan.schedule.bytes_moved
        assert row.peak == plan.memory.peak.max() / cluster.memory[0]
        assert row.devices_used == 1
        assert row.fits
    assert seen.rows[3].outcome == "infeasible"
    assert "short on" in seen.rows[3].error
    assert seen.rows[3].makespan is None
    assert seen.rows[3] in seen.failures
    assert "infeasible" in str(seen)


def test_the_cases_are_of_the_runtime_that_was_asked_for():
    with ThreadPoolExecutor(1) as threads:
        done = lm.sweep(
            "example:lenet", "2xV100-NVLink", "single", runtime="graphs", executor=threads
        )
    plan = lm.place("example:lenet", "2xV100-NVLink", "single", runtime="graphs")
    (row,) = done.rows
    assert row.makespan == plan.makespan
    assert json.loads(row.options) == {"runtime": "graphs"}
    with pytest.raises(InputError, match="runtime"):
        lm.sweep("example:lenet", "2xV100-NVLink", "single", runtime="eagre")


def test_what_fails_is_a_row_with_its_error():
    methods = [("heft", {"rounds": 0}), "heft"]
    seen = lm.sweep(CHAIN, ms_mesh(2), methods, executor=ThreadPoolExecutor(1))
    assert [row.outcome for row in seen.rows] == ["error", "done"]
    assert "InputError: rounds is 0" in seen.rows[0].error


def test_a_value_that_an_option_never_has_is_refused_before_any_case_runs():
    with pytest.raises(InputError, match="effort is 'much'"):
        lm.sweep(CHAIN, ms_mesh(2), [("auto", {"effort": "much"}), "heft"])


def test_targets_stand_beside_methods():
    lenet, cluster = lm.read("example:lenet"), lm.Cluster.preset("2xV100-NVLink")
    targets = ["vllm", ("ddp", {"replicas": 2})]
    seen = lm.sweep(lenet, cluster, "single", targets=targets, executor=ThreadPoolExecutor(1))
    assert [(row.method, row.outcome) for row in seen.rows] == [
        ("single", "done"), ("target vllm", "error"), ("target ddp", "done")
    ]  # fmt: skip
    assert "takes the inference of a transformer" in seen.rows[1].error
    plan = lm.place(lenet, cluster, target="ddp", replicas=2)
    assert (seen.rows[2].makespan, seen.rows[2].options) == (plan.makespan, '{"replicas": 2}')
    with pytest.raises(InputError, match="no target is named 'dpd'"):
        lm.sweep(lenet, cluster, targets="dpd")
    with pytest.raises(InputError, match="has no option 'replica'"):
        lm.sweep(lenet, cluster, targets=[("ddp", {"replica": 2})])
    with pytest.raises(InputError, match="no methods and no targets"):
        lm.sweep(lenet, cluster)


def test_the_same_case_is_run_once():
    executor = Counting()
    seen = lm.sweep(
        [CHAIN, CHAIN], ms_mesh(2), ["heft", ("heft", {})], seeds=[0, 0, 1], executor=executor
    )
    assert executor.n == len(seen.rows) == 2


@pytest.mark.parametrize(
    ("rules", "makespan"),
    [
        ({"pin": {"a": 0, "b": 1}}, 13e-3),
        ({"pin": {"a": 0, "b": 1}, "contiguous": True}, 13e-3),
        ({"reserve": {"gpu0": 95}}, 3e-3),
    ],
)
def test_every_case_obeys_the_constraints(rules, makespan):
    seen = lm.sweep(
        CHAIN,
        ms_mesh(2, memory=100),
        ["heft", "auto"],
        constraints=lm.Constraints(**rules),
        executor=ThreadPoolExecutor(1),
    )
    assert [row.makespan for row in seen.rows] == [pytest.approx(makespan)] * 2
    assert lm.Constraints(**json.loads(seen.rows[0].constraints)) == lm.Constraints(**rules)
    assert str(seen).splitlines()[-1].startswith("constraints  ")


@pytest.mark.parametrize(
    ("rules", "outcome", "message"),
    [
        ({"pin": {"c": 0}}, "error", "no op or module matches 'c'"),
        ({"reserve": 95}, "infeasible", "Constraints: reserve"),
    ],
)
def test_constraints_that_a_case_cannot_obey_are_in_its_row(rules, outcome, message):
    rules = lm.Constraints(**rules)
    cluster = ms_mesh(2, memory=100)
    [row] = lm.sweep(CHAIN, cluster, "heft", constraints=rules, executor=ThreadPoolExecutor(1)).rows
    assert row.outcome == outcome
    assert message in row.error


def test_a_case_starts_from_the_plan_for_its_ops():
    cluster = ms_mesh(2)
    plan = lm.place(CHAIN, cluster, "single")
    rows = lm.sweep(
        [CHAIN, OTHER], cluster, ["random"], warm_start=plan, executor=ThreadPoolExecutor(1)
    ).rows
    assert rows[0].makespan <= plan.makespan
    assert [bool(row.warm_start_sha256) for row in rows] == [True, False]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"methods": "luck"}, "no method is named 'luck'"),
        ({"methods": ("heft", {"moves": 3})}, "'heft' has no option 'moves'"),
        ({"methods": [("heft", {"rounds": {1, 2}})]}, "options of 'heft' cannot be written"),
        ({"methods": [3]}, "methods has 3"),
        ({"methods": [("heft",)]}, r"a method is \('heft',\)"),
        ({"methods": []}, "no methods and no targets are given"),
        ({"graphs": 7}, "graphs is 7"),
        ({"clusters": [None]}, "clusters has None"),
        ({"seeds": "01"}, "seeds has '0'"),
        ({"graphs": "nowhere.json"}, "cannot read nowhere.json"),
        ({"graphs": ["example:none"]}, "no example is named 'none'"),
        ({"clusters": ["none"]}, "no preset is named 'none'"),
        ({"seeds": [-1]}, "seed is -1"),
        ({"workers": 0}, "workers is 0"),
        ({"retries": -1}, "retries is -1"),
        ({"constraints": {"pin": {"a": 0}}}, "constraints is .*wants lm.Constraints"),
        ({"warm_start": ["plan.json"]}, "warm_start has 'plan.json': wants plans"),
        ({"warm_start": lm.place(OTHER, ms_mesh(2), "heft")}, "to start from is for .*no such"),
        ({"warm_start": [lm.place(CHAIN, ms_mesh(2), "heft")] * 2}, "two plans to start from"),
        ({"out": "table.txt"}, "wants a name in .csv or .parquet"),
        ({"out": "no/where.csv"}, "cannot write no/where.csv"),
    ],
)
def test_bad_input_is_refused_before_any_work(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    executor = Counting()
    given = {"graphs": CHAIN, "clusters": ms_mesh(2), "methods": "heft", **arguments}
    with pytest.raises(InputError, match=message):
        lm.sweep(**given, executor=executor)
    assert executor.n == 0


# -- the table -------------------------------------------------------------------------------


def test_a_table_is_gone_on_with(tmp_path):
    path = tmp_path / "table.csv"
    first = Counting()
    arguments = ([CHAIN], [ms_mesh(2), ms_mesh(3, memory=15)])
    done = lm.sweep(*arguments, ["heft"], executor=first, out=path)
    assert first.n == 2
    assert (done.resumed, done.unfinished) == (0, 0)
    second = Counting()
    told = []
    more = lm.sweep(
        *arguments,
        ["heft", "single"],
        executor=second,
        out=path,
        progress=lambda n, of, row: told.append((n, of, row.method)),
    )
    assert second.n == more.resumed == 2
    assert told == [(3, 4, "single"), (4, 4, "single")]
    assert {row for row in more.rows if row.method == "heft"} == set(done.rows)
    lines = lines_of(path)
    assert tuple(lines[0]) == COLUMNS
    assert len(lines) == 5
    third = Counting()
    assert lm.sweep(*arguments, ["single", "heft"], executor=third, out=path).resumed == 4
    assert third.n == 0


@pytest.mark.parametrize(
    "change",
    [
        {"seeds": [1]},
        {"methods": ("heft", {"rounds": 2})},
        {"clusters": ms_mesh(2, latency=1)},
        {"graphs": graph_of({"a": 1, "b": 3}, [("a", "b", 10)], output_bytes=[10, 10])},
        {"constraints": lm.Constraints(pin={"a": 1})},
        {"warm_start": lm.place(CHAIN, ms_mesh(2), "heft")},
    ],
    ids=["seed", "options", "cluster", "graph", "constraints", "warm start"],
)
def test_another_case_is_run_anew(change, tmp_path):
    path = tmp_path / "table.csv"
    given = {"graphs": CHAIN, "clusters": ms_mesh(2), "methods": "heft"}
    lm.sweep(**given, executor=ThreadPoolExecutor(1), out=path)
    executor = Counting()
    assert lm.sweep(**{**given, **change}, executor=executor, out=path).resumed == 0
    assert executor.n == 1


def test_a_case_whose_worker_died_is_tried_again_by_the_next_sweep(tmp_path):
    path = tmp_path / "table.csv"
    lm.sweep(CHAIN, ms_mesh(2), "m-etf", executor=Poisoned, out=path, retries=0)
    assert [row.outcome for row in Table.open(path).rows.values()] == ["crashed"]
    seen = lm.sweep(CHAIN, ms_mesh(2), "m-etf", executor=ThreadPoolExecutor(1), out=path)
    assert (seen.resumed, seen.rows[0].outcome) == (0, "done")
    assert [row.outcome for row in Table.open(path).rows.values()] == ["done"]


@pytest.mark.parametrize("cut", [1, 20, 150])
def test_a_line_that_was_cut_off_is_run_again(cut, tmp_path):
    path = tmp_path / "table.csv"
    arguments = ([CHAIN], [ms_mesh(2), ms_mesh(3)], ["heft"])
    whole = lm.sweep(*arguments, executor=ThreadPoolExecutor(1), workers=1, out=path)
    data = path.read_bytes()
    path.write_bytes(data[:-cut])
    executor = Counting()
    again = lm.sweep(*arguments, executor=executor, out=path)
    assert (again.resumed, executor.n) == (1, 1)
    assert [row.makespan for row in again.rows] == [row.makespan for row in whole.rows]
    assert path.read_bytes().count(b"\n") == 3
    assert len(Table.open(path).rows) == 2


def test_a_header_that_was_cut_off_is_written_again(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("graph,clus")
    lm.sweep(CHAIN, ms_mesh(2), "heft", executor=ThreadPoolExecutor(1), out=path)
    assert [len(line) for line in lines_of(path)] == [len(COLUMNS)] * 2


def test_a_file_that_is_no_table_is_left_alone(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("name,salary\nme,0\n")
    with pytest.raises(InputError, match="no table of a sweep"):
        lm.sweep(CHAIN, ms_mesh(2), "heft", out=path)
    assert path.read_text() == "name,salary\nme,0\n"
    path.write_text(",".join(COLUMNS) + "\nme,0\n")
    with pytest.raises(InputError, match="line 2 is no row"):
        lm.sweep(CHAIN, ms_mesh(2), "heft", out=path)


def test_names_and_errors_with_line_breaks_stay_in_one_line(tmp_path):
    path = tmp_path / "table.csv"
    document = CHAIN.to_document() | {"name": 'two\nlines, "quoted"'}
    graph = lm.OpGraph.from_document(document)
    lm.sweep(graph, ms_mesh(2), "heft", executor=ThreadPoolExecutor(1), out=path)
    [row] = Table.open(path).rows.values()
    assert row.graph == 'two lines, "quoted"'
    assert path.read_bytes().count(b"\n") == 2


def test_parquet_has_the_same_rows(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "table.parquet"
    clusters = [ms_mesh(2), ms_mesh(2, memory=15)]
    arguments = (CHAIN, clusters, ["single", ("single", {"on_oom": "best_effort"})])
    seen = lm.sweep(*arguments, executor=ThreadPoolExecutor(1), out=path, seeds=[2**64 - 1])
    read = parquet.read_table(path)
    assert tuple(read.column_names) == COLUMNS
    assert {row["makespan"] for row in read.to_pylist()} == {row.makespan for row in seen.rows}
    assert {row["fits"] for row in read.to_pylist()} == {True, False, None}
    assert (tmp_path / "table.csv").exists()
    executor = Counting()
    lm.sweep(*arguments, executor=executor, out=path, seeds=[2**64 - 1])
    assert executor.n == 0


def test_parquet_without_its_extra_is_refused(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"loadmaster\[parquet\]"):
        lm.sweep(CHAIN, ms_mesh(2), "heft", out=tmp_path / "table.parquet")
    assert not list(tmp_path.iterdir())


# -- several sweeps, one table -----------------------------------------------------------------

APPENDING = """
import sys
from dataclasses import replace
from loadmaster.tasks.sweep_table import SweepRow, Table

row = SweepRow(*"gcm{", 0, *"{wxyz", outcome="done")
for start in range(0, 1500, 50):
    table = Table.open(sys.argv[1])
    for seed in range(start, start + 50):
        table.append(replace(row, seed=seed, method=sys.argv[2]))
    table.close()
"""


def test_two_processes_lose_no_row_of_a_table(tmp_path):
    path = tmp_path / "table.csv"
    words = [sys.executable, "-c", APPENDING, str(path)]
    both = [subprocess.Popen([*words, name]) for name in ("one", "two")]
    assert [process.wait(60) for process in both] == [0, 0]
    keys = [(line[2], line[4]) for line in lines_of(path)[1:]]
    assert len(keys) == len(set(keys)) == 3000
    assert os.listdir(tmp_path) == ["table.csv"]


SHARING = """
import sys, loadmaster as lm
from concurrent.futures import ThreadPoolExecutor
seen = lm.sweep("example:lenet", "4xV100-PCIe", "heft", seeds=range(60), out=sys.argv[1],
                executor=ThreadPoolExecutor(1), workers=1)
print(len(seen.rows), seen.resumed, seen.unfinished)
"""


def test_two_sweeps_share_the_cases_of_a_table(tmp_path):
    path = tmp_path / "table.csv"
    words = [sys.executable, "-c", SHARING, str(path)]
    both = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=60)[0].split() for process in both]
    assert [(rows, unfinished) for rows, _, unfinished in said] == [("60", "0")] * 2
    # What one has taken over from the table, the other has run: none was run twice.
    assert sum(int(resumed) for _, resumed, _ in said) == 60
    assert len(lines_of(path)) == 61


def test_a_case_of_a_sweep_that_is_killed_is_taken_over(tmp_path):
    path = tmp_path / "table.csv"
    other = (
        "import sys, pickle, time; from loadmaster.tasks.sweep_table import Table;"
        "table = Table.open(sys.argv[1]);"
        "print([table.claim(key) for key in pickle.load(sys.stdin.buffer)], flush=True);"
        "time.sleep(60)"
    )
    words = (CHAIN, ms_mesh(2), ["heft", "single"])
    keys = [row.key for row in lm.sweep(*words, executor=ThreadPoolExecutor(1)).rows]
    with subprocess.Popen(
        [sys.executable, "-c", other, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        process.stdin.write(pickle.dumps(keys))
        process.stdin.close()
        assert process.stdout.readline() == b"[True, True]\n"
        executor = Counting()
        killer = threading.Timer(1.5, process.kill)
        killer.start()
        with pytest.warns(UserWarning, match="waiting for 2 cases that are under way in another"):
            seen = lm.sweep(*words, executor=executor, out=path)
        assert process.wait(10) == -signal.SIGKILL
    assert executor.n == 2
    assert [row.outcome for row in seen.rows] == ["done", "done"]


def test_a_table_is_open_once_in_a_process(tmp_path):
    table = Table.open(tmp_path / "table.csv")
    with pytest.raises(InputError, match=r"this process works on .*table.csv already"):
        lm.sweep(CHAIN, ms_mesh(2), "heft", out=tmp_path / "table.parquet")
    table.close()
    lm.sweep(CHAIN, ms_mesh(2), "heft", executor=Counting(), out=tmp_path / "table.csv")


def test_a_system_without_locks_is_told_of(tmp_path, monkeypatch):
    monkeypatch.setattr("loadmaster.base.locks.fcntl", None)
    with pytest.warns(UserWarning, match=r"this system has no locks for .*table\.csv"):
        lm.sweep(CHAIN, ms_mesh(2), "heft", executor=Counting(), out=tmp_path / "table.csv")
    assert len(lines_of(tmp_path / "table.csv")) == 2


def test_only_a_torn_line_of_a_table_is_cut(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("my notes, in one line without an end")
    with pytest.raises(InputError, match="no table of a sweep"):
        lm.sweep(CHAIN, ms_mesh(2), "heft", out=path)
    assert path.read_text() == "my notes, in one line without an end"


def test_a_full_disk_ends_the_sweep_and_leaves_whole_rows(tmp_path):
    path = tmp_path / "table.csv"
    words = [sys.executable, "-m", "loadmaster", "sweep", "example:lenet", "--methods", "heft"]
    words += ["--seeds", ",".join(map(str, range(40))), "--workers", "1", "-o", str(path)]

    def little_room():
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))

    done = subprocess.run(words, capture_output=True, text=True, preexec_fn=little_room)
    assert done.returncode == 2
    assert done.stderr == f"loadmaster: cannot write {path}: File too large\n"
    assert path.read_bytes().endswith(b"\n")
    assert 1 < len(Table.open(path).rows) < 40


# -- workers that die ------------------------------------------------------------------------


def test_a_killed_process_of_the_default_pool_loses_nothing():
    killed = []

    def progress(done: int, of: int, row) -> None:
        if not killed:
            killed.append(multiprocessing.active_children()[0].pid)
            os.kill(killed[0], signal.SIGKILL)

    seen = lm.sweep("example:lenet", v100_mesh(2), SLOW, seeds=(0, 1), workers=2, progress=progress)
    assert killed
    assert [row.outcome for row in seen.rows] == ["done"] * 6
    assert max(row.tries for row in seen.rows) == 2
    assert not multiprocessing.active_children()


def die(case) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Poisoned(ProcessPoolExecutor):
    """Processes that one method kills."""

    def __init__(self) -> None:
        super().__init__(2, mp_context=multiprocessing.get_context("spawn"))

    def submit(self, fn, case):
        return super().submit(die if case.planner.name == "m-etf" else fn, case)


def test_a_case_that_kills_its_worker_has_a_row_that_says_so(tmp_path):
    path = tmp_path / "table.csv"
    methods = ["single", "m-etf", "etf", "heft"]
    seen = lm.sweep(CHAIN, ms_mesh(2), methods, executor=Poisoned, workers=3, out=path)
    assert [row.outcome for row in seen.rows] == ["done", "crashed", "done", "done"]
    assert seen.rows[1].tries == 3
    assert "the worker died: BrokenProcessPool" in seen.rows[1].error
    assert len(Table.open(path).rows) == 4


def test_an_executor_that_is_broken_for_good_is_an_error_and_keeps_its_rows(tmp_path):
    path = tmp_path / "table.csv"
    with pytest.raises(LoadmasterError, match="run the sweep again with the same table"):
        lm.sweep(CHAIN, ms_mesh(2), ["single", "m-etf"], executor=Poisoned(), workers=1, out=path)
    assert [row.method for row in Table.open(path).rows.values()] == ["single"]


def test_a_script_without_a_guard_is_told_so(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import loadmaster as lm\n"
        "lm.sweep('example:lenet', '4xV100-PCIe', 'heft', out='table.csv')\n"
    )
    words = [sys.executable, str(script)]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert 'under if __name__ == "__main__":' in done.stderr
    assert not Table.open(tmp_path / "table.csv").rows


def kill_first(n: int) -> threading.Thread:
    """Kills the first processes that this one starts, as soon as they are there."""

    def kill() -> None:
        killed: set[int] = set()
        while len(killed) < n:
            for child in multiprocessing.active_children():
                if child.pid and child.pid not in killed:
                    os.kill(child.pid, signal.SIGKILL)
                    killed.add(child.pid)
            time.sleep(0.005)

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    return thread


def test_a_worker_that_is_killed_while_the_pool_starts_is_started_again():
    killer = kill_first(2)
    seen = lm.sweep(CHAIN, ms_mesh(2), ["heft", "single"], workers=1)
    killer.join(10)
    assert not killer.is_alive()
    assert [row.outcome for row in seen.rows] == ["done", "done"]


def test_workers_that_are_killed_each_time_the_pool_starts_end_the_sweep():
    killer = kill_first(3)
    with pytest.raises(LoadmasterError, match=r"3 new executors.*took no case \(BrokenProcessPool"):
        lm.sweep(CHAIN, ms_mesh(2), "heft", workers=1)
    killer.join(10)
    assert not killer.is_alive()


class Scheduler(Executor):
    """Looks like dask's executor: cases wait for workers, which are lost before they do one."""

    def __init__(self, lifetimes) -> None:
        self._client = self
        self.cancelled = 0
        self.lifetimes = lifetimes

    def nthreads(self) -> dict[str, int]:
        return dict.fromkeys(next(self.lifetimes), 1)

    def submit(self, fn, /, *args, **kwargs) -> Future:
        return Future()


def test_workers_of_a_scheduler_that_die_again_and_again_are_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr("loadmaster.tasks.sweep.POLL", 0.01)
    path = tmp_path / "table.csv"
    scheduler = Scheduler([f"worker {n}", f"worker {n + 1}"] for n in itertools.count())
    seen = lm.sweep(CHAIN, ms_mesh(2), ["heft", "single"], executor=scheduler, out=path)
    assert [row.outcome for row in seen.rows] == ["crashed", "crashed"]
    assert "the worker died: 8 workers died in" in seen.rows[0].error
    again = lm.sweep(CHAIN, ms_mesh(2), ["heft", "single"], executor=Counting(), out=path)
    assert [row.outcome for row in again.rows] == ["done", "done"]


def test_a_scheduler_without_workers_is_waited_for_until_there_have_been_some():
    moments, lifetimes = itertools.count(0, 50.0), [*[[]] * 9, ["worker"], *[[]] * 3]
    losses = Losses(iter(lifetimes).__next__, moments.__next__)
    *early, last = [losses.look() for _ in lifetimes]
    assert not any(early[:12])
    assert last == "no worker is left, and none came in 120 s"


def test_results_make_losses_forgotten():
    losses = Losses(([str(n)] for n in itertools.count()).__next__)
    for _ in range(20):
        assert not losses.look()
        assert not losses.look()
        losses.forget()
    assert [bool(losses.look()) for _ in range(4)] == [False, False, False, True]


# -- sweeps that die -------------------------------------------------------------------------

SWEEP = """
import sys, loadmaster as lm
if __name__ == "__main__":
    lm.sweep("example:alexnet", "4xV100-PCIe", [("auto", {"time_limit": 0.2, "effort": effort})
             for effort in ("fast", "normal", "max")], seeds=(0, 1, 2, 3), workers=2,
             out=sys.argv[1])
"""


def workers_of(pid: int) -> list[int]:
    """Processes that a process has started, and that still run."""
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True)
    return [int(word) for word in found.stdout.split()]


def runs(pid: int) -> bool:
    found = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True)
    return bool(found.stdout.strip()) and not found.stdout.startswith("Z")


def test_a_killed_sweep_goes_on_where_it_was_and_leaves_no_processes(tmp_path):
    path, script = tmp_path / "table.csv", tmp_path / "script.py"
    script.write_text(SWEEP)
    process = subprocess.Popen([sys.executable, str(script), str(path)])
    wait_for_rows(path, 2)
    workers = workers_of(process.pid)
    process.kill()
    process.wait()
    rows = len(Table.open(path).rows)
    assert 2 <= rows < 12
    executor = Counting()
    seen = lm.sweep(
        "example:alexnet", "4xV100-PCIe", SLOW, seeds=SLOW_SEEDS, executor=executor, out=path
    )
    assert (seen.resumed, executor.n) == (rows, 12 - rows)
    assert [row.outcome for row in seen.rows] == ["done"] * 12
    end = time.monotonic() + 10
    while any(map(runs, workers)):
        assert time.monotonic() < end, "workers outlive their sweep"
        time.sleep(0.05)


def test_ctrl_c_ends_the_command_and_keeps_the_table(tmp_path):
    path = tmp_path / "table.csv"
    words = [
        sys.executable,
        "-m",
        "loadmaster",
        "sweep",
        "example:alexnet",
        "--methods",
        "auto",
    ]
    n = 24
    seeds = ",".join(map(str, range(n)))
    words += ["--option", "auto.time_limit=0.1", "--seeds", seeds, "--workers", "1"]
    words += ["-o", str(path)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for_rows(path, 2)
    process.send_signal(signal.SIGINT)
    printed, told = process.communicate(timeout=30)
    assert process.returncode == 130, told
    assert "cases are not done" in printed
    assert "Traceback" not in told
    rows = len(Table.open(path).rows)
    assert 2 <= rows < n
    done = subprocess.run([*words, "--json"], capture_output=True, text=True, check=True)
    document = json.loads(done.stdout)
    assert (len(document["rows"]), document["resumed"]) == (n, rows)


# -- the command line ------------------------------------------------------------------------


def test_the_command_prints_a_table_and_json(tmp_path, capsys):
    path = tmp_path / "table.csv"
    words = ["sweep", "example:lenet", "--cluster", "2xV100-NVLink,4xV100-PCIe", "--workers", "1"]
    words += ["--methods", "heft,auto", "--option", "auto.effort=0.01", "-o", str(path)]
    assert main(words) == 0
    printed = capsys.readouterr()
    assert printed.out.count("lenet_train_b256") == 4
    assert 'auto {"effort": 0.01}' in printed.out
    assert printed.err == f"loadmaster: table written to {path}\n"
    assert main([*words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["resumed"] == 4
    assert [row["method"] for row in document["rows"]] == ["heft", "auto"] * 2
    assert main(["sweep", "example:lenet", "--methods", "luck"]) == 2
    assert main(["sweep", "example:lenet", "--option", "moves=3"]) == 2
    assert "wants METHOD.KEY=VALUE" in capsys.readouterr().err


def test_the_command_takes_constraints_a_plan_to_start_from_and_shapes(tmp_path, capsys):
    path, plan = tmp_path / "table.csv", tmp_path / "plan.json"
    (tmp_path / "rules.toml").write_text('pin = { "convolution" = 0 }\n')
    lm.place(lm.read("example:lenet"), lm.Cluster.preset("2xV100-NVLink"), "single").save(plan)
    words = ["sweep", "example:lenet", "--cluster", "2xV100-NVLink", "--workers", "1"]
    words += ["--methods", "heft", "-o", str(path), "--warm-start", str(plan)]
    ruled = ["--constraints", str(tmp_path / "rules.toml"), "--pin", "convolution_1=gpu1"]
    assert main([*words, *ruled]) == 0
    pins = "constraints  pin convolution=0; pin convolution_1=gpu1"
    assert capsys.readouterr().out.splitlines()[-1] == pins
    assert main([*words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["resumed"] == 0
    assert document["rows"][0]["constraints"] == "{}"
    assert len(Table.open(path).rows) == 2
    assert main([*words, "--batch", "4"]) == 2
    assert "takes no options, so not 'batch'" in capsys.readouterr().err


# -- more than one machine -------------------------------------------------------------------


def test_a_killed_worker_of_a_dask_cluster_loses_nothing(tmp_path, capsys):
    distributed = pytest.importorskip("distributed")
    path = tmp_path / "table.csv"
    killed = []
    with (
        distributed.LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=True,
            host="127.0.0.1",
            dashboard_address=None,
            local_directory=str(tmp_path),
        ) as cluster,
        distributed.Client(cluster) as client,
    ):

        def progress(done: int, of: int, row) -> None:
            if done == 2:
                # Both are busy: what this one does now has to be done again.
                killed.append(next(iter(client.run(os.getpid).values())))
                os.kill(killed[0], signal.SIGKILL)

        seen = lm.sweep(
            "example:alexnet",
            "4xV100-PCIe",
            SLOW,
            seeds=(0, 1),
            executor=client.get_executor(),
            out=path,
            progress=progress,
        )
        assert killed
        assert killed[0] not in client.run(os.getpid).values()
        words = ["sweep", "example:lenet", "--methods", "m-sct,heft", "--json"]
        capsys.readouterr()
        assert main([*words, "--dask", cluster.scheduler_address]) == 0
        rows = json.loads(capsys.readouterr().out)["rows"]
        assert [row["outcome"] for row in rows] == ["done", "done"]
    assert [row.outcome for row in seen.rows] == ["done"] * 6
    assert len(Table.open(path).rows) == 6
    assert all(row.fits and row.makespan > 0 for row in seen.rows)
