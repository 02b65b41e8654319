"""The picture of a pipeline: its boxes are the schedule, simulated or measured."""

from __future__ import annotations

import numpy as np
import pytest
from browser import chromium
from pictured import measured
from pipelined import plan_of, uniform
from strategies import in_ms
from trained import linears

import loadmaster as lm
from loadmaster.cli import main
from loadmaster.strategies.pipelines.batched import MicroBatched
from loadmaster.strategies.pipelines.schedules import actions
from loadmaster.strategies.pipelines.scheduling import scheduled
from loadmaster.writers.pictures.blocks import WHAT, Blocks
from loadmaster.writers.pictures.pipeline import draw
from loadmaster.writers.report.pipeline import pipeline


def planned(schedule="1f1b", *passes, **more):
    return plan_of(scheduled(uniform(4, 8, *passes, **more), schedule), schedule)


@pytest.fixture(scope="module")
def plan():
    return planned("1f1b", 1, 2, (), 1)


def lenet():
    return lm.place(lm.read("example:lenet"), lm.Cluster.preset("2xV100-NVLink"), "heft")


def rows(blocks, device):
    here = blocks.device == device
    letters = [WHAT[what][0].upper() for what in blocks.kind[here].tolist()]
    return list(zip(letters, blocks.micro[here].tolist(), strict=True))


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_boxes_are_the_actions_of_the_schedule(schedule):
    blocks = Blocks.of(planned(schedule, 1, 2, (), 1))
    for device, expected in enumerate(actions(schedule, 4, 8)):
        assert rows(blocks, device) == [(a.kind, a.micro) for a in expected] + [("O", -1)]
    assert blocks.alive.tolist() == ([8] * 4 if schedule == "gpipe" else [4, 3, 2, 1])
    # Of 34 ticks, eight times one and two, and one for the update.
    assert blocks.idle == pytest.approx([9 / 34] * 4)


def test_boxes_of_gradients_of_weights():
    blocks = Blocks.of(planned("zero-bubble", 1, 1, 1, 1))
    for device, expected in enumerate(actions("zero-bubble", 4, 8)[1:], 1):
        letters = {"W": "G"}
        some = [(letters.get(a.kind, a.kind), a.micro) for a in expected]
        assert rows(blocks, device) == [*some, ("O", -1)]


def test_many_ops_of_a_stage_are_one_box():
    graph, cluster = lm.read("example:gpt3-330m"), lm.Cluster.preset("4xV100-NVLink")
    first = lm.place(graph, cluster, "layers", on_oom="best_effort")
    program = lm.transforms.micro_batches(graph, 4)
    batched = MicroBatched(first.problem.transformed(program))
    staged = type(uniform(2, 2, 1)).of(batched, first.devices, np.arange(4))
    plan = plan_of(scheduled(staged, "1f1b"))
    blocks = Blocks.of(plan)
    # Ops wait for transfers inside of passes, and parameters that are read twice come late.
    assert len(blocks) < 4 * 4 * 2 * 4
    assert blocks.alive.tolist() == [4, 3, 2, 1]
    length = np.bincount(blocks.device, blocks.finish - blocks.start)
    assert length == pytest.approx(plan.schedule.device_busy, rel=0.02)


def test_boxes_say_which_of_its_stages_a_device_does():
    graph, cluster = linears([512] * 17, 64), lm.Cluster.preset("2xV100-NVLink")
    options = {"stages": 2, "micro_batches": 4, "schedule": "interleaved-1f1b"}
    plan = lm.place(graph, cluster, "pipeline", devices_per_stage=1, **options)
    blocks = Blocks.of(plan)
    for device in range(2):
        order = []
        for what, virtual_stage, micro in zip(
            blocks.kind, blocks.virtual_stage, blocks.micro, strict=True
        ):
            order.append(("FB"[what], int(virtual_stage), int(micro)) if what < 2 else None)
        here = [order[i] for i in np.flatnonzero(blocks.device == device) if order[i]]
        wanted = [tuple(a) for a in actions("interleaved-1f1b", 2, 4, 2)[device]]
        assert list(dict.fromkeys(here)) == wanted


def test_a_measured_step_has_the_boxes_of_its_own_times(plan):
    simulated, seen = Blocks.of(plan), Blocks.of(measured(plan))
    for name in ("start", "finish", "device", "kind", "micro", "virtual_stage", "idle", "alive"):
        np.testing.assert_allclose(getattr(seen, name), getattr(simulated, name))


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_the_same_plan_gives_the_same_bytes(plan, tmp_path, suffix):
    pytest.importorskip("matplotlib")
    for name in ("a", "b"):
        draw(plan, tmp_path / f"{name}.{suffix}")
    assert (tmp_path / f"a.{suffix}").read_bytes() == (tmp_path / f"b.{suffix}").read_bytes()


def test_numbers_stand_where_they_have_room(plan, tmp_path):
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    from loadmaster.writers.pictures import pipeline as picture

    drawn = {}
    for width in (500, 1000):
        figure = picture._figure(plan, Blocks.of(plan), width, None)
        assert isinstance(figure, Figure)
        (axes,) = figure.axes
        drawn[width] = [t.get_text() for t in axes.texts if t.get_text().isdigit()]
    assert sorted(drawn[1000]) == sorted(4 * 2 * [str(j + 1) for j in range(8)])
    assert 0 < len(drawn[500]) <= len(drawn[1000])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda plan, path: draw(plan, path / "a.gif"), "must end in .png or .svg"),
        (lambda plan, path: draw(plan, path / "a.png", width=20), "width is 20"),
        (
            lambda _, path: draw(lenet(), path / "a.png"),
            "has no micro-batches",
        ),
    ],
)
def test_what_cannot_be_drawn_is_refused(plan, tmp_path, call, message):
    with pytest.raises(lm.InputError, match=message):
        call(plan, tmp_path)


def test_the_report_has_a_figure_of_it(plan, tmp_path):
    figure = pipeline(plan)
    assert [trace["name"] for trace in figure["data"]] == ["forward", "backward", "once"]
    forward = figure["data"][0]
    assert in_ms(forward["x"]) == [1] * 32
    assert forward["text"][:5] == ["1", "2", "3", "4", "5"]
    assert forward["customdata"][0] == "gpu0: forward of micro-batch 1, 1 ms"
    plan.report(tmp_path / "plan.html")
    assert 'id="pipeline"' in (tmp_path / "plan.html").read_text()
    lenet().report(tmp_path / "other.html")
    assert 'id="pipeline"' not in (tmp_path / "other.html").read_text()


def test_a_browser_draws_it(plan, tmp_path):
    plan.report(tmp_path / "plan.html")
    with chromium() as driver:
        driver.get((tmp_path / "plan.html").as_uri())
        bars = driver.execute_async_script(
            "const done = arguments[0]; const look = () => {"
            "const bars = document.querySelectorAll('#pipeline .point');"
            "bars.length ? done(bars.length) : setTimeout(look, 100); }; look();"
        )
        assert bars == len(Blocks.of(plan))
        assert [row for row in driver.get_log("browser") if row["level"] == "SEVERE"] == []


def test_the_command_line_draws_it_where_there_is_one(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    plan = lenet()
    plan.save(tmp_path / "plan.json")
    arguments = ["report", str(tmp_path / "plan.json"), "-o", str(tmp_path / "plan.html")]
    main([*arguments, "--pipeline", str(tmp_path / "p.png"), "--timeline", str(tmp_path / "t.png")])
    assert "no micro-batches, so" in capsys.readouterr().err
    assert not (tmp_path / "p.png").exists()
    assert (tmp_path / "t.png").exists()
