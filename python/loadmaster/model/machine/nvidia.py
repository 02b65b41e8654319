"""GPUs and the links between them, read from the text of nvidia-smi."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

#: Commands whose outputs the functions here read.
QUERY = (
    "nvidia-smi",
    "--query-gpu=index,name,memory.total,pcie.link.gen.max,pcie.link.width.max",
    "--format=csv",
)
TOPOLOGY = ("nvidia-smi", "topo", "-m")
PEERS = ("nvidia-smi", "topo", "-p2p", "r")
NVLINKS = ("nvidia-smi", "nvlink", "-s")

#: Escape sequences that a terminal obeys; the header of a matrix is underlined.
_STYLE = re.compile("\x1b\\[[0-9;]*m")

_GPU = re.compile(r"GPU(\d{1,4})")
_OF_GPU = re.compile(r"GPU (\d{1,4}):")
_LANE = re.compile(r"\s*Link \d+: (\d{1,6}(?:\.\d{1,6})?) GB/s")


@dataclass(frozen=True)
class Gpu:
    """A GPU as a tool lists it: ``memory`` in bytes, PCIe ``generation`` and ``lanes``; None: not
    told.
    """

    name: str
    memory: int | None = None
    generation: int | None = None
    lanes: int | None = None


def gpus(text: str) -> list[Gpu]:
    r"""The GPUs of ``--query-gpu ... --format=csv``, with a header that names the columns.

    >>> gpus("name, memory.total [MiB], pcie.link.gen.max\nNVIDIA L4, 23034 MiB, 4\n")
    [Gpu(name='NVIDIA L4', memory=24152899584, generation=4, lanes=None)]
    """
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        return []
    columns = [cell.split("[")[0].strip() for cell in lines[0].split(",")]
    if "name" not in columns:
        return []
    listed = []
    for line in lines[1:]:
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == len(columns):
            row = dict(zip(columns, cells, strict=True))
            memory = _whole(row.get("memory.total", ""))
            listed.append(
                Gpu(
                    row["name"],
                    None if memory is None else memory << 20,
                    _whole(row.get("pcie.link.gen.max", "")),
                    _whole(row.get("pcie.link.width.max", "")),
                )
            )
    return listed


def _whole(cell: str) -> int | None:
    """The number that a cell begins with; None where it has none (``[N/A]``)."""
    number = cell.partition(" ")[0]
    return int(number) if number.isdecimal() and len(number) < 13 else None


def matrix(text: str) -> dict[tuple[int, int], str]:
    r"""The entries between GPUs of ``topo -m`` or ``topo -p2p``, by pairs of their numbers.

    >>> matrix("\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV4\t0-7\nGPU1\tNV4\t X \t0-7\n")
    {(0, 1): 'NV4', (1, 0): 'NV4'}
    """
    entries: dict[tuple[int, int], str] = {}
    columns: list[str] = []
    for line in _STYLE.sub("", text).splitlines():
        words = line.split()
        if not columns:
            if words and _GPU.fullmatch(words[0]):
                columns = words[: words.index("CPU")] if "CPU" in words else words
            continue
        of_row = _GPU.fullmatch(words[0]) if words else None
        if of_row is None:
            continue
        for column, entry in zip(columns, words[1:], strict=False):
            of_column = _GPU.fullmatch(column)
            if of_column is not None and of_row[1] != of_column[1]:
                entries[int(of_row[1]), int(of_column[1])] = entry
    return entries


def lanes(text: str) -> Mapping[int, list[float]]:
    r"""B/s of each NVLink that is up, by GPU, of ``nvlink -s``.

    >>> lanes("GPU 0: Tesla V100 (UUID: ...)\n\t Link 0: 25.781 GB/s\n\t Link 1: <inactive>\n")
    {0: [25781000000.0]}
    """
    by_gpu: dict[int, list[float]] = {}
    gpu = -1
    for line in text.splitlines():
        if of_gpu := _OF_GPU.match(line):
            gpu = int(of_gpu[1])
            by_gpu[gpu] = []
        elif (lane := _LANE.match(line)) and gpu >= 0:
            by_gpu[gpu].append(float(lane[1]) * 1e9)
    return by_gpu
