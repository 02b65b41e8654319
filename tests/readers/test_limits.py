"""Small files that unpack, or are parsed, to more than a machine has: refused by a stated limit."""

from __future__ import annotations

import gzip
import json
import zipfile

import pytest

import loadmaster as lm
from loadmaster.base.errors import InputError
from loadmaster.cli import main
from loadmaster.readers.profiles import read_profiles

MIB = 1 << 20


def limited(path, **options):
    """Reads with 8 MiB allowed; the message says the limit and how to raise it."""
    with pytest.raises(InputError, match="takes more than 8 MiB unpacked and parsed") as caught:
        lm.read(path, max_input="8MiB", **options)
    assert "max_input='" in str(caught.value)
    assert "--max-input " in str(caught.value)


@pytest.mark.parametrize(
    "unit",
    [b" ", b"[],", b"{},", b'{"a":1},', b'"ab",', b"1.5,", '"\U0001f600'.encode() + b"a" * 99],
    ids=["spaces", "lists", "objects", "keys", "texts", "numbers", "wide text"],
)
def test_gzipped_json_counts_with_its_values(tmp_path, unit):
    path = tmp_path / "net.json.gz"
    path.write_bytes(gzip.compress(b'{"format": [' + unit * (10 * MIB // len(unit))))
    assert path.stat().st_size < MIB
    limited(path)


def test_parsed_json_counts_where_its_text_would_do(tmp_path):
    path = tmp_path / "net.json"
    path.write_bytes(b'{"format": [' + b"[]," * MIB + b"[]]}")
    limited(path)
    with pytest.raises(InputError, match="not an opgraph document"):
        lm.read(path, max_input="400MiB")


def test_a_program_of_torch_export(tmp_path):
    path = tmp_path / "net.pt2"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("m/models/model.json", "[" + "[]," * MIB)
    limited(path)


@pytest.mark.parametrize(
    ("unit", "begin"),
    [(b"\n\x00", b""), (b"\n\x03\n\x01a", b""), (b"\x1a\x00", b"\n\x80\x80\x80\x01")],
)
def test_messages_that_take_more_than_their_bytes(tmp_path, unit, begin):
    pytest.importorskip("google.protobuf")
    path = tmp_path / "net.pb"
    path.write_bytes(begin + unit * (MIB // len(unit)))
    limited(path)


@pytest.mark.parametrize("begin", ["HloModule m\n", "module @m {\n"])
def test_lines_of_programs(tmp_path, begin):
    path = tmp_path / "net.txt.gz"
    path.write_bytes(gzip.compress((begin + "%a\n" * 10_000).encode()))
    limited(path)


def test_tables(tmp_path):
    path = tmp_path / "profile.csv.gz"
    path.write_bytes(gzip.compress(b"op,us\n" + b"a,1\n" * 50_000))
    with pytest.raises(InputError, match="takes more than 8 MiB"):
        read_profiles(path, max_input="8MiB")


def test_a_tiny_tensor_takes_its_own_bytes_of_a_large_file(tmp_path, monkeypatch):
    onnx = pytest.importorskip("onnx")
    helper = onnx.helper
    shape = helper.make_tensor("shape", onnx.TensorProto.INT64, [2], [4, 2])
    shape.ClearField("int64_data")
    shape.data_location = onnx.TensorProto.EXTERNAL
    shape.external_data.add(key="location", value="weights.bin")
    graph = helper.make_graph(
        [helper.make_node("Reshape", ["x", "shape"], ["y"], "reshaped")],
        "g",
        [helper.make_tensor_value_info("x", 1, [8])],
        [helper.make_tensor_value_info("y", 1, None)],
        [shape],
    )
    path = tmp_path / "net.onnx"
    path.write_bytes(helper.make_model(graph).SerializeToString())
    with open(tmp_path / "weights.bin", "wb") as file:
        file.write((4).to_bytes(8, "little") + (2).to_bytes(8, "little"))
        file.truncate(1 << 40)  # Sparse: a TiB that is not there.
    found = lm.read(path)
    assert found.outputs[found.names.index("reshaped")] == "f32[4,2]"


def test_what_is_meant_is_read(tmp_path):
    path = tmp_path / "net.json"
    document = lm.read("example:lenet").to_document()
    path.write_text(json.dumps(document))
    limits = ("1KiB", 1024)
    for limit in limits:
        with pytest.raises(InputError, match=r"net\.json takes more than 1 KiB"):
            lm.read(path, max_input=limit)
    assert lm.read(path).n_ops == lm.read(path, max_input="1GiB").n_ops == 104
    with pytest.raises(InputError, match="max_input is 'much'"):
        lm.read(path, max_input="much")


def test_the_command_line_has_the_limit(tmp_path, capsys):
    path, plan = tmp_path / "net.json", tmp_path / "plan.json"
    path.write_text(json.dumps(lm.read("example:lenet").to_document()))
    assert main(["place", str(path), "--max-input", "1KiB"]) == 2
    assert "takes more than 1 KiB" in capsys.readouterr().err
    assert main(["place", str(path), "--method", "heft", "-o", str(plan)]) == 0
    assert main(["simulate", str(plan), "--max-input", "1KiB"]) == 2
    assert "plan.json takes more than 1 KiB" in capsys.readouterr().err
    assert main(["simulate", str(plan), "--max-input", "1GiB"]) == 0
    with pytest.raises(InputError, match="takes more than 1 KiB"):
        lm.Plan.load(plan, max_input="1KiB")
