"""Tapes: the calls of a step, recorded and replayed."""
