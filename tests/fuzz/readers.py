"""Every reader, on files that were good before they were mutated.

A reader of programs in memory has no target: what it is given is no file.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import loadmaster as lm
from loadmaster.readers.planners import saga
from loadmaster.readers.planners.msr import cluster as msr_cluster
from loadmaster.readers.profiles import read_profiles

from .files import CORPUS, Mutated, add
from .frame import refused
from .mutations import binary, json_text, plain_text, protobuf, protobuf_or_text


def _placed(graph: lm.OpGraph) -> None:
    """What was read is a graph that a method places, or refuses in words."""
    if graph.n_ops < 300:
        types = [name for name in graph.time if name != "*"] or ["V100"]
        cluster = lm.Cluster.mesh(2, type=types[0], memory="16GiB", bandwidth=1e10)
        with refused():
            lm.place(graph, cluster, "celeritas", on_oom="best_effort").summary()


def _read(**options: Any) -> Callable[[Path], None]:
    return lambda path: _placed(lm.read(path, **options))


def _times(name: str) -> Callable[[Path], None]:
    """Reads measured times with the graph that goes with them, and alone."""
    graph = CORPUS / "graphs" / name

    def read(path: Path) -> None:
        with refused():
            _placed(lm.read(graph, profile=path))
        read_profiles(path, graph=graph)

    return read


def _kineto(path: Path) -> None:
    _placed(lm.read(path))
    read_profiles(path)


def _msr(path: Path) -> None:
    units = {"time_unit": "ms", "size_unit": "B"}
    _placed(lm.read(path, **units))
    msr_cluster(path, **units)


def _saga(path: Path) -> None:
    graph = lm.read(path)
    with refused():
        lm.place(graph, saga.cluster(path), "heft").summary()


def _torch_export(data: bytes, others: list[bytes], random: Random) -> bytes:
    """A program whose JSON is mutated, in its archive; or its archive mutated."""
    if random.random() < 0.2:
        return binary(archive(data), [archive(random.choice(others))], random)
    return archive(json_text(data, others, random))


def archive(program: bytes) -> bytes:
    """The file that torch.export.save makes of a program's JSON, without weights."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("m/models/model.json", program)
    return file.getvalue()


#: By format: what reads a file of it, and how such files are mutated.
FORMATS: dict[str, tuple[Callable[[Path], Any], Mutated]] = {
    "opgraph": (_read(), json_text),
    "onnx": (_read(batch=2), protobuf),
    "onnx-runtime": (_times("onnx-runtime"), json_text),
    "tensorflow": (_read(), protobuf_or_text),
    "tensorflow-run": (_times("tensorflow-run"), protobuf),
    "stablehlo": (_read(), plain_text),
    "hlo": (_read(), plain_text),
    "openvino": (_read(), plain_text),
    "jax-trace": (_times("jax-trace"), json_text),
    "kineto": (_kineto, json_text),
    "chakra": (_read(), json_text),
    "chakra-et": (_read(), protobuf),
    "saga": (_saga, json_text),
    "torch-export": (_read(batch=2), _torch_export),
    "msr-fiddle": (_msr, json_text),
    "csv": (read_profiles, plain_text),
}

for _name, (_how, _mutate) in FORMATS.items():
    add(_name, _how, _mutate)
