"""Arrays in memory that processes share."""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from loadmaster.base.files import system_errors

#: Bytes to whose multiples arrays are aligned: a cache line, and the widest vector.
_ALIGNED = 64


@dataclass(frozen=True)
class ArraySpec:
    """The dtype of an array, as numpy writes it, and its shape."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """The bytes of its elements."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True)
class Location:
    """The place of an array: what it is, and its first byte."""

    spec: ArraySpec
    offset: int


class SharedArrays:
    """Arrays in memory that has no name, which whoever is handed its descriptor shares.

    The memory is gone with the last process that has it, however that ends.

    Parameters
    ----------
    places : mapping of str to Location
    descriptor : int
        Of the memory.

    Examples
    --------
    >>> arrays = SharedArrays.made({"x": ArraySpec("<f4", (2, 3)), "n": ArraySpec("<u8", ())})
    >>> again = SharedArrays(arrays.places, arrays.descriptor)
    >>> arrays.close()
    >>> again["x"][1, 2] = 5
    >>> float(arrays["x"].sum())
    5.0
    """

    def __init__(self, places: Mapping[str, Location], descriptor: int) -> None:
        self.places, self.descriptor = places, descriptor
        self._memory = mmap.mmap(descriptor, 0)

    @classmethod
    def made(
        cls,
        arrays: Mapping[str, ArraySpec],
        buffers: Mapping[str, int] | None = None,
    ) -> SharedArrays:
        """Room for arrays of these dtypes and shapes, all 0.

        Parameters
        ----------
        arrays
            Dtype and shape by name.
        buffers : optional
            Arrays with the same number lie in the same memory; those with none have their own.

        Raises
        ------
        InputError
            There is not so much memory.
        """
        room: dict[str | int, int] = {}
        of = {name: (buffers or {}).get(name, name) for name in arrays}
        for name, spec in arrays.items():
            aligned = max(-(-spec.nbytes // _ALIGNED), 1) * _ALIGNED
            room[of[name]] = max(aligned, room.get(of[name], 0))
        begins = dict(zip(room, accumulate(room.values(), initial=0), strict=False))
        places = {name: Location(spec, begins[of[name]]) for name, spec in arrays.items()}
        size = sum(room.values())
        with system_errors(f"cannot share {size} bytes of memory"):
            descriptor = os.memfd_create("loadmaster")
            os.truncate(descriptor, max(size, _ALIGNED))
            return cls(places, descriptor)

    def close(self) -> None:
        """Closes the descriptor, after which the memory can be handed to nobody else."""
        os.close(self.descriptor)

    def __getitem__(self, name: str) -> NDArray[np.generic]:
        """One of the arrays, which all that share it read and write."""
        place = self.places[name]
        return np.ndarray(place.spec.shape, place.spec.dtype, self._memory, place.offset)
