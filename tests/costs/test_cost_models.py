"""Cost models: times that get from small batches to a large one, and times that are kept up."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from folders import BENCHES, DATA, LARGE
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import optimize, stats

import loadmaster as lm
from loadmaster.costs import CostModel, Entry
from loadmaster.costs.least_squares import nonnegative
from loadmaster.costs.regression import SHAPES, grown
from loadmaster.costs.student import two_sided
from loadmaster.costs.turns import Turns, turns

BATCHES = (1, 2, 4, 6, 8, 12)
SECONDS = st.floats(1e-7, 1.0)


def profile(times, batch=None, device_type="cpu", kinds=None, sizes=None):
    """A profile of ops ``op0``, ``op1``, ... from [n_ops, n_steps] seconds."""
    seconds = np.atleast_2d(np.asarray(times, dtype=float))
    names = tuple(f"op{i}" for i in range(len(seconds)))
    output = None if sizes is None else np.array(sizes, dtype=np.uint64)
    return lm.Profile(names, kinds or ("k",) * len(names), seconds, device_type, batch, output)


def swept(curves, target, batches=BATCHES):
    """A sweep of ops whose seconds are functions of the batch; in the order of the curves."""
    profiles = [profile([[f(b)] for f in curves], b) for b in batches]
    found = lm.costs.sweep(profiles, target)
    order = [found.names.index(f"op{i}") for i in range(len(curves))]
    return found.seconds[order], found.deviation[order], [found.shapes[i] for i in order]


def chain(n, **columns):
    """A graph of ops ``op0`` -> ``op1`` -> ..."""
    names = [f"op{i}" for i in range(n)]
    edges = {"src": range(n - 1), "dst": range(1, n), "bytes": [100] * (n - 1)}
    return lm.OpGraph({"name": names, **columns}, {k: list(v) for k, v in edges.items()})


# -- sweeps ----------------------------------------------------------------------------------------


@given(st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=12), st.integers(13, 500))
def test_lines_without_noise_come_out_exactly(pairs, target):
    seconds, _, _ = swept([lambda b, a=a, s=s: a + s * b for a, s in pairs], target)
    assert seconds == pytest.approx([a + s * target for a, s in pairs], rel=1e-3)


@given(st.lists(SECONDS, min_size=1, max_size=12), st.integers(13, 500))
def test_constants_come_out_exactly(levels, target):
    seconds, deviation, _ = swept([lambda b, a=a: a for a in levels], target)
    assert seconds == pytest.approx(levels, rel=1e-3)
    assert (deviation < 1e-3).all()


@given(
    st.lists(st.tuples(SECONDS, st.floats(2.1, 5.9)), min_size=1, max_size=8),
    st.integers(13, 500),
)
def test_saturation_comes_out_exactly(ops, target):
    """Flat up to a knee that has at least two batches on either side, then as the batch."""
    curves = [lambda b, a=a, knee=knee: a * max(1.0, b / knee) for a, knee in ops]
    seconds, _, _ = swept(curves, target)
    assert seconds == pytest.approx([f(target) for f in curves], rel=1e-3)


@given(
    hnp.arrays(np.float64, st.tuples(st.integers(1, 30), st.integers(2, 6)), elements=SECONDS),
    st.integers(1, 10_000),
)
def test_no_time_is_ever_negative_or_infinite(times, target):
    found = lm.costs.sweep(
        [profile(column[:, None], b) for column, b in zip(times.T, BATCHES, strict=False)], target
    )
    assert (found.seconds > 0).all()
    assert np.isfinite(found.seconds).all()
    assert np.isfinite(found.deviation).all()
    assert (found.deviation >= 0).all()


@given(st.randoms(use_true_random=False))
def test_the_order_of_ops_and_profiles_does_not_matter(random):
    rng = np.random.default_rng(5)
    times = rng.lognormal(-9, 1, (40, 3, 4))
    kinds = tuple(rng.choice(["a", "b", "c"], 40).tolist())
    names = tuple(f"op{i}" for i in range(40))
    sizes = rng.integers(1, 100, 40).astype(np.uint64)
    profiles = [
        lm.Profile(names, kinds, times[:, j], "cpu", b, sizes) for j, b in enumerate((2, 4, 6))
    ]
    order = list(range(40))
    random.shuffle(order)
    shuffled = [
        lm.Profile(
            tuple(names[i] for i in order),
            tuple(kinds[i] for i in order),
            p.seconds[order],
            "cpu",
            p.batch,
            sizes[order],
        )
        for p in profiles
    ]
    random.shuffle(shuffled)
    one, other = lm.costs.sweep(profiles, 16), lm.costs.sweep(shuffled, 16)
    assert one.names == other.names
    assert one.seconds.tolist() == other.seconds.tolist()
    assert one.deviation.tolist() == other.deviation.tolist()


def test_noise_makes_no_op_grow_when_its_kind_does_not():
    """Fifty ops that do the same at every batch: a line per op is off by several times as much."""
    rng = np.random.default_rng(0)
    times = 1e-5 * rng.lognormal(0, 0.1, (50, 3))
    found = lm.costs.sweep([profile(times[:, [j]], b) for j, b in enumerate((2, 4, 6))], 16)
    slope, floor = np.polyfit((2, 4, 6), times.T, 1)
    off = np.abs(found.seconds / 1e-5 - 1)
    lines = np.abs((floor + slope * 16) / 1e-5 - 1)
    assert np.median(off) < np.median(lines) / 3
    assert found.shapes.count("constant") > 40


def test_a_slow_batch_is_the_machines_where_ops_of_constant_size_are_slow_too():
    """Every time of batch 6 is 30 % up, those of ops that never change included."""
    rng = np.random.default_rng(1)
    level = rng.uniform(1e-6, 1e-4, 30)
    profiles = [
        profile((level * slow)[:, None], b, sizes=[64] * 30)
        for b, slow in ((2, 1.0), (4, 1.0), (6, 1.3))
    ]
    found = lm.costs.sweep(profiles, 64)
    expected = dict(zip((f"op{i}" for i in range(30)), level, strict=True))
    ratio = [s / expected[n] for n, s in zip(found.names, found.seconds, strict=True)]
    assert max(ratio) < 1.15


def test_what_is_rounded_to_microseconds_is_as_uncertain_as_that():
    """Ops of 2.4 us at every batch, some measured as 2 and some as 3."""
    rng = np.random.default_rng(6)
    times = np.where(rng.random((60, 3)) < 0.4, 3e-6, 2e-6)
    found = lm.costs.sweep([profile(times[:, [j]], b) for j, b in enumerate((1, 2, 4))], 16)
    assert np.median(found.seconds) < 4e-6
    assert np.median(found.deviation) > 0.1


def test_growth_of_ops_of_constant_size_is_no_drift():
    """Gradients of weights: as large at every batch, and as slow as the batch is large."""
    level = np.linspace(1e-5, 1e-4, 30)
    profiles = [profile((level * b)[:, None], b, sizes=[64] * 30) for b in (2, 4, 6)]
    found = lm.costs.sweep(profiles, 12)
    assert found.seconds.sum() == pytest.approx(12 * level.sum(), rel=0.01)


def test_long_ops_wait_as_long_ops_were_seen_to():
    """On a shared machine what needs more than 1 ms takes three times as long; ops that are shorter
    at the batches measured will be longer at the target.
    """
    rng = np.random.default_rng(2)
    rate = rng.uniform(2e-5, 2e-3, 80)

    def at(batch):
        need = rate * batch
        usual = np.where(need > 1e-3, 3 * need, need)
        return profile(np.stack([need, usual, usual], axis=1), batch)

    found = lm.costs.sweep([at(2), at(4), at(6)], 64)
    truth = dict(zip(at(64).names, at(64).median(), strict=True))
    off = [abs(s / truth[n] - 1) for n, s in zip(found.names, found.seconds, strict=True)]
    assert np.median(off) < 0.05


def test_what_outgrows_a_turn_waits_for_the_next():
    """Work of 10 to 800 us per row, turns of 4 ms and waits as long: at 16 rows some ops wait that
    never did, at 2, 4 and 6 rows others wait already.
    """
    processor = Turns(4e-3, 4e-3)
    rate = np.linspace(10e-6, 800e-6, 60)
    profiles = []
    for batch in (2, 4, 6):
        work = rate * batch
        fastest = work + processor.wait * np.floor(work / processor.run)
        usual = processor.usual(work)
        profiles.append(profile(np.stack([fastest, usual, usual], axis=1), batch))
    found = lm.costs.sweep(profiles, 16)
    order = [found.names.index(f"op{i}") for i in range(len(rate))]
    truth = processor.usual(16 * rate)
    off = np.abs(found.seconds[order] / truth - 1)
    assert np.median(off) < 0.05
    assert np.abs(found.seconds[order] - truth).sum() < 0.1 * truth.sum()


@given(hnp.arrays(np.float64, 40, elements=SECONDS), st.floats(1.0, 1.4))
def test_steps_that_are_nearly_alike_show_no_turns(fastest, ratio):
    assert turns(fastest, ratio * fastest) == (np.inf, 0.0)


def test_waits_shorter_than_any_turn_are_none():
    whole = np.repeat([1e-6, 2e-6, 3e-6], 20)
    assert turns(whole, whole + 2e-6) == (np.inf, 0.0)


@given(hnp.arrays(np.float64, 20, elements=SECONDS), st.floats(1e-3, 1e-2), st.floats(0.3, 6.0))
def test_what_turns_say_of_work_is_no_longer_than_its_steps(fastest, wait, share):
    seen = Turns(share * wait, wait)
    work = seen.work(fastest)
    assert (work > 0).all()
    assert (work <= fastest).all()
    assert (seen.usual(work) >= work).all()


def test_output_bytes_are_lines_and_what_is_on_none_is_named():
    sizes = {2: [64, 128, 10], 4: [64, 256, 40], 8: [64, 512, 90]}
    found = lm.costs.sweep(
        [profile(np.full((3, 1), 1e-3), b, sizes=s) for b, s in sizes.items()], 16
    )
    assert found.output_bytes.tolist()[:2] == [64, 1024]
    assert found.uneven == ("op2",)
    assert "op2" in str(found)


def test_bytes_that_one_batch_tells_are_not_guessed():
    told = profile([[1e-3]], 2, sizes=[64])
    found = lm.costs.sweep([told, profile([[1e-3]], 4)], 16)
    assert found.output_bytes is None


def test_ops_that_take_no_time_go_on_taking_none():
    """As traces in whole microseconds say of half of the ops."""
    times = {2: [[0.0], [0.0], [1e-6]], 4: [[0.0], [1e-6], [2e-6]], 6: [[0.0], [1e-6], [3e-6]]}
    found = lm.costs.sweep([profile(t, b) for b, t in times.items()], 16)
    assert found.seconds[0] == 0
    assert (found.seconds[1:] > 0).all()


def test_a_regression_gives_times_and_sizes_to_a_graph():
    graph = chain(2, output_bytes=[100, 100])
    sizes = {2: [100, 100], 4: [200, 100]}
    found = lm.costs.sweep([profile([[1e-3 * b], [5e-3]], b, sizes=s) for b, s in sizes.items()], 8)
    large = found.graph(graph)
    assert large.output_bytes.tolist() == [400, 100]
    assert large.bytes.tolist() == [400]
    assert large.meta["batch"] == 8
    assert large.time["cpu"].tolist() == pytest.approx([8e-3, 5e-3], rel=0.3)
    assert "regressed" in large.meta["assumed"][0]
    cluster = lm.Cluster.mesh(2, memory="1GiB", bandwidth=1e9, type="cpu")
    assert lm.costs.estimate(large, cluster).shares() == {"regressed": 1.0}


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_graph_at_the_target_batch_is_what_is_traced_there():
    """The LSTM's step at batch 4, and traces of 2, 4 and 8, against its step at 16."""
    folder = DATA / "artifacts" / "torch"
    profiles = [
        p
        for b in (2, 4, 8)
        for p in lm.read_profiles(folder / f"lstm_b{b}.kineto.json.gz", batch=b)
    ]
    found = lm.costs.sweep(profiles, 16)
    large = found.graph(lm.read(folder / "lstm_b4.et.json.gz"))
    traced = lm.read(folder / "lstm_b16.et.json.gz")
    assert "from those at 4" in large.meta["assumed"][-1]
    sizes = [dict(zip(g.names, g.output_bytes.tolist(), strict=True)) for g in (large, traced)]
    both = sizes[0].keys() & sizes[1].keys()
    assert np.mean([sizes[0][name] == sizes[1][name] for name in both]) > 0.98
    edges = [
        {
            (g.names[s], g.names[d]): b
            for s, d, b in zip(g.src.tolist(), g.dst.tolist(), g.bytes.tolist(), strict=True)
        }
        for g in (large, traced)
    ]
    both = edges[0].keys() & edges[1].keys()
    assert len(both) > 200
    assert np.mean([edges[0][edge] == edges[1][edge] for edge in both]) > 0.98


def test_a_graph_of_no_known_batch_is_asked_for_it():
    graph = chain(2, output_bytes=[300, 100])
    found = lm.costs.sweep([profile([[1e-3]] * 2, b, sizes=[100 * b, 100]) for b in (1, 2)], 8)
    with pytest.raises(lm.errors.InputError, match="batch of the graph cannot be told"):
        found.graph(graph)
    assert found.graph(graph, batch=3).output_bytes.tolist() == [800, 100]
    with pytest.raises(lm.errors.InputError, match="batch is 0"):
        found.graph(graph, batch=0)
    assert found.graph(chain(2)).output_bytes.tolist() == [800, 100]


@pytest.mark.parametrize(
    ("profiles", "batch", "words"),
    [
        ([], 16, "no profiles"),
        ([profile([[1.0]], 2)], 16, "all profiles are of batch 2"),
        ([profile([[1.0]], 2), profile([[1.0]], 2)], 16, "all profiles are of batch 2"),
        ([profile([[1.0]], 2), profile([[1.0]])], 16, "profile 1 does not say its batch"),
        ([profile([[1.0]], 2), profile([[1.0]], 4, "gpu")], 16, "cpu and gpu"),
        ([profile([[1.0]], 2), profile([[1.0]], 4, kinds=("x",))], 16, "op 'op0' is 'k'"),
        ([profile([[1.0]], 2), profile([[1.0]], 4)], 0, "batch is 0"),
        ([profile([[1.0]], 2), profile([[1.0]], 4)], 1.5, "batch is 1.5"),
        (
            [profile([[1.0]], 2), replace(profile([[1.0]], 4), names=("other",))],
            16,
            "of different graphs",
        ),
    ],
)
def test_a_sweep_refuses(profiles, batch, words):
    with pytest.raises(lm.errors.InputError, match=words):
        lm.costs.sweep(profiles, batch)


def test_ops_that_some_profile_lacks_are_named():
    few = profile([[1e-3]] * 3, 4)
    found = lm.costs.sweep([profile([[1e-3]] * 4, 2), few], 16)
    assert found.left_out == ("op3",)
    assert "op3" in str(found)


def test_weights_say_which_shapes_count():
    times = np.array([[1.0] * 5, [1.0, 2.0, 3.0, 4.0, 5.0]])
    found = grown(times, times, np.arange(1.0, 6.0), 10.0, np.array([0, 1]), np.zeros(2, bool))
    assert found.weights.sum(axis=1) == pytest.approx([1.0, 1.0])
    assert SHAPES[found.weights[0].argmax()] == "constant"
    assert found.weights[1, 0] < 0.01


@pytest.mark.large_data
def test_what_the_batch_sweeps_show():
    """The measured training steps: a line per op is off by 18 % in the middle."""
    import sys

    sys.path.insert(0, str(BENCHES))
    try:
        import costs
    finally:
        sys.path.pop(0)
    for model in costs.MODELS:
        by_batch = costs.profiles(LARGE / "artifacts", model)
        known = [
            by_batch[b] if b in costs.KNOWN else replace(by_batch[b], output_bytes=None)
            for b in costs.LEARN
        ]
        found = lm.costs.sweep(known, 16)
        seen = lm.costs.trust(found, by_batch[16])
        assert seen.overall.median <= 0.12
        assert seen.bytes_cdf[0.0] >= 0.95


# -- least squares and Student's t -----------------------------------------------------------------


@given(
    hnp.arrays(
        np.float64, st.tuples(st.integers(1, 8), st.integers(1, 5)), elements=st.integers(-90, 90)
    ),
    st.integers(0, 2**32 - 1),
)
def test_least_squares_are_those_of_scipy(columns, seed):
    target = np.random.default_rng(seed).normal(size=len(columns))
    columns = columns / 10
    x = nonnegative(columns, target)
    best = optimize.nnls(columns, target)[1]
    assert (x >= 0).all()
    assert np.linalg.norm(columns @ x - target) <= best + 1e-6


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 7, 10, 30, 200])
@pytest.mark.parametrize("level", [0.2, 0.05, 1e-3, 1e-7])
def test_quantiles_are_those_of_scipy(freedom, level):
    exact = stats.t.isf(level / 2, freedom)
    assert two_sided(level, freedom) == pytest.approx(exact, rel=2e-3)


# -- adaptive models -------------------------------------------------------------------------------


@given(
    hnp.arrays(np.float64, st.tuples(st.just(3), st.integers(2, 12)), elements=SECONDS), st.data()
)
def test_merging_is_measuring_at_once(times, data):
    """In any number of parts and any order."""
    cuts = data.draw(st.lists(st.integers(1, times.shape[1] - 1), unique=True, max_size=4))
    parts = np.split(times, sorted(cuts), axis=1)
    model = CostModel()
    for part in data.draw(st.permutations(parts)):
        model.update(profile(part))
    for i, row in enumerate(times):
        entry = model.entry("cpu", f"op{i}")
        assert entry.steps == len(row)
        assert entry.mean == pytest.approx(row.mean())
        assert entry.squares == pytest.approx(((row - row.mean()) ** 2).sum(), abs=1e-12)


def test_steps_that_did_not_measure_an_op_do_not_count():
    model = CostModel()
    model.update(profile([[1.0, np.nan, 3.0]]))
    assert model.entry("cpu", "op0") == Entry(2.0, 2, 2.0)


def test_a_measurement_replaces_a_regressed_time():
    model = CostModel(batch=16)
    model.put("cpu", "op0", Entry.regressed(1e-3, 0.1))
    update = model.update(profile([[2e-3, 2.1e-3, 1.9e-3]], 16))
    assert model.entry("cpu", "op0").mean == pytest.approx(2e-3)
    assert model.entry("cpu", "op0").steps == 3
    assert [move.name for move in update.moved] == ["op0"]


def test_ops_move_when_they_do_and_not_when_they_do_not():
    rng = np.random.default_rng(3)
    level = rng.uniform(1e-5, 1e-3, 200)
    model = CostModel()
    model.update(profile(level[:, None] * rng.normal(1, 0.05, (200, 20))))
    again = model.update(profile(level[:, None] * rng.normal(1, 0.05, (200, 20))))
    assert again.moved == ()
    changed = level.copy()
    changed[7] *= 1.5
    moved = model.update(profile(changed[:, None] * rng.normal(1, 0.05, (200, 20)))).moved
    assert [move.name for move in moved] == ["op7"]
    assert moved[0].after == pytest.approx(changed[7], rel=0.05)


def test_single_steps_on_both_sides_cannot_tell():
    model = CostModel()
    model.update(profile([[1.0]]))
    update = model.update(profile([[3.0]]))
    assert (update.moved, update.untested) == ((), 1)
    assert "too few steps" in str(update)


def test_the_share_of_false_alarms_is_what_it_says():
    """At most one run in a hundred may call any op moved; none of fifty does."""
    rng = np.random.default_rng(4)
    alarms = 0
    for _ in range(50):
        model = CostModel()
        model.update(profile(1e-3 * rng.normal(1, 0.2, (30, 6))))
        alarms += bool(model.update(profile(1e-3 * rng.normal(1, 0.2, (30, 6)))).moved)
    assert alarms <= 2


def test_costs_say_where_each_time_is_from():
    cluster = lm.Cluster.preset("cpu+gpu")
    cpu, gpu = (t.name for t in cluster.types)
    graph = chain(4, flops=[10**9] * 4, bytes_accessed=[10**6] * 4)
    model = CostModel()
    for device_type in (cpu, gpu):
        model.update(profile([[1e-3]], device_type=device_type))
    model.put(cpu, "op1", Entry.regressed(2e-3, 0.1))
    model.put(gpu, "op1", Entry(1e-3, 3, 0.0))
    model.put(cpu, "op2", Entry(4e-3, 3, 0.0))
    costs = model.costs(graph, cluster)
    words = [lm.costs.PROVENANCES[k] for k in costs.provenance]
    assert words == ["measured", "regressed", "scaled", "roofline"]
    # Known on both types, op0 and op1 take 1 and 2 times as long on the CPU.
    assert costs.time[2] == pytest.approx([4e-3, 4e-3 * 0.75])
    assert sum(costs.shares().values()) == pytest.approx(1.0)


def test_no_op_is_free_in_silence():
    cluster = lm.Cluster.preset("2xV100-NVLink")
    model = CostModel()
    model.update(profile([[1e-3]], device_type=cluster.types[0].name))
    graph = chain(3, kind=["k", "k", "input"])
    with pytest.warns(UserWarning, match="1 op free on .*, 'op1' first"):
        costs = model.costs(graph, cluster)
    assert costs.time[:, 0].tolist() == [1e-3, 0.0, 0.0]


def test_what_is_known_on_one_type_only_is_scaled_by_rooflines():
    cluster = lm.Cluster.preset("cpu+gpu")
    cpu, gpu = cluster.types
    graph = chain(2, flops=[10**10] * 2, bytes_accessed=[10] * 2)
    model = CostModel()
    model.update(profile([[1e-2]] * 2, device_type=cpu.name))
    costs = model.costs(graph, cluster)
    here = [lm.costs.roofline.roofline(graph, t) for t in (cpu, gpu)]
    assert costs.time[:, 1] == pytest.approx(1e-2 * here[1] / here[0])


def test_exploring_takes_the_unknown_for_nothing_as_fastt_does():
    cluster = lm.Cluster.preset("cpu+gpu")
    graph = chain(2, flops=[10**9] * 2)
    model = CostModel()
    model.update(profile([[1e-3], [2e-3]], device_type=cluster.types[0].name))
    costs = model.costs(graph, cluster, explore=True)
    assert costs.time.tolist() == [[1e-3, 0.0], [2e-3, 0.0]]
    assert costs.shares() == {"optimistic": 1.0}


def test_exploring_measures_every_type_in_turn_and_then_settles():
    """FastT's loop: place, measure where ops went, place again, until nothing is new."""
    cluster = lm.Cluster.preset("cpu+gpu")
    cpu, gpu = (t.name for t in cluster.types)
    graph = chain(6)
    truth = {cpu: np.full(6, 1e-3), gpu: np.full(6, 4e-3)}
    model = CostModel()
    model.update(profile(truth[cpu][:, None], device_type=cpu))
    for _ in range(4):
        plan = lm.place(graph, cluster, "heft", model.costs(graph, cluster, explore=True))
        for d, device_type in enumerate((cpu, gpu)):
            here = np.flatnonzero(plan.devices == d)
            if len(here):
                names = tuple(graph.names[i] for i in here)
                seconds = truth[device_type][here][:, None]
                model.update(lm.Profile(names, ("k",) * len(here), seconds, device_type))
    assert (plan.devices == 0).all()
    assert plan.makespan == pytest.approx(6e-3)


def test_place_takes_models_and_regressions():
    graph, cluster = chain(3), lm.Cluster.mesh(2, memory="1GiB", bandwidth=1e9, type="cpu")
    found = lm.costs.sweep([profile([[1e-3 * b]] * 3, b) for b in (1, 2, 3)], 10)
    for costs in (found, found.model()):
        plan = lm.place(graph, cluster, "single", costs)
        assert plan.makespan == pytest.approx(30e-3, rel=0.01)
        assert plan.provenance == {"regressed": 1.0}


def test_a_model_is_saved_and_loaded(tmp_path):
    model = CostModel(batch=4)
    model.update(profile([[1e-3, 2e-3], [3e-3, np.nan]], 4))
    model.put("gpu", "op0", Entry.regressed(1e-4, 0.2))
    for name in ("costs.json", "costs.json.gz"):
        model.save(tmp_path / name)
        again = CostModel.load(tmp_path / name)
        assert again.to_document() == model.to_document()
        assert again.batch == 4
    assert sorted(p.name for p in tmp_path.iterdir()) == ["costs.json", "costs.json.gz"]


def document(**changes):
    table = {"op": ["a"], "mean": [1.0], "steps": [1], "squares": [0.0], **changes}
    return {"format": "loadmaster-costs", "version": 1, "batch": None, "types": {"cpu": table}}


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"format": "other"}, "a cost model"),
        ({**document(), "version": 9}, "version 9"),
        ({**document(), "batch": 0}, "batch is 0"),
        ({**document(), "types": []}, "'types' must be"),
        (document(op=None), "wants the lists"),
        (document(mean=[1.0, 2.0]), "lists of 1, 2"),
        (document(mean=[-1.0]), "op 'a': mean -1.0"),
        (document(mean=["x"]), "op 'a': mean 'x'"),
        (document(steps=[0.5]), "steps 0.5"),
        (document(op=["a", "a"], mean=[1, 1], steps=[1, 1], squares=[0, 0]), "stands twice"),
    ],
)
def test_files_that_are_no_cost_models_are_refused(tmp_path, bad, words):
    path = tmp_path / "costs.json"
    path.write_text(json.dumps(bad))
    with pytest.raises(lm.errors.InputError, match=words):
        CostModel.load(path)


def test_a_model_refuses_what_is_not_its_own():
    cluster = lm.Cluster.mesh(1, memory="1GiB", bandwidth=1e9, type="cpu")
    model = CostModel(batch=8)
    model.update(profile([[1.0]], 8))
    with pytest.raises(lm.errors.InputError, match="batch 8, the profile is of batch 4"):
        model.update(profile([[1.0]], 4))
    with pytest.raises(lm.errors.InputError, match="no op of the graph has a time"):
        model.costs(lm.OpGraph({"name": ["x"]}, {"src": [], "dst": []}), cluster)
    with pytest.raises(lm.errors.InputError, match="device type 'cpu', the cluster has"):
        model.costs(chain(1), lm.Cluster.preset("2xV100-NVLink"))
    with pytest.raises(lm.errors.InputError, match="no time for 1 op on device type 'cpu'"):
        model.costs(chain(2), cluster)


def test_how_names_meet_is_told():
    model = CostModel()
    model.update(profile([[1.0], [1.0]]))
    graph = lm.OpGraph({"name": ["op0", "new"]}, {"src": [0], "dst": [1]})
    join = model.join(graph)
    assert (join.both, join.without, join.unused) == (1, ("new",), ("op1",))
    assert "'new'" in str(join)


# -- the plan to measure with ----------------------------------------------------------------------


def test_the_measuring_plan_uses_the_fewest_devices():
    graph = chain(8, output_bytes=[2**20] * 8, param_bytes=[2**28] * 8)
    cluster = lm.Cluster.mesh(4, memory="1GiB", bandwidth=1e9, type="cpu")
    costs = np.full(8, 1e-3)
    plan = lm.measuring_plan(graph, cluster, costs)
    assert plan.fits
    assert len(set(plan.devices.tolist())) == lm.fit(graph, cluster, costs).fewest == 3


def test_no_measuring_plan_says_what_would_help():
    graph = chain(8, output_bytes=[2**20] * 8, param_bytes=[2**28] * 8)
    cluster = lm.Cluster.mesh(1, memory="1GiB", bandwidth=1e9, type="cpu")
    with pytest.raises(lm.errors.InfeasibleError, match="devices: ") as caught:
        lm.measuring_plan(graph, cluster, np.full(8, 1e-3))
    assert caught.value.shortfall
