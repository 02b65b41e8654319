"""Measured times as CSV: what is no profile of another kind, nor a JSON object."""

from __future__ import annotations

from loadmaster.readers.registry import Later, profile_reader

profile_reader("csv", "CSV", recognises=lambda file: file.text[:1] != b"{", is_last=True)(
    Later("profile_csv:read")
)
