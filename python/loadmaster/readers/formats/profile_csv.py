"""Measured times as CSV: what is no profile of another kind, nor a JSON object."""

from __future__ import annotations

import os

from loadmaster.model.profile import Profile
from loadmaster.readers.registry import profile_reader


@profile_reader("csv", "CSV", recognises=lambda file: file.text[:1] != b"{", is_last=True)
def read(
    path: str | os.PathLike[str], *, batch: int | None = None, device_type: str | None = None
) -> list[Profile]:
    """As :func:`loadmaster.readers.profile_csv.read`."""
    from loadmaster.readers import profile_csv

    return profile_csv.read(path, batch=batch, device_type=device_type)
