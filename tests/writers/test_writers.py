"""The writers: the trace says what the simulator saw; the picture is drawn of anything."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from pictured import gathered, hand_made, layered, measured, planned

import loadmaster as lm
from loadmaster.base.errors import InputError, MissingExtraError
from loadmaster.judge.timeline import Timeline
from loadmaster.writers.pictures.bars import SHADES, Pixels, joined, merged, of_messages
from loadmaster.writers.pictures.lanes import SENT, TOGETHER, lanes_of, links_of
from loadmaster.writers.pictures.messages import Messages
from loadmaster.writers.pictures.timeline import MAX_LANES, draw
from loadmaster.writers.pictures.trace import trace_document, write_trace

# ---- plans ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plans():
    """Few and many transfers, one and two channels a route, phases and none, too little memory."""
    return {
        "inception": planned("inception-v3"),
        "inception celeritas": planned("inception-v3", method="celeritas"),
        "bert on one bridge": planned("bert-large", "2xRTX4090-PCIe"),
        "mixtral on nodes": planned("mixtral", "4x1V100-25GbE"),
        "layered": planned(layered(2_000), "8xMI300X"),
        "by hand": hand_made(),
        "alone": planned("lenet", method="single"),
        "gathered": gathered(),
    }


PLANS = (
    "inception",
    "inception celeritas",
    "bert on one bridge",
    "mixtral on nodes",
    "layered",
    "by hand",
    "alone",
    "gathered",
)


def of(document, *phases):
    return [event for event in document["traceEvents"] if event["ph"] in phases]


def channel_pids(plan):
    first = plan.cluster.n_devices + 1
    return {name: first + i for i, name in enumerate(plan.cluster.channels)}


# ---- the trace --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PLANS)
def test_slices_of_a_thread_never_overlap(plans, name):
    rows = defaultdict(list)
    for event in of(trace_document(plans[name]), "X"):
        rows[event["pid"], event["tid"]].append((event["ts"], event["dur"]))
    assert rows
    for row in rows.values():
        row.sort()
        assert all(dur > 0 for _, dur in row)
        assert all(a + d <= b for (a, d), (b, _) in pairwise(row))


@pytest.mark.parametrize("name", PLANS)
def test_every_op_that_ran_is_there_once_with_its_times(plans, name):
    plan = plans[name]
    n = plan.cluster.n_devices
    seen = {e["name"]: e for e in of(trace_document(plan), "X", "i") if e["pid"] <= n}
    events = [e for e in of(trace_document(plan), "X", "i") if e["pid"] <= n]
    ran = plan.problem.reduced.op_of.tolist()
    assert len(events) == len(seen) == len(ran)
    assert set(seen) == {plan.graph.names[op] for op in ran}
    for op in ran:
        event = seen[plan.graph.names[op]]
        start, finish = plan.schedule.start[op], plan.schedule.finish[op]
        finish = start if plan.graph.is_member[op] else finish
        assert event["ts"] == pytest.approx(start * 1e6, abs=2e-6)
        assert event.get("dur", 0.0) == pytest.approx((finish - start) * 1e6, abs=2e-6)
        assert event["pid"] == plan.devices[op] + 1
        assert event["args"]["device"] == plan.device(op)
        assert event["args"]["output_bytes"] == plan.graph.output_bytes[op]


@pytest.mark.parametrize("name", PLANS)
def test_a_transfer_is_on_every_channel_it_holds(plans, name):
    plan = plans[name]
    pids = channel_pids(plan)
    transfers = plan.schedule.transfers
    want = sorted(
        (pids[channel], round(start * 1e6, 3), round((finish - start) * 1e6, 3), size)
        for src, dst, start, finish, size in zip(
            transfers.src.tolist(),
            transfers.dst.tolist(),
            transfers.start.tolist(),
            transfers.finish.tolist(),
            transfers.bytes.tolist(),
            strict=True,
        )
        for channel in plan.cluster.route(src, dst).channels
    )
    got = sorted(
        (e["pid"], round(e["ts"], 3), round(e.get("dur", 0.0), 3), e["args"]["bytes"])
        for e in of(trace_document(plan), "X", "i")
        if e["pid"] > plan.cluster.n_devices and e["cat"] != "collective"
    )
    assert len(got) == len(want)
    for g, w in zip(got, want, strict=True):
        assert g == pytest.approx(w, abs=2e-3)


@pytest.mark.parametrize("name", PLANS)
def test_counters_follow_memory_to_the_end(plans, name):
    plan = plans[name]
    rows = defaultdict(list)
    for event in of(trace_document(plan), "C"):
        rows[event["pid"]].append((event["ts"], event["args"]["bytes"]))
    assert sorted(rows) == list(range(1, plan.cluster.n_devices + 1))
    for pid, row in rows.items():
        _, used = plan.memory.profile(pid - 1)
        assert row == sorted(row, key=lambda sample: sample[0])
        assert row[0][0] == 0
        assert row[-1][0] == pytest.approx(plan.makespan * 1e6, abs=2e-6)
        assert row[-1][1] == (int(used[-1]) if len(used) else 0)
        assert max(b for _, b in row) == plan.memory.peak[pid - 1]


@pytest.mark.parametrize("name", PLANS)
def test_flows_begin_and_end_once_inside_slices_and_in_order(plans, name):
    document = trace_document(plans[name])
    slices = defaultdict(list)
    for event in of(document, "X"):
        slices[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    flows = defaultdict(list)
    for event in of(document, "s", "t", "f"):
        flows[event["id"]].append(event)
        inside = slices[event["pid"], event["tid"]]
        assert sum(a <= event["ts"] < b for a, b in inside) == 1
    for events in flows.values():
        events.sort(key=lambda e: e["ts"])
        assert "".join(e["ph"] for e in events) in ("stf", "sf")
        assert len({(e["name"], e["cat"]) for e in events}) == 1
        assert events[-1]["bp"] == "e"


def test_flows_join_producer_and_consumer(plans):
    plan = plans["by hand"]
    document = trace_document(plan)
    holder = {(e["pid"], e["ts"], e["ts"] + e["dur"]): e["name"] for e in of(document, "X")}

    def name_at(event):
        return next(
            name
            for (pid, a, b), name in holder.items()
            if pid == event["pid"] and a <= event["ts"] < b
        )

    flows = defaultdict(list)
    for event in of(document, "s", "t", "f"):
        flows[event["id"]].append(name_at(event))
    # The weight comes from no op; a's output is sent once, for b and for c behind the view.
    assert sorted(flows.values()) == [["a", "a", "b"], ["p", "b"]]


def test_by_hand(plans):
    document = trace_document(plans["by hand"])
    ops = {e["name"]: e for e in of(document, "X", "i") if e["pid"] <= 2}
    # p takes 1.25 ms to gpu1; a ends at 1 ms and takes 1 ms + 4 kB / 4 MB/s = 2 ms to gpu1.
    assert [ops[n]["ts"] for n in "abc"] == [0, 3250, 5250]
    assert [ops[n]["dur"] for n in "abc"] == [1000, 2000, 3000]
    assert (ops["nothing"]["ph"], ops["nothing"]["ts"]) == ("i", 1000)
    assert (ops["done"]["ph"], ops["done"]["ts"]) == ("i", 8250)
    assert (ops["a"]["cat"], ops["c"]["cat"]) == ("forward", "backward")
    assert ops["a"]["args"]["kind"] == "matmul"
    assert ops["a"]["args"]["waited_for"] == "nothing"
    assert ops["b"]["args"]["waited_for"] == "transfer of a"
    assert ops["c"]["args"]["waited_for"] == "device: b"
    assert document["displayTimeUnit"] == "ms"
    assert document["otherData"]["makespan"] == pytest.approx(8.25e-3)
    assert document["otherData"]["graph"] == "hand-made"
    assert document["otherData"]["cluster"] == "pair"


def test_a_collective_is_on_every_channel_it_holds(plans):
    document = trace_document(plans["gathered"])
    held = [event for event in of(document, "X", "i") if event["cat"] == "collective"]
    assert [(e["ph"], e["pid"], e["ts"], e["dur"]) for e in held] == [
        ("X", 3, 2000, 3000),
        ("X", 4, 2000, 3000),
    ]
    assert {e["name"] for e in held} == {"all_reduce of 3.91 KiB on 2 devices (ring)"}
    assert held[0]["args"] == {
        "bytes": 4000,
        "queued_us": 0.0,
        "collective": "all_reduce/g",
        "algorithm": "ring",
        "devices": "gpu0, gpu1",
        "members": "m0, m1",
        "arrived_last": "m1",
    }
    ops = {e["name"]: e for e in of(document, "X", "i") if e["pid"] <= 2}
    assert [(ops[n]["ph"], ops[n]["ts"]) for n in ("m0", "m1")] == [("i", 2000)] * 2
    assert ops["b1"]["args"]["waited_for"] == "all_reduce of 3.91 KiB on 2 devices (ring)"
    assert ops["m0"]["args"]["waited_for"] == "op: a1"
    flows = defaultdict(list)
    for event in of(document, "s", "t", "f"):
        if event["name"] == "collective":
            flows[event["id"]].append((event["ph"], event["pid"]))
    # From a0 and a1, by the first channel, to b0 and b1.
    assert sorted(flows.values()) == [
        [("s", 1), ("t", 3), ("f", 1)],
        [("s", 2), ("t", 3), ("f", 2)],
    ]


@pytest.mark.parametrize("aggregation", ["all-reduce", "reduce-scatter"])
def test_replicas_have_slices_that_never_overlap(aggregation):
    plan = planned("lenet", "2xV100-NVLink", "data-parallel", aggregation=aggregation)
    rows = defaultdict(list)
    for event in of(trace_document(plan), "X"):
        rows[event["pid"], event["tid"]].append((event["ts"], event["dur"]))
    assert len(rows) == 4
    for row in rows.values():
        row.sort()
        assert all(a + d <= b for (a, d), (b, _) in pairwise(row))
    flows = of(trace_document(plan), "s", "f")
    assert len({e["id"] for e in flows}) == 2 * len(plan.schedule.collectives)


def test_every_device_and_channel_is_a_named_process(plans):
    plan = plans["inception"]
    named = {
        e["pid"]: e["args"]["name"]
        for e in of(trace_document(plan), "M")
        if e["name"] == "process_name"
    }
    channels = [f"channel {name}" for name in plan.cluster.channels]
    assert [named[pid] for pid in sorted(named)] == [
        d.name for d in plan.cluster.devices
    ] + channels
    assert {(e["pid"], e["tid"]) for e in of(trace_document(plan), "X", "i", "C")} <= {
        (e["pid"], e["tid"]) for e in of(trace_document(plan), "M")
    }


def test_files(plans, tmp_path):
    plan = plans["inception"]
    plain, packed = tmp_path / "step.json", tmp_path / "step.json.gz"
    write_trace(plan, plain)
    write_trace(plan, packed)
    written = json.dumps(trace_document(plan), separators=(",", ":"), ensure_ascii=False)
    assert plain.read_bytes() == written.encode()
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step.json", "step.json.gz"]
    with pytest.raises(InputError, match=r"cannot write .*nowhere"):
        write_trace(plan, tmp_path / "nowhere" / "step.json")


# ---- the picture ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_any_plan_is_drawn(plans, tmp_path, name, suffix):
    path = tmp_path / f"step{suffix}"
    draw(plans[name], path)
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG" if suffix == ".png" else b"<?xml")
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def pixels(path):
    image = pytest.importorskip("matplotlib.image")
    return np.rint(image.imread(path)[:, :, :3] * 255).astype(int)


def share_of(picture, colour):
    want = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    return float((picture == want).all(axis=2).mean())


def test_the_picture_shows_what_ran(plans, tmp_path):
    path = tmp_path / "step.png"
    draw(plans["by hand"], path)
    picture = pixels(path)
    assert picture.shape[1] == 2000
    forward, backward, sent = (share_of(picture, c) for c in ("#2f6db3", "#d17d1c", "#76838f"))
    # 3 ms each, the forward ones on two devices; 2.25 of 8.25 ms of transfers on a lower lane.
    assert forward == pytest.approx(backward, rel=0.1)
    assert forward > 2 * sent > 0.005
    assert share_of(picture, "#c43c2c") == 0


def test_too_little_memory_is_red(tmp_path):
    plan = planned("inception-v3", "2xRTX4090-PCIe")
    assert not plan.fits
    draw(plan, tmp_path / "step.png")
    assert share_of(pixels(tmp_path / "step.png"), "#c43c2c") > 1e-3


def test_widths_and_titles(plans, tmp_path):
    draw(plans["alone"], tmp_path / "step.png", width=640, title="Mine")
    assert pixels(tmp_path / "step.png").shape[1] == 1280
    draw(plans["alone"], tmp_path / "plain.png", width=640)
    assert (tmp_path / "plain.png").read_bytes() != (tmp_path / "step.png").read_bytes()
    with pytest.raises(InputError, match="width is 100"):
        draw(plans["alone"], tmp_path / "narrow.png", width=100)


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_the_same_plan_gives_the_same_bytes(plans, tmp_path, suffix):
    one, two = tmp_path / f"one{suffix}", tmp_path / f"two{suffix}"
    draw(plans["inception"], one)
    draw(plans["layered"], two)
    draw(plans["inception"], two)
    assert one.read_bytes() == two.read_bytes()


def test_only_the_busiest_channels_are_drawn(plans):
    plan = plans["layered"]
    used = int((plan.schedule.channel_busy > 0).sum())
    assert used > MAX_LANES
    seen = lanes_of(plan, MAX_LANES)
    assert len(seen.channels) == MAX_LANES
    assert seen.hidden_channels == used - MAX_LANES


def test_a_collective_is_a_bar_of_its_channels_and_not_of_devices(plans):
    plan = plans["gathered"]
    view = lanes_of(plan, MAX_LANES)
    assert [label for label, _ in view.palette] == ["compute", "transfer", "collective"]
    names = plan.graph.names
    of_reduced = [names[op] for op in plan.problem.reduced.op_of.tolist()]
    shown = [[of_reduced[i] for i in lane.item.tolist()] for lane in view.devices]
    assert shown == [["a0", "x", "b0"], ["a1", "b1", "y"]]
    # Message 0 is x on its way, message 1 the collective.
    assert [lane.item.tolist() for lane in view.channels] == [[1, 0], [1]]
    assert [lane.colour.tolist() for lane in view.channels] == [[2, 1], [2]]
    for lanes, busy in (
        (view.devices, plan.schedule.device_busy),
        (view.channels, plan.schedule.channel_busy),
    ):
        filled = [(lane.finish - lane.start).sum() for lane in lanes]
        assert filled == pytest.approx(busy.tolist())
    rows = [rows for _, _, rows in links_of(plan, view)]
    assert rows == [[1], [2, 3], [2], [1]]


def test_channels_with_the_same_collectives_share_a_lane():
    plan = planned("lenet", "4xV100-PCIe", "data-parallel")
    [lane] = lanes_of(plan, MAX_LANES).channels
    assert lane.name == "all 8 channels"
    assert len(lane.item) == len(plan.schedule.collectives)
    assert lanes_of(plan, MAX_LANES).hidden_channels == 0
    half = planned("lenet", "4xV100-PCIe", "data-parallel", replicas=2)
    [lane] = lanes_of(half, MAX_LANES).channels
    assert lane.name == "gpu0.rx and 3 more"


def test_the_picture_shows_collectives(plans, tmp_path):
    draw(plans["gathered"], tmp_path / "step.png")
    picture = pixels(tmp_path / "step.png")
    sent, together = share_of(picture, SENT), share_of(picture, TOGETHER)
    # 3 ms on two channels, beside 2 ms on one; the chain lies over both alike.
    assert together == pytest.approx(3 * sent, rel=0.2)
    draw(plans["gathered"], tmp_path / "step.svg")
    said = (tmp_path / "step.svg").read_text()
    assert "critical chain: 37 % compute, 25 % transfers, 38 % collectives" in said


def test_merging_by_pixel_keeps_time_and_colour():
    # 1000 ops of 0.5 in colour 0 with gaps of 0.5, then a wide one in colour 1.
    start = np.append(np.arange(1000.0), 1000.0)
    finish = np.append(np.arange(1000.0) + 0.5, 2000.0)
    colour = np.append(np.zeros(1000, dtype=np.int64), 1)
    bars = merged(start, finish, colour, Pixels(200, 2000.0))
    assert len(bars.begin) == 2
    assert bars.colour.tolist() == [0, 1]
    assert bars.shade.tolist() == [SHADES // 2, SHADES]
    assert bars.begin.tolist() == [0, 1000]
    assert bars.end.tolist() == [1000, 2000]


def test_memory_per_pixel_keeps_the_peak():
    times = np.array([0.0, 0.1, 0.2, 2.5])
    used = np.array([1.0, 9.0, 2.0, 3.0])
    assert Pixels(4, 4.0).highest(times, used).tolist() == [9, 2, 3, 3]


def test_gaps_that_are_too_small_to_see_are_closed():
    begin, end = joined(np.array([0.0, 1.0, 1.2, 5.0]), np.array([0.9, 3.0, 2.0, 6.0]), 0.5)
    assert (begin.tolist(), end.tolist()) == ([0.0, 5.0], [3.0, 6.0])


def test_a_transfer_has_a_bar_on_each_channel_of_its_route(plans):
    plan = plans["layered"]
    held = Messages(plan).channels
    bars = of_messages(Messages(plan))
    seen = defaultdict(set)
    for what, row in zip(bars.item.tolist(), bars.row.tolist(), strict=True):
        seen[what].add(row)
    sent = plan.schedule.transfers
    for i, (src, dst) in enumerate(zip(sent.src.tolist(), sent.dst.tolist(), strict=True)):
        names = [plan.cluster.channels[c] for c in held[i]]
        assert names == list(plan.cluster.route(src, dst).channels)
        assert seen[i] == set(held[i])


def test_wrong_paths(plans, tmp_path):
    for name in ("step.pdf", "step", "step.svg.gz"):
        with pytest.raises(InputError, match=r"must end in \.png or \.svg"):
            draw(plans["alone"], tmp_path / name)
    with pytest.raises(InputError, match=r"cannot write .*nowhere"):
        draw(plans["alone"], tmp_path / "nowhere" / "step.png")
    assert list(tmp_path.iterdir()) == []


def test_without_matplotlib(plans, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"loadmaster\[plot\]"):
        draw(plans["alone"], tmp_path / "step.png")


def test_drawing_leaves_no_global_state():
    """No matplotlib before it is needed, no pyplot figure, and rcParams as they were."""
    code = """
import sys
import loadmaster as lm
from loadmaster.writers.pictures import timeline, trace
assert "matplotlib" not in sys.modules
plan = lm.place(lm.read("example:lenet"), lm.Cluster.preset("2xV100-NVLink"), "celeritas")
import matplotlib, tempfile, pathlib
matplotlib.rcParams["font.size"] = 31.0
import matplotlib.style
before = dict(matplotlib.rcParams)
with tempfile.TemporaryDirectory() as folder:
    timeline.draw(plan, pathlib.Path(folder, "step.png"))
assert dict(matplotlib.rcParams) == before
import matplotlib.pyplot
assert matplotlib.pyplot.get_fignums() == []
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


# ---- size and corners -------------------------------------------------------------------------


def test_ten_thousand_ops(tmp_path):
    plan = planned(layered(10_000), "8xA100-NVLink")
    assert len(plan.schedule.transfers) > 10_000
    write_trace(plan, tmp_path / "step.json")
    assert json.loads((tmp_path / "step.json").read_bytes()) == trace_document(plan)
    draw(plan, tmp_path / "step.png")
    assert len(np.unique(pixels(tmp_path / "step.png").reshape(-1, 3), axis=0)) > 20


def test_a_step_that_takes_no_time(tmp_path):
    graph = lm.OpGraph({"name": ["a", "b"]}, {"src": [0], "dst": [1]})
    cluster = lm.Cluster.mesh(2, memory="1GiB", bandwidth=1e9)
    plan = lm.place(graph, cluster, "single", costs=np.zeros(2))
    assert plan.makespan == 0
    assert len(of(trace_document(plan), "i")) == 2
    draw(plan, tmp_path / "step.svg")


# ---- parts, and steps that were measured ------------------------------------------------------


def test_a_slice_of_a_part_names_the_users_op():
    plan = planned("lenet", "2xV100-NVLink", "data-parallel")
    ops = {e["name"]: e["args"] for e in of(trace_document(plan), "X", "i") if e["pid"] <= 2}
    assert ops["convolution@r1"]["origin"] == "convolution"
    assert {args["origin"] for args in ops.values()} <= set(plan.graph.names)
    assert len(ops) == len(plan.problem.reduced.op_of)
    whole = planned("lenet", "2xV100-NVLink", "heft")
    assert not any("origin" in e["args"] for e in of(trace_document(whole), "X", "i"))


@pytest.mark.parametrize("name", ["by hand", "alone"])
def test_a_measured_step_is_drawn_as_a_simulated_one(plans, tmp_path, name):
    plan = measured(plans[name])
    drawn = []
    for one in (plan, plans[name]):
        draw(one, tmp_path / "step.svg")
        # What lies within the axes: all but the title, which says that the step was measured.
        drawn.append(
            re.findall(r'<path d="[^"]*"\s+clip-path[^>]*>', (tmp_path / "step.svg").read_text())
        )
    assert drawn[0] == drawn[1] != []


def test_time_that_nothing_accounts_for_stands_beside_the_chain(plans, tmp_path):
    plan = plans["by hand"]
    line = plan.schedule.timeline
    sent = replace(
        line.transfers, **{c: 2 * getattr(line.transfers, c) for c in ("start", "finish")}
    )
    late = Timeline.measured(
        plan.program, line.device, 2 * line.start, 2 * line.start + (line.finish - line.start), sent
    )
    draw(plan.measured(lm.Simulation(plan.problem, late)), tmp_path / "step.svg")
    assert "% between" in (tmp_path / "step.svg").read_text()


def test_names_with_dollars_are_drawn_as_text(tmp_path):
    draw(hand_made(), tmp_path / "step.svg", title=r"$\frac{1}$")
    assert r"<!-- $\frac{1}$ -->" in (tmp_path / "step.svg").read_text()
