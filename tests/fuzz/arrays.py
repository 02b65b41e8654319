"""The functions of ``loadmaster.fast`` on arrays of any type, shape and value."""

from __future__ import annotations

import contextlib
from random import Random

import numpy as np

from loadmaster import fast
from loadmaster.base.errors import LoadmasterError

from .frame import target


@target("arrays", in_ci=2000)
def one(random: Random) -> None:
    """A graph of random arrays."""
    n = random.randint(0, 9)
    src, dst = (np.array([random.randint(-1, 9) for _ in range(n)]) for _ in range(2))
    with contextlib.suppress(ValueError, LoadmasterError):
        fast.Graph(n, src, dst)
