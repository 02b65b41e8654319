"""The place of each device of a plan on this machine: words such as ``cpu:0-3``."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from loadmaster.base.errors import InputError
from loadmaster.base.text import shown
from loadmaster.model.cluster import Cluster

#: The words of a place, and what they mean.
KINDS = {"cpu": "a worker process", "thread": "a thread of this process", "cuda": "a GPU"}


#: Seconds for which a worker that waits for others keeps its core where no other worker has it. It
#: would be told of what arrives some 10 us late if it napped, and few waits of a step are longer.
OWN_CORE = 2e-3


@dataclass(frozen=True, slots=True)
class DevicePlace:
    """A kind of `KINDS`, and the cores that it has, or the number of the GPU."""

    kind: str
    cores: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.kind}:{','.join(map(str, self.cores))}"


def place_of(text: str) -> DevicePlace:
    """A place in words.

    Raises
    ------
    InputError
        Other words, or a core that this process may not use.

    >>> place_of("cpu:0").cores
    (0,)
    """
    parsed = re.fullmatch(r"(\w+):(\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*)", str(text))
    if parsed is None or parsed[1] not in KINDS:
        raise InputError(
            f"a device cannot be {shown(text)}: wants cpu:0, cpu:0-3, thread:0 or cuda:0"
        )
    cores: list[int] = []
    for part in parsed[2].split(","):
        first, _, last = part.partition("-")
        cores += range(int(first), min(int(last or first), 2**16) + 1)
    if parsed[1] == "cuda":
        if len(cores) != 1:
            raise InputError(f"{shown(text)}: a device is one GPU, such as cuda:0, or a part of it")
        return DevicePlace("cuda", tuple(cores))
    there = usable_cores()
    missing = next((core for core in cores if core not in there), None)
    if missing is not None or not cores:
        some = f"{there[0]}-{there[-1]}" if there[-1] - there[0] == len(there) - 1 else str(there)
        raise InputError(f"{shown(text)}: this process may use cores {some}")
    return DevicePlace(parsed[1], tuple(dict.fromkeys(cores)))


def places_of(cluster: Cluster, on: Mapping[str, str] | None) -> list[DevicePlace]:
    """The place of every device: as said, or worker processes on the cores there are, in turn.

    Raises
    ------
    InputError
        A device that the cluster does not have, one that is not said, two kinds of places.
    """
    names = [device.name for device in cluster.devices]
    if on is None:
        cores = usable_cores()
        return [DevicePlace("cpu", (cores[i % len(cores)],)) for i in range(len(names))]
    for name in on:
        cluster.index(name)
    missing = [name for name in names if name not in on]
    if missing:
        raise InputError(f"on= does not say what {missing[0]} is: it must name every device")
    places = [place_of(on[name]) for name in names]
    if len({place.kind for place in places}) > 1:
        raise InputError("on= mixes kinds of places: all devices must be of one")
    return places


def are_apart(cores: Iterable[Sequence[int]]) -> bool:
    """True if no core is named twice.

    >>> are_apart([(0, 1), (2,)]), are_apart([(0, 1), (1,)])
    (True, False)
    """
    used = [core for each in cores for core in each]
    return len(set(used)) == len(used)


def usable_cores() -> list[int]:
    """The cores that this process may use, ascending."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))
