"""Readers: from files to :class:`~loadmaster.model.graph.OpGraph`, told apart by content."""

from loadmaster.readers.reading import read
from loadmaster.readers.registry import File, profile_reader, reader

__all__ = ["File", "profile_reader", "read", "reader"]
