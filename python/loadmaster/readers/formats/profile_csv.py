"""Measured times as CSV: what is no profile of another kind, nor a JSON object."""

from __future__ import annotations

from loadmaster.readers.registry import PROFILES, Reader

PROFILES["csv"] = Reader(
    "CSV", "profile_csv:read", recognises=lambda file: file.text[:1] != b"{", is_last=True
)
