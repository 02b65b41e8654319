"""From measurements to costs that are trusted: reports of trust, profiles in CSV, the command."""

from __future__ import annotations

import contextlib
import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import loadmaster as lm
from loadmaster.cli import main
from loadmaster.costs import CostModel, Entry, held_out, trust
from loadmaster.readers.opgraph import write

NAMES = ("op0", "op1", "op2", "op3")
KINDS = ("MatMul", "MatMul", "Relu", "Relu")


def at(batch, *, noise=0.0, device_type="cpu"):
    """A profile of two ops that grow and two that do not."""
    rng = np.random.default_rng(batch)
    level = np.array([1e-4 * batch, 2e-4 * batch, 5e-6, 6e-6])
    seconds = level[:, None] * rng.normal(1, noise, (4, 5))
    sizes = np.array([64 * batch, 64 * batch, 8, 8], dtype=np.uint64)
    return lm.Profile(NAMES, KINDS, seconds, device_type, batch, sizes)


def graph():
    return lm.OpGraph(
        {"name": list(NAMES), "kind": list(KINDS), "output_bytes": [64] * 4},
        {"src": [0, 1, 2], "dst": [1, 2, 3], "bytes": [64] * 3},
        name="tiny",
    )


def cluster():
    return lm.Cluster.mesh(2, memory="1GiB", bandwidth=1e9, latency=1e-5, type="cpu")


# -- trust -----------------------------------------------------------------------------------------


def test_deviations_are_what_they_say():
    model = CostModel()
    for name, seconds in zip(NAMES, (2e-4, 4e-4, 5e-6, 5e-6), strict=True):
        model.put("cpu", name, Entry.regressed(seconds, 0.1))
    seen = trust(model, at(1))
    assert seen.deviation.tolist() == pytest.approx([1.0, 1.0, 0.0, 1 / 6])
    assert seen.overall.mean == pytest.approx((1 + 1 + 0 + 1 / 6) / 4)
    assert seen.overall.weighted == pytest.approx(301 / 311)
    assert seen.overall.bias == pytest.approx((610 - 311) / 311)
    assert list(seen.by_kind) == ["MatMul", "Relu"]
    assert seen.by_kind["MatMul"].share == pytest.approx(300 / 311)
    assert seen.cdf[0.2] == 0.5
    assert seen.cdf[1.0] == 1.0
    assert seen.shares == {"regressed": 1.0}
    json.dumps(seen.to_document(), allow_nan=False)


def test_bytes_are_held_against_bytes():
    seen = trust(lm.costs.sweep([at(2), at(4)], 16), at(16))
    assert seen.bytes_cdf == dict.fromkeys(seen.bytes_cdf, 1.0)
    assert "output bytes are off by 0.0% on average" in str(seen)
    assert seen.to_document()["bytes_mean"] == 0.0


def test_a_sweep_is_tried_on_its_own_largest_batch():
    seen = held_out([at(2), at(4), at(8), at(16)])
    assert seen.measured.sum() == pytest.approx(at(16).median().sum())
    assert seen.overall.median < 0.05
    with pytest.raises(lm.errors.InputError, match="2 batches: to hold one out"):
        held_out([at(2), at(4)])


def test_costs_are_held_against_a_profile_of_their_graph():
    costs = lm.Costs.given([1e-4, 2e-4, 5e-6, 6e-6], graph(), cluster())
    seen = trust(costs, at(1), graph())
    assert seen.overall.mean == pytest.approx(0.0, abs=1e-12)
    assert seen.shares == {"given": 1.0}
    with pytest.raises(lm.errors.InputError, match="give the graph"):
        trust(costs, at(1))


def test_what_cannot_be_compared_is_refused():
    model = CostModel(batch=4)
    model.update(at(4))
    with pytest.raises(lm.errors.InputError, match="predicted is batch 4, measured batch 8"):
        trust(model, at(8))
    with pytest.raises(lm.errors.InputError, match="measured on 'gpu', the costs are for cpu"):
        trust(model, at(4, device_type="gpu"))
    other = lm.Profile(("x",), ("k",), np.ones((1, 1)), "cpu", 4)
    with pytest.raises(lm.errors.InputError, match="1 measured op, none with"):
        trust(model, other)


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_the_picture_is_the_same_each_time(tmp_path, suffix):
    seen = held_out([at(2, noise=0.1), at(4, noise=0.1), at(8, noise=0.1)])
    for name in ("one", "two"):
        seen.draw(tmp_path / f"{name}.{suffix}")
    one, two = ((tmp_path / f"{name}.{suffix}").read_bytes() for name in ("one", "two"))
    assert one == two
    assert len(one) > 5000
    with pytest.raises(lm.errors.InputError, match="must end in"):
        seen.draw(tmp_path / "picture.gif")


# -- profiles in CSV -------------------------------------------------------------------------------


def csv_of(path, *profiles):
    lines = ["op,kind,batch,step,seconds,device_type,output_bytes"]
    for p in profiles:
        for i, name in enumerate(p.names):
            for step, s in enumerate(p.seconds[i]):
                lines.append(
                    f"{name},{p.kinds[i]},{p.batch},{step},{float(s)!r},{p.device_type},"
                    f"{p.output_bytes[i]}"
                )
    Path(path).write_text("\n".join(lines) + "\n")


def test_profiles_come_back_from_csv(tmp_path):
    given_ = [at(2, noise=0.1), at(4, noise=0.1)]
    csv_of(tmp_path / "p.csv", *given_)
    found = lm.read_profiles(tmp_path / "p.csv")
    for one, other in zip(given_, found, strict=True):
        assert (one.names, one.kinds, one.batch) == (other.names, other.kinds, other.batch)
        assert one.seconds.tolist() == other.seconds.tolist()
        assert one.output_bytes.tolist() == other.output_bytes.tolist()


def test_what_a_csv_leaves_out_is_given_or_unknown(tmp_path):
    path = tmp_path / "p.csv"
    path.write_text("op,us,note\na,5,x\nb,7,y\na,6,z\n")
    [found] = lm.read_profiles(path, batch=8, device_type="V100")
    assert (found.batch, found.device_type) == (8, "V100")
    assert found.seconds[0].tolist() == pytest.approx([5e-6, 6e-6])
    assert np.isnan(found.seconds[1, 1])
    assert found.output_bytes is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has the columns none"),
        ("op\na\n", "has the columns op; wants op and seconds"),
        ("name,seconds\na,1\n", "wants op and seconds"),
        ("op,seconds\n", "has no rows"),
        ("op,seconds\na,-1\n", "line 2: op 'a': seconds is '-1'"),
        ("op,seconds\na,nan\n", "line 2: op 'a': seconds is 'nan'"),
        ("op,seconds\na,inf\n", "line 2"),
        ("op,seconds\n,1\n", "line 2: no op"),
        ("op,seconds\na\n", "line 2: op 'a': seconds is None"),
        ("op,seconds,batch\na,1,0\n", "line 2: batch is '0'"),
        ("op,seconds,batch\na,1,two\n", "line 2: batch is 'two'"),
        ("op,seconds,step\na,1,0\na,2,0\n", "line 3: op 'a' stands twice in step 0"),
        ("op,seconds,kind\na,1,x\na,2,y\n", "line 3: op 'a' is 'x' and 'y'"),
        ("op,seconds,output_bytes\na,1,-4\n", "line 2: output_bytes is '-4'"),
        ("op,seconds,output_bytes\na,1,4\na,1,8\n", "line 3: op 'a' puts out 4 and 8"),
        ("{}", "is no profile that is known: measured times are read from .*CSV"),
    ],
)
def test_files_that_are_no_profiles_are_refused(tmp_path, text, words):
    path = tmp_path / "p.csv"
    path.write_text(text)
    with pytest.raises(lm.errors.InputError, match=words):
        lm.read_profiles(path)


@given(st.binary(max_size=300))
def test_no_bytes_make_the_reader_fail_otherwise(data):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "p.csv"
        path.write_bytes(b"op,seconds,step,batch,output_bytes\n" + data)
        with contextlib.suppress(lm.errors.InputError):
            lm.read_profiles(path)


# -- calibrate -------------------------------------------------------------------------------------


def test_small_batches_then_the_large_one():
    found = lm.calibrate(cluster(), graph(), [at(2), at(4), at(6)], batch=16)
    assert found.model.batch == 16
    assert found.shares == {"regressed": 1.0}
    assert "Batch 6, regressed" in found.against
    again = lm.calibrate(cluster(), graph(), [at(16)], model=found.model)
    assert again.shares == {"measured": 1.0}
    assert again.updates[0].known == 4
    whole = lm.calibrate(cluster(), graph(), [at(2), at(4), at(6), at(16)], batch=16)
    assert "Regressed to batch 16" in whole.against
    assert whole.shares == {"measured": 1.0}
    json.dumps(whole.to_document(), allow_nan=False)


def test_each_device_type_is_swept_by_itself():
    profiles = [at(b, device_type=t) for b in (2, 4) for t in ("cpu", "gpu")]
    found = lm.calibrate(cluster(), None, profiles, batch=8)
    assert [r.device_type for r in found.regressions] == ["cpu", "gpu"]
    assert set(found.model.device_types) == {"cpu", "gpu"}


def test_a_first_profile_is_held_against_the_roofline():
    costed = graph().with_columns({"flops": [10**6] * 4, "bytes_accessed": [10**4] * 4})
    place = lm.Cluster.preset("cpu+gpu")
    profile = at(1, device_type=place.types[0].name)
    found = lm.calibrate(place, costed, [profile])
    assert found.trust.shares == {"roofline": 1.0}
    assert "without a profile" in str(found)


def test_a_first_profile_needs_no_roofline():
    found = lm.calibrate(cluster(), graph(), [at(4)])
    assert found.trust is None
    assert found.shares == {"measured": 1.0}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "nothing to learn from"),
        ({"profiles": [at(2), at(4)]}, "profiles of batches 2, 4: give the batch"),
        ({"profiles": [at(2), at(4)], "batch": 8, "model": CostModel()}, "of their own batch only"),
        ({"profiles": [at(2)], "batch": 8}, "all profiles are of batch 2"),
    ],
)
def test_calibrate_refuses(arguments, words):
    with pytest.raises(lm.errors.InputError, match=words):
        lm.calibrate(cluster(), graph(), **arguments)


def test_the_whole_road_by_command(tmp_path, monkeypatch, capsys):
    """Sweep, fit links, place, measure, update, place."""
    monkeypatch.chdir(tmp_path)
    write(graph(), "graph.json")
    cluster().write("given.toml")
    csv_of("small.csv", at(2), at(4), at(6))
    csv_of("large.csv", at(16))
    sizes = [2**k for k in range(10, 24)]
    rows = [f"tcp,{s},{2e-5 + s / 5e8}" for s in sizes]
    Path("links.csv").write_text("\n".join(["method,bytes,seconds", *rows]))

    words = ["calibrate", "graph.json", "--cluster", "given.toml", "--profile", "small.csv"]
    words += ["--to-batch", "16", "--links", "links.csv", "-o", "costs.json"]
    assert main([*words, "--cluster-output", "cluster.toml", "--picture", "trust.svg"]) == 0
    text = capsys.readouterr().out
    assert "4 ops from batches 2, 4, 6 to 16" in text
    assert "Links: " in text
    assert lm.Cluster.read("cluster.toml").links[0].latency == pytest.approx(2e-5)
    assert Path("trust.svg").exists()

    place = ["place", "graph.json", "--cluster", "cluster.toml", "--method", "single", "--json"]
    assert main([*place, "--costs", "costs.json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["provenance"] == {"regressed": 1.0}

    words = ["calibrate", "graph.json", "--cluster", "cluster.toml", "--profile", "large.csv"]
    assert main([*words, "--costs", "costs.json", "-o", "costs.json", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["provenance"] == {"measured": 1.0}
    assert document["updates"][0]["known"] == 4
    assert main([*place, "--costs", "costs.json"]) == 0
    assert json.loads(capsys.readouterr().out)["provenance"] == {"measured": 1.0}
    for command in ("compare", "fit"):
        words = [command, "graph.json", "--cluster", "cluster.toml", "--costs", "costs.json"]
        assert main(words + (["--methods", "single"] if command == "compare" else [])) == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["calibrate"], "nothing to learn from"),
        (["calibrate", "--profile", "missing.csv"], "cannot read missing.csv"),
        (["calibrate", "--profile", "p.csv,batch"], "'batch' is no KEY=VALUE"),
        (["calibrate", "--profile", "p.csv", "--picture", "x.gif"], "must end in"),
        (["calibrate", "--measure-links"], "wants --links"),
        (["calibrate", "--links", "missing.csv"], "cannot read missing.csv"),
        (
            ["calibrate", "--profile", "p.csv", "--costs", "missing.json"],
            "cannot read missing.json",
        ),
        (["place", "example:lenet", "--explore"], "--explore is for --costs"),
        (["place", "example:lenet", "--costs", "p.csv"], "p.csv is not valid JSON"),
    ],
)
def test_bad_commands_are_bad_input(tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    csv_of("p.csv", at(2))
    assert main(words) == 2
    assert message in capsys.readouterr().err


def test_a_profile_argument_names_its_batch_and_options(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("p.csv").write_text("op,seconds\nop0,1\nop1,1\nop2,1\nop3,1\n")
    words = ["calibrate", "--profile", "8=p.csv,device_type=V100", "-o", "costs.json"]
    assert main(words) == 0
    assert "V100: 4 ops measured" in capsys.readouterr().out
    assert CostModel.load("costs.json").batch == 8
