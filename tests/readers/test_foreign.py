"""Files and folders of formats that are not read are called by their names."""

from __future__ import annotations

import json
import struct

import pytest

import loadmaster as lm
from loadmaster.base.errors import InputError
from loadmaster.readers.registry import GRAPHS, reader

WEIGHTS = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
FEEDER = {"workload_graph": [{"Id": 0, "Name": "a", "NodeType": 4, "data_deps": []}]}
JSONIZED = {"id": "1", "name": "a", "type": "COMP_NODE", "dataDeps": ["0"]}
FILES = {
    "tflite": (b"\x1c\0\0\0TFL3" + bytes(64), "TensorFlow Lite.*tf2onnx"),
    "safetensors": (struct.pack("<Q", len(WEIGHTS)) + WEIGHTS + bytes(4), "safetensors.*capture"),
    # specificationVersion 4, a description of one input, a neural network of one layer
    "mlmodel": (b"\x08\x04\x12\x05\x0a\x03\x0a\x01x\xa2\x1f\x02\x0a\x00", "Core ML.*ONNX"),
    "feeder": (json.dumps(FEEDER).encode(), r"Chakra as JSON.*NAME\.RANK\.et"),
    "jsonized": (json.dumps(JSONIZED).encode(), r"Chakra as JSON.*NAME\.RANK\.et"),
}


@pytest.mark.parametrize("name", FILES)
def test_refusals_name_the_format_and_a_way(name, tmp_path):
    content, said = FILES[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=f"{name} is .*{said}"):
        lm.read(tmp_path / name)


@pytest.mark.parametrize("keep", [0, 1, 7, 8, 9, 12])
def test_parts_of_such_files_are_refused_in_words(keep, tmp_path):
    for name, (content, _) in FILES.items():
        (tmp_path / name).write_bytes(content[:keep])
        with pytest.raises(InputError):
            lm.read(tmp_path / name)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (["saved_model.pb", "fingerprint.pb"], "SavedModel folder.*saved_model.pb"),
        (["config.json", "model.safetensors"], "folder of weights.*capture"),
        (["model.onnx", "readme.txt"], "did you mean .*model.onnx"),
        ([], "cannot read .*: Is a directory$"),
    ],
)
def test_folders_are_told(files, said, tmp_path):
    for file in files:
        (tmp_path / file).write_bytes(b"x")
    with pytest.raises(InputError, match=said):
        lm.read(tmp_path)


def test_a_reader_of_a_users_own_comes_first(tmp_path):
    @reader("tflite-of-mine", "a tflite", recognises=lambda file: file.head[4:8] == b"TFL3")
    def read(path):
        return lm.OpGraph({"name": ["mine"]}, {"src": [], "dst": []})

    try:
        (tmp_path / "m").write_bytes(FILES["tflite"][0])
        assert lm.read(tmp_path / "m").names == ["mine"]
    finally:
        del GRAPHS["tflite-of-mine"]
