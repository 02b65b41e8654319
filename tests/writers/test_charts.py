"""Charts of methods side by side and of sweeps: their bars and points are the plans' figures."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

import loadmaster as lm
from loadmaster.base.drawing import time_ticks
from loadmaster.cli import main
from loadmaster.writers.pictures import comparison, scaling

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def seen():
    return lm.compare("example:lenet", "2xV100-NVLink", ["heft", "data-parallel", "single"])


@pytest.fixture(scope="module")
def swept():
    clusters = [lm.Cluster.named(f"{n}xH100-NVLink") for n in (4, 1, 2)]
    with ThreadPoolExecutor(1) as executor:
        rows = lm.sweep("example:lenet", clusters, ["data-parallel", "heft"], executor=executor)
    return rows.rows, {cluster.digest: cluster.n_devices for cluster in clusters}


def axes():
    from matplotlib.figure import Figure

    return Figure().add_axes((0, 0, 1, 1))


def test_bars_are_step_times_and_lines_are_bounds(seen):
    drawn, rows = axes(), seen.best_first
    comparison._draw_rows(drawn, rows, [""] * len(rows))
    assert [bar.get_width() for bar in drawn.patches] == [plan.makespan for _, plan in rows]
    lines = [line.get_xdata()[0] for line in drawn.lines]
    assert lines[::2] == lines[1::2] == [plan.lower_bound for _, plan in rows]
    assert len({plan.lower_bound for _, plan in rows}) == 2
    assert [t.get_text() for t in drawn.texts if t.get_text()] == [name for name, _ in rows]


def test_notes_say_the_ratio_to_one_device_and_what_does_not_fit():
    methods, small = ["heft", "single"], "2xV100-NVLink"
    beyond = lm.compare("example:inception-v3", small, methods, on_oom="best_effort")
    said = [comparison._note(plan, None) for _, plan in beyond.best_first]
    assert all(note.endswith("DOES NOT FIT") for note in said)
    plan = lm.place("example:lenet", small, "single")
    assert ", 1.00 x one device, at most" in comparison._note(plan, plan.single)


def test_points_are_steps_a_second_of_clusters_by_size(swept):
    rows, devices = swept
    lines = scaling._lines(rows, devices)
    assert list(lines) == ["data-parallel", "heft"]
    for method, points in lines.items():
        assert [n for n, _ in points] == [1, 2, 4]
        here = {devices[row.cluster_sha256]: row.makespan for row in rows if row.method == method}
        assert [rate for _, rate in points] == [1 / here[n] for n in (1, 2, 4)]
    drawn = axes()
    scaling._draw_lines(drawn, lines)
    ideal, real = drawn.lines[0].get_xydata(), drawn.lines[1].get_xydata()
    assert ideal.tolist() == [[1, lines["data-parallel"][0][1]], [4, 4 * real[0][1]]]
    assert real.tolist() == [list(point) for point in lines["data-parallel"]]


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_the_same_results_give_the_same_bytes(seen, swept, tmp_path, suffix):
    for name in "ab":
        comparison.draw(seen, tmp_path / f"{name}.{suffix}")
        scaling.draw(*swept, tmp_path / f"{name}{name}.{suffix}")
    for one, other in (("a", "b"), ("aa", "bb")):
        files = [tmp_path / f"{name}.{suffix}" for name in (one, other)]
        assert files[0].read_bytes() == files[1].read_bytes()


def test_nothing_to_draw_is_said(tmp_path, swept):
    rows, devices = swept
    with pytest.raises(lm.InputError, match="no method made a plan"):
        comparison.draw(type(lm.compare("example:lenet", "2xV100-NVLink", []))({}, {}), "a.png")
    with pytest.raises(lm.InputError, match="no case of the sweep has a plan that fits"):
        scaling.draw([], devices, tmp_path / "a.png")
    with pytest.raises(lm.InputError, match="must end in"):
        scaling.draw(rows, devices, tmp_path / "a.gif")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("span", "words"),
    [
        (0.0, ["0 ns"]),
        (4.2e-3, ["0 ms", "1 ms", "2 ms", "3 ms", "4 ms"]),
        (0.95, ["0 ms", "200 ms", "400 ms", "600 ms", "800 ms"]),
        (12.0, ["0 s", "2 s", "4 s", "6 s", "8 s", "10 s", "12 s"]),
    ],
)
def test_times_have_one_unit(span, words):
    ticks, said = time_ticks(span, 6)
    assert said == words
    assert all(0 <= tick <= span for tick in ticks)


def test_from_the_command_line(tmp_path, capsys):
    chart, curve = str(tmp_path / "chart.svg"), str(tmp_path / "curve.svg")
    common = ["example:lenet", "--cluster", "1xH100-NVLink", "--methods", "heft,single"]
    assert main(["compare", *common, "--chart", chart]) == 0
    assert f"chart written to {chart}" in capsys.readouterr().err
    assert main(["sweep", *common, "--workers", "1", "--chart", curve]) == 0
    assert f"chart written to {curve}; the table is not saved" in capsys.readouterr().err
    assert main(["compare", *common, "--chart", "chart.gif"]) == 2
    assert "must end in .png or .svg" in capsys.readouterr().err
    for path in (chart, curve):
        assert "<svg" in (tmp_path / path).read_text()
